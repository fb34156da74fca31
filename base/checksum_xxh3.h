/* The body of checksum.h, compiled once for each instruction set: included by checksum.c and checksum_avx2.c alone. xxHash in line,
 * which takes the widest vectors that the including file is compiled for; its library's own entry is built for every processor. */
#ifndef BATON_BASE_CHECKSUM_XXH3_H
#define BATON_BASE_CHECKSUM_XXH3_H

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/checksum.h"

/* checksum.c's; only where the processor has AVX2 */
uint64_t checksum_of_avx2(const void *data, size_t bytes);
uint64_t checksum_copy_avx2(void *to, const void *from, size_t bytes);

enum { CHECKSUM_UNIT_BYTES = 4096 };

static inline uint64_t xxh3_of(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

static inline uint64_t xxh3_copy(void *to, const void *from, size_t bytes)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    for (size_t at = 0; at < bytes; at += CHECKSUM_UNIT_BYTES) {
        size_t unit = bytes - at < CHECKSUM_UNIT_BYTES ? bytes - at : CHECKSUM_UNIT_BYTES;
        memcpy((uint8_t *)to + at, (const uint8_t *)from + at, unit);
        XXH3_64bits_update(&state, (const uint8_t *)to + at, unit);
    }
    return XXH3_64bits_digest(&state);
}

#endif
