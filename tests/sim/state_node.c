/* A node's state for the explorer's fingerprint: all that decides what it does next, but for counters that are only shown. */
#include <stdlib.h>
#include <string.h>

#include "base/loop_impl.h"
#include "kvtransfer/link_impl.h"
#include "node/node.h"
#include "tests/sim/inside.h"
#include "tests/sim/state.h"

/* Timers in any order: a sum of what each is. */
void state_loop(const struct loop *loop, struct print *print)
{
    uint64_t sum = 0;
    for (int i = 0; i < loop->heap_count; i++)
        sum += mix64(loop->heap[i]->deadline_ns ^
                     mix64((uintptr_t)loop->heap[i]->fire - (uintptr_t)state_loop));
    print_head(print, "loop", (uint64_t)loop->heap_count);
    print_value(print, "timers", sum);
    PRINT(print, loop->late_total_ns);
}

static void state_work(const struct work *work, struct print *print)
{
    print_head(print, "work", work->index);
    /* as it lies in memory, so that no new field is forgotten, less pointers and what only tells lives apart */
    struct work plain;
    memcpy(&plain, work, sizeof plain);
    memset(&plain.link, 0, sizeof plain.link);
    memset(&plain.attempt_link, 0, sizeof plain.attempt_link);
    memset(&plain.waiter.link, 0, sizeof plain.waiter.link);
    plain.life = 0;
    plain.tokens = plain.pages = plain.swap_pages = plain.stuck_pages = NULL;
    plain.bias = NULL;
    plain.stop_ids = NULL;
    plain.table = NULL;
    plain.sampling.bias = NULL;
    plain.sampling.prompt = plain.sampling.generated = NULL;
    /* behind its tokens lies whatever its frame was decoded over, which nobody reads */
    for (uint32_t i = plain.first.top_count; i < KV_LOGPROBS_MAX; i++)
        plain.first.top[i] = (struct kv_logprob){0};
    PRINT(print, work->state);
    print_bytes(print, "all", &plain, sizeof plain);
    print_bytes(print, "tokens", work->tokens, work_total(work) * sizeof *work->tokens);
    print_bytes(print, "pages", work->pages, work->page_count * sizeof *work->pages);
    print_bytes(print, "stuck", work->stuck_pages, work->stuck_count * sizeof *work->stuck_pages);
    print_bytes(print, "swap", work->swap_pages, work->swap_count * sizeof *work->swap_pages);
}

static void state_pool(const struct pool *pool, struct print *print)
{
    print_head(print, "pool", pool->total);
    for (uint32_t i = 0; i < pool->total; i++) {
        const struct pool_page *page = &pool->pages[i];
        print_value(print, "page", (uint64_t)page->state << 32 | page->owner);
        PRINT(print, page->pins);
        PRINT(print, page->indexed ? page->parent : 0);
    }
    for (uint32_t i = 0, at; (at = pool_next(pool, i)) != POOL_PAGE_NONE; i++)
        print_value(print, "free", at);
    list_for_each(it, &pool->waiters)
        PRINT(print, container_of(it, struct pool_waiter, link)->owner);
}

/* What is in quarantine nobody reads; what was taken beside pages that are being checked is zeroed before anybody does. */
static enum fake_page_use page_use(const void *context, uint32_t index)
{
    const struct node *node = context;
    const struct pool_page *page = &node->pool.pages[index];
    if (page->state == POOL_FREE || page->state == POOL_QUARANTINED)
        return FAKE_PAGE_FREE;
    bool waits = page->state == POOL_USED && page->owner < node->table.count &&
                 node->table.works[page->owner].state == WORK_FETCHING;
    return page->state == POOL_RESERVED || waits ? FAKE_PAGE_RECEIVES : FAKE_PAGE_COMPUTES;
}

static void state_steps(const struct step_loop *steps, struct print *print)
{
    print_head(print, "steps", steps->in_flight);
    PRINT(print, steps->batch.alone_last);
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++) {
        const struct step_record *record = &steps->records[i];
        print_head(print, "record", record->step != NULL);
        for (uint32_t k = 0; record->step && k < record->part_count; k++) {
            PRINT(print, record->parts[k].work->index);
            PRINT(print, record->parts[k].rows);
            PRINT(print, record->parts[k].position);
            PRINT(print, record->parts[k].sample);
            PRINT(print, record->parts[k].prompt);
            PRINT(print, record->parts[k].seals_partial);
        }
    }
    uint64_t
        rates[3]; /* of steps that take no time they are numbers of no meaning, but they decide */
    memcpy(&rates[0], &steps->prompt_tokens_per_s, 8);
    memcpy(&rates[1], &steps->pace.decode_ns, 8);
    memcpy(&rates[2], &steps->pace.prompt_row_ns, 8);
    for (int i = 0; i < 3; i++)
        PRINT(print, rates[i]);
}

static void state_cache(const struct node *node, struct print *print)
{
    const struct cache *cache = &node->cache;
    const struct prefix *prefix = &cache->prefix;
    print_head(print, "cache", prefix->count);
    for (uint32_t i = 0; i < node->pool.total; i++) {
        const struct prefix_entry *entry = &prefix->entries[i];
        const struct cache_page *page = &cache->pages[i];
        if (page->check_todo | page->check_busy | page->export_todo | page->export_busy) {
            print_head(print, "busy page", i);
            PRINT(print, page->check_todo);
            PRINT(print, page->check_busy);
            PRINT(print, page->export_todo);
            PRINT(print, page->export_busy);
            PRINT(print, page->bad);
        }
        if (!entry->serial)
            continue;
        print_head(print, "entry", i);
        PRINT(print, page->mirrored);
        PRINT(print, page->checked);
        PRINT(print, entry->hash.low);
        PRINT(print, entry->serial);
        PRINT(print, entry->used);
        PRINT(print, entry->removed);
        print_bytes(print, "ids", &prefix->ids[i * prefix->page_tokens],
                    prefix->page_tokens * sizeof *prefix->ids);
    }
    PRINT(print, prefix->serials);
    PRINT(print, prefix->clock);
    PRINT(print, cache->checks);
    PRINT(print, prefix->gone_count);
    PRINT(print, prefix->added_count);
    PRINT(print, prefix->reset);
    PRINT(print, cache->tell_due);
    for (uint32_t i = 0; node->copies.mirror && i < node->pool.total; i++)
        if (page_use(node, i) == FAKE_PAGE_COMPUTES)
            print_bytes(print, "mirror", node->copies.mirror + i * node->copies.page_bytes,
                        node->copies.page_bytes);
}

void state_node(const struct node *node, struct print *print)
{
    print_head(print, "node", node->incarnation);
    PRINT(print, node->router_incarnation);
    PRINT(print, node->assignment_seen);
    PRINT(print, node->role);
    PRINT(print, node->draining);
    PRINT(print, node->leaving);
    PRINT(print, node->drain_until_ns);
    for (uint32_t i = 0; i < node->table.count; i++)
        if (node->table.works[i].state != WORK_FREE)
            state_work(&node->table.works[i], print);
    list_for_each(it, &node->table.states[WORK_FREE]) /* the first is taken first */
        print_value(print, "free", container_of(it, struct work, link)->index);
    for (int state = WORK_ENDING; state <= WORK_LEAVING; state++) /* these go in their order */
        list_for_each(it, &node->table.states[state])
            print_value(print, "goes", container_of(it, struct work, link)->index);
    state_pool(&node->pool, print);
    state_steps(&node->steps, print);
    state_cache(node, print);
    PRINT(print, node->copies.active);
    PRINT(print, node->preempt.swap.free_count);
    PRINT(print, node->outbox.call != NULL);
    PRINT(print, node->outbox.run_count);
    print_bytes(print, "outbox", node->outbox.queue.data, node->outbox.queue.bytes);
    inside_registration(node->registration, print);
    inside_peers(node->peers, print);
    inside_links(node->links, print);
    inside_source(node->links->sides[KV_SIDE_SOURCE].object, print);
    inside_sink(node->links->sides[KV_SIDE_SINK].object, print);
    fake_engine_print(node->engine, page_use, node, print);
    state_loop(node->loop, print);
}

bool state_pull_wrong(const struct node *from, const struct node *to, enum pull_wrong what,
                      struct kv_frame *frame)
{
    const struct kv_link *link = kv_link_find(from->links, to->links->incarnation);
    uint64_t mark;
    struct kv_key key = {0};
    bool live = inside_source_any(to->links->sides[KV_SIDE_SOURCE].object, &key, &mark);
    if (!link || (what == PULL_OUT_OF_RANGE && !live))
        return false;
    *frame = (struct kv_frame){.type = KV_FRAME_PULL,
                               .version = WIRE_NEWEST,
                               .from_incarnation = from->links->incarnation,
                               .to_incarnation = to->links->incarnation,
                               .epoch = link->epoch,
                               .key = key};
    if (what != PULL_OUT_OF_RANGE)
        frame->key = (struct kv_key){.router_incarnation = from->router_incarnation,
                                     .request = 99,
                                     .transfer = {1, 2},
                                     .assignment = what == PULL_EARLY ? mark + 1 : mark};
    frame->pull = (struct kv_pull){.run_count = 1,
                                   .head_count = 1,
                                   .block_count = 1,
                                   .blocks = {what == PULL_OUT_OF_RANGE ? 1000 : 0}};
    return true;
}
