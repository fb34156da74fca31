/* Whole passes of the engine on a real model, in tokens a second, each beside what the machine's limits would allow and beside
 * llama.cpp where its programs are given (peers.h):
 *
 *     bench_engine [--json FILE] MODEL [SECONDS]
 *
 * The machine's speed moves by a fifth within minutes, so what is compared is measured in turn. In each round every figure has
 *
 *     the peaks ─▶ its own steps ─▶ llama.cpp, the same file and threads ─▶ further files
 *
 * with shares and ratios of the round; medians of these are reported, with the least and the most. Of further files all run in the
 * first round, and the fastest for this figure goes on; ".best" is the fastest of all beside ours.
 *
 * One thread first, then as many as there are CPUs. The limit of a step is the longer of its arithmetic at the machine's peaks (2
 * operations a weight and row at the peak of the weights' type, the head for sampled rows, 4 x head_dim a query head and pair of
 * positions at the f32 peak) and of reading the weights once and each sequence's KV. Attention over 8,000 positions is held against
 * the read bandwidth.
 *
 * Times: with one thread the median step by its computing thread's own processor time, so that a figure does not depend on who else
 * wants the core; with more the best step by the engine's clock, first to last operation.
 *
 * Owner: the main thread. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/limits.h"
#include "kernels/cpu/peaks.h"
#include "model/model.h"
#include "tests/bench/bench.h"
#include "tests/bench/peers.h"
#include "tests/bench/subject.h"
#include "tests/bench/terms.h"
#include "tests/bench/undisturbed.h"

/* Decode at position 32: the middle of what llama-bench and llama-batched-bench are asked for. */
enum { DECODE_AT = 32, ROUNDS = 5, STEPS_ALONE_MAX = 8192 };

/* The machine's limits, now and in the rounds before. */
enum limit { LIMIT_READ, LIMIT_F32, LIMIT_INT8, LIMIT_NIBBLE, LIMIT_PAIR, LIMITS };
struct limits {
    unsigned threads;
    struct peaks_reader *reader; /* of as many bytes as what is judged reads */
    struct peaks peaks;
    double bandwidth; /* GB/s */
    double alone;     /* of reading, while the thread had its core to itself; 0: not known */
    size_t count;
    double seen[LIMITS][BENCH_ROUNDS_MAX];
};

struct report {
    struct bench bench;
    struct peers peers;
    double seconds; /* of our own steps, for each figure */
};

/* Whole steps that are timed, and in each round one slice of the time for them. */
static const struct work {
    const char *name;
    enum roofline_phase phase;
    uint32_t seqs, rows;
} works[] = {{"prefill512", ROOFLINE_PREFILL, 1, SUBJECT_PROMPT},
             {"decode1", ROOFLINE_DECODE, 1, 1},
             {"decode16", ROOFLINE_DECODE, 16, 1},
             {"decode32", ROOFLINE_DECODE, 32, 1}};
enum { WORKS = sizeof works / sizeof works[0] };

/* Whole steps before and after which the thread had its core to itself. */
struct steps_alone {
    size_t tried, count;
    double seconds[STEPS_ALONE_MAX];
};

struct figure {
    struct bench_rounds whole, terms[TERM_COUNT], peers[PEERS_MAX];
    struct terms_alone alone;
    struct steps_alone steps;      /* where a step is too short to look within it */
    size_t leader;                 /* of the peers but the first; 0: not known yet */
    struct roofline_window window; /* all rounds */
    struct roofline_cost cost;     /* of a step, in the last one */
};

static void die(const char *what)
{
    fprintf(stderr, "bench_engine: %s\n", what);
    exit(1);
}

/* "NAME_TYPE_THREADSt" */
static const char *id_of(const struct subject *subject, const char *name, char id[96])
{
    char type[16];
    subject_type_name(subject, type);
    snprintf(id, 96, "%s_%s_%ut", name, type, engine_info(subject->engine)->threads);
    return id;
}

static void limits_open(struct limits *limits, double bytes, unsigned threads)
{
    *limits = (struct limits){.threads = threads};
    if (peaks_reader_create(cpu_isa_detect(), (size_t)bytes, threads, PEAKS_TURN, &limits->reader))
        die("no memory");
}

static void limits_measure(struct limits *limits)
{
    struct peaks *peaks = &limits->peaks;
    if (peaks_measure(cpu_isa_detect(), limits->threads, PEAKS_TURN, peaks))
        die("no thread");
    limits->bandwidth = peaks_reader_rate(limits->reader);
    const double now[LIMITS] = {limits->bandwidth, peaks->f32, peaks->int8, peaks->nibble,
                                peaks->pair};
    for (int i = 0; i < LIMITS && limits->count < BENCH_ROUNDS_MAX; i++)
        limits->seen[i][limits->count] = now[i];
    limits->count += limits->count < BENCH_ROUNDS_MAX;
}

static void limits_add(struct bench *bench, struct limits *limits)
{
    static const char *const names[LIMITS] = {"read", "f32", "int8", "nibble", "pair"};
    for (int i = 0; i < LIMITS; i++) {
        char id[64];
        snprintf(id, sizeof id, "limit_%s_%ut", names[i], limits->threads);
        bench_add(bench,
                  &(struct bench_record){.id = id,
                                         .value = bench_median(limits->seen[i], limits->count),
                                         .unit = i == LIMIT_READ ? "GB/s" : "GOP/s"});
    }
}

/* The peaks of this round in the engine's terms: kernels/cpu/machine.c does the same with those of a start. */
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

static void round_add(struct bench_rounds *rounds, double value, double limit)
{
    rounds->values[rounds->count] = value;
    rounds->limits[rounds->count++] = limit;
}

/* A step of one row: looks between its operations would let memory catch up. */
static bool works_short(const struct work *work)
{
    return work->seqs * work->rows == 1;
}

static void steps_alone_add(struct steps_alone *steps, struct subject *subject, uint32_t position,
                            double slice)
{
    double start = bench_now(), seconds;
    while (steps->count < STEPS_ALONE_MAX && bench_now() - start < slice) {
        steps->tried++;
        if (subject_step_alone(subject, 1, 1, position, &seconds))
            steps->seconds[steps->count++] = seconds;
    }
}

/* A step's time by operation, each the median of the slice's steps. */
static void terms_round(struct figure *figure, struct subject *subject, const struct limits *limits,
                        const struct work *work, double slice)
{
    enum { STEPS = 25 };
    static double seconds[TERM_COUNT][STEPS], one[TERM_COUNT];
    size_t count = 0;
    double start = bench_now();
    while (count < 1 || (count < STEPS && bench_now() - start < slice)) {
        terms_begin(works_short(work) ? NULL : &figure->alone);
        subject_step(subject, work->seqs, work->rows, work->rows > 1 ? 0 : DECODE_AT);
        terms_end(one);
        for (int i = 0; i < TERM_COUNT; i++)
            seconds[i][count] = one[i];
        count++;
    }
    for (int i = 0; i < TERM_COUNT; i++)
        round_add(&figure->terms[i], bench_median(seconds[i], count) * 1e3,
                  term_least(subject, limits, (enum term)i, work->seqs, work->rows) * 1e3);
}

static void peers_round(struct report *report, struct figure *figure, unsigned threads,
                        const struct work *work)
{
    double value = figure->whole.values[figure->whole.count - 1], most = 0;
    bool first = figure->whole.count == 1;
    for (size_t i = 0; i < report->peers.count; i++) {
        if (!first && i != 0 && i != figure->leader)
            continue;
        struct bench_rounds *rounds = &figure->peers[i];
        double tokens = peers_tokens(&report->peers.each[i], threads, work->seqs, work->rows);
        round_add(rounds, value, 0);
        rounds->peers[rounds->peer_count++] = tokens;
        if (first && i != 0 && tokens > most) {
            most = tokens;
            figure->leader = i;
        }
    }
}

static struct roofline_step step_of(const struct work *work)
{
    uint64_t pairs =
        work->rows > 1 ? roofline_pairs(0, work->rows) : (uint64_t)work->seqs * (DECODE_AT + 1);
    return (struct roofline_step){.prompt_rows = work->rows > 1 ? work->rows : 0,
                                  .decode_rows = work->rows > 1 ? 0 : work->seqs,
                                  .samples = work->seqs,
                                  .pairs = pairs,
                                  .positions = work->rows > 1 ? work->rows : pairs};
}

static void figure_round(struct report *report, struct figure *figure, struct subject *subject,
                         struct limits *limits, const struct work *work)
{
    const unsigned threads = limits->threads;
    const double slice = report->seconds / ROUNDS;
    limits_measure(limits);
    double seconds = subject_step_typical(subject, 1, slice, work->seqs, work->rows,
                                          work->rows > 1 ? 0 : DECODE_AT),
           tokens = work->seqs * work->rows;
    figure->cost = cost_of(subject, limits, step_of(work));
    roofline_add(&figure->window, work->phase, seconds, figure->cost);
    round_add(&figure->whole, tokens / seconds, tokens / roofline_least(figure->cost));
    if (threads == 1)
        terms_round(figure, subject, limits, work, slice);
    if (threads == 1 && works_short(work)) {
        steps_alone_add(&figure->steps, subject, DECODE_AT, slice);
        limits->alone = peaks_reader_rate_alone(limits->reader, undisturbed, slice);
    }
    if (engine_info(subject->engine)->compute == KERN_COMPUTE_INT8)
        peers_round(report, figure, threads, work);
}

/* The records of a figure: the step, with its shares of both peaks and what holds it back; the same beside other files of llama.cpp;
 * its operations. */
static void figure_add(struct report *report, struct figure *figure, const struct subject *subject,
                       const struct work *work)
{
    struct roofline_report by = roofline_report(&figure->window, work->phase);
    bool memory = roofline_bound(figure->cost) != ROOFLINE_BOUND_ARITHMETIC;
    char id[96], named[160], unit[32], name[64];
    struct bench_record record = {.id = id_of(subject, work->name, id),
                                  .unit = "tokens/s",
                                  .limit_name =
                                      memory ? "at the read bandwidth" : "at the arithmetic peak",
                                  .verdict = roofline_verdict_name(by.verdict),
                                  .lever = roofline_lever(work->phase, by.verdict),
                                  .mfu = by.mfu,
                                  .mbu = by.mbu};
    const struct peers *peers = &report->peers;
    struct bench_rounds *own = &figure->peers[0], *leader = &figure->peers[figure->leader];
    if (own->peer_count) {
        record.peer_name = peers->each[0].name;
        memcpy(figure->whole.peers, own->peers, sizeof own->peers);
        figure->whole.peer_count = own->peer_count;
    }
    bench_add_rounds(&report->bench, record, &figure->whole);
    for (size_t i = 1; i < peers->count && own->peer_count; i++) {
        snprintf(named, sizeof named, "%s.%s", id, strchr(peers->each[i].name, ' ') + 1);
        bench_add_rounds(&report->bench,
                         (struct bench_record){
                             .id = named, .unit = "tokens/s", .peer_name = peers->each[i].name},
                         &figure->peers[i]);
    }
    if (figure->leader) {
        double sorted[2][BENCH_ROUNDS_MAX];
        memcpy(sorted[0], own->peers, sizeof own->peers);
        memcpy(sorted[1], leader->peers, sizeof leader->peers);
        bool others =
            bench_median(sorted[1], leader->peer_count) > bench_median(sorted[0], own->peer_count);
        snprintf(named, sizeof named, "%s.best", id);
        bench_add_rounds(
            &report->bench,
            (struct bench_record){.id = named,
                                  .unit = "tokens/s",
                                  .peer_name = peers->each[others ? figure->leader : 0].name},
            others ? leader : own);
    }
    double medians[TERM_COUNT], total = 0;
    for (int i = 0; i < TERM_COUNT && figure->terms[i].count; i++) {
        struct bench_rounds sorted = figure->terms[i];
        total += medians[i] = bench_median(sorted.values, sorted.count);
    }
    for (int i = 0; i < TERM_COUNT && figure->terms[i].count; i++) {
        snprintf(name, sizeof name, "%s.%s", work->name, term_name((enum term)i));
        snprintf(unit, sizeof unit, "ms %.1f %%", 100 * medians[i] / total);
        if (medians[i] > 0)
            bench_add_rounds(&report->bench,
                             (struct bench_record){.id = id_of(subject, name, id),
                                                   .unit = unit,
                                                   .limit_name = figure->terms[i].limits[0] > 0
                                                                     ? "at the machine's peak"
                                                                     : NULL,
                                                   .lower_is_better = true},
                             &figure->terms[i]);
    }
}

/* Where nothing disturbed its thread: the value, and its limit by the same arithmetic peaks, which hardly feel it, and by reading alone. */
static void alone_add(struct bench *bench, const char *id, const char *unit, double value,
                      const char *limit_name, double limit, double part)
{
    char of[64];
    snprintf(of, sizeof of, "%s, %.0f %% of runs", unit, 100 * part);
    bench_add(bench, &(struct bench_record){
                         .id = id, .value = value, .unit = of, BENCH_LIMIT(limit_name, limit)});
}

static void figure_alone_add(struct report *report, struct figure *figure,
                             const struct subject *subject, struct limits *limits,
                             const struct work *work)
{
    char id[96], name[64];
    double tokens = work->seqs * work->rows, seconds = 0;
    if (works_short(work)) {
        struct limits alone = *limits;
        struct steps_alone *steps = &figure->steps;
        alone.bandwidth = limits->alone;
        if (steps->count < ROUNDS || limits->alone == 0)
            return;
        seconds = bench_median(steps->seconds, steps->count);
        double least = roofline_least(cost_of(subject, &alone, step_of(work)));
        snprintf(name, sizeof name, "%s.undisturbed", work->name);
        alone_add(&report->bench, id_of(subject, name, id), "tokens/s", tokens / seconds,
                  "at the read bandwidth", tokens / least,
                  (double)steps->count / (double)steps->tried);
        return;
    }
    double part = terms_alone_part(&figure->alone);
    if (part == 0)
        return;
    for (int i = 0; i < TERM_COUNT; i++)
        seconds += terms_alone_seconds(&figure->alone, (enum term)i);
    snprintf(name, sizeof name, "%s.undisturbed", work->name);
    alone_add(&report->bench, id_of(subject, name, id), "tokens/s", tokens / seconds,
              "at the arithmetic peak", bench_median(figure->whole.limits, figure->whole.count),
              part);
    for (int i = 0; i < TERM_COUNT; i++) {
        struct bench_rounds *rounds = &figure->terms[i];
        double each = terms_alone_seconds(&figure->alone, (enum term)i),
               least = rounds->count ? bench_median(rounds->limits, rounds->count) : 0;
        snprintf(name, sizeof name, "%s.undisturbed.%s", work->name, term_name((enum term)i));
        if (least > 0 && each > 0)
            bench_add(&report->bench,
                      &(struct bench_record){.id = id_of(subject, name, id),
                                             .value = each * 1e3,
                                             .unit = "ms",
                                             BENCH_LIMIT("at the machine's peak", least),
                                             .lower_is_better = true});
    }
}

/* The first `count` works of an engine, all of them in each round. */
static void bench_works(struct report *report, struct subject *subject, struct limits *limits,
                        size_t count)
{
    static struct figure figures[WORKS];
    memset(figures, 0, sizeof figures);
    for (size_t i = 0; i < count; i++) /* warms up */
        subject_step(subject, works[i].seqs, works[i].rows, 0);
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < count; i++) {
            fprintf(stderr, "round %d of %d: %s\n", round + 1, ROUNDS, works[i].name);
            figure_round(report, &figures[i], subject, limits, &works[i]);
        }
    for (size_t i = 0; i < count; i++) {
        figure_add(report, &figures[i], subject, &works[i]);
        figure_alone_add(report, &figures[i], subject, limits, &works[i]);
    }
}

/* --- attention over 8,000 positions --- */

enum deep_shape { DEEP_ONE, DEEP_CHUNK, DEEP_BATCH, DEEP_SHAPES };
enum { DEEP_ROWS = 32 }; /* of a chunk */

/* One type of KV. The difference of a step at position 8,000 and one at position 0 is attention over 8,000 positions. */
struct deep {
    struct subject subject;
    struct limits limits;
    enum kern_kv_type type;
    double token_bytes; /* of KV */
    double rest; /* seconds of a step of all sequences but attention, at the arithmetic peak */
    bool memory; /* reading took longer than the products at their peak, in the last round */
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
    round_add(&deep->decode, deep->token_bytes * SUBJECT_LONG / (far - near) * 1e-9,
              deep->token_bytes / longer * 1e-9);
    round_add(&deep->products, operations * SUBJECT_LONG / (far - near) * 1e-9, limits->peaks.f32);
    if (limits->threads == 1) {
        near = subject_step_typical(subject, STEPS, slice, 1, ROWS, 0);
        far = subject_step_typical(subject, STEPS, slice, 1, ROWS, SUBJECT_LONG);
        round_add(&deep->prefill, operations * ROWS * SUBJECT_LONG / (far - near) * 1e-9, peak);
    }
    if (limits->threads == 1) {
        limits->alone = peaks_reader_rate_alone(limits->reader, undisturbed, slice);
        deep_alone_round(deep, DEEP_ONE, slice, 1, 1);
        deep_alone_round(deep, DEEP_CHUNK, slice, 1, ROWS);
        if (seqs > 1)
            deep_alone_round(deep, DEEP_BATCH, slice, seqs, 1);
    }
    if (seqs == 1)
        return;
    far = subject_step_typical(subject, STEPS, slice, seqs, 1, SUBJECT_LONG);
    double rest = deep->rest =
        cost_of(subject, limits, (struct roofline_step){.decode_rows = seqs, .samples = seqs})
            .arithmetic;
    round_add(&deep->batch, seqs / far, seqs / (longer * SUBJECT_LONG * seqs + rest));
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

static void deep_alone_add(struct bench *bench, struct deep *deep, double rival, double *own_out)
{
    const struct model_config *config = &deep->subject.model->config;
    const struct limits *limits = &deep->limits;
    const char *type = kern_kv_type_name(deep->type);
    const double operations =
        4.0 * config->head_dim * config->heads * config->layers * SUBJECT_LONG * 1e-9;
    const double peak = deep->type == KERN_KV_INT8 ? limits->peaks.pair : limits->peaks.f32,
                 bytes = deep->token_bytes * SUBJECT_LONG * 1e-9;
    double part = terms_alone_part(&deep->alone[DEEP_ONE]), seconds;
    char id[64];
    *own_out = 0;
    if (part == 0)
        return;
    double reading = bytes / limits->alone, arithmetic = operations / peak;
    bool memory = reading > arithmetic;
    double longer = memory ? reading : arithmetic;
    seconds = deep_alone_seconds(deep, DEEP_ONE, true);
    snprintf(id, sizeof id, "attn_decode_8k_%s.undisturbed", type);
    if (limits->alone > 0)
        alone_add(bench, id, "GB/s", bytes / seconds,
                  memory ? "read bandwidth" : "KV at the arithmetic peak", bytes / longer, part);
    snprintf(id, sizeof id, "attn_decode_8k_%s_products.undisturbed", type);
    alone_add(bench, id, "GOP/s", operations / seconds, "f32 FMA peak", limits->peaks.f32, part);
    seconds = deep_alone_seconds(deep, DEEP_CHUNK, true);
    snprintf(id, sizeof id, "attn_prefill_8k_%s.undisturbed", type);
    alone_add(bench, id, "GOP/s", operations * DEEP_ROWS / seconds,
              deep->type == KERN_KV_INT8 ? "pairs of 16-bit integers" : "f32 FMA peak", peak,
              terms_alone_part(&deep->alone[DEEP_CHUNK]));
    if (deep->alone[DEEP_BATCH].steps == 0 || limits->alone == 0)
        return;
    *own_out = MANY / deep_alone_seconds(deep, DEEP_BATCH, false);
    snprintf(id, sizeof id, "decode16_8k_%s.undisturbed", type);
    bench_add(bench, &(struct bench_record){
                         .id = id,
                         .value = *own_out,
                         .unit = "tokens/s",
                         BENCH_LIMIT("KV at its limit", MANY / (longer * MANY + deep->rest)),
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

/* f16 and int8 in turn. Where there is no memory for the pages of 16 sequences of both, with one alone. */
static void bench_attention(struct report *report, struct model_file *model, unsigned threads)
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
    for (int round = 0; round < ROUNDS; round++) {
        fprintf(stderr, "round %d of %d: 8,000 positions\n", round + 1, ROUNDS);
        double slice = report->seconds / ROUNDS / 4;
        deep_round(&deep[0], slice, seqs, 0);
        deep_round(&deep[1], slice, seqs, seqs > 1 ? deep[0].batch.values[round] : 0);
    }
    double rival = 0;
    for (int i = 0; i < 2; i++) {
        deep_add(&report->bench, &deep[i]);
        if (threads == 1)
            deep_alone_add(&report->bench, &deep[i], rival, &rival);
        peaks_reader_destroy(deep[i].limits.reader);
        engine_destroy(deep[i].subject.engine);
    }
}

static void bench_threads(struct report *report, struct model_file *model, unsigned threads)
{
    struct engine_options options = subject_options(threads);
    static struct subject subject;
    static struct limits limits;
    subject_open(&subject, model, options);
    limits_open(&limits, subject.bytes, threads);
    bench_works(report, &subject, &limits, WORKS);
    limits_add(&report->bench, &limits);
    engine_destroy(subject.engine);
    if (threads == 1) {
        options.compute = KERN_COMPUTE_F32;
        options.kv_type = KERN_KV_F32;
        subject_open(&subject, model, options);
        bench_works(report, &subject, &limits, 1);
        engine_destroy(subject.engine);
    }
    peaks_reader_destroy(limits.reader);
    if (model->config.context_tokens > SUBJECT_LONG)
        bench_attention(report, model, threads);
}

/* From the file's name to the first token of a prompt of 32, the file in the system's memory. */
static void bench_load(struct report *report, const char *path)
{
    struct err err = ERR_INIT;
    struct model_file *model;
    struct engine_options options = subject_options(1);
    options.kv_pages = SUBJECT_SEQ_PAGES;
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

int main(int argc, char **argv)
{
    static struct report report;
    if (bench_begin(&report.bench, &argc, argv) < 1)
        die("usage: bench_engine [--json FILE] MODEL [SECONDS]");
    report.seconds = argc > 2 ? atof(argv[2]) : 2.0;
    struct err err = ERR_INIT;
    struct model_file *model;
    if (model_open(argv[1], &model, &err) != STATUS_OK)
        die(err.message);
    if (cpu_isa_detect() == CPU_ISA_PLAIN)
        die("this CPU has no AVX2: there is nothing to measure against");
    peers_find(argv[1], &report.peers);
    bench_load(&report, argv[1]);
    bench_threads(&report, model, 1);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (cpus > 1)
        bench_threads(&report, model,
                      cpus < PEAKS_THREADS_MAX ? (unsigned)cpus : PEAKS_THREADS_MAX);
    model_close(model);
    return bench_end(&report.bench);
}
