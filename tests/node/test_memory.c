/* When pages run short: growth, giving way by both ways, and that nobody's answer changes. */
#include <stdio.h>
#include <unistd.h>

#include "tests/node/fixture.h"

#define LEG_PREFILL BATON__NODE__V1__LEG__LEG_PREFILL
#define LEG_DECODE BATON__NODE__V1__LEG__LEG_DECODE
#define REPORT(name) BATON__NODE__V1__REPORT__KIND__##name

static uint64_t preempted(const struct fixture *fixture, int node)
{
    return fixture->nodes[node]->preempt.swapped + fixture->nodes[node]->preempt.recomputed;
}

static void swap_is_back(const struct fixture *fixture, int node)
{
    const struct swap *swap = &fixture->nodes[node]->preempt.swap;
    CHECK_INT(swap->free_count, swap->page_count);
}

/* Requests of every kind: greedy and seeded, with penalties and without, with logprobs. */
static struct assign of_kind(int node, int attempt, uint32_t prompt_count, uint32_t tokens_max)
{
    prompt_make((uint32_t)attempt);
    struct assign assign = local(node, attempt, prompt_count, tokens_max);
    assign.logprobs = true;
    assign.seed = 1000 + (uint64_t)attempt;
    if (attempt % 2)
        assign.temperature = 0.8f;
    if (attempt % 3 == 1) {
        assign.repetition_penalty = 1.3f;
        assign.presence_penalty = 0.4f;
        assign.frequency_penalty = 0.2f;
    }
    return assign;
}

/* --- every ten tokens --- */

enum { MATES = 5, LONG = 70 };

static void every_ten(const struct fixture_options *options, struct heard *heard_out,
                      uint64_t *times_out)
{
    struct fixture *fixture = fixture_start(options);
    for (int i = 0; i < MATES; i++) {
        struct assign assign = of_kind(0, i, 20 + 31 * (uint32_t)i, LONG);
        if (options->nodes > 1)
            hand_off(fixture, assign);
        else
            fixture_assign(fixture, &assign);
    }
    int last = options->nodes - 1;
    for (int i = 0; i < MATES; i++) {
        fixture_wait_ended(fixture, last, i);
        heard_out[i] = fixture->heard[last][i];
        CHECK_INT(heard_out[i].count, LONG);
    }
    fixture_check_rest(fixture);
    const struct preempt *preempt = &fixture->nodes[last]->preempt;
    times_out[0] = preempt->swapped;
    times_out[1] = preempt->recomputed;
    times_out[2] = preempt->recomputed_tokens;
    CHECK_INT(metric_value(fixture->nodes[last]->counted.preempted_swap), preempt->swapped);
    CHECK_INT(metric_value(fixture->nodes[last]->counted.preempted_recompute), preempt->recomputed);
    CHECK_INT(metric_value(fixture->nodes[last]->counted.recomputed), preempt->recomputed_tokens);
    swap_is_back(fixture, last);
    fixture_stop(fixture);
}

TEST(memory, giving_way_every_ten_tokens_changes_nothing)
{
    static struct heard solo[MATES], heard[MATES];
    uint64_t times[3];
    every_ten(&(struct fixture_options){.nodes = 1, .kv_pages = 100}, solo, times);
    CHECK_INT(times[0] + times[1], 0);
    const struct fixture_options variants[] = {
        {.nodes = 1, .preempt = PREEMPT_RULE_SWAP, .swap_pages = 80},
        {.nodes = 1, .preempt = PREEMPT_RULE_RECOMPUTE, .swap_pages = 80},
        {.nodes = 2, .preempt = PREEMPT_RULE_SWAP, .swap_pages = 80},
        {.nodes = 2, .preempt = PREEMPT_RULE_RECOMPUTE},
        {.nodes = 2, .preempt = PREEMPT_RULE_AUTO, .swap_pages = 12, .steps_in_flight = 1},
        {.nodes = 1, .preempt = PREEMPT_RULE_SWAP, .swap_pages = 80, .backend = "opaque"},
        {.nodes = 2, .preempt = PREEMPT_RULE_SWAP, .swap_pages = 80, .backend = "opaque"},
        {.nodes = 2, .preempt = PREEMPT_RULE_RECOMPUTE, .backend = "opaque"},
    };
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        struct fixture_options options = variants[v];
        options.kv_pages = 100;
        options.preempt_every = 10;
        options.reserve = v % 2 ? NODE_RESERVE_NEED : NODE_RESERVE_EARLY;
        every_ten(&options, heard, times);
        for (int i = 0; i < MATES; i++)
            heard_equal(&solo[i], &heard[i], LONG);
        /* each of them at tokens 10, 20, … 60 (a step in flight may make it one later) */
        CHECK_MSG(times[0] + times[1] >= MATES * 5 && times[0] + times[1] <= MATES * 6,
                  "gave way %u + %u times", (unsigned)times[0], (unsigned)times[1]);
        if (options.preempt == PREEMPT_RULE_SWAP)
            CHECK(!times[1] && !times[2]);
        if (options.preempt == PREEMPT_RULE_RECOMPUTE)
            CHECK(!times[0] && times[2] > 0);
    }
}

/* --- pools that are too small --- */

/* Requests on node `node` beside the same ones on a node with room for all: equal, whatever happened in between. */
static void as_with_room(struct fixture *fixture, int node, int roomy, int count,
                         const uint32_t *answers)
{
    for (int i = 0; i < count; i++) {
        fixture_wait_ended(fixture, node, i);
        fixture_wait_ended(fixture, roomy, i);
        const struct heard *heard = &fixture->heard[node][i];
        CHECK_INT(heard->verdict, BATON__NODE__V1__VERDICT__VERDICT_OK);
        CHECK_INT(heard->reports[REPORT(DROPPED)], 0);
        CHECK_INT(heard->count, answers[i]);
        heard_equal(&fixture->heard[roomy][i], heard, answers[i]);
    }
}

TEST(memory, two_that_together_outgrow_the_pool)
{
    for (int way = 0; way < 2; way++) {
        struct fixture *fixture =
            fixture_start(&(struct fixture_options){.nodes = 2,
                                                    .kv_pages_of = {20, 64},
                                                    .reserve = NODE_RESERVE_NEED,
                                                    .swap_pages = way ? 0 : 32});
        static const uint32_t answers[] = {150, 150};
        for (int i = 0; i < 2; i++)
            for (int node = 0; node < 2; node++) {
                struct assign assign = of_kind(node, i, 100, answers[i]);
                fixture_assign(fixture, &assign);
            }
        as_with_room(fixture, 0, 1, 2, answers);
        const struct preempt *preempt = &fixture->nodes[0]->preempt;
        CHECK_MSG(preempted(fixture, 0) >= 1 && preempted(fixture, 0) <= 5, "gave way %u times",
                  (unsigned)preempted(fixture, 0));
        CHECK(way ? !preempt->swapped && preempt->recomputed_tokens > 0 : !preempt->recomputed);
        CHECK_INT(preempted(fixture, 1), 0);
        fixture_check_rest(fixture);
        fixture_stop(fixture);
    }
}

TEST(memory, two_long_prompts_in_a_pool_for_one_and_a_fifth)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){
        .nodes = 2, .kv_pages_of = {54, 120}, .reserve = NODE_RESERVE_NEED, .swap_pages = 64});
    static const uint32_t answers[] = {40, 40};
    for (int i = 0; i < 2; i++)
        for (int node = 0; node < 2; node++) {
            struct assign assign = of_kind(node, i, 680, answers[i]); /* 43 of 54 pages */
            fixture_assign(fixture, &assign);
        }
    as_with_room(fixture, 0, 1, 2, answers);
    CHECK_INT(preempted(fixture, 0), 0); /* the second one waits: it would only be in the way */
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

/* Demand of 105 %, 150 % and 300 % of the pool, by what the answers come to, with either way and all at once. */
TEST(memory, any_demand_ends_and_nothing_changes)
{
    enum { REQUESTS = 18 };
    static const uint32_t percent[] = {105, 150, 300};
    for (int d = 0; d < 3; d++)
        for (int way = 0; way < 2; way++) {
            uint32_t prompts[REQUESTS], answers[REQUESTS], pages = 0;
            for (int i = 0; i < REQUESTS; i++) {
                prompts[i] = 10 + (uint32_t)i * 37 % 150;
                answers[i] = 20 + (uint32_t)i * 53 % 160;
                pages += (prompts[i] + answers[i] - 1 + 15) / 16;
            }
            uint32_t pool = pages * 100 / percent[d];
            struct fixture *fixture =
                fixture_start(&(struct fixture_options){.nodes = 2,
                                                        .kv_pages_of = {pool, pages},
                                                        .reserve = NODE_RESERVE_NEED,
                                                        .sequences_max = 32,
                                                        .swap_pages = way ? 0 : pool / 4});
            for (int i = 0; i < REQUESTS; i++)
                for (int node = 0; node < 2; node++) {
                    struct assign assign = of_kind(node, i, prompts[i], answers[i]);
                    fixture_assign(fixture, &assign);
                }
            as_with_room(fixture, 0, 1, REQUESTS, answers);
            CHECK_MSG(preempted(fixture, 0) <= REQUESTS * 8, "%u %%: gave way %u times", percent[d],
                      (unsigned)preempted(fixture, 0));
            CHECK(percent[d] < 150 || preempted(fixture, 0) > 0);
            swap_is_back(fixture, 0);
            fixture_check_rest(fixture);
            fixture_stop(fixture);
        }
}

/* --- both legs --- */

TEST(memory, a_decode_node_with_room_for_two_gets_twenty)
{
    enum { REQUESTS = 20 };
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 3,
                                                                      .kv_pages_of = {200, 18, 400},
                                                                      .reserve = NODE_RESERVE_NEED,
                                                                      .sequences_max = 32,
                                                                      .swap_pages = 8});
    uint32_t answers[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        answers[i] = 40;
        struct assign assign = of_kind(2, i, 100, answers[i]); /* 9 pages in the end */
        fixture_assign(fixture, &assign);
        hand_off(fixture, assign);
    }
    as_with_room(fixture, 1, 2, REQUESTS, answers);
    for (int i = 0; i < REQUESTS; i++)
        fixture_wait_ended(fixture, 0, i);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(memory, prefill_refuses_and_decode_makes_no_token)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){
        .nodes = 2, .kv_pages_of = {4, 64}, .reserve = NODE_RESERVE_NEED});
    struct assign assign = of_kind(0, 1, 100, 20); /* 7 pages: P has 4 */
    hand_off(fixture, assign);
    fixture_wait_ended(fixture, 1, 1);
    CHECK_INT(fixture->heard[0][1].verdict, BATON__NODE__V1__VERDICT__VERDICT_FULL);
    CHECK_INT(fixture->heard[1][1].count, 0);
    CHECK_INT(fixture->heard[1][1].reports[REPORT(GAVE_UP)], 1);
    CHECK_INT(fixture->heard[1][1].reports[REPORT(JOINED)], 0);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

/* P is full of pages that nobody fetches. A new request waits, and P says that it does; it is served when their leases end. */
static bool all_wait(struct fixture *fixture, void *context)
{
    (void)context;
    const Baton__Node__V1__Load *load = &fixture->streams[0].load;
    return load->sequences_waiting == 1 && load->sequences_transferring == 4;
}

TEST(memory, prefill_full_of_what_nobody_fetches)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1, .kv_pages = 30});
    for (int i = 0; i < 4; i++) {
        struct assign assign = of_kind(0, i, 100, 20); /* 4 x 7 pages */
        assign.leg = LEG_PREFILL;
        fixture_assign(fixture, &assign);
    }
    struct assign late = of_kind(0, 9, 100, 20);
    late.leg = LEG_PREFILL;
    late.last_leg = true;
    fixture_assign(fixture, &late);
    fixture_until(fixture, all_wait, NULL, "the router to see it");
    const Baton__Node__V1__Load *load = &fixture->streams[0].load;
    CHECK_INT(fixture->heard[0][9].count, 0);
    CHECK_INT(load->pages_used, 28);
    CHECK_INT(load->sequences_waiting, 1);
    CHECK_INT(load->sequences_transferring, 4);
    CHECK_INT(load->prefill_tokens_waiting, 100);
    uint64_t begin_ns = clock_now_ns();
    fixture_wait_ended(fixture, 0, 9);
    CHECK(clock_now_ns() - begin_ns <
          30 * NS_PER_S); /* the lease of 8 s; the request itself has no end */
    CHECK_INT(fixture->heard[0][9].count, 1);
    for (int i = 0; i < 4; i++)
        CHECK_INT(fixture->heard[0][i].reports[REPORT(DROPPED)], 0); /* they are older */
    for (int i = 0; i < 4; i++)
        fixture_wait_ended(fixture, 0, i);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

/* --- cancels --- */

static uint64_t resident_pages(void)
{
    unsigned long long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%llu %llu", &size, &resident) == 2);
    fclose(file);
    return resident;
}

static bool out_or_over(struct fixture *fixture, void *context)
{
    return work_count(&fixture->nodes[0]->table, SM_TO(WORK_PREEMPTED)) > 0 ||
           fixture->heard[0][*(int *)context].reports[REPORT(ENDED)] > 0;
}

#ifdef BATON_SANITIZED /* which finds in a few rounds what a hundred leave behind */
enum { TIMES_OUT = 25, TIMES_WARM = 5 };
#else
enum { TIMES_OUT = 100, TIMES_WARM = 20 };
#endif

TEST(memory, swapped_out_and_cancelled_a_hundred_times)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1,
                                                                      .kv_pages = 20,
                                                                      .reserve = NODE_RESERVE_NEED,
                                                                      .preempt = PREEMPT_RULE_SWAP,
                                                                      .swap_pages = 32});
    uint64_t warm = 0;
    int out = 0;
    for (int i = 0; out < TIMES_OUT; i++) {
        CHECK_MSG(i < 400, "only %d of %d gave way", out, i);
        struct assign old = of_kind(0, i % 50 * 2, 120, 180);
        memset(&fixture->heard[0][i % 50 * 2], 0, 2 * sizeof(struct heard));
        fixture_assign(fixture, &old);
        struct assign young = of_kind(0, i % 50 * 2 + 1, 120, 180);
        fixture_assign(fixture, &young);
        /* on a busy machine the old one may be over before the young one has come: then it is not one of the hundred */
        fixture_until(fixture, out_or_over, &old.attempt, "the young one to give way");
        if (work_count(&fixture->nodes[0]->table, SM_TO(WORK_PREEMPTED))) {
            CHECK(fixture->nodes[0]->preempt.swap.free_count < 32);
            out++;
        }
        fixture_end(fixture, 0, young.attempt);
        fixture_wait_ended(fixture, 0, young.attempt);
        swap_is_back(fixture, 0);
        fixture_end(fixture, 0, old.attempt);
        fixture_wait_ended(fixture, 0, old.attempt);
        if (out == TIMES_WARM && !warm)
            warm = resident_pages();
    }
    uint64_t grown = resident_pages() - warm;
    /* the bytes of half of those that were swapped out since would be far more */
    uint64_t swapped =
        (TIMES_OUT - TIMES_WARM) * 8 * engine_info(fixture->engines[0])->page_bytes / 4096;
    /* a sanitizer keeps what was freed for a while; there, what never comes back is for it to say */
#ifndef BATON_SANITIZED
    CHECK_MSG((int64_t)grown < (int64_t)swapped / 2, "grew by %u pages, %u were swapped out",
              (unsigned)grown, (unsigned)swapped);
#else
    (void)grown, (void)swapped;
#endif
    CHECK(fixture->nodes[0]->preempt.swapped >= TIMES_OUT);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

/* --- gaps --- */

static bool has_tokens(struct fixture *fixture, void *context)
{
    return fixture->heard[0][*(int *)context].count > 0;
}

/* Has the prompt's token come? Until then steps are taken for slow ones each time: real ones would be over so soon that a bound of
 * 1 ms allows whole chunks again after a few. Of a second's step a prompt gets an eighth, 20 rows here: a page of 16. */
static bool came_at_a_slow_pace(struct fixture *fixture, void *context)
{
    fixture->nodes[0]->steps.pace =
        (struct batch_pace){.decode_ns = 1e9, .prompt_row_ns = 1e9 / 160};
    return has_tokens(fixture, context);
}

/* Steps that a prompt of 960 tokens takes beside a stream. */
static uint64_t steps_beside_a_stream(uint32_t gap_ms)
{
    struct fixture *fixture =
        fixture_start(&(struct fixture_options){.nodes = 1, .kv_pages = 200, .gap_ms = gap_ms});
    int stream = 1, late = 2;
    struct assign assign = of_kind(0, stream, 50, 1000);
    fixture_assign(fixture, &assign);
    fixture_until(fixture, has_tokens, &stream, "the stream to begin");
    uint64_t before = metric_value(fixture->nodes[0]->counted.steps);
    assign = of_kind(0, late, 960, 1);
    fixture_assign(fixture, &assign);
    fixture_until(fixture, came_at_a_slow_pace, &late, "the prompt");
    uint64_t steps = metric_value(fixture->nodes[0]->counted.steps) - before;
    CHECK(!fixture->heard[0][stream].finish); /* it ran beside all of it */
    fixture_end(fixture, 0, stream);
    fixture_wait_ended(fixture, 0, stream);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
    return steps;
}

TEST(memory, prompts_beside_a_stream_keep_to_the_gap)
{
    uint64_t without = steps_beside_a_stream(0), with = steps_beside_a_stream(1);
    CHECK_MSG(without < 40, "%u steps",
              (unsigned)without); /* chunks of 64 rows: 15, and some to begin */
    CHECK_MSG(with > 2 * without, /* chunks of a page: 60 */ "%u steps, %u without", (unsigned)with,
              (unsigned)without);
}
