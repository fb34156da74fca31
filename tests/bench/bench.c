/* See bench.h. */
#include "tests/bench/bench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int bench_begin(struct bench *bench, int *argc, char **argv)
{
    *bench = (struct bench){.first = true};
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--json") != 0) {
            argv[kept++] = argv[i];
            continue;
        }
        if (++i == *argc) {
            fprintf(stderr, "%s: --json needs a file name\n", argv[0]);
            return -1;
        }
        bench->json_path = argv[i];
    }
    *argc = kept;
    if (bench->json_path) {
        bench->json = fopen(bench->json_path, "w");
        if (!bench->json) {
            fprintf(stderr, "%s: %s: %s\n", argv[0], bench->json_path, strerror(errno));
            return -1;
        }
        fputs("[", bench->json);
    }
    printf("%-32s %10s %-10s %7s  %-46s %7s  %s\n", "", "value", "unit", "share", "of the limit",
           "ratio", "to the peer");
    return kept - 1;
}

static double quotient(const struct bench_record *record, double other)
{
    return record->lower_is_better ? other / record->value : record->value / other;
}

/* Ids, units and names are literals of our own: no character needs escaping. */
static void put_string(FILE *file, const char *key, const char *value)
{
    if (value)
        fprintf(file, ", \"%s\": \"%s\"", key, value);
    else
        fprintf(file, ", \"%s\": null", key);
}

static void put_number(FILE *file, const char *key, bool given, double value)
{
    if (given && isfinite(value))
        fprintf(file, ", \"%s\": %.6g", key, value);
    else
        fprintf(file, ", \"%s\": null", key);
}

/* The median, least and most of what the rounds' values are of the others. */
struct spread {
    double median, least, most;
};

static struct spread spread_of(const double *values, const double *others, size_t count,
                               bool lower_is_better)
{
    double each[BENCH_ROUNDS_MAX] = {0};
    for (size_t i = 0; i < count; i++)
        each[i] = lower_is_better ? others[i] / values[i] : values[i] / others[i];
    double median = bench_median(each, count);
    return (struct spread){median, each[0], each[count - 1]};
}

static void put_json(FILE *file, const struct bench_record *record, const struct spread *share,
                     const struct spread *ratio, size_t rounds)
{
    fprintf(file, "{\"id\": \"%s\"", record->id);
    put_number(file, "value", true, record->value);
    put_string(file, "unit", record->unit);
    put_string(file, "limit_name", record->limit_name);
    put_number(file, "limit", record->limit_name, record->limit);
    put_number(file, "share", record->limit_name, share->median);
    put_string(file, "peer_name", record->peer_name);
    put_number(file, "peer", record->peer_name, record->peer);
    put_number(file, "ratio", record->peer_name, ratio->median);
    if (rounds) {
        put_number(file, "rounds", true, (double)rounds);
        put_number(file, "share_min", record->limit_name, share->least);
        put_number(file, "share_max", record->limit_name, share->most);
        put_number(file, "ratio_min", record->peer_name, ratio->least);
        put_number(file, "ratio_max", record->peer_name, ratio->most);
    }
    if (record->verdict) {
        put_number(file, "mfu", true, record->mfu);
        put_number(file, "mbu", true, record->mbu);
        put_string(file, "verdict", record->verdict);
        put_string(file, "lever", record->lever);
    }
    fputs("}", file);
}

/* rounds: how many share and ratio are of, 0: of the record alone */
static void put(struct bench *bench, const struct bench_record *record, const struct spread *share,
                const struct spread *ratio, size_t rounds)
{
    char limit[96] = "", peer[96] = "", shares[16] = "", ratios[16] = "";
    if (record->limit_name) {
        int at = snprintf(limit, sizeof(limit), "%s %.4g", record->limit_name, record->limit);
        if (rounds)
            snprintf(limit + at, sizeof(limit) - (size_t)at, " (%.0f-%.0f %%)", 100 * share->least,
                     100 * share->most);
        snprintf(shares, sizeof(shares), "%.1f %%", 100 * share->median);
    }
    if (record->peer_name) {
        int at = snprintf(peer, sizeof(peer), "%s %.4g", record->peer_name, record->peer);
        if (rounds)
            snprintf(peer + at, sizeof(peer) - (size_t)at, " (%.2f-%.2f x)", ratio->least,
                     ratio->most);
        snprintf(ratios, sizeof(ratios), "%.2f x", ratio->median);
    }
    printf("%-32s %10.4g %-10s %7s  %-46s %7s  %s\n", record->id, record->value, record->unit,
           shares, limit, ratios, peer);
    if (record->verdict)
        printf("    MFU %.1f %%, MBU %.1f %%, held back by %s: %s\n", 100 * record->mfu,
               100 * record->mbu, record->verdict, record->lever);
    fflush(stdout);
    if (bench->json) {
        fputs(bench->first ? "\n  " : ",\n  ", bench->json);
        put_json(bench->json, record, share, ratio, rounds);
    }
    bench->first = false;
}

void bench_add(struct bench *bench, const struct bench_record *record)
{
    struct spread share = {.median = quotient(record, record->limit)},
                  ratio = {.median = quotient(record, record->peer)};
    put(bench, record, &share, &ratio, 0);
}

void bench_add_rounds(struct bench *bench, struct bench_record record,
                      const struct bench_rounds *rounds)
{
    const size_t count = rounds->count, peers = rounds->peer_count;
    struct bench_rounds sorted = *rounds;
    struct spread share = {0}, ratio = {0};
    if (record.limit_name)
        share = spread_of(rounds->values, rounds->limits, count, record.lower_is_better);
    if (record.peer_name)
        ratio = spread_of(rounds->values, rounds->peers, peers, record.lower_is_better);
    record.value = bench_median(sorted.values, count);
    record.limit = bench_median(sorted.limits, count);
    record.peer = peers ? bench_median(sorted.peers, peers) : 0;
    put(bench, &record, &share, &ratio, count);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

int bench_end(struct bench *bench)
{
    if (!bench->json)
        return 0;
    fputs("\n]\n", bench->json);
    bool failed = ferror(bench->json) != 0;
    failed |= fclose(bench->json) != 0;
    if (failed)
        fprintf(stderr, "%s: could not be written\n", bench->json_path);
    return failed ? 1 : 0;
}

static double clock_seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double bench_now(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

double bench_cpu_now(void)
{
    return clock_seconds(CLOCK_THREAD_CPUTIME_ID);
}

static double best(clockid_t clock, double seconds, void (*run)(void *data), void *data)
{
    double fastest = INFINITY, begin = clock_seconds(clock);
    for (int i = 0; i < 3 || clock_seconds(clock) - begin < seconds; i++) {
        double start = clock_seconds(clock);
        run(data);
        double took = clock_seconds(clock) - start;
        fastest = took < fastest ? took : fastest;
    }
    return fastest;
}

double bench_best(double seconds, void (*run)(void *data), void *data)
{
    return best(CLOCK_MONOTONIC, seconds, run, data);
}

double bench_best_cpu(double seconds, void (*run)(void *data), void *data)
{
    return best(CLOCK_THREAD_CPUTIME_ID, seconds, run, data);
}
