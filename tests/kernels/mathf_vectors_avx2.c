/* See mathf_vectors.h. Compiled with -mavx2 -mfma. */
#include "kernels/cpu/mathf_avx2.h"

#include "tests/kernels/mathf_vectors.h"

void mathf_test_avx2(const float x[16], float exp_out[16], float silu_out[16])
{
    for (int i = 0; i < 16; i += 8) {
        _mm256_storeu_ps(exp_out + i, mathf8_exp(_mm256_loadu_ps(x + i)));
        _mm256_storeu_ps(silu_out + i, mathf8_silu(_mm256_loadu_ps(x + i)));
    }
}
