/* Runs each kernel once on a small fixed problem, for counts.py, which lets callgrind count the instructions of counted():
 *
 *     count_kernels plain|avx2        prints the cases' names in order
 *
 * Owner: the main thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/sampler.h"

enum { OUTPUTS = 128, COLS = 576, ROWS = 96, VOCAB = 49152 };

static uint32_t state = 1;

static uint32_t noise(void)
{
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static void *take(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory)
        exit(1);
    return memory;
}

static void check(enum status status)
{
    if (status != STATUS_OK)
        exit(1);
}

/* What callgrind counts: from this function's entry to its return. */
void counted(void (*run)(void *data), void *data);
__attribute__((noipa)) void counted(void (*run)(void *data), void *data)
{
    run(data);
    __asm__ volatile("" ::: "memory");
}

struct problem {
    enum cpu_isa_level isa;
    struct cpu_linear_call call;
    const float *x;
    struct cpu_acts acts;
    struct cpu_sampler *sampler;
    struct kern_sample sample;
    float *logits;
    struct cpu_attention_tile tile;
    enum kern_kv_type kv_type;
};

static void run_linear(void *data)
{
    const struct problem *problem = data;
    cpu_linear(problem->isa, &problem->call);
}

static void run_norm(void *data)
{
    struct problem *problem = data;
    uint8_t bad[ROWS] = {0};
    cpu_norm_quantise(problem->isa, problem->x, COLS, problem->x, 1e-5f, (struct cpu_rows){0, ROWS},
                      &problem->acts, bad);
}

static void run_silu(void *data)
{
    struct problem *problem = data;
    uint8_t bad[ROWS] = {0};
    cpu_silu_mul_quantise(problem->isa, problem->x, problem->x, COLS, (struct cpu_rows){0, ROWS},
                          &problem->acts, bad);
}

static void run_sample(void *data)
{
    struct problem *problem = data;
    struct kern_sample_out out;
    cpu_sampler_row(problem->sampler, problem->isa, &problem->sample, CPU_SAMPLER_NO_EXTRA,
                    problem->logits, NULL, &out);
}

static void count_linear(struct problem *problem, const char *name, enum kern_weight_type type,
                         enum kern_compute compute)
{
    static const size_t heights[] = {1, 6, ROWS};
    size_t bytes = OUTPUTS * kern_weight_row_bytes(type, COLS),
           block = kern_weight_row_bytes(type, 32);
    uint8_t *file = take(bytes), bad[ROWS] = {0};
    for (size_t i = 0; i < bytes; i++)
        file[i] = (uint8_t)noise();
    for (size_t i = 0; i < bytes; i += block) { /* scales and minima of 2^-8 and so */
        uint16_t d = (uint16_t)(0x1c00u + noise() % 1024), m = (uint16_t)(0xa800u + noise() % 1024);
        memcpy(file + i, &d, 2);
        if (type == KERN_WEIGHT_Q4_1)
            memcpy(file + i + 2, &m, 2);
    }
    struct err err = ERR_INIT;
    struct cpu_weights *weights;
    struct cpu_weights_options options = {
        .type = type, .compute = compute, .out_rows = OUTPUTS, .in_cols = COLS, .data = file};
    check(cpu_weights_create(&options, &weights, &err));
    struct cpu_acts acts;
    cpu_acts_init(&acts, compute, COLS, take(cpu_acts_bytes(compute, ROWS, COLS)));
    cpu_quantise(problem->isa, problem->x, COLS, (struct cpu_rows){0, ROWS}, &acts, bad);
    float *out = take(ROWS * OUTPUTS * sizeof *out);
    for (size_t i = 0; i < sizeof heights / sizeof heights[0]; i++) {
        problem->call = (struct cpu_linear_call){.weights = weights,
                                                 .acts = acts,
                                                 .rows = {0, heights[i]},
                                                 .panel_end = cpu_weights_panels(weights),
                                                 .out = out,
                                                 .ld_out = OUTPUTS};
        printf("%s_rows%zu\n", name, heights[i]);
        counted(run_linear, problem);
    }
    cpu_weights_destroy(weights);
    free(acts.data);
    free(out);
    free(file);
}

static void run_attention(void *data)
{
    const struct problem *problem = data;
    cpu_attention_kernels_for(problem->isa)->tile[problem->kv_type](&problem->tile);
}

/* The last rows of POSITIONS, three query heads of 64, one KV head: decode and a prompt's tile. Values are small and finite in every
 * type. */
static void count_attention(struct problem *problem)
{
    enum { POSITIONS = 256, PAGE = 64, DIM = 64, GROUP = 3 };
    static const uint32_t blocks[POSITIONS / PAGE] = {2, 0, 3, 1};
    for (int type = 0; type < KERN_KV_TYPE_COUNT; type++) {
        size_t half = PAGE * (size_t)kern_kv_head_bytes(type, DIM),
               scales = type == KERN_KV_INT8 ? PAGE * sizeof(uint16_t) : 0, values = half - scales;
        uint8_t *pool = take(POSITIONS / PAGE * 2 * half);
        for (size_t i = 0; i < POSITIONS / PAGE * 2 * half; i += 2) {
            uint16_t bits = (uint16_t)(type == KERN_KV_F16   ? 0x3000u + noise() % 0x400
                                       : type == KERN_KV_F32 ? i % 4 ? 0x3d00u + noise() % 0x80 : 0
                                       : i % (2 * half) < 2 * values ? noise() % 0x7f7f & 0x7f7f
                                                                     : 0x3c00u + noise() % 0x40);
            memcpy(pool + i, &bits, sizeof bits);
        }
        float *out = take(ATTENTION_TILE_ROWS * GROUP * DIM * sizeof *out),
              *scratch = take(cpu_attention_scratch_floats(DIM) * sizeof *scratch);
        for (uint32_t rows = 1; rows <= ATTENTION_TILE_ROWS; rows += ATTENTION_TILE_ROWS - 1) {
            problem->kv_type = (enum kern_kv_type)type;
            problem->tile = (struct cpu_attention_tile){.q = problem->x,
                                                        .out = out,
                                                        .row_stride = (size_t)GROUP * DIM,
                                                        .rows = rows,
                                                        .group = GROUP,
                                                        .position = POSITIONS - rows,
                                                        .head_dim = DIM,
                                                        .page_tokens = PAGE,
                                                        .scale = 0.125f,
                                                        .blocks = blocks,
                                                        .k = pool,
                                                        .v = pool + values,
                                                        .k_scales = pool + 2 * values,
                                                        .v_scales = pool + 2 * values + scales,
                                                        .page_bytes = 2 * half,
                                                        .scratch = scratch};
            printf("attention_%s_rows%u\n", kern_kv_type_name((enum kern_kv_type)type), rows);
            counted(run_attention, problem);
        }
        free(scratch);
        free(out);
        free(pool);
    }
}

static void count_sample(struct problem *problem, const char *name, struct kern_sampling how)
{
    how.repetition_penalty = 1;
    problem->sample = (struct kern_sample){.sampling = &how};
    for (size_t i = 0; i < VOCAB; i++)
        problem->logits[i] = (float)(int32_t)(noise() % 20000) * 1e-3f;
    printf("sample_%s\n", name);
    counted(run_sample, problem);
}

int main(int argc, char **argv)
{
    struct problem problem = {.isa = CPU_ISA_PLAIN};
    if (argc != 2 || !cpu_isa_parse(argv[1], &problem.isa) || problem.isa > cpu_isa_detect()) {
        fprintf(stderr, "usage: count_kernels ISA, one that this CPU has\n");
        return 2;
    }
    float *x = take(ROWS * COLS * sizeof *x);
    for (size_t i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(int32_t)(noise() % 4001) * 1e-3f - 2;
    problem.x = x;
    cpu_acts_init(&problem.acts, KERN_COMPUTE_INT8, COLS,
                  take(cpu_acts_bytes(KERN_COMPUTE_INT8, ROWS, COLS)));
    count_linear(&problem, "q4_1", KERN_WEIGHT_Q4_1, KERN_COMPUTE_INT8);
    count_linear(&problem, "q8_0", KERN_WEIGHT_Q8_0, KERN_COMPUTE_INT8);
    count_linear(&problem, "q4_1_f32", KERN_WEIGHT_Q4_1, KERN_COMPUTE_F32);
    printf("norm_quantise\n");
    counted(run_norm, &problem);
    printf("silu_mul_quantise\n");
    counted(run_silu, &problem);
    check(cpu_sampler_create(VOCAB, &problem.sampler));
    problem.logits = take(VOCAB * sizeof *problem.logits);
    struct kern_sampling how = {.temperature = 0, .top_p = 1, .logprobs = -1, .seed = 5};
    count_sample(&problem, "greedy", how);
    how.temperature = 0.8f;
    count_sample(&problem, "temperature", how);
    how.top_k = 40;
    count_sample(&problem, "top_k", how);
    how.top_k = 0;
    how.top_p = 0.95f;
    count_sample(&problem, "top_p", how);
    count_attention(&problem); /* last: each case draws from the same numbers */
    cpu_sampler_destroy(problem.sampler);
    free(problem.logits);
    free(problem.acts.data);
    free(x);
    return 0;
}
