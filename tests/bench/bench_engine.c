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
#include "model/model.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_limits.h"
#include "tests/bench/deep.h"
#include "tests/bench/peers.h"
#include "tests/bench/subject.h"
#include "tests/bench/terms.h"

/* Decode at position 32: the middle of what llama-bench and llama-batched-bench are asked for. */
enum { DECODE_AT = 32, ROUNDS = LIMITS_ROUNDS };

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

struct figure {
    struct bench_rounds whole, terms[TERM_COUNT], peers[PEERS_MAX];
    struct terms_alone alone;
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

/* What of a step one operation is, at the machine's peaks; seconds, 0 for those that are held against nothing. */
static double term_least(const struct subject *subject, const struct limits *limits, enum term term,
                         uint32_t seqs, uint32_t rows)
{
    uint64_t pairs = rows > 1 ? roofline_pairs(0, rows) : (uint64_t)seqs * (DECODE_AT + 1);
    struct roofline_cost none = limits_cost(subject, limits, (struct roofline_step){0});
    struct roofline_cost cost = none;
    if (term == TERM_LINEAR)
        return roofline_least(
            limits_cost(subject, limits, (struct roofline_step){.prompt_rows = seqs * rows}));
    if (term == TERM_HEAD)
        cost = limits_cost(subject, limits, (struct roofline_step){.samples = seqs});
    if (term == TERM_ATTENTION)
        cost = limits_cost(subject, limits,
                           (struct roofline_step){.pairs = pairs, .positions = pairs});
    cost.weights -= none.weights;
    if (rows > 1)
        cost.kv = 0; /* a prompt's own, just written */
    return term == TERM_HEAD || term == TERM_ATTENTION ? roofline_least(cost) : 0;
}

/* A step of one row: looks between its operations would let memory catch up. */
static bool works_short(const struct work *work)
{
    return work->seqs * work->rows == 1;
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
        bench_round_add(&figure->terms[i], bench_median(seconds[i], count) * 1e3,
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
        bench_round_add(rounds, value, 0);
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
    figure->cost = limits_cost(subject, limits, step_of(work));
    roofline_add(&figure->window, work->phase, seconds, figure->cost);
    bench_round_add(&figure->whole, tokens / seconds, tokens / roofline_least(figure->cost));
    if (threads == 1)
        terms_round(figure, subject, limits, work, slice);
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

/* The same of what nothing disturbed: of steps that the arithmetic peak bounds, and at the highest peaks of all rounds. (What others do with
 * the memory does not show in a look, and is in the read bandwidth.) */
static void figure_alone_add(struct report *report, struct figure *figure,
                             const struct subject *subject, const struct limits *limits,
                             const struct work *work)
{
    char id[96], name[64];
    double part = terms_alone_part(&figure->alone), seconds = 0, tokens = work->seqs * work->rows;
    struct limits highest = *limits;
    highest.peaks = limits->highest;
    if (part == 0 || roofline_bound(figure->cost) != ROOFLINE_BOUND_ARITHMETIC)
        return;
    for (int i = 0; i < TERM_COUNT; i++)
        seconds += terms_alone_seconds(&figure->alone, (enum term)i);
    snprintf(name, sizeof name, "%s.undisturbed", work->name);
    limits_alone_add(&report->bench, id_of(subject, name, id), "tokens/s", tokens / seconds,
                     "at the arithmetic peak",
                     tokens / roofline_least(limits_cost(subject, &highest, step_of(work))), part);
    for (int i = 0; i < TERM_COUNT; i++) {
        double each = terms_alone_seconds(&figure->alone, (enum term)i),
               least = term_least(subject, &highest, (enum term)i, work->seqs, work->rows);
        snprintf(name, sizeof name, "%s.undisturbed.%s", work->name, term_name((enum term)i));
        if (least > 0 && each > 0)
            bench_add(&report->bench,
                      &(struct bench_record){.id = id_of(subject, name, id),
                                             .value = each * 1e3,
                                             .unit = "ms",
                                             BENCH_LIMIT("at the machine's peak", least * 1e3),
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
    limits_close(&limits);
    if (model->config.context_tokens > SUBJECT_LONG)
        deep_run(&report->bench, model, threads, report->seconds);
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
