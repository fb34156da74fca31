/* Who comes in, who gives way, and how: against a reference that tries everything on a copy of the pool. */
#include "sched/preempt.h"

#include <stdlib.h>
#include <string.h>

#include "tests/test.h"

static uint64_t random_state = 88172645463325252u;
static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % limit;
}

/* --- coming in --- */

TEST(preempt, pages_at_the_beginning)
{
    CHECK_INT(preempt_pages_first(1, 16, 10, false), 2);
    CHECK_INT(preempt_pages_first(16, 16, 10, false), 2);
    CHECK_INT(preempt_pages_first(17, 16, 10, false), 3);
    CHECK_INT(preempt_pages_first(17, 16, 2, false), 2); /* the whole answer fits */
    CHECK_INT(preempt_pages_first(17, 16, 10, true), 10);
}

TEST(preempt, headroom_doubles_up_to_all_that_the_elders_can_take)
{
    struct preempt_elders nobody = {0}, some = {.count = 3, .growth_pages = 40};
    CHECK_INT(preempt_headroom(&nobody, 0), 0);
    CHECK_INT(preempt_headroom(&nobody, 40), 0);
    CHECK_INT(preempt_headroom(&some, 0), 3);
    CHECK_INT(preempt_headroom(&some, 1), 6);
    CHECK_INT(preempt_headroom(&some, 3), 24);
    CHECK_INT(preempt_headroom(&some, 4), 40);
    CHECK_INT(preempt_headroom(&some, 31), 40);
    CHECK_INT(preempt_headroom(&some, 64), 40);
}

/* A newcomer beside one elder that grows page by page, in a pool of any size: how often it gives way is bounded. */
TEST(preempt, nobody_gives_way_again_and_again)
{
    for (uint32_t pool = 40; pool <= 4000; pool += 123) {
        uint32_t mine = 10, elder = 5, elder_whole = pool, times = 0;
        bool in = false;
        for (; elder < elder_whole; elder++) {
            uint32_t available = pool - elder - (in ? mine : 0);
            if (!available) { /* the elder wants one more */
                CHECK(in);
                in = false;
                times++;
                available = mine;
            }
            struct preempt_elders elders = {1, elder_whole - elder};
            if (!in && available - 1 >= mine + preempt_headroom(&elders, times))
                in = true;
        }
        uint32_t log2 = 0;
        while (pool >> log2)
            log2++;
        CHECK_MSG(times <= log2 + 1, "gave way %u times in a pool of %u", times, pool);
        CHECK(times >= 1);
    }
}

/* --- giving way --- */

enum { PAGES = 28, HOLDERS = 7 };

struct world {
    struct pool pool;
    struct preempt_holder holders[HOLDERS]; /* youngest first */
    uint32_t tables[HOLDERS][PAGES];
    bool live[HOLDERS];
};

/* Holders with pages of their own, published ones, and pages of others that they pin, as prefixes: a chain from its root. */
static void world_make(struct world *world)
{
    CHECK(!pool_init(&world->pool, PAGES));
    uint64_t age = 100;
    uint32_t chain[PAGES], chain_count = 0;
    for (int i = 0; i < HOLDERS; i++) {
        struct preempt_holder *holder = &world->holders[i];
        age -= random_below(3);
        *holder = (struct preempt_holder){
            .age = age, .pages = world->tables[i], .index = 100 + (uint32_t)i};
        uint32_t *table = world->tables[i],
                 shared = chain_count ? random_below(chain_count + 1) : 0;
        for (uint32_t k = 0; k < shared; k++) {
            table[holder->page_count++] = chain[k];
            pool_pin(&world->pool, chain[k]);
        }
        uint32_t own = random_below(5);
        if (pool_take(&world->pool, own, POOL_USED, holder->index, table + holder->page_count))
            own = 0;
        uint32_t published = random_below(own + 1);
        uint32_t parent = shared ? chain[shared - 1] : POOL_PAGE_NONE;
        if (shared && random_below(4) == 0) {
            /* an equal page of somebody's was there: it keeps its own, and goes on below a page that it does not hold */
            pool_unpin(&world->pool, table[shared - 1]);
            memmove(table + shared - 1, table + shared, own * sizeof *table);
            holder->page_count--;
            shared--;
        }
        for (uint32_t k = 0; k < published; k++) {
            pool_publish(&world->pool, holder->index, table[shared + k], parent);
            parent = table[shared + k];
        }
        holder->page_count += own;
        if (published && random_below(2)) { /* who comes next shares with this one */
            chain_count = 0;
            for (uint32_t k = 0; k < shared + published; k++)
                chain[chain_count++] = table[k];
            for (uint32_t k = 0; k + 1 < chain_count; k++)
                if (world->pool.pages[chain[k + 1]].parent != chain[k])
                    chain_count = 0;
        }
    }
    CHECK(pool_consistent(&world->pool));
}

/* What can be had after those holders have let go, on a copy. */
static uint32_t available_after(const struct world *world, const bool *gone)
{
    struct pool copy = world->pool;
    struct pool_page pages[PAGES];
    memcpy(pages, world->pool.pages, sizeof pages);
    copy.pages = pages;
    for (int i = 0; i < HOLDERS; i++)
        if (gone[i])
            pool_free(&copy, world->holders[i].index, world->tables[i],
                      world->holders[i].page_count);
    return pool_available(&copy);
}

TEST(preempt, victims_are_the_youngest_and_only_when_enough)
{
    struct preempt_scratch scratch;
    CHECK(!preempt_scratch_init(&scratch, PAGES));
    uint32_t enough = 0, in_vain = 0, spared = 0;
    for (int round = 0; round < 20000; round++) {
        struct world world = {0};
        world_make(&world);
        uint64_t age = 100 - random_below(16);
        uint32_t before = pool_available(&world.pool), missing = 1 + random_below(20);
        uint32_t victims[HOLDERS];
        uint32_t count =
            preempt_victims(&world.pool, &scratch, world.holders, HOLDERS, age, missing, victims);
        /* the reference: the fewest of the youngest that are enough */
        bool gone[HOLDERS] = {false};
        int asked = 0;
        while (asked < HOLDERS && world.holders[asked].age > age &&
               available_after(&world, gone) < before + missing)
            gone[asked++] = true;
        bool possible = available_after(&world, gone) >= before + missing;
        CHECK(possible == (count > 0));
        bool chosen[HOLDERS] = {false};
        for (uint32_t i = 0; i < count; i++) {
            uint32_t at = victims[i] - 100;
            CHECK(at < (uint32_t)asked && !chosen[at]);
            chosen[at] = true;
        }
        if (possible) {
            CHECK_INT(available_after(&world, chosen), available_after(&world, gone));
            enough++;
            spared += (uint32_t)asked - count;
        } else {
            in_vain++;
        }
        for (int i = 0; i < PAGES; i++)
            CHECK(!scratch.drops[i]);
        pool_finish(&world.pool);
    }
    CHECK_MSG(enough > 2000 && in_vain > 2000 && spared > 200, "%u enough, %u not, %u spared",
              enough, in_vain, spared);
    preempt_scratch_finish(&scratch);
}

/* Two share all that they have: neither alone frees a page, both together do. */
TEST(preempt, sharers_give_way_together)
{
    struct pool pool;
    struct preempt_scratch scratch;
    CHECK(!pool_init(&pool, 8));
    CHECK(!preempt_scratch_init(&scratch, 8));
    uint32_t pages[4];
    CHECK(!pool_take(&pool, 4, POOL_USED, 1, pages));
    uint32_t parent = POOL_PAGE_NONE;
    for (int i = 0; i < 4; i++) {
        pool_publish(&pool, 1, pages[i], parent);
        parent = pages[i];
        pool_pin(&pool, pages[i]);
    }
    struct preempt_holder holders[] = {{.age = 9, .pages = pages, .page_count = 4, .index = 2},
                                       {.age = 8, .pages = pages, .page_count = 4, .index = 1}};
    uint32_t victims[2];
    CHECK_INT(preempt_victims(&pool, &scratch, holders, 2, 8, 1, victims), 0);
    CHECK_INT(preempt_victims(&pool, &scratch, holders, 2, 5, 1, victims), 2);
    CHECK_INT(preempt_victims(&pool, &scratch, holders, 2, 5, 5, victims), 0);
    preempt_scratch_finish(&scratch);
    pool_finish(&pool);
}

/* --- the way --- */

TEST(preempt, the_cheaper_way_by_measured_rates)
{
    struct preempt_cost cost = {.swap_room = true,
                                .bytes = 100000000,
                                .tokens = 1000,
                                .copy_bytes_per_s = 1e9,
                                .prompt_tokens_per_s = 10000};
    CHECK_INT(preempt_choose(&cost), PREEMPT_RECOMPUTE); /* 0.2 s against 0.1 s */
    cost.prompt_tokens_per_s = 1000;
    CHECK_INT(preempt_choose(&cost), PREEMPT_SWAP);
    cost.swap_room = false;
    CHECK_INT(preempt_choose(&cost), PREEMPT_RECOMPUTE);
    cost.rule = PREEMPT_RULE_SWAP;
    CHECK_INT(preempt_choose(&cost), PREEMPT_RECOMPUTE);
    cost.swap_room = true;
    cost.prompt_tokens_per_s = 1e9;
    CHECK_INT(preempt_choose(&cost), PREEMPT_SWAP);
    cost.rule = PREEMPT_RULE_RECOMPUTE;
    cost.prompt_tokens_per_s = 1;
    CHECK_INT(preempt_choose(&cost), PREEMPT_RECOMPUTE);
    cost.rule = PREEMPT_RULE_AUTO;
    cost.copy_bytes_per_s = 0; /* not measured: it is by trying */
    CHECK_INT(preempt_choose(&cost), PREEMPT_SWAP);
}

TEST(preempt, what_ends_in_time)
{
    struct preempt_rest rest = {.tokens_left = 100, .step_ns = 1e7};
    CHECK(preempt_ends_within(&rest, 1000000000));
    CHECK(!preempt_ends_within(&rest, 999999999));
    rest.prompt_tokens_left = 1000;
    CHECK(preempt_ends_within(&rest, 1000000000)); /* a rate that nobody knows */
    rest.prompt_tokens_per_s = 1000;
    CHECK(!preempt_ends_within(&rest, 1000000000));
    CHECK(preempt_ends_within(&rest, 2000000001));
}
