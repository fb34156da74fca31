/* A node as a process of the simulation: the real node, with both roles, on a fake engine, an in-memory rpc and the in-process
 * transport. Knows nothing of router/. */
#ifndef BATON_TESTS_SIM_NODE_SIDE_H
#define BATON_TESTS_SIM_NODE_SIDE_H

#include "engine/limits.h"
#include "kvtransfer/memory.h"
#include "tests/sim/fake_engine.h"
#include "tests/sim/net.h"

struct node;
struct node_side;

struct node_side_options {
    struct net *net;
    struct xfer_hub *hub;
    char name[16];
    int place; /* in the net's faults */
    int role;  /* 0 prefill, 1 decode, 2 mixed */
    uint32_t chunk_tokens, steps_in_flight;
    uint64_t grace_ns;
    uint32_t peers_max;   /* 0: 8 */
    int reserve, preempt; /* as node/options.h has them */
    uint32_t swap_pages, preempt_every, gap_ms;
    struct fake_options engine;
    const struct engine_limits *limits; /* that the node believes its machine to have; NULL: none */
    bool
        check_always; /* after each turn, also after those in which no work and no page has moved */
};

struct node_side *node_side_create(const struct node_side_options *options);
/* As a kill: nothing more is said to anybody; `silent`: nor by its kernel. Takes NULL. */
void node_side_destroy(struct node_side *node, bool silent);
struct loop *node_side_loop(struct node_side *node);
struct rpc *node_side_rpc(struct node_side *node);
struct engine *node_side_engine(struct node_side *node);
struct xfer *node_side_xfer(struct node_side *node);
/* SIGTERM: drains, leaves, and then node_side_left. */
void node_side_drain(struct node_side *node);
bool node_side_left(const struct node_side *node);

/* What must hold after every turn; ends the test otherwise. */
void node_side_check(struct node_side *node);
/* Nothing is held for anybody: pages, works, slots, transfers. False: says what in `why`. */
bool node_side_rest(const struct node_side *node, char *why, size_t why_bytes);
/* Flips a bit of bytes at rest: a page that a source holds. False: there is none. */
bool node_side_flip(struct node_side *node, struct dice *dice);
/* It holds work that is not over for the registration of this incarnation. */
bool node_side_works(const struct node_side *node);

/* The order of deadlines: who has waited longer than it may for this node's pages. */
uint64_t node_side_incarnation(const struct node_side *node);
uint64_t node_side_leases_expired(const struct node_side *node);
bool node_side_fetches_too_long(const struct node_side *node, uint64_t from_incarnation,
                                uint64_t longest_ns);

struct node_counts {
    uint64_t checksum_failures, dropped, leases_expired, gave_up, stale, cached_tokens, lost;
    uint64_t prompt_tokens, completion_tokens, pieces;
    uint64_t fetched; /* prefixes of which all or a part came from another node */
    uint64_t swapped, recomputed, handed_over;
    uint64_t stream_faults;
};
void node_side_counts(const struct node_side *node, struct node_counts *counts_out);
void node_side_print(const struct node_side *node);
struct roofline_report node_side_report(const struct node_side *node, enum roofline_phase phase);
/* It runs below its own rate; *share_out: at which share of it. */
bool node_side_slow(const struct node_side *node, double *share_out);
const struct node *node_side_node(const struct node_side *node);

#endif
