/* Linear layers for 64-bit Arm with the dot products of bytes: equal to linear_plain.c to the bit.
 *
 * SDOT adds to each 32-bit lane the four products of its bytes; one form takes the second operand's four bytes from a lane. A
 * record's line is four registers of four slots x 4 k, and a register of activations is 16 k, so that a line's k is a lane's
 * number and nothing is broadcast. Nibbles are unsigned, below 16: as signed bytes they are themselves.
 * Owner: as linear.h. Compiled with -march=armv8.2-a+dotprod; called only where the CPU has it. */
#include <arm_neon.h>

#include "kernels/cpu/linear_neon.h"

#define INLINE static inline __attribute__((always_inline))

enum { TILE_ROWS = 4 };

/* sum[r] += the line's 4 k times bytes 4 lane.. of a[r], for 16 slots. */
INLINE void add_line(const int R, const int lane, const int8x16_t *a, const int8x16_t w[4],
                     int32x4_t (*sum)[4])
{
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int g = 0; g < 4; g++)
            switch (lane) { /* the instruction's lane is a constant */
            case 0:
                sum[r][g] = vdotq_laneq_s32(sum[r][g], w[g], a[r], 0);
                break;
            case 1:
                sum[r][g] = vdotq_laneq_s32(sum[r][g], w[g], a[r], 1);
                break;
            case 2:
                sum[r][g] = vdotq_laneq_s32(sum[r][g], w[g], a[r], 2);
                break;
            default:
                sum[r][g] = vdotq_laneq_s32(sum[r][g], w[g], a[r], 3);
                break;
            }
}

INLINE void nibble_sums(const int R, const int8_t *const *a, const uint8_t *record,
                        int32x4_t (*sum)[4])
{
    int8x16_t low[TILE_ROWS], high[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        low[r] = vld1q_s8(a[r]);
        high[r] = vld1q_s8(a[r] + 16);
    }
#pragma GCC unroll 4
    for (int line = 0; line < 4; line++) {
        int8x16_t w[4], w_high[4];
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            uint8x16_t both = vld1q_u8(record + line * CPU_LINE_BYTES + g * 16);
            w[g] = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
            w_high[g] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
        }
        add_line(R, line, low, w, sum);
        add_line(R, line, high, w_high, sum);
    }
}

INLINE void byte_sums(const int R, const int8_t *const *a, const uint8_t *record,
                      int32x4_t (*sum)[4])
{
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        int8x16_t values[TILE_ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            values[r] = vld1q_s8(a[r] + half * 16);
#pragma GCC unroll 4
        for (int line = 0; line < 4; line++) {
            int8x16_t w[4];
#pragma GCC unroll 4
            for (int g = 0; g < 4; g++) /* stored as w + 128 */
                w[g] = vreinterpretq_s8_u8(
                    veorq_u8(vld1q_u8(record + (half * 4 + line) * CPU_LINE_BYTES + g * 16),
                             vdupq_n_u8(128)));
            add_line(R, line, values, w, sum);
        }
    }
}

#include "kernels/cpu/linear_neon_tiles.h"

const struct cpu_linear_ops cpu_linear_ops_dotprod = {
    .quantise = cpu_neon_quantise,
    .norm_quantise = cpu_neon_norm_quantise,
    .silu_mul_quantise = cpu_neon_silu_mul_quantise,
    .norm = cpu_neon_norm,
    .linear = linear,
};
