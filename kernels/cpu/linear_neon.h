/* What the Arm files share. Shapes and meaning: linear_ops.h.
 * Owner: as linear.h. */
#ifndef BATON_KERNELS_CPU_LINEAR_NEON_H
#define BATON_KERNELS_CPU_LINEAR_NEON_H

#include "kernels/cpu/linear_ops.h"

enum { NEON_CHUNK_ROWS = 96 };

bool cpu_neon_quantise(const float *x, size_t cols, const struct cpu_act_row *row);
bool cpu_neon_norm_quantise(const float *x, const float *weight, float eps, size_t cols,
                            const struct cpu_act_row *row);
bool cpu_neon_silu_mul_quantise(const float *gate, const float *up, size_t cols,
                                const struct cpu_act_row *row);
void cpu_neon_norm(const float *x, const float *weight, float eps, size_t cols, float *y);

/* compute=f32: `rows` (at most NEON_CHUNK_ROWS) rows from `row` over one panel. */
void cpu_neon_panel_f32(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                        size_t row, size_t rows);

/* The end of every chain: times D where the form has one, then stored or added to out. chain: [rows][16], spoilt. */
void cpu_neon_store(const struct cpu_linear_call *call, const struct cpu_panel *panel, size_t row,
                    size_t rows, float (*chain)[CPU_PANEL]);

#endif
