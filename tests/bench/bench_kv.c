/* What the KV hand-off moves, beside bare UCX by the same calls: kvtransfer/measure.h, as `baton bench kv` has it, over 256 MB (more
 * than the caches). Both are run in turn, several times, and the medians compared.
 *
 *     bench_kv [tcp|shm ...] [12k|64k|256k|1m ...] [--runs N] [--wait] [--json FILE]
 *     --wait: bare UCX never spins (on a busy machine it would starve itself)
 *
 * Owner: the main thread. */
#include <stdlib.h>
#include <string.h>

#include "kvtransfer/measure.h"
#include "tests/bench/bench.h"

enum { RUNS_MAX = 32, WORKING_SET = 256 << 20 };

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

/* GB/s of one pass. */
static double pass(struct kv_measure measure, bool bare, bool spin)
{
    struct err err = ERR_INIT;
    double bytes_per_s;
    measure.bare = bare;
    measure.spin = spin;
    if (kv_measure_local(&measure, &bytes_per_s, &err)) {
        fprintf(stderr, "bench_kv: %s\n", err.message);
        exit(1);
    }
    return 1e-9 * bytes_per_s;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    struct bench bench;
    if (bench_begin(&bench, &argc, argv) < 0)
        return 2;
    const char *transports[4] = {"tcp"};
    unsigned transport_count = 0, runs = 5;
    bool all_sizes = true, wait_only = false;
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
            bool shm = strcmp(transports[t], "shm") == 0;
            const struct kv_measure measure = {.transport =
                                                   shm ? XFER_TRANSPORT_SHM : XFER_TRANSPORT_TCP,
                                               .piece_bytes = sizes[i].bytes,
                                               .total_bytes = WORKING_SET};
            double ours[RUNS_MAX], theirs[RUNS_MAX];
            for (unsigned run = 0; run < runs; run++) {
                /* the better of the two: that depends on who else wants the cores */
                double spin = wait_only ? 0 : pass(measure, true, true);
                double wait = pass(measure, true, false);
                theirs[run] = spin > wait ? spin : wait;
                ours[run] = pass(measure, false, false);
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
