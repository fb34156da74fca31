/* One request of a client, from admission until nothing of it is left on any node.
 *
 *     QUEUED ──placed──▶ PLACED ──first token──▶ HANDING_OFF ──D reports──▶ STREAMING
 *       ▲ ▲                │ │ │                   │  │  ▲                    │  │
 *       │ └────────────────┘ │ └─P + D in one, ────│──│──│────────────────────┘  │
 *       │   FULL, lost, ...  │   or D was first    │  │  │                       │
 *       │                    └──P died──▶ SETTLING ┘  │  └ (while D is sought)   │
 *       │                                  │   │ └────│── D: COMPLETE ──▶ STREAMING
 *       └──────── D: INCOMPLETE, D lost ───┘   │      │                          │
 *                                              ▼      ▼                          ▼
 *             (any) ── last token, client gone, deadline, fault ──────────▶ ENDING ──every leg ENDED──▶ ENDED
 *
 *     state        waits for (waker)                               and at most (deadline)
 *     QUEUED       room on nodes (heartbeat, ENDED, registration)  no node at all: node_wait_s, or 250 ms before the
 *                                                                  request's own deadline; else the request's deadline
 *     PLACED       verdicts, P's token                             4 s without a sign of life of a leg, then placed again
 *     HANDING_OFF  D joining; or a D with room                     the same; Renew every 2 s while D is sought
 *     SETTLING     D's answer to Settle                            4 s, then placed again
 *     STREAMING    tokens                                          4 s without a sign of life, then placed again
 *     ENDING       ENDED from every leg, or its stream's end       4 s after the node stopped listing it as alive
 *     ENDED        the client's side (core_release)                client_stall_s, kept in generate.c
 *     all but ENDING and ENDED: the request's own deadline
 *
 * An attempt is one try at a request: a 128-bit id and one leg (local, or a first token that is the last) or two. Before
 * the next attempt every leg is ended by name. A leg stays in its node's table until ENDED, so that what it holds there is
 * still counted; what arrives for a leg that is ending is stale.
 *
 * Where P is to fetch pages from another node's cache there is one leg more, with an id of its own: that node pins them until
 * P's first token has come. Whatever becomes of it, the attempt goes on: what P does not get it computes.
 *
 *     leg:  SENT ──Accepted{OK}──▶ HELD ──End sent──▶ ENDING ──ENDED──▶ (gone)
 *             │ FULL, DRAINING, INVALID, GONE: gone at once       any: gone with the registration
 *
 * Owner: the loop thread. */
#ifndef BATON_ROUTER_REQUEST_H
#define BATON_ROUTER_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include <uthash.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/sm.h"
#include "model/tokenizer.h"
#include "router/answer.h"
#include "router/registry.h"

enum {
    REQUEST_LABEL_BYTES_MAX = 256,
    ALONE_FROM_DEATHS = 3, /* from its third node death on, a request runs in a batch of its own */
    PAIR_FAILURES_LOCAL = 3, /* so many failed transfers, and it is placed without one */
};
static const uint64_t life_sign_ns = 4 * NS_PER_S;
static const uint64_t renew_every_ns = 2 * NS_PER_S;
static const uint64_t give_up_early_ns = 250 * NS_PER_MS;

struct attempt_id {
    uint64_t high, low;
};

enum leg_kind { LEG_KIND_PREFILL, LEG_KIND_DECODE, LEG_KIND_LOCAL, LEG_KIND_SERVE };
enum leg_state { LEG_SENT, LEG_HELD, LEG_ENDING };
extern const struct sm_table leg_states;

/* What a leg may take on its node, beyond what is in the cache there. */
struct leg_share {
    uint32_t pages, cached_pages; /* beyond those; those */
    uint64_t prefill_tokens;      /* to compute */
};

struct leg {
    UT_hash_handle hh; /* in node->legs, by id */
    struct attempt_id id;
    struct list node_link, request_link;
    struct node *node;
    struct request *request;
    enum leg_kind kind;
    uint8_t state;
    uint64_t number;        /* of its Assign */
    uint64_t life_ns;       /* last sign of life, patient time */
    struct leg_share share; /* as accounted in node->pages_taken and node->prefill_tokens */
};

enum request_state {
    REQUEST_QUEUED,
    REQUEST_PLACED,
    REQUEST_HANDING_OFF,
    REQUEST_STREAMING,
    REQUEST_SETTLING,
    REQUEST_ENDING,
    REQUEST_ENDED,
    REQUEST_STATE_COUNT
};
extern const struct sm_table request_states;

/* The client's side. Called from within the core: must not call it back. */
struct request_client {
    void (*progress)(void *context); /* the answer has something to take */
    void (*ended)(void *context); /* without a whole answer: end_status and its friends say why */
    void *context;
};

/* Pages of its sequence, from the first one on, that an attempt has left in a node's cache, sooner than the node says so. */
enum { REQUEST_LEFT_MAX = 2 };
struct request_left {
    size_t slot;
    uint64_t incarnation;
    uint32_t pages; /* 0: none */
};

struct request_timing { /* of the router's clock, ns; 0: has not happened */
    uint64_t arrival_ns, dequeued_ns, assigned_ns, first_ns, second_ns, last_ns;
    uint64_t prefill_us, first_decode_us; /* the nodes' own */
    uint64_t kv_bytes_moved;
    uint32_t cached_tokens;
    char prefill_node[NODE_NAME_BYTES_MAX + 1], decode_node[NODE_NAME_BYTES_MAX + 1];
};

struct request {
    /* who */
    uint64_t key,
        age; /* both are the admission number: the key is the router's own, kept over attempts */
    char label[REQUEST_LABEL_BYTES_MAX + 1];
    int32_t priority;

    /* what */
    struct token_list prompt;
    Baton__Node__V1__Sampling sampling; /* its arrays are the three below */
    Baton__Node__V1__Bias *bias;
    Baton__Node__V1__Bias **bias_list;
    uint32_t *stop_ids;
    uint32_t tokens_max;             /* of the answer */
    uint32_t resumed;                /* tokens that the client came with */
    uint8_t salt[PREFIX_SALT_BYTES]; /* whose cached pages it may find; zeros: everybody's */
    bool salted;
    struct answer answer;
    bool answer_ready;    /* answer is initialised */
    uint64_t deadline_ns; /* DEADLINE_NONE: none */

    /* where */
    uint8_t state;
    struct list all_link, queue_link, seek_link;
    struct list legs;          /* all, those that are ending too */
    struct attempt_id attempt; /* the current one */
    struct leg *source;        /* its P leg */
    struct leg *sink;          /* its D leg, or the local one */
    struct leg *server;        /* who serves cached pages to P; NULL: nobody (any more) */
    bool prefill_only;         /* the current attempt needs no D */
    uint32_t base;             /* position of the current attempt's first token */
    uint64_t queued_ns;
    uint64_t too_large_ns;           /* since when no serving pool could hold it; 0 */
    uint64_t settle_ns, progress_ns; /* patient time */
    uint64_t renewed_ns;
    uint32_t deaths, replays, handovers, pair_failures;
    struct request_left left[REQUEST_LEFT_MAX]; /* by its last attempt */
    /* the hashes of its whole pages, low halves [page_hash_count], of so many tokens on pages of that size */
    uint64_t *page_hashes;
    uint32_t page_hash_count, hashed_page_tokens;
    uint64_t hashed_tokens;

    /* the end */
    enum status end_status;
    enum grpc_code end_code;
    char end_message[256];

    struct request_client client;
    bool released; /* the client's side is gone */
    struct request_timing timing;
};

struct request *request_create(void); /* NULL without memory */
/* Never admitted, or ENDED and released. Takes NULL. */
void request_destroy(struct request *request);

static inline bool request_seeks(const struct request *request)
{
    return !list_empty(&request->seek_link);
}
/* Nodes may still send tokens for it, or it may be placed. */
static inline bool request_open(const struct request *request)
{
    return request->state < REQUEST_ENDING;
}

/* --- legs --- */

/* NULL without memory. Accounts for it in the node and the request. */
struct leg *leg_create(struct node *node, struct request *request, struct attempt_id id,
                       enum leg_kind kind, struct leg_share share, uint64_t life_ns);
/* The leg's first token has come: nothing is left to prefill. */
void leg_prefilled(struct leg *leg);
/* It decodes, and more tokens have come: where answers grow it has so many pages in all by now. */
void leg_grown(struct leg *leg, uint32_t pages);
/* Takes it out of the node and the request, and frees it. */
void leg_gone(struct leg *leg);
struct leg *leg_find(struct node *node, const Baton__Node__V1__AttemptId *id);

#endif
