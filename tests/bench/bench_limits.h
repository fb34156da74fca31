/* The machine's limits, measured in turn with what is judged by them, and what a step of the engine would take at these.
 *
 *     struct limits limits;
 *     limits_open(&limits, bytes, threads);
 *     limits_measure(&limits);  steps;                     in each round
 *     limits_cost(&subject, &limits, step)                 of such a step, at the peaks of the round
 *     limits_add(&bench, &limits);  limits_close(&limits);
 *
 * Anything that goes wrong ends the program. Owner: the program's main thread. */
#ifndef BATON_TESTS_BENCH_BENCH_LIMITS_H
#define BATON_TESTS_BENCH_BENCH_LIMITS_H

#include "kernels/cpu/peaks.h"
#include "sched/roofline.h"
#include "tests/bench/bench.h"
#include "tests/bench/subject.h"

enum { LIMITS_ROUNDS = 5 };

enum limit { LIMIT_READ, LIMIT_F32, LIMIT_INT8, LIMIT_NIBBLE, LIMIT_PAIR, LIMITS };
struct limits {
    unsigned threads;
    struct peaks_reader *reader; /* of as many bytes as what is judged reads */
    struct peaks peaks, highest; /* now; of all rounds */
    double bandwidth;            /* GB/s */
    size_t count;
    double seen[LIMITS][BENCH_ROUNDS_MAX];
};

/* bytes: what is judged reads so many. */
void limits_open(struct limits *limits, double bytes, unsigned threads);
void limits_close(struct limits *limits);
/* All of them, now. */
void limits_measure(struct limits *limits);
/* A record of each, the median of the rounds. */
void limits_add(struct bench *bench, struct limits *limits);

/* What a step asks for, in seconds at the machine's peaks. */
struct roofline_cost limits_cost(const struct subject *subject, const struct limits *limits,
                                 struct roofline_step step);

/* A record of what nothing disturbed, beside the same peaks, which hardly feel it. part: of all operations, of 1. */
void limits_alone_add(struct bench *bench, const char *id, const char *unit, double value,
                      const char *limit_name, double limit, double part);

#endif
