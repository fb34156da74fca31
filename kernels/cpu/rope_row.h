/* One row of the RoPE+KV write, shared by the files that compile it for different instruction sets: every operation is a
 * fused multiply-add, a product or a conversion, so the bits are the same. The includer defines HALF_FROM_FLOAT. See rope.c
 * for the formula.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ROPE_ROW_H
#define BATON_KERNELS_CPU_ROPE_ROW_H

#include "kernels/cpu/rope_turn.h"

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
