/* compute=f32 for AVX-512: as linear_avx2_f32.c with one register a line of 16 outputs and tiles of 12 rows.
 * Owner: as linear.h. Compiled with -mavx512f and friends. */
#include "kernels/cpu/linear_avx512.h"

enum { TILE_ROWS = 12, CHUNK_ROWS = 96, CHUNK_BLOCKS = 8, CHUNK_K = CHUNK_BLOCKS * KERN_BLOCK };

#define INLINE static inline __attribute__((always_inline))

INLINE __m512 load_half16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* Bits [shift, shift + width) of each slot's word, as floats, less `zero_point`. */
INLINE __m512 field16(const uint8_t *line, unsigned shift, int mask, int zero_point)
{
    __m512i words = _mm512_srli_epi32(_mm512_loadu_si512(line), shift);
    words = _mm512_and_si512(words, _mm512_set1_epi32(mask));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(words, _mm512_set1_epi32(zero_point)));
}

static void dequantise_nibbles(enum cpu_form form, const uint8_t *record, float (*w)[CPU_PANEL])
{
    __m512 d = load_half16(record + CPU_NIBBLE_BYTES);
    __m512 m = form == CPU_FORM_NIBBLE_MIN ? load_half16(record + CPU_NIBBLE_BYTES + 32)
                                           : _mm512_setzero_ps();
    int zero_point = form == CPU_FORM_NIBBLE ? 8 : 0;
    for (unsigned k = 0; k < KERN_BLOCK; k++) {
        const uint8_t *line = record + k % 16 / 4 * CPU_LINE_BYTES;
        __m512 q = field16(line, k % 4 * 8 + k / 16 * 4, 15, zero_point);
        /* d q is exact, so the fused form rounds as product, then sum */
        q = form == CPU_FORM_NIBBLE ? _mm512_mul_ps(d, q) : _mm512_fmadd_ps(d, q, m);
        _mm512_storeu_ps(w[k], q);
    }
}

static void dequantise_bytes(const uint8_t *record, float (*w)[CPU_PANEL])
{
    __m512 d = load_half16(record + CPU_BYTE_BYTES);
    for (unsigned k = 0; k < KERN_BLOCK; k++)
        _mm512_storeu_ps(
            w[k], _mm512_mul_ps(d, field16(record + k / 4 * CPU_LINE_BYTES, k % 4 * 8, 255, 128)));
}

static void dequantise_elements(enum cpu_form form, const uint8_t *record, float (*w)[CPU_PANEL])
{
    for (size_t k = 0; k < KERN_BLOCK; k++) {
        __m512 value;
        if (form == CPU_FORM_F32)
            value = _mm512_loadu_ps(record + k * 64);
        else if (form == CPU_FORM_F16)
            value = load_half16(record + k * 32);
        else
            value = _mm512_castsi512_ps(_mm512_slli_epi32(
                _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(record + k * 32))), 16));
        _mm512_storeu_ps(w[k], value);
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

/* R rows: chain[r] += sum over k of w[k] * x[r][k]. */
INLINE void tile(const int R, const float *x, size_t ld, const float (*w)[CPU_PANEL], size_t count,
                 float (*chain)[CPU_PANEL])
{
    __m512 sum[TILE_ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
        sum[r] = _mm512_loadu_ps(chain[r]);
    for (size_t k = 0; k < count; k++) {
        __m512 line = _mm512_loadu_ps(w[k]);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
            sum[r] = _mm512_fmadd_ps(line, _mm512_set1_ps(x[(size_t)r * ld + k]), sum[r]);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
        _mm512_storeu_ps(chain[r], sum[r]);
}

/* Not inlined: constants of the caller's loops would take registers that the sums need. */
__attribute__((noinline)) static void tile_rows(size_t rows, const float *x, size_t ld,
                                                const float (*w)[CPU_PANEL], size_t count,
                                                float (*chain)[CPU_PANEL])
{
    for (; rows >= 12; rows -= 12, x += 12 * ld, chain += 12)
        tile(12, x, ld, w, count, chain);
    for (; rows >= 4; rows -= 4, x += 4 * ld, chain += 4)
        tile(4, x, ld, w, count, chain);
    for (; rows >= 1; rows -= 1, x += ld, chain += 1)
        tile(1, x, ld, w, count, chain);
}

void CPU_AVX512_NAME(cpu_avx512_panel_f32)(const struct cpu_linear_call *call,
                                           const struct cpu_panel *panel, size_t row, size_t rows)
{
    _Alignas(64) float chain[CHUNK_ROWS][CPU_PANEL];
    _Alignas(64) float w[CHUNK_K][CPU_PANEL];
    memset(chain, 0, rows * sizeof(chain[0]));
    size_t ld = call->acts.stride_bytes / sizeof(float);
    for (size_t b = 0; b < panel->blocks; b += CHUNK_BLOCKS) {
        size_t blocks = panel->blocks - b < CHUNK_BLOCKS ? panel->blocks - b : CHUNK_BLOCKS;
        dequantise(panel, b, blocks, w);
        tile_rows(rows, cpu_acts_f32_row(&call->acts, row) + b * KERN_BLOCK, ld,
                  (const float(*)[CPU_PANEL])w, blocks * KERN_BLOCK, chain);
    }
    cpu_avx512_store(call, panel, row, rows, &chain[0][0], CPU_PANEL);
}
