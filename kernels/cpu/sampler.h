/* Sampling one row of logits. See docs/NUMERICS.md, "Sampling", for the definition.
 *
 *     raw logits ─▶ finite? ─▶ log-probabilities ─▶ bias, penalties ─▶ / temperature ─▶ top_k, top_p, min_p ─▶ draw
 *
 * Owner: one compute thread per struct cpu_sampler. Nothing allocates after creation. */
#ifndef BATON_KERNELS_CPU_SAMPLER_H
#define BATON_KERNELS_CPU_SAMPLER_H

#include "kernels/backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/mathf.h"

struct cpu_sampler; /* working memory for one row */

enum status cpu_sampler_create(uint32_t vocab, struct cpu_sampler **sampler_out);
void cpu_sampler_destroy(struct cpu_sampler *sampler);

/* Samples one row. logits: [vocab], changed. `extra`: one more generated token after its generated ones, or
 * CPU_SAMPLER_NO_EXTRA. Fills token, finite, logprob, top_*. */
enum { CPU_SAMPLER_NO_EXTRA = -1 };
void cpu_sampler_row(struct cpu_sampler *sampler, enum cpu_isa_level isa,
                     const struct kern_sample *sample, int64_t extra, float *logits,
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

enum { CPU_SAMPLER_RUN = 64 };

/* The loops over the vocabulary, per instruction set. */
struct cpu_sampler_loops {
    bool (*all_finite)(const float *x, uint32_t count);
    float (*max)(const float *x, uint32_t count); /* finite x */
    /* weight[i] = exp((x[i] - max) / temperature): 1 for the best, whatever the temperature. sums[j]: the double sum, in order
     * of i, of those that are at least `min`, up to the end of the j-th CPU_SAMPLER_RUN of them. Returns the whole. */
    double (*weights)(const float *x, float max, float temperature, float min, uint32_t count,
                      float *weight, double *sums);
    /* The keys below `below` of values on one side of the floor (likely: at or above it), in order of id; how many. */
    uint32_t (*collect)(const float *x, uint32_t count, uint64_t below, float floor, bool likely,
                        uint64_t *keys);
    /* The keys of the `wanted` best, best first; returns how many: count may be less. */
    uint32_t (*best)(const float *x, uint32_t count, uint32_t wanted, uint64_t *best);
    /* sum of exp(x[i] - max): 16 strided partials, then the fixed tree */
    float (*exp_sum)(const float *x, float max, uint32_t count);
};
extern const struct cpu_sampler_loops cpu_sampler_loops_plain, cpu_sampler_loops_avx2;

#endif
