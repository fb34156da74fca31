/* See store.h. */
#include "kernels/cpu/store.h"

#include <stdint.h>
#include <stdlib.h>

#include "base/huge.h"

enum { CHUNK_BYTES = 64 << 20, ALIGNMENT = 64 };

struct cpu_store_chunk {
    struct cpu_store_chunk *next;
    uint8_t *data; /* [bytes] */
    size_t bytes, used;
};

/* Address space costs nothing: only what is written takes memory. */
static struct cpu_store_chunk *chunk_create(const struct cpu_nodes *nodes, size_t bytes)
{
    struct cpu_store_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk)
        return NULL;
    chunk->bytes = bytes < CHUNK_BYTES ? CHUNK_BYTES : bytes;
    chunk->data = huge_alloc(chunk->bytes, 1);
    if (!chunk->data) {
        free(chunk);
        return NULL;
    }
    if (nodes)
        cpu_nodes_place(nodes, chunk->data, chunk->bytes);
    return chunk;
}

void *cpu_store_take(struct cpu_store *store, size_t bytes)
{
    struct cpu_store_chunk *chunk = store->chunks;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!chunk || chunk->bytes - chunk->used < bytes) {
        chunk = chunk_create(store->nodes, bytes);
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
        huge_free(chunk->data);
        free(chunk);
    }
}
