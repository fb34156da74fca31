/* See pool.h. */
#include "sched/pool.h"

#include <assert.h>

#include "base/huge.h"
#include "base/plant.h"

static const struct sm_state states[] = {
    [POOL_FREE] = {"free", SM_TO(POOL_RESERVED) | SM_TO(POOL_USED)},
    [POOL_RESERVED] = {"reserved", SM_TO(POOL_USED) | SM_TO(POOL_FREE) | SM_TO(POOL_QUARANTINED)},
    [POOL_USED] = {"used", SM_TO(POOL_SHARED) | SM_TO(POOL_FREE) | SM_TO(POOL_QUARANTINED)},
    [POOL_SHARED] = {"shared", SM_TO(POOL_CACHED) | SM_TO(POOL_QUARANTINED)},
    [POOL_CACHED] = {"cached", SM_TO(POOL_SHARED) | SM_TO(POOL_FREE)},
    [POOL_QUARANTINED] = {"quarantined",
                          SM_TO(POOL_FREE) | SM_TO(POOL_SHARED) | SM_TO(POOL_CACHED)},
};
const struct sm_table pool_states = SM_TABLE("page", states);

enum status pool_init(struct pool *pool, uint32_t total)
{
    *pool = (struct pool){.total = total, .idle_head = POOL_PAGE_NONE, .idle_tail = POOL_PAGE_NONE};
    list_init(&pool->waiters);
    pool->pages = huge_alloc(total, sizeof *pool->pages);
    pool->free = huge_alloc(total, sizeof *pool->free);
    if (!pool->pages || !pool->free)
        return STATUS_MEMORY;
    for (uint32_t i = 0; i < total; i++) {
        pool->pages[i] = (struct pool_page){.owner = POOL_OWNER_NONE,
                                            .next = total - 1 - i,
                                            .prev = POOL_PAGE_NONE,
                                            .parent = POOL_PAGE_NONE,
                                            .state = POOL_FREE};
        pool->free[total - 1 - i] = i;
    }
    pool->counts[POOL_FREE] = total;
    return STATUS_OK;
}

void pool_finish(struct pool *pool)
{
    huge_free(pool->pages);
    huge_free(pool->free);
    pool->pages = NULL;
    pool->free = NULL;
}

/* The one way from state to state, with the owner rule. */
static void page_move(struct pool *pool, uint32_t page, enum pool_state to, uint32_t owner)
{
    struct pool_page *p = &pool->pages[page];
    assert((owner != POOL_OWNER_NONE) == (to == POOL_RESERVED || to == POOL_USED));
    pool->counts[p->state]--;
    sm_move(&pool_states, &p->state, to);
    pool->counts[to]++;
    p->owner = owner;
}

static void page_release(struct pool *pool, uint32_t page)
{
    page_move(pool, page, POOL_FREE, POOL_OWNER_NONE);
    pool->pages[page].next = pool->counts[POOL_FREE] - 1;
    pool->free[pool->pages[page].next] = page;
}

enum status pool_take(struct pool *pool, uint32_t count, enum pool_state state, uint32_t owner,
                      uint32_t *pages_out)
{
    assert(state == POOL_RESERVED || state == POOL_USED);
    assert(owner != POOL_OWNER_NONE);
    if (count > pool->counts[POOL_FREE])
        return STATUS_FULL;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t page = pool->free[pool->counts[POOL_FREE] - 1];
        pool->pages[page].next = POOL_PAGE_NONE;
        page_move(pool, page, state, owner);
        pages_out[i] = page;
    }
    return STATUS_OK;
}

/* --- indexed pages: their state follows from who holds them --- */

static enum pool_state indexed_state(const struct pool_page *page)
{
    if (page->pins)
        return POOL_SHARED;
    return page->stuck ? POOL_QUARANTINED : POOL_CACHED;
}

static void idle_push(struct pool *pool, uint32_t page)
{
    struct pool_page *p = &pool->pages[page];
    p->idle = true;
    p->prev = pool->idle_tail;
    p->next = POOL_PAGE_NONE;
    if (p->prev == POOL_PAGE_NONE)
        pool->idle_head = page;
    else
        pool->pages[p->prev].next = page;
    pool->idle_tail = page;
}

static void idle_remove(struct pool *pool, uint32_t page)
{
    struct pool_page *p = &pool->pages[page];
    if (!p->idle)
        return;
    if (p->prev == POOL_PAGE_NONE)
        pool->idle_head = p->next;
    else
        pool->pages[p->prev].next = p->next;
    if (p->next == POOL_PAGE_NONE)
        pool->idle_tail = p->prev;
    else
        pool->pages[p->next].prev = p->prev;
    p->idle = false;
    p->prev = p->next = POOL_PAGE_NONE;
}

uint32_t pool_idle_next(struct pool *pool)
{
    uint32_t page = pool->idle_head;
    if (page != POOL_PAGE_NONE)
        idle_remove(pool, page);
    return page;
}

/* Its pins changed: its state follows. */
static void pins_changed(struct pool *pool, uint32_t page)
{
    enum pool_state state = indexed_state(&pool->pages[page]);
    if (state == pool->pages[page].state)
        return;
    idle_remove(pool, page);
    page_move(pool, page, state, POOL_OWNER_NONE);
    if (state == POOL_CACHED)
        idle_push(pool, page);
}

void pool_publish(struct pool *pool, uint32_t owner, uint32_t page, uint32_t parent)
{
    assert(page < pool->total);
    struct pool_page *p = &pool->pages[page];
    assert(p->owner == owner && p->state == POOL_USED && !p->indexed);
    assert(parent == POOL_PAGE_NONE || pool->pages[parent].indexed);
    p->indexed = true;
    p->parent = parent;
    p->pins = 1;
    if (parent != POOL_PAGE_NONE)
        pool->pages[parent].children++;
    pins_changed(pool, page);
}

void pool_pin(struct pool *pool, uint32_t page)
{
    assert(page < pool->total && pool->pages[page].indexed);
    pool->pages[page].pins++;
    pins_changed(pool, page);
}

void pool_unpin(struct pool *pool, uint32_t page)
{
    assert(page < pool->total && pool->pages[page].indexed && pool->pages[page].pins > 0);
    pool->pages[page].pins--;
    pins_changed(pool, page);
}

uint32_t pool_detach(struct pool *pool, uint32_t page)
{
    assert(page < pool->total && pool->pages[page].indexed);
    uint32_t parent = pool->pages[page].parent;
    assert(parent != POOL_PAGE_NONE);
    pool->pages[parent].children--;
    pool->pages[page].parent = POOL_PAGE_NONE;
    return parent;
}

uint32_t pool_evict(struct pool *pool, uint32_t page)
{
    assert(page < pool->total);
    struct pool_page *p = &pool->pages[page];
    assert(p->state == POOL_CACHED && !p->children);
    idle_remove(pool, page);
    uint32_t parent = p->parent == POOL_PAGE_NONE ? POOL_PAGE_NONE : pool_detach(pool, page);
    p->indexed = false;
    page_release(pool, page);
    return parent;
}

/* --- the owner's pages, its own and those it pins --- */

static void own_check(const struct pool *pool, uint32_t page, uint32_t owner)
{
    assert(page < pool->total && owner != POOL_OWNER_NONE);
    assert(pool->pages[page].owner == owner);
}

void pool_fill(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        own_check(pool, pages[i], owner);
        assert(pool->pages[pages[i]].state == POOL_RESERVED);
        page_move(pool, pages[i], POOL_USED, owner);
    }
}

void pool_free(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(pages[i] < pool->total);
        if (i + 8 < count) /* far apart in memory: asked for early */
            __builtin_prefetch(&pool->pages[pages[i + 8]], 1);
        if (pool->pages[pages[i]].indexed) {
            pool_unpin(pool, pages[i]);
        } else {
            own_check(pool, pages[i], owner);
            page_release(pool, pages[i]);
        }
    }
}

void pool_quarantine(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(pages[i] < pool->total);
        struct pool_page *p = &pool->pages[pages[i]];
        if (p->indexed) {
            assert(p->pins > 0);
            p->pins--;
            p->stuck++;
            pins_changed(pool, pages[i]);
        } else {
            own_check(pool, pages[i], owner);
            page_move(pool, pages[i], POOL_QUARANTINED, POOL_OWNER_NONE);
        }
    }
}

void pool_recover(struct pool *pool, const uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(pages[i] < pool->total);
        struct pool_page *p = &pool->pages[pages[i]];
        if (p->indexed) {
            assert(p->stuck > 0);
            p->stuck--;
            pins_changed(pool, pages[i]);
        } else {
            assert(p->state == POOL_QUARANTINED);
            page_release(pool, pages[i]);
        }
    }
}

/* --- waiters --- */

void pool_wait(struct pool *pool, struct pool_waiter *waiter, uint64_t age, uint32_t pages,
               uint32_t owner)
{
    assert(!waiter->waiting);
    *waiter = (struct pool_waiter){.age = age, .pages = pages, .owner = owner, .waiting = true};
    struct list *at = &pool->waiters;
    while (at->prev != &pool->waiters && !PLANTED(NO_AGE_ORDER) &&
           container_of(at->prev, struct pool_waiter, link)->age > age)
        at = at->prev;
    list_insert_before(at, &waiter->link);
}

void pool_wait_end(struct pool_waiter *waiter)
{
    if (!waiter->waiting)
        return;
    waiter->waiting = false;
    list_remove(&waiter->link);
}

struct pool_waiter *pool_wait_first(const struct pool *pool)
{
    if (list_empty(&pool->waiters))
        return NULL;
    return container_of(pool->waiters.next, struct pool_waiter, link);
}

/* The page's own fields agree with each other. */
static bool page_consistent(const struct pool *pool, const struct pool_page *page)
{
    bool owned = page->state == POOL_RESERVED || page->state == POOL_USED;
    if (page->state >= POOL_STATE_COUNT || owned != (page->owner != POOL_OWNER_NONE))
        return false;
    if (page->indexed)
        return page->state == indexed_state(page) &&
               (page->parent == POOL_PAGE_NONE || pool->pages[page->parent].indexed);
    return page->state != POOL_SHARED && page->state != POOL_CACHED && !page->pins &&
           !page->stuck && !page->children && page->parent == POOL_PAGE_NONE;
}

static bool tree_consistent(const struct pool *pool)
{
    uint64_t children = 0, linked = 0;
    for (uint32_t i = 0; i < pool->total; i++) {
        children += pool->pages[i].children;
        linked += pool->pages[i].parent != POOL_PAGE_NONE;
    }
    return children == linked;
}

/* Each free page is in its place: with their count right, all are listed, and once. */
static bool free_consistent(const struct pool *pool)
{
    for (uint32_t i = 0; i < pool->total; i++) {
        const struct pool_page *page = &pool->pages[i];
        if (page->state == POOL_FREE &&
            (page->next >= pool->counts[POOL_FREE] || pool->free[page->next] != i))
            return false;
    }
    return true;
}

bool pool_consistent(const struct pool *pool)
{
    uint32_t counts[POOL_STATE_COUNT] = {0}, idle = 0, idle_listed = 0;
    for (uint32_t i = 0; i < pool->total; i++) {
        if (!page_consistent(pool, &pool->pages[i]))
            return false;
        counts[pool->pages[i].state]++;
        idle += pool->pages[i].idle;
    }
    for (uint32_t at = pool->idle_head; at != POOL_PAGE_NONE; at = pool->pages[at].next)
        if (!pool->pages[at].idle || pool->pages[at].state != POOL_CACHED ||
            ++idle_listed > pool->total)
            return false;
    for (int i = 0; i < POOL_STATE_COUNT; i++)
        if (counts[i] != pool->counts[i])
            return false;
    return free_consistent(pool) && idle == idle_listed && tree_consistent(pool);
}
