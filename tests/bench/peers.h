/* llama.cpp on the same model, for bench_engine: a program of its own is started for each figure and round, in turn with ours.
 *
 *     BATON_LLAMA_BIN    the folder of llama-bench and llama-batched-bench; not set: no peers
 *     BATON_LLAMA_FILES  further files of the same model in other types, A:B:C; they are for llama.cpp alone
 *
 * With one thread a figure is the better of two views of it: what the program reports by the clock, and tokens by processor time
 * (less that of a run that does next to nothing, so that loading and warming up fall out), which does not depend on who else wants
 * the core; ours are by processor time, too. With more threads it is what is reported.
 *
 * Anything that goes wrong ends the program. Owner: the main thread. */
#ifndef BATON_TESTS_BENCH_PEERS_H
#define BATON_TESTS_BENCH_PEERS_H

#include <stddef.h>
#include <stdint.h>

#include "tests/bench/subject.h"

enum { PEERS_MAX = 8 };

struct peer {
    const char *path;
    char name[32]; /* "llama.cpp Q4_1" */
    double
        loading[SUBJECT_SEQS_MAX + 1]; /* seconds, by sequences, 0 for a prompt; 0: not known yet */
};

struct peers {
    size_t count; /* 0: none; the first is of our own file */
    struct peer each[PEERS_MAX];
};

void peers_find(const char *model, struct peers *peers_out);

/* Tokens/s of a prompt of `rows` tokens, or (rows 1) of `seqs` sequences together that decode around position 32. */
double peers_tokens(struct peer *peer, unsigned threads, uint32_t seqs, uint32_t rows);

#endif
