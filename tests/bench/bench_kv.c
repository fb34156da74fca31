/* What the KV hand-off moves: two processes, P with everything computed and D that fetches 256 MB (more than the caches) by
 * source and sink in their event loops, every checksum verified; beside it ucx_bare, which moves the same pieces by the same
 * UCX calls and does nothing else. Both are run in turn, several times, and the medians compared.
 *
 *     bench_kv [tcp|shm ...] [12k|64k|256k|1m ...] [--runs N] [--wait] [--json FILE]
 *     --wait: the bare program never spins (on a busy machine it would starve itself)
 *
 * Owner: the main thread of each process. */
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop.h"
#include "kvtransfer/sink.h"
#include "tests/bench/bench.h"

enum { WINDOW = 8, RUNS_MAX = 32, PIECES_MAX = 1 << 16, WORKING_SET = 256 << 20 };

struct side {
    struct loop *loop;
    struct kv_links *links;
    struct kv_source *source;
    struct kv_sink *sink;
    struct kv_link *link;
    size_t piece_bytes;
    uint8_t *memory;
    bool up, ended, released;
    enum status status;
};

static void must(enum status status, const struct err *err)
{
    if (!status)
        return;
    fprintf(stderr, "bench_kv: %s\n", err->message);
    exit(1);
}

static void on_link(void *context, struct kv_link *link, enum kv_link_state state, enum status why)
{
    ((struct side *)context)->up = state == KV_LINK_UP;
}

static void on_given(void *context, void *user, enum status status)
{
    ((struct side *)context)->status = status;
    ((struct side *)context)->ended = true;
}

static void on_released(void *context, void *user)
{
    ((struct side *)context)->released = true;
}

static void *on_memory(void *context, void *user, struct kv_piece piece, size_t *bytes_out)
{
    struct side *side = context;
    *bytes_out = side->piece_bytes;
    return side->memory + piece.block * side->piece_bytes;
}

static void on_piece(void *context, void *user, uint64_t transfer, struct kv_piece piece,
                     void *memory, size_t bytes, uint64_t checksum)
{
    struct side *side = context;
    kv_sink_piece_verified(side->sink, transfer, piece, kv_checksum(memory, bytes) == checksum);
}

static void on_taken(void *context, void *user, const struct kv_sink_result *result)
{
    struct side *side = context;
    side->status = result->status;
    side->ended = true;
}

static void side_start(struct side *side, const char *transport, uint64_t incarnation, int fd)
{
    struct err err = ERR_INIT;
    const struct kv_links_options links_options = {.links_max = 2, .window_max = WINDOW};
    const struct kv_links_events links_events = {side, on_link};
    const struct kv_source_options source_options = {.transfers_max = 1, .pieces_max = PIECES_MAX};
    const struct kv_source_events source_events = {
        .context = side, .ended = on_given, .released = on_released};
    const struct kv_sink_options sink_options = {.transfers_max = 1, .pieces_max = PIECES_MAX};
    const struct kv_sink_events sink_events = {side, on_memory, on_piece, on_taken, on_released};
    must(loop_create(&side->loop, &err), &err);
    must(kv_links_create(&links_options, &links_events, incarnation, &side->links, &err), &err);
    struct xfer_options xfer_options = {
        .transport = strcmp(transport, "shm") == 0 ? XFER_TRANSPORT_SHM : XFER_TRANSPORT_TCP};
    struct xfer_handler handler = kv_links_handler(side->links);
    struct xfer *xfer;
    must(xfer_ucx_create(&xfer_options, &handler, &xfer, &err), &err);
    kv_links_start(side->links, xfer);
    kv_links_set_router(side->links, 1);
    must(kv_source_create(side->links, &source_options, &source_events, &side->source, &err), &err);
    must(kv_sink_create(side->links, &sink_options, &sink_events, &side->sink, &err), &err);
    must(kv_links_attach(side->links, side->loop, &err), &err);
    uint8_t theirs[XFER_ADDRESS_BYTES_MAX];
    size_t own_bytes;
    const uint8_t *own = xfer_address(xfer, &own_bytes);
    if (write(fd, own, own_bytes) != (ssize_t)own_bytes)
        exit(1);
    ssize_t bytes = read(fd, theirs, sizeof theirs);
    if (bytes <= 0)
        exit(1);
    const struct kv_link_options link_options = {
        .incarnation = 3 - incarnation, .address = theirs, .address_bytes = (size_t)bytes};
    must(kv_link_open(side->links, &link_options, &side->link, &err), &err);
    while (!side->up)
        loop_round(side->loop, NS_PER_S);
}

static const struct kv_key key = {1, 1, {1, 1}, 1};

static void give(struct side *side, uint32_t count)
{
    const struct kv_shape shape = {1, {{count, 1, 1}}};
    uint64_t transfer;
    struct err err = ERR_INIT;
    must(kv_source_open(side->source, &key, &shape, NULL, &transfer), &err);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *data = side->memory + i * side->piece_bytes;
        const struct kv_ready_piece ready = {
            {i, 0, 0}, data, side->piece_bytes, kv_checksum(data, side->piece_bytes)};
        kv_source_piece_ready(side->source, transfer, &ready);
    }
    const struct kv_first first = {.token_id = 1};
    kv_source_computed(side->source, transfer);
    kv_source_first(side->source, transfer, &first);
}

/* One pass in two fresh processes; this one is D's. Returns GB/s. */
static double take(const char *transport, size_t piece_bytes)
{
    uint32_t count = (uint32_t)(WORKING_SET / piece_bytes);
    size_t bytes = count * piece_bytes;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        exit(1);
    pid_t child = fork();
    struct side side = {.piece_bytes = piece_bytes};
    side.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (side.memory == MAP_FAILED)
        exit(1);
    memset(side.memory, child ? 0 : 7, bytes);
    side_start(&side, transport, child ? 1 : 2, pair[child ? 0 : 1]);
    char ready = 'r';
    if (child == 0) {
        give(&side, count);
        if (write(pair[1], &ready, 1) != 1)
            _exit(1);
        while (!side.released)
            loop_round(side.loop, NS_PER_S);
        _exit(side.status ? 1 : 0);
    }
    while (recv(pair[0], &ready, 1, MSG_DONTWAIT) != 1)
        loop_round(side.loop, NS_PER_MS);
    struct kv_sink_begin begin = {
        .key = key, .link = side.link, .shape = {1, {{count, 1, 1}}}, .deadline_ns = DEADLINE_NONE};
    uint64_t transfer;
    double start = bench_now();
    struct err err = ERR_INIT;
    must(kv_sink_begin(side.sink, &begin, &transfer), &err);
    kv_links_flush(side.links);
    while (!side.ended)
        loop_round(side.loop, NS_PER_S);
    double seconds = bench_now() - start;
    while (!side.released)
        loop_round(side.loop, NS_PER_S);
    if (side.status || side.memory[0] != 7 || side.memory[bytes - 1] != 7) {
        fprintf(stderr, "bench_kv: the transfer ended with %s\n", status_text(side.status));
        exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    kv_links_detach(side.links);
    kv_links_destroy(side.links);
    kv_source_destroy(side.source);
    kv_sink_destroy(side.sink);
    loop_destroy(side.loop);
    munmap(side.memory, bytes);
    close(pair[0]);
    close(pair[1]);
    return 1e-9 * (double)bytes / seconds;
}

/* In a process of its own: UCX and fork do not mix well, and each run begins alike. */
static double take_apart(const char *transport, size_t piece_bytes)
{
    int result[2];
    if (pipe(result))
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        double rate = take(transport, piece_bytes);
        if (write(result[1], &rate, sizeof rate) != sizeof rate)
            _exit(1);
        _exit(0);
    }
    double rate = 0;
    close(result[1]);
    if (read(result[0], &rate, sizeof rate) != sizeof rate)
        exit(1);
    close(result[0]);
    waitpid(child, NULL, 0);
    return rate;
}

static double bare_once(const char *folder, const char *transport, size_t piece_bytes,
                        const char *how)
{
    char command[PATH_MAX + 128];
    snprintf(command, sizeof command, "timeout 60 '%s/ucx_bare' %s %zu %d %d %s", folder, transport,
             piece_bytes, WORKING_SET, WINDOW, how);
    FILE *output = popen(command, "r");
    double rate = 0;
    if (!output || fscanf(output, "%lf", &rate) != 1) {
        fprintf(stderr, "bench_kv: %s failed\n", command);
        exit(1);
    }
    pclose(output);
    return rate;
}

static bool wait_only;

/* The better of spinning and waiting: which that is depends on who else wants the cores. */
static double bare(const char *folder, const char *transport, size_t piece_bytes)
{
    double spin = wait_only ? 0 : bare_once(folder, transport, piece_bytes, "spin");
    double wait = bare_once(folder, transport, piece_bytes, "wait");
    return spin > wait ? spin : wait;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct {
    const char *name;
    size_t bytes;
    bool chosen;
} sizes[] = {{"12k", 12 << 10, false},
             {"64k", 64 << 10, false},
             {"256k", 256 << 10, false},
             {"1m", 1 << 20, false}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static bool size_choose(const char *name)
{
    for (size_t i = 0; i < SIZES; i++)
        if (strcmp(sizes[i].name, name) == 0)
            return sizes[i].chosen = true;
    return false;
}

int main(int argc, char **argv)
{
    struct bench bench;
    char path[PATH_MAX];
    ssize_t path_bytes = readlink("/proc/self/exe", path, sizeof path - 1);
    if (path_bytes < 0 || bench_begin(&bench, &argc, argv) < 0)
        return 2;
    path[path_bytes] = '\0';
    const char *folder = dirname(path);
    const char *transports[4] = {"tcp"};
    unsigned transport_count = 0, runs = 5;
    bool all_sizes = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
            runs = (unsigned)atoi(argv[++i]);
        else if ((!strcmp(argv[i], "tcp") || !strcmp(argv[i], "shm")) && transport_count < 4)
            transports[transport_count++] = argv[i];
        else if (strcmp(argv[i], "--wait") == 0)
            wait_only = true;
        else if (size_choose(argv[i]))
            all_sizes = false;
        else
            return fprintf(stderr, "bench_kv: unknown argument %s\n", argv[i]), 2;
    }
    if (runs < 1 || runs > RUNS_MAX)
        return fprintf(stderr, "bench_kv: --runs: 1 to %d\n", RUNS_MAX), 2;
    for (unsigned t = 0; t < (transport_count ? transport_count : 1); t++)
        for (size_t i = 0; i < SIZES; i++) {
            if (!all_sizes && !sizes[i].chosen)
                continue;
            double ours[RUNS_MAX], theirs[RUNS_MAX];
            for (unsigned run = 0; run < runs; run++) {
                theirs[run] = bare(folder, transports[t], sizes[i].bytes);
                ours[run] = take_apart(transports[t], sizes[i].bytes);
            }
            qsort(ours, runs, sizeof *ours, compare);
            qsort(theirs, runs, sizeof *theirs, compare);
            char id[32];
            snprintf(id, sizeof id, "kv_%s_%s", transports[t], sizes[i].name);
            bench_add(&bench, &(struct bench_record){.id = id,
                                                     .value = ours[runs / 2],
                                                     .unit = "GB/s",
                                                     BENCH_LIMIT("bare UCX", theirs[runs / 2])});
        }
    return bench_end(&bench);
}
