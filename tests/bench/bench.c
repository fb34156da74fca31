/* See bench.h. */
#include "tests/bench/bench.h"

#include <errno.h>
#include <math.h>
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
    printf("%-32s %10s %-10s %7s  %-42s %7s  %s\n", "", "value", "unit", "share", "of the limit",
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

static void put_json(FILE *file, const struct bench_record *record)
{
    fprintf(file, "{\"id\": \"%s\"", record->id);
    put_number(file, "value", true, record->value);
    put_string(file, "unit", record->unit);
    put_string(file, "limit_name", record->limit_name);
    put_number(file, "limit", record->limit_name, record->limit);
    put_number(file, "share", record->limit_name, quotient(record, record->limit));
    put_string(file, "peer_name", record->peer_name);
    put_number(file, "peer", record->peer_name, record->peer);
    put_number(file, "ratio", record->peer_name, quotient(record, record->peer));
    if (record->verdict) {
        put_number(file, "mfu", true, record->mfu);
        put_number(file, "mbu", true, record->mbu);
        put_string(file, "verdict", record->verdict);
        put_string(file, "lever", record->lever);
    }
    fputs("}", file);
}

void bench_add(struct bench *bench, const struct bench_record *record)
{
    char limit[64] = "", peer[64] = "", share[16] = "", ratio[16] = "";
    if (record->limit_name) {
        snprintf(limit, sizeof(limit), "%s %.4g", record->limit_name, record->limit);
        snprintf(share, sizeof(share), "%.1f %%", 100 * quotient(record, record->limit));
    }
    if (record->peer_name) {
        snprintf(peer, sizeof(peer), "%s %.4g", record->peer_name, record->peer);
        snprintf(ratio, sizeof(ratio), "%.2f x", quotient(record, record->peer));
    }
    printf("%-32s %10.4g %-10s %7s  %-42s %7s  %s\n", record->id, record->value, record->unit,
           share, limit, ratio, peer);
    if (record->verdict)
        printf("    MFU %.1f %%, MBU %.1f %%, held back by %s: %s\n", 100 * record->mfu,
               100 * record->mbu, record->verdict, record->lever);
    fflush(stdout);
    if (bench->json) {
        fputs(bench->first ? "\n  " : ",\n  ", bench->json);
        put_json(bench->json, record);
    }
    bench->first = false;
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
