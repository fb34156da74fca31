/* Linear layers for 64-bit Arm, int8: what is around a block's integer sums. Included by linear_neon.c and linear_dotprod.c, each of
 * which defines before:
 *
 *     TILE_ROWS                                how many rows share the loads of a record
 *     nibble_sums(R, a, record, sum)           sum[r][g] += sum over k of q a, for the four slots from 4 g on
 *     byte_sums(R, a, record, sum)             likewise of w a
 *
 * with a[r] the block's 32 activations of row r. A tile is R rows x one panel; sums are exact integers, and each output's chain F
 * lives in memory between blocks.
 * Owner: as linear.h. */
#ifndef BATON_KERNELS_CPU_LINEAR_NEON_TILES_H
#define BATON_KERNELS_CPU_LINEAR_NEON_TILES_H

enum { GROUPS = CPU_PANEL / 4 }; /* of four slots: a register */

/* d of four slots of a byte record, as floats. */
INLINE float32x4_t byte_scales(enum cpu_form form, const uint8_t *scales, int group)
{
    if (form == CPU_FORM_BYTE_HALF)
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(scales + group * 8)));
    return vreinterpretq_f32_u8(vld1q_u8(scales + group * 16));
}

/* I = k lo16(v) + M hi16(v) for four slots. */
INLINE int32x4_t pair_products(enum cpu_form form, const uint8_t *scales, int group, int32x4_t v)
{
    int16x8_t halves = vreinterpretq_s16_s32(v), pairs;
    if (form == CPU_FORM_E32_PAIR)
        pairs = vreinterpretq_s16_u8(vld1q_u8(scales + group * 16));
    else /* M = 0 */
        pairs = vreinterpretq_s16_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(scales + group * 8))));
    return vpaddq_s32(vmull_s16(vget_low_s16(halves), vget_low_s16(pairs)),
                      vmull_high_s16(halves, pairs));
}

/* One block of the chain for four outputs of one row. */
INLINE float32x4_t chain_block(enum cpu_form form, const uint8_t *scales, int group, int32x4_t sum,
                               float da, uint32_t v0, int32_t s, float32x4_t chain)
{
    if (form == CPU_FORM_BYTE_HALF || form == CPU_FORM_BYTE_FLOAT)
        return vfmaq_f32(chain, vcvtq_f32_s32(sum),
                         vmulq_n_f32(byte_scales(form, scales, group), da));
    int32x4_t v = vaddq_s32(sum, vreinterpretq_s32_u32(vdupq_n_u32(v0)));
    if (form != CPU_FORM_E32_FLOAT)
        return vfmaq_f32(chain, vcvtq_f32_s32(pair_products(form, scales, group, v)),
                         vdupq_n_f32(da));
    float32x4_t low = vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(v, 16), 16));
    float32x4_t d = vreinterpretq_f32_u8(vld1q_u8(scales + group * 16));
    float32x4_t c = vreinterpretq_f32_u8(vld1q_u8(scales + 64 + group * 16));
    float32x4_t t = vfmaq_f32(vmulq_n_f32(c, (float)s), d, low);
    return vfmaq_f32(chain, t, vdupq_n_f32(da));
}

INLINE void tile(const int R, const bool bytes, const struct cpu_panel *panel,
                 const struct cpu_acts *acts, size_t row, float (*chain)[CPU_PANEL])
{
    for (size_t b = 0; b < panel->blocks; b++) {
        const uint8_t *record = panel->records + b * panel->record_bytes;
        const int8_t *a[TILE_ROWS];
        int32x4_t sum[TILE_ROWS][GROUPS];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            a[r] = cpu_acts_a(acts, row + (size_t)r) + b * KERN_BLOCK;
#pragma GCC unroll 8
            for (int g = 0; g < GROUPS; g++)
                sum[r][g] = vdupq_n_s32(0);
        }
        if (bytes)
            byte_sums(R, a, record, sum);
        else
            nibble_sums(R, a, record, sum);
        const uint8_t *scales = record + (bytes ? CPU_BYTE_BYTES : CPU_NIBBLE_BYTES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            float da = cpu_acts_da(acts, row + (size_t)r)[b];
            uint32_t v0 = cpu_acts_v0(acts, row + (size_t)r)[b];
            int32_t s = cpu_acts_s(acts, row + (size_t)r)[b];
#pragma GCC unroll 8
            for (int g = 0; g < GROUPS; g++) {
                float *at = chain[r] + g * 4;
                vst1q_f32(at,
                          chain_block(panel->form, scales, g, sum[r][g], da, v0, s, vld1q_f32(at)));
            }
        }
    }
}

/* The compiler needs R as a constant, to keep the sums in registers. */
INLINE void tile_rows(size_t rows, const bool bytes, const struct cpu_panel *panel,
                      const struct cpu_acts *acts, size_t row, float (*chain)[CPU_PANEL])
{
    if (rows == 1)
        tile(1, bytes, panel, acts, row, chain);
    else if (rows == 2 || TILE_ROWS == 2)
        tile(2, bytes, panel, acts, row, chain);
    else if (rows == 3)
        tile(TILE_ROWS - 1, bytes, panel, acts, row, chain);
    else
        tile(TILE_ROWS, bytes, panel, acts, row, chain);
}

static void linear(const struct cpu_linear_call *call)
{
    _Alignas(64) float chain[NEON_CHUNK_ROWS][CPU_PANEL];
    for (size_t row = call->rows.begin; row < call->rows.end; row += NEON_CHUNK_ROWS) {
        size_t rest = call->rows.end - row, rows = rest < NEON_CHUNK_ROWS ? rest : NEON_CHUNK_ROWS;
        for (size_t p = call->panel_begin; p < call->panel_end; p++) {
            struct cpu_panel panel = cpu_weights_panel(call->weights, p);
            if (call->acts.compute == KERN_COMPUTE_F32) {
                cpu_neon_panel_f32(call, &panel, row, rows);
                continue;
            }
            memset(chain, 0, rows * sizeof chain[0]);
            for (size_t r = 0; r < rows; r += TILE_ROWS) {
                size_t height = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
                bool bytes = panel.form == CPU_FORM_BYTE_HALF || panel.form == CPU_FORM_BYTE_FLOAT;
                if (bytes)
                    tile_rows(height, true, &panel, &call->acts, row + r, chain + r);
                else
                    tile_rows(height, false, &panel, &call->acts, row + r, chain + r);
            }
            cpu_neon_store(call, &panel, row, rows, chain);
        }
    }
}

#endif
