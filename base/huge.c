/* See huge.h.
 *
 *     mapping ── slack ── │ head (64 bytes) │ data, at a multiple of 2 MiB
 *
 * Smaller ones are the same, head and data, on the heap. */
#include "base/huge.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_BYTES = 2 << 20, HUGE_FROM = 1 << 20, HEAD_BYTES = 64 };

struct head {
    void *mapping; /* NULL: on the heap */
    size_t mapping_bytes;
};

static void *alloc_small(size_t bytes)
{
    size_t total = (HEAD_BYTES + bytes + HEAD_BYTES - 1) / HEAD_BYTES * HEAD_BYTES;
    uint8_t *memory = aligned_alloc(HEAD_BYTES, total);
    if (!memory)
        return NULL;
    memset(memory, 0, total);
    return memory + HEAD_BYTES;
}

void *huge_alloc(size_t count, size_t bytes)
{
    if (__builtin_mul_overflow(count, bytes, &bytes) || bytes > SIZE_MAX / 2)
        return NULL;
    if (bytes < HUGE_FROM)
        return alloc_small(bytes);
    bytes = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES; /* its end, too */
    size_t mapping_bytes = bytes + HEAD_BYTES + HUGE_BYTES;
    uint8_t *mapping = mmap(NULL, mapping_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return NULL;
    uint8_t *data = mapping + HEAD_BYTES;
    data += (HUGE_BYTES - (uintptr_t)data % HUGE_BYTES) % HUGE_BYTES;
    *(struct head *)(void *)(data - HEAD_BYTES) = (struct head){mapping, mapping_bytes};
    (void)madvise(data, bytes, MADV_HUGEPAGE); /* a hint only */
    return data;
}

void huge_free(void *memory)
{
    if (!memory)
        return;
    struct head *head = (void *)((uint8_t *)memory - HEAD_BYTES);
    if (head->mapping)
        munmap(head->mapping, head->mapping_bytes);
    else
        free(head);
}
