/* See cluster.h. */
#include "router/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "proto/baton/v1/baton.pb-c.h"
#include "proto/wire.h"
#include "sched/roofline.h"

static const uint64_t cover_grace_ns = 2500 * NS_PER_MS;

static const char *role_text(enum placement_role role)
{
    return role == PLACEMENT_PREFILL ? "prefill" : role == PLACEMENT_DECODE ? "decode" : "mixed";
}

static void core_now(struct cluster *cluster)
{
    core_time(cluster->core, loop_now_ns(cluster->loop), loop_late_total_ns(cluster->loop));
}

/* --- the service --- */

/* One node's row, and what it points to. */
enum { LINKS_SHOWN_MAX = 16 };
struct status_room {
    Baton__V1__NodeStatus node;
    Baton__V1__LinkStatus links[LINKS_SHOWN_MAX], *list[LINKS_SHOWN_MAX];
    size_t count;
    Baton__V1__PhaseStatus prefill, decode;
};

/* The slowest measured links of a node, the slowest first. */
static void fill_links(const struct registry *registry, const struct node *node,
                       struct status_room *room)
{
    for (size_t i = 0; i < registry->node_count; i++) {
        const struct node *peer = registry->nodes[i];
        bool up = false;
        uint64_t rate = peer && peer != node && peer->state != NODE_DEAD
                            ? registry_link_rate(registry, node, peer, &up)
                            : 0;
        size_t at = room->count;
        while (at && room->links[at - 1].bytes_per_s > rate)
            at--;
        if (!rate || at == LINKS_SHOWN_MAX)
            continue;
        room->count += room->count < LINKS_SHOWN_MAX;
        memmove(&room->links[at + 1], &room->links[at],
                (room->count - at - 1) * sizeof *room->links);
        baton__v1__link_status__init(&room->links[at]);
        room->links[at].peer = (char *)peer->name;
        room->links[at].up = up;
        room->links[at].bytes_per_s = rate;
    }
    for (size_t i = 0; i < room->count; i++)
        room->list[i] = &room->links[i];
}

/* A node's word for what holds it back may be of a later version than ours: then it is unknown. */
static void fill_phase(enum roofline_phase phase, int held_by, uint32_t mfu, uint32_t mbu,
                       uint32_t limit, Baton__V1__PhaseStatus *to)
{
    bool known = held_by > 0 && held_by <= ROOFLINE_VERDICTS;
    enum roofline_verdict verdict = known ? (enum roofline_verdict)(held_by - 1) : ROOFLINE_IDLE;
    baton__v1__phase_status__init(to);
    to->held_by = (char *)(known ? roofline_verdict_name(verdict) : "unknown");
    to->lever = (char *)(known ? roofline_lever(phase, verdict) : "");
    to->mfu = (float)mfu / 1000;
    to->mbu = (float)mbu / 1000;
    to->limit = (float)limit / 1000;
}

static void fill_status(const struct registry *registry, const struct node *node,
                        struct status_room *room)
{
    Baton__V1__NodeStatus *to = &room->node;
    const Baton__Node__V1__Load *load = &node->load;
    baton__v1__node_status__init(to);
    to->name = (char *)node->name;
    to->role = (char *)role_text(node->role);
    to->state = (char *)sm_name(&node_states, node->state);
    to->grpc = (char *)node->grpc;
    to->http = (char *)node->http;
    to->transport = (char *)node->transport;
    to->incarnation = node->incarnation;
    to->heartbeat_age_ms = (registry->now_ns - node->heartbeat_ns) / NS_PER_MS;
    if (node->state == NODE_DEAD)
        return;
    to->pages_total = node->pages_total;
    to->pages_free = load->pages_free;
    to->pages_used = load->pages_used;
    to->pages_cached = load->pages_cached;
    to->pages_reserved = load->pages_reserved;
    to->pages_quarantined = load->pages_quarantined;
    to->sequences_waiting = load->sequences_waiting;
    to->sequences_running = load->sequences_running;
    to->sequences_transferring = load->sequences_transferring;
    to->sequences_preempted = load->sequences_preempted;
    to->preemptions_swapped = load->preemptions_swapped;
    to->preemptions_recomputed = load->preemptions_recomputed;
    to->recomputed_tokens = load->recomputed_tokens;
    to->handovers = node->handovers;
    to->checksum_failures = load->checksum_failures;
    to->prefill_tokens_per_s = load->prefill_tokens_per_s;
    to->decode_step_us = load->decode_step_us;
    fill_phase(ROOFLINE_PREFILL, load->prefill_held_by, load->prefill_mfu_permille,
               load->prefill_mbu_permille, load->prefill_limit_permille, &room->prefill);
    fill_phase(ROOFLINE_DECODE, load->decode_held_by, load->decode_mfu_permille,
               load->decode_mbu_permille, load->decode_limit_permille, &room->decode);
    if (load->prefill_held_by)
        to->prefill = &room->prefill;
    if (load->decode_held_by)
        to->decode = &room->decode;
    to->start_rate = (float)load->start_rate_permille / 1000;
    to->below_start_rate = load->below_start_rate;
    fill_links(registry, node, room);
    to->links = room->list;
    to->n_links = room->count;
}

static void status_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
    struct cluster *cluster = context;
    core_now(cluster);
    const struct registry *registry = &cluster->core->registry;
    struct status_room *rooms = calloc(registry->node_count + 1, sizeof *rooms);
    Baton__V1__NodeStatus **list = calloc(registry->node_count + 1, sizeof *list);
    if (!rooms || !list) {
        rpc_call_finish(call, GRPC_CODE_RESOURCE_EXHAUSTED, "no memory", NULL, 0);
    } else {
        Baton__V1__ClusterStatus status = BATON__V1__CLUSTER_STATUS__INIT;
        for (size_t i = 0; i < registry->node_count; i++)
            if (registry->nodes[i]) {
                fill_status(registry, registry->nodes[i], &rooms[status.n_nodes]);
                list[status.n_nodes] = &rooms[status.n_nodes].node;
                status.n_nodes++;
            }
        status.nodes = list;
        status.requests_waiting = cluster->core->waiting;
        status.requests_running = cluster->core->running;
        status.handovers = (uint64_t)metric_value(cluster->core->stats->handovers);
        status.uptime_s = (registry->now_ns - cluster->started_ns) / NS_PER_S;
        rpc_call_reply(call, &status.base);
    }
    free(rooms);
    free(list);
}

static void drain_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct cluster *cluster = context;
    core_now(cluster);
    struct registry *registry = &cluster->core->registry;
    struct err err = ERR_INIT;
    ProtobufCMessage *unpacked = NULL;
    enum status status =
        wire_unpack(&baton__v1__drain_request__descriptor, data, bytes, &unpacked, &err);
    if (!status) {
        const char *name = ((Baton__V1__DrainRequest *)unpacked)->node;
        struct node *node = registry_find(registry, name);
        if (!node || node->state == NODE_DEAD)
            status = err_set(&err, STATUS_NOT_FOUND, "node: no node \"%.100s\" is connected", name);
        else
            node_drain(registry, node, true);
        protobuf_c_message_free_unpacked(unpacked, NULL);
    }
    if (status) {
        rpc_call_finish_err(call, &err);
    } else {
        Baton__V1__DrainResponse response = BATON__V1__DRAIN_RESPONSE__INIT;
        rpc_call_reply(call, &response.base);
    }
}

static bool role_parse(const char *text, enum placement_role *role_out)
{
    for (int role = PLACEMENT_PREFILL; role <= PLACEMENT_DECODE; role++)
        if (!strcmp(text, role_text((enum placement_role)role))) {
            *role_out = (enum placement_role)role;
            return true;
        }
    return false;
}

static enum status set_role(struct registry *registry, const Baton__V1__SetRoleRequest *request,
                            struct err *err)
{
    enum placement_role role;
    if (!role_parse(request->role, &role))
        return err_set(err, STATUS_INVALID, "role: \"%.40s\" is none of prefill, decode, mixed",
                       request->role);
    struct node *node = registry_find(registry, request->node);
    if (!node || node->state == NODE_DEAD)
        return err_set(err, STATUS_NOT_FOUND, "node: no node \"%.100s\" is connected",
                       request->node);
    node_role(registry, node, role);
    return STATUS_OK;
}

static void set_role_message(void *context, struct rpc_call *call, const uint8_t *data,
                             size_t bytes)
{
    struct cluster *cluster = context;
    core_now(cluster);
    struct err err = ERR_INIT;
    ProtobufCMessage *unpacked = NULL;
    enum status status =
        wire_unpack(&baton__v1__set_role_request__descriptor, data, bytes, &unpacked, &err);
    if (!status) {
        status = set_role(&cluster->core->registry, (Baton__V1__SetRoleRequest *)unpacked, &err);
        protobuf_c_message_free_unpacked(unpacked, NULL);
    }
    if (status) {
        rpc_call_finish_err(call, &err);
        return;
    }
    cluster->core->dirty = true;
    Baton__V1__SetRoleResponse response = BATON__V1__SET_ROLE_RESPONSE__INIT;
    rpc_call_reply(call, &response.base);
}

static const struct rpc_handler status_handler = {.kind = RPC_UNARY, .on_message = status_message};
static const struct rpc_handler drain_handler = {.kind = RPC_UNARY, .on_message = drain_message};
static const struct rpc_handler set_role_handler = {.kind = RPC_UNARY,
                                                    .on_message = set_role_message};

/* --- gauges --- */

/* Calls `sample` for every live node. */
#define FOR_LIVE_NODES(registry_, node_)                        \
    for (size_t i_ = 0; i_ < (registry_)->node_count; i_++)     \
        for (const struct node *node_ = (registry_)->nodes[i_]; \
             node_ && node_->state != NODE_DEAD; node_ = NULL)

static void render_pages(void *context, struct buf *out, const char *name)
{
    const struct cluster *cluster = context;
    FOR_LIVE_NODES(&cluster->core->registry, node)
    {
        const Baton__Node__V1__Load *l = &node->load;
        const struct {
            const char *state;
            uint32_t value;
        } rows[] = {{"total", node->pages_total},    {"free", l->pages_free},
                    {"used", l->pages_used},         {"cached", l->pages_cached},
                    {"reserved", l->pages_reserved}, {"quarantined", l->pages_quarantined}};
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            metrics_sample(out, name, rows[k].value, "node", node->name, "role",
                           role_text(node->role), "state", rows[k].state, NULL);
    }
}

static void render_sequences(void *context, struct buf *out, const char *name)
{
    const struct cluster *cluster = context;
    FOR_LIVE_NODES(&cluster->core->registry, node)
    {
        const Baton__Node__V1__Load *l = &node->load;
        const struct {
            const char *state;
            uint32_t value;
        } rows[] = {{"waiting", l->sequences_waiting},
                    {"running", l->sequences_running},
                    {"transferring", l->sequences_transferring},
                    {"preempted", l->sequences_preempted}};
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            metrics_sample(out, name, rows[k].value, "node", node->name, "role",
                           role_text(node->role), "state", rows[k].state, NULL);
    }
}

/* Of each node that has measured any: all of them would be a series for each pair. */
static void render_links(void *context, struct buf *out, const char *name)
{
    const struct registry *registry = &((struct cluster *)context)->core->registry;
    FOR_LIVE_NODES(registry, node)
    {
        uint64_t slowest = UINT64_MAX, fastest = 0;
        for (size_t i = 0; i < registry->node_count; i++) {
            const struct node *peer = registry->nodes[i];
            bool up;
            if (!peer || peer == node || peer->state == NODE_DEAD)
                continue;
            uint64_t rate = registry_link_rate(registry, node, peer, &up);
            slowest = rate && rate < slowest ? rate : slowest;
            fastest = rate > fastest ? rate : fastest;
        }
        if (!fastest)
            continue;
        metrics_sample(out, name, (double)slowest, "node", node->name, "link", "slowest", NULL);
        metrics_sample(out, name, (double)fastest, "node", node->name, "link", "fastest", NULL);
    }
}

static void render_nodes(void *context, struct buf *out, const char *name)
{
    const struct cluster *cluster = context;
    const struct registry *registry = &cluster->core->registry;
    for (int role = PLACEMENT_PREFILL; role <= PLACEMENT_DECODE; role++)
        for (int state = 0; state < NODE_STATE_COUNT; state++) {
            unsigned count = 0;
            for (size_t i = 0; i < registry->node_count; i++)
                count += registry->nodes[i] && registry->nodes[i]->role == (unsigned)role &&
                         registry->nodes[i]->state == state;
            metrics_sample(out, name, count, "role", role_text((enum placement_role)role), "state",
                           sm_name(&node_states, (unsigned)state), NULL);
        }
}

static double requests_waiting(void *context)
{
    return ((struct cluster *)context)->core->waiting;
}

static double requests_running(void *context)
{
    return ((struct cluster *)context)->core->running;
}

static double cache_entries(void *context)
{
    return (double)((struct cluster *)context)->core->registry.index.entries;
}

static double cache_bytes(void *context)
{
    return (double)((struct cluster *)context)->core->registry.index.bytes;
}

static void declare_gauges(struct cluster *cluster, struct metrics *metrics)
{
    metrics_gauge_family(metrics, "baton_nodes", "Nodes by role and state", render_nodes, cluster);
    metrics_gauge_family(metrics, "baton_kv_pages", "KV pages of each node, by state", render_pages,
                         cluster);
    metrics_gauge_family(metrics, "baton_sequences", "Sequences on each node, by state",
                         render_sequences, cluster);
    metrics_gauge_family(metrics, "baton_link_bytes_per_second",
                         "Measured while KV moved, of each node's links to others", render_links,
                         cluster);
    metrics_gauge_callback(metrics, "baton_requests", "Requests here now", requests_waiting,
                           cluster, "state", "waiting", NULL);
    metrics_gauge_callback(metrics, "baton_requests", "Requests here now", requests_running,
                           cluster, "state", "running", NULL);
    metrics_gauge_callback(metrics, "baton_cache_index_entries",
                           "Cached pages of nodes that the router knows of", cache_entries, cluster,
                           NULL);
    metrics_gauge_callback(metrics, "baton_cache_index_bytes", "Memory of that", cache_bytes,
                           cluster, NULL);
}

/* --- health --- */

void cluster_tick(struct cluster *cluster)
{
    uint64_t now_ns = loop_now_ns(cluster->loop);
    struct registry *registry = &cluster->core->registry;
    /* the first time also until the nodes have met, so that nobody's first request waits for that */
    if (registry_covered(registry) && (cluster->covered_ns || registry_met(registry)))
        cluster->covered_ns = now_ns;
    bool serving = !cluster->core->draining && cluster->covered_ns &&
                   now_ns - cluster->covered_ns < cover_grace_ns;
    if (serving == cluster->serving)
        return;
    cluster->serving = serving;
    if (!cluster->health)
        return;
    rpc_health_set(cluster->health, "baton.v1.Generation", serving);
    rpc_health_set(cluster->health, "", serving);
}

enum status cluster_init(struct cluster *cluster, struct rpc_server *server,
                         struct metrics *metrics, struct err *err)
{
    cluster->started_ns = loop_now_ns(cluster->loop);
    declare_gauges(cluster, metrics);
    if (cluster->health) {
        rpc_health_set(cluster->health, "baton.v1.Generation", false);
        rpc_health_set(cluster->health, "baton.v1.Cluster", true);
    }
    enum status status =
        rpc_server_add(server, "/baton.v1.Cluster/GetStatus", &status_handler, cluster, err);
    if (!status)
        status = rpc_server_add(server, "/baton.v1.Cluster/Drain", &drain_handler, cluster, err);
    if (!status)
        status =
            rpc_server_add(server, "/baton.v1.Cluster/SetRole", &set_role_handler, cluster, err);
    return status;
}
