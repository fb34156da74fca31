/* The sampler's loops over the vocabulary, compiled once for each instruction set: each value's operations are fixed (see
 * mathf.h), so the compiler may run them on as many lanes as it likes. The includer defines SAMPLER_LOOPS, the table's name.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_SAMPLER_LOOPS_H
#define BATON_KERNELS_CPU_SAMPLER_LOOPS_H

#include "kernels/cpu/mathf.h"
#include "kernels/cpu/sampler.h"

static bool loop_all_finite(const float *x, uint32_t count)
{
    uint32_t bad = 0;
    for (uint32_t i = 0; i < count; i++)
        bad |= (uint32_t)((mathf_bits(x[i]) & 0x7f800000u) == 0x7f800000u);
    return bad == 0;
}

static float loop_max(const float *x, uint32_t count)
{
    float best[16]; /* any order gives the same maximum */
    for (int lane = 0; lane < 16; lane++)
        best[lane] = x[0];
    uint32_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int lane = 0; lane < 16; lane++)
            best[lane] = x[i + lane] > best[lane] ? x[i + lane] : best[lane];
    for (; i < count; i++)
        best[0] = x[i] > best[0] ? x[i] : best[0];
    for (int lane = 1; lane < 16; lane++)
        best[0] = best[lane] > best[0] ? best[lane] : best[0];
    return best[0];
}

static void loop_weights(const float *restrict x, float max, float temperature, uint32_t count,
                         float *restrict weight)
{
    for (uint32_t i = 0; i < count; i++)
        weight[i] = mathf_exp((x[i] - max) / temperature);
}

static float loop_exp_sum(const float *x, float max, uint32_t count)
{
    float partial[16] = {0};
    uint32_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int lane = 0; lane < 16; lane++)
            partial[lane] = partial[lane] + mathf_exp(x[i + lane] - max);
    for (int lane = 0; i < count; i++, lane++)
        partial[lane] = partial[lane] + mathf_exp(x[i] - max);
    for (int half = 8; half >= 1; half /= 2)
        for (int lane = 0; lane < half; lane++)
            partial[lane] = partial[lane] + partial[lane + half];
    return partial[0];
}

const struct cpu_sampler_loops SAMPLER_LOOPS = {
    .all_finite = loop_all_finite,
    .max = loop_max,
    .weights = loop_weights,
    .exp_sum = loop_exp_sum,
};

#endif
