/* See mathf_vectors.h. For 64-bit Arm. */
#include "kernels/cpu/mathf_neon.h"

#include "tests/kernels/mathf_vectors.h"

void mathf_test_neon(const float x[16], float exp_out[16], float silu_out[16])
{
    for (int i = 0; i < 16; i += 4) {
        vst1q_f32(exp_out + i, mathf4_exp(vld1q_f32(x + i)));
        vst1q_f32(silu_out + i, mathf4_silu(vld1q_f32(x + i)));
    }
}
