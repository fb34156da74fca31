/* Loading a matrix (which rows go to which run of panels) and calling the instruction set's kernel.
 * Owner: as linear.h. */
#include "kernels/cpu/linear.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/linear_pack.h"

enum { COLS_MAX = 1 << 20 };

/* The form of ordinary rows. */
static enum cpu_form main_form(enum kern_weight_type type, enum kern_compute compute)
{
    static const uint8_t forms[2][KERN_WEIGHT_TYPES] = {
        [KERN_COMPUTE_F32] = {CPU_FORM_F32, CPU_FORM_F16, CPU_FORM_BF16, CPU_FORM_BYTE_HALF,
                              CPU_FORM_NIBBLE, CPU_FORM_NIBBLE_MIN},
        [KERN_COMPUTE_INT8] = {CPU_FORM_BYTE_FLOAT, CPU_FORM_BYTE_FLOAT, CPU_FORM_BYTE_FLOAT,
                               CPU_FORM_BYTE_HALF, CPU_FORM_E32_SINGLE, CPU_FORM_E32_PAIR},
    };
    return (enum cpu_form)forms[compute][type];
}

static enum status check_options(const struct cpu_weights_options *options, struct err *err)
{
    if (options->type >= KERN_WEIGHT_TYPES)
        return err_set(err, STATUS_INVALID, "weight type %d is unknown", (int)options->type);
    if (options->compute > KERN_COMPUTE_INT8)
        return err_set(err, STATUS_INVALID, "compute %d is unknown", (int)options->compute);
    if (options->in_cols == 0 || options->in_cols % KERN_BLOCK != 0 || options->in_cols > COLS_MAX)
        return err_set(err, STATUS_INVALID, "%zu columns: must be a multiple of %d from 32 to %d",
                       options->in_cols, KERN_BLOCK, COLS_MAX);
    if (options->out_rows == 0 || options->out_rows > INT32_MAX - CPU_PANEL)
        return err_set(err, STATUS_INVALID, "%zu rows: must be from 1 to %d", options->out_rows,
                       INT32_MAX - CPU_PANEL);
    return STATUS_OK;
}

/* Zeroed memory, aligned to a cache line. */
static void *take_zeroed(size_t bytes)
{
    bytes = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

static enum status check_rows(struct cpu_weights *weights,
                              const struct cpu_weights_options *options, uint8_t *wild,
                              struct err *err)
{
    for (size_t row = 0; row < options->out_rows; row++) {
        bool row_wild = false;
        enum status status = linear_pack_check_row(options, row, &row_wild, err);
        if (status != STATUS_OK)
            return status;
        wild[row] = row_wild && options->compute == KERN_COMPUTE_INT8;
        weights->float_rows += wild[row];
    }
    return STATUS_OK;
}

static size_t panels_of(size_t rows)
{
    return (rows + CPU_PANEL - 1) / CPU_PANEL;
}

/* Ordinary rows in order, then wild rows in order, each run padded to whole panels. */
static void assign_slots(struct cpu_weights *weights, const uint8_t *wild)
{
    size_t slot[2] = {0, weights->run[0].panels * CPU_PANEL};
    for (size_t i = 0; i < weights->panels * CPU_PANEL; i++)
        weights->slot_row[i] = -1;
    for (size_t row = 0; row < weights->out_rows; row++)
        weights->slot_row[slot[wild[row]]++] = (int32_t)row;
    while (weights->in_order < weights->out_rows / CPU_PANEL &&
           weights->slot_row[weights->in_order * CPU_PANEL + CPU_PANEL - 1] ==
               (int32_t)(weights->in_order * CPU_PANEL + CPU_PANEL - 1))
        weights->in_order++;
}

static enum status pack(struct cpu_weights *weights, const struct cpu_weights_options *options,
                        const uint8_t *wild, struct err *err)
{
    weights->run[0].form = main_form(options->type, options->compute);
    weights->run[0].panels = panels_of(options->out_rows - weights->float_rows);
    weights->run[1].form = CPU_FORM_E32_FLOAT;
    weights->run[1].panels = panels_of(weights->float_rows);
    weights->panels = weights->run[0].panels + weights->run[1].panels;
    weights->slot_row = take_zeroed(weights->panels * CPU_PANEL * sizeof(*weights->slot_row));
    if (!weights->slot_row)
        return err_set(err, STATUS_MEMORY, "no memory for %zu panels", weights->panels);
    assign_slots(weights, wild);
    for (size_t i = 0, first = 0; i < 2; first += weights->run[i++].panels) {
        struct cpu_panel_run *run = &weights->run[i];
        run->panel_bytes = cpu_form_panel_bytes(run->form, weights->blocks);
        size_t bytes = run->panels * run->panel_bytes;
        if (run->panels == 0)
            continue;
        run->records = weights->stored ? cpu_store_take(options->store, bytes) : take_zeroed(bytes);
        if (!run->records)
            return err_set(err, STATUS_MEMORY, "no memory for %zu bytes of weights", bytes);
        for (size_t p = 0; p < run->panels; p++)
            linear_pack_panel(options, run->form, weights->slot_row + (first + p) * CPU_PANEL,
                              run->records + p * run->panel_bytes);
    }
    return STATUS_OK;
}

enum status cpu_weights_create(const struct cpu_weights_options *options,
                               struct cpu_weights **weights_out, struct err *err)
{
    enum status status = check_options(options, err);
    if (status != STATUS_OK)
        return status;
    struct cpu_weights *weights = calloc(1, sizeof(*weights));
    uint8_t *wild = calloc(options->out_rows, 1);
    if (weights && wild) {
        weights->type = options->type;
        weights->compute = options->compute;
        weights->out_rows = options->out_rows;
        weights->in_cols = options->in_cols;
        weights->blocks = options->in_cols / KERN_BLOCK;
        weights->file = options->data;
        weights->stored = options->store != NULL;
        status = check_rows(weights, options, wild, err);
        if (status == STATUS_OK)
            status = pack(weights, options, wild, err);
    } else {
        status =
            err_set(err, STATUS_MEMORY, "no memory for a matrix of %zu rows", options->out_rows);
    }
    free(wild);
    if (status != STATUS_OK) {
        cpu_weights_destroy(weights);
        return status;
    }
    *weights_out = weights;
    return STATUS_OK;
}

void cpu_weights_destroy(struct cpu_weights *weights)
{
    if (!weights)
        return;
    if (!weights->stored) {
        free(weights->run[0].records);
        free(weights->run[1].records);
    }
    free(weights->slot_row);
    free(weights);
}

size_t cpu_weights_panels(const struct cpu_weights *weights)
{
    return weights->panels;
}

size_t cpu_weights_out_rows(const struct cpu_weights *weights)
{
    return weights->out_rows;
}

size_t cpu_weights_in_cols(const struct cpu_weights *weights)
{
    return weights->in_cols;
}

size_t cpu_weights_bytes(const struct cpu_weights *weights)
{
    size_t bytes = 0;
    for (size_t i = 0; i < 2; i++)
        bytes += weights->run[i].panels * weights->run[i].panel_bytes;
    return bytes;
}

size_t cpu_weights_bytes_ahead(enum kern_weight_type type, enum kern_compute compute,
                               size_t out_rows, size_t in_cols)
{
    return panels_of(out_rows) *
           cpu_form_panel_bytes(main_form(type, compute), in_cols / KERN_BLOCK);
}

size_t cpu_weights_float_rows(const struct cpu_weights *weights)
{
    return weights->float_rows;
}

void cpu_weights_row(const struct cpu_weights *weights, size_t row, float *out)
{
    size_t block_bytes = kern_weight_row_bytes(weights->type, KERN_BLOCK);
    const uint8_t *blocks = weights->file + row * weights->blocks * block_bytes;
    for (size_t b = 0; b < weights->blocks; b++)
        linear_pack_dequantise(weights->type, blocks + b * block_bytes, out + b * KERN_BLOCK);
}

/* An integer block sum is below 2^31, a scale that was half a float in the file below 2^16, and so is D; there are at most 2^15 blocks. */
bool cpu_linear_finite(const struct cpu_weights *weights, const struct cpu_acts *acts,
                       struct cpu_rows rows)
{
    const enum cpu_form form = weights->run[0].form;
    bool small = weights->compute == KERN_COMPUTE_INT8 && weights->float_rows == 0 &&
                 (form == CPU_FORM_BYTE_HALF || cpu_form_is_e32(form));
    for (size_t r = rows.begin; small && r < rows.end; r++)
        for (size_t b = 0; b < weights->blocks; b++)
            small &= cpu_acts_da(acts, r)[b] < 0x1p60f; /* not a NaN, and never negative */
    return small;
}

void cpu_linear(enum cpu_isa_level isa, const struct cpu_linear_call *call)
{
    cpu_linear_ops(isa)->linear(call);
}

void cpu_linear_ask(enum cpu_isa_level isa, const struct cpu_weights *weights, size_t panel_begin,
                    size_t panel_end)
{
    if (cpu_linear_ops(isa)->ask)
        cpu_linear_ops(isa)->ask(weights, panel_begin, panel_end);
}
