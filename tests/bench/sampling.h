/* What sampling takes beside a decode step of the same number of rows, for each way to draw.
 * Owner: the main thread. */
#ifndef BATON_TESTS_BENCH_SAMPLING_H
#define BATON_TESTS_BENCH_SAMPLING_H

#include "tests/bench/bench.h"
#include "tests/bench/subject.h"

/* Adds "decode32.WAY_TYPE_1t" for each way: per cent of a step of 32 rows (greedy sampling included), one thread, over rows whose
 * logits are spread wide and evenly, which is what top_p takes longest for. Steps and ways in turn, for `seconds`; medians. */
void bench_sampling(struct bench *bench, struct subject *subject, const char *type, double seconds);

#endif
