/* The int8 KV cache: quantised rows, and what its attention is made of. docs/NUMERICS.md, "KV cache, int8" and "Attention over
 * int8", is the definition; attention_int8_plain.c is the same as readable C.
 *
 *     write   x[head_dim] ─▶ amax ─▶ scale d (bfloat16, rounded up) ─▶ q[i] = rint(x[i] / d)      once a head and position
 *     read    Q = the query as 16-bit integers, factor t           S = sum Q K      exact integers, lanes are positions
 *             W = e * V's scales as 16-bit integers, factor dw     O = sum W V      exact integers, lanes are dimensions
 *
 * Both products multiply 16-bit pairs and add the two: one instruction (vpmaddwd) for what a product of floats needs four of.
 * So K and V lie in pairs: K by two dimensions of a position, V by two positions of a dimension.
 *
 *     K  [page_tokens / 16][head_dim / 2][16][2]   | k0 k1 of position 0 | k0 k1 of 1 | …  then k2 k3 …
 *     V  [head_dim / 16][page_tokens / 2][16][2]   | v0 of positions 0, 1 | v1 of 0, 1 | …  then positions 2, 3 …
 *
 * Rows are written byte by byte: the other half of a V pair may be another thread's. Owner: as attention.h. */
#ifndef BATON_KERNELS_CPU_ATTENTION_INT8_H
#define BATON_KERNELS_CPU_ATTENTION_INT8_H

#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/mathf.h"

/* Below this nothing is left of a row, a query or a block's weights: their factors would leave the range of float. */
#define KV_INT8_AMAX_MIN 0x1p-100f

enum { KV_INT8_MAX = 127, KV_INT8_FACTOR_MAX = 32767, KV_INT8_NAN = 0x7fc0 };

/* A row's scale from the bits of its largest magnitude: bfloat16, at least amax / 127; NaN when the row is not finite. */
static inline uint16_t kv_int8_scale(uint32_t amax_bits)
{
    if (amax_bits >= 0x7f800000u)
        return KV_INT8_NAN;
    float amax = mathf_from_bits(amax_bits);
    if (amax < KV_INT8_AMAX_MIN)
        return 0;
    return (uint16_t)((mathf_bits(amax / (float)KV_INT8_MAX) + 0xffffu) >> 16);
}

static inline float kv_int8_scale_value(uint16_t scale)
{
    return mathf_from_bits((uint32_t)scale << 16);
}

/* What a row's values are multiplied by: 0 makes the zeros of a row that is nothing, or not finite. */
static inline float kv_int8_inverse(uint16_t scale)
{
    return scale == 0 || scale == KV_INT8_NAN ? 0.0f : 1.0f / kv_int8_scale_value(scale);
}

/* The factor of values that become 16-bit integers, from the bits of their largest magnitude, and what they are multiplied
 * by: amax / 32767 and its inverse; 0 and 0 for nothing; NaN and 0 when one is not finite. */
static inline float kv_int8_factor(uint32_t amax_bits, float *inverse_out)
{
    *inverse_out = 0.0f;
    if (amax_bits >= 0x7f800000u)
        return __builtin_nanf("");
    float amax = mathf_from_bits(amax_bits);
    if (amax < KV_INT8_AMAX_MIN)
        return 0.0f;
    *inverse_out = (float)KV_INT8_FACTOR_MAX / amax;
    return amax / (float)KV_INT8_FACTOR_MAX;
}

/* Puts one head's quantised row into its place: q [head_dim]. */
static inline void kv_int8_k_store(const int8_t *q, uint32_t head_dim, uint32_t token, int8_t *page)
{
    int8_t *pair = page + kv_int8_k_index(head_dim, 0, token);
    for (uint32_t i = 0; i < head_dim; i += 2, pair += (size_t)2 * KV_INT8_K_POSITIONS)
        memcpy(pair, q + i, 2);
}

static inline void kv_int8_v_store(const int8_t *q, uint32_t head_dim, uint32_t page_tokens,
                                   uint32_t token, int8_t *page)
{
    for (uint32_t group = 0; group < head_dim; group += KV_V_DIMS) {
        int8_t *pair = page + kv_int8_v_index(head_dim, page_tokens, token, group);
        for (uint32_t i = 0; i < kv_v_width(head_dim, group); i++)
            pair[(size_t)i * 2] = q[group + i];
    }
}

/* One row of one layer: turned K and V into their pages by `quantise`, which fills q [head_dim] and returns the scale. */
static inline __attribute__((always_inline)) void
kv_int8_row_store(const struct cpu_rope_row *row,
                  uint16_t (*quantise)(const float *x, uint32_t count, int8_t *q_out))
{
    int8_t q[KERN_HEAD_DIM_MAX];
    size_t head_bytes = (size_t)row->head_dim * row->page_tokens;
    for (uint32_t h = 0; h < row->kv_heads; h++) {
        size_t scale_at = (size_t)h * row->page_tokens + row->token;
        ((uint16_t *)row->k_scales)[scale_at] =
            quantise(row->k + (size_t)h * row->head_dim, row->head_dim, q);
        kv_int8_k_store(q, row->head_dim, row->token, (int8_t *)row->k_page + h * head_bytes);
        ((uint16_t *)row->v_scales)[scale_at] =
            quantise(row->v + (size_t)h * row->head_dim, row->head_dim, q);
        kv_int8_v_store(q, row->head_dim, row->page_tokens, row->token,
                        (int8_t *)row->v_page + h * head_bytes);
    }
}

void cpu_plain_kv_int8_rope(const struct cpu_rope_row *row);
void cpu_plain_kv_int8_tile(const struct cpu_attention_tile *tile);
void cpu_avx2_kv_int8_rope(const struct cpu_rope_row *row);
void cpu_avx2_kv_int8_tile(const struct cpu_attention_tile *tile);
void cpu_neon_kv_int8_rope(const struct cpu_rope_row *row);
void cpu_neon_kv_int8_tile(const struct cpu_attention_tile *tile);

#endif
