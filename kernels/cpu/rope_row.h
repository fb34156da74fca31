/* One row of the RoPE+KV write, shared by the files that compile it for different instruction sets: every operation is a
 * fused multiply-add, a product or a conversion, so the bits are the same. The includer defines HALF_FROM_FLOAT. See rope.c
 * for the formula.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ROPE_ROW_H
#define BATON_KERNELS_CPU_ROPE_ROW_H

#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/rope_turn.h"

static void rope_kv_f32(const struct cpu_rope_row *row)
{
    rope_turn_all(row);
    uint32_t dim = row->head_dim;
    for (size_t h = 0; h < row->kv_heads; h++) {
        float *k = (float *)row->k_page + h * row->page_tokens * dim,
              *v = (float *)row->v_page + h * row->page_tokens * dim;
        for (uint32_t i = 0; i < dim; i++) {
            k[kv_k_index(dim, i, row->token)] = row->k[h * dim + i];
            v[kv_v_index(dim, row->page_tokens, row->token, i)] = row->v[h * dim + i];
        }
    }
}

static void rope_kv_f16(const struct cpu_rope_row *row)
{
    rope_turn_all(row);
    uint32_t dim = row->head_dim;
    for (size_t h = 0; h < row->kv_heads; h++) {
        uint16_t *k = (uint16_t *)row->k_page + h * row->page_tokens * dim,
                 *v = (uint16_t *)row->v_page + h * row->page_tokens * dim;
        for (uint32_t i = 0; i < dim; i++) {
            k[kv_k_index(dim, i, row->token)] = HALF_FROM_FLOAT(row->k[h * dim + i]);
            v[kv_v_index(dim, row->page_tokens, row->token, i)] =
                HALF_FROM_FLOAT(row->v[h * dim + i]);
        }
    }
}

#endif
