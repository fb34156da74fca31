/* The loops behind peaks.c: fixed instruction sequences, so that no compiler's spill can flatter a share. They are inline
 * assembly (peaks_x86.c, from AVX2 on; peaks_neon.c); where there is none, plain C as the kernels of that level are (peaks_plain.c).
 * Inside kernels/cpu/ alone. */
#ifndef BATON_KERNELS_CPU_PEAKS_LOOPS_H
#define BATON_KERNELS_CPU_PEAKS_LOOPS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/isa.h"

enum { PEAKS_F32, PEAKS_INT8, PEAKS_NIBBLE, PEAKS_PAIR, PEAKS_LOOPS };
struct peaks_loop {
    const char *name; /* its instructions */
    void (*run)(void *unused);
    double operations; /* of one run, some milliseconds; a product and its addition are two */
};
void peaks_loops_arithmetic(enum cpu_isa_level isa, struct peaks_loop loops_out[PEAKS_LOOPS]);

struct peaks_span {
    void (*read)(void *span);
    const uint8_t *begin;
    size_t bytes; /* a multiple of 4 streams x 128 bytes */
    size_t
        ahead; /* bytes between a load and its prefetch; 0: a prefetch of the very line, which is none */
};
/* One, two and four streams, prefetched to all caches; the same past them. */
enum { PEAKS_READS = 6 };
typedef void peaks_read(void *span);
/* NULL: this level has no such pattern (the first is always there). */
peaks_read *peaks_loops_read(enum cpu_isa_level isa, size_t pattern);

/* peaks_plain.c */
void peaks_plain_arithmetic(struct peaks_loop loops_out[PEAKS_LOOPS]);
void peaks_plain_read(void *span);

#endif
