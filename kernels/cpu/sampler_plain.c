/* The sampler's loops over the vocabulary in plain C: the definition of what the others compute. See sampler.h.
 * Owner: any compute thread. */
#include "kernels/cpu/sampler_best.h"

static void look(const float *x, uint32_t count, struct cpu_sampler_look *look_out)
{
    struct cpu_sampler_look look = {.max = x[0], .min = x[0], .finite = true};
    for (uint32_t i = 0; i < count; i++) {
        look.finite &= mathf_is_finite(x[i]) != 0;
        look.min = x[i] < look.min ? x[i] : look.min;
        if (x[i] > look.max) {
            look.max = x[i];
            look.at = i / CPU_SAMPLER_RUN * CPU_SAMPLER_RUN;
        }
    }
    *look_out = look;
}

static uint64_t runs(const float *x, uint32_t count, const struct cpu_sampler_scale *scale,
                     uint64_t *sums)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        float weight = cpu_sampler_weight(scale, x[i]);
        if (weight >= scale->min_p)
            sum += cpu_sampler_units(weight);
        sums[i / CPU_SAMPLER_RUN] = sum;
    }
    return sum;
}

static uint32_t best(const float *x, uint32_t count, uint32_t wanted, uint64_t *keys)
{
    uint32_t have = 0;
    for (uint32_t i = 0; wanted && i < count; i++)
        have = sampler_best_put(cpu_sampler_key(x[i], i), wanted, have, keys);
    return have;
}

static float exp_sum(const float *x, uint32_t count, const struct cpu_sampler_look *look)
{
    float partial[16] = {0};
    for (uint32_t i = 0; i < count; i++)
        partial[i % 16] = partial[i % 16] + mathf_exp(x[i] - look->max);
    for (int half = 8; half >= 1; half /= 2)
        for (int lane = 0; lane < half; lane++)
            partial[lane] = partial[lane] + partial[lane + half];
    return partial[0];
}

const struct cpu_sampler_loops cpu_sampler_loops_plain = {
    .look = look,
    .runs = runs,
    .units = sampler_units,
    .buckets = sampler_buckets,
    .collect = sampler_collect,
    .best = best,
    .exp_sum = exp_sum,
};
