/* See deep.h. */
#include "tests/bench/deep.h"

#include <stdio.h>
#include <unistd.h>

#include "tests/bench/bench_limits.h"
#include "tests/bench/terms.h"

enum deep_shape { DEEP_ONE, DEEP_CHUNK, DEEP_BATCH, DEEP_SHAPES };
enum { DEEP_ROWS = 32 }; /* of a chunk */

/* One type of KV. The difference of a step at position 8,000 and one at position 0 is attention over 8,000 positions. */
struct deep {
    struct subject subject;
    struct limits limits;
    enum kern_kv_type type;
    double token_bytes; /* of KV */
    bool memory;        /* reading took longer than the products at their peak, in the last round */
    struct bench_rounds prefill, decode, products, batch;
    struct terms_alone alone[DEEP_SHAPES];
};
enum { MANY = 16, PAGES = SUBJECT_LONG / SUBJECT_PAGE_TOKENS + 1 };

static void deep_open(struct deep *deep, struct model_file *model, unsigned threads,
                      enum kern_kv_type type, double token_bytes, uint32_t seqs)
{
    struct engine_options options = subject_options(threads);
    options.kv_type = type;
    options.kv_pages = seqs * PAGES;
    options.rows_max = SUBJECT_SEQS_MAX;
    *deep = (struct deep){.type = type, .token_bytes = token_bytes};
    limits_open(&deep->limits, token_bytes * SUBJECT_LONG, threads);
    subject_open(&deep->subject, model, options);
    subject_pages_fill(&deep->subject);
}

/* Steps at position 8,000, with looks between their operations. */
static void deep_alone_round(struct deep *deep, enum deep_shape shape, double slice, uint32_t seqs,
                             uint32_t rows)
{
    double seconds[TERM_COUNT], start = bench_now();
    do {
        terms_begin(&deep->alone[shape]);
        subject_step(&deep->subject, seqs, rows, SUBJECT_LONG);
        terms_end(seconds);
    } while (bench_now() - start < slice);
}

/* Attention of a chunk of 32 rows behind position 8,000 in operations of its two products, beside the peak of their instruction; of
 * one row in GB/s of KV, beside the longer of reading as many bytes and of the products at that peak; and whole steps of `seqs`
 * sequences (more than 1), each with pages of its own, in tokens/s, beside the longer of these two and the rest of the step's
 * arithmetic. */
static void deep_round(struct deep *deep, double slice, uint32_t seqs, double rival)
{
    enum { ROWS = DEEP_ROWS, STEPS = 3 };
    struct subject *subject = &deep->subject;
    struct limits *limits = &deep->limits;
    const struct model_config *config = &subject->model->config;
    limits_measure(limits);
    double peak = deep->type == KERN_KV_INT8 ? limits->peaks.pair : limits->peaks.f32;
    double operations = 4.0 * config->head_dim * config->heads * config->layers; /* a position */
    double arithmetic = operations / peak * 1e-9,
           reading = deep->token_bytes / limits->bandwidth * 1e-9;
    deep->memory = reading > arithmetic;
    double longer = deep->memory ? reading : arithmetic;
    double near = subject_step_typical(subject, STEPS, slice, 1, 1, 0),
           far = subject_step_typical(subject, STEPS, slice, 1, 1, SUBJECT_LONG);
    bench_round_add(&deep->decode, deep->token_bytes * SUBJECT_LONG / (far - near) * 1e-9,
                    deep->token_bytes / longer * 1e-9);
    bench_round_add(&deep->products, operations * SUBJECT_LONG / (far - near) * 1e-9,
                    limits->peaks.f32);
    if (limits->threads == 1) {
        near = subject_step_typical(subject, STEPS, slice, 1, ROWS, 0);
        far = subject_step_typical(subject, STEPS, slice, 1, ROWS, SUBJECT_LONG);
        bench_round_add(&deep->prefill, operations * ROWS * SUBJECT_LONG / (far - near) * 1e-9,
                        peak);
        deep_alone_round(deep, DEEP_ONE, slice, 1, 1);
        deep_alone_round(deep, DEEP_CHUNK, slice, 1, ROWS);
        if (seqs > 1)
            deep_alone_round(deep, DEEP_BATCH, slice, seqs, 1);
    }
    if (seqs == 1)
        return;
    far = subject_step_typical(subject, STEPS, slice, seqs, 1, SUBJECT_LONG);
    double rest =
        limits_cost(subject, limits, (struct roofline_step){.decode_rows = seqs, .samples = seqs})
            .arithmetic;
    bench_round_add(&deep->batch, seqs / far, seqs / (longer * SUBJECT_LONG * seqs + rest));
    if (rival > 0)
        deep->batch.peers[deep->batch.peer_count++] = rival;
}

/* Seconds of a step at position 8,000 whose operations nothing disturbed; `attention`: of its attention alone. */
static double deep_alone_seconds(struct deep *deep, enum deep_shape shape, bool attention)
{
    double seconds = 0;
    for (int i = 0; i < TERM_COUNT; i++)
        if (i == TERM_ATTENTION || !attention)
            seconds += terms_alone_seconds(&deep->alone[shape], (enum term)i);
    return seconds;
}

/* What nothing disturbed, at the highest peaks of all rounds. */
static void deep_alone_add(struct bench *bench, struct deep *deep, double rival, double *own_out)
{
    const struct model_config *config = &deep->subject.model->config;
    const struct peaks *peaks = &deep->limits.highest;
    const char *type = kern_kv_type_name(deep->type);
    const bool int8 = deep->type == KERN_KV_INT8;
    const double operations =
        4.0 * config->head_dim * config->heads * config->layers * SUBJECT_LONG * 1e-9;
    double part = terms_alone_part(&deep->alone[DEEP_ONE]);
    char id[64];
    *own_out = 0;
    if (part == 0)
        return;
    snprintf(id, sizeof id, "attn_decode_8k_%s_products.undisturbed", type);
    if (int8)
        limits_alone_add(bench, id, "GOP/s", operations / deep_alone_seconds(deep, DEEP_ONE, true),
                         "f32 FMA peak", peaks->f32, part);
    snprintf(id, sizeof id, "attn_prefill_8k_%s.undisturbed", type);
    limits_alone_add(bench, id, "GOP/s",
                     operations * DEEP_ROWS / deep_alone_seconds(deep, DEEP_CHUNK, true),
                     int8 ? "pairs of 16-bit integers" : "f32 FMA peak",
                     int8 ? peaks->pair : peaks->f32, terms_alone_part(&deep->alone[DEEP_CHUNK]));
    if (deep->alone[DEEP_BATCH].steps == 0)
        return;
    *own_out = MANY / deep_alone_seconds(deep, DEEP_BATCH, false);
    snprintf(id, sizeof id, "decode16_8k_%s.undisturbed", type);
    bench_add(bench, &(struct bench_record){.id = id,
                                            .value = *own_out,
                                            .unit = "tokens/s",
                                            .peer_name = rival > 0 ? "f16 KV" : NULL,
                                            .peer = rival});
}

static void deep_add(struct bench *bench, const struct deep *deep)
{
    bool int8 = deep->type == KERN_KV_INT8;
    const struct {
        const char *name, *tail, *unit, *limit_name;
        const struct bench_rounds *rounds;
    } records[] = {
        {"attn_prefill_8k", "", "GOP/s", int8 ? "pairs of 16-bit integers" : "f32 FMA peak",
         &deep->prefill},
        {"attn_decode_8k", "", "GB/s",
         deep->memory ? "read bandwidth" : "KV at the arithmetic peak", &deep->decode},
        {"attn_decode_8k", "_products", "GOP/s", "f32 FMA peak", &deep->products},
        {"decode16_8k", "", "tokens/s", deep->memory ? "reading KV" : "KV at the arithmetic peak",
         &deep->batch},
    };
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        char id[64], threads[16] = "";
        if (deep->limits.threads > 1)
            snprintf(threads, sizeof threads, "_%ut", deep->limits.threads);
        snprintf(id, sizeof id, "%s_%s%s%s", records[i].name, kern_kv_type_name(deep->type),
                 records[i].tail, threads);
        if (records[i].rounds->count && (int8 || !*records[i].tail))
            bench_add_rounds(
                bench,
                (struct bench_record){.id = id,
                                      .unit = records[i].unit,
                                      .limit_name = records[i].limit_name,
                                      .peer_name = records[i].rounds->peer_count ? "f16 KV" : NULL},
                records[i].rounds);
    }
}

void deep_run(struct bench *bench, struct model_file *model, unsigned threads, double seconds)
{
    static struct deep deep[2];
    static const enum kern_kv_type types[2] = {KERN_KV_F16, KERN_KV_INT8};
    double token_bytes[2], free_bytes = (double)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
    for (int i = 0; i < 2; i++)
        token_bytes[i] = (double)kern_kv_head_bytes(types[i], model->config.head_dim) * 2 *
                         model->config.kv_heads * model->config.layers;
    double pages_bytes = (token_bytes[0] + token_bytes[1]) * SUBJECT_PAGE_TOKENS * MANY * PAGES;
    uint32_t seqs = pages_bytes < free_bytes / 2 ? MANY : 1;
    for (int i = 0; i < 2; i++)
        deep_open(&deep[i], model, threads, types[i], token_bytes[i], seqs);
    for (int round = 0; round < LIMITS_ROUNDS; round++) {
        fprintf(stderr, "round %d of %d: 8,000 positions\n", round + 1, LIMITS_ROUNDS);
        double slice = seconds / LIMITS_ROUNDS / 4;
        deep_round(&deep[0], slice, seqs, 0);
        deep_round(&deep[1], slice, seqs, seqs > 1 ? deep[0].batch.values[round] : 0);
    }
    double rival = 0;
    for (int i = 0; i < 2; i++) {
        deep_add(bench, &deep[i]);
        if (threads == 1)
            deep_alone_add(bench, &deep[i], rival, &rival);
        limits_close(&deep[i].limits);
        engine_destroy(deep[i].subject.engine);
    }
}
