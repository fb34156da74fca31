/* Attention over an int8 KV cache, and its RoPE+KV write, for 64-bit Arm: attention_int8_plain.c's integers in any order, its floats
 * in the same order on four lanes.
 *
 * K and V lie in pairs. A load that splits pairs (LD2) gives eight positions' (or dimensions') first and second byte; widened to 16
 * bits, each meets its own 16-bit factor of each head, and SMLAL adds the products in 32 bits. Masked positions: their sums are
 * computed (whatever the page holds), their weights are 0. */
#include "kernels/cpu/attention_int8.h"

#include "kernels/cpu/attention_neon.h"
#include "kernels/cpu/rope_turn.h"

enum { PAIRS = 8 }; /* a load */

INLINE uint32x4_t magnitude(float32x4_t x)
{
    return vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x7fffffff));
}

/* The bits of the largest magnitude of `count` floats, a multiple of 4. */
static inline uint32_t amax_bits(const float *x, uint32_t count)
{
    uint32x4_t top = vdupq_n_u32(0);
    for (uint32_t i = 0; i < count; i += LANES)
        top = vmaxq_u32(top, magnitude(vld1q_f32(x + i)));
    return vmaxvq_u32(top);
}

/* Four products to nearest even, as 16-bit integers. */
INLINE int16x4_t to_int16x4(const float *x, float inverse)
{
    return vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inverse)));
}

/* `count` floats, a multiple of 4, as 16-bit integers; returns their factor. */
static inline float to_int16(const float *x, uint32_t count, int16_t *out)
{
    float inverse, factor = kv_int8_factor(amax_bits(x, count), &inverse);
    if (inverse == 0.0f)
        memset(out, 0, count * sizeof *out);
    else
        for (uint32_t i = 0; i < count; i += LANES)
            vst1_s16(out + i, to_int16x4(x + i, inverse));
    return factor;
}

/* --- the write --- */

static inline uint16_t quantise(const float *x, uint32_t count, int8_t *q_out)
{
    uint32_t whole = count / LANES * LANES, top = amax_bits(x, whole);
    for (uint32_t i = whole; i < count; i++) {
        uint32_t bits = mathf_bits(x[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    uint16_t scale = kv_int8_scale(top);
    float inverse = kv_int8_inverse(scale);
    if (inverse == 0.0f) {
        memset(q_out, 0, count);
        return scale;
    }
    for (uint32_t i = 0; i < whole; i += LANES) {
        int16x4_t q = to_int16x4(x + i, inverse);
        int32_t four = vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(q, q))), 0);
        memcpy(q_out + i, &four, sizeof four);
    }
    for (uint32_t i = whole; i < count; i++)
        q_out[i] = (int8_t)mathf_rint(x[i] * inverse);
    return scale;
}

void cpu_neon_kv_int8_rope(const struct cpu_rope_row *row)
{
    rope_turn_all(row);
    kv_int8_row_store(row, quantise);
}

/* --- attention --- */

/* Where the tile's queries lie as integers, and their factors, behind what tile_walk uses of the scratch. */
static float *factors_of(const struct cpu_attention_tile *tile)
{
    return tile->scratch + (size_t)ATTENTION_TILE_ROWS * KERN_GROUP_MAX * (tile->head_dim + 2);
}

static int16_t *queries_of(const struct cpu_attention_tile *tile)
{
    return (int16_t *)(factors_of(tile) + (size_t)ATTENTION_TILE_ROWS * KERN_GROUP_MAX);
}

INLINE float32x4_t scales_load(const uint16_t *scales)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(scales), 16));
}

/* nv times eight sums of nq heads over `rows` rows of pairs, `stride` bytes apart; a[q] goes on by two a row. */
INLINE void pairs_add(int nq, int nv, const int8_t *b, size_t stride, uint32_t rows,
                      const int16_t *const *a, int32x4_t sum[CHUNK][RUN_VECTORS])
{
    for (uint32_t k = 0; k < rows; k++, b += stride)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            int8x8x2_t pair = vld2_s8(b + v * PAIRS * 2);
            int16x8_t even = vmovl_s8(pair.val[0]), odd = vmovl_s8(pair.val[1]);
#pragma GCC unroll 4
            for (int q = 0; q < nq; q++) {
                int32x4_t *low = &sum[q][2 * v], *high = low + 1;
                int16_t first = a[q][2 * k], second = a[q][2 * k + 1];
                *low = vmlal_n_s16(*low, vget_low_s16(even), first);
                *high = vmlal_n_s16(*high, vget_high_s16(even), first);
                *low = vmlal_n_s16(*low, vget_low_s16(odd), second);
                *high = vmlal_n_s16(*high, vget_high_s16(odd), second);
            }
        }
}

INLINE void clear(int32x4_t sum[CHUNK][RUN_VECTORS])
{
#pragma GCC unroll 4
    for (int q = 0; q < CHUNK; q++)
#pragma GCC unroll 4
        for (int v = 0; v < RUN_VECTORS; v++)
            sum[q][v] = vdupq_n_s32(0);
}

/* A block of one tile: where its runs lie. */
struct block {
    const int8_t *k[RUNS], *v[RUNS];
    const uint16_t *k_scales[RUNS], *v_scales[RUNS];
    uint32_t token[RUNS]; /* a run's first position in its page */
};

static void block_find(const struct cpu_attention_tile *tile, uint32_t begin, uint32_t count,
                       struct block *block_out)
{
    for (uint32_t r = 0; r * RUN < count; r++) {
        uint32_t position = begin + r * RUN, token = position % tile->page_tokens;
        uint64_t page = tile->blocks[position / tile->page_tokens] * tile->page_bytes;
        block_out->k[r] = (const int8_t *)tile->k + page + (size_t)token * tile->head_dim;
        block_out->v[r] = (const int8_t *)tile->v + page;
        block_out->token[r] = token;
        block_out->k_scales[r] = (const uint16_t *)(tile->k_scales + page) + token;
        block_out->v_scales[r] = (const uint16_t *)(tile->v_scales + page) + token;
    }
}

/* e * V's scale as 16-bit integers, 0 from `count` on, up to a whole run; returns their factor. */
static float weights_make(const float *e, const struct block *block, uint32_t count,
                          int16_t *weight)
{
    float product[ATTENTION_BLOCK];
    uint32_t end = (count + RUN - 1) / RUN * RUN;
    for (uint32_t j = 0; j < end; j += LANES) {
        float32x4_t w =
            vmulq_f32(vld1q_f32(e + j), scales_load(block->v_scales[j / RUN] + j % RUN));
        vst1q_f32(product + j, vbslq_f32(lanes_below(count, j), w, vdupq_n_f32(0)));
    }
    return to_int16(product, end, weight);
}

/* 8 nv outputs of nq heads from dimension `lane` on, merged. */
INLINE void outputs(int nq, int nv, const struct cpu_attention_tile *tile,
                    const struct block *block, uint32_t count,
                    int16_t weight[CHUNK][ATTENTION_BLOCK], const float *factor,
                    const struct merge *merge, const struct chunk *chunk, uint32_t lane)
{
    int32x4_t sum[CHUNK][RUN_VECTORS];
    clear(sum);
    for (uint32_t r = 0; r * RUN < count; r++) {
        const int16_t *a[CHUNK];
#pragma GCC unroll 4
        for (int q = 0; q < nq; q++)
            a[q] = weight[q] + r * RUN;
        const int8_t *v =
            block->v[r] + kv_int8_v_index(tile->head_dim, tile->page_tokens, block->token[r], lane);
        pairs_add(nq, nv, v, (size_t)nv * PAIRS * 2, RUN / 2, a, sum);
    }
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
        for (int i = 0; i < 2 * nv; i++)
            merge_store(chunk->first, vmulq_n_f32(vcvtq_f32_s32(sum[q][i]), factor[q]), merge[q],
                        chunk->running + (size_t)q * tile->head_dim + lane + (uint32_t)i * LANES);
}

INLINE void attend_heads(int nq, const struct cpu_attention_tile *tile, uint32_t begin,
                         const struct chunk *chunk, uint32_t count)
{
    uint32_t dim = tile->head_dim, lane = 0;
    float score[ATTENTION_BLOCK * CHUNK], e[ATTENTION_BLOCK], factor[CHUNK];
    int16_t weight[CHUNK][ATTENTION_BLOCK];
    const float *query_factor = factors_of(tile) + chunk->state;
    const int16_t *query[CHUNK];
    struct merge merge[CHUNK];
    struct block block;
    block_find(tile, begin, count, &block);
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
        query[q] = queries_of(tile) + (chunk->state + (size_t)q) * dim;
    for (uint32_t r = 0; r * RUN < count; r++) {
        int32x4_t sum[CHUNK][RUN_VECTORS];
        clear(sum);
        pairs_add(nq, 2, block.k[r], (size_t)2 * RUN, dim / 2, query, sum);
#pragma GCC unroll 4
        for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
            for (int i = 0; i < RUN_VECTORS; i++)
                vst1q_f32(score + q * ATTENTION_BLOCK + r * RUN + i * LANES,
                          vmulq_f32(vmulq_n_f32(vcvtq_f32_s32(sum[q][i]), query_factor[q]),
                                    scales_load(block.k_scales[r] + i * LANES)));
    }
    for (int q = 0; q < nq; q++) {
        merge[q] = softmax_head(score + q * ATTENTION_BLOCK, count, chunk->first, e,
                                &chunk->running_max[q], &chunk->running_sum[q]);
        factor[q] = weights_make(e, &block, count, weight[q]);
    }
    for (; lane + 2 * PAIRS <= dim; lane += 2 * PAIRS)
        outputs(nq, 2, tile, &block, count, weight, factor, merge, chunk, lane);
    if (lane < dim)
        outputs(nq, 1, tile, &block, count, weight, factor, merge, chunk, lane);
}

static void attend(const struct cpu_attention_tile *tile, uint32_t begin, uint32_t nq,
                   const struct chunk *chunk, uint32_t count)
{
    if (nq == 1)
        attend_heads(1, tile, begin, chunk, count);
    else if (nq == 2)
        attend_heads(2, tile, begin, chunk, count);
    else if (nq == 3)
        attend_heads(3, tile, begin, chunk, count);
    else
        attend_heads(CHUNK, tile, begin, chunk, count);
}

void cpu_neon_kv_int8_tile(const struct cpu_attention_tile *tile)
{
    uint32_t dim = tile->head_dim, group = tile->group;
    if (dim % PAIRS != 0) {
        cpu_plain_kv_int8_tile(tile);
        return;
    }
    for (uint32_t state = 0; state < tile->rows * group; state++) {
        const float *q = tile->q + state / group * tile->row_stride + (size_t)(state % group) * dim;
        factors_of(tile)[state] =
            to_int16(q, dim, queries_of(tile) + (size_t)state * dim) * tile->scale;
    }
    tile_walk(tile, attend);
}
