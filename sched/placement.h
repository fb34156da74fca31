/* Which node reads a request's prompt (P), and which one decodes its answer (D).
 *
 * Every node can do both; its role is a weight. A pair is worth what its roles say, and of equal pairs the least loaded
 * is taken:
 *
 *                 P of role   prefill  mixed  decode          D of role   decode  mixed  prefill
 *                 penalty        0       1      2             penalty        0      1       2
 *
 * P = D is one assignment without a transfer. A transfer goes only from a node that is more of a prefill node to one that
 * is more of a decode node: between equals it would cost bytes and win nothing. So one prefill and one decode node
 * hand over, mixed nodes do not, and when the last decode node is gone a prefill node decodes.
 *
 * The best class of pairs is found without looking at load: when all of it is busy the request waits, rather than spoil
 * the other pool. A pair whose link is down does not exist; the next class is taken.
 *
 * Pure: no clock, no pointer is kept. Owner: any thread. */
#ifndef BATON_SCHED_PLACEMENT_H
#define BATON_SCHED_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum placement_role { PLACEMENT_PREFILL, PLACEMENT_MIXED, PLACEMENT_DECODE };

enum placement_link {
    PLACEMENT_LINK_UP,
    PLACEMENT_LINK_UNKNOWN, /* about to be known: worth a short wait */
    PLACEMENT_LINK_DOWN
};

struct placement_node {
    enum placement_role role;
    bool serving; /* false: does not exist for placement */
    bool held; /* exists, but takes nothing just now (said FULL, or no heartbeat since a fault) */
    uint32_t sequences, sequences_max; /* attempts that it holds; most that it may hold */
    uint64_t prefill_tokens;           /* prompt tokens given to it and not computed yet */
    uint32_t prefill_tokens_per_s;     /* measured; 0: not known */
    uint32_t pages_total;
    uint32_t pages_taken; /* by the attempts given to it, as far as is known */
};

struct placement_view {
    const struct placement_node *nodes; /* [node_count] */
    size_t node_count;
    /* enum placement_link from node p to node d at [p * link_stride + d]; NULL: all up */
    const uint8_t *links;
    size_t link_stride;
};

struct placement_request {
    uint32_t prefill_tokens; /* prompt, and what was generated before */
    uint32_t prefill_pages;  /* that these need */
    uint32_t
        answer_pages; /* that the whole sequence may come to need, which a decode node takes at once */
    bool prefill_only; /* the first token ends the answer: no D is needed */
    bool local_only;   /* no transfer: pairs have failed this request */
};

enum placement_result {
    PLACEMENT_FOUND,
    PLACEMENT_BUSY,     /* nodes exist, none has room now */
    PLACEMENT_NO_NODE,  /* nobody serves */
    PLACEMENT_TOO_LARGE /* it never fits: no pool among the serving nodes is large enough */
};

struct placement {
    size_t prefill; /* index into nodes */
    size_t decode;  /* the same: local; with prefill_only equal to prefill */
};

/* *placement_out is set with PLACEMENT_FOUND only. */
enum placement_result placement_choose(const struct placement_view *view,
                                       const struct placement_request *request,
                                       struct placement *placement_out);
/* Another D for a prompt that node `prefill` holds or computes. `not_node` (SIZE_MAX: none) is left out. */
enum placement_result placement_choose_decode(const struct placement_view *view,
                                              const struct placement_request *request,
                                              size_t prefill, size_t not_node, size_t *decode_out);
/* Some serving node could take part at all, however full. */
bool placement_covered(const struct placement_view *view);

#endif
