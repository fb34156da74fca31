/* See peaks.h. x86-64 alone. */
#include "tests/bench/peaks.h"

#include <stdint.h>

#include "tests/bench/bench.h"

enum { PASSES = 20000 };

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
#define CHAINS_AVX512(line)                                                                   \
    line("0") line("1") line("2") line("3") line("4") line("5") line("6") line("7") line("8") \
        line("9") line("12") line("13") line("14") line("15") line("16") line("17")
#define FMA_512(acc) "vfmadd231ps %%zmm10, %%zmm11, %%zmm" acc "\n\t"
#define DPBUSD_512(acc) "vpdpbusd %%zmm10, %%zmm11, %%zmm" acc "\n\t"

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
#define CLOBBERS_AVX512                                                                      \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "cc"
DEFINE_LOOP(loop_fma_512, "avx512f", CLOBBERS_AVX512, CHAINS_AVX512(FMA_512))
DEFINE_LOOP(loop_dpbusd_512, "avx512f,avx512vnni", CLOBBERS_AVX512, CHAINS_AVX512(DPBUSD_512))

/* 1e9 operations a second of a loop with `chains` steps of `products` products in each of its two bodies. */
static double rate(void (*loop)(void *), double chains, double products)
{
    double seconds = bench_best_cpu(0.2, loop, NULL);
    return 2.0 * PASSES * 2.0 * chains * products / seconds * 1e-9;
}

void peaks_measure(enum cpu_isa_level isa, struct peaks *peaks_out)
{
    *peaks_out = (struct peaks){.f32 = isa >= CPU_ISA_AVX512 ? rate(loop_fma_512, 16, 16)
                                                             : rate(loop_fma, 10, 8)};
    if (isa >= CPU_ISA_AVX512VNNI) {
        peaks_out->int8 = peaks_out->nibble = rate(loop_dpbusd_512, 16, 64);
        peaks_out->int8_name = peaks_out->nibble_name = "vpdpbusd GOP/s";
        return;
    }
    peaks_out->int8 = rate(loop_wide, 10, 32);
    peaks_out->int8_name = "vpmaddubsw+vpmaddwd+vpaddd GOP/s";
    peaks_out->nibble = rate(loop_narrow, 10, 32);
    peaks_out->nibble_name = "vpmaddubsw+vpaddw GOP/s";
}

struct span {
    const uint8_t *begin, *end;
    size_t ahead; /* bytes between a load and its prefetch */
};

__attribute__((target("avx2"), noinline)) static void read_all(void *data)
{
    const struct span *span = data;
    const uint8_t *p = span->begin;
    __asm__ volatile("vpxor %%xmm0, %%xmm0, %%xmm0\n\t"
                     "vpxor %%xmm1, %%xmm1, %%xmm1\n\t"
                     "1:\n\t"
                     "vpor (%0), %%ymm0, %%ymm0\n\t"
                     "vpor 32(%0), %%ymm1, %%ymm1\n\t"
                     "vpor 64(%0), %%ymm0, %%ymm0\n\t"
                     "vpor 96(%0), %%ymm1, %%ymm1\n\t"
                     "prefetcht0 (%0,%2)\n\t"
                     "prefetcht0 64(%0,%2)\n\t"
                     "add $128, %0\n\t"
                     "cmp %1, %0\n\t"
                     "jb 1b\n\t"
                     "vzeroupper"
                     : "+r"(p)
                     : "r"(span->end), "r"(span->ahead)
                     : "xmm0", "xmm1", "cc", "memory");
}

double peaks_read_bandwidth(const void *memory, size_t bytes)
{
    double best = 0;
    for (size_t ahead = 0; ahead <= 4096; ahead = ahead ? ahead * 2 : 1024) {
        struct span span = {memory, (const uint8_t *)memory + bytes / 128 * 128, ahead};
        double rate = (double)(span.end - span.begin) / bench_best_cpu(0.5, read_all, &span) * 1e-9;
        best = rate > best ? rate : best;
    }
    return best;
}
