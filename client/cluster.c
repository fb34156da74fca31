/* `baton status`, `baton drain` and `baton role`: an operator's view of a cluster, by the Cluster service.
 * Owner: the main thread. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "proto/baton/v1/baton.pb-c.h"
#include "proto/json.h"

enum { CALL_TIMEOUT_S = 10 };

/* Of all three commands; each has rows for what it needs of them. */
struct operator_options {
    struct config_address server;
    bool json, wait;
    uint64_t deadline_ns;
};

/* What the three do around their own part: options, a connection, and their end. Returns the exit code. */
static int operate(const struct config_schema *schema, int argc, char **argv,
                   int (*run)(struct client *client, const struct operator_options *options,
                              const struct config *config))
{
    struct operator_options options = {0};
    struct config *config;
    struct client client;
    int code;
    if (!config_start(schema, argc, argv, &options, &config, &code))
        return code;
    code = client_open(&client, schema->program, &options.server, CLIENT_KEEPALIVE_NS);
    if (code == EXIT_CODE_DONE) {
        code = run(&client, &options, config);
        client_close(&client);
    }
    config_destroy(config);
    return code;
}

/* A call whose answer is that it was done. */
static enum exit_code tell(struct client *client, const char *path, const ProtobufCMessage *request,
                           const ProtobufCMessageDescriptor *response_descriptor)
{
    ProtobufCMessage *response;
    enum exit_code code = client_call(client, path, request, response_descriptor,
                                      CALL_TIMEOUT_S * NS_PER_S, &response);
    if (code == EXIT_CODE_DONE)
        protobuf_c_message_free_unpacked(response, NULL);
    return code;
}

static enum exit_code get_status(struct client *client, Baton__V1__ClusterStatus **status_out)
{
    Baton__V1__GetStatusRequest request = BATON__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *message;
    enum exit_code code =
        client_call(client, "/baton.v1.Cluster/GetStatus", &request.base,
                    &baton__v1__cluster_status__descriptor, CALL_TIMEOUT_S * NS_PER_S, &message);
    if (code == EXIT_CODE_DONE)
        *status_out = (Baton__V1__ClusterStatus *)message;
    return code;
}

/* --- status --- */

static const struct config_option status_table[] = {
    CLIENT_SERVER_ROW(struct operator_options, server),
    {.key = "json",
     .type = CONFIG_BOOL,
     CONFIG_FIELD(struct operator_options, json),
     .flag_only = true,
     .help = "ClusterStatus as JSON"},
};

static const struct config_schema status_schema = {
    .program = "baton status",
    CONFIG_TABLE(status_table),
    .summary = "the nodes of a cluster: roles, states, pages, sequences",
    .example = "  baton status -s 10.0.0.1:7070\n",
};

/* A table whose columns are as wide as their widest cell. Cells are a server's words: printed without control characters. */
enum { COLUMNS = 13, CELL_BYTES = 64 };

static void format_rate(uint64_t bytes_per_s, char *out, size_t out_bytes)
{
    static const char *const units[] = {"B/s", "kB/s", "MB/s", "GB/s"};
    double rate = (double)bytes_per_s;
    size_t unit = 0;
    for (; rate >= 999.5 && unit < 3; unit++)
        rate /= 1000;
    snprintf(out, out_bytes, rate < 9.95 && unit ? "%.1f %s" : "%.0f %s", rate, units[unit]);
}

/* The slowest and the fastest of the links that it has measured (and the router lists). */
static void format_links(const Baton__V1__NodeStatus *node, char out[CELL_BYTES])
{
    char slowest[24], fastest[24];
    if (!node->n_links) {
        snprintf(out, CELL_BYTES, "-");
        return;
    }
    format_rate(node->links[0]->bytes_per_s, slowest, sizeof slowest);
    format_rate(node->links[node->n_links - 1]->bytes_per_s, fastest, sizeof fastest);
    if (strcmp(slowest, fastest) == 0)
        snprintf(out, CELL_BYTES, "%s", slowest);
    else
        snprintf(out, CELL_BYTES, "%s to %s", slowest, fastest);
}

/* What holds a phase back, and how near its steps come to what the machine allows. */
static void format_phase(const Baton__V1__PhaseStatus *phase, char out[CELL_BYTES])
{
    if (!phase)
        snprintf(out, CELL_BYTES, "-");
    else if (phase->limit > 0)
        snprintf(out, CELL_BYTES, "%s (MFU %.0f %%, MBU %.0f %%)", phase->held_by,
                 100 * (double)phase->mfu, 100 * (double)phase->mbu);
    else
        snprintf(out, CELL_BYTES, "%s", phase->held_by);
}

static void fill_row(const Baton__V1__NodeStatus *node, char cells[COLUMNS][CELL_BYTES])
{
    snprintf(cells[0], CELL_BYTES, "%s", node->name);
    snprintf(cells[1], CELL_BYTES, "%s", node->role);
    snprintf(cells[2], CELL_BYTES, "%s", node->state);
    snprintf(cells[3], CELL_BYTES, "%u/%u/%u", node->sequences_waiting,
             node->sequences_transferring, node->sequences_running);
    snprintf(cells[4], CELL_BYTES, "%u/%u", node->pages_used + node->pages_reserved,
             node->pages_total);
    snprintf(cells[5], CELL_BYTES, "%u", node->pages_cached);
    snprintf(cells[6], CELL_BYTES, "%u", node->sequences_preempted);
    snprintf(cells[7], CELL_BYTES, "%s", node->transport);
    format_links(node, cells[8]);
    format_phase(node->prefill, cells[9]);
    format_phase(node->decode, cells[10]);
    snprintf(cells[11], CELL_BYTES, "%" PRIu64 " ms", node->heartbeat_age_ms);
    snprintf(cells[12], CELL_BYTES, "%s", node->http);
}

static __attribute__((format(printf, 1, 2))) void print_line(const char *format, ...)
{
    char line[COLUMNS * (CELL_BYTES + 2) + 2];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
    printf("%s\n", line);
}

static void print_rows(char (*cells)[COLUMNS][CELL_BYTES], size_t rows)
{
    size_t widths[COLUMNS] = {0};
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < COLUMNS; c++) {
            size_t bytes = strlen(cells[i][c]);
            widths[c] = bytes > widths[c] ? bytes : widths[c];
        }
    for (size_t i = 0; i < rows; i++) {
        char line[COLUMNS * (CELL_BYTES + 2) + 2];
        size_t used = 0;
        for (size_t c = 0; c < COLUMNS; c++)
            used += (size_t)snprintf(line + used, sizeof line - used, "%-*s%s",
                                     c + 1 < COLUMNS ? (int)widths[c] : 0, cells[i][c],
                                     c + 1 < COLUMNS ? "  " : "");
        print_line("%s", line);
    }
}

/* What helps next, for phases that had something to do; and who has become slow. */
static void print_levers(const Baton__V1__ClusterStatus *status)
{
    for (size_t i = 0; i < status->n_nodes; i++) {
        const Baton__V1__NodeStatus *node = status->nodes[i];
        const struct {
            const char *name;
            const Baton__V1__PhaseStatus *phase;
        } phases[] = {{"prefill", node->prefill}, {"decode", node->decode}};
        for (int p = 0; p < 2; p++)
            if (phases[p].phase && phases[p].phase->limit > 0)
                print_line("%s: %s: %s; next: %s", node->name, phases[p].name,
                           phases[p].phase->held_by, phases[p].phase->lever);
        if (node->below_start_rate)
            print_line("%s: runs at %.0f %% of the rate that it had after its start", node->name,
                       100 * (double)node->start_rate);
    }
}

static int print_table(const Baton__V1__ClusterStatus *status)
{
    static const char *const heads[COLUMNS] = {
        "NODE",      "ROLE",  "STATE",   "WAIT/MOVE/RUN", "PAGES",     "CACHED", "PREEMPTED",
        "TRANSPORT", "LINKS", "PREFILL", "DECODE",        "HEARTBEAT", "HTTP"};
    char(*cells)[COLUMNS][CELL_BYTES] = calloc(status->n_nodes + 1, sizeof *cells);
    if (!cells) {
        client_complain("baton status", "out of memory");
        return EXIT_CODE_FAILED;
    }
    printf("up %" PRIu64 " s, %u requests running, %u waiting", status->uptime_s,
           status->requests_running, status->requests_waiting);
    if (status->handovers)
        printf(", %" PRIu64 " handed over by leaving nodes", status->handovers);
    printf("\n");
    for (size_t c = 0; c < COLUMNS; c++)
        snprintf(cells[0][c], CELL_BYTES, "%s", heads[c]);
    for (size_t i = 0; i < status->n_nodes; i++)
        fill_row(status->nodes[i], cells[i + 1]);
    if (status->n_nodes)
        print_rows(cells, status->n_nodes + 1);
    else
        printf("no nodes\n");
    print_levers(status);
    free(cells);
    return EXIT_CODE_DONE;
}

static int status_run(struct client *client, const struct operator_options *options,
                      const struct config *config)
{
    Baton__V1__ClusterStatus *status;
    int code = get_status(client, &status);
    if (code != EXIT_CODE_DONE)
        return code;
    if (options->json) {
        struct buf line = BUF_INIT;
        json_print_message(&line, &status->base, NULL);
        buf_append_text(&line, "\n");
        fwrite(line.data, 1, line.bytes, stdout);
        buf_finish(&line);
    } else {
        code = print_table(status);
    }
    if (fflush(stdout) != 0)
        code = EXIT_CODE_FAILED;
    baton__v1__cluster_status__free_unpacked(status, NULL);
    return code;
}

int cmd_status(int argc, char **argv)
{
    return operate(&status_schema, argc, argv, status_run);
}

/* --- drain --- */

static const struct config_option drain_table[] = {
    CLIENT_SERVER_ROW(struct operator_options, server),
    {.key = "wait",
     .type = CONFIG_BOOL,
     CONFIG_FIELD(struct operator_options, wait),
     .flag_only = true,
     .help = "until the node has left"},
    {.key = "deadline",
     .type = CONFIG_DURATION,
     CONFIG_FIELD(struct operator_options, deadline_ns),
     .flag_only = true,
     .initial = "300",
     .min = 1,
     .max = INT64_C(86400) * 1000000000,
     .argument = "SECONDS",
     .help = "with --wait: at most so long"},
};

static const struct config_schema drain_schema = {
    .program = "baton drain",
    CONFIG_TABLE(drain_table),
    .summary = "a node takes no new work, and leaves when its work is done",
    .example = "  baton drain decode-1 --wait\n",
    .positionals = "NODE",
    .positionals_min = 1,
    .positionals_max = 1,
};

/* The node's state, "" when it is not listed. */
static enum exit_code state_of(struct client *client, const char *node, char *out, size_t out_bytes)
{
    Baton__V1__ClusterStatus *status;
    enum exit_code code = get_status(client, &status);
    if (code != EXIT_CODE_DONE)
        return code;
    out[0] = 0;
    for (size_t i = 0; i < status->n_nodes; i++)
        if (!strcmp(status->nodes[i]->name, node))
            snprintf(out, out_bytes, "%s", status->nodes[i]->state);
    baton__v1__cluster_status__free_unpacked(status, NULL);
    return EXIT_CODE_DONE;
}

static enum exit_code wait_gone(struct client *client, const char *node, uint64_t deadline_ns)
{
    for (;;) {
        char state[32];
        enum exit_code code = state_of(client, node, state, sizeof state);
        if (code != EXIT_CODE_DONE)
            return code;
        if (!state[0] || !strcmp(state, "dead"))
            return EXIT_CODE_DONE;
        uint64_t until_ns = clock_now_ns() + 200 * NS_PER_MS;
        if (until_ns > deadline_ns) {
            client_complain(client->command, "%s: still %s at the deadline; it goes on draining",
                            node, state);
            return EXIT_CODE_HALF_WAY;
        }
        while (clock_now_ns() < until_ns && !client->interrupted)
            loop_round(client->loop, 50 * NS_PER_MS);
        if (client->interrupted)
            return EXIT_CODE_INTERRUPTED;
    }
}

static int drain_run(struct client *client, const struct operator_options *options,
                     const struct config *config)
{
    Baton__V1__DrainRequest request = BATON__V1__DRAIN_REQUEST__INIT;
    request.node = (char *)config_positionals(config).items[0];
    int code = tell(client, "/baton.v1.Cluster/Drain", &request.base,
                    &baton__v1__drain_response__descriptor);
    if (code == EXIT_CODE_DONE && options->wait)
        code = wait_gone(client, request.node, clock_now_ns() + options->deadline_ns);
    return code;
}

int cmd_drain(int argc, char **argv)
{
    return operate(&drain_schema, argc, argv, drain_run);
}

/* --- role --- */

static const struct config_option role_table[] = {
    CLIENT_SERVER_ROW(struct operator_options, server),
};

static const struct config_schema role_schema = {
    .program = "baton role",
    CONFIG_TABLE(role_table),
    .summary = "a node plays another role: prefill, decode or mixed; what runs on it goes on",
    .example = "  baton role decode-1 prefill\n",
    .positionals = "NODE ROLE",
    .positionals_min = 2,
    .positionals_max = 2,
};

static int role_run(struct client *client, const struct operator_options *options,
                    const struct config *config)
{
    Baton__V1__SetRoleRequest request = BATON__V1__SET_ROLE_REQUEST__INIT;
    request.node = (char *)config_positionals(config).items[0];
    request.role = (char *)config_positionals(config).items[1];
    return tell(client, "/baton.v1.Cluster/SetRole", &request.base,
                &baton__v1__set_role_response__descriptor);
}

int cmd_role(int argc, char **argv)
{
    return operate(&role_schema, argc, argv, role_run);
}
