/* See explore.h. */
#include "tests/sim/explore.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvtransfer/frame.h"
#include "proto/baton/node/v1/node.pb-c.h"
#include "tests/sim/arena.h"
#include "tests/sim/cluster.h"
#include "tests/sim/explore_setup.h"
#include "tests/sim/inside.h"
#include "tests/sim/state.h"

#define END_HASH UINT64_C(0xe0d)
enum { ACTIONS_MAX = 160, DEPTH_MAX = 4096, TIMED_MAX = 8, HEADS_MAX = 16 };
static const uint64_t patience_ns = 120 * NS_PER_S;

enum action_kind {
    ACT_NET,  /* a: place, b: direction, c: which of its streams */
    ACT_KV,   /* a: from, b: to */
    ACT_STEP, /* a: node */
    ACT_COPY, /* a: node */
    ACT_PASS,
    ACT_TAMPER, /* a: from, b: to, c: how */
    ACT_HOLD_KV,
    ACT_HOLD_NET, /* a: place, b: direction, c: how long */
    ACT_CANCEL,   /* a: request */
    ACT_KILL,     /* a: node, b: silently, c: how long */
    ACT_FREEZE,   /* a: process, c: how long */
    ACT_RESET,
    ACT_PULL, /* a: from, b: to, c: what is wrong with it */
};

struct action {
    uint8_t kind, a, b, c;
};

enum timed_kind { TIMED_NOTHING, TIMED_THAW, TIMED_START, TIMED_FREE_KV, TIMED_FREE_NET };
struct timed {
    uint64_t at_ns;
    uint8_t kind, a, b;
};

/* What is put back: an ordinary variable. */
static struct world {
    struct cluster cluster;
    struct client clients[EXPLORE_REQUESTS_MAX];
    struct timed timed[TIMED_MAX];
    uint32_t faults_left;
    bool idle_seen; /* time has passed since something last moved: no fault at such a moment */
    uint64_t begin_ns;
} world;

struct frame {
    struct action actions[ACTIONS_MAX];
    uint32_t count, next, depth; /* depth: of the path before it */
    uint64_t hash;
    size_t saved_at, saved_bytes;
};

/* What is not. */
struct explorer {
    const struct explore_config *config;
    struct explore_result result;
    uint32_t reference[EXPLORE_REQUESTS_MAX][CLIENT_TOKENS_MAX];
    uint64_t *seen; /* [seen_mask + 1] fingerprints; 0: none */
    uint64_t *next; /* the same: what the first choice led to; 0: not known yet */
    uint64_t seen_mask;
    size_t *first; /* the same: where in `firsts` the path lies that came there first */
    char *firsts;
    size_t firsts_used;
    struct frame *frames; /* [DEPTH_MAX] */
    uint32_t frame_count;
    uint16_t path[DEPTH_MAX];
    uint32_t depth;
    uint8_t *saved; /* a stack */
    char where[DEPTH_MAX * 4];
    bool follow; /* one given path */
};
static struct explorer *x;

static const char *const tamper_names[] = {"lose", "double", "overtake", "flip"};
static const uint64_t hold_kv_ns[] = {300 * NS_PER_MS, 3 * NS_PER_S, 9 * NS_PER_S};
static const uint64_t hold_net_ns[] = {300 * NS_PER_MS, 3 * NS_PER_S};
static const uint64_t kill_ns[] = {100 * NS_PER_MS, 3 * NS_PER_S};
static const uint64_t freeze_ns[] = {300 * NS_PER_MS, 2300 * NS_PER_MS, 5 * NS_PER_S, 9 * NS_PER_S};
static const uint64_t router_ns[] = {500 * NS_PER_MS, 3 * NS_PER_S};

#define COUNT(array) (uint8_t)(sizeof(array) / sizeof(array)[0])

static uint32_t nodes(void)
{
    return (uint32_t)strlen(x->config->roles);
}

const char *explore_where(void)
{
    size_t used = 0;
    x->where[0] = 0;
    for (uint32_t i = 0; i < x->depth && used + 8 < sizeof x->where; i++)
        used += (size_t)snprintf(x->where + used, sizeof x->where - used, "%s%u", i ? "," : "",
                                 x->path[i]);
    return x->where;
}

/* --- what may move --- */

static bool awake(uint32_t process)
{
    const struct process *p = &world.cluster.processes[process];
    return p->alive && !p->frozen;
}

/* Messages that say nothing of a request. */
static bool head_dull(const struct net_head *head)
{
    if (head->kind == 'o')
        return true;
    if (head->kind != 'm' || !head->bytes)
        return false;
    unsigned field = *(const uint8_t *)head->data >> 3;
    if (head->direction == NET_UP)
        return field == BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_ ||
               field == BATON__NODE__V1__NODE_MESSAGE__KIND_HEARTBEAT ||
               field == BATON__NODE__V1__NODE_MESSAGE__KIND_CACHED ||
               field == BATON__NODE__V1__NODE_MESSAGE__KIND_LINK;
    return field == BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME ||
           field == BATON__NODE__V1__ROUTER_MESSAGE__KIND_HEARTBEAT_ACK ||
           field == BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS;
}

static const struct net_head *heads(uint32_t *count_out)
{
    static struct net_head all[HEADS_MAX];
    uint32_t count = net_heads(world.cluster.net, all, HEADS_MAX), kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (awake(all[i].direction == NET_UP ? CLUSTER_ROUTER : (uint32_t)all[i].place))
            all[kept++] = all[i];
    *count_out = kept;
    return all;
}

static void deliver(const struct net_head *head)
{
    uint32_t to = head->direction == NET_UP ? CLUSTER_ROUTER : (uint32_t)head->place;
    net_release(head);
    cluster_poke(&world.cluster, to);
}

static bool kv_can(uint32_t from, uint32_t to)
{
    return awake(from) && awake(to) &&
           xfer_hub_can_step(node_side_xfer(world.cluster.processes[from].node),
                             node_side_xfer(world.cluster.processes[to].node));
}

static struct xfer *xfer_of(uint32_t process)
{
    return node_side_xfer(world.cluster.processes[process].node);
}

static void kv_move(uint32_t from, uint32_t to)
{
    xfer_hub_step_between(xfer_of(from), xfer_of(to));
    cluster_poke(&world.cluster, to);
}

/* What processes do by themselves, and what arrives without choice. */
static void settle(void)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i <= nodes(); i++)
            while (awake(i) && cluster_process_due_ns(&world.cluster, i) <= world.cluster.now_ns) {
                cluster_poke(&world.cluster, i);
                moved = true;
            }
        uint32_t count;
        const struct net_head *all = heads(&count);
        for (uint32_t i = 0; i < count && !moved; i++)
            if (head_dull(&all[i])) {
                deliver(&all[i]);
                moved = true;
            }
        for (uint32_t from = 1; from <= nodes() && !moved; from++)
            for (uint32_t to = 1; to <= nodes() && !moved; to++)
                if (from != to && kv_can(from, to) &&
                    strcmp(inside_hub_first(xfer_of(from), xfer_of(to)), "hello") == 0) {
                    kv_move(from, to);
                    moved = true;
                }
    }
}

/* --- choices --- */

struct choices {
    struct action *actions;
    uint32_t count;
};

static void choice(struct choices *of, uint8_t kind, uint32_t a, uint32_t b, uint32_t c)
{
    assert(of->count < ACTIONS_MAX);
    of->actions[of->count++] = (struct action){kind, (uint8_t)a, (uint8_t)b, (uint8_t)c};
}

static void choices_moves(struct choices *of)
{
    uint32_t count;
    const struct net_head *all = heads(&count);
    for (uint32_t i = 0; i < count; i++)
        choice(of, ACT_NET, (uint32_t)all[i].place, all[i].direction, i);
    for (uint32_t from = 1; from <= nodes(); from++)
        for (uint32_t to = 1; to <= nodes(); to++)
            if (from != to && kv_can(from, to))
                choice(of, ACT_KV, from, to, 0);
    for (uint32_t i = 1; i <= nodes(); i++) {
        if (!awake(i))
            continue;
        struct engine *engine = node_side_engine(world.cluster.processes[i].node);
        if (fake_engine_next_step_ns(engine) != DEADLINE_NONE)
            choice(of, ACT_STEP, i, 0, 0);
        if (fake_engine_next_copy_ns(engine) != DEADLINE_NONE)
            choice(of, ACT_COPY, i, 0, 0);
    }
}

static void choices_kv_faults(struct choices *of, uint32_t from, uint32_t to)
{
    uint32_t faults = x->config->faults;
    const char *first = inside_hub_first(xfer_of(from), xfer_of(to));
    for (uint32_t how = 0; first && how < TAMPER_COUNT; how++)
        if (faults & FAULT_DROP << how && inside_hub_can_tamper(xfer_of(from), xfer_of(to), how))
            choice(of, ACT_TAMPER, from, to, how);
    for (uint32_t i = 0; faults & FAULT_HOLD_KV && first && i < COUNT(hold_kv_ns); i++)
        choice(of, ACT_HOLD_KV, from, to, i);
    for (uint32_t i = 0; faults & FAULT_PULL && i < PULL_COUNT; i++)
        choice(of, ACT_PULL, from, to, i);
}

static void choices_faults(struct choices *of)
{
    uint32_t faults = x->config->faults;
    for (uint32_t i = 0; faults & FAULT_CANCEL && i < x->config->request_count; i++)
        if (client_open(&world.clients[i]) && awake(CLUSTER_ROUTER))
            choice(of, ACT_CANCEL, i, 0, 0);
    for (uint32_t from = 1; from <= nodes(); from++) {
        for (uint32_t to = 1; to <= nodes(); to++)
            if (from != to && world.cluster.processes[from].alive &&
                world.cluster.processes[to].alive)
                choices_kv_faults(of, from, to);
        if (!awake(from))
            continue;
        for (uint32_t i = 0; faults & FAULT_HOLD_NET && i < COUNT(hold_net_ns); i++) {
            choice(of, ACT_HOLD_NET, from, NET_UP, i);
            choice(of, ACT_HOLD_NET, from, NET_DOWN, i);
        }
        for (uint32_t i = 0; faults & FAULT_KILL && i < COUNT(kill_ns); i++) {
            choice(of, ACT_KILL, from, 0, i);
            choice(of, ACT_KILL, from, 1, i);
        }
        for (uint32_t i = 0; faults & FAULT_FREEZE && i < COUNT(freeze_ns); i++)
            choice(of, ACT_FREEZE, from, 0, i);
        if (faults & FAULT_RESET)
            choice(of, ACT_RESET, from, 0, 0);
    }
    for (uint32_t i = 0; faults & FAULT_ROUTER && i < COUNT(router_ns); i++)
        if (awake(CLUSTER_ROUTER))
            choice(of, ACT_FREEZE, CLUSTER_ROUTER, 0, i);
}

/* --- the end of a path --- */

static bool at_rest(void)
{
    char why[160];
    struct router_counts counts;
    for (uint32_t i = 0; i < x->config->request_count; i++)
        if (client_open(&world.clients[i]) || world.clients[i].request)
            return false;
    for (uint32_t i = 1; i <= nodes(); i++)
        if (!awake(i) || !node_side_rest(world.cluster.processes[i].node, why, sizeof why))
            return false;
    if (!awake(CLUSTER_ROUTER))
        return false;
    router_side_counts(world.cluster.router, &counts);
    return !counts.requests && !counts.legs;
}

/* How often a node has fetched for another, so far. */
static uint64_t node_fetches(void)
{
    struct node_counts counts;
    cluster_counts(&world.cluster, &counts);
    return counts.fetched;
}

static void clients_check(void)
{
    for (uint32_t i = 0; i < x->config->request_count; i++) {
        const struct client *client = &world.clients[i];
        uint32_t whole = client->options.tokens_max;
        for (uint32_t k = 0; k < client->count; k++)
            if (client->ids[k] != x->reference[i][k])
                sim_fail("request %u: token %u is %u, the reference says %u", i, k, client->ids[k],
                         x->reference[i][k]);
        if (client->last && client->count != whole)
            sim_fail("request %u ended after %u tokens of %u", i, client->count, whole);
        if (!client->last && !client->cancelled)
            sim_fail("request %u ended as %s", i, status_text(client->status));
    }
}

/* The choices of the present; none: the path is at its end. */
static void choices_now(struct choices *of)
{
    of->count = 0;
    choices_moves(of);
    bool moves = of->count > 0;
    if (moves && x->config->straight)
        of->count = 1;
    if (!moves && at_rest())
        return;
    if (world.cluster.now_ns > world.begin_ns + patience_ns)
        sim_fail("no progress: after %.0f s something is not at rest", (double)patience_ns / 1e9);
    if (!moves)
        choice(of, ACT_PASS, 0, 0, 0);
    if (world.faults_left && (moves || !world.idle_seen))
        choices_faults(of);
}

/* --- acting --- */

static void timed_add(uint64_t after_ns, enum timed_kind kind, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < TIMED_MAX; i++)
        if (world.timed[i].kind == TIMED_NOTHING) {
            world.timed[i] = (struct timed){world.cluster.now_ns + after_ns, (uint8_t)kind,
                                            (uint8_t)a, (uint8_t)b};
            return;
        }
    assert(false);
}

static void timed_happen(struct timed *timed)
{
    struct timed now = *timed;
    *timed = (struct timed){0};
    switch (now.kind) {
    case TIMED_THAW:
        cluster_freeze(&world.cluster, now.a, false);
        break;
    case TIMED_START:
        cluster_restart(&world.cluster, now.a);
        break;
    case TIMED_FREE_KV:
        cluster_kv_cut(&world.cluster, now.a, now.b, false);
        break;
    case TIMED_FREE_NET:
        net_block(world.cluster.net, now.a, (enum net_direction)now.b, false);
        break;
    default:
        break;
    }
}

static void time_pass(void)
{
    uint64_t next_ns = DEADLINE_NONE;
    for (uint32_t i = 0; i <= nodes(); i++) {
        uint64_t due_ns = cluster_process_due_ns(&world.cluster, i);
        if (due_ns < next_ns)
            next_ns = due_ns;
    }
    for (uint32_t i = 0; i < TIMED_MAX; i++)
        if (world.timed[i].kind && world.timed[i].at_ns < next_ns)
            next_ns = world.timed[i].at_ns;
    if (next_ns == DEADLINE_NONE)
        sim_fail("nothing will ever happen again");
    cluster_time_pass(&world.cluster, next_ns);
    for (uint32_t i = 0; i < TIMED_MAX; i++)
        if (world.timed[i].kind && world.timed[i].at_ns <= next_ns)
            timed_happen(&world.timed[i]);
}

static void pull_inject(const struct action *action)
{
    struct cluster *cluster = &world.cluster;
    static struct kv_frame frame;
    if (!state_pull_wrong(node_side_node(cluster->processes[action->a].node),
                          node_side_node(cluster->processes[action->b].node), action->c, &frame))
        return; /* nothing to ask for: the fault is spent */
    uint8_t bytes[KV_FRAME_BYTES_MAX];
    inside_hub_inject(xfer_of(action->a), xfer_of(action->b), bytes,
                      kv_frame_encode(&frame, bytes));
}

static void act(const struct action *action)
{
    struct cluster *cluster = &world.cluster;
    uint32_t count;
    if (action->kind > ACT_PASS)
        world.faults_left--;
    world.idle_seen = action->kind == ACT_PASS;
    switch (action->kind) {
    case ACT_NET:
        deliver(&heads(&count)[action->c]);
        break;
    case ACT_KV:
        kv_move(action->a, action->b);
        break;
    case ACT_STEP:
    case ACT_COPY:
        fake_engine_one(node_side_engine(cluster->processes[action->a].node),
                        action->kind == ACT_COPY);
        cluster_poke(cluster, action->a);
        break;
    case ACT_PASS:
        time_pass();
        break;
    case ACT_TAMPER:
        inside_hub_tamper(xfer_of(action->a), xfer_of(action->b), action->c);
        break;
    case ACT_HOLD_KV:
        cluster_kv_cut(cluster, action->a, action->b, true);
        timed_add(hold_kv_ns[action->c], TIMED_FREE_KV, action->a, action->b);
        break;
    case ACT_HOLD_NET:
        net_block(cluster->net, action->a, (enum net_direction)action->b, true);
        timed_add(hold_net_ns[action->c], TIMED_FREE_NET, action->a, action->b);
        break;
    case ACT_CANCEL:
        router_side_cancel(cluster->router, &world.clients[action->a]);
        cluster_poke(cluster, CLUSTER_ROUTER);
        break;
    case ACT_KILL:
        cluster_kill(cluster, action->a, action->b);
        timed_add(kill_ns[action->c], TIMED_START, action->a, 0);
        break;
    case ACT_FREEZE:
        cluster_freeze(cluster, action->a, true);
        timed_add(action->a ? freeze_ns[action->c] : router_ns[action->c], TIMED_THAW, action->a,
                  0);
        break;
    case ACT_RESET:
        net_reset(cluster->net, action->a);
        break;
    case ACT_PULL:
        pull_inject(action);
        break;
    }
    settle();
}

static void describe(const struct action *action)
{
    uint32_t count;
    switch (action->kind) {
    case ACT_NET: {
        const struct net_head *head = &heads(&count)[action->c];
        trace("a message %s %d arrives (%c)", head->direction == NET_UP ? "from" : "for",
              head->place, head->kind);
        break;
    }
    case ACT_KV:
        trace("%s moves from %u to %u", inside_hub_first(xfer_of(action->a), xfer_of(action->b)),
              action->a, action->b);
        break;
    case ACT_STEP:
        trace("a layer ends at %u", action->a);
        break;
    case ACT_COPY:
        trace("a copy ends at %u", action->a);
        break;
    case ACT_PASS:
        break;
    case ACT_TAMPER:
        trace("FAULT: %s %s from %u to %u", tamper_names[action->c],
              inside_hub_first(xfer_of(action->a), xfer_of(action->b)), action->a, action->b);
        break;
    default: {
        static const char *const names[] = {
            [ACT_HOLD_KV] = "hold kv", [ACT_HOLD_NET] = "hold net", [ACT_CANCEL] = "cancel",
            [ACT_KILL] = "kill",       [ACT_FREEZE] = "freeze",     [ACT_RESET] = "reset",
            [ACT_PULL] = "pull"};
        trace("FAULT: %s %u %u %u", names[action->kind], action->a, action->b, action->c);
    }
    }
}

/* --- fingerprints --- */

static uint64_t fingerprint(bool show)
{
    struct print print = {.show = show};
    const struct cluster *cluster = &world.cluster;
    PRINT(&print, cluster->now_ns);
    PRINT(&print, world.faults_left);
    PRINT(&print, world.faults_left ? world.idle_seen : 0);
    for (uint32_t i = 0; i < TIMED_MAX; i++)
        if (world.timed[i].kind) {
            PRINT(&print, world.timed[i].at_ns);
            PRINT(&print, world.timed[i].kind << 16 | world.timed[i].a << 8 | world.timed[i].b);
        }
    for (uint32_t i = 0; i < x->config->request_count; i++) {
        const struct client *client = &world.clients[i];
        print_head(&print, "client", client->count);
        PRINT(&print, client->last | client->ended << 1 | client->cancelled << 2);
    }
    for (uint32_t i = 0; i <= nodes(); i++) {
        const struct process *p = &cluster->processes[i];
        print_head(&print, "process", i);
        PRINT(&print, p->alive);
        PRINT(&print, p->frozen);
        PRINT(&print, p->frozen ? p->frozen_ns : 0);
        PRINT(&print, virtual_random_state(i));
        if (!p->alive)
            continue;
        PRINT(&print, p->planned_ns);
        if (i == CLUSTER_ROUTER) {
            state_core(router_side_core(cluster->router), &print);
            state_loop(p->loop, &print);
        } else {
            state_node(node_side_node(p->node), &print);
        }
    }
    net_print(cluster->net, &print);
    inside_hub(cluster->hub, &print);
    return print.hash ? print.hash : 1;
}

/* The place of this fingerprint; *new_out: it was not there yet. */
static uint64_t seen_at(uint64_t hash, bool *new_out)
{
    uint64_t at = hash & x->seen_mask;
    while (x->seen[at] && x->seen[at] != hash)
        at = (at + 1) & x->seen_mask;
    *new_out = !x->seen[at];
    if (*new_out) {
        x->seen[at] = hash;
        x->result.states++;
    }
    return at;
}

/* --- the beginning of all paths --- */

/* By the first of each choice. */
static void run_undisturbed(uint64_t until_ns)
{
    while (world.cluster.now_ns < until_ns) {
        struct choices moves = {.actions = x->frames[0].actions};
        choices_moves(&moves);
        if (moves.count)
            act(&moves.actions[0]);
        else
            time_pass(), settle();
    }
}

static void ask_from(uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        router_side_request(world.cluster.router, &world.clients[i]);
    cluster_poke(&world.cluster, CLUSTER_ROUTER);
    settle();
}

static void world_start(void)
{
    const struct explore_config *config = x->config;
    memset(&world, 0, sizeof world);
    struct cluster_options options = explore_cluster_options(config);
    cluster_start(&world.cluster, &options);
    explore_requests(config, world.clients, x->reference);
    /* until all have met */
    settle();
    run_undisturbed(1001 * NS_PER_S);
    uint32_t first = config->next_turn ? 1 : 0;
    if (first) { /* and until the router has heard what is cached where */
        ask_from(0, 1);
        run_undisturbed(1004 * NS_PER_S);
        assert(world.clients[0].last);
    }
    world.begin_ns = world.cluster.now_ns;
    world.faults_left = config->faults_max;
    ask_from(first, config->request_count);
}

/* --- the search --- */

static void present_save(struct frame *frame, size_t at)
{
    frame->saved_at = at;
    frame->saved_bytes = 0;
    if (!arena_works())
        return;
    frame->saved_bytes = arena_bytes();
    arena_save(x->saved + at);
}

/* Lets happen what has no alternative. False: the path is at its end. */
static bool run_to_choice(struct choices *choices)
{
    for (;;) {
        choices_now(choices);
        if (!choices->count)
            return false;
        if (choices->count > 1)
            return true;
        if (trace_on)
            describe(&choices->actions[0]);
        x->result.steps++;
        act(&choices->actions[0]);
    }
}

static void path_follow(const uint16_t *path, uint32_t depth)
{
    static struct action actions[ACTIONS_MAX];
    struct choices choices = {.actions = actions};
    for (uint32_t i = 0; i < depth; i++) {
        bool any = run_to_choice(&choices);
        assert(any && path[i] < choices.count);
        (void)any;
        if (trace_on)
            describe(&actions[path[i]]);
        act(&actions[path[i]]);
    }
}

static void present_restore(const struct frame *frame)
{
    static struct action actions[ACTIONS_MAX];
    struct choices choices = {.actions = actions};
    x->depth = frame->depth;
    if (arena_works()) {
        arena_restore(x->saved + frame->saved_at, frame->saved_bytes);
        return;
    }
    cluster_stop(&world.cluster);
    world_start();
    path_follow(x->path, frame->depth);
    /* the frame's choices are those behind what had none */
    if (!run_to_choice(&choices) || choices.count != frame->count ||
        fingerprint(false) != frame->hash)
        sim_fail("the same path leads elsewhere when it is run again");
}

/* Two states of one fingerprint must go on alike: here the first choice leads to where it led before. Else the fingerprint leaves
 * something out, and what was taken for seen was not. */
static void merge_check(uint64_t at, const struct choices *choices)
{
    static struct action actions[ACTIONS_MAX];
    struct choices after = {.actions = actions};
    struct action first = choices->actions[0];
    x->result.checked++;
    act(&first);
    uint64_t hash = run_to_choice(&after) ? fingerprint(false) : END_HASH;
    if (hash != x->next[at])
        sim_fail("two states have one fingerprint and go on differently (SIM_SHOW=1 shows a path's "
                 "last states); the first was %s",
                 x->firsts + x->first[at]);
}

/* From the present on as far as it is new. */
static void descend(void)
{
    uint64_t *came_from = NULL; /* whose first choice leads here */
    for (;;) {
        struct frame *frame = &x->frames[x->frame_count];
        struct choices choices = {.actions = frame->actions};
        assert(x->frame_count < DEPTH_MAX && x->depth < DEPTH_MAX);
        bool any = run_to_choice(&choices), is_new;
        uint64_t hash = any ? fingerprint(false) : END_HASH;
        if (came_from)
            *came_from = hash;
        if (!any) {
            clients_check();
            x->result.fetches += node_fetches();
            x->result.ends++;
            return;
        }
        uint64_t at = seen_at(hash, &is_new);
        if (!is_new) {
            if (x->next[at] && x->result.merged++ % 8 == 0)
                merge_check(at, &choices);
            return;
        }
        x->first[at] = x->firsts_used;
        x->firsts_used += (size_t)sprintf(x->firsts + x->firsts_used, "%s", explore_where()) + 1;
        const struct frame *below = x->frame_count ? frame - 1 : NULL;
        frame->count = choices.count;
        frame->next = 1;
        frame->depth = x->depth;
        frame->hash = hash;
        present_save(frame, below ? below->saved_at + below->saved_bytes : 0);
        x->frame_count++;
        x->path[x->depth++] = 0;
        if (x->depth > x->result.depth_max)
            x->result.depth_max = x->depth;
        x->result.steps++;
        struct action first = frame->actions[0];
        came_from = &x->next[at];
        act(&first);
    }
}

static void explorer_begin(const struct explore_config *config)
{
    x = arena_outside(sizeof *x);
    x->config = config;
    x->frames = arena_outside(DEPTH_MAX * sizeof *x->frames);
    x->seen_mask = 1;
    while (x->seen_mask < 4 * config->states_max)
        x->seen_mask *= 2;
    x->seen_mask--;
    x->seen = arena_outside((x->seen_mask + 1) * sizeof *x->seen);
    x->next = arena_outside((x->seen_mask + 1) * sizeof *x->next);
    x->first = arena_outside((x->seen_mask + 1) * sizeof *x->first);
    x->firsts = arena_outside((size_t)64 << 30);
    x->saved = arena_outside((size_t)64 << 30);
    log_init("sim", trace_on ? LOG_LEVEL_DEBUG : (enum log_level)(LOG_LEVEL_ERROR + 1));
    if (arena_works()) {
        arena_reset();
        arena_enter();
    }
    world_start();
    if (getenv("SIM_SIZES"))
        arena_print();
}

void explore(const struct explore_config *config, struct explore_result *result)
{
    explorer_begin(config);
    descend();
    while (x->frame_count && x->result.states < config->states_max) {
        struct frame *frame = &x->frames[x->frame_count - 1];
        present_restore(frame);
        struct action action = frame->actions[frame->next];
        x->path[x->depth++] = (uint16_t)frame->next++;
        if (frame->next == frame->count)
            x->frame_count--; /* nothing to come back for */
        x->result.steps++;
        act(&action);
        descend();
    }
    x->result.complete = x->frame_count == 0;
    *result = x->result;
    arena_leave();
}

void explore_path(const struct explore_config *config, const char *choices)
{
    uint16_t path[DEPTH_MAX];
    uint32_t depth = 0;
    for (const char *at = choices; *at && depth < DEPTH_MAX; at += *at == ',') {
        char *end;
        path[depth++] = (uint16_t)strtoul(at, &end, 10);
        at = end;
    }
    explorer_begin(config);
    arena_leave();
    path_follow(path, depth);
    static struct action actions[ACTIONS_MAX];
    struct choices rest = {.actions = actions};
    if (getenv("SIM_SHOW")) {
        for (int i = 0; i < 2 && run_to_choice(&rest); i++) {
            printf("# --- the state %s:", i ? "after the first choice" : "here");
            fingerprint(true);
            printf("\n");
            act(&actions[0]);
        }
        return;
    }
    while (run_to_choice(&rest)) /* and then the first of each */
        act(&actions[0]);
    clients_check();
}
