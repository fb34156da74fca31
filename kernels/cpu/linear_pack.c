/* From the file's rows to panels (layout: linear_ops.h; arithmetic: docs/NUMERICS.md, "Weights"). A nibble line is 16 words of
 * the file's own 4 bytes, so that repacking 4-bit weights is a transposition of words and runs at memory speed.
 * Owner: as cpu_weights_create. */
#include "kernels/cpu/linear_pack.h"

#include <string.h>

/* 4-bit block scales of one row further apart than this stay float. */
static const float wild_ratio = 100.0f;

static const uint8_t *file_block(const struct cpu_weights_options *options, size_t row,
                                 size_t block)
{
    size_t row_bytes = kern_weight_row_bytes(options->type, options->in_cols);
    size_t block_bytes = kern_weight_row_bytes(options->type, KERN_BLOCK);
    return (const uint8_t *)options->data + row * row_bytes + block * block_bytes;
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

static bool is_nibble(enum kern_weight_type type)
{
    return type == KERN_WEIGHT_Q4_0 || type == KERN_WEIGHT_Q4_1;
}

/* d and c = m + 8 d of a 4-bit block: w = d (q - 8) + c. */
static void block_scales(enum kern_weight_type type, const uint8_t *block, float *d_out,
                         float *c_out)
{
    *d_out = cpu_f16(load_u16(block));
    *c_out = type == KERN_WEIGHT_Q4_1 ? cpu_f16(load_u16(block + 2)) + 8.0f * *d_out : 0.0f;
}

static enum status check_floats(const struct cpu_weights_options *options, size_t row, size_t block,
                                struct err *err)
{
    float w[KERN_BLOCK];
    linear_pack_dequantise(options->type, file_block(options, row, block), w);
    for (size_t i = 0; i < KERN_BLOCK; i++)
        if (!mathf_is_finite(w[i]))
            return err_set(err, STATUS_FORMAT, "row %zu, element %zu: the weight is not finite",
                           row, block * KERN_BLOCK + i);
    return STATUS_OK;
}

enum status linear_pack_check_row(const struct cpu_weights_options *options, size_t row,
                                  bool *wild_out, struct err *err)
{
    float largest = 0.0f, smallest = __builtin_inff();
    bool quantised = is_nibble(options->type) || options->type == KERN_WEIGHT_Q8_0;
    for (size_t b = 0; b < options->in_cols / KERN_BLOCK; b++) {
        if (!quantised) {
            enum status status = check_floats(options, row, b, err);
            if (status != STATUS_OK)
                return status;
            continue;
        }
        const uint8_t *block = file_block(options, row, b);
        float d = __builtin_fabsf(cpu_f16(load_u16(block)));
        if (!mathf_is_finite(d))
            return err_set(err, STATUS_FORMAT, "row %zu, block %zu: the scale is not finite", row,
                           b);
        if (options->type == KERN_WEIGHT_Q4_1 && !mathf_is_finite(cpu_f16(load_u16(block + 2))))
            return err_set(err, STATUS_FORMAT, "row %zu, block %zu: the minimum is not finite", row,
                           b);
        largest = d > largest ? d : largest;
        smallest = d != 0.0f && d < smallest ? d : smallest;
    }
    *wild_out = is_nibble(options->type) && largest > wild_ratio * smallest;
    return STATUS_OK;
}

void linear_pack_dequantise(enum kern_weight_type type, const uint8_t *block, float *out)
{
    float d = cpu_f16(load_u16(block)), m = cpu_f16(load_u16(block + 2));
    const uint8_t *q = block + (type == KERN_WEIGHT_Q4_1 ? 4 : 2);
    for (size_t i = 0; i < KERN_BLOCK; i++) {
        int32_t nibble = is_nibble(type) ? (i < 16 ? q[i] & 15 : q[i - 16] >> 4) : 0;
        switch (type) {
        case KERN_WEIGHT_F16:
            out[i] = cpu_f16(load_u16(block + i * 2));
            break;
        case KERN_WEIGHT_BF16:
            out[i] = cpu_bf16(load_u16(block + i * 2));
            break;
        case KERN_WEIGHT_Q8_0:
            out[i] = d * (float)(int8_t)q[i];
            break;
        case KERN_WEIGHT_Q4_0:
            out[i] = d * (float)(nibble - 8);
            break;
        case KERN_WEIGHT_Q4_1:
            out[i] = d * (float)nibble + m;
            break;
        default:
            memcpy(out + i, block + i * 4, 4);
            break;
        }
    }
}

/* D of one E32 row: the largest |d| or |c|/8, over 32767. */
static float row_unit(const struct cpu_weights_options *options, size_t row)
{
    float largest = 0.0f;
    for (size_t b = 0; b < options->in_cols / KERN_BLOCK; b++) {
        float d, c;
        block_scales(options->type, file_block(options, row, b), &d, &c);
        d = __builtin_fabsf(d);
        c = __builtin_fabsf(c) / 8.0f;
        largest = d > largest ? d : largest;
        largest = c > largest ? c : largest;
    }
    return largest / 32767.0f;
}

static void put_nibble_scales(enum cpu_form form, enum kern_weight_type type, const uint8_t *block,
                              size_t slot, float unit, uint8_t *scales)
{
    float d, c;
    block_scales(type, block, &d, &c);
    int16_t pair[2] = {0, 0};
    if (unit != 0.0f) {
        pair[0] = (int16_t)mathf_rint(d / unit);
        pair[1] = (int16_t)mathf_rint(c / (8.0f * unit));
    }
    switch (form) {
    case CPU_FORM_E32_PAIR:
        memcpy(scales + slot * 4, pair, 4);
        break;
    case CPU_FORM_E32_SINGLE:
        memcpy(scales + slot * 2, pair, 2);
        break;
    case CPU_FORM_E32_FLOAT:
        memcpy(scales + slot * 4, &d, 4);
        memcpy(scales + 64 + slot * 4, &c, 4);
        break;
    default: /* compute=f32 keeps the file's halves */
        memcpy(scales + slot * 2, block, 2);
        if (type == KERN_WEIGHT_Q4_1)
            memcpy(scales + 32 + slot * 2, block + 2, 2);
        break;
    }
}

static void put_nibbles(enum cpu_form form, enum kern_weight_type type, const uint8_t *block,
                        size_t slot, float unit, uint8_t *record)
{
    const uint8_t *q = block + (type == KERN_WEIGHT_Q4_1 ? 4 : 2);
    for (size_t line = 0; line < 4; line++)
        memcpy(record + line * CPU_LINE_BYTES + slot * 4, q + line * 4, 4);
    put_nibble_scales(form, type, block, slot, unit, record + CPU_NIBBLE_BYTES);
}

/* Q8_0's own bytes and half scale. */
static void put_file_bytes(const uint8_t *block, size_t slot, uint8_t *record)
{
    for (size_t line = 0; line < 8; line++) {
        uint32_t word;
        memcpy(&word, block + 2 + line * 4, 4);
        word ^= 0x80808080u;
        memcpy(record + line * CPU_LINE_BYTES + slot * 4, &word, 4);
    }
    memcpy(record + CPU_BYTE_BYTES + slot * 2, block, 2);
}

/* Bytes quantised here, from a file of floats: d = amax/127. */
static void put_new_bytes(enum kern_weight_type type, const uint8_t *block, size_t slot,
                          uint8_t *record)
{
    float w[KERN_BLOCK], amax = 0.0f;
    linear_pack_dequantise(type, block, w);
    for (size_t i = 0; i < KERN_BLOCK; i++) {
        float magnitude = __builtin_fabsf(w[i]);
        amax = magnitude > amax ? magnitude : amax;
    }
    float d = amax / 127.0f, inverse = 127.0f / amax;
    if (amax < 0x1p-120f)
        d = inverse = 0.0f;
    for (size_t i = 0; i < KERN_BLOCK; i++)
        record[i / 4 * CPU_LINE_BYTES + slot * 4 + i % 4] =
            (uint8_t)((int32_t)mathf_rint(w[i] * inverse) + 128);
    memcpy(record + CPU_BYTE_BYTES + slot * 4, &d, 4);
}

static void put_elements(const uint8_t *block, size_t element_bytes, size_t slot, uint8_t *record)
{
    for (size_t i = 0; i < KERN_BLOCK; i++)
        memcpy(record + (i * CPU_PANEL + slot) * element_bytes, block + i * element_bytes,
               element_bytes);
}

/* The byte records' zero is 128: unused slots get it too, so that their sums stay small. */
static void fill_unused(enum cpu_form form, size_t slot, uint8_t *record)
{
    if (form == CPU_FORM_BYTE_HALF || form == CPU_FORM_BYTE_FLOAT)
        for (size_t line = 0; line < 8; line++)
            memset(record + line * CPU_LINE_BYTES + slot * 4, 128, 4);
}

void linear_pack_panel(const struct cpu_weights_options *options, enum cpu_form form,
                       const int32_t *slot_row, uint8_t *records)
{
    size_t blocks = options->in_cols / KERN_BLOCK;
    float slot_scale[CPU_PANEL] = {0};
    if (cpu_form_is_e32(form)) {
        for (size_t slot = 0; slot < CPU_PANEL; slot++)
            slot_scale[slot] =
                slot_row[slot] >= 0 ? row_unit(options, (size_t)slot_row[slot]) : 0.0f;
        memcpy(records + blocks * cpu_form_record_bytes(form), slot_scale, sizeof slot_scale);
    }
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *record = records + b * cpu_form_record_bytes(form);
        for (size_t slot = 0; slot < CPU_PANEL; slot++) {
            if (slot_row[slot] < 0) {
                fill_unused(form, slot, record);
                continue;
            }
            const uint8_t *block = file_block(options, (size_t)slot_row[slot], b);
            if (form == CPU_FORM_BYTE_HALF)
                put_file_bytes(block, slot, record);
            else if (form == CPU_FORM_BYTE_FLOAT)
                put_new_bytes(options->type, block, slot, record);
            else if (form == CPU_FORM_F32)
                put_elements(block, 4, slot, record);
            else if (form == CPU_FORM_F16 || form == CPU_FORM_BF16)
                put_elements(block, 2, slot, record);
            else
                put_nibbles(form, options->type, block, slot, slot_scale[slot], record);
        }
    }
}
