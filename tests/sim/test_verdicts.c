/* What holds a node back, as the node itself says it (node/meter.h), on a virtual clock: each condition is made, and each verdict
 * expected. What the machine would allow is chosen, in milliseconds that a step takes at least:
 *
 *     reading weights 1     arithmetic 0.05 a row     reading KV 0.001 a position
 *
 * so that one sequence is held by the weights, 64 short ones by arithmetic, and 16 long ones by KV. The fake engine takes 2 ms and 10
 * us a row for each of them, which is the share that is reached. Host overhead needs a loop that is slow: tests/node/. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/sim/cluster.h"
#include "tests/test.h"

enum { P = 1, D = 2, CLIENTS = 64 };

static const struct engine_limits limits = {
    .peaks = {.layer_ops = 1e12, .head_ops = 1e12, .attention_ops = 1e12, .bytes = 1e10},
    .model = {.layer_ops = 5e7, .layer_bytes = 1e7, .kv_bytes = 1e4},
};

void sim_fail(const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    CHECK_MSG(false, "%s", text);
    abort();
}

static struct cluster cluster;
static struct client clients[CLIENTS];

static void begin(void)
{
    struct cluster_options o = {.seed = 1,
                                .nodes = 2,
                                .router = {.replays_max = 8,
                                           .requests_max = 2 * CLIENTS,
                                           .queue_max = 2 * CLIENTS,
                                           .hand_off_always = true,
                                           .node_wait_ns = 60 * NS_PER_S},
                                .window_bytes = 1 << 20,
                                .burst_max = 64,
                                .net_min_ns = 20 * NS_PER_US,
                                .net_max_ns = 100 * NS_PER_US,
                                .kv_min_ns = NS_PER_US,
                                .kv_max_ns = 5 * NS_PER_US};
    for (uint32_t i = P; i <= D; i++)
        o.node[i] = (struct node_side_options){.role = i == P ? 0 : 1,
                                               .chunk_tokens = 64,
                                               .steps_in_flight = 2,
                                               .limits = &limits,
                                               .engine = {.layers = 2,
                                                          .layer_run = 1,
                                                          .page_tokens = 4,
                                                          .page_count = 1200,
                                                          .context_tokens = 256,
                                                          .rows_max = 128,
                                                          .seqs_max = CLIENTS,
                                                          .slots_max = 4 * CLIENTS,
                                                          .copies_max = 64,
                                                          .layer_ns = NS_PER_MS,
                                                          .row_ns = 5 * NS_PER_US,
                                                          .copy_ns = NS_PER_US}};
    log_init("sim", trace_on ? LOG_LEVEL_DEBUG : (enum log_level)(LOG_LEVEL_ERROR + 1));
    memset(clients, 0, sizeof clients);
    cluster_start(&cluster, &o);
    cluster_run(&cluster, cluster.now_ns + 300 * NS_PER_MS);
}

/* `count` clients that ask again as soon as they have their answer. */
static void drive(uint32_t count, uint32_t prompt, uint32_t answer, uint64_t for_ns)
{
    static uint64_t asked;
    uint64_t until_ns = cluster.now_ns + for_ns;
    while (cluster.now_ns < until_ns) {
        bool poke = false;
        for (uint32_t i = 0; i < count; i++) {
            CHECK_MSG(!clients[i].ended && !clients[i].refused, "a request failed");
            if (!clients[i].last && clients[i].options.prompt_count)
                continue;
            struct client_options options = {.prompt_count = prompt,
                                             .tokens_max = answer,
                                             .seed = 7,
                                             .deadline_ns = DEADLINE_NONE};
            for (uint32_t k = 0; k < prompt; k++)
                options.prompt[k] = (uint32_t)(mix64(1000 * asked + k) % FAKE_VOCAB);
            asked++;
            clients[i] = (struct client){.options = options};
            router_side_request(cluster.router, &clients[i]);
            poke = true;
        }
        if (poke)
            cluster_poke(&cluster, CLUSTER_ROUTER);
        cluster_run(&cluster, cluster.now_ns + NS_PER_MS);
    }
}

static struct roofline_report expect(uint32_t process, enum roofline_phase phase,
                                     enum roofline_verdict verdict)
{
    struct roofline_report report = node_side_report(cluster.processes[process].node, phase);
    CHECK_MSG(report.verdict == verdict,
              "%s of %u is said to be held by %s, not %s (MFU %.3f, MBU %.3f)",
              phase == ROOFLINE_PREFILL ? "prefill" : "decode", process,
              roofline_verdict_name(report.verdict), roofline_verdict_name(verdict), report.mfu,
              report.mbu);
    return report;
}

static bool between(double low, double value, double high)
{
    return low <= value && value <= high;
}

static void end(void)
{
    cluster_run(&cluster, cluster.now_ns + 20 * NS_PER_S);
    cluster_stop(&cluster);
}

/* A step is 2.01 ms, of which weights would take 1, KV up to 0.1 and arithmetic 0.05. */
TEST(verdicts, one_sequence_is_held_by_the_weights)
{
    begin();
    drive(1, 4, 120, 4 * NS_PER_S);
    struct roofline_report decode = expect(D, ROOFLINE_DECODE, ROOFLINE_WEIGHTS);
    CHECK_MSG(between(0.49, decode.mbu, 0.56) && between(0.024, decode.mfu, 0.026) &&
                  between(0.999, decode.efficiency / decode.mbu, 1.001),
              "MFU %.4f, MBU %.4f, %.4f", decode.mfu, decode.mbu, decode.efficiency);
    expect(D, ROOFLINE_PREFILL, ROOFLINE_IDLE);
    expect(P, ROOFLINE_PREFILL, ROOFLINE_IDLE);
    end();
}

/* Up to 64 rows: 3.2 ms of arithmetic in 2.64; a machine that is quicker than it can be, which the figures say. */
TEST(verdicts, many_short_sequences_are_held_by_arithmetic)
{
    begin();
    drive(64, 4, 40, 4 * NS_PER_S);
    struct roofline_report decode = expect(D, ROOFLINE_DECODE, ROOFLINE_ARITHMETIC);
    CHECK_MSG(between(0.6, decode.mfu, 1.22) && decode.mfu > decode.mbu, "MFU %.4f, MBU %.4f",
              decode.mfu, decode.mbu);
    end();
}

TEST(verdicts, many_long_sequences_are_held_by_their_kv)
{
    begin();
    drive(16, 120, 120, 6 * NS_PER_S);
    struct roofline_report decode = expect(D, ROOFLINE_DECODE, ROOFLINE_KV);
    CHECK_MSG(decode.mbu > 2 * decode.mfu, "MFU %.4f, MBU %.4f", decode.mfu, decode.mbu);
    end();
}

TEST(verdicts, long_prompts_are_held_by_arithmetic)
{
    begin();
    drive(16, 120, 2, 4 * NS_PER_S);
    struct roofline_report prefill = expect(P, ROOFLINE_PREFILL, ROOFLINE_ARITHMETIC);
    CHECK_MSG(prefill.mfu > 4 * prefill.mbu, "MFU %.4f, MBU %.4f", prefill.mfu, prefill.mbu);
    expect(P, ROOFLINE_DECODE, ROOFLINE_IDLE);
    end();
}

/* P computes a prompt in a step, and what it has waits for the link; so does D. */
TEST(verdicts, a_slow_link_is_named_on_both_sides)
{
    begin();
    cluster_kv_speed(&cluster, P, D, 15 * NS_PER_MS, 20 * NS_PER_MS);
    drive(2, 60, 4, 4 * NS_PER_S);
    expect(P, ROOFLINE_PREFILL, ROOFLINE_LINK);
    expect(D, ROOFLINE_DECODE, ROOFLINE_LINK);
    end();
}

/* The same, and the link as it was: nothing of it is left after some time. */
TEST(verdicts, nothing_to_do_is_idle)
{
    begin();
    cluster_kv_speed(&cluster, P, D, 15 * NS_PER_MS, 20 * NS_PER_MS);
    drive(2, 60, 4, 2 * NS_PER_S);
    cluster_kv_speed(&cluster, P, D, NS_PER_US, 5 * NS_PER_US);
    cluster_run(&cluster, cluster.now_ns + 15 * NS_PER_S);
    for (uint32_t i = P; i <= D; i++)
        for (int phase = 0; phase < ROOFLINE_PHASES; phase++)
            expect(i, (enum roofline_phase)phase, ROOFLINE_IDLE);
    cluster_run(&cluster, cluster.now_ns + 60 * NS_PER_S);
    struct roofline_report report = expect(D, ROOFLINE_DECODE, ROOFLINE_IDLE);
    CHECK(report.mfu == 0 && report.mbu == 0 && report.efficiency == 0);
    end();
}

/* D's engine takes half again as long for a while; P's does not. */
TEST(verdicts, a_node_below_its_own_rate_says_so_until_it_is_better)
{
    double share;
    begin();
    drive(2, 4, 60, 20 * NS_PER_S);
    CHECK(!node_side_slow(cluster.processes[D].node, &share) && between(0.98, share, 1.02));
    fake_engine_speed(node_side_engine(cluster.processes[D].node), 3 * NS_PER_MS / 2);
    drive(2, 4, 60, 20 * NS_PER_S);
    CHECK_MSG(node_side_slow(cluster.processes[D].node, &share) && between(0.65, share, 0.7),
              "%.3f", share);
    CHECK(!node_side_slow(cluster.processes[P].node, &share));
    expect(D, ROOFLINE_DECODE, ROOFLINE_WEIGHTS);
    fake_engine_speed(node_side_engine(cluster.processes[D].node), NS_PER_MS);
    drive(2, 4, 60, 30 * NS_PER_S);
    CHECK(!node_side_slow(cluster.processes[D].node, &share) && between(0.98, share, 1.02));
    end();
}
