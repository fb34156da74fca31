/* The AVX-512 kernels, compiled a second time against emulate_avx512.h so that their logic runs on any CPU.
 * Owner: tests. */
#ifndef BATON_TESTS_KERNELS_EMULATED_H
#define BATON_TESTS_KERNELS_EMULATED_H

#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear_ops.h"

extern const struct cpu_linear_ops cpu_linear_ops_avx512vnni_emulated;
extern const struct cpu_attention_kernels cpu_attention_avx512_emulated,
    cpu_attention_avx512vnni_emulated;

#endif
