/* Planning a step and handing it to the engine. See step.h.
 *
 *     engine_step_begin ─▶ decode_find   what decodes, by age: readiness, its page, its row for the engine, in one look
 *                       ─▶ prompts_find ─▶ batch_plan ─▶ part_add   prompts, in the room that is left
 *                       ─▶ step_hand_over ─▶ node_pages_give   who was short of a page may get it from somebody younger
 *
 * Nobody gives way before the step is handed over: until then the engine does not know that a row in it holds pages.
 * Owner: the loop thread. */
#include <assert.h>
#include <string.h>

#include "node/node.h"

/* Rows that are given to the engine in one call: what both sides know of them meanwhile stays in the nearest memory. */
enum { ROWS_TOGETHER = 64 };

/* Whether the row of a sequence all of whose known rows are submitted could go along: from the token of the step in flight, if one
 * may be lacking after that. */
static bool next_row_ready(const struct node *node, const struct work *work)
{
    return work->leg != WORK_LEG_PREFILL && node->steps.in_flight_max > 1 &&
           work->samples_pending == 1 && work->generated_count + 1 < work->answer_max;
}

static bool rows_known(const struct work *work)
{
    return work->rows_submitted < work_total(work);
}

/* The page of its next row is there. */
static bool row_has_page(const struct node *node, const struct work *work)
{
    return step_block(&node->steps, work->rows_submitted) < work->page_count;
}

static struct batch_candidate candidate_of(const struct work *work, uint32_t rows_left)
{
    return (struct batch_candidate){.age = work->age,
                                    .index = work->index,
                                    .rows_left = rows_left,
                                    .position = work->rows_submitted,
                                    .alone = work->alone};
}

/* The next work from `at` on in the list that has rows to compute (prompts: `known` says which kind of them); NULL: none. */
static struct work *prompt_next(const struct node *node, struct list *at, bool known)
{
    for (; at != &node->table.states[WORK_PROMPT]; at = at->next) {
        struct work *work = container_of(at, struct work, link);
        if (known ? rows_known(work)
                  : !rows_known(work) && next_row_ready(node, work) && row_has_page(node, work))
            return work;
    }
    return NULL;
}

/* Rows up to `end` change their pages. */
__attribute__((noinline)) static void pages_written(struct node *node, struct work *work,
                                                    uint32_t end)
{
    uint32_t last = step_block(&node->steps, end - 1);
    for (uint32_t i = step_block(&node->steps, work->rows_submitted); i <= last; i++)
        cache_page_written(node, work->pages[i]);
    if (work->state == WORK_DECODING)
        work->page_written = last + 1;
}

/* The engine has taken so many rows of it; `sample`: of the last one, ENGINE_NONE: it is not sampled. */
static void part_given(struct work *work, uint32_t rows, uint32_t sample)
{
    work->rows_submitted += rows;
    work->steps_outstanding++;
    if (sample == ENGINE_NONE)
        return;
    work->samples_pending++;
    work->prev_sample = sample;
}

/* A step that is being built. */
struct build {
    struct step_record *record;
    struct work *refused; /* by the engine, as the first of this step */
    bool listed;          /* what decodes is not added yet, but listed: somebody is to run alone */
    bool short_of_pages;  /* somebody has begun to wait for a page */
    uint32_t decode_count, decode_max, candidate_count;
    /* rows for the engine; their parts stand in the record already, behind those that count */
    struct step_part *parts;
    uint32_t row_count;
    uint32_t sample;    /* the first one's */
    uint64_t positions; /* that they attend to */
    struct engine_row rows[ROWS_TOGETHER];
};

static void refused(struct build *build, struct work *work)
{
    if (!build->refused)
        build->refused = work;
}

/* Rows of any kind, one sequence. */
static void part_add(struct node *node, struct build *build, struct work *work, uint32_t rows)
{
    struct step_record *record = build->record;
    uint32_t total = work_total(work);
    uint32_t end = work->rows_submitted + rows;
    bool unknown = work->rows_submitted == total;
    bool sampled = end >= total;
    struct engine_seq_input input = {
        .slot = work->slot,
        .tokens = unknown ? NULL : work->tokens + work->rows_submitted,
        .row_count = rows,
        .prev_sample = unknown ? work->prev_sample : ENGINE_NONE,
        .position_begin = work->rows_submitted,
        .pages = work->pages,
        .page_count = work->page_count,
        .seal_partial = work->leg == WORK_LEG_PREFILL && sampled,
        .sampling = sampled ? &work->sampling : NULL,
        .generated_count = work->generated_count,
    };
    uint32_t sample;
    pages_written(node, work, end);
    enum status status = engine_step_add(record->step, &input, &sample);
    if (status) {
        work->page_written = 0;
        if (status != STATUS_FULL) /* the next step takes it */
            refused(build, work);
        return;
    }
    struct step_part *part = &record->parts[record->part_count++];
    *part = (struct step_part){.work = work,
                               .life = work->life,
                               .rows = rows,
                               .position = work->rows_submitted,
                               .sample = sample,
                               .prompt = work->state == WORK_PROMPT && rows_known(work),
                               .seals_partial = input.seal_partial};
    *(part->prompt ? &record->prompt_rows : &record->decode_rows) += rows;
    record->asks.pairs += roofline_pairs(part->position, rows);
    record->asks.positions += end;
    record->asks.samples += sampled;
    part_given(work, rows, sample);
}

/* --- what decodes: most of a step, so each sequence is looked at once, and rows go to the engine many at a time --- */

/* The next row is the first of a page, or the last: its place in the block table, which lies far, will be looked at. */
static void ahead_page(const struct node *node, const struct work *work)
{
    uint32_t last = (1u << node->steps.page_shift) - 1, at = work->rows_submitted & last;
    if (at && at != last)
        return;
    __builtin_prefetch(&work->pages[step_block(&node->steps, work->rows_submitted)], 1);
    if (!at)
        __builtin_prefetch(&work->pages_whole);
}

/* The engine has not taken this row: the next step does. */
static void row_back(struct work *work, const struct engine_row *row)
{
    work->rows_submitted--;
    work->steps_outstanding--;
    work->samples_pending--;
    if (row->token & KERN_TOKEN_PREV)
        work->prev_sample = row->token & ~KERN_TOKEN_PREV;
    work->page_written = 0;
}

static void rows_begin(struct build *build)
{
    build->parts = build->record->parts + build->record->part_count;
    build->sample = build->record->asks.samples;
    build->row_count = 0;
    build->positions = 0;
}

/* Hands over what has been gathered. */
static void rows_add(struct build *build)
{
    struct step_record *record = build->record;
    uint32_t added, sample;
    enum status status =
        engine_step_add_rows(record->step, build->rows, build->row_count, &added, &sample);
    assert(sample == build->sample);
    for (uint32_t i = added; i < build->row_count; i++) {
        build->positions -= build->rows[i].position + 1;
        row_back(build->parts[i].work, &build->rows[i]);
    }
    if (status == STATUS_INVALID)
        refused(build, build->parts[added].work);
    record->part_count += added;
    record->decode_rows += added;
    record->asks.samples += added;
    record->asks.pairs += build->positions; /* each row sees as many as it has */
    record->asks.positions += build->positions;
    rows_begin(build);
}

/* It has more tokens than its next row: that is not sampled. */
__attribute__((noinline)) static void row_add_known(struct node *node, struct build *build,
                                                    struct work *work)
{
    rows_add(build);
    part_add(node, build, work, 1);
    rows_begin(build);
}

/* The next row of a sequence that decodes. */
static inline __attribute__((always_inline)) void row_add(struct node *node, struct build *build,
                                                          struct work *work)
{
    uint32_t position = work->rows_submitted, total = work_total(work);
    if (position + 1 < total) {
        row_add_known(node, build, work);
        return;
    }
    /* its page has been said to be changed by the row before: a sequence that decodes has no copies */
    bool opens = work->page_written != step_block(&node->steps, position) + 1;
    if (opens)
        pages_written(node, work, position + 1);
    uint32_t i = build->row_count++, sample = build->sample + i;
    build->rows[i] = (struct engine_row){
        .pages = work->pages,
        .sampling = &work->sampling,
        .slot = work->slot,
        .token = position == total ? ENGINE_TOKEN_PREV(work->prev_sample) : work->tokens[position],
        .position = position,
        .page_count = work->page_count,
        .generated_count = work->generated_count,
        .opens = opens,
    };
    build->parts[i] = (struct step_part){
        .work = work, .life = work->life, .rows = 1, .position = position, .sample = sample};
    part_given(work, 1, sample);
    build->positions += position + 1;
    if (build->row_count == ROWS_TOGETHER)
        rows_add(build);
}

/* Somebody is to run alone: whose turn it is, the plan says. */
__attribute__((noinline)) static void decode_list(struct node *node, struct build *build,
                                                  const struct work *work)
{
    struct step_loop *steps = &node->steps;
    if (work->alone)
        steps->candidates[build->candidate_count++] = candidate_of(work, 0);
    else if (build->decode_count < build->decode_max)
        steps->shares[build->decode_count++] =
            (struct batch_share){.index = work->index, .rows = 1};
}

static inline __attribute__((always_inline)) void
decode_ready(struct node *node, struct build *build, struct work *work)
{
    if (build->listed) {
        decode_list(node, build, work);
    } else if (build->decode_count < build->decode_max) {
        build->decode_count++;
        row_add(node, build, work);
    }
}

/* Prompts whose last rows are with the engine decode already: those of them from *early_inout on that are older than `age`. */
__attribute__((noinline)) static void early_ready(struct node *node, struct build *build,
                                                  uint64_t age, struct work **early_inout)
{
    for (; *early_inout && (*early_inout)->age < age;
         *early_inout = prompt_next(node, (*early_inout)->link.next, false))
        decode_ready(node, build, *early_inout);
}

/* What decodes, and grows here, by age. */
static void decode_find(struct node *node, struct build *build)
{
    struct work *early = prompt_next(node, node->table.states[WORK_PROMPT].next, false);
    const struct work_turn *turns = node->table.decoding;
    uint32_t turn_count = node->table.state_counts[WORK_DECODING];
    for (uint32_t i = 0; i < turn_count; i++) {
        struct work *work = turns[i].work;
        if (i + 2 * STEP_AHEAD < turn_count)
            step_ahead(turns[i + 2 * STEP_AHEAD].work, offsetof(struct work, link));
        if (i + STEP_AHEAD < turn_count)
            ahead_page(node, turns[i + STEP_AHEAD].work);
        if (early && early->age < turns[i].age)
            early_ready(node, build, turns[i].age, &early);
        if (!rows_known(work) && !next_row_ready(node, work))
            continue;
        if (row_has_page(node, work) || grow_row(node, work))
            decode_ready(node, build, work);
        else
            build->short_of_pages = true;
    }
    early_ready(node, build, UINT64_MAX, &early);
    rows_add(build);
}

static void prompts_find(struct node *node, struct build *build)
{
    struct list *first = node->table.states[WORK_PROMPT].next;
    for (struct work *work = prompt_next(node, first, true); work;
         work = prompt_next(node, work->link.next, true))
        node->steps.candidates[build->candidate_count++] =
            candidate_of(work, work_total(work) - work->rows_submitted);
}

/* Fills the step with everything that computes in it. */
static void step_fill(struct node *node, struct build *build)
{
    struct step_loop *steps = &node->steps;
    build->listed = node->table.alone_count > 0;
    build->decode_max = batch_decode_max(&steps->limits);
    rows_begin(build);
    decode_find(node, build);
    prompts_find(node, build);
    steps->limits.beside_rows =
        batch_beside_rows(&steps->pace, steps->gap_ns, steps->limits.page_tokens);
    uint32_t share_count = batch_plan(&steps->batch, &steps->limits, steps->candidates,
                                      build->candidate_count, build->decode_count, steps->shares);
    for (uint32_t i = build->listed ? 0 : build->decode_count; i < share_count; i++)
        part_add(node, build, &node->table.works[steps->shares[i].index], steps->shares[i].rows);
}

static void step_hand_over(struct node *node, struct step_record *record)
{
    struct engine_step *step = record->step;
    record->asks.prompt_rows = record->prompt_rows;
    record->asks.decode_rows = record->decode_rows;
    engine_step_cookie_set(step, record);
    metric_add(node->counted.steps, 1);
    metric_add(node->counted.rows, engine_step_rows(step));
    enum status status = engine_submit(step);
    assert(status == STATUS_OK);
    (void)status;
    node->steps.in_flight++;
    for (uint32_t i = 0; record->prompt_rows && i < record->part_count; i++) {
        struct work *work = record->parts[i].work;
        const struct node_leg *leg = node->legs[work->leg];
        if (record->parts[i].prompt && leg && leg->step_submitted)
            leg->step_submitted(node, work);
    }
}

enum submitted { SUBMITTED, NOTHING, NOTHING_SHORT };

/* One more step. */
static enum submitted step_submit_one(struct node *node)
{
    struct step_record *record = node->steps.records;
    if (record->step)
        record++;
    assert(!record->step);
    record->step = engine_step_begin(node->engine);
    if (!record->step)
        return NOTHING;
    record->part_count = record->prompt_rows = record->decode_rows = 0;
    record->asks = (struct roofline_step){0};
    struct build build;
    memset(&build, 0, offsetof(struct build, rows)); /* these are written before they are read */
    build.record = record;
    step_fill(node, &build);
    bool any = record->part_count > 0;
    if (any) {
        step_hand_over(node, record);
    } else {
        engine_step_abandon(record->step);
        record->step = NULL;
    }
    /* not before: whoever ends or gives way has no row in a step that is not handed over */
    if (build.refused)
        node_work_fail(node, build.refused, BATON__NODE__V1__REPORT__KIND__FAILED, STATUS_INTERNAL,
                       "the engine refused the sequence");
    if (build.short_of_pages)
        node_pages_give(node);
    return any ? SUBMITTED : build.short_of_pages ? NOTHING_SHORT : NOTHING;
}

void step_submit(struct node *node)
{
    struct step_loop *steps = &node->steps;
    enum submitted submitted = SUBMITTED;
    while (steps->in_flight < steps->in_flight_max && submitted == SUBMITTED)
        submitted = step_submit_one(node);
    /* now, as nothing may be in flight that would wake the loop */
    if (submitted == NOTHING_SHORT)
        step_submit_one(node);
}
