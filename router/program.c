/* See program.h. */
#include "router/program.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/version.h"
#include "proto/address.h"
#include "proto/http/http.h"
#include "proto/rpc/health.h"
#include "proto/rpc/reflection.h"
#include "router/cache_key.h"
#include "proto/rpc/rpc_fault.h"
#include "router/cluster.h"
#include "router/generate.h"
#include "router/node_streams.h"
#include "router/options.h"

static const uint64_t tick_ns = 50 * NS_PER_MS;
static const uint64_t last_words_ns = NS_PER_S; /* for statuses to reach clients at the end */

struct program {
    struct router_options options;
    char version[256];
    struct loop *loop;
    struct rpc *rpc;
    struct metrics *metrics;
    struct faults *faults; /* NULL but in tests of test builds */
    struct model_file *model;
    struct router_stats stats;
    struct core core;
    struct checker checker;
    struct generate generate;
    struct node_streams node_streams;
    struct cluster cluster;
    struct rpc_server *clients, *nodes;
    struct rpc_health *health;
    struct rpc_reflection *reflection;
    struct http_server *http;
    struct loop_hook schedule;
    struct loop_timer tick, grace;
    struct loop_signals signals;
    int signals_caught;
    bool core_ready;
    int exit_code;
};

static int fail(struct program *program, const struct err *err)
{
    fprintf(stderr, "baton-router: %s\n", err->message);
    program->exit_code = err->code == STATUS_CONFIG ? EXIT_CODE_USAGE : EXIT_CODE_FAILED;
    return program->exit_code;
}

/* --- the loop's rounds --- */

static void now(struct program *program)
{
    core_time(&program->core, loop_now_ns(program->loop), loop_late_total_ns(program->loop));
}

static bool schedule_run(void *context)
{
    struct program *program = context;
    if (program->core.dirty || program->core.registry.doomed) {
        now(program);
        core_schedule(&program->core);
        cluster_tick(&program->cluster);
    }
    return false;
}

static void tick_due(void *context)
{
    struct program *program = context;
    now(program);
    core_tick(&program->core);
    generate_tick(&program->generate);
    cluster_tick(&program->cluster);
    loop_timer_set(&program->tick, loop_now_ns(program->loop) + tick_ns);
}

static bool ready(void *context, struct buf *reason)
{
    struct program *program = context;
    if (program->cluster.serving)
        return true;
    buf_append_text(reason, program->core.draining ? "draining\n" : "no node can serve\n");
    return false;
}

static void note(void *context, const struct node *node, const char *text)
{
    (void)context;
    if (node)
        log_info("node %s: %s", node->name, text);
    else
        log_warn("%s", text);
}

/* --- the end --- */

static void clients_gone(void *context)
{
    struct program *program = context;
    log_info("drained");
    loop_stop(program->loop);
}

static void grace_over(void *context)
{
    struct program *program = context;
    if (program->signals_caught == INT32_MAX) { /* the last words had their time */
        loop_stop(program->loop);
        return;
    }
    program->signals_caught = INT32_MAX;
    now(program);
    core_cancel_all(&program->core, "the router is leaving");
    loop_timer_set(&program->grace, loop_now_ns(program->loop) + last_words_ns);
}

static void signal_caught(void *context, int number)
{
    struct program *program = context;
    if (program->signals_caught == INT32_MAX)
        return;
    if (program->signals_caught++) {
        grace_over(program);
        return;
    }
    log_info("%s: draining, %zu streams are open", strsignal(number), program->generate.open);
    core_drain(&program->core);
    cluster_tick(&program->cluster);
    rpc_health_end_watches(program->health);
    loop_timer_set(&program->grace, loop_now_ns(program->loop) + program->options.grace_ns);
    rpc_server_drain(program->clients, clients_gone, program);
}

/* --- start --- */

static enum status server_create(struct program *program, const char *what,
                                 const struct config_address *address, size_t message_bytes_max,
                                 struct rpc_server **server_out, struct err *err)
{
    char text[300];
    config_format_address(address, text, sizeof text);
    struct rpc_server_options options = {.address = text, .message_bytes_max = message_bytes_max};
    enum status status = rpc_server_create(program->rpc, &options, server_out, err);
    return status ? err_wrap(err, "%s", what) : STATUS_OK;
}

/* Nodes send all tokens of a step, with log-probabilities, in one message. */
enum { NODE_MESSAGE_BYTES_MAX = 64 << 20 };

static enum status services_create(struct program *program, struct err *err)
{
    const struct router_options *o = &program->options;
    enum status status =
        server_create(program, "grpc", &o->grpc, o->message_bytes_max, &program->clients, err);
    if (!status)
        status = server_create(program, "node_grpc", &o->node_grpc, NODE_MESSAGE_BYTES_MAX,
                               &program->nodes, err);
    if (!status)
        status = rpc_health_create(program->clients, &program->health, err);
    if (status)
        return status;
    program->generate = (struct generate){.core = &program->core,
                                          .loop = program->loop,
                                          .checker = &program->checker,
                                          .stats = &program->stats,
                                          .client_stall_ns = o->client_stall_ns};
    if (!response_builder_init(&program->generate.builder))
        return err_set(err, STATUS_MEMORY, "no memory for responses");
    program->cluster =
        (struct cluster){.core = &program->core, .loop = program->loop, .health = program->health};
    status = generate_init(&program->generate, program->clients, err);
    if (!status)
        status = cluster_init(&program->cluster, program->clients, program->metrics, err);
    if (!status)
        status = node_streams_init(&program->node_streams, program->nodes, &program->core,
                                   program->loop, err);
    if (!status)
        status = rpc_reflection_create(program->clients, &program->reflection, err);
    if (!status)
        status = metrics_status(program->metrics, err);
    if (!status)
        status = rpc_server_start(program->clients, err);
    if (!status)
        status = rpc_server_start(program->nodes, err);
    return status;
}

static enum status http_create(struct program *program, struct err *err)
{
    char text[300];
    config_format_address(&program->options.http, text, sizeof text);
    struct http_server_options options = {.address = text,
                                          .ready = ready,
                                          .ready_context = program,
                                          .metrics = program->metrics,
                                          .routes = http_openai_absent_routes,
                                          .route_count = http_openai_absent_route_count};
    enum status status = http_server_create(program->loop, &options, &program->http, err);
    return status ? err_wrap(err, "http") : STATUS_OK;
}

static enum status addresses_tell(struct program *program, struct err *err)
{
    const struct router_options *o = &program->options;
    struct config_address addresses[] = {o->grpc, o->http, o->node_grpc};
    const int ports[] = {rpc_server_port(program->clients), http_server_port(program->http),
                         rpc_server_port(program->nodes)};
    const char *const files[] = {o->grpc_file, o->http_file, o->node_grpc_file};
    char texts[3][300];
    for (int i = 0; i < 3; i++) {
        addresses[i].port = (uint16_t)ports[i];
        config_format_address(&addresses[i], texts[i], sizeof texts[i]);
        enum status status = address_file_write(files[i], texts[i], err);
        if (status)
            return status;
    }
    log_info("%s: %s, grpc %s, http %s, nodes %s", o->name, program->model->config.name, texts[0],
             texts[1], texts[2]);
    return STATUS_OK;
}

static enum status core_create(struct program *program, struct err *err)
{
    const struct router_options *o = &program->options;
    const struct model_config *config = &program->model->config;
    struct core_options options = {.queue_max = (uint32_t)o->queue_max,
                                   .requests_max = (uint32_t)o->requests_max,
                                   .replays_max = (uint32_t)o->replays_max,
                                   .node_wait_ns = o->node_wait_ns,
                                   .local_prefill_tokens = (uint32_t)o->local_prefill_tokens,
                                   .cache_index_entries = (uint64_t)o->cache_index_entries,
                                   .fetch = (enum placement_fetch)o->prefix_fetch,
                                   .hand_off_always = o->hand_off == HAND_OFF_ALWAYS,
                                   .clock = clock_now_ns,
                                   .note = note};
    struct identity_model identity = {.vocab_size = config->vocab,
                                      .context_tokens = config->context_tokens,
                                      .wire = wire_range_own((uint32_t)o->wire_max)};
    memcpy(identity.hash, program->model->identity.bytes, sizeof identity.hash);
    uint8_t cache_key[PREFIX_KEY_BYTES];
    enum status status = STATUS_OK;
    if (o->cache_key) {
        status = cache_key_read(o->cache_key, cache_key, err);
        options.cache_key = cache_key;
    }
    if (!status)
        status = core_init(&program->core, &options, &identity, &program->stats, err);
    if (status)
        return status;
    program->core_ready = true;
    now(program);
    return checker_init(
        &program->checker, program->model, &program->core.registry,
        o->prompt_tokens_max ? (uint32_t)o->prompt_tokens_max : config->context_tokens, err);
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
    enum status status = model_open(program->options.model, &program->model, err);
    if (!status)
        status = loop_create(&program->loop, err);
    if (!status)
        status = loop_signals_start(program->loop, &program->signals, numbers, signal_caught,
                                    program, err);
    if (!status)
        status = rpc_create(program->loop, &program->rpc, err);
    if (!status)
        status = metrics_create(&program->metrics, err);
    if (!status)
        status = router_stats_init(&program->stats, program->metrics, err);
    if (!status && program->options.faults)
        status = faults_start(program, err);
    if (!status)
        status = core_create(program, err);
    if (!status)
        status = services_create(program, err);
    if (!status)
        status = http_create(program, err);
    if (!status)
        status = addresses_tell(program, err);
    if (status)
        return status;
    loop_hook_add(program->loop, &program->schedule, LOOP_SCHEDULE, schedule_run, program);
    loop_timer_init(program->loop, &program->tick, tick_due, program);
    loop_timer_init(program->loop, &program->grace, grace_over, program);
    loop_timer_set(&program->tick, loop_now_ns(program->loop) + tick_ns);
    return STATUS_OK;
}

static void finish(struct program *program)
{
    http_server_destroy(program->http);
    rpc_server_destroy(program->clients, NULL, NULL);
    rpc_server_destroy(program->nodes, NULL, NULL);
    rpc_destroy(program->rpc); /* the last calls close inside */
    rpc_health_destroy(program->health);
    rpc_reflection_destroy(program->reflection);
    response_builder_finish(&program->generate.builder);
    if (program->core_ready) {
        checker_finish(&program->checker);
        core_finish(&program->core);
    }
    metrics_destroy(program->metrics);
    if (program->loop) {
        loop_hook_remove(&program->schedule);
        loop_signals_stop(&program->signals);
    }
    loop_destroy(program->loop);
    faults_destroy(program->faults);
    model_close(program->model);
}

int router_program_run(int argc, char **argv)
{
    struct program program = {0};
    snprintf(program.version, sizeof program.version,
             "baton-router " VERSION_NUMBER " (%s)\ngRPC %s", version_commit,
             rpc_library_version());
    struct config *config;
    int exit_code;
    if (!config_start(router_options_schema(program.version), argc, argv, &program.options, &config,
                      &exit_code))
        return exit_code;
    log_init("baton-router", (enum log_level)program.options.log_level);
    struct err err = ERR_INIT;
    if (start(&program, &err))
        fail(&program, &err);
    else
        loop_run(program.loop);
    finish(&program);
    config_destroy(config);
    return program.exit_code;
}
