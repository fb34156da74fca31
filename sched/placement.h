/* Which node reads a request's prompt (P), which one decodes its answer (D), and from whose cache P fetches what it lacks.
 *
 * Every node can do both; its role is a weight. A pair is worth what its roles say, and of equal pairs the one that is
 * estimated to be soonest is taken:
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
 * D computes the prompt itself, in the class of the pairs that it stands for, when it lacks at most `local_prefill_tokens`
 * of it, or when from every P the transfer is estimated to take longer than the prefill on D (by more than slow_floor_us:
 * estimates of a few milliseconds are noise; `slow_links_too` turns this off). A link that has been avoided for retry_s is
 * tried again, or nobody would ever know that it has become better.
 *
 *     estimate =  what waits on P / its rate  +  fetching / the link's rate  +  what P computes then / its rate
 *               + the pages that D lacks / the link's rate  +  D's sequences as a share of its most, times load_us
 *
 * Where answers grow page by page a newcomer needs a page more for each that grows there already (sched/preempt.h: it would not
 * be let in before).
 *
 * A fetch is worth it where the bytes are sooner there than computed; with a rate that nobody has measured yet it is tried.
 * Cached pages are hints, and so is all that follows from them: the nodes look, and compute what is not there.
 *
 * Pure: no clock, no pointer is kept. Owner: any thread. */
#ifndef BATON_SCHED_PLACEMENT_H
#define BATON_SCHED_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLACEMENT_NODES_MAX = 1024 };

enum placement_role { PLACEMENT_PREFILL, PLACEMENT_MIXED, PLACEMENT_DECODE };

enum placement_link {
    PLACEMENT_LINK_UP,
    PLACEMENT_LINK_UNKNOWN, /* about to be known: worth a short wait */
    PLACEMENT_LINK_DOWN
};

enum placement_fetch { PLACEMENT_FETCH_AUTO, PLACEMENT_FETCH_ALWAYS, PLACEMENT_FETCH_OFF };

struct placement_node {
    enum placement_role role;
    bool serving; /* false: takes no work; does not exist for placement */
    bool shares;  /* its cache may be fetched from; also while it drains */
    bool held; /* exists, but takes nothing just now (said FULL, no heartbeat since a fault, messages wait for it) */
    uint32_t sequences, sequences_max; /* attempts that it holds; most that it may hold */
    uint64_t prefill_tokens;           /* prompt tokens given to it and not computed yet */
    uint32_t prefill_tokens_per_s;     /* measured; 0: not known */
    uint32_t pages_total;
    uint32_t pages_taken;  /* by the attempts given to it, as far as is known */
    bool grows;            /* answers take pages as they grow there, else all of them at once */
    uint32_t growing;      /* attempts whose answers do */
    uint32_t cached_pages; /* of this request, from its first page on, as far as is known */
};

struct placement_view {
    const struct placement_node *nodes; /* [node_count] */
    size_t node_count;                  /* at most PLACEMENT_NODES_MAX */
    /* enum placement_link from node p to node d at [p * link_stride + d]; NULL: all up */
    const uint8_t *links;
    /* measured, in units of 1,000 bytes a second, at the same places; 0: not known; NULL: none is */
    const uint32_t *link_kb_per_s;
    /* in seconds, like now_s: when that was measured, or the link was last tried, at the same places; NULL: just now */
    const uint32_t *link_seen_s;
    uint32_t now_s;
    size_t link_stride;
};

struct placement_request {
    uint32_t prefill_tokens; /* prompt, and what was generated before */
    uint32_t prefill_pages;  /* that these need */
    uint32_t answer_pages;   /* that the whole sequence may come to need: D must have so many */
    uint32_t first_pages;    /* that an answer begins with where it grows; at most answer_pages */
    uint32_t page_tokens, page_bytes; /* 0: not known, and no cached page counts */
    bool prefill_only;                /* the first token ends the answer: no D is needed */
    bool local_only;                  /* no transfer: pairs have failed this request */
    bool slow_links_too;              /* a transfer is never too slow to be made */
    uint32_t local_prefill_tokens; /* D reads a prompt of which it lacks at most so many; 0: none */
    enum placement_fetch fetch;
};

enum placement_result {
    PLACEMENT_FOUND,
    PLACEMENT_BUSY,     /* nodes exist, none has room now */
    PLACEMENT_NO_NODE,  /* nobody serves */
    PLACEMENT_TOO_LARGE /* it never fits: no pool among the serving nodes is large enough */
};

struct placement {
    size_t prefill;       /* index into nodes */
    size_t decode;        /* the same: local; with prefill_only equal to prefill */
    size_t fetch;         /* whose cache P fetches from; SIZE_MAX: nobody's */
    uint32_t fetch_pages; /* of the sequence, from its first one */
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
/* Pages that a decode node takes at once, those that it has included. */
uint32_t placement_decode_pages(const struct placement_request *request,
                                const struct placement_node *node);
/* Pages of the request that need not be computed on this node. The last token's row always is, so that its logits are. */
uint32_t placement_usable_pages(const struct placement_request *request, uint32_t cached_pages);

#endif
