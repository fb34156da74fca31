/* What nodes say, turned into steps of requests. The fence comes first: a message counts only for the current legs of an
 * attempt; what comes for an ending leg is stale, but for the ENDED that it waits for. See request.h. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "router/core.h"

static void stale(struct core *core, enum stale_kind kind)
{
    metric_add(core->stats->stale[kind], 1);
}

static bool leg_current(const struct leg *leg)
{
    return leg->state != LEG_ENDING && (leg->request->source == leg || leg->request->sink == leg);
}

static void progress(struct request *r)
{
    if (!r->released)
        r->client.progress(r->client.context);
}

/* --- the leg that serves cached pages: whatever it says, the attempt goes on --- */

/* Nothing is held for it any more. */
static void server_gone(struct core *core, struct leg *leg)
{
    struct request *r = leg->request;
    leg_gone(leg);
    request_check_ended(core, r);
}

static void server_accepted(struct core *core, struct leg *leg,
                            const Baton__Node__V1__Accepted *accepted)
{
    leg->life_ns = core->registry.patient_ns;
    if (accepted->verdict != BATON__NODE__V1__VERDICT__VERDICT_OK) {
        metric_add(core->stats->fetches_refused, 1);
        server_gone(core, leg);
    } else if (leg->state == LEG_SENT) {
        sm_move(&leg_states, &leg->state, LEG_HELD);
    }
}

static void server_reported(struct core *core, struct leg *leg,
                            const Baton__Node__V1__Report *report)
{
    leg->life_ns = core->registry.patient_ns;
    if (report->kind == BATON__NODE__V1__REPORT__KIND__ENDED)
        server_gone(core, leg);
    else if (report->kind == BATON__NODE__V1__REPORT__KIND__DROPPED ||
             report->kind == BATON__NODE__V1__REPORT__KIND__FAILED)
        leg_end(core, leg, "dropped");
}

/* --- Accepted --- */

/* The node holds nothing of the leg. What that means for the attempt: */
static void leg_refused(struct core *core, struct request *r, bool was_source)
{
    /* P (or the only node) refuses: the attempt is over. D refuses: P goes on, another D is sought. */
    if (was_source || !r->source || r->state == REQUEST_SETTLING)
        request_requeue(core, r, false);
    else
        attempt_seek(core, r);
}

static void on_accepted(void *context, struct node *node, const Baton__Node__V1__Accepted *accepted)
{
    struct core *core = context;
    struct leg *leg = leg_find(node, accepted->attempt);
    if (!leg || leg->number != accepted->number) {
        stale(core, STALE_ACCEPTED);
        return;
    }
    if (leg->kind == LEG_KIND_SERVE) {
        server_accepted(core, leg, accepted);
        return;
    }
    struct request *r = leg->request;
    bool ok = accepted->verdict == BATON__NODE__V1__VERDICT__VERDICT_OK;
    if (leg->state == LEG_ENDING) {
        if (!ok) { /* nothing was held, so nothing will be reported */
            leg_gone(leg);
            request_check_ended(core, r);
        }
        return;
    }
    leg->life_ns = core->registry.patient_ns;
    if (ok) {
        if (leg->state == LEG_SENT)
            sm_move(&leg_states, &leg->state, LEG_HELD);
        return;
    }
    bool was_source = r->source == leg || leg->kind == LEG_KIND_LOCAL;
    leg_gone(leg);
    core->dirty = true;
    switch (accepted->verdict) {
    case BATON__NODE__V1__VERDICT__VERDICT_FULL:
        node_hold(&core->registry, node, true);
        leg_refused(core, r, was_source);
        break;
    case BATON__NODE__V1__VERDICT__VERDICT_DRAINING:
        node_drain(&core->registry, node, false);
        leg_refused(core, r, was_source);
        break;
    default:
        request_end(core, r, STATUS_INVALID, GRPC_CODE_INVALID_ARGUMENT, accepted->message);
    }
}

/* --- Tokens --- */

/* Of the prompt: a resumed answer's own tokens may have been cached as well. */
static void note_cached(struct request *r, const Baton__Node__V1__TokenRun *run)
{
    size_t prompt = r->prompt.count;
    r->timing.cached_tokens = run->cached_tokens < prompt ? run->cached_tokens : (uint32_t)prompt;
}

static void note_first(struct request *r, const Baton__Node__V1__TokenRun *run, uint64_t now_ns)
{
    r->timing.first_ns = now_ns;
    r->timing.prefill_us = run->prefill_us;
    note_cached(r, run);
}

/* Durations that clients are shown, and the histogram of gaps. */
static void note_times(struct core *core, struct request *r, const Baton__Node__V1__TokenRun *run,
                       uint32_t accepted)
{
    uint64_t now_ns = core_clock(core);
    for (uint32_t i = 0; i < accepted; i++) {
        if (!r->timing.first_ns) {
            note_first(r, run, now_ns);
        } else {
            if (!r->timing.second_ns) {
                r->timing.second_ns = now_ns;
                r->timing.first_decode_us = run->decode_us;
            }
            metric_observe(core->stats->itl_seconds,
                           (double)(now_ns - r->timing.last_ns) / (double)NS_PER_S);
        }
        r->timing.last_ns = now_ns;
    }
}

enum { TOPS_MAX = 64 };

static enum answer_result take_token(struct request *r, uint32_t position,
                                     const Baton__Node__V1__Token *token,
                                     Baton__Node__V1__Finish finish)
{
    struct answer_top tops[TOPS_MAX];
    struct answer_token taken = {.id = token->id, .logprob = token->logprob, .top = tops};
    for (; taken.top_count < token->n_top && taken.top_count < TOPS_MAX; taken.top_count++) {
        const Baton__Node__V1__TopToken *top = token->top[taken.top_count];
        tops[taken.top_count] = (struct answer_top){top->id, top->logprob};
    }
    return answer_receive(&r->answer, position, &taken,
                          finish == BATON__NODE__V1__FINISH__FINISH_STOP     ? ANSWER_STOP
                          : finish == BATON__NODE__V1__FINISH__FINISH_LENGTH ? ANSWER_LENGTH
                                                                             : ANSWER_OPEN);
}

/* The current leg has made tokens: where does the request stand now? */
static void advance(struct core *core, struct leg *leg)
{
    struct request *r = leg->request;
    if (leg == r->source) {
        if (r->state != REQUEST_PLACED)
            return;
        request_move(core, r, REQUEST_HANDING_OFF);
        if (r->sink)
            attempt_send_first(core, r);
    } else if (r->state != REQUEST_STREAMING) {
        request_move(core, r, REQUEST_STREAMING);
        list_remove(&r->seek_link);
    }
}

static void take_run(struct core *core, struct node *node, const Baton__Node__V1__TokenRun *run)
{
    struct leg *leg = leg_find(node, run->attempt);
    if (!leg || !leg_current(leg) || node->doomed) {
        stale(core, STALE_TOKENS);
        return;
    }
    struct request *r = leg->request;
    leg->life_ns = core->registry.patient_ns;
    uint32_t before = r->answer.received;
    for (size_t i = 0; i < run->n_tokens; i++) {
        bool last = i + 1 == run->n_tokens;
        enum answer_result result =
            take_token(r, run->position + (uint32_t)i, run->tokens[i],
                       last ? run->finish : BATON__NODE__V1__FINISH__FINISH_NONE);
        if (result == ANSWER_MISMATCH) {
            metric_add(core->stats->mismatches, 1);
            node_doom(&core->registry, node, "it repeated a token differently");
            break;
        }
        if (result == ANSWER_NO_MEMORY) {
            request_end(core, r, STATUS_MEMORY, GRPC_CODE_RESOURCE_EXHAUSTED, "no memory");
            return;
        }
    }
    uint32_t accepted = r->answer.received - before;
    r->timing.kv_bytes_moved += run->kv_bytes_moved;
    /* D's repetition of the first token may have overtaken P's own report, which alone says how long the prompt took */
    bool first_here = r->base == r->resumed; /* no attempt before this one gave a token */
    if (leg == r->source && run->prefill_us && !r->timing.prefill_us && first_here) {
        r->timing.prefill_us = run->prefill_us;
        note_cached(r, run);
    }
    if (accepted) {
        r->progress_ns = core->registry.patient_ns;
        note_times(core, r, run, accepted);
    }
    if (r->answer.received > r->base) {
        leg_prefilled(leg);
        if (leg == r->sink)
            leg_grown(leg, place_pages(core, r));
        if (r->server)
            leg_end(core, r->server, "the prompt is computed");
        if (!node->doomed && !answer_ended(&r->answer))
            advance(core, leg);
    }
    bool ended = answer_ended(&r->answer);
    if (accepted || ended)
        progress(r);
    if (ended)
        request_end(core, r, STATUS_OK, GRPC_CODE_OK, "");
}

static void on_tokens(void *context, struct node *node, const Baton__Node__V1__Tokens *tokens)
{
    struct core *core = context;
    for (size_t i = 0; i < tokens->n_runs; i++)
        take_run(core, node, tokens->runs[i]);
}

/* --- Report --- */

static void leg_ended(struct core *core, struct leg *leg)
{
    struct request *r = leg->request;
    struct node *node = leg->node;
    bool current = leg_current(leg), was_source = r->source == leg;
    bool prefill_only = r->prefill_only;
    leg_gone(leg);
    node_unhold(node);
    core->dirty = true;
    if (!current) {
        request_check_ended(core, r);
        return;
    }
    if (!was_source || prefill_only || !r->sink)
        request_requeue(core, r, true); /* the one that makes the tokens let go of it, unasked */
    else if (r->state == REQUEST_PLACED && r->answer.received == r->base)
        request_requeue(core, r, true); /* P ended before its token came */
    /* else: D has everything, P's part is over */
}

/* An older request on that node took its pages. The same attempt is never offered again to a node that was told End: its
 * ENDED says which attempt, not which assignment. So where D has lost its reservation the request queues again. */
static void leg_dropped(struct core *core, struct leg *leg)
{
    struct request *r = leg->request;
    struct node *node = leg->node;
    bool was_source = r->source == leg;
    leg_end(core, leg, "dropped");
    node_hold(&core->registry, node, true);
    if (was_source && r->state == REQUEST_STREAMING)
        return; /* its part was over */
    if (was_source && r->sink)
        attempt_settle(core, r); /* what D has may be all of it */
    else
        request_requeue(core, r, true);
}

/* The pages that D has verified stay in its cache when the attempt ends there. */
static void note_verified(const struct leg *leg, const Baton__Node__V1__Report *report)
{
    leg->request->left[1] =
        (struct request_left){leg->node->slot, leg->node->incarnation, report->pages};
}

static void leg_gave_up(struct core *core, struct leg *leg, const Baton__Node__V1__Report *report)
{
    struct request *r = leg->request;
    note_verified(leg, report);
    r->pair_failures++;
    node_hold(&core->registry, leg->node, false);
    if (r->source) {
        registry_pair_failed(&core->registry, r->source->node, leg->node);
        node_hold(&core->registry, r->source->node, false);
    }
    request_requeue(core, r, true);
}

/* The node leaves, and this cannot end there in time. Until it is told End the node goes on, and afterwards its cache is served
 * as long as it is there: the next attempt is given to others, who fetch the pages from it. */
static void leg_handed_over(struct core *core, struct leg *leg)
{
    struct request *r = leg->request;
    node_drain(&core->registry, leg->node, false);
    if (leg == r->source && r->sink && r->state != REQUEST_PLACED)
        return; /* its pages are on their way to D: that ends sooner */
    metric_add(core->stats->handovers, 1);
    leg->node->handovers++;
    r->handovers++;
    request_requeue(core, r, false);
}

static void leg_failed(struct core *core, struct leg *leg, const Baton__Node__V1__Report *report)
{
    bool known = report->status > GRPC_CODE_OK && report->status <= GRPC_CODE_UNAUTHENTICATED;
    enum grpc_code code = known ? (enum grpc_code)report->status : GRPC_CODE_INTERNAL;
    enum status status = code == GRPC_CODE_INVALID_ARGUMENT    ? STATUS_INVALID
                         : code == GRPC_CODE_DEADLINE_EXCEEDED ? STATUS_DEADLINE
                         : code == GRPC_CODE_UNIMPLEMENTED     ? STATUS_UNIMPLEMENTED
                                                               : STATUS_NONFINITE;
    request_end(core, leg->request, status, code, report->message);
}

static void on_report(void *context, struct node *node, const Baton__Node__V1__Report *report)
{
    struct core *core = context;
    struct leg *leg = leg_find(node, report->attempt);
    if (leg && leg->kind == LEG_KIND_SERVE) {
        server_reported(core, leg, report);
        return;
    }
    if (report->kind == BATON__NODE__V1__REPORT__KIND__ENDED) {
        if (leg) /* else: said twice, by itself and when it was asked */
            leg_ended(core, leg);
        return;
    }
    if (!leg || !leg_current(leg)) {
        stale(core, STALE_REPORT);
        return;
    }
    struct request *r = leg->request;
    leg->life_ns = core->registry.patient_ns;
    switch (report->kind) {
    case BATON__NODE__V1__REPORT__KIND__FAILED:
        leg_failed(core, leg, report);
        break;
    case BATON__NODE__V1__REPORT__KIND__DROPPED:
        leg_dropped(core, leg);
        break;
    case BATON__NODE__V1__REPORT__KIND__GAVE_UP:
        leg_gave_up(core, leg, report);
        break;
    case BATON__NODE__V1__REPORT__KIND__HAND_OVER:
        leg_handed_over(core, leg);
        break;
    case BATON__NODE__V1__REPORT__KIND__COMPLETE:
    case BATON__NODE__V1__REPORT__KIND__JOINED:
        if (leg == r->sink && r->state != REQUEST_STREAMING && leg->kind == LEG_KIND_DECODE)
            request_move(core, r, REQUEST_STREAMING);
        break;
    case BATON__NODE__V1__REPORT__KIND__INCOMPLETE:
        if (leg == r->sink && r->state == REQUEST_SETTLING) {
            note_verified(leg, report);
            request_requeue(core, r, true);
        }
        break;
    default:
        break;
    }
}

/* --- heartbeats and deaths --- */

static void on_heartbeat(void *context, struct node *node,
                         const Baton__Node__V1__Heartbeat *heartbeat)
{
    struct core *core = context;
    for (size_t i = 0; i < heartbeat->n_alive; i++) {
        struct leg *leg = leg_find(node, heartbeat->alive[i]);
        if (leg)
            leg->life_ns = core->registry.patient_ns;
    }
    core->dirty = true;
}

static void source_lost(struct core *core, struct request *r)
{
    if (r->state == REQUEST_STREAMING)
        return; /* its part was over */
    if (r->sink)
        attempt_settle(core, r);
    else
        request_requeue(core, r, true);
}

static void on_lost(void *context, struct node *node, bool death)
{
    struct core *core = context;
    core->dirty = true;
    while (!list_empty(&node->leg_list)) {
        struct leg *leg = container_of(node->leg_list.next, struct leg, node_link);
        struct request *r = leg->request;
        bool was_source = r->source == leg, was_sink = r->sink == leg;
        leg_gone(leg);
        if (!was_source && !was_sink) {
            request_check_ended(core, r);
            continue;
        }
        if (death && !(was_source && r->state == REQUEST_STREAMING))
            r->deaths++;
        if (r->deaths > core->options.replays_max) {
            request_requeue(core, r, true); /* which ends it: too many deaths */
        } else if (was_source) {
            source_lost(core, r);
        } else {
            request_requeue(core, r, true);
        }
    }
}

static void on_note(void *context, const struct node *node, const char *text)
{
    core_note(context, node, text);
}

const struct registry_events core_registry_events = {
    .lost = on_lost,
    .heartbeat = on_heartbeat,
    .accepted = on_accepted,
    .tokens = on_tokens,
    .report = on_report,
    .note = on_note,
};
