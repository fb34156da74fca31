/* What the AVX-512 attention kernels of all KV types share: the softmax of a block, the merging of blocks, and the walk over a
 * tile. Operations and order: attention_plain.c, on sixteen lanes. Compiled twice, as linear_avx512.h says.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ATTENTION_AVX512_H
#define BATON_KERNELS_CPU_ATTENTION_AVX512_H

#ifndef CPU_AVX512_NAME
#include <immintrin.h>
#define CPU_AVX512_NAME(name) name
/* sum = operation(sum, x…), in place: as intrinsics, gcc 12 turns the sums into copies, and spills them. */
#define ADD_IN_PLACE(sum, x) __asm__("vpaddd %1, %0, %0" : "+v"(sum) : "v"(x))
#define PAIRS_IN_PLACE(sum, a, b) __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#else
#define ADD_IN_PLACE(sum, x) ((sum) = _mm512_add_epi32((sum), (x)))
#define PAIRS_IN_PLACE(sum, a, b) ((sum) = _mm512_dpwssd_epi32((sum), (a), (b)))
#endif

#include "kernels/cpu/attention_streams.h"
#include "kernels/cpu/mathf_avx512.h"

/* Tiles of each type; the last one with VNNI. */
void CPU_AVX512_NAME(cpu_avx512_attention_f32)(const struct cpu_attention_tile *tile);
void CPU_AVX512_NAME(cpu_avx512_attention_f16)(const struct cpu_attention_tile *tile);
void CPU_AVX512_NAME(cpu_avx512_kv_int8_tile)(const struct cpu_attention_tile *tile);
void CPU_AVX512_NAME(cpu_avx512_kv_int8_tile_vnni)(const struct cpu_attention_tile *tile);

#define INLINE static inline __attribute__((always_inline))

/* Up to CHUNK query heads share the loads of a block, which is four runs of 16 positions, each within one page. */
enum { LANES = 16, CHUNK = 4, RUN = 16, RUNS = ATTENTION_BLOCK / RUN, LINE = 64 };

/* Where the runs of a block lie: first dimension's K, first position's V. */
struct block {
    const uint8_t *k[RUNS], *v[RUNS], *k_scales[RUNS], *v_scales[RUNS];
};

/* Two lines asked for a step, the streams of attention_streams.h, while K or V go by. */
struct fetch {
    const uint8_t *at[STREAMS];
    size_t step; /* 0: there is nothing to ask for */
};

/* One chunk of heads: what they have so far, and where they are. */
struct chunk {
    float *running, *running_max, *running_sum; /* [head][dim], [head] */
    uint32_t state;                             /* the first head's number in its tile */
    bool first;                                 /* the sequence's first block */
    struct block block;
    struct fetch fetch;
};

/* What is kept of the results so far, and what joins them. */
struct merge {
    float keep, add;
};

/* The query of a tile's `state`th head. */
INLINE const float *state_query(const struct cpu_attention_tile *tile, uint32_t state)
{
    uint32_t heads = cpu_attention_row_heads(tile);
    return tile->q + state / heads * tile->row_stride + (size_t)(state % heads) * tile->head_dim;
}

/* The lines of step `number`, `lines` of each stream. */
INLINE void fetch_lines(const struct fetch *fetch, uint32_t number, int lines)
{
#pragma GCC unroll 2
    for (int i = 0; i < lines; i++) {
        __builtin_prefetch(fetch->at[0] + number * fetch->step + i * LINE);
        __builtin_prefetch(fetch->at[1] + number * fetch->step + i * LINE);
    }
}

/* All bits of the lanes from `lane` on that are below `count`. */
INLINE __mmask16 lanes_below(uint32_t count, uint32_t lane)
{
    uint32_t valid = count > lane ? count - lane : 0;
    return (__mmask16)(valid < LANES ? (1u << valid) - 1 : 0xffffu);
}

/* score[64], of which the first `count` count, becomes e[64], 0 from there on, and joins the head's maximum and sum. */
static inline struct merge softmax_head(const float *score, uint32_t count, bool first, float *e,
                                        float *running_max, float *running_sum)
{
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    __m512 best = lowest, sum = _mm512_setzero_ps();
    for (uint32_t j = 0; j < ATTENTION_BLOCK; j += LANES) /* `best` where the value is NaN */
        best = _mm512_max_ps(
            _mm512_mask_mov_ps(lowest, lanes_below(count, j), _mm512_loadu_ps(score + j)), best);
    float max = _mm512_reduce_max_ps(best);
    for (uint32_t j = 0; j < ATTENTION_BLOCK; j += LANES) {
        __m512 y = mathf16_exp(_mm512_sub_ps(_mm512_loadu_ps(score + j), _mm512_set1_ps(max)));
        y = _mm512_maskz_mov_ps(lanes_below(count, j), y);
        _mm512_storeu_ps(e + j, y);
        sum = _mm512_add_ps(sum, y);
    }
    float total = mathf16_sum16(sum);
    struct merge merge = {0, 0};
    if (first) {
        *running_max = max;
        *running_sum = total;
        return merge;
    }
    float new_max = max > *running_max ? max : *running_max;
    merge.keep = mathf_exp(*running_max - new_max);
    merge.add = mathf_exp(max - new_max);
    *running_max = new_max;
    *running_sum = __builtin_fmaf(*running_sum, merge.keep, total * merge.add);
    return merge;
}

/* Sixteen of a head's outputs of one block join what it has so far. */
INLINE void merge_store(bool first, __m512 output, struct merge merge, float *running)
{
    if (!first)
        output = _mm512_fmadd_ps(_mm512_loadu_ps(running), _mm512_set1_ps(merge.keep),
                                 _mm512_mul_ps(output, _mm512_set1_ps(merge.add)));
    _mm512_storeu_ps(running, output);
}

/* The runs of the block at `begin`, of KV head `head`. Beyond `last` there is none, and the first stands in: what is read there is
 * masked. From one run's K, and V, to the next one's in a page it is `k_bytes`, and `v_bytes`, a position. */
static inline void block_find(const struct cpu_attention_tile *tile, uint32_t head, size_t k_bytes,
                              size_t v_bytes, uint32_t begin, uint32_t last,
                              struct block *block_out)
{
    for (uint32_t r = 0; r < RUNS; r++) {
        uint32_t position = begin + r * RUN <= last ? begin + r * RUN : begin;
        uint32_t token = position % tile->page_tokens;
        uint64_t page = tile->blocks[position / tile->page_tokens] * tile->page_bytes,
                 values = page + head * tile->head_bytes,
                 scales = page + head * tile->head_scales_bytes + token * sizeof(uint16_t);
        block_out->k[r] = tile->k + values + token * k_bytes;
        block_out->v[r] = tile->v + values + token * v_bytes;
        block_out->k_scales[r] = tile->k_scales ? tile->k_scales + scales : NULL;
        block_out->v_scales[r] = tile->v_scales ? tile->v_scales + scales : NULL;
    }
}

/* Blocks outside, rows and heads inside: attend(tile, chunk, nq, count) for nq heads of one KV head and one block of `count`
 * positions. At the end out = running / sum. Chunks run across rows where all rows see the whole block. `lines` of each stream
 * are asked for a step. */
INLINE void tile_walk(const struct cpu_attention_tile *tile, size_t k_bytes, size_t v_bytes,
                      size_t lines,
                      void (*attend)(const struct cpu_attention_tile *tile,
                                     const struct chunk *chunk, uint32_t nq, uint32_t count))
{
    uint32_t dim = tile->head_dim, group = tile->group, heads = cpu_attention_row_heads(tile),
             states = tile->rows * heads, begin = 0, last = tile->position + tile->rows - 1;
    if (tile->partials) {
        uint32_t part_last = tile->block_end * ATTENTION_BLOCK - 1;
        begin = tile->block_begin * ATTENTION_BLOCK;
        last = last < part_last ? last : part_last;
    }
    for (; begin <= last; begin += ATTENTION_BLOCK) {
        struct cpu_attention_results results = cpu_attention_results_of(tile, begin);
        uint32_t row_begin = begin > tile->position ? begin - tile->position : 0, nq;
        bool whole = begin + ATTENTION_BLOCK <= tile->position + 1;
        struct chunk chunk = {.first = begin == 0 || tile->partials};
        for (uint32_t state = row_begin * heads; state < states; state += nq) {
            uint32_t r = state / heads, seen = tile->position + r + 1 - begin,
                     left =
                         (whole && tile->rows > 1 ? states : state - state % group + group) - state;
            if (tile->rows == 1 ? state % group == 0 : state == row_begin * heads) {
                uint32_t head = state % heads / group;
                block_find(tile, head, k_bytes, v_bytes, begin, last, &chunk.block);
                chunk.fetch = (struct fetch){{chunk.block.k[0], chunk.block.k[0]}, 0};
                if (tile->layer) {
                    streams_find(tile, begin, last, head, chunk.fetch.at);
                    chunk.fetch.step = lines * LINE;
                }
            } else
                chunk.fetch = (struct fetch){{chunk.block.k[0], chunk.block.k[0]}, 0};
            nq = left < CHUNK ? left : CHUNK;
            chunk.running = results.outputs + (size_t)state * dim;
            chunk.running_max = results.max + state;
            chunk.running_sum = results.sum + state;
            chunk.state = state;
            attend(tile, &chunk, nq, seen < ATTENTION_BLOCK ? seen : ATTENTION_BLOCK);
        }
    }
    if (tile->partials)
        return;
    struct cpu_attention_results results = cpu_attention_results_of(tile, 0);
    for (uint32_t state = 0; state < states; state++) {
        float *out = tile->out + state / heads * tile->row_stride + (size_t)(state % heads) * dim;
        __m512 inverse = _mm512_set1_ps(1.0f / results.sum[state]);
        for (uint32_t i = 0; i < dim; i += LANES)
            _mm512_storeu_ps(
                out + i,
                _mm512_mul_ps(_mm512_loadu_ps(results.outputs + (size_t)state * dim + i), inverse));
    }
}

#endif
