/* compute=f32 for AVX2 and FMA: a piece of a panel is dequantised into L1 as [k][16] floats, then tiles of 6 rows x 16
 * outputs pass over it, one fmaf chain an output in ascending k.
 * Owner: as linear.h. Compiled with -mavx2 -mfma -mf16c. */
#include <immintrin.h>

#include "kernels/cpu/linear_avx2.h"

enum {
    TILE_ROWS = 6,
    CHUNK_ROWS = CPU_AVX2_F32_ROWS,
    CHUNK_BLOCKS = 8,
    CHUNK_K = CHUNK_BLOCKS * KERN_BLOCK
};

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 load_half8(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

/* One line of words: nibble `shift`/4 of each 8 slots' word, as floats. */
INLINE __m256 nibble8(const uint8_t *line, int shift)
{
    __m256i words = _mm256_loadu_si256((const void *)line);
    words = _mm256_and_si256(_mm256_srli_epi32(words, shift), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(words);
}

static void dequantise_nibbles(enum cpu_form form, const uint8_t *record, float (*w)[CPU_PANEL])
{
    for (size_t half = 0; half < 2; half++) {
        const uint8_t *scales = record + CPU_NIBBLE_BYTES + half * 16;
        __m256 d = load_half8(scales);
        __m256 m = form == CPU_FORM_NIBBLE_MIN ? load_half8(scales + 32) : _mm256_setzero_ps();
        __m256 zero_point = _mm256_set1_ps(form == CPU_FORM_NIBBLE ? 8.0f : 0.0f);
        for (size_t line = 0; line < 4; line++) {
            const uint8_t *words = record + line * CPU_LINE_BYTES + half * 32;
            for (size_t i = 0; i < 4; i++) {
                __m256 low = _mm256_sub_ps(nibble8(words, (int)i * 8), zero_point);
                __m256 high = _mm256_sub_ps(nibble8(words, (int)i * 8 + 4), zero_point);
                /* d q is exact, so the fused form rounds like product, then sum; but -0 + 0 needs
                 * care: NIBBLE has no sum in its definition */
                low = form == CPU_FORM_NIBBLE ? _mm256_mul_ps(d, low) : _mm256_fmadd_ps(d, low, m);
                high =
                    form == CPU_FORM_NIBBLE ? _mm256_mul_ps(d, high) : _mm256_fmadd_ps(d, high, m);
                _mm256_store_ps(w[line * 4 + i] + half * 8, low);
                _mm256_store_ps(w[16 + line * 4 + i] + half * 8, high);
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
        if (panel->form == CPU_FORM_NIBBLE || panel->form == CPU_FORM_NIBBLE_MIN)
            dequantise_nibbles(panel->form, record, w);
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

/* Not inlined: constants of the caller's loops would take registers that the sums need. */
__attribute__((noinline)) static void tile_rows(size_t rows, const float *x, size_t ld,
                                                const float (*w)[CPU_PANEL], size_t count,
                                                float (*chain)[CPU_PANEL])
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
        tile(6, x, ld, w, count, chain);
        break;
    }
}

void cpu_avx2_panel_f32(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                        size_t row, size_t rows)
{
    _Alignas(64) float chain[CHUNK_ROWS][CPU_PANEL];
    _Alignas(64) float w[CHUNK_K][CPU_PANEL];
    memset(chain, 0, rows * sizeof(chain[0]));
    size_t ld = call->acts.stride_bytes / sizeof(float);
    for (size_t b = 0; b < panel->blocks; b += CHUNK_BLOCKS) {
        size_t blocks = panel->blocks - b < CHUNK_BLOCKS ? panel->blocks - b : CHUNK_BLOCKS;
        dequantise(panel, b, blocks, w);
        bool last = b + CHUNK_BLOCKS >= panel->blocks && panel->whole;
        for (size_t r = 0; r < rows; r += TILE_ROWS) {
            for (size_t i = r; last && i < r + TILE_ROWS && i < rows; i++)
                __builtin_prefetch(call->out + (row + i) * call->ld_out + panel->slot_row[0], 1);
            const float *x = cpu_acts_f32_row(&call->acts, row + r) + b * KERN_BLOCK;
            size_t height = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
            tile_rows(height, x, ld, (const float(*)[CPU_PANEL])w, blocks * KERN_BLOCK, chain + r);
        }
    }
    cpu_avx2_store(call, panel, row, rows, chain);
}
