/* Linear layers for 64-bit Arm without dot products of bytes: equal to linear_plain.c to the bit.
 *
 * SMULL and SMLAL multiply eight signed bytes into 16-bit lanes, which hold two neighbouring slots x 4 k. Nibbles: the eight
 * lines' products add up there (8 * 15 * 127 = 15,240 < 32,767). Bytes: two lines' do (2 * 128 * 127 = 32,512). SADALP then adds
 * neighbouring lanes into 32 bits, and one pairwise addition a block gives four slots.
 * Owner: as linear.h. Advanced SIMD alone, which every 64-bit Arm has. */
#include <arm_neon.h>

#include "kernels/cpu/linear_neon.h"

#define INLINE static inline __attribute__((always_inline))

enum { TILE_ROWS = 2 };

/* Four activations, four times. */
INLINE int8x16_t broadcast4(const int8_t *a)
{
    int32_t word;
    memcpy(&word, a, sizeof word);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
}

/* Four slots' sums from lanes that hold slots 0, 0, 0, 0, 1, 1, 1, 1 and 2, 2, 2, 2, 3, 3, 3, 3. */
INLINE int32x4_t slot_sums(int32x4_t sum, int16x8_t low, int16x8_t high)
{
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}

INLINE void nibble_sums(const int R, const int8_t *const *a, const uint8_t *record,
                        int32x4_t (*sum)[4])
{
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        int16x8_t low[TILE_ROWS], high[TILE_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            low[r] = high[r] = vdupq_n_s16(0);
#pragma GCC unroll 4
        for (int line = 0; line < 4; line++) {
            uint8x16_t both = vld1q_u8(record + line * CPU_LINE_BYTES + g * 16);
            int8x16_t w = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
            int8x16_t w_high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                int8x16_t x = broadcast4(a[r] + line * 4), y = broadcast4(a[r] + 16 + line * 4);
                low[r] = vmlal_s8(low[r], vget_low_s8(w), vget_low_s8(x));
                high[r] = vmlal_high_s8(high[r], w, x);
                low[r] = vmlal_s8(low[r], vget_low_s8(w_high), vget_low_s8(y));
                high[r] = vmlal_high_s8(high[r], w_high, y);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            sum[r][g] = slot_sums(sum[r][g], low[r], high[r]);
    }
}

INLINE int8x16_t byte_weights(const uint8_t *record, int line, int group)
{
    uint8x16_t stored = vld1q_u8(record + line * CPU_LINE_BYTES + group * 16); /* w + 128 */
    return vreinterpretq_s8_u8(veorq_u8(stored, vdupq_n_u8(128)));
}

INLINE void byte_sums(const int R, const int8_t *const *a, const uint8_t *record,
                      int32x4_t (*sum)[4])
{
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        int32x4_t low[TILE_ROWS], high[TILE_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            low[r] = high[r] = vdupq_n_s32(0);
#pragma GCC unroll 4
        for (int line = 0; line < 8; line += 2) {
            int8x16_t w = byte_weights(record, line, g), w1 = byte_weights(record, line + 1, g);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                int8x16_t x = broadcast4(a[r] + line * 4), y = broadcast4(a[r] + line * 4 + 4);
                int16x8_t two = vmull_s8(vget_low_s8(w), vget_low_s8(x));
                int16x8_t two_high = vmull_high_s8(w, x);
                two = vmlal_s8(two, vget_low_s8(w1), vget_low_s8(y));
                two_high = vmlal_high_s8(two_high, w1, y);
                low[r] = vpadalq_s16(low[r], two);
                high[r] = vpadalq_s16(high[r], two_high);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            sum[r][g] = vaddq_s32(sum[r][g], vpaddq_s32(low[r], high[r]));
    }
}

#include "kernels/cpu/linear_neon_tiles.h"

void cpu_neon_store(const struct cpu_linear_call *call, const struct cpu_panel *panel, size_t row,
                    size_t rows, float (*chain)[CPU_PANEL])
{
    bool scaled = cpu_form_is_e32(panel->form);
    for (size_t r = 0; r < rows; r++) {
        float *out = call->out + (row + r) * call->ld_out;
        for (size_t i = 0; i < CPU_PANEL && scaled; i += 4)
            vst1q_f32(chain[r] + i,
                      vmulq_f32(vld1q_f32(chain[r] + i), vld1q_f32(panel->slot_scale + i)));
        if (panel->whole) {
            out += panel->first;
            for (size_t i = 0; i < CPU_PANEL; i += 4) {
                float32x4_t y = vld1q_f32(chain[r] + i);
                vst1q_f32(out + i, call->accumulate ? vaddq_f32(vld1q_f32(out + i), y) : y);
            }
            continue;
        }
        for (size_t slot = 0; slot < CPU_PANEL; slot++) {
            if (panel->slot_row[slot] < 0)
                continue;
            float *to = out + panel->slot_row[slot];
            *to = call->accumulate ? *to + chain[r][slot] : chain[r][slot];
        }
    }
    if (!call->maxima)
        return;
    if (!panel->whole) {
        cpu_linear_maxima(call, panel, row, rows);
        return;
    }
    for (size_t r = 0; r < rows; r++) {
        float32x4_t y[4], none = vdupq_n_f32(0);
        for (size_t i = 0; i < 4; i++) {
            y[i] = vld1q_f32(chain[r] + 4 * i);
            none = vfmaq_f32(none, y[i], vdupq_n_f32(0)); /* NaN where it is not finite */
        }
        float most = vmaxvq_f32(vmaxq_f32(vmaxq_f32(y[0], y[1]), vmaxq_f32(y[2], y[3])));
        cpu_linear_maximum_join(cpu_linear_maximum(call, panel, row + r), most + vaddvq_f32(none));
    }
}

const struct cpu_linear_ops cpu_linear_ops_neon = {
    .quantise = cpu_neon_quantise,
    .norm_quantise = cpu_neon_norm_quantise,
    .silu_mul_quantise = cpu_neon_silu_mul_quantise,
    .norm = cpu_neon_norm,
    .linear = linear,
};
