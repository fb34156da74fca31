/* What the sampler's loops do with one value: the list of the best that they keep, and buckets; and the loops from value `i` on, which
 * are what is left of a row behind whole registers, and in plain C all of it.
 * Owner: any compute thread; no state. */
#ifndef BATON_KERNELS_CPU_SAMPLER_BEST_H
#define BATON_KERNELS_CPU_SAMPLER_BEST_H

#include "kernels/cpu/sampler.h"

/* Puts a key into the `have` best, best first, at most `wanted`; returns how many there are. */
static inline uint32_t sampler_best_put(uint64_t key, uint32_t wanted, uint32_t have,
                                        uint64_t *best)
{
    if (have == wanted && key <= best[have - 1])
        return have;
    uint32_t at = have < wanted ? have : have - 1;
    have = at + 1;
    for (; at > 0 && best[at - 1] < key; at--)
        best[at] = best[at - 1];
    best[at] = key;
    return have;
}

static inline void sampler_look_from(uint32_t i, const float *x, uint32_t count,
                                     struct cpu_sampler_look *look)
{
    struct cpu_sampler_look so_far = *look; /* in registers */
    for (; i < count; i++) {
        so_far.finite &= mathf_is_finite(x[i]) != 0;
        so_far.min = x[i] < so_far.min ? x[i] : so_far.min;
        if (x[i] > so_far.max) {
            so_far.max = x[i];
            so_far.at = i / CPU_SAMPLER_RUN * CPU_SAMPLER_RUN;
        }
    }
    *look = so_far;
}

static inline uint32_t sampler_units_of(const struct cpu_sampler_scale *scale, float x)
{
    float weight = cpu_sampler_weight(scale, x);
    return weight >= scale->min_p ? cpu_sampler_units(weight) : 0;
}

static inline void sampler_units(const float *x, uint32_t count,
                                 const struct cpu_sampler_scale *scale, uint32_t *units)
{
    for (uint32_t i = 0; i < count; i++)
        units[i] = sampler_units_of(scale, x[i]);
}

static inline void sampler_maxima_from(uint32_t i, const float *x, uint32_t count, float *maxima)
{
    for (; i < count; i += CPU_SAMPLER_RUN) {
        uint32_t end = count - i < CPU_SAMPLER_RUN ? count : i + CPU_SAMPLER_RUN;
        float most = x[i];
        bool finite = true;
        for (uint32_t k = i; k < end; k++) {
            finite &= mathf_is_finite(x[k]) != 0;
            most = x[k] > most ? x[k] : most;
        }
        maxima[i / CPU_SAMPLER_RUN] = finite ? most : __builtin_nanf("");
    }
}

static inline uint64_t sampler_runs_from(uint32_t i, const float *x, uint32_t count,
                                         const struct cpu_sampler_scale *scale, uint64_t sum,
                                         uint64_t *sums)
{
    for (; i < count; i++) {
        sum += sampler_units_of(scale, x[i]);
        sums[i / CPU_SAMPLER_SUM] = sum;
    }
    return sum;
}

static inline void sampler_exp_from(uint32_t i, const float *x, uint32_t count, float max,
                                    float partial[16])
{
    for (; i < count; i++)
        partial[i % 16] = partial[i % 16] + mathf_exp(x[i] - max);
}

/* One value's place and what it adds to its bucket; returns what it adds to the whole. */
static inline uint64_t sampler_bucket_put(float x, const struct cpu_sampler_scale *scale, bool ones,
                                          uint16_t *place, uint64_t *sums)
{
    float weight = cpu_sampler_weight(scale, x);
    uint64_t units = ones ? 1 : cpu_sampler_units(weight);
    uint32_t bucket = cpu_sampler_bucket(scale, x);
    *place = (uint16_t)bucket;
    if (ones || weight >= scale->min_p)
        sums[bucket] += units;
    return units;
}

static inline uint32_t sampler_above(const float *x, uint32_t count, uint32_t id, float least,
                                     float *values, uint32_t *ids)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < count; i++)
        if (x[i] >= least) {
            ids[have] = id + i;
            values[have++] = x[i];
        }
    return have;
}

static inline uint32_t sampler_gather(const float *x, uint32_t count, const uint32_t *runs,
                                      uint32_t run_count, float least, float *values, uint32_t *ids)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < run_count; i++) {
        uint32_t begin = runs[i] * CPU_SAMPLER_RUN, rest = count - begin;
        have += sampler_above(x + begin, rest < CPU_SAMPLER_RUN ? rest : CPU_SAMPLER_RUN, begin,
                              least, values + have, ids + have);
    }
    return have;
}

static inline bool sampler_bucket_within(uint16_t place, uint32_t first, uint32_t last)
{
    return place >= first && (place <= last || last == CPU_SAMPLER_BUCKETS - 1);
}

static inline uint64_t sampler_buckets(const float *x, uint32_t count,
                                       const struct cpu_sampler_scale *scale, bool ones,
                                       uint16_t *places, uint64_t *sums)
{
    uint64_t sum = 0;
    memset(sums, 0, CPU_SAMPLER_BUCKETS * sizeof *sums);
    for (uint32_t i = 0; i < count; i++)
        sum += sampler_bucket_put(x[i], scale, ones, &places[i], sums);
    return sum;
}

static inline uint32_t sampler_collect(const float *x, uint32_t count, const uint16_t *places,
                                       uint32_t first, uint32_t last, uint64_t *keys)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < count; i++)
        if (sampler_bucket_within(places[i], first, last))
            keys[have++] = cpu_sampler_key(x[i], i);
    return have;
}

#endif
