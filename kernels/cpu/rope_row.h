/* One row of the RoPE+KV write, shared by the files that compile it for different instruction sets: every operation is a
 * fused multiply-add, a product or a conversion, so the bits are the same. The includer defines HALF_FROM_FLOAT. See rope.c
 * for the formula.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ROPE_ROW_H
#define BATON_KERNELS_CPU_ROPE_ROW_H

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

static void rope_kv_f32(const struct cpu_rope_row *row)
{
    rope_turn_all(row);
    size_t values = (size_t)row->kv_heads * row->head_dim;
    float *k = (float *)row->k_page + row->token, *v = row->v_page;
    for (size_t i = 0; i < values; i++)
        k[i * row->page_tokens] = row->k[i];
    for (uint32_t h = 0; h < row->kv_heads; h++)
        for (uint32_t d = 0; d < row->head_dim; d++)
            v[((size_t)h * row->page_tokens + row->token) * row->head_dim + d] =
                row->v[h * row->head_dim + d];
}

static void rope_kv_f16(const struct cpu_rope_row *row)
{
    rope_turn_all(row);
    size_t values = (size_t)row->kv_heads * row->head_dim;
    uint16_t *k = (uint16_t *)row->k_page + row->token, *v = row->v_page;
    for (size_t i = 0; i < values; i++)
        k[i * row->page_tokens] = HALF_FROM_FLOAT(row->k[i]);
    for (uint32_t h = 0; h < row->kv_heads; h++)
        for (uint32_t d = 0; d < row->head_dim; d++)
            v[((size_t)h * row->page_tokens + row->token) * row->head_dim + d] =
                HALF_FROM_FLOAT(row->v[h * row->head_dim + d]);
}

#endif
