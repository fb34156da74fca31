/* The RoPE+KV write of f32 and f16 for AVX2, FMA and F16C: rope_row.h's operations on eight lanes; where values go: kv_layout.h.
 *
 * Owner: any compute thread. */
#include "kernels/cpu/attention_avx2.h"

#include <string.h>

#include "kernels/cpu/kv_layout.h"

void cpu_avx2_rope_kv_f32(const struct cpu_rope_row *row)
{
    turn_all(row);
    uint32_t dim = row->head_dim;
    size_t head_values = (size_t)row->page_tokens * dim, at = kv_k_index(dim, 0, row->token);
    for (size_t h = 0; h < row->kv_heads; h++) {
        const float *from_k = row->k + h * dim, *from_v = row->v + h * dim;
        float *k = (float *)row->k_page + h * head_values + at,
              *v = (float *)row->v_page + h * head_values;
        for (uint32_t i = 0; i < dim; i++, k += KV_K_POSITIONS)
            *k = from_k[i];
        uint32_t d = 0;
        for (; d + KV_V_DIMS <= dim; d += KV_V_DIMS)
            memcpy(v + kv_v_index(dim, row->page_tokens, row->token, d), from_v + d,
                   KV_V_DIMS * sizeof *v);
        if (d < dim)
            memcpy(v + kv_v_index(dim, row->page_tokens, row->token, d), from_v + d,
                   (dim - d) * sizeof *v);
    }
}

static inline uint16_t half_of(float x)
{
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}

static inline __m128i halves_of(const float *x)
{
    return _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT);
}

/* One head's K, every eighth element. */
static void k_write_f16(const float *from, size_t dim, uint16_t *k)
{
    size_t i = 0;
    for (; i + LANES <= dim; i += LANES) {
        uint16_t eight[LANES];
        _mm_storeu_si128((void *)eight, halves_of(from + i));
#pragma GCC unroll 8
        for (size_t lane = 0; lane < LANES; lane++, k += KV_K_POSITIONS)
            *k = eight[lane];
    }
    for (; i < dim; i++, k += KV_K_POSITIONS)
        *k = half_of(from[i]);
}

/* One group's V, side by side. */
ALWAYS_INLINE void v_write_f16(const float *from, size_t width, uint16_t *v)
{
    size_t d = 0;
    for (; d + LANES <= width; d += LANES)
        _mm_storeu_si128((void *)(v + d), halves_of(from + d));
    for (; d < width; d++)
        v[d] = half_of(from[d]);
}

void cpu_avx2_rope_kv_f16(const struct cpu_rope_row *row)
{
    turn_all(row);
    uint32_t dim = row->head_dim;
    size_t head_values = (size_t)row->page_tokens * dim, at = kv_k_index(dim, 0, row->token);
    for (size_t h = 0; h < row->kv_heads; h++) {
        uint16_t *k = (uint16_t *)row->k_page + h * head_values,
                 *v = (uint16_t *)row->v_page + h * head_values;
        k_write_f16(row->k + h * dim, dim, k + at);
        uint32_t d = 0;
        for (; d + KV_V_DIMS <= dim; d += KV_V_DIMS)
            v_write_f16(row->v + h * dim + d, KV_V_DIMS,
                        v + kv_v_index(dim, row->page_tokens, row->token, d));
        if (d < dim)
            v_write_f16(row->v + h * dim + d, dim - d,
                        v + kv_v_index(dim, row->page_tokens, row->token, d));
    }
}
