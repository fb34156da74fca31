/* A router's state for the explorer's fingerprint. See state.h. */
#include <string.h>

#include "router/core.h"
#include "tests/sim/inside.h"
#include "tests/sim/state.h"

static void state_request(const struct request *r, struct print *print)
{
    print_head(print, "request", r->key);
    PRINT(print, r->state);
    PRINT(print, r->attempt.low);
    PRINT(print, r->source ? r->source->number : 0);
    PRINT(print, r->sink ? r->sink->number : 0);
    PRINT(print, r->server ? r->server->number : 0);
    PRINT(print, r->prefill_only);
    PRINT(print, r->base);
    PRINT(print, r->queued_ns);
    PRINT(print, r->too_large_ns);
    PRINT(print, r->settle_ns);
    PRINT(print, r->progress_ns);
    PRINT(print, r->renewed_ns);
    PRINT(print, r->deaths);
    PRINT(print, r->pair_failures);
    PRINT(print, r->released);
    PRINT(print, request_seeks(r));
    for (int i = 0; i < REQUEST_LEFT_MAX; i++)
        if (r->left[i].pages)
            print_bytes(print, "left", &r->left[i], sizeof r->left[i]);
    print_bytes(print, "received", r->answer.ids, r->answer.received * sizeof *r->answer.ids);
    PRINT(print, r->answer.delivered_tokens);
    PRINT(print, r->answer.later_count);
    PRINT(print, r->answer.finish);
    list_for_each(it, &r->legs)
    {
        const struct leg *leg = container_of(it, struct leg, request_link);
        print_head(print, "leg", leg->number);
        PRINT(print, leg->id.low);
        PRINT(print, leg->node->slot);
        PRINT(print, leg->kind);
        PRINT(print, leg->state);
        PRINT(print, leg->life_ns);
        PRINT(print, leg->share.pages);
        PRINT(print, leg->share.prefill_tokens);
    }
}

/* What the router thinks is cached there: a set, in whatever order it lies in memory. */
static void state_holdings(const struct holdings *set, struct print *print)
{
    uint64_t all = set->count;
    for (int i = 0; i < HOLDINGS_SHARDS; i++)
        for (uint32_t k = 0; k < set->shards[i].capacity; k++)
            if (set->shards[i].slots[k])
                all += mix64(set->shards[i].slots[k]);
    PRINT(print, all);
}

static void state_registered(const struct node *node, struct print *print)
{
    print_head(print, "registered", node->slot);
    PRINT(print, node->state);
    PRINT(print, node->role);
    PRINT(print, node->stream != NULL);
    PRINT(print, node->incarnation);
    PRINT(print, node->assignments);
    PRINT(print, node->state_since_ns);
    PRINT(print, node->doomed != NULL);
    PRINT(print, node->blameless);
    PRINT(print, node->heartbeat);
    PRINT(print, node->heartbeat_ns);
    PRINT(print, node->heartbeat_patient_ns);
    PRINT(print, node->held_until);
    PRINT(print, node->held_full);
    PRINT(print, node->load.prefill_tokens_per_s);
    PRINT(print, node->load.decode_step_us);
    state_holdings(&node->holdings, print);
    PRINT(print, node->leg_count);
    PRINT(print, node->pages_taken);
    PRINT(print, node->prefill_tokens);
    list_for_each(it, &node->leg_list)
        PRINT(print, container_of(it, struct leg, node_link)->number);
}

void state_core(const struct core *core, struct print *print)
{
    const struct registry *registry = &core->registry;
    print_head(print, "core", registry->incarnation);
    PRINT(print, core->no_node_ns);
    PRINT(print, core->dirty);
    PRINT(print, registry->late_total_ns);
    PRINT(print, registry->uncovered_ns);
    PRINT(print, registry->roles_seen);
    PRINT(print, registry->identity.known);
    list_for_each(it, &core->requests)
        state_request(container_of(it, struct request, all_link), print);
    list_for_each(it, &core->queue) PRINT(print, container_of(it, struct request, queue_link)->key);
    list_for_each(it, &core->seeking)
        PRINT(print, container_of(it, struct request, seek_link)->key);
    for (size_t i = 0; i < registry->node_count; i++)
        if (registry->nodes[i])
            state_registered(registry->nodes[i], print);
    list_for_each(it, &registry->streams)
    {
        const struct node_stream *stream = container_of(it, struct node_stream, link);
        print_head(print, "stream of", stream->node ? stream->node->slot : 99);
        PRINT(print, stream->node ? 0 : stream->opened_ns);
        inside_stream(stream, print);
    }
    inside_link_views(registry, print);
}
