/* What the router counts: the names of CONTRACT.md, declared once. Owner: the loop thread. */
#ifndef BATON_ROUTER_STATS_H
#define BATON_ROUTER_STATS_H

#include "base/err.h"
#include "base/metrics.h"
#include "base/status.h"
#include "proto/seal.h"

enum stale_kind {
    STALE_ACCEPTED,
    STALE_TOKENS,
    STALE_REPORT,
    STALE_LINK,
    STALE_STREAM,
    STALE_COUNT
};

struct router_stats {
    struct metric *outcomes[STATUS_COUNT]; /* baton_requests_total{outcome=} */
    struct metric *tokens_prompt, *tokens_completion, *tokens_cached;
    struct metric *replays, *mismatches;
    struct metric *stale[STALE_COUNT];
    struct metric *stream_faults[SEAL_VERDICT_COUNT]; /* baton_stream_faults_total{reason=} */
    struct metric *ttft_seconds, *itl_seconds;
    struct metric *node_deaths, *refused_nodes;
    struct metric *cache_forgotten;
    struct metric *fetches, *fetches_refused; /* of cached pages, between nodes */
    struct metric *handovers;
    struct metric *messages_out; /* GenerateResponse messages */
};

/* Errors as metrics_status. */
enum status router_stats_init(struct router_stats *stats, struct metrics *metrics, struct err *err);

#endif
