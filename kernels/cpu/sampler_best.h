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

static inline void sampler_units(const float *x, uint32_t count,
                                 const struct cpu_sampler_scale *scale, uint32_t *units)
{
    for (uint32_t i = 0; i < count; i++)
        units[i] = cpu_sampler_units(scale, x[i]);
}

/* Of one run. before: NULL, or what to add to. */
static inline uint64_t sampler_sum_run(const float *x, uint32_t count, uint32_t run,
                                       const struct cpu_sampler_scale *scale, uint32_t id,
                                       uint64_t *before)
{
    uint32_t begin = run * CPU_SAMPLER_RUN;
    uint32_t end = count - begin < CPU_SAMPLER_RUN ? count : begin + CPU_SAMPLER_RUN;
    uint64_t sum = 0;
    for (uint32_t i = begin; i < end; i++) {
        uint32_t units = cpu_sampler_units(scale, x[i]);
        sum += units;
        if (before && (x[i] > x[id] || (x[i] == x[id] && i < id)))
            *before += units;
    }
    return sum;
}

/* What is greater than this comes before x[id] in the order, in a run that begins at `begin` and is not x[id]'s own: an equal one only
 * with a lower id. */
static inline float sampler_before(const float *x, uint32_t id, uint32_t begin)
{
    uint32_t bits = mathf_bits(x[id] + 0.0f); /* of -0 as of 0 */
    if (begin > id)
        return x[id];
    if (bits == 0)
        return -0x1p-149f;
    return mathf_from_bits(bits & 0x80000000u ? bits + 1 : bits - 1); /* the next lower number */
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

static inline void sampler_exp_from(uint32_t i, const float *x, uint32_t count, float max,
                                    float partial[16])
{
    for (; i < count; i++)
        partial[i % 16] = cpu_sampler_exp_add(partial[i % 16], x[i] - max);
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

static inline void sampler_bucket_put(float x, const struct cpu_sampler_scale *scale,
                                      uint16_t *place, uint32_t *counts)
{
    uint32_t bucket = cpu_sampler_bucket(scale, x);
    *place = (uint16_t)bucket;
    counts[bucket]++;
}

static inline void sampler_buckets(const float *x, uint32_t count,
                                   const struct cpu_sampler_scale *scale, uint16_t *places,
                                   uint32_t *counts)
{
    memset(counts, 0, CPU_SAMPLER_BUCKETS * sizeof *counts);
    for (uint32_t i = 0; i < count; i++)
        sampler_bucket_put(x[i], scale, &places[i], counts);
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
