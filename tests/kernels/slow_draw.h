/* Draws as docs/NUMERICS.md defines them: all candidates sorted, every sum made. What the sampler's tests are held against, and where
 * they have values and loops from.
 * Owner: tests; one thread. */
#ifndef BATON_TESTS_KERNELS_SLOW_DRAW_H
#define BATON_TESTS_KERNELS_SLOW_DRAW_H

#include <float.h>
#include <math.h>

#include "kernels/cpu/sampler.h"

enum { SLOW_WORDS = 49152 + 5 };

/* The token that a row gives after all changes; vocab: at most SLOW_WORDS. slow_fell: counts the draws in which no proposal was taken. */
uint32_t slow_draw(const float *values, uint32_t vocab, const struct kern_sampling *how,
                   uint32_t position);
extern uint32_t slow_fell;

static inline struct cpu_sampler_scale scale_of_temperature(float max, float temperature)
{
    float inverse = fminf(1 / temperature, FLT_MAX);
    return (struct cpu_sampler_scale){
        .max = max, .inverse = inverse, .rate = fminf(inverse * MATHF_LOG2E, FLT_MAX)};
}

/* [-1, 1), the same in each run. */
static inline float slow_noise(void)
{
    static uint32_t state = 7;
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

/* The loops of this processor's instruction set, or NULL. */
static inline const struct cpu_sampler_loops *slow_fast_loops(void)
{
#if defined(__x86_64__)
    return cpu_isa_detect() >= CPU_ISA_AVX2 ? &cpu_sampler_loops_avx2 : NULL;
#elif defined(__aarch64__)
    return &cpu_sampler_loops_neon;
#else
    return NULL;
#endif
}

#endif
