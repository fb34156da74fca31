/* What the AVX2 files share. Shapes and meaning: linear_ops.h.
 * Owner: as linear.h. */
#ifndef BATON_KERNELS_CPU_LINEAR_AVX2_H
#define BATON_KERNELS_CPU_LINEAR_AVX2_H

#include "kernels/cpu/linear_ops.h"

bool cpu_avx2_quantise(const float *x, size_t cols, const struct cpu_act_row *row);
bool cpu_avx2_norm_quantise(const float *x, const float *weight, float eps, size_t cols,
                            const struct cpu_act_row *row);
bool cpu_avx2_silu_mul_quantise(const float *gate, const float *up, size_t cols,
                                const struct cpu_act_row *row);
void cpu_avx2_norm(const float *x, const float *weight, float eps, size_t cols, float *y);

/* Where a block's activations lie in each row, in bytes from the row's start: offsets, so that R row pointers and these few
 * fit the integer registers. */
struct offsets {
    size_t a, da, v0, s;
};

static inline struct offsets block_offsets(const struct cpu_acts *acts, size_t block)
{
    size_t da = acts->cols + block * sizeof(float);
    return (struct offsets){block * KERN_BLOCK, da, da + acts->cols / 8, da + acts->cols / 4};
}

/* compute=f32: the whole call. */
void cpu_avx2_f32(const struct cpu_linear_call *call);

/* Byte forms: the call's rows over panels [begin, end), all of them of the first run. */
void cpu_avx2_bytes(const struct cpu_linear_call *call, size_t begin, size_t end);

/* A row alone: the call's panels [begin, end), all of them of the first run. And its first lines of each place it reads. */
void cpu_avx2_row(const struct cpu_linear_call *call, size_t begin, size_t end);
void cpu_avx2_row_ask(const struct cpu_weights *weights, size_t begin, size_t end);

/* The end of every chain: times D where the form has one, then stored or added to out; and the call's maxima: out of the registers, since
 * what was just stored comes back no sooner than its lines from memory. chain: [rows][16], spoilt; for maxima at most 8 rows. */
void cpu_avx2_store(const struct cpu_linear_call *call, const struct cpu_panel *panel, size_t row,
                    size_t rows, float (*chain)[CPU_PANEL]);

/* The same of chains that lie ld_chain floats apart, for calls that want maxima. */
void cpu_avx2_store_maxima(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                           size_t row, size_t rows, const float *chain, size_t ld_chain);

#endif
