/* See kv_fp8.h. */
#include "kernels/kv_fp8.h"

#include "kernels/cpu/mathf.h"

enum { FP8_NAN = 0x7f, FP8_MAX = 0x7e, BIAS_SHIFT = 127 - 7, FRACTION_BITS = 3 };

uint8_t kern_kv_fp8_encode(float x)
{
    uint32_t bits = mathf_bits(x), sign = bits >> 24 & 0x80u, rest = bits & 0x7fffffffu;
    if (rest >= 0x7f800000u)
        return (uint8_t)(sign | FP8_NAN);
    if (rest < 0x3c800000u) /* below 2^-6: units of 2^-9; 8 of them are the first normal's code */
        return (uint8_t)(sign | (uint32_t)mathf_rint(mathf_from_bits(rest) * 0x1p+9f));
    uint32_t odd = rest >> (23 - FRACTION_BITS) & 1u;
    uint32_t code = (rest + 0x7ffffu + odd) >> (23 - FRACTION_BITS);
    code -= (uint32_t)BIAS_SHIFT << FRACTION_BITS;
    return (uint8_t)(sign | (code < FP8_MAX ? code : FP8_MAX));
}

float kern_kv_fp8_decode(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7fu;
    if (rest == FP8_NAN)
        return mathf_from_bits(sign | 0x7fc00000u);
    if (rest < 1u << FRACTION_BITS)
        return mathf_from_bits(sign | mathf_bits((float)rest * 0x1p-9f));
    return mathf_from_bits(sign | ((rest << (23 - FRACTION_BITS)) + ((uint32_t)BIAS_SHIFT << 23)));
}
