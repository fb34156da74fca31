/* What the AVX2 attention kernels of all KV types share: the softmax of a block and the merging of blocks. Operations and
 * order: attention_plain.c. Include only from files compiled for AVX2 and FMA.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ATTENTION_AVX2_H
#define BATON_KERNELS_CPU_ATTENTION_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/mathf_avx2.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* GROUP_CHUNK query heads share the loads of a block; tiles of up to PREFETCH_ROWS rows are bound by memory. */
enum { LANES = 8, GROUP_CHUNK = 4, PREFETCH_ROWS = 2 };

/* score[0..63] becomes exp(scale * score - max), 0 from `count` on. Returns max; the sum in sum_out. */
static inline float softmax_block(float *score, uint32_t count, float scale, float *sum_out)
{
    const __m256 minus_infinity = _mm256_set1_ps(-__builtin_inff());
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 value[ATTENTION_BLOCK / LANES], best = minus_infinity;
    for (int v = 0; v < ATTENTION_BLOCK / LANES; v++) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(score + v * LANES), _mm256_set1_ps(scale));
        __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count - v * LANES), lane);
        value[v] = _mm256_blendv_ps(minus_infinity, scaled, _mm256_castsi256_ps(valid));
        best = _mm256_max_ps(value[v], best); /* `best` where the value is NaN */
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(best), _mm256_extractf128_ps(best, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    float max = _mm_cvtss_f32(m);
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    for (int v = 0; v < ATTENTION_BLOCK / LANES; v++) {
        __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count - v * LANES), lane);
        __m256 e = mathf8_exp(_mm256_sub_ps(value[v], _mm256_set1_ps(max)));
        e = _mm256_and_ps(e, _mm256_castsi256_ps(valid));
        _mm256_storeu_ps(score + v * LANES, e);
        if (v % 2 == 0)
            low = _mm256_add_ps(low, e);
        else
            high = _mm256_add_ps(high, e);
    }
    *sum_out = mathf8_sum16(low, high);
    return max;
}

/* running = running * keep + partial * add */
static inline void merge(float *running, const float *partial, uint32_t count, float keep,
                         float add)
{
    for (uint32_t i = 0; i < count; i += LANES) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(partial + i), _mm256_set1_ps(add));
        _mm256_storeu_ps(running + i, _mm256_fmadd_ps(_mm256_loadu_ps(running + i),
                                                      _mm256_set1_ps(keep), scaled));
    }
}

/* One head's block joins what the head has so far. The first one has gone to `running` itself. */
static inline void merge_block(bool first, float max, float sum, const float *partial,
                               uint32_t count, float *running_max, float *running_sum,
                               float *running)
{
    if (first) {
        *running_max = max;
        *running_sum = sum;
        return;
    }
    float new_max = max > *running_max ? max : *running_max;
    /* two exponentials at once: lanes 0 and 1 */
    __m256 both = mathf8_exp(
        _mm256_castps128_ps256(_mm_setr_ps(*running_max - new_max, max - new_max, 0.0f, 0.0f)));
    float keep = _mm256_cvtss_f32(both),
          add = _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(both)));
    merge(running, partial, count, keep, add);
    *running_sum = __builtin_fmaf(*running_sum, keep, sum * add);
    *running_max = new_max;
}

/* out = running / sum, for all rows and heads. */
static inline void tile_finish(const struct cpu_attention_tile *tile, const float *running_sum,
                               const float *running)
{
    uint32_t dim = tile->head_dim;
    for (uint32_t r = 0; r < tile->rows; r++)
        for (uint32_t g = 0; g < tile->group; g++) {
            size_t state = (size_t)r * tile->group + g;
            float *out = tile->out + r * tile->row_stride + (size_t)g * dim;
            __m256 inverse = _mm256_set1_ps(1.0f / running_sum[state]);
            for (uint32_t i = 0; i < dim; i += LANES)
                _mm256_storeu_ps(
                    out + i, _mm256_mul_ps(_mm256_loadu_ps(running + state * dim + i), inverse));
        }
}

#endif
