/* See cache.h. */
#include "node/cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/huge.h"
#include "base/log.h"
#include "base/plant.h"
#include "base/random.h"
#include "node/node.h"
#include "node/rest_fault.h"

enum status cache_init(struct node *node)
{
    struct cache *cache = &node->cache;
    cache->on = node->options->prefix_cache;
    cache->all_runs = UINT64_MAX >> (64 - node->info->run_count);
    cache->pages = huge_alloc(node->pool.total, sizeof *cache->pages);
    if (!cache->pages)
        return STATUS_MEMORY;
    memset(cache->pages, 0, node->pool.total * sizeof *cache->pages); /* see base/huge.h */
    random_bytes(cache->key, sizeof cache->key);                      /* until a router names one */
    struct metrics *m = node->metrics;
    cache->hit_pages = metrics_counter(m, "baton_prefix_hit_pages_total",
                                       "Pages that a sequence found in the prefix cache", NULL);
    cache->evicted = metrics_counter(m, "baton_prefix_evicted_pages_total",
                                     "Cached pages that were given up for others", NULL);
    cache->bad =
        metrics_counter(m, "baton_prefix_bad_pages_total",
                        "Cached pages whose checksum was wrong when they were wanted", NULL);
    return prefix_init(&cache->prefix, &node->pool, node->info->page_tokens, cache->key);
}

void cache_finish(struct node *node)
{
    prefix_finish(&node->cache.prefix);
    huge_free(node->cache.pages);
}

/* --- what the router is told --- */

void cache_welcome(struct node *node, const uint8_t *key, size_t key_bytes)
{
    struct cache *cache = &node->cache;
    cache->told = cache->on && key_bytes == PREFIX_KEY_BYTES;
    cache->tell_due = true;
    if (key_bytes && key_bytes != PREFIX_KEY_BYTES)
        log_warn("welcome: cache_key has %zu bytes, but %d: the cache is not reported", key_bytes,
                 PREFIX_KEY_BYTES);
    if (!cache->told)
        return;
    if (memcmp(cache->key, key, PREFIX_KEY_BYTES) == 0) {
        prefix_changes_reset(&cache->prefix);
        return;
    }
    memcpy(cache->key, key, PREFIX_KEY_BYTES);
    prefix_rekey(&cache->prefix, key);
}

void cache_tell_soon(struct node *node)
{
    node->cache.tell_due = true;
}

void cache_tell(struct node *node)
{
    struct cache *cache = &node->cache;
    if (!cache->told ||
        (!cache->tell_due && prefix_changes_count(&cache->prefix) < (uint32_t)CACHED_MAX))
        return;
    cache->tell_due = false;
    uint32_t gone_count, added_count;
    bool reset;
    while (prefix_changes_take(&cache->prefix, CACHED_MAX, cache->gone, &gone_count, cache->added,
                               &added_count, &reset)) {
        Baton__Node__V1__Cached cached = BATON__NODE__V1__CACHED__INIT;
        Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
        cached.reset = reset;
        cached.removed = cache->gone;
        cached.n_removed = gone_count;
        cached.added = cache->added;
        cached.n_added = added_count;
        message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_CACHED;
        message.cached = &cached;
        outbox_send(&node->outbox, &message);
    }
}

/* --- pages --- */

void cache_find(struct node *node, struct work *work, uint32_t blocks)
{
    assert(!work->page_count);
    if (!node->cache.on)
        return;
    uint32_t hits =
        prefix_lookup(&node->cache.prefix, work->salt, work->tokens, blocks, work->pages);
    for (uint32_t i = 0; i < hits; i++)
        pool_pin(&node->pool, work->pages[i]);
    work->page_count = work->hit_count = hits;
}

/* A page that is taken soon: nobody has looked at it for long, and each line that tells of it comes from far. */
static void free_ahead(const struct node *node)
{
    uint32_t page = pool_next(&node->pool, 4);
    if (page == POOL_PAGE_NONE)
        return;
    __builtin_prefetch(&node->pool.pages[page], 1);
    __builtin_prefetch(&node->cache.pages[page], 1);
    engine_page_ahead(node->engine, page);
}

/* New ones as blocks `at` and on. */
static void blocks_take(struct node *node, struct work *work, uint32_t at, uint32_t count,
                        enum pool_state state)
{
    uint32_t have = pool_count(&node->pool, POOL_FREE);
    if (have < count)
        metric_add(node->cache.evicted, prefix_evict(&node->cache.prefix, count - have));
    uint32_t *pages = work->pages + at;
    enum status status = pool_take(&node->pool, count, state, work->index, pages);
    assert(status == STATUS_OK);
    (void)status;
    for (uint32_t i = 0; i < count; i++) {
        struct cache_page *page = &node->cache.pages[pages[i]];
        assert(!page->check_todo && !page->check_busy && !page->export_todo && !page->export_busy);
        page->mirrored = 0;
    }
    engine_pages_unseal(node->engine, pages, count);
    free_ahead(node);
}

void cache_take(struct node *node, struct work *work, uint32_t count, enum pool_state state)
{
    blocks_take(node, work, work->page_count, count, state);
    work->page_count += count;
}

bool cache_replace(struct node *node, struct work *work, uint32_t at, uint32_t count)
{
    const struct pool_waiter *first = pool_wait_first(&node->pool);
    bool older_waits = first && first->age < work->age;
    uint32_t room = pool_count(&node->pool, POOL_FREE) + pool_count(&node->pool, POOL_CACHED);
    if (!count || older_waits || room < count)
        return false;
    assert(!work->stuck_count && at >= work->hit_count && at + count <= work->page_count);
    memcpy(work->stuck_pages, work->pages + at, count * sizeof *work->pages);
    work->stuck_count = count;
    pool_quarantine(&node->pool, work->index, work->stuck_pages, count);
    blocks_take(node, work, at, count, POOL_RESERVED);
    return true;
}

void cache_replaced(struct node *node, struct work *work)
{
    pool_recover(&node->pool, work->stuck_pages, work->stuck_count);
    work->stuck_count = 0;
}

void cache_page_written(struct node *node, uint32_t page)
{
    assert(!node->pool.pages[page].indexed); /* shared pages are never written */
    node->cache.pages[page].mirrored = 0;
}

void cache_release(struct node *node, struct work *work)
{
    pool_free(&node->pool, work->index, work->pages, work->page_count);
    work->page_count = work->hit_count = work->checked = 0;
    work->cursor = (struct prefix_cursor){0};
}

uint32_t cache_whole(const struct node *node, const struct work *work, uint32_t blocks)
{
    uint32_t whole = 0;
    while (whole < blocks && engine_page_sealed(node->engine, work->pages[whole]))
        whole++;
    return whole;
}

void cache_publish(struct node *node, struct work *work)
{
    uint32_t blocks = work->rows_done / node->info->page_tokens;
    if (work->damaged_end && blocks >= work->damaged_end)
        blocks = work->damaged_end - 1;
    if (!node->cache.on || blocks <= work->cursor.blocks ||
        engine_slot_failed(node->engine, work->slot))
        return;
    assert(work->rows_done <= work_total(work) && blocks <= work->page_count);
    for (uint32_t i = work->cursor.blocks; i < blocks; i++)
        if (!engine_page_sealed(node->engine, work->pages[i]))
            blocks = i; /* its step was cancelled */
    prefix_publish(&node->cache.prefix, &work->cursor, work->index, work->salt, work->tokens,
                   work->pages, blocks);
}

void cache_publish_ahead(const struct node *node, const struct work *work, int pass)
{
    const struct prefix *prefix = &node->cache.prefix;
    const struct prefix_cursor *cursor = &work->cursor;
    if (!node->cache.on || !work_live(work) || cursor->blocks >= work->page_count)
        return;
    if (pass == 0) {
        __builtin_prefetch(&work->pages[cursor->blocks]);
        __builtin_prefetch(&work->tokens[cursor->blocks * node->info->page_tokens]);
        __builtin_prefetch(work->salt);
    } else if (pass == 1) {
        prefix_publish_touch(prefix, cursor, work->tokens, work->pages);
        engine_page_ahead(node->engine, work->pages[cursor->blocks]);
    } else {
        prefix_publish_seek(prefix, cursor, work->salt, work->tokens);
    }
}

uint32_t cache_verified(const struct node *node, const struct work *work)
{
    uint32_t moved = work_total(work) / node->info->page_tokens;
    moved = moved < work->page_count ? moved : work->page_count;
    return node->cache.on ? cache_whole(node, work, moved) : 0;
}

void cache_keep(struct node *node, struct work *work)
{
    uint32_t whole = cache_verified(node, work);
    if (whole <= work->hit_count)
        return;
    PLANT_DO(KEPT_OUTSIDE_CACHE, planted_keep(node, work, whole); return );
    pool_fill(&node->pool, work->index, work->pages + work->hit_count, whole - work->hit_count);
    work->rows_done = whole * node->info->page_tokens;
    cache_publish(node, work);
}

/* --- copies on shared pages --- */

static bool page_busy(const struct cache_page *page)
{
    return page->check_todo | page->check_busy | page->export_todo | page->export_busy;
}

/* As long as there is something to do for it, the page stays what it is. */
static void page_hold(struct node *node, uint32_t index)
{
    struct cache_page *page = &node->cache.pages[index];
    if (page_busy(page) == page->pinned)
        return;
    page->pinned = !page->pinned;
    if (page->pinned)
        pool_pin(&node->pool, index);
    else
        pool_unpin(&node->pool, index);
}

/* Begins what can begin now. */
static void page_kick(struct node *node, uint32_t index)
{
    struct cache_page *page = &node->cache.pages[index];
    uint64_t todo = page->check_todo | page->export_todo;
    for (uint32_t run = 0; todo >> run; run++) {
        uint64_t bit = UINT64_C(1) << run;
        if (!(todo & bit) || copies_busy(&node->copies, index, run))
            continue;
        if (page->check_todo & bit) {
            uint64_t sum;
            bool sealed = engine_piece_sum(node->engine, index, run, &sum);
            assert(sealed);
            (void)sealed;
            page->check_todo &= ~bit;
            page->check_busy |= bit;
            copies_begin(&node->copies, NULL, ENGINE_COPY_VERIFY, index, run, &sum);
        } else {
            page->export_todo &= ~bit;
            page->export_busy |= bit;
            copies_begin(&node->copies, NULL, ENGINE_COPY_EXPORT, index, run, NULL);
        }
    }
}

void cache_check_page(struct node *node, uint32_t index)
{
    struct cache_page *page = &node->cache.pages[index];
    if (page->check_todo | page->check_busy)
        return; /* the one that runs will do */
    page->bad = false;
    page->check_todo = node->cache.all_runs;
    page_hold(node, index);
    page_kick(node, index);
}

void cache_export(struct node *node, uint32_t index, uint32_t run)
{
    struct cache_page *page = &node->cache.pages[index];
    uint64_t bit = UINT64_C(1) << run;
    if ((page->export_todo | page->export_busy) & bit)
        return;
    page->export_todo |= bit;
    page_hold(node, index);
    page_kick(node, index);
}

bool cache_check(struct node *node, struct work *work)
{
    work->check_from = node->cache.checks;
    work->checked = 0;
    for (uint32_t i = 0; i < work->hit_count; i++) {
        rest_fault_page(node, work->pages[i]);
        cache_check_page(node, work->pages[i]);
    }
    return work->hit_count > 0;
}

/* The work's hits in order, as far as their checks have ended. */
static void work_advance(struct node *node, struct work *work)
{
    while (work->checked < work->hit_count) {
        uint32_t page = work->pages[work->checked];
        if (node->cache.prefix.entries[page].removed) {
            node_work_again(node, work);
            return;
        }
        if (node->cache.pages[page].checked <= work->check_from)
            return;
        work->checked++;
    }
    node_work_checked(node, work);
}

static void check_ended(struct node *node, uint32_t index)
{
    struct cache *cache = &node->cache;
    struct cache_page *page = &cache->pages[index];
    page->checked = ++cache->checks;
    if (page->bad && !cache->prefix.entries[index].removed) {
        cache->bad_pages++;
        metric_add(cache->bad, 1);
        prefix_remove(&cache->prefix, index);
    }
    list_for_each_safe(it, next, &node->table.states[WORK_FETCHING])
    {
        struct work *work = container_of(it, struct work, link);
        if (work->checked < work->hit_count)
            work_advance(node, work);
    }
}

void cache_copied(struct node *node, const struct engine_copy *copy)
{
    struct cache_page *page = &node->cache.pages[copy->page];
    uint64_t bit = UINT64_C(1) << copy->run;
    bool check = copy->kind == ENGINE_COPY_VERIFY;
    if (check) {
        page->check_busy &= ~bit;
        page->bad |= copy->status != STATUS_OK;
    } else {
        page->export_busy &= ~bit;
        page->mirrored |= bit;
    }
    page_kick(node, copy->page);
    if (check && !(page->check_todo | page->check_busy))
        check_ended(node, copy->page);
    else if (!check)
        serve_exported(node, copy->page, copy->run);
    page_hold(node, copy->page);
}

void cache_work_copied(struct node *node, const struct engine_copy *copy)
{
    struct cache_page *page = &node->cache.pages[copy->page];
    uint64_t bit = UINT64_C(1) << copy->run;
    bool wanted = false;
    bool same = copy->kind == ENGINE_COPY_EXPORT ||
                (copy->kind == ENGINE_COPY_IMPORT && copy->status == STATUS_OK);
    if (same && copies_mirrored(&node->copies) &&
        copy->host == copies_memory(&node->copies, copy->page, copy->run)) {
        page->mirrored |= bit; /* the same bytes on both sides */
        wanted = page->export_todo & bit;
        page->export_todo &= ~bit;
    }
    page_kick(node, copy->page);
    if (wanted)
        serve_exported(node, copy->page, copy->run);
    if (page->pinned)
        page_hold(node, copy->page);
}
