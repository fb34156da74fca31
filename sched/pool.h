/* The page pool: which KV page belongs to whom, and in what state. Numbers only; the bytes live in
 * the backend.
 *
 *              take(USED)
 *      ┌──────────────────────────────┐
 *      │                              ▼           keep (later: the prefix cache)
 *    FREE ──take(RESERVED)──▶ RESERVED ──fill──▶ USED ──────────────▶ CACHED
 *      ▲ ▲                      │   │             │ │                  │
 *      │ └──────────free────────┘   └─quarantine┐ │ └─free─▶ FREE      └─evict─▶ FREE
 *      │                                        ▼ ▼
 *      └───────────────recover──────────── QUARANTINED
 *
 * FREE: nobody's. RESERVED: an owner's, being received. USED: an owner's, with keys and values
 * computed or verified. CACHED: the cache's alone, evictable. QUARANTINED: an operation that may
 * still touch it never ended; nobody's until the transport is torn down. Invariant: every page is
 * in exactly one state and has exactly one owner (POOL_OWNER_NONE when FREE, CACHED or
 * QUARANTINED); the five counts add up to the total.
 *
 * Pages are taken all at once or not at all, and while an older request waits for pages no younger
 * one takes any (docs/PROTOCOL.md, "No circular wait"): waiters stand in a list by age, and only
 * its head may be served.
 *
 * Pure: no clock, no memory of its own beyond what pool_init took. Owner: the loop thread of the
 * node. */
#ifndef BATON_SCHED_POOL_H
#define BATON_SCHED_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/status.h"

enum pool_state {
    POOL_FREE,
    POOL_RESERVED,
    POOL_USED,
    POOL_CACHED,
    POOL_QUARANTINED,
    POOL_STATE_COUNT
};

#define POOL_OWNER_NONE UINT32_MAX

struct pool_page {
    uint32_t owner; /* the sequence's index in its holder's table */
    uint32_t next;  /* of the free list */
    uint8_t state;
};

/* A request that waits for pages. Belongs to the waiter, in the pool's list from pool_wait to
 * pool_wait_end. */
struct pool_waiter {
    struct list link;
    uint64_t age; /* admission number; lower is older */
    uint32_t pages;
    uint32_t owner;
    bool waiting;
};

struct pool {
    struct pool_page *pages;
    uint32_t total;
    uint32_t counts[POOL_STATE_COUNT];
    uint32_t free_head;
    struct list waiters; /* oldest first */
};

/* STATUS_MEMORY, or STATUS_OK with all pages FREE. */
enum status pool_init(struct pool *pool, uint32_t total);
void pool_finish(struct pool *pool);

/* Takes `count` FREE pages for `owner` into `state` (RESERVED or USED): all of them, or none and
 * STATUS_FULL. Does not look at the waiters: see pool_wait_next. */
enum status pool_take(struct pool *pool, uint32_t count, enum pool_state state, uint32_t owner,
                      uint32_t *pages_out);
/* RESERVED to USED: received and verified. */
void pool_fill(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count);
/* The owner's pages become FREE: the caller vouches that nothing can touch them any more. */
void pool_free(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count);
/* The owner is gone, and an operation on its pages never ended. */
void pool_quarantine(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count);
/* The operation ended after all, or its worker is destroyed: QUARANTINED to FREE. */
void pool_recover(struct pool *pool, const uint32_t *pages, uint32_t count);

/* Puts the waiter in line by age (among equals, behind). It must not wait already. */
void pool_wait(struct pool *pool, struct pool_waiter *waiter, uint64_t age, uint32_t pages,
               uint32_t owner);
void pool_wait_end(struct pool_waiter *waiter); /* a waiter that does not wait is left alone */
/* The oldest waiter, or NULL. Only it may take pages, and only when they suffice: nobody overtakes.
 */
struct pool_waiter *pool_wait_first(const struct pool *pool);

static inline uint32_t pool_count(const struct pool *pool, enum pool_state state)
{
    return pool->counts[state];
}
/* Walks all pages and compares with the counts and the free list: for tests, slow. */
bool pool_consistent(const struct pool *pool);

/* --- who gives way --- */

/* One that holds pages and could be asked to give them up. */
struct pool_holder {
    uint64_t age;
    uint32_t pages;
    uint32_t index; /* the caller's */
    bool droppable; /* a source or a reservation; never a sequence that computes */
};

/* Which holders give way to a request of `age` that lacks `pages_missing`: the youngest first,
 * never one that is older, and nobody unless it is enough. `holders` is sorted in place, youngest
 * first. Returns how many (their indices in victims_out, of at least `count` entries); 0 when it
 * cannot be enough. */
uint32_t pool_victims(struct pool_holder *holders, uint32_t count, uint64_t age,
                      uint32_t pages_missing, uint32_t *victims_out);

#endif
