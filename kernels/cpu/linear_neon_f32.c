/* compute=f32 for 64-bit Arm: a piece of a panel is dequantised into the first-level cache as [k][16] floats, then tiles of 4 rows x
 * 16 outputs pass over it, one fused chain an output in ascending k.
 * Owner: as linear.h. */
#include <arm_neon.h>

#include "kernels/cpu/linear_neon.h"

enum { TILE_ROWS = 4, CHUNK_BLOCKS = 8, CHUNK_K = CHUNK_BLOCKS * KERN_BLOCK };

#define INLINE static inline __attribute__((always_inline))

INLINE float32x4_t load_half4(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* Bits `shift` and up of four slots' words, as many as `mask` has. */
INLINE int32x4_t field4(const uint8_t *words, int shift, uint32_t mask)
{
    uint32x4_t value = vshlq_u32(vreinterpretq_u32_u8(vld1q_u8(words)), vdupq_n_s32(-shift));
    return vreinterpretq_s32_u32(vandq_u32(value, vdupq_n_u32(mask)));
}

static void dequantise_nibbles(enum cpu_form form, const uint8_t *record, float (*w)[CPU_PANEL])
{
    for (size_t g = 0; g < CPU_PANEL; g += 4) {
        const uint8_t *scales = record + CPU_NIBBLE_BYTES + g * 2;
        float32x4_t d = load_half4(scales);
        for (size_t k = 0; k < KERN_BLOCK; k++) {
            const uint8_t *words = record + k % 16 / 4 * CPU_LINE_BYTES + g * 4;
            int32x4_t q = field4(words, (int)(k % 4 * 8 + (k < 16 ? 0 : 4)), 15);
            float32x4_t value;
            if (form == CPU_FORM_NIBBLE)
                value = vmulq_f32(d, vcvtq_f32_s32(vsubq_s32(q, vdupq_n_s32(8))));
            else
                value = vaddq_f32(vmulq_f32(d, vcvtq_f32_s32(q)), load_half4(scales + 32));
            vst1q_f32(w[k] + g, value);
        }
    }
}

static void dequantise_bytes(const uint8_t *record, float (*w)[CPU_PANEL])
{
    for (size_t g = 0; g < CPU_PANEL; g += 4) {
        float32x4_t d = load_half4(record + CPU_BYTE_BYTES + g * 2);
        for (size_t k = 0; k < KERN_BLOCK; k++) {
            int32x4_t q = field4(record + k / 4 * CPU_LINE_BYTES + g * 4, (int)(k % 4 * 8), 255);
            vst1q_f32(w[k] + g, vmulq_f32(d, vcvtq_f32_s32(vsubq_s32(q, vdupq_n_s32(128)))));
        }
    }
}

static void dequantise_elements(enum cpu_form form, const uint8_t *record, float (*w)[CPU_PANEL])
{
    for (size_t i = 0; i < KERN_BLOCK * CPU_PANEL; i += 4) {
        float32x4_t value;
        if (form == CPU_FORM_F32)
            value = vreinterpretq_f32_u8(vld1q_u8(record + i * 4));
        else if (form == CPU_FORM_F16)
            value = load_half4(record + i * 2);
        else
            value = vreinterpretq_f32_u32(
                vshll_n_u16(vreinterpret_u16_u8(vld1_u8(record + i * 2)), 16));
        vst1q_f32(&w[0][0] + i, value);
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
    float32x4_t sum[TILE_ROWS][4];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++)
            sum[r][g] = vld1q_f32(chain[r] + g * 4);
    for (size_t k = 0; k < count; k++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            float32x4_t value = vld1q_dup_f32(x + (size_t)r * ld + k);
#pragma GCC unroll 4
            for (int g = 0; g < 4; g++)
                sum[r][g] = vfmaq_f32(sum[r][g], vld1q_f32(w[k] + g * 4), value);
        }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++)
            vst1q_f32(chain[r] + g * 4, sum[r][g]);
}

static void tile_rows(size_t rows, const float *x, size_t ld, const float (*w)[CPU_PANEL],
                      size_t count, float (*chain)[CPU_PANEL])
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
    default:
        tile(TILE_ROWS, x, ld, w, count, chain);
        break;
    }
}

void cpu_neon_panel_f32(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                        size_t row, size_t rows)
{
    _Alignas(64) float chain[NEON_CHUNK_ROWS][CPU_PANEL];
    _Alignas(64) float w[CHUNK_K][CPU_PANEL];
    memset(chain, 0, rows * sizeof chain[0]);
    size_t ld = call->acts.stride_bytes / sizeof(float);
    for (size_t b = 0; b < panel->blocks; b += CHUNK_BLOCKS) {
        size_t blocks = panel->blocks - b < CHUNK_BLOCKS ? panel->blocks - b : CHUNK_BLOCKS;
        dequantise(panel, b, blocks, w);
        for (size_t r = 0; r < rows; r += TILE_ROWS) {
            const float *x = cpu_acts_f32_row(&call->acts, row + r) + b * KERN_BLOCK;
            size_t height = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
            tile_rows(height, x, ld, (const float(*)[CPU_PANEL])w, blocks * KERN_BLOCK, chain + r);
        }
    }
    cpu_neon_store(call, panel, row, rows, chain);
}
