/* What the router says, turned into work: every field of an assignment is checked here, before anything is held for it.
 *
 *     Assign ─▶ fence (number) ─▶ draining? ─▶ fields ─▶ room in the table ─▶ the leg's own check ─▶ WAITING, Accepted{OK}
 *                  │ stale: dropped, counted     │ INVALID    │ FULL              │ serve: GONE     (serve: HOLDING)
 *                  ▼                             ▼            ▼                   ▼
 *
 * Owner: the loop thread. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "node/node.h"

static struct kv_id attempt_of(const Baton__Node__V1__AttemptId *id)
{
    return (struct kv_id){id->high, id->low};
}

/* --- the fields of an assignment --- */

static enum status ids_check(const char *field, const uint32_t *ids, size_t count,
                             uint32_t vocab_size, struct err *err)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= vocab_size)
            return err_set(err, STATUS_INVALID, "%s[%zu]: %u is not below the vocabulary's %u",
                           field, i, ids[i], vocab_size);
    return STATUS_OK;
}

static enum status sizes_check(const struct node *node, const Baton__Node__V1__Assign *assign,
                               struct err *err)
{
    uint32_t context = node->info->context_tokens;
    bool serve = assign->leg == BATON__NODE__V1__LEG__LEG_SERVE;
    if (!assign->n_prompt)
        return err_set(err, STATUS_INVALID, "prompt: is empty");
    if (serve) {
        if (assign->n_prompt > context || assign->n_generated > context - assign->n_prompt)
            return err_set(err, STATUS_INVALID,
                           "prompt: %zu tokens and %zu exceed the context of %u", assign->n_prompt,
                           assign->n_generated, context);
        return STATUS_OK; /* nothing is computed */
    }
    if (!assign->tokens_max)
        return err_set(err, STATUS_INVALID, "tokens_max: must be at least 1");
    if (assign->n_generated >= assign->tokens_max)
        return err_set(err, STATUS_INVALID, "generated: %zu tokens, but tokens_max is %u",
                       assign->n_generated, assign->tokens_max);
    if (assign->n_prompt >= context || assign->tokens_max > context - assign->n_prompt)
        return err_set(err, STATUS_INVALID,
                       "prompt: %zu tokens and tokens_max %u exceed the context of %u",
                       assign->n_prompt, assign->tokens_max, context);
    return STATUS_OK;
}

static enum status tokens_check(const struct node *node, const Baton__Node__V1__Assign *assign,
                                struct err *err)
{
    enum status status = sizes_check(node, assign, err);
    uint32_t vocabulary = node->info->vocab_size;
    if (!status)
        status = ids_check("prompt", assign->prompt, assign->n_prompt, vocabulary, err);
    if (!status)
        status = ids_check("generated", assign->generated, assign->n_generated, vocabulary, err);
    return status;
}

static enum status sampling_take(const struct node *node, const Baton__Node__V1__Sampling *of,
                                 uint32_t tokens_max, struct work *work, struct err *err)
{
    if (!of)
        return err_set(err, STATUS_INVALID, "sampling: is missing");
    if (of->n_bias > SAMPLING_LOGIT_BIAS_MAX)
        return err_set(err, STATUS_INVALID, "sampling.bias: %zu entries, at most %d", of->n_bias,
                       SAMPLING_LOGIT_BIAS_MAX);
    if (of->n_stop_ids > SAMPLING_STOP_IDS_MAX)
        return err_set(err, STATUS_INVALID, "sampling.stop_ids: %zu entries, at most %d",
                       of->n_stop_ids, SAMPLING_STOP_IDS_MAX);
    for (size_t i = 0; i < of->n_bias; i++)
        work->bias[i] = (struct sampling_bias){of->bias[i]->token_id, of->bias[i]->bias};
    if (of->n_stop_ids)
        memcpy(work->stop_ids, of->stop_ids, of->n_stop_ids * sizeof *work->stop_ids);
    struct sampling_params params = sampling_params_default();
    params.temperature = of->temperature;
    params.top_k = of->top_k;
    params.top_p = of->top_p == 0 ? 1 : of->top_p; /* absent: off */
    params.min_p = of->min_p;
    params.repetition_penalty = of->repetition_penalty == 0 ? 1 : of->repetition_penalty;
    params.presence_penalty = of->presence_penalty;
    params.frequency_penalty = of->frequency_penalty;
    params.max_tokens = tokens_max;
    params.min_tokens = of->tokens_min;
    params.logprobs = of->logprobs
                          ? (int32_t)(of->logprobs_top > INT32_MAX ? INT32_MAX : of->logprobs_top)
                          : SAMPLING_LOGPROBS_NONE;
    params.logit_bias = work->bias;
    params.logit_bias_count = (uint32_t)of->n_bias;
    params.stop_token_ids = work->stop_ids;
    params.stop_token_count = (uint32_t)of->n_stop_ids;
    work->min_tokens = params.min_tokens;
    work->stop_count = params.stop_token_count;
    engine_sampling_set(&params, &work->sampling);
    work->sampling.seed = of->seed;
    work->sampling.n_index = of->index;
    return sampling_params_check(&params, node->info->vocab_size, err);
}

/* Pages for the rows that will be computed: the last token of an answer is never a row. A prompt that leaves does not grow. */
static void pages_count(const struct node *node, struct work *work)
{
    uint32_t page_tokens = node->info->page_tokens;
    uint32_t known = work_total(work), last = work->prompt_count + work->answer_max - 1;
    uint32_t rows = work->leg == WORK_LEG_PREFILL || last < known ? known : last;
    work->pages_whole = (rows + page_tokens - 1) / page_tokens;
    work->pages_needed =
        preempt_pages_first(known, page_tokens, work->pages_whole, node->preempt.early);
    work->pages_moved = work->leg == WORK_LEG_LOCAL ? 0 : (known + page_tokens - 1) / page_tokens;
}

/* Whose pages may be shared, and where some of them are. */
static enum status reuse_take(const struct node *node, const Baton__Node__V1__Assign *assign,
                              struct work *work, struct err *err)
{
    if (assign->cache_salt.len && assign->cache_salt.len != PREFIX_SALT_BYTES)
        return err_set(err, STATUS_INVALID, "cache_salt: %zu bytes, must be 0 or %d",
                       assign->cache_salt.len, PREFIX_SALT_BYTES);
    if (assign->cache_salt.len)
        memcpy(work->salt, assign->cache_salt.data, PREFIX_SALT_BYTES);
    const Baton__Node__V1__Fetch *fetch = assign->fetch;
    if (!fetch || !node->cache.on)
        return STATUS_OK;
    if (assign->leg != BATON__NODE__V1__LEG__LEG_PREFILL &&
        assign->leg != BATON__NODE__V1__LEG__LEG_LOCAL)
        return err_set(err, STATUS_INVALID, "fetch: only where a prompt is computed");
    if (!fetch->transfer)
        return err_set(err, STATUS_INVALID, "fetch.transfer: is missing");
    /* the last row is always computed, so these are whole pages */
    if (fetch->pages > (work_total(work) - 1) / node->info->page_tokens)
        return err_set(err, STATUS_INVALID, "fetch.pages: %u, at most %u of %u tokens",
                       fetch->pages, (work_total(work) - 1) / node->info->page_tokens,
                       work_total(work));
    work->fetch_transfer = attempt_of(fetch->transfer);
    work->source_incarnation = fetch->incarnation;
    work->source_number = fetch->number;
    work->fetch_blocks = fetch->pages;
    return STATUS_OK;
}

static enum status serve_take(const struct node *node, const Baton__Node__V1__Assign *assign,
                              struct work *work, struct err *err)
{
    uint32_t whole = work_total(work) / node->info->page_tokens;
    if (!assign->serve_pages || assign->serve_pages > whole)
        return err_set(err, STATUS_INVALID, "serve_pages: %u, must be 1 to %u, the whole pages",
                       assign->serve_pages, whole);
    work->pages_needed = work->pages_moved = assign->serve_pages;
    return STATUS_OK;
}

static enum status assign_take(struct node *node, const Baton__Node__V1__Assign *assign,
                               struct work *work, struct err *err)
{
    static const uint8_t legs[] = {[BATON__NODE__V1__LEG__LEG_PREFILL] = WORK_LEG_PREFILL,
                                   [BATON__NODE__V1__LEG__LEG_DECODE] = WORK_LEG_DECODE,
                                   [BATON__NODE__V1__LEG__LEG_LOCAL] = WORK_LEG_LOCAL,
                                   [BATON__NODE__V1__LEG__LEG_SERVE] = WORK_LEG_SERVE};
    if (assign->leg < BATON__NODE__V1__LEG__LEG_PREFILL ||
        assign->leg > BATON__NODE__V1__LEG__LEG_SERVE)
        return err_set(err, STATUS_INVALID, "leg: %d is not known", (int)assign->leg);
    work->leg = legs[assign->leg];
    if ((work->leg == WORK_LEG_PREFILL || work->leg == WORK_LEG_DECODE) && !node->legs[work->leg])
        return err_set(err, STATUS_INVALID, "leg: this node does not take it");
    enum status status = tokens_check(node, assign, err);
    if (!status && work->leg != WORK_LEG_SERVE)
        status = sampling_take(node, assign->sampling, assign->tokens_max, work, err);
    if (status)
        return status;
    work->prompt_count = (uint32_t)assign->n_prompt;
    work->generated_count = work->received_count = (uint32_t)assign->n_generated;
    memcpy(work->tokens, assign->prompt, assign->n_prompt * sizeof *work->tokens);
    if (assign->n_generated)
        memcpy(work->tokens + assign->n_prompt, assign->generated,
               assign->n_generated * sizeof *work->tokens);
    work->sampling.prompt = work->tokens;
    work->sampling.prompt_count = work->prompt_count;
    work->sampling.generated = work->tokens + work->prompt_count;
    work->answer_max = assign->tokens_max;
    work->preempted_count = work->generated_count;
    work->age = assign->age;
    work->alone = assign->alone;
    work->last_leg = assign->last_leg;
    work->arrived_ns = clock_now_ns();
    work->deadline_ns = !assign->deadline_ms || assign->deadline_ms > UINT64_C(86400000) * 365
                            ? DEADLINE_NONE
                            : work->arrived_ns + assign->deadline_ms * NS_PER_MS;
    work->source_incarnation = assign->source_incarnation;
    work->source_number = assign->source_number;
    status = reuse_take(node, assign, work, err);
    if (status)
        return status;
    if (work->leg == WORK_LEG_SERVE)
        return serve_take(node, assign, work, err);
    pages_count(node, work);
    if (work->pages_whole > node->pool.total)
        return err_set(err, STATUS_FULL, "needs %u pages, the pool has %u", work->pages_whole,
                       node->pool.total);
    return STATUS_OK;
}

/* LEG_SERVE: all pages that it names are here and served from now on, or none. */
static enum status serve_begin(struct node *node, struct work *work, struct err *err)
{
    cache_find(node, work, work->pages_needed);
    enum status status = STATUS_OK;
    if (work->hit_count < work->pages_needed)
        status = err_set(err, STATUS_GONE, "of the first %u pages %u are here", work->pages_needed,
                         work->hit_count);
    else
        status = serve_open(node, work, work->pages_needed, err);
    if (status) {
        cache_release(node, work);
        return status;
    }
    work_move(work, WORK_HOLDING, loop_now_ns(node->loop));
    serve_started(node, work);
    serve_blocks(node, work, work->pages_needed);
    return STATUS_OK;
}

/* The verdict; on OK the work waits for its pages. */
static enum status assign_accept(struct node *node, const Baton__Node__V1__Assign *assign,
                                 struct err *err)
{
    struct kv_id attempt = attempt_of(assign->attempt);
    if (node->draining && assign->leg != BATON__NODE__V1__LEG__LEG_SERVE)
        return err_set(err, STATUS_DRAINING, "draining");
    if (work_find_any(&node->table, attempt))
        return err_set(err, STATUS_FULL, "this attempt is still ending here");
    struct work *work = work_take(&node->table);
    if (!work)
        return err_set(err, STATUS_FULL, "%u attempts are here already", node->table.count);
    work->key = (struct kv_key){.router_incarnation = node->router_incarnation,
                                .request = assign->request,
                                .transfer = attempt,
                                .assignment = assign->number};
    enum status status = assign_take(node, assign, work, err);
    if (status)
        return status;
    if (engine_slot_take(node->engine, &work->slot))
        return err_set(err, STATUS_FULL, "no engine slot is free");
    const struct node_leg *leg = node->legs[work->leg];
    bool serve = work->leg == WORK_LEG_SERVE;
    if (serve)
        status = serve_begin(node, work, err);
    else if (leg && leg->accept)
        status = leg->accept(node, work, err);
    if (status)
        engine_slot_release(node->engine, work->slot);
    if (status || serve)
        return status;
    work_move(work, WORK_WAITING, loop_now_ns(node->loop));
    pool_wait(&node->pool, &work->waiter, work->age, work->pages_needed, work->index);
    return STATUS_OK;
}

static Baton__Node__V1__Verdict verdict_of(enum status status)
{
    switch (status) {
    case STATUS_OK:
        return BATON__NODE__V1__VERDICT__VERDICT_OK;
    case STATUS_FULL:
        return BATON__NODE__V1__VERDICT__VERDICT_FULL;
    case STATUS_DRAINING:
        return BATON__NODE__V1__VERDICT__VERDICT_DRAINING;
    case STATUS_GONE:
        return BATON__NODE__V1__VERDICT__VERDICT_GONE;
    default:
        return BATON__NODE__V1__VERDICT__VERDICT_INVALID;
    }
}

void node_assign(struct node *node, const Baton__Node__V1__Assign *assign)
{
    /* numbers rise in stream order: anything else is from another life */
    if (assign->number <= node->assignment_seen) {
        metric_add(node->counted.stale_assign, 1);
        node->stale_frames++;
        return;
    }
    node->assignment_seen = assign->number;
    struct err err = ERR_INIT;
    enum status status = assign_accept(node, assign, &err);
    kv_source_seen(node->source, node->router_incarnation, assign->number);
    Baton__Node__V1__Verdict verdict = verdict_of(status);
    if (verdict >= BATON__NODE__V1__VERDICT__VERDICT_FULL)
        metric_add(node->counted.refused[verdict - BATON__NODE__V1__VERDICT__VERDICT_FULL], 1);
    outbox_accepted(&node->outbox, attempt_of(assign->attempt), assign->number, verdict,
                    status ? err.message : "");
}

/* --- the other messages --- */

static void end_take(struct node *node, const Baton__Node__V1__End *end)
{
    struct kv_id attempt = attempt_of(end->attempt);
    struct work *work = work_find_any(&node->table, attempt);
    if (work && work_live(work))
        node_work_end(node, work, STATUS_CANCELLED);
    else if (!work || work->ended_reported)
        /* it ended by itself: say so again, an attempt that was ended by name gets its answer */
        outbox_report(&node->outbox, attempt, BATON__NODE__V1__REPORT__KIND__ENDED, STATUS_OK, "");
}

static void first_token_take(struct node *node, const Baton__Node__V1__FirstToken *message)
{
    struct work *work = work_find(&node->table, attempt_of(message->attempt));
    const Baton__Node__V1__Token *token = message->token;
    if (!work || work->leg != WORK_LEG_DECODE || !token) {
        metric_add(node->counted.stale_first_token, 1);
        node->stale_frames++;
        return;
    }
    struct kv_first first = {
        .position = message->position, .token_id = token->id, .logprob = token->logprob};
    for (size_t i = 0; i < token->n_top && i < KV_LOGPROBS_MAX; i++)
        first.top[first.top_count++] =
            (struct kv_logprob){token->top[i]->id, token->top[i]->logprob};
    if (token->id < node->info->vocab_size && first.position == work->received_count)
        node->legs[WORK_LEG_DECODE]->first_token(node, work, &first);
}

static void settle_take(struct node *node, const Baton__Node__V1__Settle *settle)
{
    struct kv_id attempt = attempt_of(settle->attempt);
    struct work *work = work_find(&node->table, attempt);
    bool complete = work && (work->joined || work->state == WORK_DECODING);
    if (complete)
        outbox_report(&node->outbox, attempt, BATON__NODE__V1__REPORT__KIND__COMPLETE, STATUS_OK,
                      "");
    else
        outbox_report_pages(&node->outbox, attempt, BATON__NODE__V1__REPORT__KIND__INCOMPLETE, "",
                            work ? cache_verified(node, work) : 0);
}

static void renew_take(struct node *node, const Baton__Node__V1__Renew *renew)
{
    struct work *work = work_find(&node->table, attempt_of(renew->attempt));
    if (work && serve_renew(node, work))
        return;
    metric_add(node->counted.stale_renew, 1);
    node->stale_frames++;
}

void node_message(struct node *node, const Baton__Node__V1__RouterMessage *message)
{
    switch (message->kind_case) {
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS:
        peers_set(node->peers, message->peers);
        return;
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_ASSIGN:
        if (message->assign->attempt) {
            node_assign(node, message->assign);
            return;
        }
        break;
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_END:
        if (message->end->attempt) {
            end_take(node, message->end);
            return;
        }
        break;
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_FIRST_TOKEN:
        if (message->first_token->attempt) {
            first_token_take(node, message->first_token);
            return;
        }
        break;
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_SETTLE:
        if (message->settle->attempt) {
            settle_take(node, message->settle);
            return;
        }
        break;
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_RENEW:
        if (message->renew->attempt) {
            renew_take(node, message->renew);
            return;
        }
        break;
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_DRAIN:
        node_drain(node, node->options->grace_ns);
        return;
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_SET_ROLE:
        if (message->set_role->role >= BATON__NODE__V1__ROLE__ROLE_PREFILL &&
            message->set_role->role <= BATON__NODE__V1__ROLE__ROLE_MIXED) {
            node->role = (enum node_role)(message->set_role->role - 1);
            return;
        }
        break;
    default:
        break;
    }
    /* unknown, or without what every work message names */
    metric_add(node->counted.stale_stream, 1);
    node->stale_frames++;
}
