/* Sampling one row of logits. See docs/NUMERICS.md, "Sampling", for the definition.
 *
 *     raw logits ─▶ finite? ─▶ log-probabilities ─▶ bias, penalties ─▶ / temperature ─▶ top_k, top_p, min_p ─▶ draw
 *
 * Owner: one compute thread per struct cpu_sampler. Nothing allocates after creation. */
#ifndef BATON_KERNELS_CPU_SAMPLER_H
#define BATON_KERNELS_CPU_SAMPLER_H

#include "kernels/backend.h"
#include "kernels/cpu/isa.h"

struct cpu_sampler; /* working memory for one row */

enum status cpu_sampler_create(uint32_t vocab, struct cpu_sampler **sampler_out);
void cpu_sampler_destroy(struct cpu_sampler *sampler);

/* Samples one row. logits: [vocab], changed. `extra`: one more generated token after its generated ones, or
 * CPU_SAMPLER_NO_EXTRA. Fills token, finite, logprob, top_*. */
enum { CPU_SAMPLER_NO_EXTRA = -1 };
void cpu_sampler_row(struct cpu_sampler *sampler, enum cpu_isa_level isa,
                     const struct kern_sample *sample, int64_t extra, float *logits,
                     struct kern_sample_out *out);

/* The loops over the vocabulary, per instruction set (sampler_loops.h). */
struct cpu_sampler_loops {
    bool (*all_finite)(const float *x, uint32_t count);
    float (*max)(const float *x, uint32_t count); /* finite x */
    /* weight[i] = exp((x[i] - max) / temperature): 1 for the best, whatever the temperature */
    void (*weights)(const float *x, float max, float temperature, uint32_t count, float *weight);
    /* sum of exp(x[i] - max): 16 strided partials, then the fixed tree */
    float (*exp_sum)(const float *x, float max, uint32_t count);
};
extern const struct cpu_sampler_loops cpu_sampler_loops_plain, cpu_sampler_loops_avx2;

#endif
