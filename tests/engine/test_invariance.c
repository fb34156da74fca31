/* One request, one answer: the logits of every position, the tokens and the KV pages are the same bits however a request is
 * computed. Each test runs the same sixteen requests (prompts of 1 to 333 tokens, greedy and sampled) alone, in one chunk, on
 * one thread, and then in another way. */
#include "tests/engine/harness.h"
#include "tests/test.h"

#ifdef BATON_SANITIZED /* which looks at memory: prompts on both sides of an edge are enough */
enum { JOBS = 11, FEW = 9, ANSWER = 5 };
static const uint32_t prompt_counts[JOBS] = {1, 2, 15, 16, 17, 31, 33, 64, 65, 129, 200};
#else
enum { JOBS = 16, FEW = 11, ANSWER = 10 };
static const uint32_t prompt_counts[JOBS] = {1,  2,  15,  16,  17,  31, 63,  64,
                                             65, 97, 127, 128, 129, 33, 200, 333};
#endif

static struct engine_options base_options(enum kern_compute compute, enum kern_kv_type kv_type)
{
    return (struct engine_options){.backend = "cpu",
                                   .compute = compute,
                                   .kv_type = kv_type,
                                   .threads = 1,
                                   .page_tokens = 32,
                                   .kv_pages = 256,
                                   .layer_run = 2,
                                   .rows_max = 2048,
                                   .samples_max = 2048,
                                   .seqs_max = 32};
}

static struct run_options base_run(void)
{
    return (struct run_options){.chunk = 512};
}

static const char *expected_isa = "auto";

/* Each job alone. */
static void jobs_expect(const struct model_file *model, enum kern_compute compute,
                        enum kern_kv_type kv_type, struct job *jobs, uint32_t count)
{
    struct engine_options options = base_options(compute, kv_type);
    options.isa = expected_isa;
    struct engine *engine = harness_engine(model, options);
    struct run_options run = base_run();
    for (uint32_t j = 0; j < count; j++) {
        job_init(&jobs[j], j, prompt_counts[j], ANSWER, model->config.vocab);
        jobs_run(engine, &jobs[j], 1, &run, j);
    }
    engine_destroy(engine);
}

static void jobs_free(struct job *jobs, uint32_t count)
{
    for (uint32_t j = 0; j < count; j++)
        job_finish(&jobs[j]);
}

static struct job expected[JOBS], got[JOBS];

/* All jobs together, the other way, against alone. */
static void check_together(enum kern_compute compute, enum kern_kv_type kv_type,
                           struct engine_options options, struct run_options run, uint32_t count,
                           const char *what)
{
    struct model_file *model = harness_model();
    uint32_t vocab = model->config.vocab;
    jobs_expect(model, compute, kv_type, expected, count);
    options.compute = compute;
    options.kv_type = kv_type;
    struct engine *engine = harness_engine(model, options);
    for (uint32_t j = 0; j < count; j++)
        job_init(&got[j], j, prompt_counts[j], ANSWER, vocab);
    jobs_run(engine, got, count, &run, 7);
    bool same_pages = options.page_tokens == 32 && options.layer_run == 2 && !run.skip_zeroing;
    for (uint32_t j = 0; j < count; j++)
        job_compare(&expected[j], &got[j], vocab, same_pages, what);
    CHECK_INT(engine_cancel_layers_max(engine), 0);
    engine_destroy(engine);
    jobs_free(expected, count);
    jobs_free(got, count);
    model_close(model);
}

TEST(invariance, answers_differ_from_each_other)
{
    struct model_file *model = harness_model();
    jobs_expect(model, KERN_COMPUTE_F32, KERN_KV_F32, expected, 6);
    int equal = 0, distinct = 0;
    for (uint32_t j = 1; j < 6; j++)
        equal += memcmp(expected[0].answer, expected[j].answer, sizeof expected[0].answer) == 0;
    for (uint32_t i = 1; i < ANSWER; i++)
        distinct += expected[1].answer[i] != expected[1].answer[0];
    CHECK_INT(equal, 0); /* else the comparisons below would say nothing */
    CHECK(distinct > 0);
    jobs_free(expected, 6);
    model_close(model);
}

TEST(invariance, batch_mates)
{
    struct engine_options options = base_options(0, 0);
    check_together(KERN_COMPUTE_F32, KERN_KV_F32, options, base_run(), JOBS, "batch f32");
    check_together(KERN_COMPUTE_INT8, KERN_KV_F16, options, base_run(), JOBS, "batch int8");
    check_together(KERN_COMPUTE_INT8, KERN_KV_F32, options, base_run(), JOBS, "batch int8 kv f32");
    check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options, base_run(), JOBS,
                   "batch int8 kv int8");
    check_together(KERN_COMPUTE_F32, KERN_KV_INT8, options, base_run(), JOBS, "batch f32 kv int8");
}

/* The instruction sets of this machine against the plain definition (slow: fewer and shorter requests). */
TEST(invariance, plain_is_the_definition)
{
    expected_isa = "plain";
    struct engine_options options = base_options(0, 0);
    options.isa = "auto";
    check_together(KERN_COMPUTE_F32, KERN_KV_F32, options, base_run(), 9, "isa f32 kv f32");
    check_together(KERN_COMPUTE_INT8, KERN_KV_F16, options, base_run(), FEW, "isa int8 kv f16");
    check_together(KERN_COMPUTE_F32, KERN_KV_F16, options, base_run(), 8, "isa f32 kv f16");
    check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options, base_run(), FEW, "isa int8 kv int8");
    options.isa = "plain";
    check_together(KERN_COMPUTE_INT8, KERN_KV_F32, options, (struct run_options){.chunk = 20}, 9,
                   "plain together");
    check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options, (struct run_options){.chunk = 20}, 9,
                   "plain together kv int8");
}

TEST(invariance, chunk_sizes)
{
    static const uint32_t chunks[] = {1, 7, 16, 64, 100};
    struct engine_options options = base_options(0, 0);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        check_together(KERN_COMPUTE_INT8, KERN_KV_F16, options,
                       (struct run_options){.chunk = chunks[i]}, JOBS, "chunk int8");
        check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options,
                       (struct run_options){.chunk = chunks[i]}, JOBS, "chunk int8 kv int8");
    }
    check_together(KERN_COMPUTE_F32, KERN_KV_F32, options, (struct run_options){.chunk = 16}, JOBS,
                   "chunk f32");
}

TEST(invariance, threads)
{
    struct engine_options options = base_options(0, 0);
    for (unsigned threads = 2; threads <= 5; threads++) {
        options.threads = threads;
        check_together(KERN_COMPUTE_INT8, KERN_KV_F16, options, base_run(), JOBS, "threads");
        /* items end at odd rows: two threads write the halves of one V pair */
        check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options, (struct run_options){.chunk = 51},
                       JOBS, "threads kv int8");
    }
}

TEST(invariance, page_sizes_and_runs)
{
    struct engine_options options = base_options(0, 0);
    for (uint32_t tokens = 16; tokens <= 128; tokens *= 2) {
        options.page_tokens = tokens;
        options.layer_run = tokens / 32 + 1;
        check_together(KERN_COMPUTE_INT8, KERN_KV_F16, options, (struct run_options){.chunk = 50},
                       JOBS, "page size");
        check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options, (struct run_options){.chunk = 50},
                       JOBS, "page size kv int8");
    }
}

TEST(invariance, one_step_in_flight)
{
    struct engine_options options = base_options(0, 0);
    options.threads = 2;
    struct run_options run = {.chunk = 64, .in_flight = true};
    check_together(KERN_COMPUTE_INT8, KERN_KV_F16, options, run, JOBS, "in flight int8");
    check_together(KERN_COMPUTE_F32, KERN_KV_F32, options, run, JOBS, "in flight f32");
    check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options, run, JOBS, "in flight kv int8");
}

/* Rows that many sequences give in one call, against each sequence added by itself: with and without unknown tokens, and pages short
 * enough that each answer opens some and fills some. */
TEST(invariance, rows_in_one_call)
{
    enum { LONG = 40 };
    struct model_file *model = harness_model();
    struct engine_options options = base_options(KERN_COMPUTE_INT8, KERN_KV_F16);
    options.page_tokens = 16;
    for (int in_flight = 0; in_flight < 2; in_flight++) {
        struct run_options run = {.chunk = 64, .in_flight = in_flight};
        for (int rows = 0; rows < 2; rows++) {
            struct engine *engine = harness_engine(model, options);
            struct job *jobs = rows ? got : expected;
            for (uint32_t j = 0; j < FEW; j++) {
                job_init(&jobs[j], j, prompt_counts[j], LONG - 3 * j, model->config.vocab);
                jobs[j].keep_logits = false;
            }
            run.rows = rows;
            jobs_run(engine, jobs, FEW, &run, 7);
            engine_destroy(engine);
        }
        for (uint32_t j = 0; j < FEW; j++)
            job_compare(&expected[j], &got[j], model->config.vocab, true, "rows in one call");
        jobs_free(expected, FEW);
        jobs_free(got, FEW);
    }
    model_close(model);
}

TEST(invariance, opaque_backend)
{
    struct engine_options options = base_options(0, 0);
    options.backend = "opaque";
    options.threads = 2;
    struct run_options run = {.chunk = 64, .in_flight = true};
    check_together(KERN_COMPUTE_INT8, KERN_KV_F16, options, run, JOBS, "opaque int8");
    check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options, run, JOBS, "opaque kv int8");
    run.in_flight = false;
    check_together(KERN_COMPUTE_F32, KERN_KV_F32, options, run, JOBS, "opaque f32");
}

TEST(invariance, stale_pages_do_no_harm)
{
    struct engine_options options = base_options(0, 0);
    options.poison_pages = true;
    struct run_options run = {.chunk = 40, .skip_zeroing = true};
    check_together(KERN_COMPUTE_INT8, KERN_KV_F16, options, run, JOBS, "NaN pages f16");
    check_together(KERN_COMPUTE_F32, KERN_KV_F32, options, run, JOBS, "NaN pages f32");
    check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options, run, JOBS, "NaN pages int8");
    options.isa = "plain";
    check_together(KERN_COMPUTE_INT8, KERN_KV_INT8, options, run, 8, "NaN pages plain int8");
    check_together(KERN_COMPUTE_INT8, KERN_KV_F32, options, run, 8, "NaN pages plain");
    options.isa = "auto";
    options.page_tokens = 16;
    check_together(KERN_COMPUTE_INT8, KERN_KV_F32, options, run, JOBS, "NaN small pages");
}

/* On the pages of another request, which computed and sealed them: the logits of every position behind them, the tokens and the
 * pages are those of a request that computes everything. */
static void check_reuse(const struct model_file *model, enum kern_kv_type kv_type,
                        const char *backend, uint32_t reuse_pages, uint32_t chunk)
{
    enum { PAGE = 32, PROMPT = 150 };
    struct engine_options options = base_options(KERN_COMPUTE_INT8, kv_type);
    options.backend = backend;
    struct engine *engine = harness_engine(model, options);
    struct job first, whole, reusing;
    uint32_t vocab = model->config.vocab, shared = reuse_pages * PAGE;
    struct run_options run = base_run();
    job_init(&first, 3, PROMPT - 10, ANSWER, vocab);
    jobs_run(engine, &first, 1, &run, 0);
    struct job *const jobs[] = {&whole, &reusing};
    for (int i = 0; i < 2; i++) { /* the other's first ids, then its own */
        job_init(jobs[i], 5, PROMPT, ANSWER, vocab);
        memcpy(jobs[i]->prompt, first.prompt, shared * sizeof *first.prompt);
        if (i == 1)
            run = (struct run_options){.chunk = chunk, .reuse = &first, .reuse_pages = reuse_pages};
        jobs_run(engine, jobs[i], 1, &run, 20 + 10 * (uint32_t)i);
    }
    size_t skipped = (size_t)shared * vocab, rest = (size_t)(PROMPT + ANSWER - 1) * vocab - skipped;
    CHECK_INT(memcmp(whole.logits, first.logits, skipped * sizeof(float)), 0);
    CHECK(memcmp(whole.logits + skipped, first.logits + skipped, vocab * sizeof(float)) != 0);
    CHECK_INT(memcmp(whole.logits + skipped, reusing.logits + skipped, rest * sizeof(float)), 0);
    for (size_t i = 0; i < skipped; i++)
        CHECK(reusing.logits[i] == 0); /* so nothing was computed again */
    CHECK_INT(memcmp(whole.answer, reusing.answer, sizeof whole.answer), 0);
    CHECK_INT(memcmp(whole.logprobs, reusing.logprobs, sizeof whole.logprobs), 0);
    CHECK_INT(whole.sum_count, reusing.sum_count);
    CHECK_INT(memcmp(whole.sums, reusing.sums, whole.sum_count * sizeof *whole.sums), 0);
    job_finish(&first);
    job_finish(&whole);
    job_finish(&reusing);
    engine_destroy(engine);
}

TEST(invariance, pages_that_another_request_computed)
{
    struct model_file *model = harness_model();
    for (enum kern_kv_type kv_type = 0; kv_type < KERN_KV_TYPE_COUNT; kv_type++) {
        check_reuse(model, kv_type, "cpu", 1, 512);
        check_reuse(model, kv_type, "cpu", 4, 7);
        check_reuse(model, kv_type, "opaque", 3, 33);
    }
    model_close(model);
}
