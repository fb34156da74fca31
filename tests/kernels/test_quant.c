/* Activations: every instruction set against the plain row functions, bit by bit; rows that are not finite fail alone. */
#include "tests/test.h"

#include <math.h>

#include "tests/kernels/linear_cases.h"

enum { ROWS = 37 };

struct row_memory {
    _Alignas(64) uint8_t bytes[8192];
    struct cpu_act_row row;
};

static void row_init(struct row_memory *memory, enum kern_compute compute, size_t cols)
{
    struct cpu_acts acts;
    memset(memory->bytes, 0, sizeof(memory->bytes));
    cpu_acts_init(&acts, compute, cols, memory->bytes);
    memory->row = (struct cpu_act_row){.a = cpu_acts_a(&acts, 0),
                                       .da = cpu_acts_da(&acts, 0),
                                       .v0 = cpu_acts_v0(&acts, 0),
                                       .s = cpu_acts_s(&acts, 0)};
    if (compute == KERN_COMPUTE_F32)
        memory->row = (struct cpu_act_row){.f32 = cpu_acts_f32_row(&acts, 0)};
}

static bool run_row(const struct cpu_linear_ops *ops, int which, const float *x, const float *w,
                    size_t cols, struct row_memory *out)
{
    switch (which) {
    case 0:
        return ops->quantise(x, cols, &out->row);
    case 1:
        return ops->norm_quantise(x, w, 1e-5f, cols, &out->row);
    case 2:
        return ops->silu_mul_quantise(x, w, cols, &out->row);
    default:
        ops->norm(x, w, 1e-5f, cols, (float *)out->bytes);
        return true;
    }
}

static void check_rows(enum kern_compute compute)
{
    static struct row_memory plain, other;
    for (size_t cols = 32; cols <= 1568; cols += cols < 128 ? 32 : 160) {
        struct cases_random random = {cols};
        float *x = cases_floats(&random, ROWS, cols), *w = cases_floats(&random, ROWS, cols);
        for (size_t i = 0; i < ROWS * cols; i++) /* silu's far ends */
            if (cases_u32(&random) % 11 == 0)
                x[i] *= 3.0f;
        /* and the ends of what its short exponential is for */
        static const float ends[] = {86.0f, -86.0f, 0x1.580002p+6f, -0x1.580002p+6f, 120, -120};
        for (size_t r = 0; r < ROWS; r++)
            x[r * cols + r * 7 % cols] = ends[r % (sizeof ends / sizeof ends[0])];
        for (const struct cases_isa *isa = cases_isas(); isa->name; isa++) {
            for (size_t r = 0; r < ROWS; r++) {
                for (int which = 0; which < 4; which++) {
                    row_init(&plain, compute, cols);
                    row_init(&other, compute, cols);
                    bool a = run_row(&cpu_linear_ops_plain, which, x + r * cols, w + r * cols, cols,
                                     &plain);
                    bool b = run_row(isa->ops, which, x + r * cols, w + r * cols, cols, &other);
                    CHECK(a && b);
                    CHECK_MSG(memcmp(plain.bytes, other.bytes, sizeof(plain.bytes)) == 0,
                              "%s: function %d, row %zu of %zu columns", isa->name, which, r, cols);
                }
            }
        }
        free(x);
        free(w);
    }
}

TEST(quant, int8_rows_equal)
{
    check_rows(KERN_COMPUTE_INT8);
}

TEST(quant, f32_rows_equal)
{
    check_rows(KERN_COMPUTE_F32);
}

/* The definition, on a block worked out by hand. */
TEST(quant, one_block)
{
    float x[32] = {[0] = -2.0f, [1] = 1.0f, [2] = 0.5f, [31] = 0.00787402f};
    struct cpu_acts acts = cases_quantise(&cpu_linear_ops_plain, KERN_COMPUTE_INT8, x, 1, 32);
    int8_t *a = cpu_acts_a(&acts, 0);
    CHECK_INT(a[0], -127);
    CHECK_INT(a[1], 64); /* 63.5 to even */
    CHECK_INT(a[2], 32); /* 31.75 */
    CHECK_INT(a[31], 1); /* 0.50000027 */
    CHECK_INT(cpu_acts_s(&acts, 0)[0], -127 + 64 + 32 + 1);
    CHECK_INT(cpu_acts_v0(&acts, 0)[0], (uint32_t)(8 * -30 * 65535));
    CHECK(cpu_acts_da(&acts, 0)[0] == 2.0f / 127.0f);
    free(acts.data);
}

static void check_bad(float value, int where)
{
    enum { COLS = 96 };
    struct cases_random random = {9};
    for (size_t level = 0; level <= cpu_isa_detect(); level++) {
        for (size_t compute = 0; compute < 2; compute++) {
            float *x = cases_floats(&random, 5, COLS), *w = cases_floats(&random, 5, COLS);
            for (size_t i = 0; i < 5 * COLS; i++)
                w[i] = 1.0f;
            size_t bytes = cpu_acts_bytes((enum kern_compute)compute, 5, COLS);
            uint8_t *good = aligned_alloc(64, bytes), *bad = aligned_alloc(64, bytes),
                    flags[5] = {0};
            for (int which = 0; which < 3; which++) {
                struct cpu_acts acts;
                struct cpu_rows rows = {0, 5};
                bool fails = which == 1 || !isfinite(value);
                for (int pass = 0; pass < 2; pass++) {
                    memset(pass ? bad : good, 0x55, bytes);
                    memset(flags, 0, 5);
                    float before = x[3 * COLS + where];
                    if (pass)
                        x[3 * COLS + where] = value;
                    cpu_acts_init(&acts, (enum kern_compute)compute, COLS, pass ? bad : good);
                    if (which == 0)
                        cpu_quantise((enum cpu_isa_level)level, x, COLS, rows, &acts, flags);
                    else if (which == 1)
                        cpu_norm_quantise((enum cpu_isa_level)level, x, COLS, w, 1e-5f, rows, &acts,
                                          flags);
                    else
                        cpu_silu_mul_quantise((enum cpu_isa_level)level, x, w, COLS, rows, &acts,
                                              flags);
                    x[3 * COLS + where] = before;
                    for (size_t r = 0; r < 5; r++)
                        CHECK_INT(flags[r], pass && r == 3 && fails);
                }
                for (size_t i = 0; i < bytes; i++) {
                    if (i / acts.stride_bytes == 3)
                        CHECK(!fails || bad[i] == 0);
                    else
                        CHECK_INT(bad[i], good[i]);
                }
            }
            free(good);
            free(bad);
            free(x);
            free(w);
        }
    }
}

TEST(quant, a_bad_row_fails_alone)
{
    check_bad(NAN, 0);
    check_bad(NAN, 95);
    check_bad(INFINITY, 33);
    check_bad(3.0e38f, 40); /* silu and quantise take it; the norm's sum overflows */
}
