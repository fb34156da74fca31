/* Server reflection v1 and v1alpha: which services a server has, and the descriptors of their
 * files, which the build embeds (proto/embed_descriptors.py). Extensions: none exist in proto3
 * files, so those questions get NOT_FOUND. Owner: the loop thread. */
#ifndef BATON_PROTO_RPC_REFLECTION_H
#define BATON_PROTO_RPC_REFLECTION_H

#include "proto/rpc/rpc.h"

struct rpc_reflection;

/* Registers both versions. Call it after the other rpc_server_add and before rpc_server_start: the
 * services listed are those registered at the time of the question. */
enum status rpc_reflection_create(struct rpc_server *server, struct rpc_reflection **reflection_out,
                                  struct err *err);
/* After the server's end. Takes NULL. */
void rpc_reflection_destroy(struct rpc_reflection *reflection);

#endif
