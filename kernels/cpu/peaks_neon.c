/* See peaks_loops.h: for 64-bit Arm, whose Advanced SIMD is always there; SDOT where the level has it. */
#include "kernels/cpu/peaks_loops.h"

/* --- arithmetic --- */

/* Some milliseconds, as in peaks_x86.c. */
enum { PASSES = 250000 };

/* Sixteen chains, so that latency hides: each line is repeated for v0..v15 as accumulators. v16 to v19 take intermediate sums, v24
 * and v25 are operands; all zero. */
#define CHAINS(line)                                                                             \
    line("0", "16") line("1", "17") line("2", "18") line("3", "19") line("4", "16")              \
        line("5", "17") line("6", "18") line("7", "19") line("8", "16") line("9", "17")          \
            line("10", "18") line("11", "19") line("12", "16") line("13", "17") line("14", "18") \
                line("15", "19")
#define FMLA(acc, temp) "fmla v" acc ".4s, v24.4s, v25.4s\n\t"
#define SMULL(acc, temp)                        \
    "smull v" temp ".8h, v24.8b, v25.8b\n\t"    \
    "smlal2 v" temp ".8h, v24.16b, v25.16b\n\t" \
    "sadalp v" acc ".4s, v" temp ".8h\n\t"
#define SMLAL(acc, temp) "smlal v" acc ".4s, v24.4h, v25.4h\n\t"
#define SDOT(acc, temp) "sdot v" acc ".4s, v24.16b, v25.16b\n\t"

#define CLOBBERS                                                                                   \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
        "v15", "v16", "v17", "v18", "v19", "v24", "v25", "cc"
#define ZERO(acc, temp)        \
    "movi v" acc ".2d, #0\n\t" \
    "movi v" temp ".2d, #0\n\t"

#define DEFINE_LOOP(name, body)                                                         \
    __attribute__((noinline)) static void name(void *unused)                            \
    {                                                                                   \
        long passes = PASSES;                                                           \
        (void)unused;                                                                   \
        __asm__ volatile(CHAINS(ZERO) "movi v24.2d, #0\n\t"                             \
                                      "movi v25.2d, #0\n\t"                             \
                                      "1:\n\t" body "subs %[passes], %[passes], #1\n\t" \
                                      "b.ne 1b"                                         \
                         : [passes] "+r"(passes)::CLOBBERS);                            \
    }
DEFINE_LOOP(loop_fmla, CHAINS(FMLA))
DEFINE_LOOP(loop_smull, CHAINS(SMULL))
DEFINE_LOOP(loop_smlal, CHAINS(SMLAL))
DEFINE_LOOP(loop_sdot, ".arch armv8.2-a+dotprod\n\t" CHAINS(SDOT))

void peaks_loops_arithmetic(enum cpu_isa_level isa, struct peaks_loop loops_out[PEAKS_LOOPS])
{
    static const struct peaks_loop neon[PEAKS_LOOPS] = {
        [PEAKS_F32] = {"fmla", loop_fmla, 2.0 * PASSES * 16 * 4},
        [PEAKS_INT8] = {"smull+smlal2+sadalp", loop_smull, 2.0 * PASSES * 16 * 16},
        [PEAKS_NIBBLE] = {"smull+smlal2+sadalp", loop_smull, 2.0 * PASSES * 16 * 16},
        [PEAKS_PAIR] = {"smlal", loop_smlal, 2.0 * PASSES * 16 * 4},
    };
    static const struct peaks_loop dotprod = {"sdot", loop_sdot, 2.0 * PASSES * 16 * 16};
    if (isa < CPU_ISA_NEON) {
        peaks_plain_arithmetic(loops_out);
        return;
    }
    for (int i = 0; i < PEAKS_LOOPS; i++)
        loops_out[i] = neon[i];
    if (isa >= CPU_ISA_DOTPROD)
        loops_out[PEAKS_INT8] = loops_out[PEAKS_NIBBLE] = dotprod;
}

/* --- memory --- */

/* 128 bytes of the stream that has come to operand `p`. */
#define LINES(p, a, b)                        \
    "ldp q24, q25, [%[" p "]], #32\n\t"       \
    "orr v" a ".16b, v" a ".16b, v24.16b\n\t" \
    "orr v" b ".16b, v" b ".16b, v25.16b\n\t" \
    "ldp q24, q25, [%[" p "]], #32\n\t"       \
    "orr v" a ".16b, v" a ".16b, v24.16b\n\t" \
    "orr v" b ".16b, v" b ".16b, v25.16b\n\t" \
    "ldp q24, q25, [%[" p "]], #32\n\t"       \
    "orr v" a ".16b, v" a ".16b, v24.16b\n\t" \
    "orr v" b ".16b, v" b ".16b, v25.16b\n\t" \
    "ldp q24, q25, [%[" p "]], #32\n\t"       \
    "orr v" a ".16b, v" a ".16b, v24.16b\n\t" \
    "orr v" b ".16b, v" b ".16b, v25.16b\n\t" \
    "prfm pldl1keep, [%[" p "], %[ahead]]\n\t"

#define DEFINE_READ(name, streams, lines)                                                   \
    __attribute__((noinline)) static void name(void *data)                                  \
    {                                                                                       \
        const struct peaks_span *span = data;                                               \
        size_t each = span->bytes / (streams), left = each / 128;                           \
        const uint8_t *p0 = span->begin, *p1 = p0 + each * (1 % (streams)),                 \
                      *p2 = p0 + each * (2 % (streams)), *p3 = p0 + each * (3 % (streams)); \
        __asm__ volatile(                                                                   \
            "1:\n\t" lines "subs %[left], %[left], #1\n\t"                                  \
            "b.ne 1b"                                                                       \
            : [left] "+r"(left), [p0] "+r"(p0), [p1] "+r"(p1), [p2] "+r"(p2), [p3] "+r"(p3) \
            : [ahead] "r"(span->ahead)                                                      \
            : CLOBBERS, "memory");                                                          \
    }
DEFINE_READ(read_1, 1, LINES("p0", "0", "1"))
DEFINE_READ(read_2, 2, LINES("p0", "0", "1") LINES("p1", "2", "3"))
DEFINE_READ(read_4, 4,
            LINES("p0", "0", "1") LINES("p1", "2", "3") LINES("p2", "4", "5") LINES("p3", "6", "7"))

peaks_read *peaks_loops_read(enum cpu_isa_level isa, size_t pattern)
{
    static peaks_read *const reads[PEAKS_READS] = {read_1, read_2, read_4};
    if (isa < CPU_ISA_NEON)
        return pattern == 0 ? peaks_plain_read : NULL;
    return reads[pattern];
}
