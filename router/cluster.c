/* See cluster.h. */
#include "router/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "proto/baton/v1/baton.pb-c.h"
#include "proto/wire.h"

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

static void fill_status(const struct registry *registry, const struct node *node,
                        Baton__V1__NodeStatus *to)
{
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
}

static void status_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
    struct cluster *cluster = context;
    core_now(cluster);
    const struct registry *registry = &cluster->core->registry;
    Baton__V1__NodeStatus *nodes = calloc(registry->node_count + 1, sizeof *nodes);
    Baton__V1__NodeStatus **list = calloc(registry->node_count + 1, sizeof *list);
    if (!nodes || !list) {
        rpc_call_finish(call, GRPC_CODE_RESOURCE_EXHAUSTED, "no memory", NULL, 0);
    } else {
        Baton__V1__ClusterStatus status = BATON__V1__CLUSTER_STATUS__INIT;
        for (size_t i = 0; i < registry->node_count; i++)
            if (registry->nodes[i]) {
                fill_status(registry, registry->nodes[i], &nodes[status.n_nodes]);
                list[status.n_nodes] = &nodes[status.n_nodes];
                status.n_nodes++;
            }
        status.nodes = list;
        status.requests_waiting = cluster->core->waiting;
        status.requests_running = cluster->core->running;
        status.uptime_s = (registry->now_ns - cluster->started_ns) / NS_PER_S;
        rpc_call_reply(call, &status.base);
    }
    free(nodes);
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
                    {"transferring", l->sequences_transferring}};
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            metrics_sample(out, name, rows[k].value, "node", node->name, "role",
                           role_text(node->role), "state", rows[k].state, NULL);
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
