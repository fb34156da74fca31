/* Attention over 8,000 positions, of f16 and int8 KV in turn: one row, a chunk of 32 rows, and whole steps of 16 sequences; where there is no
 * memory for the pages of 16 sequences of both, of one alone. Each beside its limit, with one thread also where nothing disturbed it.
 * Owner: the program's main thread. */
#ifndef BATON_TESTS_BENCH_DEEP_H
#define BATON_TESTS_BENCH_DEEP_H

#include "model/model.h"
#include "tests/bench/bench.h"

/* seconds: of own steps, for each figure. */
void deep_run(struct bench *bench, struct model_file *model, unsigned threads, double seconds);

#endif
