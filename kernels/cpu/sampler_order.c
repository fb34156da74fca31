/* See sampler_internal.h: what is taken out of a row because it is large enough, and draws in the order (value descending, id ascending).
 * A row without a part that is known to be enough is looked at as a whole: the best 64 come from one pass; for more, buckets of values
 * are counted, and those down to the last one needed are sorted.
 * Owner: one compute thread per struct cpu_sampler. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/sampler_internal.h"

/* Sorts by the upper halves, the values, descending; keys come in order of id and equal values keep it. What lies in one bucket
 * has most digits in common: these cost a count alone. */
static void keys_sort(uint64_t *keys, uint64_t *spare, uint32_t count)
{
    enum { DIGIT = 8, DIGITS = 1 << DIGIT, PASSES = 4 };
    uint32_t starts[PASSES][DIGITS];
    uint64_t *from = keys, *to = spare;
    memset(starts, 0, sizeof starts);
    for (uint32_t i = 0; i < count; i++)
        for (int pass = 0; pass < PASSES; pass++)
            starts[pass][~(keys[i] >> (32 + pass * DIGIT)) & (DIGITS - 1)]++;
    for (int pass = 0; pass < PASSES; pass++) {
        int shift = 32 + pass * DIGIT;
        if (count == 0 || starts[pass][~(keys[0] >> shift) & (DIGITS - 1)] == count)
            continue;
        uint32_t at = 0;
        for (int digit = 0; digit < DIGITS; digit++) {
            uint32_t here = starts[pass][digit];
            starts[pass][digit] = at;
            at += here;
        }
        for (uint32_t i = 0; i < count; i++)
            to[starts[pass][~(from[i] >> shift) & (DIGITS - 1)]++] = from[i];
        uint64_t *other = from;
        from = to;
        to = other;
    }
    if (from != keys)
        memcpy(keys, from, count * sizeof *keys);
}

/* The first bucket with which they are `enough`; the last one where they never are. */
static uint32_t bucket_reaching(const uint32_t *buckets, uint32_t enough)
{
    uint32_t i = 0;
    for (uint32_t sum = buckets[0]; sum < enough && i < CPU_SAMPLER_BUCKETS - 1; sum += buckets[i])
        i++;
    return i;
}

/* How far below the best, in exponents, top_k will look, by a sample of the row without its best; some more, because it is a sample.
 * False: there are many. */
static bool reach_guess(struct cpu_sampler *sampler, const struct draw *draw, float *reach_out)
{
    enum {
        RUNS = 32,
        EACH_LEAST = 32,
        LEAST = 8 * EACH_LEAST * CPU_SAMPLER_RUN,
        FEW = 10,
        SOME = 4
    };
    const uint32_t spread = draw->count / (RUNS * CPU_SAMPLER_RUN),
                   each = spread > EACH_LEAST ? spread : EACH_LEAST;
    const float *row = draw->values;
    uint32_t count = 0, above = 0, first = (draw->best_at / CPU_SAMPLER_RUN + 1) % each;
    if (draw->count < LEAST)
        return false;
    for (uint32_t i = first * CPU_SAMPLER_RUN; i + CPU_SAMPLER_RUN <= draw->count;
         i += each * CPU_SAMPLER_RUN) {
        memcpy(sampler->few + count, row + i, CPU_SAMPLER_RUN * sizeof *row);
        count += CPU_SAMPLER_RUN;
    }
    draw->loops->buckets(sampler->few, count, &draw->scale, sampler->places, sampler->buckets);
    uint32_t enough = (uint32_t)((uint64_t)draw->how->top_k * 3 / (2 * each) + SOME);
    uint32_t bucket = bucket_reaching(sampler->buckets, enough);
    for (uint32_t i = 0; i < count; i++)
        above += sampler->places[i] <= bucket;
    *reach_out = (float)(bucket + 1) / -draw->scale.per;
    return bucket < CPU_SAMPLER_BUCKETS - 1 && above < count / FEW;
}

/* A value that everything reaches that lies no further than `reach`, in exponents, below the best. */
static float least_of(const struct draw *draw, float reach)
{
    float least = draw->scale.max - reach / draw->scale.inverse;
    return least - fabsf(least) * 0x1p-22f; /* whatever was rounded: not above it */
}

float sampler_per(float reach)
{
    const float most = 1e30f, least = (float)(CPU_SAMPLER_BUCKETS - 1) / most;
    return reach > least ? -(float)(CPU_SAMPLER_BUCKETS - 1) / reach : -most; /* also of -0 */
}

void sampler_part_pick(struct cpu_sampler *sampler, const struct draw *draw, float least,
                       struct draw *part_out)
{
    uint32_t runs = draw->loops->above(draw->maxima, sampler->run_count, 0, least,
                                       sampler->picked_values, sampler->picked);
    *part_out = *draw;
    part_out->values = sampler->part_values;
    part_out->ids = sampler->part_ids;
    part_out->maxima = NULL;
    part_out->count = draw->loops->gather(draw->values, draw->count, sampler->picked, runs, least,
                                          sampler->part_values, sampler->part_ids);
    part_out->scale.per = sampler_per(-cpu_sampler_exponent(&draw->scale, least));
}

/* The first of the `wanted` best in sampler->order; there are as many. */
static void order_best(struct cpu_sampler *sampler, const struct draw *draw, uint32_t wanted)
{
    if (wanted <= SAMPLER_BEST_MAX) {
        draw->loops->best(draw->values, draw->count, wanted, sampler->order);
        return;
    }
    draw->loops->buckets(draw->values, draw->count, &draw->scale, sampler->places,
                         sampler->buckets);
    uint32_t last = bucket_reaching(sampler->buckets, wanted);
    uint32_t count =
        draw->loops->collect(draw->values, draw->count, sampler->places, 0, last, sampler->order);
    keys_sort(sampler->order, sampler->spare, count);
}

uint32_t sampler_order(struct cpu_sampler *sampler, const struct draw *draw, float least)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < draw->count; i++) {
        sampler->order[count] = cpu_sampler_key(draw->values[i], i);
        count += draw->values[i] >= least;
    }
    keys_sort(sampler->order, sampler->spare, count);
    return count;
}

static bool least_by_guess(struct cpu_sampler *sampler, const struct draw *draw, float *least_out)
{
    float reach;
    if (!reach_guess(sampler, draw, &reach))
        return false;
    *least_out = least_of(draw, reach);
    return true;
}

bool sampler_least_by_maxima(struct cpu_sampler *sampler, const struct draw *draw, uint32_t wanted,
                             float *least_out)
{
    uint32_t bucket = 0;
    if (wanted > sampler->run_count / 8)
        return false;
    if (wanted <= SAMPLER_BEST_MAX) {
        draw->loops->best(draw->maxima, sampler->run_count, wanted, sampler->order);
        *least_out = cpu_sampler_key_value(sampler->order[wanted - 1]);
        return true;
    }
    draw->loops->buckets(draw->maxima, sampler->run_count, &draw->scale, sampler->places,
                         sampler->buckets);
    bucket = bucket_reaching(sampler->buckets, wanted);
    *least_out = least_of(draw, (float)(bucket + 1) / -draw->scale.per);
    return bucket < CPU_SAMPLER_BUCKETS - 1;
}

uint32_t sampler_draw_order(struct cpu_sampler *sampler, const struct draw *draw, uint32_t count,
                            uint64_t total, uint32_t block)
{
    uint32_t *units = sampler->units, last = 0, at = 0;
    uint64_t sum = 0, left = 0, reached = 0;
    for (uint32_t i = 0; i < count; i++)
        sampler->few[i] = draw->values[cpu_sampler_key_id(sampler->order[i])];
    draw->loops->units(sampler->few, count, &draw->scale, units);
    for (uint32_t i = 0; i < count && !total; i++)
        sum += units[i];
    uint64_t enough =
        draw->how->top_p < 1.0f ? sampler_enough(draw, total ? total : sum) : UINT64_MAX;
    for (sum = 0; last < count && sum < enough; last++) {
        sum += units[last];
        units[last] = units[last] >= draw->scale.least ? units[last] : 0;
        left += units[last];
    }
    uint64_t numbers[2];
    sampler_numbers(draw, block, numbers);
    uint64_t place = sampler_place(numbers[0], left);
    while ((reached += units[at]) <= place)
        at++;
    return sampler_id(draw, sampler->order[at]);
}

uint32_t sampler_draw_top_k(struct cpu_sampler *sampler, const struct draw *whole)
{
    const uint32_t limit = whole->how->top_k;
    const struct draw *draw = whole;
    struct draw part;
    float least;
    if (sampler_least_by_maxima(sampler, whole, limit, &least) ||
        least_by_guess(sampler, whole, &least)) {
        sampler_part_pick(sampler, whole, least, &part);
        draw = part.count >= limit ? &part : whole;
    }
    order_best(sampler, draw, limit);
    return sampler_draw_order(sampler, draw, limit, 0, 0);
}
