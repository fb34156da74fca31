/* What every benchmark shares: a table on the terminal, each figure beside its limit and its peer, and the same records as
 * JSON when asked (--json FILE, an array of {id, value, unit, limit_name, limit, share, peer_name, peer, ratio}, null where
 * there is none; whole steps of a model have {mfu, mbu, verdict, lever} too, what was measured in rounds {rounds, share_min, share_max,
 * ratio_min, ratio_max}).
 *
 *     struct bench bench;
 *     if (bench_begin(&bench, &argc, argv) < 0) return 2;
 *     bench_add(&bench, &(struct bench_record){.id = "...", .value = v, .unit = "GB/s", BENCH_LIMIT("read bandwidth", bw)});
 *     return bench_end(&bench);
 *
 * Owner: the program's main thread. */
#ifndef BATON_TESTS_BENCH_BENCH_H
#define BATON_TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct bench {
    FILE *json;
    const char *json_path;
    bool first;
};

/* share = value / limit and ratio = value / peer; with `lower_is_better` (a latency) limit / value and peer / value. A limit
 * or peer without a name is none. */
struct bench_record {
    const char *id;
    double value;
    const char *unit;
    const char *limit_name;
    double limit;
    const char *peer_name;
    double peer;
    bool lower_is_better;
    /* of sched/roofline.h; without a verdict there is none */
    const char *verdict, *lever;
    double mfu, mbu;
};

/* What was measured in turn, because the machine's speed moves by a fifth within minutes: in each round the value, its limit right
 * before it and, where there is one, its peer right after it. */
enum { BENCH_ROUNDS_MAX = 64 };
struct bench_rounds {
    size_t count, peer_count; /* the first rounds have a peer */
    double values[BENCH_ROUNDS_MAX], limits[BENCH_ROUNDS_MAX], peers[BENCH_ROUNDS_MAX];
};

static inline void bench_round_add(struct bench_rounds *rounds, double value, double limit)
{
    rounds->values[rounds->count] = value;
    rounds->limits[rounds->count++] = limit;
}

#define BENCH_LIMIT(name, value_) .limit_name = (name), .limit = (value_)
#define BENCH_PEER(name, value_) .peer_name = (name), .peer = (value_)

/* Takes `--json FILE` out of the arguments, opens it, prints the table's head. Other arguments stay for the caller; returns
 * their number (argv[0] not counted), or -1 after printing why. */
int bench_begin(struct bench *bench, int *argc, char **argv);
void bench_add(struct bench *bench, const struct bench_record *record);
/* The record with the medians of the rounds: of the values, the limits, the peers, and of what each round's share and ratio were,
 * with the least and the most of these. Limits and peers count where the record names them. */
void bench_add_rounds(struct bench *bench, struct bench_record record,
                      const struct bench_rounds *rounds);
/* Closes the file; returns the program's exit code. */
int bench_end(struct bench *bench);

/* Calls run(data) again and again for about `seconds`, at least three times, and returns the fastest call's seconds. */
double bench_best(double seconds, void (*run)(void *data), void *data);

/* The same in processor time of the calling thread: for kernels on one thread, whose figure should not depend on who else
 * wants the core. (Memory and turbo clocks are still shared.) */
double bench_best_cpu(double seconds, void (*run)(void *data), void *data);

/* Of `count` values, which it sorts; the upper one of an even number's two. */
double bench_median(double *values, size_t count);

/* Seconds of a steady clock; of the calling thread's processor time, so that a figure does not depend on who else wants the core. */
double bench_now(void);
double bench_cpu_now(void);

#endif
