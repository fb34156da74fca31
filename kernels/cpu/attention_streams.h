/* What is asked for ahead of a row that takes all KV heads along.
 *
 * One layer of one page is contiguous: K and V of all heads, 16 to 100 KB. One thread reads memory fastest by more than one run at
 * a time, as long ones as there are. So a layer is asked for in halves, long before its turn: while one page's heads are at work,
 * the last half of the next page's layer is asked for, and the first half of that behind it. (Pages of fewer than 64 positions: as
 * many as make a block.) Short rows would be over before that: both halves are the next page's then.
 *
 * Asking goes through the same 24 buffers as any miss of the first-level cache; so 17 to 19 GB/s are the most that it brings while
 * something else is computed, on the processor that this was measured on.
 *
 * Owner: any compute thread; no state. */
#ifndef BATON_KERNELS_CPU_ATTENTION_STREAMS_H
#define BATON_KERNELS_CPU_ATTENTION_STREAMS_H

#include "kernels/cpu/attention.h"

enum { STREAMS = 2, STREAMS_FROM = 4 };

/* Where the streams are when head `head` meets the block at `begin`. */
static inline void streams_find(const struct cpu_attention_tile *tile, uint32_t begin,
                                uint32_t last, uint32_t head, const uint8_t **at_out)
{
    uint32_t page_tokens = tile->page_tokens, heads = 1 + tile->heads_more, pages = 1, blocks = 1;
    if (page_tokens < ATTENTION_BLOCK)
        pages = ATTENTION_BLOCK / page_tokens;
    else
        blocks = page_tokens / ATTENTION_BLOCK;
    uint32_t tokens = page_tokens * pages, unit = begin / tokens, last_unit = last / tokens;
    uint32_t part = begin % tokens / ATTENTION_BLOCK * heads + head;
    size_t bytes = tile->layer_bytes * pages, half = bytes / STREAMS;
    size_t done = half * part / (blocks * heads);
    bool within = last_unit < STREAMS_FROM;
    for (uint32_t s = 0; s < STREAMS; s++) {
        uint32_t ahead = unit + (within ? 1 : 1 + s);
        size_t offset = half * (within ? s : STREAMS - 1 - s) + done;
        uint32_t page = (ahead < last_unit ? ahead : last_unit) * pages;
        if (pages > 1) {
            page += (uint32_t)(offset / tile->layer_bytes);
            offset %= tile->layer_bytes;
            page = page * page_tokens <= last ? page : last / page_tokens;
        }
        at_out[s] = tile->layer + tile->blocks[page] * tile->page_bytes + offset;
    }
}

#endif
