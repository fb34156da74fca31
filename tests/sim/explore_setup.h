/* What a configuration of the explorer stands for: the cluster, its requests, and the answers that are right.
 * Owner: the simulation's only thread. */
#ifndef BATON_TESTS_SIM_EXPLORE_SETUP_H
#define BATON_TESTS_SIM_EXPLORE_SETUP_H

#include "tests/sim/cluster.h"
#include "tests/sim/explore.h"

struct cluster_options explore_cluster_options(const struct explore_config *config);
/* Fills the options of clients[0, request_count), and reference[0, request_count). */
void explore_requests(const struct explore_config *config, struct client *clients,
                      uint32_t (*reference)[CLIENT_TOKENS_MAX]);

#endif
