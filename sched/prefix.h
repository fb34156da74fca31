/* The prefix index: which page holds the keys and values of which tokens, so that a sequence that begins like an earlier one
 * need not compute them again.
 *
 *     h_0 = H(key, salt)     h_i = H(key, h_{i-1}, ids of page i)        128 bits, keyed
 *
 *     lookup   salt, ids ─▶ h_1 ─▶ entry whose hash, parent and ids are equal ─▶ h_2 ─▶ … ─▶ the longest chain of pages
 *     publish  the chain of a sequence is followed as far as it is here already; its own pages are hung below
 *     evict    the leaf that fell idle first, again and again: a page whose last child went is a leaf, and counts as used
 *              when that child was
 *
 * The hash only finds. What decides is the parent entry and the ids, which are stored with each page, and for a first page
 * the salt. So equal hashes cost time, never a wrong page; two sequences find each other's pages only under equal salts.
 *
 * Entries are arrays over page numbers: nothing allocates after prefix_init. The tree itself (parents, children, pins) is the
 * pool's (sched/pool.h). A page whose bytes proved wrong is not findable any more (prefix_remove), nor is what hangs below
 * it; it goes once it is idle and a leaf.
 *
 * The journal says what another program that keeps the low halves of the hashes would have to forget and to add
 * (Cached of node.proto): forget first, then add.
 *
 * Pure: no clock. Owner: the loop thread of the node; the hash functions alone: any thread. */
#ifndef BATON_SCHED_PREFIX_H
#define BATON_SCHED_PREFIX_H

#include "sched/pool.h"

/* --- the hash, which the router computes too --- */

enum { PREFIX_KEY_BYTES = 16, PREFIX_SALT_BYTES = 16, PREFIX_SECRET_BYTES = 192 };

struct prefix_key {
    uint8_t secret[PREFIX_SECRET_BYTES];
    uint64_t mask; /* all ones; tests keep fewer bits, so that hashes collide */
};
struct prefix_hash {
    uint64_t low, high;
};

void prefix_key_init(const uint8_t bytes[PREFIX_KEY_BYTES], struct prefix_key *key_out);
/* h_0. All zeros is the common salt. */
struct prefix_hash prefix_hash_root(const struct prefix_key *key,
                                    const uint8_t salt[PREFIX_SALT_BYTES]);
/* h_i of h_{i-1} and the ids of page i [page_tokens]. */
struct prefix_hash prefix_hash_page(const struct prefix_key *key, struct prefix_hash parent,
                                    const uint32_t *ids, uint32_t page_tokens);
/* h_1, h_2, … of the whole pages among `count` ids; returns how many: count / page_tokens. To go on behind them, call
 * prefix_hash_page from the last. */
uint32_t prefix_hashes(const struct prefix_key *key, const uint8_t salt[PREFIX_SALT_BYTES],
                       const uint32_t *ids, uint32_t count, uint32_t page_tokens,
                       struct prefix_hash *hashes_out);

/* --- the index --- */

struct prefix_entry {
    struct prefix_hash hash;
    uint64_t serial; /* of its publication: tells two lives of one page number apart; 0: no entry */
    uint64_t used;   /* when it, or what hung below it, last fell idle, on the index's own count */
    uint32_t mark;   /* scratch of prefix_rekey */
    uint32_t heap_at;  /* place in the heap; POOL_PAGE_NONE: not there */
    uint32_t added_at; /* place in the journal's list of added pages; POOL_PAGE_NONE: not there */
    bool removed;      /* its bytes proved wrong: not in a bucket */
    uint8_t salt[PREFIX_SALT_BYTES]; /* first pages */
};

struct prefix_slot { /* of the table by hash */
    uint32_t page;   /* POOL_PAGE_NONE: empty */
    uint32_t
        hash; /* the lowest bits of its own: which slot it wants, and that most others are not looked at */
};

struct prefix_leaf { /* a page that may be evicted, if it is still what it was */
    uint64_t used;
    uint32_t page;
};

struct prefix {
    struct pool *pool;
    struct prefix_key key;
    uint32_t page_tokens;
    uint64_t serials, clock;
    uint32_t count;               /* entries that can be found */
    struct prefix_entry *entries; /* [pool->total] */
    uint32_t *ids;                /* [pool->total][page_tokens] */
    struct prefix_slot *
        slots; /* [slot_mask + 1], at most half of them taken; the next free one serves who finds his taken */
    uint32_t slot_mask;
    struct prefix_leaf *heap; /* [pool->total], the least `used` first */
    uint32_t heap_count;
    /* the journal */
    uint32_t *added; /* [pool->total] pages */
    uint32_t added_count;
    uint64_t *gone; /* [gone_max] hashes */
    uint32_t gone_count, gone_max;
    bool reset;     /* forget everything first */
    bool lost;      /* no changes are kept: everything is said when somebody asks */
    uint32_t *path; /* [pool->total] scratch of prefix_rekey */
};

/* MEMORY; INVALID: page_tokens is 0. The pool must be empty and is the caller's. */
enum status prefix_init(struct prefix *prefix, struct pool *pool, uint32_t page_tokens,
                        const uint8_t key[PREFIX_KEY_BYTES]);
void prefix_finish(struct prefix *prefix);

/* The longest chain of pages that hold the first tokens of `ids`, at most `blocks_max` pages; returns how many. Pins nothing:
 * the caller pins them (pool_pin) before it evicts or gives back any. */
uint32_t prefix_lookup(const struct prefix *prefix, const uint8_t salt[PREFIX_SALT_BYTES],
                       const uint32_t *ids, uint32_t blocks_max, uint32_t *pages_out);

/* How far a sequence's pages are in the index. Zero at first. */
struct prefix_cursor {
    uint32_t blocks; /* done: indexed, or somebody's equal page is */
    uint32_t page;   /* the indexed page of the last of them */
    uint64_t serial; /* of that entry */
};
/* The first `blocks` pages of a sequence are full and final: those that are not in the index yet are hung there, each with a pin
 * that was the owner's ownership (its pool_free lets go of it as before). Where an equal page of somebody else's is there
 * already the sequence keeps its own, and the chain goes on below the other. pages[i] must be the owner's USED page, or one it
 * pins. Returns how many became indexed. */
uint32_t prefix_publish(struct prefix *prefix, struct prefix_cursor *cursor, uint32_t owner,
                        const uint8_t salt[PREFIX_SALT_BYTES], const uint32_t *ids,
                        const uint32_t *pages, uint32_t blocks);

/* One more block of each of several sequences will be published soon: brings closer what that touches, so that the waits for memory
 * of all of them overlap. First `touch` for each, then `seek` for each, then prefix_publish; each without the others is as right. */
void prefix_publish_touch(const struct prefix *prefix, const struct prefix_cursor *cursor,
                          const uint32_t *ids, const uint32_t *pages);
void prefix_publish_seek(const struct prefix *prefix, const struct prefix_cursor *cursor,
                         const uint8_t salt[PREFIX_SALT_BYTES], const uint32_t *ids);

/* Evicts up to `count` pages (CACHED to FREE); returns how many: less only when no CACHED page is left. */
uint32_t prefix_evict(struct prefix *prefix, uint32_t count);
/* The bytes of this indexed page are wrong. Those who pin it keep it. */
void prefix_remove(struct prefix *prefix, uint32_t page);
/* Another key: every entry is found under it from now on, and the journal begins again. */
void prefix_rekey(struct prefix *prefix, const uint8_t key[PREFIX_KEY_BYTES]);

/* --- the journal --- */

uint32_t prefix_changes_count(const struct prefix *prefix);
/* The reader has forgotten everything, or never heard anything: begin again. */
void prefix_changes_reset(struct prefix *prefix);
/* Takes up to `max` changes: hashes that are gone, then hashes that came. reset_out: the reader forgets everything before it
 * takes these. False: there is nothing to say. */
bool prefix_changes_take(struct prefix *prefix, uint32_t max, uint64_t *gone_out,
                         uint32_t *gone_count_out, uint64_t *added_out, uint32_t *added_count_out,
                         bool *reset_out);

/* Walks everything, with the pool: for tests, slow. */
bool prefix_consistent(const struct prefix *prefix);

#endif
