#include <time.h>

#include "router/holdings.h"
#include "tests/test.h"

static unsigned dice_state;

static uint64_t dice64(void)
{
    uint64_t out = 0;
    for (int i = 0; i < 5; i++)
        out = out << 15 ^ (uint64_t)rand_r(&dice_state);
    return out;
}

TEST(holdings, adds_removes_and_finds)
{
    struct holdings_index index = {.seed = 7, .entries_max = 100};
    struct holdings set = {0};
    CHECK(!holdings_has(&index, &set, 5));
    holdings_remove(&index, &set, 5); /* not there: nothing */
    CHECK(holdings_add(&index, &set, 100, 5));
    CHECK(holdings_add(&index, &set, 100, 5));
    CHECK_INT(set.count, 1);
    CHECK_INT(index.entries, 1);
    CHECK(holdings_has(&index, &set, 5) && !holdings_has(&index, &set, 6));
    holdings_remove(&index, &set, 6);
    holdings_remove(&index, &set, 5);
    holdings_remove(&index, &set, 5);
    CHECK(!holdings_has(&index, &set, 5));
    CHECK_INT(index.entries, 0);
    /* the hash whose mixed form is 0 */
    CHECK(holdings_add(&index, &set, 100, index.seed));
    CHECK(holdings_has(&index, &set, index.seed));
    holdings_remove(&index, &set, index.seed);
    CHECK(!holdings_has(&index, &set, index.seed));
    holdings_clear(&index, &set);
    CHECK_INT(index.bytes, 0);
}

TEST(holdings, bounds_hold_and_what_goes_beyond_is_counted)
{
    struct holdings_index index = {.seed = 7, .entries_max = 10};
    struct holdings sets[2] = {0};
    for (uint64_t i = 0; i < 8; i++)
        CHECK(holdings_add(&index, &sets[0], 7, i) == (i < 7)); /* of the set */
    CHECK_INT(index.forgotten, 1);
    for (uint64_t i = 0; i < 8; i++)
        CHECK(holdings_add(&index, &sets[1], 100, i) == (i < 3)); /* of all */
    CHECK_INT(index.forgotten, 6);
    CHECK_INT(index.entries, 10);
    CHECK(holdings_add(&index, &sets[0], 7, 3)); /* was there */
    holdings_remove(&index, &sets[0], 3);
    CHECK(holdings_add(&index, &sets[1], 100, 50));
    holdings_clear(&index, &sets[0]);
    CHECK_INT(index.entries, 4);
    for (uint64_t i = 0; i < 6; i++)
        CHECK(holdings_add(&index, &sets[1], 100, 100 + i));
    CHECK(!holdings_add(&index, &sets[1], 100, 999));
    holdings_clear(&index, &sets[1]);
    CHECK_INT(index.entries, 0);
    CHECK_INT(index.bytes, 0);
}

/* Three sets against plain arrays, growing and shrinking, with few distinct hashes and with many. */
static void against_arrays(unsigned seed, uint32_t distinct)
{
    enum { SETS = 3, DISTINCT_MAX = 5000 };
    static bool model[SETS][DISTINCT_MAX];
    static uint64_t hashes[DISTINCT_MAX];
    struct holdings sets[SETS] = {0};
    dice_state = seed;
    struct holdings_index index = {.seed = dice64(), .entries_max = distinct};
    uint64_t entries = 0, forgotten = 0;
    memset(model, 0, sizeof model);
    for (uint32_t i = 0; i < distinct; i++)
        hashes[i] = seed % 2 ? i : dice64(); /* neighbours, too */
    for (uint32_t step = 0; step < 20 * distinct; step++) {
        unsigned s = (unsigned)rand_r(&dice_state) % SETS;
        uint32_t i = (uint32_t)rand_r(&dice_state) % distinct;
        /* it fills and empties in turns */
        bool fills = step / (3 * distinct) % 2 == 0;
        if (rand_r(&dice_state) % 1000 == 0) {
            for (uint32_t k = 0; k < distinct; k++) {
                entries -= model[s][k];
                model[s][k] = false;
            }
            holdings_clear(&index, &sets[s]);
        } else if (rand_r(&dice_state) % 4 < (fills ? 1 : 3)) {
            entries -= model[s][i];
            model[s][i] = false;
            holdings_remove(&index, &sets[s], hashes[i]);
        } else {
            bool fits = model[s][i] || entries < distinct;
            CHECK(holdings_add(&index, &sets[s], distinct, hashes[i]) == fits);
            forgotten += !fits;
            entries += fits && !model[s][i];
            model[s][i] |= fits;
        }
        CHECK(holdings_has(&index, &sets[s], hashes[i]) == model[s][i]);
        CHECK(index.entries == entries && index.forgotten == forgotten);
        if (step % 512)
            continue;
        for (s = 0; s < SETS; s++)
            for (i = 0; i < distinct; i++)
                CHECK(holdings_has(&index, &sets[s], hashes[i]) == model[s][i]);
    }
    uint64_t bytes = 0;
    for (int s = 0; s < SETS; s++)
        for (int k = 0; k < HOLDINGS_SHARDS; k++) {
            const struct holdings_shard *shard = &sets[s].shards[k];
            bytes += shard->capacity * sizeof(uint64_t);
            CHECK(shard->count * 4 <= shard->capacity * 3);
            CHECK(shard->capacity <= 8 || shard->count * 8 > shard->capacity / 2);
        }
    CHECK(bytes == index.bytes);
    for (int s = 0; s < SETS; s++)
        holdings_clear(&index, &sets[s]);
    CHECK(index.entries == 0 && index.bytes == 0);
}

TEST(holdings, equals_a_plain_model)
{
    for (unsigned seed = 1; seed <= 8; seed++) {
        against_arrays(seed, 3);
        against_arrays(seed, 40);
        against_arrays(seed, 1000);
    }
    against_arrays(100, 5000);
    against_arrays(101, 5000);
}

TEST(holdings, the_length_of_a_prefix)
{
    enum { PAGES = 130 };
    uint64_t hashes[PAGES];
    dice_state = 5;
    for (int i = 0; i < PAGES; i++)
        hashes[i] = dice64();
    for (uint32_t have = 0; have <= PAGES; have++) {
        struct holdings_index index = {.seed = have, .entries_max = 1000};
        struct holdings set = {0};
        CHECK(holdings_add(&index, &set, 1000, dice64())); /* of another chain */
        for (uint32_t i = 0; i < have; i++)
            CHECK(holdings_add(&index, &set, 1000, hashes[i]));
        for (uint32_t count = 0; count <= PAGES; count++)
            CHECK_INT(holdings_prefix(&index, &set, hashes, count), have < count ? have : count);
        /* holes: never more than there are pages, and the last one is there */
        for (int holes = 0; have && holes < 4; holes++) {
            holdings_remove(&index, &set, hashes[(uint32_t)rand_r(&dice_state) % have]);
            uint32_t got = holdings_prefix(&index, &set, hashes, PAGES);
            CHECK(got <= have && (!got || holdings_has(&index, &set, hashes[got - 1])));
        }
        holdings_clear(&index, &set);
    }
}

/* Somebody who knows the code, but not the seed, sends hashes that would all meet in one place without it. */
TEST(holdings, hashes_cannot_be_made_to_meet)
{
    enum { HASHES = 1 << 15 };
    struct holdings_index index = {.seed = UINT64_C(0x9e3779b97f4a7c15), .entries_max = HASHES};
    struct holdings set = {0};
    for (uint64_t i = 0; i < HASHES; i++)
        CHECK(holdings_add(&index, &set, HASHES, i << 40));
    uint64_t longest = 0;
    for (int k = 0; k < HOLDINGS_SHARDS; k++) {
        const struct holdings_shard *shard = &set.shards[k];
        CHECK(shard->count < 2 * HASHES / HOLDINGS_SHARDS);
        uint64_t run = 0;
        for (uint32_t i = 0; i < shard->capacity; i++) {
            run = shard->slots[i] ? run + 1 : 0;
            longest = run > longest ? run : longest;
        }
    }
    CHECK_MSG(longest < 200, "%llu slots in a row", (unsigned long long)longest);
    holdings_clear(&index, &set);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A long prompt that two hundred nodes hold. */
TEST(holdings, two_hundred_nodes_are_asked_in_well_below_a_millisecond)
{
    enum { NODES = 200, PAGES = 250, OTHERS = 4750 };
    static struct holdings sets[NODES];
    struct holdings_index index = {.seed = 1, .entries_max = NODES * (PAGES + OTHERS)};
    uint64_t hashes[PAGES];
    dice_state = 9;
    for (int i = 0; i < PAGES; i++)
        hashes[i] = dice64();
    for (int n = 0; n < NODES; n++) {
        for (int i = 0; i < OTHERS; i++)
            holdings_add(&index, &sets[n], UINT64_MAX, dice64());
        for (int i = 0; i < PAGES; i++)
            holdings_add(&index, &sets[n], UINT64_MAX, hashes[i]);
    }
    CHECK(index.forgotten == 0);
    double least = 1;
    for (int round = 0; round < 20; round++) {
        double begun = seconds();
        for (int n = 0; n < NODES; n++)
            CHECK_INT(holdings_prefix(&index, &sets[n], hashes, PAGES), PAGES);
        double took = seconds() - begun;
        least = took < least ? took : least;
    }
    printf("# %d nodes asked for %d pages: %.0f us, %.1f bytes an entry\n", NODES, PAGES,
           least * 1e6, (double)index.bytes / (double)index.entries);
    CHECK_MSG(least < 5e-3, "%.0f us", least * 1e6);
    for (int n = 0; n < NODES; n++)
        holdings_clear(&index, &sets[n]);
}
