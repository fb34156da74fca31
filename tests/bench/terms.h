/* Where a step's time goes, by operation: bench_engine is linked with --wrap, so that each operation of the CPU backend is
 * pushed as one that also looks at its thread's processor time, before and after. For engines of one thread.
 *
 *     terms_begin();  one step;  terms_end(ms);      again and again, then medians
 *
 * Owner: the main thread between steps; the stream's thread during one. */
#ifndef BATON_TESTS_BENCH_TERMS_H
#define BATON_TESTS_BENCH_TERMS_H

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
void terms_begin(void);
/* Seconds of each since terms_begin: [TERM_COUNT]. */
void terms_end(double *seconds);

#endif
