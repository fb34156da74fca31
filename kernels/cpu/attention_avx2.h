/* What the AVX2 attention kernels of all KV types share: the softmax of a block and the merging of blocks. Operations and
 * order: attention_plain.c. Include only from files compiled for AVX2 and FMA.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ATTENTION_AVX2_H
#define BATON_KERNELS_CPU_ATTENTION_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/attention_streams.h"
#include "kernels/cpu/mathf_avx2.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Up to CHUNK query heads share the loads of a block, which is four runs of 16 positions, each within one page. */
enum { LANES = 8, CHUNK = 4, RUN = 16, RUNS = ATTENTION_BLOCK / RUN };

/* Heads of the next chunk out of the `left` ones that remain: threes keep twelve sums in registers; a single one left over
 * would load as much for itself. */
static inline uint32_t chunk_heads(uint32_t left)
{
    return left == 4 ? 4 : left < 3 ? left : 3;
}

/* What a chunk's heads make of one block. */
struct softmax {
    float max[CHUNK], sum[CHUNK];
    float keep[CHUNK],
        add[CHUNK]; /* what the results so far, and this block's, are multiplied by */
};

/* Asks for a line. Volatile, so that the compiler leaves it where it is: what is asked for in heaps waits for itself. */
ALWAYS_INLINE void line_fetch(const void *at)
{
    __asm__ volatile("prefetcht0 %0" : : "m"(*(const uint8_t *)at));
}

/* e[j] = exp(score[j] - max), 0 from `count` on, for any values; returns the sum. */
static inline float exp_block(const float *score, uint32_t count, float max, float *e)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int v = 0; v < ATTENTION_BLOCK / LANES; v++) {
        __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count - v * LANES), lane);
        __m256 x = _mm256_sub_ps(_mm256_loadu_ps(score + v * LANES), _mm256_set1_ps(max));
        __m256 y = _mm256_and_ps(mathf8_exp(x), _mm256_castsi256_ps(valid));
        _mm256_storeu_ps(e + v * LANES, y);
        sum[v % 2] = _mm256_add_ps(sum[v % 2], y);
    }
    return mathf8_sum16(sum[0], sum[1]);
}

/* Above this distance below the maximum, the short exponential of a block is right. */
#define EXP_NEAR 86.0f

/* The same for a whole block whose scores all lie at most EXP_NEAR below the maximum, by half as many operations: nothing is
 * clamped, and exp's result is a normal number, so that one addition to the exponent is its two exact products. False when a
 * score lies lower or is NaN; *sum_out is then undefined, as is e. Eight lines are asked for on the way, `step` bytes apart from
 * `ahead` on, if that is not NULL. */
ALWAYS_INLINE bool exp_block_near(const float *score, float max, const uint8_t *ahead, size_t step,
                                  float *e, float *sum_out)
{
    const __m256 magic = _mm256_set1_ps(MATHF_MAGIC);
    const __m256i limit = _mm256_castps_si256(_mm256_set1_ps(EXP_NEAR));
    __m256i far = limit;
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
#pragma GCC unroll 8
    for (int v = 0; v < ATTENTION_BLOCK / LANES; v++) {
        if (ahead)
            line_fetch(ahead + (size_t)v * step);
        /* x = max - score, the argument's exact negative: as bits, everything above the limit and every NaN is greater */
        __m256 x = _mm256_sub_ps(_mm256_set1_ps(max), _mm256_loadu_ps(score + v * LANES));
        far = _mm256_max_epu32(far, _mm256_castps_si256(x));
        __m256 shifted = _mm256_fnmadd_ps(x, _mm256_set1_ps(MATHF_LOG2E), magic);
        __m256 n = _mm256_sub_ps(shifted, magic);
        __m256 r = _mm256_fmsub_ps(n, _mm256_set1_ps(-MATHF_LN2_HIGH), x);
        r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MATHF_LN2_LOW), r);
        __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(MATHF_EXP_Q4), r, _mm256_set1_ps(MATHF_EXP_Q3));
        q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MATHF_EXP_Q2));
        q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MATHF_EXP_Q1));
        q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MATHF_EXP_Q0));
        __m256 p = _mm256_fmadd_ps(q, _mm256_mul_ps(r, r), r);
        p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
        /* the low bits of `shifted` are n; those of the magic number are 0 */
        __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
        p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
        _mm256_storeu_ps(e + v * LANES, p);
        sum[v % 2] = _mm256_add_ps(sum[v % 2], p);
    }
    *sum_out = mathf8_sum16(sum[0], sum[1]);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(far, limit)) == -1;
}

/* The largest of the first `count` scores; NaN never wins. */
ALWAYS_INLINE float max_block(const float *score, uint32_t count)
{
    const __m256 minus_infinity = _mm256_set1_ps(-__builtin_inff());
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 best = minus_infinity;
#pragma GCC unroll 8
    for (int v = 0; v < ATTENTION_BLOCK / LANES; v++) {
        __m256 value = _mm256_loadu_ps(score + v * LANES);
        if (count < ATTENTION_BLOCK) {
            __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count - v * LANES), lane);
            value = _mm256_blendv_ps(minus_infinity, value, _mm256_castsi256_ps(valid));
        }
        best = _mm256_max_ps(value, best); /* `best` where the value is NaN */
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(best), _mm256_extractf128_ps(best, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* score[nq][64], already scaled, of the first `count` positions (a constant 64 after inlining for whole blocks) becomes
 * e[nq][64], and joins the maxima and sums that the heads have so far; `first`: there are none. Steps go over all heads
 * before the next, so that one head's latencies hide behind the others'. In whole blocks eight lines a head are asked for, from
 * ahead[head] on, unless that is NULL: memory would idle else while nothing but registers is at work. */
ALWAYS_INLINE void softmax_heads(int nq, bool first, const float *score, uint32_t count,
                                 const uint8_t *const *ahead, size_t step, float *e,
                                 float *running_max, float *running_sum, struct softmax *s)
{
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
        s->max[q] = max_block(score + q * ATTENTION_BLOCK, count);
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++) {
        const float *from = score + q * ATTENTION_BLOCK;
        float *to = e + q * ATTENTION_BLOCK;
        if (count < ATTENTION_BLOCK ||
            __builtin_expect(
                !exp_block_near(from, s->max[q], ahead ? ahead[q] : NULL, step, to, &s->sum[q]), 0))
            s->sum[q] = exp_block(from, count, s->max[q], to);
    }
    if (first) {
        for (int q = 0; q < nq; q++) {
            running_max[q] = s->max[q];
            running_sum[q] = s->sum[q];
        }
        return;
    }
    float change[2 * CHUNK] = {0}, factor[2 * CHUNK];
    for (int q = 0; q < nq; q++) {
        float new_max = s->max[q] > running_max[q] ? s->max[q] : running_max[q];
        change[q] = running_max[q] - new_max;
        change[CHUNK + q] = s->max[q] - new_max;
        running_max[q] = new_max;
    }
    _mm256_storeu_ps(factor, mathf8_exp(_mm256_loadu_ps(change)));
    for (int q = 0; q < nq; q++) {
        s->keep[q] = factor[q];
        s->add[q] = factor[CHUNK + q];
        running_sum[q] = __builtin_fmaf(running_sum[q], s->keep[q], s->sum[q] * s->add[q]);
    }
}

/* Eight of a head's outputs of one block join what it has so far. */
ALWAYS_INLINE void merge_store(bool first, __m256 output, float keep, float add, float *running)
{
    if (!first)
        output = _mm256_fmadd_ps(_mm256_loadu_ps(running), _mm256_set1_ps(keep),
                                 _mm256_mul_ps(output, _mm256_set1_ps(add)));
    _mm256_storeu_ps(running, output);
}

/* out = running / sum, for all rows and heads. */
static inline void tile_finish(const struct cpu_attention_tile *tile)
{
    uint32_t dim = tile->head_dim, heads = cpu_attention_row_heads(tile);
    struct cpu_attention_results results = cpu_attention_results_of(tile, 0);
    for (uint32_t r = 0; r < tile->rows; r++)
        for (uint32_t g = 0; g < heads; g++) {
            size_t state = (size_t)r * heads + g;
            float *out = tile->out + r * tile->row_stride + (size_t)g * dim;
            __m256 inverse = _mm256_set1_ps(1.0f / results.sum[state]);
            for (uint32_t i = 0; i < dim; i += LANES)
                _mm256_storeu_ps(
                    out + i,
                    _mm256_mul_ps(_mm256_loadu_ps(results.outputs + state * dim + i), inverse));
        }
}

#endif
