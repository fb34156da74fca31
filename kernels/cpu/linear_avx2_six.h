/* A tile of int8 rows and one panel for AVX2, and six and four rows of Q4_1's form: where a prompt and a batch spend their time, in assembly, because
 * the compiler's loop has a tenth more instructions (addresses, and sums that it moves). Included by linear_avx2.c alone.
 * Owner: as linear.h. */
#ifndef BATON_KERNELS_CPU_LINEAR_AVX2_SIX_H
#define BATON_KERNELS_CPU_LINEAR_AVX2_SIX_H

#include <immintrin.h>

#include "kernels/cpu/linear_avx2.h"

struct tile {
    enum cpu_form form;
    size_t record_bytes;
    const struct cpu_acts *acts;
    size_t row;             /* the first */
    size_t block, blocks;   /* the first, and how many */
    const uint8_t *records; /* of `block` */
    uint8_t *planes;        /* of `block`, or NULL */
    float *chain;           /* [R][16] */
};

/* Six rows:
 *
 *     ymm0..11 sums, two a row   ymm12, 13 weights, then (k, M)   ymm14 one row's activations   ymm15 products, mask, ones
 *
 * Rows are x, x + ld, x + 2 ld, x + 3 ld, x + 4 ld, and y + 4 ld with y = x + ld; da and v0 likewise. What loads weights gets the offsets of
 * a group's two vectors in the planes, then in the record. */
/* clang-format off */
#define SIX_FIRST(at, s0, s1)                          \
    "vpbroadcastd " at ", %%ymm14\n\t"                 \
    "vpmaddubsw %%ymm14, %%ymm12, %%ymm" s0 "\n\t"     \
    "vpmaddubsw %%ymm14, %%ymm13, %%ymm" s1 "\n\t"
#define SIX_ROW(at, s0, s1)                            \
    "vpbroadcastd " at ", %%ymm14\n\t"                 \
    "vpmaddubsw %%ymm14, %%ymm12, %%ymm15\n\t"         \
    "vpmaddubsw %%ymm14, %%ymm13, %%ymm14\n\t"         \
    "vpaddw %%ymm15, %%ymm" s0 ", %%ymm" s0 "\n\t"     \
    "vpaddw %%ymm14, %%ymm" s1 ", %%ymm" s1 "\n\t"
#define SIX_ROWS(row, k)                               \
    row(k "(%[x])", "0", "1")                          \
    row(k "(%[x],%[ld])", "2", "3")                    \
    row(k "(%[x],%[ld],2)", "4", "5")                  \
    row(k "(%[x],%[ld3])", "6", "7")                   \
    row(k "(%[x],%[ld],4)", "8", "9")                  \
    row(k "(%[y],%[ld],4)", "10", "11")
#define SIX_PLANES(p0, p1, r0, r1)                     \
    "vmovdqa " p0 "(%[planes]), %%ymm12\n\t"           \
    "vmovdqa " p1 "(%[planes]), %%ymm13\n\t"
#define SIX_LOW(p0, p1, r0, r1)                        \
    "vmovdqa %[mask], %%ymm15\n\t"                     \
    "vpand " r0 "(%[record]), %%ymm15, %%ymm12\n\t"    \
    "vpand " r1 "(%[record]), %%ymm15, %%ymm13\n\t"
#define SIX_HIGH(p0, p1, r0, r1)                       \
    "vmovdqu " r0 "(%[record]), %%ymm12\n\t"           \
    "vmovdqu " r1 "(%[record]), %%ymm13\n\t"           \
    "vmovdqa %[mask], %%ymm15\n\t"                     \
    "vpsrlw $4, %%ymm12, %%ymm12\n\t"                  \
    "vpsrlw $4, %%ymm13, %%ymm13\n\t"                  \
    "vpand %%ymm15, %%ymm12, %%ymm12\n\t"              \
    "vpand %%ymm15, %%ymm13, %%ymm13\n\t"
#define SIX_KEEP(p0, p1)                               \
    "vmovdqa %%ymm12, " p0 "(%[planes])\n\t"           \
    "vmovdqa %%ymm13, " p1 "(%[planes])\n\t"
#define SIX_LOW_KEEP(p0, p1, r0, r1) SIX_LOW(p0, p1, r0, r1) SIX_KEEP(p0, p1)
#define SIX_HIGH_KEEP(p0, p1, r0, r1) SIX_HIGH(p0, p1, r0, r1) SIX_KEEP(p0, p1)
#define SIX_BLOCK(low, high)                           \
    low("0", "32", "0", "32") SIX_ROWS(SIX_FIRST, "0")             \
    low("64", "96", "64", "96") SIX_ROWS(SIX_ROW, "4")             \
    low("128", "160", "128", "160") SIX_ROWS(SIX_ROW, "8")         \
    low("192", "224", "192", "224") SIX_ROWS(SIX_ROW, "12")        \
    high("256", "288", "0", "32") SIX_ROWS(SIX_ROW, "16")          \
    high("320", "352", "64", "96") SIX_ROWS(SIX_ROW, "20")         \
    high("384", "416", "128", "160") SIX_ROWS(SIX_ROW, "24")       \
    high("448", "480", "192", "224") SIX_ROWS(SIX_ROW, "28")
/* A block's end, in steps of a row: 16 bits widened, v0 added, times (k, M), to float, the chain, and back to memory. */
#define SIX_WIDEN(s0, s1)                              \
    "vpmaddwd %%ymm15, %%ymm" s0 ", %%ymm" s0 "\n\t"   \
    "vpmaddwd %%ymm15, %%ymm" s1 ", %%ymm" s1 "\n\t"
#define SIX_START(v0, s0, s1)                          \
    "vpbroadcastd " v0 ", %%ymm14\n\t"                 \
    "vpaddd %%ymm14, %%ymm" s0 ", %%ymm" s0 "\n\t"     \
    "vpaddd %%ymm14, %%ymm" s1 ", %%ymm" s1 "\n\t"
#define SIX_SCALE(s0, s1)                              \
    "vpmaddwd %%ymm12, %%ymm" s0 ", %%ymm" s0 "\n\t"   \
    "vpmaddwd %%ymm13, %%ymm" s1 ", %%ymm" s1 "\n\t"
#define SIX_FLOAT(s0, s1)                              \
    "vcvtdq2ps %%ymm" s0 ", %%ymm" s0 "\n\t"           \
    "vcvtdq2ps %%ymm" s1 ", %%ymm" s1 "\n\t"
#define SIX_CHAIN(da, s0, s1, c0, c1)                  \
    "vbroadcastss " da ", %%ymm14\n\t"                 \
    "vfmadd213ps " c0 "(%[chain]), %%ymm14, %%ymm" s0 "\n\t" \
    "vfmadd213ps " c1 "(%[chain]), %%ymm14, %%ymm" s1 "\n\t"
#define SIX_STORE(s0, s1, c0, c1)                      \
    "vmovaps %%ymm" s0 ", " c0 "(%[chain])\n\t"        \
    "vmovaps %%ymm" s1 ", " c1 "(%[chain])\n\t"
/* Each step two rows behind the one before: what a step waits for is done when its turn comes. */
#define SIX_END                                        \
    SIX_WIDEN("0", "1")                                \
    SIX_WIDEN("2", "3")                                \
    SIX_START("(%[v0])", "0", "1")                     \
    SIX_WIDEN("4", "5")                                \
    SIX_START("(%[v0],%[ld])", "2", "3")               \
    SIX_WIDEN("6", "7")                                \
    SIX_SCALE("0", "1")                                \
    SIX_START("(%[v0],%[ld],2)", "4", "5")             \
    SIX_WIDEN("8", "9")                                \
    SIX_SCALE("2", "3")                                \
    SIX_START("(%[v0],%[ld3])", "6", "7")              \
    SIX_WIDEN("10", "11")                              \
    SIX_FLOAT("0", "1")                                \
    SIX_SCALE("4", "5")                                \
    SIX_START("(%[v0],%[ld],4)", "8", "9")             \
    "lea (%[v0],%[ld]), %[y]\n\t"                      \
    SIX_FLOAT("2", "3")                                \
    SIX_SCALE("6", "7")                                \
    SIX_START("(%[y],%[ld],4)", "10", "11")            \
    SIX_CHAIN("(%[da])", "0", "1", "0", "32")          \
    SIX_FLOAT("4", "5")                                \
    SIX_SCALE("8", "9")                                \
    SIX_CHAIN("(%[da],%[ld])", "2", "3", "64", "96")   \
    SIX_FLOAT("6", "7")                                \
    SIX_SCALE("10", "11")                              \
    SIX_STORE("0", "1", "0", "32")                     \
    SIX_CHAIN("(%[da],%[ld],2)", "4", "5", "128", "160") \
    SIX_FLOAT("8", "9")                                \
    SIX_STORE("2", "3", "64", "96")                    \
    SIX_CHAIN("(%[da],%[ld3])", "6", "7", "192", "224") \
    SIX_FLOAT("10", "11")                              \
    SIX_STORE("4", "5", "128", "160")                  \
    SIX_CHAIN("(%[da],%[ld],4)", "8", "9", "256", "288") \
    "lea (%[da],%[ld]), %[y]\n\t"                      \
    SIX_STORE("6", "7", "192", "224")                  \
    SIX_CHAIN("(%[y],%[ld],4)", "10", "11", "320", "352") \
    SIX_STORE("8", "9", "256", "288")                  \
    SIX_STORE("10", "11", "320", "352")
#define SIX_ASK                                        \
    "prefetcht0 1024(%[record])\n\t"                   \
    "prefetcht0 1088(%[record])\n\t"                   \
    "prefetcht0 1152(%[record])\n\t"                   \
    "prefetcht0 1216(%[record])\n\t"                   \
    "prefetcht0 1280(%[record])\n\t"

#define SIX(name, ask, low, high)                                                                \
    static void name(const struct tile *t)                                                       \
    {                                                                                            \
        const size_t ld = t->acts->stride_bytes;                                                 \
        const struct offsets at = block_offsets(t->acts, t->block);                              \
        const int8_t *row = cpu_acts_a(t->acts, t->row), *y;                                     \
        const int8_t *x = row + at.a, *da = row + at.da, *v0 = row + at.v0;                      \
        const uint8_t *record = t->records;                                                      \
        uint8_t *planes = t->planes;                                                             \
        size_t blocks = t->blocks;                                                               \
        __asm__ volatile(                                                                        \
            "1:\n\t" ask                                                                         \
            "lea (%[x],%[ld]), %[y]\n\t"                                                         \
            SIX_BLOCK(low, high)                                                                 \
            "vmovdqa %[ones], %%ymm15\n\t"                                                       \
            "vmovdqu 256(%[record]), %%ymm12\n\t"                                                \
            "vmovdqu 288(%[record]), %%ymm13\n\t"                                                \
            SIX_END                                                                              \
            "add $32, %[x]\n\t"                                                                  \
            "add $4, %[da]\n\t"                                                                  \
            "add $4, %[v0]\n\t"                                                                  \
            "add $512, %[planes]\n\t"                                                            \
            "add $320, %[record]\n\t"                                                            \
            "dec %[blocks]\n\t"                                                                  \
            "jnz 1b"                                                                             \
            : [x] "+r"(x), [y] "=&r"(y), [da] "+r"(da), [v0] "+r"(v0), [planes] "+r"(planes),    \
              [record] "+r"(record), [blocks] "+r"(blocks)                                       \
            : [ld] "r"(ld), [ld3] "r"(3 * ld), [chain] "r"(t->chain),                            \
              [ones] "m"(*(const __m256i *)six_ones), [mask] "m"(*(const __m256i *)six_mask)     \
            : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",    \
              "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");             \
    }
/* Four rows, which are left over by many numbers of rows: registers are free for the sums to come a row later than the products that
 * they wait for.
 *
 *     ymm0..7 sums, two a row   ymm8, 9 weights, then (k, M)   ymm10, 11 and 12, 13 products of two rows in turn   ymm14 one row's
 *     activations   ymm15 mask, ones */
#define FOUR_FIRST(at, s0, s1)                         \
    "vpbroadcastd " at ", %%ymm14\n\t"                 \
    "vpmaddubsw %%ymm14, %%ymm8, %%ymm" s0 "\n\t"      \
    "vpmaddubsw %%ymm14, %%ymm9, %%ymm" s1 "\n\t"
#define FOUR_PRODUCTS(at, p0, p1)                      \
    "vpbroadcastd " at ", %%ymm14\n\t"                 \
    "vpmaddubsw %%ymm14, %%ymm8, %%ymm" p0 "\n\t"      \
    "vpmaddubsw %%ymm14, %%ymm9, %%ymm" p1 "\n\t"
#define FOUR_SUM(p0, p1, s0, s1)                       \
    "vpaddw %%ymm" p0 ", %%ymm" s0 ", %%ymm" s0 "\n\t" \
    "vpaddw %%ymm" p1 ", %%ymm" s1 ", %%ymm" s1 "\n\t"
/* A block's first group, the groups between, and the last one, whose own sums close it. Each leaves row 3's to the next. */
#define FOUR_GROUP_FIRST(k)                            \
    FOUR_FIRST(k "(%[x])", "0", "1")                   \
    FOUR_FIRST(k "(%[x],%[ld])", "2", "3")             \
    FOUR_FIRST(k "(%[x],%[ld],2)", "4", "5")           \
    FOUR_FIRST(k "(%[x],%[ld3])", "6", "7")
#define FOUR_GROUP(k, before)                          \
    FOUR_PRODUCTS(k "(%[x])", "10", "11")              \
    before                                             \
    FOUR_PRODUCTS(k "(%[x],%[ld])", "12", "13")        \
    FOUR_SUM("10", "11", "0", "1")                     \
    FOUR_PRODUCTS(k "(%[x],%[ld],2)", "10", "11")      \
    FOUR_SUM("12", "13", "2", "3")                     \
    FOUR_PRODUCTS(k "(%[x],%[ld3])", "12", "13")       \
    FOUR_SUM("10", "11", "4", "5")
#define FOUR_LEFT FOUR_SUM("12", "13", "6", "7")
#define FOUR_PLANES(p0, p1, r0, r1)                    \
    "vmovdqa " p0 "(%[planes]), %%ymm8\n\t"            \
    "vmovdqa " p1 "(%[planes]), %%ymm9\n\t"
#define FOUR_LOW(p0, p1, r0, r1)                       \
    "vpand " r0 "(%[record]), %%ymm15, %%ymm8\n\t"     \
    "vpand " r1 "(%[record]), %%ymm15, %%ymm9\n\t"
#define FOUR_HIGH(p0, p1, r0, r1)                      \
    "vmovdqu " r0 "(%[record]), %%ymm8\n\t"            \
    "vmovdqu " r1 "(%[record]), %%ymm9\n\t"            \
    "vpsrlw $4, %%ymm8, %%ymm8\n\t"                    \
    "vpsrlw $4, %%ymm9, %%ymm9\n\t"                    \
    "vpand %%ymm15, %%ymm8, %%ymm8\n\t"                \
    "vpand %%ymm15, %%ymm9, %%ymm9\n\t"
#define FOUR_BLOCK(low, high)                                       \
    low("0", "32", "0", "32") FOUR_GROUP_FIRST("0")                 \
    low("64", "96", "64", "96") FOUR_GROUP("4", "")                 \
    low("128", "160", "128", "160") FOUR_GROUP("8", FOUR_LEFT)      \
    low("192", "224", "192", "224") FOUR_GROUP("12", FOUR_LEFT)     \
    high("256", "288", "0", "32") FOUR_GROUP("16", FOUR_LEFT)       \
    high("320", "352", "64", "96") FOUR_GROUP("20", FOUR_LEFT)      \
    high("384", "416", "128", "160") FOUR_GROUP("24", FOUR_LEFT)    \
    high("448", "480", "192", "224") FOUR_GROUP("28", FOUR_LEFT)    \
    FOUR_LEFT
#define FOUR_SCALE(s0, s1)                             \
    "vpmaddwd %%ymm8, %%ymm" s0 ", %%ymm" s0 "\n\t"    \
    "vpmaddwd %%ymm9, %%ymm" s1 ", %%ymm" s1 "\n\t"
#define FOUR_END                                       \
    SIX_WIDEN("0", "1")                                \
    SIX_WIDEN("2", "3")                                \
    SIX_START("(%[v0])", "0", "1")                     \
    SIX_WIDEN("4", "5")                                \
    SIX_START("(%[v0],%[ld])", "2", "3")               \
    SIX_WIDEN("6", "7")                                \
    FOUR_SCALE("0", "1")                               \
    SIX_START("(%[v0],%[ld],2)", "4", "5")             \
    FOUR_SCALE("2", "3")                               \
    SIX_START("(%[v0],%[ld3])", "6", "7")              \
    SIX_FLOAT("0", "1")                                \
    FOUR_SCALE("4", "5")                               \
    SIX_FLOAT("2", "3")                                \
    FOUR_SCALE("6", "7")                               \
    SIX_CHAIN("(%[da])", "0", "1", "0", "32")          \
    SIX_FLOAT("4", "5")                                \
    SIX_CHAIN("(%[da],%[ld])", "2", "3", "64", "96")   \
    SIX_FLOAT("6", "7")                                \
    SIX_STORE("0", "1", "0", "32")                     \
    SIX_CHAIN("(%[da],%[ld],2)", "4", "5", "128", "160") \
    SIX_STORE("2", "3", "64", "96")                    \
    SIX_CHAIN("(%[da],%[ld3])", "6", "7", "192", "224") \
    SIX_STORE("4", "5", "128", "160")                  \
    SIX_STORE("6", "7", "192", "224")
#define FOUR(name, ask, mask_once, low, high)                                                    \
    static void name(const struct tile *t)                                                       \
    {                                                                                            \
        const size_t ld = t->acts->stride_bytes;                                                 \
        const struct offsets at = block_offsets(t->acts, t->block);                              \
        const int8_t *row = cpu_acts_a(t->acts, t->row);                                         \
        const int8_t *x = row + at.a, *da = row + at.da, *v0 = row + at.v0;                      \
        const uint8_t *record = t->records;                                                      \
        uint8_t *planes = t->planes;                                                             \
        size_t blocks = t->blocks;                                                               \
        __asm__ volatile(                                                                        \
            "1:\n\t" ask mask_once                                                               \
            FOUR_BLOCK(low, high)                                                                \
            "vmovdqa %[ones], %%ymm15\n\t"                                                       \
            "vmovdqu 256(%[record]), %%ymm8\n\t"                                                 \
            "vmovdqu 288(%[record]), %%ymm9\n\t"                                                 \
            FOUR_END                                                                             \
            "add $32, %[x]\n\t"                                                                  \
            "add $4, %[da]\n\t"                                                                  \
            "add $4, %[v0]\n\t"                                                                  \
            "add $512, %[planes]\n\t"                                                            \
            "add $320, %[record]\n\t"                                                            \
            "dec %[blocks]\n\t"                                                                  \
            "jnz 1b"                                                                             \
            : [x] "+r"(x), [da] "+r"(da), [v0] "+r"(v0), [planes] "+r"(planes),                  \
              [record] "+r"(record), [blocks] "+r"(blocks)                                       \
            : [ld] "r"(ld), [ld3] "r"(3 * ld), [chain] "r"(t->chain),                            \
              [ones] "m"(*(const __m256i *)six_ones), [mask] "m"(*(const __m256i *)six_mask)     \
            : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",    \
              "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");             \
    }
/* clang-format on */

static const _Alignas(32) uint32_t six_ones[8] = {0x10001, 0x10001, 0x10001, 0x10001,
                                                  0x10001, 0x10001, 0x10001, 0x10001};
static const _Alignas(32) uint32_t six_mask[8] = {0xf0f0f0f, 0xf0f0f0f, 0xf0f0f0f, 0xf0f0f0f,
                                                  0xf0f0f0f, 0xf0f0f0f, 0xf0f0f0f, 0xf0f0f0f};
SIX(cpu_avx2_six_records, SIX_ASK, SIX_LOW, SIX_HIGH)
SIX(cpu_avx2_six_planes, "", SIX_PLANES, SIX_PLANES)
SIX(cpu_avx2_six_unpack, "", SIX_LOW_KEEP, SIX_HIGH_KEEP)
FOUR(cpu_avx2_four_records, SIX_ASK, "vmovdqa %[mask], %%ymm15\n\t", FOUR_LOW, FOUR_HIGH)
FOUR(cpu_avx2_four_planes, "", "", FOUR_PLANES, FOUR_PLANES)

#endif
