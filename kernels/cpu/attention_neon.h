/* What the Arm attention kernels of all KV types share: the softmax of a block, the merging of blocks, and the walk over a tile.
 * Operations and order: attention_plain.c. For 64-bit Arm.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ATTENTION_NEON_H
#define BATON_KERNELS_CPU_ATTENTION_NEON_H

#include "kernels/cpu/attention.h"
#include "kernels/cpu/mathf_neon.h"

#define INLINE static inline __attribute__((always_inline))

/* Up to CHUNK query heads share the loads of a block, which is four runs of 16 positions, each within one page. */
enum { LANES = 4, CHUNK = 4, RUN = 16, RUNS = ATTENTION_BLOCK / RUN, RUN_VECTORS = RUN / LANES };

/* One chunk of heads: what they have so far, and their queries. */
struct chunk {
    float *running, *running_max, *running_sum; /* [head][dim], [head] */
    size_t state;                               /* the first head's number in its tile */
    bool first;                                 /* the sequence's first block */
};

/* What is kept of the results so far, and what joins them. */
struct merge {
    float keep, add;
};

/* All bits of the lanes below `count`. */
INLINE uint32x4_t lanes_below(uint32_t count, uint32_t lane)
{
    static const uint32_t numbers[LANES] = {0, 1, 2, 3};
    return vcltq_u32(vaddq_u32(vld1q_u32(numbers), vdupq_n_u32(lane)), vdupq_n_u32(count));
}

/* score[64], of which the first `count` count, becomes e[64], 0 from there on, and joins the head's maximum and sum. */
static inline struct merge softmax_head(const float *score, uint32_t count, bool first, float *e,
                                        float *running_max, float *running_sum)
{
    const float32x4_t lowest = vdupq_n_f32(-__builtin_inff());
    float32x4_t best = lowest;
    for (uint32_t j = 0; j < count; j += LANES) {
        float32x4_t value = vbslq_f32(lanes_below(count, j), vld1q_f32(score + j), lowest);
        best = vbslq_f32(vcgtq_f32(value, best), value, best); /* NaN never wins */
    }
    float max = vmaxvq_f32(best);
    float32x4_t partial[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (uint32_t j = 0; j < ATTENTION_BLOCK; j += LANES) {
        float32x4_t y = vdupq_n_f32(0);
        if (j < count) {
            y = mathf4_exp(vsubq_f32(vld1q_f32(score + j), vdupq_n_f32(max)));
            y = vbslq_f32(lanes_below(count, j), y, vdupq_n_f32(0));
            partial[j / LANES % 4] = vaddq_f32(partial[j / LANES % 4], y);
        }
        vst1q_f32(e + j, y);
    }
    float sum = mathf4_sum16(partial);
    struct merge merge = {0, 0};
    if (first) {
        *running_max = max;
        *running_sum = sum;
        return merge;
    }
    float new_max = max > *running_max ? max : *running_max;
    merge.keep = mathf_exp(*running_max - new_max);
    merge.add = mathf_exp(max - new_max);
    *running_max = new_max;
    *running_sum = __builtin_fmaf(*running_sum, merge.keep, sum * merge.add);
    return merge;
}

/* Four of a head's outputs of one block join what it has so far. */
INLINE void merge_store(bool first, float32x4_t output, struct merge merge, float *running)
{
    if (!first)
        output = vfmaq_n_f32(vmulq_n_f32(output, merge.add), vld1q_f32(running), merge.keep);
    vst1q_f32(running, output);
}

/* Blocks outside, rows inside: attend(tile, begin, nq, chunk, count) for nq heads of one block of `count` positions each. At the end
 * out = running / sum. Chunks run across rows where all rows see the whole block. */
INLINE void tile_walk(const struct cpu_attention_tile *tile,
                      void (*attend)(const struct cpu_attention_tile *tile, uint32_t begin,
                                     uint32_t nq, const struct chunk *chunk, uint32_t count))
{
    uint32_t dim = tile->head_dim, group = tile->group, states = tile->rows * group;
    uint32_t begin = 0, last = tile->position + tile->rows - 1;
    if (tile->partials) {
        uint32_t part_last = tile->block_end * ATTENTION_BLOCK - 1;
        begin = tile->block_begin * ATTENTION_BLOCK;
        last = last < part_last ? last : part_last;
    }
    for (; begin <= last; begin += ATTENTION_BLOCK) {
        struct cpu_attention_results results = cpu_attention_results_of(tile, begin);
        uint32_t row_begin = begin > tile->position ? begin - tile->position : 0;
        bool whole = begin + ATTENTION_BLOCK <= tile->position + 1;
        uint32_t nq;
        for (uint32_t state = row_begin * group; state < states; state += nq) {
            uint32_t r = state / group, seen = tile->position + r + 1 - begin;
            nq = (whole ? states : (r + 1) * group) - state;
            nq = nq < CHUNK ? nq : CHUNK;
            struct chunk chunk = {.running = results.outputs + (size_t)state * dim,
                                  .running_max = results.max + state,
                                  .running_sum = results.sum + state,
                                  .state = state,
                                  .first = begin == 0 || tile->partials};
            attend(tile, begin, nq, &chunk, seen < ATTENTION_BLOCK ? seen : ATTENTION_BLOCK);
        }
    }
    if (tile->partials)
        return;
    struct cpu_attention_results results = cpu_attention_results_of(tile, 0);
    for (uint32_t state = 0; state < states; state++) {
        float *out = tile->out + state / group * tile->row_stride + (size_t)(state % group) * dim;
        float inverse = 1.0f / results.sum[state];
        for (uint32_t i = 0; i < dim; i += LANES)
            vst1q_f32(out + i,
                      vmulq_n_f32(vld1q_f32(results.outputs + (size_t)state * dim + i), inverse));
    }
}

#endif
