/* Asks the CPU (and, through XGETBV inside the compiler's helper, the operating system) what it supports. */
#include "kernels/cpu/isa.h"

#include <stddef.h>
#include <string.h>

static const char *const names[CPU_ISA_LEVELS] = {"plain", "avx2", "avx512", "avx512vnni"};

enum cpu_isa_level cpu_isa_detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c"))
        return CPU_ISA_PLAIN;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return CPU_ISA_AVX2;
    return __builtin_cpu_supports("avx512vnni") ? CPU_ISA_AVX512VNNI : CPU_ISA_AVX512;
#else
    return CPU_ISA_PLAIN;
#endif
}

const char *cpu_isa_name(enum cpu_isa_level level)
{
    return names[level];
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
