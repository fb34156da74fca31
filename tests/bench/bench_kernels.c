/* The linear layers of a 135-million-parameter Llama (30 layers of 576, 3 x 192 key and value rows, feed-forward 1,536, head of
 * 49,152) with random weights, one thread, each figure beside the limit that binds it: memory for one row, arithmetic for
 * many.
 *
 *     bench_kernels [--json FILE] [avx2|avx512|avx512vnni]
 *
 * Owner: the main thread. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/peaks.h"
#include "tests/bench/bench.h"

enum {
    LAYERS = 30,
    HIDDEN = 576,
    KV = 192,
    FEED = 1536,
    WORDS = 49152,
    ROWS_MAX = 512,
    MATRICES = 7
};

static const size_t shapes[MATRICES][2] = {{HIDDEN, HIDDEN}, {KV, HIDDEN},   {KV, HIDDEN},
                                           {HIDDEN, HIDDEN}, {FEED, HIDDEN}, {FEED, HIDDEN},
                                           {HIDDEN, FEED}};

struct model {
    enum cpu_isa_level isa;
    struct cpu_weights *weights[LAYERS * MATRICES];
    size_t count;
    double bytes, products; /* of one pass of one row */
    struct cpu_store store; /* as a device's */
    void *file;
};

struct pass {
    const struct model *model;
    size_t rows;
    struct cpu_acts hidden, feed;
    float *out;
};

static uint64_t random_state = 1;

static uint32_t random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

/* Finite for every type: quants at random, scales of 2^-8 and so. */
static void *random_file(enum kern_weight_type type, size_t rows, size_t cols)
{
    size_t bytes = rows * kern_weight_row_bytes(type, cols),
           block = kern_weight_row_bytes(type, 32);
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)random_u32();
    for (size_t i = 0; i < bytes; i += block) {
        uint16_t d = (uint16_t)(0x1c00u + random_u32() % 1024),
                 m = (uint16_t)(0xa800u + random_u32() % 1024);
        memcpy(data + i, &d, 2);
        if (type == KERN_WEIGHT_Q4_1)
            memcpy(data + i + 2, &m, 2);
    }
    return data;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_kernels: %s\n", what);
    exit(1);
}

static void model_add(struct model *model, enum kern_weight_type type, enum kern_compute compute,
                      size_t rows, size_t cols)
{
    struct err err = ERR_INIT;
    struct cpu_weights_options options = {.type = type,
                                          .compute = compute,
                                          .out_rows = rows,
                                          .in_cols = cols,
                                          .data = model->file,
                                          .store = &model->store};
    if (cpu_weights_create(&options, &model->weights[model->count], &err) != STATUS_OK)
        die(err.message);
    model->bytes += (double)cpu_weights_bytes(model->weights[model->count++]);
    model->products += (double)rows * (double)cols;
}

/* All layers. One file serves all matrices of a model: each is repacked into memory of its own. */
static double model_load(struct model *model, enum cpu_isa_level isa, enum kern_weight_type type,
                         enum kern_compute compute)
{
    *model = (struct model){.isa = isa, .file = random_file(type, FEED, HIDDEN)};
    double start = bench_now();
    for (size_t i = 0; i < LAYERS * MATRICES; i++)
        model_add(model, type, compute, shapes[i % MATRICES][0], shapes[i % MATRICES][1]);
    return bench_now() - start;
}

static void model_load_head(struct model *model, enum cpu_isa_level isa)
{
    *model = (struct model){.isa = isa, .file = random_file(KERN_WEIGHT_Q8_0, WORDS, HIDDEN)};
    model_add(model, KERN_WEIGHT_Q8_0, KERN_COMPUTE_INT8, WORDS, HIDDEN);
}

static void model_free(struct model *model)
{
    for (size_t i = 0; i < model->count; i++)
        cpu_weights_destroy(model->weights[i]);
    cpu_store_finish(&model->store);
    free(model->file);
}

static struct cpu_acts random_acts(enum cpu_isa_level isa, enum kern_compute compute, size_t cols)
{
    struct cpu_acts acts;
    uint8_t bad[ROWS_MAX] = {0};
    float *x = malloc(ROWS_MAX * cols * sizeof(*x));
    for (size_t i = 0; i < ROWS_MAX * cols; i++)
        x[i] = (float)(int32_t)random_u32() * 0x1p-31f;
    cpu_acts_init(&acts, compute, cols, aligned_alloc(64, cpu_acts_bytes(compute, ROWS_MAX, cols)));
    cpu_quantise(isa, x, cols, (struct cpu_rows){0, ROWS_MAX}, &acts, bad);
    free(x);
    return acts;
}

static void run_pass(void *data)
{
    const struct pass *pass = data;
    for (size_t i = 0; i < pass->model->count; i++) {
        const struct cpu_weights *weights = pass->model->weights[i];
        struct cpu_linear_call call = {
            .weights = weights,
            .acts = cpu_weights_in_cols(weights) == HIDDEN ? pass->hidden : pass->feed,
            .rows = {0, pass->rows},
            .panel_end = cpu_weights_panels(weights),
            .out = pass->out,
            .ld_out = cpu_weights_out_rows(weights),
        };
        cpu_linear(pass->model->isa, &call);
    }
}

/* Times passes of one model at several heights. */
static double read_bandwidth(enum cpu_isa_level isa, size_t bytes)
{
    double gb_per_s;
    if (peaks_read_bandwidth(isa, bytes, 1, PEAKS_SHARP, &gb_per_s)) {
        fprintf(stderr, "bench_kernels: no memory\n");
        exit(1);
    }
    return gb_per_s;
}

static void bench_model(struct bench *bench, const struct model *model, enum kern_compute compute,
                        const char *name, const char *peak_name, double peak)
{
    static const size_t heights[] = {1, 2, 4, 8, 16, 32, 512};
    struct pass pass = {.model = model,
                        .hidden = random_acts(model->isa, compute, HIDDEN),
                        .feed = random_acts(model->isa, compute, FEED)};
    bool head = model->count == 1;
    /* with as many bytes: what of them stays in the last cache counts for both */
    double bandwidth = read_bandwidth(model->isa, (size_t)model->bytes);
    pass.out = malloc((head ? 32 * (size_t)WORDS : ROWS_MAX * (size_t)FEED) * sizeof(float));
    for (size_t i = 0; i < sizeof(heights) / sizeof(*heights) - head; i++) {
        char id[64];
        pass.rows = heights[i];
        double seconds = bench_best_cpu(1.0, run_pass, &pass);
        snprintf(id, sizeof(id), "%s_rows%zu", name, pass.rows);
        double gops = 2 * model->products * (double)pass.rows / seconds * 1e-9;
        double read = model->bytes / seconds * 1e-9;
        struct bench_record by_memory = {.id = id,
                                         .value = read,
                                         .unit = "GB/s",
                                         BENCH_LIMIT("GB/s reading as many bytes", bandwidth)};
        struct bench_record by_arithmetic = {
            .id = id, .value = gops, .unit = "GOP/s", BENCH_LIMIT(peak_name, peak)};
        /* the limit that binds is the nearer one */
        bench_add(bench, read / bandwidth > gops / peak ? &by_memory : &by_arithmetic);
    }
    free(pass.hidden.data);
    free(pass.feed.data);
    free(pass.out);
}

struct quant_pass {
    enum cpu_isa_level isa;
    const float *x, *y;
    struct cpu_acts acts;
    bool silu;
};

static void run_quant(void *data)
{
    const struct quant_pass *pass = data;
    uint8_t bad[ROWS_MAX] = {0};
    struct cpu_rows rows = {0, ROWS_MAX};
    if (pass->silu)
        cpu_silu_mul_quantise(pass->isa, pass->x, pass->y, FEED, rows, &pass->acts, bad);
    else
        cpu_norm_quantise(pass->isa, pass->x, FEED, pass->y, 1e-5f, rows, &pass->acts, bad);
}

static void bench_quant(struct bench *bench, enum cpu_isa_level isa)
{
    float *x = malloc(ROWS_MAX * (size_t)FEED * sizeof(*x));
    for (size_t i = 0; i < ROWS_MAX * (size_t)FEED; i++)
        x[i] = (float)(int32_t)random_u32() * 0x1p-30f;
    struct quant_pass pass = {
        .isa = isa, .x = x, .y = x, .acts = random_acts(isa, KERN_COMPUTE_INT8, FEED)};
    double elements = ROWS_MAX * (double)FEED;
    bench_add(bench, &(struct bench_record){.id = "norm_quantise",
                                            .value = elements /
                                                     bench_best_cpu(0.3, run_quant, &pass) * 1e-9,
                                            .unit = "G/s"});
    pass.silu = true;
    bench_add(bench, &(struct bench_record){.id = "silu_mul_quantise",
                                            .value = elements /
                                                     bench_best_cpu(0.3, run_quant, &pass) * 1e-9,
                                            .unit = "G/s"});
    free(pass.acts.data);
    free(x);
}

static void bench_linear(struct bench *bench, enum cpu_isa_level isa)
{
    double bandwidth = read_bandwidth(isa, (size_t)256 << 20);
    struct peaks peaks;
    if (peaks_measure(isa, 1, PEAKS_SHARP, &peaks)) {
        fprintf(stderr, "bench_kernels: no thread\n");
        exit(1);
    }
    bench_add(bench, &(struct bench_record){
                         .id = "read_bandwidth_1t", .value = bandwidth, .unit = "GB/s"});
    bench_add(bench,
              &(struct bench_record){.id = "peak_f32_1t", .value = peaks.f32, .unit = "GOP/s"});
    bench_add(bench,
              &(struct bench_record){.id = "peak_int8_1t", .value = peaks.int8, .unit = "GOP/s"});
    bench_add(bench, &(struct bench_record){
                         .id = "peak_nibble_1t", .value = peaks.nibble, .unit = "GOP/s"});

    struct model model;
    double seconds = model_load(&model, isa, KERN_WEIGHT_Q4_1, KERN_COMPUTE_INT8);
    bench_add(bench, &(struct bench_record){.id = "load_q4_1",
                                            .value = model.bytes / seconds * 1e-9,
                                            .unit = "GB/s",
                                            BENCH_LIMIT("read bandwidth GB/s", bandwidth)});
    bench_model(bench, &model, KERN_COMPUTE_INT8, "layers_q4_1", peaks.nibble_name, peaks.nibble);
    model_free(&model);
    model_load_head(&model, isa);
    bench_model(bench, &model, KERN_COMPUTE_INT8, "head_q8_0", peaks.int8_name, peaks.int8);
    model_free(&model);
    model_load(&model, isa, KERN_WEIGHT_Q8_0, KERN_COMPUTE_INT8);
    bench_model(bench, &model, KERN_COMPUTE_INT8, "layers_q8_0", peaks.int8_name, peaks.int8);
    model_free(&model);
    model_load(&model, isa, KERN_WEIGHT_Q4_1, KERN_COMPUTE_F32);
    bench_model(bench, &model, KERN_COMPUTE_F32, "layers_q4_1_f32", peaks.f32_name, peaks.f32);
    model_free(&model);
    bench_quant(bench, isa);
}

int main(int argc, char **argv)
{
    struct bench bench;
    if (bench_begin(&bench, &argc, argv) < 0)
        return 2;
    enum cpu_isa_level isa = cpu_isa_detect();
    if (argc > 2 || (argc == 2 && !cpu_isa_parse(argv[1], &isa)) || isa > cpu_isa_detect() ||
        isa < CPU_ISA_AVX2) {
        fprintf(stderr, "usage: %s [--json FILE] [avx2|avx512|avx512vnni], at most %s here\n",
                argv[0], cpu_isa_name(cpu_isa_detect()));
        return 2;
    }
    bench_linear(&bench, isa);
    return bench_end(&bench);
}
