/* See stats.h. */
#include "router/stats.h"

#include <string.h>

static const char *const stale_labels[STALE_COUNT] = {
    [STALE_ACCEPTED] = "accepted", [STALE_TOKENS] = "tokens", [STALE_REPORT] = "report",
    [STALE_LINK] = "link",         [STALE_STREAM] = "stream",
};

/* Ends of a request that a client can see; the others never end one. */
static const enum status outcomes[] = {
    STATUS_OK,          STATUS_INVALID,  STATUS_UNIMPLEMENTED, STATUS_NOT_FOUND, STATUS_CANCELLED,
    STATUS_SLOW_CLIENT, STATUS_DEADLINE, STATUS_FULL,          STATUS_DRAINING,  STATUS_NO_NODE,
    STATUS_NONFINITE,   STATUS_MEMORY,   STATUS_INTERNAL,
};

enum status router_stats_init(struct router_stats *stats, struct metrics *metrics, struct err *err)
{
    *stats = (struct router_stats){0};
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++)
        stats->outcomes[outcomes[i]] =
            metrics_counter(metrics, "baton_requests_total", "Requests that ended, by how",
                            "outcome", status_label(outcomes[i]), NULL);
    for (int i = 0; i < STATUS_COUNT; i++)
        if (!stats->outcomes[i])
            stats->outcomes[i] = stats->outcomes[STATUS_INTERNAL];
    const char *tokens = "baton_tokens_total", *tokens_help = "Tokens of requests that ended";
    stats->tokens_prompt = metrics_counter(metrics, tokens, tokens_help, "kind", "prompt", NULL);
    stats->tokens_completion =
        metrics_counter(metrics, tokens, tokens_help, "kind", "completion", NULL);
    stats->tokens_cached = metrics_counter(metrics, tokens, tokens_help, "kind", "cached", NULL);
    stats->replays = metrics_counter(metrics, "baton_replays_total",
                                     "Times that a request was placed again after a fault", NULL);
    stats->mismatches =
        metrics_counter(metrics, "baton_token_mismatches_total",
                        "Repeated tokens that differed from the one delivered", NULL);
    for (int i = 0; i < STALE_COUNT; i++)
        stats->stale[i] =
            metrics_counter(metrics, "baton_stale_frames_total",
                            "Messages of an attempt or registration that is no longer current",
                            "kind", stale_labels[i], NULL);
    for (int i = SEAL_TWICE; i < SEAL_VERDICT_COUNT; i++)
        stats->stream_faults[i] =
            metrics_counter(metrics, "baton_stream_faults_total",
                            "Messages between router and nodes that were not as they were sent",
                            "reason", seal_label((enum seal_verdict)i), NULL);
    stats->ttft_seconds = metrics_histogram(
        metrics, "baton_ttft_seconds", "From a request's arrival to its first token",
        metrics_seconds_bounds, metrics_seconds_bound_count, NULL);
    stats->itl_seconds = metrics_histogram(
        metrics, "baton_itl_seconds", "Between two tokens of a request, as received",
        metrics_seconds_bounds, metrics_seconds_bound_count, NULL);
    stats->node_deaths = metrics_counter(metrics, "baton_node_deaths_total",
                                         "Registrations of nodes that ended by a fault", NULL);
    stats->refused_nodes = metrics_counter(metrics, "baton_nodes_refused_total",
                                           "Registrations that were refused", NULL);
    stats->cache_forgotten = metrics_counter(
        metrics, "baton_cache_index_forgotten_total",
        "Cached pages of nodes that the router did not take note of, for want of room", NULL);
    stats->fetches =
        metrics_counter(metrics, "baton_prefix_fetches_total",
                        "Prompts that a node was told to fetch in part from another's cache", NULL);
    stats->fetches_refused = metrics_counter(
        metrics, "baton_prefix_fetches_refused_total",
        "… and that the other node would not serve, for the pages were gone, say", NULL);
    stats->handovers =
        metrics_counter(metrics, "baton_handovers_total",
                        "Sequences that a node which leaves gave up to another", NULL);
    stats->messages_out = metrics_counter(metrics, "baton_response_messages_total",
                                          "Messages sent to clients of Generate", NULL);
    return metrics_status(metrics, err);
}
