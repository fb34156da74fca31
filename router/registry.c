/* See registry.h. */
#include "router/registry.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/plant.h"
#include "base/random.h"

static const uint64_t register_wait_ns = 5 * NS_PER_S;
static const uint64_t forget_after_ns = 600 * NS_PER_S;
/* After a start, nodes of both roles get so long to come before one role has to do the work of both. */
static const uint64_t gather_ns = 10 * NS_PER_S;

static const struct sm_state state_rows[] = {
    [NODE_STARTING] = {"starting", SM_TO(NODE_SERVING) | SM_TO(NODE_DRAINING) | SM_TO(NODE_DEAD)},
    [NODE_SERVING] = {"serving", SM_TO(NODE_STARTING) | SM_TO(NODE_DRAINING) | SM_TO(NODE_DEAD)},
    [NODE_DRAINING] = {"draining", SM_TO(NODE_DEAD)},
    [NODE_DEAD] = {"dead", SM_TO(NODE_STARTING)},
};
const struct sm_table node_states = SM_TABLE("node", state_rows);

static void node_move(struct registry *registry, struct node *node, enum node_state to)
{
    sm_move(&node_states, &node->state, to);
    node->state_since_ns = registry->now_ns;
}

static bool node_live(const struct node *node)
{
    return node && node->state != NODE_DEAD;
}

/* --- life --- */

enum status registry_init(struct registry *registry, const struct identity_model *model,
                          const struct registry_events *events, struct router_stats *stats,
                          struct err *err)
{
    *registry = (struct registry){.incarnation = random_u64(),
                                  .model = *model,
                                  .events = *events,
                                  .stats = stats,
                                  .roles_seen = false};
    if (!model->wire.max)
        registry->model.wire = wire_range_own(0);
    list_init(&registry->streams);
    if (!registry_links_grow(registry, 16, 0))
        return err_set(err, STATUS_MEMORY, "node registry: no memory");
    return STATUS_OK;
}

static void node_free(struct registry *registry, struct node *node)
{
    if (!node)
        return;
    assert(!node->leg_count);
    registry_cache_forget(registry, node);
    free(node->kv_address);
    free(node);
}

void registry_finish(struct registry *registry)
{
    assert(list_empty(&registry->streams));
    for (size_t i = 0; i < registry->node_count; i++)
        node_free(registry, registry->nodes[i]);
    free(registry->nodes);
    free(registry->views);
    free(registry->links);
    free(registry->link_kb_per_s);
    free(registry->link_seen_s);
    free(registry->placement_nodes);
    *registry = (struct registry){0};
}

struct node *registry_find(const struct registry *registry, const char *name)
{
    for (size_t i = 0; i < registry->node_count; i++)
        if (registry->nodes[i] && strcmp(registry->nodes[i]->name, name) == 0)
            return registry->nodes[i];
    return NULL;
}

static struct node *node_add(struct registry *registry, const char *name)
{
    size_t slot = 0;
    while (slot < registry->node_count && registry->nodes[slot])
        slot++;
    if (slot == NODES_MAX)
        return NULL;
    if (slot == registry->node_capacity &&
        !registry_links_grow(registry, 2 * registry->node_capacity, registry->node_capacity))
        return NULL;
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    strcpy(node->name, name);
    node->slot = slot;
    node->state = NODE_DEAD;
    list_init(&node->leg_list);
    registry->nodes[slot] = node;
    if (slot == registry->node_count)
        registry->node_count++;
    return node;
}

/* --- sending --- */

void node_doom(struct registry *registry, struct node *node, const char *why)
{
    if (node->state == NODE_DEAD || node->doomed)
        return;
    node->doomed = why;
    registry->doomed = true;
}

void node_send(struct registry *registry, struct node *node,
               const Baton__Node__V1__RouterMessage *message)
{
    if (node->doomed || !node->stream)
        return;
    if (!node->stream->port->send(node->stream->port_context, message))
        node_doom(registry, node, "it takes no messages: its queue is full");
}

static void send_peers(struct registry *registry)
{
    Baton__Node__V1__Peer *peers = calloc(registry->node_count, sizeof *peers);
    Baton__Node__V1__Peer **list = calloc(registry->node_count, sizeof *list);
    for (size_t i = 0; peers && list && i < registry->node_count; i++) {
        struct node *to = registry->nodes[i];
        if (!node_live(to) || to->doomed)
            continue;
        size_t count = 0;
        for (size_t k = 0; k < registry->node_count; k++) {
            struct node *of = registry->nodes[k];
            if (k == i || !node_live(of) || of->doomed || !registry_pair_wire(to, of))
                continue;
            baton__node__v1__peer__init(&peers[count]);
            peers[count].name = of->name;
            peers[count].incarnation = of->incarnation;
            peers[count].kv_address.data = of->kv_address;
            peers[count].kv_address.len = of->kv_address_bytes;
            peers[count].kv_host = of->kv_host;
            peers[count].wire = registry_pair_wire(to, of);
            list[count] = &peers[count];
            count++;
        }
        Baton__Node__V1__Peers body = BATON__NODE__V1__PEERS__INIT;
        body.n_peers = count;
        body.peers = list;
        Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
        message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS;
        message.peers = &body;
        node_send(registry, to, &message);
    }
    free(peers);
    free(list);
}

/* --- the end of a registration --- */

/* Detaches the stream, tells the owner of the legs; the caller says what becomes of the connection. */
static void node_lose(struct registry *registry, struct node *node, const char *why)
{
    bool death = !node->blameless;
    node->stream->node = NULL;
    node->stream = NULL;
    node->doomed = NULL;
    node_move(registry, node, NODE_DEAD);
    registry_links_reset(registry, node);
    registry_cache_forget(registry, node);
    if (death)
        metric_add(registry->stats->node_deaths, 1);
    registry->events.note(registry->events.context, node, why);
    registry->events.lost(registry->events.context, node, death);
}

static void stream_end(struct node_stream *stream, enum grpc_code code, const char *why,
                       bool graceful)
{
    if (stream->over)
        return;
    stream->over = true;
    list_remove(&stream->link);
    stream->port->end(stream->port_context, code, why, graceful);
}

void registry_settle(struct registry *registry)
{
    while (registry->doomed) {
        registry->doomed = false;
        bool any = false;
        for (size_t i = 0; i < registry->node_count; i++) {
            struct node *node = registry->nodes[i];
            if (!node || !node->doomed)
                continue;
            const char *why = node->doomed;
            struct node_stream *stream = node->stream;
            node_lose(registry, node, why);
            stream_end(stream, GRPC_CODE_ABORTED, why, false);
            any = true;
        }
        if (any)
            send_peers(registry);
    }
}

/* --- registration --- */

static void send_refused(struct node_stream *stream, const struct identity_refusal *refusal)
{
    Baton__Node__V1__Refused body = BATON__NODE__V1__REFUSED__INIT;
    body.field = (char *)refusal->field;
    body.message = (char *)refusal->message;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_REFUSED;
    message.refused = &body;
    stream->port->send(stream->port_context, &message);
    stream_end(stream, GRPC_CODE_FAILED_PRECONDITION, refusal->message, true);
}

static void send_welcome(struct registry *registry, struct node *node)
{
    Baton__Node__V1__Welcome body = BATON__NODE__V1__WELCOME__INIT;
    body.router_incarnation = registry->incarnation;
    body.wire = node->wire;
    body.heartbeat_ms = HEARTBEAT_MS;
    body.stop_after_ms = NODE_STOPS_AFTER_MS;
    body.cache_key.data = registry->cache_key;
    body.cache_key.len = sizeof registry->cache_key;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME;
    message.welcome = &body;
    node_send(registry, node, &message);
}

static bool anyone_live(const struct registry *registry)
{
    for (size_t i = 0; i < registry->node_count; i++)
        if (node_live(registry->nodes[i]))
            return true;
    return false;
}

static enum placement_role role_of(Baton__Node__V1__Role role)
{
    return role == BATON__NODE__V1__ROLE__ROLE_PREFILL  ? PLACEMENT_PREFILL
           : role == BATON__NODE__V1__ROLE__ROLE_DECODE ? PLACEMENT_DECODE
                                                        : PLACEMENT_MIXED;
}

static void text_copy(char *to, size_t to_bytes, const char *from)
{
    size_t bytes = strlen(from);
    if (bytes >= to_bytes)
        bytes = to_bytes - 1;
    memcpy(to, from, bytes);
    to[bytes] = 0;
}

static void node_fill(struct node *node, struct wire_range own, const Baton__Node__V1__Register *r,
                      uint8_t *address)
{
    node->role = role_of(r->role);
    node->incarnation = r->incarnation;
    node->wires = (struct wire_range){r->wire_min, r->wire_max};
    node->wire = wire_common(own, node->wires);
    node->pages_total = r->pages_total;
    node->sequences_max = r->sequences_max;
    node->grows = r->grows;
    text_copy(node->transport, sizeof node->transport, r->transport);
    text_copy(node->grpc, sizeof node->grpc, r->grpc);
    text_copy(node->http, sizeof node->http, r->http);
    text_copy(node->kv_host, sizeof node->kv_host, r->kv_host);
    free(node->kv_address);
    node->kv_address = address;
    node->kv_address_bytes = r->kv_address.len;
    node->heartbeat = node->held_until = 0;
    node->held_full = node->blameless = false;
    node->handovers = 0;
    baton__node__v1__load__init(&node->load);
    node->load.pages_total = r->pages_total;
}

/* Says with whom this node cannot exchange KV for want of a common version. */
static void note_strangers(struct registry *registry, const struct node *node)
{
    for (size_t i = 0; i < registry->node_count; i++) {
        const struct node *other = registry->nodes[i];
        if (!node_live(other) || other == node || registry_pair_wire(node, other))
            continue;
        char text[256];
        snprintf(
            text, sizeof text,
            "no version in common with \"%.64s\" (%u to %u, and %u to %u): they exchange no KV",
            other->name, node->wires.min, node->wires.max, other->wires.min, other->wires.max);
        registry->events.note(registry->events.context, node, text);
    }
}

static void stream_register(struct node_stream *stream, const Baton__Node__V1__Register *r)
{
    struct registry *registry = stream->registry;
    struct identity_refusal refusal;
    if (!anyone_live(registry) && !registry->requests)
        registry->identity = (struct identity){0};
    if (!identity_check(&registry->identity, &registry->model, r, &refusal)) {
        metric_add(registry->stats->refused_nodes, 1);
        char text[400];
        snprintf(text, sizeof text, "node \"%.64s\" refused: %s: %s", r->name, refusal.field,
                 refusal.message);
        registry->events.note(registry->events.context, NULL, text);
        send_refused(stream, &refusal);
        return;
    }
    struct node *node = registry_find(registry, r->name);
    if (!node)
        node = node_add(registry, r->name);
    uint8_t *address = malloc(r->kv_address.len ? r->kv_address.len : 1);
    if (!node || !address) {
        free(address);
        stream_end(stream, GRPC_CODE_RESOURCE_EXHAUSTED, "no room for another node", false);
        return;
    }
    if (r->kv_address.len)
        memcpy(address, r->kv_address.data, r->kv_address.len);
    if (node->state != NODE_DEAD) {
        struct node_stream *old = node->stream;
        node_lose(registry, node, "replaced by a new registration");
        stream_end(old, GRPC_CODE_ABORTED, "replaced by a new registration", false);
    }
    node_fill(node, registry->model.wire, r, address);
    node->stream = stream;
    stream->node = node;
    node->heartbeat_ns = registry->now_ns;
    node->heartbeat_patient_ns = registry->patient_ns;
    node_move(registry, node, NODE_STARTING);
    registry_links_reset(registry, node);
    send_welcome(registry, node);
    send_peers(registry);
    registry->events.note(registry->events.context, node, "registered");
    note_strangers(registry, node);
}

/* --- heartbeats --- */

static void update_cover(struct registry *registry)
{
    bool prefill = false, decode = false;
    for (size_t i = 0; i < registry->node_count; i++) {
        const struct node *node = registry->nodes[i];
        if (!node || node->state != NODE_SERVING)
            continue;
        prefill |= node->role != PLACEMENT_DECODE;
        decode |= node->role != PLACEMENT_PREFILL;
    }
    registry->roles_seen |= prefill && decode;
    if (!prefill && !decode && !registry->uncovered_ns)
        registry->uncovered_ns = registry->now_ns;
    else if (prefill || decode)
        registry->uncovered_ns = 0;
}

static void node_heartbeat(struct registry *registry, struct node *node,
                           const Baton__Node__V1__Heartbeat *heartbeat)
{
    Baton__Node__V1__HeartbeatAck ack = BATON__NODE__V1__HEARTBEAT_ACK__INIT;
    ack.number = heartbeat->number;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_HEARTBEAT_ACK;
    message.heartbeat_ack = &ack;
    node_send(registry, node, &message);
    if (heartbeat->number <= node->heartbeat) {
        metric_add(registry->stats->stale[STALE_STREAM], 1);
        return;
    }
    node->heartbeat = heartbeat->number;
    node->heartbeat_ns = registry->now_ns;
    node->heartbeat_patient_ns = registry->patient_ns;
    if (node->heartbeat >= node->held_until)
        node->held_full = false;
    if (heartbeat->load) {
        node->load = *heartbeat->load;
        if (node->load.pages_total)
            node->pages_total = node->load.pages_total;
        if (node->state == NODE_STARTING && node->load.serving)
            node_move(registry, node, NODE_SERVING);
        else if (node->state == NODE_SERVING && !node->load.serving)
            node_move(registry, node, NODE_STARTING);
    }
    registry->events.heartbeat(registry->events.context, node, heartbeat);
}

void node_hold(struct registry *registry, struct node *node, bool full)
{
    (void)registry;
    if (node->held_until < node->heartbeat + 1 && !PLANTED(NO_FRESH_HEARTBEAT)) {
        node->held_until = node->heartbeat + 1;
        node->held_full = full;
    }
    if (!full)
        node->held_full = false;
}

void node_unhold(struct node *node)
{
    if (node->held_full)
        node->held_until = 0;
    node->held_full = false;
}

void node_drain(struct registry *registry, struct node *node, bool tell)
{
    if (tell && node_live(node)) {
        Baton__Node__V1__Drain body = BATON__NODE__V1__DRAIN__INIT;
        Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
        message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_DRAIN;
        message.drain = &body;
        node_send(registry, node, &message);
    }
    if (node->state == NODE_STARTING || node->state == NODE_SERVING)
        node_move(registry, node, NODE_DRAINING);
}

void node_role(struct registry *registry, struct node *node, enum placement_role role)
{
    static const Baton__Node__V1__Role wire_roles[] = {
        [PLACEMENT_PREFILL] = BATON__NODE__V1__ROLE__ROLE_PREFILL,
        [PLACEMENT_MIXED] = BATON__NODE__V1__ROLE__ROLE_MIXED,
        [PLACEMENT_DECODE] = BATON__NODE__V1__ROLE__ROLE_DECODE,
    };
    Baton__Node__V1__SetRole body = BATON__NODE__V1__SET_ROLE__INIT;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    body.role = wire_roles[role];
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_SET_ROLE;
    message.set_role = &body;
    node->role = role;
    node_send(registry, node, &message);
    update_cover(registry);
}

/* --- streams --- */

void registry_stream_open(struct registry *registry, struct node_stream *stream,
                          const struct node_port *port, void *port_context)
{
    *stream = (struct node_stream){.registry = registry,
                                   .port = port,
                                   .port_context = port_context,
                                   .opened_ns = registry->now_ns};
    list_push_back(&registry->streams, &stream->link);
}

void registry_stream_message(struct node_stream *stream,
                             const Baton__Node__V1__NodeMessage *message)
{
    struct registry *registry = stream->registry;
    struct node *node = stream->node;
    bool is_register = message->kind_case == BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_;
    if (stream->over || (node && node->doomed)) {
        metric_add(registry->stats->stale[STALE_STREAM], 1);
        return;
    }
    if (!node != is_register) {
        /* work before Register, or a second Register: not a node of ours */
        if (node)
            node_doom(registry, node, "it registered twice on one stream");
        else
            stream_end(stream, GRPC_CODE_FAILED_PRECONDITION, "Register comes first", false);
        return;
    }
    const struct registry_events *events = &registry->events;
    switch (message->kind_case) {
    case BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_:
        stream_register(stream, message->register_);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_HEARTBEAT:
        node_heartbeat(registry, node, message->heartbeat);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_ACCEPTED:
        events->accepted(events->context, node, message->accepted);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS:
        events->tokens(events->context, node, message->tokens);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_REPORT:
        events->report(events->context, node, message->report);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_LINK:
        registry_link_report(registry, node, message->link);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_CACHED:
        registry_cache_report(registry, node, message->cached);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_LEAVING:
        node_drain(registry, node, false);
        node->blameless = true;
        break;
    default:
        break; /* a kind of a later version: nothing that this one depends on */
    }
    update_cover(registry);
}

void registry_stream_broken(struct node_stream *stream, const char *why)
{
    if (stream->over)
        return;
    if (stream->node)
        node_doom(stream->registry, stream->node, why);
    else
        stream_end(stream, GRPC_CODE_ABORTED, why, false);
}

void registry_stream_closed(struct node_stream *stream, const char *why)
{
    struct registry *registry = stream->registry;
    if (stream->over)
        return;
    struct node *node = stream->node;
    if (node) {
        node_lose(registry, node, node->blameless ? "left" : why);
        send_peers(registry);
    }
    stream_end(stream, GRPC_CODE_OK, "", true);
    update_cover(registry);
}

/* --- time --- */

void registry_time(struct registry *registry, uint64_t now_ns, uint64_t late_total_ns)
{
    if (!registry->started_ns)
        registry->started_ns = registry->uncovered_ns = now_ns;
    uint64_t late_ns = late_total_ns - registry->late_total_ns;
    registry->now_ns = now_ns;
    registry->late_total_ns = late_total_ns;
    registry->patient_ns = now_ns - late_total_ns;
    if (!late_ns)
        return;
    /* What lies in the sockets now was sent while this process stood still: it says nothing about the present. */
    uint64_t missed = 1 + late_ns / (HEARTBEAT_MS * NS_PER_MS);
    for (size_t i = 0; i < registry->node_count; i++) {
        struct node *node = registry->nodes[i];
        if (!node_live(node))
            continue;
        if (node->held_until < node->heartbeat + missed)
            node->held_until = node->heartbeat + missed;
        node->held_full = false;
    }
}

void registry_tick(struct registry *registry)
{
    list_for_each_safe(it, tmp, &registry->streams)
    {
        struct node_stream *stream = container_of(it, struct node_stream, link);
        if (!stream->node && registry->now_ns - stream->opened_ns > register_wait_ns)
            stream_end(stream, GRPC_CODE_DEADLINE_EXCEEDED, "no Register within 5 s", false);
    }
    for (size_t i = 0; i < registry->node_count; i++) {
        struct node *node = registry->nodes[i];
        if (!node)
            continue;
        if (node->state != NODE_DEAD &&
            registry->patient_ns - node->heartbeat_patient_ns > node_dead_after_ns)
            node_doom(registry, node, "no heartbeat for 2.5 s");
        if (node->state == NODE_DEAD && !node->leg_count &&
            registry->now_ns - node->state_since_ns > forget_after_ns) {
            node_free(registry, node);
            registry->nodes[i] = NULL;
        }
    }
    registry_settle(registry);
    update_cover(registry);
}

/* --- for placement --- */

static bool gathered(const struct registry *registry)
{
    return registry->roles_seen || registry->now_ns - registry->started_ns > gather_ns;
}

bool registry_covered(const struct registry *registry)
{
    return !registry->uncovered_ns && gathered(registry);
}

bool registry_met(struct registry *registry)
{
    struct placement_view view = registry_view(registry);
    bool pairs = false;
    for (size_t p = 0; p < view.node_count; p++)
        for (size_t d = 0; d < view.node_count; d++) {
            const struct placement_node *from = &view.nodes[p], *to = &view.nodes[d];
            if (!from->serving || !to->serving)
                continue;
            if (p == d ? from->role == PLACEMENT_MIXED
                       : from->role < to->role &&
                             view.links[p * view.link_stride + d] == PLACEMENT_LINK_UP)
                return true;
            pairs |= from->role < to->role;
        }
    return !pairs; /* nobody to meet: each serves alone */
}

struct placement_view registry_view(struct registry *registry)
{
    registry_links_refresh(registry);
    bool ready = gathered(registry);
    for (size_t i = 0; i < registry->node_count; i++) {
        const struct node *node = registry->nodes[i];
        struct placement_node *to = &registry->placement_nodes[i];
        *to = (struct placement_node){0};
        if (!node || node->doomed)
            continue;
        to->shares = node->state == NODE_DRAINING; /* what it holds may still be fetched */
        if (node->state != NODE_SERVING)
            continue;
        *to = (struct placement_node){
            .role = node->role,
            .serving = true,
            .shares = true,
            .held = !ready || node->heartbeat < node->held_until ||
                    (node->stream && !node->stream->port->ample(node->stream->port_context)),
            .sequences = node->leg_count - node->serving_legs,
            .sequences_max = node->sequences_max,
            .prefill_tokens = node->prefill_tokens,
            .prefill_tokens_per_s = node->load.prefill_tokens_per_s,
            .pages_total = node->pages_total,
            .pages_taken = node->pages_taken,
            .grows = node->grows,
            .growing = node->growing_legs,
        };
    }
    return (struct placement_view){.nodes = registry->placement_nodes,
                                   .node_count = registry->node_count,
                                   .links = registry->links,
                                   .link_kb_per_s = registry->link_kb_per_s,
                                   .link_seen_s = registry->link_seen_s,
                                   .now_s = (uint32_t)(registry->now_ns / NS_PER_S),
                                   .link_stride = registry->node_capacity};
}

uint32_t registry_pages_max(const struct registry *registry)
{
    uint32_t most = 0;
    for (size_t i = 0; i < registry->node_count; i++)
        if (node_live(registry->nodes[i]) && registry->nodes[i]->pages_total > most)
            most = registry->nodes[i]->pages_total;
    return most;
}

uint32_t registry_context_tokens(const struct registry *registry)
{
    return registry->identity.known ? registry->identity.context_tokens
                                    : registry->model.context_tokens;
}

uint32_t registry_pages(const struct registry *registry, uint64_t tokens)
{
    uint32_t page_tokens = registry->identity.page_tokens;
    if (!registry->identity.known)
        return 0;
    return (uint32_t)((tokens + page_tokens - 1) / page_tokens);
}
