/* Which instruction set the CPU's kernels use. Every level gives the same bits (docs/NUMERICS.md),
 * so the choice is one of speed alone; a level is chosen once, at start, by the caller (flag,
 * environment, or what cpu_isa_detect says). Owner: any thread; no state. */
#ifndef BATON_KERNELS_CPU_ISA_H
#define BATON_KERNELS_CPU_ISA_H

#include <stdbool.h>

/* Each level includes those before it. */
enum cpu_isa_level {
    CPU_ISA_PLAIN,      /* what the compiler makes of plain C: the definition, slow */
    CPU_ISA_AVX2,       /* AVX2, FMA, F16C */
    CPU_ISA_AVX512,     /* AVX-512 F, BW, VL, DQ */
    CPU_ISA_AVX512VNNI, /* and VNNI */
    CPU_ISA_LEVELS
};

/* The highest level that this CPU and its operating system support. */
enum cpu_isa_level cpu_isa_detect(void);

/* "plain", "avx2", "avx512", "avx512vnni". */
const char *cpu_isa_name(enum cpu_isa_level level);

/* False when `name` is none of them; `level_out` is then untouched. */
bool cpu_isa_parse(const char *name, enum cpu_isa_level *level_out);

#endif
