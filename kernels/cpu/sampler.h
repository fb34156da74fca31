/* Sampling one row of logits. See docs/NUMERICS.md, "Sampling", for the definition.
 *
 *     raw logits, maxima ─▶ finite? ─▶ log-probabilities ─▶ bias, penalties ─▶ / temperature ─▶ top_k, top_p, min_p ─▶ draw
 *
 * Owner: one compute thread per struct cpu_sampler. Nothing allocates after creation. */
#ifndef BATON_KERNELS_CPU_SAMPLER_H
#define BATON_KERNELS_CPU_SAMPLER_H

#include "kernels/backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/mathf.h"

struct cpu_sampler; /* working memory for one row */

enum { CPU_SAMPLER_VOCAB_MAX = 1 << 24 }; /* as many weights add up to 2^54 units at most */

/* vocab: at most CPU_SAMPLER_VOCAB_MAX */
enum status cpu_sampler_create(uint32_t vocab, struct cpu_sampler **sampler_out);
void cpu_sampler_destroy(struct cpu_sampler *sampler);

enum { CPU_SAMPLER_RUN = 64, CPU_SAMPLER_BUCKETS = 1024, CPU_SAMPLER_SPARE = 8 };

/* Samples one row. logits: [vocab], changed. maxima: NULL, or the greatest of each CPU_SAMPLER_RUN of them, a NaN where one is not
 * finite; changed. `extra`: one more generated token after its generated ones, or CPU_SAMPLER_NO_EXTRA. Fills token, finite, logprob,
 * top_*. */
enum { CPU_SAMPLER_NO_EXTRA = -1 };
void cpu_sampler_row(struct cpu_sampler *sampler, enum cpu_isa_level isa,
                     const struct kern_sample *sample, int64_t extra, float *logits, float *maxima,
                     struct kern_sample_out *out);

/* A candidate as a number: greater is better, (value ascending, id descending). */
static inline uint64_t cpu_sampler_key(float value, uint32_t id)
{
    value = value + 0.0f; /* -0 equals +0: make them one */
    uint32_t bits = mathf_bits(value);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

static inline uint32_t cpu_sampler_key_id(uint64_t key)
{
    return ~(uint32_t)key;
}

static inline float cpu_sampler_key_value(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    return mathf_from_bits(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

/* One look over a row. */
struct cpu_sampler_look {
    float max, min;
    uint32_t at; /* the max is first met among the CPU_SAMPLER_RUN from here on */
    bool finite; /* none is infinite or NaN; with a NaN the others mean nothing */
};

/* How a row's values become weights, and which bucket of the order each belongs to. */
struct cpu_sampler_scale {
    float max, inverse; /* of the temperature */
    float rate;         /* `inverse` for powers of two */
    uint32_t least;     /* what weighs fewer units is not drawn: min_p */
    /* buckets to a unit of (x - max) * inverse, negative; what is too far below the best is in the last one */
    float per;
};

/* A weight in the unit of all sums, 2^-30 of the best: as an integer, so that a sum has no order. */
enum { CPU_SAMPLER_UNIT_BITS = 30 };

/* 2^((x - max) * rate), units below one cut off: the fraction of the exponent makes 24 bits, which the rest of it shifts down. */
static inline uint32_t cpu_sampler_units(const struct cpu_sampler_scale *scale, float x)
{
    float below = x - scale->max;
    float shifted = __builtin_fmaf(-below, scale->rate, MATHF_MAGIC);
    uint32_t down = mathf_bits(shifted) - mathf_bits(MATHF_MAGIC);
    if (down >= 32)
        return 0;
    float r = __builtin_fmaf(below, scale->rate, shifted - MATHF_MAGIC);
    return (uint32_t)(mathf_exp2_half(r) * (1 << CPU_SAMPLER_UNIT_BITS)) >> down;
}

/* The least units of what weighs min_p of the best. */
static inline uint32_t cpu_sampler_least(float min_p)
{
    double exact = (double)min_p * (1 << CPU_SAMPLER_UNIT_BITS);
    uint32_t below = (uint32_t)exact;
    return below + ((double)below < exact);
}

/* sum + e^below, for the sum of a row, below <= 0. What lies beyond is as if it were that far below: nothing beside the best, which is 1. */
#define CPU_SAMPLER_BEYOND (-87.0f)
enum { CPU_SAMPLER_BIAS = 127 };
static inline float cpu_sampler_exp_add(float sum, float below)
{
    const float magic =
        MATHF_MAGIC + CPU_SAMPLER_BIAS; /* so that low bits are those of a power of two */
    below = below > CPU_SAMPLER_BEYOND ? below : CPU_SAMPLER_BEYOND;
    float shifted = __builtin_fmaf(below, MATHF_LOG2E, magic);
    float r = __builtin_fmaf(below, MATHF_LOG2E, magic - shifted);
    return __builtin_fmaf(mathf_exp2_half(r), mathf_from_bits(mathf_bits(shifted) << 23), sum);
}

/* The logarithm of a weight: at most 0. */
static inline float cpu_sampler_exponent(const struct cpu_sampler_scale *scale, float x)
{
    return (x - scale->max) * scale->inverse;
}

/* 0 holds the best; never less for a smaller value. */
static inline uint32_t cpu_sampler_bucket(const struct cpu_sampler_scale *scale, float x)
{
    float place = cpu_sampler_exponent(scale, x) * scale->per, last = CPU_SAMPLER_BUCKETS - 1;
    return (uint32_t)(int32_t)(place < last ? place : last);
}

/* The loops over the vocabulary, per instruction set. */
struct cpu_sampler_loops {
    void (*look)(const float *x, uint32_t count, struct cpu_sampler_look *look_out);
    /* maxima[j]: the greatest of the j-th CPU_SAMPLER_RUN, a NaN where one of them is not finite. */
    void (*maxima)(const float *x, uint32_t count, float *maxima);
    /* units[count]: each value's. */
    void (*units)(const float *x, uint32_t count, const struct cpu_sampler_scale *scale,
                  uint32_t *units);
    /* Adds up the units of the runs whose numbers are given. runs: NULL, or of the first run_count; maxima: NULL, or of all runs.
     * before_out: NULL, or the sum of those that come before x[id] in the order; that is finite. */
    uint64_t (*sum)(const float *x, const float *maxima, uint32_t count, const uint32_t *runs,
                    uint32_t run_count, const struct cpu_sampler_scale *scale, uint32_t id,
                    uint64_t *before_out);
    /* places[count]: each value's bucket; of the last one CPU_SAMPLER_BUCKETS - 1 or more. counts[CPU_SAMPLER_BUCKETS]: how many lie in
     * each. */
    void (*buckets)(const float *x, uint32_t count, const struct cpu_sampler_scale *scale,
                    uint16_t *places, uint32_t *counts);
    /* Those of x[count] that are `least` or more, and their ids, in order; x[0] has `id`. Returns how many; CPU_SAMPLER_SPARE more may
     * be written. */
    uint32_t (*above)(const float *x, uint32_t count, uint32_t id, float least, float *values,
                      uint32_t *ids);
    /* The same of the runs whose numbers are given, ascending; x[0] has id 0. Room for all their values. */
    uint32_t (*gather)(const float *x, uint32_t count, const uint32_t *runs, uint32_t run_count,
                       float least, float *values, uint32_t *ids);
    /* The keys of buckets `first` to `last`, in order of place in x, which is a key's id; how many. */
    uint32_t (*collect)(const float *x, uint32_t count, const uint16_t *places, uint32_t first,
                        uint32_t last, uint64_t *keys);
    /* The keys of the `wanted` best, best first; returns how many: count may be less. */
    uint32_t (*best)(const float *x, uint32_t count, uint32_t wanted, uint64_t *best);
    /* partial[i % 16] += exp(x[i] - max) as cpu_sampler_exp_add, in order; none is above max. */
    void (*exp_add)(const float *x, uint32_t count, float max, float partial[16]);
};
extern const struct cpu_sampler_loops cpu_sampler_loops_plain, cpu_sampler_loops_avx2,
    cpu_sampler_loops_neon;

#endif
