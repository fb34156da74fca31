/* The sampler's loops over the vocabulary in plain C: the definition of what the others compute. See sampler.h.
 * Owner: any compute thread. */
#include "kernels/cpu/sampler_best.h"

static void look(const float *x, uint32_t count, struct cpu_sampler_look *look_out)
{
    *look_out = (struct cpu_sampler_look){.max = x[0], .min = x[0], .finite = true};
    sampler_look_from(0, x, count, look_out);
}

static void maxima(const float *x, uint32_t count, float *maxima_out)
{
    sampler_maxima_from(0, x, count, maxima_out);
}

static uint64_t runs(const float *x, const float *maxima_of, uint32_t count,
                     const struct cpu_sampler_scale *scale, uint64_t sum, uint64_t *sums)
{
    (void)maxima_of;
    return sampler_runs_from(0, x, count, scale, sum, sums);
}

static uint32_t best(const float *x, uint32_t count, uint32_t wanted, uint64_t *keys)
{
    uint32_t have = 0;
    for (uint32_t i = 0; wanted && i < count; i++)
        have = sampler_best_put(cpu_sampler_key(x[i], i), wanted, have, keys);
    return have;
}

static void exp_add(const float *x, uint32_t count, float max, float partial[16])
{
    sampler_exp_from(0, x, count, max, partial);
}

const struct cpu_sampler_loops cpu_sampler_loops_plain = {
    .look = look,
    .maxima = maxima,
    .runs = runs,
    .units = sampler_units,
    .buckets = sampler_buckets,
    .above = sampler_above,
    .gather = sampler_gather,
    .collect = sampler_collect,
    .best = best,
    .exp_add = exp_add,
};
