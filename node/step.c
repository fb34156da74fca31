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

/* Blocks that the part's step seals are those from that of its first row on up to this one. */
static uint32_t part_blocks_end(const struct node *node, const struct step_part *part)
{
    uint32_t end = part->position + part->rows;
    return part->seals_partial ? step_block(&node->steps, end - 1) + 1
                               : step_block(&node->steps, end);
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
        for (uint32_t block = step_block(&node->steps, part->position);
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
    __builtin_prefetch(out + STEP_AHEAD);
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
    if (i + 2 * STEP_AHEAD < record->part_count)
        step_ahead(record->parts[i + 2 * STEP_AHEAD].work, offsetof(struct work, sampling));
    if (i + STEP_AHEAD >= record->part_count)
        return;
    const struct step_part *part = &record->parts[i + STEP_AHEAD];
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
        if (step_block(&node->steps, record->parts[i].position) <
            part_blocks_end(node, &record->parts[i])) {
            full[count++] = record->parts[i].work;
            step_ahead(record->parts[i].work, offsetof(struct work, key));
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
        if (step_block(&node->steps, work->rows_done) > work->cursor.blocks)
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
