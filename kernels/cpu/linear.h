/* Linear layers on the CPU: out[row][o] = sum over k of weight[o][k] * act[row][k], defined to the
 * bit in docs/NUMERICS.md and equal on every instruction set, for every number of rows in a call,
 * and for every split among threads.
 *
 * At load, weights are repacked into panels of 16 outputs, each a run of records of 32 k, so that a
 * kernel's lanes are outputs and both one row (GEMV) and many (GEMM) stream the memory in order:
 *
 *     file: row-major blocks            panels: [panel][block of 32 k] records
 *     row 0 | b0 | b1 | ...             | 16 outputs x 32 k: quants, then scales of 16 outputs |
 *
 * The caller's thread pool splits a layer by panels (and by rows if it likes): any partition gives
 * the same bits. Owner: create and destroy on one thread; cpu_linear on any compute thread, at once
 * on disjoint (rows x panels). */
#ifndef BATON_KERNELS_CPU_LINEAR_H
#define BATON_KERNELS_CPU_LINEAR_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/store.h"

enum {
    CPU_PANEL = 16,         /* outputs a panel */
    CPU_MAXIMUM_PANELS = 4, /* that have one maximum of a row */
};

struct cpu_weights; /* one matrix, repacked */

struct cpu_weights_options {
    enum kern_weight_type type;
    enum kern_compute compute;
    size_t out_rows;  /* outputs, > 0 */
    size_t in_cols;   /* k, > 0, a multiple of 32, at most 2^20 */
    const void *data; /* [out_rows] rows as the file holds them, any alignment; for cpu_weights_row
                         alone they must stay mapped while the weights live */
    struct cpu_store *
        store; /* where the panels are to lie, until it is finished; NULL: in memory of their own */
};

/* Repacks one matrix. STATUS_FORMAT when a scale, minimum or float weight is not finite (the
 * message names row and block), STATUS_INVALID for shapes that are not supported, STATUS_MEMORY. */
enum status cpu_weights_create(const struct cpu_weights_options *options,
                               struct cpu_weights **weights_out, struct err *err);
void cpu_weights_destroy(struct cpu_weights *weights);

size_t cpu_weights_panels(const struct cpu_weights *weights);
size_t cpu_weights_out_rows(const struct cpu_weights *weights);
size_t cpu_weights_in_cols(const struct cpu_weights *weights);
/* Bytes that one pass over all panels reads. */
size_t cpu_weights_bytes(const struct cpu_weights *weights);
/* The same of such a matrix before it is there, if all its rows are ordinary ones (cpu_weights_float_rows). */
size_t cpu_weights_bytes_ahead(enum kern_weight_type type, enum kern_compute compute,
                               size_t out_rows, size_t in_cols);
/* Rows of a 4-bit matrix whose block scales differ by more than 100 times and therefore stay float
 * (int8 compute only). Panels of such rows come last, so panel p holds rows 16 p to 16 p + 15 only
 * when this is 0. */
size_t cpu_weights_float_rows(const struct cpu_weights *weights);

/* One row dequantised as the file's own type defines it (embedding look-up): out[in_cols]. `row` <
 * out_rows. Equal to compute=f32's weight, whatever `compute` is. */
void cpu_weights_row(const struct cpu_weights *weights, size_t row, float *out);

struct cpu_linear_call {
    const struct cpu_weights *weights;
    struct cpu_acts acts; /* acts.compute and acts.cols equal the weights' */
    struct cpu_rows rows; /* rows of acts and of out */
    size_t panel_begin, panel_end;
    float *out; /* [rows][ld_out]; row r's output o is at out[r * ld_out + o] */
    size_t ld_out;
    bool accumulate; /* out += y (one rounding) rather than out = y: the residual stream */
    /* NULL, or at [(panel - panel_begin) / CPU_MAXIMUM_PANELS][row - rows.begin] a number that becomes the greatest of the row's
     * outputs there and of itself; a NaN where one of these is not finite. Only of weights without float rows, and not with `accumulate`. */
    float *maxima;
    size_t ld_maxima;
    bool finite; /* cpu_linear_finite says so: nobody need look */
};

/* One row's product reads these panels soon: fetches what it reads first, where that helps. */
void cpu_linear_ask(enum cpu_isa_level isa, const struct cpu_weights *weights, size_t panel_begin,
                    size_t panel_end);

/* Whether these rows' outputs are finite, whatever the weights are; false: perhaps. */
bool cpu_linear_finite(const struct cpu_weights *weights, const struct cpu_acts *acts,
                       struct cpu_rows rows);

/* Computes the call's rows x panels and writes nothing else of `out`. Stack: about 64 KB. */
void cpu_linear(enum cpu_isa_level isa, const struct cpu_linear_call *call);

#endif
