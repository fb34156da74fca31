/* Every interleaving of a small cluster, on the production code itself.
 *
 * Messages, layers of a step, copies and the hub's messages move one at a time, in every order; when nothing is left to move, time passes
 * to the next timer. At each state, up to `faults_max` times in a run, also what can go wrong goes wrong. A state that was seen before
 * (with as many faults left) is not looked at again.
 *
 *     state ──▶ settle: what a process does by itself, and messages without choice ──▶ fingerprint: seen? ──▶ choices
 *       ▲                                                                                                     │ each, one after the other
 *       └──────────────────── saved bytes put back (or the path run again) ◀──────────────────────────────────┘
 *
 * Without choice are heartbeats and their answers, registration, Peers, Link and HELLO: they arrive at once, in their order.
 *
 * Checked in every state: what node_side_check and the fake engine check (one owner, the age rule, nothing unverified is read), the router's
 * rules (router_side.c), the order of deadlines; at the end of every path: each answer, and that nothing is left. A path on which a request
 * does not end within `patience_ns` of virtual time fails: that is progress. */
#ifndef BATON_TESTS_SIM_EXPLORE_H
#define BATON_TESTS_SIM_EXPLORE_H

#include <stdbool.h>
#include <stdint.h>

enum explore_fault {
    FAULT_DROP = 1 << 0,      /* a frame or an announced piece between nodes is lost */
    FAULT_DUPLICATE = 1 << 1, /* … comes twice */
    FAULT_SWAP = 1 << 2,      /* … comes after its successor */
    FAULT_FLIP = 1 << 3,      /* a bit of it is wrong */
    FAULT_HOLD_KV = 1 << 4,   /* one direction between nodes stands still: 0.3, 3 or 9 s */
    FAULT_HOLD_NET = 1 << 5,  /* one direction between router and node stands still: 0.3 or 3 s */
    FAULT_CANCEL = 1 << 6,    /* a client goes */
    FAULT_KILL =
        1
        << 7, /* a node dies, with a word from its kernel or without; back after 0.1 or 3 s with a new life */
    FAULT_FREEZE = 1 << 8,  /* a node stands still: 0.3, 2.3, 5 or 9 s */
    FAULT_RESET = 1 << 9,   /* the stream between router and node breaks */
    FAULT_PULL = 1 << 10,   /* D asks for what it should not: too early, too late, out of range */
    FAULT_ROUTER = 1 << 11, /* the router stands still: 0.5 or 3 s */
    FAULT_ALL = (1 << 12) - 1,
};

enum { EXPLORE_REQUESTS_MAX = 3 };

struct explore_request {
    uint32_t prompt_tokens, answer_tokens;
};

struct explore_config {
    const char *name;
    const char *roles; /* one letter a node: p, d, m */
    struct explore_request requests[EXPLORE_REQUESTS_MAX];
    uint32_t request_count;
    uint32_t pages, layers, page_tokens, steps_in_flight, window; /* window 0: as in production */
    bool mirrored, boast;
    /* The first request has come and gone before everything else, and the last one goes on behind its answer, so that the router has a
     * prefix to fetch from one node for another. */
    bool next_turn;
    bool straight; /* things move in one order only: what may differ is when what goes wrong */
    uint32_t queue_messages_max, window_bytes; /* to a node; 0: as in production, 1 MiB */
    uint32_t faults, faults_max;               /* which; how many in a run */
    uint64_t states_max;                       /* gives up there: not complete */
};

struct explore_result {
    uint64_t states, steps, ends, merged, depth_max;
    uint64_t fetches; /* asked for by the router, on the paths to their ends */
    uint64_t checked; /* of the merged: went on from there, to see that it goes on alike */
    bool complete;
};

/* Ends the test by sim_fail when something does not hold. */
void explore(const struct explore_config *config, struct explore_result *result_out);
/* One path alone, shown step by step: the numbers of its choices, separated by commas. */
void explore_path(const struct explore_config *config, const char *choices);
/* The choices so far, for reports. */
const char *explore_where(void);

#endif
