/* One node: a loaded engine, its pages, the work that its router gave it, and everything around. This header is for node/ and
 * the two role folders; programs use node/program.h.
 *
 *        router ◀──stream──▶ registration ──Assign, End, …──▶ assign ──▶ work table
 *                                 ▲                                          │ pages (node_pages), rows (step)
 *                              outbox ◀── Accepted, Tokens, Report ── step ◀─┤
 *                                                                            │ per leg: struct node_leg
 *        peers ◀── Peers        kv_links ◀── serve (kv_source), fetch (kv_sink)            cache: what pages remember
 *
 * Phases of a round, in this order within each:
 *     RECEIVE   node_guard (stops first when the router has been silent too long), rpc messages, KV frames
 *     COMPLETE  engine events, copies, works that end
 *     SCHEDULE  pages to the oldest waiters
 *     SUBMIT    the next steps, then KV pieces and messages leave
 *
 * Roles are a matter of placement: every node takes every leg. What belongs to one leg alone lies in its folder and is reached
 * through struct node_leg; LEG_LOCAL needs nothing of the kind.
 *
 * Owner: the loop thread. */
#ifndef BATON_NODE_NODE_H
#define BATON_NODE_NODE_H

#include "base/faults.h"
#include "base/loop.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "model/model.h"
#include "node/cache.h"
#include "node/copies.h"
#include "node/fetch.h"
#include "node/meter.h"
#include "node/options.h"
#include "node/outbox.h"
#include "node/peers.h"
#include "node/preempt.h"
#include "node/registration.h"
#include "node/serve.h"
#include "node/step.h"
#include "node/work.h"

struct node;

/* What one leg does that the others do not. Entries may be NULL. */
struct node_leg {
    /* The assignment is sound and would be held. FULL, INVALID: it is refused with `err`. */
    enum status (*accept)(struct node *node, struct work *work, struct err *err);
    /* Its pages are taken, and what was found here is verified. Prefill: PROMPT, everything before work->rows_done is there.
     * Decode: FETCHING, what is not there is to be fetched. */
    void (*begin)(struct node *node, struct work *work);
    /* Rows of its prompt were given to the engine. */
    void (*step_submitted)(struct node *node, struct work *work);
    /* A piece of the work's block is computed and has its checksum. */
    void (*piece_sealed)(struct node *node, struct work *work, uint32_t block, uint32_t run);
    /* The prompt's token was sampled and sent, and the answer goes on. */
    void (*sampled)(struct node *node, struct work *work, const struct kv_first *first);
    /* The transfer that fetches its pages has ended, complete or not. */
    void (*fetched)(struct node *node, struct work *work, const struct kv_sink_result *result);
    /* The router's copy of the first token. */
    void (*first_token)(struct node *node, struct work *work, const struct kv_first *first);
};

struct node_metrics {
    struct metric *tokens_prompt, *tokens_completion, *tokens_cached;
    struct metric *steps, *rows;
    struct metric *stale_assign, *stale_renew, *stale_first_token, *stale_stream;
    struct metric *stream_faults[SEAL_VERDICT_COUNT];
    struct metric *self_stops, *dropped, *refused[4];
    struct metric *preempted_swap, *preempted_recompute, *recomputed, *handed_over;
    struct metric *fetches[3]; /* nothing came, a part, all */
};

/* What the first in the pool's line found when there were no pages for it: as long as it is so, looking again (for a long prompt, all
 * of its hashes) would find the same. */
struct pages_refused {
    uint64_t age, moves, serials;
    uint32_t available;
};

struct node {
    struct loop *loop;
    struct rpc *rpc;
    const struct node_options *options;
    char name[256];
    uint64_t incarnation; /* of the current registration */
    uint32_t wire;        /* version of its messages, as the router chose */

    struct model_file *model;
    struct engine *engine;
    const struct engine_info *info;
    struct pool pool;
    struct work_table table;
    struct cache cache;
    struct copies copies;
    struct step_loop steps;
    struct meter meter;
    struct preempt preempt;
    struct pages_refused refused_pages; /* hold.c */
    struct kv_links *links;
    struct kv_source *source;                    /* serve.c */
    struct kv_sink *sink;                        /* fetch.c */
    const struct node_leg *legs[WORK_LEG_COUNT]; /* NULL: nothing special */

    struct outbox outbox;
    struct registration *registration;
    struct peers *peers;
    enum node_role role;

    struct metrics *metrics;
    struct faults *faults; /* NULL but in tests of test builds */
    struct node_metrics counted;
    uint64_t router_incarnation, assignment_seen;
    uint64_t stale_frames; /* those of the stream; KV frames are counted by the links */

    bool draining;
    bool leaving; /* said so, or about to */
    uint64_t hand_over_ns,
        drain_until_ns;        /* from when what is left is handed over; the grace time's end */
    uint64_t fetched_until_ns; /* somebody may still come for the pages of what was handed over */

    struct loop_hook guard, complete, schedule, submit;
    struct loop_timer tick;
};

/* How KV travels: `make` creates the worker for `handler` (UCX in the programs, memory in tests). */
struct node_transport {
    enum status (*make)(void *context, const struct xfer_handler *handler, struct xfer **xfer_out,
                        struct err *err);
    void *context;
};

struct node_parts {
    struct loop *loop;
    struct rpc *rpc;
    const struct node_options *options;
    struct model_file *model; /* stays the caller's, as do all parts */
    struct engine *engine;
    const struct engine_limits
        *limits; /* copied; NULL: not known, and nothing is held against them */
    struct loop_waker *
        engine_waker; /* woken by compute threads: lives until engine_destroy; its callback need do nothing */
    struct metrics *metrics;
    struct faults *faults;                   /* NULL: nothing goes wrong on purpose */
    const struct node_leg *prefill, *decode; /* NULL: such legs are refused */
    struct node_transport transport;
    const char *name, *grpc_address, *http_address; /* in use, for the registration */
    uint32_t peers_max;                             /* other nodes; 0: PEERS_MAX */
    /* The router refused this node for good; `err` names the field. */
    void (*refused)(void *context, const struct err *err);
    /* The node has drained and left. */
    void (*left)(void *context);
    void *context;
};

/* Everything but the registration, which node_start begins. */
enum status node_create(const struct node_parts *parts, struct node **node_out, struct err *err);
void node_start(struct node *node);
/* Ends all work and connections at once. Takes NULL. */
void node_destroy(struct node *node);
/* Takes no new work, hands over what cannot end in time, and leaves when idle, at the latest after `grace_ns`. Defined, with
 * drain_tick, in drain.c. */
void node_drain(struct node *node, uint64_t grace_ns);
/* True when it can serve; else why not, one line, in `reason` (may be NULL). */
bool node_serving(const struct node *node, struct buf *reason);

/* --- for node/ and the roles --- */

/* From the router. Defined in assign.c. */
void node_assign(struct node *node, const Baton__Node__V1__Assign *assign);
void node_message(struct node *node, const Baton__Node__V1__RouterMessage *message);

/* Pins the pages of a waiting work that are here already, and says how many more it wants. Not the time yet: cache_release.
 * Defined, as all up to node_work_compute, in begin.c. */
uint32_t node_work_find_pages(struct node *node, struct work *work);
/* So many are to be had: takes them, and begins. */
void node_work_begin(struct node *node, struct work *work);
/* A page that was found here is wrong: everything is given back, and it waits again. */
void node_work_again(struct node *node, struct work *work);
/* What was found here is verified. */
void node_work_checked(struct node *node, struct work *work);
/* The first `blocks` pages are there: the rest is computed. */
void node_work_compute(struct node *node, struct work *work, uint32_t blocks);

/* SCHEDULE: gives pages to the oldest waiters, asks the youngest holders for theirs. Defined, as all up to node_work_join, in
 * hold.c. */
void node_pages_give(struct node *node);
/* Moves every work that is over as far as it goes now. */
void node_works_settle(struct node *node);
/* The work is over, whatever its state; its pages become free as soon as nothing touches them. `why` goes to the peer. */
void node_work_end(struct node *node, struct work *work, enum status why);
/* The same after a report (FAILED, GAVE_UP, DROPPED) that the router gets first. */
void node_work_fail(struct node *node, struct work *work, Baton__Node__V1__Report__Kind kind,
                    enum status status, const char *text);
/* Ends the work of every router. The stream is gone: nothing is reported. */
void node_stop_all(struct node *node);
/* The work has a new token, known to the router or sent with this: appends it, reports it, and ends the work when it ends the
 * answer. Returns false when it did. token->finish is filled in here. */
bool node_work_token(struct node *node, struct work *work, struct outbox_token *token);
/* A FETCHING or ORPHAN work is complete: its first token is `work->first`. Joins the running batch. */
void node_work_join(struct node *node, struct work *work);
/* Every tick: hands over, ends and leaves, while draining. */
void drain_tick(struct node *node, uint64_t now_ns);
/* Works that hold or want something. */
uint32_t node_work_count(const struct node *node);
void node_load(const struct node *node, Baton__Node__V1__Load *load_out);
void node_identity(const struct node *node, Baton__Node__V1__Identity *identity_out);
uint64_t node_stale_frames(const struct node *node);

/* The transfer's shape for `blocks` pages. */
void node_shape(const struct node *node, uint32_t blocks, struct kv_shape *shape_out);

#endif
