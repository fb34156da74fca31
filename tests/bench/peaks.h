/* The machine's own limits, measured in the run that is judged by them: arithmetic from registers alone, and memory read by
 * plain loads. Loops are fixed instruction sequences (inline assembly), so that no compiler's spill can flatter a share.
 *
 * Arithmetic, and reading by one thread, are timed by processor time, so that a figure does not depend on who else wants the
 * core; reading by several threads by the clock, all between the same two barriers.
 * Owner: the calling thread; the others live as long as a call. */
#ifndef BATON_TESTS_BENCH_PEAKS_H
#define BATON_TESTS_BENCH_PEAKS_H

#include <stddef.h>

#include "kernels/cpu/isa.h"

enum { PEAKS_THREADS_MAX = 64 };

/* All threads together, in 1e9 operations a second; a product and its addition are two operations. */
struct peaks {
    double f32;  /* fused multiply-adds */
    double int8; /* bytes by bytes: vpmaddubsw, vpmaddwd, vpaddd; or vpdpbusd */
    double
        nibble;  /* 4-bit weights by bytes: vpmaddubsw, vpaddw, widened once a block; or vpdpbusd */
    double pair; /* 16-bit integers in pairs: vpmaddwd, vpaddd; or vpdpwssd */
    const char *int8_name, *nibble_name, *pair_name;
};

/* For `isa`, which the CPU must support, and be at least AVX2; 1 to PEAKS_THREADS_MAX threads. */
void peaks_measure(enum cpu_isa_level isa, unsigned threads, struct peaks *peaks_out);

/* GB/s of `threads` threads that read `bytes` (each its part) over and over: the best of one, two and four streams a thread,
 * of prefetches from none to 8 KiB ahead, to all caches or past them, on huge pages. Take as many bytes as what is judged
 * reads: what of it stays in the last cache counts for both. Takes about three seconds. */
double peaks_read_bandwidth(size_t bytes, unsigned threads);

#endif
