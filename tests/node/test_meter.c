/* What a node says of its own time, with a real engine and a real loop. Verdicts that need a clock of their own: tests/sim/. */
#include <unistd.h>

#include "tests/node/fixture.h"

enum { PROMPT = 60, ANSWER = 120 };

static const struct engine_limits limits = {
    .peaks = {.layer_ops = 1e12, .head_ops = 1e12, .attention_ops = 1e12, .bytes = 1e10},
    .model = {.layer_ops = 1e5,
              .head_ops = 1e5,
              .attention_ops = 1e2,
              .layer_bytes = 1e5,
              .kv_bytes = 1e2},
};

static bool loiter(void *context)
{
    usleep(*(useconds_t *)context);
    return false;
}

static bool heartbeat_later(struct fixture *fixture, void *context)
{
    return fixture->streams[0].heartbeats >= *(uint32_t *)context;
}

/* What the node says of itself in a heartbeat from now on. */
static const Baton__Node__V1__Load *load_now(struct fixture *fixture)
{
    uint32_t wanted = fixture->streams[0].heartbeats + 2;
    fixture_until(fixture, heartbeat_later, &wanted, "a heartbeat");
    return &fixture->streams[0].load;
}

/* One step with the engine at a time, and a loop that takes 10 ms a round: the engine waits for it most of the time. */
TEST(meter, a_slow_loop_is_host_overhead)
{
    struct fixture *fixture = fixture_start(
        &(struct fixture_options){.nodes = 1, .steps_in_flight = 1, .limits = &limits});
    prompt_make(1);
    struct loop_hook slow;
    useconds_t us = 10000;
    loop_hook_add(fixture->loop, &slow, LOOP_COMPLETE, loiter, &us);
    struct assign assign = local(0, 1, PROMPT, ANSWER);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 1);
    loop_hook_remove(&slow);
    const struct meter *meter = &fixture->nodes[0]->meter;
    struct roofline_report decode = roofline_report(&meter->window, ROOFLINE_DECODE);
    CHECK_MSG(decode.verdict == ROOFLINE_HOST, "%s", roofline_verdict_name(decode.verdict));
    CHECK(metric_value(meter->spent[METER_HOST]) > 10000 * (ANSWER - 2) / 2);
    CHECK(metric_value(meter->spent[METER_DECODE]) > 0);
    CHECK_INT(load_now(fixture)->decode_held_by, BATON__NODE__V1__HELD_BY__HELD_BY_HOST);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

/* Every microsecond is somebody's: steps, host, link and idle add up to what passed. */
TEST(meter, all_time_is_accounted_for)
{
    struct fixture *fixture =
        fixture_start(&(struct fixture_options){.nodes = 1, .limits = &limits});
    prompt_make(2);
    for (int i = 0; i < 4; i++) {
        struct assign assign = local(0, i, PROMPT, ANSWER);
        fixture_assign(fixture, &assign);
    }
    const struct meter *meter = &fixture->nodes[0]->meter;
    uint64_t begin_ns = 0;
    double before = 0;
    for (int i = 0; i < 4; i++) {
        fixture_wait_ended(fixture, 0, i);
        double sum = 0;
        for (int s = 0; s < METER_SPENT_COUNT; s++)
            sum += metric_value(meter->spent[s]);
        if (i == 0) { /* the first step has no step before it */
            before = sum;
            begin_ns = clock_now_ns();
        }
        fixture_turn(fixture, 100 * NS_PER_MS);
    }
    fixture_turn(fixture, NS_PER_S); /* what is under way at either end is small beside it */
    double passed = (double)(clock_now_ns() - begin_ns) / NS_PER_US, sum = -before;
    for (int s = 0; s < METER_SPENT_COUNT; s++)
        sum += metric_value(meter->spent[s]);
    CHECK_MSG(sum > 0.8 * passed && sum < 1.2 * passed, "%.0f us of %.0f", sum, passed);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

/* A node that does not know its machine's limits says nothing of shares. */
TEST(meter, without_limits_there_are_no_figures)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1});
    prompt_make(3);
    struct assign assign = local(0, 1, PROMPT, 20);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 1);
    const Baton__Node__V1__Load *load = load_now(fixture);
    CHECK_INT(load->prefill_held_by, BATON__NODE__V1__HELD_BY__HELD_BY_UNKNOWN);
    CHECK_INT(load->decode_held_by, BATON__NODE__V1__HELD_BY__HELD_BY_UNKNOWN);
    CHECK_INT(load->decode_mbu_permille, 0);
    CHECK_INT(load->start_rate_permille, 0);
    fixture_stop(fixture);
}
