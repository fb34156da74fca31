/* See checksum.h: the code for any processor, and the choice. */
#include "base/checksum_xxh3.h"

#include <stdbool.h>

static bool has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2"); /* a load: libc's start has asked the processor */
#else
    return false;
#endif
}

#if !defined(__x86_64__)
uint64_t checksum_of_avx2(const void *data, size_t bytes)
{
    return xxh3_of(data, bytes);
}

uint64_t checksum_copy_avx2(void *to, const void *from, size_t bytes)
{
    return xxh3_copy(to, from, bytes);
}
#endif

uint64_t checksum_of(const void *data, size_t bytes)
{
    return has_avx2() ? checksum_of_avx2(data, bytes) : xxh3_of(data, bytes);
}

uint64_t checksum_of_plain(const void *data, size_t bytes)
{
    return xxh3_of(data, bytes);
}

uint64_t checksum_copy(void *to, const void *from, size_t bytes)
{
    return has_avx2() ? checksum_copy_avx2(to, from, bytes) : xxh3_copy(to, from, bytes);
}
