/* Activations in plain C: the definition (docs/NUMERICS.md, "Activations" and "RMSNorm").
 * Owner: as quant.h. */
#include "kernels/cpu/quant_plain.h"

/* amax below this gives zeros: 127/amax would leave the range of float. */
static const float amax_min = 0x1p-120f;

/* Quantises one block of 32 finite floats. */
static bool put_block(const float *y, size_t block, const struct cpu_act_row *row)
{
    float amax = 0.0f;
    for (size_t i = 0; i < KERN_BLOCK; i++) {
        if (!mathf_is_finite(y[i]))
            return false;
        float magnitude = __builtin_fabsf(y[i]);
        amax = magnitude > amax ? magnitude : amax;
    }
    if (row->f32) {
        memcpy(row->f32 + block * KERN_BLOCK, y, KERN_BLOCK * sizeof(*y));
        return true;
    }
    float inverse = 127.0f / amax, da = amax / 127.0f;
    if (amax < amax_min)
        inverse = da = 0.0f;
    int32_t sum = 0;
    for (size_t i = 0; i < KERN_BLOCK; i++) {
        int8_t a = (int8_t)mathf_rint(y[i] * inverse);
        row->a[block * KERN_BLOCK + i] = a;
        sum += a;
    }
    row->da[block] = da;
    row->s[block] = sum;
    row->v0[block] = (uint32_t)(8 * sum) * 65535u;
    return true;
}

bool cpu_plain_quantise(const float *x, size_t cols, const struct cpu_act_row *row)
{
    bool finite = true;
    for (size_t b = 0; b < cols / KERN_BLOCK; b++)
        finite &= put_block(x + b * KERN_BLOCK, b, row);
    return finite;
}

/* 1/sqrt(mean of squares + eps): 16 strided partials, then a tree that adds halves. Not finite when the sum overflows. */
static float norm_scale(const float *x, float eps, size_t cols, bool *finite_out)
{
    float partial[16] = {0};
    for (size_t i = 0; i < cols; i++)
        partial[i % 16] = __builtin_fmaf(x[i], x[i], partial[i % 16]);
    for (size_t half = 8; half >= 1; half /= 2)
        for (size_t i = 0; i < half; i++)
            partial[i] = partial[i] + partial[i + half];
    *finite_out = mathf_is_finite(partial[0]);
    return mathf_rsqrt(partial[0] / (float)cols + eps);
}

bool cpu_plain_norm_quantise(const float *x, const float *weight, float eps, size_t cols,
                             const struct cpu_act_row *row)
{
    bool finite;
    float scale = norm_scale(x, eps, cols, &finite), y[KERN_BLOCK];
    for (size_t b = 0; b < cols / KERN_BLOCK; b++) {
        for (size_t i = 0; i < KERN_BLOCK; i++)
            y[i] = x[b * KERN_BLOCK + i] * scale * weight[b * KERN_BLOCK + i];
        finite &= put_block(y, b, row);
    }
    return finite;
}

bool cpu_plain_silu_mul_quantise(const float *gate, const float *up, size_t cols,
                                 const struct cpu_act_row *row)
{
    bool finite = true;
    float y[KERN_BLOCK];
    for (size_t b = 0; b < cols / KERN_BLOCK; b++) {
        for (size_t i = 0; i < KERN_BLOCK; i++)
            y[i] = mathf_silu(gate[b * KERN_BLOCK + i]) * up[b * KERN_BLOCK + i];
        finite &= put_block(y, b, row);
    }
    return finite;
}

void cpu_plain_norm(const float *x, const float *weight, float eps, size_t cols, float *y)
{
    bool finite;
    float scale = norm_scale(x, eps, cols, &finite);
    for (size_t i = 0; i < cols; i++)
        y[i] = x[i] * scale * weight[i];
}
