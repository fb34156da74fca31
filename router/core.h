/* The router without its sockets: requests come in, are queued, placed on nodes, watched, placed again, and end.
 *
 *     generate.c ──admit──▶ queue ──place.c──▶ attempt.c ──Assign, End, …──▶ registry ──▶ nodes
 *         ▲                   ▲                                                              │
 *         │ answer            └────────── placed again ──────── events.c ◀── Accepted, Tokens, Report, heartbeats, death
 *         └── progress, ended ───────────────────────────────────┘
 *
 * Everything happens inside the calls below, with the time given by core_time: the same code runs under the loop, and in
 * tests on a clock of their own against nodes in memory.
 *
 * The queue is ordered by priority, then age; its head waits for room, and nobody overtakes it. (So an old, large request
 * is not starved by small ones; and a node gives pages by age anyway.)
 *
 * Owner: the loop thread. */
#ifndef BATON_ROUTER_CORE_H
#define BATON_ROUTER_CORE_H

#include "base/siphash.h"
#include "router/registry.h"
#include "router/request.h"

struct core_options {
    uint32_t queue_max, requests_max, replays_max;
    uint64_t node_wait_ns;
    uint32_t local_prefill_tokens; /* see sched/placement.h, as the next */
    enum placement_fetch fetch;
    bool hand_off_always;         /* placement's slow_links_too */
    const uint8_t *cache_key;     /* [PREFIX_KEY_BYTES], for core_init only; NULL: one is drawn */
    uint64_t cache_index_entries; /* cached pages of nodes to remember; 0: none */
    /* For durations shown to clients, which are finer than a round of the loop; NULL: the time given to core_time. */
    uint64_t (*clock)(void);
    /* One line for the log about a node (NULL: about none); may be NULL. */
    void (*note)(void *context, const struct node *node, const char *text);
    void *note_context;
};

struct core {
    struct core_options options;
    struct registry registry;
    uint8_t salt_key[SIPHASH_KEY_BYTES];
    struct router_stats *stats;
    struct list requests; /* all that were admitted and not freed */
    struct list queue;    /* by priority, then age */
    struct list seeking;  /* by age: P has or computes the prompt, and no D has room */
    uint32_t waiting, running, live;
    uint64_t admitted;
    uint64_t no_node_ns; /* since when nobody can serve, as seen by the queue; 0 */
    bool draining;
    bool dirty; /* something happened that may let the queue move */
};

enum status core_init(struct core *core, const struct core_options *options,
                      const struct identity_model *model, struct router_stats *stats,
                      struct err *err);
/* All streams closed and all requests released. */
void core_finish(struct core *core);

/* First in every callback from outside. */
void core_time(struct core *core, uint64_t now_ns, uint64_t late_total_ns);
/* Every 100 ms or so. */
void core_tick(struct core *core);
/* In the SCHEDULE phase: places what can be placed, and ends what must end. */
void core_schedule(struct core *core);

/* Whose cached pages the request may find: those of requests with the same credentials (bytes of the `authorization` metadata).
 * Before core_admit; without it, those of all who came without any. */
void core_salt(const struct core *core, struct request *request, const void *credentials,
               size_t bytes);
/* FULL: the queue or the number of requests is at its limit; DRAINING. Otherwise the request is the core's until
 * core_release, and its client is called. A resumed answer that has ended is admitted as ENDED. */
enum status core_admit(struct core *core, struct request *request, struct err *err);
/* The client is gone, too slow, or late: ends it on both legs. Not told back. */
void core_cancel(struct core *core, struct request *request, enum status why);
/* The client's side is done with the request, which must not be open; frees it now or when its legs have ended. */
void core_release(struct core *core, struct request *request);
/* No new requests from here on. */
void core_drain(struct core *core);
/* Ends all open requests with UNAVAILABLE. */
void core_cancel_all(struct core *core, const char *why);

/* --- between core.c, attempt.c and events.c --- */

uint64_t core_clock(const struct core *core);
void core_note(struct core *core, const struct node *node, const char *text);
/* The answer is whole (status OK), or cannot become so: ends all legs by name, and tells the client. */
void request_end(struct core *core, struct request *request, enum status status,
                 enum grpc_code code, const char *message);
/* The request goes back to the queue; the attempt is ended by name on all legs. `fault`: counts as a replay. */
void request_requeue(struct core *core, struct request *request, bool fault);
/* ENDING with no leg left is ENDED; frees when released. The request may be gone afterwards. */
void request_check_ended(struct core *core, struct request *request);
void request_move(struct core *core, struct request *request, enum request_state to);

/* place.c */
/* False: the head must wait, and with it all behind it. */
bool place_request(struct core *core, struct request *request);
/* Pages that a growing answer has on its decode node by now. */
uint32_t place_pages(const struct core *core, const struct request *request);
/* Another D for a prompt that P holds or computes. */
void place_seek(struct core *core, struct request *request);

/* attempt.c */
struct attempt_plan {
    struct node *prefill, *decode; /* the same: one leg, local unless the request needs no D */
    struct leg_share prefill_share, decode_share; /* of what they take; local: the second */
    struct node *fetch;                           /* whose cache P fetches from; NULL: nobody's */
    uint32_t fetch_pages;                         /* of the sequence, from its first one */
};
void attempt_begin(struct core *core, struct request *request, const struct attempt_plan *plan);
void attempt_give_decode(struct core *core, struct request *request, struct node *decode,
                         struct leg_share share);
void attempt_send_first(struct core *core, struct request *request);
void attempt_settle(struct core *core, struct request *request);
void attempt_renew(struct core *core, struct request *request);
void attempt_seek(struct core *core, struct request *request);
void leg_end(struct core *core, struct leg *leg, const char *reason);

/* events.c */
extern const struct registry_events core_registry_events; /* without its context */

#endif
