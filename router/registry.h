/* The nodes of the cluster: who is registered, alive, how loaded, and who can reach whom.
 *
 *     node_stream (one connection) ──Register──▶ node (one record a name, kept over registrations)
 *                                                 │ heartbeats: answered at once; load; attempts alive
 *                                                 │ Link: this node's view of a peer
 *                                                 ▼
 *                            placement_view ──▶ sched/placement.h
 *
 * A node's states:
 *
 *     (new name) ──Register──▶ STARTING ──heartbeat, serving: true──▶ SERVING
 *                               │    ▲                                 │   │
 *                               │    └────heartbeat, serving: false────┘   │
 *                               └──drain──────▶ DRAINING ◀──────────drain──┘
 *
 *     (any) ──its stream ends, 2.5 s of silence──▶ DEAD ──Register──▶ STARTING
 *
 *     state      waits for                  deadline
 *     STARTING   a heartbeat with serving   2.5 s since the last heartbeat: DEAD
 *     SERVING    heartbeats, work           the same
 *     DRAINING   its leave                  the same
 *     DEAD       a new registration         forgotten after ten minutes
 *
 * A new registration of a name replaces the old stream at once. What a stream brought dies with it: `lost` is called for
 * every registration that ends, exactly once. A stream without a registration is cut after 5 s.
 *
 * The router never waits for a node's stream: a port that cannot take a message marks the node doomed, and the next
 * registry_settle ends its registration. So sending never calls back.
 *
 * Time: `now_ns` is the loop's; `patient_ns` is now less all lateness of the loop so far, and deadlines that declare another
 * party dead are kept in it: while this process stood still, they did not run.
 *
 * Owner: the loop thread. */
#ifndef BATON_ROUTER_REGISTRY_H
#define BATON_ROUTER_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/sm.h"
#include "router/holdings.h"
#include "router/identity.h"
#include "router/stats.h"
#include "sched/placement.h"
#include "sched/prefix.h"

enum {
    HEARTBEAT_MS = 250,
    NODE_STOPS_AFTER_MS = 2000, /* what nodes are told */
    NODES_MAX = PLACEMENT_NODES_MAX,
};
static const uint64_t node_dead_after_ns = 2500 * NS_PER_MS;

struct registry;
struct node;
struct leg; /* router/request.h */

/* What carries messages to a node: a gRPC stream, or a test's memory. */
struct node_port {
    /* Takes the message (packs or copies it) without waiting. False: its queue is full. */
    bool (*send)(void *port, const Baton__Node__V1__RouterMessage *message);
    /* Half of the queue is free: new work may be sent, and what must be said about it later still finds room. */
    bool (*ample)(const void *port);
    /* Nothing more will be sent: ends the stream. `graceful`: after what is queued. */
    void (*end)(void *port, enum grpc_code code, const char *message, bool graceful);
};

/* One connection, embedded in whatever owns it. */
struct node_stream {
    struct registry *registry;
    struct node *node; /* NULL before Register, and after the registration ended */
    struct list link;
    const struct node_port *port;
    void *port_context;
    uint64_t opened_ns;
    bool over; /* end was called: what still arrives is stale */
};

enum node_state { NODE_STARTING, NODE_SERVING, NODE_DRAINING, NODE_DEAD, NODE_STATE_COUNT };
extern const struct sm_table node_states;

struct node {
    char name[NODE_NAME_BYTES_MAX + 1];
    size_t slot; /* index in the registry and in the placement view */
    uint8_t state;
    enum placement_role role;
    struct node_stream *stream; /* NULL: dead */
    uint64_t incarnation;
    struct wire_range wires; /* versions that it speaks */
    uint32_t wire;           /* the one chosen for its stream */
    uint64_t assignments;    /* number of the last Assign; per name, over registrations */
    uint32_t pages_total, sequences_max;
    bool grows; /* answers take their pages one by one there */
    char transport[16], grpc[128], http[128], kv_host[64];
    uint8_t *kv_address;
    size_t kv_address_bytes;
    uint64_t state_since_ns;
    const char *doomed; /* why its registration must end; NULL: it must not */
    bool blameless;     /* it said Leaving: its end is no fault */

    /* heartbeats */
    uint64_t heartbeat; /* number of the last one */
    uint64_t heartbeat_ns, heartbeat_patient_ns;
    uint64_t held_until; /* takes no new work before the heartbeat of this number */
    bool held_full;      /* … because it said FULL: what it frees lifts that */
    Baton__Node__V1__Load load;
    struct holdings holdings; /* what its cache holds, by its own word */

    /* work; router/request.h keeps these up to date */
    struct leg *legs; /* hash by attempt */
    struct list leg_list;
    uint32_t leg_count, pages_taken;
    uint32_t serving_legs; /* of the legs: they only serve cached pages, and compute nothing */
    uint32_t growing_legs; /* of the legs: they decode, or will */
    uint64_t prefill_tokens;
    uint64_t handovers; /* sequences that it gave up, leaving; of this registration */
};

struct registry_events {
    void *context;
    /* The registration ended; its legs are the receiver's to settle. `death`: it counts against the requests it held. */
    void (*lost)(void *context, struct node *node, bool death);
    void (*heartbeat)(void *context, struct node *node,
                      const Baton__Node__V1__Heartbeat *heartbeat);
    void (*accepted)(void *context, struct node *node, const Baton__Node__V1__Accepted *accepted);
    void (*tokens)(void *context, struct node *node, const Baton__Node__V1__Tokens *tokens);
    void (*report)(void *context, struct node *node, const Baton__Node__V1__Report *report);
    /* One line for the log. */
    void (*note)(void *context, const struct node *node, const char *text);
};

struct link_view; /* registry_links.c */

struct registry {
    uint64_t incarnation; /* of this router */
    struct identity_model model;
    struct identity identity;
    struct registry_events events;
    struct router_stats *stats;
    uint64_t now_ns, patient_ns, late_total_ns, started_ns;

    struct node **nodes; /* [node_count], by slot; NULL: a free slot */
    size_t node_count, node_capacity;
    struct list streams;
    bool doomed;           /* some node is */
    uint64_t uncovered_ns; /* since when nobody can serve; 0: somebody can */
    bool roles_seen;       /* prefill and decode, or mixed, have served since the start */
    uint32_t requests;     /* that live: the identity stays as long as they do */

    uint8_t cache_key[PREFIX_KEY_BYTES];
    struct prefix_key prefix_key; /* made of it */
    struct holdings_index index;

    struct link_view *views; /* [capacity * capacity]: row x, column y: what x says of y */
    uint8_t *links;          /* the same shape, enum placement_link */
    uint32_t *link_kb_per_s; /* the same, as placement_view has it; so is the next */
    uint32_t *link_seen_s;
    uint64_t links_seen_ns, links_timed_until_ns; /* see registry_links_refresh */
    struct placement_node *placement_nodes;
};

enum status registry_init(struct registry *registry, const struct identity_model *model,
                          const struct registry_events *events, struct router_stats *stats,
                          struct err *err);
/* All streams must have been closed. */
void registry_finish(struct registry *registry);

/* Before any other call of a round. `late_total_ns` as loop_late_total_ns. */
void registry_time(struct registry *registry, uint64_t now_ns, uint64_t late_total_ns);
/* Every 100 ms or so: deadlines. */
void registry_tick(struct registry *registry);
/* Ends the registrations of doomed nodes. After whatever may have sent or doomed. */
void registry_settle(struct registry *registry);

/* --- streams --- */
void registry_stream_open(struct registry *registry, struct node_stream *stream,
                          const struct node_port *port, void *port_context);
void registry_stream_message(struct node_stream *stream,
                             const Baton__Node__V1__NodeMessage *message);
/* What it says cannot be trusted any more: ends the registration at the next settle, and the connection with it. `why` is
 * static. Harmless when it is over already. */
void registry_stream_broken(struct node_stream *stream, const char *why);
/* The connection is gone, or the node will send no more. Harmless when it is over already. */
void registry_stream_closed(struct node_stream *stream, const char *why);

/* --- nodes --- */
void node_send(struct registry *registry, struct node *node,
               const Baton__Node__V1__RouterMessage *message);
/* Ends the registration at the next settle. `why` is static. */
void node_doom(struct registry *registry, struct node *node, const char *why);
/* No new work before a heartbeat newer than all sent so far has come. */
void node_hold(struct registry *registry, struct node *node, bool full);
/* It said FULL and has just freed something. */
void node_unhold(struct node *node);
/* Takes no new work any more; `tell` sends Drain. */
void node_drain(struct registry *registry, struct node *node, bool tell);
/* A live node plays another role from now on: it is told (and says so when it registers again), and placement follows. What
 * runs goes on: every node can do either phase. */
void node_role(struct registry *registry, struct node *node, enum placement_role role);
struct node *registry_find(const struct registry *registry, const char *name);

/* --- for placement --- */
/* Valid until the next call on this registry. */
struct placement_view registry_view(struct registry *registry);
/* Some node can serve, and the cluster has had time to gather. */
bool registry_covered(const struct registry *registry);
/* A request would find a way now: a mixed node, or a prefill and a decode node whose link is up (or has not been heard of for
 * two seconds), or only nodes of one role. */
bool registry_met(struct registry *registry);
/* The largest pool among live nodes, in pages; 0: no node. */
uint32_t registry_pages_max(const struct registry *registry);
uint32_t registry_context_tokens(const struct registry *registry);
/* Pages that `tokens` need; 0 when no node has said how large pages are. */
uint32_t registry_pages(const struct registry *registry, uint64_t tokens);

/* --- caches (registry_cache.c) --- */
/* Once, before any node comes. `key`: the configured one [PREFIX_KEY_BYTES], or NULL for one of its own. `entries_max`: hashes
 * remembered over all nodes. */
void registry_cache_init(struct registry *registry, const uint8_t *key, uint64_t entries_max);
void registry_cache_report(struct registry *registry, struct node *node,
                           const Baton__Node__V1__Cached *cached);
void registry_cache_forget(struct registry *registry, struct node *node);
/* Fills in cached_pages of the view that registry_view has just given: for a request whose pages have these hashes. */
void registry_cache_view(struct registry *registry, const uint64_t *hashes, uint32_t count);

/* --- links (registry_links.c) --- */
/* The version of the KV frames between these two; 0: they have none in common, and are no pair. */
uint32_t registry_pair_wire(const struct node *a, const struct node *b);
/* A transfer over this pair has failed. */
void registry_pair_failed(struct registry *registry, const struct node *prefill,
                          const struct node *decode);
bool registry_links_grow(struct registry *registry, size_t capacity, size_t old_capacity);
void registry_links_reset(struct registry *registry, const struct node *node);
void registry_link_report(struct registry *registry, const struct node *node,
                          const Baton__Node__V1__Link *link);
/* A transfer over this pair begins: whether a slow link has become better will be known. */
void registry_link_tried(struct registry *registry, const struct node *prefill,
                         const struct node *decode);
/* Before placing: what became of links by the passing of time. */
void registry_links_refresh(struct registry *registry);
/* What node `of` has measured on its link to `about`, bytes a second; 0: not yet. `up`: it says that they have met. */
uint64_t registry_link_rate(const struct registry *registry, const struct node *of,
                            const struct node *about, bool *up_out);

#endif
