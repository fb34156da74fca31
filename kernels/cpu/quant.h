/* Activations: what a linear layer reads. In compute=f32 they are the float rows; in compute=int8
 * each block of 32 floats of a row becomes 32 signed bytes, a scale and a sum (docs/NUMERICS.md,
 * "Activations"). The steps that come before a linear layer (RMSNorm, SwiGLU's product) are fused
 * with the quantisation, so that the float row never travels through memory.
 *
 *     x[row][cols]  ──(norm | silu·up | nothing)──▶  row of floats  ──quantise──▶  acts[row]
 *
 *     int8 row:  | a: cols x i8 | da: blocks x f32 | v0: blocks x u32 | s: blocks x i32 | pad to 64 |
 *                da = amax / 127, s = sum(a), v0 = 8 s 65535 mod 2^32 (where E32's sum starts)
 *     f32 row:   | cols x f32 | pad to 64 |     either: 1,024 more where a row would be a multiple of 2,048
 *
 * A row that holds a value that is not finite (NaN, infinity, or overflow inside the fused step)
 * fails alone: its row_bad flag becomes 1 and its acts become zeros; the flags are never cleared
 * here and no other row changes. Owner: any compute thread; calls on disjoint rows may run at once.
 * Nothing allocates. */
#ifndef BATON_KERNELS_CPU_QUANT_H
#define BATON_KERNELS_CPU_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/isa.h"
#include "kernels/types.h"

/* Rows [begin, end). */
struct cpu_rows {
    size_t begin, end;
};

/* A view of caller's memory; plain data, copied freely. */
struct cpu_acts {
    enum kern_compute compute;
    size_t cols;         /* a multiple of 32 */
    size_t stride_bytes; /* from one row to the next, a multiple of 64 */
    uint8_t *data;       /* 64-byte aligned */
};

/* Bytes for `rows` rows of acts. */
size_t cpu_acts_bytes(enum kern_compute compute, size_t rows, size_t cols);

/* Lays acts over `memory` (64-byte aligned, at least cpu_acts_bytes). */
void cpu_acts_init(struct cpu_acts *acts, enum kern_compute compute, size_t cols, void *memory);

static inline float *cpu_acts_f32_row(const struct cpu_acts *acts, size_t row)
{
    return (float *)(acts->data + row * acts->stride_bytes);
}
static inline int8_t *cpu_acts_a(const struct cpu_acts *acts, size_t row)
{
    return (int8_t *)(acts->data + row * acts->stride_bytes);
}
static inline float *cpu_acts_da(const struct cpu_acts *acts, size_t row)
{
    return (float *)(acts->data + row * acts->stride_bytes + acts->cols);
}
static inline uint32_t *cpu_acts_v0(const struct cpu_acts *acts, size_t row)
{
    return (uint32_t *)(acts->data + row * acts->stride_bytes + acts->cols + acts->cols / 8);
}
static inline int32_t *cpu_acts_s(const struct cpu_acts *acts, size_t row)
{
    return (int32_t *)(acts->data + row * acts->stride_bytes + acts->cols + acts->cols / 4);
}

/* acts[row] = x[row] for the rows given. x: [rows][ld] floats, ld >= cols. row_bad: one byte a row,
 * indexed as x is. */
void cpu_quantise(enum cpu_isa_level isa, const float *x, size_t ld, struct cpu_rows rows,
                  const struct cpu_acts *acts, uint8_t *row_bad);

/* acts[row] = RMSNorm(x[row]) * weight. weight: [cols]. Zhang and Sennrich 2019, as Llama applies
 * it. */
void cpu_norm_quantise(enum cpu_isa_level isa, const float *x, size_t ld, const float *weight,
                       float eps, struct cpu_rows rows, const struct cpu_acts *acts,
                       uint8_t *row_bad);

/* acts[row] = silu(gate[row]) * up[row]: SwiGLU's product (Shazeer 2020). Both [rows][ld]. */
void cpu_silu_mul_quantise(enum cpu_isa_level isa, const float *gate, const float *up, size_t ld,
                           struct cpu_rows rows, const struct cpu_acts *acts, uint8_t *row_bad);

/* y[row] = RMSNorm(x[row]) * weight as floats, for those who want the row itself. cols a multiple
 * of 16. */
void cpu_norm(enum cpu_isa_level isa, const float *x, size_t ld, const float *weight, float eps,
              size_t cols, struct cpu_rows rows, float *y, size_t ld_y);

#endif
