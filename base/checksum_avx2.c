/* See checksum.h: the same code, compiled for AVX2. */
#include "base/checksum_xxh3.h"

uint64_t checksum_of_avx2(const void *data, size_t bytes)
{
    return xxh3_of(data, bytes);
}

uint64_t checksum_copy_avx2(void *to, const void *from, size_t bytes)
{
    return xxh3_copy(to, from, bytes);
}
