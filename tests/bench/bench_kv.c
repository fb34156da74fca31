/* What the KV hand-off moves, beside bare UCX by the same calls: kvtransfer/measure.h, as `baton bench kv` has it, over 384 MB
 * (more than the caches). Each round runs bare UCX and ours one after the other, each twice, and compares the better pass of
 * either, so that what else the machine does falls on both; the figure is the median of the rounds' ratios (`_share`, wanted:
 * 0.9). Bare UCX spins in one of its passes and waits in the other: which is faster depends on who else wants the cores. Below each size: the processor time of a pass, start and the
 * first touch of its memory included, which says something on a busy machine too; and what ucx_perftest (package ucx-utils) moves by
 * active messages of that size, out of one buffer that stays in the cache.
 *
 *     bench_kv [tcp|shm ...] [12k|64k|168k|256k|1m ...] [--runs N] [--wait] [--json FILE]
 *     --wait: bare UCX never spins (on a busy machine it would starve itself)
 *
 * Owner: the main thread. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kvtransfer/measure.h"
#include "tests/bench/bench.h"

enum { RUNS_MAX = 32, WORKING_SET = 384 << 20 };

/* Pieces as models have them (engine.c chooses: a quarter of the layers at most, about 256 KB, at least 128 KB). */
static struct {
    const char *name;
    size_t bytes;
    const char *of;
    bool chosen;
} sizes[] = {{"12k", 12 << 10, "1 layer x 16 tokens of SmolLM2-135M (layer_run 1), f16", false},
             {"64k", 64 << 10, "1 layer x 16 tokens of 8 heads of 128 (layer_run 1), f16", false},
             {"168k", 168 << 10, "7 layers x 32 tokens of SmolLM2-135M, f16: the default", false},
             {"256k", 256 << 10,
              "4 layers x 16 tokens of 8 heads of 128 (a model of 8B), f16: the default", false},
             {"1m", 1 << 20, "4 layers x 64 tokens of 8 heads of 128, f16", false}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static bool size_choose(const char *name)
{
    for (size_t i = 0; i < SIZES; i++)
        if (strcmp(sizes[i].name, name) == 0)
            return sizes[i].chosen = true;
    return false;
}

static double cpu_of_children(void)
{
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* GB/s of one pass. */
static double pass(struct kv_measure measure, bool bare, bool spin, double *cpu_out)
{
    struct err err = ERR_INIT;
    double bytes_per_s, cpu = cpu_of_children();
    measure.bare = bare;
    measure.spin = spin;
    if (kv_measure_local(&measure, &bytes_per_s, &err)) {
        fprintf(stderr, "bench_kv: %s\n", err.message);
        exit(1);
    }
    *cpu_out = cpu_of_children() - cpu;
    return 1e-9 * bytes_per_s;
}

/* MB/s as ucx_perftest has them, 0 when it is not there or fails; both its sides run here. */
static double perftest(bool shm, size_t piece_bytes)
{
    char command[768], line[256];
    snprintf(command, sizeof command,
             "command -v ucx_perftest >/dev/null || exit 1; p=%d; "
             "export UCX_TLS=%s UCX_NET_DEVICES=%s UCX_LOG_LEVEL=fatal; "
             "timeout 30 ucx_perftest -p $p >/dev/null 2>&1 & sleep 0.5; "
             "timeout 25 ucx_perftest 127.0.0.1 -p $p -t ucp_am_bw -s %zu -n %zu -w 20 -f -v "
             "2>/dev/null | tail -n 1; wait",
             20000 + (int)(getpid() % 10000), shm ? "posix" : "tcp", shm ? "all" : "lo",
             piece_bytes, (size_t)WORKING_SET / piece_bytes);
    FILE *pipe = popen(command, "r");
    double mb_per_s = 0;
    if (!pipe)
        return 0;
    while (fgets(line, sizeof line, pipe)) {
        char *at = line; /* messages, three latencies, then MB/s: average and overall */
        for (int comma = 0; comma < 5 && at; comma++)
            at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
        if (at)
            mb_per_s = atof(at);
    }
    pclose(pipe);
    return mb_per_s;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double better(double a, double b)
{
    return a > b ? a : b;
}

/* Rounds of one size, and its lines. */
static void measure_size(struct bench *bench, const char *transport, size_t size,
                         const struct kv_measure *measure, unsigned runs, bool wait_only)
{
    double ours[RUNS_MAX], theirs[RUNS_MAX], share[RUNS_MAX], cpu[RUNS_MAX], bare_cpu[RUNS_MAX];
    for (unsigned run = 0; run < runs; run++) {
        double unused;
        theirs[run] = better(pass(*measure, true, !wait_only, &unused),
                             pass(*measure, true, false, &bare_cpu[run]));
        ours[run] =
            better(pass(*measure, false, false, &unused), pass(*measure, false, false, &cpu[run]));
        share[run] = ours[run] / theirs[run];
    }
    double *const rows[] = {ours, theirs, share, cpu, bare_cpu};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        qsort(rows[i], runs, sizeof *rows[i], compare);
    char id[32];
    unsigned middle = runs / 2;
    snprintf(id, sizeof id, "kv_%s_%s", transport, sizes[size].name);
    bench_add(bench, &(struct bench_record){.id = id,
                                            .value = ours[middle],
                                            .unit = "GB/s",
                                            BENCH_LIMIT("bare UCX", theirs[middle])});
    snprintf(id, sizeof id, "kv_%s_%s_share", transport, sizes[size].name);
    bench_add(bench,
              &(struct bench_record){
                  .id = id, .value = share[middle], .unit = "of bare", BENCH_LIMIT("wanted", 0.9)});
    printf("    %s; rounds %.0f to %.0f %%; processor time %.2f s, bare UCX waiting %.2f s\n",
           sizes[size].of, 100 * share[0], 100 * share[runs - 1], cpu[middle], bare_cpu[middle]);
    double tool = perftest(strcmp(transport, "shm") == 0, sizes[size].bytes);
    if (tool > 0)
        printf("    ucx_perftest ucp_am_bw: %.2f GB/s\n", 1e-9 * tool * (1 << 20));
    else
        printf("    ucx_perftest: not installed (package ucx-utils), or it failed\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct bench bench;
    if (bench_begin(&bench, &argc, argv) < 0)
        return 2;
    const char *transports[4] = {"tcp"};
    unsigned transport_count = 0, runs = 9;
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
            measure_size(&bench, transports[t], i, &measure, runs, wait_only);
        }
    return bench_end(&bench);
}
