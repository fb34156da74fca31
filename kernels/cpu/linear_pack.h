/* Repacking, for linear.c: reads rows as the file holds them, judges their scales, and writes panels.
 * Owner: as cpu_weights_create. */
#ifndef BATON_KERNELS_CPU_LINEAR_PACK_H
#define BATON_KERNELS_CPU_LINEAR_PACK_H

#include "kernels/cpu/linear_ops.h"

/* Checks one row's scales (or floats); *wild_out says that its 4-bit block scales differ by more than 100 times. */
enum status linear_pack_check_row(const struct cpu_weights_options *options, size_t row,
                                  bool *wild_out, struct err *err);

/* Writes the 16 slots of one panel: records[blocks], and E32's D behind them. slot_row: -1 leaves a slot zero; `records` is
 * zeroed memory of cpu_form_panel_bytes. */
void linear_pack_panel(const struct cpu_weights_options *options, enum cpu_form form,
                       const int32_t *slot_row, uint8_t *records);

/* One block of 32 weights as floats, as the file's type defines them. */
void linear_pack_dequantise(enum kern_weight_type type, const uint8_t *block, float *out);

#endif
