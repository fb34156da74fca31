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

/* Blocks that are quantised together: their scales and sums, long chains, are lanes of a vector. */
enum { GROUP = 8, GROUP_VALUES = GROUP * KERN_BLOCK };

/* The sum of each of eight vectors, as lanes. */
static inline __m256i sum_lanes(const __m256i x[GROUP])
{
    __m256i four[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        four[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(x[i * 4], x[i * 4 + 1]),
                                    _mm256_hadd_epi32(x[i * 4 + 2], x[i * 4 + 3]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                            _mm256_permute2x128_si256(four[0], four[1], 0x31));
}

/* put_block of eight blocks of bytes. y: [GROUP_VALUES]. */
static inline bool put_group(const float *y, size_t block, const struct cpu_act_row *row)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff), ones = _mm256_set1_epi16(1);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 most = _mm256_set1_ps(127.0f);
    __m256i top[GROUP], sums[GROUP];
#pragma GCC unroll 8
    for (int b = 0; b < GROUP; b++) {
        const float *from = y + b * KERN_BLOCK;
        top[b] = _mm256_and_si256(_mm256_loadu_si256((const void *)from), mask);
#pragma GCC unroll 3
        for (int i = 1; i < 4; i++)
            top[b] = _mm256_max_epi32(
                top[b], _mm256_and_si256(_mm256_loadu_si256((const void *)(from + i * 8)), mask));
    }
    __m256i bits = mathf8_top_lanes(top);
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), bits)) != -1)
        return false;
    __m256 amax = _mm256_castsi256_ps(bits);
    __m256 some = _mm256_cmp_ps(amax, _mm256_set1_ps(0x1p-120f), _CMP_GE_OQ);
    float inverse[GROUP];
    _mm256_storeu_ps(inverse, _mm256_and_ps(_mm256_div_ps(most, amax), some));
    _mm256_storeu_ps(row->da + block, _mm256_and_ps(_mm256_div_ps(amax, most), some));
#pragma GCC unroll 8
    for (int b = 0; b < GROUP; b++) {
        const float *from = y + b * KERN_BLOCK;
        __m256 scale = _mm256_broadcast_ss(&inverse[b]);
        __m256i q[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i * 8), scale));
        __m256i a =
            _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        sums[b] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), a), ones);
        _mm256_storeu_si256((void *)(row->a + (block + (size_t)b) * KERN_BLOCK),
                            _mm256_permutevar8x32_epi32(a, order));
    }
    __m256i sum = sum_lanes(sums);
    _mm256_storeu_si256((void *)(row->s + block), sum);
    _mm256_storeu_si256((void *)(row->v0 + block),
                        _mm256_mullo_epi32(sum, _mm256_set1_epi32(8 * 65535)));
    return true;
}

/* `count` blocks from `block` on, any number. y: [count * 32]. */
static inline bool put_blocks(const float *y, size_t block, size_t count,
                              const struct cpu_act_row *row)
{
    if (count == GROUP && !row->f32)
        return put_group(y, block, row);
    bool finite = true;
    for (size_t b = 0; b < count; b++) {
        __m256 x[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            x[i] = _mm256_loadu_ps(y + b * KERN_BLOCK + i * 8);
        finite &= put_block(x, block + b, row);
    }
    return finite;
}

static inline size_t group_of(size_t left)
{
    return left < GROUP ? left : GROUP;
}

bool cpu_avx2_quantise(const float *x, size_t cols, const struct cpu_act_row *row)
{
    bool finite = true;
    size_t blocks = cols / KERN_BLOCK;
    for (size_t b = 0, count; b < blocks; b += count) {
        count = group_of(blocks - b);
        finite &= put_blocks(x + b * KERN_BLOCK, b, count, row);
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
    _Alignas(32) float y[GROUP_VALUES];
    __m256 scale = _mm256_set1_ps(norm_scale(x, eps, cols, &finite));
    size_t blocks = cols / KERN_BLOCK;
    for (size_t b = 0, count; b < blocks; b += count) {
        count = group_of(blocks - b);
        const float *from = x + b * KERN_BLOCK, *by = weight + b * KERN_BLOCK;
        for (size_t i = 0; i < count * KERN_BLOCK; i += 8)
            _mm256_store_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(from + i), scale),
                                                 _mm256_loadu_ps(by + i)));
        finite &= put_blocks(y, b, count, row);
    }
    return finite;
}

/* y = silu(gate) * up, `count` blocks, for any gates. Rare. */
static __attribute__((noinline)) void silu_mul_any(const float *gate, const float *up, size_t count,
                                                   float *y)
{
    for (size_t i = 0; i < count * KERN_BLOCK; i += 8)
        _mm256_store_ps(
            y + i, _mm256_mul_ps(mathf8_silu(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
}

/* Where no gate lies beyond what the short exponential is right for, as a rule, it is taken. */
static inline void silu_mul(const float *gate, const float *up, size_t count, float *y)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    const __m256i limit = _mm256_castps_si256(_mm256_set1_ps(MATHF8_NEAR));
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256i far = limit;
    for (size_t at = 0; at < count * KERN_BLOCK; at += KERN_BLOCK) {
        __m256 e[4];
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            e[i] = _mm256_loadu_ps(gate + at + i * 8);
            far = _mm256_max_epi32(far, _mm256_and_si256(_mm256_castps_si256(e[i]), mask));
        }
        mathf8_exp4_near(e);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            __m256 x = _mm256_div_ps(_mm256_loadu_ps(gate + at + i * 8), _mm256_add_ps(one, e[i]));
            _mm256_store_ps(y + at + i * 8, _mm256_mul_ps(x, _mm256_loadu_ps(up + at + i * 8)));
        }
    }
    if (__builtin_expect(_mm256_movemask_epi8(_mm256_cmpeq_epi32(far, limit)) != -1, 0))
        silu_mul_any(gate, up, count, y);
}

bool cpu_avx2_silu_mul_quantise(const float *gate, const float *up, size_t cols,
                                const struct cpu_act_row *row)
{
    bool finite = true;
    _Alignas(32) float y[GROUP_VALUES];
    size_t blocks = cols / KERN_BLOCK;
    for (size_t b = 0, count; b < blocks; b += count) {
        count = group_of(blocks - b);
        silu_mul(gate + b * KERN_BLOCK, up + b * KERN_BLOCK, count, y);
        finite &= put_blocks(y, b, count, row);
    }
    return finite;
}

void cpu_avx2_norm(const float *x, const float *weight, float eps, size_t cols, float *y)
{
    bool finite;
    __m256 scale = _mm256_set1_ps(norm_scale(x, eps, cols, &finite));
    for (size_t i = 0; i < cols; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale),
                                              _mm256_loadu_ps(weight + i)));
}
