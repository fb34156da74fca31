/* The machine's own limits: arithmetic from registers alone, and memory read by plain loads.
 *
 * Arithmetic, and reading by one thread, are timed by processor time, so that a figure does not depend on who else wants the
 * core; reading by several threads by the clock, all between the same two barriers.
 * Owner: the calling thread; the others live as long as a call. */
#ifndef BATON_KERNELS_CPU_PEAKS_H
#define BATON_KERNELS_CPU_PEAKS_H

#include <stddef.h>

#include "base/err.h"
#include "kernels/cpu/isa.h"

enum { PEAKS_THREADS_MAX = 256 };

/* All threads together, in 1e9 operations a second; a product and its addition are two operations. */
struct peaks {
    double f32;  /* fused multiply-adds */
    double int8; /* bytes by bytes, summed in 32 bits */
    double
        nibble; /* 4-bit weights by bytes, summed in 16 bits and widened once a block where that is faster */
    double pair;                                                /* 16-bit integers in pairs */
    const char *f32_name, *int8_name, *nibble_name, *pair_name; /* of the instructions */
};

/* Seconds that a measurement may take; the figures of a start need not be as sharp as those that a benchmark is judged by. PEAKS_TURN
 * is for measuring again and again, in turn with what is judged. */
enum peaks_care { PEAKS_QUICK, PEAKS_TURN, PEAKS_SHARP }; /* about 0.03, 0.1 and 1.3 s */

/* For `isa`, which the CPU must support; 1 to PEAKS_THREADS_MAX threads. MEMORY: no thread. */
enum status peaks_measure(enum cpu_isa_level isa, unsigned threads, enum peaks_care care,
                          struct peaks *peaks_out);

/* `threads` threads that read `bytes` (each its part) over and over: in one, two and four streams a thread, with prefetches from none
 * to 8 KiB ahead, to all caches or past them, on huge pages. Take as many bytes as what is judged reads: what of it stays in the
 * last cache counts for both. Tries all these ways (QUICK: three of them) in about 2 s. MEMORY: no memory, no thread. */
struct peaks_reader;
enum status peaks_reader_create(enum cpu_isa_level isa, size_t bytes, unsigned threads,
                                enum peaks_care care, struct peaks_reader **reader_out);
void peaks_reader_destroy(struct peaks_reader *reader); /* takes NULL */
/* GB/s now, by the best of the three ways that were best at its creation: some thirty passes over the bytes. Of one thread the median
 * pass of a way by processor time, of several the fastest by the clock: as those who measure in turn with it take their own times,
 * because the memory's speed varies from pass to pass by a tenth and more with what others do. */
double peaks_reader_rate(struct peaks_reader *reader);

/* GB/s, the best at the reader's creation and once more after it. */
enum status peaks_read_bandwidth(enum cpu_isa_level isa, size_t bytes, unsigned threads,
                                 enum peaks_care care, double *gb_per_s_out);

#endif
