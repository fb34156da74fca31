/* Activations for AVX2 and FMA: equal to quant_plain.c to the bit.
 * Owner: as quant.h. Compiled with -mavx2 -mfma -mf16c. */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/linear_avx2.h"
#include "kernels/cpu/mathf_avx2.h"

/* The largest magnitude's bits: floats without their sign order as integers do, infinity and NaN on top. */
static inline uint32_t amax_bits(const __m256 y[4])
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_and_si256(_mm256_castps_si256(y[0]), mask);
    for (int i = 1; i < 4; i++)
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(y[i]), mask));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

static inline int32_t sum_i8(__m256i a)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), a);
    __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

/* Quantises one block of 32 floats; false when one is not finite. */
static inline bool put_block(const __m256 y[4], size_t block, const struct cpu_act_row *row)
{
    uint32_t top = amax_bits(y);
    if (top >= 0x7f800000u)
        return false;
    if (row->f32) {
        for (int i = 0; i < 4; i++)
            _mm256_storeu_ps(row->f32 + block * KERN_BLOCK + i * 8, y[i]);
        return true;
    }
    float amax = mathf_from_bits(top), inverse = 127.0f / amax, da = amax / 127.0f;
    if (amax < 0x1p-120f)
        inverse = da = 0.0f;
    __m256 scale = _mm256_set1_ps(inverse);
    __m256i q[4];
    for (int i = 0; i < 4; i++) /* rounds to nearest even, as MXCSR says at start */
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(y[i], scale));
    __m256i a = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    a = _mm256_permutevar8x32_epi32(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((void *)(row->a + block * KERN_BLOCK), a);
    int32_t sum = sum_i8(a);
    row->da[block] = da;
    row->s[block] = sum;
    row->v0[block] = (uint32_t)(8 * sum) * 65535u;
    return true;
}

bool cpu_avx2_quantise(const float *x, size_t cols, const struct cpu_act_row *row)
{
    bool finite = true;
    for (size_t b = 0; b < cols / KERN_BLOCK; b++) {
        __m256 y[4];
        for (int i = 0; i < 4; i++)
            y[i] = _mm256_loadu_ps(x + b * KERN_BLOCK + i * 8);
        finite &= put_block(y, b, row);
    }
    return finite;
}

static inline float norm_scale(const float *x, float eps, size_t cols, bool *finite_out)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    for (size_t i = 0; i < cols; i += 16) {
        __m256 x0 = _mm256_loadu_ps(x + i), x1 = _mm256_loadu_ps(x + i + 8);
        low = _mm256_fmadd_ps(x0, x0, low);
        high = _mm256_fmadd_ps(x1, x1, high);
    }
    float sum = mathf8_sum16(low, high);
    *finite_out = mathf_is_finite(sum);
    return mathf_rsqrt(sum / (float)cols + eps);
}

bool cpu_avx2_norm_quantise(const float *x, const float *weight, float eps, size_t cols,
                            const struct cpu_act_row *row)
{
    bool finite;
    __m256 scale = _mm256_set1_ps(norm_scale(x, eps, cols, &finite));
    for (size_t b = 0; b < cols / KERN_BLOCK; b++) {
        __m256 y[4];
        for (int i = 0; i < 4; i++) {
            size_t at = b * KERN_BLOCK + (size_t)i * 8;
            y[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + at), scale),
                                 _mm256_loadu_ps(weight + at));
        }
        finite &= put_block(y, b, row);
    }
    return finite;
}

/* Four vectors take each step in turn: one after the other, the schedulers would fill with what waits for itself. */
static inline void silu_mul_block(const float *gate, const float *up, __m256 y[4])
{
    __m256 e[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        e[i] = _mm256_xor_ps(_mm256_loadu_ps(gate + i * 8), _mm256_set1_ps(-0.0f));
    mathf8_exp4(e);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        y[i] =
            _mm256_div_ps(_mm256_loadu_ps(gate + i * 8), _mm256_add_ps(_mm256_set1_ps(1.0f), e[i]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        y[i] = _mm256_mul_ps(y[i], _mm256_loadu_ps(up + i * 8));
}

bool cpu_avx2_silu_mul_quantise(const float *gate, const float *up, size_t cols,
                                const struct cpu_act_row *row)
{
    bool finite = true;
    size_t blocks = cols / KERN_BLOCK;
    __m256 y[4], before[4];
    silu_mul_block(gate, up, before);
    for (size_t b = 1; b < blocks;
         b++) { /* a block's scale, a long chain, beside the next one's values */
        silu_mul_block(gate + b * KERN_BLOCK, up + b * KERN_BLOCK, y);
        finite &= put_block(before, b - 1, row);
        memcpy(before, y, sizeof before);
    }
    return finite & put_block(before, blocks - 1, row);
}

void cpu_avx2_norm(const float *x, const float *weight, float eps, size_t cols, float *y)
{
    bool finite;
    __m256 scale = _mm256_set1_ps(norm_scale(x, eps, cols, &finite));
    for (size_t i = 0; i < cols; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale),
                                              _mm256_loadu_ps(weight + i)));
}
