/* What a step computes: budget, order, fairness, and that a lonely sequence stays alone. */
#include "sched/batch.h"

#include <stdlib.h>

#include "tests/test.h"

enum { MANY = 64 };
static const struct batch_limits limits = {
    .rows_max = 128, .chunk_tokens = 128, .sequences_max = 16, .page_tokens = 16};

static uint32_t rows_of(const struct batch_share *shares, uint32_t count, uint32_t index)
{
    uint32_t rows = 0, times = 0;
    for (uint32_t i = 0; i < count; i++)
        if (shares[i].index == index) {
            rows = shares[i].rows;
            times++;
        }
    CHECK(times <= 1);
    return rows;
}

/* A plan of candidates in order, those that decode before prompts. */
static uint32_t plan_of(struct batch_state *state, const struct batch_limits *of,
                        struct batch_candidate *candidates, uint32_t count,
                        struct batch_share *shares)
{
    uint32_t decode_count = 0, others = 0;
    for (uint32_t i = 0; i < count; i++)
        if (candidates[i].rows_left || candidates[i].alone)
            candidates[others++] = candidates[i];
        else if (decode_count < batch_decode_max(of))
            shares[decode_count++] = (struct batch_share){.index = candidates[i].index, .rows = 1};
    return batch_plan(state, of, candidates, others, decode_count, shares);
}

TEST(batch, nothing_to_do)
{
    struct batch_state state = {0};
    struct batch_share shares[MANY];
    CHECK_INT(plan_of(&state, &limits, NULL, 0, shares), 0);
}

TEST(batch, decode_rows_come_first_and_the_rest_is_a_prompt)
{
    struct batch_state state = {0};
    struct batch_share shares[MANY];
    struct batch_candidate c[] = {
        {.age = 2, .index = 11, .position = 5},
        {.age = 3, .index = 12, .position = 77},
        {.age = 1, .index = 10, .rows_left = 1000},
    };
    uint32_t count = plan_of(&state, &limits, c, 3, shares);
    CHECK_INT(count, 3);
    CHECK_INT(shares[0].index, 11);
    CHECK_INT(shares[1].index, 12);
    CHECK_INT(shares[2].index, 10);
    CHECK_INT(shares[2].rows, 112); /* 126 were left: cut to a page boundary */
}

TEST(batch, a_chunk_ends_at_a_page_or_at_the_end)
{
    struct batch_state state = {0};
    struct batch_share shares[MANY];
    struct batch_candidate c = {.age = 1, .index = 0, .rows_left = 200, .position = 7};
    CHECK_INT(plan_of(&state, &limits, &c, 1, shares), 1);
    CHECK_INT((7 + shares[0].rows) % 16, 0);
    CHECK_INT(shares[0].rows, 121);
    c = (struct batch_candidate){.age = 1, .index = 0, .rows_left = 3, .position = 128};
    CHECK_INT(plan_of(&state, &limits, &c, 1, shares), 1);
    CHECK_INT(shares[0].rows, 3);
    /* a budget below a page still moves on */
    struct batch_limits tiny = limits;
    tiny.rows_max = 4;
    c = (struct batch_candidate){.age = 1, .index = 0, .rows_left = 200, .position = 0};
    CHECK_INT(plan_of(&state, &tiny, &c, 1, shares), 1);
    CHECK_INT(shares[0].rows, 4);
}

TEST(batch, chunk_tokens_bounds_one_prompt)
{
    struct batch_state state = {0};
    struct batch_limits small = limits;
    struct batch_share shares[MANY];
    small.chunk_tokens = 16;
    struct batch_candidate c[] = {{.age = 1, .index = 0, .rows_left = 500},
                                  {.age = 2, .index = 1, .rows_left = 500}};
    uint32_t count = plan_of(&state, &small, c, 2, shares);
    CHECK_INT(count, 2);
    CHECK_INT(shares[0].rows, 16);
    CHECK_INT(shares[1].rows, 16);
}

/* Runs steps until sequence `index` has computed its prompt; returns how many that took. */
static uint32_t steps_until_done(struct batch_candidate *live, uint32_t count, uint32_t index)
{
    struct batch_state state = {0};
    for (uint32_t steps = 1; steps < 100000; steps++) {
        struct batch_candidate c[MANY];
        struct batch_share shares[MANY];
        uint32_t live_count = 0;
        for (uint32_t i = 0; i < count; i++)
            if (live[i].rows_left)
                c[live_count++] = live[i];
        uint32_t planned = plan_of(&state, &limits, c, live_count, shares);
        uint32_t rows = 0;
        for (uint32_t i = 0; i < planned; i++) {
            rows += shares[i].rows;
            live[shares[i].index].rows_left -= shares[i].rows;
            live[shares[i].index].position += shares[i].rows;
        }
        CHECK(rows <= limits.rows_max && planned > 0);
        if (!live[index].rows_left)
            return steps;
    }
    TEST_FAIL("sequence %u was starved", index);
    return 0;
}

TEST(batch, a_short_prompt_does_not_wait_for_a_long_one)
{
    struct batch_candidate live[2] = {{.age = 1, .index = 0, .rows_left = 30000},
                                      {.age = 2, .index = 1, .rows_left = 100}};
    CHECK(steps_until_done(live, 2, 1) <= 2);
    struct batch_candidate crowd[11];
    for (uint32_t i = 0; i < 10; i++)
        crowd[i] = (struct batch_candidate){.age = i, .index = i, .rows_left = 30000};
    crowd[10] = (struct batch_candidate){.age = 10, .index = 10, .rows_left = 100};
    CHECK(steps_until_done(crowd, 11, 10) <= 2);
}

TEST(batch, a_long_prompt_is_not_starved_by_short_ones)
{
    struct batch_state state = {0};
    struct batch_candidate live = {.age = 1, .index = 0, .rows_left = 3000};
    uint32_t steps = 0;
    for (; live.rows_left; steps++) { /* eight new short ones in every step */
        struct batch_candidate c[9] = {live};
        struct batch_share shares[MANY];
        for (uint32_t i = 1; i < 9; i++)
            c[i] = (struct batch_candidate){.age = 100 + steps, .index = i, .rows_left = 40};
        uint32_t count = plan_of(&state, &limits, c, 9, shares);
        uint32_t rows = rows_of(shares, count, 0);
        CHECK(rows >= 48);
        live.rows_left -= rows;
        live.position += rows;
    }
    CHECK(steps <= 3000 / 48 + 1);
}

TEST(batch, alone_is_alone_and_takes_turns)
{
    struct batch_state state = {0};
    struct batch_share shares[MANY];
    uint32_t alone = 0, rest = 0;
    for (int i = 0; i < 10; i++) {
        struct batch_candidate c[] = {{.age = 1, .index = 0, .position = 9},
                                      {.age = 2, .index = 1, .position = 9, .alone = true},
                                      {.age = 3, .index = 2, .rows_left = 50}};
        uint32_t count = plan_of(&state, &limits, c, 3, shares);
        if (rows_of(shares, count, 1)) {
            CHECK_INT(count, 1);
            alone++;
        } else {
            CHECK_INT(count, 2);
            rest++;
        }
    }
    CHECK_INT(alone, 5);
    CHECK_INT(rest, 5);
}

TEST(batch, beside_decoding_prompts_keep_to_their_rows)
{
    struct batch_state state = {0};
    struct batch_limits l = limits;
    struct batch_share shares[MANY];
    l.beside_rows = 32;
    struct batch_candidate c[] = {{.age = 5, .index = 0, .position = 9},
                                  {.age = 1, .index = 1, .rows_left = 500},
                                  {.age = 2, .index = 2, .rows_left = 500}};
    uint32_t count = plan_of(&state, &l, c, 3, shares);
    CHECK_INT(rows_of(shares, count, 0), 1);
    CHECK_INT(rows_of(shares, count, 1) + rows_of(shares, count, 2), 32);
    /* nothing decodes: the whole step is theirs */
    struct batch_candidate prompts[] = {{.age = 1, .index = 1, .rows_left = 500},
                                        {.age = 2, .index = 2, .rows_left = 500}};
    count = plan_of(&state, &l, prompts, 2, shares);
    CHECK_INT(rows_of(shares, count, 1) + rows_of(shares, count, 2), 128);
    /* a sequence that is alone and decodes has nobody beside it */
    struct batch_candidate alone[] = {{.age = 1, .index = 1, .rows_left = 500, .alone = true}};
    state.alone_last = false;
    count = plan_of(&state, &l, alone, 1, shares);
    CHECK_INT(rows_of(shares, count, 1), 128);
}

/* A machine of known cost: a step takes 2 ms, a decode row 1 ms more, a prompt row 0.1 ms and, with depth, up to 0.3 ms. */
static uint64_t machine_ns(uint32_t decode_rows, uint32_t prompt_rows, uint32_t position)
{
    double row_ns = 100000 + 200000.0 * position / 8000;
    return (uint64_t)(2000000 + 1000000.0 * decode_rows + row_ns * prompt_rows);
}

TEST(batch, the_pace_finds_the_rows_that_fit_a_gap)
{
    const uint64_t gap_ns = 50 * 1000000;
    struct batch_pace pace = {0};
    CHECK_INT(batch_beside_rows(&pace, 0, 16), 0);       /* no bound */
    CHECK_INT(batch_beside_rows(&pace, gap_ns, 16), 16); /* nothing measured: one page */
    uint32_t steps = 0, most = 0;
    for (uint32_t position = 0; position < 8000; steps++) {
        uint32_t rows = batch_beside_rows(&pace, gap_ns, 16);
        CHECK(rows > 0 && (rows < 16 || rows % 16 == 0));
        uint64_t step_ns = machine_ns(8, rows, position);
        CHECK_MSG(step_ns <= gap_ns, "a step of %u rows took %.1f ms", rows, (double)step_ns / 1e6);
        batch_pace_take(&pace, 8, rows, step_ns);
        position += rows;
        most = rows > most ? rows : most;
        if (steps == 3) /* decoding alone, measured at last */
            batch_pace_take(&pace, 8, 0, machine_ns(8, 0, 0));
    }
    CHECK_MSG(most >= 128 && steps < 120, "%u steps, at most %u rows", steps, most);
    /* one disturbed step costs a few smaller ones, then it is forgotten */
    uint32_t before = batch_beside_rows(&pace, gap_ns, 16);
    batch_pace_take(&pace, 8, before, 10 * gap_ns);
    CHECK(batch_beside_rows(&pace, gap_ns, 16) >= before / 2 - 16);
    for (int i = 0; i < 8; i++) {
        uint32_t rows = batch_beside_rows(&pace, gap_ns, 16);
        batch_pace_take(&pace, 8, rows, machine_ns(8, rows, 8000));
    }
    CHECK(batch_beside_rows(&pace, gap_ns, 16) + 32 >= before);
    /* where decoding alone fills the gap, prompts get an eighth of its time, and at least a row */
    pace = (struct batch_pace){.decode_ns = 8e6, .prompt_row_ns = 2e5};
    CHECK_INT(batch_beside_rows(&pace, 1, 16), 5);
    pace.prompt_row_ns = 9e6;
    CHECK_INT(batch_beside_rows(&pace, 1, 16), 1);
    /* between a row and a page, rows count one by one */
    pace = (struct batch_pace){.decode_ns = 20e6, .prompt_row_ns = 4e6};
    CHECK_INT(batch_beside_rows(&pace, 60000000, 16), 6);
}

static int in_order(const void *a, const void *b)
{
    const struct batch_candidate *left = a, *right = b;
    bool left_prompt = left->rows_left > 0, right_prompt = right->rows_left > 0;
    if (left_prompt != right_prompt)
        return left_prompt ? 1 : -1;
    return left->age < right->age ? -1 : left->age > right->age;
}

TEST(batch, random_plans_keep_the_limits)
{
    uint64_t seed = 88172645463325252u;
    struct batch_state state = {0};
    for (int round = 0; round < 50000; round++) {
        struct batch_candidate c[MANY], before[MANY];
        struct batch_share shares[MANY];
        struct batch_limits l = {.page_tokens = 16};
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        l.sequences_max = 1 + (seed >> 33) % 20;
        l.rows_max = 1 + (seed >> 40) % 200;
        l.chunk_tokens = 1 + (seed >> 48) % 100;
        l.beside_rows = (seed >> 28) % 3 * 16;
        uint32_t count = (seed >> 20) % 30;
        for (uint32_t i = 0; i < count; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            before[i] = c[i] =
                (struct batch_candidate){.age = (seed >> 33) % 50,
                                         .index = i,
                                         .rows_left = (seed >> 40) % 3 ? (seed >> 45) % 500 : 0,
                                         .position = (seed >> 20) % 300};
        }
        qsort(c, count, sizeof c[0], in_order);
        uint32_t planned = plan_of(&state, &l, c, count, shares), rows = 0;
        CHECK(planned <= l.sequences_max && (planned > 0 || !count));
        bool seen[MANY] = {false};
        uint32_t prompt_rows = 0, decode_rows = 0;
        for (uint32_t i = 0; i < planned; i++) {
            const struct batch_candidate *of = &before[shares[i].index];
            CHECK(!seen[shares[i].index]);
            seen[shares[i].index] = true;
            CHECK(shares[i].rows > 0);
            CHECK(of->rows_left
                      ? shares[i].rows <= of->rows_left && shares[i].rows <= l.chunk_tokens
                      : shares[i].rows == 1);
            rows += shares[i].rows;
            if (of->rows_left)
                prompt_rows += shares[i].rows;
            else
                decode_rows++;
        }
        CHECK(!decode_rows || !l.beside_rows || prompt_rows <= l.beside_rows);
        CHECK(rows <= l.rows_max);
    }
}
