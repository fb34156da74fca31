/* Attention over an int8 KV cache for AVX-512: attention_int8_plain.c's integers in any order, its floats in the same order on
 * sixteen lanes. attention_int8_avx512vnni.c compiles it again, with one instruction for the products of pairs and their sum.
 *
 * A step widens 32 bytes of pairs a register once, and meets them with one broadcast pair of each head. Masked positions: their sums
 * are computed (whatever the page holds), their weights are 0.
 *
 * Owner: any compute thread. Compiled with -mavx512f and friends. */
#include "kernels/cpu/attention_avx512.h"

#include "kernels/cpu/attention_int8.h"

#ifndef ATTENTION_PAIRS
#define ATTENTION_PAIRS(sum, a, b) ADD_IN_PLACE(sum, _mm512_madd_epi16(a, b))
#define ATTENTION_PAIRS_NAME(name) CPU_AVX512_NAME(name)
#endif

INLINE __m512i magnitude(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* Sixteen products to nearest even, as 16-bit integers. */
INLINE void int16_store(__m512 x, float inverse, int16_t *out)
{
    __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse)));
    _mm256_storeu_si256((void *)out, _mm512_cvtsepi32_epi16(q));
}

/* x [count] as 16-bit integers; returns their factor. Only what is not finite needs zeros: an inverse of 0 makes them of all else. */
static float to_int16(const float *x, uint32_t count, int16_t *out)
{
    __m512i top = _mm512_set1_epi32(0);
    for (uint32_t i = 0; i < count; i += LANES)
        top = _mm512_max_epi32(top, magnitude(_mm512_loadu_ps(x + i)));
    float inverse, factor = kv_int8_factor((uint32_t)_mm512_reduce_max_epi32(top), &inverse);
    if (factor != factor)
        memset(out, 0, count * sizeof *out);
    else
        for (uint32_t i = 0; i < count; i += LANES)
            int16_store(_mm512_loadu_ps(x + i), inverse, out + i);
    return factor;
}

INLINE __m512 scales_load(const uint8_t *scales)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)scales));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE __m512i pair_broadcast(const int16_t *pair)
{
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return _mm512_set1_epi32(both);
}

/* sum[h][n] += 16 pairs at v[n] times one pair at a[h]; nq and nv are constants after inlining. */
INLINE void step(int nq, int nv, const int16_t *a, size_t a_stride, const uint8_t *const *v,
                 __m512i sum[CHUNK][RUNS])
{
    __m512i value[RUNS];
#pragma GCC unroll 4
    for (int n = 0; n < nv; n++)
        value[n] = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)v[n]));
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++) {
        __m512i factor = pair_broadcast(a + (size_t)h * a_stride);
#pragma GCC unroll 4
        for (int n = 0; n < nv; n++)
            ATTENTION_PAIRS(sum[h][n], value[n], factor);
    }
}

INLINE void clear(__m512i sum[CHUNK][RUNS])
{
#pragma GCC unroll 4
    for (int h = 0; h < CHUNK; h++)
#pragma GCC unroll 4
        for (int n = 0; n < RUNS; n++)
            sum[h][n] = _mm512_set1_epi32(0);
}

/* A tile's queries lie behind its running results: factors, then 16-bit integers. */
INLINE float *tile_factors(const struct cpu_attention_tile *tile)
{
    return tile->scratch + (size_t)ATTENTION_STATES_MAX * (tile->head_dim + 2);
}

INLINE int16_t *tile_queries(const struct cpu_attention_tile *tile)
{
    return (int16_t *)(tile_factors(tile) + ATTENTION_STATES_MAX);
}

/* score[h][j] = (float(sum) * factor[h]) * K's scale, of all 64 positions for nq heads. */
INLINE void scores(int nq, const struct cpu_attention_tile *tile, const struct chunk *chunk,
                   float *score)
{
    const size_t stride = (size_t)2 * RUN;
    const int16_t *query = tile_queries(tile) + (size_t)chunk->state * tile->head_dim;
    const float *factor = tile_factors(tile) + chunk->state;
    const uint8_t *k[RUNS];
    __m512i sum[CHUNK][RUNS];
    clear(sum);
#pragma GCC unroll 4
    for (int n = 0; n < RUNS; n++)
        k[n] = chunk->block.k[n];
    for (uint32_t i = 0; i < tile->head_dim / 2; i++, query += 2) {
        fetch_lines(&chunk->fetch, i, 1);
        step(nq, RUNS, query, tile->head_dim, k, sum);
#pragma GCC unroll 4
        for (int n = 0; n < RUNS; n++)
            k[n] += stride;
    }
#pragma GCC unroll 4
    for (int n = 0; n < RUNS; n++) {
        __m512 scale = scales_load(chunk->block.k_scales[n]);
#pragma GCC unroll 4
        for (int h = 0; h < nq; h++)
            _mm512_storeu_ps(score + h * ATTENTION_BLOCK + n * LANES,
                             _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[h][n]),
                                                         _mm512_set1_ps(factor[h])),
                                           scale));
    }
}

/* nv registers of outputs of nq heads, float(sum) * factor[h], from dimension `lane` on, merged. */
INLINE void outputs(int nq, int nv, const struct cpu_attention_tile *tile,
                    const struct chunk *chunk, uint32_t runs, const int16_t *weight,
                    const float *factor, const struct merge *merge, uint32_t lane)
{
    const size_t stride = (size_t)2 * KV_V_DIMS;
    __m512i sum[CHUNK][RUNS];
    clear(sum);
    for (uint32_t r = 0; r < runs; r++) {
        const uint8_t *v = chunk->block.v[r] + (size_t)lane * tile->page_tokens;
#pragma GCC unroll 1
        for (uint32_t j = 0; j < RUN / 2; j++, v += stride) {
            const uint8_t *values[RUNS];
#pragma GCC unroll 4
            for (int n = 0; n < nv; n++)
                values[n] = v + (size_t)n * LANES * tile->page_tokens;
            if (nv == RUNS) /* behind what scores asked for */
                fetch_lines(&chunk->fetch, (tile->head_dim + lane + r * RUN) / 2 + j, 1);
            step(nq, nv, weight + r * RUN + j * 2, ATTENTION_BLOCK, values, sum);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 4
        for (int n = 0; n < nv; n++)
            merge_store(chunk->first,
                        _mm512_mul_ps(_mm512_cvtepi32_ps(sum[h][n]), _mm512_set1_ps(factor[h])),
                        merge[h],
                        chunk->running + (size_t)h * tile->head_dim + lane + (uint32_t)n * LANES);
}

/* e of one head times V's scales as 16-bit integers, 0 from `count` on; returns their factor. */
static float weights_make(float *e, const struct block *block, uint32_t count, int16_t *weight)
{
    for (uint32_t r = 0; r < RUNS; r++) {
        __m512 w = _mm512_mul_ps(_mm512_loadu_ps(e + r * RUN), scales_load(block->v_scales[r]));
        _mm512_storeu_ps(e + r * RUN, _mm512_maskz_mov_ps(lanes_below(count, r * RUN), w));
    }
    return to_int16(e, ATTENTION_BLOCK, weight);
}

INLINE void attend_heads(int nq, const struct cpu_attention_tile *tile, const struct chunk *chunk,
                         uint32_t count)
{
    float score[CHUNK * ATTENTION_BLOCK], e[ATTENTION_BLOCK], factor[CHUNK];
    int16_t weight[CHUNK * ATTENTION_BLOCK];
    struct merge merge[CHUNK];
    uint32_t lane = 0, runs = (count + RUN - 1) / RUN;
    scores(nq, tile, chunk, score);
    for (int h = 0; h < nq; h++) {
        merge[h] = softmax_head(score + h * ATTENTION_BLOCK, count, chunk->first, e,
                                &chunk->running_max[h], &chunk->running_sum[h]);
        factor[h] = weights_make(e, &chunk->block, count, weight + h * ATTENTION_BLOCK);
    }
    for (; lane + RUNS * LANES <= tile->head_dim; lane += RUNS * LANES)
        outputs(nq, RUNS, tile, chunk, runs, weight, factor, merge, lane);
    for (; lane < tile->head_dim; lane += LANES)
        outputs(nq, 1, tile, chunk, runs, weight, factor, merge, lane);
}

/* Not inlined: see attention_avx2.c. */
#define DEFINE_ATTEND(name, nq)                                                           \
    static __attribute__((noinline)) void name(const struct cpu_attention_tile *tile,     \
                                               const struct chunk *chunk, uint32_t count) \
    {                                                                                     \
        attend_heads(nq, tile, chunk, count);                                             \
    }
DEFINE_ATTEND(attend_1, 1)
DEFINE_ATTEND(attend_2, 2)
DEFINE_ATTEND(attend_3, 3)
DEFINE_ATTEND(attend_4, 4)

static void attend(const struct cpu_attention_tile *tile, const struct chunk *chunk, uint32_t nq,
                   uint32_t count)
{
    static void (*const attends[CHUNK + 1])(const struct cpu_attention_tile *tile,
                                            const struct chunk *chunk, uint32_t count) = {
        NULL, attend_1, attend_2, attend_3, attend_4};
    attends[nq](tile, chunk, count);
}

void ATTENTION_PAIRS_NAME(cpu_avx512_kv_int8_tile)(const struct cpu_attention_tile *tile)
{
    if (tile->head_dim % LANES != 0) {
        cpu_avx2_kv_int8_tile(tile);
        return;
    }
    uint32_t states = tile->rows * cpu_attention_row_heads(tile);
    for (uint32_t state = 0; state < states; state++)
        tile_factors(tile)[state] = to_int16(state_query(tile, state), tile->head_dim,
                                             tile_queries(tile) + (size_t)state * tile->head_dim) *
                                    tile->scale;
    tile_walk(tile, tile->head_dim, KV_V_DIMS, 1, attend);
}
