/* Activations for 64-bit Arm: equal to quant_plain.c to the bit.
 * Owner: as quant.h. */
#include "kernels/cpu/linear_neon.h"
#include "kernels/cpu/mathf_neon.h"

enum { LANES = 4, VECTORS = KERN_BLOCK / LANES };

/* The largest magnitude's bits: floats without their sign order as integers do, infinity and NaN on top. */
static inline uint32_t amax_bits(const float32x4_t y[VECTORS])
{
    const uint32x4_t mask = vdupq_n_u32(0x7fffffff);
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < VECTORS; i++)
        top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(y[i]), mask));
    return vmaxvq_u32(top);
}

/* Quantises one block of 32 floats; false when one is not finite. */
static inline bool put_block(const float32x4_t y[VECTORS], size_t block,
                             const struct cpu_act_row *row)
{
    uint32_t top = amax_bits(y);
    if (top >= 0x7f800000u)
        return false;
    if (row->f32) {
        for (int i = 0; i < VECTORS; i++)
            vst1q_f32(row->f32 + block * KERN_BLOCK + i * LANES, y[i]);
        return true;
    }
    float amax = mathf_from_bits(top), inverse = 127.0f / amax, da = amax / 127.0f;
    if (amax < 0x1p-120f)
        inverse = da = 0.0f;
    int16x8_t total = vdupq_n_s16(0);
    for (int i = 0; i < VECTORS; i += 2) { /* to nearest even, whatever the mode */
        int32x4_t q0 = vcvtnq_s32_f32(vmulq_n_f32(y[i], inverse));
        int32x4_t q1 = vcvtnq_s32_f32(vmulq_n_f32(y[i + 1], inverse));
        int16x8_t q = vcombine_s16(vmovn_s32(q0), vmovn_s32(q1));
        total = vaddq_s16(total, q); /* at most 4 * 127 a lane */
        vst1_s8(row->a + block * KERN_BLOCK + i * LANES, vmovn_s16(q));
    }
    int32_t sum = vaddlvq_s16(total);
    row->da[block] = da;
    row->s[block] = sum;
    row->v0[block] = (uint32_t)(8 * sum) * 65535u;
    return true;
}

bool cpu_neon_quantise(const float *x, size_t cols, const struct cpu_act_row *row)
{
    bool finite = true;
    for (size_t b = 0; b < cols / KERN_BLOCK; b++) {
        float32x4_t y[VECTORS];
        for (int i = 0; i < VECTORS; i++)
            y[i] = vld1q_f32(x + b * KERN_BLOCK + i * LANES);
        finite &= put_block(y, b, row);
    }
    return finite;
}

static inline float norm_scale(const float *x, float eps, size_t cols, bool *finite_out)
{
    float32x4_t partial[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (size_t i = 0; i < cols; i += 16)
        for (size_t v = 0; v < 4; v++) {
            float32x4_t value = vld1q_f32(x + i + v * LANES);
            partial[v] = vfmaq_f32(partial[v], value, value);
        }
    float sum = mathf4_sum16(partial);
    *finite_out = mathf_is_finite(sum);
    return mathf_rsqrt(sum / (float)cols + eps);
}

bool cpu_neon_norm_quantise(const float *x, const float *weight, float eps, size_t cols,
                            const struct cpu_act_row *row)
{
    bool finite;
    float scale = norm_scale(x, eps, cols, &finite);
    for (size_t b = 0; b < cols / KERN_BLOCK; b++) {
        float32x4_t y[VECTORS];
        for (size_t i = 0; i < VECTORS; i++) {
            size_t at = b * KERN_BLOCK + i * LANES;
            y[i] = vmulq_f32(vmulq_n_f32(vld1q_f32(x + at), scale), vld1q_f32(weight + at));
        }
        finite &= put_block(y, b, row);
    }
    return finite;
}

bool cpu_neon_silu_mul_quantise(const float *gate, const float *up, size_t cols,
                                const struct cpu_act_row *row)
{
    bool finite = true;
    for (size_t b = 0; b < cols / KERN_BLOCK; b++) {
        float32x4_t y[VECTORS];
        for (size_t i = 0; i < VECTORS; i++) {
            size_t at = b * KERN_BLOCK + i * LANES;
            y[i] = vmulq_f32(mathf4_silu(vld1q_f32(gate + at)), vld1q_f32(up + at));
        }
        finite &= put_block(y, b, row);
    }
    return finite;
}

void cpu_neon_norm(const float *x, const float *weight, float eps, size_t cols, float *y)
{
    bool finite;
    float scale = norm_scale(x, eps, cols, &finite);
    for (size_t i = 0; i < cols; i += LANES)
        vst1q_f32(y + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), scale), vld1q_f32(weight + i)));
}
