/* See sampler_internal.h: a draw by proposals (von Neumann's rejection). A run of 64 is proposed as often as 64 times its maximum weighs,
 * one of the 64 as often as any, and it is taken as often as it weighs of the maximum: together as often as it weighs of the row. No more
 * than the maxima need exponentials, and one proposal in 64 is taken, or more.
 *
 * With top_p the whole row must be weighed, unless a part of it decides. What lies beyond top_p leaves the part of the row that is better,
 * where the next candidates are looked for.
 * Owner: one compute thread per struct cpu_sampler. */
#include <math.h>

#include "kernels/cpu/sampler_internal.h"

enum { PROPOSALS = 512, PROPOSALS_BEYOND = 64, TOGETHER = 8 };

/* What runs may weigh; the whole. Without branches, here and below: nobody could foretell them. */
static uint64_t bounds_fill(struct cpu_sampler *sampler, const struct draw *draw)
{
    uint64_t sum = 0;
    draw->loops->units(draw->maxima, sampler->run_count, &draw->scale, sampler->bounds);
    for (uint32_t run = 0; run < sampler->run_count; run++) {
        uint32_t bound = sampler->bounds[run];
        sampler->sums[run] = sum += bound & -(uint32_t)(bound >= draw->scale.least);
    }
    return sum;
}

/* The first run whose running sum exceeds `place`; there is one. */
static uint32_t run_find(const struct cpu_sampler *sampler, uint64_t place)
{
    uint32_t first = 0, half;
    for (uint32_t count = sampler->run_count; count > 1; count -= half) {
        half = count / 2;
        first += half & -(uint32_t)(sampler->sums[first + half - 1] <= place);
    }
    return first;
}

/* A place in a run, which may lie behind the row's end, and what it must weigh more than. */
struct proposal {
    uint32_t id;
    uint64_t height;
};

/* bound: of all runs. Some together, as each has to come from memory. */
static void proposals_draw(const struct cpu_sampler *sampler, const struct draw *draw,
                           uint32_t first, uint64_t bound, struct proposal proposals[TOGETHER])
{
    uint64_t numbers[2];
    for (uint32_t i = 0; i < TOGETHER; i++) {
        if (i % 2 == 0)
            sampler_numbers(draw, (first + i) / 2, numbers);
        uint64_t place = sampler_place(numbers[i % 2], bound * CPU_SAMPLER_RUN),
                 height = place / CPU_SAMPLER_RUN;
        uint32_t run = run_find(sampler, height);
        proposals[i].id = run * CPU_SAMPLER_RUN + (uint32_t)(place % CPU_SAMPLER_RUN);
        proposals[i].height = height - (run ? sampler->sums[run - 1] : 0);
        __builtin_prefetch(&draw->values[proposals[i].id]);
    }
}

static bool proposal_take(const struct draw *draw, const struct proposal *proposal)
{
    if (proposal->id >= draw->count)
        return false;
    uint32_t units = cpu_sampler_units(&draw->scale, draw->values[proposal->id]);
    return units >= draw->scale.least && units > proposal->height;
}

/* What is known of top_p. */
struct beyond {
    struct draw part; /* what is as good as a candidate that lay beyond it, or better; or all */
    uint64_t total;   /* units of the row; 0: not known yet */
    uint64_t key;     /* of the best candidate beyond it; 0: there was none */
};

/* total_out: of the row, if it was needed: a part of it often decides, which is what runs weigh that have anything before the candidate,
 * and the maxima of the others. */
static bool within_whole(struct cpu_sampler *sampler, const struct draw *draw, uint32_t id,
                         uint64_t *total_out)
{
    const float value = draw->values[id];
    uint32_t near = 0, far = 0;
    uint64_t before, rest = 0;
    for (uint32_t run = 0; run < sampler->run_count; run++) {
        bool is_near = draw->maxima[run] >= value;
        sampler->picked[near] = sampler->others[far] = run;
        near += is_near;
        far += !is_near & (sampler->bounds[run] > 0);
        rest += sampler->bounds[run] & -(uint32_t)!is_near;
    }
    uint64_t total = draw->loops->sum(draw->values, draw->maxima, draw->count, sampler->picked,
                                      near, &draw->scale, id, &before);
    if (before < sampler_enough(draw, total + rest))
        return true;
    total += draw->loops->sum(draw->values, draw->maxima, draw->count, sampler->others, far,
                              &draw->scale, id, NULL);
    *total_out = total;
    return before < sampler_enough(draw, total);
}

static bool within_part(const struct beyond *beyond, uint32_t id)
{
    const struct draw *part = &beyond->part;
    uint32_t at = 0, half;
    uint64_t before;
    for (uint32_t count = part->count; count > 1; count -= half) {
        half = count / 2;
        at += half & -(uint32_t)(part->ids[at + half] <= id);
    }
    part->loops->sum(part->values, NULL, part->count, NULL,
                     (part->count + CPU_SAMPLER_RUN - 1) / CPU_SAMPLER_RUN, &part->scale, at,
                     &before);
    return before < sampler_enough(part, beyond->total);
}

/* Whether the candidate lies within top_p: what comes before it in the order weighs not enough. */
static bool within_top_p(struct cpu_sampler *sampler, const struct draw *draw, uint32_t id,
                         struct beyond *beyond)
{
    uint64_t key = cpu_sampler_key(draw->values[id], id);
    if (key <= beyond->key) /* what is no better than one beyond it lies beyond it too */
        return false;
    if (beyond->key ? within_part(beyond, id) : within_whole(sampler, draw, id, &beyond->total))
        return true;
    if (!beyond->key)
        sampler_part_pick(sampler, draw, draw->values[id], &beyond->part);
    beyond->key = key;
    return false;
}

uint32_t sampler_draw_all(struct cpu_sampler *sampler, const struct draw *draw)
{
    const uint64_t bound = bounds_fill(sampler, draw);
    struct beyond beyond = {0};
    struct proposal proposals[TOGETHER];
    for (uint32_t i = 0, end = PROPOSALS; i < end; i++) {
        const struct proposal *proposal = &proposals[i % TOGETHER];
        if (i % TOGETHER == 0)
            proposals_draw(sampler, draw, i, bound, proposals);
        if (!proposal_take(draw, proposal))
            continue;
        if (draw->how->top_p >= 1.0f || within_top_p(sampler, draw, proposal->id, &beyond))
            return proposal->id;
        end = i + PROPOSALS_BEYOND < end ? i + PROPOSALS_BEYOND : end;
    }
    if (!beyond.key)
        sampler_part_pick(sampler, draw, -INFINITY, &beyond.part);
    uint32_t count = sampler_order(sampler, &beyond.part,
                                   beyond.key ? cpu_sampler_key_value(beyond.key) : -INFINITY);
    return sampler_draw_order(sampler, &beyond.part, count, beyond.total, PROPOSALS / 2);
}
