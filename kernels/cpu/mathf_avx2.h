/* mathf.h's float functions on eight lanes: the same operations in the same order, so the same bits. Include only from files
 * compiled for AVX2 and FMA.
 * Owner: any thread; no state. */
#ifndef BATON_KERNELS_CPU_MATHF_AVX2_H
#define BATON_KERNELS_CPU_MATHF_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/mathf.h"

static inline __m256 mathf8_exp(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(MATHF_MAGIC);
    x = _mm256_min_ps(_mm256_set1_ps(MATHF_EXP_MAX), x); /* the second operand when x is NaN */
    x = _mm256_max_ps(_mm256_set1_ps(MATHF_EXP_MIN), x);
    __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(MATHF_LOG2E), magic);
    __m256 n = _mm256_sub_ps(shifted, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MATHF_LN2_HIGH), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MATHF_LN2_LOW), r);
    __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(MATHF_EXP_Q4), r, _mm256_set1_ps(MATHF_EXP_Q3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MATHF_EXP_Q2));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MATHF_EXP_Q1));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MATHF_EXP_Q0));
    __m256 r2 = _mm256_mul_ps(r, r);
    __m256 p = _mm256_add_ps(_mm256_fmadd_ps(q, r2, r), _mm256_set1_ps(1.0f));
    __m256i n_int = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(magic));
    __m256i half = _mm256_srai_epi32(n_int, 1);
    __m256i rest = _mm256_sub_epi32(n_int, half);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i scale_a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i scale_b = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(scale_a)),
                         _mm256_castsi256_ps(scale_b));
}

static inline __m256 mathf8_silu(__m256 x)
{
    __m256 minus = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), mathf8_exp(minus)));
}

/* The fixed tree over 16 partials (low: 0..7, high: 8..15): halves are added until one value is left. */
static inline float mathf8_sum16(__m256 low, __m256 high)
{
    __m256 s8 = _mm256_add_ps(low, high);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

#endif
