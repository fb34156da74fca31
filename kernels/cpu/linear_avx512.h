/* What the AVX-512 files share. They are compiled twice: for the CPU, and by the tests against plain C stand-ins of the
 * intrinsics (the includer then defines CPU_AVX512_NAME first and brings the intrinsics itself), so that their logic is
 * tested on machines without AVX-512.
 * Owner: as linear.h. */
#ifndef BATON_KERNELS_CPU_LINEAR_AVX512_H
#define BATON_KERNELS_CPU_LINEAR_AVX512_H

#include "kernels/cpu/linear_avx2.h"

#ifndef CPU_AVX512_NAME
#include <immintrin.h>
#define CPU_AVX512_NAME(name) name
#endif

/* compute=f32: `rows` (at most 96) rows from `row` over one panel. */
void CPU_AVX512_NAME(cpu_avx512_panel_f32)(const struct cpu_linear_call *call,
                                           const struct cpu_panel *panel, size_t row, size_t rows);

/* As cpu_avx2_store; chain rows are `ld_chain` floats apart. */
static inline void cpu_avx512_store(const struct cpu_linear_call *call,
                                    const struct cpu_panel *panel, size_t row, size_t rows,
                                    const float *chain, size_t ld_chain)
{
    if (call->maxima && panel->whole) {
        cpu_avx2_store_maxima(call, panel, row, rows, chain, ld_chain);
        return;
    }
    bool e32 = cpu_form_is_e32(panel->form);
    __m512 unit = e32 ? _mm512_loadu_ps(panel->slot_scale) : _mm512_set1_ps(1.0f);
    for (size_t r = 0; r < rows; r++) {
        float *out = call->out + (row + r) * call->ld_out, spare[CPU_PANEL];
        __m512 y = _mm512_mul_ps(_mm512_loadu_ps(chain + r * ld_chain), unit);
        if (panel->whole) {
            out += panel->first;
            _mm512_storeu_ps(out, call->accumulate ? _mm512_add_ps(_mm512_loadu_ps(out), y) : y);
            continue;
        }
        _mm512_storeu_ps(spare, y);
        for (size_t slot = 0; slot < CPU_PANEL; slot++) {
            if (panel->slot_row[slot] < 0)
                continue;
            float *to = out + panel->slot_row[slot];
            *to = call->accumulate ? *to + spare[slot] : spare[slot];
        }
    }
    if (call->maxima)
        cpu_linear_maxima(call, panel, row, rows);
}

#endif
