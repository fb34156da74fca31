/* The keyed hash of prefixes, see prefix.h: XXH3 (128 bits) with a secret made from the key. A node and the router compute the
 * same, so numbers go in as little-endian bytes. Not a MAC: who knows nothing of the key cannot aim at a bucket, and who could
 * would still be stopped by the comparison of ids. */
#include "sched/prefix.h"

#include <assert.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(PREFIX_SECRET_BYTES >= XXH3_SECRET_SIZE_MIN, "XXH3's rule");
enum { CHUNK_IDS = 128 };

void prefix_key_init(const uint8_t bytes[PREFIX_KEY_BYTES], struct prefix_key *key_out)
{
    key_out->mask = UINT64_MAX;
    XXH_errorcode code =
        XXH3_generateSecret(key_out->secret, sizeof key_out->secret, bytes, PREFIX_KEY_BYTES);
    assert(code == XXH_OK);
    (void)code;
}

static struct prefix_hash finish(const struct prefix_key *key, const void *data, size_t bytes)
{
    XXH128_hash_t hash = XXH3_128bits_withSecret(data, bytes, key->secret, sizeof key->secret);
    bool whole = key->mask == UINT64_MAX;
    return (struct prefix_hash){hash.low64 & key->mask, whole ? hash.high64 : 0};
}

static void u32_put(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

struct prefix_hash prefix_hash_root(const struct prefix_key *key,
                                    const uint8_t salt[PREFIX_SALT_BYTES])
{
    return finish(key, salt, PREFIX_SALT_BYTES);
}

struct prefix_hash prefix_hash_page(const struct prefix_key *key, struct prefix_hash parent,
                                    const uint32_t *ids, uint32_t page_tokens)
{
    uint8_t bytes[16 + 4 * CHUNK_IDS];
    struct prefix_hash hash = parent;
    do { /* one turn for all page sizes that there are */
        uint32_t count = page_tokens < CHUNK_IDS ? page_tokens : CHUNK_IDS;
        for (int i = 0; i < 2; i++) {
            uint64_t half = i ? hash.high : hash.low;
            u32_put(bytes + 8 * i, (uint32_t)half);
            u32_put(bytes + 8 * i + 4, (uint32_t)(half >> 32));
        }
        for (uint32_t i = 0; i < count; i++)
            u32_put(bytes + 16 + 4 * i, ids[i]);
        hash = finish(key, bytes, 16 + 4 * (size_t)count);
        ids += count;
        page_tokens -= count;
    } while (page_tokens);
    return hash;
}

uint32_t prefix_hashes(const struct prefix_key *key, const uint8_t salt[PREFIX_SALT_BYTES],
                       const uint32_t *ids, uint32_t count, uint32_t page_tokens,
                       struct prefix_hash *hashes_out)
{
    struct prefix_hash hash = prefix_hash_root(key, salt);
    uint32_t pages = page_tokens ? count / page_tokens : 0;
    for (uint32_t i = 0; i < pages; i++)
        hash = hashes_out[i] =
            prefix_hash_page(key, hash, ids + (size_t)i * page_tokens, page_tokens);
    return pages;
}
