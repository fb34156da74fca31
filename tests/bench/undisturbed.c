/* See undisturbed.h. */
#include "tests/bench/undisturbed.h"

#include "kernels/cpu/isa.h"
#include "tests/bench/bench.h"

#if defined(__x86_64__)

enum { PASSES = 8000, WARM = 500 };

#define FMA(acc, other) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" acc "\n\t" other "\n\t"
#define COUNT(to) "inc %%" to
#define LOAD(at) "vmovaps " at "(%[from]), %%ymm3"
#define SPREAD(at) "vbroadcastss " at "(%[from]), %%ymm2"

__attribute__((target("avx2,fma"), noinline)) static void loop(long passes)
{
    static const _Alignas(64) float from[128];
    __asm__ volatile(
        "vzeroall\n"
        "1:\n\t" /* what is loaded is not used: it takes a place in a cycle */
        FMA("4", SPREAD("0")) FMA("5", COUNT("rax")) FMA("6", LOAD("64")) FMA("7", COUNT("rcx"))
            FMA("8", SPREAD("128")) FMA("9", COUNT("rdx")) FMA("10", LOAD("192"))
                FMA("11", COUNT("rax")) FMA("12", SPREAD("256")) FMA("13", COUNT("rcx"))
                    FMA("14", LOAD("320")) FMA("15", COUNT("rdx"))
                        SPREAD("384") "\n\t" LOAD("448") "\n\t"
                                                         "dec %[passes]\n\t"
                                                         "jnz 1b\n\t"
                                                         "vzeroupper"
        : [passes] "+r"(passes)
        : [from] "r"(from), "m"(from)
        : "rax", "rcx", "rdx", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
          "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc");
}

static double look(void)
{
    loop(WARM); /* what work before has driven out of the caches is no sign */
    double begin = bench_cpu_now();
    loop(PASSES);
    return bench_cpu_now() - begin;
}

/* Seconds of an undisturbed look. Not the very best: a hypervisor's corrections make single ones too short. */
static double least(void)
{
    enum { LOOKS = 6000, TOO_SHORT = LOOKS / 200 };
    static double each[LOOKS];
    for (int i = 0; i < LOOKS; i++)
        each[i] = look();
    bench_median(each, LOOKS); /* sorts */
    return each[TOO_SHORT];
}

bool undisturbed(void)
{
    static double best;
    if (cpu_isa_detect() < CPU_ISA_AVX2)
        return false;
    if (best == 0)
        best = least();
    return look() * 0.95 < best;
}

#else

bool undisturbed(void)
{
    return false;
}

#endif
