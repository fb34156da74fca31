/* See router_side.h. */
#include "tests/sim/router_side.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "router/core.h"
#include "router/node_streams.h"
#include "tests/sim/fake_engine.h"

enum { CLIENTS_MAX = 256, NODES_SEEN_MAX = 8 };
static const uint64_t tick_ns = 100 * NS_PER_MS;

struct router_side {
    struct router_side_options options;
    struct loop *loop;
    struct rpc *rpc;
    struct rpc_server *server;
    struct node_streams streams;
    struct core core;
    struct loop_timer tick;
    struct loop_hook schedule, release;
    struct client *clients[CLIENTS_MAX];
    uint32_t client_count;
    double replays, mismatches, deaths, stale, stream_faults; /* when this router began */
    struct registry_events events;                            /* the core's own */
    struct gave_up { /* by slot of a node: what it was when it gave up */
        uint64_t incarnation, heartbeat, assignments;
    } gave_up[NODES_SEEN_MAX];
};

/* Declared once for all routers: counters only rise. */
static struct router_stats stats;
static struct metrics *metrics;

static void now(struct router_side *router)
{
    core_time(&router->core, loop_now_ns(router->loop), loop_late_total_ns(router->loop));
}

static void check_fresh(const struct router_side *router);

/* --- the loop's rounds, as router/program.c has them --- */

static bool schedule_run(void *context)
{
    struct router_side *router = context;
    if (router->core.dirty || router->core.registry.doomed) {
        now(router);
        core_schedule(&router->core);
    }
    return false;
}

static void tick_due(void *context)
{
    struct router_side *router = context;
    now(router);
    core_tick(&router->core);
    loop_timer_set(&router->tick, loop_now_ns(router->loop) + tick_ns);
}

static void client_release(struct router_side *router, struct client *client)
{
    struct request *r = client->request;
    client->ended_ns = clock_now_ns();
    client->status = r->end_status;
    client->cached_tokens = r->timing.cached_tokens;
    client->request = NULL;
    core_release(&router->core, r);
}

/* Clients whose request is over let go of it. */
static bool release_run(void *context)
{
    struct router_side *router = context;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < router->client_count; i++) {
        struct client *client = router->clients[i];
        if (client_open(client))
            router->clients[kept++] = client;
        else
            client_release(router, client);
    }
    router->client_count = kept;
    check_fresh(router);
    return false;
}

/* --- a rule: after a give-up a node gets work only once a newer heartbeat has come from it --- */

static void report_seen(void *context, struct node *node, const Baton__Node__V1__Report *report)
{
    struct router_side *router = container_of(context, struct router_side, core);
    const struct leg *leg = leg_find(node, report->attempt);
    bool current = leg && leg->state != LEG_ENDING &&
                   (leg->request->source == leg || leg->request->sink == leg);
    assert(node->slot < NODES_SEEN_MAX);
    if (current && report->kind == BATON__NODE__V1__REPORT__KIND__GAVE_UP)
        router->gave_up[node->slot] =
            (struct gave_up){node->incarnation, node->heartbeat, node->assignments};
    router->events.report(context, node, report);
}

/* To serve what is in its cache is no work that could be lost. */
static void check_fresh(const struct router_side *router)
{
    const struct registry *registry = &router->core.registry;
    for (size_t i = 0; i < registry->node_count; i++) {
        const struct node *node = registry->nodes[i];
        const struct gave_up *then = &router->gave_up[i];
        if (!node || node->incarnation != then->incarnation || node->heartbeat != then->heartbeat)
            continue;
        list_for_each(it, &node->leg_list)
        {
            const struct leg *leg = container_of(it, struct leg, node_link);
            if (leg->kind != LEG_KIND_SERVE && leg->number > then->assignments)
                sim_fail("%s gets work after a give-up, before a newer heartbeat", node->name);
        }
    }
}

/* --- clients --- */

/* Every id has the text of one letter. */
static size_t letter_push(const void *vocabulary, struct detok *detok, uint32_t id, char *out)
{
    out[0] = (char)('a' + id % 26);
    return 1;
}

static const struct answer_text letters = {.push = letter_push, .push_bytes_max = 4};

static void client_progress(void *context)
{
    struct client *client = context;
    struct request *r = client->request;
    struct answer_piece piece;
    while (answer_peek(&r->answer, 1000, &piece)) {
        if (client->last || piece.position != client->count)
            sim_fail("a client that has %u tokens%s gets those from %u on", client->count,
                     client->last ? " and the end" : "", piece.position);
        assert(client->count + piece.token_count <= CLIENT_TOKENS_MAX);
        memcpy(client->ids + client->count, piece.ids, piece.token_count * sizeof *piece.ids);
        client->count += piece.token_count;
        client->last = piece.last;
        answer_taken(&r->answer, &piece);
    }
}

static void client_ended(void *context)
{
    struct client *client = context;
    if (client->last || client->ended)
        sim_fail("a client hears of the end of its request twice");
    client->ended = true;
}

static struct request *request_of(struct client *client)
{
    const struct client_options *o = &client->options;
    struct request *r = request_create();
    assert(r);
    for (uint32_t i = 0; i < o->prompt_count; i++)
        token_list_append(&r->prompt, o->prompt[i]);
    r->tokens_max = o->tokens_max;
    r->deadline_ns = o->deadline_ns;
    r->salted = o->tenant > 0;
    r->salt[0] = o->tenant;
    r->sampling.seed = o->seed;
    r->sampling.index = o->n_index;
    r->sampling.tokens_min = o->tokens_min;
    r->stop_ids = malloc(sizeof o->stop_ids);
    memcpy(r->stop_ids, o->stop_ids, sizeof o->stop_ids);
    r->sampling.stop_ids = r->stop_ids;
    r->sampling.n_stop_ids = o->stop_count;
    r->answer_ready =
        answer_init(&r->answer, &(struct answer_options){.text = &letters,
                                                         .tokens_max = o->tokens_max,
                                                         .min_tokens = o->tokens_min,
                                                         .stops = &o->stop_text,
                                                         .stop_count = o->stop_text ? 1 : 0});
    assert(r->answer_ready);
    r->client = (struct request_client){client_progress, client_ended, client};
    r->timing.arrival_ns = clock_now_ns();
    return r;
}

void router_side_request(struct router_side *router, struct client *client)
{
    struct err err = ERR_INIT;
    struct request *r = request_of(client);
    client->resumed = client->count;
    client->ended = client->refused = false;
    if (client->count && answer_restore(&r->answer, client->ids, client->count, client->count,
                                        r->stop_ids, r->sampling.n_stop_ids, &err))
        sim_fail("a resumed answer is refused: %s", err.message);
    r->resumed = client->count;
    client->request = r;
    core_time(&router->core, clock_now_ns(), loop_late_total_ns(router->loop));
    if (core_admit(&router->core, r, &err)) {
        request_destroy(r);
        client->request = NULL;
        client->ended = client->refused = true;
        client->status = err.code;
        return;
    }
    assert(router->client_count < CLIENTS_MAX);
    router->clients[router->client_count++] = client;
    client_progress(client);
}

void router_side_cancel(struct router_side *router, struct client *client)
{
    if (!client->request || !client_open(client))
        return;
    core_time(&router->core, clock_now_ns(), loop_late_total_ns(router->loop));
    client->cancelled = client->ended = true;
    core_cancel(&router->core, client->request, STATUS_CANCELLED);
}

/* --- life --- */

static void note(void *context, const struct node *node, const char *text)
{
    struct router_side *router = context;
    if (router->options.note)
        router->options.note(router->options.context, node ? node->name : "", text);
}

static double stream_fault_count(void)
{
    double count = 0;
    for (int i = SEAL_TWICE; i < SEAL_VERDICT_COUNT; i++)
        count += metric_value(stats.stream_faults[i]);
    return count;
}

static double stale_count(void)
{
    double sum = 0;
    for (int i = 0; i < STALE_COUNT; i++)
        sum += metric_value(stats.stale[i]);
    return sum;
}

struct router_side *router_side_create(const struct router_side_options *options)
{
    struct router_side *router = calloc(1, sizeof *router);
    struct err err = ERR_INIT;
    assert(router);
    router->options = *options;
    if (!metrics && (metrics_create(&metrics, &err) || router_stats_init(&stats, metrics, &err)))
        sim_fail("%s", err.message);
    router->replays = metric_value(stats.replays);
    router->mismatches = metric_value(stats.mismatches);
    router->deaths = metric_value(stats.node_deaths);
    router->stream_faults = stream_fault_count();
    router->stale = stale_count();
    struct identity_model model = {.vocab_size = FAKE_VOCAB, .context_tokens = 4096};
    struct core_options core = {.queue_max = options->queue_max,
                                .requests_max = options->requests_max,
                                .replays_max = options->replays_max,
                                .node_wait_ns = options->node_wait_ns,
                                .local_prefill_tokens = options->local_prefill_tokens,
                                .cache_index_entries = options->cache_index_entries,
                                .fetch = (enum placement_fetch)options->fetch,
                                .hand_off_always = options->hand_off_always,
                                .clock = clock_now_ns,
                                .note = note,
                                .note_context = router};
    enum status status = loop_create(&router->loop, &err);
    if (!status)
        status = core_init(&router->core, &core, &model, &stats, &err);
    if (status)
        sim_fail("%s", err.message);
    router->events = router->core.registry.events;
    router->core.registry.events.report = report_seen;
    router->rpc = net_rpc_create(options->net, router->loop, 0);
    rpc_server_create(router->rpc, NULL, &router->server, &err);
    node_streams_init(&router->streams, router->server, &router->core, router->loop, &err);
    if (options->queue_messages_max)
        router->streams.queue_messages_max = options->queue_messages_max;
    loop_hook_add(router->loop, &router->schedule, LOOP_SCHEDULE, schedule_run, router);
    loop_hook_add(router->loop, &router->release, LOOP_SUBMIT, release_run, router);
    loop_timer_init(router->loop, &router->tick, tick_due, router);
    loop_timer_set(&router->tick, loop_now_ns(router->loop) + tick_ns);
    now(router);
    rpc_server_start(router->server, &err);
    return router;
}

void router_side_destroy(struct router_side *router)
{
    if (!router)
        return;
    net_kill(router->rpc, false);
    for (uint32_t i = 0; i < router->client_count; i++) {
        struct client *client = router->clients[i];
        struct request *r = client->request;
        if (client_open(client)) {
            core_cancel(&router->core, r, STATUS_CLOSED);
            client->ended = true;
        }
        client_release(router, client);
        client->status = STATUS_CLOSED;
    }
    rpc_server_destroy(router->server, NULL, NULL);
    rpc_destroy(router->rpc);
    loop_hook_remove(&router->schedule);
    loop_hook_remove(&router->release);
    loop_timer_stop(&router->tick);
    core_finish(&router->core);
    loop_destroy(router->loop);
    free(router);
}

struct loop *router_side_loop(struct router_side *router)
{
    return router->loop;
}

struct rpc *router_side_rpc(struct router_side *router)
{
    return router->rpc;
}

/* --- looking inside --- */

void router_side_counts(const struct router_side *router, struct router_counts *counts)
{
    *counts = (struct router_counts){
        .replays = (uint64_t)(metric_value(stats.replays) - router->replays),
        .mismatches = (uint64_t)(metric_value(stats.mismatches) - router->mismatches),
        .deaths = (uint64_t)(metric_value(stats.node_deaths) - router->deaths),
        .stale = (uint64_t)(stale_count() - router->stale),
        .requests = router->core.live,
        .stream_faults = (uint64_t)(stream_fault_count() - router->stream_faults),
    };
    const struct registry *registry = &router->core.registry;
    for (size_t i = 0; i < registry->node_count; i++)
        if (registry->nodes[i])
            counts->legs += registry->nodes[i]->leg_count;
}

static struct node *node_named(struct router_side *router, const char *name)
{
    struct node *node = registry_find(&router->core.registry, name);
    now(router);
    return node && node->stream ? node : NULL;
}

bool router_side_drain(struct router_side *router, const char *name)
{
    struct node *node = node_named(router, name);
    if (!node)
        return false;
    node_drain(&router->core.registry, node, true);
    return true;
}

bool router_side_role(struct router_side *router, const char *name, int role)
{
    static const enum placement_role roles[] = {PLACEMENT_PREFILL, PLACEMENT_DECODE,
                                                PLACEMENT_MIXED};
    struct node *node = node_named(router, name);
    if (!node)
        return false;
    node_role(&router->core.registry, node, roles[role]);
    return true;
}

void router_side_print(const struct router_side *router)
{
    const struct registry *registry = &router->core.registry;
    for (size_t i = 0; i < registry->node_count; i++) {
        const struct node *node = registry->nodes[i];
        if (node)
            printf("# router: node %s %s heartbeat %llu held until %llu legs %u pages taken %u\n",
                   node->name, sm_name(&node_states, node->state),
                   (unsigned long long)node->heartbeat, (unsigned long long)node->held_until,
                   node->leg_count, node->pages_taken);
    }
    list_for_each(it, &router->core.requests)
    {
        const struct request *r = container_of(it, struct request, all_link);
        printf("# router: request %llu %s%s received %u of %u, attempt %016llx deaths %u pair "
               "failures %u\n",
               (unsigned long long)r->key, sm_name(&request_states, r->state),
               r->released ? " released" : "", r->answer.received, r->tokens_max,
               (unsigned long long)r->attempt.low, r->deaths, r->pair_failures);
        list_for_each(leg_it, &r->legs)
        {
            const struct leg *leg = container_of(leg_it, struct leg, request_link);
            printf("# router:   leg %016llx kind %d on %s %s\n", (unsigned long long)leg->id.low,
                   leg->kind, leg->node->name, sm_name(&leg_states, leg->state));
        }
    }
}

const struct core *router_side_core(const struct router_side *router)
{
    return &router->core;
}
