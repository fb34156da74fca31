/* Which instruction set the CPU's kernels use. Every level gives the same bits (docs/NUMERICS.md),
 * so the choice is one of speed alone; a level is chosen once, at start, by the caller (flag,
 * environment, or what cpu_isa_detect says). Owner: any thread; no state. */
#ifndef BATON_KERNELS_CPU_ISA_H
#define BATON_KERNELS_CPU_ISA_H

#include <stdbool.h>

/* Those of the processor family that this is compiled for. Each level includes those before it. */
enum cpu_isa_level {
    CPU_ISA_PLAIN, /* what the compiler makes of plain C: the definition, slow */
#if defined(__x86_64__)
    CPU_ISA_AVX2,       /* AVX2, FMA, F16C */
    CPU_ISA_AVX512,     /* AVX-512 F, BW, VL, DQ */
    CPU_ISA_AVX512VNNI, /* and VNNI */
#elif defined(__aarch64__)
    CPU_ISA_NEON,    /* Advanced SIMD: every 64-bit Arm has it */
    CPU_ISA_DOTPROD, /* and the dot products of bytes: SDOT (Armv8.2; Armv8.4 and later have it) */
#endif
    CPU_ISA_LEVELS
};

/* The highest level that this CPU and its operating system support. */
enum cpu_isa_level cpu_isa_detect(void);

/* "plain", "avx2", "avx512", "avx512vnni"; "plain", "neon", "dotprod". */
const char *cpu_isa_name(enum cpu_isa_level level);

/* False when `name` is none of this processor family's; `level_out` is then untouched. */
bool cpu_isa_parse(const char *name, enum cpu_isa_level *level_out);

/* The names of all levels of this family, "plain, avx2, ...": for messages. */
const char *cpu_isa_names(void);

#endif
