/* Linear layers in plain C: the definition that docs/NUMERICS.md describes and every other instruction set equals to the bit.
 * Written to be read; one output at a time, one chain in ascending k.
 * Owner: as linear.h. */
#include "kernels/cpu/linear_ops.h"
#include "kernels/cpu/quant_plain.h"

/* v: 8 s 65535 + sum(q a) modulo 2^32. Low half S = sum((q - 8) a), high half 8 s - [S < 0]. */
static uint32_t nibble_sum(const uint8_t *record, size_t slot, const int8_t *a, uint32_t v0)
{
    uint32_t v = v0;
    for (size_t k = 0; k < KERN_BLOCK; k++)
        v += cpu_nibble(record, slot, k) * (uint32_t)(int32_t)a[k];
    return v;
}

static int32_t byte_sum(const uint8_t *record, size_t slot, const int8_t *a)
{
    int32_t sum = 0;
    for (size_t k = 0; k < KERN_BLOCK; k++)
        sum += cpu_byte(record, slot, k) * a[k];
    return sum;
}

/* One block of the chain F for one output. */
static float int8_block(enum cpu_form form, const uint8_t *record, size_t slot,
                        const struct cpu_acts *acts, size_t row, size_t block, float chain)
{
    const int8_t *a = cpu_acts_a(acts, row) + block * KERN_BLOCK;
    float da = cpu_acts_da(acts, row)[block];
    uint32_t v0 = cpu_acts_v0(acts, row)[block];
    const uint8_t *scales =
        record + (form < CPU_FORM_BYTE_HALF ? CPU_NIBBLE_BYTES : CPU_BYTE_BYTES);
    int16_t pair[2] = {0, 0};
    float d, c;
    switch (form) {
    case CPU_FORM_E32_PAIR:
    case CPU_FORM_E32_SINGLE: {
        size_t bytes = form == CPU_FORM_E32_PAIR ? 4 : 2;
        memcpy(pair, scales + slot * bytes, bytes);
        uint32_t v = nibble_sum(record, slot, a, v0);
        int32_t sum = pair[0] * (int16_t)v + pair[1] * (int16_t)(v >> 16);
        return __builtin_fmaf((float)sum, da, chain);
    }
    case CPU_FORM_E32_FLOAT: {
        memcpy(&d, scales + slot * 4, 4);
        memcpy(&c, scales + 64 + slot * 4, 4);
        int16_t sum = (int16_t)nibble_sum(record, slot, a, v0);
        float t = __builtin_fmaf(d, (float)sum, c * (float)cpu_acts_s(acts, row)[block]);
        return __builtin_fmaf(t, da, chain);
    }
    case CPU_FORM_BYTE_HALF: {
        uint16_t half;
        memcpy(&half, scales + slot * 2, 2);
        return __builtin_fmaf((float)byte_sum(record, slot, a), cpu_f16(half) * da, chain);
    }
    default:
        memcpy(&d, scales + slot * 4, 4);
        return __builtin_fmaf((float)byte_sum(record, slot, a), d * da, chain);
    }
}

/* The dequantised weight of compute=f32: d q + m, product and sum each rounded to float (the product is exact). */
static float weight_f32(enum cpu_form form, const uint8_t *record, size_t slot, size_t k)
{
    uint16_t d, m;
    float value;
    switch (form) {
    case CPU_FORM_NIBBLE_MIN:
        memcpy(&d, record + CPU_NIBBLE_BYTES + slot * 2, 2);
        memcpy(&m, record + CPU_NIBBLE_BYTES + 32 + slot * 2, 2);
        return cpu_f16(d) * (float)cpu_nibble(record, slot, k) + cpu_f16(m);
    case CPU_FORM_NIBBLE:
        memcpy(&d, record + CPU_NIBBLE_BYTES + slot * 2, 2);
        return cpu_f16(d) * (float)((int32_t)cpu_nibble(record, slot, k) - 8);
    case CPU_FORM_BYTE_HALF:
        memcpy(&d, record + CPU_BYTE_BYTES + slot * 2, 2);
        return cpu_f16(d) * (float)cpu_byte(record, slot, k);
    case CPU_FORM_F16:
        memcpy(&d, record + (k * CPU_PANEL + slot) * 2, 2);
        return cpu_f16(d);
    case CPU_FORM_BF16:
        memcpy(&d, record + (k * CPU_PANEL + slot) * 2, 2);
        return cpu_bf16(d);
    default:
        memcpy(&value, record + (k * CPU_PANEL + slot) * 4, 4);
        return value;
    }
}

static float f32_block(enum cpu_form form, const uint8_t *record, size_t slot, const float *x,
                       float chain)
{
    for (size_t k = 0; k < KERN_BLOCK; k++)
        chain = __builtin_fmaf(weight_f32(form, record, slot, k), x[k], chain);
    return chain;
}

static float output(const struct cpu_panel *panel, size_t slot, const struct cpu_acts *acts,
                    size_t row)
{
    float chain = 0.0f;
    for (size_t b = 0; b < panel->blocks; b++) {
        const uint8_t *record = panel->records + b * panel->record_bytes;
        if (acts->compute == KERN_COMPUTE_INT8)
            chain = int8_block(panel->form, record, slot, acts, row, b, chain);
        else
            chain = f32_block(panel->form, record, slot,
                              cpu_acts_f32_row(acts, row) + b * KERN_BLOCK, chain);
    }
    if (cpu_form_is_e32(panel->form))
        chain = chain * panel->slot_scale[slot];
    return chain;
}

static void linear(const struct cpu_linear_call *call)
{
    for (size_t p = call->panel_begin; p < call->panel_end; p++) {
        struct cpu_panel panel = cpu_weights_panel(call->weights, p);
        for (size_t row = call->rows.begin; row < call->rows.end; row++) {
            for (size_t slot = 0; slot < CPU_PANEL; slot++) {
                if (panel.slot_row[slot] < 0)
                    continue;
                float *out = call->out + row * call->ld_out + (size_t)panel.slot_row[slot];
                float y = output(&panel, slot, &call->acts, row);
                *out = call->accumulate ? *out + y : y;
            }
        }
        if (call->maxima)
            cpu_linear_maxima(call, &panel, call->rows.begin, call->rows.end - call->rows.begin);
    }
}

const struct cpu_linear_ops cpu_linear_ops_plain = {
    .quantise = cpu_plain_quantise,
    .norm_quantise = cpu_plain_norm_quantise,
    .silu_mul_quantise = cpu_plain_silu_mul_quantise,
    .norm = cpu_plain_norm,
    .linear = linear,
};
