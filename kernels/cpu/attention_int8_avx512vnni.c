/* Attention for AVX-512 with VNNI: over int8 KV the products of pairs and their sum are one instruction; over f32 and f16 there is
 * nothing that VNNI adds to attention_avx512.c.
 * Owner: any compute thread. Compiled with -mavx512vnni and friends. */
#define ATTENTION_PAIRS(sum, a, b) PAIRS_IN_PLACE(sum, a, b)
#define ATTENTION_PAIRS_NAME(name) CPU_AVX512_NAME(name##_vnni)

#include "kernels/cpu/attention_int8_avx512.c"

const struct cpu_attention_kernels CPU_AVX512_NAME(cpu_attention_avx512vnni) = {
    .rope_kv = {cpu_avx2_rope_kv_f32, cpu_avx2_rope_kv_f16, cpu_avx2_kv_int8_rope},
    .tile = {CPU_AVX512_NAME(cpu_avx512_attention_f32), CPU_AVX512_NAME(cpu_avx512_attention_f16),
             ATTENTION_PAIRS_NAME(cpu_avx512_kv_int8_tile)},
    .merge = cpu_avx2_attention_merge,
    .heads_together = true,
};
