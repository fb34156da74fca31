/* The page pool: all or nothing, disjoint states, one owner a page, and nobody overtakes an older
 * request. */
#include "sched/pool.h"

#include "tests/test.h"

TEST(pool, takes_all_or_nothing)
{
    struct pool pool;
    uint32_t pages[8];
    CHECK_INT(pool_init(&pool, 5), STATUS_OK);
    uint32_t next[4] = {pool_next(&pool, 0), pool_next(&pool, 1), pool_next(&pool, 2),
                        pool_next(&pool, 5)};
    CHECK_INT(pool_take(&pool, 3, POOL_USED, 0, pages), STATUS_OK);
    for (int i = 0; i < 3; i++)
        CHECK_INT(pages[i], next[i]);
    CHECK_INT(next[3], POOL_PAGE_NONE);
    uint32_t more[8] = {99, 99, 99};
    CHECK_INT(pool_take(&pool, 3, POOL_RESERVED, 1, more), STATUS_FULL);
    CHECK_INT(more[0], 99); /* untouched on failure */
    CHECK_INT(pool_count(&pool, POOL_FREE), 2);
    CHECK_INT(pool_take(&pool, 2, POOL_RESERVED, 1, more), STATUS_OK);
    CHECK_INT(pool_count(&pool, POOL_FREE), 0);
    CHECK_INT(pool_count(&pool, POOL_USED), 3);
    CHECK_INT(pool_count(&pool, POOL_RESERVED), 2);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            CHECK(pages[i] != more[j]);
    pool_fill(&pool, 1, more, 2);
    CHECK_INT(pool_count(&pool, POOL_USED), 5);
    pool_free(&pool, 0, pages, 3);
    CHECK_INT(pool_count(&pool, POOL_FREE), 3);
    CHECK(pool_consistent(&pool));
    pool_finish(&pool);
}

TEST(pool, quarantine_keeps_pages_until_recovered)
{
    struct pool pool;
    uint32_t pages[4];
    CHECK_INT(pool_init(&pool, 4), STATUS_OK);
    CHECK_INT(pool_take(&pool, 4, POOL_RESERVED, 7, pages), STATUS_OK);
    pool_quarantine(&pool, 7, pages, 2);
    pool_free(&pool, 7, pages + 2, 2);
    CHECK_INT(pool_count(&pool, POOL_QUARANTINED), 2);
    uint32_t other[4];
    CHECK_INT(pool_take(&pool, 3, POOL_USED, 8, other), STATUS_FULL);
    CHECK(pool_consistent(&pool));
    pool_recover(&pool, pages, 2);
    CHECK_INT(pool_take(&pool, 4, POOL_USED, 8, other), STATUS_OK);
    CHECK(pool_consistent(&pool));
    pool_finish(&pool);
}

TEST(pool, waiters_stand_by_age)
{
    struct pool pool;
    CHECK_INT(pool_init(&pool, 1), STATUS_OK);
    struct pool_waiter young = {0}, old = {0}, middle = {0};
    CHECK(!pool_wait_first(&pool));
    pool_wait(&pool, &young, 30, 1, 0);
    pool_wait(&pool, &old, 10, 9, 1);
    pool_wait(&pool, &middle, 20, 1, 2);
    CHECK(pool_wait_first(&pool) == &old); /* though it needs the most */
    pool_wait_end(&old);
    pool_wait_end(&old);
    CHECK(pool_wait_first(&pool) == &middle);
    pool_wait_end(&young);
    pool_wait_end(&middle);
    CHECK(!pool_wait_first(&pool));
    pool_finish(&pool);
}

/* A model beside the pool: who should own what. */
enum { PAGES = 37, OWNERS = 9, STEPS = 200000 };

struct held {
    uint32_t pages[PAGES];
    uint32_t count;
    bool filled;
};

static uint64_t xorshift(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

TEST(pool, random_operations_keep_one_owner_a_page)
{
    struct pool pool;
    struct held held[OWNERS] = {0}, quarantined = {0};
    uint64_t seed = 0x5eed2026;
    CHECK_INT(pool_init(&pool, PAGES), STATUS_OK);
    for (int step = 0; step < STEPS; step++) {
        uint32_t owner = (uint32_t)(xorshift(&seed) % OWNERS);
        struct held *h = &held[owner];
        uint32_t want = 1 + (uint32_t)(xorshift(&seed) % 12);
        switch (xorshift(&seed) % 5) {
        case 0:
        case 1:
            if (h->count)
                break;
            bool reserve = xorshift(&seed) % 2;
            enum status status =
                pool_take(&pool, want, reserve ? POOL_RESERVED : POOL_USED, owner, h->pages);
            uint32_t total = quarantined.count;
            for (int i = 0; i < OWNERS; i++)
                total += held[i].count;
            CHECK_INT(status, total + want <= PAGES ? STATUS_OK : STATUS_FULL);
            if (status == STATUS_OK) {
                h->count = want;
                h->filled = !reserve;
            }
            break;
        case 2:
            if (!h->filled)
                pool_fill(&pool, owner, h->pages, h->count);
            h->filled = true;
            break;
        case 3:
            pool_free(&pool, owner, h->pages, h->count);
            *h = (struct held){0};
            break;
        default:
            if (xorshift(&seed) % 4) {
                pool_recover(&pool, quarantined.pages, quarantined.count);
                quarantined.count = 0;
                break;
            }
            pool_quarantine(&pool, owner, h->pages, h->count);
            memcpy(quarantined.pages + quarantined.count, h->pages, h->count * sizeof h->pages[0]);
            quarantined.count += h->count;
            *h = (struct held){0};
        }
        bool seen[PAGES] = {false};
        uint32_t used = 0, reserved = 0;
        for (uint32_t i = 0; i < OWNERS; i++)
            for (uint32_t j = 0; j < held[i].count; j++) {
                uint32_t page = held[i].pages[j];
                CHECK(!seen[page] && pool.pages[page].owner == i);
                seen[page] = true;
                *(held[i].filled ? &used : &reserved) += 1;
            }
        CHECK_INT(pool_count(&pool, POOL_USED), used);
        CHECK_INT(pool_count(&pool, POOL_RESERVED), reserved);
        CHECK_INT(pool_count(&pool, POOL_QUARANTINED), quarantined.count);
        if (step % 1000 == 0)
            CHECK(pool_consistent(&pool));
    }
    pool_finish(&pool);
}

/* A chain of pages, some of which another sequence pins: the pins decide every state. */
TEST(pool, pins_decide_the_state_of_shared_pages)
{
    struct pool pool;
    uint32_t pages[3], other;
    CHECK_INT(pool_init(&pool, 4), STATUS_OK);
    CHECK_INT(pool_take(&pool, 3, POOL_USED, 1, pages), STATUS_OK);
    pool_publish(&pool, 1, pages[0], POOL_PAGE_NONE);
    pool_publish(&pool, 1, pages[1], pages[0]);
    CHECK_INT(pool_count(&pool, POOL_USED), 3); /* shared ones are in use too */
    CHECK_INT(pool_count(&pool, POOL_SHARED), 2);
    pool_free(&pool, 1, pages, 3);
    CHECK_INT(pool_count(&pool, POOL_CACHED), 2);
    CHECK_INT(pool_count(&pool, POOL_FREE), 2);
    CHECK_INT(pool_take(&pool, 1, POOL_USED, 2, &other), STATUS_OK);
    pool_publish(&pool, 2, other, pages[1]);
    CHECK_INT(pool_count(&pool, POOL_CACHED), 2); /* whoever is below */
    CHECK_INT(pool_available(&pool), 3);
    /* an operation of its own never ends: nobody's use, and not to be evicted either */
    pool_quarantine(&pool, 2, &other, 1);
    CHECK_INT(pool_count(&pool, POOL_QUARANTINED), 1);
    pool_pin(&pool, other); /* it can still be read */
    CHECK_INT(pool_count(&pool, POOL_QUARANTINED), 0);
    pool_unpin(&pool, other);
    pool_recover(&pool, &other, 1);
    CHECK_INT(pool_count(&pool, POOL_CACHED), 3);
    CHECK_INT(pool_available(&pool), 4);
    CHECK(pool_consistent(&pool));
    /* in the order in which they fell idle; what is pinned again is not in that order */
    pool_pin(&pool, pages[0]);
    CHECK_INT(pool_idle_next(&pool), pages[1]);
    CHECK_INT(pool_idle_next(&pool), other);
    CHECK_INT(pool_idle_next(&pool), POOL_PAGE_NONE);
    pool_unpin(&pool, pages[0]);
    CHECK_INT(pool_idle_next(&pool), pages[0]);
    CHECK_INT(pool_evict(&pool, other), pages[1]);
    CHECK_INT(pool_detach(&pool, pages[1]), pages[0]);
    CHECK_INT(pool_evict(&pool, pages[0]), POOL_PAGE_NONE);
    CHECK_INT(pool_evict(&pool, pages[1]), POOL_PAGE_NONE);
    CHECK_INT(pool_count(&pool, POOL_FREE), 4);
    CHECK(pool_consistent(&pool));
    pool_finish(&pool);
}
