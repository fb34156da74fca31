/* See between.h. Rows of logits are 32 different ones, so that each comes out of memory as it does behind the output head. */
#include "tests/bench/between.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/sampler.h"
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

static double thread_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Bell-shaped, twelve on either side of zero. */
static void logits_fill(float *logits, size_t count)
{
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        logits[i] = 0;
        for (int j = 0; j < 3; j++) {
            state = state * 1664525u + 1013904223u;
            logits[i] += 4 * (float)(int32_t)state * 0x1p-31f;
        }
    }
}

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* 32 rows, one way; seconds. Nothing here changes the logits. */
static double draw(struct cpu_sampler *sampler, const struct way *way, float *logits,
                   uint32_t vocab, uint32_t round)
{
    struct kern_sampling how = way->how;
    how.repetition_penalty = 1;
    how.seed = 5;
    double begin = thread_seconds();
    for (uint32_t r = 0; r < ROWS; r++) {
        struct kern_sample sample = {.sampling = &how, .generated_count = round * ROWS + r};
        struct kern_sample_out out;
        cpu_sampler_row(sampler, cpu_isa_detect(), &sample, CPU_SAMPLER_NO_EXTRA,
                        logits + (size_t)r * vocab, NULL, &out);
    }
    return thread_seconds() - begin;
}

/* `words`: "" or "_262144", a part of ids. */
static void between(struct bench *bench, struct model_file *model, const char *words,
                    double scheduling_us, double seconds)
{
    static double steps[ROUNDS_MAX], spent[WAYS][ROUNDS_MAX], sent[ROUNDS_MAX], all[ROUNDS_MAX];
    static struct subject subject;
    struct engine_options options = {.threads = 1,
                                     .compute = KERN_COMPUTE_INT8,
                                     .kv_type = KERN_KV_F16,
                                     .page_tokens = SUBJECT_PAGE_TOKENS,
                                     .kv_pages = ROWS,
                                     .rows_max = ROWS,
                                     .seqs_max = ROWS};
    const uint32_t vocab = model->config.vocab;
    float *logits = malloc((size_t)ROWS * vocab * sizeof *logits);
    struct cpu_sampler *sampler;
    subject_open(&subject, model, options);
    if (!logits || cpu_sampler_create(vocab, &sampler) != STATUS_OK)
        die("no memory for logits");
    logits_fill(logits, (size_t)ROWS * vocab);
    uint32_t rounds = 0;
    double start = bench_now();
    while (rounds < 5 || (rounds < ROUNDS_MAX && bench_now() - start < seconds)) {
        steps[rounds] = subject_step(&subject, ROWS, 1, AT);
        sent[rounds] = sending_step(&all[rounds]);
        for (size_t w = 0; w < WAYS; w++)
            spent[w][rounds] = draw(sampler, &ways[w], logits, vocab, rounds);
        rounds++;
    }
    double step = bench_median(steps, rounds), send_us = bench_median(sent, rounds), dearest = 0;
    const char *dearest_name = "";
    char id[96], type[16], unit[64];
    subject_type_name(&subject, type);
    for (size_t w = 0; w < WAYS; w++) {
        double share = 100 * bench_median(spent[w], rounds) / step;
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
    free(logits);
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
