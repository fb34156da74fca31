/* Activations: layout, dispatch, and what happens to rows that are not finite. The arithmetic is in quant_plain.c and the
 * instruction sets' files.
 * Owner: as quant.h. */
#include "kernels/cpu/quant.h"

#include <string.h>

#include "kernels/cpu/linear_ops.h"

static size_t row_bytes(enum kern_compute compute, size_t cols)
{
    size_t bytes = compute == KERN_COMPUTE_F32 ? cols * 4 : cols + cols / KERN_BLOCK * 12;
    bytes = (bytes + 63) / 64 * 64;
    /* or every other row's lines would have to share the same few places of the first cache */
    return bytes % 2048 == 0 ? bytes + 1024 : bytes;
}

size_t cpu_acts_bytes(enum kern_compute compute, size_t rows, size_t cols)
{
    return rows * row_bytes(compute, cols);
}

void cpu_acts_init(struct cpu_acts *acts, enum kern_compute compute, size_t cols, void *memory)
{
    *acts = (struct cpu_acts){
        .compute = compute, .cols = cols, .stride_bytes = row_bytes(compute, cols), .data = memory};
}

const struct cpu_linear_ops *cpu_linear_ops(enum cpu_isa_level isa)
{
#if defined(__x86_64__)
    static const struct cpu_linear_ops *const table[CPU_ISA_LEVELS] = {
        &cpu_linear_ops_plain, &cpu_linear_ops_avx2, &cpu_linear_ops_avx512,
        &cpu_linear_ops_avx512vnni};
    return table[isa];
#elif defined(__aarch64__)
    static const struct cpu_linear_ops *const table[CPU_ISA_LEVELS] = {
        &cpu_linear_ops_plain, &cpu_linear_ops_neon, &cpu_linear_ops_dotprod};
    return table[isa];
#else
    (void)isa;
    return &cpu_linear_ops_plain;
#endif
}

static struct cpu_act_row act_row(const struct cpu_acts *acts, size_t row)
{
    if (acts->compute == KERN_COMPUTE_F32)
        return (struct cpu_act_row){.f32 = cpu_acts_f32_row(acts, row)};
    return (struct cpu_act_row){.a = cpu_acts_a(acts, row),
                                .da = cpu_acts_da(acts, row),
                                .v0 = cpu_acts_v0(acts, row),
                                .s = cpu_acts_s(acts, row)};
}

static void finish_row(const struct cpu_acts *acts, size_t row, bool finite, uint8_t *row_bad)
{
    if (finite)
        return;
    memset(acts->data + row * acts->stride_bytes, 0, acts->stride_bytes);
    row_bad[row] = 1;
}

void cpu_quantise(enum cpu_isa_level isa, const float *x, size_t ld, struct cpu_rows rows,
                  const struct cpu_acts *acts, uint8_t *row_bad)
{
    const struct cpu_linear_ops *ops = cpu_linear_ops(isa);
    for (size_t r = rows.begin; r < rows.end; r++) {
        struct cpu_act_row row = act_row(acts, r);
        finish_row(acts, r, ops->quantise(x + r * ld, acts->cols, &row), row_bad);
    }
}

void cpu_norm_quantise(enum cpu_isa_level isa, const float *x, size_t ld, const float *weight,
                       float eps, struct cpu_rows rows, const struct cpu_acts *acts,
                       uint8_t *row_bad)
{
    const struct cpu_linear_ops *ops = cpu_linear_ops(isa);
    for (size_t r = rows.begin; r < rows.end; r++) {
        struct cpu_act_row row = act_row(acts, r);
        bool finite = ops->norm_quantise(x + r * ld, weight, eps, acts->cols, &row);
        finish_row(acts, r, finite, row_bad);
    }
}

void cpu_silu_mul_quantise(enum cpu_isa_level isa, const float *gate, const float *up, size_t ld,
                           struct cpu_rows rows, const struct cpu_acts *acts, uint8_t *row_bad)
{
    const struct cpu_linear_ops *ops = cpu_linear_ops(isa);
    for (size_t r = rows.begin; r < rows.end; r++) {
        struct cpu_act_row row = act_row(acts, r);
        bool finite = ops->silu_mul_quantise(gate + r * ld, up + r * ld, acts->cols, &row);
        finish_row(acts, r, finite, row_bad);
    }
}

void cpu_norm(enum cpu_isa_level isa, const float *x, size_t ld, const float *weight, float eps,
              size_t cols, struct cpu_rows rows, float *y, size_t ld_y)
{
    const struct cpu_linear_ops *ops = cpu_linear_ops(isa);
    for (size_t r = rows.begin; r < rows.end; r++)
        ops->norm(x + r * ld, weight, eps, cols, y + r * ld_y);
}
