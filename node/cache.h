/* The node's prefix cache: the index (sched/prefix.h) over its pages, and what the engine has to do for it.
 *
 *     WAITING ─ cache_find: look-up, pins on the hits; cache_take: eviction, the rest taken
 *                 │ hits                                             step done ─▶ cache_publish: full pages, up to the last row done
 *                 ▼                                                  work over ─▶ cache_release: pins go, the rest is free
 *     FETCHING ─ cache_check: each hit is verified where it lies, against the checksum stored with it, before it is used
 *                 │ all right ─▶ node_work_checked            one is wrong ─▶ counted, out of the index, node_work_again
 *                 ▼
 *
 * Copies on a shared page (checks; exports where the engine's memory is not the host's) belong to no sequence: they run once for
 * all who want them, and hold a pin of their own, so the page stays what it is until they have ended. One engine copy at a time is
 * on a piece; what has to wait for another is kept as a bit, and begins when that ends (COPY_DONE, which always comes).
 *
 * Owner: the loop thread. Nothing is allocated after cache_init. */
#ifndef BATON_NODE_CACHE_H
#define BATON_NODE_CACHE_H

#include "base/metrics.h"
#include "engine/engine.h"
#include "sched/prefix.h"

struct node;
struct work;

enum {
    CACHED_MAX = 1024
}; /* hashes in one message, and so many changes are not kept for the next heartbeat */
enum { CACHE_PUBLISH_PASSES = 3 };

struct cache_page { /* sets of runs of layers */
    _Alignas(64) uint64_t check_todo, check_busy;
    uint64_t export_todo, export_busy;
    uint64_t mirrored; /* what lies in the mirror as well (node/copies.h) */
    uint64_t checked;  /* number of the last check that ended */
    bool bad;          /* a piece of the check that runs was wrong */
    bool pinned;       /* for these copies */
};

struct cache {
    bool on;
    bool told;     /* the router wants to know what is here */
    bool tell_due; /* a heartbeat has gone */
    struct prefix prefix;
    uint8_t key[PREFIX_KEY_BYTES];
    struct cache_page *pages; /* [pool.total] */
    uint64_t all_runs;
    uint64_t checks;    /* that have ended */
    uint64_t bad_pages; /* that proved wrong at rest */
    uint64_t gone[CACHED_MAX], added[CACHED_MAX];
    struct metric *evicted, *hit_pages, *bad;
};

enum status cache_init(struct node *node);
void cache_finish(struct node *node);

/* --- what the router is told --- */

/* Registered: the key of the prefix hashes, or none. Everything is told anew. */
void cache_welcome(struct node *node, const uint8_t *key, size_t key_bytes);
/* The next cache_tell speaks, also of little. */
void cache_tell_soon(struct node *node);
/* Says what changed, if it is time: with a heartbeat, when an answer begins or ends, or when it is much. */
void cache_tell(struct node *node);

/* --- pages --- */

/* Looks up the first `blocks` pages of a work that has none, and pins what is here: work->hit_count, and its pages so far. */
void cache_find(struct node *node, struct work *work, uint32_t blocks);
/* `count` more pages, which must be to be had (pool_available): cached ones of others are evicted for it. */
void cache_take(struct node *node, struct work *work, uint32_t count, enum pool_state state);
/* Its own blocks `at` and on, into which somebody may still write, are nobody's from now on (work->stuck_pages), and others take their
 * place, RESERVED. False: there is no room for it, or an older request waits for pages. */
bool cache_replace(struct node *node, struct work *work, uint32_t at, uint32_t count);
/* Nobody can write into them any more. */
void cache_replaced(struct node *node, struct work *work);
/* A step is about to write into the page. */
void cache_page_written(struct node *node, uint32_t page);
/* Lets go of all its pages. Nothing of the work's own touches them any more. */
void cache_release(struct node *node, struct work *work);
/* The rows up to work->rows_done are computed or received, and accepted: the pages that they fill become shared. */
void cache_publish(struct node *node, struct work *work);
/* Before that, for each of many: asks for the memory that it will touch. Pass 0 for all of them, then pass 1, … */
void cache_publish_ahead(const struct node *node, const struct work *work, int pass);
/* Whole pages, from the first on, that a receiver has verified, or found here. */
uint32_t cache_verified(const struct node *node, const struct work *work);
/* A receiver ends before it has everything: these are kept. */
void cache_keep(struct node *node, struct work *work);
/* Blocks from the first on whose bytes are there with their checksums, at most `blocks`. */
uint32_t cache_whole(const struct node *node, const struct work *work, uint32_t blocks);

/* --- copies on shared pages --- */

/* Verifies the work's hits; false: it has none. */
bool cache_check(struct node *node, struct work *work);
/* Verifies a page that somebody else found wrong, for nobody in particular. */
void cache_check_page(struct node *node, uint32_t page);
/* Copies a piece of a shared page to the mirror; then serve_exported. */
void cache_export(struct node *node, uint32_t page, uint32_t run);
static inline bool cache_mirrored(const struct cache *cache, uint32_t page, uint32_t run)
{
    return cache->pages[page].mirrored >> run & 1;
}
/* COPY_DONE of one that ran for no work. */
void cache_copied(struct node *node, const struct engine_copy *copy);
/* COPY_DONE of one that ran for a work: the piece is free for what waits. */
void cache_work_copied(struct node *node, const struct engine_copy *copy);

#endif
