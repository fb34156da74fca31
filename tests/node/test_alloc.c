/* Nothing is allocated once a node runs: pages, sequences, transfers, batches and tables were all taken at start. */
#include <stdlib.h>

#include "tests/node/alloc_guard.h"
#include "tests/node/fixture.h"

static bool careless(void *context)
{
    free(*(void *volatile *)context);
    *(void *volatile *)context = malloc(64);
    return false;
}

TEST(alloc, the_guard_sees_an_allocation)
{
    struct err err = ERR_INIT;
    struct loop *loop;
    struct loop_hook hook;
    void *volatile memory = NULL;
    CHECK(!loop_create(&loop, &err));
    loop_hook_add(loop, &hook, LOOP_SCHEDULE, careless, (void *)&memory);
    loop_round(loop, 0);
    alloc_guard_begin();
    loop_round(loop, 0);
    loop_round(loop, 0);
    CHECK_INT(alloc_guard_end(), 2);
    loop_round(loop, 0);
    CHECK_INT(alloc_guard_end(), 2);
    free(memory);
    loop_hook_remove(&hook);
    loop_destroy(loop);
}

static void everything(const struct fixture_options *options)
{
    enum { LOAD = 12 };
    struct fixture *fixture = fixture_start(options);
    alloc_guard_begin();
    for (int i = 0; i < LOAD; i++) {
        prompt_make((uint32_t)(i % 5)); /* some begin like others */
        struct assign assign = local(0, i, 30 + 23 * (uint32_t)i, 60);
        assign.logprobs = true;
        assign.temperature = i % 2 ? 0.8f : 0;
        assign.repetition_penalty = i % 3 ? 1.2f : 0;
        if (i % 3)
            hand_off(fixture, assign);
        else
            fixture_assign(fixture, &assign);
    }
    fixture_turn(fixture, 20 * NS_PER_MS);
    for (int node = 0; node < 2; node++)
        for (int i = 4; i < LOAD; i += 4)
            if (i % 3 || !node)
                fixture_end(fixture, node, i);
    for (int node = 0; node < 2; node++)
        for (int i = 0; i < LOAD; i++)
            if (i % 3 || !node)
                fixture_wait_ended(fixture, node, i);
    fixture_turn(fixture, 120 * NS_PER_MS); /* heartbeats */
    uint64_t allocations = alloc_guard_end();
    CHECK_MSG(allocations == 0, "%llu allocations", (unsigned long long)allocations);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(alloc, nothing_while_a_node_runs)
{
    everything(&(struct fixture_options){.nodes = 2, .kv_pages = 200, .ucx = true});
}

TEST(alloc, nothing_while_pages_run_short)
{
    everything(&(struct fixture_options){.nodes = 2,
                                         .kv_pages = 40,
                                         .reserve = NODE_RESERVE_NEED,
                                         .swap_pages = 12,
                                         .preempt_every = 7,
                                         .backend = "opaque",
                                         .ucx = true});
}
