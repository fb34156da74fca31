/* One node: a loaded engine, its pages, the work that its router gave it, and everything around. This header is for node/ and
 * the two role folders; programs use node/program.h.
 *
 *        router ◀──stream──▶ registration ──Assign, End, …──▶ assign ──▶ work table
 *                                 ▲                                          │ pages (node_pages), rows (step)
 *                              outbox ◀── Accepted, Tokens, Report ── step ◀─┤
 *                                                                            │ per leg: struct node_leg
 *        peers ◀── Peers        kv_links ◀── prefill_node (kv_source), decode_node (kv_sink)
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

#include "base/loop.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "kvtransfer/source.h"
#include "model/model.h"
#include "node/copies.h"
#include "node/options.h"
#include "node/outbox.h"
#include "node/peers.h"
#include "node/preempt.h"
#include "node/registration.h"
#include "node/step.h"
#include "node/work.h"

struct node;

/* What one leg does that the others do not. `self` is what `create` made. Entries but `create` and `destroy` may be NULL. */
struct node_leg {
    enum status (*create)(struct node *node, void **self_out, struct err *err);
    void (*destroy)(void *self); /* after the links; takes NULL */
    /* An assignment number was used up, by whatever leg and whatever the verdict. */
    void (*number_seen)(void *self, uint64_t router_incarnation, uint64_t number);
    /* The assignment is sound and would be held. FULL, INVALID: it is refused with `err`. */
    enum status (*accept)(void *self, struct work *work, struct err *err);
    /* Its pages are taken (PROMPT, or FETCHING). */
    void (*begin)(void *self, struct work *work);
    void (*step_submitted)(void *self, struct work *work);
    /* A piece of the work's block is computed and has its checksum. */
    void (*piece_sealed)(void *self, struct work *work, uint32_t block, uint32_t run);
    /* A copy of the work's has ended (the work may be over). */
    void (*copied)(void *self, struct work *work, const struct engine_copy *copy);
    /* The prompt's token was sampled and sent, and the answer goes on. */
    void (*sampled)(void *self, struct work *work, const struct kv_first *first);
    /* Messages of the router. */
    void (*first_token)(void *self, struct work *work, const struct kv_first *first);
    void (*renew)(void *self, struct work *work);
    /* The work is over: end its transfer. work->transfer_live says what is still to come. */
    void (*end)(void *self, struct work *work, enum status why);
};

struct node_metrics {
    struct metric *tokens_prompt, *tokens_completion, *tokens_cached;
    struct metric *steps, *rows;
    struct metric *stale_assign, *stale_renew, *stale_first_token, *stale_stream;
    struct metric *self_stops, *dropped, *refused[3];
    struct metric *preempted_swap, *preempted_recompute, *recomputed, *handed_over;
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
    struct copies copies;
    struct step_loop steps;
    struct preempt preempt;
    struct kv_links *links;
    const struct node_leg *legs[WORK_LEG_COUNT]; /* NULL: nothing special */
    void *leg_selves[WORK_LEG_COUNT];

    struct outbox outbox;
    struct registration *registration;
    struct peers *peers;
    enum node_role role;

    struct metrics *metrics;
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
    struct loop_waker *
        engine_waker; /* woken by compute threads: lives until engine_destroy; its callback need do nothing */
    struct metrics *metrics;
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
 * answer. Returns false when it did. */
bool node_work_token(struct node *node, struct work *work, const struct outbox_token *token);
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
