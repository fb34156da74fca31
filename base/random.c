/* See random.h. */
#include "base/random.h"

#include <assert.h>
#include <errno.h>
#include <sys/random.h>

void random_bytes(void *out, size_t bytes)
{
    uint8_t *at = out;
    while (bytes) {
        ssize_t n = getrandom(at, bytes, 0);
        if (n < 0) {
            assert(errno == EINTR); /* a kernel without getrandom cannot run this program */
            continue;
        }
        at += n;
        bytes -= (size_t)n;
    }
}

uint64_t random_u64(void)
{
    uint64_t value = 0;
    while (!value)
        random_bytes(&value, sizeof value);
    return value;
}
