/* What a draw works with, and how it is split:
 *
 *     sampler.c        a row: its changes, log-probabilities, greedy
 *     sampler_order.c  parts of the row and of the order; draws in the order
 *     sampler_draw.c   draws by proposals
 *
 * Owner: one compute thread per struct cpu_sampler. */
#ifndef BATON_KERNELS_CPU_SAMPLER_INTERNAL_H
#define BATON_KERNELS_CPU_SAMPLER_INTERNAL_H

#include "kernels/cpu/philox.h"
#include "kernels/cpu/sampler.h"

enum { SAMPLER_BEST_MAX = 64 };

struct cpu_sampler {
    uint32_t vocab, run_count; /* runs of CPU_SAMPLER_RUN */
    uint32_t
        *counts; /* [vocab] times in the answer, PROMPT_BIT if in the prompt; zero between rows */
    float *raw;  /* [vocab] the raw logits of what changes, when log-probabilities are asked for */
    float *few;  /* [vocab] the values of a part of the order */
    float *part_values; /* [vocab]: a part of the row */
    uint32_t *part_ids;
    float *maxima; /* [run_count] where the caller has none */
    float *picked_values;
    uint32_t *picked; /* [run_count] runs that are looked at, and their maxima */
    uint32_t *others; /* [run_count] */
    uint32_t *bounds; /* [run_count] units of each run's maximum */
    uint64_t *sums;   /* [run_count] of them as far as they may be drawn */
    uint64_t *order;  /* [vocab + SAMPLER_BEST_MAX] keys, best first: a part of the order */
    uint64_t *spare;  /* [vocab] */
    uint32_t *units;  /* [vocab] of a part of the order */
    uint16_t *places; /* [vocab] buckets */
    uint32_t buckets[CPU_SAMPLER_BUCKETS];
};

/* What a draw is made of. */
struct draw {
    const struct kern_sampling *how;
    const struct cpu_sampler_loops *loops;
    const float *values; /* [count] of the row, or of a part of it */
    const uint32_t *ids; /* [count] NULL: the places */
    const float *maxima; /* of each CPU_SAMPLER_RUN of the row; NULL: a part */
    uint32_t count;
    struct cpu_sampler_scale scale;
    uint32_t best_at;  /* a place of the row near its best */
    uint32_t position; /* in the answer */
};

/* Two of the numbers of a draw. */
static inline void sampler_numbers(const struct draw *draw, uint32_t block, uint64_t numbers_out[2])
{
    philox_block(draw->how->seed, draw->how->n_index, draw->position, block, numbers_out);
}

/* A number of 64 bits as one below `whole`. */
static inline uint64_t sampler_place(uint64_t number, uint64_t whole)
{
    return (uint64_t)((unsigned __int128)number * whole >> 64);
}

/* What the running sum must reach: the least integer that is at least top_p * total. At least 1, so that the best stays. */
static inline uint64_t sampler_enough(const struct draw *draw, uint64_t total)
{
    enum { BITS = 40 };
    uint64_t top_p = (uint64_t)((double)draw->how->top_p * 0x1p40);
    unsigned __int128 product = (unsigned __int128)top_p * total + ((UINT64_C(1) << BITS) - 1);
    uint64_t enough = (uint64_t)(product >> BITS);
    return enough ? enough : 1;
}

static inline uint32_t sampler_id(const struct draw *draw, uint64_t key)
{
    uint32_t place = cpu_sampler_key_id(key);
    return draw->ids ? draw->ids[place] : place;
}

/* Buckets that reach so far below the best, in exponents. */
float sampler_per(float reach);

/* A draw among what is `least` or more. */
void sampler_part_pick(struct cpu_sampler *sampler, const struct draw *draw, float least,
                       struct draw *part_out);

/* A value that `wanted` values or more reach, because as many runs' maxima do. False: they are too few for that. */
bool sampler_least_by_maxima(struct cpu_sampler *sampler, const struct draw *draw, uint32_t wanted,
                             float *least_out);

/* All that are `least` or more into sampler->order, in order; how many. */
uint32_t sampler_order(struct cpu_sampler *sampler, const struct draw *draw, float least);

/* Among the first `count` of sampler->order, in order, by the number of `block`. total: what all candidates weigh, these and others; 0:
 * these are all. Returns the id. */
uint32_t sampler_draw_order(struct cpu_sampler *sampler, const struct draw *draw, uint32_t count,
                            uint64_t total, uint32_t block);

/* Among the top_k best, fewer than there are; else. The id. */
uint32_t sampler_draw_top_k(struct cpu_sampler *sampler, const struct draw *whole);
uint32_t sampler_draw_all(struct cpu_sampler *sampler, const struct draw *draw);

#endif
