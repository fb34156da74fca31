/* Whole passes of the engine on a real model, each beside the limit that binds it, measured in the same run: prefill of 512
 * tokens beside the arithmetic peak, decode of one sequence beside the read bandwidth, batches beside both, attention over
 * 8,000 positions beside the read bandwidth.
 *
 *     bench_engine [--json FILE] MODEL [THREADS] [SECONDS]
 *
 * Prefill counts 2 operations a weight and row (the head for the one sampled row) and 4 x head_dim a query head and pair of
 * positions for attention. Peaks are those of one thread, times the threads. Times are the best of several steps: with one
 * thread the process's own processor time, so that a figure does not depend on who else wants the core; with more the
 * engine's clock, first to last operation.
 * Owner: the main thread. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "model/model.h"
#include "tests/bench/bench.h"
#include "tests/bench/peaks.h"

enum { PROMPT = 512, PAGE_TOKENS = 64, SEQS_MAX = 32, SEQ_PAGES = 10, LONG = 8000 };

struct limits {
    struct peaks peaks; /* of all threads together */
    double bandwidth;
    double seconds; /* to spend on each figure */
};

struct subject {
    struct model_file *model;
    struct engine *engine;
    double weights_layer, weights_head; /* parameters */
    double bytes;                       /* of weights that one pass reads */
    uint32_t slots[SEQS_MAX];
    uint32_t ids[PROMPT];
};

static void die(const char *what)
{
    fprintf(stderr, "bench_engine: %s\n", what);
    exit(1);
}

static void subject_open(struct subject *subject, struct model_file *model,
                         struct engine_options options)
{
    struct err err = ERR_INIT;
    if (engine_create(&options, model, &subject->engine, &err) != STATUS_OK)
        die(err.message);
    const struct engine_info *info = engine_info(subject->engine);
    subject->model = model;
    subject->bytes = (double)info->weight_bytes;
    subject->weights_head = (double)info->vocab_size * info->hidden;
    subject->weights_layer = (double)model_parameter_count(model) -
                             subject->weights_head * (model->config.tied_output ? 1 : 2);
    for (uint32_t i = 0; i < info->seqs_max && i < SEQS_MAX; i++)
        if (engine_slot_take(subject->engine, &subject->slots[i]) != STATUS_OK)
            die("no slot");
    for (uint32_t i = 0; i < PROMPT; i++)
        subject->ids[i] = (i * 2654435761u >> 8) % info->vocab_size;
}

static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* One step with `rows` rows at `position` of each of `seqs` sequences; its seconds. */
static double step_seconds(struct subject *subject, uint32_t seqs, uint32_t rows, uint32_t position)
{
    static struct sampling_params params;
    params = sampling_params_default();
    params.temperature = 0;
    struct engine_sample_input sample = {.params = &params};
    struct engine_step *step = engine_step_begin(subject->engine);
    uint32_t page_count = engine_info(subject->engine)->page_count, pages[LONG / PAGE_TOKENS + 2];
    uint32_t each = page_count / seqs;
    each = each < LONG / PAGE_TOKENS + 2 ? each : LONG / PAGE_TOKENS + 2;
    for (uint32_t s = 0; s < seqs; s++) {
        for (uint32_t i = 0; i < each; i++)
            pages[i] = s * each + i;
        struct engine_seq_input input = {.slot = subject->slots[s],
                                         .tokens = subject->ids,
                                         .row_count = rows,
                                         .prev_sample = ENGINE_NONE,
                                         .position_begin = position,
                                         .pages = pages,
                                         .page_count = each,
                                         .sample = &sample};
        if (engine_step_add(step, &input, NULL) != STATUS_OK)
            die("a step does not fit");
    }
    double cpu = cpu_seconds();
    if (engine_submit(step) != STATUS_OK)
        die("a step was refused");
    struct engine_event event;
    do
        engine_wait(subject->engine, NS_PER_S);
    while (!engine_poll(subject->engine, &event) || event.kind != ENGINE_STEP_DONE);
    if (engine_info(subject->engine)->threads == 1)
        return cpu_seconds() - cpu;
    uint64_t begin_ns, end_ns;
    engine_step_times(step, &begin_ns, &end_ns);
    return (double)(end_ns - begin_ns) * 1e-9;
}

static double step_best(struct subject *subject, const struct limits *limits, uint32_t seqs,
                        uint32_t rows, uint32_t position)
{
    double best = step_seconds(subject, seqs, rows, position), start = bench_now();
    for (int i = 0; i < 3 || bench_now() - start < limits->seconds; i++) {
        double seconds = step_seconds(subject, seqs, rows, position);
        best = seconds < best ? seconds : best;
    }
    return best;
}

static double attention_operations(const struct subject *subject, double pairs)
{
    const struct engine_info *info = engine_info(subject->engine);
    return 4.0 * info->head_dim * info->heads * info->layers * pairs;
}

static void bench_prefill(struct bench *bench, struct subject *subject, const struct limits *limits,
                          const char *id, const char *peak_name, double peak)
{
    double seconds = step_best(subject, limits, 1, PROMPT, 0);
    double operations = 2 * (subject->weights_layer * PROMPT + subject->weights_head) +
                        attention_operations(subject, PROMPT * (PROMPT + 1) / 2.0);
    char name[64];
    snprintf(name, sizeof name, "%s_rate", id);
    bench_add(bench,
              &(struct bench_record){.id = name, .value = PROMPT / seconds, .unit = "tokens/s"});
    bench_add(bench, &(struct bench_record){.id = id,
                                            .value = operations / seconds * 1e-9,
                                            .unit = "GOP/s",
                                            BENCH_LIMIT(peak_name, peak)});
}

static void bench_decode(struct bench *bench, struct subject *subject, const struct limits *limits,
                         const char *id, uint32_t seqs)
{
    double seconds = step_best(subject, limits, seqs, 1, 100);
    double operations = 2 * (subject->weights_layer + subject->weights_head) * seqs;
    double bytes =
        subject->bytes + 101.0 * (double)engine_info(subject->engine)->kv_bytes_per_token * seqs;
    double gops = operations / seconds * 1e-9, read = bytes / seconds * 1e-9;
    char name[64];
    snprintf(name, sizeof name, "%s_rate", id);
    bench_add(bench,
              &(struct bench_record){.id = name, .value = seqs / seconds, .unit = "tokens/s"});
    struct bench_record by_memory = {.id = id,
                                     .value = read,
                                     .unit = "GB/s",
                                     BENCH_LIMIT("read bandwidth GB/s", limits->bandwidth)};
    struct bench_record by_arithmetic = {.id = id,
                                         .value = gops,
                                         .unit = "GOP/s",
                                         BENCH_LIMIT(limits->peaks.int8_name, limits->peaks.int8)};
    bench_add(bench,
              read / limits->bandwidth > gops / limits->peaks.int8 ? &by_memory : &by_arithmetic);
}

/* The difference of a step at position 8,000 and one at position 0 is attention over 8,000 positions (and reading stale
 * pages: attention's time does not depend on what they hold). */
static void bench_attention(struct bench *bench, struct subject *subject,
                            const struct limits *limits, const char *id)
{
    double far = step_best(subject, limits, 1, 1, LONG), near = step_best(subject, limits, 1, 1, 0);
    double bytes = (double)engine_info(subject->engine)->kv_bytes_per_token * LONG;
    bench_add(bench, &(struct bench_record){.id = id,
                                            .value = bytes / (far - near) * 1e-9,
                                            .unit = "GB/s",
                                            BENCH_LIMIT("read bandwidth GB/s", limits->bandwidth)});
}

static void limits_measure(struct limits *limits, enum cpu_isa_level isa, unsigned threads)
{
    size_t bytes = (size_t)256 << 20;
    void *memory = malloc(bytes);
    if (!memory)
        die("no memory");
    memset(memory, 1, bytes);
    peaks_measure(isa, &limits->peaks);
    limits->bandwidth = peaks_read_bandwidth(memory, bytes);
    limits->peaks.f32 *= threads;
    limits->peaks.int8 *= threads;
    limits->peaks.nibble *= threads;
    free(memory);
}

int main(int argc, char **argv)
{
    struct bench bench;
    int count = bench_begin(&bench, &argc, argv);
    if (count < 1)
        die("usage: bench_engine [--json FILE] MODEL [THREADS] [SECONDS]");
    unsigned threads = count > 1 ? (unsigned)atoi(argv[2]) : 1;
    struct limits limits = {.seconds = count > 2 ? atof(argv[3]) : 2.0};
    struct err err = ERR_INIT;
    struct model_file *model;
    if (model_open(argv[1], &model, &err) != STATUS_OK)
        die(err.message);
    if (cpu_isa_detect() == CPU_ISA_PLAIN)
        die("this CPU has no AVX2: there is nothing to measure against");
    limits_measure(&limits, cpu_isa_detect(), threads);

    struct engine_options options = {.threads = threads,
                                     .compute = KERN_COMPUTE_INT8,
                                     .kv_type = KERN_KV_F16,
                                     .page_tokens = PAGE_TOKENS,
                                     .kv_pages = SEQS_MAX * SEQ_PAGES,
                                     .rows_max = PROMPT,
                                     .seqs_max = SEQS_MAX};
    struct subject subject;
    double start = bench_now();
    subject_open(&subject, model, options);
    bench_add(&bench,
              &(struct bench_record){.id = "load", .value = bench_now() - start, .unit = "s"});
    bench_prefill(&bench, &subject, &limits, "prefill_512_int8", limits.peaks.int8_name,
                  limits.peaks.int8);
    bench_decode(&bench, &subject, &limits, "decode_1_int8", 1);
    bench_decode(&bench, &subject, &limits, "decode_16_int8", 16);
    bench_decode(&bench, &subject, &limits, "decode_32_int8", 32);
    if (engine_info(subject.engine)->context_tokens > LONG)
        bench_attention(&bench, &subject, &limits, "attn_decode_8k_f16");
    engine_destroy(subject.engine);

    options.compute = KERN_COMPUTE_F32;
    options.kv_type = KERN_KV_F32;
    subject_open(&subject, model, options);
    bench_prefill(&bench, &subject, &limits, "prefill_512_f32", "f32 FMA", limits.peaks.f32);
    engine_destroy(subject.engine);
    model_close(model);
    return bench_end(&bench);
}
