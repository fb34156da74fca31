/* Where a step's time goes, by operation: bench_engine is linked with --wrap, so that each operation of the CPU backend is
 * pushed as one that also looks at its thread's processor time, before and after. For engines of one thread.
 *
 *     terms_begin(NULL);  one step;  terms_end(seconds);      again and again, then medians
 *
 * Given a struct terms_alone it also looks after each operation whether the thread has its core to itself (undisturbed.h), some 15 us
 * each, and adds up what operations took before and after which that was so:
 *
 *     struct terms_alone alone = {0};
 *     terms_begin(&alone);  one step;  terms_end(seconds);    again and again, each of the same shape
 *     terms_alone_seconds(&alone, TERM_LINEAR)                of such a step
 *
 * Owner: the main thread between steps; the stream's thread during one. */
#ifndef BATON_TESTS_BENCH_TERMS_H
#define BATON_TESTS_BENCH_TERMS_H

#include <stdint.h>

enum term {
    TERM_EMBED,
    TERM_NORM, /* with quantisation of what follows it */
    TERM_LINEAR,
    TERM_ROPE_KV,
    TERM_ATTENTION,
    TERM_ACTS_FROM, /* quantisation of attention's output */
    TERM_SILU_MUL,  /* with quantisation */
    TERM_KV_SUMS,
    TERM_HEAD,
    TERM_SAMPLE,
    TERM_COUNT
};

const char *term_name(enum term term);

enum { TERMS_KINDS = 4, TERMS_ALONE_MAX = 4096 }; /* kinds of one operation: a layer's products */
struct terms_alone {
    uint64_t steps;
    struct terms_kind {
        uint64_t runs, alone;
        double seconds, alone_seconds[TERMS_ALONE_MAX];
    } kinds[TERM_COUNT][TERMS_KINDS];
};

void terms_begin(struct terms_alone *alone);
/* Seconds of each since terms_begin: [TERM_COUNT]. */
void terms_end(double *seconds);

/* Seconds of a step's operations of this kind: by the median of those that were alone (of each kind the first
 * TERMS_ALONE_MAX); by the mean of all, where none was. Sorts them. */
double terms_alone_seconds(struct terms_alone *of, enum term term);
/* How large a part of all operations was alone, of 1. */
double terms_alone_part(const struct terms_alone *of);

#endif
