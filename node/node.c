/* See node.h: the parts of a node put together, what it says of itself, and its phases. */
#include "node/node.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static const uint64_t tick_ns = 50 * NS_PER_MS;
static const uint64_t orphan_ns = 4 * NS_PER_S;

/* --- what the node says of itself --- */

uint32_t node_work_count(const struct node *node)
{
    return node->table.count - work_count(&node->table, SM_TO(WORK_FREE) | SM_TO(WORK_QUARANTINED));
}

uint64_t node_stale_frames(const struct node *node)
{
    uint64_t total = node->stale_frames + registration_malformed(node->registration);
    const struct kv_counters *counters = kv_links_counters(node->links);
    for (int i = 0; i < KV_FRAME_TYPE_COUNT; i++)
        total += counters->stale[i];
    return total;
}

static uint32_t permille(double share)
{
    return share > 0 ? share < 1e6 ? (uint32_t)(1000 * share + 0.5) : UINT32_MAX : 0;
}

/* How near to the machine's limits; all zero when these are not known. */
static void load_shares(const struct meter *meter, Baton__Node__V1__Load *load)
{
    if (!meter->known)
        return;
    struct roofline_report prefill = roofline_report(&meter->window, ROOFLINE_PREFILL);
    struct roofline_report decode = roofline_report(&meter->window, ROOFLINE_DECODE);
    load->prefill_held_by = (Baton__Node__V1__HeldBy)(prefill.verdict + 1);
    load->prefill_mfu_permille = permille(prefill.mfu);
    load->prefill_mbu_permille = permille(prefill.mbu);
    load->prefill_limit_permille = permille(prefill.efficiency);
    load->decode_held_by = (Baton__Node__V1__HeldBy)(decode.verdict + 1);
    load->decode_mfu_permille = permille(decode.mfu);
    load->decode_mbu_permille = permille(decode.mbu);
    load->decode_limit_permille = permille(decode.efficiency);
    load->start_rate_permille = permille(roofline_rate_share(&meter->rate));
    load->below_start_rate = meter->rate.slow;
}

void node_load(const struct node *node, Baton__Node__V1__Load *load)
{
    const struct pool *pool = &node->pool;
    load->pages_total = pool->total;
    load->pages_free = pool_count(pool, POOL_FREE);
    load->pages_used = pool_count(pool, POOL_USED);
    load->pages_cached = pool_count(pool, POOL_CACHED);
    load->pages_reserved = pool_count(pool, POOL_RESERVED);
    load->pages_quarantined = pool_count(pool, POOL_QUARANTINED);
    const struct work_table *table = &node->table;
    load->sequences_waiting = work_count(table, SM_TO(WORK_WAITING));
    load->sequences_running = work_count(table, SM_TO(WORK_PROMPT) | SM_TO(WORK_DECODING));
    load->sequences_preempted =
        work_count(table, SM_TO(WORK_SAVING) | SM_TO(WORK_PREEMPTED) | SM_TO(WORK_RESTORING));
    load->sequences_transferring =
        work_count(table, SM_TO(WORK_HOLDING) | SM_TO(WORK_FETCHING) | SM_TO(WORK_ORPHAN));
    static const uint8_t prompts[] = {WORK_WAITING, WORK_PROMPT, WORK_PREEMPTED};
    for (size_t i = 0; i < sizeof prompts; i++)
        list_for_each(it, &table->states[prompts[i]])
        {
            const struct work *work = container_of(it, struct work, link);
            bool computes = work->leg != WORK_LEG_DECODE || work->preemptions;
            if (computes && work->rows_submitted < work_total(work))
                load->prefill_tokens_waiting += work_total(work) - work->rows_submitted;
        }
    load->preemptions_swapped = node->preempt.swapped;
    load->preemptions_recomputed = node->preempt.recomputed;
    load->recomputed_tokens = node->preempt.recomputed_tokens;
    load->decode_step_us = (uint32_t)(node->steps.pace.decode_ns / NS_PER_US);
    struct engine_progress progress;
    engine_progress(node->engine, &progress);
    load->prefill_tokens_per_s = (uint32_t)node->steps.prompt_tokens_per_s;
    load->serving = node_serving(node, NULL);
    load->cancel_layers_max = engine_cancel_layers_max(node->engine);
    load->checksum_failures = kv_links_counters(node->links)->checksum_failures +
                              node->preempt.checksum_failures + node->cache.bad_pages;
    load->stale_frames = node_stale_frames(node);
    load->layers_finished = progress.layers_finished;
    load_shares(&node->meter, load);
}

bool node_serving(const struct node *node, struct buf *reason)
{
    const char *why = NULL;
    uint64_t now_ns = clock_now_ns(), seen_ns = registration_seen_ns(node->registration);
    struct engine_progress progress;
    engine_progress(node->engine, &progress);
    uint64_t since_ns = progress.busy_since_ns > progress.last_layer_ns ? progress.busy_since_ns
                                                                        : progress.last_layer_ns;
    uint64_t patience_ns = 20 * progress.longest_layer_ns;
    if (patience_ns < 5 * NS_PER_S)
        patience_ns = 5 * NS_PER_S;
    if (node->draining)
        why = "draining";
    else if (!seen_ns)
        why = "not registered at a router yet";
    else if (now_ns > seen_ns + 5 * NS_PER_S && !registration_up(node->registration))
        why = "without a router for more than 5 s";
    else if (progress.busy_since_ns && now_ns > since_ns + patience_ns)
        why = "a step was submitted and no layer has finished for too long";
    if (why && reason)
        buf_printf(reason, "%s\n", why);
    return !why;
}

void node_identity(const struct node *node, Baton__Node__V1__Identity *identity)
{
    const struct engine_info *info = node->info;
    identity->model_hash.data = node->model->identity.bytes;
    identity->model_hash.len = sizeof node->model->identity.bytes;
    identity->model_name = node->model->config.name;
    identity->arithmetic = (char *)info->arithmetic;
    identity->kv_type = (char *)kern_kv_type_name(info->kv_type);
    identity->page_tokens = info->page_tokens;
    identity->page_bytes = (uint32_t)info->page_bytes;
    identity->layer_begin = 0;
    identity->layer_end = info->layers;
    identity->head_begin = 0;
    identity->head_end = info->kv_heads;
    identity->layers_per_piece = info->layer_run;
    identity->context_tokens = info->context_tokens;
    identity->vocab_size = info->vocab_size;
    identity->kv_layout = info->kv_layout_version;
}

void node_shape(const struct node *node, uint32_t blocks, struct kv_shape *shape_out)
{
    *shape_out = (struct kv_shape){.group_count = 1};
    shape_out->groups[0] = (struct kv_group_shape){.blocks = blocks,
                                                   .runs = (uint16_t)node->info->run_count,
                                                   .heads = (uint16_t)node->info->kv_heads};
}

/* --- phases --- */

static bool guard_run(void *context)
{
    struct node *node = context;
    meter_wake(node);
    registration_check(node->registration);
    return false;
}

static bool complete_run(void *context)
{
    struct node *node = context;
    registration_check(node->registration);
    step_complete(node);
    node_works_settle(node);
    outbox_flush(&node->outbox);
    return false;
}

static bool schedule_run(void *context)
{
    node_pages_give(context);
    return false;
}

static bool submit_run(void *context)
{
    struct node *node = context;
    step_submit(node);
    cache_tell(node);
    outbox_flush(&node->outbox);
    meter_sleep(node);
    return false;
}

static void engine_wake(void *context)
{
    loop_waker_wake(context);
}

static void tick_due(void *context)
{
    struct node *node = context;
    uint64_t now_ns = loop_now_ns(node->loop);
    loop_timer_set(&node->tick, now_ns + tick_ns);
    peers_tick(node->peers, now_ns);
    fetch_tick(node, now_ns);
    meter_tick(node, now_ns);
    for (uint32_t i = 0; i < node->table.count; i++) {
        struct work *work = &node->table.works[i];
        if (work_live(work) && now_ns >= work->deadline_ns)
            node_work_end(node, work, STATUS_DEADLINE);
        else if (work->state == WORK_ORPHAN && now_ns - work->state_since_ns >= orphan_ns)
            node_work_fail(node, work, BATON__NODE__V1__REPORT__KIND__GAVE_UP, STATUS_TIMEOUT,
                           "the first token did not come");
    }
    drain_tick(node, now_ns);
}

/* --- the registration's side --- */

struct node_impl {
    struct node node;
    struct node_parts parts;
    char router[300];
    char transport[32];                    /* what carries KV: the first word of xfer_describe */
    Baton__Node__V1__AttemptId *alive_ids; /* [works] */
    Baton__Node__V1__AttemptId **alive;
};

static void registration_fill(void *context, uint64_t incarnation, Baton__Node__V1__Register *r)
{
    struct node_impl *impl = context;
    struct node *node = &impl->node;
    node->incarnation = incarnation;
    kv_links_renew(node->links, incarnation);
    r->name = node->name;
    r->role = (Baton__Node__V1__Role)(node->role + 1);
    struct wire_range wires = wire_range_own((uint32_t)node->options->wire_max);
    r->wire_min = wires.min;
    r->wire_max = wires.max;
    node_identity(node, r->identity);
    size_t address_bytes;
    r->kv_address.data = (uint8_t *)xfer_address(kv_links_xfer(node->links), &address_bytes);
    r->kv_address.len = address_bytes;
    r->transport = impl->transport;
    r->grpc = (char *)impl->parts.grpc_address;
    r->http = (char *)impl->parts.http_address;
    r->pages_total = node->pool.total;
    r->sequences_max = node->info->seqs_max;
    r->batch_tokens = node->info->rows_max;
    r->ucx_version = (char *)xfer_ucx_version();
    r->kv_host = (char *)node->options->kv_host;
    r->grows = !node->preempt.early;
}

static void registration_welcome(void *context, const Baton__Node__V1__Welcome *welcome)
{
    struct node *node = context;
    log_info("registered at %s", ((struct node_impl *)node)->router);
    node->router_incarnation = welcome->router_incarnation;
    node->wire = welcome->wire ? welcome->wire : WIRE_OLDEST;
    node->assignment_seen = 0;
    kv_links_set_router(node->links, welcome->router_incarnation);
    cache_welcome(node, welcome->cache_key.data, welcome->cache_key.len);
}

static void registration_message(void *context, const Baton__Node__V1__RouterMessage *message)
{
    node_message(context, message);
}

static void registration_heartbeat(void *context, Baton__Node__V1__Heartbeat *heartbeat)
{
    struct node_impl *impl = context;
    struct node *node = &impl->node;
    node_load(node, heartbeat->load);
    node->cache.tell_due = true;
    heartbeat->assignment = node->assignment_seen;
    heartbeat->alive = impl->alive;
    for (uint32_t i = 0; i < node->table.count; i++) {
        const struct work *work = &node->table.works[i];
        if (!work_live(work))
            continue;
        Baton__Node__V1__AttemptId *id = impl->alive[heartbeat->n_alive++];
        id->high = work->key.transfer.high;
        id->low = work->key.transfer.low;
    }
}

static void registration_lost(void *context, const char *why)
{
    struct node *node = context;
    log_warn("all work stopped: %s", why);
    metric_add(node->counted.self_stops, 1);
    node_stop_all(node);
    peers_clear(node->peers);
}

static void registration_fault(void *context, enum seal_verdict fault)
{
    metric_add(((struct node *)context)->counted.stream_faults[fault], 1);
}

static void registration_refused(void *context, const struct err *err)
{
    struct node_impl *impl = context;
    impl->parts.refused(impl->parts.context, err);
}

static void registration_left(void *context)
{
    struct node_impl *impl = context;
    impl->parts.left(impl->parts.context);
}

/* --- life --- */

static void metrics_declare(struct node *node)
{
    struct metrics *m = node->metrics;
    struct node_metrics *c = &node->counted;
    const char *tokens = "baton_tokens_total", *tokens_help = "Tokens computed or found";
    c->tokens_prompt = metrics_counter(m, tokens, tokens_help, "kind", "prompt", NULL);
    c->tokens_completion = metrics_counter(m, tokens, tokens_help, "kind", "completion", NULL);
    c->tokens_cached = metrics_counter(m, tokens, tokens_help, "kind", "cached", NULL);
    c->steps = metrics_counter(m, "baton_steps_total", "Steps given to the engine", NULL);
    c->rows = metrics_counter(m, "baton_step_rows_total", "Rows in those steps", NULL);
    const char *stale = "baton_stale_frames_total";
    const char *stale_help = "Messages and frames of an earlier life, dropped";
    c->stale_assign = metrics_counter(m, stale, stale_help, "kind", "assign", NULL);
    c->stale_renew = metrics_counter(m, stale, stale_help, "kind", "renew", NULL);
    c->stale_first_token = metrics_counter(m, stale, stale_help, "kind", "first_token", NULL);
    c->stale_stream = metrics_counter(m, stale, stale_help, "kind", "stream", NULL);
    for (int i = SEAL_TWICE; i < SEAL_VERDICT_COUNT; i++)
        c->stream_faults[i] =
            metrics_counter(m, "baton_stream_faults_total",
                            "Messages between router and nodes that were not as they were sent",
                            "reason", seal_label((enum seal_verdict)i), NULL);
    c->self_stops = metrics_counter(m, "baton_registrations_lost_total",
                                    "Streams to the router that ended, with all their work", NULL);
    c->dropped = metrics_counter(m, "baton_dropped_total",
                                 "Sources and reservations given up for an older request", NULL);
    const char *preempted = "baton_preemptions_total";
    const char *preempted_help = "Sequences that gave their pages up to come back later";
    c->preempted_swap = metrics_counter(m, preempted, preempted_help, "way", "swap", NULL);
    c->preempted_recompute =
        metrics_counter(m, preempted, preempted_help, "way", "recompute", NULL);
    c->recomputed =
        metrics_counter(m, "baton_recomputed_tokens_total",
                        "Positions computed again after their pages were given up", NULL);
    c->handed_over =
        metrics_counter(m, "baton_handed_over_total",
                        "Sequences that a draining node asked to have elsewhere", NULL);
    static const char *const verdicts[] = {"full", "draining", "invalid", "gone"};
    for (int i = 0; i < 4; i++)
        c->refused[i] = metrics_counter(m, "baton_assignments_refused_total",
                                        "Assignments that this node did not take", "verdict",
                                        verdicts[i], NULL);
    static const char *const amounts[] = {"nothing", "part", "all"};
    for (int i = 0; i < 3; i++)
        c->fetches[i] = metrics_counter(m, "baton_prefix_fetches_total",
                                        "Prefixes fetched from other nodes, by what came", "got",
                                        amounts[i], NULL);
}

static enum status memory_take(struct node_impl *impl, struct err *err)
{
    struct node *node = &impl->node;
    uint32_t works = node->info->slots_max;
    uint32_t context = node->info->context_tokens, page_tokens = node->info->page_tokens;
    enum status status = pool_init(&node->pool, node->info->page_count);
    if (!status)
        status = work_table_init(&node->table, works, context + 1,
                                 (context + page_tokens - 1) / page_tokens);
    if (!status)
        status = copies_init(&node->copies, node->engine);
    if (!status)
        status = cache_init(node);
    if (!status)
        status = outbox_init(&node->outbox, node->info->seqs_max + works);
    if (!status)
        status = step_loop_init(node);
    if (!status)
        status = preempt_init(node);
    impl->alive_ids = calloc(works, sizeof *impl->alive_ids);
    impl->alive = calloc(works, sizeof *impl->alive);
    if (status || !impl->alive_ids || !impl->alive)
        return err_set(
            err, STATUS_MEMORY,
            "node: no memory for %u sequences of %u tokens and %llu bytes of swap_memory", works,
            context, (unsigned long long)node->options->swap_memory);
    for (uint32_t i = 0; i < works; i++) {
        baton__node__v1__attempt_id__init(&impl->alive_ids[i]);
        impl->alive[i] = &impl->alive_ids[i];
    }
    return STATUS_OK;
}

static uint32_t peers_max(const struct node_impl *impl)
{
    return impl->parts.peers_max ? impl->parts.peers_max : PEERS_MAX;
}

static enum status links_make(struct node_impl *impl, struct err *err)
{
    struct node *node = &impl->node;
    struct kv_links_options options = {.links_max = peers_max(impl),
                                       .reopen_ns = 500 * NS_PER_MS,
                                       .idle_ns = 2 * NS_PER_S,
                                       .wait_ns = KV_WAIT_NS,
                                       .rate_max = node->options->kv_rate_max};
    struct kv_links_events events = {.context = node->peers, .link_changed = peers_link_changed};
    enum status status = kv_links_create(&options, &events, 1, &node->links, err);
    if (status)
        return status;
    struct xfer_handler handler = kv_links_handler(node->links);
    struct xfer *xfer;
    status = impl->parts.transport.make(impl->parts.transport.context, &handler, &xfer, err);
    if (status)
        return status;
    kv_links_start(node->links, xfer);
    snprintf(impl->transport, sizeof impl->transport, "%.*s",
             (int)strcspn(xfer_describe(xfer), "/"), xfer_describe(xfer));
    return STATUS_OK;
}

static enum status registration_make(struct node_impl *impl, struct err *err)
{
    struct node *node = &impl->node;
    config_format_address(&node->options->router, impl->router, sizeof impl->router);
    struct registration_options options = {.router = impl->router};
    struct registration_handler handler = {
        .context = impl, /* begins with the node */
        .fill = registration_fill,
        .welcome = registration_welcome,
        .message = registration_message,
        .heartbeat = registration_heartbeat,
        .lost = registration_lost,
        .fault = registration_fault,
        .refused = registration_refused,
        .left = registration_left,
    };
    return registration_create(node->loop, node->rpc, &node->outbox, &options, &handler,
                               &node->registration, err);
}

static enum status parts_make(struct node_impl *impl, struct err *err)
{
    struct node *node = &impl->node;
    enum status status = memory_take(impl, err);
    if (!status)
        status = peers_create(node, peers_max(impl), &node->peers, err);
    if (!status)
        status = links_make(impl, err);
    if (!status)
        status = serve_create(node, err);
    if (!status)
        status = fetch_create(node, err);
    if (!status)
        status = registration_make(impl, err);
    return status;
}

enum status node_create(const struct node_parts *parts, struct node **node_out, struct err *err)
{
    struct node_impl *impl = calloc(1, sizeof *impl);
    if (!impl)
        return err_set(err, STATUS_MEMORY, "node: no memory");
    struct node *node = &impl->node;
    impl->parts = *parts;
    node->loop = parts->loop;
    node->rpc = parts->rpc;
    node->options = parts->options;
    node->model = parts->model;
    node->engine = parts->engine;
    node->info = engine_info(parts->engine);
    node->metrics = parts->metrics;
    node->faults = parts->faults;
    node->role = (enum node_role)parts->options->role;
    node->legs[WORK_LEG_PREFILL] = parts->prefill;
    node->legs[WORK_LEG_DECODE] = parts->decode;
    snprintf(node->name, sizeof node->name, "%s", parts->name);
    metrics_declare(node);
    meter_init(node, parts->limits);
    loop_timer_init(node->loop, &node->tick, tick_due, node);
    loop_hook_add(node->loop, &node->guard, LOOP_RECEIVE, guard_run, node);
    enum status status = parts_make(impl, err);
    if (!status)
        status = kv_links_attach(node->links, node->loop, err);
    if (status) {
        node_destroy(node);
        return status;
    }
    engine_set_waker(node->engine, engine_wake, parts->engine_waker);
    loop_hook_add(node->loop, &node->complete, LOOP_COMPLETE, complete_run, node);
    loop_hook_add(node->loop, &node->schedule, LOOP_SCHEDULE, schedule_run, node);
    loop_hook_add(node->loop, &node->submit, LOOP_SUBMIT, submit_run, node);
    *node_out = node;
    return STATUS_OK;
}

void node_start(struct node *node)
{
    loop_timer_set(&node->tick, loop_now_ns(node->loop) + tick_ns);
    registration_start(node->registration);
}

void node_destroy(struct node *node)
{
    if (!node)
        return;
    struct node_impl *impl = (struct node_impl *)node;
    loop_hook_remove(&node->guard);
    loop_hook_remove(&node->complete);
    loop_hook_remove(&node->schedule);
    loop_hook_remove(&node->submit);
    loop_timer_stop(&node->tick);
    if (node->links && node->table.works)
        node_stop_all(node);
    registration_destroy(node->registration);
    /* what the engine still does is waited for: steps leave out what was cancelled, copies are short */
    step_complete(node);
    while (node->steps.in_flight || copies_active(&node->copies)) {
        engine_wait(node->engine, NS_PER_S);
        step_complete(node);
    }
    if (node->links) {
        kv_links_detach(node->links);
        kv_links_destroy(node->links);
    }
    serve_destroy(node);
    fetch_destroy(node);
    peers_destroy(node->peers);
    step_loop_finish(node);
    cache_finish(node);
    copies_finish(&node->copies);
    outbox_finish(&node->outbox);
    work_table_finish(&node->table);
    pool_finish(&node->pool);
    preempt_finish(node);
    free(impl->alive_ids);
    free(impl->alive);
    free(impl);
}
