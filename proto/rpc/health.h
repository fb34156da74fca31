/* grpc.health.v1.Health, as in the public protocol: Check and Watch, for "" (the server as a whole)
 * and for each service name that was ever set. Unknown names: Check answers NOT_FOUND, Watch sends
 * SERVICE_UNKNOWN and waits. Owner: the loop thread. */
#ifndef BATON_PROTO_RPC_HEALTH_H
#define BATON_PROTO_RPC_HEALTH_H

#include "proto/rpc/rpc.h"

struct rpc_health;

/* Registers both methods; before rpc_server_start. "" starts as NOT_SERVING. */
enum status rpc_health_create(struct rpc_server *server, struct rpc_health **health_out,
                              struct err *err);
/* Sets a state and tells every watcher. `service` is copied at its first use. */
void rpc_health_set(struct rpc_health *health, const char *service, bool serving);
/* Ends all watches, so that a drain can end (a watch never ends by itself). */
void rpc_health_end_watches(struct rpc_health *health);
/* After the server's end (its done callback, or rpc_destroy). Takes NULL. */
void rpc_health_destroy(struct rpc_health *health);

#endif
