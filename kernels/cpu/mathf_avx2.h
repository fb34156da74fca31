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

/* Up to this magnitude the short exponential is right. */
#define MATHF8_NEAR 86.0f

/* x becomes exp(-x), for magnitudes up to MATHF8_NEAR, by half as many operations: nothing is clamped, and the result is a normal
 * number, so that one addition to the exponent is its two exact products. Four vectors take each step in turn: one after the other
 * they would fill the schedulers with what waits for itself. In assembly: gcc 12 copies and spills half of it.
 *
 *     s = magic - x / ln 2     n = s - magic (in q)     r in x     the low bits of s are n; those of the magic number are 0 */
static inline __attribute__((always_inline)) void mathf8_exp4_near(__m256 x[4])
{
#define EIGHT(c)               \
    {                          \
        c, c, c, c, c, c, c, c \
    }
    static const _Alignas(32) float constants[][8] = {
        EIGHT(MATHF_MAGIC),  EIGHT(MATHF_LOG2E),  EIGHT(-MATHF_LN2_HIGH), EIGHT(-MATHF_LN2_LOW),
        EIGHT(MATHF_EXP_Q4), EIGHT(MATHF_EXP_Q3), EIGHT(MATHF_EXP_Q2),    EIGHT(MATHF_EXP_Q1),
        EIGHT(MATHF_EXP_Q0), EIGHT(1.0f)};
    __m256 s[4], q[4], t;
#define EACH(op) op("0") op("1") op("2") op("3")
#define EXP_S(v) "vmovaps (%[c]), %[s" v "]\n\t"
#define EXP_SHIFT(v) "vfnmadd231ps 32(%[c]), %[x" v "], %[s" v "]\n\t"
#define EXP_N(v) "vsubps (%[c]), %[s" v "], %[q" v "]\n\t"
#define EXP_R(v) "vfmsub231ps 64(%[c]), %[q" v "], %[x" v "]\n\t"
#define EXP_R_LOW(v) "vfmadd231ps 96(%[c]), %[q" v "], %[x" v "]\n\t"
#define EXP_Q4(v) "vmovaps 128(%[c]), %[q" v "]\n\t"
#define EXP_Q3(v) "vfmadd213ps 160(%[c]), %[x" v "], %[q" v "]\n\t"
#define EXP_Q2(v) "vfmadd213ps 192(%[c]), %[x" v "], %[q" v "]\n\t"
#define EXP_Q1(v) "vfmadd213ps 224(%[c]), %[x" v "], %[q" v "]\n\t"
#define EXP_Q0(v) "vfmadd213ps 256(%[c]), %[x" v "], %[q" v "]\n\t"
#define EXP_P(v) "vmulps %[x" v "], %[x" v "], %[t]\n\tvfmadd213ps %[x" v "], %[t], %[q" v "]\n\t"
#define EXP_ONE(v) "vaddps 288(%[c]), %[q" v "], %[q" v "]\n\t"
#define EXP_POWER(v) "vpslld $23, %[s" v "], %[s" v "]\n\t"
#define EXP_Y(v) "vpaddd %[s" v "], %[q" v "], %[x" v "]\n\t"
    __asm__(EACH(EXP_S) EACH(EXP_SHIFT) EACH(EXP_N) EACH(EXP_R) EACH(EXP_R_LOW) EACH(EXP_Q4)
                EACH(EXP_Q3) EACH(EXP_Q2) EACH(EXP_Q1) EACH(EXP_Q0) EACH(EXP_P) EACH(EXP_ONE)
                    EACH(EXP_POWER) EACH(EXP_Y)
            : [x0] "+x"(x[0]), [x1] "+x"(x[1]), [x2] "+x"(x[2]), [x3] "+x"(x[3]), [s0] "=&x"(s[0]),
              [s1] "=&x"(s[1]), [s2] "=&x"(s[2]), [s3] "=&x"(s[3]), [q0] "=&x"(q[0]),
              [q1] "=&x"(q[1]), [q2] "=&x"(q[2]), [q3] "=&x"(q[3]), [t] "=&x"(t)
            : [c] "r"(constants), "m"(*(const float(*)[10][8])constants));
#undef EIGHT
#undef EACH
#undef EXP_S
#undef EXP_SHIFT
#undef EXP_N
#undef EXP_R
#undef EXP_R_LOW
#undef EXP_Q4
#undef EXP_Q3
#undef EXP_Q2
#undef EXP_Q1
#undef EXP_Q0
#undef EXP_P
#undef EXP_ONE
#undef EXP_POWER
#undef EXP_Y
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

/* The largest of each of eight vectors, unsigned, as lanes: of magnitudes of floats, whose bits order as they do. */
static inline __m256i mathf8_top_lanes(const __m256i x[8])
{
    __m256i four[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m256i *at = x + i * 4;
        __m256i low = _mm256_max_epu32(_mm256_unpacklo_epi32(at[0], at[1]),
                                       _mm256_unpackhi_epi32(at[0], at[1]));
        __m256i high = _mm256_max_epu32(_mm256_unpacklo_epi32(at[2], at[3]),
                                        _mm256_unpackhi_epi32(at[2], at[3]));
        four[i] =
            _mm256_max_epu32(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
    }
    return _mm256_max_epu32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                            _mm256_permute2x128_si256(four[0], four[1], 0x31));
}

#endif
