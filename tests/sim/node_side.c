/* See node_side.h. */
#include "tests/sim/node_side.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/plant.h"
#include "decode_node/decode.h"
#include "node/node.h"
#include "prefill_node/prefill.h"

struct node_side {
    struct node_side_options of;
    struct node_options options;
    struct loop *loop;
    struct rpc *rpc;
    struct engine *engine;
    struct loop_waker waker;
    struct xfer *xfer;
    struct metrics *metrics;
    struct node *node;
    bool left;
    uint8_t *states; /* [works] as they were after the last turn */
    uint32_t *lives;
    struct checked { /* what was there when all was looked at last */
        uint64_t moves, serials;
        uint32_t counts[POOL_STATE_COUNT];
        uint32_t turns; /* since then */
    } checked;
};

static struct model_file model = {.config = {.name = "fake", .vocab = FAKE_VOCAB}};

/* What ucx.c would say. */
const char *xfer_ucx_version(void)
{
    return "none";
}

static enum status transport_make(void *context, const struct xfer_handler *handler,
                                  struct xfer **xfer_out, struct err *err)
{
    struct node_side *side = context;
    struct xfer_options options = {.peers_max = 16};
    enum status status = xfer_memory_create(side->of.hub, &options, handler, xfer_out, err);
    side->xfer = *xfer_out;
    return status;
}

static void refused(void *context, const struct err *err)
{
    sim_fail("node %s is refused: %s", ((struct node_side *)context)->of.name, err->message);
}

static void left(void *context)
{
    ((struct node_side *)context)->left = true;
}

static void nothing(void *context)
{
    (void)context;
}

struct node_side *node_side_create(const struct node_side_options *options)
{
    struct node_side *side = calloc(1, sizeof *side);
    struct err err = ERR_INIT;
    assert(side);
    side->of = *options;
    side->options = (struct node_options){
        .name = side->of.name,
        .router = {.host = "router", .port = 1},
        .role = options->role,
        .page_tokens = options->engine.page_tokens,
        .kv_pages = options->engine.page_count,
        .chunk_tokens = options->chunk_tokens,
        .batch_tokens = options->engine.rows_max,
        .sequences_max = options->engine.seqs_max,
        .steps_in_flight = options->steps_in_flight,
        .prefix_cache = true,
        .kv_host = "127.0.0.1",
        .grace_ns = options->grace_ns,
        .gap_ms = options->gap_ms,
        .reserve = options->reserve,
        .preempt = options->preempt,
        .preempt_every = options->preempt_every,
        .swap_memory = (uint64_t)options->swap_pages * options->engine.layers *
                       options->engine.page_tokens * sizeof(uint64_t),
    };
    enum status status = loop_create(&side->loop, &err);
    if (!status)
        status = metrics_create(&side->metrics, &err);
    if (status)
        sim_fail("%s", err.message);
    side->rpc = net_rpc_create(options->net, side->loop, options->place);
    side->engine = fake_engine_create(&options->engine);
    loop_waker_init(side->loop, &side->waker, nothing, NULL, &err);
    const struct node_parts parts = {
        .loop = side->loop,
        .rpc = side->rpc,
        .options = &side->options,
        .model = &model,
        .engine = side->engine,
        .limits = options->limits,
        .engine_waker = &side->waker,
        .metrics = side->metrics,
        .prefill = &prefill_leg,
        .decode = &decode_leg,
        .transport = {transport_make, side},
        .name = side->of.name,
        .grpc_address = "",
        .http_address = "",
        .peers_max = options->peers_max ? options->peers_max : 8,
        .refused = refused,
        .left = left,
        .context = side,
    };
    if (node_create(&parts, &side->node, &err))
        sim_fail("%s", err.message);
    side->states = calloc(side->node->table.count, sizeof *side->states);
    side->lives = calloc(side->node->table.count, sizeof *side->lives);
    assert(side->states && side->lives);
    node_start(side->node);
    return side;
}

void node_side_destroy(struct node_side *side, bool silent)
{
    if (!side)
        return;
    net_kill(side->rpc, silent);
    xfer_hub_kill(side->xfer);
    node_destroy(side->node);
    rpc_destroy(side->rpc);
    engine_destroy(side->engine);
    loop_waker_finish(&side->waker);
    metrics_destroy(side->metrics);
    loop_destroy(side->loop);
    free(side->states);
    free(side->lives);
    free(side);
}

struct loop *node_side_loop(struct node_side *side)
{
    return side->loop;
}

struct rpc *node_side_rpc(struct node_side *side)
{
    return side->rpc;
}

struct engine *node_side_engine(struct node_side *side)
{
    return side->engine;
}

struct xfer *node_side_xfer(struct node_side *side)
{
    return side->xfer;
}

void node_side_drain(struct node_side *side)
{
    node_drain(side->node, side->options.grace_ns);
}

bool node_side_left(const struct node_side *side)
{
    return side->left;
}

/* --- planted --- */

/* Each waiter gets a page in turn, whatever it still lacks, and who has all comes first. */
void planted_one_by_one(struct node *node)
{
    bool given = true;
    while (given) {
        given = false;
        list_for_each_safe(it, next, &node->pool.waiters)
        {
            struct pool_waiter *waiter = container_of(it, struct pool_waiter, link);
            struct work *work = &node->table.works[waiter->owner];
            if (!waiter->pages || work->state != WORK_WAITING)
                continue;
            bool receives = work->leg == WORK_LEG_DECODE || work->fetch_blocks > 0;
            enum pool_state state = receives ? POOL_RESERVED : POOL_USED;
            if (pool_take(&node->pool, 1, state, work->index, work->pages + work->page_count))
                return;
            work->page_count++;
            given = true;
            if (--waiter->pages)
                continue;
            list_remove(&waiter->link);
            list_push_front(&node->pool.waiters, &waiter->link);
        }
    }
}

/* They are filled, and in no block table. */
void planted_keep(struct node *node, struct work *work, uint32_t pages)
{
    uint32_t hits = work->hit_count;
    pool_fill(&node->pool, work->index, work->pages + hits, pages - hits);
    memmove(work->pages + hits, work->pages + pages,
            (work->page_count - pages) * sizeof *work->pages);
    work->page_count -= pages - hits;
}

/* --- what must hold --- */

static bool holds_pages(const struct work *work)
{
    return work->page_count > 0;
}

/* A page that is not shared is in one block table, and the pool agrees on whose; a shared one has as many pins as there are block
 * tables with it, and one more while copies run on it. */
static void check_owners(const struct node_side *side)
{
    const struct node *node = side->node;
    if (!prefix_consistent(&node->cache.prefix))
        sim_fail("%s: the pool or the prefix index is not consistent", side->of.name);
    uint32_t owned = 0;
    static uint32_t pins[4096];
    for (uint32_t i = 0; i < node->pool.total && i < 4096; i++)
        pins[i] = node->cache.pages[i].pinned;
    for (uint32_t i = 0; i < node->table.count; i++) {
        const struct work *work = &node->table.works[i];
        if (!holds_pages(work) || work->state == WORK_QUARANTINED)
            continue;
        for (uint32_t k = 0; k < work->page_count; k++) {
            const struct pool_page *page = &node->pool.pages[work->pages[k]];
            if (!page->indexed && page->owner != i)
                sim_fail("%s: page %u of work %u is work %u's", side->of.name, work->pages[k], i,
                         page->owner);
            if (page->indexed)
                pins[work->pages[k] % 4096]++;
            else
                owned++;
        }
    }
    for (uint32_t i = 0; i < node->pool.total && i < 4096; i++)
        if (node->pool.pages[i].pins != pins[i])
            sim_fail("%s: page %u has %u pins, but %u hold it", side->of.name, i,
                     node->pool.pages[i].pins, pins[i]);
    uint32_t own = pool_count(&node->pool, POOL_USED) - pool_count(&node->pool, POOL_SHARED) +
                   pool_count(&node->pool, POOL_RESERVED);
    if (owned != own)
        sim_fail("%s: %u pages in block tables, %u used or reserved", side->of.name, owned, own);
}

/* While an older request waits for pages, no younger one takes any. */
static void check_ages(struct node_side *side)
{
    const struct node *node = side->node;
    uint64_t oldest_waiting = UINT64_MAX;
    for (uint32_t i = 0; i < node->table.count; i++) {
        const struct work *work = &node->table.works[i];
        if (work->state == WORK_WAITING && work->age < oldest_waiting)
            oldest_waiting = work->age;
    }
    for (uint32_t i = 0; i < node->table.count; i++) {
        const struct work *work = &node->table.works[i];
        bool began = (work->state == WORK_PROMPT || work->state == WORK_FETCHING) &&
                     (side->lives[i] != work->life || side->states[i] == WORK_WAITING);
        if (began && work->age > oldest_waiting)
            sim_fail("%s: a request of age %llu took pages while one of age %llu waits",
                     side->of.name, (unsigned long long)work->age,
                     (unsigned long long)oldest_waiting);
        /* pages that a sequence grows by are no reason: here all are taken at once */
        if (side->options.reserve == NODE_RESERVE_EARLY && side->lives[i] == work->life &&
            side->states[i] == WORK_WAITING &&
            (work->state == WORK_SAVING || work->state == WORK_PREEMPTED))
            sim_fail("%s: a request of age %llu took pages and gave them to an older one at once",
                     side->of.name, (unsigned long long)work->age);
        side->states[i] = work->state;
        side->lives[i] = work->life;
    }
}

/* The router ends an attempt by name before it sends the next one on the same stream. Who decodes may also be who serves. */
static void check_attempts(const struct node_side *side)
{
    const struct work_table *table = &side->node->table;
    for (uint32_t i = 0; i < table->count; i++)
        for (uint32_t k = 0; k < i && work_live(&table->works[i]); k++)
            if (work_live(&table->works[k]) &&
                (table->works[i].leg == WORK_LEG_SERVE) ==
                    (table->works[k].leg == WORK_LEG_SERVE) &&
                table->works[i].key.request == table->works[k].key.request)
                sim_fail("%s: works %u and %u are of the same request", side->of.name, k, i);
}

/* Most turns are a tick in which nothing moves. What is wrong after one of these stays wrong: it is seen some turns later. */
static bool check_due(struct node_side *side)
{
    enum { IDLE_TURNS = 8 };
    const struct node *node = side->node;
    struct checked now = {.moves = node->table.moves, .serials = node->cache.prefix.serials};
    memcpy(now.counts, node->pool.counts, sizeof now.counts);
    now.turns = side->checked.turns;
    if (!side->of.check_always && side->checked.turns < IDLE_TURNS &&
        memcmp(&now, &side->checked, sizeof now) == 0) {
        side->checked.turns++;
        return false;
    }
    side->checked = now;
    side->checked.turns = 0;
    return true;
}

void node_side_check(struct node_side *side)
{
    if (!check_due(side))
        return;
    check_attempts(side);
    check_owners(side);
    check_ages(side);
}

bool node_side_rest(const struct node_side *side, char *why, size_t why_bytes)
{
    const struct node *node = side->node;
    for (uint32_t i = 0; i < node->table.count; i++)
        if (node->table.works[i].state != WORK_FREE) {
            snprintf(why, why_bytes, "%s: work %u is %s", side->of.name, i,
                     sm_name(&work_states, node->table.works[i].state));
            return false;
        }
    for (int state = POOL_RESERVED; state < POOL_STATE_COUNT; state++)
        if (state != POOL_CACHED && pool_count(&node->pool, (enum pool_state)state)) {
            snprintf(why, why_bytes, "%s: %u pages in state %d", side->of.name,
                     pool_count(&node->pool, (enum pool_state)state), state);
            return false;
        }
    if (!fake_engine_idle(side->engine)) {
        snprintf(why, why_bytes, "%s: the engine is not idle", side->of.name);
        return false;
    }
    if (!registration_up(node->registration)) {
        snprintf(why, why_bytes, "%s: not registered", side->of.name);
        return false;
    }
    return true;
}

bool node_side_works(const struct node_side *side)
{
    for (uint32_t i = 0; i < side->node->table.count; i++)
        if (work_live(&side->node->table.works[i]))
            return true;
    return false;
}

uint64_t node_side_incarnation(const struct node_side *side)
{
    return side->node->incarnation;
}

uint64_t node_side_leases_expired(const struct node_side *side)
{
    return kv_links_counters(side->node->links)->leases_expired;
}

bool node_side_fetches_too_long(const struct node_side *side, uint64_t from_incarnation,
                                uint64_t longest_ns)
{
    for (uint32_t i = 0; i < side->node->table.count; i++) {
        const struct work *work = &side->node->table.works[i];
        if (work->state == WORK_FETCHING && work->leg == WORK_LEG_DECODE && work->fetch.live &&
            work->source_incarnation == from_incarnation &&
            clock_now_ns() - work->state_since_ns >= longest_ns)
            return true;
    }
    return false;
}

/* A page at rest: held for others to fetch, or in the cache. What a sequence here computes on, or has begun to verify, is in use, and
 * no checksum could tell. */
static bool at_rest(const struct node *node, uint32_t page)
{
    bool rests = node->pool.pages[page].indexed && !node->cache.pages[page].pinned;
    for (uint32_t i = 0; i < node->table.count; i++) {
        const struct work *work = &node->table.works[i];
        for (uint32_t k = 0; k < work->page_count; k++)
            if (work->pages[k] == page) {
                if (work->state != WORK_HOLDING || node->cache.pages[page].pinned)
                    return false;
                rests = true;
            }
    }
    return rests;
}

bool node_side_flip(struct node_side *side, struct dice *dice)
{
    struct node *node = side->node;
    uint32_t total = node->pool.total, begin = dice_below(dice, total);
    for (uint32_t i = 0; i < total; i++)
        if (at_rest(node, (begin + i) % total))
            return fake_engine_flip(side->engine, (begin + i) % total,
                                    dice_below(dice, node->info->run_count),
                                    (uint32_t)dice_u64(dice));
    return false;
}

void node_side_counts(const struct node_side *side, struct node_counts *counts)
{
    const struct node *node = side->node;
    const struct kv_counters *kv = kv_links_counters(node->links);
    *counts = (struct node_counts){
        .checksum_failures = kv->checksum_failures + node->cache.bad_pages,
        .dropped = (uint64_t)metric_value(node->counted.dropped),
        .leases_expired = kv->leases_expired,
        .gave_up = kv->gave_up,
        .stale = node_stale_frames(node),
        .cached_tokens = (uint64_t)metric_value(node->counted.tokens_cached),
        .lost = (uint64_t)metric_value(node->counted.self_stops),
        .prompt_tokens = (uint64_t)metric_value(node->counted.tokens_prompt),
        .completion_tokens = (uint64_t)metric_value(node->counted.tokens_completion),
        .pieces = kv->pieces_verified,
        .fetched = (uint64_t)(metric_value(node->counted.fetches[1]) +
                              metric_value(node->counted.fetches[2])),
        .swapped = node->preempt.swapped,
        .recomputed = node->preempt.recomputed,
        .handed_over = (uint64_t)metric_value(node->counted.handed_over),
    };
    for (int i = SEAL_TWICE; i < SEAL_VERDICT_COUNT; i++)
        counts->stream_faults += (uint64_t)metric_value(node->counted.stream_faults[i]);
}

void node_side_print(const struct node_side *side)
{
    const struct node *node = side->node;
    printf("# %s: pages %u free %u used %u reserved %u cached %u quarantined; %s\n", side->of.name,
           pool_count(&node->pool, POOL_FREE), pool_count(&node->pool, POOL_USED),
           pool_count(&node->pool, POOL_RESERVED), pool_count(&node->pool, POOL_CACHED),
           pool_count(&node->pool, POOL_QUARANTINED),
           registration_up(node->registration) ? "registered" : "without a router");
    for (uint32_t i = 0; i < node->table.count; i++) {
        const struct work *work = &node->table.works[i];
        if (work->state == WORK_FREE)
            continue;
        printf("# %s:   work %u %s leg %d attempt %016llx age %llu pages %u of %u tokens %u+%u "
               "rows %u done %u found %u unready %u steps %u copies %u%s%s%s\n",
               side->of.name, i, sm_name(&work_states, work->state), work->leg,
               (unsigned long long)work->key.transfer.low, (unsigned long long)work->age,
               work->page_count, work->pages_needed, work->prompt_count, work->generated_count,
               work->rows_submitted, work->rows_done, work->hit_count, work->pieces_left,
               work->steps_outstanding, work->copies, work->fetch.live ? " fetches" : "",
               work->serve.live ? " serves" : "", work->first_known ? " first" : "");
    }
}

struct roofline_report node_side_report(const struct node_side *side, enum roofline_phase phase)
{
    return roofline_report(&side->node->meter.window, phase);
}

bool node_side_slow(const struct node_side *side, double *share_out)
{
    *share_out = roofline_rate_share(&side->node->meter.rate);
    return side->node->meter.rate.slow;
}

const struct node *node_side_node(const struct node_side *side)
{
    return side->node;
}
