/* See holdings.h. */
#include "router/holdings.h"

#include <stdlib.h>

enum { CAPACITY_LEAST = 8 };

/* A bijection (the finalizer of splitmix64), but that 0 is taken for 1. */
static uint64_t mix(const struct holdings_index *index, uint64_t hash)
{
    uint64_t x = hash ^ index->seed;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x ? x : 1;
}

static unsigned shard_of(uint64_t key)
{
    return (unsigned)(key >> 58);
}

static uint32_t home_of(const struct holdings_shard *shard, uint64_t key)
{
    return (uint32_t)key & (shard->capacity - 1);
}

/* The key's slot, or the empty one where it would go. There is always an empty one. */
static uint32_t find(const struct holdings_shard *shard, uint64_t key)
{
    uint32_t at = home_of(shard, key);
    while (shard->slots[at] && shard->slots[at] != key)
        at = (at + 1) & (shard->capacity - 1);
    return at;
}

static bool resize(struct holdings_index *index, struct holdings_shard *shard, uint32_t capacity)
{
    struct holdings_shard larger = {.capacity = capacity, .count = shard->count};
    larger.slots = calloc(capacity, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (uint32_t i = 0; i < shard->capacity; i++)
        if (shard->slots[i])
            larger.slots[find(&larger, shard->slots[i])] = shard->slots[i];
    index->bytes += (uint64_t)capacity * sizeof *larger.slots;
    index->bytes -= (uint64_t)shard->capacity * sizeof *larger.slots;
    free(shard->slots);
    *shard = larger;
    return true;
}

static bool has_slot(struct holdings_index *index, struct holdings_shard *shard)
{
    if (!shard->capacity)
        return resize(index, shard, CAPACITY_LEAST);
    if ((uint64_t)(shard->count + 1) * 4 <= (uint64_t)shard->capacity * 3)
        return true;
    return shard->capacity <= UINT32_MAX / 2 && resize(index, shard, 2 * shard->capacity);
}

bool holdings_add(struct holdings_index *index, struct holdings *set, uint64_t most, uint64_t hash)
{
    uint64_t key = mix(index, hash);
    struct holdings_shard *shard = &set->shards[shard_of(key)];
    if (shard->capacity && shard->slots[find(shard, key)])
        return true;
    if (index->entries >= index->entries_max || set->count >= most || !has_slot(index, shard)) {
        index->forgotten++;
        return false;
    }
    shard->slots[find(shard, key)] = key;
    shard->count++;
    set->count++;
    index->entries++;
    return true;
}

/* Slot `at` is empty from now on: what follows without a gap, and was pushed past it, moves up. */
static void close_gap(struct holdings_shard *shard, uint32_t at)
{
    uint32_t mask = shard->capacity - 1;
    for (uint32_t next = (at + 1) & mask; shard->slots[next]; next = (next + 1) & mask) {
        uint32_t home = home_of(shard, shard->slots[next]);
        if (((next - home) & mask) < ((next - at) & mask))
            continue; /* its home lies behind the gap */
        shard->slots[at] = shard->slots[next];
        at = next;
    }
    shard->slots[at] = 0;
}

void holdings_remove(struct holdings_index *index, struct holdings *set, uint64_t hash)
{
    uint64_t key = mix(index, hash);
    struct holdings_shard *shard = &set->shards[shard_of(key)];
    uint32_t at = shard->capacity ? find(shard, key) : 0;
    if (!shard->capacity || !shard->slots[at])
        return;
    close_gap(shard, at);
    shard->count--;
    set->count--;
    index->entries--;
    /* without memory for less it stays as it is */
    if (shard->capacity > CAPACITY_LEAST && shard->count * 8 <= shard->capacity)
        resize(index, shard, shard->capacity / 2);
}

void holdings_clear(struct holdings_index *index, struct holdings *set)
{
    for (int i = 0; i < HOLDINGS_SHARDS; i++) {
        index->bytes -= (uint64_t)set->shards[i].capacity * sizeof *set->shards[i].slots;
        free(set->shards[i].slots);
    }
    index->entries -= set->count;
    *set = (struct holdings){0};
}

bool holdings_has(const struct holdings_index *index, const struct holdings *set, uint64_t hash)
{
    uint64_t key = mix(index, hash);
    const struct holdings_shard *shard = &set->shards[shard_of(key)];
    return shard->capacity && shard->slots[find(shard, key)];
}

uint32_t holdings_prefix(const struct holdings_index *index, const struct holdings *set,
                         const uint64_t *hashes, uint32_t count)
{
    if (!count || !set->count || !holdings_has(index, set, hashes[0]))
        return 0;
    /* `have` pages are there, `lack` are not */
    uint32_t have = 1, lack = count + 1;
    for (uint32_t step = 1; have + step < lack; step *= 2) {
        if (!holdings_has(index, set, hashes[have + step - 1])) {
            lack = have + step;
            break;
        }
        have += step;
    }
    while (have + 1 < lack) {
        uint32_t middle = have + (lack - have) / 2;
        if (holdings_has(index, set, hashes[middle - 1]))
            have = middle;
        else
            lack = middle;
    }
    return have;
}
