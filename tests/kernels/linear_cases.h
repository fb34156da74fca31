/* Random matrices and activations for the tests of linear layers, the kernels to compare, and a second, independent reading of
 * docs/NUMERICS.md that works on the file's blocks rather than on panels.
 * Owner: one test. */
#ifndef BATON_TESTS_KERNELS_LINEAR_CASES_H
#define BATON_TESTS_KERNELS_LINEAR_CASES_H

#include "kernels/cpu/linear_ops.h"

struct cases_random {
    uint64_t state;
};
uint32_t cases_u32(struct cases_random *random);
/* Uniform in [-1, 1). */
float cases_unit(struct cases_random *random);

/* A kernel table to hold against the plain one. */
struct cases_isa {
    const char *name;
    const struct cpu_linear_ops *ops;
};
/* Those that can run here: native ones as the CPU allows, emulated ones always. Ends with a NULL name. */
const struct cases_isa *cases_isas(void);

uint16_t cases_to_f16(float value);

enum cases_scales { CASES_ORDINARY, CASES_WILD, CASES_EXTREME };

/* A file's matrix: malloc'd rows of `type`. CASES_WILD spreads some rows' block scales by more than 100 times;
 * CASES_EXTREME puts quants and scales at their limits. */
uint8_t *cases_matrix(struct cases_random *random, enum kern_weight_type type, size_t rows,
                      size_t cols, enum cases_scales scales);

/* Activations of `rows` rows: mostly of size 1, some outliers, some blocks zero or tiny. */
float *cases_floats(struct cases_random *random, size_t rows, size_t cols);

/* acts by one table's row functions; memory is the caller's to free (acts.data). */
struct cpu_acts cases_quantise(const struct cpu_linear_ops *ops, enum kern_compute compute,
                               const float *x, size_t rows, size_t cols);

/* One output by the rules, from the file's own blocks. */
float cases_expected(const struct cpu_weights_options *options, size_t out,
                     const struct cpu_acts *acts, size_t row);

#endif
