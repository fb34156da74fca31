/* The words that the backend interface and the CPU's kernels share: what a weight is in its file,
 * and which arithmetic computes with it. docs/NUMERICS.md defines both to the bit. Owner: no
 * thread; constants only. */
#ifndef BATON_KERNELS_TYPES_H
#define BATON_KERNELS_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* Element types of a weight as the file holds it. Quantised ones come in blocks of 32 along a row
 * (GGUF's layouts, little endian): Q8_0 {f16 d; i8 q[32]}, Q4_0 {f16 d; u8 q[16]}, Q4_1 {f16 d, m;
 * u8 q[16]}; byte j of a nibble block holds element j low and element j + 16 high. */
enum kern_weight_type {
    KERN_WEIGHT_F32,
    KERN_WEIGHT_F16,
    KERN_WEIGHT_BF16,
    KERN_WEIGHT_Q8_0,
    KERN_WEIGHT_Q4_0,
    KERN_WEIGHT_Q4_1,
    KERN_WEIGHT_TYPES
};

/* The arithmetic of linear layers: part of a node's identity. */
enum kern_compute { KERN_COMPUTE_F32, KERN_COMPUTE_INT8 };

enum { KERN_BLOCK = 32 }; /* weights, and activations, are quantised in blocks of 32 along a row */

/* Bytes of a row of `cols` elements (a multiple of KERN_BLOCK) in the file's layout. */
static inline size_t kern_weight_row_bytes(enum kern_weight_type type, size_t cols)
{
    static const uint8_t block_bytes[KERN_WEIGHT_TYPES] = {128, 64, 64, 34, 18, 20};
    return cols / KERN_BLOCK * block_bytes[type];
}

#endif
