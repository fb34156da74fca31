/* baton.node.v1.Registry over gRPC: each stream of a node becomes a node_stream of the registry, with a queue of what is to
 * be sent to it. The queue is bounded and nobody waits for it: a node that does not read is declared dead.
 *
 *     rpc ──on_message──▶ seal ──▶ wire check ──▶ registry_stream_message
 *     registry ──send──▶ [ straight to the transport when it is free │ packed into the queue ] ──on_writable──▶ rpc
 *
 * A message whose seal is broken, or before which one is missing, ends its registration as a lost connection does.
 *
 * Owner: the loop thread. */
#ifndef BATON_ROUTER_NODE_STREAMS_H
#define BATON_ROUTER_NODE_STREAMS_H

#include "proto/rpc/rpc.h"
#include "router/core.h"

struct node_streams {
    struct core *core;
    struct loop *loop;
    size_t open;
    size_t queue_messages_max; /* for one node; set by init */
};

enum { NODE_QUEUE_MESSAGES_MAX = 4096, NODE_QUEUE_BYTES_MAX = 64 << 20 };

/* Registers the method; before rpc_server_start. Must outlive the server. */
enum status node_streams_init(struct node_streams *streams, struct rpc_server *server,
                              struct core *core, struct loop *loop, struct err *err);

#endif
