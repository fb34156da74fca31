/* Which pages a node's prefix cache holds, as far as the router remembers: one set of 64-bit hashes a node, all of them together
 * within one bound.
 *
 *     Cached {removed, added} ──▶ holdings_remove, holdings_add ──▶ shards of open-addressed slots
 *     hashes of a prompt's pages ──▶ holdings_prefix ──▶ how many of its first pages that node has
 *
 * A set is 64 shards by the top bits of the mixed hash, each a power of two of slots, at most three quarters full (probing is
 * linear, removal closes the gap): so one growth moves a 64th of a set, and never much at once. A shard shrinks when an
 * eighth is left, so that memory follows the entries, wherever they move.
 *
 * Hashes come from nodes: they are mixed with a number drawn at start before they choose a slot, so that nobody can make them
 * meet. What goes beyond a bound is forgotten and counted. Everything here is a hint, and nothing wrong follows from a lie.
 *
 * Owner: the loop thread. */
#ifndef BATON_ROUTER_HOLDINGS_H
#define BATON_ROUTER_HOLDINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HOLDINGS_SHARDS = 64 };

/* What all sets share. */
struct holdings_index {
    uint64_t seed;
    uint64_t entries, entries_max; /* over all sets */
    uint64_t bytes;                /* of all slots */
    uint64_t forgotten;            /* that were not taken in, for want of room or memory */
};

struct holdings_shard {
    uint64_t *slots; /* [capacity], mixed hashes; 0: empty */
    uint32_t count, capacity;
};

/* Blank is empty. */
struct holdings {
    struct holdings_shard shards[HOLDINGS_SHARDS];
    uint64_t count;
};

/* False: forgotten, for a bound is reached (`most`: of this set) or there is no memory. Adding twice changes nothing. */
bool holdings_add(struct holdings_index *index, struct holdings *set, uint64_t most, uint64_t hash);
/* Removing what is not there changes nothing. */
void holdings_remove(struct holdings_index *index, struct holdings *set, uint64_t hash);
void holdings_clear(struct holdings_index *index, struct holdings *set); /* frees all of it */
bool holdings_has(const struct holdings_index *index, const struct holdings *set, uint64_t hash);

/* How many of a chain's first pages are in the set. Caches evict from the ends of chains, so the search is a binary one: of a set
 * with holes (something was forgotten) it may say more than the hole allows. */
uint32_t holdings_prefix(const struct holdings_index *index, const struct holdings *set,
                         const uint64_t *hashes, uint32_t count);

#endif
