/* Inside of the linear layers: the panels' memory layout and the table that each instruction set fills. Included by
 * linear*.c and quant*.c alone.
 *
 * A record holds 16 outputs ("slots") x one block of 32 k. Quants come as lines of 64 bytes, a 4-byte word a slot, so that a
 * vector register holds one word of each of 8 (or 16) slots, and a broadcast of 4 activations meets 4 k of every slot:
 *
 *     nibble records: 4 lines; byte i of slot c in line L holds k = 4 L + i low and k = 16 + 4 L + i high
 *     byte records:   8 lines; byte i of slot c in line g holds w[4 g + i] + 128, unsigned
 *     float records:  32 lines of 16 elements; line k holds w[k] of each slot
 *
 *     form        quants   scales, after the quants                               bytes
 *     E32_PAIR    nibbles  16 x {i16 k, i16 M}                                     320
 *     E32_SINGLE  nibbles  16 x i16 k (M = 0)                                      288
 *     E32_FLOAT   nibbles  16 x f32 d, 16 x f32 c = m + 8 d                        384
 *     BYTE_HALF   bytes    16 x f16 d                                              544
 *     BYTE_FLOAT  bytes    16 x f32 d                                              576
 *     NIBBLE_MIN  nibbles  16 x f16 d, 16 x f16 m (compute=f32)                    320
 *     NIBBLE      nibbles  16 x f16 d (compute=f32)                                288
 *     F16, BF16   16-bit elements (compute=f32)                                   1024
 *     F32         (compute=f32)                                                   2048
 *
 * Owner: as linear.h. */
#ifndef BATON_KERNELS_CPU_LINEAR_OPS_H
#define BATON_KERNELS_CPU_LINEAR_OPS_H

#include "kernels/cpu/linear.h"
#include "kernels/cpu/mathf.h"

enum cpu_form {
    CPU_FORM_E32_PAIR,
    CPU_FORM_E32_SINGLE,
    CPU_FORM_E32_FLOAT,
    CPU_FORM_BYTE_HALF,
    CPU_FORM_BYTE_FLOAT,
    CPU_FORM_NIBBLE_MIN,
    CPU_FORM_NIBBLE,
    CPU_FORM_F16,
    CPU_FORM_BF16,
    CPU_FORM_F32,
    CPU_FORMS
};

enum { CPU_NIBBLE_BYTES = 256, CPU_BYTE_BYTES = 512, CPU_LINE_BYTES = 64 };

static inline size_t cpu_form_record_bytes(enum cpu_form form)
{
    static const uint16_t bytes[CPU_FORMS] = {320, 288, 384, 544, 576, 320, 288, 1024, 1024, 2048};
    return bytes[form];
}

static inline bool cpu_form_is_e32(enum cpu_form form)
{
    return form == CPU_FORM_E32_PAIR || form == CPU_FORM_E32_SINGLE;
}

static inline size_t cpu_form_panel_bytes(enum cpu_form form, size_t blocks)
{
    return blocks * cpu_form_record_bytes(form) +
           (cpu_form_is_e32(form) ? CPU_PANEL * sizeof(float) : 0);
}

/* A run of panels of one form. A 4-bit matrix may have two: E32 and, for rows of wild scales, E32_FLOAT. */
struct cpu_panel_run {
    enum cpu_form form;
    size_t panels;
    size_t panel_bytes; /* from one to the next: cpu_form_panel_bytes */
    uint8_t *records;   /* [panels]: [blocks] records, then E32's [16] float D, in one stream */
};

struct cpu_weights {
    enum kern_weight_type type;
    enum kern_compute compute;
    size_t out_rows, in_cols, blocks;
    size_t panels;     /* of both runs */
    size_t float_rows; /* rows in run 1 */
    const uint8_t *file;
    struct cpu_panel_run run[2];
    bool stored;       /* the runs' records lie in a store, not in memory of their own */
    size_t in_order;   /* panels before any wild row: panel p holds outputs 16 p to 16 p + 15 */
    int32_t *slot_row; /* [panels][16]: the output of a slot, or -1 */
};

/* What a kernel needs of one panel. */
struct cpu_panel {
    enum cpu_form form;
    size_t blocks, record_bytes;
    const uint8_t *records;
    const int32_t *slot_row; /* [16] the output of a slot, or -1 */
    const float *slot_scale; /* [16] E32's D, behind the records; not to be read of other forms */
    bool whole;              /* slots hold 16 consecutive outputs: one straight store */
    size_t first;            /* whole: the output of slot 0 */
};

static inline struct cpu_panel cpu_weights_panel(const struct cpu_weights *weights, size_t index)
{
    const struct cpu_panel_run *run = &weights->run[index >= weights->run[0].panels];
    size_t in_run = index - (run == weights->run ? 0 : weights->run[0].panels);
    size_t record_bytes = cpu_form_record_bytes(run->form);
    const uint8_t *records = run->records + in_run * run->panel_bytes;
    const int32_t *slot_row = weights->slot_row + index * CPU_PANEL;
    bool in_order = index < weights->in_order; /* then `slot_row` is not looked at */
    return (struct cpu_panel){
        .form = run->form,
        .blocks = weights->blocks,
        .record_bytes = record_bytes,
        .records = records,
        .slot_row = slot_row,
        .slot_scale = (const float *)(const void *)(records + weights->blocks * record_bytes),
        .whole = in_order || slot_row[CPU_PANEL - 1] == slot_row[0] + CPU_PANEL - 1,
        .first = in_order ? index * CPU_PANEL : (size_t)slot_row[0],
    };
}

static inline uint32_t cpu_nibble(const uint8_t *record, size_t slot, size_t k)
{
    uint8_t byte = record[k % 16 / 4 * CPU_LINE_BYTES + slot * 4 + k % 4];
    return k < 16 ? byte & 15u : byte >> 4;
}

static inline int32_t cpu_byte(const uint8_t *record, size_t slot, size_t k)
{
    return (int32_t)record[k / 4 * CPU_LINE_BYTES + slot * 4 + k % 4] - 128;
}

/* IEEE half to float, exact; no F16C. */
static inline float cpu_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 31)
        return mathf_from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0)
        return mathf_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float value = (float)mantissa * 0x1p-24f; /* zero or denormal: exact */
    return sign ? -value : value;
}

static inline float cpu_bf16(uint16_t bits)
{
    return mathf_from_bits((uint32_t)bits << 16);
}

/* Where one row of acts goes: bytes, or floats when f32 is not NULL. */
struct cpu_act_row {
    int8_t *a;
    float *da;
    uint32_t *v0;
    int32_t *s;
    float *f32;
};

/* One instruction set's kernels. Row functions return false when the row holds (or makes) a value that is not finite; what
 * they wrote is then to be overwritten. */
struct cpu_linear_ops {
    bool (*quantise)(const float *x, size_t cols, const struct cpu_act_row *row);
    bool (*norm_quantise)(const float *x, const float *weight, float eps, size_t cols,
                          const struct cpu_act_row *row);
    bool (*silu_mul_quantise)(const float *gate, const float *up, size_t cols,
                              const struct cpu_act_row *row);
    void (*norm)(const float *x, const float *weight, float eps, size_t cols, float *y);
    void (*linear)(const struct cpu_linear_call *call);
    /* NULL, or asks for the lines that one row's product reads first of these panels. */
    void (*ask)(const struct cpu_weights *weights, size_t panel_begin, size_t panel_end);
};

extern const struct cpu_linear_ops cpu_linear_ops_plain;
#if defined(__x86_64__)
extern const struct cpu_linear_ops cpu_linear_ops_avx2;
extern const struct cpu_linear_ops cpu_linear_ops_avx512;
extern const struct cpu_linear_ops cpu_linear_ops_avx512vnni;
#elif defined(__aarch64__)
extern const struct cpu_linear_ops cpu_linear_ops_neon;
extern const struct cpu_linear_ops cpu_linear_ops_dotprod;
#endif

const struct cpu_linear_ops *cpu_linear_ops(enum cpu_isa_level isa);

/* The maximum that a row's part of a panel is to be in; call->weights has no float rows. */
static inline float *cpu_linear_maximum(const struct cpu_linear_call *call,
                                        const struct cpu_panel *panel, size_t row)
{
    size_t index = (panel->first / CPU_PANEL - call->panel_begin) / CPU_MAXIMUM_PANELS;
    return call->maxima + index * call->ld_maxima + (row - call->rows.begin);
}

/* most: of some outputs, a NaN where one is not finite. A NaN stays. */
static inline void cpu_linear_maximum_join(float *maximum, float most)
{
    *maximum = most > *maximum || most != most ? most : *maximum;
}

/* What was just stored of a panel's `rows` rows from `row` on, into call->maxima. */
static inline void cpu_linear_maxima(const struct cpu_linear_call *call,
                                     const struct cpu_panel *panel, size_t row, size_t rows)
{
    size_t first = panel->first, count = 0;
    while (count < CPU_PANEL && panel->slot_row[count] >= 0)
        count++;
    for (size_t r = row; r < row + rows; r++) {
        const float *out = call->out + r * call->ld_out + first;
        float most = out[0];
        bool finite = true;
        for (size_t i = 0; i < count; i++) {
            finite &= mathf_is_finite(out[i]) != 0;
            most = out[i] > most ? out[i] : most;
        }
        cpu_linear_maximum_join(cpu_linear_maximum(call, panel, r),
                                finite ? most : __builtin_nanf(""));
    }
}

#endif
