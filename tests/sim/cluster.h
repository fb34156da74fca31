/* A whole cluster on a virtual clock: one router, some nodes, the streams between them, the KV hub; every process with a loop of
 * its own, which turns when its time has come. What happens next is a function of the seed alone.
 *
 *     time ──▶ the next thing that is due: a process's turn, a message of the KV hub, or what the script wants (fault, request)
 *
 * A frozen process does not turn; its messages wait, its compute stands still. A killed one is gone, with a word from its
 * kernel or without; the same name and place may start again with a new life. */
#ifndef BATON_TESTS_SIM_CLUSTER_H
#define BATON_TESTS_SIM_CLUSTER_H

#include "tests/sim/node_side.h"
#include "tests/sim/router_side.h"

enum {
    CLUSTER_NODES_MAX = 6,
    CLUSTER_ROUTER = 0
}; /* process 0 is the router, node n is process n */

struct process {
    bool alive, frozen;
    struct loop *loop;
    struct rpc *rpc;
    struct node_side *node; /* NULL: the router, or dead */
    uint64_t planned_ns, frozen_ns, turned_ns;
    uint64_t same_turns; /* without time passing */
    bool was_frozen;     /* in this life */
    uint64_t leases_expired;
};

struct cluster_options {
    uint64_t seed;
    uint32_t nodes;
    struct node_side_options
        node[CLUSTER_NODES_MAX + 1];   /* by process; net, hub, place are filled in */
    struct router_side_options router; /* net is filled in */
    size_t window_bytes;
    uint32_t burst_max;
    uint64_t net_min_ns, net_max_ns; /* of a message between router and node */
    uint64_t kv_min_ns, kv_max_ns;   /* between two steps of a direction of the hub */
    bool by_hand;                    /* see below */
    uint32_t
        boast; /* nodes say that they have so many times their pages: the router gives them too much */
};

struct cluster {
    struct cluster_options options;
    struct dice dice; /* the order of what is due at one time, and delays of the hub */
    uint64_t now_ns, turns;
    struct net *net;
    struct xfer_hub *hub;
    struct router_side *router;
    struct process processes[CLUSTER_NODES_MAX + 1];
    /* by pair of processes: when the hub moves on; DEADLINE_NONE: nothing waits */
    uint64_t kv_due_ns[CLUSTER_NODES_MAX + 1][CLUSTER_NODES_MAX + 1];
    uint64_t kv_step_min_ns[CLUSTER_NODES_MAX + 1][CLUSTER_NODES_MAX + 1];
    uint64_t kv_step_max_ns[CLUSTER_NODES_MAX + 1][CLUSTER_NODES_MAX + 1];
    struct node_counts gone; /* sums over nodes that are no more */
};

void cluster_start(struct cluster *cluster, const struct cluster_options *options);
/* Kills all; checks that nothing is left of them. */
void cluster_stop(struct cluster *cluster);

/* When something is due; DEADLINE_NONE: nothing ever. */
uint64_t cluster_due_ns(struct cluster *cluster);
/* Lets everything happen that is due until then. */
void cluster_run(struct cluster *cluster, uint64_t until_ns);

/* --- the script's hand --- */
void cluster_kill(struct cluster *cluster, uint32_t process, bool silent);
void cluster_restart(struct cluster *cluster, uint32_t process);
void cluster_freeze(struct cluster *cluster, uint32_t process, bool frozen);
void cluster_kv_speed(struct cluster *cluster, uint32_t from, uint32_t to, uint64_t min_ns,
                      uint64_t max_ns);
void cluster_kv_cut(struct cluster *cluster, uint32_t from, uint32_t to, bool cut);
/* --- by hand: messages, engines and the hub move only when told to (tests/sim/explore.h) --- */
uint64_t cluster_process_due_ns(const struct cluster *cluster, uint32_t process);
void cluster_time_pass(struct cluster *cluster, uint64_t to_ns);
/* What the script did to a process's state: it turns at once. */
void cluster_poke(struct cluster *cluster, uint32_t process);
/* Sums over all nodes, dead ones included. */
void cluster_counts(const struct cluster *cluster, struct node_counts *counts_out);
void cluster_print(const struct cluster *cluster);

#endif
