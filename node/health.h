/* What a node shows to others than its router: grpc.health.v1 and reflection on its gRPC port; /healthz, /readyz and /metrics
 * on its HTTP port. Both listen from the first moment, while the model still loads: NOT_SERVING until then.
 *
 * NOT_SERVING: loading, draining, without a router for 5 s, or stuck (node_serving). Never for mere load.
 * Owner: the loop thread; every answer proves that the loop turns. */
#ifndef BATON_NODE_HEALTH_H
#define BATON_NODE_HEALTH_H

#include "base/loop.h"
#include "base/metrics.h"
#include "node/options.h"
#include "proto/rpc/rpc.h"

struct health;
struct node;

/* Binds both ports. IN_USE names the option and the address. */
enum status health_create(struct loop *loop, struct rpc *rpc, struct metrics *metrics,
                          const struct node_options *options, struct health **health_out,
                          struct err *err);
/* The addresses in use, "127.0.0.1:4242". */
const char *health_grpc_address(const struct health *health);
const char *health_http_address(const struct health *health);
/* The node is loaded: from now on it answers for itself. NULL: it no longer does. */
void health_set_node(struct health *health, struct node *node);
/* Before rpc_destroy; memory goes with health_free after it. */
void health_close(struct health *health);
void health_free(struct health *health);

#endif
