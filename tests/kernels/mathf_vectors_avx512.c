/* See mathf_vectors.h. Over the emulated intrinsics. */
#include "tests/kernels/emulate_avx512.h"

#include "kernels/cpu/mathf_avx512.h"
#include "tests/kernels/mathf_vectors.h"

void mathf_test_avx512_emulated(const float x[16], float exp_out[16], float silu_out[16])
{
    _mm512_storeu_ps(exp_out, mathf16_exp(_mm512_loadu_ps(x)));
    _mm512_storeu_ps(silu_out, mathf16_silu(_mm512_loadu_ps(x)));
}
