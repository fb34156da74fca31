/* One seed of the storm: a cluster, requests and faults that the seed alone decides; then the faults stop, and what must hold is
 * looked at:
 *
 *   every request ended: with exactly the answer that the reference gives, or as its client wanted (cancelled, deadline)
 *   what was delivered of an unfinished answer is a prefix of the reference; nothing came twice
 *   no page used, reserved or quarantined; no work, no leg, no transfer, no slot left anywhere
 *   (after every turn of a node:) the pool is consistent, a page is in one block table, the age rule, nothing unverified is read
 *
 * A failing seed is printed and reproduces alone: SIM_SEED=n, with SIM_TRACE=1 for every message. */
#ifndef BATON_TESTS_SIM_STORM_H
#define BATON_TESTS_SIM_STORM_H

#include <stdint.h>

struct storm_totals {
    uint64_t seeds, requests, whole, cancelled, late, resumed;
    uint64_t kills, freezes, resets, partitions, cuts, drains, flips, router_kills, roles;
    uint64_t replays, deaths, dropped, gave_up, leases_expired, checksum_failures, stale,
        cached_tokens;
    uint64_t turns, pieces, prompt_tokens, completion_tokens, swapped, recomputed, handed_over;
    uint64_t fetched;         /* prefixes, from another node */
    uint64_t spoilt, noticed; /* messages between router and nodes */
    uint64_t virtual_ns;
    uint64_t calm_ns_max,
        calm_seed; /* the longest that a request took to end after the faults stopped, and where */
};

/* Ends the process or test (sim_fail) when something does not hold. */
void storm_run(uint64_t seed, struct storm_totals *totals);
/* The seed that runs now, for reports. */
extern uint64_t storm_seed;
void storm_print(void);

#endif
