/* Turning a row's queries and keys, shared by the files that compile it for different instruction sets: every operation is a
 * fused multiply-add or a product, so the bits are the same. See rope.c for the formula.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ROPE_TURN_H
#define BATON_KERNELS_CPU_ROPE_TURN_H

#include "kernels/cpu/attention.h"

static inline void rope_turn(const struct cpu_rope_row *row, float *restrict x)
{
    for (uint32_t i = 0; i < row->pairs; i++) {
        float even = x[2 * i], odd = x[2 * i + 1], c = row->cos[i], s = row->sin[i];
        x[2 * i] = __builtin_fmaf(even, c, -(odd * s));
        x[2 * i + 1] = __builtin_fmaf(even, s, odd * c);
    }
}

static inline void rope_turn_all(const struct cpu_rope_row *row)
{
    for (uint32_t h = 0; h < row->heads; h++)
        rope_turn(row, row->q + (size_t)h * row->head_dim);
    for (uint32_t h = 0; h < row->kv_heads; h++)
        rope_turn(row, row->k + (size_t)h * row->head_dim);
}

#endif
