/* `baton bench kv`: what a link moves, beside what bare UCX moves over it by the same calls, in turn and as medians. The measuring
 * itself is kvtransfer/measure.h; `./dev bench kv` uses the same.
 *
 *     baton bench kv                            two processes here
 *     baton bench kv --listen 10.0.0.2:7075     one end; serves whoever comes, one at a time, until it is stopped
 *     baton bench kv 10.0.0.2:7075              the other end; tells the first what each pass is to be
 *
 *     taker ── request: what the pass is ──▶ giver ── 'y' or 'n' and why ──▶ both measure over the same socket
 *
 * Each pass runs in a process of its own. The control connection is plain TCP without a password: for measuring only, so
 * --listen has no default.
 * Owner: the main thread. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "kvtransfer/measure.h"

enum {
    RUNS_MAX = 100,
    SIZES_MAX = 16,
    REQUEST_MAGIC = 0x4b4d5442 /* "BTMK" */,
    REQUEST_VERSION = 1
};

struct bench_options {
    struct config_address listen;
    int transport;
    const char *kv_interface, *kv_ports, *sizes;
    uint64_t total_bytes;
    int64_t runs;
    bool json, wait, without_limit;
};

static const struct config_option bench_table[] = {
    {.key = "listen",
     .type = CONFIG_ADDRESS,
     CONFIG_FIELD(struct bench_options, listen),
     .flag_only = true,
     .help = "be the end that gives, for whoever connects there, until stopped"},
    {.key = "transport",
     .type = CONFIG_ENUM,
     CONFIG_FIELD(struct bench_options, transport),
     .choices = XFER_TRANSPORT_CHOICES,
     .initial = "auto",
     .help = "what carries KV pages"},
    {.key = "kv_interface",
     .type = CONFIG_STRING,
     CONFIG_FIELD(struct bench_options, kv_interface),
     .initial = "lo",
     .argument = "DEVICE",
     .help = "network device for KV pages, of this end"},
    {.key = "kv_ports",
     .type = CONFIG_STRING,
     CONFIG_FIELD(struct bench_options, kv_ports),
     .argument = "FROM-TO",
     .help = "TCP ports for KV pages; by default any"},
    {.key = "size",
     .type = CONFIG_STRING,
     CONFIG_FIELD(struct bench_options, sizes),
     .flag_only = true,
     .initial = "64K,256K,1M",
     .argument = "BYTES,...",
     .help = "sizes of a piece to measure"},
    {.key = "total",
     .type = CONFIG_BYTES,
     CONFIG_FIELD(struct bench_options, total_bytes),
     .flag_only = true,
     .initial = "256M",
     .min = 1 << 20,
     .max = INT64_C(1) << 36,
     .help = "bytes of a pass; more than the caches hold"},
    {.key = "runs",
     .type = CONFIG_INT,
     CONFIG_FIELD(struct bench_options, runs),
     .flag_only = true,
     .initial = "5",
     .min = 1,
     .max = RUNS_MAX,
     .help = "passes of each, of which the median counts"},
    {.key = "wait",
     .type = CONFIG_BOOL,
     CONFIG_FIELD(struct bench_options, wait),
     .flag_only = true,
     .help = "bare UCX never spins: for a machine on which others want the processors"},
    {.key = "without_limit",
     .type = CONFIG_BOOL,
     CONFIG_FIELD(struct bench_options, without_limit),
     .flag_only = true,
     .help = "do not measure bare UCX"},
    {.key = "json",
     .type = CONFIG_BOOL,
     CONFIG_FIELD(struct bench_options, json),
     .flag_only = true,
     .help = "one JSON object a line instead of a table"},
};

static const struct config_schema bench_schema = {
    .program = "baton bench kv",
    CONFIG_TABLE(bench_table),
    .summary = "what a link moves between two nodes, beside bare UCX over the same link",
    .example =
        "  baton bench kv                                     two processes of this machine\n"
        "  baton bench kv --listen 10.0.0.2:7075 --kv-interface eth0     on one host\n"
        "  baton bench kv 10.0.0.2:7075 --kv-interface eth0              on the other\n"
        "  baton bench kv --transport shm --size 256K --json\n",
    .positionals = "[HOST:PORT]",
    .positionals_max = 1,
};

/* --- what the taker asks for --- */

/* Little-endian on the wire, as these machines are. */
struct request {
    uint32_t magic, version;
    uint32_t transport, bare, spin, reserved;
    uint64_t piece_bytes, total_bytes;
};

static bool transfer_all(int fd, void *data, size_t bytes, bool out)
{
    for (size_t at = 0; at < bytes;) {
        uint8_t *next = (uint8_t *)data + at;
        ssize_t count =
            out ? send(fd, next, bytes - at, MSG_NOSIGNAL) : recv(fd, next, bytes - at, 0);
        if (count <= 0 && errno != EINTR)
            return false;
        at += count > 0 ? (size_t)count : 0;
    }
    return true;
}

static int socket_prepare(int fd)
{
    int on = 1;
    struct timeval patience = {.tv_sec = 60};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

/* Connects to, or listens on, the address; -1 after it said why. */
static int socket_open(const struct config_address *address, bool listens)
{
    char text[300], port[8];
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    config_format_address(address, text, sizeof text);
    snprintf(port, sizeof port, "%u", address->port);
    int rc = getaddrinfo(address->host, port, &hints, &found);
    if (rc) {
        client_complain(bench_schema.program, "%s: %s", text, gai_strerror(rc));
        return -1;
    }
    int fd = -1, error = 0;
    for (struct addrinfo *it = found; it && fd < 0; it = it->ai_next) {
        int on = 1;
        fd = socket(it->ai_family, it->ai_socktype | SOCK_CLOEXEC, it->ai_protocol);
        if (fd >= 0 && listens)
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (fd >= 0 && (listens ? bind(fd, it->ai_addr, it->ai_addrlen) || listen(fd, 16)
                                : connect(fd, it->ai_addr, it->ai_addrlen))) {
            error = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd < 0)
        client_complain(bench_schema.program, "%s: %s%s", text, strerror(error),
                        listens ? "" : "; start the other end there with --listen");
    return fd < 0 ? fd : socket_prepare(fd);
}

static struct kv_measure measure_of(const struct bench_options *options)
{
    return (struct kv_measure){.transport = (enum xfer_transport)options->transport,
                               .interface = options->kv_interface,
                               .port_range = options->kv_ports,
                               .total_bytes = options->total_bytes};
}

/* --- the giver --- */

/* One visitor, in a process of its own. */
static void serve(const struct bench_options *options, int fd)
{
    struct request request;
    struct err err = ERR_INIT;
    struct kv_measure measure = measure_of(options);
    if (!transfer_all(fd, &request, sizeof request, false))
        return;
    enum status status = STATUS_OK;
    if (request.magic != REQUEST_MAGIC || request.version != REQUEST_VERSION)
        status = err_set(&err, STATUS_MISMATCH, "not a \"baton bench kv\" of this version");
    else if (request.transport > XFER_TRANSPORT_RDMA || request.total_bytes > UINT64_C(1) << 36)
        status = err_set(&err, STATUS_INVALID, "transport or total out of range");
    measure.transport = (enum xfer_transport)request.transport;
    measure.bare = request.bare;
    measure.spin = request.spin;
    measure.piece_bytes = request.piece_bytes;
    measure.total_bytes = request.total_bytes;
    if (!status)
        status = kv_measure_check(&measure, &err);
    char answer[ERR_MESSAGE_BYTES + 1] = {status ? 'n' : 'y'};
    memcpy(answer + 1, err.message, sizeof answer - 1);
    answer[sizeof answer - 1] = '\0';
    if (!transfer_all(fd, answer, sizeof answer, true))
        return;
    if (!status)
        status = kv_measure_give(&measure, fd, &err);
    if (status)
        client_complain(bench_schema.program, "%s", err.message);
}

static int listen_run(const struct bench_options *options)
{
    int fd = socket_open(&options->listen, true);
    if (fd < 0)
        return EXIT_CODE_FAILED;
    char text[300];
    config_format_address(&options->listen, text, sizeof text);
    fprintf(stderr, "%s: waiting on %s; Ctrl-C ends it\n", bench_schema.program, text);
    for (;;) {
        int visitor = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (visitor < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
            continue;
        if (visitor < 0)
            break;
        pid_t child = fork();
        if (child == 0) {
            close(fd);
            serve(options, socket_prepare(visitor));
            _exit(0);
        }
        close(visitor);
        if (child > 0) /* one at a time: two would measure each other */
            waitpid(child, NULL, 0);
    }
    client_complain(bench_schema.program, "%s: %s", text, strerror(errno));
    close(fd);
    return EXIT_CODE_FAILED;
}

/* --- the taker --- */

struct outcome {
    enum status status;
    double bytes_per_s;
    struct err err;
};

static void take_remote(const struct config_address *address, const struct kv_measure *measure,
                        struct outcome *outcome)
{
    int fd = socket_open(address, false);
    if (fd < 0) {
        outcome->status = STATUS_CLOSED; /* said why */
        return;
    }
    struct request request = {.magic = REQUEST_MAGIC,
                              .version = REQUEST_VERSION,
                              .transport = measure->transport,
                              .bare = measure->bare,
                              .spin = measure->spin,
                              .piece_bytes = measure->piece_bytes,
                              .total_bytes = measure->total_bytes};
    char answer[ERR_MESSAGE_BYTES + 1];
    if (!transfer_all(fd, &request, sizeof request, true) ||
        !transfer_all(fd, answer, sizeof answer, false))
        outcome->status = err_set(&outcome->err, STATUS_CLOSED, "the other end has gone");
    else if (answer[0] != 'y')
        outcome->status = err_set(&outcome->err, STATUS_INVALID, "the other end refuses: %.*s",
                                  (int)sizeof answer - 2, answer + 1);
    else
        outcome->status = kv_measure_take(measure, fd, &outcome->bytes_per_s, &outcome->err);
    close(fd);
}

/* One pass with a host, in a process of its own. */
static struct outcome pass_remote(const struct config_address *address,
                                  const struct kv_measure *measure)
{
    struct outcome outcome = {.status = STATUS_CLOSED, .err = ERR_INIT};
    int result[2];
    if (pipe2(result, O_CLOEXEC)) {
        outcome.status = err_set(&outcome.err, STATUS_IO, "pipe: %s", strerror(errno));
        return outcome;
    }
    pid_t child = fork();
    if (child == 0) {
        take_remote(address, measure, &outcome);
        ssize_t written = write(result[1], &outcome, sizeof outcome);
        _exit(written == sizeof outcome ? 0 : 1);
    }
    close(result[1]);
    struct outcome read_back;
    if (child > 0 && read(result[0], &read_back, sizeof read_back) == sizeof read_back)
        outcome = read_back;
    else
        err_set(&outcome.err, STATUS_CLOSED, "the measuring process has died");
    close(result[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
    return outcome;
}

static struct outcome pass(const struct config_address *address, const struct kv_measure *measure)
{
    struct outcome outcome = {.err = ERR_INIT};
    if (address)
        return pass_remote(address, measure);
    outcome.status = kv_measure_local(measure, &outcome.bytes_per_s, &outcome.err);
    return outcome;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

struct figures {
    double ours, limit; /* bytes/s; limit 0: not measured */
};

/* Ours and the limit in turn, so that both see the same machine. */
static bool size_measure(const struct bench_options *options, const struct config_address *address,
                         size_t piece_bytes, struct figures *figures_out)
{
    double ours[RUNS_MAX], limits[RUNS_MAX];
    struct kv_measure measure = measure_of(options);
    measure.piece_bytes = piece_bytes;
    for (int64_t run = 0; run < options->runs; run++) {
        limits[run] = 0;
        for (int spin = options->wait ? 0 : 1; spin >= 0 && !options->without_limit; spin--) {
            measure.bare = true;
            measure.spin =
                spin; /* the better of the two: that depends on who else wants the cores */
            struct outcome bare = pass(address, &measure);
            if (bare.status) {
                if (*bare.err.message)
                    client_complain(bench_schema.program, "%s", bare.err.message);
                return false;
            }
            if (bare.bytes_per_s > limits[run])
                limits[run] = bare.bytes_per_s;
        }
        measure.bare = measure.spin = false;
        struct outcome own = pass(address, &measure);
        if (own.status) {
            if (*own.err.message)
                client_complain(bench_schema.program, "%s", own.err.message);
            return false;
        }
        ours[run] = own.bytes_per_s;
    }
    *figures_out = (struct figures){median(ours, options->runs), median(limits, options->runs)};
    return true;
}

static void size_print(const struct bench_options *options, const char *name, size_t piece_bytes,
                       struct figures figures)
{
    const char *transport = xfer_transport_text((enum xfer_transport)options->transport);
    double share = figures.limit > 0 ? figures.ours / figures.limit : 0;
    if (options->json) {
        printf("{\"transport\":\"%s\",\"piece_bytes\":%zu,\"total_bytes\":%llu,\"runs\":%lld,"
               "\"bytes_per_s\":%.0f,",
               transport, piece_bytes, (unsigned long long)options->total_bytes,
               (long long)options->runs, figures.ours);
        if (figures.limit > 0)
            printf("\"bare_ucx_bytes_per_s\":%.0f,\"share\":%.3f}\n", figures.limit, share);
        else
            printf("\"bare_ucx_bytes_per_s\":null,\"share\":null}\n");
    } else if (figures.limit > 0) {
        printf("%-8s %8.2f GB/s %8.2f GB/s %6.1f %%\n", name, 1e-9 * figures.ours,
               1e-9 * figures.limit, 100 * share);
    } else {
        printf("%-8s %8.2f GB/s\n", name, 1e-9 * figures.ours);
    }
    fflush(stdout);
}

static enum exit_code take_run(const struct bench_options *options,
                               const struct config_address *address)
{
    char sizes[256], *rest = sizes;
    if (snprintf(sizes, sizeof sizes, "%s", options->sizes) >= (int)sizeof sizes) {
        client_complain(bench_schema.program, "--size: longer than %zu bytes", sizeof sizes - 1);
        return EXIT_CODE_USAGE;
    }
    size_t bytes[SIZES_MAX];
    char *names[SIZES_MAX];
    unsigned count = 0;
    for (char *word; (word = strsep(&rest, ","));) {
        struct err err = ERR_INIT;
        uint64_t value = 0;
        struct kv_measure measure = measure_of(options);
        enum status status = count == SIZES_MAX
                                 ? err_set(&err, STATUS_CONFIG, "more than %d sizes", SIZES_MAX)
                                 : config_parse_bytes(word, &value, &err);
        measure.piece_bytes = value;
        if (!status)
            status = kv_measure_check(&measure, &err);
        if (status) {
            client_complain(bench_schema.program, "--size: %s", err.message);
            return EXIT_CODE_USAGE;
        }
        bytes[count] = value;
        names[count++] = word;
    }
    if (!options->json)
        printf("%-8s %13s %13s %8s\n", "piece", "hand-off",
               options->without_limit ? "" : "bare UCX", options->without_limit ? "" : "share");
    fflush(stdout);
    for (unsigned i = 0; i < count; i++) {
        struct figures figures;
        if (!size_measure(options, address, bytes[i], &figures))
            return i ? EXIT_CODE_HALF_WAY : address ? EXIT_CODE_NO_SERVER : EXIT_CODE_FAILED;
        size_print(options, names[i], bytes[i], figures);
    }
    return EXIT_CODE_DONE;
}

static int bench_kv(int argc, char **argv)
{
    struct bench_options options;
    struct config *config;
    int code;
    if (!config_start(&bench_schema, argc, argv, &options, &config, &code))
        return code;
    struct config_strings where = config_positionals(config);
    struct config_address address;
    struct err err = ERR_INIT;
    if (where.count && *options.listen.host) {
        client_complain(bench_schema.program,
                        "--listen and HOST:PORT: one end is here, the other there");
        code = EXIT_CODE_USAGE;
    } else if (where.count && config_parse_address(where.items[0], &address, &err)) {
        client_complain(bench_schema.program, "%s: %s", where.items[0], err.message);
        code = EXIT_CODE_USAGE;
    } else if (*options.listen.host) {
        code = listen_run(&options);
    } else {
        code = take_run(&options, where.count ? &address : NULL);
    }
    config_destroy(config);
    return code;
}

int cmd_bench(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (word && !strcmp(word, "kv"))
        return bench_kv(argc - 1, argv + 1);
    bool asks = word && (!strcmp(word, "--help") || !strcmp(word, "-h"));
    fprintf(asks ? stdout : stderr,
            "usage: baton bench kv [OPTIONS]    (see baton bench kv --help)\n");
    if (word && !asks)
        client_complain(
            "baton bench",
            !strcmp(word, "load") ? "%s is not built yet" : "unknown benchmark \"%.40s\"", word);
    return asks ? EXIT_CODE_DONE : EXIT_CODE_USAGE;
}
