/* `baton up`: a whole cluster on this machine, in the foreground.
 *
 *     router ──bound──▶ nodes (--router its node address) ──▶ router's health SERVING ──▶ "ready grpc=… http=…"
 *
 * A child that dies is started again with the addresses of its first life (child.h). SIGTERM or Ctrl-C: the router first, which
 * ends its streams while the nodes still work, then the nodes; what does not go in time is killed. A second Ctrl-C kills at once.
 *
 * Before the cluster was ready once, a child that says itself that it cannot run (exit 1 or 2) ends the whole with that code and
 * its last line: trying again would not help.
 *
 * Owner: the main thread. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/child.h"
#include "client/client.h"
#include "proto/baton/v1/baton.pb-c.h"
#include "proto/grpc/health/v1/health.pb-c.h"
#include "proto/wire.h"

enum { NODES_EACH_MAX = 64, CHILDREN_MAX = 1 + 3 * NODES_EACH_MAX };

#define TICK_NS (20 * NS_PER_MS)
#define ASK_NS (50 * NS_PER_MS) /* between two questions about health */
#define ALL_NODES_NS (5 * NS_PER_S)
#define HINT_NS (10 * NS_PER_S)
#define ROUTER_GRACE_NS (35 * NS_PER_S) /* longer than the programs' own grace_s of 30 */
#define NODES_GRACE_NS (35 * NS_PER_S)

struct up_options {
    const char *model, *run_dir, *config;
    int64_t prefill, decode, mixed;
    struct config_address grpc, http;
    int backend;
};

#define FIELD(member) CONFIG_FIELD(struct up_options, member)
static const struct config_option table[] = {
    {.key = "model",
     .type = CONFIG_STRING,
     FIELD(model),
     .letter = 'm',
     .argument = "MODEL",
     .help = "the model, a GGUF file (or in the file of --config)"},
    {.key = "prefill",
     .type = CONFIG_INT,
     FIELD(prefill),
     .max = NODES_EACH_MAX,
     .flag_only = true,
     .help = "prefill nodes"},
    {.key = "decode",
     .type = CONFIG_INT,
     FIELD(decode),
     .max = NODES_EACH_MAX,
     .flag_only = true,
     .help = "decode nodes; with none of the three: one prefill, one decode"},
    {.key = "mixed",
     .type = CONFIG_INT,
     FIELD(mixed),
     .max = NODES_EACH_MAX,
     .flag_only = true,
     .help = "nodes that do both, with no hand-off"},
    {.key = "grpc",
     .type = CONFIG_ADDRESS,
     FIELD(grpc),
     .initial = "127.0.0.1:7070",
     .flag_only = true,
     .help = "the router's gRPC; port 0 picks a free one"},
    {.key = "http",
     .type = CONFIG_ADDRESS,
     FIELD(http),
     .initial = "127.0.0.1:7080",
     .flag_only = true,
     .help = "the router's HTTP; port 0 picks a free one"},
    {.key = "run_dir",
     .type = CONFIG_STRING,
     FIELD(run_dir),
     .flag_only = true,
     .argument = "DIR",
     .help =
         "for NAME.pid, .log, .grpc, .http; unset: baton in XDG_RUNTIME_DIR, or /tmp/baton-UID"},
    {.key = "backend",
     .type = CONFIG_ENUM,
     FIELD(backend),
     .choices = "auto|cpu|opaque|!cuda",
     .initial = "auto",
     .flag_only = true,
     .help = "what computes"},
    {.key = "config",
     .type = CONFIG_STRING,
     FIELD(config),
     .argument = "FILE",
     .help = "a cluster.yaml for all programs"},
};

static const struct config_schema schema = {
    .program = "baton up",
    CONFIG_TABLE(table),
    .summary = "a router and nodes on this machine, in the foreground; ARGUMENTS go to the nodes",
    .example =
        "  baton up -m model.gguf\n"
        "  baton up -m model.gguf --prefill 1 --decode 2 --grpc 127.0.0.1:0 -- --threads 1\n",
    .rest = true,
};

enum up_state { UP_STARTING, UP_READY, UP_STOPPING_ROUTER, UP_STOPPING_NODES, UP_KILLING };

struct up {
    const struct up_options *options;
    const struct config *config;
    char run_dir[CHILD_PATH_BYTES], bin_dir[CHILD_PATH_BYTES];
    int lock_fd;
    struct loop *loop;
    struct rpc *rpc;
    struct loop_signals signals;
    struct loop_timer tick;
    struct child *children; /* [0] is the router */
    int child_count;
    enum up_state state;
    uint64_t deadline_ns; /* of the stopping states */
    int stop_signals;
    bool nodes_started;
    int exit_code;
    bool done;
    /* the question in flight */
    struct rpc_channel *channel;
    struct rpc_call *call;
    uint64_t ask_ns, serving_ns, hint_ns;
};

/* --- the run directory --- */

static enum status default_run_dir(char *out, struct err *err)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    if (base && *base)
        snprintf(out, CHILD_PATH_BYTES, "%s/baton", base);
    else
        snprintf(out, CHILD_PATH_BYTES, "/tmp/baton-%u", (unsigned)getuid());
    struct stat stat;
    /* a known name in a folder that all may write: it must be ours, and no link */
    if (mkdir(out, 0700) < 0 && errno != EEXIST)
        return err_set(err, STATUS_IO, "%s: cannot be made: %s", out, strerror(errno));
    if (lstat(out, &stat) < 0 || !S_ISDIR(stat.st_mode) || stat.st_uid != getuid())
        return err_set(err, STATUS_IO,
                       "%s: is not a folder of this user; name another with --run-dir", out);
    return STATUS_OK;
}

static enum status make_folders(char *path, struct err *err)
{
    for (char *at = path + 1;; at++) {
        char kept = *at;
        if (kept && kept != '/')
            continue;
        *at = 0;
        int made = mkdir(path, 0755);
        int error = errno;
        *at = kept;
        if (made < 0 && error != EEXIST)
            return err_set(err, STATUS_IO, "%s: cannot be made: %s", path, strerror(error));
        if (!kept)
            return STATUS_OK;
    }
}

static enum status take_run_dir(struct up *up, struct err *err)
{
    enum status status;
    if (up->options->run_dir) {
        if (!*up->options->run_dir || strlen(up->options->run_dir) > 3000)
            return err_set(err, STATUS_CONFIG, "--run-dir: must have 1 to 3000 bytes");
        snprintf(up->run_dir, sizeof up->run_dir, "%s", up->options->run_dir);
        status = make_folders(up->run_dir, err);
    } else {
        status = default_run_dir(up->run_dir, err);
    }
    if (status != STATUS_OK)
        return status;
    char path[CHILD_PATH_BYTES + 8];
    snprintf(path, sizeof path, "%s/lock", up->run_dir);
    up->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (up->lock_fd < 0)
        return err_set(err, STATUS_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (flock(up->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, STATUS_IN_USE,
                       "%s: in use by another baton up; stop it, or name another with --run-dir",
                       up->run_dir);
    return STATUS_OK;
}

/* --- the children --- */

static enum status find_programs(struct up *up, struct err *err)
{
    ssize_t bytes = readlink("/proc/self/exe", up->bin_dir, sizeof up->bin_dir - 32);
    if (bytes <= 0)
        return err_set(err, STATUS_IO, "/proc/self/exe: cannot be read: %s", strerror(errno));
    up->bin_dir[bytes] = 0;
    *strrchr(up->bin_dir, '/') = 0;
    return STATUS_OK;
}

static struct child *add_child(struct up *up, const char *name, const char *program)
{
    struct child *child = &up->children[up->child_count++];
    snprintf(child->name, sizeof child->name, "%s", name);
    snprintf(child->program, sizeof child->program, "%.4000s/%s", up->bin_dir, program);
    child->run_dir = up->run_dir;
    if (up->options->config) {
        child_argument(child, "--config");
        child_argument(child, up->options->config);
    }
    if (up->options->model) {
        child_argument(child, "--model");
        child_argument(child, up->options->model);
    }
    return child;
}

static void add_router(struct up *up)
{
    struct child *router = add_child(up, "router", "baton-router");
    router->has_node_grpc = true;
    /* with a file, what was not said here is for the file to say */
    bool file = up->options->config != NULL;
    if (!file || config_given(up->config, "grpc"))
        config_format_address(&up->options->grpc, router->addresses[CHILD_GRPC],
                              CHILD_ADDRESS_BYTES);
    if (!file || config_given(up->config, "http"))
        config_format_address(&up->options->http, router->addresses[CHILD_HTTP],
                              CHILD_ADDRESS_BYTES);
    snprintf(router->addresses[CHILD_NODE_GRPC], CHILD_ADDRESS_BYTES, "127.0.0.1:0");
}

static enum status add_nodes(struct up *up, const char *kind, const char *program, int64_t count,
                             struct err *err)
{
    static const char *const backends[] = {"auto", "cpu", "opaque", "cuda"};
    struct config_strings rest = config_rest(up->config);
    for (int64_t i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%d", kind, (int)i);
        struct child *node = add_child(up, name, program);
        snprintf(node->addresses[CHILD_GRPC], CHILD_ADDRESS_BYTES, "127.0.0.1:0");
        snprintf(node->addresses[CHILD_HTTP], CHILD_ADDRESS_BYTES, "127.0.0.1:0");
        child_argument(node, "--router");
        child_argument(node, up->children[0].addresses[CHILD_NODE_GRPC]);
        if (!strcmp(kind, "mixed")) {
            child_argument(node, "--role");
            child_argument(node, "mixed");
        }
        if (config_given(up->config, "backend")) {
            child_argument(node, "--backend");
            child_argument(node, backends[up->options->backend]);
        }
        for (size_t r = 0; r < rest.count; r++)
            if (!child_argument(node, rest.items[r]))
                return err_set(err, STATUS_CONFIG, "more than %d node options",
                               CHILD_ARGUMENTS_MAX);
    }
    return STATUS_OK;
}

static enum status plan_children(struct up *up, struct err *err)
{
    const struct up_options *options = up->options;
    int64_t prefill = options->prefill, decode = options->decode, mixed = options->mixed;
    if (!config_given(up->config, "prefill") && !config_given(up->config, "decode") &&
        !config_given(up->config, "mixed"))
        prefill = decode = 1;
    if (!options->model && !options->config)
        return err_set(err, STATUS_CONFIG, "no model: give -m MODEL (\"./dev model\" brings one)");
    if (mixed == 0 && (prefill == 0 || decode == 0))
        return err_set(
            err, STATUS_CONFIG,
            "%lld prefill and %lld decode nodes can never serve: each phase needs one, or "
            "--mixed 1",
            (long long)prefill, (long long)decode);
    up->children = calloc(CHILDREN_MAX, sizeof *up->children);
    if (!up->children)
        return err_set(err, STATUS_MEMORY, "out of memory");
    add_router(up);
    enum status status = add_nodes(up, "prefill", "baton-prefill", prefill, err);
    if (status == STATUS_OK)
        status = add_nodes(up, "decode", "baton-decode", decode, err);
    if (status == STATUS_OK)
        status = add_nodes(up, "mixed", "baton-decode", mixed, err);
    return status;
}

/* --- stopping --- */

static void stop_all(struct up *up, int exit_code)
{
    if (up->state >= UP_STOPPING_ROUTER)
        return;
    up->exit_code = exit_code;
    up->state = UP_STOPPING_ROUTER;
    up->deadline_ns = clock_now_ns() + ROUTER_GRACE_NS;
    child_stop(&up->children[0], SIGTERM);
}

static void kill_all(struct up *up)
{
    up->state = UP_KILLING;
    for (int i = 0; i < up->child_count; i++)
        child_stop(&up->children[i], SIGKILL);
}

static bool is_gone(const struct child *child)
{
    return child->state == CHILD_IDLE || child->state == CHILD_STOPPED ||
           child->state == CHILD_FAILED;
}

static bool all_gone(const struct up *up)
{
    for (int i = 0; i < up->child_count; i++)
        if (!is_gone(&up->children[i]))
            return false;
    return true;
}

static void go_on_stopping(struct up *up)
{
    bool late = clock_now_ns() >= up->deadline_ns;
    if (up->state == UP_STOPPING_ROUTER && (is_gone(&up->children[0]) || late)) {
        up->state = UP_STOPPING_NODES;
        up->deadline_ns = clock_now_ns() + NODES_GRACE_NS;
        for (int i = 1; i < up->child_count; i++)
            child_stop(&up->children[i], SIGTERM);
    } else if (up->state == UP_STOPPING_NODES && !all_gone(up) && late) {
        for (int i = 0; i < up->child_count; i++)
            if (!is_gone(&up->children[i]))
                client_complain(schema.program, "%s: did not stop in time; killing it",
                                up->children[i].name);
        if (up->exit_code == EXIT_CODE_DONE)
            up->exit_code = EXIT_CODE_HALF_WAY;
        kill_all(up);
    }
    if (all_gone(up)) {
        up->done = true;
        loop_stop(up->loop);
    }
}

/* --- deaths and lives --- */

static void fail(struct up *up, const struct child *child, int exit_code)
{
    char death[96], line[400];
    child_death_text(child, death, sizeof death);
    child_last_line(child, line, sizeof line);
    client_complain(schema.program, "%s: %s%s: %s", child->name,
                    exit_code == EXIT_CODE_HALF_WAY ? "died five times in 30 s, the last time by "
                                                    : "cannot run, ",
                    death, line[0] ? line : "its log is empty");
    stop_all(up, exit_code);
}

/* Whether it ended as it should, having been told to stop. The signal ends one that has not come to handle it yet. */
static bool stopped_well(const struct child *child)
{
    return !child->wait_status || (!child->bound && WIFSIGNALED(child->wait_status) &&
                                   WTERMSIG(child->wait_status) == SIGTERM);
}

static void reap(struct up *up)
{
    for (int i = 0; i < up->child_count; i++) {
        struct child *child = &up->children[i];
        bool starting = up->state == UP_STARTING;
        char death[96];
        if (!child_reap(child, !starting))
            continue;
        if (child->state == CHILD_FAILED) {
            int code = WIFEXITED(child->wait_status) ? WEXITSTATUS(child->wait_status) : 0;
            bool refused = starting && (code == EXIT_CODE_FAILED || code == EXIT_CODE_USAGE);
            fail(up, child, refused ? code : code == 127 ? EXIT_CODE_FAILED : EXIT_CODE_HALF_WAY);
        } else if (child->state == CHILD_WAITING) {
            client_complain(schema.program, "%s: died (%s); starting it again", child->name,
                            child_death_text(child, death, sizeof death));
        } else if (!stopped_well(child) && up->state != UP_KILLING) {
            client_complain(schema.program, "%s: stopped badly (%s), see %s/%s.log", child->name,
                            child_death_text(child, death, sizeof death), up->run_dir, child->name);
            if (up->exit_code == EXIT_CODE_DONE)
                up->exit_code = EXIT_CODE_HALF_WAY;
        }
    }
}

static void spawn(struct up *up, struct child *child)
{
    struct err err = ERR_INIT;
    if (child_spawn(child, &err) != STATUS_OK) {
        client_complain(schema.program, "%s", err.message);
        stop_all(up, EXIT_CODE_FAILED);
    }
}

static void signal_caught(void *context, int signal_number)
{
    struct up *up = context;
    if (signal_number != SIGCHLD) {
        if (++up->stop_signals == 1) {
            stop_all(up, EXIT_CODE_DONE);
        } else if (signal_number == SIGINT && up->state != UP_KILLING) {
            up->exit_code = EXIT_CODE_INTERRUPTED;
            kill_all(up);
        }
    }
    reap(up);
    if (up->state >= UP_STOPPING_ROUTER)
        go_on_stopping(up);
}

/* --- ready? --- */

/* Two questions in turn: the router's health, then whether all nodes serve. */
static void ready(struct up *up)
{
    const struct child *router = &up->children[0];
    up->state = UP_READY;
    printf("ready grpc=%s http=%s\n", router->addresses[CHILD_GRPC], router->addresses[CHILD_HTTP]);
    if (fflush(stdout) != 0)
        stop_all(up, EXIT_CODE_FAILED);
}

static void health_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct up *up = context;
    Grpc__Health__V1__HealthCheckResponse *response =
        grpc__health__v1__health_check_response__unpack(NULL, bytes, data);
    bool serving = response && response->status ==
                                   GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    if (!serving)
        up->serving_ns = 0;
    else if (!up->serving_ns)
        up->serving_ns = clock_now_ns();
    if (response)
        grpc__health__v1__health_check_response__free_unpacked(response, NULL);
}

static void status_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct up *up = context;
    Baton__V1__ClusterStatus *status = baton__v1__cluster_status__unpack(NULL, bytes, data);
    int serving = 0;
    for (size_t i = 0; status && i < status->n_nodes; i++)
        serving += !strcmp(status->nodes[i]->state, "serving");
    if (status)
        baton__v1__cluster_status__free_unpacked(status, NULL);
    if (up->state == UP_STARTING && serving >= up->child_count - 1)
        ready(up);
}

static void question_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    struct up *up = context;
    up->call = NULL;
    up->ask_ns = clock_now_ns() + ASK_NS;
}

static void ask(struct up *up)
{
    static const struct rpc_handler health = {.kind = RPC_UNARY,
                                              .read_always = true,
                                              .on_message = health_message,
                                              .on_closed = question_closed};
    static const struct rpc_handler status = {.kind = RPC_UNARY,
                                              .read_always = true,
                                              .on_message = status_message,
                                              .on_closed = question_closed};
    Grpc__Health__V1__HealthCheckRequest health_request =
        GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    Baton__V1__GetStatusRequest status_request = BATON__V1__GET_STATUS_REQUEST__INIT;
    struct err err = ERR_INIT;
    if (!up->channel && rpc_channel_create(up->rpc, up->children[0].addresses[CHILD_GRPC], NULL,
                                           &up->channel, &err) != STATUS_OK) {
        client_complain(schema.program, "%s", err.message);
        stop_all(up, EXIT_CODE_FAILED);
        return;
    }
    struct rpc_call_options options = {.timeout_ns = 2 * NS_PER_S};
    if (up->serving_ns) {
        options.path = "/baton.v1.Cluster/GetStatus";
        options.request = &status_request.base;
    } else {
        health_request.service = (char *)"baton.v1.Generation";
        options.path = "/grpc.health.v1.Health/Check";
        options.request = &health_request.base;
    }
    up->call = rpc_channel_call(up->channel, up->serving_ns ? &status : &health, up, &options);
}

static void hint(struct up *up, uint64_t now_ns)
{
    if (now_ns < up->hint_ns)
        return;
    up->hint_ns = now_ns + HINT_NS;
    for (int i = 0; i < up->child_count; i++) {
        char line[300];
        struct child *child = &up->children[i];
        if (!child->bound)
            client_complain(schema.program, "waiting for %s: %s", child->name,
                            child_last_line(child, line, sizeof line));
    }
}

static void ticked(void *context)
{
    struct up *up = context;
    uint64_t now_ns = clock_now_ns();
    loop_timer_set(&up->tick, now_ns + TICK_NS);
    reap(up); /* a SIGCHLD is enough, but costs nothing to doubt */
    if (up->state >= UP_STOPPING_ROUTER) {
        go_on_stopping(up);
        return;
    }
    for (int i = 0; i < up->child_count; i++) {
        struct child *child = &up->children[i];
        child_read_addresses(child);
        if (child->state == CHILD_WAITING && now_ns >= child->restart_ns)
            spawn(up, child);
    }
    if (!up->nodes_started && up->children[0].bound) {
        up->nodes_started = true;
        for (int i = 1; i < up->child_count && up->state == UP_STARTING; i++)
            spawn(up, &up->children[i]);
    }
    if (up->state != UP_STARTING)
        return;
    hint(up, now_ns);
    if (up->serving_ns && now_ns - up->serving_ns > ALL_NODES_NS)
        ready(up); /* it can serve; a straggler may still come */
    else if (up->nodes_started && !up->call && now_ns >= up->ask_ns)
        ask(up);
}

static enum status check_programs(const struct up *up, struct err *err)
{
    for (int i = 0; i < up->child_count; i++)
        if (access(up->children[i].program, X_OK) < 0)
            return err_set(err, STATUS_IO, "%s: cannot be run: %s (\"./dev build\" makes it)",
                           up->children[i].program, strerror(errno));
    return STATUS_OK;
}

static enum status start(struct up *up, struct err *err)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGCHLD, SIGHUP, 0};
    enum status status = find_programs(up, err);
    signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would hide the deaths */
    if (status == STATUS_OK)
        status = plan_children(up, err);
    if (status == STATUS_OK)
        status = check_programs(up, err);
    if (status == STATUS_OK)
        status = take_run_dir(up, err);
    if (status == STATUS_OK)
        status = loop_create(&up->loop, err);
    if (status == STATUS_OK)
        status = loop_signals_start(up->loop, &up->signals, numbers, signal_caught, up, err);
    if (status == STATUS_OK)
        status = rpc_create(up->loop, &up->rpc, err);
    return status;
}

int cmd_up(int argc, char **argv)
{
    struct up_options options;
    struct config *config;
    struct err err = ERR_INIT;
    int code;
    if (!config_start(&schema, argc, argv, &options, &config, &code))
        return code;
    struct up up = {.options = &options, .config = config, .lock_fd = -1};
    enum status status = start(&up, &err);
    if (status != STATUS_OK) {
        client_complain(schema.program, "%s", err.message);
        up.exit_code = status == STATUS_CONFIG ? EXIT_CODE_USAGE : EXIT_CODE_FAILED;
    } else {
        for (int i = 0; i < up.child_count; i++)
            child_clean(&up.children[i]);
        up.hint_ns = clock_now_ns() + HINT_NS;
        spawn(&up, &up.children[0]);
        loop_timer_init(up.loop, &up.tick, ticked, &up);
        loop_timer_set(&up.tick, clock_now_ns());
        loop_run(up.loop);
        assert(up.done);
        for (int i = 0; i < up.child_count; i++)
            child_clean(&up.children[i]);
    }
    if (up.channel)
        rpc_channel_destroy(up.channel);
    if (up.rpc)
        rpc_destroy(up.rpc);
    if (up.loop) {
        if (up.tick.loop)
            loop_timer_stop(&up.tick);
        loop_signals_stop(&up.signals);
        loop_destroy(up.loop);
    }
    free(up.children);
    if (up.lock_fd >= 0)
        close(up.lock_fd);
    config_destroy(config);
    return up.exit_code;
}
