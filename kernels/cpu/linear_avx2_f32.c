/* compute=f32 for AVX2 and FMA: a piece of a panel is dequantised into L1 as [k][16] floats, then tiles of 6 rows x 16
 * outputs pass over it, one fmaf chain an output in ascending k.
 * Owner: as linear.h. Compiled with -mavx2 -mfma -mf16c. */
#include <immintrin.h>

#include "kernels/cpu/linear_avx2.h"

enum {
    TILE_ROWS = 6,
    CHUNK_ROWS = CPU_AVX2_F32_ROWS,
    CHUNK_BLOCKS = 6,
    CHUNK_K = CHUNK_BLOCKS * KERN_BLOCK,
    LINE_K = 16 /* floats of a line of the cache */
};

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 load_half8(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

/* The nibbles of each word that begin at bit `shift`, as floats. */
INLINE __m256 nibble8(__m256i words, const int shift)
{
    words = shift ? _mm256_srli_epi32(words, shift) : words;
    return _mm256_cvtepi32_ps(shift == 28 ? words : _mm256_and_si256(words, _mm256_set1_epi32(15)));
}

/* d q is exact, so the fused form rounds like product, then sum; but -0 + 0 needs care: without a minimum the definition has no
 * sum. */
INLINE __m256 weight8(const bool has_min, __m256 q, __m256 d, __m256 m)
{
    return has_min ? _mm256_fmadd_ps(d, q, m)
                   : _mm256_mul_ps(d, _mm256_sub_ps(q, _mm256_set1_ps(8.0f)));
}

INLINE void dequantise_nibbles(const bool has_min, const uint8_t *record, float (*w)[CPU_PANEL])
{
    for (size_t half = 0; half < 2; half++) {
        const uint8_t *scales = record + CPU_NIBBLE_BYTES + half * 16;
        __m256 d = load_half8(scales);
        __m256 m = has_min ? load_half8(scales + 32) : d;
        for (size_t line = 0; line < 4; line++) {
            __m256i words =
                _mm256_loadu_si256((const void *)(record + line * CPU_LINE_BYTES + half * 32));
            float *to = w[line * 4] + half * 8, *to_high = w[16 + line * 4] + half * 8;
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                __m256 low = weight8(has_min, nibble8(words, i * 8), d, m);
                __m256 high = weight8(has_min, nibble8(words, i * 8 + 4), d, m);
                _mm256_store_ps(to + i * CPU_PANEL, low);
                _mm256_store_ps(to_high + i * CPU_PANEL, high);
            }
        }
    }
}

static void dequantise_bytes(const uint8_t *record, float (*w)[CPU_PANEL])
{
    for (size_t half = 0; half < 2; half++) {
        __m256 d = load_half8(record + CPU_BYTE_BYTES + half * 16);
        for (size_t k = 0; k < KERN_BLOCK; k++) {
            const uint8_t *words = record + k / 4 * CPU_LINE_BYTES + half * 32;
            __m256i q = _mm256_loadu_si256((const void *)words);
            q = _mm256_and_si256(_mm256_srli_epi32(q, (int)(k % 4 * 8)), _mm256_set1_epi32(255));
            q = _mm256_sub_epi32(q, _mm256_set1_epi32(128));
            _mm256_store_ps(w[k] + half * 8, _mm256_mul_ps(d, _mm256_cvtepi32_ps(q)));
        }
    }
}

static void dequantise_elements(enum cpu_form form, const uint8_t *record, float (*w)[CPU_PANEL])
{
    size_t element_bytes = form == CPU_FORM_F32 ? 4 : 2;
    for (size_t i = 0; i < KERN_BLOCK * CPU_PANEL; i += 8) {
        const uint8_t *from = record + i * element_bytes;
        __m256 value;
        if (form == CPU_FORM_F32)
            value = _mm256_loadu_ps((const void *)from);
        else if (form == CPU_FORM_F16)
            value = load_half8(from);
        else
            value = _mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16));
        _mm256_store_ps(&w[0][0] + i, value);
    }
}

static void dequantise(const struct cpu_panel *panel, size_t block, size_t blocks,
                       float (*w)[CPU_PANEL])
{
    for (size_t b = 0; b < blocks; b++, w += KERN_BLOCK) {
        const uint8_t *record = panel->records + (block + b) * panel->record_bytes;
        if (panel->form == CPU_FORM_NIBBLE_MIN)
            dequantise_nibbles(true, record, w);
        else if (panel->form == CPU_FORM_NIBBLE)
            dequantise_nibbles(false, record, w);
        else if (panel->form == CPU_FORM_BYTE_HALF)
            dequantise_bytes(record, w);
        else
            dequantise_elements(panel->form, record, w);
    }
}

/* sum = w * b + sum, rounded once. In assembly: the compiler copies and spills sums that it need not. */
INLINE __m256 add_product(__m256 sum, __m256 w, __m256 b)
{
    __asm__("vfmadd231ps %[b], %[w], %[sum]" : [sum] "+x"(sum) : [w] "x"(w), [b] "x"(b));
    return sum;
}

/* R rows: chain[r] += sum over k of w[k] * x[r][k]. */
INLINE void tile(const int R, const float *x, size_t ld, const float (*w)[CPU_PANEL], size_t count,
                 float (*chain)[CPU_PANEL])
{
    __m256 sum[TILE_ROWS][2];
    const float *row[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        sum[r][0] = _mm256_loadu_ps(chain[r]);
        sum[r][1] = _mm256_loadu_ps(chain[r] + 8);
        row[r] = x + (size_t)r * ld;
    }
    for (size_t k = 0; k < count; k++) {
        __m256 w0 = _mm256_load_ps(w[k]), w1 = _mm256_load_ps(w[k] + 8);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m256 b = _mm256_broadcast_ss(row[r] + k);
            sum[r][0] = add_product(sum[r][0], w0, b);
            sum[r][1] = add_product(sum[r][1], w1, b);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        _mm256_storeu_ps(chain[r], sum[r][0]);
        _mm256_storeu_ps(chain[r] + 8, sum[r][1]);
    }
}

/* Six rows, the whole loop in assembly: the same sums, with nothing between them but what they need. Of each row's lines those of
 * the next tile are asked for, `ahead` bytes on: a chunk of rows of 1,536 does not fit the second cache.
 *
 *     ymm0..11 sums, two a row   ymm12, 13 w[k]   ymm14, 15 x[r][k] everywhere */
#define ROW_K(from, b, s0, s1)                         \
    "vbroadcastss " from ", %%ymm" b "\n\t"            \
    "vfmadd231ps %%ymm" b ", %%ymm12, %%ymm" s0 "\n\t" \
    "vfmadd231ps %%ymm" b ", %%ymm13, %%ymm" s1 "\n\t"
#define ONE_K(k, at_w, at_w1)                                                                  \
    "vmovaps " at_w "(%[w]), %%ymm12\n\t"                                                      \
    "vmovaps " at_w1 "(%[w]), %%ymm13\n\t" ROW_K(k "(%[x])", "14", "0", "1")                   \
        ROW_K(k "(%[x],%[ld])", "15", "2", "3") ROW_K(k "(%[x],%[ld],2)", "14", "4", "5")      \
            ROW_K(k "(%[x],%[ld3])", "15", "6", "7") ROW_K(k "(%[x],%[ld],4)", "14", "8", "9") \
                ROW_K(k "(%[x1],%[ld],4)", "15", "10", "11")
#define CHAINS(move)                                                                         \
    move("0", "0") move("32", "1") move("64", "2") move("96", "3") move("128", "4")          \
        move("160", "5") move("192", "6") move("224", "7") move("256", "8") move("288", "9") \
            move("320", "10") move("352", "11")
#define LOAD_CHAIN(at, sum) "vmovups " at "(%[chain]), %%ymm" sum "\n\t"
#define STORE_CHAIN(at, sum) "vmovups %%ymm" sum ", " at "(%[chain])\n\t"

static void tile_six(const float *x, size_t ld, const float (*w)[CPU_PANEL], size_t count,
                     size_t ahead, float (*chain)[CPU_PANEL])
{
    const uint8_t *at = (const uint8_t *)x, *next = at + ahead;
    ld *= sizeof(float);
    const uint8_t *at1 = at + ld, *next1 = next + ld;
    size_t lines = count / LINE_K;
    __asm__ volatile(
        CHAINS(
            LOAD_CHAIN) "1:\n\t"
                        "prefetcht1 (%[next])\n\t"
                        "prefetcht1 (%[next],%[ld])\n\t" ONE_K("0", "0", "32") ONE_K(
                            "4", "64", "96") "prefetcht1 (%[next],%[ld],2)\n\t" ONE_K("8", "128",
                                                                                      "160")
                            ONE_K("12", "192",
                                  "224") "prefetcht1 (%[next],%[ld3])\n\t" ONE_K("16", "256", "288")
                                ONE_K("20", "320", "352") "prefetcht1 (%[next],%[ld],4)\n\t" ONE_K(
                                    "24", "384", "416")
                                    ONE_K("28", "448",
                                          "480") "prefetcht1 (%[next1],%[ld],4)\n\t" ONE_K("32",
                                                                                           "512",
                                                                                           "544")
                                        ONE_K("36", "576", "608") ONE_K("40", "640", "672")
                                            ONE_K("44", "704", "736") ONE_K("48", "768", "800")
                                                ONE_K("52", "832", "864") ONE_K("56", "896", "928")
                                                    ONE_K("60", "960",
                                                          "992") "add $64, %[x]\n\t"
                                                                 "add $64, %[x1]\n\t"
                                                                 "add $64, %[next]\n\t"
                                                                 "add $64, %[next1]\n\t"
                                                                 "add $1024, %[w]\n\t"
                                                                 "dec %[lines]\n\t"
                                                                 "jnz 1b\n\t" CHAINS(STORE_CHAIN)
        : [x] "+r"(at), [x1] "+r"(at1), [next] "+r"(next), [next1] "+r"(next1), [w] "+r"(w),
          [lines] "+r"(lines)
        : [ld] "r"(ld), [ld3] "r"(3 * ld), [chain] "r"(chain)
        : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
          "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

/* Not inlined: constants of the caller's loops would take registers that the sums need. */
__attribute__((noinline)) static void tile_rows(size_t rows, const float *x, size_t ld,
                                                const float (*w)[CPU_PANEL], size_t count,
                                                size_t ahead, float (*chain)[CPU_PANEL])
{
    switch (rows) {
    case 1:
        tile(1, x, ld, w, count, chain);
        break;
    case 2:
        tile(2, x, ld, w, count, chain);
        break;
    case 3:
        tile(3, x, ld, w, count, chain);
        break;
    case 4:
        tile(4, x, ld, w, count, chain);
        break;
    case 5:
        tile(5, x, ld, w, count, chain);
        break;
    default:
        tile_six(x, ld, w, count, ahead, chain);
        break;
    }
}

void cpu_avx2_panel_f32(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                        size_t row, size_t rows)
{
    _Alignas(64) float chain[CHUNK_ROWS][CPU_PANEL];
    _Alignas(64) float w[CHUNK_K][CPU_PANEL];
    size_t stride_bytes = call->acts.stride_bytes, ld = stride_bytes / sizeof(float);
    for (size_t b = 0; b < panel->blocks; b += CHUNK_BLOCKS) {
        size_t blocks = panel->blocks - b < CHUNK_BLOCKS ? panel->blocks - b : CHUNK_BLOCKS;
        bool last = b + blocks == panel->blocks;
        dequantise(panel, b, blocks, w);
        for (size_t r = 0; r < rows; r += TILE_ROWS) {
            size_t height = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
            for (size_t i = r; last && panel->whole && i < r + height; i++)
                __builtin_prefetch(call->out + (row + i) * call->ld_out + panel->slot_row[0], 1);
            const float *x = cpu_acts_f32_row(&call->acts, row + r) + b * KERN_BLOCK;
            if (b == 0)
                memset(chain + r, 0, height * sizeof(chain[0]));
            /* after the last tile of these blocks, the first one of the next */
            size_t ahead = r + TILE_ROWS < rows ? TILE_ROWS * stride_bytes
                                                : CHUNK_K * sizeof(float) - r * stride_bytes;
            tile_rows(height, x, ld, (const float(*)[CPU_PANEL])w, blocks * KERN_BLOCK, ahead,
                      chain + r);
            if (last)
                cpu_avx2_store(call, panel, row + r, height, chain + r);
        }
    }
}
