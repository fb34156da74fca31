/* Where a head's K and V lie in one layer of one page: of f32 and f16
 *
 *     K  [page_tokens / 8][head_dim][8]     eight positions' values of one dimension, then the next dimension's
 *     V  [head_dim / 16][page_tokens][16]   sixteen dimensions of one position, then the next position's. What is left of head_dim
 *                                           behind its last sixteen is a narrower group of its own
 *
 * and of int8, whose products take pairs (attention_int8.h):
 *
 *     K  [page_tokens / 16][head_dim / 2][16][2]   sixteen positions' pairs of dimensions, then their next two dimensions'
 *     V  [head_dim / 16][page_tokens / 2][16][2]   sixteen dimensions' pairs of positions, then their next two positions';
 *                                                  the last group of dimensions as above
 *
 * So scores, whose lanes are positions, and outputs, whose lanes are dimensions, read whole registers, and each of the two reads
 * runs of lines in order: of one block all of K, and a group's positions of V.
 *
 * Owner: any thread; no state. */
#ifndef BATON_KERNELS_CPU_KV_LAYOUT_H
#define BATON_KERNELS_CPU_KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

/* Positions of K, and dimensions of V, that lie side by side. */
enum { KV_K_POSITIONS = 8, KV_INT8_K_POSITIONS = 16, KV_V_DIMS = 16 };

/* The element of the head's K that holds dimension i of position j. */
static inline size_t kv_k_index(uint32_t head_dim, uint32_t i, uint32_t j)
{
    return (size_t)(j / KV_K_POSITIONS * head_dim + i) * KV_K_POSITIONS + j % KV_K_POSITIONS;
}

/* Dimensions in the group of V that holds dimension d. */
static inline uint32_t kv_v_width(uint32_t head_dim, uint32_t d)
{
    uint32_t left = head_dim - d / KV_V_DIMS * KV_V_DIMS;
    return left < KV_V_DIMS ? left : KV_V_DIMS;
}

/* The element of the head's V that holds dimension d of position j. */
static inline size_t kv_v_index(uint32_t head_dim, uint32_t page_tokens, uint32_t j, uint32_t d)
{
    return (size_t)(d / KV_V_DIMS * KV_V_DIMS) * page_tokens + (size_t)j * kv_v_width(head_dim, d) +
           d % KV_V_DIMS;
}

/* The byte of the head's K, of int8, that holds dimension i of position j; head_dim is even. */
static inline size_t kv_int8_k_index(uint32_t head_dim, uint32_t i, uint32_t j)
{
    return (size_t)(j / KV_INT8_K_POSITIONS * head_dim + i / 2 * 2) * KV_INT8_K_POSITIONS +
           j % KV_INT8_K_POSITIONS * 2 + i % 2;
}

/* The byte of the head's V, of int8, that holds dimension d of position j. */
static inline size_t kv_int8_v_index(uint32_t head_dim, uint32_t page_tokens, uint32_t j,
                                     uint32_t d)
{
    return (size_t)(d / KV_V_DIMS * KV_V_DIMS) * page_tokens +
           (size_t)(j / 2) * kv_v_width(head_dim, d) * 2 + d % KV_V_DIMS * 2 + j % 2;
}

#endif
