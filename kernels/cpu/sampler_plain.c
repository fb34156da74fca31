/* The sampler's loops over the vocabulary in plain C: the definition of what the others compute. See sampler.h.
 * Owner: any compute thread. */
#include "kernels/cpu/sampler_best.h"

static bool all_finite(const float *x, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!mathf_is_finite(x[i]))
            return false;
    return true;
}

static float max_of(const float *x, uint32_t count)
{
    float best = x[0]; /* any order gives the same maximum */
    for (uint32_t i = 1; i < count; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

static double weights(const float *x, float max, float temperature, float min, uint32_t count,
                      float *weight, double *sums)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        weight[i] = mathf_exp((x[i] - max) / temperature);
        if (weight[i] >= min)
            sum += (double)weight[i];
        sums[i / CPU_SAMPLER_RUN] = sum;
    }
    return sum;
}

static uint32_t collect(const float *x, uint32_t count, uint64_t below, float floor, bool likely,
                        uint64_t *keys)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t key = cpu_sampler_key(x[i], i);
        if (key < below && (x[i] >= floor) == likely)
            keys[have++] = key;
    }
    return have;
}

static uint32_t best(const float *x, uint32_t count, uint32_t wanted, uint64_t *keys)
{
    uint32_t have = 0;
    for (uint32_t i = 0; wanted && i < count; i++)
        have = sampler_best_put(cpu_sampler_key(x[i], i), wanted, have, keys);
    return have;
}

static float exp_sum(const float *x, float max, uint32_t count)
{
    float partial[16] = {0};
    for (uint32_t i = 0; i < count; i++)
        partial[i % 16] = partial[i % 16] + mathf_exp(x[i] - max);
    for (int half = 8; half >= 1; half /= 2)
        for (int lane = 0; lane < half; lane++)
            partial[lane] = partial[lane] + partial[lane + half];
    return partial[0];
}

const struct cpu_sampler_loops cpu_sampler_loops_plain = {
    .all_finite = all_finite,
    .max = max_of,
    .weights = weights,
    .collect = collect,
    .best = best,
    .exp_sum = exp_sum,
};
