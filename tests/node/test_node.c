/* Nodes end to end, in one process: every leg, cancels, drops, streams that end, and that the answer is always the same. */
#include <unistd.h>

#include "tests/node/fixture.h"

enum { PROMPT = 100, ANSWER = 24 };
#define LEG_PREFILL BATON__NODE__V1__LEG__LEG_PREFILL
#define LEG_DECODE BATON__NODE__V1__LEG__LEG_DECODE
#define LEG_LOCAL BATON__NODE__V1__LEG__LEG_LOCAL
#define REPORT(name) BATON__NODE__V1__REPORT__KIND__##name

TEST(node, answers_alone)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1});
    prompt_make(1);
    struct assign assign = local(0, 1, PROMPT, ANSWER);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 1);
    const struct heard *heard = &fixture->heard[0][1];
    CHECK_INT(heard->verdict, BATON__NODE__V1__VERDICT__VERDICT_OK);
    CHECK_INT(heard->count, ANSWER);
    CHECK_INT(heard->finish, BATON__NODE__V1__FINISH__FINISH_LENGTH);
    CHECK(!heard->gap && heard->prefill_us > 0);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(node, hand_off_gives_the_same_answer)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 3});
    for (int round = 0; round < 8; round++) {
        prompt_make((uint32_t)round);
        struct assign assign = local(2, round, 20 + 37 * (uint32_t)round, ANSWER);
        assign.temperature = round % 2 ? 0.9f : 0;
        assign.seed = 77 + (uint64_t)round;
        assign.logprobs = true;
        fixture_assign(fixture, &assign);
        hand_off(fixture, assign);
    }
    for (int round = 0; round < 8; round++) {
        for (int node = 0; node < 3; node++)
            fixture_wait_ended(fixture, node, round);
        const struct heard *alone = &fixture->heard[2][round], *p = &fixture->heard[0][round],
                           *d = &fixture->heard[1][round];
        CHECK_INT(alone->count, ANSWER);
        CHECK_INT(d->count, ANSWER);
        heard_equal(alone, d, ANSWER);
        CHECK_INT(p->count, 1); /* the first token, at once, from P */
        heard_equal(alone, p, 1);
        CHECK_INT(d->reports[REPORT(JOINED)], 1);
        CHECK_INT(d->finish, BATON__NODE__V1__FINISH__FINISH_LENGTH);
        uint32_t pages = (20 + 37 * (uint32_t)round + 15) / 16;
        CHECK_INT(d->moved_bytes, pages * engine_info(fixture->engines[0])->page_bytes);
    }
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

/* The same prompts through nodes that cut, batch and pipeline differently: equal to the bit. */
TEST(node, chunks_batches_and_pipelines_change_nothing)
{
    static const struct fixture_options variants[] = {
        {.nodes = 2, .chunk_tokens = 64, .steps_in_flight = 2},
        {.nodes = 2, .chunk_tokens = 16, .steps_in_flight = 1},
        {.nodes = 2, .chunk_tokens = 7, .batch_tokens = 33, .sequences_max = 5},
        {.nodes = 2, .chunk_tokens = 64, .backend = "opaque"},
    };
    enum { MATES = 6 };
    static struct heard first[MATES];
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        struct fixture *fixture = fixture_start(&variants[v]);
        for (int i = 0; i < MATES; i++) {
            prompt_make((uint32_t)i);
            struct assign assign = local(0, i, 30 + 20 * (uint32_t)i, ANSWER);
            assign.temperature = i % 2 ? 0.7f : 0;
            assign.seed = 5;
            assign.logprobs = true;
            if (v % 2)
                hand_off(fixture, assign);
            else
                fixture_assign(fixture, &assign);
        }
        for (int i = 0; i < MATES; i++) {
            int node = v % 2 ? 1 : 0;
            fixture_wait_ended(fixture, node, i);
            if (v == 0)
                first[i] = fixture->heard[node][i];
            else
                heard_equal(&first[i], &fixture->heard[node][i], ANSWER);
        }
        fixture_check_rest(fixture);
        fixture_stop(fixture);
    }
}

TEST(node, a_replay_goes_on_with_the_next_token)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 2});
    prompt_make(3);
    struct assign assign = local(0, 1, PROMPT, ANSWER);
    assign.temperature = 0.8f;
    assign.seed = 9;
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 1);
    const struct heard *whole = &fixture->heard[0][1];
    static const uint32_t cuts[] = {1, 7, ANSWER - 1};
    for (int i = 0; i < 3; i++) {
        assign.attempt = 2 + i;
        assign.generated = whole->tokens;
        assign.generated_count = cuts[i];
        hand_off(fixture, assign);
        if (cuts[i] < ANSWER - 1)
            fixture_wait_ended(fixture, 1, 2 + i);
        fixture_wait_ended(fixture, 0, 2 + i);
        const struct heard *rest = &fixture->heard[cuts[i] < ANSWER - 1 ? 1 : 0][2 + i];
        CHECK(!rest->gap);
        CHECK_INT(rest->begin, cuts[i]);
        CHECK_INT(rest->count, ANSWER - cuts[i]);
        for (uint32_t k = 0; k < rest->count; k++)
            CHECK_INT(rest->tokens[k], whole->tokens[cuts[i] + k]);
        fixture_end(fixture, 1, 2 + i);
    }
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(node, stop_ids_end_the_answer_but_not_before_tokens_min)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1});
    prompt_make(4);
    struct assign assign = local(0, 1, PROMPT, ANSWER);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 1);
    uint32_t stop = fixture->heard[0][1].tokens[5], at = 0;
    while (fixture->heard[0][1].tokens[at] != stop)
        at++; /* its first occurrence */
    assign.stop_ids = &stop;
    assign.stop_count = 1;
    assign.attempt = 2;
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 2);
    CHECK_INT(fixture->heard[0][2].count, at + 1);
    CHECK_INT(fixture->heard[0][2].finish, BATON__NODE__V1__FINISH__FINISH_STOP);
    assign.attempt = 3;
    assign.tokens_min = ANSWER;
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 3);
    CHECK_INT(fixture->heard[0][3].count, ANSWER);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(node, the_first_token_can_be_the_last)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 2});
    prompt_make(5);
    struct assign assign = local(0, 1, PROMPT, 1);
    assign.leg = LEG_PREFILL;
    assign.last_leg = true;
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 1);
    CHECK_INT(fixture->heard[0][1].count, 1);
    CHECK_INT(fixture->heard[0][1].finish, BATON__NODE__V1__FINISH__FINISH_LENGTH);
    /* a stop id as the first token, with a decode node that waits: it hears that nothing comes */
    assign.last_leg = false;
    assign.tokens_max = ANSWER;
    assign.stop_ids = &fixture->heard[0][1].tokens[0];
    assign.stop_count = 1;
    assign.attempt = 2;
    hand_off(fixture, assign);
    fixture_wait_ended(fixture, 0, 2);
    fixture_wait_ended(fixture, 1, 2);
    CHECK_INT(fixture->heard[0][2].finish, BATON__NODE__V1__FINISH__FINISH_STOP);
    CHECK(fixture->heard[1][2].count <= 1);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

static void refused_with(struct fixture *fixture, struct assign assign, uint32_t verdict,
                         const char *text)
{
    fixture_assign(fixture, &assign);
    fixture_wait_answered(fixture, &assign);
    const struct heard *heard = &fixture->heard[assign.node][assign.attempt];
    CHECK_INT(heard->accepted, 1);
    CHECK_INT(heard->verdict, verdict);
    CHECK_MSG(strstr(heard->message, text), "\"%s\" lacks \"%s\"", heard->message, text);
    CHECK_INT(heard->count, 0);
}

TEST(node, refuses_what_it_cannot_hold_and_names_the_field)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1, .kv_pages = 10});
    prompt_make(6);
    uint32_t invalid = BATON__NODE__V1__VERDICT__VERDICT_INVALID;
    uint32_t context = engine_info(fixture->engines[0])->context_tokens;
    refused_with(fixture, local(0, 1, 0, 5), invalid, "prompt: is empty");
    refused_with(fixture, local(0, 2, 5, 0), invalid, "tokens_max");
    refused_with(fixture, local(0, 3, 5, context), invalid, "context");
    struct assign assign = local(0, 4, 5, 5);
    uint32_t bad[] = {1, 2, 1u << 30};
    assign.prompt = bad;
    assign.prompt_count = 3;
    refused_with(fixture, assign, invalid, "prompt[2]");
    assign = local(0, 5, 5, 5);
    assign.temperature = -1;
    refused_with(fixture, assign, invalid, "temperature");
    assign = local(0, 6, 5, 5);
    assign.leg = (Baton__Node__V1__Leg)9;
    refused_with(fixture, assign, invalid, "leg");
    assign = local(0, 7, 5, 2);
    assign.generated = prompt;
    assign.generated_count = 2;
    refused_with(fixture, assign, invalid, "generated");
    refused_with(fixture, local(0, 8, 150, 12), BATON__NODE__V1__VERDICT__VERDICT_FULL, "pages");
    /* exactly all pages */
    assign = local(0, 9, 150, 11);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 9);
    CHECK_INT(fixture->heard[0][9].count, 11);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(node, cancels_at_any_time_leave_nothing)
{
    static const struct fixture_options variants[] = {
        {.nodes = 2, .kv_pages = 40}, {.nodes = 2, .kv_pages = 40, .backend = "opaque"}};
    for (int v = 0; v < 2; v++) {
        struct fixture *fixture = fixture_start(&variants[v]);
        uint64_t seed = 99;
        for (int i = 0; i < 60; i++) {
            prompt_make((uint32_t)i);
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            struct assign assign = local((int)(seed >> 60) & 1, i, 40 + (seed >> 40) % 300, 40);
            if (i % 3)
                hand_off(fixture, assign);
            else
                fixture_assign(fixture, &assign);
            fixture_turn(fixture, (seed >> 33) % 8000 * NS_PER_US);
            for (int node = 0; node < 2; node++)
                if (i % 3 || node == assign.node)
                    fixture_end(fixture, node, i);
            for (int node = 0; node < 2; node++)
                if (i % 3 || node == assign.node)
                    fixture_wait_ended(fixture, node, i);
        }
        fixture_check_rest(fixture);
        fixture_stop(fixture);
    }
}

TEST(node, deadlines_end_work)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 2});
    prompt_make(8);
    struct assign assign = local(1, 0, PROMPT, ANSWER);
    assign.leg = LEG_PREFILL; /* whose decode node never comes */
    /* The first token shows that it was computed: where the machine stood still it was not, and more time is given. */
    for (assign.deadline_ms = 500;; assign.deadline_ms *= 2) {
        CHECK_MSG(assign.deadline_ms < 60000, "no token in 32 s");
        assign.attempt++;
        uint64_t begin_ns = clock_now_ns();
        fixture_assign(fixture, &assign);
        fixture_wait_ended(fixture, 1, assign.attempt);
        CHECK(clock_now_ns() - begin_ns >= assign.deadline_ms * NS_PER_MS);
        CHECK(fixture->heard[1][assign.attempt].count <= 1);
        if (fixture->heard[1][assign.attempt].count)
            break;
    }
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

static bool holds_three(struct fixture *fixture, void *context)
{
    (void)context;
    return fixture->nodes[0]->table.state_counts[WORK_HOLDING] == 3;
}

/* P holds sources of younger requests; an older one gets their pages, and the router is told. */
TEST(node, the_older_request_gets_the_pages)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1, .kv_pages = 20});
    for (int i = 0; i < 3;
         i++) { /* 3 x 6 pages, held for nobody; each its own, none found in the cache */
        prompt_make(9 + (uint32_t)i);
        struct assign assign = local(0, 10 + i, 96, ANSWER);
        assign.leg = LEG_PREFILL;
        fixture_assign(fixture, &assign);
    }
    fixture_until(fixture, holds_three, NULL, "three prompts to be computed");
    CHECK_INT(pool_count(&fixture->nodes[0]->pool, POOL_USED), 18);
    prompt_make(12);
    struct assign young = local(0, 50, 96, ANSWER);
    fixture_assign(fixture, &young); /* the youngest of all: waits */
    fixture_turn(fixture, 100 * NS_PER_MS);
    CHECK_INT(fixture->heard[0][50].count, 0);
    prompt_make(13);
    struct assign old = local(0, 5, 96, ANSWER); /* 8 pages: 2 are free */
    fixture_assign(fixture, &old);
    fixture_wait_ended(fixture, 0, 5);
    CHECK_INT(fixture->heard[0][5].count, ANSWER);
    CHECK_INT(fixture->heard[0][12].reports[REPORT(DROPPED)], 1);
    CHECK_INT(fixture->heard[0][12].reports[REPORT(ENDED)], 1);
    CHECK_INT(fixture->heard[0][11].reports[REPORT(DROPPED)], 0);
    CHECK_INT(fixture->heard[0][10].reports[REPORT(DROPPED)], 0);
    fixture_wait_ended(fixture, 0, 50); /* what it freed is enough for the youngest, too */
    fixture_end(fixture, 0, 10);
    fixture_end(fixture, 0, 11);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

static bool reserves(struct fixture *fixture, void *context)
{
    return pool_count(&fixture->nodes[1]->pool, POOL_RESERVED) == *(uint32_t *)context;
}

/* The same on a decode node: a reservation that receives nothing yet gives way, the youngest first. */
TEST(node, the_older_request_gets_reserved_pages)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 2, .kv_pages = 20});
    prompt_make(9);
    for (int i = 0; i < 2; i++) { /* 2 x 8 pages, for transfers that P has not heard of yet */
        struct assign assign = local(1, 20 + i, 96, ANSWER);
        assign.leg = LEG_DECODE;
        assign.source = 0;
        assign.source_number = 100 + (uint64_t)i;
        fixture_assign(fixture, &assign);
    }
    uint32_t sixteen = 16;
    fixture_until(fixture, reserves, &sixteen, "two to have their pages");
    struct assign old = local(1, 5, 96, ANSWER);
    fixture_assign(fixture, &old);
    fixture_wait_ended(fixture, 1, 5);
    CHECK_INT(fixture->heard[1][5].count, ANSWER);
    CHECK_INT(fixture->heard[1][21].reports[REPORT(DROPPED)], 1);
    CHECK_INT(fixture->heard[1][20].reports[REPORT(DROPPED)], 0);
    fixture_end(fixture, 1, 20);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

static bool registered_again(struct fixture *fixture, void *context)
{
    return fixture->streams[0].registrations >= *(uint32_t *)context &&
           fixture->streams[0].heartbeats > 0;
}

static bool has_beaten(struct fixture *fixture, void *context)
{
    return fixture->streams[0].heartbeats >= *(uint32_t *)context;
}

TEST(node, work_dies_with_its_stream)
{
    struct fixture *fixture =
        fixture_start(&(struct fixture_options){.nodes = 2, .stop_after_ms = 2000});
    prompt_make(10);
    /* the stream breaks */
    struct assign assign = local(0, 1, 1000, 400);
    fixture_assign(fixture, &assign);
    fixture_turn(fixture, 30 * NS_PER_MS);
    uint64_t before = fixture->streams[0].incarnation;
    rpc_call_abort(fixture->streams[0].call, GRPC_CODE_UNAVAILABLE, "gone");
    uint32_t wanted = 2;
    fixture_until(fixture, registered_again, &wanted, "a second registration");
    CHECK(fixture->streams[0].incarnation != before);
    fixture_check_rest(fixture);
    CHECK_INT(fixture->heard[0][1].finish, 0);
    CHECK_INT(fixture->heard[0][1].reports[REPORT(ENDED)], 0); /* nobody is left to be told */
    /* the router falls silent: the node stops by itself, 2 s after the last answered heartbeat was sent; that was just now, or a
     * while ago if the machine stood still */
    assign = local(0, 2, 1000, 400);
    fixture_assign(fixture, &assign);
    uint32_t heartbeats = fixture->streams[0].heartbeats + 1;
    fixture_until(fixture, has_beaten, &heartbeats, "a heartbeat");
    fixture->streams[0].mute = true;
    uint64_t muted_ns = clock_now_ns();
    wanted = 3;
    while (fixture->nodes[0]->registration && registration_up(fixture->nodes[0]->registration))
        fixture_turn(fixture, NS_PER_MS);
    uint64_t took_ns = clock_now_ns() - muted_ns;
    CHECK_MSG(took_ns > 500 * NS_PER_MS && took_ns < 8 * NS_PER_S, "stopped after %.3f s",
              (double)took_ns / 1e9);
    fixture->streams[0].mute = false;
    fixture_until(fixture, registered_again, &wanted, "a third registration");
    fixture_check_rest(fixture);
    /* and it serves again, with its peers met anew */
    fixture_until(fixture, fixture_all_met, NULL, "the nodes to meet again");
    hand_off(fixture, local(0, 3, PROMPT, ANSWER));
    fixture_wait_ended(fixture, 1, 3);
    CHECK_INT(fixture->heard[1][3].count, ANSWER);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

/* Register waits in the channel for longer than the stop time: that is not the router's silence. */
TEST(node, a_router_that_comes_late_is_registered_at_once)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){
        .nodes = 1, .router_late_ns = 2500 * NS_PER_MS, .stop_after_ms = 2000});
    fixture_turn(fixture, 2500 * NS_PER_MS);
    CHECK_INT(fixture->streams[0].registrations, 1);
    CHECK_INT(metric_value(fixture->nodes[0]->counted.self_stops), 0);
    fixture_stop(fixture);
}

/* The thread of the loop is held up for longer than the stop time, with a finished answer waiting in the engine: it stops first. */
TEST(node, waking_late_it_stops_before_it_speaks)
{
    struct fixture *fixture =
        fixture_start(&(struct fixture_options){.nodes = 1, .stop_after_ms = 1000});
    prompt_make(11);
    struct assign assign = local(0, 1, 200, 400);
    fixture_assign(fixture, &assign);
    while (!fixture->heard[0][1].count)
        fixture_turn(fixture, NS_PER_MS);
    uint32_t before = fixture->heard[0][1].count;
    usleep(1300000);
    fixture_turn(fixture, 5 * NS_PER_MS);
    CHECK_MSG(fixture->heard[0][1].count <= before + 2, "%u tokens, then %u", before,
              fixture->heard[0][1].count);
    CHECK(!registration_up(fixture->nodes[0]->registration) ||
          fixture->streams[0].registrations > 1);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(node, stale_assignments_are_dropped_and_counted)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1});
    prompt_make(12);
    struct assign assign = local(0, 1, PROMPT, 4);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 1);
    fixture->streams[0].number--; /* the same number again */
    assign.attempt = 2;
    fixture_assign(fixture, &assign);
    fixture_first_token(fixture, 0, 7, 0, 1);
    fixture_settle(fixture, 0, 7);
    fixture_end(fixture, 0, 7); /* unknown: answered all the same */
    fixture_wait_ended(fixture, 0, 7);
    CHECK_INT(fixture->heard[0][2].accepted, 0);
    CHECK_INT(metric_value(fixture->nodes[0]->counted.stale_assign), 1);
    CHECK_INT(metric_value(fixture->nodes[0]->counted.stale_first_token), 1);
    CHECK_INT(fixture->heard[0][7].reports[REPORT(INCOMPLETE)], 1);
    CHECK_INT(node_stale_frames(fixture->nodes[0]), 2);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

static bool has_joined(struct fixture *fixture, void *context)
{
    return fixture->heard[1][*(int *)context].reports[REPORT(JOINED)] > 0;
}

static bool holds_nothing(struct fixture *fixture, void *context)
{
    (void)context;
    const struct pool *pool = &fixture->nodes[0]->pool;
    return !pool_count(pool, POOL_USED) && !pool_count(pool, POOL_RESERVED);
}

static bool has_settled(struct fixture *fixture, void *context)
{
    const struct heard *heard = &fixture->heard[1][*(int *)context];
    return heard->reports[REPORT(COMPLETE)] + heard->reports[REPORT(INCOMPLETE)] == 1;
}

/* P dies after its last piece, before FIRST: the router's copy of the token is enough for D to go on alone. */
TEST(node, decode_goes_on_when_prefill_dies_after_the_pages)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 3});
    prompt_make(13);
    struct assign assign = local(2, 1, 300, ANSWER);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 2, 1);
    int attempt = 2;
    assign.attempt = attempt;
    hand_off(fixture, assign);
    /* stop P the moment D has every byte */
    const struct kv_counters *counters = kv_links_counters(fixture->nodes[1]->links);
    uint64_t pages = (300 + 15) / 16, bytes = pages * engine_info(fixture->engines[1])->page_bytes;
    while (counters->bytes_verified < bytes && !has_joined(fixture, &attempt))
        loop_round(fixture->loop, NS_PER_MS / 10);
    xfer_hub_kill(fixture->xfers[0]);
    fixture_first_token(fixture, 1, attempt, 0, fixture->heard[2][1].tokens[0]);
    fixture_settle(fixture, 1, attempt);
    fixture_wait_ended(fixture, 1, attempt);
    const struct heard *heard = &fixture->heard[1][attempt];
    CHECK_INT(heard->count, ANSWER);
    for (uint32_t i = 0; i < ANSWER; i++)
        CHECK_INT(heard->tokens[i], fixture->heard[2][1].tokens[i]);
    /* its answer may be over before it is asked */
    fixture_until(fixture, has_settled, &attempt, "an answer to the settling");
    /* what P's dead transport still holds may never drain: then its pages are nobody's, and the attempt ends all the same */
    fixture_end(fixture, 0, attempt);
    fixture_wait_ended(fixture, 0, attempt);
    fixture_until(fixture, holds_nothing, NULL, "the pages of the dead node");
    CHECK(pool_consistent(&fixture->nodes[0]->pool));
    CHECK_INT(pool_available(&fixture->nodes[1]->pool), fixture->nodes[1]->pool.total);
    fixture_stop(fixture);
}

TEST(node, decode_gives_up_when_prefill_dies_before_the_pages)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 2});
    prompt_make(14);
    struct assign assign = local(1, 1, PROMPT, ANSWER);
    assign.leg = LEG_DECODE;
    assign.source = 0;
    assign.source_number = 1; /* never given to node 0 */
    fixture_assign(fixture, &assign);
    fixture_wait_answered(fixture, &assign);
    uint32_t reserved = (PROMPT + ANSWER - 1 + 15) / 16;
    fixture_until(fixture, reserves, &reserved, "the pages to be reserved");
    fixture_settle(fixture, 1, 1);
    fixture_turn(fixture, 20 * NS_PER_MS);
    xfer_hub_kill(fixture->xfers[0]);
    fixture_wait_ended(fixture, 1, 1);
    int attempt = 1;
    fixture_until(fixture, has_settled, &attempt, "an answer to the settling");
    CHECK_INT(fixture->heard[1][1].reports[REPORT(INCOMPLETE)], 1);
    CHECK_INT(fixture->heard[1][1].reports[REPORT(GAVE_UP)], 1);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

static bool has_left(struct fixture *fixture, void *context)
{
    (void)context;
    return fixture->left[0];
}

TEST(node, drains_and_leaves_when_idle)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1});
    prompt_make(15);
    struct assign assign = local(0, 1, 300, ANSWER);
    fixture_assign(fixture, &assign);
    fixture_turn(fixture, 5 * NS_PER_MS);
    fixture_drain(fixture, 0);
    assign.attempt = 2;
    fixture_assign(fixture, &assign);
    fixture_until(fixture, has_left, NULL, "the node to leave");
    CHECK_INT(fixture->heard[0][2].verdict, BATON__NODE__V1__VERDICT__VERDICT_DRAINING);
    CHECK_INT(fixture->heard[0][1].count, ANSWER); /* what it had goes on */
    CHECK_INT(fixture->streams[0].leaving, 1);
    CHECK(!node_serving(fixture->nodes[0], NULL));
    fixture_stop(fixture);
}

static bool all_handed_over(struct fixture *fixture, void *context)
{
    /* as on a slow machine, on which none of them ends in time */
    fixture->nodes[0]->steps.pace.decode_ns = NS_PER_S;
    for (int i = 0; i < *(int *)context; i++)
        if (!fixture->heard[0][i].reports[REPORT(HAND_OVER)])
            return false;
    return true;
}

/* A node drains under load. What cannot end in time is reported, goes on until the router ends it, and goes on elsewhere with the
 * very next token; the node leaves within its grace time. */
TEST(node, drains_under_load_and_hands_over)
{
#ifdef BATON_SANITIZED /* in which a token takes several times as long */
    enum { LOAD = 6, LONG = 300 };
#else
    enum { LOAD = 6, LONG = 900 };
#endif
    struct fixture *fixture =
        fixture_start(&(struct fixture_options){.nodes = 3, .kv_pages = 700, .grace_ms = 8000});
    struct assign assigns[LOAD];
    for (int i = 0; i < LOAD; i++) {
        prompt_make((uint32_t)i);
        assigns[i] = local(0, i, 60 + (uint32_t)i, i ? LONG : 8);
        assigns[i].logprobs = true;
        assigns[i].temperature = i % 2 ? 0.7f : 0;
        assigns[i].seed = 3;
        assigns[i].alone = true; /* one row a step, so that they take long */
        fixture_assign(fixture, &assigns[i]);
    }
    fixture_wait_ended(fixture, 0, 0); /* the short one, before anything is asked of it */
    uint64_t begin_ns = clock_now_ns();
    fixture_drain(fixture, 0);
    int load = LOAD;
    fixture->heard[0][0].reports[REPORT(HAND_OVER)] = 1;
    fixture_until(fixture, all_handed_over, &load, "all to be handed over");
    for (int i = 1; i < LOAD; i++) {
        struct heard *begun = &fixture->heard[0][i];
        CHECK_INT(begun->reports[REPORT(HAND_OVER)], 1);
        CHECK_INT(begun->finish, 0);
        uint32_t before = begun->count;
        /* it goes on as long as it is not ended */
        while (begun->count < before + 3 && !begun->reports[REPORT(ENDED)])
            fixture_turn(fixture, NS_PER_MS);
        fixture_end(fixture, 0, i);
        fixture_wait_ended(fixture, 0, i);
        assigns[i].node = 1;
        assigns[i].alone = false;
        prompt_make((uint32_t)i);
        assigns[i].generated = begun->tokens;
        assigns[i].generated_count = begun->count;
        fixture_assign(fixture, &assigns[i]);
        assigns[i].node = 2; /* the same, undisturbed */
        assigns[i].generated_count = 0;
        fixture_assign(fixture, &assigns[i]);
    }
    fixture_until(fixture, has_left, NULL, "the node to leave");
    CHECK(clock_now_ns() - begin_ns < 24 * NS_PER_S);
    for (int i = 1; i < LOAD; i++) {
        fixture_wait_ended(fixture, 1, i);
        fixture_wait_ended(fixture, 2, i);
        const struct heard *rest = &fixture->heard[1][i], *whole = &fixture->heard[2][i];
        uint32_t begun = fixture->heard[0][i].count;
        CHECK_INT(rest->begin, begun);
        CHECK_INT(begun + rest->count, LONG);
        heard_equal(&fixture->heard[0][i], whole, begun);
        for (uint32_t k = 0; k < rest->count; k++) {
            CHECK_INT(rest->tokens[k], whole->tokens[begun + k]);
            CHECK(!memcmp(&rest->logprobs[k], &whole->logprobs[begun + k], sizeof(float)));
        }
    }
    CHECK_INT(metric_value(fixture->nodes[0]->counted.handed_over), LOAD - 1);
    fixture_stop(fixture);
}

/* Nobody ends what it handed over: the grace time does, and the node leaves. */
TEST(node, leaves_when_the_grace_time_is_over)
{
    enum { MANY = 48 }; /* so that all answers take longer than the grace time */
    struct fixture *fixture = fixture_start(
        &(struct fixture_options){.nodes = 1, .kv_pages = MANY * 70, .grace_ms = 100});
    for (int i = 0; i < MANY; i++) {
        prompt_make((uint32_t)i);
        struct assign assign = local(0, i, 100, 900);
        fixture_assign(fixture, &assign);
        fixture_wait_answered(fixture, &assign);
        CHECK_INT(fixture->heard[0][i].verdict, BATON__NODE__V1__VERDICT__VERDICT_OK);
    }
    uint64_t begin_ns = clock_now_ns();
    fixture_drain(fixture, 0);
    fixture_until(fixture, has_left, NULL, "the node to leave");
    uint64_t took_ns = clock_now_ns() - begin_ns;
    /* what ends it is the grace time: neither its work's end nor the 5 s that a work has to end in */
    CHECK_MSG(took_ns >= 100 * NS_PER_MS && took_ns < 4 * NS_PER_S, "left after %.3f s",
              (double)took_ns / 1e9);
    CHECK(!fixture->heard[0][MANY - 1].finish && fixture->heard[0][MANY - 1].count < 900);
    fixture_stop(fixture);
}

static bool was_refused(struct fixture *fixture, void *context)
{
    (void)context;
    return fixture->refused[0];
}

TEST(node, a_refusal_is_final_and_names_the_field)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1});
    fixture->streams[0].refuse = true;
    rpc_call_abort(fixture->streams[0].call, GRPC_CODE_UNAVAILABLE, "restart");
    fixture_until(fixture, was_refused, NULL, "the refusal");
    CHECK(strstr(fixture->refusal.message, "page_tokens"));
    fixture_turn(fixture, 300 * NS_PER_MS);
    CHECK_INT(fixture->streams[0].registrations, 2); /* it does not try again */
    fixture_stop(fixture);
}

/* A rolling upgrade: a node of the first release hands over to one of today, and the other way round; the answers are those of
 * a node that does both, and the link carries frames of the older version. */
TEST(node, nodes_of_different_versions_hand_over)
{
    static const struct {
        int64_t max[2];
        uint32_t wire;
    } rows[] = {{{1, 0}, 1}, {{0, 1}, 1}, {{1, 1}, 1}, {{2, 0}, 2}, {{0, 0}, WIRE_NEWEST}};
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        struct fixture *fixture = fixture_start(&(struct fixture_options){
            .nodes = 3, .wire_max = {rows[row].max[0], rows[row].max[1], 0}});
        const struct kv_link *link =
            kv_link_find(fixture->nodes[0]->links, fixture->streams[1].incarnation);
        CHECK(link != NULL);
        CHECK_INT(kv_link_info(link).wire, rows[row].wire);
        CHECK_INT(fixture->streams[0].wires.max, rows[row].max[0] ? rows[row].max[0] : WIRE_NEWEST);
        for (int round = 0; round < 3; round++) {
            prompt_make((uint32_t)round);
            struct assign assign = local(2, round, 40 + 50 * (uint32_t)round, ANSWER);
            assign.logprobs = true;
            fixture_assign(fixture, &assign);
            hand_off(fixture, assign);
        }
        for (int round = 0; round < 3; round++) {
            for (int node = 0; node < 3; node++)
                fixture_wait_ended(fixture, node, round);
            heard_equal(&fixture->heard[2][round], &fixture->heard[1][round], ANSWER);
            CHECK_INT(fixture->heard[1][round].reports[REPORT(JOINED)], 1);
        }
        for (int node = 0; node < 3; node++) {
            const struct kv_counters *counters = kv_links_counters(fixture->nodes[node]->links);
            /* but a HELLO that comes before the router's word of its sender is one */
            CHECK_INT(node_stale_frames(fixture->nodes[node]) - counters->stale[KV_FRAME_HELLO], 0);
        }
        fixture_check_rest(fixture);
        fixture_stop(fixture);
    }
}

struct again {
    uint32_t registrations;
    double faults;
    enum seal_verdict fault;
};

static double faults_of(struct fixture *fixture, enum seal_verdict fault)
{
    return metric_value(fixture->nodes[0]->counted.stream_faults[fault]);
}

static bool was_counted(struct fixture *fixture, void *context)
{
    const struct again *again = context;
    return faults_of(fixture, again->fault) == again->faults;
}

static bool has_come_back(struct fixture *fixture, void *context)
{
    const struct again *again = context;
    return was_counted(fixture, context) &&
           fixture->streams[0].registrations == again->registrations &&
           fixture->streams[0].heartbeats > 1;
}

/* What is lost or altered on the way to a node ends its stream, and the work that the stream brought; what comes twice is dropped. */
TEST(node, a_message_that_is_not_as_it_was_sent)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1});
    struct fixture_stream *stream = &fixture->streams[0];
    static const struct {
        enum fixture_spoil spoil;
        enum seal_verdict fault;
    } rows[] = {{SPOIL_FLIP, SEAL_BROKEN}, {SPOIL_DROP, SEAL_GAP}};
    for (uint32_t row = 0; row < 2; row++) {
        prompt_make(15);
        struct assign assign = local(0, (int)row, 100, 900);
        fixture_assign(fixture, &assign);
        fixture_wait_answered(fixture, &assign);
        CHECK_INT(fixture->heard[0][row].verdict, BATON__NODE__V1__VERDICT__VERDICT_OK);
        stream->spoil = rows[row].spoil;
        fixture_end(fixture, 0, 100); /* nobody's: at once, as the work does not take long */
        fixture_end(fixture, 0, 101); /* the one behind tells that one is missing */
        struct again again = {2 + row, 1, rows[row].fault};
        fixture_until(fixture, has_come_back, &again, "another registration");
        fixture_check_rest(fixture); /* what the stream brought ends, once its layer has */
        CHECK(fixture->heard[0][row].count < 900);
    }
    stream->spoil = SPOIL_TWICE;
    struct again twice = {3, 1, SEAL_TWICE};
    fixture_until(fixture, was_counted, &twice, "a message that comes twice");
    fixture_turn(fixture, 100 * NS_PER_MS);
    CHECK_INT(stream->registrations, 3);
    CHECK(registration_up(fixture->nodes[0]->registration));
    /* the router's first message, too */
    stream->spoil = SPOIL_FLIP;
    rpc_call_abort(stream->call, GRPC_CODE_UNAVAILABLE, "restart");
    struct again welcome = {5, 2, SEAL_BROKEN};
    fixture_until(fixture, has_come_back, &welcome,
                  "a registration after a Welcome that was altered");
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(node, a_router_that_chooses_what_was_not_offered_is_refused)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1});
    fixture->welcome_wire = WIRE_NEWEST + 1;
    rpc_call_abort(fixture->streams[0].call, GRPC_CODE_UNAVAILABLE, "restart");
    fixture_until(fixture, was_refused, NULL, "the refusal");
    CHECK(strstr(fixture->refusal.message,
                 "wire: the router chose version 4, this node speaks 1 to 3"));
    fixture_stop(fixture);
}
