/* The page pool: which KV page belongs to whom, and in what state. Numbers only; the bytes live in the backend.
 *
 *                     take(USED)                          publish: full, sealed, every token accepted
 *      ┌────────────────────────────────────┐                 ┌──────────────────────────────┐
 *      │                                    ▼                 │                              ▼       last pin goes
 *    FREE ──take(RESERVED)──▶ RESERVED ──fill──▶ USED ─────────┘                           SHARED ──────────────▶ CACHED
 *      ▲ ▲                      │   │             │ │                                       │  ▲ ◀───────────────── │
 *      │ └──────────free────────┘   │quarantine   │ └─free─▶ FREE       quarantine (of a pin)│  │ pin               │
 *      │                            ▼             ▼                                         ▼  │                   │
 *      ├─────────recover──────── QUARANTINED ◀── quarantine                              QUARANTINED ──recover────▶ │
 *      └───────────────────────────────────────────evict (a leaf that nobody pins)─────────────────────────────────┘
 *
 *     state        owner              writes                       reads                     ends when
 *     FREE         nobody             nobody                       nobody                    it is taken
 *     RESERVED     one sequence       the receives that it asked   its own verification      every piece is verified (fill), or
 *       in flight                     for, piece by piece          only                      the receives and copies have ended
 *       verified                                                                             (free), or never do (quarantine)
 *     USED         one sequence       its steps, in order of       its steps; from `sealed`  the sequence ends and nothing can
 *       filling                       position                     on its source and copies  touch it any more (free), or the
 *       sealed                        nobody (full)                                          cache takes it (publish)
 *     SHARED       the cache; pinned  nobody, ever                 every sequence that pins  the last pin goes
 *                  by sequences                                    it, their sources, copies
 *     CACHED       the cache alone    nobody                       nobody before it pins     a look-up pins it, or it is evicted
 *     QUARANTINED  nobody, or the     an operation that never      the same operation        the transport is torn down (recover)
 *                  cache              ended might
 *
 * A page is *indexed* from publish to evict: the prefix index (sched/prefix.h) can find it, and it hangs in a tree, each page
 * below the one that holds the tokens before. Every CACHED page can be evicted, leaves first: their count is what can be had
 * without asking anybody. What hangs below one and is held can lose its place in the tree by that (detach), never its bytes.
 *
 * Invariant: every page is in exactly one state; RESERVED and USED have exactly one owner, all others POOL_OWNER_NONE; the
 * counts add up to the total. Edges that are not in the table abort (base/sm.h).
 *
 * Pages are taken all at once or not at all, and while an older request waits for pages no younger one takes any
 * (docs/PROTOCOL.md, "No circular wait"): waiters stand in a list by age, and only its head may be served. Cached pages are
 * evicted before anybody is asked to give way.
 *
 * Pure: no clock, no memory of its own beyond what pool_init took. Owner: the loop thread of the node. */
#ifndef BATON_SCHED_POOL_H
#define BATON_SCHED_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/sm.h"
#include "base/status.h"

enum pool_state {
    POOL_FREE,
    POOL_RESERVED,
    POOL_USED,
    POOL_SHARED,
    POOL_CACHED,
    POOL_QUARANTINED,
    POOL_STATE_COUNT
};
extern const struct sm_table pool_states;

#define POOL_OWNER_NONE UINT32_MAX
#define POOL_PAGE_NONE UINT32_MAX

struct pool_page {
    uint32_t owner;    /* the sequence's index in its holder's table */
    uint32_t next;     /* of the idle list; FREE: its place in `free` */
    uint32_t prev;     /* of the idle list */
    uint32_t parent;   /* indexed: the page before it; POOL_PAGE_NONE: it is a first page */
    uint32_t children; /* indexed pages that name it as their parent */
    uint32_t pins;     /* of sequences, and of copies that run for nobody else */
    uint32_t stuck;    /* pins whose operations never ended */
    uint8_t state;
    bool indexed : 1;
    bool idle : 1; /* in the idle list */
};
_Static_assert(sizeof(struct pool_page) == 32, "two pages are one line of the processor's cache");

/* A request that waits for pages. Belongs to the waiter, in the pool's list from pool_wait to pool_wait_end. */
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
    uint32_t *free;                /* [counts[POOL_FREE]], room for all; the last is taken first */
    uint32_t idle_head, idle_tail; /* CACHED since pool_idle_next was last asked, oldest first */
    struct list waiters;           /* oldest first */
};

/* STATUS_MEMORY, or STATUS_OK with all pages FREE. */
enum status pool_init(struct pool *pool, uint32_t total);
void pool_finish(struct pool *pool);

/* Takes `count` FREE pages for `owner` into `state` (RESERVED or USED): all of them, or none and STATUS_FULL; the caller
 * evicts first. Does not look at the waiters: see pool_wait_first. */
enum status pool_take(struct pool *pool, uint32_t count, enum pool_state state, uint32_t owner,
                      uint32_t *pages_out);
/* The page that will be taken after `later` others, so that what is known of it can be fetched early; POOL_PAGE_NONE: there are no
 * more. */
static inline uint32_t pool_next(const struct pool *pool, uint32_t later)
{
    uint32_t free = pool->counts[POOL_FREE];
    return later < free ? pool->free[free - 1 - later] : POOL_PAGE_NONE;
}
/* RESERVED to USED: received and verified. */
void pool_fill(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count);
/* Lets go of each: the owner's own pages become FREE, indexed ones lose a pin. The caller vouches that nothing of its own can
 * touch them any more. */
void pool_free(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count);
/* The owner is gone, and an operation on its pages never ended: its own pages are nobody's, its pins are stuck. */
void pool_quarantine(struct pool *pool, uint32_t owner, const uint32_t *pages, uint32_t count);
/* The operation ended after all, or its worker is destroyed: what pool_quarantine did is undone, and the pages are let go. */
void pool_recover(struct pool *pool, const uint32_t *pages, uint32_t count);

/* --- shared pages: see sched/prefix.h, which calls publish and evict --- */

/* The owner's USED page becomes indexed, below `parent` (indexed, or POOL_PAGE_NONE), with one pin: its former owner's. */
void pool_publish(struct pool *pool, uint32_t owner, uint32_t page, uint32_t parent);
void pool_pin(struct pool *pool, uint32_t page);
void pool_unpin(struct pool *pool, uint32_t page);
/* CACHED to FREE; it has no children. Gives its parent. */
uint32_t pool_evict(struct pool *pool, uint32_t page);
/* It hangs below nothing any more. Gives what was its parent. */
uint32_t pool_detach(struct pool *pool, uint32_t page);
/* Takes the page that has been CACHED for longest off the list of those that became so since they were last asked for (and
 * still are); POOL_PAGE_NONE: there is none. So the index learns in which order pages fell idle. */
uint32_t pool_idle_next(struct pool *pool);

/* Puts the waiter in line by age (among equals, behind). It must not wait already. */
void pool_wait(struct pool *pool, struct pool_waiter *waiter, uint64_t age, uint32_t pages,
               uint32_t owner);
void pool_wait_end(struct pool_waiter *waiter); /* a waiter that does not wait is left alone */
/* The oldest waiter, or NULL. Only it may take pages, and only when they suffice: nobody overtakes. */
struct pool_waiter *pool_wait_first(const struct pool *pool);

/* As the gauges count: POOL_USED is what sequences hold, shared or not; POOL_SHARED says how many of these are shared. */
static inline uint32_t pool_count(const struct pool *pool, enum pool_state state)
{
    return pool->counts[state] + (state == POOL_USED ? pool->counts[POOL_SHARED] : 0);
}
/* What can be taken without asking anybody: free pages, and cached ones after an eviction. */
static inline uint32_t pool_available(const struct pool *pool)
{
    return pool->counts[POOL_FREE] + pool->counts[POOL_CACHED];
}
/* Walks all pages and compares with the counts, the lists and the tree: for tests, slow. */
bool pool_consistent(const struct pool *pool);

#endif
