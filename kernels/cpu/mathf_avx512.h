/* mathf.h's float functions on sixteen lanes: the same operations in the same order, so the same bits. The includer brings
 * the intrinsics: <immintrin.h> under -mavx512f and friends, or the tests' emulation of them.
 * Owner: any thread; no state. */
#ifndef BATON_KERNELS_CPU_MATHF_AVX512_H
#define BATON_KERNELS_CPU_MATHF_AVX512_H

#include "kernels/cpu/mathf.h"

static inline __m512 mathf16_exp(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(MATHF_MAGIC);
    x = _mm512_min_ps(_mm512_set1_ps(MATHF_EXP_MAX), x); /* the second operand when x is NaN */
    x = _mm512_max_ps(_mm512_set1_ps(MATHF_EXP_MIN), x);
    __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(MATHF_LOG2E), magic);
    __m512 n = _mm512_sub_ps(shifted, magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-MATHF_LN2_HIGH), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-MATHF_LN2_LOW), r);
    __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(MATHF_EXP_Q4), r, _mm512_set1_ps(MATHF_EXP_Q3));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(MATHF_EXP_Q2));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(MATHF_EXP_Q1));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(MATHF_EXP_Q0));
    __m512 r2 = _mm512_mul_ps(r, r);
    __m512 p = _mm512_add_ps(_mm512_fmadd_ps(q, r2, r), _mm512_set1_ps(1.0f));
    __m512i n_int = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(magic));
    __m512i half = _mm512_srai_epi32(n_int, 1);
    __m512i rest = _mm512_sub_epi32(n_int, half);
    const __m512i bias = _mm512_set1_epi32(127);
    __m512i scale_a = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
    __m512i scale_b = _mm512_slli_epi32(_mm512_add_epi32(rest, bias), 23);
    return _mm512_mul_ps(_mm512_mul_ps(p, _mm512_castsi512_ps(scale_a)),
                         _mm512_castsi512_ps(scale_b));
}

static inline __m512 mathf16_silu(__m512 x)
{
    __m512 minus = _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000u)));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), mathf16_exp(minus)));
}

/* The fixed tree over 16 partials: halves are added until one value is left. */
static inline float mathf16_sum16(__m512 partials)
{
    float p[16];
    _mm512_storeu_ps(p, partials);
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            p[i] = p[i] + p[i + half];
    return p[0];
}

#endif
