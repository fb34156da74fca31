/* Faults in the messages of streams, by a seeded schedule (base/faults.h, place "message"): what has arrived is dropped, kept
 * back, kept back until the next one has passed, delivered twice, delivered with a flipped bit, or the whole stream stands
 * still for a while. gRPC itself does none of this; it is for what stands above it. Test builds only; without -Dfaults=true it
 * is rpc_fault_absent.c and cannot be started.
 * Owner: the loop thread. */
#ifndef BATON_PROTO_RPC_RPC_FAULT_H
#define BATON_PROTO_RPC_RPC_FAULT_H

#include "base/faults.h"
#include "proto/rpc/rpc.h"

/* From now on, for calls of this method that begin later, on either side. `path` and `faults` must outlive `rpc`. Once. */
enum status rpc_fault_start(struct rpc *rpc, const char *path, struct faults *faults,
                            struct err *err);

#endif
