/* The checksum of KV bytes: XXH3, 64 bits, seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). Whoever computes a page seals it
 * with this, whoever receives, restores or reuses it compares; so each byte that moves is hashed once on either side, and how fast
 * that goes is part of the link's speed. Compiled twice, for any processor and for AVX2 (twice as fast out of the cache, where
 * what has just come or been computed lies; out of memory hardly), and chosen at each call by what the processor has; the values are the same.
 *
 * Owner: any thread; no state. */
#ifndef BATON_BASE_CHECKSUM_H
#define BATON_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t checksum_of(const void *data, size_t bytes);
/* Copies (no overlap) and returns the checksum of what was written: in units that stay in the first-level cache, so that hashing
 * costs no second pass over memory. */
uint64_t checksum_copy(void *to, const void *from, size_t bytes);

/* For the test: the same by the plain code. */
uint64_t checksum_of_plain(const void *data, size_t bytes);

#endif
