/* See pool.h. */
#include "sched/pool.h"

#include <assert.h>
#include <stdlib.h>

#define PAGE_NONE UINT32_MAX

enum status pool_init(struct pool *pool, uint32_t total)
{
    *pool = (struct pool){.total = total, .free_head = total ? 0 : PAGE_NONE};
    list_init(&pool->waiters);
    pool->pages = calloc(total ? total : 1, sizeof *pool->pages);
    if (!pool->pages)
        return STATUS_MEMORY;
    for (uint32_t i = 0; i < total; i++)
        pool->pages[i] = (struct pool_page){.owner = POOL_OWNER_NONE,
                                            .next = i + 1 < total ? i + 1 : PAGE_NONE,
                                            .state = POOL_FREE};
    pool->counts[POOL_FREE] = total;
    return STATUS_OK;
}

void pool_finish(struct pool *pool)
{
    free(pool->pages);
    pool->pages = NULL;
}

static void page_move(struct pool *pool, uint32_t page, enum pool_state to, uint32_t owner)
{
    struct pool_page *p = &pool->pages[page];
    pool->counts[p->state]--;
    pool->counts[to]++;
    p->state = (uint8_t)to;
    p->owner = owner;
}

static void page_release(struct pool *pool, uint32_t page)
{
    page_move(pool, page, POOL_FREE, POOL_OWNER_NONE);
    pool->pages[page].next = pool->free_head;
    pool->free_head = page;
}

enum status pool_take(struct pool *pool, uint32_t count, enum pool_state state, uint32_t owner,
                      uint32_t *pages_out)
{
    assert(state == POOL_RESERVED || state == POOL_USED);
    assert(owner != POOL_OWNER_NONE);
    if (count > pool->counts[POOL_FREE])
        return STATUS_FULL;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t page = pool->free_head;
        assert(pool->pages[page].state == POOL_FREE);
        pool->free_head = pool->pages[page].next;
        pool->pages[page].next = PAGE_NONE;
        page_move(pool, page, state, owner);
        pages_out[i] = page;
    }
    return STATUS_OK;
}

static void page_check(const struct pool *pool, uint32_t page, uint32_t owner)
{
    assert(page < pool->total);
    assert(pool->pages[page].owner == owner);
}

void pool_fill(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        page_check(pool, pages[i], owner);
        assert(pool->pages[pages[i]].state == POOL_RESERVED);
        page_move(pool, pages[i], POOL_USED, owner);
    }
}

void pool_free(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count)
{
    assert(owner != POOL_OWNER_NONE);
    for (uint32_t i = 0; i < count; i++) {
        page_check(pool, pages[i], owner);
        page_release(pool, pages[i]);
    }
}

void pool_quarantine(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count)
{
    assert(owner != POOL_OWNER_NONE);
    for (uint32_t i = 0; i < count; i++) {
        page_check(pool, pages[i], owner);
        page_move(pool, pages[i], POOL_QUARANTINED, POOL_OWNER_NONE);
    }
}

void pool_recover(struct pool *pool, const uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        page_check(pool, pages[i], POOL_OWNER_NONE);
        assert(pool->pages[pages[i]].state == POOL_QUARANTINED);
        page_release(pool, pages[i]);
    }
}

/* --- waiters --- */

void pool_wait(struct pool *pool, struct pool_waiter *waiter, uint64_t age, uint32_t pages,
               uint32_t owner)
{
    assert(!waiter->waiting);
    *waiter = (struct pool_waiter){.age = age, .pages = pages, .owner = owner, .waiting = true};
    struct list *at = &pool->waiters;
    while (at->prev != &pool->waiters &&
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

bool pool_consistent(const struct pool *pool)
{
    uint32_t counts[POOL_STATE_COUNT] = {0}, listed = 0;
    for (uint32_t i = 0; i < pool->total; i++) {
        const struct pool_page *page = &pool->pages[i];
        bool owned = page->state == POOL_RESERVED || page->state == POOL_USED;
        if (page->state >= POOL_STATE_COUNT || owned != (page->owner != POOL_OWNER_NONE))
            return false;
        counts[page->state]++;
    }
    for (uint32_t at = pool->free_head; at != PAGE_NONE; at = pool->pages[at].next)
        if (pool->pages[at].state != POOL_FREE || ++listed > pool->total)
            return false;
    for (int i = 0; i < POOL_STATE_COUNT; i++)
        if (counts[i] != pool->counts[i])
            return false;
    return listed == counts[POOL_FREE];
}

/* --- who gives way --- */

static int younger_first(const void *a, const void *b)
{
    const struct pool_holder *left = a, *right = b;
    if (left->age != right->age)
        return left->age > right->age ? -1 : 1;
    return left->index < right->index ? -1 : left->index > right->index;
}

uint32_t pool_victims(struct pool_holder *holders, uint32_t count, uint64_t age,
                      uint32_t pages_missing, uint32_t *victims_out)
{
    qsort(holders, count, sizeof *holders, younger_first);
    uint32_t victims = 0, freed = 0;
    for (uint32_t i = 0; i < count && freed < pages_missing; i++) {
        if (holders[i].age <= age)
            break;
        if (!holders[i].droppable || !holders[i].pages)
            continue;
        victims_out[victims++] = holders[i].index;
        freed += holders[i].pages;
    }
    return freed >= pages_missing ? victims : 0;
}
