/* mathf.h's float functions on four lanes: the same operations in the same order, so the same bits. For 64-bit Arm.
 * Owner: any thread; no state. */
#ifndef BATON_KERNELS_CPU_MATHF_NEON_H
#define BATON_KERNELS_CPU_MATHF_NEON_H

#include <arm_neon.h>

#include "kernels/cpu/mathf.h"

/* vfmaq_f32(c, a, b) is fma(a, b, c). */
static inline float32x4_t mathf4_exp(float32x4_t x)
{
    const float32x4_t magic = vdupq_n_f32(MATHF_MAGIC);
    x = vminq_f32(vdupq_n_f32(MATHF_EXP_MAX), x); /* NaN stays NaN */
    x = vmaxq_f32(vdupq_n_f32(MATHF_EXP_MIN), x);
    float32x4_t shifted = vfmaq_f32(magic, x, vdupq_n_f32(MATHF_LOG2E));
    float32x4_t n = vsubq_f32(shifted, magic);
    float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-MATHF_LN2_HIGH));
    r = vfmaq_f32(r, n, vdupq_n_f32(-MATHF_LN2_LOW));
    float32x4_t q = vfmaq_f32(vdupq_n_f32(MATHF_EXP_Q3), vdupq_n_f32(MATHF_EXP_Q4), r);
    q = vfmaq_f32(vdupq_n_f32(MATHF_EXP_Q2), q, r);
    q = vfmaq_f32(vdupq_n_f32(MATHF_EXP_Q1), q, r);
    q = vfmaq_f32(vdupq_n_f32(MATHF_EXP_Q0), q, r);
    float32x4_t p = vaddq_f32(vfmaq_f32(r, q, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
    int32x4_t n_int = vsubq_s32(vreinterpretq_s32_f32(shifted), vreinterpretq_s32_f32(magic));
    int32x4_t half = vshrq_n_s32(n_int, 1), rest = vsubq_s32(n_int, half);
    const int32x4_t bias = vdupq_n_s32(127);
    float32x4_t scale_a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    float32x4_t scale_b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
    return vmulq_f32(vmulq_f32(p, scale_a), scale_b);
}

static inline float32x4_t mathf4_exp2_half(float32x4_t r)
{
    float32x4_t p = vfmaq_f32(vdupq_n_f32(MATHF_EXP2_P3), vdupq_n_f32(MATHF_EXP2_P4), r);
    p = vfmaq_f32(vdupq_n_f32(MATHF_EXP2_P2), p, r);
    p = vfmaq_f32(vdupq_n_f32(MATHF_EXP2_P1), p, r);
    return vfmaq_f32(vdupq_n_f32(1.0f), p, r);
}

static inline float32x4_t mathf4_silu(float32x4_t x)
{
    return vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), mathf4_exp(vnegq_f32(x))));
}

/* The fixed tree over 16 partials, p[i] holding 4 i to 4 i + 3: halves are added until one value is left. */
static inline float mathf4_sum16(const float32x4_t p[4])
{
    float32x4_t s4 = vaddq_f32(vaddq_f32(p[0], p[2]), vaddq_f32(p[1], p[3]));
    float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

#endif
