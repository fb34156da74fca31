/* Continuous batching: which rows the next step computes.
 *
 * A step has a budget of rows. Decoding sequences come first, one row each: their streams must not
 * stutter. What is left goes to prompts, in chunks, by two rules at once:
 *
 *     half of it   oldest prompt first        a long prompt is never starved by a stream of short ones
 *     half of it   fewest rows left first     a short prompt behind a 30,000-token one waits a few
 *                                             chunks, not all
 *
 * and what one half cannot use goes to the other. A prompt alone gets everything. A chunk is cut
 * down to a page boundary where it can be, because only finished pieces leave a prefill node,
 * unless it reaches the prompt's end.
 *
 * Beside decode rows, prompts get only as many rows as keep the step, by measured pace, within a
 * gap that the streams may have between two tokens (`beside_rows`), and at least one row or an
 * eighth of the time that decoding takes, so that prompts go on whatever the pace is.
 *
 * A sequence marked `alone` (its request has seen several nodes die) is never computed beside
 * another: while there is one, steps alternate between it and the rest.
 *
 * Pure: no clock, no memory, no pointer kept. Owner: any thread; the node's loop in practice. */
#ifndef BATON_SCHED_BATCH_H
#define BATON_SCHED_BATCH_H

#include <stdbool.h>
#include <stdint.h>

struct batch_limits {
    uint32_t rows_max;      /* of a step */
    uint32_t chunk_tokens;  /* prompt rows of one sequence in a step */
    uint32_t sequences_max; /* in a step */
    uint32_t page_tokens;
    uint32_t beside_rows; /* prompt rows of a step that decodes too; 0: no bound but rows_max */
};

/* A prompt that could compute now, or a sequence that is to run alone. */
struct batch_candidate {
    uint64_t age;   /* admission number; lower is older */
    uint32_t index; /* the caller's */
    uint32_t
        rows_left;     /* of the prompt, not computed yet; 0: it decodes, one row (only if alone) */
    uint32_t position; /* of its next row */
    bool alone;
};

struct batch_share {
    uint32_t index; /* of the candidate, the caller's number */
    uint32_t rows;
};

/* What is remembered between two steps. */
struct batch_state {
    bool alone_last;
};

/* The rows that decode in one step: as many of the oldest as this. */
static inline uint32_t batch_decode_max(const struct batch_limits *limits)
{
    return limits->sequences_max < limits->rows_max ? limits->sequences_max : limits->rows_max;
}

/* Plans one step. What decodes, `decode_count` of them (at most batch_decode_max), has the first places in `shares_inout`, one row each
 * by age: there are many, and nothing is to decide about them, so these are not read; who needs them has written them. `candidates` are
 * the others, in order of age, so that the plan is a function of the set alone; those that run alone may stand anywhere. That array
 * is scratch afterwards. The shares, with room for `limits->sequences_max`, are what decodes and then prompts, by age; or the one whose
 * turn alone it is. Returns how many; 0: nothing to do. */
uint32_t batch_plan(struct batch_state *state, const struct batch_limits *limits,
                    struct batch_candidate *candidates, uint32_t count, uint32_t decode_count,
                    struct batch_share *shares_inout);

/* How long rows take here, by the steps that have ended. */
struct batch_pace {
    double decode_ns;     /* a step that only decodes, as it was lately; 0: not measured */
    double prompt_row_ns; /* what a prompt's row adds to a step; 0: not measured */
};
/* A step of so many rows has taken `step_ns`. */
void batch_pace_take(struct batch_pace *pace, uint32_t decode_rows, uint32_t prompt_rows,
                     uint64_t step_ns);
/* The prompt rows that fit beside decoding in a step of three quarters of `gap_ns`: a multiple of
 * the page when there is room for a page, at least 1, and one page as long as nothing is measured; 0
 * when gap_ns is 0: no bound. */
uint32_t batch_beside_rows(const struct batch_pace *pace, uint64_t gap_ns, uint32_t page_tokens);

#endif
