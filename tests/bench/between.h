/* What lies between two decode steps of 32 sequences, beside the step: drawing, scheduling and sending, which together are to take
 * less than 3 % of it.
 * Owner: the main thread. */
#ifndef BATON_TESTS_BENCH_BETWEEN_H
#define BATON_TESTS_BENCH_BETWEEN_H

#include "tests/bench/bench.h"

/* Steps, all ways to draw, and the sending of a step's tokens (sending.h, open for 32) in turn, for `seconds` with each of two sizes of
 * the vocabulary; medians of the rounds. One thread, processor times.
 *
 *     decode32.WAY_TYPE_1t          drawing of 32 rows as a share of the step (which draws greedily). The logits are spread wide and
 *                                   evenly, which is what top_p takes longest for
 *     decode32.WAY_262144_TYPE_1t   the same with 262,144 words, beside a step of the same layers whose head, and embedding, has as many
 *                                   rows: the model's own, over and over
 *     sched32_send, _process        us of the loop's thread, of all threads
 *     between32_TYPE_1t, between32_262144_TYPE_1t
 *                                   the dearest way, `scheduling_us` and sending, as a share of the step
 *
 * Anything that goes wrong ends the program. */
void bench_between(struct bench *bench, const char *model_path, double scheduling_us,
                   double seconds);

#endif
