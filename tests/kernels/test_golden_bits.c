/* The plain kernels' bits as committed constants. Other tests hold each variant against the plain kernels of the same build; this
 * one holds the plain kernels of every processor and compiler against each other: x86-64 and Arm must print the same sums.
 * Inputs are integers scaled by powers of two and products of single operations, so that they are equal everywhere too; none
 * is NaN, whose bits processors choose. The constants were made on x86-64. */
#include "base/checksum.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/sampler.h"
#include "tests/kernels/linear_cases.h"
#include "tests/test.h"

static void check_sum(const char *what, const void *data, size_t bytes, uint64_t expected)
{
    uint64_t sum = checksum_of_plain(data, bytes);
    CHECK_MSG(sum == expected, "%s: the bits' sum is 0x%016llx, expected 0x%016llx", what,
              (unsigned long long)sum, (unsigned long long)expected);
}

TEST(golden_bits, mathf)
{
    enum { COUNT = 20000 };
    static float out[5][COUNT];
    struct cases_random random = {1};
    for (size_t i = 0; i < COUNT; i++) {
        float unit = cases_unit(&random), x = 110.0f * unit;
        out[0][i] = mathf_exp(x);
        out[1][i] = mathf_silu(x);
        out[2][i] = mathf_log(mathf_from_bits(1 + cases_u32(&random) % 0x7f7fffffu));
        mathf_sincos(100000.0f * unit, &out[3][i], &out[4][i]);
    }
    check_sum("exp", out[0], sizeof out[0], 0xa416ef8b712db8ab);
    check_sum("silu", out[1], sizeof out[1], 0x84827a0511de7e50);
    check_sum("log", out[2], sizeof out[2], 0x4e899040f91a891a);
    check_sum("sin", out[3], sizeof out[3], 0x18ec795d66535b85);
    check_sum("cos", out[4], sizeof out[4], 0xd6196447563d135a);
    for (size_t i = 0; i < COUNT; i++)
        out[0][i] = mathf_pow(10000.0f, (float)i / COUNT);
    check_sum("pow", out[0], sizeof out[0], 0x72c748cafdcc2d25);
}

TEST(golden_bits, half)
{
    enum { COUNT = 20000 };
    static uint16_t out[COUNT];
    struct cases_random random = {2};
    for (size_t i = 0; i < COUNT; i++) /* 2^-30 to 2^18: denormals and overflow too */
        out[i] = half_from_float(cases_unit(&random) *
                                 mathf_from_bits((97 + cases_u32(&random) % 49) << 23));
    check_sum("half", out, sizeof out, 0x9af6b470096b11a9);
}

TEST(golden_bits, activations)
{
    enum { ROWS = 7, COLS = 576 };
    static const uint64_t expected[2][3] = {
        {0x69ade4a6119c1270, 0xcbb1df4ed1dfbc9f, 0x2918b10f8480408a},
        {0xd388b45cdfe2493a, 0xde9441d74b23122b, 0x21f7e14f221f74c9},
    };
    struct cases_random random = {3};
    float *x = cases_floats(&random, ROWS, COLS), *w = cases_floats(&random, ROWS, COLS);
    for (size_t compute = 0; compute < 2; compute++) {
        size_t bytes = cpu_acts_bytes((enum kern_compute)compute, ROWS, COLS);
        uint8_t *memory = aligned_alloc(64, bytes), bad[ROWS] = {0};
        for (int which = 0; which < 3; which++) {
            struct cpu_acts acts;
            struct cpu_rows rows = {0, ROWS};
            memset(memory, 0, bytes);
            cpu_acts_init(&acts, (enum kern_compute)compute, COLS, memory);
            if (which == 0)
                cpu_quantise(CPU_ISA_PLAIN, x, COLS, rows, &acts, bad);
            else if (which == 1)
                cpu_norm_quantise(CPU_ISA_PLAIN, x, COLS, w, 1e-5f, rows, &acts, bad);
            else
                cpu_silu_mul_quantise(CPU_ISA_PLAIN, x, w, COLS, rows, &acts, bad);
            check_sum(which == 0   ? "quantise"
                      : which == 1 ? "norm_quantise"
                                   : "silu_mul_quantise",
                      memory, bytes, expected[compute][which]);
        }
        free(memory);
    }
    free(x);
    free(w);
}

TEST(golden_bits, linear)
{
    enum { ROWS = 5, OUTS = 40, COLS = 288 };
    static const uint64_t expected[2][KERN_WEIGHT_TYPES] = {
        {0x4f1d4335769befb3, 0x7651b7f2b288eec8, 0x6a96d95574bafff5, 0x735ff95e4a4bf1cc,
         0xf1956c85d3d9c6a2, 0xd92f679bd32ca4a7},
        {0x3df12e151ed1b40e, 0xd5d22a582d2a92bd, 0x7db5787ec1ad74f6, 0x2a9f5e45b44874ac,
         0x6df403984cb49a11, 0xa6adf402dc1db64d},
    };
    for (size_t compute = 0; compute < 2; compute++)
        for (size_t type = 0; type < KERN_WEIGHT_TYPES; type++) {
            struct cases_random random = {4 + type};
            uint8_t *file =
                cases_matrix(&random, (enum kern_weight_type)type, OUTS, COLS, CASES_WILD);
            float *x = cases_floats(&random, ROWS, COLS), out[ROWS * OUTS];
            struct cpu_weights_options options = {.type = (enum kern_weight_type)type,
                                                  .compute = (enum kern_compute)compute,
                                                  .out_rows = OUTS,
                                                  .in_cols = COLS,
                                                  .data = file};
            struct cpu_weights *weights;
            CHECK(cpu_weights_create(&options, &weights, NULL) == STATUS_OK);
            struct cpu_acts acts =
                cases_quantise(&cpu_linear_ops_plain, options.compute, x, ROWS, COLS);
            struct cpu_linear_call call = {.weights = weights,
                                           .acts = acts,
                                           .rows = {0, ROWS},
                                           .panel_end = cpu_weights_panels(weights),
                                           .out = out,
                                           .ld_out = OUTS};
            cpu_linear(CPU_ISA_PLAIN, &call);
            char what[32];
            snprintf(what, sizeof what, "%s, weight type %zu", compute ? "int8" : "f32", type);
            check_sum(what, out, sizeof out, expected[compute][type]);
            cpu_weights_destroy(weights);
            free(acts.data);
            free(x);
            free(file);
        }
}

/* Three rows at positions 61 to 63 and 150 to 152 written by rope_kv with all before them, then attended to. */
static void check_attention(enum kern_kv_type type, uint64_t expected_pages, uint64_t expected_out)
{
    enum { DIM = 32, GROUP = 3, PAGE = 16, PAGES = 10, ROWS = 3, SCALES = 2 * PAGE };
    static _Alignas(64) uint8_t pages[PAGES][2 * PAGE * DIM * 4 + 2 * SCALES];
    memset(pages, 0, sizeof pages);
    struct cases_random random = {17};
    size_t half = (size_t)PAGE * DIM * (type == KERN_KV_F32 ? 4 : type == KERN_KV_F16 ? 2 : 1);
    uint32_t blocks[PAGES];
    float q[GROUP * DIM], k[DIM], v[DIM], rows[ROWS * GROUP * DIM], out[2][ROWS * GROUP * DIM];
    for (uint32_t i = 0; i < PAGES; i++)
        blocks[i] = PAGES - 1 - i;
    for (uint32_t p = 0; p < 153; p++) {
        float cos[DIM / 2], sin[DIM / 2];
        for (uint32_t i = 0; i < DIM / 2; i++)
            mathf_sincos((float)p * mathf_pow(10000.0f, -(float)i / (DIM / 2)), &sin[i], &cos[i]);
        for (uint32_t i = 0; i < GROUP * DIM; i++)
            q[i] = 3 * cases_unit(&random);
        for (uint32_t i = 0; i < DIM; i++) {
            k[i] = cases_unit(&random);
            v[i] = cases_unit(&random);
        }
        uint8_t *page = pages[blocks[p / PAGE]];
        struct cpu_rope_row row = {.cos = cos,
                                   .sin = sin,
                                   .pairs = DIM / 2,
                                   .head_dim = DIM,
                                   .heads = GROUP,
                                   .kv_heads = 1,
                                   .page_tokens = PAGE,
                                   .token = p % PAGE,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .k_page = page,
                                   .v_page = page + half,
                                   .k_scales = page + 2 * half,
                                   .v_scales = page + 2 * half + SCALES};
        cpu_attention_plain.rope_kv[type](&row);
        if (p >= 150)
            memcpy(rows + (p - 150) * GROUP * DIM, q, sizeof q);
    }
    check_sum("pages", pages, sizeof pages, expected_pages);
    struct cpu_attention_tile tile = {.q = rows,
                                      .row_stride = GROUP * DIM,
                                      .rows = ROWS,
                                      .group = GROUP,
                                      .head_dim = DIM,
                                      .page_tokens = PAGE,
                                      .scale = 1.0f / __builtin_sqrtf(DIM),
                                      .blocks = blocks,
                                      .k = pages[0],
                                      .v = pages[0] + half,
                                      .k_scales = pages[0] + 2 * half,
                                      .v_scales = pages[0] + 2 * half + SCALES,
                                      .page_bytes = sizeof pages[0]};
    for (uint32_t i = 0; i < 2; i++) {
        tile.position = i ? 150 : 61;
        tile.out = out[i];
        cpu_attention_plain.tile[type](&tile);
    }
    check_sum("attention", out, sizeof out, expected_out);
}

TEST(golden_bits, attention_f32)
{
    check_attention(KERN_KV_F32, 0x0f920dd57842e0a5, 0x1ee298032f75da3f);
}

TEST(golden_bits, attention_f16)
{
    check_attention(KERN_KV_F16, 0x25114996d539c1e2, 0xecc84062217348cf);
}

TEST(golden_bits, attention_int8)
{
    check_attention(KERN_KV_INT8, 0x38acce369ba4b797, 0xd1a08472f2d7f19a);
}

TEST(golden_bits, sampler)
{
    enum { VOCAB = 1003, DRAWS = 50 };
    static float logits[VOCAB], copy[VOCAB];
    static struct {
        uint32_t token;
        float logprob;
    } drawn[DRAWS];
    struct cases_random random = {23};
    for (size_t i = 0; i < VOCAB; i++)
        logits[i] = 8 * cases_unit(&random);
    struct cpu_sampler *sampler;
    CHECK_INT(cpu_sampler_create(VOCAB, &sampler), STATUS_OK);
    for (uint32_t i = 0; i < DRAWS; i++) {
        struct kern_sampling sampling = {.temperature = 0.7f,
                                         .top_p = 0.9f,
                                         .repetition_penalty = 1,
                                         .logprobs = 0,
                                         .seed = 5 + i};
        struct kern_sample sample = {.sampling = &sampling};
        struct kern_sample_out out;
        memcpy(copy, logits, sizeof copy);
        cpu_sampler_row(sampler, CPU_ISA_PLAIN, &sample, CPU_SAMPLER_NO_EXTRA, copy, NULL, &out);
        CHECK(out.finite);
        drawn[i].token = (uint32_t)out.token;
        drawn[i].logprob = out.logprob;
    }
    check_sum("draws", drawn, sizeof drawn, 0x4bfcf08f654145fb);
    cpu_sampler_destroy(sampler);
}
