/* See linear_cases.h. */
#include "tests/kernels/linear_cases.h"

#include <math.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include "tests/kernels/emulated.h"
#endif

uint32_t cases_u32(struct cases_random *random)
{
    random->state = random->state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = random->state ^ random->state >> 29;
    return (uint32_t)(x * 0x9e3779b97f4a7c15u >> 32);
}

float cases_unit(struct cases_random *random)
{
    return (float)(int32_t)cases_u32(random) * 0x1p-31f;
}

const struct cases_isa *cases_isas(void)
{
    static struct cases_isa isas[CPU_ISA_LEVELS + 3];
    size_t count = 0;
    for (size_t level = CPU_ISA_PLAIN + 1; level <= cpu_isa_detect(); level++)
        isas[count++] = (struct cases_isa){cpu_isa_name((enum cpu_isa_level)level),
                                           cpu_linear_ops((enum cpu_isa_level)level)};
#if defined(__x86_64__)
    if (count > 0) /* its rows of activations are AVX2's */
        isas[count++] =
            (struct cases_isa){"avx512vnni, emulated", &cpu_linear_ops_avx512vnni_emulated};
#endif
    isas[count] = (struct cases_isa){NULL, NULL};
    return isas;
}

uint16_t cases_to_f16(float value)
{
    _Static_assert(sizeof(_Float16) == 2, "half");
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}

static void put_u16(uint8_t *to, uint16_t value)
{
    memcpy(to, &value, 2);
}

static float block_scale(struct cases_random *random, enum cases_scales scales, bool wild_row)
{
    float d = 0.004f + 0.01f * fabsf(cases_unit(random));
    if (scales == CASES_EXTREME)
        return cases_u32(random) % 2 ? 65504.0f : -65504.0f;
    if (wild_row)
        d *= mathf_pow(10.0f, 3.0f * cases_unit(random)); /* libm's differs by machine */
    return cases_u32(random) % 64 == 0 ? 0.0f : cases_u32(random) % 2 ? d : -d;
}

uint8_t *cases_matrix(struct cases_random *random, enum kern_weight_type type, size_t rows,
                      size_t cols, enum cases_scales scales)
{
    size_t bytes = kern_weight_row_bytes(type, cols), block_bytes = kern_weight_row_bytes(type, 32);
    uint8_t *data = malloc(rows * bytes);
    for (size_t row = 0; row < rows; row++) {
        bool wild = scales == CASES_WILD && cases_u32(random) % 3 == 0;
        for (size_t b = 0; b < cols / 32; b++) {
            uint8_t *block = data + row * bytes + b * block_bytes;
            for (size_t i = 0; i < block_bytes; i++)
                block[i] = (uint8_t)cases_u32(random);
            if (scales == CASES_EXTREME)
                memset(block,
                       type == KERN_WEIGHT_Q8_0 ? 0x80
                       : cases_u32(random) % 2  ? 255
                                                : 0,
                       block_bytes);
            float d = block_scale(random, scales, wild);
            for (size_t i = 0; i < 32 && type < KERN_WEIGHT_Q8_0; i++) {
                float w = scales == CASES_EXTREME ? d : cases_unit(random) * 0.1f;
                uint32_t bits = mathf_bits(w);
                if (type == KERN_WEIGHT_F32)
                    memcpy(block + i * 4, &w, 4);
                else
                    put_u16(block + i * 2,
                            type == KERN_WEIGHT_F16 ? cases_to_f16(w) : (uint16_t)(bits >> 16));
            }
            if (type >= KERN_WEIGHT_Q8_0)
                put_u16(block, cases_to_f16(d));
            if (type == KERN_WEIGHT_Q4_1)
                put_u16(block + 2, cases_to_f16(scales == CASES_EXTREME
                                                    ? d
                                                    : -7.5f * d + 0.01f * cases_unit(random)));
        }
    }
    return data;
}

float *cases_floats(struct cases_random *random, size_t rows, size_t cols)
{
    float *x = malloc(rows * cols * sizeof(*x));
    for (size_t i = 0; i < rows * cols; i++) {
        uint32_t block_kind = (uint32_t)(i / 32 * 2654435761u) >> 26;
        float scale = block_kind == 0   ? 0.0f
                      : block_kind == 1 ? 1e-38f
                      : block_kind == 2 ? 1e-42f
                                        : 1.0f;
        x[i] = cases_unit(random) * scale;
        if (cases_u32(random) % 97 == 0)
            x[i] *= 40.0f;
    }
    return x;
}

struct cpu_acts cases_quantise(const struct cpu_linear_ops *ops, enum kern_compute compute,
                               const float *x, size_t rows, size_t cols)
{
    struct cpu_acts acts;
    size_t bytes = cpu_acts_bytes(compute, rows, cols);
    void *memory = aligned_alloc(64, bytes);
    memset(memory, 0, bytes);
    cpu_acts_init(&acts, compute, cols, memory);
    for (size_t r = 0; r < rows; r++) {
        struct cpu_act_row row = {
            .a = cpu_acts_a(&acts, r),
            .da = cpu_acts_da(&acts, r),
            .v0 = cpu_acts_v0(&acts, r),
            .s = cpu_acts_s(&acts, r),
            .f32 = compute == KERN_COMPUTE_F32 ? cpu_acts_f32_row(&acts, r) : NULL,
        };
        ops->quantise(x + r * cols, cols, &row);
    }
    return acts;
}

static float half_at(const uint8_t *p)
{
    _Float16 half;
    memcpy(&half, p, 2);
    return (float)half;
}

static int nibble_at(const uint8_t *q, int i)
{
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

/* The weight as the file's type defines it: product and sum each rounded to float. */
static float file_weight(enum kern_weight_type type, const uint8_t *block, int i)
{
    float value;
    switch (type) {
    case KERN_WEIGHT_F16:
        return half_at(block + i * 2);
    case KERN_WEIGHT_BF16:
        value = 0;
        memcpy((uint8_t *)&value + 2, block + i * 2, 2);
        return value;
    case KERN_WEIGHT_Q8_0:
        return half_at(block) * (float)(int8_t)block[2 + i];
    case KERN_WEIGHT_Q4_0:
        return half_at(block) * (float)(nibble_at(block + 2, i) - 8);
    case KERN_WEIGHT_Q4_1:
        value = half_at(block) * (float)nibble_at(block + 4, i);
        return value + half_at(block + 2);
    default:
        memcpy(&value, block + i * 4, 4);
        return value;
    }
}

static float expected_bytes(enum kern_weight_type type, const uint8_t *block, const int8_t *a,
                            float da, float chain)
{
    float d = 0, amax = 0;
    int64_t sum = 0;
    for (int i = 0; i < 32; i++)
        amax = fmaxf(amax, fabsf(file_weight(type, block, i)));
    for (int i = 0; i < 32; i++) {
        long w = type == KERN_WEIGHT_Q8_0 ? (int8_t)block[2 + i]
                 : amax < 0x1p-120f       ? 0
                                          : lrintf(file_weight(type, block, i) * (127.0f / amax));
        sum += w * a[i];
    }
    if (type == KERN_WEIGHT_Q8_0)
        d = half_at(block);
    else if (amax >= 0x1p-120f)
        d = amax / 127.0f;
    return fmaf((float)sum, d * da, chain);
}

float cases_expected(const struct cpu_weights_options *options, size_t out,
                     const struct cpu_acts *acts, size_t row)
{
    enum kern_weight_type type = options->type;
    size_t blocks = options->in_cols / 32, block_bytes = kern_weight_row_bytes(type, 32);
    const uint8_t *file = (const uint8_t *)options->data + out * blocks * block_bytes;
    float chain = 0, unit = 0, largest = 0, smallest = INFINITY;
    bool nibbles = type == KERN_WEIGHT_Q4_0 || type == KERN_WEIGHT_Q4_1;
    for (size_t b = 0; nibbles && b < blocks; b++) {
        float d = half_at(file + b * block_bytes);
        float c = type == KERN_WEIGHT_Q4_1 ? half_at(file + b * block_bytes + 2) + 8 * d : 0;
        unit = fmaxf(unit, fmaxf(fabsf(d), fabsf(c) / 8));
        largest = fmaxf(largest, fabsf(d));
        smallest = d != 0 ? fminf(smallest, fabsf(d)) : smallest;
    }
    bool wild = largest > 100 * smallest;
    unit /= 32767;
    for (size_t b = 0; b < blocks; b++) {
        const uint8_t *block = file + b * block_bytes,
                      *q = block + (type == KERN_WEIGHT_Q4_1 ? 4 : 2);
        if (options->compute == KERN_COMPUTE_F32) {
            for (int i = 0; i < 32; i++)
                chain = fmaf(file_weight(type, block, i),
                             cpu_acts_f32_row(acts, row)[b * 32 + (size_t)i], chain);
            continue;
        }
        const int8_t *a = cpu_acts_a(acts, row) + b * 32;
        float da = cpu_acts_da(acts, row)[b];
        if (!nibbles) {
            chain = expected_bytes(type, block, a, da, chain);
            continue;
        }
        int64_t s = 0, sum = 0;
        for (int i = 0; i < 32; i++) {
            s += a[i];
            sum += (nibble_at(q, i) - 8) * a[i];
        }
        float d = half_at(block), c = type == KERN_WEIGHT_Q4_1 ? half_at(block + 2) + 8 * d : 0;
        if (wild) {
            chain = fmaf(fmaf(d, (float)sum, c * (float)s), da, chain);
            continue;
        }
        int64_t k = unit != 0 ? lrintf(d / unit) : 0, m = unit != 0 ? lrintf(c / (8 * unit)) : 0;
        int64_t total = k * sum + m * (8 * s - (sum < 0));
        if (total != (int32_t)total)
            abort(); /* the rule's bound would be broken */
        chain = fmaf((float)(int32_t)total, da, chain);
    }
    return nibbles && !wild && options->compute == KERN_COMPUTE_INT8 ? chain * unit : chain;
}
