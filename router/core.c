/* See core.h: admission, the queue, deadlines, the end. */
#include "router/core.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* --- life --- */

enum status core_init(struct core *core, const struct core_options *options,
                      const struct identity_model *model, struct router_stats *stats,
                      struct err *err)
{
    *core = (struct core){.options = *options, .stats = stats};
    list_init(&core->requests);
    list_init(&core->queue);
    list_init(&core->seeking);
    struct registry_events events = core_registry_events;
    events.context = core;
    enum status status = registry_init(&core->registry, model, &events, stats, err);
    if (!status)
        registry_cache_init(&core->registry, options->cache_key, options->cache_index_entries);
    core->options.cache_key = NULL;
    static const char purpose[] = "salt";
    siphash(core->registry.cache_key, purpose, sizeof purpose, core->salt_key);
    return status;
}

void core_finish(struct core *core)
{
    assert(list_empty(&core->requests));
    registry_finish(&core->registry);
}

void core_time(struct core *core, uint64_t now_ns, uint64_t late_total_ns)
{
    registry_time(&core->registry, now_ns, late_total_ns);
}

uint64_t core_clock(const struct core *core)
{
    return core->options.clock ? core->options.clock() : core->registry.now_ns;
}

void core_note(struct core *core, const struct node *node, const char *text)
{
    if (core->options.note)
        core->options.note(core->options.note_context, node, text);
}

/* --- states --- */

void request_move(struct core *core, struct request *r, enum request_state to)
{
    bool was_queued = r->state == REQUEST_QUEUED;
    sm_move(&request_states, &r->state, to);
    if (was_queued) {
        list_remove(&r->queue_link);
        core->waiting--;
        core->running++;
    } else if (to == REQUEST_QUEUED) {
        core->running--;
        core->waiting++;
    }
    if (to == REQUEST_ENDED)
        core->running--;
}

static void queue_insert(struct core *core, struct request *r)
{
    /* from the back: with one priority a new request stands last */
    struct list *at = core->queue.prev;
    while (at != &core->queue) {
        const struct request *before = container_of(at, struct request, queue_link);
        if (before->priority > r->priority ||
            (before->priority == r->priority && before->age < r->age))
            break;
        at = at->prev;
    }
    list_insert_before(at->next, &r->queue_link);
    r->queued_ns = core->registry.now_ns;
    r->too_large_ns = 0;
    core->dirty = true;
}

static void end_legs(struct core *core, struct request *r, const char *reason)
{
    list_remove(&r->seek_link);
    list_for_each(it, &r->legs) leg_end(core, container_of(it, struct leg, request_link), reason);
    r->source = r->sink = r->server = NULL;
}

void request_check_ended(struct core *core, struct request *r)
{
    if (r->state == REQUEST_ENDING && list_empty(&r->legs))
        request_move(core, r, REQUEST_ENDED);
    if (r->state != REQUEST_ENDED || !r->released)
        return;
    core->live--;
    core->registry.requests--;
    request_destroy(r);
}

static void request_close(struct core *core, struct request *r, enum status status,
                          enum grpc_code code, const char *message)
{
    r->end_status = status;
    r->end_code = code;
    snprintf(r->end_message, sizeof r->end_message, "%s", message);
    request_move(core, r, REQUEST_ENDING);
    end_legs(core, r, status_text(status));
    core->dirty = true;
}

void request_end(struct core *core, struct request *r, enum status status, enum grpc_code code,
                 const char *message)
{
    if (!request_open(r))
        return;
    request_close(core, r, status, code, message);
    if (!r->released && status != STATUS_OK)
        r->client.ended(r->client.context);
    request_check_ended(core, r);
}

/* What the current legs have computed stays in their nodes' caches when they end. The nodes say so themselves, with one of their
 * next heartbeats; but the request may be placed again before that. */
static void note_left(const struct core *core, struct request *r)
{
    uint32_t page_tokens = core->registry.identity.page_tokens;
    const struct leg *legs[REQUEST_LEFT_MAX] = {NULL};
    uint64_t rows[REQUEST_LEFT_MAX] = {0};
    if (!page_tokens)
        return;
    if (r->answer.received > r->base) { /* so the prompt is computed */
        legs[0] = r->source;
        rows[0] = (uint64_t)r->prompt.count + r->base;
    }
    if (r->state == REQUEST_STREAMING) { /* the last token was no row yet */
        legs[1] = r->sink;
        rows[1] = (uint64_t)r->prompt.count + r->answer.received - 1;
    }
    for (int i = 0; i < REQUEST_LEFT_MAX; i++)
        if (legs[i]) /* else what an earlier attempt left may still be there */
            r->left[i] = (struct request_left){legs[i]->node->slot, legs[i]->node->incarnation,
                                               (uint32_t)(rows[i] / page_tokens)};
}

void request_requeue(struct core *core, struct request *r, bool fault)
{
    note_left(core, r);
    end_legs(core, r, fault ? "placed again after a fault" : "placed elsewhere");
    if (fault && r->deaths > core->options.replays_max) {
        char message[128];
        snprintf(message, sizeof message, "%u nodes died while they held this request", r->deaths);
        request_end(core, r, STATUS_INTERNAL, GRPC_CODE_INTERNAL, message);
        return;
    }
    if (fault) {
        r->replays++;
        metric_add(core->stats->replays, 1);
    }
    request_move(core, r, REQUEST_QUEUED);
    queue_insert(core, r);
}

/* --- from the client's side --- */

void core_salt(const struct core *core, struct request *r, const void *credentials, size_t bytes)
{
    siphash(core->salt_key, credentials, bytes, r->salt);
    r->salted = true;
}

enum status core_admit(struct core *core, struct request *r, struct err *err)
{
    if (core->draining)
        return err_set(err, STATUS_DRAINING, "this router is draining");
    if (core->live >= core->options.requests_max)
        return err_set(err, STATUS_FULL, "%u requests are here already, the limit is %u",
                       core->live, core->options.requests_max);
    if (core->waiting >= core->options.queue_max)
        return err_set(err, STATUS_FULL, "%u requests wait already, the limit is %u", core->waiting,
                       core->options.queue_max);
    r->key = r->age = ++core->admitted;
    r->state = REQUEST_QUEUED;
    core->live++;
    core->waiting++;
    core->registry.requests++;
    list_push_back(&core->requests, &r->all_link);
    queue_insert(core, r);
    if (answer_ended(&r->answer)) { /* a resumed one: only the last message is missing */
        request_close(core, r, STATUS_OK, GRPC_CODE_OK, "");
        request_check_ended(core, r);
    }
    return STATUS_OK;
}

void core_cancel(struct core *core, struct request *r, enum status why)
{
    if (!request_open(r))
        return;
    request_close(core, r, why, status_grpc(why), status_text(why));
    request_check_ended(core, r);
}

void core_release(struct core *core, struct request *r)
{
    assert(!request_open(r) && !r->released);
    r->released = true;
    request_check_ended(core, r);
}

void core_drain(struct core *core)
{
    core->draining = true;
}

void core_cancel_all(struct core *core, const char *why)
{
    list_for_each_safe(it, tmp, &core->requests)
    {
        struct request *r = container_of(it, struct request, all_link);
        request_end(core, r, STATUS_DRAINING, GRPC_CODE_UNAVAILABLE, why);
    }
}

/* --- scheduling --- */

static void schedule_once(struct core *core)
{
    core->dirty = false;
    list_for_each_safe(it, tmp, &core->seeking)
        place_seek(core, container_of(it, struct request, seek_link));
    list_for_each_safe(it, tmp, &core->queue)
    {
        if (!place_request(core, container_of(it, struct request, queue_link)))
            break;
    }
}

void core_schedule(struct core *core)
{
    registry_settle(&core->registry);
    /* sending may doom nodes, whose requests then want another place */
    for (int rounds = 0; core->dirty && rounds < 8; rounds++) {
        schedule_once(core);
        registry_settle(&core->registry);
    }
}

/* --- deadlines --- */

static void check_queued(struct core *core, struct request *r)
{
    uint64_t now_ns = core->registry.now_ns, since_ns = 0;
    if (core->no_node_ns)
        since_ns = core->no_node_ns > r->queued_ns ? core->no_node_ns : r->queued_ns;
    else if (r->too_large_ns)
        since_ns = r->too_large_ns;
    else
        return;
    bool no_time = r->deadline_ns != DEADLINE_NONE && now_ns + give_up_early_ns >= r->deadline_ns;
    if (!no_time && now_ns - since_ns < core->options.node_wait_ns)
        return;
    if (core->no_node_ns)
        request_end(core, r, STATUS_NO_NODE, GRPC_CODE_UNAVAILABLE, "no node can serve");
    else
        request_end(core, r, STATUS_NO_NODE, GRPC_CODE_UNAVAILABLE,
                    "no node with a page pool large enough for prompt and max_tokens is serving");
}

static bool leg_silent(const struct core *core, const struct leg *leg)
{
    return leg && core->registry.patient_ns - leg->life_ns > life_sign_ns;
}

static void check_placed(struct core *core, struct request *r)
{
    uint64_t patient_ns = core->registry.patient_ns;
    struct leg *silent = leg_silent(core, r->source) ? r->source
                         : leg_silent(core, r->sink) ? r->sink
                                                     : NULL;
    if (leg_silent(core, r->server))
        leg_end(core, r->server, "silent"); /* P has long given up on it */
    if (r->state == REQUEST_SETTLING && patient_ns - r->settle_ns > life_sign_ns)
        silent = r->sink;
    bool gap = answer_has_gap(&r->answer) && patient_ns - r->progress_ns > life_sign_ns;
    if (!silent && !gap)
        return;
    if (silent) {
        char text[160];
        snprintf(text, sizeof text, "request %llu: no sign of life for 4 s; it is placed again",
                 (unsigned long long)r->key);
        core_note(core, silent->node, text);
        node_hold(&core->registry, silent->node, false);
    }
    request_requeue(core, r, true);
}

/* Legs that are ending, of requests in any state, and that their node has not listed for a while. */
static void check_ending_legs(struct core *core, struct request *r)
{
    list_for_each_safe(it, tmp, &r->legs)
    {
        struct leg *leg = container_of(it, struct leg, request_link);
        if (leg->state == LEG_ENDING && leg_silent(core, leg))
            leg_gone(leg);
    }
}

void core_tick(struct core *core)
{
    registry_tick(&core->registry);
    core->dirty = true;
    list_for_each_safe(it, tmp, &core->requests)
    {
        struct request *r = container_of(it, struct request, all_link);
        check_ending_legs(core, r);
        if (!request_open(r))
            request_check_ended(core, r);
        else if (r->deadline_ns <= core->registry.now_ns)
            request_end(core, r, STATUS_DEADLINE, GRPC_CODE_DEADLINE_EXCEEDED,
                        "the deadline passed");
        else if (r->state == REQUEST_QUEUED)
            check_queued(core, r);
        else
            check_placed(core, r);
    }
}
