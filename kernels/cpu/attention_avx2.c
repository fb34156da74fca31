/* Attention and the RoPE+KV write for AVX2, FMA and F16C: attention_plain.c's operations in the same order on eight lanes.
 *
 * Both products have one shape, out[q][lane] = chain over k of fmaf(a[q][k], b[k][lane], .): scores have k = dimension and
 * lane = position, outputs k = position and lane = dimension. The query heads of a group share the loads of b.
 *
 * Blocks are the outer loop, rows the inner one: a block's K and V (16 to 32 KB) stay in the first-level cache while all
 * rows of the tile pass. Masked positions: their scores are computed (whatever the page holds), then replaced by 0 after
 * exp, and the chain over positions ends before them. */
#include "kernels/cpu/attention_avx2.h"

#include <string.h>

#include "kernels/cpu/attention_int8.h"

#define HALF_FROM_FLOAT(x) ((uint16_t)_cvtss_sh((x), _MM_FROUND_TO_NEAREST_INT))
#include "kernels/cpu/rope_row.h"

/* A k-major operand: row k starts b + k * stride elements. */
struct operand {
    const void *data;
    size_t stride;
};

ALWAYS_INLINE __m256 operand_load(const struct operand *b, int half, size_t at)
{
    if (half)
        return _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const uint16_t *)b->data + at)));
    return _mm256_loadu_ps((const float *)b->data + at);
}

/* nq rows x nv vectors of outputs, starting at lane `lane`. nq, nv, half are constants after inlining, at most 8 sums. */
ALWAYS_INLINE void product(int nq, int nv, int half, const float *a, size_t a_stride,
                           const struct operand *b, uint32_t k_count, uint32_t lane, float *out,
                           size_t out_stride, int resume)
{
    __m256 sum[4][8];
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++)
            sum[q][v] = resume ? _mm256_loadu_ps(out + q * out_stride + lane + v * LANES)
                               : _mm256_setzero_ps();
    for (uint32_t k = 0; k < k_count; k++) {
        __m256 factor[4];
#pragma GCC unroll 4
        for (int q = 0; q < nq; q++)
            factor[q] = _mm256_broadcast_ss(a + q * a_stride + k);
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) {
            __m256 value = operand_load(b, half, k * b->stride + lane + v * LANES);
#pragma GCC unroll 4
            for (int q = 0; q < nq; q++)
                sum[q][v] = _mm256_fmadd_ps(factor[q], value, sum[q][v]);
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++)
            _mm256_storeu_ps(out + q * out_stride + lane + v * LANES, sum[q][v]);
}

/* All lanes [0, lanes): in steps of `nv` vectors, then of one. */
ALWAYS_INLINE void product_lanes(int nq, int nv, int half, const float *a, size_t a_stride,
                                 const struct operand *b, uint32_t k_count, uint32_t lanes,
                                 float *out, size_t out_stride, int resume)
{
    uint32_t lane = 0;
    for (; lane + (uint32_t)nv * LANES <= lanes; lane += (uint32_t)nv * LANES)
        product(nq, nv, half, a, a_stride, b, k_count, lane, out, out_stride, resume);
    for (; lane + 2 * LANES <= lanes; lane += 2 * LANES)
        product(nq, 2, half, a, a_stride, b, k_count, lane, out, out_stride, resume);
    for (; lane < lanes; lane += LANES)
        product(nq, 1, half, a, a_stride, b, k_count, lane, out, out_stride, resume);
}

ALWAYS_INLINE void product_any(int half, uint32_t nq, const float *a, size_t a_stride,
                               struct operand b, uint32_t k_count, uint32_t lanes, float *out,
                               size_t out_stride, int resume)
{
    switch (nq) {
    case 1:
        product_lanes(1, 8, half, a, a_stride, &b, k_count, lanes, out, out_stride, resume);
        break;
    case 2:
        product_lanes(2, 4, half, a, a_stride, &b, k_count, lanes, out, out_stride, resume);
        break;
    case 3:
        product_lanes(3, 4, half, a, a_stride, &b, k_count, lanes, out, out_stride, resume);
        break;
    default:
        product_lanes(4, 2, half, a, a_stride, &b, k_count, lanes, out, out_stride, resume);
        break;
    }
}

/* Asks for one operand (K or V: `base`, `row_bytes` a position) of the block at `begin`: pages lie far apart, so the
 * hardware's prefetcher starts anew in each. For tiles of few rows, which are bound by memory. */
static void prefetch_block(const struct cpu_attention_tile *tile, const uint8_t *base,
                           size_t element, uint32_t begin)
{
    uint32_t page_tokens = tile->page_tokens;
    bool dimension_major = base == tile->k;
    for (uint32_t at = 0; at < ATTENTION_BLOCK;) {
        uint32_t token = (begin + at) % page_tokens, span = page_tokens - token;
        span = span < ATTENTION_BLOCK - at ? span : ATTENTION_BLOCK - at;
        if (begin + at > tile->position)
            return;
        const uint8_t *page = base + tile->blocks[(begin + at) / page_tokens] * tile->page_bytes;
        if (dimension_major && span < page_tokens) {
            for (uint32_t i = 0; i < tile->head_dim; i++)
                for (size_t b = 0; b < span * element; b += 64)
                    _mm_prefetch((const char *)page + ((size_t)i * page_tokens + token) * element +
                                     b,
                                 _MM_HINT_T0);
        } else {
            const uint8_t *from =
                dimension_major ? page : page + (size_t)token * tile->head_dim * element;
            for (size_t b = 0; b < (size_t)span * tile->head_dim * element; b += 64)
                _mm_prefetch((const char *)from + b, _MM_HINT_T0);
        }
        at += span;
    }
}

/* nq (at most 4) query heads of one row against one block; positions begin … begin+count-1. */
ALWAYS_INLINE void attend_block(const struct cpu_attention_tile *tile, int half, uint32_t nq,
                                const float *q, uint32_t begin, uint32_t count, float *score,
                                float *partial, float *running_max, float *running_sum,
                                float *running, bool prefetch)
{
    uint32_t dim = tile->head_dim, page_tokens = tile->page_tokens;
    size_t element = half ? 2 : 4;
    if (prefetch)
        prefetch_block(tile, tile->k, element, begin + ATTENTION_BLOCK);
    for (uint32_t at = 0; at < count;) {
        uint32_t token = (begin + at) % page_tokens, span = page_tokens - token;
        span = span < ATTENTION_BLOCK - at ? span : ATTENTION_BLOCK - at;
        uint32_t lanes = count - at < span ? (count - at + LANES - 1) / LANES * LANES : span;
        const uint8_t *page = tile->k + tile->blocks[(begin + at) / page_tokens] * tile->page_bytes;
        struct operand k = {page + token * element, page_tokens};
        product_any(half, nq, q, dim, k, dim, lanes, score + at, ATTENTION_BLOCK, 0);
        at += span;
    }
    float max[GROUP_CHUNK], sum[GROUP_CHUNK];
    for (uint32_t g = 0; g < nq; g++)
        max[g] = softmax_block(score + g * ATTENTION_BLOCK, count, tile->scale, &sum[g]);
    float *out = begin == 0 ? running : partial;
    if (prefetch)
        prefetch_block(tile, tile->v, element, begin + ATTENTION_BLOCK);
    for (uint32_t at = 0; at < count;) {
        uint32_t token = (begin + at) % page_tokens, span = page_tokens - token;
        span = span < count - at ? span : count - at;
        const uint8_t *page = tile->v + tile->blocks[(begin + at) / page_tokens] * tile->page_bytes;
        struct operand v = {page + (size_t)token * dim * element, dim};
        product_any(half, nq, score + at, ATTENTION_BLOCK, v, span, dim, out, dim, at > 0);
        at += span;
    }
    for (uint32_t g = 0; g < nq; g++)
        merge_block(begin == 0, max[g], sum[g], partial + (size_t)g * dim, dim, running_max + g,
                    running_sum + g, running + (size_t)g * dim);
}

ALWAYS_INLINE void tile_avx2(const struct cpu_attention_tile *tile, int half)
{
    uint32_t dim = tile->head_dim, group = tile->group;
    size_t states = (size_t)ATTENTION_TILE_ROWS * KERN_GROUP_MAX;
    float *running = tile->scratch, *running_max = running + states * dim,
          *running_sum = running_max + states, *score = running_sum + states,
          *partial = score + (size_t)KERN_GROUP_MAX * ATTENTION_BLOCK;
    uint32_t last = tile->position + tile->rows - 1;
    for (uint32_t begin = 0; begin <= last; begin += ATTENTION_BLOCK) {
        uint32_t r = begin > tile->position ? begin - tile->position : 0;
        for (; r < tile->rows; r++) {
            uint32_t count = tile->position + r + 1 - begin;
            count = count < ATTENTION_BLOCK ? count : ATTENTION_BLOCK;
            for (uint32_t g = 0; g < group; g += GROUP_CHUNK) {
                uint32_t nq = group - g < GROUP_CHUNK ? group - g : GROUP_CHUNK;
                size_t state = (size_t)r * group + g;
                const float *q = tile->q + r * tile->row_stride + (size_t)g * dim;
                attend_block(tile, half, nq, q, begin, count, score, partial, running_max + state,
                             running_sum + state, running + state * dim,
                             tile->rows <= PREFETCH_ROWS && r == 0 && g == 0);
            }
        }
    }
    tile_finish(tile, running_sum, running);
}

static void tile_f32(const struct cpu_attention_tile *tile)
{
    if (tile->head_dim % LANES != 0)
        cpu_attention_plain.tile[KERN_KV_F32](tile);
    else
        tile_avx2(tile, 0);
}

static void tile_f16(const struct cpu_attention_tile *tile)
{
    if (tile->head_dim % LANES != 0)
        cpu_attention_plain.tile[KERN_KV_F16](tile);
    else
        tile_avx2(tile, 1);
}

const struct cpu_attention_kernels cpu_attention_avx2 = {
    .rope_kv = {rope_kv_f32, rope_kv_f16, cpu_avx2_kv_int8_rope},
    .tile = {tile_f32, tile_f16, cpu_avx2_kv_int8_tile},
};
