/* The machine's own limits, measured in the run that is judged by them: arithmetic from registers alone, and memory read by one
 * thread. Loops are fixed instruction sequences (inline assembly), so that no compiler's spill can flatter a share.
 * Owner: any thread, one at a time. */
#ifndef BATON_TESTS_BENCH_PEAKS_H
#define BATON_TESTS_BENCH_PEAKS_H

#include <stddef.h>

#include "kernels/cpu/isa.h"

/* One thread's peaks in 1e9 operations a second; a product and its addition are two operations. */
struct peaks {
    double f32;  /* fused multiply-adds */
    double int8; /* bytes by bytes: vpmaddubsw, vpmaddwd, vpaddd; or vpdpbusd */
    double
        nibble; /* 4-bit weights by bytes: vpmaddubsw, vpaddw (AVX2), widened once a block; or vpdpbusd */
    const char *int8_name, *nibble_name;
};

/* For `isa`, which the CPU must support, and be at least AVX2. */
void peaks_measure(enum cpu_isa_level isa, struct peaks *peaks_out);

/* GB/s of one thread reading `bytes` (take several times the last cache) over and over, at the best prefetch distance. */
double peaks_read_bandwidth(const void *memory, size_t bytes);

#endif
