/* Attention over paged KV, and the RoPE+KV write: what the operations call for one tile or row, per instruction set. The
 * plain versions (attention_plain.c) are the definition; docs/NUMERICS.md, "Attention".
 *
 *     a tile: up to ATTENTION_TILE_ROWS rows of one sequence x the query heads of one KV head
 *
 *     block of 64 positions   s_j = scale * (q . K_j)      chain over head_dim, lanes are positions
 *                             m = max s_j, e_j = exp(s_j - m), l = sum e_j, o = sum e_j V_j     chain over j, lanes are dims
 *     merge, ascending        M' = max(M, m);  L = L exp(M - M') + l exp(m - M');  O likewise
 *
 * A long row alone is cut into parts of consecutive blocks that several threads compute at once: each block's own results are
 * kept, and merged by whoever finishes last, in the same ascending order. So where a row is cut changes no bit.
 *
 * Owner: any compute thread; disjoint tiles at once. */
#ifndef BATON_KERNELS_CPU_ATTENTION_H
#define BATON_KERNELS_CPU_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cpu/isa.h"

enum {
    ATTENTION_BLOCK = 64,     /* absolute positions that give one partial result */
    ATTENTION_TILE_ROWS = 16, /* consecutive rows that share the loads of a block */
    ATTENTION_STATES_MAX = ATTENTION_TILE_ROWS * KERN_GROUP_MAX, /* rows x query heads of a tile */
};

/* One row of one sequence: q [heads][head_dim] is turned in place, k and v [kv_heads][head_dim] go to the page. */
struct cpu_rope_row {
    const float *cos, *sin; /* [pairs] of the row's position */
    uint32_t pairs, head_dim, heads, kv_heads;
    uint32_t page_tokens, token; /* the row's place in its page */
    float *q, *k;
    const float *v;
    void *k_page, *v_page;     /* this layer's K and V in the row's page: device.h draws them */
    void *k_scales, *v_scales; /* [kv_heads][page_tokens], where the type has scales */
};

struct cpu_attention_tile {
    const float
        *q;     /* first row's first query head of the group; rows are row_stride floats apart */
    float *out; /* same shape */
    size_t row_stride;    /* heads * head_dim */
    uint32_t rows, group; /* query heads of this KV head, adjacent */
    uint32_t position;    /* of the first row */
    uint32_t head_dim, page_tokens;
    float scale;
    const uint32_t *blocks;             /* the sequence's block table */
    const uint8_t *k, *v;               /* this KV head and layer in page 0 */
    const uint8_t *k_scales, *v_scales; /* likewise [page_tokens], where the type has scales */
    uint64_t page_bytes;                /* from one page to the next */
    /* One row, all KV heads of a layer: so many beside the first (kernels with `heads_together`). Then from one head's K, and V,
     * to the next one's; likewise of the scales; and where the layer begins in page 0, and its bytes in one. Else 0 and NULL. */
    uint32_t heads_more;
    size_t head_bytes, head_scales_bytes;
    const uint8_t *layer;
    size_t layer_bytes;
    const uint8_t *
        next; /* NULL; or where the layer begins in the first page of a row alone that comes soon, to be asked for while
                            this one's last block is computed */
    float *scratch; /* [cpu_attention_scratch_floats] */
    float *
        partials; /* NULL; or results of the blocks below stay apart there, and `out` is left alone. One row only, head_dim a
                        multiple of 8. [block of the row][cpu_attention_partial_floats] */
    uint32_t block_begin,
        block_end; /* with `partials`: blocks of 64 positions, not beyond the row's last */
};

/* Query heads of a tile: those of a row. */
static inline uint32_t cpu_attention_row_heads(const struct cpu_attention_tile *tile)
{
    return tile->group * (1 + tile->heads_more);
}

/* One row's query heads, from all its blocks' own results. */
struct cpu_attention_merge {
    const float *partials; /* as above */
    float *out;            /* [heads][head_dim] */
    uint32_t block_count, heads, head_dim;
};

/* Results of one block: outputs [heads][head_dim], then maxima [heads] and sums [heads]; whole cache lines. */
static inline size_t cpu_attention_partial_floats(uint32_t heads, uint32_t head_dim)
{
    return ((size_t)heads * (head_dim + 2) + 15) / 16 * 16;
}

/* Where results of a block go: those of all blocks so far, or of this one alone. */
struct cpu_attention_results {
    float *outputs, *max, *sum;
};

static inline struct cpu_attention_results
cpu_attention_results_of(const struct cpu_attention_tile *tile, uint32_t begin)
{
    float *outputs = tile->scratch;
    size_t states = ATTENTION_STATES_MAX;
    if (tile->partials) {
        states = cpu_attention_row_heads(tile);
        outputs =
            tile->partials + begin / ATTENTION_BLOCK *
                                 cpu_attention_partial_floats((uint32_t)states, tile->head_dim);
    }
    float *max = outputs + states * tile->head_dim;
    return (struct cpu_attention_results){outputs, max, max + states};
}

/* Room for one tile's running results, (2 + head_dim) a row and head, for one row's scores and partial outputs, and for the
 * tile's queries as 16-bit integers with a factor each (int8). */
size_t cpu_attention_scratch_floats(uint32_t head_dim);

struct cpu_attention_kernels {
    void (*rope_kv[KERN_KV_TYPE_COUNT])(const struct cpu_rope_row *row);
    void (*tile[KERN_KV_TYPE_COUNT])(const struct cpu_attention_tile *tile);
    void (*merge)(const struct cpu_attention_merge *merge); /* NULL: tiles know no `partials` */
    bool heads_together; /* tiles know `heads_more`, where head_dim is a multiple of 8 */
};

/* all but the first: where they are compiled */
extern const struct cpu_attention_kernels cpu_attention_plain, cpu_attention_avx2,
    cpu_attention_avx512, cpu_attention_avx512vnni, cpu_attention_neon;
const struct cpu_attention_kernels *cpu_attention_kernels_for(enum cpu_isa_level isa);

/* AVX2's, which AVX-512 uses too */
void cpu_avx2_rope_kv_f32(const struct cpu_rope_row *row);
void cpu_avx2_rope_kv_f16(const struct cpu_rope_row *row);
void cpu_avx2_attention_merge(const struct cpu_attention_merge *merge);

#endif
