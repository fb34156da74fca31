#include <stdlib.h>
#include <xxhash.h>

#include "base/checksum.h"
#include "tests/test.h"

/* Against xxHash's own library, which is another build of it: every length around the places where the algorithm changes its way and
 * where a copy begins a new unit, at every alignment within a vector. */
TEST(checksum, equals_the_library)
{
    enum { BYTES = 3 * 4096 + 200 };
    uint8_t *data = malloc(BYTES + 32), *copy = malloc(BYTES + 32);
    CHECK(data && copy);
    uint32_t state = 1;
    for (size_t i = 0; i < BYTES + 32; i++)
        data[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
    unsigned wrong = 0;
    for (size_t bytes = 0; bytes <= BYTES; bytes += bytes < 600 || bytes > BYTES - 600 ? 1 : 61) {
        const uint8_t *at = data + bytes % 32;
        uint64_t wanted = XXH3_64bits(at, bytes);
        memset(copy, 0, bytes + 1);
        wrong += checksum_of(at, bytes) != wanted || checksum_of_plain(at, bytes) != wanted ||
                 checksum_copy(copy, at, bytes) != wanted || memcmp(copy, at, bytes) != 0 ||
                 copy[bytes] != 0;
    }
    CHECK_INT(wrong, 0);
    data[4100] ^= 1;
    uint64_t before = checksum_of(data, BYTES);
    data[4100] ^= 1;
    CHECK(checksum_of(data, BYTES) != before);
    free(data);
    free(copy);
}

TEST(checksum, of_nothing)
{
    CHECK(checksum_of("", 0) == UINT64_C(0x2d06800538d394c2)); /* xxHash's table */
}
