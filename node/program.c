/* See program.h. */
#include "node/program.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/version.h"
#include "kvtransfer/xfer_fault.h"
#include "node/health.h"
#include "proto/address.h"
#include "proto/rpc/rpc_fault.h"

struct program {
    const struct node_program *of;
    struct node_options options;
    struct loop *loop;
    struct rpc *rpc;
    struct metrics *metrics;
    struct faults *faults; /* NULL but in tests of test builds */
    struct health *health;
    struct node *node;
    char name[256];
    struct loop_signals signals;
    int signals_caught;
    int exit_code;
    char version[512];

    /* the loader's, until `loaded` is woken */
    pthread_t loader;
    bool loading;
    struct loop_waker loaded, engine_waker;
    struct model_file *model;
    struct engine *engine;
    struct engine_limits limits;
    bool limits_known;
    struct err load_err;
    enum status load_status;
};

/* One line on stderr: what is wrong, for the user and for whoever started this program. */
static int fail(struct program *program, const struct err *err)
{
    fprintf(stderr, "%s: %s\n", program->of->name, err->message);
    program->exit_code = err->code == STATUS_CONFIG ? EXIT_CODE_USAGE : EXIT_CODE_FAILED;
    return program->exit_code;
}

/* --- loading --- */

/* Before the engine is there: who measures wants all of its threads. A node works without. */
static void limits_load(struct program *program, const struct engine_options *options)
{
    char path[4096];
    const char *file = program->options.peaks;
    struct kern_peaks peaks;
    struct err err = ERR_INIT;
    bool measured;
    if (!strcmp(file, "off"))
        return;
    if (!strcmp(file, "auto"))
        file = engine_peaks_file(path, sizeof path) ? path : NULL;
    if (engine_peaks(options, file, &peaks, &measured, &err) ||
        engine_limits(options, program->model, &peaks, &program->limits, &err)) {
        log_warn("what this machine allows is not known: %s", err.message);
        return;
    }
    program->limits_known = true;
    log_info("this machine: layers %.0f GOP/s, attention %.0f GOP/s, reading %.1f GB/s (%s)",
             program->limits.peaks.layer_ops / 1e9, program->limits.peaks.attention_ops / 1e9,
             program->limits.peaks.bytes / 1e9, measured ? "measured now" : "measured before");
}

static void *loader_run(void *context)
{
    struct program *program = context;
    const struct node_options *o = &program->options;
    program->load_status = model_open(o->model, &program->model, &program->load_err);
    if (!program->load_status) {
        struct engine_options options = {
            .backend = node_options_backend(o),
            .isa = o->isa,
            .compute = (enum kern_compute)o->compute,
            .kv_type = (enum kern_kv_type)o->kv_type,
            .threads = (unsigned)o->threads,
            .cpus = o->cpus,
            .numa = o->numa == 0,
            .page_tokens = (uint32_t)o->page_tokens,
            .kv_pages = (uint32_t)o->kv_pages,
            .kv_bytes = o->kv_memory,
            .layer_run = (uint32_t)o->layer_run,
            .context_tokens = (uint32_t)o->context_tokens,
            .rows_max = (uint32_t)o->batch_tokens,
            .seqs_max = (uint32_t)o->sequences_max,
        };
        limits_load(program, &options);
        program->load_status =
            engine_create(&options, program->model, &program->engine, &program->load_err);
    }
    loop_waker_wake(&program->loaded);
    return NULL;
}

static enum status ucx_make(void *context, const struct xfer_handler *handler,
                            struct xfer **xfer_out, struct err *err)
{
    const struct node_options *o = context;
    struct xfer_options options = {.transport = (enum xfer_transport)o->transport,
                                   .interface = o->kv_interface,
                                   .port_range = o->kv_ports,
                                   .peers_max = 2 * PEERS_MAX,
                                   .filter = o->kv_filter};
    return xfer_ucx_create(&options, handler, xfer_out, err);
}

/* With faults (test builds) between the node and the network. */
static enum status transport_make(void *context, const struct xfer_handler *handler,
                                  struct xfer **xfer_out, struct err *err)
{
    struct program *program = context;
    const struct xfer_fault_options options = {.peers_max = 2 * PEERS_MAX};
    if (!program->faults)
        return ucx_make(&program->options, handler, xfer_out, err);
    return xfer_fault_create(program->faults, &options, ucx_make, &program->options, handler,
                             xfer_out, err);
}

static void refused(void *context, const struct err *err)
{
    struct program *program = context;
    fail(program, err);
    program->exit_code = EXIT_CODE_FAILED;
    loop_stop(program->loop);
}

static void left(void *context)
{
    struct program *program = context;
    log_info("left");
    loop_stop(program->loop);
}

static enum status node_begin(struct program *program, struct err *err)
{
    struct node_parts parts = {
        .loop = program->loop,
        .rpc = program->rpc,
        .options = &program->options,
        .model = program->model,
        .engine = program->engine,
        .limits = program->limits_known ? &program->limits : NULL,
        .engine_waker = &program->engine_waker,
        .metrics = program->metrics,
        .prefill = program->of->prefill,
        .decode = program->of->decode,
        .transport = {.make = transport_make, .context = program},
        .faults = program->faults,
        .name = program->name,
        .grpc_address = health_grpc_address(program->health),
        .http_address = health_http_address(program->health),
        .refused = refused,
        .left = left,
        .context = program,
    };
    enum status status = node_create(&parts, &program->node, err);
    if (!status)
        status = metrics_status(program->metrics, err);
    if (status)
        return status;
    health_set_node(program->health, program->node);
    const struct engine_info *info = engine_info(program->engine);
    log_info("%s: %s on %s, %s, %u pages of %u tokens, KV over %s", program->name,
             program->model->config.name, info->device, info->arithmetic, info->page_count,
             info->page_tokens, xfer_describe(kv_links_xfer(program->node->links)));
    const char *warning = xfer_warning(kv_links_xfer(program->node->links));
    if (warning)
        log_warn("%s", warning);
    node_start(program->node);
    return STATUS_OK;
}

static void loader_done(void *context)
{
    struct program *program = context;
    pthread_join(program->loader, NULL);
    program->loading = false;
    struct err err = program->load_err;
    if (program->signals_caught || program->load_status || node_begin(program, &err)) {
        if (!program->signals_caught)
            fail(program, &err);
        loop_stop(program->loop);
    }
}

/* --- signals --- */

static void signal_caught(void *context, int number)
{
    struct program *program = context;
    program->signals_caught++;
    if (program->loading) {
        log_info("%s: leaving once the model is loaded", strsignal(number));
        return; /* loader_done stops */
    }
    if (!program->node || program->signals_caught > 1) {
        loop_stop(program->loop);
        return;
    }
    log_info("%s: draining", strsignal(number));
    node_drain(program->node, program->options.grace_ns);
}

/* --- start and end --- */

static void name_make(struct program *program)
{
    char host[128] = "node";
    gethostname(host, sizeof host - 1);
    const char *port = strrchr(health_grpc_address(program->health), ':');
    if (program->options.name)
        snprintf(program->name, sizeof program->name, "%s", program->options.name);
    else
        snprintf(program->name, sizeof program->name, "%s-%.32s-%s",
                 node_role_text((enum node_role)program->options.role), host, port + 1);
}

static void engine_woken(void *context)
{
    (void)context; /* the node looks at its engine in every round */
}

/* Test builds only. */
static enum status faults_start(struct program *program, struct err *err)
{
    enum status status = faults_create(program->options.faults, &program->faults, err);
    if (!status)
        status =
            rpc_fault_start(program->rpc, "/baton.node.v1.Registry/Connect", program->faults, err);
    if (status)
        return status;
    faults_declare(program->faults, program->metrics);
    log_warn("faults are injected: %s", program->options.faults);
    return STATUS_OK;
}

static enum status start(struct program *program, struct err *err)
{
    static const int numbers[] = {SIGTERM, SIGINT, 0};
    signal(SIGPIPE, SIG_IGN);
    enum status status = loop_create(&program->loop, err);
    if (!status)
        status = loop_signals_start(program->loop, &program->signals, numbers, signal_caught,
                                    program, err);
    if (!status)
        status = loop_waker_init(program->loop, &program->loaded, loader_done, program, err);
    if (!status)
        status = loop_waker_init(program->loop, &program->engine_waker, engine_woken, NULL, err);
    if (!status)
        status = rpc_create(program->loop, &program->rpc, err);
    if (!status)
        status = metrics_create(&program->metrics, err);
    if (!status && program->options.faults)
        status = faults_start(program, err);
    if (!status)
        status = health_create(program->loop, program->rpc, program->metrics, &program->options,
                               &program->health, err);
    if (status)
        return status;
    name_make(program);
    status =
        address_file_write(program->options.grpc_file, health_grpc_address(program->health), err);
    if (!status)
        status = address_file_write(program->options.http_file,
                                    health_http_address(program->health), err);
    if (status)
        return status;
    program->loading = true;
    if (pthread_create(&program->loader, NULL, loader_run, program)) {
        program->loading = false;
        return err_set(err, STATUS_MEMORY, "no thread to load the model");
    }
    return STATUS_OK;
}

static void finish(struct program *program)
{
    if (program->loading)
        pthread_join(program->loader, NULL);
    if (program->health)
        health_set_node(program->health, NULL);
    node_destroy(program->node);
    health_close(program->health);
    if (program->rpc)
        rpc_destroy(program->rpc);
    health_free(program->health);
    engine_destroy(program->engine);
    model_close(program->model);
    metrics_destroy(program->metrics);
    if (program->loop) {
        loop_waker_finish(&program->loaded);
        loop_waker_finish(&program->engine_waker);
        loop_signals_stop(&program->signals);
    }
    loop_destroy(program->loop);
    faults_destroy(program->faults);
}

int node_program_run(const struct node_program *of, int argc, char **argv)
{
    struct program program = {.of = of, .load_err = ERR_INIT};
    snprintf(program.version, sizeof program.version,
             "%s " VERSION_NUMBER " (%s)\nbackends: cpu, opaque\ngRPC %s, UCX %s", of->name,
             version_commit, rpc_library_version(), xfer_ucx_version());
    const struct config_schema *schema =
        node_options_schema(of->name, of->section, of->role, program.version);
    struct config *config;
    int exit_code;
    if (!config_start(schema, argc, argv, &program.options, &config, &exit_code))
        return exit_code;
    log_init(of->name, (enum log_level)program.options.log_level);
    struct err err = ERR_INIT;
    if (node_options_check(&program.options, &err) || start(&program, &err))
        fail(&program, &err);
    else
        loop_run(program.loop);
    finish(&program);
    config_destroy(config);
    return program.exit_code;
}
