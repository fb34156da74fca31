/* Whole passes of the engine on a real model, in tokens a second, each beside what the machine's limits would allow, measured
 * in the same run, and beside llama.cpp where its figures are given (peers.py):
 *
 *     bench_engine [--json FILE] [--peers FILE] MODEL [SECONDS]
 *
 * One thread first, then as many as there are CPUs. The limit of a prefill is its arithmetic at the machine's peaks: 2
 * operations a weight and row at the peak of the weights' type (the head for the one sampled row), 4 x head_dim a query head
 * and pair of positions at the f32 peak. The limit of a decode step is the longer of that and of reading the weights once and
 * each sequence's KV. Attention over 8,000 positions is held against the read bandwidth.
 *
 * Times: with one thread the median step by the process's own processor time, so that a figure does not depend on who else
 * wants the core; with more the best step by the engine's clock, first to last operation.
 *
 * --peers: lines of "ID TOKENS_A_SECOND".
 * Owner: the main thread. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/limits.h"
#include "kernels/cpu/peaks.h"
#include "model/model.h"
#include "tests/bench/bench.h"
#include "tests/bench/sampling.h"
#include "tests/bench/subject.h"
#include "tests/bench/terms.h"

/* Decode at position 32: the middle of what llama-bench and llama-batched-bench are asked for. */
enum { DECODE_AT = 32, PEERS_MAX = 64 };

struct limits {
    struct peaks peaks;
    double bandwidth; /* GB/s, reading as many bytes as the weights have */
    double seconds;   /* to spend on each figure */
};

struct peer {
    char id[64];
    double value;
};

struct report {
    struct bench bench;
    struct limits limits;
    struct peer peers[PEERS_MAX];
    size_t peer_count;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_engine: %s\n", what);
    exit(1);
}

/* The type of the weights, or of the arithmetic where they are widened: a part of ids. */
static void type_name(const struct subject *subject, char type[16])
{
    snprintf(type, 16, "%s",
             engine_info(subject->engine)->compute == KERN_COMPUTE_F32
                 ? "f32"
                 : tensor_type_name(subject->model->layers[0].ffn_up->type));
    for (char *c = type; *c; c++)
        *c = (char)tolower((unsigned char)*c);
}

/* The id "NAME_TYPE_THREADSt", its peer if it has one, and the record. */
static void add(struct report *report, const struct subject *subject, const char *name,
                struct bench_record record)
{
    char id[64], type[16];
    type_name(subject, type);
    snprintf(id, sizeof id, "%s_%s_%ut", name, type, engine_info(subject->engine)->threads);
    record.id = id;
    for (size_t i = 0; i < report->peer_count; i++)
        if (strcmp(report->peers[i].id, id) == 0) {
            record.peer_name = "llama.cpp";
            record.peer = report->peers[i].value;
        }
    bench_add(&report->bench, &record);
}

static double read_bandwidth(double bytes, unsigned threads)
{
    double gb_per_s;
    if (peaks_read_bandwidth(cpu_isa_detect(), (size_t)bytes, threads, PEAKS_SHARP, &gb_per_s))
        die("no memory");
    return gb_per_s;
}

/* The sharp peaks of this run in the engine's terms: kernels/cpu/machine.c does the same with quick ones. */
static struct kern_peaks peaks_of(const struct limits *limits, enum kern_compute compute)
{
    const struct peaks *from = &limits->peaks;
    struct kern_peaks peaks = {.read_bytes = limits->bandwidth * 1e9};
    for (int type = 0; type < KERN_WEIGHT_TYPES; type++) {
        bool four_bits = type == KERN_WEIGHT_Q4_0 || type == KERN_WEIGHT_Q4_1;
        peaks.weight_ops[type] = 1e9 * (compute == KERN_COMPUTE_F32 ? from->f32
                                        : four_bits                 ? from->nibble
                                                                    : from->int8);
    }
    for (int type = 0; type < KERN_KV_TYPE_COUNT; type++)
        peaks.kv_ops[type] = 1e9 * (type == KERN_KV_INT8 ? from->pair : from->f32);
    return peaks;
}

/* What a step asks for, in seconds at the machine's peaks. */
static struct roofline_cost cost_of(const struct subject *subject, const struct limits *limits,
                                    struct roofline_step step)
{
    const struct engine_info *info = engine_info(subject->engine);
    struct kern_peaks peaks = peaks_of(limits, info->compute);
    struct engine_options options = {
        .threads = info->threads, .compute = info->compute, .kv_type = info->kv_type};
    struct engine_limits of;
    struct err err = ERR_INIT;
    if (engine_limits(&options, subject->model, &peaks, &of, &err))
        die(err.message);
    return roofline_cost(&of.model, &of.peaks, &step);
}

/* The record with its shares of both peaks, and what holds the step back. */
static struct bench_record with_verdict(struct bench_record record, enum roofline_phase phase,
                                        struct roofline_cost cost, double seconds)
{
    struct roofline_window window = {0};
    roofline_add(&window, phase, seconds, cost);
    struct roofline_report report = roofline_report(&window, phase);
    record.verdict = roofline_verdict_name(report.verdict);
    record.lever = roofline_lever(phase, report.verdict);
    record.mfu = report.mfu;
    record.mbu = report.mbu;
    return record;
}

/* What of a step one operation is, at the machine's peaks; seconds, 0 for those that are held against nothing. */
static double term_least(const struct subject *subject, const struct limits *limits, enum term term,
                         uint32_t seqs, uint32_t rows)
{
    uint64_t pairs = rows > 1 ? roofline_pairs(0, rows) : (uint64_t)seqs * (DECODE_AT + 1);
    struct roofline_cost none = cost_of(subject, limits, (struct roofline_step){0});
    struct roofline_cost cost = none;
    if (term == TERM_LINEAR)
        return roofline_least(
            cost_of(subject, limits, (struct roofline_step){.prompt_rows = seqs * rows}));
    if (term == TERM_HEAD)
        cost = cost_of(subject, limits, (struct roofline_step){.samples = seqs});
    if (term == TERM_ATTENTION)
        cost = cost_of(subject, limits, (struct roofline_step){.pairs = pairs, .positions = pairs});
    cost.weights -= none.weights;
    if (rows > 1)
        cost.kv = 0; /* a prompt's own, just written */
    return term == TERM_HEAD || term == TERM_ATTENTION ? roofline_least(cost) : 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The step's time by operation, each the median of some steps. */
static void bench_terms(struct report *report, struct subject *subject, const char *name,
                        uint32_t seqs, uint32_t rows)
{
    enum { STEPS = 25 };
    static double seconds[TERM_COUNT][STEPS], one[TERM_COUNT];
    size_t count = 0;
    double total = 0, start = bench_now();
    while (count < 5 || (count < STEPS && bench_now() - start < report->limits.seconds)) {
        terms_begin();
        subject_step(subject, seqs, rows, rows > 1 ? 0 : DECODE_AT);
        terms_end(one);
        for (int i = 0; i < TERM_COUNT; i++)
            seconds[i][count] = one[i];
        count++;
    }
    for (int i = 0; i < TERM_COUNT; i++) {
        qsort(seconds[i], count, sizeof **seconds, compare);
        one[i] = seconds[i][count / 2];
        total += one[i];
    }
    for (int i = 0; i < TERM_COUNT; i++) {
        char id[64], unit[32];
        double least = term_least(subject, &report->limits, (enum term)i, seqs, rows);
        snprintf(id, sizeof id, "%s.%s", name, term_name((enum term)i));
        snprintf(unit, sizeof unit, "ms %.1f %%", 100 * one[i] / total);
        if (one[i] > 0)
            add(report, subject, id,
                (struct bench_record){.value = one[i] * 1e3,
                                      .unit = unit,
                                      .limit_name = least > 0 ? "at the machine's peak" : NULL,
                                      .limit = least * 1e3,
                                      .lower_is_better = true});
    }
}

static void bench_prefill(struct report *report, struct subject *subject)
{
    double seconds = subject_step_typical(subject, report->limits.seconds, 1, SUBJECT_PROMPT, 0);
    struct roofline_cost cost =
        cost_of(subject, &report->limits,
                (struct roofline_step){.prompt_rows = SUBJECT_PROMPT,
                                       .samples = 1,
                                       .pairs = roofline_pairs(0, SUBJECT_PROMPT),
                                       .positions = SUBJECT_PROMPT});
    struct bench_record record = {
        .value = SUBJECT_PROMPT / seconds,
        .unit = "tokens/s",
        BENCH_LIMIT("at the arithmetic peak", SUBJECT_PROMPT / cost.arithmetic)};
    add(report, subject, "prefill512", with_verdict(record, ROOFLINE_PREFILL, cost, seconds));
}

static void bench_decode(struct report *report, struct subject *subject, const char *name,
                         uint32_t seqs)
{
    const struct limits *limits = &report->limits;
    double seconds = subject_step_typical(subject, limits->seconds, seqs, 1, DECODE_AT);
    uint64_t seen = (uint64_t)seqs * (DECODE_AT + 1);
    struct roofline_cost cost =
        cost_of(subject, limits,
                (struct roofline_step){
                    .decode_rows = seqs, .samples = seqs, .pairs = seen, .positions = seen});
    bool memory = roofline_bound(cost) != ROOFLINE_BOUND_ARITHMETIC;
    struct bench_record record = {
        .value = seqs / seconds,
        .unit = "tokens/s",
        BENCH_LIMIT(memory ? "at the read bandwidth" : "at the arithmetic peak",
                    seqs / roofline_least(cost))};
    add(report, subject, name, with_verdict(record, ROOFLINE_DECODE, cost, seconds));
}

/* Attention of a chunk of 32 rows at position 8,000, of one sequence: the difference of a step there and one at position 0, in
 * operations of its two products, beside the peak of their instruction. */
static void bench_attention_prefill(struct report *report, struct subject *subject,
                                    enum kern_kv_type kv_type, double peak)
{
    enum { ROWS = 32 };
    const struct engine_info *info = engine_info(subject->engine);
    double near = subject_step_typical(subject, report->limits.seconds, 1, ROWS, 0),
           far = subject_step_typical(subject, report->limits.seconds, 1, ROWS, SUBJECT_LONG);
    double operations = 4.0 * info->head_dim * info->heads * info->layers * ROWS * SUBJECT_LONG;
    char id[64];
    snprintf(id, sizeof id, "attn_prefill_8k_%s", kern_kv_type_name(kv_type));
    bench_add(&report->bench,
              &(struct bench_record){
                  .id = id,
                  .value = operations / (far - near) * 1e-9,
                  .unit = "GOP/s",
                  BENCH_LIMIT(kv_type == KERN_KV_INT8 ? "pairs of 16-bit integers" : "f32 FMA peak",
                              peak)});
}

/* Attention's time and that of whole steps at position 8,000, of one sequence and of 16 (each with pages of its own), for one
 * type of KV. The difference of a step there and one at position 0 is attention over 8,000 positions. The limit is the longer
 * of reading as many bytes and of the products at the peak of their instruction, written as GB/s of KV or tokens/s. Returns
 * the tokens/s of 16 sequences, 0 when there is no memory for them. `rival` (0: none) is another type's. Ids of more than one thread end
 * in their number; prefill is measured with one. */
static double bench_attention(struct report *report, struct model_file *model, unsigned threads,
                              enum kern_kv_type kv_type, double rival)
{
    enum { MANY = 16, PAGES = SUBJECT_LONG / SUBJECT_PAGE_TOKENS + 1 };
    struct engine_options options = {.threads = threads,
                                     .compute = KERN_COMPUTE_INT8,
                                     .kv_type = kv_type,
                                     .page_tokens = SUBJECT_PAGE_TOKENS,
                                     .kv_pages = MANY * PAGES,
                                     .rows_max = SUBJECT_SEQS_MAX,
                                     .seqs_max = SUBJECT_SEQS_MAX};
    double token_bytes = (double)kern_kv_head_bytes(kv_type, model->config.head_dim) * 2 *
                         model->config.kv_heads * model->config.layers;
    double free_bytes = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    bool many = token_bytes * SUBJECT_PAGE_TOKENS * MANY * PAGES < free_bytes / 2;
    if (!many)
        options.kv_pages = PAGES;
    struct subject subject;
    subject_open(&subject, model, options);
    subject_pages_fill(&subject);
    const struct limits *limits = &report->limits;
    bool int8 = kv_type == KERN_KV_INT8;
    double peak = int8 ? limits->peaks.pair : limits->peaks.f32;
    double arithmetic = 4.0 * model->config.head_dim * model->config.heads * model->config.layers /
                        peak * 1e-9; /* seconds a position */
    char suffix[16] = "";
    if (threads > 1)
        snprintf(suffix, sizeof suffix, "_%ut", threads);
    else
        bench_attention_prefill(report, &subject, kv_type, peak);
    double near = subject_step_typical(&subject, limits->seconds, 1, 1, 0), tokens = 0;
    for (uint32_t seqs = 1; seqs <= (many ? MANY : 1); seqs += MANY - 1) {
        char id[64];
        double bandwidth = read_bandwidth(token_bytes * SUBJECT_LONG, threads);
        double reading = token_bytes / bandwidth * 1e-9;
        double far = subject_step_typical(&subject, limits->seconds, seqs, 1, SUBJECT_LONG);
        bool memory = reading > arithmetic;
        double longer = memory ? reading : arithmetic;
        if (seqs == 1) {
            snprintf(id, sizeof id, "attn_decode_8k_%s%s", kern_kv_type_name(kv_type), suffix);
            bench_add(&report->bench,
                      &(struct bench_record){
                          .id = id,
                          .value = token_bytes * SUBJECT_LONG / (far - near) * 1e-9,
                          .unit = "GB/s",
                          BENCH_LIMIT(memory ? "read bandwidth" : "KV at the arithmetic peak",
                                      token_bytes / longer * 1e-9)});
            if (int8) { /* the same time as operations, beside what f32 products could be */
                snprintf(id, sizeof id, "attn_decode_8k_int8_products%s", suffix);
                bench_add(
                    &report->bench,
                    &(struct bench_record){.id = id,
                                           .value = arithmetic * peak * SUBJECT_LONG / (far - near),
                                           .unit = "GOP/s",
                                           BENCH_LIMIT("f32 FMA peak", limits->peaks.f32)});
            }
            continue;
        }
        tokens = seqs / far;
        double rest =
            cost_of(&subject, limits, (struct roofline_step){.decode_rows = seqs, .samples = seqs})
                .arithmetic;
        snprintf(id, sizeof id, "decode16_8k_%s%s", kern_kv_type_name(kv_type), suffix);
        bench_add(
            &report->bench,
            &(struct bench_record){.id = id,
                                   .value = tokens,
                                   .unit = "tokens/s",
                                   BENCH_LIMIT(memory ? "reading KV" : "KV at the arithmetic peak",
                                               seqs / (longer * SUBJECT_LONG * seqs + rest)),
                                   .peer_name = rival > 0 ? "f16 KV" : NULL,
                                   .peer = rival});
    }
    engine_destroy(subject.engine);
    return tokens;
}

static void bench_threads(struct report *report, struct model_file *model, unsigned threads)
{
    struct engine_options options = {.threads = threads,
                                     .compute = KERN_COMPUTE_INT8,
                                     .kv_type = KERN_KV_F16,
                                     .page_tokens = SUBJECT_PAGE_TOKENS,
                                     .kv_pages = SUBJECT_SEQS_MAX * SUBJECT_SEQ_PAGES,
                                     .rows_max = SUBJECT_PROMPT,
                                     .seqs_max = SUBJECT_SEQS_MAX};
    struct subject subject;
    char id[64];
    subject_open(&subject, model, options);
    if (peaks_measure(cpu_isa_detect(), threads, PEAKS_SHARP, &report->limits.peaks))
        die("no thread");
    report->limits.bandwidth = read_bandwidth(subject.bytes, threads);
    const struct peaks *peaks = &report->limits.peaks;
    const struct {
        const char *name, *unit;
        double value;
    } limits[] = {{"limit_read", "GB/s", report->limits.bandwidth},
                  {"limit_f32", "GOP/s", peaks->f32},
                  {"limit_int8", "GOP/s", peaks->int8},
                  {"limit_nibble", "GOP/s", peaks->nibble},
                  {"limit_pair", "GOP/s", peaks->pair}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        snprintf(id, sizeof id, "%s_%ut", limits[i].name, threads);
        bench_add(&report->bench, &(struct bench_record){
                                      .id = id, .value = limits[i].value, .unit = limits[i].unit});
    }
    bench_prefill(report, &subject);
    bench_decode(report, &subject, "decode1", 1);
    bench_decode(report, &subject, "decode16", 16);
    bench_decode(report, &subject, "decode32", 32);
    if (threads == 1) {
        bench_terms(report, &subject, "prefill512", 1, SUBJECT_PROMPT);
        bench_terms(report, &subject, "decode1", 1, 1);
        bench_terms(report, &subject, "decode32", 32, 1);
        char type[16];
        type_name(&subject, type);
        bench_sampling(&report->bench, &subject, type, 5 * report->limits.seconds);
    }
    engine_destroy(subject.engine);
    if (model->config.context_tokens > SUBJECT_LONG) {
        double f16 = bench_attention(report, model, threads, KERN_KV_F16, 0);
        bench_attention(report, model, threads, KERN_KV_INT8, f16);
    }
    if (threads > 1)
        return;
    options.compute = KERN_COMPUTE_F32;
    options.kv_type = KERN_KV_F32;
    subject_open(&subject, model, options);
    bench_prefill(report, &subject);
    bench_terms(report, &subject, "prefill512", 1, SUBJECT_PROMPT);
    engine_destroy(subject.engine);
}

/* From the file's name to the first token of a prompt of 32, the file in the system's memory. */
static void bench_load(struct report *report, const char *path)
{
    struct err err = ERR_INIT;
    struct model_file *model;
    struct engine_options options = {.threads = 1,
                                     .compute = KERN_COMPUTE_INT8,
                                     .kv_type = KERN_KV_F16,
                                     .page_tokens = SUBJECT_PAGE_TOKENS,
                                     .kv_pages = SUBJECT_SEQ_PAGES,
                                     .rows_max = SUBJECT_PROMPT,
                                     .seqs_max = SUBJECT_SEQS_MAX};
    static struct subject subject;
    double start = bench_now();
    if (model_open(path, &model, &err) != STATUS_OK)
        die(err.message);
    subject_open(&subject, model, options);
    subject_step(&subject, 1, 32, 0);
    bench_add(&report->bench, &(struct bench_record){.id = "load_to_first_token",
                                                     .value = bench_now() - start,
                                                     .unit = "s",
                                                     .lower_is_better = true,
                                                     BENCH_LIMIT("allowed", 1)});
    engine_destroy(subject.engine);
    model_close(model);
}

static void peers_read(struct report *report, const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        die("the file of --peers cannot be read");
    while (report->peer_count < PEERS_MAX &&
           fscanf(file, "%63s %lf", report->peers[report->peer_count].id,
                  &report->peers[report->peer_count].value) == 2)
        report->peer_count++;
    fclose(file);
}

int main(int argc, char **argv)
{
    static struct report report;
    if (bench_begin(&report.bench, &argc, argv) < 1)
        die("usage: bench_engine [--json FILE] [--peers FILE] MODEL [SECONDS]");
    int next = 1;
    if (argc > 3 && strcmp(argv[1], "--peers") == 0) {
        peers_read(&report, argv[2]);
        next = 3;
    }
    report.limits.seconds = argc > next + 1 ? atof(argv[next + 1]) : 2.0;
    struct err err = ERR_INIT;
    struct model_file *model;
    if (model_open(argv[next], &model, &err) != STATUS_OK)
        die(err.message);
    if (cpu_isa_detect() == CPU_ISA_PLAIN)
        die("this CPU has no AVX2: there is nothing to measure against");
    bench_load(&report, argv[next]);
    bench_threads(&report, model, 1);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (cpus > 1)
        bench_threads(&report, model,
                      cpus < PEAKS_THREADS_MAX ? (unsigned)cpus : PEAKS_THREADS_MAX);
    model_close(model);
    return bench_end(&report.bench);
}
