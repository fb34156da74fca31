/* The options of the two node programs: one table for both, because any node can play either role. `baton-prefill` and
 * `baton-decode` differ in the default of --role and in their section of the file.
 * Owner: the thread that starts the program; constant afterwards. */
#ifndef BATON_NODE_OPTIONS_H
#define BATON_NODE_OPTIONS_H

#include "base/config.h"

/* In the order of --role's choices, and of enum Role of node.proto less one. */
enum node_role { NODE_ROLE_PREFILL, NODE_ROLE_DECODE, NODE_ROLE_MIXED };
const char *node_role_text(enum node_role role);

/* In the order of --reserve's choices. */
enum node_reserve { NODE_RESERVE_EARLY, NODE_RESERVE_NEED };

struct node_options {
    const char *name; /* NULL: made from role, host and port */
    const char *model;
    struct config_address router, grpc, http;
    const char *grpc_file, *http_file; /* NULL, or where to write the address in use */
    int role;                          /* enum node_role */
    int log_level;                     /* enum log_level */
    int backend, compute, kv_type, transport;
    const char *isa;
    const char *cpus;
    int numa; /* 0: auto, 1: off */
    const char *peaks; /* "auto", "off", or a file: engine/limits.h */
    int64_t page_tokens, kv_pages, layer_run, context_tokens, threads, wire_max;
    uint64_t kv_memory; /* bytes; counts when kv_pages is 0 */
    int64_t chunk_tokens, batch_tokens, sequences_max, steps_in_flight;
    const char *kv_interface, *kv_ports, *kv_host;
    const char *faults; /* NULL; test builds: base/faults.h */
    bool kv_filter;
    bool prefix_cache;
    uint64_t kv_rate_max; /* bytes/s; 0: no limit */
    int64_t gap_ms;       /* 0: no bound */
    int reserve;          /* enum node_reserve */
    int preempt;          /* enum preempt_rule of sched/preempt.h */
    uint64_t swap_memory;
    int64_t preempt_every; /* tests: each sequence gives way after so many tokens; 0: never */
    uint64_t grace_ns;
};

/* The engine's name for what the user chose; auto is cpu as long as nothing else is built. */
const char *node_options_backend(const struct node_options *options);

/* The schema of `program` ("baton-prefill") with its section and default role; lives as long as the program. Call once. */
const struct config_schema *node_options_schema(const char *program, const char *section,
                                                enum node_role role, const char *version);
/* What one row cannot check by itself: STATUS_CONFIG naming the field and the limit. */
enum status node_options_check(const struct node_options *options, struct err *err);

#endif
