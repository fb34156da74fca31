/* The prefix index and the pool below it, against a model that keeps for each page the whole path of tokens it stands for and
 * finds everything by walking: 10^5 random operations of sequences that start, publish, end, and of what else may happen. */
#include "sched/prefix.h"

#include "tests/test.h"

enum { PAGES = 48, PAGE_TOKENS = 2, DEPTH = 7, SEQS = 6, SALTS = 2, CHANGES = 64, TOLD_MAX = 4096 };

static const uint8_t keys[3][PREFIX_KEY_BYTES] = {{1}, {2, 9}, {3, 7, 7}};
static const uint8_t salts[SALTS][PREFIX_SALT_BYTES] = {{0}, {5, 5}};

struct model_page {
    bool indexed, removed;
    int salt;
    uint32_t depth, path[DEPTH * PAGE_TOKENS]; /* depth in pages, from 1 */
    uint32_t parent;
    uint32_t pins, stuck;
    uint64_t idle_since;
    bool held; /* after the last operation */
};

struct sequence {
    bool live, quarantined;
    int salt;
    uint32_t ids[DEPTH * PAGE_TOKENS], pages[DEPTH], blocks;
    struct prefix_cursor cursor;
};

struct world {
    struct pool pool;
    struct prefix prefix;
    struct model_page pages[PAGES];
    struct sequence sequences[SEQS];
    uint64_t told[TOLD_MAX], operation;
    uint32_t told_count;
    uint64_t random;
    uint32_t hits, duplicates, evictions, detached;
};

static uint32_t draw(struct world *w, uint32_t below)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->random >> 33) % below;
}

/* --- the model --- */

static bool model_held(const struct world *w, uint32_t page)
{
    return w->pages[page].pins || w->pages[page].stuck;
}

static bool model_leaf(const struct world *w, uint32_t page)
{
    for (uint32_t i = 0; i < PAGES; i++)
        if (w->pages[i].indexed && w->pages[i].parent == page)
            return false;
    return true;
}

static uint32_t model_child(const struct world *w, uint32_t parent, int salt, const uint32_t *ids,
                            uint32_t depth)
{
    for (uint32_t i = 0; i < PAGES; i++) {
        const struct model_page *p = &w->pages[i];
        if (p->indexed && !p->removed && p->parent == parent && p->salt == salt &&
            p->depth == depth && memcmp(p->path, ids, depth * PAGE_TOKENS * sizeof *ids) == 0)
            return i;
    }
    return POOL_PAGE_NONE;
}

static uint32_t model_lookup(const struct world *w, int salt, const uint32_t *ids, uint32_t max,
                             uint32_t *pages_out)
{
    uint32_t at = POOL_PAGE_NONE, depth = 0;
    while (depth < max && (at = model_child(w, at, salt, ids, depth + 1)) != POOL_PAGE_NONE)
        pages_out[depth++] = at;
    return depth;
}

/* Who fell idle by the last operation did so now; the pool agrees in every page. */
static void model_settle(struct world *w)
{
    w->operation++;
    for (uint32_t i = 0; i < PAGES; i++) {
        struct model_page *p = &w->pages[i];
        const struct pool_page *real = &w->pool.pages[i];
        CHECK_INT(real->indexed, p->indexed);
        if (!p->indexed)
            continue;
        bool held = model_held(w, i);
        if (p->held && !held)
            p->idle_since = w->operation;
        p->held = held;
        CHECK_INT(real->parent, p->parent);
        CHECK_INT(real->pins, p->pins);
        CHECK_INT(real->state == POOL_CACHED, !held);
        CHECK_INT(w->prefix.entries[i].removed, p->removed);
    }
}

/* --- what a program that is told of the changes knows --- */

static void told_forget(struct world *w, uint64_t hash)
{
    for (uint32_t i = 0; i < w->told_count; i++)
        if (w->told[i] == hash) {
            w->told[i] = w->told[--w->told_count];
            return;
        }
    TEST_FAIL("a hash goes that never came");
}

static void told_check(struct world *w)
{
    uint64_t gone[CHANGES], added[CHANGES];
    uint32_t gone_count, added_count;
    bool reset;
    uint32_t max = 1 + draw(w, CHANGES);
    while (prefix_changes_take(&w->prefix, max, gone, &gone_count, added, &added_count, &reset)) {
        CHECK(gone_count + added_count <= max);
        if (reset)
            w->told_count = 0;
        for (uint32_t i = 0; i < gone_count; i++)
            told_forget(w, gone[i]);
        for (uint32_t i = 0; i < added_count; i++)
            w->told[w->told_count++] = added[i];
        if (draw(w, 4) == 0)
            return; /* the rest comes another time */
    }
    uint32_t findable = 0;
    for (uint32_t i = 0; i < PAGES; i++) {
        if (!w->pages[i].indexed || w->pages[i].removed)
            continue;
        findable++;
        uint32_t top = i;
        bool cut = false;
        while (w->pages[top].parent != POOL_PAGE_NONE)
            cut |= w->pages[top = w->pages[top].parent].removed;
        if (cut || w->pages[top].depth > 1)
            continue; /* below what was cut off or wrong: not found again, whatever is said of it */
        struct prefix_hash hashes[DEPTH];
        uint32_t count = prefix_hashes(&w->prefix.key, salts[w->pages[i].salt], w->pages[i].path,
                                       w->pages[i].depth * PAGE_TOKENS, PAGE_TOKENS, hashes);
        CHECK_INT(count, w->pages[i].depth);
        bool known = false;
        for (uint32_t k = 0; k < w->told_count; k++)
            known |= w->told[k] == hashes[count - 1].low;
        CHECK(known);
    }
    CHECK_INT(w->told_count, findable);
    CHECK_INT(w->prefix.count, findable);
}

/* --- operations --- */

static uint64_t model_oldest(const struct world *w)
{
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < PAGES; i++) {
        const struct model_page *p = &w->pages[i];
        if (p->indexed && !p->held && model_leaf(w, i)) {
            uint64_t since = p->removed ? 0 : p->idle_since;
            oldest = since < oldest ? since : oldest;
        }
    }
    return oldest;
}

/* What is held and hangs below a page that nobody holds is cut off. */
static void model_detach(struct world *w)
{
    for (uint32_t i = 0; i < PAGES; i++) {
        struct model_page *p = &w->pages[i];
        if (p->indexed && p->held && p->parent != POOL_PAGE_NONE && !w->pages[p->parent].held) {
            p->parent = POOL_PAGE_NONE;
            p->removed = true;
            w->detached++;
        }
    }
}

/* The index's choice is a leaf that nobody holds, and none of these fell idle earlier. */
static void evict_check(struct world *w, uint32_t count)
{
    for (; count; count--) {
        uint64_t oldest = model_oldest(w);
        if (oldest == UINT64_MAX && pool_count(&w->pool, POOL_CACHED)) {
            model_detach(w);
            oldest = model_oldest(w);
        }
        uint32_t done = prefix_evict(&w->prefix, 1);
        CHECK_INT(done, oldest != UINT64_MAX);
        if (!done)
            return;
        uint32_t gone = POOL_PAGE_NONE;
        for (uint32_t i = 0; i < PAGES; i++)
            if (w->pages[i].indexed && !w->pool.pages[i].indexed) {
                CHECK_INT(gone, POOL_PAGE_NONE);
                gone = i;
            }
        CHECK(gone != POOL_PAGE_NONE);
        struct model_page *p = &w->pages[gone];
        CHECK(!p->held && model_leaf(w, gone));
        CHECK_INT(p->removed ? 0 : p->idle_since, oldest);
        p->indexed = false;
        if (!p->removed && p->parent != POOL_PAGE_NONE &&
            p->idle_since > w->pages[p->parent].idle_since)
            w->pages[p->parent].idle_since =
                p->idle_since; /* a path counts as used as its end is */
        w->evictions++;
    }
}

static void sequence_begin(struct world *w, struct sequence *s, uint32_t index)
{
    memset(s, 0, sizeof *s);
    s->salt = (int)draw(w, SALTS);
    s->blocks = 1 + draw(w, DEPTH);
    for (uint32_t i = 0; i < DEPTH * PAGE_TOKENS; i++)
        s->ids[i] = draw(w, 10) ? 7 : draw(w, 3);
    uint32_t expected[DEPTH], max = draw(w, s->blocks + 1);
    uint32_t hits = prefix_lookup(&w->prefix, salts[s->salt], s->ids, max, s->pages);
    CHECK_INT(hits, model_lookup(w, s->salt, s->ids, max, expected));
    for (uint32_t i = 0; i < hits; i++)
        CHECK_INT(s->pages[i], expected[i]);
    for (uint32_t i = 0; i < hits; i++) {
        pool_pin(&w->pool, s->pages[i]);
        w->pages[s->pages[i]].pins++;
    }
    model_settle(w);
    w->hits += hits;
    uint32_t missing = s->blocks - hits, free_pages = pool_count(&w->pool, POOL_FREE);
    if (pool_available(&w->pool) < missing) { /* not all of them: none */
        pool_free(&w->pool, index, s->pages, hits);
        for (uint32_t i = 0; i < hits; i++)
            w->pages[s->pages[i]].pins--;
        return;
    }
    if (free_pages < missing)
        evict_check(w, missing - free_pages);
    CHECK_INT(pool_take(&w->pool, missing, POOL_USED, index, s->pages + hits), STATUS_OK);
    s->live = true;
}

static void sequence_publish(struct world *w, struct sequence *s, uint32_t index)
{
    uint32_t blocks = draw(w, s->blocks + 1), before = w->prefix.count;
    struct prefix_cursor old = s->cursor;
    uint32_t made =
        prefix_publish(&w->prefix, &s->cursor, index, salts[s->salt], s->ids, s->pages, blocks);
    CHECK_INT(w->prefix.count, before + made);
    if (blocks <= old.blocks) {
        CHECK_INT(made, 0);
        return;
    }
    CHECK(s->cursor.blocks <= blocks);
    /* it goes on below the last page, or anew from the root when that is no longer there */
    const struct prefix_entry *last = &w->prefix.entries[old.page];
    bool on = old.blocks && last->serial == old.serial && !last->removed;
    uint32_t parent = on ? old.page : POOL_PAGE_NONE, model_made = 0;
    for (uint32_t b = on ? old.blocks : 0; b < s->cursor.blocks; b++) {
        uint32_t page = s->pages[b];
        struct model_page *p = &w->pages[page];
        if (!p->indexed && w->pool.pages[page].indexed) {
            *p = (struct model_page){.indexed = true,
                                     .salt = s->salt,
                                     .depth = b + 1,
                                     .parent = parent,
                                     .pins = 1,
                                     .held = true};
            memcpy(p->path, s->ids, (b + 1) * PAGE_TOKENS * sizeof *p->path);
            model_made++;
        } else if (!p->indexed) {
            page = model_child(w, parent, s->salt, s->ids, b + 1); /* somebody's equal page */
            CHECK(page != POOL_PAGE_NONE);
            w->duplicates++;
        }
        CHECK_INT(w->pages[page].parent, parent);
        parent = page;
    }
    CHECK_INT(made, model_made);
    if (s->cursor.blocks)
        CHECK_INT(s->cursor.page, parent);
}

static void sequence_end(struct world *w, struct sequence *s, uint32_t index)
{
    if (s->quarantined) {
        pool_recover(&w->pool, s->pages, s->blocks);
        for (uint32_t i = 0; i < s->blocks; i++)
            if (w->pages[s->pages[i]].indexed)
                w->pages[s->pages[i]].stuck--;
        s->live = false;
        return;
    }
    bool stuck = draw(w, 16) == 0;
    if (stuck)
        pool_quarantine(&w->pool, index, s->pages, s->blocks);
    else
        pool_free(&w->pool, index, s->pages, s->blocks);
    for (uint32_t i = 0; i < s->blocks; i++) {
        struct model_page *p = &w->pages[s->pages[i]];
        if (!p->indexed)
            continue;
        p->pins--;
        p->stuck += stuck;
    }
    s->quarantined = stuck;
    s->live = stuck;
}

static void operate(struct world *w)
{
    uint32_t index = draw(w, SEQS), kind = draw(w, 100);
    struct sequence *s = &w->sequences[index];
    if (kind < 70) {
        if (!s->live)
            sequence_begin(w, s, index);
        else if (!s->quarantined && draw(w, 3))
            sequence_publish(w, s, index);
        else
            sequence_end(w, s, index);
    } else if (kind < 75) {
        evict_check(w, draw(w, 4) ? 1 + draw(w, 4) : PAGES);
    } else if (kind < 77) {
        uint32_t page = draw(w, PAGES);
        if (w->pages[page].indexed) {
            prefix_remove(&w->prefix, page);
            w->pages[page].removed = true;
        }
    } else if (kind == 77 && draw(w, 10) == 0) {
        prefix_rekey(&w->prefix, keys[draw(w, 3)]);
    } else if (kind == 78 && draw(w, 10) == 0) {
        prefix_changes_reset(&w->prefix);
    } else if (kind < 85) {
        told_check(w);
    }
    model_settle(w);
}

static void storm(uint64_t seed, uint64_t mask, uint32_t operations)
{
    static struct world w;
    memset(&w, 0, sizeof w);
    w.random = seed;
    CHECK_INT(pool_init(&w.pool, PAGES), STATUS_OK);
    CHECK_INT(prefix_init(&w.prefix, &w.pool, PAGE_TOKENS, keys[0]), STATUS_OK);
    w.prefix.key.mask = mask;
    w.prefix.gone_max = 16; /* so that it overflows */
    for (uint32_t i = 0; i < operations; i++) {
        operate(&w);
        if (i % 16 == 0)
            CHECK_MSG(prefix_consistent(&w.prefix), "seed %llu, operation %u",
                      (unsigned long long)seed, i);
    }
    for (uint32_t i = 0; i < SEQS; i++)
        for (int twice = 0; twice < 2 && w.sequences[i].live; twice++)
            sequence_end(&w, &w.sequences[i], i);
    model_settle(&w);
    CHECK_INT(pool_count(&w.pool, POOL_USED), 0);
    CHECK_INT(pool_count(&w.pool, POOL_RESERVED), 0);
    CHECK_INT(pool_count(&w.pool, POOL_QUARANTINED), 0);
    evict_check(&w, PAGES);
    CHECK_INT(pool_count(&w.pool, POOL_FREE), PAGES);
    CHECK(prefix_consistent(&w.prefix));
    CHECK_MSG(w.hits > operations / 10 && w.duplicates > operations / 50 &&
                  w.evictions > operations / 50 && w.detached > operations / 1000,
              "%u hits, %u duplicates, %u evictions, %u detached: the storm is no storm", w.hits,
              w.duplicates, w.evictions, w.detached);
    prefix_finish(&w.prefix);
    pool_finish(&w.pool);
}

TEST(prefix, equals_its_model)
{
    storm(1, UINT64_MAX, 60000);
    storm(2, UINT64_MAX, 20000);
}

/* Four hashes for everything, or one: what is found is decided by parents, ids and salts alone. */
TEST(prefix, collisions_cost_time_only)
{
    storm(3, 3, 20000);
    storm(4, 0, 20000);
}

static void take(struct pool *pool, uint32_t owner, uint32_t count, uint32_t *pages)
{
    CHECK_INT(pool_take(pool, count, POOL_USED, owner, pages), STATUS_OK);
}

TEST(prefix, salts_never_share_and_ids_decide)
{
    struct pool pool;
    struct prefix prefix;
    uint32_t pages[3], found[3], ids[6] = {1, 2, 3, 4, 5, 6}, others[6] = {1, 2, 3, 9, 5, 6};
    CHECK_INT(pool_init(&pool, 8), STATUS_OK);
    CHECK_INT(prefix_init(&prefix, &pool, 0, keys[0]), STATUS_INVALID);
    CHECK_INT(prefix_init(&prefix, &pool, 2, keys[0]), STATUS_OK);
    prefix.key.mask = 0; /* all hashes are equal */
    take(&pool, 0, 3, pages);
    struct prefix_cursor cursor = {0};
    CHECK_INT(prefix_publish(&prefix, &cursor, 0, salts[1], ids, pages, 3), 3);
    CHECK_INT(prefix_publish(&prefix, &cursor, 0, salts[1], ids, pages, 3), 0);
    CHECK_INT(prefix_lookup(&prefix, salts[0], ids, 3, found), 0);
    CHECK_INT(prefix_lookup(&prefix, salts[1], ids, 3, found), 3);
    CHECK_INT(prefix_lookup(&prefix, salts[1], ids, 2, found), 2);
    CHECK_INT(prefix_lookup(&prefix, salts[1], others, 3, found), 1);
    /* the same ids two pages further on are not the same page */
    CHECK_INT(prefix_lookup(&prefix, salts[1], ids + 2, 2, found), 0);
    prefix_remove(&prefix, pages[1]);
    CHECK_INT(prefix_lookup(&prefix, salts[1], ids, 3, found), 1);
    pool_free(&pool, 0, pages, 3);
    CHECK_INT(pool_count(&pool, POOL_CACHED), 3);
    CHECK_INT(prefix_evict(&prefix, 9), 3);
    CHECK(prefix_consistent(&prefix));
    prefix_finish(&prefix);
    pool_finish(&pool);
}

/* A chain that is followed anew from the root, because its end went bad: where it now goes through another page than the one below
 * which the sequence's next page hangs, it ends there. What would hang below could not be found. */
TEST(prefix, nothing_is_hung_below_a_page_of_another_chain)
{
    struct pool pool;
    struct prefix prefix;
    uint32_t theirs[3], own[4], found[4];
    const uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    CHECK_INT(pool_init(&pool, 8), STATUS_OK);
    CHECK_INT(prefix_init(&prefix, &pool, 2, keys[0]), STATUS_OK);
    take(&pool, 1, 3, theirs);
    take(&pool, 0, 4, own);
    struct prefix_cursor cursor = {0}, other = {0};
    CHECK_INT(prefix_publish(&prefix, &other, 1, salts[1], ids, theirs, 1), 1);
    CHECK_INT(prefix_publish(&prefix, &cursor, 0, salts[1], ids, own, 2), 1); /* below theirs */
    CHECK_INT(pool.pages[own[1]].parent, theirs[0]);
    CHECK_INT(prefix_publish(&prefix, &other, 1, salts[1], ids, theirs, 3), 1); /* below own[1] */
    CHECK_INT(prefix_publish(&prefix, &cursor, 0, salts[1], ids, own, 3), 0);
    CHECK_INT(cursor.page, theirs[2]);
    prefix_remove(&prefix, theirs[2]);
    prefix_remove(&prefix, theirs[0]);
    CHECK_INT(prefix_publish(&prefix, &cursor, 0, salts[1], ids, own, 4), 1); /* own[0] alone */
    CHECK(pool.pages[own[0]].indexed && !pool.pages[own[2]].indexed && !pool.pages[own[3]].indexed);
    CHECK_INT(prefix_lookup(&prefix, salts[1], ids, 4, found), 1);
    CHECK_INT(found[0], own[0]);
    CHECK(prefix_consistent(&prefix));
    pool_free(&pool, 0, own, 4);
    pool_free(&pool, 1, theirs, 3);
    prefix_evict(&prefix, 9);
    CHECK(prefix_consistent(&prefix));
    CHECK_INT(pool_count(&pool, POOL_FREE), 8);
    prefix_finish(&prefix);
    pool_finish(&pool);
}

TEST(prefix, the_hash_is_keyed_salted_and_chained)
{
    struct prefix_key a, b;
    struct prefix_hash one[3], other[3];
    uint32_t ids[9] = {1, 2, 3, 1, 2, 3, 1, 2, 3};
    prefix_key_init(keys[0], &a);
    prefix_key_init(keys[1], &b);
    CHECK_INT(prefix_hashes(&a, salts[0], ids, 8, 3, one), 2); /* whole pages only */
    CHECK(one[0].low != one[1].low);
    CHECK_INT(prefix_hashes(&a, salts[1], ids, 9, 3, other), 3);
    CHECK(one[0].low != other[0].low && one[0].high != other[0].high);
    CHECK_INT(prefix_hashes(&b, salts[0], ids, 9, 3, other), 3);
    CHECK(one[0].low != other[0].low);
    CHECK_INT(prefix_hashes(&a, salts[0], ids, 9, 3, other), 3);
    CHECK(one[1].low == other[1].low && one[1].high == other[1].high);
    /* going on from the last gives the same */
    struct prefix_hash next = prefix_hash_page(&a, one[1], ids + 6, 3);
    CHECK(next.low == other[2].low && next.high == other[2].high);
    CHECK_INT(prefix_hashes(&a, salts[0], ids, 2, 3, one), 0);
    CHECK_INT(prefix_hashes(&a, salts[0], ids, 2, 0, one), 0);
    /* the same on every machine: written down once */
    CHECK_MSG(other[2].low == UINT64_C(0x5afaad17943decbc), "the chain's third hash is %016llx",
              (unsigned long long)other[2].low);
}
