/* What the ends of the AVX2 products share: sums go to outputs, and on the way to maxima. See linear_avx2.h.
 * Owner: as linear.h. */
#ifndef BATON_KERNELS_CPU_LINEAR_AVX2_STORE_H
#define BATON_KERNELS_CPU_LINEAR_AVX2_STORE_H

#include <immintrin.h>

#include "kernels/cpu/linear_ops.h"

/* The greatest of each of four vectors: by halves, which two vectors share. */
static inline __attribute__((always_inline)) __m128 cpu_avx2_greatest4(const __m256 v[4])
{
    __m256 a = _mm256_max_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
    __m256 b = _mm256_max_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
    __m256d c = _mm256_castps_pd(a), d = _mm256_castps_pd(b);
    __m256 four = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(c, d)),
                                _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
    return _mm_max_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}

/* The greatest of four rows, finite, join theirs, of which a NaN stays: it is what an instruction with one gives that has it second. */
static inline __attribute__((always_inline)) void cpu_avx2_maxima_join(float *maxima,
                                                                       const __m256 top[4])
{
    _mm_storeu_ps(maxima, _mm_max_ps(cpu_avx2_greatest4(top), _mm_loadu_ps(maxima)));
}

/* The end of R chains of a whole panel: as cpu_avx2_store, without a loop whose end the processor would guess wrong and without questions
 * that have one answer. scaled: the form has a D. Maxima: of four rows, whose outputs are finite. */
static inline __attribute__((always_inline)) void
cpu_avx2_store_whole(const int R, const bool scaled, const struct cpu_linear_call *call,
                     const struct cpu_panel *panel, size_t row, const float *chain)
{
    const __m256 d0 = _mm256_loadu_ps(panel->slot_scale),
                 d1 = _mm256_loadu_ps(panel->slot_scale + 8);
    float *out = call->out + row * call->ld_out + panel->first;
    const bool add = call->accumulate;
    __m256 top[8];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++, out += call->ld_out) {
        __m256 y0 = _mm256_load_ps(chain + r * CPU_PANEL);
        __m256 y1 = _mm256_load_ps(chain + r * CPU_PANEL + 8);
        if (scaled) {
            y0 = _mm256_mul_ps(y0, d0);
            y1 = _mm256_mul_ps(y1, d1);
        }
        if (add) {
            y0 = _mm256_add_ps(_mm256_loadu_ps(out), y0);
            y1 = _mm256_add_ps(_mm256_loadu_ps(out + 8), y1);
        }
        _mm256_storeu_ps(out, y0);
        _mm256_storeu_ps(out + 8, y1);
        top[r] = _mm256_max_ps(y0, y1);
    }
    if (R == 4 && call->maxima)
        cpu_avx2_maxima_join(cpu_linear_maximum(call, panel, row), top);
}

#endif
