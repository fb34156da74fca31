/* See prefix.h. Three structures over the same page numbers: a table by hash (to find), a heap of leaves (to evict), and the
 * journal. With a big pool none of it is in the processor's cache when it is wanted, so an entry is one line of it, a look-up reads
 * one of the table, and whoever goes through many pages asks for the next ones' lines early (prefetch).
 * The heap is lazy: a page that was pinned, or got a child, since it was put there is left out when its turn comes;
 * it is put there again when it falls idle, or when its last child goes. */
#include "sched/prefix.h"

#include <assert.h>
#include <string.h>

#include "base/huge.h"

enum { GONE_MAX = 4096, AHEAD = 8 /* blocks whose lines are asked for together */ };

_Static_assert(sizeof(struct prefix_entry) == 64, "an entry is one line of the cache");

static void slots_clear(struct prefix *prefix)
{
    memset(prefix->slots, 0xff, ((size_t)prefix->slot_mask + 1) * sizeof *prefix->slots);
}

enum status prefix_init(struct prefix *prefix, struct pool *pool, uint32_t page_tokens,
                        const uint8_t key[PREFIX_KEY_BYTES])
{
    *prefix = (struct prefix){.pool = pool, .page_tokens = page_tokens, .gone_max = GONE_MAX};
    if (!page_tokens)
        return STATUS_INVALID;
    prefix_key_init(key, &prefix->key);
    size_t total = pool->total ? pool->total : 1, slots = 2;
    while (slots < 2 * total)
        slots *= 2;
    prefix->slot_mask = (uint32_t)(slots - 1);
    /* each entry lies in one line of the processor's cache, and so do the ids of a page of 16 */
    prefix->entries = huge_alloc(total, sizeof *prefix->entries);
    prefix->ids = huge_alloc(total * page_tokens, sizeof *prefix->ids);
    prefix->slots = huge_alloc(slots, sizeof *prefix->slots);
    prefix->heap = huge_alloc(total, sizeof *prefix->heap);
    prefix->added = huge_alloc(total, sizeof *prefix->added);
    prefix->gone = huge_alloc(prefix->gone_max, sizeof *prefix->gone);
    prefix->path = huge_alloc(total, sizeof *prefix->path);
    if (!prefix->entries || !prefix->ids || !prefix->slots || !prefix->heap || !prefix->added ||
        !prefix->gone || !prefix->path)
        return STATUS_MEMORY;
    slots_clear(prefix);
    memset(prefix->ids, 0, total * page_tokens * sizeof *prefix->ids); /* see base/huge.h */
    memset(prefix->heap, 0, total * sizeof *prefix->heap);
    memset(prefix->added, 0, total * sizeof *prefix->added);
    for (size_t i = 0; i < total; i++)
        prefix->entries[i].heap_at = prefix->entries[i].added_at = POOL_PAGE_NONE;
    return STATUS_OK;
}

void prefix_finish(struct prefix *prefix)
{
    huge_free(prefix->entries);
    huge_free(prefix->ids);
    huge_free(prefix->slots);
    huge_free(prefix->heap);
    huge_free(prefix->added);
    huge_free(prefix->gone);
    huge_free(prefix->path);
    *prefix = (struct prefix){0};
}

/* --- the journal --- */

static void added_remove(struct prefix *prefix, uint32_t page)
{
    uint32_t at = prefix->entries[page].added_at;
    uint32_t last = prefix->added[--prefix->added_count];
    prefix->added[at] = last;
    prefix->entries[last].added_at = at;
    prefix->entries[page].added_at = POOL_PAGE_NONE;
}

static void journal_came(struct prefix *prefix, uint32_t page)
{
    if (prefix->lost)
        return;
    prefix->entries[page].added_at = prefix->added_count;
    prefix->added[prefix->added_count++] = page;
}

static void journal_went(struct prefix *prefix, uint32_t page)
{
    if (prefix->lost)
        return;
    if (prefix->entries[page].added_at != POOL_PAGE_NONE)
        added_remove(prefix, page); /* nobody was told that it came */
    else if (prefix->gone_count < prefix->gone_max)
        prefix->gone[prefix->gone_count++] = prefix->entries[page].hash.low;
    else
        prefix_changes_reset(prefix); /* more than can be kept: all of it anew */
}

static bool findable(const struct prefix_entry *entry)
{
    return entry->serial && !entry->removed;
}

void prefix_changes_reset(struct prefix *prefix)
{
    /* what there is to say is gathered when somebody asks: until then, and for ever when nobody reads, it costs nothing */
    prefix->reset = prefix->lost = true;
    for (uint32_t i = 0; i < prefix->added_count; i++)
        prefix->entries[prefix->added[i]].added_at = POOL_PAGE_NONE;
    prefix->gone_count = prefix->added_count = 0;
}

uint32_t prefix_changes_count(const struct prefix *prefix)
{
    return prefix->lost ? prefix->count : prefix->gone_count + prefix->added_count;
}

bool prefix_changes_take(struct prefix *prefix, uint32_t max, uint64_t *gone_out,
                         uint32_t *gone_count_out, uint64_t *added_out, uint32_t *added_count_out,
                         bool *reset_out)
{
    if (!prefix->reset && !prefix_changes_count(prefix))
        return false;
    if (prefix->lost) {
        prefix->lost = false;
        for (uint32_t i = 0; i < prefix->pool->total; i++)
            if (findable(&prefix->entries[i]))
                journal_came(prefix, i);
    }
    uint32_t gone = prefix->gone_count < max ? prefix->gone_count : max;
    prefix->gone_count -= gone;
    memcpy(gone_out, prefix->gone + prefix->gone_count, gone * sizeof *gone_out);
    uint32_t added = 0;
    for (; gone + added < max && prefix->added_count; added++) {
        uint32_t page = prefix->added[prefix->added_count - 1];
        added_out[added] = prefix->entries[page].hash.low;
        added_remove(prefix, page);
    }
    *gone_count_out = gone;
    *added_count_out = added;
    *reset_out = prefix->reset;
    prefix->reset = false;
    return true;
}

/* --- the table by hash --- */

static uint32_t slot_of(const struct prefix *prefix, struct prefix_hash hash)
{
    return (uint32_t)hash.low & prefix->slot_mask;
}

static void slot_add(struct prefix *prefix, uint32_t page)
{
    struct prefix_hash hash = prefix->entries[page].hash;
    uint32_t at = slot_of(prefix, hash);
    while (prefix->slots[at].page != POOL_PAGE_NONE)
        at = (at + 1) & prefix->slot_mask;
    prefix->slots[at] = (struct prefix_slot){page, (uint32_t)hash.low};
}

/* Those behind it move up, so that none stands behind an empty slot that comes after the one that it wants. */
static void slot_remove(struct prefix *prefix, uint32_t page)
{
    struct prefix_slot *slots = prefix->slots;
    uint32_t mask = prefix->slot_mask, at = slot_of(prefix, prefix->entries[page].hash);
    while (slots[at].page != page)
        at = (at + 1) & mask;
    for (uint32_t next = (at + 1) & mask; slots[next].page != POOL_PAGE_NONE;
         next = (next + 1) & mask) {
        uint32_t wanted = slots[next].hash & mask;
        if (((next - wanted) & mask) < ((next - at) & mask))
            continue; /* it stands behind `at` by right */
        slots[at] = slots[next];
        at = next;
    }
    slots[at].page = POOL_PAGE_NONE;
}

static uint32_t *ids_of(const struct prefix *prefix, uint32_t page)
{
    return prefix->ids + (size_t)page * prefix->page_tokens;
}

/* The page below `parent` that holds these ids; POOL_PAGE_NONE: there is none. */
static uint32_t child_find(const struct prefix *prefix, struct prefix_hash hash, uint32_t parent,
                           const uint8_t salt[PREFIX_SALT_BYTES], const uint32_t *ids)
{
    for (uint32_t at = slot_of(prefix, hash);; at = (at + 1) & prefix->slot_mask) {
        struct prefix_slot slot = prefix->slots[at];
        if (slot.page == POOL_PAGE_NONE)
            return POOL_PAGE_NONE;
        if (slot.hash != (uint32_t)hash.low)
            continue;
        const struct prefix_entry *entry = &prefix->entries[slot.page];
        if (entry->hash.low == hash.low && entry->hash.high == hash.high &&
            prefix->pool->pages[slot.page].parent == parent &&
            memcmp(ids_of(prefix, slot.page), ids, prefix->page_tokens * sizeof *ids) == 0 &&
            (parent != POOL_PAGE_NONE || memcmp(entry->salt, salt, PREFIX_SALT_BYTES) == 0))
            return slot.page;
    }
}

uint32_t prefix_lookup(const struct prefix *prefix, const uint8_t salt[PREFIX_SALT_BYTES],
                       const uint32_t *ids, uint32_t blocks_max, uint32_t *pages_out)
{
    struct prefix_hash hash = prefix_hash_root(&prefix->key, salt);
    uint32_t parent = POOL_PAGE_NONE, blocks = 0;
    for (; blocks < blocks_max; blocks++) {
        const uint32_t *of = ids + (size_t)blocks * prefix->page_tokens;
        hash = prefix_hash_page(&prefix->key, hash, of, prefix->page_tokens);
        parent = child_find(prefix, hash, parent, salt, of);
        if (parent == POOL_PAGE_NONE)
            break;
        pages_out[blocks] = parent;
    }
    return blocks;
}

/* --- publishing --- */

static void entry_make(struct prefix *prefix, uint32_t owner, uint32_t page, uint32_t parent,
                       struct prefix_hash hash, const uint8_t salt[PREFIX_SALT_BYTES],
                       const uint32_t *ids)
{
    struct prefix_entry *entry = &prefix->entries[page];
    assert(!entry->serial && entry->heap_at == POOL_PAGE_NONE);
    *entry = (struct prefix_entry){.hash = hash,
                                   .serial = ++prefix->serials,
                                   .heap_at = POOL_PAGE_NONE,
                                   .added_at = POOL_PAGE_NONE};
    memcpy(entry->salt, salt, PREFIX_SALT_BYTES);
    memcpy(ids_of(prefix, page), ids, prefix->page_tokens * sizeof *ids);
    pool_publish(prefix->pool, owner, page, parent);
    slot_add(prefix, page);
    journal_came(prefix, page);
    prefix->count++;
}

/* The lines of block `block`'s page, and of its ids. */
static void block_touch(const struct prefix *prefix, const uint32_t *ids, const uint32_t *pages,
                        uint32_t block)
{
    __builtin_prefetch(ids + (size_t)block * prefix->page_tokens);
    __builtin_prefetch(&prefix->entries[pages[block]], 1);
    __builtin_prefetch(ids_of(prefix, pages[block]), 1);
    __builtin_prefetch(&prefix->pool->pages[pages[block]], 1);
}

/* The hashes of the cursor's next `count` blocks. */
static void blocks_hash(const struct prefix *prefix, const struct prefix_cursor *cursor,
                        const uint8_t salt[PREFIX_SALT_BYTES], const uint32_t *ids, uint32_t count,
                        struct prefix_hash *hashes_out)
{
    struct prefix_hash above =
        cursor->blocks ? prefix->entries[cursor->page].hash : prefix_hash_root(&prefix->key, salt);
    ids += (size_t)cursor->blocks * prefix->page_tokens;
    for (uint32_t i = 0; i < count; i++, ids += prefix->page_tokens) {
        hashes_out[i] = above = prefix_hash_page(&prefix->key, above, ids, prefix->page_tokens);
        __builtin_prefetch(&prefix->slots[slot_of(prefix, above)], 1);
    }
}

/* Puts the cursor's next block in its place; false: it has none. */
static bool block_publish(struct prefix *prefix, struct prefix_cursor *cursor, uint32_t owner,
                          struct prefix_hash hash, const uint8_t salt[PREFIX_SALT_BYTES],
                          const uint32_t *ids, const uint32_t *pages, uint32_t *made)
{
    uint32_t parent = cursor->blocks ? cursor->page : POOL_PAGE_NONE;
    uint32_t page = pages[cursor->blocks];
    if (prefix->pool->pages[page].indexed) { /* its own of before, or a hit */
        if (prefix->entries[page].removed || prefix->pool->pages[page].parent != parent)
            return false; /* what is below a page that went bad is not found again */
    } else {
        const uint32_t *of = ids + (size_t)cursor->blocks * prefix->page_tokens;
        uint32_t other = child_find(prefix, hash, parent, salt, of);
        if (other == POOL_PAGE_NONE) {
            entry_make(prefix, owner, page, parent, hash, salt, of);
            (*made)++;
        } else {
            page = other;
        }
    }
    cursor->page = page;
    cursor->serial = prefix->entries[page].serial;
    cursor->blocks++;
    return true;
}

uint32_t prefix_publish(struct prefix *prefix, struct prefix_cursor *cursor, uint32_t owner,
                        const uint8_t salt[PREFIX_SALT_BYTES], const uint32_t *ids,
                        const uint32_t *pages, uint32_t blocks)
{
    if (cursor->blocks >= blocks)
        return 0;
    /* somebody else's page at the end of the chain may have gone meanwhile: then it is followed anew from the root */
    const struct prefix_entry *last = &prefix->entries[cursor->blocks ? cursor->page : 0];
    if (!cursor->blocks || last->serial != cursor->serial || last->removed)
        *cursor = (struct prefix_cursor){.page = POOL_PAGE_NONE};
    uint32_t made = 0;
    while (cursor->blocks < blocks) {
        struct prefix_hash hashes[AHEAD];
        uint32_t left = blocks - cursor->blocks, count = left < AHEAD ? left : AHEAD;
        for (uint32_t i = 0; i < count; i++)
            block_touch(prefix, ids, pages, cursor->blocks + i);
        blocks_hash(prefix, cursor, salt, ids, count, hashes);
        for (uint32_t i = 0; i < count; i++)
            if (!block_publish(prefix, cursor, owner, hashes[i], salt, ids, pages, &made))
                return made;
    }
    return made;
}

void prefix_publish_touch(const struct prefix *prefix, const struct prefix_cursor *cursor,
                          const uint32_t *ids, const uint32_t *pages)
{
    block_touch(prefix, ids, pages, cursor->blocks);
    if (cursor->blocks) {
        __builtin_prefetch(&prefix->entries[cursor->page]);
        __builtin_prefetch(&prefix->pool->pages[cursor->page], 1);
    }
}

void prefix_publish_seek(const struct prefix *prefix, const struct prefix_cursor *cursor,
                         const uint8_t salt[PREFIX_SALT_BYTES], const uint32_t *ids)
{
    struct prefix_hash hash;
    blocks_hash(prefix, cursor, salt, ids, 1, &hash);
}

/* --- evicting --- */

static void heap_put(struct prefix *prefix, uint32_t at, struct prefix_leaf leaf)
{
    prefix->heap[at] = leaf;
    prefix->entries[leaf.page].heap_at = at;
}

static void heap_sift(struct prefix *prefix, uint32_t at, struct prefix_leaf leaf)
{
    while (at && prefix->heap[(at - 1) / 2].used > leaf.used) {
        heap_put(prefix, at, prefix->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < prefix->heap_count &&
            prefix->heap[child + 1].used < prefix->heap[child].used)
            child++;
        if (child >= prefix->heap_count || prefix->heap[child].used >= leaf.used)
            break;
        heap_put(prefix, at, prefix->heap[child]);
        at = child;
    }
    heap_put(prefix, at, leaf);
}

/* Into the heap, or to its new place there. */
static void heap_set(struct prefix *prefix, uint32_t page)
{
    struct prefix_entry *entry = &prefix->entries[page];
    uint32_t at = entry->heap_at == POOL_PAGE_NONE ? prefix->heap_count++ : entry->heap_at;
    heap_sift(prefix, at, (struct prefix_leaf){entry->used, page});
}

static uint32_t heap_pop(struct prefix *prefix)
{
    uint32_t page = prefix->heap[0].page;
    prefix->entries[page].heap_at = POOL_PAGE_NONE;
    struct prefix_leaf last = prefix->heap[--prefix->heap_count];
    if (prefix->heap_count)
        heap_sift(prefix, 0, last);
    return page;
}

/* What fell idle since the last time. */
static void idle_take(struct prefix *prefix)
{
    uint32_t page;
    while ((page = pool_idle_next(prefix->pool)) != POOL_PAGE_NONE) {
        prefix->entries[page].used = prefix->entries[page].removed ? 0 : ++prefix->clock;
        if (!prefix->pool->pages[page].children)
            heap_set(prefix, page);
    }
}

static void evict_one(struct prefix *prefix, uint32_t page)
{
    struct prefix_entry *entry = &prefix->entries[page];
    entry->serial = 0;
    if (prefix->pool->pages[page].parent != POOL_PAGE_NONE) { /* who goes next, most often */
        __builtin_prefetch(&prefix->pool->pages[prefix->pool->pages[page].parent], 1);
        __builtin_prefetch(&prefix->entries[prefix->pool->pages[page].parent], 1);
    }
    if (!entry->removed) {
        slot_remove(prefix, page);
        prefix->count--;
        journal_went(prefix, page);
    }
    uint32_t parent = pool_evict(prefix->pool, page);
    if (parent == POOL_PAGE_NONE)
        return;
    struct prefix_entry *above = &prefix->entries[parent];
    if (above->used < entry->used && !above->removed)
        above->used = entry->used;
    const struct pool_page *p = &prefix->pool->pages[parent];
    if (p->children || p->state != POOL_CACHED)
        return;
    __builtin_prefetch(&prefix->slots[slot_of(prefix, above->hash)], 1);
    if (p->parent != POOL_PAGE_NONE) {
        __builtin_prefetch(&prefix->pool->pages[p->parent], 1);
        __builtin_prefetch(&prefix->entries[p->parent], 1);
    }
    heap_set(prefix, parent);
}

void prefix_remove(struct prefix *prefix, uint32_t page)
{
    struct prefix_entry *entry = &prefix->entries[page];
    assert(entry->serial);
    if (entry->removed)
        return;
    entry->removed = true;
    entry->used = 0;
    slot_remove(prefix, page);
    prefix->count--;
    journal_went(prefix, page);
    if (entry->heap_at != POOL_PAGE_NONE)
        heap_set(prefix, page);
}

/* No leaf is left, and yet there are CACHED pages: all of them have somebody below that is held. (A sequence had its own copy of a
 * page that was here already, hung its next one below that, and is still there.) Cuts these off, so that nothing held keeps a page
 * that nobody holds. Walks all pages, and frees at least one. */
static void held_detach(struct prefix *prefix)
{
    const struct pool_page *pages = prefix->pool->pages;
    for (uint32_t i = 0; i < prefix->pool->total; i++) {
        if (!pages[i].indexed || pages[i].state == POOL_CACHED ||
            pages[i].parent == POOL_PAGE_NONE || pages[pages[i].parent].state != POOL_CACHED)
            continue;
        prefix_remove(prefix, i);
        uint32_t parent = pool_detach(prefix->pool, i);
        if (!pages[parent].children)
            heap_set(prefix, parent);
    }
}

uint32_t prefix_evict(struct prefix *prefix, uint32_t count)
{
    idle_take(prefix);
    uint32_t done = 0;
    while (done < count && pool_count(prefix->pool, POOL_CACHED)) {
        if (!prefix->heap_count)
            held_detach(prefix);
        uint32_t page = heap_pop(prefix);
        const struct pool_page *p = &prefix->pool->pages[page];
        if (p->state != POOL_CACHED || p->children)
            continue;
        evict_one(prefix, page);
        done++;
    }
    return done;
}

/* --- another key --- */

/* The hash of `page` and of what is above it, from the highest that is not done yet. */
static void rehash(struct prefix *prefix, uint32_t page)
{
    const struct pool_page *pages = prefix->pool->pages;
    uint32_t depth = 0;
    for (; page != POOL_PAGE_NONE && prefix->entries[page].mark != page; page = pages[page].parent)
        prefix->path[depth++] = page;
    while (depth--) {
        page = prefix->path[depth];
        struct prefix_entry *entry = &prefix->entries[page];
        uint32_t parent = pages[page].parent;
        struct prefix_hash above = parent == POOL_PAGE_NONE
                                       ? prefix_hash_root(&prefix->key, entry->salt)
                                       : prefix->entries[parent].hash;
        entry->hash =
            prefix_hash_page(&prefix->key, above, ids_of(prefix, page), prefix->page_tokens);
        entry->mark = page; /* done; its place in the table comes after all */
    }
}

void prefix_rekey(struct prefix *prefix, const uint8_t key[PREFIX_KEY_BYTES])
{
    uint64_t mask = prefix->key.mask;
    prefix_key_init(key, &prefix->key);
    prefix->key.mask = mask;
    slots_clear(prefix);
    uint32_t total = prefix->pool->total;
    for (uint32_t i = 0; i < total; i++)
        prefix->entries[i].mark = POOL_PAGE_NONE;
    for (uint32_t i = 0; i < total; i++)
        if (prefix->entries[i].serial)
            rehash(prefix, i);
    for (uint32_t i = 0; i < total; i++)
        if (findable(&prefix->entries[i]))
            slot_add(prefix, i);
    prefix_changes_reset(prefix);
}

/* --- for tests --- */

static bool entry_consistent(const struct prefix *prefix, uint32_t page)
{
    const struct prefix_entry *entry = &prefix->entries[page];
    const struct pool_page *p = &prefix->pool->pages[page];
    if ((entry->serial != 0) != p->indexed)
        return false;
    if (entry->heap_at != POOL_PAGE_NONE &&
        (entry->heap_at >= prefix->heap_count || prefix->heap[entry->heap_at].page != page))
        return false;
    if (!entry->serial)
        return entry->heap_at == POOL_PAGE_NONE && entry->added_at == POOL_PAGE_NONE;
    if (p->state == POOL_CACHED && !p->children && !p->idle && entry->heap_at == POOL_PAGE_NONE)
        return false; /* it could never be evicted */
    uint32_t at = slot_of(prefix, entry->hash);
    while (prefix->slots[at].page != page && prefix->slots[at].page != POOL_PAGE_NONE)
        at = (at + 1) & prefix->slot_mask;
    return (prefix->slots[at].page == page) == !entry->removed;
}

bool prefix_consistent(const struct prefix *prefix)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < prefix->pool->total; i++) {
        if (!entry_consistent(prefix, i))
            return false;
        count += findable(&prefix->entries[i]);
    }
    for (uint32_t i = 1; i < prefix->heap_count; i++)
        if (prefix->heap[(i - 1) / 2].used > prefix->heap[i].used)
            return false;
    for (uint32_t i = 0; i < prefix->added_count; i++)
        if (prefix->entries[prefix->added[i]].added_at != i)
            return false;
    return count == prefix->count && pool_consistent(prefix->pool);
}
