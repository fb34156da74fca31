/* What the AVX2 kernels over an int8 KV cache share: where the runs of a block lie, and floats as 16-bit integers. Include only from
 * files compiled for AVX2 and FMA.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ATTENTION_INT8_AVX2_H
#define BATON_KERNELS_CPU_ATTENTION_INT8_AVX2_H

#include "kernels/cpu/attention_avx2.h"
#include "kernels/cpu/attention_int8.h"

enum { LINE = 64 };

/* Where 16 positions of a block lie. */
struct run {
    const int8_t *k; /* dim / 4 lines */
    const int8_t *v; /* of the first sixteen dimensions: four lines */
    const uint16_t *k_scales, *v_scales;
    uint32_t token; /* its first position in the page */
};

static inline uint32_t top_of(__m256i top)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

static inline __m256i magnitude(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

/* The bits of the largest magnitude. */
static inline uint32_t amax_bits(const float *x, uint32_t count)
{
    __m256i top = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        top = _mm256_max_epi32(top, magnitude(_mm256_loadu_ps(x + i)));
    uint32_t best = top_of(top);
    for (; i < count; i++) {
        uint32_t bits = mathf_bits(x[i]) & 0x7fffffffu;
        best = bits > best ? bits : best;
    }
    return best;
}

/* Eight products to nearest even, as 16-bit integers. */
static inline __m128i to_int16x8(const float *x, __m256 inverse)
{
    __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
    return _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
}

/* One head's query: 16-bit integers, and the factor of its scores. */
static inline float query_make(const float *q, uint32_t dim, float scale, int16_t *query_out)
{
    float inverse, factor = kv_int8_factor(amax_bits(q, dim), &inverse);
    if (inverse == 0.0f)
        memset(query_out, 0, dim * sizeof *query_out);
    else
        for (uint32_t i = 0; i < dim; i += LANES)
            _mm_storeu_si128((void *)(query_out + i), to_int16x8(q + i, _mm256_set1_ps(inverse)));
    return factor * scale;
}

static inline void run_find(const struct cpu_attention_tile *tile, uint32_t position,
                            struct run *run_out)
{
    uint64_t page = tile->blocks[position / tile->page_tokens] * tile->page_bytes;
    uint32_t token = position % tile->page_tokens;
    *run_out = (struct run){
        .k = (const int8_t *)tile->k + page + (size_t)token * tile->head_dim,
        .v = (const int8_t *)tile->v + page + (size_t)token * KV_V_DIMS,
        .k_scales = (const uint16_t *)(tile->k_scales + page) + token,
        .v_scales = (const uint16_t *)(tile->v_scales + page) + token,
        .token = token,
    };
}

/* From one pair of positions of the group of dimensions at `lane` to the next, and where the run's first lies. */
static inline size_t run_v_stride(const struct cpu_attention_tile *tile, uint32_t lane)
{
    return (size_t)2 * kv_v_width(tile->head_dim, lane);
}

static inline const int8_t *run_v(const struct cpu_attention_tile *tile, const struct run *run,
                                  uint32_t lane)
{
    size_t narrower = KV_V_DIMS - kv_v_width(tile->head_dim, lane);
    return run->v + (size_t)lane * tile->page_tokens - run->token * narrower;
}

/* The runs of the block at `begin`; beyond `last` there is none, and the first stands in (for fetches, which may be of
 * anything). */
static inline void runs_find(const struct cpu_attention_tile *tile, uint32_t begin, uint32_t last,
                             struct run *runs_out)
{
    for (uint32_t i = 0; i < RUNS; i++)
        if (i > 0 && tile->page_tokens == ATTENTION_BLOCK)
            runs_out[i] = (struct run){.k = runs_out[0].k + (size_t)i * RUN * tile->head_dim,
                                       .v = runs_out[0].v + (size_t)i * RUN * KV_V_DIMS,
                                       .k_scales = runs_out[0].k_scales + i * RUN,
                                       .v_scales = runs_out[0].v_scales + i * RUN,
                                       .token = i * RUN};
        else if (begin + i * RUN <= last)
            run_find(tile, begin + i * RUN, &runs_out[i]);
        else
            runs_out[i] = runs_out[0];
    for (uint32_t i = 0; i < RUNS; i++) {
        _mm_prefetch((const char *)runs_out[i].k_scales, _MM_HINT_T0);
        _mm_prefetch((const char *)runs_out[i].v_scales, _MM_HINT_T0);
    }
}

/* kv_int8_factor of eight. */
ALWAYS_INLINE __m256 factors_of(__m256i top, float *inverse_out)
{
    const __m256 most = _mm256_set1_ps((float)KV_INT8_FACTOR_MAX);
    __m256 amax = _mm256_castsi256_ps(top);
    __m256 finite = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), top));
    __m256 some = _mm256_cmp_ps(amax, _mm256_set1_ps(KV_INT8_AMAX_MIN), _CMP_GE_OQ);
    _mm256_storeu_ps(inverse_out,
                     _mm256_and_ps(_mm256_div_ps(most, amax), _mm256_and_ps(some, finite)));
    return _mm256_blendv_ps(_mm256_set1_ps(__builtin_nanf("")),
                            _mm256_and_ps(_mm256_div_ps(amax, most), some), finite);
}

static inline __m256 scales_load(const uint16_t *scales)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)scales));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* Weights of half a block of which all scores lie at most MATHF8_NEAR below the maximum: as exp_block_near, then times V's scales while
 * still in registers. What is too far shows in *far, the largest magnitude in *top. */
ALWAYS_INLINE void weights_near(const float *score, float max, const float *scales, float *weight,
                                __m256 sum[2], __m256i *far, __m256i *top)
{
    __m256 x[NEAR];
#pragma GCC unroll 4
    for (int v = 0; v < NEAR; v++)
        x[v] = _mm256_sub_ps(_mm256_set1_ps(max), _mm256_loadu_ps(score + v * LANES));
#pragma GCC unroll 4
    for (int v = 0; v < NEAR; v++)
        *far = _mm256_max_epu32(*far, _mm256_castps_si256(x[v]));
    mathf8_exp4_near(x);
#pragma GCC unroll 4
    for (int v = 0; v < NEAR; v++) {
        __m256 w = _mm256_mul_ps(x[v], _mm256_loadu_ps(scales + v * LANES));
        sum[v % 2] = _mm256_add_ps(sum[v % 2], x[v]);
        *top = _mm256_max_epi32(*top, magnitude(w));
        _mm256_storeu_ps(weight + v * LANES, w);
    }
}

/* Of any block: returns the sums. */
static __attribute__((noinline)) __m256
weights_any(const float *score, float max, const float *scales, float *weight, __m256i *top_out)
{
    __m256 sum = exp_block(score, ATTENTION_BLOCK, max, weight);
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < ATTENTION_BLOCK; i += LANES) {
        __m256 w = _mm256_mul_ps(_mm256_loadu_ps(weight + i), _mm256_loadu_ps(scales + i));
        top = _mm256_max_epi32(top, magnitude(w));
        _mm256_storeu_ps(weight + i, w);
    }
    *top_out = top;
    return sum;
}

/* Weights of a whole block, e * V's scale: returns the sums of e, and the largest magnitudes in *top_out. */
ALWAYS_INLINE __m256 weights_whole(const float *score, float max, const float *scales,
                                   float *weight, __m256i *top_out)
{
    const __m256i limit = _mm256_castps_si256(_mm256_set1_ps(MATHF8_NEAR));
    __m256i far = limit;
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    *top_out = _mm256_setzero_si256();
    weights_near(score, max, scales, weight, sum, &far, top_out);
    weights_near(score + NEAR * LANES, max, scales + NEAR * LANES, weight + NEAR * LANES, sum, &far,
                 top_out);
    if (__builtin_expect(_mm256_movemask_epi8(_mm256_cmpeq_epi32(far, limit)) != -1, 0))
        return weights_any(score, max, scales, weight, top_out);
    return _mm256_add_ps(sum[0], sum[1]);
}

/* A whole block's weights as 16-bit integers. */
ALWAYS_INLINE void weights_round(const float *weight, float inverse, int16_t *out)
{
    const __m256 factor = _mm256_set1_ps(inverse);
#pragma GCC unroll 4
    for (int i = 0; i < ATTENTION_BLOCK; i += 2 * LANES) {
        __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(factor, _mm256_loadu_ps(weight + i)));
        __m256i high =
            _mm256_cvtps_epi32(_mm256_mul_ps(factor, _mm256_loadu_ps(weight + i + LANES)));
        _mm256_storeu_si256((void *)(out + i),
                            _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8));
    }
}

/* --- products of three heads, in assembly: gcc 12 keeps neither their order nor all sixteen registers ---
 *
 * A step is a row of 16 lanes' pairs, widened from %[b], times a pair of each head at %[a], %[t] bytes apart, for the sums %[s0] to
 * %[s2] of the first eight lanes and %[s3] to %[s5] of the others. A sum takes a product when the next step's is under way, so that it
 * does not wait in the schedulers. Which operand comes first, and that %[b] is the middle of eight rows, keeps instructions short:
 * longer ones are not fetched as fast as the pipes take them.
 *
 *     ymm6..8 factors   ymm9 values   ymm10..15 products */
/* clang-format off */
#define PAIRS_FACTORS(x)                           \
    "vpbroadcastd 4*" #x "(%[a]), %%ymm6\n\t"      \
    "vpbroadcastd 4*" #x "(%[a],%[t]), %%ymm7\n\t" \
    "vpbroadcastd 4*" #x "(%[a],%[t],2), %%ymm8\n\t"
#define PAIRS_WIDEN(at) "vpmovsxbw " at "(%[b]), %%ymm9\n\t"
#define PAIRS_PRODUCT(f, p) "vpmaddwd %%ymm" f ", %%ymm9, %%ymm" p "\n\t"
#define PAIRS_SUM(p, s) "vpaddd %[s" s "], %%ymm" p ", %[s" s "]\n\t"
#define PAIRS_FIRST(x)                                                            \
    PAIRS_FACTORS(x)                                                              \
    PAIRS_WIDEN("32*" #x "-128")                                                  \
    PAIRS_PRODUCT("6", "10") PAIRS_PRODUCT("7", "11") PAIRS_PRODUCT("8", "12")    \
    PAIRS_WIDEN("32*" #x "-112")                                                  \
    PAIRS_PRODUCT("6", "13") PAIRS_PRODUCT("7", "14") PAIRS_PRODUCT("8", "15")
#define PAIRS_STEP(x)                              \
    PAIRS_FACTORS(x)                               \
    PAIRS_WIDEN("32*" #x "-128")                   \
    PAIRS_SUM("10", "0") PAIRS_PRODUCT("6", "10")  \
    PAIRS_SUM("11", "1") PAIRS_PRODUCT("7", "11")  \
    PAIRS_SUM("12", "2") PAIRS_PRODUCT("8", "12")  \
    PAIRS_WIDEN("32*" #x "-112")                   \
    PAIRS_SUM("13", "3") PAIRS_PRODUCT("6", "13")  \
    PAIRS_SUM("14", "4") PAIRS_PRODUCT("7", "14")  \
    PAIRS_SUM("15", "5") PAIRS_PRODUCT("8", "15")
#define PAIRS_LAST                                                 \
    PAIRS_SUM("10", "0") PAIRS_SUM("11", "1") PAIRS_SUM("12", "2") \
    PAIRS_SUM("13", "3") PAIRS_SUM("14", "4") PAIRS_SUM("15", "5")
#define PAIRS_REGISTERS                                                                    \
    "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
/* clang-format on */
enum { PAIRS_MIDDLE = 128 }; /* bytes from the first of eight rows */

/* Several rows of one KV head, dim a multiple of 8 (attention_int8_rows_avx2.c). factor: [rows x group], query: [rows x group][dim], as
 * query_make makes them; up to five states more may be read. */
void cpu_avx2_kv_int8_rows(const struct cpu_attention_tile *tile, const float *factor,
                           const int16_t *query);

/* attention_int8_abreast_avx2.c: one row over ATTENTION_ABREAST whole blocks side by side, all KV heads of the tile. It is for rows alone
 * (tile->layer), pages of one block, heads of 64 and three query heads to each, where all these blocks from position `begin` on end at
 * `last` or before. factor [heads], query [heads][dim], as query_make makes them. The results join those of the blocks before `begin`, or
 * stay apart (partials). */
bool cpu_avx2_kv_int8_is_abreast(const struct cpu_attention_tile *tile, uint32_t begin,
                                 uint32_t last);
void cpu_avx2_kv_int8_abreast(const struct cpu_attention_tile *tile, const float *factor,
                              const int16_t *query, uint32_t begin, uint32_t last);

#endif
