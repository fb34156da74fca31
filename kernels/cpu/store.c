/* See store.h. */
#include "kernels/cpu/store.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_BYTES = 2 << 20, CHUNK_BYTES = 64 << 20, ALIGNMENT = 64 };

struct cpu_store_chunk {
    struct cpu_store_chunk *next;
    void *
        mapping; /* [mapping_bytes], of which the part from `data` on, a multiple of HUGE_BYTES, is given out */
    size_t mapping_bytes;
    uint8_t *data;
    size_t bytes, used;
};

/* Address space costs nothing: only what is written takes memory. */
static struct cpu_store_chunk *chunk_create(size_t bytes)
{
    struct cpu_store_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk)
        return NULL;
    chunk->bytes = bytes < CHUNK_BYTES ? CHUNK_BYTES : bytes;
    chunk->mapping_bytes = chunk->bytes + HUGE_BYTES;
    chunk->mapping = mmap(NULL, chunk->mapping_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (chunk->mapping == MAP_FAILED) {
        free(chunk);
        return NULL;
    }
    uintptr_t at = (uintptr_t)chunk->mapping;
    chunk->data = (uint8_t *)chunk->mapping + (HUGE_BYTES - at % HUGE_BYTES) % HUGE_BYTES;
    (void)madvise(chunk->data, chunk->bytes, MADV_HUGEPAGE); /* a hint only */
    return chunk;
}

void *cpu_store_take(struct cpu_store *store, size_t bytes)
{
    struct cpu_store_chunk *chunk = store->chunks;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!chunk || chunk->bytes - chunk->used < bytes) {
        chunk = chunk_create(bytes);
        if (!chunk)
            return NULL;
        chunk->next = store->chunks;
        store->chunks = chunk;
    }
    void *memory = chunk->data + chunk->used;
    chunk->used += bytes;
    return memory;
}

void cpu_store_finish(struct cpu_store *store)
{
    while (store->chunks) {
        struct cpu_store_chunk *chunk = store->chunks;
        store->chunks = chunk->next;
        munmap(chunk->mapping, chunk->mapping_bytes);
        free(chunk);
    }
}
