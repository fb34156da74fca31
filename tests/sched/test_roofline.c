/* Costs of steps at the machine's peaks, shares over a window, and what the verdict names. */
#include "sched/roofline.h"

#include <string.h>

#include "tests/test.h"

/* Round figures: 100 GOP/s everywhere, 10 GB/s; a model of 100 MB that asks for 0.2 GOP a row. */
static const struct roofline_peaks peaks = {1e11, 1e11, 1e11, 1e10};
static const struct roofline_model model = {.layer_ops = 1.6e8,
                                            .head_ops = 4e7,
                                            .attention_ops = 1e5,
                                            .layer_bytes = 8e7,
                                            .head_bytes = 2e7,
                                            .kv_bytes = 2e4};

static bool near(double a, double b)
{
    return a > b * (1 - 1e-9) - 1e-15 && a < b * (1 + 1e-9) + 1e-15;
}

static struct roofline_step decode_step(uint32_t sequences, uint64_t context)
{
    return (struct roofline_step){.decode_rows = sequences,
                                  .samples = sequences,
                                  .pairs = sequences * context,
                                  .positions = sequences * context};
}

static struct roofline_report report_of(enum roofline_phase phase, struct roofline_step step,
                                        double slower)
{
    struct roofline_window window = {0};
    struct roofline_cost cost = roofline_cost(&model, &peaks, &step);
    roofline_add(&window, phase, slower * roofline_least(cost), cost);
    return roofline_report(&window, phase);
}

TEST(roofline, cost_of_a_step)
{
    struct roofline_step step = {
        .prompt_rows = 10, .decode_rows = 2, .samples = 3, .pairs = 500, .positions = 200};
    struct roofline_cost cost = roofline_cost(&model, &peaks, &step);
    CHECK(near(cost.arithmetic, (12 * 1.6e8 + 3 * 4e7 + 500 * 1e5) / 1e11));
    CHECK(near(cost.weights, 1e8 / 1e10));
    CHECK(near(cost.kv, 200 * 2e4 / 1e10));
    CHECK(near(roofline_least(cost), cost.arithmetic));
    step.samples = 0;
    cost = roofline_cost(&model, &peaks, &step);
    CHECK(near(cost.weights, 8e7 / 1e10)); /* the head stays unread */
    step = (struct roofline_step){0};
    cost = roofline_cost(&model, &peaks, &step);
    CHECK(cost.arithmetic == 0 && cost.weights == 0 && cost.kv == 0);
}

TEST(roofline, verdicts_by_what_a_step_asks_for)
{
    CHECK_INT(report_of(ROOFLINE_DECODE, decode_step(1, 100), 1.2).verdict, ROOFLINE_WEIGHTS);
    CHECK_INT(report_of(ROOFLINE_DECODE, decode_step(64, 100), 1.2).verdict, ROOFLINE_ARITHMETIC);
    CHECK_INT(report_of(ROOFLINE_DECODE, decode_step(32, 8000), 1.2).verdict, ROOFLINE_KV);
    struct roofline_step prompt = {
        .prompt_rows = 512, .samples = 1, .pairs = 512 * 256, .positions = 512};
    CHECK_INT(report_of(ROOFLINE_PREFILL, prompt, 2).verdict, ROOFLINE_ARITHMETIC);
}

TEST(roofline, shares_of_the_peaks)
{
    struct roofline_report report = report_of(ROOFLINE_DECODE, decode_step(1, 0), 2);
    CHECK(near(report.efficiency, 0.5));
    CHECK(near(report.mbu, 0.5));
    CHECK(near(report.mfu, 0.5 * 2e8 / 1e11 / 1e-2));
    struct roofline_window empty = {0};
    report = roofline_report(&empty, ROOFLINE_DECODE);
    CHECK(report.mfu == 0 && report.mbu == 0 && report.efficiency == 0);
    CHECK_INT(report.verdict, ROOFLINE_IDLE);
}

/* Efficiency is by what binds each step, so a window of different steps may reach all of it with neither share at one. */
TEST(roofline, steps_of_different_kinds_add_up)
{
    struct roofline_window window = {0};
    struct roofline_step steps[] = {decode_step(1, 100), decode_step(64, 100)};
    for (int i = 0; i < 2; i++) {
        struct roofline_cost cost = roofline_cost(&model, &peaks, &steps[i]);
        roofline_add(&window, ROOFLINE_DECODE, roofline_least(cost), cost);
    }
    struct roofline_report report = roofline_report(&window, ROOFLINE_DECODE);
    CHECK(near(report.efficiency, 1));
    CHECK(report.mfu < 1 && report.mbu < 1);
    struct roofline_report other = roofline_report(&window, ROOFLINE_PREFILL);
    CHECK(other.efficiency == 0);
}

TEST(roofline, the_longest_pause_names_what_holds_back)
{
    static const struct {
        enum roofline_pause pause;
        enum roofline_verdict verdict;
    } cases[] = {{ROOFLINE_PAUSE_IDLE, ROOFLINE_IDLE},
                 {ROOFLINE_PAUSE_LINK, ROOFLINE_LINK},
                 {ROOFLINE_PAUSE_HOST, ROOFLINE_HOST}};
    struct roofline_step step = decode_step(1, 100);
    struct roofline_cost cost = roofline_cost(&model, &peaks, &step);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct roofline_window window = {0};
        roofline_add(&window, ROOFLINE_DECODE, 1, cost);
        roofline_pause(&window, cases[i].pause, 0.9);
        CHECK_INT(roofline_report(&window, ROOFLINE_DECODE).verdict, ROOFLINE_WEIGHTS);
        roofline_pause(&window, cases[i].pause, 0.2);
        CHECK_INT(roofline_report(&window, ROOFLINE_DECODE).verdict, cases[i].verdict);
    }
}

TEST(roofline, what_is_long_past_is_forgotten)
{
    struct roofline_window window = {0};
    struct roofline_step one = decode_step(1, 100), many = decode_step(64, 100);
    struct roofline_cost weights = roofline_cost(&model, &peaks, &one);
    struct roofline_cost arithmetic = roofline_cost(&model, &peaks, &many);
    for (int i = 0; i < 100; i++)
        roofline_add(&window, ROOFLINE_DECODE, roofline_least(weights), weights);
    CHECK_INT(roofline_report(&window, ROOFLINE_DECODE).verdict, ROOFLINE_WEIGHTS);
    roofline_pause(&window, ROOFLINE_PAUSE_IDLE, 0.1);
    for (int i = 0; i < 10; i++) {
        roofline_fade(&window);
        roofline_add(&window, ROOFLINE_DECODE, roofline_least(arithmetic), arithmetic);
    }
    CHECK_INT(roofline_report(&window, ROOFLINE_DECODE).verdict, ROOFLINE_ARITHMETIC);
    CHECK(window.pauses[ROOFLINE_PAUSE_IDLE] < 0.001);
}

TEST(roofline, every_verdict_has_a_name_and_a_lever_of_its_own)
{
    for (int a = 0; a < ROOFLINE_VERDICTS; a++)
        for (int b = 0; b < a; b++) {
            CHECK(strcmp(roofline_verdict_name(a), roofline_verdict_name(b)) != 0);
            for (int phase = 0; phase < ROOFLINE_PHASES; phase++)
                CHECK(strcmp(roofline_lever(phase, a), roofline_lever(phase, b)) != 0);
        }
}

/* Steps of two kinds, the second slower than the first by nature: neither is news. Then all take longer. */
TEST(roofline, a_node_that_fell_below_its_own_rate_says_so_once)
{
    static struct roofline_rate rate;
    struct roofline_step steps[] = {decode_step(1, 100), decode_step(8, 3000)};
    struct roofline_cost costs[2];
    for (int i = 0; i < 2; i++)
        costs[i] = roofline_cost(&model, &peaks, &steps[i]);
    CHECK(roofline_rate_share(&rate) == 0);
    static const struct {
        double slower;
        enum roofline_change change[4];
    } spells[] = {
        {1, {ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME}},
        {1.15, {ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME}},
        {2, {ROOFLINE_SAME, ROOFLINE_FELL, ROOFLINE_SAME, ROOFLINE_SAME}},
        {1.2, {ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME}}, /* not well yet */
        {1, {ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME}},
        {1, {ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME, ROOFLINE_SAME}},
    };
    bool rose = false;
    for (size_t s = 0; s < sizeof spells / sizeof spells[0]; s++)
        for (int look = 0; look < 4; look++) {
            for (int k = 0; k < 100; k++) {
                double slow_kind = k % 2 ? 3 : 1.2, cold = s == 0 && look == 0 && k < 8 ? 50 : 1;
                roofline_rate_add(&rate, ROOFLINE_DECODE, &steps[k % 2],
                                  spells[s].slower * slow_kind * cold *
                                      roofline_least(costs[k % 2]),
                                  costs[k % 2]);
            }
            enum roofline_change change = roofline_rate_look(&rate);
            if (change == ROOFLINE_ROSE && s >= 4) {
                CHECK(!rose);
                rose = true;
            } else {
                CHECK_INT(change, spells[s].change[look]);
            }
        }
    CHECK(rose && !rate.slow);
    CHECK(roofline_rate_share(&rate) > 0.9 && roofline_rate_share(&rate) < 1.01);
}

/* One step that the machine froze in is not a slow node. */
TEST(roofline, one_frozen_step_is_no_news)
{
    static struct roofline_rate rate;
    struct roofline_step step = decode_step(1, 100);
    struct roofline_cost cost = roofline_cost(&model, &peaks, &step);
    for (int look = 0; look < 20; look++) {
        for (int k = 0; k < 200; k++)
            roofline_rate_add(&rate, ROOFLINE_DECODE, &step,
                              roofline_least(cost) * (look == 10 && k == 0 ? 80 : 1), cost);
        CHECK_INT(roofline_rate_look(&rate), ROOFLINE_SAME);
    }
    CHECK(!rate.slow);
}
