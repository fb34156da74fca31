/* See health.h. */
#include "node/health.h"

#include <assert.h>
#include <stdlib.h>

#include "node/node.h"
#include "proto/http/http.h"
#include "proto/rpc/health.h"
#include "proto/rpc/reflection.h"

static const uint64_t check_ns = 50 * NS_PER_MS;

/* A gauge of the pool's or of the table's: what to count, and of which node. */
struct gauge {
    struct health *health;
    int what;
};

enum {
    GAUGE_TOTAL = POOL_STATE_COUNT,
    GAUGE_WAITING,
    GAUGE_RUNNING,
    GAUGE_TRANSFERRING,
    GAUGE_PREEMPTED,
    GAUGES
};

/* Of each phase: what / 2, and the phase is what % 2. A gauge a verdict, from SHARE_VERDICT on. */
enum {
    SHARE_MFU,
    SHARE_MBU,
    SHARE_LIMIT,
    SHARE_VERDICT,
    SHARES = 2 * (SHARE_VERDICT + ROOFLINE_VERDICTS)
};

/* A counter of the links, as it was last seen. */
struct mirror {
    struct metric *metric;
    uint64_t seen;
};
enum { COUNTERS = 14 };

struct health {
    struct loop *loop;
    struct node *node; /* NULL: loading, or ending */
    struct metrics *metrics;
    struct rpc_server *server;
    struct rpc_health *rpc_health;
    struct rpc_reflection *reflection;
    struct http_server *http;
    struct loop_timer timer;
    char grpc_address[300], http_address[300];
    struct gauge gauges[GAUGES], shares[SHARES];
    struct mirror counters[COUNTERS], stale[KV_FRAME_TYPE_COUNT];
};

static bool ready(void *context, struct buf *reason)
{
    struct health *health = context;
    if (health->node)
        return node_serving(health->node, reason);
    buf_printf(reason, "loading\n");
    return false;
}

static void counters_mirror(struct health *health);

static void check_due(void *context)
{
    struct health *health = context;
    if (!health->rpc_health)
        return; /* it never came to be */
    counters_mirror(health);
    rpc_health_set(health->rpc_health, "", health->node && node_serving(health->node, NULL));
    loop_timer_set(&health->timer, loop_now_ns(health->loop) + check_ns);
}

/* --- gauges --- */

static double pool_gauge(void *context)
{
    struct gauge *gauge = context;
    struct node *node = gauge->health->node;
    if (!node)
        return 0;
    return gauge->what == GAUGE_TOTAL ? node->pool.total
                                      : pool_count(&node->pool, (enum pool_state)gauge->what);
}

static double sequence_gauge(void *context)
{
    struct gauge *gauge = context;
    if (!gauge->health->node)
        return 0;
    Baton__Node__V1__Load load = BATON__NODE__V1__LOAD__INIT;
    node_load(gauge->health->node, &load);
    switch (gauge->what) {
    case GAUGE_WAITING:
        return load.sequences_waiting;
    case GAUGE_RUNNING:
        return load.sequences_running;
    case GAUGE_PREEMPTED:
        return load.sequences_preempted;
    default:
        return load.sequences_transferring;
    }
}

static double swap_total_gauge(void *context)
{
    struct health *health = context;
    return health->node ? health->node->preempt.swap.page_count : 0;
}

static double swap_used_gauge(void *context)
{
    struct health *health = context;
    const struct swap *swap = health->node ? &health->node->preempt.swap : NULL;
    return swap ? swap->page_count - swap->free_count : 0;
}

static double cancel_gauge(void *context)
{
    struct health *health = context;
    return health->node ? engine_cancel_layers_max(health->node->engine) : 0;
}

static double prompt_rate_gauge(void *context)
{
    struct health *health = context;
    return health->node ? health->node->steps.prompt_tokens_per_s : 0;
}

/* Shares of what the machine allows: 0 where that is not known. */
static double share_gauge(void *context)
{
    struct gauge *gauge = context;
    const struct node *node = gauge->health->node;
    if (!node || !node->meter.known)
        return 0;
    enum roofline_phase phase = gauge->what % 2 ? ROOFLINE_DECODE : ROOFLINE_PREFILL;
    struct roofline_report report = roofline_report(&node->meter.window, phase);
    switch (gauge->what / 2) {
    case SHARE_MFU:
        return report.mfu;
    case SHARE_MBU:
        return report.mbu;
    case SHARE_LIMIT:
        return report.efficiency;
    default:
        return (int)report.verdict == gauge->what / 2 - SHARE_VERDICT;
    }
}

static double start_rate_gauge(void *context)
{
    struct health *health = context;
    return health->node ? roofline_rate_share(&health->node->meter.rate) : 0;
}

static double below_start_rate_gauge(void *context)
{
    struct health *health = context;
    return health->node && health->node->meter.rate.slow;
}

static double peak_read_gauge(void *context)
{
    struct health *health = context;
    return health->node ? health->node->meter.limits.peaks.bytes : 0;
}

static double peak_layers_gauge(void *context)
{
    struct health *health = context;
    return health->node ? health->node->meter.limits.peaks.layer_ops : 0;
}

static double peak_attention_gauge(void *context)
{
    struct health *health = context;
    return health->node ? health->node->meter.limits.peaks.attention_ops : 0;
}

static void shares_declare(struct health *health)
{
    static const struct {
        const char *name, *help;
    } rows[] = {
        [SHARE_MFU] = {"baton_mfu",
                       "Share of the machine's own arithmetic that steps reach, lately"},
        [SHARE_MBU] = {"baton_mbu",
                       "Share of the machine's own read bandwidth that steps reach, lately"},
        [SHARE_LIMIT] = {"baton_limit_share",
                         "Share of what the machine would allow such steps at best, lately"},
        [SHARE_VERDICT] = {"baton_held_by", "1: this is what holds the phase back, lately"},
    };
    struct metrics *m = health->metrics;
    for (int i = 0; i < SHARES; i++) {
        int what = i / 2 < SHARE_VERDICT ? i / 2 : SHARE_VERDICT;
        const char *phase = i % 2 ? "decode" : "prefill";
        health->shares[i] = (struct gauge){health, i};
        if (what < SHARE_VERDICT)
            metrics_gauge_callback(m, rows[what].name, rows[what].help, share_gauge,
                                   &health->shares[i], "phase", phase, NULL);
        else
            metrics_gauge_callback(
                m, rows[what].name, rows[what].help, share_gauge, &health->shares[i], "phase",
                phase, "by", roofline_verdict_name((enum roofline_verdict)(i / 2 - SHARE_VERDICT)),
                NULL);
    }
    metrics_gauge_callback(
        m, "baton_start_rate",
        "How fast this node is beside its own rate after its start; 0: not known", start_rate_gauge,
        health, NULL);
    metrics_gauge_callback(m, "baton_below_start_rate", "1: below 80 % of it, for some time",
                           below_start_rate_gauge, health, NULL);
    metrics_gauge_callback(m, "baton_peak_read_bytes_per_second",
                           "What this machine reads at best, by measurement", peak_read_gauge,
                           health, NULL);
    const char *peak = "baton_peak_operations_per_second";
    const char *peak_help = "What this machine computes at best, by measurement";
    metrics_gauge_callback(m, peak, peak_help, peak_layers_gauge, health, "of", "layers", NULL);
    metrics_gauge_callback(m, peak, peak_help, peak_attention_gauge, health, "of", "attention",
                           NULL);
}

static double registered_gauge(void *context)
{
    struct health *health = context;
    return health->node && registration_up(health->node->registration);
}

/* --- counters that the links keep, mirrored a few times a second --- */

static const struct {
    const char *name, *help;
    size_t offset;
} counter_rows[] = {
#define ROW(name, member, help)                          \
    {                                                    \
        name, help, offsetof(struct kv_counters, member) \
    }
    ROW("baton_kv_checksum_failures_total", checksum_failures,
        "Pieces received and pages at rest whose bytes were not what was sealed"),
    ROW("baton_kv_pieces_unverified_total", pieces_unverified,
        "Pieces received for a transfer that was over before anybody looked at them"),
    ROW("baton_kv_pieces_damaged_total", pieces_damaged,
        "Own pieces that were no longer what was sealed when they were asked for again"),
    ROW("baton_kv_sent_bytes_total", bytes_sent, "KV bytes sent to other nodes"),
    ROW("baton_kv_received_bytes_total", bytes_received, "KV bytes received from other nodes"),
    ROW("baton_kv_verified_bytes_total", bytes_verified, "KV bytes received and verified"),
    ROW("baton_kv_gave_up_total", gave_up, "Transfers that this node stopped waiting for"),
    ROW("baton_kv_leases_expired_total", leases_expired,
        "Sources whose decode node did not come in time"),
    ROW("baton_kv_links_failed_total", links_failed, "Endpoints that failed"),
    ROW("baton_kv_first_mismatches_total", first_mismatches,
        "First tokens that came twice and differed"),
    ROW("baton_kv_overlap_sent_bytes_total", overlap_bytes_sent,
        "Bytes sent before their prompt was computed"),
    ROW("baton_kv_overlap_sent_of_bytes_total", overlap_bytes_sent_of,
        "Bytes of those transfers in all"),
    ROW("baton_kv_overlap_verified_bytes_total", overlap_bytes_verified,
        "Bytes verified before their source said that the prompt was computed"),
    ROW("baton_kv_overlap_verified_of_bytes_total", overlap_bytes_verified_of,
        "Bytes of those transfers in all"),
#undef ROW
};
static_assert(sizeof counter_rows / sizeof counter_rows[0] == COUNTERS, "one mirror a row");

static void mirror_set(struct mirror *mirror, uint64_t value)
{
    if (value > mirror->seen)
        metric_add(mirror->metric, value - mirror->seen);
    mirror->seen = value;
}

static void counters_mirror(struct health *health)
{
    if (!health->node)
        return;
    const struct kv_counters *c = kv_links_counters(health->node->links);
    for (int i = 0; i < COUNTERS; i++) {
        uint64_t value = *(const uint64_t *)((const char *)c + counter_rows[i].offset);
        if (counter_rows[i].offset == offsetof(struct kv_counters, checksum_failures))
            value += health->node->cache.bad_pages; /* at rest, and found here */
        mirror_set(&health->counters[i], value);
    }
    for (int i = 0; i < KV_FRAME_TYPE_COUNT; i++)
        mirror_set(&health->stale[i], c->stale[i]);
}

static void gauges_declare(struct health *health)
{
    static const char *const states[] = {[POOL_FREE] = "free",
                                         [POOL_RESERVED] = "reserved",
                                         [POOL_USED] = "used",
                                         [POOL_CACHED] = "cached",
                                         [POOL_QUARANTINED] = "quarantined",
                                         [GAUGE_TOTAL] = "total",
                                         [GAUGE_WAITING] = "waiting",
                                         [GAUGE_RUNNING] = "running",
                                         [GAUGE_TRANSFERRING] = "transferring",
                                         [GAUGE_PREEMPTED] = "preempted"};
    struct metrics *m = health->metrics;
    for (int i = 0; i < GAUGES; i++) {
        struct gauge *gauge = &health->gauges[i];
        *gauge = (struct gauge){health, i};
        if (i == POOL_SHARED)
            continue; /* these count as used */
        if (i <= GAUGE_TOTAL)
            metrics_gauge_callback(m, "baton_kv_pages", "KV pages by state", pool_gauge, gauge,
                                   "state", states[i], NULL);
        else
            metrics_gauge_callback(m, "baton_sequences", "Sequences by state", sequence_gauge,
                                   gauge, "state", states[i], NULL);
    }
    const char *swap = "baton_swap_pages";
    const char *swap_help = "Host memory for sequences that gave way, in KV pages";
    metrics_gauge_callback(m, swap, swap_help, swap_total_gauge, health, "state", "total", NULL);
    metrics_gauge_callback(m, swap, swap_help, swap_used_gauge, health, "state", "used", NULL);
    metrics_gauge_callback(m, "baton_cancel_layers_max",
                           "The most layers that began between a cancel and its effect",
                           cancel_gauge, health, NULL);
    metrics_gauge_callback(m, "baton_prompt_tokens_per_second", "Measured speed of prompts",
                           prompt_rate_gauge, health, NULL);
    shares_declare(health);
    metrics_gauge_callback(m, "baton_registered", "1: the router has this node", registered_gauge,
                           health, NULL);
    for (int i = 0; i < COUNTERS; i++)
        health->counters[i].metric =
            metrics_counter(m, counter_rows[i].name, counter_rows[i].help, NULL);
    for (int i = 0; i < KV_FRAME_TYPE_COUNT; i++)
        health->stale[i].metric = metrics_counter(
            m, "baton_stale_frames_total", "Messages and frames of an earlier life, dropped",
            "kind", i == KV_FRAME_NONE ? "none" : kv_frame_label((enum kv_frame_type)i), NULL);
}

/* --- life --- */

static enum status grpc_open(struct health *health, struct rpc *rpc, const char *address,
                             struct err *err)
{
    struct rpc_server_options options = {.address = address};
    enum status status = rpc_server_create(rpc, &options, &health->server, err);
    if (!status)
        status = rpc_health_create(health->server, &health->rpc_health, err);
    if (!status)
        status = rpc_reflection_create(health->server, &health->reflection, err);
    if (!status)
        status = rpc_server_start(health->server, err);
    return status ? err_wrap(err, "grpc") : STATUS_OK;
}

enum status health_create(struct loop *loop, struct rpc *rpc, struct metrics *metrics,
                          const struct node_options *options, struct health **health_out,
                          struct err *err)
{
    struct health *health = calloc(1, sizeof *health);
    if (!health)
        return err_set(err, STATUS_MEMORY, "health: no memory");
    health->loop = loop;
    health->metrics = metrics;
    loop_timer_init(loop, &health->timer, check_due, health);
    gauges_declare(health);
    struct config_address grpc = options->grpc, http = options->http;
    config_format_address(&grpc, health->grpc_address, sizeof health->grpc_address);
    config_format_address(&http, health->http_address, sizeof health->http_address);
    struct http_server_options http_options = {.address = health->http_address,
                                               .ready = ready,
                                               .ready_context = health,
                                               .metrics = metrics};
    enum status status = grpc_open(health, rpc, health->grpc_address, err);
    if (!status) {
        status = http_server_create(loop, &http_options, &health->http, err);
        if (status)
            err_wrap(err, "http");
    }
    if (status) {
        health_close(health);
        *health_out = health; /* to be freed after rpc_destroy, as any other */
        return status;
    }
    grpc.port = (uint16_t)rpc_server_port(health->server);
    http.port = (uint16_t)http_server_port(health->http);
    config_format_address(&grpc, health->grpc_address, sizeof health->grpc_address);
    config_format_address(&http, health->http_address, sizeof health->http_address);
    check_due(health);
    *health_out = health;
    return STATUS_OK;
}

const char *health_grpc_address(const struct health *health)
{
    return health->grpc_address;
}

const char *health_http_address(const struct health *health)
{
    return health->http_address;
}

void health_set_node(struct health *health, struct node *node)
{
    health->node = node;
    check_due(health);
}

void health_close(struct health *health)
{
    if (!health)
        return;
    health->node = NULL;
    loop_timer_stop(&health->timer);
    http_server_destroy(health->http);
    health->http = NULL;
    if (health->rpc_health)
        rpc_health_end_watches(health->rpc_health);
    rpc_server_destroy(health->server, NULL, NULL);
    health->server = NULL;
}

void health_free(struct health *health)
{
    if (!health)
        return;
    rpc_health_destroy(health->rpc_health);
    rpc_reflection_destroy(health->reflection);
    free(health);
}
