/* See cluster.h. */
#include "tests/sim/cluster.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/baton/node/v1/node.pb-c.h"
#include "proto/seal.h"

enum { SAME_TURNS_MAX = 20000 };
static const uint64_t lease_ns = 8 * NS_PER_S;        /* P's, after the last PULL or piece */
static const uint64_t still_max_ns = 300 * NS_PER_MS; /* every program ticks more often than this */

/* --- when --- */

static uint64_t min_ns(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t cluster_process_due_ns(const struct cluster *cluster, uint32_t process)
{
    const struct process *p = &cluster->processes[process];

    if (!p->alive || p->frozen || net_waits(p->rpc))
        return DEADLINE_NONE;
    uint64_t due_ns = min_ns(p->planned_ns, net_next_ns(p->rpc));
    if (virtual_loop_woken(p->loop))
        due_ns = cluster->now_ns;
    if (p->node) {
        if (!cluster->options.by_hand)
            due_ns = min_ns(due_ns, fake_engine_next_ns(node_side_engine(p->node)));
        if (!xfer_arm(node_side_xfer(p->node)))
            due_ns = cluster->now_ns;
    }
    return due_ns > cluster->now_ns ? due_ns : cluster->now_ns;
}

static bool kv_can_step(const struct cluster *cluster, uint32_t from, uint32_t to)
{
    const struct process *a = &cluster->processes[from], *b = &cluster->processes[to];
    return a->node && b->node &&
           xfer_hub_can_step(node_side_xfer(a->node), node_side_xfer(b->node));
}

/* A direction in which something waits gets a time for its next step. */
static uint64_t kv_due_ns(struct cluster *cluster, uint32_t from, uint32_t to)
{
    uint64_t *due_ns = &cluster->kv_due_ns[from][to];
    if (!kv_can_step(cluster, from, to))
        *due_ns = DEADLINE_NONE;
    else if (*due_ns == DEADLINE_NONE)
        *due_ns = cluster->now_ns + dice_between(&cluster->dice, cluster->kv_step_min_ns[from][to],
                                                 cluster->kv_step_max_ns[from][to]);
    return *due_ns;
}

uint64_t cluster_due_ns(struct cluster *cluster)
{
    uint64_t due_ns = DEADLINE_NONE;
    uint32_t nodes = cluster->options.nodes;
    for (uint32_t i = 0; i <= nodes; i++)
        due_ns = min_ns(due_ns, cluster_process_due_ns(cluster, i));
    for (uint32_t from = 1; from <= nodes; from++)
        for (uint32_t to = 1; to <= nodes; to++)
            if (from != to)
                due_ns = min_ns(due_ns, kv_due_ns(cluster, from, to));
    return due_ns;
}

/* --- what --- */

static void process_sleep(struct process *p)
{
    p->planned_ns = virtual_loop_sleep(p->loop);
    p->turned_ns = clock_now_ns();
}

/* When P's lease ends, whoever was fetching from it has given up: 7 s at most, against 8. */
static void check_lease(const struct cluster *cluster, struct process *p)
{
    uint64_t expired = node_side_leases_expired(p->node);
    if (expired == p->leases_expired)
        return;
    p->leases_expired = expired;
    for (uint32_t i = 1; i <= cluster->options.nodes; i++) {
        const struct process *other = &cluster->processes[i];
        if (other != p && other->alive && !other->was_frozen && !p->was_frozen &&
            node_side_fetches_too_long(other->node, node_side_incarnation(p->node), lease_ns))
            sim_fail("a lease ended before node %u gave up fetching", i);
    }
}

/* When the router declares a node dead for its silence, the node has ended its work: 2.0 s, against 2.5. */
static void router_notes(void *context, const char *node, const char *text)
{
    const struct cluster *cluster = context;
    unsigned process = 0;
    if (strstr(text, "no heartbeat for 2.5 s") && sscanf(node, "node-%u", &process) == 1) {
        const struct process *p = &cluster->processes[process];
        if (p->alive && !p->frozen && p->planned_ns > cluster->now_ns && node_side_works(p->node))
            sim_fail("%s is declared dead and still works for this router", node);
    }
    if (cluster->options.router.note)
        cluster->options.router.note(cluster->options.router.context, node, text);
}

static void process_turn(struct cluster *cluster, struct process *p)
{
    if (++p->same_turns > SAME_TURNS_MAX)
        sim_fail("process %u turns without end", (unsigned)(p - cluster->processes));
    cluster->turns++;
    virtual_random_for((uint32_t)(p - cluster->processes));
    if (p->node && !cluster->options.by_hand)
        fake_engine_pass(node_side_engine(p->node), cluster->now_ns);
    virtual_loop_turn(p->loop, p->planned_ns);
    if (p->node) {
        node_side_check(p->node);
        check_lease(cluster, p);
    }
    process_sleep(p);
}

/* Everything due now, one after the other, in an order that the dice decide. */
static void act_once(struct cluster *cluster)
{
    uint32_t nodes = cluster->options.nodes, things = nodes + 1 + nodes * nodes;
    uint32_t begin = dice_below(&cluster->dice, things);
    for (uint32_t i = 0; i < things; i++) {
        uint32_t thing = (begin + i) % things;
        if (thing <= nodes) {
            struct process *p = &cluster->processes[thing];
            if (cluster_process_due_ns(cluster, thing) <= cluster->now_ns) {
                process_turn(cluster, p);
                return;
            }
            continue;
        }
        uint32_t from = 1 + (thing - nodes - 1) / nodes, to = 1 + (thing - nodes - 1) % nodes;
        if (from != to && kv_due_ns(cluster, from, to) <= cluster->now_ns) {
            xfer_hub_step_between(node_side_xfer(cluster->processes[from].node),
                                  node_side_xfer(cluster->processes[to].node));
            cluster->kv_due_ns[from][to] = DEADLINE_NONE;
            return;
        }
    }
}

void cluster_time_pass(struct cluster *cluster, uint64_t to_ns)
{
    if (to_ns <= cluster->now_ns)
        return;
    cluster->now_ns = to_ns;
    virtual_time(to_ns);
    for (uint32_t i = 0; i <= cluster->options.nodes; i++) {
        struct process *p = &cluster->processes[i];
        p->same_turns = 0;
        if (p->alive && !p->frozen && to_ns > p->turned_ns + still_max_ns)
            sim_fail("process %u stands still and is not frozen", i);
    }
}

void cluster_run(struct cluster *cluster, uint64_t until_ns)
{
    uint64_t due_ns;
    while ((due_ns = cluster_due_ns(cluster)) <= until_ns) {
        cluster_time_pass(cluster, due_ns);
        act_once(cluster);
    }
    cluster_time_pass(cluster, until_ns);
}

/* --- life --- */

static void seen(void *context, int place, enum net_direction direction, const void *data,
                 size_t bytes)
{
    if (!trace_on)
        return;
    const ProtobufCMessageDescriptor *of = direction == NET_UP
                                               ? &baton__node__v1__node_message__descriptor
                                               : &baton__node__v1__router_message__descriptor;
    ProtobufCMessage *message = protobuf_c_message_unpack(of, NULL, bytes, data);
    assert(message);
    /* both begin with the case of their one union */
    unsigned kind = direction == NET_UP
                        ? (unsigned)((Baton__Node__V1__NodeMessage *)message)->kind_case
                        : (unsigned)((Baton__Node__V1__RouterMessage *)message)->kind_case;
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(of, kind);
    char detail[96] = "";
    if (direction == NET_UP && kind == BATON__NODE__V1__NODE_MESSAGE__KIND_REPORT) {
        const Baton__Node__V1__Report *r = ((Baton__Node__V1__NodeMessage *)message)->report;
        snprintf(detail, sizeof detail, " %016llx kind %d %s", (unsigned long long)r->attempt->low,
                 r->kind, r->message);
    } else if (direction == NET_UP && kind == BATON__NODE__V1__NODE_MESSAGE__KIND_ACCEPTED) {
        const Baton__Node__V1__Accepted *a = ((Baton__Node__V1__NodeMessage *)message)->accepted;
        snprintf(detail, sizeof detail, " %016llx verdict %d %s",
                 (unsigned long long)a->attempt->low, a->verdict, a->message);
    } else if (direction == NET_UP && kind == BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS) {
        const Baton__Node__V1__Tokens *t = ((Baton__Node__V1__NodeMessage *)message)->tokens;
        for (size_t i = 0; i < t->n_runs && i < 2; i++)
            snprintf(detail + strlen(detail), sizeof detail - strlen(detail), " %016llx@%u=%u",
                     (unsigned long long)t->runs[i]->attempt->low, t->runs[i]->position,
                     t->runs[i]->tokens[0]->id);
    } else if (direction == NET_DOWN && kind == BATON__NODE__V1__ROUTER_MESSAGE__KIND_ASSIGN) {
        const Baton__Node__V1__Assign *a = ((Baton__Node__V1__RouterMessage *)message)->assign;
        snprintf(detail, sizeof detail, " %016llx leg %d number %llu request %llu +%zu from %s",
                 (unsigned long long)a->attempt->low, a->leg, (unsigned long long)a->number,
                 (unsigned long long)a->request, a->n_generated, a->source);
    } else if (direction == NET_DOWN && kind == BATON__NODE__V1__ROUTER_MESSAGE__KIND_END) {
        const Baton__Node__V1__End *e = ((Baton__Node__V1__RouterMessage *)message)->end;
        snprintf(detail, sizeof detail, " %016llx %s", (unsigned long long)e->attempt->low,
                 e->reason);
    }
    if (kind != BATON__NODE__V1__NODE_MESSAGE__KIND_HEARTBEAT || detail[0])
        trace("%s %d: %s%s", direction == NET_UP ? "from" : "to", place, field ? field->name : "?",
              detail);
    protobuf_c_message_free_unpacked(message, NULL);
}

/* Numbers that are only shown: two states that differ in them alone are one. */
static void load_plain(Baton__Node__V1__Load *load)
{
    load->checksum_failures = load->stale_frames = load->layers_finished = 0;
    load->preemptions_swapped = load->preemptions_recomputed = load->recomputed_tokens = 0;
}

/* Nodes that boast say so in their registration and in every heartbeat. */
static void *sent(void *context, int place, enum net_direction direction, const void *data,
                  size_t bytes, size_t *bytes_out)
{
    const struct cluster_options *o = &((const struct cluster *)context)->options;
    if ((o->boast <= 1 && !o->by_hand) || direction != NET_UP)
        return NULL;
    uint8_t first = *(const uint8_t *)data; /* the field's number and wire type 2 */
    if (first != (BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_ << 3 | 2) &&
        first != (BATON__NODE__V1__NODE_MESSAGE__KIND_HEARTBEAT << 3 | 2))
        return NULL;
    Baton__Node__V1__NodeMessage *message =
        baton__node__v1__node_message__unpack(NULL, bytes, data);
    assert(message);
    uint32_t boast = o->boast ? o->boast : 1;
    if (message->kind_case == BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_)
        message->register_->pages_total *= boast;
    else
        message->heartbeat->load->pages_total *= boast;
    if (o->by_hand && message->kind_case == BATON__NODE__V1__NODE_MESSAGE__KIND_HEARTBEAT)
        load_plain(message->heartbeat->load);
    struct seal seal = {.on = message->number != 0, .number = message->number - 1};
    message->number = 0;
    message->checksum = 0;
    size_t packed_bytes = baton__node__v1__node_message__get_packed_size(message);
    void *other = malloc(packed_bytes + SEAL_BYTES);
    assert(other);
    baton__node__v1__node_message__pack(message, other);
    baton__node__v1__node_message__free_unpacked(message, NULL);
    seal_put(&seal, other, packed_bytes);
    *bytes_out = packed_bytes + seal_room(&seal);
    return other;
}

static void node_begin(struct cluster *cluster, uint32_t process)
{
    struct process *p = &cluster->processes[process];
    struct node_side_options options = cluster->options.node[process];
    options.net = cluster->net;
    options.hub = cluster->hub;
    options.place = (int)process;
    options.check_always = cluster->options.by_hand;
    snprintf(options.name, sizeof options.name, "node-%u", process);
    virtual_random_for(process);
    p->node = node_side_create(&options);
    p->loop = node_side_loop(p->node);
    p->rpc = node_side_rpc(p->node);
    p->alive = true;
    p->frozen = false;
    process_sleep(p);
}

static void router_begin(struct cluster *cluster)
{
    struct process *p = &cluster->processes[CLUSTER_ROUTER];
    struct router_side_options options = cluster->options.router;
    options.net = cluster->net;
    options.note = router_notes;
    options.context = cluster;
    virtual_random_for(CLUSTER_ROUTER);
    cluster->router = router_side_create(&options);
    p->loop = router_side_loop(cluster->router);
    p->rpc = router_side_rpc(cluster->router);
    p->alive = true;
    p->frozen = false;
    process_sleep(p);
}

void cluster_start(struct cluster *cluster, const struct cluster_options *options)
{
    *cluster = (struct cluster){.options = *options, .now_ns = 1000 * NS_PER_S};
    cluster->dice.state = options->seed ^ 0xc1u;
    virtual_start(cluster->now_ns, options->seed ^ 0x7a4du);
    struct net_options net = {.seed = options->seed ^ 0x9e7u,
                              .window_bytes = options->window_bytes,
                              .burst_max = options->burst_max,
                              .by_hand = options->by_hand,
                              .seen = seen,
                              .sent = sent,
                              .context = cluster};
    cluster->net = net_create(&net);
    struct err err = ERR_INIT;
    if (xfer_hub_create(options->seed, CLUSTER_NODES_MAX, &cluster->hub, &err))
        sim_fail("%s", err.message);
    for (uint32_t i = 1; i <= options->nodes; i++) {
        net_delay(cluster->net, (int)i, options->net_min_ns, options->net_max_ns);
        for (uint32_t k = 1; k <= options->nodes; k++) {
            cluster->kv_due_ns[i][k] = DEADLINE_NONE;
            cluster_kv_speed(cluster, i, k, options->kv_min_ns, options->kv_max_ns);
        }
    }
    router_begin(cluster);
    for (uint32_t i = 1; i <= options->nodes; i++)
        node_begin(cluster, i);
}

static void counts_add(struct node_counts *to, const struct node_counts *of)
{
    uint64_t *sums = (uint64_t *)to;
    const uint64_t *parts = (const uint64_t *)of;
    for (size_t i = 0; i < sizeof *to / sizeof *sums; i++)
        sums[i] += parts[i];
}

void cluster_kill(struct cluster *cluster, uint32_t process, bool silent)
{
    struct process *p = &cluster->processes[process];
    if (!p->alive)
        return;
    trace("kill process %u%s", process, silent ? " silently" : "");
    if (process == CLUSTER_ROUTER) {
        router_side_destroy(cluster->router);
        cluster->router = NULL;
    } else {
        struct node_counts counts;
        node_side_counts(p->node, &counts);
        counts_add(&cluster->gone, &counts);
        node_side_destroy(p->node, silent);
    }
    *p = (struct process){0};
}

void cluster_restart(struct cluster *cluster, uint32_t process)
{
    if (cluster->processes[process].alive)
        return;
    trace("start process %u", process);
    if (process == CLUSTER_ROUTER)
        router_begin(cluster);
    else
        node_begin(cluster, process);
}

void cluster_freeze(struct cluster *cluster, uint32_t process, bool frozen)
{
    struct process *p = &cluster->processes[process];
    if (!p->alive || p->frozen == frozen)
        return;
    trace("%s process %u", frozen ? "freeze" : "thaw", process);
    p->frozen = frozen;
    p->was_frozen = true;
    p->turned_ns = cluster->now_ns;
    if (frozen)
        p->frozen_ns = cluster->now_ns;
    if (!p->node)
        return;
    xfer_hub_freeze(node_side_xfer(p->node), frozen);
    if (!frozen)
        fake_engine_shift(node_side_engine(p->node), cluster->now_ns - p->frozen_ns);
}

void cluster_kv_speed(struct cluster *cluster, uint32_t from, uint32_t to, uint64_t min_step_ns,
                      uint64_t max_step_ns)
{
    cluster->kv_step_min_ns[from][to] = min_step_ns;
    cluster->kv_step_max_ns[from][to] = max_step_ns;
}

void cluster_kv_cut(struct cluster *cluster, uint32_t from, uint32_t to, bool cut)
{
    struct node_side *a = cluster->processes[from].node, *b = cluster->processes[to].node;
    if (a && b)
        xfer_hub_cut(node_side_xfer(a), node_side_xfer(b), cut);
}

void cluster_poke(struct cluster *cluster, uint32_t process)
{
    struct process *p = &cluster->processes[process];
    if (p->alive && !p->frozen)
        process_turn(cluster, p);
}

void cluster_counts(const struct cluster *cluster, struct node_counts *counts_out)
{
    *counts_out = cluster->gone;
    for (uint32_t i = 1; i <= cluster->options.nodes; i++) {
        struct node_counts counts;
        if (!cluster->processes[i].alive)
            continue;
        node_side_counts(cluster->processes[i].node, &counts);
        counts_add(counts_out, &counts);
    }
}

void cluster_print(const struct cluster *cluster)
{
    if (cluster->router)
        router_side_print(cluster->router);
    for (uint32_t i = 1; i <= cluster->options.nodes; i++)
        if (cluster->processes[i].alive)
            node_side_print(cluster->processes[i].node);
}

void cluster_stop(struct cluster *cluster)
{
    for (uint32_t i = 0; i <= cluster->options.nodes; i++)
        cluster_kill(cluster, i, true);
    net_destroy(cluster->net);
    xfer_hub_destroy(cluster->hub);
}
