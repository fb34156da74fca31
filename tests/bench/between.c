/* See between.h. Rows of logits are 32 different ones, on the engine's kind of pages and as far apart as there, so that each comes out of
 * memory as it does behind the output head. What the head does for the draws, the maxima of the logits, is part of each of them: parts
 * of the head's product go with it and without in turn. */
#include "tests/bench/between.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/huge.h"
#include "engine/internal.h"
#include "kernels/cpu/head.h"
#include "tests/bench/sending.h"
#include "tests/bench/subject.h"

enum { ROWS = 32, AT = 32, ROUNDS_MAX = 200, WIDE = 262144 };
static const double allowed = 3; /* % of a step */

static const struct way {
    const char *name;
    struct kern_sampling how;
} ways[] = {
    {"greedy", {.temperature = 0, .top_p = 1, .logprobs = -1}},
    {"temperature", {.temperature = 0.8f, .top_p = 1, .logprobs = -1}},
    {"min_p", {.temperature = 0.8f, .top_p = 1, .min_p = 0.05f, .logprobs = -1}},
    {"top_k40", {.temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .logprobs = -1}},
    {"top_k300", {.temperature = 0.8f, .top_p = 1, .top_k = 300, .logprobs = -1}},
    {"top_p", {.temperature = 0.8f, .top_p = 0.95f, .logprobs = -1}},
    {"logprobs", {.temperature = 0, .top_p = 1, .logprobs = 5}},
    {"temperature_logprobs", {.temperature = 0.8f, .top_p = 1, .logprobs = 5}},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

/* 32 rows of logits, and their maxima. */
struct rows {
    uint32_t vocab;
    size_t ld, ld_maxima;
    float *logits, *maxima;
};

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static void rows_make(uint32_t vocab, struct rows *rows)
{
    enum { LINE = 16 };
    size_t runs = (vocab + CPU_SAMPLER_RUN - 1) / CPU_SAMPLER_RUN;
    rows->vocab = vocab;
    rows->ld = ((vocab + LINE - 1) / LINE | 1) * LINE;
    rows->ld_maxima = ((runs + LINE - 1) / LINE | 1) * LINE;
    rows->logits = huge_alloc(ROWS * (rows->ld + rows->ld_maxima), sizeof *rows->logits);
    if (!rows->logits)
        die("no memory for logits");
    rows->maxima = rows->logits + ROWS * rows->ld;
}

/* Bell-shaped, twelve on either side of zero. */
static void rows_fill(struct rows *rows)
{
    uint32_t state = 1;
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < rows->vocab; i++) {
            float value = 0;
            for (int j = 0; j < 3; j++) {
                state = state * 1664525u + 1013904223u;
                value += 4 * (float)(int32_t)state * 0x1p-31f;
            }
            float *most = &rows->maxima[r * rows->ld_maxima + i / CPU_SAMPLER_RUN];
            *most = i % CPU_SAMPLER_RUN == 0 || value > *most ? value : *most;
            rows->logits[r * rows->ld + i] = value;
        }
}

/* --- what the maxima cost the head --- */

enum { SLICE = 256, SLICES = 24, EXTRA_MAX = ROUNDS_MAX * SLICES }; /* panels; of a round */

struct head {
    struct cpu_weights *weights;
    struct cpu_head_call call;
    struct rows rows;
    size_t slices, next;
    double extra[2][EXTRA_MAX]; /* seconds of a slice; [1]: with maxima first */
    uint32_t count[2];
};

/* Rows of made-up activations. */
static void head_open(struct head *head, const struct gguf_tensor *tensor)
{
    enum { LEVELS = 101 };
    struct err err = ERR_INIT;
    struct cpu_weights_options options = {.compute = KERN_COMPUTE_INT8,
                                          .out_rows = tensor->shape[1],
                                          .in_cols = tensor->shape[0],
                                          .data = tensor->data};
    size_t cols = options.in_cols;
    if (engine_weight_type(tensor, &options.type, &err) != STATUS_OK ||
        cpu_weights_create(&options, &head->weights, &err) != STATUS_OK)
        die(err.message);
    float *x = huge_alloc(ROWS * cols, sizeof *x);
    void *acts = huge_alloc(1, cpu_acts_bytes(options.compute, ROWS, cols));
    float *scratch = huge_alloc(CPU_HEAD_MAXIMA, sizeof *scratch);
    uint8_t bad[ROWS];
    if (!x || !acts || !scratch)
        die("no memory");
    for (size_t i = 0; i < ROWS * cols; i++)
        x[i] = (float)(i * 37 % LEVELS) / LEVELS - 0.5f;
    rows_make((uint32_t)options.out_rows, &head->rows);
    head->call = (struct cpu_head_call){.weights = head->weights,
                                        .rows = {0, ROWS},
                                        .logits = head->rows.logits,
                                        .ld = head->rows.ld,
                                        .ld_maxima = head->rows.ld_maxima,
                                        .scratch = scratch};
    cpu_acts_init(&head->call.acts, options.compute, cols, acts);
    cpu_quantise(cpu_isa_detect(), x, cols, head->call.rows, &head->call.acts, bad);
    huge_free(x);
    head->slices = cpu_weights_panels(head->weights) / SLICE;
    head->next = head->count[0] = head->count[1] = 0;
}

static void head_close(struct head *head)
{
    cpu_weights_destroy(head->weights);
    huge_free(head->call.acts.data);
    huge_free(head->call.scratch);
    huge_free(head->rows.logits);
}

static double head_slice(struct head *head, bool with_maxima)
{
    head->call.maxima = with_maxima ? head->rows.maxima : NULL;
    /* near, as in a whole head, which uses it over and over */
    memset(head->call.scratch, 0, CPU_HEAD_MAXIMA * sizeof *head->call.scratch);
    double begin = bench_cpu_now();
    cpu_head(cpu_isa_detect(), &head->call);
    return bench_cpu_now() - begin;
}

/* The next slices with maxima and without, either way first in turn, and each once before, which brings its weights from memory. */
static void head_round(struct head *head)
{
    for (uint32_t i = 0; i < SLICES; i++) {
        size_t slice = head->next % head->slices, pass = head->next++ / head->slices;
        bool first = (slice + pass) % 2;
        if (head->count[first] == EXTRA_MAX)
            return;
        head->call.panel_begin = slice * SLICE;
        head->call.panel_end = head->call.panel_begin + SLICE;
        head_slice(head, first);
        double a = head_slice(head, first), b = head_slice(head, !first);
        head->extra[first][head->count[first]++] = first ? a - b : b - a;
    }
}

/* Seconds of the whole head: between both orders, since the second of two is always a little faster. */
static double head_extra(struct head *head)
{
    double each = (bench_median(head->extra[0], head->count[0]) +
                   bench_median(head->extra[1], head->count[1])) /
                  2;
    return each * (double)cpu_weights_panels(head->weights) / SLICE;
}

/* 32 rows, one way; seconds. Nothing here changes the logits. */
static double draw(struct cpu_sampler *sampler, const struct way *way, const struct rows *rows,
                   uint32_t round)
{
    struct kern_sampling how = way->how;
    how.repetition_penalty = 1;
    how.seed = 5;
    double begin = bench_cpu_now();
    for (uint32_t r = 0; r < ROWS; r++) {
        struct kern_sample sample = {.sampling = &how, .generated_count = round * ROWS + r};
        struct kern_sample_out out;
        cpu_sampler_row(sampler, cpu_isa_detect(), &sample, CPU_SAMPLER_NO_EXTRA,
                        rows->logits + r * rows->ld, rows->maxima + r * rows->ld_maxima, &out);
    }
    return bench_cpu_now() - begin;
}

/* `words`: "" or "_262144", a part of ids. */
static void between(struct bench *bench, struct model_file *model, const char *words,
                    double scheduling_us, double seconds)
{
    static double steps[ROUNDS_MAX], spent[WAYS][ROUNDS_MAX], sent[ROUNDS_MAX], all[ROUNDS_MAX];
    static struct subject subject;
    struct engine_options options = subject_options(1);
    options.kv_pages = options.rows_max = ROWS;
    static struct head head;
    struct rows rows;
    struct cpu_sampler *sampler;
    subject_open(&subject, model, options);
    rows_make(model->config.vocab, &rows);
    rows_fill(&rows);
    head_open(&head, model->output);
    if (cpu_sampler_create(model->config.vocab, &sampler) != STATUS_OK)
        die("no memory for a sampler");
    uint32_t rounds = 0;
    double start = bench_now();
    while (rounds < 5 || (rounds < ROUNDS_MAX && bench_now() - start < seconds)) {
        steps[rounds] = subject_step(&subject, ROWS, 1, AT);
        sent[rounds] = sending_step(&all[rounds]);
        for (size_t w = 0; w < WAYS; w++)
            spent[w][rounds] = draw(sampler, &ways[w], &rows, rounds);
        head_round(&head);
        rounds++;
    }
    double step = bench_median(steps, rounds), send_us = bench_median(sent, rounds), dearest = 0,
           maxima = head_extra(&head);
    const char *dearest_name = "";
    char id[96], type[16], unit[64];
    subject_type_name(&subject, type);
    for (size_t w = 0; w < WAYS; w++) {
        double share = 100 * (bench_median(spent[w], rounds) + maxima) / step;
        if (share > dearest) {
            dearest = share;
            dearest_name = ways[w].name;
        }
        snprintf(id, sizeof id, "decode32.%s%s_%s_1t", ways[w].name, words, type);
        bench_add(bench, &(struct bench_record){.id = id,
                                                .value = share,
                                                .unit = "% of a step",
                                                .lower_is_better = true,
                                                BENCH_LIMIT("allowed", allowed)});
    }
    snprintf(id, sizeof id, "decode32.maxima%s_%s_1t", words, type);
    bench_add(bench, &(struct bench_record){.id = id,
                                            .value = 100 * maxima / step,
                                            .unit = "% of a step, in each of these",
                                            .lower_is_better = true});
    if (!*words) {
        bench_add(bench, &(struct bench_record){
                             .id = "sched32_send", .value = send_us, .unit = "us/step"});
        bench_add(bench, &(struct bench_record){.id = "sched32_send_process",
                                                .value = bench_median(all, rounds),
                                                .unit = "us/step"});
    }
    snprintf(id, sizeof id, "between32%s_%s_1t", words, type);
    snprintf(unit, sizeof unit, "%% of %.1f ms, %s", 1e3 * step, dearest_name);
    bench_add(bench,
              &(struct bench_record){.id = id,
                                     .value = dearest + 1e-4 * (scheduling_us + send_us) / step,
                                     .unit = unit,
                                     .lower_is_better = true,
                                     BENCH_LIMIT("allowed", allowed)});
    cpu_sampler_destroy(sampler);
    head_close(&head);
    huge_free(rows.logits);
    engine_destroy(subject.engine);
}

/* A matrix of WIDE rows, the other one's over and over. */
static struct gguf_tensor widened(const struct gguf_tensor *from)
{
    struct gguf_tensor to = *from;
    to.shape[1] = WIDE;
    to.bytes = to.row_bytes * WIDE;
    char *data = malloc(to.bytes);
    if (!data)
        die("no memory");
    for (uint64_t at = 0; at < to.bytes; at += from->bytes)
        memcpy(data + at, from->data, to.bytes - at < from->bytes ? to.bytes - at : from->bytes);
    to.data = data;
    return to;
}

void bench_between(struct bench *bench, const char *model_path, double scheduling_us,
                   double seconds)
{
    struct err err = ERR_INIT;
    struct model_file *model;
    if (model_open(model_path, &model, &err) != STATUS_OK)
        die(err.message);
    between(bench, model, "", scheduling_us, seconds);
    struct model_file wide = *model;
    struct gguf_tensor head = widened(model->output), embedding = head;
    if (model->output != model->token_embd)
        embedding = widened(model->token_embd);
    wide.config.vocab = WIDE;
    wide.output = &head;
    wide.token_embd = model->output == model->token_embd ? &head : &embedding;
    between(bench, &wide, "_262144", scheduling_us, seconds);
    if (embedding.data != head.data)
        free((void *)(uintptr_t)embedding.data);
    free((void *)(uintptr_t)head.data);
    model_close(model);
}
