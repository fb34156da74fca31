/* The vocabulary of cluster.yaml: every key that any program knows, and the sections in which it
 * has a meaning. One file serves all programs, so each must be able to tell a misspelt key of
 * another from a right one; the checks of values stay with the program that owns the row. A test
 * compares this list with every program's --help. Constants only. */
#include "base/config.h"

const struct config_key config_keys[] = {
    /* every program */
    {"name", CONFIG_ROUTER | CONFIG_NODE},
    {"grpc", CONFIG_ROUTER | CONFIG_NODE},
    {"http", CONFIG_ROUTER | CONFIG_NODE},
    {"grpc_file", CONFIG_ROUTER | CONFIG_NODE},
    {"http_file", CONFIG_ROUTER | CONFIG_NODE},
    {"log_level", CONFIG_EVERYWHERE},
    {"model", CONFIG_EVERYWHERE},
    {"grace_s", CONFIG_EVERYWHERE},
    {"wire_max", CONFIG_EVERYWHERE},
    {"faults", CONFIG_EVERYWHERE},
    /* the router */
    {"node_grpc", CONFIG_ROUTER},
    {"node_grpc_file", CONFIG_ROUTER},
    {"requests_max", CONFIG_ROUTER},
    {"queue_max", CONFIG_ROUTER},
    {"prompt_tokens_max", CONFIG_ROUTER},
    {"message_bytes_max", CONFIG_ROUTER},
    {"node_wait_s", CONFIG_ROUTER},
    {"client_stall_s", CONFIG_ROUTER},
    {"replays_max", CONFIG_ROUTER},
    {"local_prefill_tokens", CONFIG_ROUTER},
    {"cache_index_entries", CONFIG_ROUTER},
    {"cache_key", CONFIG_ROUTER},
    {"prefix_fetch", CONFIG_ROUTER},
    {"hand_off", CONFIG_ROUTER},
    /* nodes */
    {"router", CONFIG_COMMON | CONFIG_NODE},
    {"role", CONFIG_NODE},
    {"backend", CONFIG_COMMON | CONFIG_NODE},
    {"compute", CONFIG_COMMON | CONFIG_NODE},
    {"kv_type", CONFIG_COMMON | CONFIG_NODE},
    {"page_tokens", CONFIG_COMMON | CONFIG_NODE},
    {"kv_pages", CONFIG_COMMON | CONFIG_NODE},
    {"kv_memory", CONFIG_COMMON | CONFIG_NODE},
    {"prefix_cache", CONFIG_COMMON | CONFIG_NODE},
    {"kv_rate_max", CONFIG_COMMON | CONFIG_NODE},
    {"threads", CONFIG_COMMON | CONFIG_NODE},
    {"chunk_tokens", CONFIG_COMMON | CONFIG_NODE},
    {"batch_tokens", CONFIG_COMMON | CONFIG_NODE},
    {"transport", CONFIG_COMMON | CONFIG_NODE},
    {"kv_interface", CONFIG_COMMON | CONFIG_NODE},
    {"kv_ports", CONFIG_COMMON | CONFIG_NODE},
    {"kv_filter", CONFIG_COMMON | CONFIG_NODE},
    {"kv_host", CONFIG_NODE},
    {"isa", CONFIG_COMMON | CONFIG_NODE},
    {"layer_run", CONFIG_COMMON | CONFIG_NODE},
    {"context_tokens", CONFIG_COMMON | CONFIG_NODE},
    {"sequences_max", CONFIG_COMMON | CONFIG_NODE},
    {"steps_in_flight", CONFIG_COMMON | CONFIG_NODE},
    {"gap_ms", CONFIG_COMMON | CONFIG_NODE},
    {"reserve", CONFIG_COMMON | CONFIG_NODE},
    {"preempt", CONFIG_COMMON | CONFIG_NODE},
    {"swap_memory", CONFIG_COMMON | CONFIG_NODE},
    {"preempt_every", CONFIG_COMMON | CONFIG_NODE},
};
const size_t config_key_count = sizeof config_keys / sizeof config_keys[0];
