/* Plain C stand-ins for just the AVX-512 intrinsics that the AVX-512 files of kernels/cpu use, with their documented meaning (Intel's
 * Intrinsics Guide), so that those files compile and run on any CPU: what is tested is their logic, not the compiler's choice
 * of instructions. Brings CPU_AVX512_NAME, which renames the files' symbols. Include instead of <immintrin.h>, never beside.
 * Owner: tests; no state. */
#ifndef BATON_TESTS_KERNELS_EMULATE_AVX512_H
#define BATON_TESTS_KERNELS_EMULATE_AVX512_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CPU_AVX512_NAME(name) name##_emulated

/* Function names are redirected too, so that they cannot meet the compiler's own. */
typedef struct {
    int32_t v[16];
} emulated_m512i;
typedef struct {
    float v[16];
} emulated_m512;
typedef struct {
    uint16_t v[16];
} emulated_m256i;
typedef struct {
    float v[8];
} emulated_m256;
#define __m512i emulated_m512i
#define __m512 emulated_m512
#define __m256i emulated_m256i
#define __m256 emulated_m256

/* Calls, not inlined: the callers unroll their loops by the hundred. */
#define EMULATED static __attribute__((unused, noinline))

EMULATED __m512i _mm512_loadu_si512(const void *p)
{
    __m512i x;
    memcpy(&x, p, sizeof(x));
    return x;
}

EMULATED void _mm512_storeu_si512(void *p, __m512i x)
{
    memcpy(p, &x, sizeof(x));
}

EMULATED __m512 _mm512_loadu_ps(const void *p)
{
    __m512 x;
    memcpy(&x, p, sizeof(x));
    return x;
}

EMULATED void _mm512_storeu_ps(void *p, __m512 x)
{
    memcpy(p, &x, sizeof(x));
}

EMULATED __m256i _mm256_loadu_si256(const void *p)
{
    __m256i x;
    memcpy(&x, p, sizeof(x));
    return x;
}

EMULATED __m256i _mm256_loadu2_m128i(const void *high, const void *low)
{
    __m256i x;
    memcpy(x.v, low, sizeof(x) / 2);
    memcpy(x.v + 8, high, sizeof(x) / 2);
    return x;
}

EMULATED __m256 _mm256_loadu_ps(const void *p)
{
    __m256 x;
    memcpy(&x, p, sizeof(x));
    return x;
}

/* The upper half is nothing in particular. */
EMULATED __m512 _mm512_castps256_ps512(__m256 a)
{
    __m512 x;
    memset(&x, 0xff, sizeof(x));
    memcpy(x.v, a.v, sizeof(a));
    return x;
}

EMULATED __m512 _mm512_insertf32x8(__m512 a, __m256 b, int half)
{
    memcpy(a.v + 8 * half, b.v, sizeof(b));
    return a;
}

EMULATED __m512i _mm512_set1_epi32(int32_t value)
{
    __m512i x;
    for (int i = 0; i < 16; i++)
        x.v[i] = value;
    return x;
}

EMULATED __m512i _mm512_set1_epi8(int8_t value)
{
    return _mm512_set1_epi32((int32_t)((uint8_t)value * 0x01010101u));
}

EMULATED __m512 _mm512_set1_ps(float value)
{
    __m512 x;
    for (int i = 0; i < 16; i++)
        x.v[i] = value;
    return x;
}

EMULATED __m512 _mm512_setzero_ps(void)
{
    return _mm512_set1_ps(0.0f);
}

#define EMULATED_LANES(name, result, type, lane) \
    EMULATED result name(type a, type b)         \
    {                                            \
        result x;                                \
        for (int i = 0; i < 16; i++)             \
            x.v[i] = (lane);                     \
        return x;                                \
    }
EMULATED_LANES(_mm512_and_si512, __m512i, __m512i, a.v[i] & b.v[i])
EMULATED_LANES(_mm512_xor_si512, __m512i, __m512i, a.v[i] ^ b.v[i])
EMULATED_LANES(_mm512_add_epi32, __m512i, __m512i, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]))
EMULATED_LANES(_mm512_sub_epi32, __m512i, __m512i, (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i]))
EMULATED_LANES(_mm512_add_ps, __m512, __m512, a.v[i] + b.v[i])
EMULATED_LANES(_mm512_sub_ps, __m512, __m512, a.v[i] - b.v[i])
EMULATED_LANES(_mm512_mul_ps, __m512, __m512, a.v[i] * b.v[i])
EMULATED_LANES(_mm512_div_ps, __m512, __m512, a.v[i] / b.v[i])
EMULATED_LANES(_mm512_min_ps, __m512, __m512, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
EMULATED_LANES(_mm512_max_ps, __m512, __m512, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
/* pairs of signed 16-bit products, added modulo 2^32 */
EMULATED_LANES(_mm512_madd_epi16, __m512i, __m512i,
               (int32_t)((uint32_t)((int16_t)a.v[i] * (int16_t)b.v[i]) +
                         (uint32_t)((int16_t)(a.v[i] >> 16) * (int16_t)(b.v[i] >> 16))))

#define EMULATED_SHIFT(name, lane)                   \
    EMULATED __m512i name(__m512i a, unsigned count) \
    {                                                \
        __m512i x;                                   \
        for (int i = 0; i < 16; i++)                 \
            x.v[i] = (int32_t)(lane);                \
        return x;                                    \
    }
EMULATED_SHIFT(_mm512_srli_epi32, (uint32_t)a.v[i] >> count)
EMULATED_SHIFT(_mm512_slli_epi32, (uint32_t)a.v[i] << count)
EMULATED_SHIFT(_mm512_srai_epi32, a.v[i] >> count)
EMULATED_SHIFT(_mm512_srli_epi16,
               (((uint32_t)a.v[i] & 0xffffu) >> count) | (((uint32_t)a.v[i] >> 16 >> count) << 16))

EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    for (int i = 0; i < 16; i++)
        c.v[i] = fmaf(a.v[i], b.v[i], c.v[i]);
    return c;
}

/* Four unsigned x signed byte products a lane, added to the accumulator modulo 2^32 (no saturation). */
EMULATED __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b)
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 32; j += 8)
            sum.v[i] = (int32_t)((uint32_t)sum.v[i] +
                                 (uint32_t)((int32_t)((uint32_t)a.v[i] >> j & 255u) *
                                            (int32_t)(int8_t)((uint32_t)b.v[i] >> j)));
    return sum;
}

EMULATED __m512 _mm512_cvtepi32_ps(__m512i a)
{
    __m512 x;
    for (int i = 0; i < 16; i++)
        x.v[i] = (float)a.v[i];
    return x;
}

EMULATED __m512i _mm512_cvtepu16_epi32(__m256i a)
{
    __m512i x;
    for (int i = 0; i < 16; i++)
        x.v[i] = a.v[i];
    return x;
}

EMULATED __m512 _mm512_cvtph_ps(__m256i a)
{
    __m512 x;
    for (int i = 0; i < 16; i++) {
        _Float16 half;
        memcpy(&half, &a.v[i], 2);
        x.v[i] = (float)half;
    }
    return x;
}

EMULATED __m512 _mm512_castsi512_ps(__m512i a)
{
    __m512 x;
    memcpy(&x, &a, sizeof(x));
    return x;
}

EMULATED __m512i _mm512_castps_si512(__m512 a)
{
    __m512i x;
    memcpy(&x, &a, sizeof(x));
    return x;
}

/* One bit a lane. */
#define __mmask16 uint16_t

EMULATED __m512 _mm512_mask_mov_ps(__m512 source, __mmask16 mask, __m512 a)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            source.v[i] = a.v[i];
    return source;
}

EMULATED __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 a)
{
    return _mm512_mask_mov_ps(_mm512_setzero_ps(), mask, a);
}

EMULATED_LANES(_mm512_max_epi32, __m512i, __m512i, a.v[i] > b.v[i] ? a.v[i] : b.v[i])

EMULATED float _mm512_reduce_max_ps(__m512 a)
{
    float best = a.v[0];
    for (int i = 1; i < 16; i++)
        best = best > a.v[i] ? best : a.v[i];
    return best;
}

EMULATED int32_t _mm512_reduce_max_epi32(__m512i a)
{
    int32_t best = a.v[0];
    for (int i = 1; i < 16; i++)
        best = best > a.v[i] ? best : a.v[i];
    return best;
}

/* Pairs of signed 16-bit products and the sum, modulo 2^32 (no saturation). */
EMULATED __m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}

EMULATED __m512i _mm512_cvtepi8_epi16(__m256i a)
{
    int8_t bytes[32];
    int16_t words[32];
    __m512i x;
    memcpy(bytes, &a, sizeof(bytes));
    for (int i = 0; i < 32; i++)
        words[i] = bytes[i];
    memcpy(&x, words, sizeof(x));
    return x;
}

/* To nearest even; the tests give it nothing that does not fit. */
EMULATED __m512i _mm512_cvtps_epi32(__m512 a)
{
    __m512i x;
    for (int i = 0; i < 16; i++)
        x.v[i] = (int32_t)rintf(a.v[i]);
    return x;
}

/* With saturation. */
EMULATED __m256i _mm512_cvtsepi32_epi16(__m512i a)
{
    __m256i x;
    for (int i = 0; i < 16; i++)
        x.v[i] = (uint16_t)(a.v[i] > 32767 ? 32767 : a.v[i] < -32768 ? -32768 : a.v[i]);
    return x;
}

EMULATED void _mm256_storeu_si256(void *p, __m256i x)
{
    memcpy(p, &x, sizeof(x));
}

#endif
