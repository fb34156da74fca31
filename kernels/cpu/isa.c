/* Asks the CPU (and, through XGETBV inside the compiler's helper, or the auxiliary vector, the operating system) what it
 * supports. */
#include "kernels/cpu/isa.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)

static const char *const names[CPU_ISA_LEVELS] = {"plain", "avx2", "avx512", "avx512vnni"};
static const char all_names[] = "plain, avx2, avx512, avx512vnni";

enum cpu_isa_level cpu_isa_detect(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c"))
        return CPU_ISA_PLAIN;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return CPU_ISA_AVX2;
    return __builtin_cpu_supports("avx512vnni") ? CPU_ISA_AVX512VNNI : CPU_ISA_AVX512;
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

static const char *const names[CPU_ISA_LEVELS] = {"plain", "neon", "dotprod"};
static const char all_names[] = "plain, neon, dotprod";

enum cpu_isa_level cpu_isa_detect(void)
{
    const unsigned long dot_products = 1ul << 20; /* HWCAP_ASIMDDP, Linux's arm64/elf_hwcaps */
    return getauxval(AT_HWCAP) & dot_products ? CPU_ISA_DOTPROD : CPU_ISA_NEON;
}

#else

static const char *const names[CPU_ISA_LEVELS] = {"plain"};
static const char all_names[] = "plain";

enum cpu_isa_level cpu_isa_detect(void)
{
    return CPU_ISA_PLAIN;
}

#endif

const char *cpu_isa_name(enum cpu_isa_level level)
{
    return names[level];
}

const char *cpu_isa_names(void)
{
    return all_names;
}

bool cpu_isa_parse(const char *name, enum cpu_isa_level *level_out)
{
    for (size_t i = 0; i < CPU_ISA_LEVELS; i++) {
        if (strcmp(name, names[i]) == 0) {
            *level_out = (enum cpu_isa_level)i;
            return true;
        }
    }
    return false;
}
