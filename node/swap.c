/* See swap.h. */
#include "node/swap.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum status swap_init(struct swap *swap, const struct engine_info *info, uint64_t bytes)
{
    uint64_t pages = bytes / info->page_bytes;
    *swap = (struct swap){.page_count = pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX,
                          .run_count = info->run_count,
                          .page_bytes = info->page_bytes,
                          .piece_bytes = info->piece_bytes};
    if (!swap->page_count)
        return STATUS_OK;
    size_t memory_bytes = ((size_t)swap->page_count * info->page_bytes + 63) & ~(size_t)63;
    swap->memory = aligned_alloc(64, memory_bytes);
    swap->sums = calloc((size_t)swap->page_count * info->run_count, sizeof *swap->sums);
    swap->free = calloc(swap->page_count, sizeof *swap->free);
    if (!swap->memory || !swap->sums || !swap->free)
        return STATUS_MEMORY;
    while (swap->free_count < swap->page_count) {
        swap->free[swap->free_count] = swap->page_count - 1 - swap->free_count;
        swap->free_count++;
    }
    return STATUS_OK;
}

void swap_finish(struct swap *swap)
{
    free(swap->memory);
    free(swap->sums);
    free(swap->free);
    *swap = (struct swap){0};
}

bool swap_take(struct swap *swap, uint32_t count, uint32_t *pages_out)
{
    if (count > swap->free_count)
        return false;
    for (uint32_t i = 0; i < count; i++)
        pages_out[i] = swap->free[--swap->free_count];
    return true;
}

void swap_give(struct swap *swap, const uint32_t *pages, uint32_t count)
{
    assert(count <= swap->page_count - swap->free_count);
    for (uint32_t i = 0; i < count; i++)
        swap->free[swap->free_count++] = pages[i];
}
