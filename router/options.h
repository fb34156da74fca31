/* The options of baton-router. Owner: main; constant afterwards. */
#ifndef BATON_ROUTER_OPTIONS_H
#define BATON_ROUTER_OPTIONS_H

#include "base/config.h"

enum router_hand_off { HAND_OFF_AUTO, HAND_OFF_ALWAYS };

struct router_options {
    const char *name, *model;
    struct config_address grpc, http, node_grpc;
    const char *grpc_file, *http_file, *node_grpc_file;
    int log_level, prefix_fetch; /* the second: enum placement_fetch */
    int hand_off;                /* enum router_hand_off */
    const char *cache_key;
    const char *faults; /* NULL; test builds: base/faults.h */
    int64_t requests_max, queue_max, prompt_tokens_max, replays_max, wire_max;
    int64_t local_prefill_tokens, cache_index_entries;
    uint64_t message_bytes_max;
    uint64_t client_stall_ns, node_wait_ns, grace_ns;
};

/* `version` must outlive the result, which is static. */
const struct config_schema *router_options_schema(const char *version);

#endif
