/* Attention and the RoPE+KV write for 64-bit Arm: attention_plain.c's operations in the same order on four lanes.
 *
 * Both products have one shape, out[q][lane] = chain over k of fmaf(a[q][k], b[k][lane], .): scores have k = dimension and
 * lane = position, outputs k = position and lane = dimension. Up to four query heads share the loads of b. Masked positions: their
 * scores are computed (whatever the page holds), then left out, and the chain over positions ends before them. */
#include "kernels/cpu/attention_neon.h"

#include <string.h>

#include "kernels/cpu/attention_int8.h"
#include "kernels/cpu/kv_layout.h"

/* FCVT: to nearest even, denormals kept. */
static inline uint16_t half_convert(float x)
{
    __fp16 half = (__fp16)x;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

#define HALF_FROM_FLOAT half_convert
#include "kernels/cpu/rope_row.h"

INLINE float32x4_t operand_load(bool half, const uint8_t *at)
{
    if (half)
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
    return vreinterpretq_f32_u8(vld1q_u8(at));
}

/* nv registers of nq chains over `steps` rows of b, `stride` bytes apart; a[q] goes on by one float a row. The third and fourth
 * register lie `apart` bytes behind the first two. */
INLINE void chains(int nq, int nv, bool half, const uint8_t *b, size_t apart, size_t stride,
                   uint32_t steps, const float *const *a, float32x4_t sum[CHUNK][RUN_VECTORS])
{
    const size_t vector_bytes = half ? 8 : 16;
    for (uint32_t k = 0; k < steps; k++, b += stride) {
        float32x4_t value[RUN_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            value[v] = operand_load(half, b + v / 2 * apart + v % 2 * vector_bytes);
#pragma GCC unroll 4
        for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                sum[q][v] = vfmaq_n_f32(sum[q][v], value[v], a[q][k]);
    }
}

INLINE void clear(float32x4_t sum[CHUNK][RUN_VECTORS])
{
#pragma GCC unroll 4
    for (int q = 0; q < CHUNK; q++)
#pragma GCC unroll 4
        for (int v = 0; v < RUN_VECTORS; v++)
            sum[q][v] = vdupq_n_f32(0);
}

/* nv registers of outputs of nq heads, from dimension `lane` on, merged. v: the head's V in each run's page. */
INLINE void outputs(int nq, int nv, bool half, const struct cpu_attention_tile *tile,
                    uint32_t begin, const uint8_t *const *v, uint32_t count, const float *e,
                    const struct merge *merge, const struct chunk *chunk, uint32_t lane)
{
    const size_t element = half ? 2 : 4;
    uint32_t dim = tile->head_dim, page_tokens = tile->page_tokens;
    float32x4_t sum[CHUNK][RUN_VECTORS];
    clear(sum);
    for (uint32_t r = 0; r * RUN < count; r++) {
        const float *a[CHUNK];
#pragma GCC unroll 4
        for (int q = 0; q < nq; q++)
            a[q] = e + q * ATTENTION_BLOCK + r * RUN;
        uint32_t rest = count - r * RUN;
        size_t at = kv_v_index(dim, page_tokens, (begin + r * RUN) % page_tokens, lane);
        chains(nq, nv, half, v[r] + at * element, 2 * LANES * element,
               kv_v_width(dim, lane) * element, rest < RUN ? rest : RUN, a, sum);
    }
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++)
            merge_store(chunk->first, sum[q][i], merge[q],
                        chunk->running + (size_t)q * dim + lane + (uint32_t)i * LANES);
}

INLINE void attend_heads(int nq, bool half, const struct cpu_attention_tile *tile, uint32_t begin,
                         const struct chunk *chunk, uint32_t count)
{
    const size_t element = half ? 2 : 4;
    uint32_t dim = tile->head_dim, lane = 0;
    float score[CHUNK * ATTENTION_BLOCK], e[CHUNK * ATTENTION_BLOCK];
    const uint8_t *v[RUNS];
    const float *query[CHUNK];
    struct merge merge[CHUNK];
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++) {
        size_t state = chunk->state + (size_t)q;
        query[q] = tile->q + state / tile->group * tile->row_stride + state % tile->group * dim;
    }
    for (uint32_t r = 0; r * RUN < count; r++) {
        uint32_t position = begin + r * RUN, token = position % tile->page_tokens;
        uint64_t page = tile->blocks[position / tile->page_tokens] * tile->page_bytes;
        float32x4_t sum[CHUNK][RUN_VECTORS];
        v[r] = tile->v + page;
        clear(sum);
        chains(nq, RUN_VECTORS, half, tile->k + page + kv_k_index(dim, 0, token) * element,
               kv_k_index(dim, 0, KV_K_POSITIONS) * element, KV_K_POSITIONS * element, dim, query,
               sum);
#pragma GCC unroll 4
        for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
            for (int i = 0; i < RUN_VECTORS; i++)
                vst1q_f32(score + q * ATTENTION_BLOCK + r * RUN + i * LANES,
                          vmulq_n_f32(sum[q][i], tile->scale));
    }
    for (int q = 0; q < nq; q++)
        merge[q] =
            softmax_head(score + q * ATTENTION_BLOCK, count, chunk->first, e + q * ATTENTION_BLOCK,
                         &chunk->running_max[q], &chunk->running_sum[q]);
    for (; lane + RUN <= dim; lane += RUN)
        outputs(nq, RUN_VECTORS, half, tile, begin, v, count, e, merge, chunk, lane);
    for (; lane < dim; lane += LANES)
        outputs(nq, 1, half, tile, begin, v, count, e, merge, chunk, lane);
}

/* The compiler needs nq as a constant, to keep the sums in registers. */
INLINE void attend(bool half, const struct cpu_attention_tile *tile, uint32_t begin, uint32_t nq,
                   const struct chunk *chunk, uint32_t count)
{
    if (nq == 1)
        attend_heads(1, half, tile, begin, chunk, count);
    else if (nq == 2)
        attend_heads(2, half, tile, begin, chunk, count);
    else if (nq == 3)
        attend_heads(3, half, tile, begin, chunk, count);
    else
        attend_heads(CHUNK, half, tile, begin, chunk, count);
}

static void attend_f32(const struct cpu_attention_tile *tile, uint32_t begin, uint32_t nq,
                       const struct chunk *chunk, uint32_t count)
{
    attend(false, tile, begin, nq, chunk, count);
}

static void attend_f16(const struct cpu_attention_tile *tile, uint32_t begin, uint32_t nq,
                       const struct chunk *chunk, uint32_t count)
{
    attend(true, tile, begin, nq, chunk, count);
}

static void tile_f32(const struct cpu_attention_tile *tile)
{
    if (tile->head_dim % LANES != 0)
        cpu_attention_plain.tile[KERN_KV_F32](tile);
    else
        tile_walk(tile, attend_f32);
}

static void tile_f16(const struct cpu_attention_tile *tile)
{
    if (tile->head_dim % LANES != 0)
        cpu_attention_plain.tile[KERN_KV_F16](tile);
    else
        tile_walk(tile, attend_f16);
}

/* Blocks' own results, ascending. */
static void merge_neon(const struct cpu_attention_merge *merge)
{
    uint32_t dim = merge->head_dim;
    size_t stride = cpu_attention_partial_floats(merge->heads, dim);
    for (uint32_t head = 0; head < merge->heads; head++) {
        const float *outputs = merge->partials + (size_t)head * dim,
                    *maxima = merge->partials + (size_t)merge->heads * dim + head,
                    *sums = maxima + merge->heads;
        float *out = merge->out + (size_t)head * dim, max = maxima[0], sum = sums[0];
        memcpy(out, outputs, dim * sizeof *out);
        for (uint32_t block = 1; block < merge->block_count; block++) {
            float m = maxima[block * stride], new_max = m > max ? m : max;
            struct merge join = {mathf_exp(max - new_max), mathf_exp(m - new_max)};
            max = new_max;
            sum = __builtin_fmaf(sum, join.keep, sums[block * stride] * join.add);
            for (uint32_t i = 0; i < dim; i += LANES)
                merge_store(false, vld1q_f32(outputs + block * stride + i), join, out + i);
        }
        float inverse = 1.0f / sum;
        for (uint32_t i = 0; i < dim; i += LANES)
            vst1q_f32(out + i, vmulq_n_f32(vld1q_f32(out + i), inverse));
    }
}

const struct cpu_attention_kernels cpu_attention_neon = {
    .rope_kv = {rope_kv_f32, rope_kv_f16, cpu_neon_kv_int8_rope},
    .tile = {tile_f32, tile_f16, cpu_neon_kv_int8_tile},
    .merge = merge_neon,
};
