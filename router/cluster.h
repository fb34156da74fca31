/* What operators see: baton.v1.Cluster (GetStatus, Drain), the services' health, and the gauges of /metrics that are known
 * only when asked for, among them each node's pages and sequences as its last heartbeat said (at most 250 ms old, 2.5 s
 * when it has stopped).
 *
 * baton.v1.Generation is NOT_SERVING at start, and from 2.5 s on without a node that could serve. It says nothing about
 * load. Owner: the loop thread. */
#ifndef BATON_ROUTER_CLUSTER_H
#define BATON_ROUTER_CLUSTER_H

#include "base/loop.h"
#include "base/metrics.h"
#include "proto/rpc/health.h"
#include "proto/rpc/rpc.h"
#include "router/core.h"

struct cluster {
    struct core *core;
    struct loop *loop;
    struct rpc_health *health; /* may be NULL */
    uint64_t started_ns;
    uint64_t covered_ns; /* when a node could last serve; 0: never */
    bool serving;
};

/* Registers the service and declares the gauges; before rpc_server_start. Must outlive the server and the metrics. */
enum status cluster_init(struct cluster *cluster, struct rpc_server *server,
                         struct metrics *metrics, struct err *err);
/* After every change, and every 100 ms or so: sets the health. */
void cluster_tick(struct cluster *cluster);

#endif
