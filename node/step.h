/* The step loop: plans a batch (sched/batch.h), hands it to the engine, and takes its tokens.
 *
 *     SUBMIT    step_submit (submit.c): while fewer than `in_flight_max` steps are with the engine, plan and submit another. A
 *               decoding sequence whose last token is still unknown takes it from the step before (prev_sample).
 *     COMPLETE  step_complete: run of layers done ─▶ pieces are sealed (prefill legs); step done ─▶ tokens, ends.
 *
 * A step that was submitted before a token was known to end its answer computes one row too many; its result is ignored.
 * Owner: the loop thread. */
#ifndef BATON_NODE_STEP_H
#define BATON_NODE_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "sched/batch.h"
#include "sched/roofline.h"

struct node;
struct work;
struct engine_step;

enum { STEPS_IN_FLIGHT_MAX = 2 };

struct step_part {
    struct work *work;
    uint32_t life, rows, position, sample;
    bool prompt;
    bool seals_partial; /* its last page is sealed though it is not full */
};

struct step_record {
    struct engine_step *step; /* NULL: not in use */
    struct step_part *parts;  /* [sequences_max] */
    uint32_t part_count, prompt_rows, decode_rows;
    struct roofline_step asks; /* of the machine */
    uint64_t took_ns;          /* once it has ended */
};

struct step_loop {
    struct step_record records[STEPS_IN_FLIGHT_MAX];
    uint32_t in_flight, in_flight_max;
    struct batch_limits limits;
    uint32_t
        page_shift; /* page_tokens is 1 << page_shift: a division for each sequence is much in a step */
    struct batch_state batch;
    struct batch_pace pace;
    uint64_t
        gap_ns; /* between two tokens of a stream, when prompts are computed beside it; 0: no bound */
    struct batch_candidate *candidates; /* [works] */
    struct batch_share *shares;         /* [sequences_max] */
    struct work **full;                 /* [sequences_max] scratch */
    double prompt_tokens_per_s;         /* measured over steps that computed prompts; 0: not yet */
};

/* The block of a sequence that a position lies in. */
static inline uint32_t step_block(const struct step_loop *steps, uint32_t position)
{
    return position >> steps->page_shift;
}

/* Between two steps the processor has seen the whole cache of K and V: what is known of a thousand sequences lies in far memory again,
 * and each line of it costs as much as all the rest of that sequence's work. So it is asked for some sequences ahead, many at a
 * time. */
enum { STEP_AHEAD = 12 };
static inline void step_ahead(const void *memory, size_t bytes)
{
    enum { LINE = 64 };
    for (size_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch((const char *)memory + at, 1);
}

enum status step_loop_init(struct node *node);
void step_loop_finish(struct node *node);
void step_submit(struct node *node);
void step_complete(struct node *node);

#endif
