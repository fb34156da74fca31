/* Attention over f32 and f16 KV for AVX-512: attention_plain.c's operations in the same order on sixteen lanes.
 *
 * Both products have one shape, out[q][lane] = chain over k of fmaf(a[q][k], b[k][lane], .): scores have k = dimension and
 * lane = position, outputs k = position and lane = dimension. A tile is up to four heads x four registers; 32 registers hold
 * it with its factors and values. Masked positions: their scores are computed (whatever the page holds), then left out, and the chain
 * over positions ends before them. What is left of a head behind its last 16 dimensions: attention_avx2.c computes such heads.
 *
 * Owner: any compute thread. Compiled with -mavx512f and friends. */
#include "kernels/cpu/attention_avx512.h"

#include "kernels/cpu/attention_int8.h"
#include "kernels/cpu/kv_layout.h"

/* Sixteen values side by side. */
INLINE __m512 operand_load(int half, const uint8_t *at)
{
    if (half)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at));
    return _mm512_loadu_ps((const float *)(const void *)at);
}

/* Sixteen values, of which the last eight begin `apart` bytes behind the first. */
INLINE __m512 operand_load_two(int half, const uint8_t *at, size_t apart)
{
    const void *low = at, *high = at + apart;
    if (half)
        return _mm512_cvtph_ps(_mm256_loadu2_m128i(high, low));
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low)), _mm256_loadu_ps(high),
                              1);
}

INLINE size_t element_bytes(int half)
{
    return half ? sizeof(uint16_t) : sizeof(float);
}

/* sum[h][n] = fma(a[h], value at v[n], sum[h][n]); nq, nv and half are constants after inlining. `apart`: NULL where values lie side
 * by side. */
INLINE void step(int nq, int nv, int half, const float *const *a, const uint8_t *const *v,
                 const size_t *apart, __m512 sum[CHUNK][RUNS])
{
    __m512 value[RUNS];
#pragma GCC unroll 4
    for (int n = 0; n < nv; n++)
        value[n] = apart ? operand_load_two(half, v[n], *apart) : operand_load(half, v[n]);
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++) {
        __m512 factor = _mm512_set1_ps(*a[h]);
#pragma GCC unroll 4
        for (int n = 0; n < nv; n++)
            sum[h][n] = _mm512_fmadd_ps(factor, value[n], sum[h][n]);
    }
}

INLINE void clear(__m512 sum[CHUNK][RUNS])
{
#pragma GCC unroll 4
    for (int h = 0; h < CHUNK; h++)
#pragma GCC unroll 4
        for (int n = 0; n < RUNS; n++)
            sum[h][n] = _mm512_setzero_ps();
}

/* scale * (q . K) of all 64 positions for nq heads. */
INLINE void scores(int nq, int half, const struct cpu_attention_tile *tile,
                   const struct chunk *chunk, float *score)
{
    const size_t stride = KV_K_POSITIONS * element_bytes(half);
    size_t apart = tile->head_dim * stride;
    const uint8_t *k[RUNS];
    const float *q[CHUNK];
    __m512 sum[CHUNK][RUNS];
    clear(sum);
#pragma GCC unroll 4
    for (int n = 0; n < RUNS; n++)
        k[n] = chunk->block.k[n];
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
        q[h] = state_query(tile, chunk->state + (uint32_t)h);
    for (uint32_t i = 0; i < tile->head_dim; i++) {
        fetch_lines(&chunk->fetch, i, half ? 1 : 2);
        step(nq, RUNS, half, q, k, &apart, sum);
#pragma GCC unroll 4
        for (int n = 0; n < RUNS; n++)
            k[n] += stride;
#pragma GCC unroll 4
        for (int h = 0; h < nq; h++)
            q[h]++;
    }
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 4
        for (int n = 0; n < RUNS; n++)
            _mm512_storeu_ps(score + h * ATTENTION_BLOCK + n * LANES,
                             _mm512_mul_ps(sum[h][n], _mm512_set1_ps(tile->scale)));
}

/* nv registers of outputs of nq heads, from dimension `lane` on, merged. */
INLINE void outputs(int nq, int nv, int half, const struct cpu_attention_tile *tile,
                    const struct chunk *chunk, uint32_t count, const float *e,
                    const struct merge *merge, uint32_t lane)
{
    const size_t element = element_bytes(half), stride = KV_V_DIMS * element;
    size_t group =
        tile->page_tokens * stride; /* from a register's sixteen dimensions to the next */
    __m512 sum[CHUNK][RUNS];
    clear(sum);
    for (uint32_t r = 0; r * RUN < count; r++) {
        uint32_t rest = count - r * RUN, positions = rest < RUN ? rest : RUN;
        const uint8_t *v = chunk->block.v[r] + lane / KV_V_DIMS * group;
        const float *weights = e + r * RUN;
        for (uint32_t j = 0; j < positions; j++, v += stride, weights++) {
            const uint8_t *values[RUNS];
            const float *factors[CHUNK];
#pragma GCC unroll 4
            for (int n = 0; n < nv; n++)
                values[n] = v + (size_t)n * group;
#pragma GCC unroll 4
            for (int h = 0; h < nq; h++)
                factors[h] = weights + h * ATTENTION_BLOCK;
            if (nv == RUNS) /* behind what scores asked for */
                fetch_lines(&chunk->fetch, tile->head_dim + lane + r * RUN + j, half ? 1 : 2);
            step(nq, nv, half, factors, values, NULL, sum);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 4
        for (int n = 0; n < nv; n++)
            merge_store(chunk->first, sum[h][n], merge[h],
                        chunk->running + (size_t)h * tile->head_dim + lane + (uint32_t)n * LANES);
}

INLINE void attend_heads(int nq, int half, const struct cpu_attention_tile *tile,
                         const struct chunk *chunk, uint32_t count)
{
    float score[CHUNK * ATTENTION_BLOCK], e[CHUNK * ATTENTION_BLOCK];
    struct merge merge[CHUNK];
    uint32_t lane = 0;
    scores(nq, half, tile, chunk, score);
    for (int h = 0; h < nq; h++)
        merge[h] =
            softmax_head(score + h * ATTENTION_BLOCK, count, chunk->first, e + h * ATTENTION_BLOCK,
                         &chunk->running_max[h], &chunk->running_sum[h]);
    for (; lane + RUNS * LANES <= tile->head_dim; lane += RUNS * LANES)
        outputs(nq, RUNS, half, tile, chunk, count, e, merge, lane);
    for (; lane < tile->head_dim; lane += LANES)
        outputs(nq, 1, half, tile, chunk, count, e, merge, lane);
}

/* The compiler needs nq as a constant, to keep the sums in registers; not inlined: see attention_avx2.c. */
#define DEFINE_ATTEND(name, nq, half)                                                     \
    static __attribute__((noinline)) void name(const struct cpu_attention_tile *tile,     \
                                               const struct chunk *chunk, uint32_t count) \
    {                                                                                     \
        attend_heads(nq, half, tile, chunk, count);                                       \
    }
DEFINE_ATTEND(attend_1_f32, 1, 0)
DEFINE_ATTEND(attend_2_f32, 2, 0)
DEFINE_ATTEND(attend_3_f32, 3, 0)
DEFINE_ATTEND(attend_4_f32, 4, 0)
DEFINE_ATTEND(attend_1_f16, 1, 1)
DEFINE_ATTEND(attend_2_f16, 2, 1)
DEFINE_ATTEND(attend_3_f16, 3, 1)
DEFINE_ATTEND(attend_4_f16, 4, 1)

static void (*const attend[2][CHUNK + 1])(const struct cpu_attention_tile *tile,
                                          const struct chunk *chunk, uint32_t count) = {
    {NULL, attend_1_f32, attend_2_f32, attend_3_f32, attend_4_f32},
    {NULL, attend_1_f16, attend_2_f16, attend_3_f16, attend_4_f16},
};

static void attend_f32(const struct cpu_attention_tile *tile, const struct chunk *chunk,
                       uint32_t nq, uint32_t count)
{
    attend[0][nq](tile, chunk, count);
}

static void attend_f16(const struct cpu_attention_tile *tile, const struct chunk *chunk,
                       uint32_t nq, uint32_t count)
{
    attend[1][nq](tile, chunk, count);
}

void CPU_AVX512_NAME(cpu_avx512_attention_f32)(const struct cpu_attention_tile *tile)
{
    if (tile->head_dim % LANES != 0)
        cpu_attention_avx2.tile[KERN_KV_F32](tile);
    else
        tile_walk(tile, tile->head_dim * sizeof(float), KV_V_DIMS * sizeof(float), 2, attend_f32);
}

void CPU_AVX512_NAME(cpu_avx512_attention_f16)(const struct cpu_attention_tile *tile)
{
    if (tile->head_dim % LANES != 0)
        cpu_attention_avx2.tile[KERN_KV_F16](tile);
    else
        tile_walk(tile, tile->head_dim * sizeof(uint16_t), KV_V_DIMS * sizeof(uint16_t), 1,
                  attend_f16);
}

/* RoPE, writes and merging are no more than a hundredth of the work: AVX2's. */
const struct cpu_attention_kernels CPU_AVX512_NAME(cpu_attention_avx512) = {
    .rope_kv = {cpu_avx2_rope_kv_f32, cpu_avx2_rope_kv_f16, cpu_avx2_kv_int8_rope},
    .tile = {CPU_AVX512_NAME(cpu_avx512_attention_f32), CPU_AVX512_NAME(cpu_avx512_attention_f16),
             CPU_AVX512_NAME(cpu_avx512_kv_int8_tile)},
    .merge = cpu_avx2_attention_merge,
    .heads_together = true,
};
