/* P's lease is the last of all clocks (docs/PROTOCOL.md): of what it holds for a D that stands still it lets go 8 s after the last PULL
 * or piece. In storms another clock ends first: the router declares such a D dead after 2.5 s and ends P's part by name. Here the
 * router is slow, which it adds to the time after which it declares another dead, but never so slow that P stops:
 *
 *     D       |== stands still ==================================================|--- stops, registers again --- decodes
 *     router  |=1.4=|.|=1.4=|.|=1.4=|.|=1.4=|.|=1.4=|.|=1.4=|.| (stands still but for 20 ms) ...
 *     P       |- prompt -|- holds the pages: nobody asks for them ---- 8 s -----| lease over: pages free, the router is told
 *
 * D stands still before it asks, so nothing is under way on the link, which would end after 4 s. SIM_TRACE=1 shows all. */
#include "base/log.h"
#include "tests/sim/cluster.h"
#include "tests/sim/planting.h"

enum { P = 1, D = 2, PROMPT = 10, ANSWER = 6 };
static const uint64_t lease_ns = 8 * NS_PER_S;
static const uint64_t tick_ns = 300 * NS_PER_MS; /* every program looks at its clocks more often */

struct scene {
    struct cluster cluster;
    struct client client;
    uint64_t begin_ns, over_ns; /* D stands still; the lease was seen to be over */
};

void sim_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    planting_found("lease", format, args);
}

#define MUST(condition, ...)       \
    do {                           \
        if (!(condition))          \
            sim_fail(__VA_ARGS__); \
    } while (0)

static void scene_begin(struct scene *scene)
{
    struct cluster_options o = {.seed = 1,
                                .nodes = 2,
                                .router = {.replays_max = 8,
                                           .requests_max = 10,
                                           .queue_max = 10,
                                           .hand_off_always = true,
                                           .node_wait_ns = 60 * NS_PER_S},
                                .window_bytes = 65536,
                                .burst_max = 64,
                                .net_min_ns = 20 * NS_PER_US,
                                .net_max_ns = 200 * NS_PER_US,
                                .kv_min_ns = 10 * NS_PER_US,
                                .kv_max_ns = 100 * NS_PER_US};
    for (uint32_t i = P; i <= D; i++)
        o.node[i] = (struct node_side_options){.role = i == P ? 0 : 1,
                                               .chunk_tokens = 16,
                                               .steps_in_flight = 2,
                                               .engine = {.layers = 2,
                                                          .layer_run = 1,
                                                          .page_tokens = 4,
                                                          .page_count = 8,
                                                          .context_tokens = 64,
                                                          .rows_max = 16,
                                                          .seqs_max = 4,
                                                          .slots_max = 8,
                                                          .copies_max = 4,
                                                          .layer_ns = NS_PER_MS,
                                                          .copy_ns = NS_PER_US}};
    log_init("sim", trace_on ? LOG_LEVEL_DEBUG : (enum log_level)(LOG_LEVEL_ERROR + 1));
    *scene = (struct scene){0};
    cluster_start(&scene->cluster, &o);
    cluster_run(&scene->cluster, scene->cluster.now_ns + 2 * NS_PER_S);
    struct client_options *c = &scene->client.options;
    c->prompt_count = PROMPT;
    for (uint32_t i = 0; i < PROMPT; i++)
        c->prompt[i] = (uint32_t)(mix64(i) % FAKE_VOCAB);
    c->tokens_max = ANSWER;
    c->seed = 7;
    c->deadline_ns = DEADLINE_NONE;
    router_side_request(scene->cluster.router, &scene->client);
    cluster_poke(&scene->cluster, CLUSTER_ROUTER);
    cluster_freeze(&scene->cluster, D, true); /* what was sent to it waits */
    scene->begin_ns = scene->cluster.now_ns;
}

/* Lets time pass and notes when P's lease ends. */
static void scene_run(struct scene *scene, uint64_t until_ns)
{
    struct cluster *cluster = &scene->cluster;
    while (cluster->now_ns < until_ns) {
        uint64_t next_ns = cluster->now_ns + 10 * NS_PER_MS;
        cluster_run(cluster, next_ns < until_ns ? next_ns : until_ns);
        if (!scene->over_ns && node_side_leases_expired(cluster->processes[P].node))
            scene->over_ns = cluster->now_ns;
    }
}

/* The answer is whole and right, and nobody holds anything. */
static void scene_end(struct scene *scene)
{
    struct cluster *cluster = &scene->cluster;
    uint32_t reference[ANSWER];
    char why[160];
    const struct client_options *c = &scene->client.options;
    scene_run(scene, cluster->now_ns + 20 * NS_PER_S);
    fake_answer(2, c->prompt, PROMPT, c->seed, 0, ANSWER, reference);
    MUST(scene->client.last, "the request has not ended");
    MUST(scene->client.count == ANSWER && !memcmp(scene->client.ids, reference, sizeof reference),
         "another answer");
    for (uint32_t i = P; i <= D; i++)
        MUST(node_side_rest(cluster->processes[i].node, why, sizeof why), "node %u: %s", i, why);
    cluster_stop(cluster);
}

/* D is frozen past P's lease, and everything else lives. */
static void lease_ends(const void *context)
{
    static struct scene scene;
    struct cluster *cluster = &scene.cluster;
    struct router_counts router;
    char why[160];
    (void)context;
    scene_begin(&scene);
    scene_run(&scene, scene.begin_ns + 50 * NS_PER_MS);
    MUST(scene.client.count == 1, "P has not sent the first token");
    MUST(!node_side_rest(cluster->processes[P].node, why, sizeof why), "P holds nothing");
    while (!scene.over_ns && cluster->now_ns < scene.begin_ns + lease_ns + 4 * tick_ns) {
        cluster_freeze(cluster, CLUSTER_ROUTER, true);
        scene_run(&scene, cluster->now_ns + 1400 * NS_PER_MS);
        cluster_freeze(cluster, CLUSTER_ROUTER, false);
        scene_run(&scene, cluster->now_ns + 20 * NS_PER_MS);
    }
    router_side_counts(cluster->router, &router);
    MUST(!router.deaths && !router.replays, "the router has ended it first");
    MUST(scene.over_ns, "P's lease has not ended after %.1f s",
         (double)(cluster->now_ns - scene.begin_ns) / 1e9);
    MUST(scene.over_ns >= scene.begin_ns + lease_ns &&
             scene.over_ns <= scene.begin_ns + lease_ns + tick_ns,
         "P's lease has ended after %.1f s", (double)(scene.over_ns - scene.begin_ns) / 1e9);
    scene_run(&scene, cluster->now_ns + tick_ns);
    cluster_freeze(cluster, D, false);
    scene_run(&scene, cluster->now_ns + tick_ns);
    scene_end(&scene);
    printf("# P's lease ended %.2f s after D stood still\n",
           (double)(scene.over_ns - scene.begin_ns) / 1e9);
}

/* The same with a router that is not slow: it ends P's part, long before the lease. */
static void router_ends_it(const void *context)
{
    static struct scene scene;
    struct router_counts router;
    char why[160];
    (void)context;
    scene_begin(&scene);
    scene_run(&scene, scene.begin_ns + 4 * NS_PER_S);
    router_side_counts(scene.cluster.router, &router);
    MUST(router.deaths == 1, "%llu deaths", (unsigned long long)router.deaths);
    MUST(node_side_rest(scene.cluster.processes[P].node, why, sizeof why), "P: %s", why);
    scene_run(&scene, scene.begin_ns + 10 * NS_PER_S);
    cluster_freeze(&scene.cluster, D, false);
    scene_end(&scene);
    MUST(!scene.over_ns, "a lease has ended");
}

/* `says`: what is to be found; NULL: nothing. */
static void play(enum plant plant, void (*scene)(const void *context), const char *says)
{
    char text[600];
    trace_on = getenv("SIM_TRACE") != NULL;
    bool found = planting_run(plant, scene, NULL, text, sizeof text);
    if (found)
        printf("# %s\n", text);
    CHECK_MSG(found == (says != NULL), "%s", found ? text : "not found");
    CHECK_MSG(!says || strstr(text, says), "found by something else: %s", text);
}

TEST(lease, ends_when_d_stands_still_and_the_router_is_slow)
{
    play(PLANT_NOTHING, lease_ends, NULL);
}

TEST(lease, is_not_needed_where_the_router_is_not_slow)
{
    play(PLANT_NOTHING, router_ends_it, NULL);
}

TEST(lease, that_never_ends_is_found)
{
    play(PLANT_LEASE_NEVER_ENDS, lease_ends, "has not ended after");
}

TEST(lease, that_ends_early_is_found)
{
    play(PLANT_LEASE_ENDS_EARLY, lease_ends, "P's lease has ended after 4.");
}
