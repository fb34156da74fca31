/* Plain C's row functions, for the table in linear_plain.c. Shapes and meaning: linear_ops.h.
 * Owner: as quant.h. */
#ifndef BATON_KERNELS_CPU_QUANT_PLAIN_H
#define BATON_KERNELS_CPU_QUANT_PLAIN_H

#include "kernels/cpu/linear_ops.h"

bool cpu_plain_quantise(const float *x, size_t cols, const struct cpu_act_row *row);
bool cpu_plain_norm_quantise(const float *x, const float *weight, float eps, size_t cols,
                             const struct cpu_act_row *row);
bool cpu_plain_silu_mul_quantise(const float *gate, const float *up, size_t cols,
                                 const struct cpu_act_row *row);
void cpu_plain_norm(const float *x, const float *weight, float eps, size_t cols, float *y);

#endif
