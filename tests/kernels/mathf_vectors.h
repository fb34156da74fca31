/* The vector twins of mathf.h on 16 values, for test_mathf.c: each in a file compiled for its instruction set.
 * Owner: tests. */
#ifndef BATON_TESTS_KERNELS_MATHF_VECTORS_H
#define BATON_TESTS_KERNELS_MATHF_VECTORS_H

typedef void mathf_test_vectors(const float x[16], float exp_out[16], float silu_out[16]);
mathf_test_vectors mathf_test_avx2, mathf_test_avx512_emulated, mathf_test_neon;

#endif
