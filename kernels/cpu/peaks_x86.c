/* See peaks_loops.h: for x86-64. */
#include "kernels/cpu/peaks_loops.h"

/* --- arithmetic --- */

/* Some milliseconds: under a hypervisor processor time is corrected for what was stolen, now and then and afterwards, so that
 * the best of much shorter pieces would be too good to be true. */
enum { PASSES = 500000 };

/* Ten chains, so that latency hides: each line is repeated for ymm0..ymm9 as accumulators. ymm10..ymm15 are operands and
 * temporaries, all zero: no denormals, no traps. */
#define CHAINS_AVX2(line)                                                           \
    line("0", "12") line("1", "13") line("2", "14") line("3", "15") line("4", "12") \
        line("5", "13") line("6", "14") line("7", "15") line("8", "12") line("9", "13")
#define FMA(acc, temp) "vfmadd231ps %%ymm10, %%ymm11, %%ymm" acc "\n\t"
#define MADDUBS_WIDE(acc, temp)                          \
    "vpmaddubsw %%ymm10, %%ymm11, %%ymm" temp "\n\t"     \
    "vpmaddwd %%ymm11, %%ymm" temp ", %%ymm" temp "\n\t" \
    "vpaddd %%ymm" temp ", %%ymm" acc ", %%ymm" acc "\n\t"
#define MADDUBS_NARROW(acc, temp)                    \
    "vpmaddubsw %%ymm10, %%ymm11, %%ymm" temp "\n\t" \
    "vpaddw %%ymm" temp ", %%ymm" acc ", %%ymm" acc "\n\t"
#define MADDWD(acc, temp)                          \
    "vpmaddwd %%ymm10, %%ymm11, %%ymm" temp "\n\t" \
    "vpaddd %%ymm" temp ", %%ymm" acc ", %%ymm" acc "\n\t"
#define CHAINS_AVX512(line)                                                                   \
    line("0") line("1") line("2") line("3") line("4") line("5") line("6") line("7") line("8") \
        line("9") line("12") line("13") line("14") line("15") line("16") line("17")
#define FMA_512(acc) "vfmadd231ps %%zmm10, %%zmm11, %%zmm" acc "\n\t"
#define DPBUSD_512(acc) "vpdpbusd %%zmm10, %%zmm11, %%zmm" acc "\n\t"
#define DPWSSD_512(acc) "vpdpwssd %%zmm10, %%zmm11, %%zmm" acc "\n\t"

#define CLOBBERS_AVX2                                                                        \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"

#define DEFINE_LOOP(name, target_, clobbers, body)                          \
    __attribute__((target(target_), noinline)) static void name(void *data) \
    {                                                                       \
        (void)data;                                                         \
        __asm__ volatile("vzeroall" ::: clobbers);                          \
        for (int i = 0; i < PASSES; i++)                                    \
            __asm__ volatile(body body ::: clobbers);                       \
        __asm__ volatile("vzeroupper" ::: clobbers);                        \
    }
DEFINE_LOOP(loop_fma, "avx2,fma", CLOBBERS_AVX2, CHAINS_AVX2(FMA))
DEFINE_LOOP(loop_wide, "avx2,fma", CLOBBERS_AVX2, CHAINS_AVX2(MADDUBS_WIDE))
DEFINE_LOOP(loop_narrow, "avx2,fma", CLOBBERS_AVX2, CHAINS_AVX2(MADDUBS_NARROW))
DEFINE_LOOP(loop_pair, "avx2,fma", CLOBBERS_AVX2, CHAINS_AVX2(MADDWD))
#define CLOBBERS_AVX512                                                                      \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "cc"
DEFINE_LOOP(loop_fma_512, "avx512f", CLOBBERS_AVX512, CHAINS_AVX512(FMA_512))
DEFINE_LOOP(loop_dpbusd_512, "avx512f,avx512vnni", CLOBBERS_AVX512, CHAINS_AVX512(DPBUSD_512))
DEFINE_LOOP(loop_dpwssd_512, "avx512f,avx512vnni", CLOBBERS_AVX512, CHAINS_AVX512(DPWSSD_512))

void peaks_loops_arithmetic(enum cpu_isa_level isa, struct peaks_loop loops_out[PEAKS_LOOPS])
{
    static const struct peaks_loop avx2[PEAKS_LOOPS] = {
        [PEAKS_F32] = {"vfmadd231ps", loop_fma, 4.0 * PASSES * 10 * 8},
        [PEAKS_INT8] = {"vpmaddubsw+vpmaddwd+vpaddd", loop_wide, 4.0 * PASSES * 10 * 32},
        [PEAKS_NIBBLE] = {"vpmaddubsw+vpaddw", loop_narrow, 4.0 * PASSES * 10 * 32},
        [PEAKS_PAIR] = {"vpmaddwd+vpaddd", loop_pair, 4.0 * PASSES * 10 * 16},
    };
    static const struct peaks_loop avx512vnni[PEAKS_LOOPS] = {
        [PEAKS_F32] = {"vfmadd231ps", loop_fma_512, 4.0 * PASSES * 16 * 16},
        [PEAKS_INT8] = {"vpdpbusd", loop_dpbusd_512, 4.0 * PASSES * 16 * 64},
        [PEAKS_NIBBLE] = {"vpdpbusd", loop_dpbusd_512, 4.0 * PASSES * 16 * 64},
        [PEAKS_PAIR] = {"vpdpwssd", loop_dpwssd_512, 4.0 * PASSES * 16 * 32},
    };
    if (isa < CPU_ISA_AVX2) {
        peaks_plain_arithmetic(loops_out);
        return;
    }
    const struct peaks_loop *from = isa >= CPU_ISA_AVX512VNNI ? avx512vnni : avx2;
    for (int i = 0; i < PEAKS_LOOPS; i++)
        loops_out[i] = from[i];
    if (isa == CPU_ISA_AVX512)
        loops_out[PEAKS_F32] = avx512vnni[PEAKS_F32];
}

/* --- memory --- */

/* Two lines of the stream whose reads start at operand `p` and prefetches at operand `q`. */
#define LINES(p, q, acc, hint)                               \
    "vpor (%[" p "],%[i]), %%ymm" acc ", %%ymm" acc "\n\t"   \
    "vpor 32(%[" p "],%[i]), %%ymm" acc ", %%ymm" acc "\n\t" \
    "vpor 64(%[" p "],%[i]), %%ymm" acc ", %%ymm" acc "\n\t" \
    "vpor 96(%[" p "],%[i]), %%ymm" acc ", %%ymm" acc "\n\t" \
    "prefetch" hint " (%[" q "],%[i])\n\t"                   \
    "prefetch" hint " 64(%[" q "],%[i])\n\t"

#define DEFINE_READ(name, streams, lines)                                                       \
    __attribute__((target("avx2"), noinline)) static void name(void *data)                      \
    {                                                                                           \
        const struct peaks_span *span = data;                                                   \
        size_t each = span->bytes / (streams), i = 0;                                           \
        const uint8_t *p = span->begin, *q = p + span->ahead;                                   \
        __asm__ volatile(                                                                       \
            "vzeroall\n\t"                                                                      \
            "1:\n\t" lines "add $128, %[i]\n\t"                                                 \
            "cmp %[each], %[i]\n\t"                                                             \
            "jb 1b\n\t"                                                                         \
            "vzeroupper"                                                                        \
            : [i] "+r"(i)                                                                       \
            : [each] "r"(each), [p0] "r"(p), [q0] "r"(q), [p1] "r"(p + each * (1 % (streams))), \
              [q1] "r"(q + each * (1 % (streams))), [p2] "r"(p + each * (2 % (streams))),       \
              [q2] "r"(q + each * (2 % (streams))), [p3] "r"(p + each * (3 % (streams))),       \
              [q3] "r"(q + each * (3 % (streams)))                                              \
            : CLOBBERS_AVX2, "memory");                                                         \
    }
#define STREAMS_1(hint) LINES("p0", "q0", "0", hint)
#define STREAMS_2(hint) STREAMS_1(hint) LINES("p1", "q1", "1", hint)
#define STREAMS_4(hint) STREAMS_2(hint) LINES("p2", "q2", "2", hint) LINES("p3", "q3", "3", hint)
DEFINE_READ(read_1_t0, 1, STREAMS_1("t0"))
DEFINE_READ(read_2_t0, 2, STREAMS_2("t0"))
DEFINE_READ(read_4_t0, 4, STREAMS_4("t0"))
DEFINE_READ(read_1_nta, 1, STREAMS_1("nta"))
DEFINE_READ(read_2_nta, 2, STREAMS_2("nta"))
DEFINE_READ(read_4_nta, 4, STREAMS_4("nta"))

peaks_read *peaks_loops_read(enum cpu_isa_level isa, size_t pattern)
{
    static peaks_read *const reads[PEAKS_READS] = {read_1_t0,  read_2_t0,  read_4_t0,
                                                   read_1_nta, read_2_nta, read_4_nta};
    if (isa < CPU_ISA_AVX2)
        return pattern == 0 ? peaks_plain_read : NULL;
    return reads[pattern];
}
