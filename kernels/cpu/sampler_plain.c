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

static uint64_t sum(const float *x, const float *maxima_of, uint32_t count, const uint32_t *runs,
                    uint32_t run_count, const struct cpu_sampler_scale *scale, uint32_t id,
                    uint64_t *before_out)
{
    uint64_t whole = 0;
    (void)maxima_of;
    if (before_out)
        *before_out = 0;
    for (uint32_t k = 0; k < run_count; k++)
        whole += sampler_sum_run(x, count, runs ? runs[k] : k, scale, id, before_out);
    return whole;
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
    .units = sampler_units,
    .sum = sum,
    .buckets = sampler_buckets,
    .above = sampler_above,
    .gather = sampler_gather,
    .collect = sampler_collect,
    .best = best,
    .exp_add = exp_add,
};
