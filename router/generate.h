/* baton.v1.Generation over gRPC: a call becomes a request of the core, and its answer becomes messages as the client takes
 * them.
 *
 *     on_message ─▶ wire check ─▶ check.c ─▶ core_admit              progress ─▶ pump ─┐
 *                     └─ refused: status, field, limit                                 ▼ transport free? peek, build, send, taken
 *                                                              on_writable ─▶ pump ────┘
 *
 * One message is in flight a stream; what arrives meanwhile stays ids and text in the answer, and leaves together in the
 * next message. A client that takes nothing for client_stall_s is ended as CANCELLED, outcome slow_client.
 *
 * Owner: the loop thread. */
#ifndef BATON_ROUTER_GENERATE_H
#define BATON_ROUTER_GENERATE_H

#include "proto/rpc/rpc.h"
#include "router/check.h"
#include "router/core.h"
#include "router/response.h"

struct generate {
    struct core *core;
    struct loop *loop;
    struct checker *checker;
    struct router_stats *stats;
    struct response_builder builder;
    uint64_t client_stall_ns;
    struct list streams;
    size_t open; /* calls of Generate */
};

/* Registers Generate, Tokenize, Detokenize and ListModels; before rpc_server_start. Must outlive the server. */
enum status generate_init(struct generate *generate, struct rpc_server *server, struct err *err);
/* Every 100 ms or so: ends clients that take nothing. */
void generate_tick(struct generate *generate);

#endif
