/* Host memory for the pages of sequences that gave way: where their bytes wait, with their checksums, until pages are theirs again.
 * Taken at start and given out in whole pages; a page is one sequence's from swap_take to swap_give.
 *
 *     pool page ──EXPORT──▶ swap page [run][piece bytes] + sums [run] ──IMPORT, which verifies──▶ another pool page
 *
 * Owner: the loop thread. Nothing is allocated after swap_init. */
#ifndef BATON_NODE_SWAP_H
#define BATON_NODE_SWAP_H

#include "engine/engine.h"

struct swap {
    uint8_t *memory; /* [page_count][page_bytes] */
    uint64_t *sums;  /* [page_count][run_count] */
    uint32_t *free;  /* [page_count], a stack */
    uint32_t page_count, free_count, run_count;
    uint64_t page_bytes, piece_bytes;
};

/* As many pages as `bytes` hold, possibly none. MEMORY. */
enum status swap_init(struct swap *swap, const struct engine_info *info, uint64_t bytes);
void swap_finish(struct swap *swap);

/* `count` pages, or none of them: false. */
bool swap_take(struct swap *swap, uint32_t count, uint32_t *pages_out);
void swap_give(struct swap *swap, const uint32_t *pages, uint32_t count);

static inline void *swap_piece(const struct swap *swap, uint32_t page, uint32_t run)
{
    return swap->memory + page * swap->page_bytes + run * swap->piece_bytes;
}
static inline uint64_t *swap_sum(const struct swap *swap, uint32_t page, uint32_t run)
{
    return &swap->sums[(size_t)page * swap->run_count + run];
}

#endif
