/* See storm.h. */
#include "tests/sim/storm.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/sim/cluster.h"

enum { REQUESTS_MAX = 24, EVENTS_MAX = 256, PROMPT_MAX = 32, ANSWER_MAX = 24 };

static const uint64_t calm_max_ns = 60 * NS_PER_S;
static const uint64_t rest_max_ns = 25 * NS_PER_S;
static const uint64_t care_ns = 100 * NS_PER_MS;

enum event_kind {
    EVENT_ASK,
    EVENT_CANCEL,
    EVENT_KILL,
    EVENT_START,
    EVENT_FREEZE,
    EVENT_THAW,
    EVENT_RESET,
    EVENT_BLOCK,
    EVENT_UNBLOCK,
    EVENT_CUT,
    EVENT_UNCUT,
    EVENT_SLOW,
    EVENT_FAST,
    EVENT_DRAIN,
    EVENT_FLIP,
    EVENT_ROLE,
    EVENT_HUB_FAULTS,
    EVENT_SPOIL,
    EVENT_CARE,
};

struct event {
    uint64_t at_ns;
    enum event_kind kind;
    uint32_t a, b;
};

struct storm {
    uint64_t seed;
    struct dice dice;
    struct cluster cluster;
    struct cluster_options options;
    struct client clients[REQUESTS_MAX];
    uint32_t reference[REQUESTS_MAX][CLIENT_TOKENS_MAX], reference_count[REQUESTS_MAX];
    bool asked[REQUESTS_MAX];
    uint32_t request_count;
    struct event events[EVENTS_MAX];
    uint32_t event_count;
    uint64_t begin_ns, storm_ns; /* faults and arrivals within */
    uint64_t arrivals_ns;
    bool calm, router_stood; /* it was frozen or dead: deadlines of clients may be missed */
    uint64_t start_at_ns[CLUSTER_NODES_MAX + 1];
    struct storm_totals *totals;
};

static struct storm storm;
uint64_t storm_seed;

#define MUST(condition, ...)       \
    do {                           \
        if (!(condition))          \
            sim_fail(__VA_ARGS__); \
    } while (0)

/* --- what a seed means --- */

static uint32_t pick(uint32_t sides)
{
    return dice_below(&storm.dice, sides);
}

static uint32_t range(uint32_t low, uint32_t high)
{
    return low + pick(high - low + 1);
}

static uint64_t range_ns(uint64_t low_ns, uint64_t high_ns)
{
    return dice_between(&storm.dice, low_ns, high_ns);
}

static void event_add(uint64_t at_ns, enum event_kind kind, uint32_t a, uint32_t b)
{
    assert(storm.event_count < EVENTS_MAX);
    uint32_t i = storm.event_count++;
    for (; i && storm.events[i - 1].at_ns > at_ns; i--)
        storm.events[i] = storm.events[i - 1];
    storm.events[i] = (struct event){at_ns, kind, a, b};
}

static void options_choose(void)
{
    static const char *const patterns[] = {"pd", "pdd", "ppd", "ppdd", "mm", "mmm", "pdm"};
    struct cluster_options *o = &storm.options;
    const char *pattern = patterns[pick(sizeof patterns / sizeof *patterns)];
    *o = (struct cluster_options){.seed = storm.seed,
                                  .nodes = (uint32_t)strlen(pattern),
                                  .router = {.replays_max = 200,
                                             .requests_max = 1000,
                                             .queue_max = 1000,
                                             .node_wait_ns = 20 * NS_PER_S},
                                  .window_bytes = pick(4) ? 65536 : range(64, 1024),
                                  .burst_max = pick(3) ? 64 : 1,
                                  .net_min_ns = 20 * NS_PER_US,
                                  .net_max_ns = range_ns(50 * NS_PER_US, 5 * NS_PER_MS),
                                  .kv_min_ns = 10 * NS_PER_US,
                                  .kv_max_ns = range_ns(20 * NS_PER_US, 2 * NS_PER_MS)};
    o->router.cache_index_entries = pick(4) ? 1000 : pick(2) ? range(1, 20) : 0;
    o->router.fetch = (int)pick(3);
    o->router.hand_off_always = pick(2);
    o->router.local_prefill_tokens = pick(4) ? 0 : range(1, 16);
    o->boast = pick(3) ? 1 : range(2, 4);
    if (pick(4) == 0) { /* a queue that a frozen node fills */
        o->router.queue_messages_max = range(6, 16);
        o->window_bytes = range(32, 256);
    }
    struct fake_options engine = {.layers = range(1, 4),
                                  .layer_run = range(1, 2),
                                  .page_tokens = 4,
                                  .context_tokens = 64,
                                  .rows_max = range(8, 32),
                                  .seqs_max = range(2, 8),
                                  .copies_max = range(1, 8),
                                  .mirrored = pick(3) == 0,
                                  .layer_ns =
                                      range_ns(NS_PER_MS / 10, (pick(2) ? 3 : 25) * NS_PER_MS),
                                  .row_ns = range_ns(0, NS_PER_MS / 4),
                                  .copy_ns = range_ns(NS_PER_US, NS_PER_MS)};
    if (engine.layer_run > engine.layers)
        engine.layer_run = engine.layers;
    if (engine.rows_max <= engine.seqs_max)
        engine.rows_max = engine.seqs_max + 1;
    uint32_t pages = (PROMPT_MAX + ANSWER_MAX + 3) / 4;
    bool roomy = pick(3) == 0;
    uint32_t preempt_every = pick(6) ? 0 : range(1, 10);
    for (uint32_t i = 1; i <= o->nodes; i++) {
        char role = pattern[i - 1];
        engine.slots_max = range(engine.seqs_max, 3 * engine.seqs_max);
        engine.page_count = range(pages, (roomy ? 4 : 2) * pages);
        o->node[i] = (struct node_side_options){.role = role == 'p'   ? 0
                                                        : role == 'd' ? 1
                                                                      : 2,
                                                .chunk_tokens = range(2, 16),
                                                .steps_in_flight = range(1, 2),
                                                .grace_ns = range_ns(0, 6 * NS_PER_S),
                                                .reserve = (int)pick(2),
                                                .preempt = (int)pick(3),
                                                .preempt_every = preempt_every,
                                                .swap_pages = pick(3) ? range(1, 2 * pages) : 0,
                                                .gap_ms = pick(3) ? 0 : range(1, 50),
                                                .engine = engine};
    }
}

static void reference_make(uint32_t index)
{
    struct client *client = &storm.clients[index];
    const struct client_options *o = &client->options;
    uint32_t *tokens = storm.reference[index], count = 0;
    fake_answer(storm.options.node[1].engine.layers, o->prompt, o->prompt_count, o->seed,
                o->n_index, o->tokens_max, tokens);
    for (bool over = false; !over; count++) {
        for (uint32_t i = 0; i < o->stop_count && count + 1 >= o->tokens_min; i++)
            over |= o->stop_ids[i] == tokens[count];
        over |= count + 1 == o->tokens_max;
        if (!o->stop_text || count + 1 < 2 || count < o->tokens_min + 1)
            continue;
        if (o->stop_text[0] == (char)('a' + tokens[count - 1] % 26) &&
            o->stop_text[1] == (char)('a' + tokens[count] % 26)) {
            count -= 1; /* neither token is delivered */
            break;
        }
    }
    storm.reference_count[index] = count;
}

static void request_choose(uint32_t index)
{
    static char stop_text[REQUESTS_MAX][4];
    struct client *client = &storm.clients[index];
    struct client_options *o = &client->options;
    *client = (struct client){0};
    uint32_t shared = pick(2) ? pick(16) : 0, family = pick(3);
    o->prompt_count = range(1, PROMPT_MAX);
    for (uint32_t i = 0; i < o->prompt_count; i++)
        o->prompt[i] =
            i < shared ? (uint32_t)(mix64(family * 1000 + i) % FAKE_VOCAB) : pick(FAKE_VOCAB);
    o->tokens_max = pick(5) == 0 ? range(1, 2) : range(1, ANSWER_MAX);
    o->seed = dice_u64(&storm.dice);
    o->n_index = pick(3);
    o->tenant = pick(3) ? 0 : (uint8_t)range(1, 2);
    if (pick(3) == 0)
        for (o->stop_count = range(1, 4); o->stop_ids[o->stop_count - 1] == 0;)
            for (uint32_t i = 0; i < o->stop_count; i++)
                o->stop_ids[i] = 1 + pick(FAKE_VOCAB - 1);
    if (pick(6) == 0) {
        snprintf(stop_text[index], sizeof stop_text[index], "%c%c", 'a' + pick(26), 'a' + pick(26));
        o->stop_text = stop_text[index];
    }
    if (pick(8) == 0)
        o->tokens_min = pick(o->tokens_max);
    uint64_t at_ns = storm.begin_ns + range_ns(0, storm.arrivals_ns);
    o->deadline_ns = pick(8) ? DEADLINE_NONE : at_ns + range_ns(NS_PER_MS, 10 * NS_PER_S);
    event_add(at_ns, EVENT_ASK, index, 0);
    if (pick(6) == 0)
        event_add(at_ns + range_ns(0, pick(2) ? 50 * NS_PER_MS : 4 * NS_PER_S), EVENT_CANCEL, index,
                  0);
    reference_make(index);
}

/* `count` times: something begins with a node and ends after a while. */
static void fault_pairs(uint32_t count, enum event_kind begin, enum event_kind end, uint64_t max_ns)
{
    bool early = pick(2);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t a = range(1, storm.options.nodes);
        uint32_t b = 1 + (a + pick(storm.options.nodes - 1)) % storm.options.nodes;
        uint64_t at_ns =
            storm.begin_ns + range_ns(0, early && pick(2) ? storm.arrivals_ns : storm.storm_ns);
        if (begin == EVENT_BLOCK || begin == EVENT_UNBLOCK)
            b = pick(3); /* up, down, both */
        event_add(at_ns, begin, a, b);
        if (end != begin)
            event_add(at_ns + range_ns(0, max_ns), end, a, b);
    }
}

static void faults_choose(void)
{
    if (pick(8) == 0)
        return; /* calm weather */
    if (pick(3) == 0)
        fault_pairs(range(1, 4), EVENT_KILL, EVENT_START, 3 * NS_PER_S);
    if (pick(3) == 0)
        fault_pairs(range(1, 3), EVENT_FREEZE, EVENT_THAW, pick(2) ? 12 * NS_PER_S : 3 * NS_PER_S);
    if (pick(4) == 0)
        fault_pairs(range(1, 3), EVENT_RESET, EVENT_RESET, 0);
    if (pick(4) == 0)
        fault_pairs(range(1, 2), EVENT_BLOCK, EVENT_UNBLOCK, 5 * NS_PER_S);
    if (pick(4) == 0)
        fault_pairs(range(1, 2), EVENT_CUT, EVENT_UNCUT, 8 * NS_PER_S);
    if (pick(4) == 0)
        fault_pairs(range(1, 2), EVENT_SLOW, EVENT_FAST, 8 * NS_PER_S);
    if (pick(5) == 0)
        fault_pairs(range(1, 2), EVENT_DRAIN, EVENT_DRAIN, 0);
    if (pick(4) == 0)
        fault_pairs(range(1, 20), EVENT_FLIP, EVENT_FLIP, 0);
    if (pick(8) == 0)
        fault_pairs(range(1, 3), EVENT_ROLE, EVENT_ROLE, 0);
    if (pick(4) == 0)
        event_add(storm.begin_ns + range_ns(0, storm.storm_ns), EVENT_HUB_FAULTS, 0, 0);
    if (pick(8) == 0) {
        uint64_t at_ns = storm.begin_ns + range_ns(0, storm.storm_ns);
        event_add(at_ns, EVENT_FREEZE, CLUSTER_ROUTER, 0);
        event_add(at_ns + range_ns(0, 4 * NS_PER_S), EVENT_THAW, CLUSTER_ROUTER, 0);
    }
    if (pick(8) == 0) {
        uint64_t at_ns = storm.begin_ns + range_ns(0, storm.storm_ns);
        event_add(at_ns, EVENT_KILL, CLUSTER_ROUTER, 0);
        event_add(at_ns + range_ns(0, 3 * NS_PER_S), EVENT_START, CLUSTER_ROUTER, 0);
    }
    /* of its own dice, so that the other storms of a seed are what they were */
    struct dice dice = {.state = storm.seed ^ 0x5ea1u};
    if (dice_below(&dice, 3) == 0)
        for (uint32_t left = 1 + dice_below(&dice, 12); left; left--)
            event_add(storm.begin_ns + dice_between(&dice, 0, storm.storm_ns), EVENT_SPOIL,
                      1 + dice_below(&dice, storm.options.nodes),
                      dice_below(&dice, 2) | (NET_DROPPED + dice_below(&dice, 4)) << 1);
}

/* --- what happens --- */

static bool router_awake(void)
{
    const struct process *p = &storm.cluster.processes[CLUSTER_ROUTER];
    return p->alive && !p->frozen;
}

static void ask(uint32_t index)
{
    struct client *client = &storm.clients[index];
    if (!router_awake()) {
        event_add(storm.cluster.now_ns + care_ns, EVENT_ASK, index, 0);
        return;
    }
    trace("request %u: %u tokens, at most %u, reference %u%s", index, client->options.prompt_count,
          client->options.tokens_max, storm.reference_count[index],
          client->count ? ", resumed" : "");
    storm.asked[index] = true;
    router_side_request(storm.cluster.router, client);
    cluster_poke(&storm.cluster, CLUSTER_ROUTER);
}

static void cancel(uint32_t index)
{
    if (!storm.asked[index] || !router_awake())
        return;
    trace("cancel request %u", index);
    router_side_cancel(storm.cluster.router, &storm.clients[index]);
    cluster_poke(&storm.cluster, CLUSTER_ROUTER);
}

static void hub_faults(void)
{
    const struct xfer_faults faults = {.drop = (uint16_t)pick(4000),
                                       .duplicate = (uint16_t)pick(4000),
                                       .reorder = (uint16_t)pick(8000),
                                       .delay = (uint16_t)pick(4000),
                                       .flip = (uint16_t)pick(4000),
                                       .delay_steps = range(1, 8)};
    xfer_hub_set_faults(storm.cluster.hub, &faults);
}

/* Nodes that left by themselves are started again; clients of a dead router come again. */
static void care(void)
{
    struct cluster *cluster = &storm.cluster;
    for (uint32_t i = 1; i <= storm.options.nodes; i++) {
        struct process *p = &cluster->processes[i];
        if (p->alive && node_side_left(p->node)) {
            cluster_kill(cluster, i, false);
            event_add(cluster->now_ns + range_ns(0, NS_PER_S), EVENT_START, i, 0);
        }
    }
    for (uint32_t i = 0; i < storm.request_count && router_awake(); i++) {
        struct client *client = &storm.clients[i];
        if (client->ended && client->status == STATUS_CLOSED && !client->cancelled) {
            storm.totals->resumed++;
            ask(i);
        }
    }
    event_add(cluster->now_ns + care_ns, EVENT_CARE, 0, 0);
}

static void block(uint32_t node, uint32_t which, bool blocked)
{
    if (which != 1)
        net_block(storm.cluster.net, (int)node, NET_UP, blocked);
    if (which != 0)
        net_block(storm.cluster.net, (int)node, NET_DOWN, blocked);
}

static void happen(const struct event *event)
{
    struct cluster *cluster = &storm.cluster;
    /* a client's events name no process */
    struct process *p = &cluster->processes[event->a <= CLUSTER_NODES_MAX ? event->a : 0];
    static const char *const names[] = {"ask",   "cancel",     "kill",  "start",   "freeze",
                                        "thaw",  "reset",      "block", "unblock", "cut",
                                        "uncut", "slow",       "fast",  "drain",   "flip",
                                        "role",  "hub faults", "spoil", "care"};
    if (event->kind >= EVENT_RESET && event->kind < EVENT_CARE)
        trace("%s %u %u", names[event->kind], event->a, event->b);
    switch (event->kind) {
    case EVENT_ASK:
        ask(event->a);
        break;
    case EVENT_CANCEL:
        cancel(event->a);
        break;
    case EVENT_KILL:
        if (!p->alive)
            break;
        if (event->a == CLUSTER_ROUTER) {
            storm.totals->router_kills++;
            storm.router_stood = true;
        } else {
            storm.totals->kills++;
        }
        cluster_kill(cluster, event->a, event->a != CLUSTER_ROUTER && pick(3) == 0);
        break;
    case EVENT_START:
        cluster_restart(cluster, event->a);
        break;
    case EVENT_FREEZE:
        storm.totals->freezes++;
        storm.router_stood |= event->a == CLUSTER_ROUTER;
        cluster_freeze(cluster, event->a, true);
        break;
    case EVENT_THAW:
        cluster_freeze(cluster, event->a, false);
        break;
    case EVENT_RESET:
        storm.totals->resets++;
        net_reset(cluster->net, (int)event->a);
        break;
    case EVENT_BLOCK:
        storm.totals->partitions++;
        block(event->a, event->b, true);
        break;
    case EVENT_UNBLOCK:
        block(event->a, event->b, false);
        break;
    case EVENT_CUT:
    case EVENT_UNCUT:
        storm.totals->cuts += event->kind == EVENT_CUT;
        cluster_kv_cut(cluster, event->a, event->b, event->kind == EVENT_CUT);
        if (pick(2))
            cluster_kv_cut(cluster, event->b, event->a, event->kind == EVENT_CUT);
        break;
    case EVENT_SLOW:
        cluster_kv_speed(cluster, event->a, event->b, NS_PER_MS, range_ns(10, 700) * NS_PER_MS);
        break;
    case EVENT_FAST:
        cluster_kv_speed(cluster, event->a, event->b, storm.options.kv_min_ns,
                         storm.options.kv_max_ns);
        break;
    case EVENT_DRAIN:
        storm.totals->drains++;
        if (pick(2) && p->alive && !p->frozen) {
            node_side_drain(p->node);
            cluster_poke(cluster, event->a);
        } else if (router_awake()) {
            char name[16];
            snprintf(name, sizeof name, "node-%u", event->a);
            router_side_drain(cluster->router, name);
            cluster_poke(cluster, CLUSTER_ROUTER);
        }
        break;
    case EVENT_FLIP:
        if (p->alive)
            storm.totals->flips += node_side_flip(p->node, &storm.dice);
        break;
    case EVENT_ROLE:
        if (router_awake()) {
            char name[16];
            snprintf(name, sizeof name, "node-%u", event->a);
            storm.totals->roles += router_side_role(cluster->router, name, (int)pick(3));
            cluster_poke(cluster, CLUSTER_ROUTER);
        }
        break;
    case EVENT_HUB_FAULTS:
        hub_faults();
        break;
    case EVENT_SPOIL:
        storm.totals->spoilt++;
        net_spoil(cluster->net, (int)event->a, (enum net_direction)(event->b & 1),
                  (enum net_spoil)(event->b >> 1));
        break;
    case EVENT_CARE:
        care();
        break;
    }
}

static void run_until(uint64_t until_ns)
{
    while (storm.event_count && storm.events[0].at_ns <= until_ns) {
        struct event event = storm.events[0];
        storm.event_count--;
        memmove(storm.events, storm.events + 1, storm.event_count * sizeof *storm.events);
        if (event.at_ns > storm.cluster.now_ns)
            cluster_run(&storm.cluster, event.at_ns);
        happen(&event);
    }
    cluster_run(&storm.cluster, until_ns);
}

/* --- the end --- */

/* Everything that was broken is whole again, but for what it did. */
static void calm_down(void)
{
    struct cluster *cluster = &storm.cluster;
    uint32_t kept = 0;
    trace("the storm is over");
    storm.calm = true;
    for (uint32_t i = 0; i < storm.event_count; i++) {
        const struct event *event = &storm.events[i];
        if (event->kind == EVENT_ASK || event->kind == EVENT_CANCEL || event->kind == EVENT_CARE)
            storm.events[kept++] = *event;
    }
    storm.event_count = kept;
    xfer_hub_set_faults(cluster->hub, &(struct xfer_faults){0});
    for (uint32_t i = 0; i <= storm.options.nodes; i++) {
        cluster_freeze(cluster, i, false);
        cluster_restart(cluster, i);
        for (int to = NET_UP; i && to <= NET_DOWN; to++)
            net_spoil(cluster->net, (int)i, (enum net_direction)to, NET_PASSES);
        if (i)
            block(i, 2, false);
        for (uint32_t k = 1; i && k <= storm.options.nodes; k++) {
            cluster_kv_cut(cluster, i, k, false);
            cluster_kv_speed(cluster, i, k, storm.options.kv_min_ns, storm.options.kv_max_ns);
        }
    }
}

static bool all_ended(void)
{
    for (uint32_t i = 0; i < storm.request_count; i++) {
        const struct client *client = &storm.clients[i];
        if (!storm.asked[i] || client_open(client) || client->request ||
            (client->status == STATUS_CLOSED && client->ended && !client->cancelled))
            return false;
    }
    return true;
}

static void client_check(uint32_t index)
{
    const struct client *client = &storm.clients[index];
    const uint32_t *reference = storm.reference[index];
    uint32_t count = storm.reference_count[index];
    MUST(client->count <= count, "request %u: %u tokens, the reference has %u", index,
         client->count, count);
    for (uint32_t i = 0; i < client->count; i++)
        MUST(client->ids[i] == reference[i], "request %u: token %u is %u, the reference says %u",
             index, i, client->ids[i], reference[i]);
    uint64_t deadline_ns = client->options.deadline_ns;
    if (client->last) {
        MUST(client->count == count, "request %u: ended after %u tokens of %u", index,
             client->count, count);
        storm.totals->whole++;
    } else if (client->cancelled) {
        storm.totals->cancelled++;
    } else {
        MUST(deadline_ns != DEADLINE_NONE &&
                 (client->status == STATUS_DEADLINE || client->status == STATUS_NO_NODE),
             "request %u ended as %s", index, status_text(client->status));
        storm.totals->late++;
    }
    MUST(deadline_ns == DEADLINE_NONE || storm.router_stood ||
             client->ended_ns <= deadline_ns + 300 * NS_PER_MS,
         "request %u ended %.3f s after its deadline", index,
         (double)(client->ended_ns - deadline_ns) / 1e9);
}

static void rest_wait(void)
{
    struct cluster *cluster = &storm.cluster;
    uint64_t until_ns = cluster->now_ns + rest_max_ns;
    char why[160] = "";
    for (;;) {
        bool rest = true;
        struct router_counts counts;
        for (uint32_t i = 1; i <= storm.options.nodes && rest; i++) {
            const struct process *p = &cluster->processes[i];
            snprintf(why, sizeof why, "node %u is not there", i);
            rest = p->alive && node_side_rest(p->node, why, sizeof why);
        }
        router_side_counts(cluster->router, &counts);
        if (rest && (counts.requests || counts.legs)) {
            snprintf(why, sizeof why, "the router has %llu requests, %llu legs",
                     (unsigned long long)counts.requests, (unsigned long long)counts.legs);
            rest = false;
        }
        if (rest)
            return;
        MUST(cluster->now_ns < until_ns, "no rest: %s", why);
        run_until(cluster->now_ns + 250 * NS_PER_MS);
    }
}

static void totals_add(uint64_t calm_ns)
{
    struct storm_totals *totals = storm.totals;
    struct node_counts nodes;
    struct router_counts router;
    cluster_counts(&storm.cluster, &nodes);
    router_side_counts(storm.cluster.router, &router);
    totals->seeds++;
    totals->requests += storm.request_count;
    totals->replays += router.replays;
    totals->deaths += router.deaths;
    totals->stale += router.stale + nodes.stale;
    totals->noticed += router.stream_faults + nodes.stream_faults;
    totals->dropped += nodes.dropped;
    totals->gave_up += nodes.gave_up;
    totals->leases_expired += nodes.leases_expired;
    totals->checksum_failures += nodes.checksum_failures;
    totals->cached_tokens += nodes.cached_tokens;
    totals->pieces += nodes.pieces;
    totals->swapped += nodes.swapped;
    totals->recomputed += nodes.recomputed;
    totals->handed_over += nodes.handed_over;
    totals->fetched += nodes.fetched;
    totals->prompt_tokens += nodes.prompt_tokens;
    totals->completion_tokens += nodes.completion_tokens;
    totals->turns += storm.cluster.turns;
    totals->virtual_ns += storm.cluster.now_ns - storm.begin_ns;
    if (calm_ns > totals->calm_ns_max) {
        totals->calm_ns_max = calm_ns;
        totals->calm_seed = storm.seed;
    }
    MUST(router.mismatches == 0, "%llu tokens were repeated differently",
         (unsigned long long)router.mismatches);
}

static void note(void *context, const char *node, const char *text)
{
    trace("router: %s: %s", node, text);
}

void storm_print(void)
{
    cluster_print(&storm.cluster);
}

void storm_run(uint64_t seed, struct storm_totals *totals)
{
    memset(&storm, 0, sizeof storm);
    storm_seed = storm.seed = seed;
    storm.totals = totals;
    storm.dice.state = seed * UINT64_C(0x9e3779b97f4a7c15);
    log_init("sim", trace_on ? LOG_LEVEL_DEBUG : (enum log_level)(LOG_LEVEL_ERROR + 1));
    options_choose();
    storm.options.router.note = note;
    cluster_start(&storm.cluster, &storm.options);
    storm.begin_ns = storm.cluster.now_ns;
    storm.storm_ns = range_ns(3 * NS_PER_S, pick(3) ? 8 * NS_PER_S : 14 * NS_PER_S);
    storm.arrivals_ns = pick(3) ? range_ns(NS_PER_MS, NS_PER_S) : storm.storm_ns * 3 / 4;
    storm.request_count = range(1, REQUESTS_MAX);
    for (uint32_t i = 0; i < storm.request_count; i++)
        request_choose(i);
    faults_choose();
    event_add(storm.begin_ns + care_ns, EVENT_CARE, 0, 0);
    run_until(storm.begin_ns + storm.storm_ns);
    calm_down();
    uint64_t calm_begin_ns = storm.cluster.now_ns;
    while (!all_ended()) {
        MUST(storm.cluster.now_ns < calm_begin_ns + calm_max_ns,
             "%.0f s after the storm some request has not ended", (double)calm_max_ns / 1e9);
        run_until(storm.cluster.now_ns + 250 * NS_PER_MS);
    }
    uint64_t calm_ns = storm.cluster.now_ns - calm_begin_ns;
    for (uint32_t i = 0; i < storm.request_count; i++)
        client_check(i);
    rest_wait();
    totals_add(calm_ns);
    cluster_stop(&storm.cluster);
}
