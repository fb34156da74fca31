/* IEEE 754 half precision in plain C, equal to the F16C instructions: to float exactly, from float to nearest even,
 * overflow to infinity, denormals kept, NaN to a quiet NaN with the upper bits of its payload.
 * Owner: any thread; no state. */
#ifndef BATON_KERNELS_CPU_HALF_H
#define BATON_KERNELS_CPU_HALF_H

#include <stdint.h>

#include "kernels/cpu/mathf.h"

static inline float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) /* infinity, NaN */
        return mathf_from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13 |
                               (rest > 0x7c00u ? 0x400000u : 0));
    if (rest >= 0x0400u) /* normal: move the exponent's bias from 15 to 127 */
        return mathf_from_bits(sign | ((rest << 13) + (112u << 23)));
    float magnitude = (float)rest * 0x1p-24f; /* denormal: rest units of 2^-24, exact */
    return mathf_from_bits(sign | mathf_bits(magnitude));
}

static inline uint16_t half_from_float(float x)
{
    uint32_t bits = mathf_bits(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (rest < 0x38800000u) {
        /* below 2^-14: adding 0.5 leaves the value in units of 2^-24, rounded to nearest even, in the low bits */
        float shifted = mathf_from_bits(rest) + 0.5f;
        return (uint16_t)(sign | (mathf_bits(shifted) - mathf_bits(0.5f)));
    }
    uint32_t odd = rest >> 13 & 1u;
    return (uint16_t)(sign | ((rest + 0xfffu + odd - (112u << 23)) >> 13));
}

#endif
