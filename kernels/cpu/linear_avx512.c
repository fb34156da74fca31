/* The table for AVX-512 without VNNI: floats on 16 lanes; for int8 the AVX2 kernels, whose vpmaddubsw has no better twin.
 * Owner: as linear.h. */
#include "kernels/cpu/linear_avx512.h"

static void linear(const struct cpu_linear_call *call)
{
    enum { CHUNK_ROWS = 96 };
    if (call->acts.compute == KERN_COMPUTE_INT8) {
        cpu_linear_ops_avx2.linear(call);
        return;
    }
    for (size_t row = call->rows.begin; row < call->rows.end; row += CHUNK_ROWS) {
        size_t rows = call->rows.end - row < CHUNK_ROWS ? call->rows.end - row : CHUNK_ROWS;
        for (size_t p = call->panel_begin; p < call->panel_end; p++) {
            struct cpu_panel panel = cpu_weights_panel(call->weights, p);
            cpu_avx512_panel_f32(call, &panel, row, rows);
        }
    }
}

const struct cpu_linear_ops cpu_linear_ops_avx512 = {
    .quantise = cpu_avx2_quantise,
    .norm_quantise = cpu_avx2_norm_quantise,
    .silu_mul_quantise = cpu_avx2_silu_mul_quantise,
    .norm = cpu_avx2_norm,
    .linear = linear,
};
