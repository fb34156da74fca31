/* The streams between nodes and their router, in memory: the parts of proto/rpc/rpc.h that node/ and router/node_streams.c use,
 * on the simulation's clock.
 *
 *     rpc_call_send ──▶ pipe: packets in order, each with the time at which it arrives ──▶ RECEIVE hook of the other process
 *
 * A pipe takes so many bytes (`window_bytes`) before its sender is no longer writable, as with a peer that does not read.
 * Faults are those of TCP: delay, a direction that stands still, a reset, a peer that is gone with or without a word.
 * Nothing is lost or reordered within a stream that lives, but by net_spoil. */
#ifndef BATON_TESTS_SIM_NET_H
#define BATON_TESTS_SIM_NET_H

#include "proto/rpc/rpc.h"
#include "tests/sim/virtual.h"

struct net;

enum net_direction {
    NET_UP,
    NET_DOWN
}; /* node to router, router to node; the client is the node */

struct net_options {
    uint64_t seed;
    size_t window_bytes;
    uint32_t burst_max; /* events that one process gets in a round */
    bool by_hand;       /* a message arrives when net_release says so, and only then */
    /* Each message when it is sent, and when it arrives; may be NULL. `sent` may change it: returns what to free(), or NULL to
     * leave it as it is. */
    void *(*sent)(void *context, int place, enum net_direction direction, const void *data,
                  size_t bytes, size_t *bytes_out);
    void (*seen)(void *context, int place, enum net_direction direction, const void *data,
                 size_t bytes);
    void *context;
};

struct net *net_create(const struct net_options *options);
void net_destroy(struct net *net);

/* A process's share. `place` names a node for the faults below; the router has none of its own. */
struct rpc *net_rpc_create(struct net *net, struct loop *loop, int place);
/* When it has something to do; DEADLINE_NONE: nothing. Frozen processes are the caller's business. */
uint64_t net_next_ns(const struct rpc *rpc);
/* It runs no more: nothing leaves it or reaches it, and rpc_destroy only cleans up. `silent`: its peers are not told. */
void net_kill(struct rpc *rpc, bool silent);

/* --- by hand --- */
struct stream;
struct net_head { /* the first message under way in one direction of a stream */
    struct stream *stream;
    enum net_direction direction;
    int place;
    const void *data; /* of a message */
    size_t bytes;
    char kind; /* 'o'pen, 'm'essage, 'h'alf-close, 'e'nd */
};
/* Those that could arrive now. Returns how many. */
uint32_t net_heads(const struct net *net, struct net_head *heads_out, uint32_t max);
void net_release(const struct net_head *head);

/* --- faults, by node --- */
void net_delay(struct net *net, int place, uint64_t min_ns, uint64_t max_ns);
/* What is under way stands still, and goes on when this ends. */
void net_block(struct net *net, int place, enum net_direction direction, bool blocked);
/* What becomes of the next message in this direction; to be overtaken it waits for one that has another behind it. */
enum net_spoil { NET_PASSES, NET_DROPPED, NET_FLIPPED, NET_TWICE, NET_OVERTAKEN };
void net_spoil(struct net *net, int place, enum net_direction direction, enum net_spoil spoil);
/* All streams of this node end; both sides hear of it. */
void net_reset(struct net *net, int place);
/* It stands still until a node takes messages again (base/plant.h). */
bool net_waits(const struct rpc *rpc);
struct print;
void net_print(const struct net *net, struct print *print);
/* Packets under way. */
unsigned net_pending(const struct net *net);

#endif
