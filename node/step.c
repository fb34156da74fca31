/* See step.h. */
#include "node/step.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "node/node.h"

enum status step_loop_init(struct node *node)
{
    struct step_loop *steps = &node->steps;
    const struct node_options *o = node->options;
    uint32_t sequences = node->info->seqs_max;
    *steps = (struct step_loop){
        .in_flight_max = (uint32_t)o->steps_in_flight,
        .gap_ns = (uint64_t)o->gap_ms * NS_PER_MS,
        .limits = {.rows_max = node->info->rows_max,
                   .chunk_tokens = (uint32_t)o->chunk_tokens,
                   .sequences_max = sequences,
                   .page_tokens = node->info->page_tokens},
        .page_shift = (uint32_t)__builtin_ctz(node->info->page_tokens),
    };
    assert(node->info->page_tokens == 1u << steps->page_shift);
    steps->candidates = calloc(node->table.count, sizeof *steps->candidates);
    steps->shares = calloc(sequences, sizeof *steps->shares);
    steps->full = calloc(sequences, sizeof *steps->full);
    bool whole = steps->candidates && steps->shares && steps->full;
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++) {
        steps->records[i].parts = calloc(sequences, sizeof *steps->records[i].parts);
        whole &= steps->records[i].parts != NULL;
    }
    return whole ? STATUS_OK : STATUS_MEMORY;
}

void step_loop_finish(struct node *node)
{
    struct step_loop *steps = &node->steps;
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++)
        free(steps->records[i].parts);
    free(steps->candidates);
    free(steps->shares);
    free(steps->full);
}

/* --- memory that is far --- */

/* Between two steps the processor has seen the whole cache of K and V: what is known of a thousand sequences lies in far memory again,
 * and each line of it costs as much as all the rest of that sequence's work. So it is asked for some sequences ahead, many at a
 * time. */
enum { AHEAD = 12, LINE = 64 };
/* Rows that are given to the engine in one call: what both sides know of them meanwhile stays in the nearest memory. */
enum { ROWS_TOGETHER = 64 };

static void ahead(const void *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch((const char *)memory + at, 1);
}

static void ahead_step(const struct work *work)
{
    ahead(work, offsetof(struct work, link));
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t block_at(const struct node *node, uint32_t position)
{
    return position >> node->steps.page_shift;
}

/* --- planning and submitting --- */

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
    return block_at(node, work->rows_submitted) < work->page_count;
}

/* The next page will be named in its block table. */
static void ahead_growth(const struct node *node, const struct work *work)
{
    if (row_has_page(node, work))
        return;
    __builtin_prefetch(&work->age, 1);
    __builtin_prefetch(&work->pages[work->page_count], 1);
}

static struct batch_candidate candidate_of(const struct work *work, uint64_t age,
                                           uint32_t rows_left)
{
    return (struct batch_candidate){.age = age,
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

/* Everything that could compute now, as batch_plan wants it. */
struct ready {
    uint32_t decode_count, candidate_count; /* in the loop's shares and candidates */
    bool short_of_pages;                    /* somebody has begun to wait for a page */
};

static void decode_ready(struct node *node, struct ready *ready, const struct work *work,
                         uint64_t age)
{
    struct step_loop *steps = &node->steps;
    if (work->alone)
        steps->candidates[ready->candidate_count++] = candidate_of(work, age, 0);
    else if (ready->decode_count < batch_decode_max(&steps->limits))
        steps->shares[ready->decode_count++] =
            (struct batch_share){.index = work->index, .rows = 1};
}

/* What decodes, and grows here, then prompts, each by age. A prompt whose last rows are with the engine decodes already. */
static struct ready ready_list(struct node *node)
{
    struct ready ready = {0};
    struct list *prompts = &node->table.states[WORK_PROMPT];
    struct work *early = prompt_next(node, prompts->next, false);
    const struct work_turn *turns = node->table.decoding;
    uint32_t turn_count = node->table.state_counts[WORK_DECODING];
    for (uint32_t i = 0; i < turn_count; i++) {
        struct work *work = turns[i].work;
        if (i + 2 * AHEAD < turn_count)
            ahead_step(turns[i + 2 * AHEAD].work);
        if (i + AHEAD < turn_count)
            ahead_growth(node, turns[i + AHEAD].work);
        for (; early && early->age < turns[i].age;
             early = prompt_next(node, early->link.next, false))
            decode_ready(node, &ready, early, early->age);
        if (!rows_known(work) && !next_row_ready(node, work))
            continue;
        if (row_has_page(node, work) || grow_row(node, work))
            decode_ready(node, &ready, work, turns[i].age);
        else
            ready.short_of_pages = true;
    }
    for (; early; early = prompt_next(node, early->link.next, false))
        decode_ready(node, &ready, early, early->age);
    for (struct work *work = prompt_next(node, prompts->next, true); work;
         work = prompt_next(node, work->link.next, true))
        node->steps.candidates[ready.candidate_count++] =
            candidate_of(work, work->age, work_total(work) - work->rows_submitted);
    return ready;
}

/* Rows up to `end` change their pages. A sequence that decodes has no copies: its page has been said to be changed by the row before.
 * True: this is news. */
static bool pages_written(struct node *node, struct work *work, uint32_t end)
{
    uint32_t first = block_at(node, work->rows_submitted), last = block_at(node, end - 1);
    if (first == last && work->page_written == last + 1)
        return false;
    for (uint32_t i = first; i <= last; i++)
        cache_page_written(node, work->pages[i]);
    if (work->state == WORK_DECODING)
        work->page_written = last + 1;
    return true;
}

static struct step_part part_of(struct work *work, uint32_t rows, uint32_t sample)
{
    return (struct step_part){.work = work,
                              .life = work->life,
                              .rows = rows,
                              .position = work->rows_submitted,
                              .sample = sample,
                              .prompt = work->state == WORK_PROMPT && rows_known(work),
                              .seals_partial =
                                  work->leg == WORK_LEG_PREFILL && sample != ENGINE_NONE};
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

static void part_refused(struct node *node, struct work *work)
{
    node_work_fail(node, work, BATON__NODE__V1__REPORT__KIND__FAILED, STATUS_INTERNAL,
                   "the engine refused the sequence");
}

static void part_add(struct node *node, struct step_record *record, struct work *work,
                     uint32_t rows)
{
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
            part_refused(node, work);
        return;
    }
    struct step_part *part = &record->parts[record->part_count++];
    *part = part_of(work, rows, sample);
    *(part->prompt ? &record->prompt_rows : &record->decode_rows) += rows;
    record->asks.pairs += roofline_pairs(part->position, rows);
    record->asks.positions += end;
    record->asks.samples += sampled;
    part_given(work, rows, sample);
}

/* --- what decodes: most of a step, so it goes to the engine many at a time --- */

/* The next row is the first of a page, or the last: its place in the block table, which lies far, will be looked at. */
static void ahead_table(const struct node *node, const struct work *work)
{
    uint32_t page_end = (1u << node->steps.page_shift) - 1;
    if (((work->rows_submitted + 1) & page_end) <= 1)
        __builtin_prefetch(&work->pages[block_at(node, work->rows_submitted)]);
}

/* Rows for the first of these shares that are one row whose token is sampled, at most ROWS_TOGETHER; returns how many. */
static uint32_t rows_list(struct node *node, const struct batch_share *shares, uint32_t count,
                          struct engine_row *rows_out)
{
    struct work *works = node->table.works;
    uint32_t found = 0;
    for (; found < min_u32(count, ROWS_TOGETHER); found++) {
        struct work *work = &works[shares[found].index];
        if (found + AHEAD < count)
            ahead_table(node, &works[shares[found + AHEAD].index]);
        uint32_t position = work->rows_submitted, total = work_total(work);
        if (shares[found].rows > 1 || work->leg == WORK_LEG_PREFILL || position + 1 < total)
            break;
        rows_out[found] = (struct engine_row){
            .pages = work->pages,
            .sampling = &work->sampling,
            .slot = work->slot,
            .token =
                position == total ? ENGINE_TOKEN_PREV(work->prev_sample) : work->tokens[position],
            .position = position,
            .page_count = work->page_count,
            .generated_count = work->generated_count,
            .opens = pages_written(node, work, position + 1),
        };
    }
    return found;
}

/* The engine has taken these; their samples are numbered from `sample` on. */
static void rows_given(struct node *node, struct step_record *record,
                       const struct batch_share *shares, uint32_t count, uint32_t sample)
{
    struct step_part *parts = record->parts + record->part_count;
    uint32_t prompt_rows = 0;
    uint64_t positions = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct work *work = &node->table.works[shares[i].index];
        parts[i] = part_of(work, 1, sample + i);
        prompt_rows += parts[i].prompt;
        part_given(work, 1, sample + i);
        positions += work->rows_submitted;
    }
    record->part_count += count;
    record->prompt_rows += prompt_rows;
    record->decode_rows += count - prompt_rows;
    record->asks.pairs += positions; /* each row sees as many as it has */
    record->asks.positions += positions;
    record->asks.samples += count;
}

/* Returns of how many shares it has taken care: 0 when the first one is not a row that decodes. */
static uint32_t rows_add(struct node *node, struct step_record *record,
                         const struct batch_share *shares, uint32_t count)
{
    struct engine_row rows[ROWS_TOGETHER];
    count = rows_list(node, shares, count, rows);
    for (uint32_t i = 0; i < count;) {
        uint32_t added, sample;
        enum status status =
            engine_step_add_rows(record->step, rows + i, count - i, &added, &sample);
        rows_given(node, record, shares + i, added, sample);
        i += added;
        if (!status)
            continue;
        /* the next step takes the rest */
        for (uint32_t k = i; k < count; k++)
            node->table.works[shares[k].index].page_written = 0;
        if (status == STATUS_FULL)
            break;
        part_refused(node, &node->table.works[shares[i].index]);
        for (uint32_t k = ++i; k < count; k++)
            rows[k].opens = true;
    }
    return count;
}

/* One more step; false: nothing to compute, or no room. */
static bool step_submit_one(struct node *node)
{
    struct step_loop *steps = &node->steps;
    struct ready ready = ready_list(node);
    if (ready.short_of_pages) { /* now, as nothing may be in flight that would wake the loop */
        node_pages_give(node);
        ready = ready_list(node);
    }
    if (!ready.decode_count && !ready.candidate_count)
        return false;
    steps->limits.beside_rows =
        batch_beside_rows(&steps->pace, steps->gap_ns, steps->limits.page_tokens);
    uint32_t share_count = batch_plan(&steps->batch, &steps->limits, steps->candidates,
                                      ready.candidate_count, ready.decode_count, steps->shares);
    struct engine_step *step = share_count ? engine_step_begin(node->engine) : NULL;
    if (!step)
        return false;
    struct step_record *record = &steps->records[0];
    if (record->step)
        record = &steps->records[1];
    assert(!record->step);
    record->step = step;
    record->part_count = record->prompt_rows = record->decode_rows = 0;
    record->asks = (struct roofline_step){0};
    for (uint32_t i = 0; i < share_count;) {
        uint32_t rows = rows_add(node, record, steps->shares + i, share_count - i);
        i += rows;
        if (rows || i == share_count)
            continue;
        part_add(node, record, &node->table.works[steps->shares[i].index], steps->shares[i].rows);
        i++;
    }
    if (!record->part_count) {
        engine_step_abandon(step);
        record->step = NULL;
        return false;
    }
    record->asks.prompt_rows = record->prompt_rows;
    record->asks.decode_rows = record->decode_rows;
    engine_step_cookie_set(step, record);
    metric_add(node->counted.steps, 1);
    metric_add(node->counted.rows, engine_step_rows(step));
    enum status status = engine_submit(step);
    assert(status == STATUS_OK);
    (void)status;
    steps->in_flight++;
    for (uint32_t i = 0; record->prompt_rows && i < record->part_count; i++) {
        struct work *work = record->parts[i].work;
        const struct node_leg *leg = node->legs[work->leg];
        if (record->parts[i].prompt && leg && leg->step_submitted)
            leg->step_submitted(node, work);
    }
    return true;
}

void step_submit(struct node *node)
{
    while (node->steps.in_flight < node->steps.in_flight_max && step_submit_one(node))
        ;
}

/* --- completion --- */

/* Blocks that the part's step seals are those from that of its first row on up to this one. */
static uint32_t part_blocks_end(const struct node *node, const struct step_part *part)
{
    uint32_t end = part->position + part->rows;
    return part->seals_partial ? block_at(node, end - 1) + 1 : block_at(node, end);
}

static void run_done(struct node *node, const struct step_record *record, uint32_t run)
{
    for (uint32_t i = 0; record->prompt_rows && i < record->part_count; i++) {
        const struct step_part *part = &record->parts[i];
        struct work *work = part->work;
        if (!part->prompt)
            continue;
        const struct node_leg *leg = node->legs[work->leg];
        if (work->state != WORK_PROMPT || !leg || !leg->piece_sealed)
            continue;
        uint32_t end = part_blocks_end(node, part);
        for (uint32_t block = block_at(node, part->position);
             block < end && work->state == WORK_PROMPT; block++)
            leg->piece_sealed(node, work, block, run);
    }
}

/* The token goes with the prompt's pages, if the answer goes on elsewhere. */
static void prompt_sampled(struct node *node, struct work *work, const struct outbox_token *token)
{
    if (work->leg != WORK_LEG_PREFILL) {
        work_move(work, WORK_DECODING, loop_now_ns(node->loop));
        return;
    }
    if (work->last_leg) {
        node_work_end(node, work, STATUS_OK);
        return;
    }
    work_move(work, WORK_HOLDING, loop_now_ns(node->loop));
    struct kv_first first = {.position = token->position,
                             .token_id = token->token.token_id,
                             .logprob = token->token.logprob,
                             .top_count = token->top_count};
    memcpy(first.top, token->top, token->top_count * sizeof *token->top);
    node->legs[work->leg]->sampled(node, work, &first);
}

/* True: the answer has got a token. */
static bool part_sampled(struct node *node, const struct step_record *record,
                         const struct step_part *part)
{
    struct work *work = part->work;
    const struct kern_sample_out *out = engine_step_result(record->step, part->sample);
    __builtin_prefetch(out + AHEAD);
    if (!out->finished)
        return false; /* cancelled */
    if (!out->finite) {
        node_work_fail(node, work, BATON__NODE__V1__REPORT__KIND__FAILED, STATUS_NONFINITE,
                       "an activation of this request is not finite");
        return false;
    }
    bool prompt = work->state == WORK_PROMPT;
    struct kv_logprob top[KV_LOGPROBS_MAX];
    assert(out->top_count <= KV_LOGPROBS_MAX);
    for (uint32_t i = 0; i < out->top_count; i++)
        top[i] = (struct kv_logprob){out->top_ids[i], out->top_logprobs[i]};
    struct outbox_token token = {
        .attempt = work->key.transfer,
        .position = work->generated_count,
        .token = {out->token, out->logprob},
        .top = top,
        .top_count = out->top_count,
    };
    if (prompt && !work->preemptions)
        token.cached_tokens = work->cached_tokens;
    if (token.position == work->received_count)
        token.prefill_us = (clock_now_ns() - work->arrived_ns) / NS_PER_US;
    else if (token.position == work->received_count + 1)
        token.decode_us = record->took_ns / NS_PER_US;
    if (node_work_token(node, work, &token) && prompt)
        prompt_sampled(node, work, &token);
    return true;
}

static void prompt_count(struct node *node, const struct step_part *part)
{
    uint32_t before = part->work->rows_before, again = 0;
    if (part->position < before)
        again = before - part->position < part->rows ? before - part->position : part->rows;
    node->preempt.recomputed_tokens += again;
    metric_add(node->counted.recomputed, again);
    metric_add(node->counted.tokens_prompt, part->rows - again);
}

/* What step_done will want for parts further on; but for what the engine gives: its samples lie in the order of the parts. */
static void part_ahead(const struct step_record *record, uint32_t i)
{
    if (i + 2 * AHEAD < record->part_count)
        ahead(record->parts[i + 2 * AHEAD].work, offsetof(struct work, sampling));
    if (i + AHEAD >= record->part_count)
        return;
    const struct step_part *part = &record->parts[i + AHEAD];
    if (part->sample == ENGINE_NONE)
        return;
    __builtin_prefetch(&part->work->tokens[work_total(part->work)], 1);
    __builtin_prefetch(part->work->stop_ids);
}

/* The pages that became full will be published: all that this touches is asked for first, so that the waits overlap. Each pass wants
 * what the one before has asked for. */
static void publish_ahead(struct node *node, const struct step_record *record)
{
    struct work **full = node->steps.full;
    uint32_t count = 0;
    for (uint32_t i = 0; i < record->part_count; i++)
        if (block_at(node, record->parts[i].position) < part_blocks_end(node, &record->parts[i])) {
            full[count++] = record->parts[i].work;
            ahead(record->parts[i].work, offsetof(struct work, key));
        }
    for (int pass = 0; pass < CACHE_PUBLISH_PASSES; pass++)
        for (uint32_t i = 0; i < count; i++)
            cache_publish_ahead(node, full[i], pass);
}

static void step_done(struct node *node, struct step_record *record)
{
    struct step_loop *steps = &node->steps;
    uint64_t begin_ns, end_ns;
    uint32_t token_count = 0;
    engine_step_times(record->step, &begin_ns, &end_ns);
    record->took_ns = end_ns - begin_ns;
    meter_step(node, record, begin_ns, end_ns);
    publish_ahead(node, record);
    for (uint32_t i = 0; i < record->part_count; i++) {
        struct step_part *part = &record->parts[i];
        struct work *work = part->work;
        part_ahead(record, i);
        assert(work->life == part->life); /* an entry waits (LEAVING) for the steps it is in */
        work->steps_outstanding--;
        if (part->sample != ENGINE_NONE)
            work->samples_pending--;
        if (!work_live(work))
            continue;
        if (part->prompt)
            prompt_count(node, part);
        work->rows_done = part->position + part->rows;
        if (block_at(node, work->rows_done) > work->cursor.blocks)
            cache_publish(node, work); /* before the token: it may be the last */
        if (part->sample != ENGINE_NONE)
            token_count += part_sampled(node, record, part);
        if (node->preempt.every && work->state == WORK_DECODING &&
            work->generated_count - work->preempted_count >= node->preempt.every)
            preempt_begin(node, work);
    }
    metric_add(node->counted.tokens_completion, token_count);
    batch_pace_take(&steps->pace, record->decode_rows, record->prompt_rows, record->took_ns);
    if (record->prompt_rows) {
        double rate = record->prompt_rows * 1e9 / (double)(record->took_ns + 1);
        steps->prompt_tokens_per_s =
            steps->prompt_tokens_per_s > 0 ? 0.75 * steps->prompt_tokens_per_s + 0.25 * rate : rate;
    }
    record->step = NULL;
    steps->in_flight--;
}

static void copy_done(struct node *node, const struct engine_copy *event_copy)
{
    struct work *work = copies_done(&node->copies, event_copy);
    struct engine_copy copy = *event_copy; /* its slot may be in use again from here on */
    if (!work) {
        cache_copied(node, &copy);
        return;
    }
    cache_work_copied(node, &copy);
    if (work->state == WORK_SAVING || work->state == WORK_RESTORING)
        preempt_copied(node, work, &copy);
    else if (copy.kind == ENGINE_COPY_EXPORT)
        serve_copied(node, work, &copy);
    else
        fetch_copied(node, work, &copy);
}

void step_complete(struct node *node)
{
    struct engine_event event;
    while (engine_poll(node->engine, &event)) {
        struct step_record *record =
            event.kind == ENGINE_COPY_DONE ? NULL : engine_step_cookie(event.step);
        switch (event.kind) {
        case ENGINE_RUN_DONE:
            run_done(node, record, event.run);
            break;
        case ENGINE_STEP_DONE:
            step_done(node, record);
            break;
        case ENGINE_COPY_DONE:
            copy_done(node, event.copy);
            break;
        }
    }
}
