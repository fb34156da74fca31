/* Linear layers: the plain kernel against a second reading of the rules, every instruction set against the plain kernel, and
 * what must not depend on how the work is split. All comparisons are of bits. */
#include "tests/test.h"

#include <math.h>

#include "tests/kernels/linear_cases.h"

static const char *const type_names[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"};

struct problem {
    struct cpu_weights_options options;
    uint8_t *file;
    struct cpu_weights *weights;
    float *x;
    size_t rows;
    struct cpu_acts acts;
};

struct shape {
    enum kern_weight_type type;
    enum kern_compute compute;
    size_t rows, outs, cols;
    enum cases_scales scales;
};

static struct problem problem_make(struct shape shape, uint64_t seed)
{
    struct cases_random random = {seed};
    struct problem p = {.rows = shape.rows};
    p.file = cases_matrix(&random, shape.type, shape.outs, shape.cols, shape.scales);
    p.options = (struct cpu_weights_options){.type = shape.type,
                                             .compute = shape.compute,
                                             .out_rows = shape.outs,
                                             .in_cols = shape.cols,
                                             .data = p.file};
    struct err err = ERR_INIT;
    CHECK_MSG(cpu_weights_create(&p.options, &p.weights, &err) == STATUS_OK, "%s", err.message);
    p.x = cases_floats(&random, shape.rows, shape.cols);
    if (shape.scales == CASES_EXTREME)
        for (size_t i = 0; i < shape.rows * shape.cols; i++)
            p.x[i] = i / 32 % 3 == 0 ? 1.0f : i / 32 % 3 == 1 ? -1.0f : i % 2 ? 1.0f : -1.0f;
    p.acts = cases_quantise(&cpu_linear_ops_plain, shape.compute, p.x, shape.rows, shape.cols);
    return p;
}

static void problem_free(struct problem *p)
{
    cpu_weights_destroy(p->weights);
    free(p->acts.data);
    free(p->x);
    free(p->file);
}

/* Outputs of all rows and panels, on top of what `out` holds when `accumulate`. */
static void run_all(const struct cpu_linear_ops *ops, const struct problem *p, bool accumulate,
                    float *out)
{
    struct cpu_linear_call call = {.weights = p->weights,
                                   .acts = p->acts,
                                   .rows = {0, p->rows},
                                   .panel_end = cpu_weights_panels(p->weights),
                                   .out = out,
                                   .ld_out = p->options.out_rows,
                                   .accumulate = accumulate};
    ops->linear(&call);
}

static float *floats_of(size_t count, float value)
{
    float *out = malloc((count + 1) * sizeof(*out));
    for (size_t i = 0; i <= count; i++)
        out[i] = value;
    return out;
}

static void check_same(const float *actual, const float *expected, size_t count, size_t outs,
                       const struct problem *p, const char *what)
{
    for (size_t i = 0; i < count; i++)
        CHECK_MSG(mathf_bits(actual[i]) == mathf_bits(expected[i]),
                  "%s, %s %s: row %zu of %zu, output %zu of %zu, %zu columns: %a, expected %a",
                  what, type_names[p->options.type], p->options.compute ? "int8" : "f32", i / outs,
                  p->rows, i % outs, outs, p->options.in_cols, (double)actual[i],
                  (double)expected[i]);
}

/* Of some rows and some panels; plain: all outputs. The first rows have a maximum already, which joins; where one joins a NaN it stays. */
static float expected_maximum(const struct problem *p, const float *plain, size_t row, size_t first,
                              size_t end, float most)
{
    size_t outs = p->options.out_rows;
    for (size_t o = first; o < outs && o < end; o++) {
        float y = plain[row * outs + o];
        if (!mathf_is_finite(y) || most != most)
            return NAN;
        most = y > most ? y : most;
    }
    return most;
}

static void check_maxima(const struct cpu_linear_ops *ops, const struct problem *p,
                         const float *plain, const char *name)
{
    enum { GAP = 3 };
    size_t outs = p->options.out_rows, panels = cpu_weights_panels(p->weights), ld = p->rows + GAP,
           row_step = p->rows / 2 + 1, panel_step = panels / 2 + 1;
    const float before[] = {-INFINITY, NAN, 0, -INFINITY, -INFINITY};
    const size_t kinds = sizeof before / sizeof before[0];
    if (cpu_weights_float_rows(p->weights))
        return;
    float *out = floats_of(p->rows * outs, 0.25f);
    for (size_t begin = 0; begin < panels; begin += panel_step)
        for (size_t row = 0; row < p->rows; row += row_step) {
            float *maxima = floats_of(panels * ld, 0);
            for (size_t i = 0; i < panels * ld; i++)
                maxima[i] = before[i % kinds];
            struct cpu_linear_call call = {
                .weights = p->weights,
                .acts = p->acts,
                .rows = {row, row + row_step < p->rows ? row + row_step : p->rows},
                .panel_begin = begin,
                .panel_end = begin + panel_step < panels ? begin + panel_step : panels,
                .out = out,
                .ld_out = outs,
                .maxima = maxima,
                .ld_maxima = ld,
                .finite = cpu_linear_finite(p->weights, &p->acts, (struct cpu_rows){0, p->rows})};
            ops->linear(&call);
            for (size_t i = 0; i < panels * ld; i++) {
                size_t r = row + i % ld, first = begin + i / ld * CPU_MAXIMUM_PANELS,
                       end = first + CPU_MAXIMUM_PANELS;
                end = end < call.panel_end ? end : call.panel_end;
                bool written = first < end && r < call.rows.end;
                float expected = before[i % kinds];
                if (written)
                    expected =
                        expected_maximum(p, plain, r, first * CPU_PANEL, end * CPU_PANEL, expected);
                CHECK_MSG(expected == expected ? maxima[i] == expected : maxima[i] != maxima[i],
                          "%s, %s: row %zu, from panel %zu: %a, expected %a", name,
                          type_names[p->options.type], r, first, (double)maxima[i],
                          (double)expected);
            }
            free(maxima);
        }
    for (size_t i = 0; i < p->rows * outs; i++)
        CHECK(mathf_bits(out[i]) == mathf_bits(plain[i]) || plain[i] != plain[i]);
    free(out);
}

/* Plain against the second reading, then every set against plain, with and without accumulation. Returns outputs compared. */
static size_t check_shape(struct shape shape, uint64_t seed, bool second_reading)
{
    struct problem p = problem_make(shape, seed);
    size_t count = shape.rows * shape.outs, compared = 0;
    float *plain = floats_of(count, 0.25f), *added = floats_of(count, 0.25f);
    run_all(&cpu_linear_ops_plain, &p, false, plain);
    run_all(&cpu_linear_ops_plain, &p, true, added);
    if (second_reading) {
        float *expected = floats_of(count, 0.25f);
        for (size_t i = 0; i < count; i++)
            expected[i] = cases_expected(&p.options, i % shape.outs, &p.acts, i / shape.outs);
        check_same(plain, expected, count, shape.outs, &p, "plain");
        for (size_t i = 0; i < count; i++)
            expected[i] = 0.25f + expected[i];
        check_same(added, expected, count, shape.outs, &p, "plain, accumulating");
        free(expected);
        compared += 2 * count;
    }
    for (const struct cases_isa *isa = cases_isas(); isa->name; isa++) {
        float *out = floats_of(count, 0.25f);
        run_all(isa->ops, &p, false, out);
        check_same(out, plain, count, shape.outs, &p, isa->name);
        CHECK(out[count] == 0.25f); /* nothing behind the end */
        for (size_t i = 0; i < count; i++)
            out[i] = 0.25f;
        run_all(isa->ops, &p, true, out);
        check_same(out, added, count, shape.outs, &p, isa->name);
        free(out);
        check_maxima(isa->ops, &p, plain, isa->name);
        compared += 2 * count;
    }
    free(plain);
    free(added);
    problem_free(&p);
    return compared;
}

static void check_type(enum kern_weight_type type, enum kern_compute compute)
{
    static const size_t outs[] = {1, 15, 16, 17, 40}, cols[] = {32, 64, 96, 576, 1056};
    size_t compared = 0;
    for (size_t rows = 1; rows <= 40; rows += test_thin() > 1 ? 3 : 1)
        /* every height of tile, both ways of reading weights */
        compared += check_shape(
            (struct shape){type, compute, rows, outs[rows % 5], cols[rows / 5 % 5], CASES_ORDINARY},
            rows, rows < 10);
    for (size_t i = 0; i < 25; i++)
        compared += check_shape(
            (struct shape){type, compute, 1 + i * 3 % 19, outs[i % 5], cols[i / 5], CASES_ORDINARY},
            99 + i, true);
    if (test_thin() > 1) {
        CHECK(compared > 20000);
        return;
    }
    compared += check_shape((struct shape){type, compute, 64, 48, 1536, CASES_ORDINARY}, 7, false);
    compared += check_shape((struct shape){type, compute, 200, 33, 1536, CASES_ORDINARY}, 8, false);
    compared += check_shape((struct shape){type, compute, 512, 32, 128, CASES_ORDINARY}, 9, false);
    CHECK(compared > 100000);
}

TEST(linear, f32_weights_f32)
{
    check_type(KERN_WEIGHT_F32, KERN_COMPUTE_F32);
}
TEST(linear, f16_weights_f32)
{
    check_type(KERN_WEIGHT_F16, KERN_COMPUTE_F32);
}
TEST(linear, bf16_weights_f32)
{
    check_type(KERN_WEIGHT_BF16, KERN_COMPUTE_F32);
}
TEST(linear, q8_0_weights_f32)
{
    check_type(KERN_WEIGHT_Q8_0, KERN_COMPUTE_F32);
}
TEST(linear, q4_0_weights_f32)
{
    check_type(KERN_WEIGHT_Q4_0, KERN_COMPUTE_F32);
}
TEST(linear, q4_1_weights_f32)
{
    check_type(KERN_WEIGHT_Q4_1, KERN_COMPUTE_F32);
}
TEST(linear, f32_weights_int8)
{
    check_type(KERN_WEIGHT_F32, KERN_COMPUTE_INT8);
}
TEST(linear, f16_weights_int8)
{
    check_type(KERN_WEIGHT_F16, KERN_COMPUTE_INT8);
}
TEST(linear, bf16_weights_int8)
{
    check_type(KERN_WEIGHT_BF16, KERN_COMPUTE_INT8);
}
TEST(linear, q8_0_weights_int8)
{
    check_type(KERN_WEIGHT_Q8_0, KERN_COMPUTE_INT8);
}
TEST(linear, q4_0_weights_int8)
{
    check_type(KERN_WEIGHT_Q4_0, KERN_COMPUTE_INT8);
}
TEST(linear, q4_1_weights_int8)
{
    check_type(KERN_WEIGHT_Q4_1, KERN_COMPUTE_INT8);
}

/* Rows whose block scales differ by more than 100 times stay float, among ordinary ones. */
TEST(linear, wild_rows)
{
    for (size_t i = 0; i < 24; i++) {
        enum kern_weight_type type = i % 2 ? KERN_WEIGHT_Q4_0 : KERN_WEIGHT_Q4_1;
        check_shape((struct shape){type, KERN_COMPUTE_INT8, 1 + i * 5 % 37, 1 + i * 13 % 90, 576,
                                   CASES_WILD},
                    i, true);
    }
    struct problem p = problem_make(
        (struct shape){KERN_WEIGHT_Q4_1, KERN_COMPUTE_INT8, 1, 300, 576, CASES_WILD}, 3);
    size_t wild = cpu_weights_float_rows(p.weights);
    CHECK_MSG(wild > 60 && wild < 140, "%zu of 300 rows are wild", wild);
    CHECK_INT(cpu_weights_panels(p.weights), (300 - wild + 15) / 16 + (wild + 15) / 16);
    problem_free(&p);
}

/* Quants, scales and activations at their limits: cases_expected aborts when a 32-bit sum would overflow. */
TEST(linear, extremes)
{
    for (size_t type = 0; type < KERN_WEIGHT_TYPES; type++)
        for (size_t rows = 1; rows <= 16; rows += 3)
            check_shape((struct shape){(enum kern_weight_type)type, KERN_COMPUTE_INT8, rows, 19,
                                       192, CASES_EXTREME},
                        rows, true);
}

/* One row is not finite: its neighbours in a tile have their maxima. */
TEST(linear, maxima_of_what_is_not_finite)
{
    for (size_t type = 0; type < KERN_WEIGHT_TYPES; type++)
        for (int compute = 0; compute < 2; compute++)
            for (size_t rows = 1; rows <= 40; rows += rows < 9 ? 1 : 15) {
                struct problem p = problem_make((struct shape){(enum kern_weight_type)type,
                                                               (enum kern_compute)compute, rows, 72,
                                                               96, CASES_ORDINARY},
                                                rows);
                float *out = floats_of(rows * 72, 0),
                      *first = compute == KERN_COMPUTE_INT8 ? cpu_acts_da(&p.acts, rows / 2)
                                                            : cpu_acts_f32_row(&p.acts, rows / 2);
                *first = rows % 2 ? __builtin_inff() : __builtin_nanf("");
                run_all(&cpu_linear_ops_plain, &p, false, out);
                CHECK(!mathf_is_finite(out[rows / 2 * 72]));
                check_maxima(&cpu_linear_ops_plain, &p, out, "plain");
                for (const struct cases_isa *isa = cases_isas(); isa->name; isa++)
                    check_maxima(isa->ops, &p, out, isa->name);
                free(out);
                problem_free(&p);
            }
}

/* Any split among threads, by panels and by rows, gives the same bits and touches nothing else. */
TEST(linear, splits)
{
    struct problem p = problem_make(
        (struct shape){KERN_WEIGHT_Q4_1, KERN_COMPUTE_INT8, 30, 150, 288, CASES_WILD}, 5);
    size_t outs = p.options.out_rows, panels = cpu_weights_panels(p.weights), count = 30 * outs;
    float *whole = floats_of(count, 0);
    run_all(&cpu_linear_ops_plain, &p, false, whole);
    for (const struct cases_isa *isa = cases_isas(); isa->name; isa++) {
        for (size_t step = 1; step <= panels; step++) {
            float *out = floats_of(count, 0);
            for (size_t begin = 0; begin < panels; begin += step) {
                struct cpu_linear_call call = {.weights = p.weights,
                                               .acts = p.acts,
                                               .rows = {0, step * 3 % 30},
                                               .panel_begin = begin,
                                               .panel_end =
                                                   begin + step < panels ? begin + step : panels,
                                               .out = out,
                                               .ld_out = outs};
                isa->ops->linear(&call);
                call.rows = (struct cpu_rows){step * 3 % 30, 30};
                isa->ops->linear(&call);
            }
            check_same(out, whole, count, outs, &p, isa->name);
            free(out);
        }
    }
    free(whole);
    problem_free(&p);
}

/* Few rows read several places of a matrix side by side, however many panels that leaves over. */
TEST(linear, few_rows_of_many_panels)
{
    static const enum kern_weight_type types[] = {KERN_WEIGHT_F32, KERN_WEIGHT_Q8_0,
                                                  KERN_WEIGHT_Q4_1};
    for (size_t rows = 1; rows <= 3; rows++)
        for (size_t outs = 1; outs < 200; outs += 13)
            for (size_t i = 0; i < 3; i++)
                check_shape((struct shape){types[i], KERN_COMPUTE_INT8, rows, outs,
                                           32 * (1 + outs % 7), CASES_ORDINARY},
                            outs, false);
}

/* The integer block scales lose little: the bound of docs/NUMERICS.md holds for every output. */
TEST(linear, integer_scales_error_bound)
{
    struct problem p = problem_make(
        (struct shape){KERN_WEIGHT_Q4_1, KERN_COMPUTE_INT8, 8, 64, 576, CASES_ORDINARY}, 11);
    float *out = floats_of(8 * 64, 0);
    run_all(&cpu_linear_ops_plain, &p, false, out);
    double error2 = 0, size2 = 0;
    for (size_t o = 0; o < 64; o++) {
        float w[576];
        cpu_weights_row(p.weights, o, w);
        for (size_t r = 0; r < 8; r++) {
            double exact = 0, bound = 0, sizes = 0;
            struct cpu_panel panel = cpu_weights_panel(p.weights, o / 16);
            double unit = panel.slot_scale[o % 16];
            for (size_t b = 0; b < 18; b++) {
                double da = cpu_acts_da(&p.acts, r)[b], sum = 0, s = 0;
                int16_t pair[2];
                const uint8_t *record = panel.records + b * 320;
                memcpy(pair, record + 256 + o % 16 * 4, 4);
                for (size_t k = 0; k < 32; k++) {
                    double a = cpu_acts_a(&p.acts, r)[b * 32 + k];
                    exact += (double)w[b * 32 + k] * a * da;
                    sizes += fabs((double)w[b * 32 + k] * a * da);
                    sum += ((double)cpu_nibble(record, o % 16, k) - 8) * a;
                    s += a;
                }
                bound += unit * da * (fabs(sum) / 2 + 4 * fabs(s) + fabs((double)pair[1]));
            }
            double error = fabs((double)out[r * 64 + o] - exact);
            CHECK_MSG(error <= bound + sizes * 4e-6, "output %zu: off by %g, bound %g", o, error,
                      bound);
            error2 += error * error;
            size2 += exact * exact;
        }
    }
    double relative = sqrt(error2 / size2);
    CHECK_MSG(relative < 1e-3, "rms error %g of the outputs", relative);
    free(out);
    problem_free(&p);
}

TEST(linear, rows_for_embedding)
{
    for (size_t type = 0; type < KERN_WEIGHT_TYPES; type++) {
        struct problem p =
            problem_make((struct shape){(enum kern_weight_type)type, KERN_COMPUTE_INT8, 1, 20, 96,
                                        CASES_ORDINARY},
                         21);
        /* a one-hot float row picks one weight: 0 + w * 1, later + w' * 0 */
        struct cpu_weights_options options = p.options;
        options.compute = KERN_COMPUTE_F32;
        struct cpu_weights *floats;
        CHECK(cpu_weights_create(&options, &floats, NULL) == STATUS_OK);
        for (size_t k = 0; k < 96; k += 7) {
            float x[96] = {0}, row[96], out[20];
            x[k] = 1.0f;
            struct cpu_acts acts =
                cases_quantise(&cpu_linear_ops_plain, KERN_COMPUTE_F32, x, 1, 96);
            struct cpu_linear_call call = {.weights = floats,
                                           .acts = acts,
                                           .rows = {0, 1},
                                           .panel_end = 2,
                                           .out = out,
                                           .ld_out = 20};
            cpu_linear(CPU_ISA_PLAIN, &call);
            for (size_t o = 0; o < 20; o++) {
                cpu_weights_row(p.weights, o, row);
                CHECK(row[k] == out[o]);
            }
            free(acts.data);
        }
        cpu_weights_destroy(floats);
        problem_free(&p);
    }
}

static void check_refused(enum kern_weight_type type, size_t byte, uint16_t half,
                          const char *message)
{
    struct cases_random random = {4};
    uint8_t *file = cases_matrix(&random, type, 20, 96, CASES_ORDINARY);
    memcpy(file + kern_weight_row_bytes(type, 96) * 17 + byte, &half, 2);
    for (size_t compute = 0; compute < 2; compute++) {
        struct cpu_weights_options options = {.type = type,
                                              .compute = (enum kern_compute)compute,
                                              .out_rows = 20,
                                              .in_cols = 96,
                                              .data = file};
        struct cpu_weights *weights = NULL;
        struct err err = ERR_INIT;
        CHECK_INT(cpu_weights_create(&options, &weights, &err), STATUS_FORMAT);
        CHECK(weights == NULL);
        CHECK_STR(err.message, message);
    }
    free(file);
}

TEST(linear, refuses_what_is_not_finite)
{
    check_refused(KERN_WEIGHT_Q4_1, 20, 0x7c00, "row 17, block 1: the scale is not finite");
    check_refused(KERN_WEIGHT_Q4_1, 42, 0xfe01, "row 17, block 2: the minimum is not finite");
    check_refused(KERN_WEIGHT_Q4_0, 0, 0xfc00, "row 17, block 0: the scale is not finite");
    check_refused(KERN_WEIGHT_Q8_0, 34, 0x7e00, "row 17, block 1: the scale is not finite");
    check_refused(KERN_WEIGHT_F16, 66, 0x7c00, "row 17, element 33: the weight is not finite");
    check_refused(KERN_WEIGHT_BF16, 66, 0x7f80, "row 17, element 33: the weight is not finite");
    check_refused(KERN_WEIGHT_F32, 34, 0x7fc0, "row 17, element 8: the weight is not finite");
}

TEST(linear, refuses_shapes)
{
    uint8_t block[32] = {0};
    struct cpu_weights *weights;
    struct err err = ERR_INIT;
    struct cpu_weights_options options = {
        .type = KERN_WEIGHT_Q4_1, .out_rows = 1, .in_cols = 33, .data = block};
    CHECK_INT(cpu_weights_create(&options, &weights, &err), STATUS_INVALID);
    CHECK_STR(err.message, "33 columns: must be a multiple of 32 from 32 to 1048576");
    options.in_cols = 0;
    CHECK_INT(cpu_weights_create(&options, &weights, &err), STATUS_INVALID);
    options.in_cols = 32;
    options.out_rows = 0;
    CHECK_INT(cpu_weights_create(&options, &weights, &err), STATUS_INVALID);
}
