/* See harness.h. */
#include "tests/engine/harness.h"

#include "base/clock.h"
#include "tests/test.h"

struct model_file *harness_model(void)
{
    const char *path = getenv("BATON_ENGINE_MODEL");
    CHECK_MSG(path, "BATON_ENGINE_MODEL is not set: run under meson test");
    struct model_file *model = NULL;
    struct err err = ERR_INIT;
    CHECK_MSG(model_open(path, &model, &err) == STATUS_OK, "%s", err.message);
    return model;
}

struct engine *harness_engine(const struct model_file *model, struct engine_options options)
{
    struct engine *engine = NULL;
    struct err err = ERR_INIT;
    CHECK_MSG(engine_create(&options, model, &engine, &err) == STATUS_OK, "%s", err.message);
    return engine;
}

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ x >> 16;
}

void job_init(struct job *job, uint32_t number, uint32_t prompt_count, uint32_t answer_count,
              uint32_t vocab)
{
    static const struct sampling_bias bias[] = {{3, 1.5f}, {17, -2.0f}};
    *job = (struct job){.prompt_count = prompt_count,
                        .answer_count = answer_count,
                        .params = sampling_params_default(),
                        .seed = 1000 + number,
                        .keep_logits = true};
    CHECK(prompt_count <= JOB_PROMPT_MAX && answer_count <= JOB_ANSWER_MAX);
    for (uint32_t i = 0; i < prompt_count; i++)
        job->prompt[i] = mix(number * 7919 + i) % vocab;
    struct sampling_params *p = &job->params;
    p->logprobs = (int32_t)(number % 4);
    if (number % 2 == 0) {
        p->temperature = 0;
        p->repetition_penalty = number % 4 ? 1.3f : 1.0f;
        return;
    }
    p->temperature = 0.9f + 0.1f * (float)(number % 3);
    p->top_k = number % 3 == 0 ? 40 : 0;
    p->top_p = number % 5 == 0 ? 1.0f : 0.95f;
    p->min_p = number % 7 == 0 ? 0.01f : 0;
    p->repetition_penalty = 1.1f;
    p->presence_penalty = 0.3f;
    p->frequency_penalty = 0.2f;
    p->logit_bias = bias;
    p->logit_bias_count = 2;
}

void job_finish(struct job *job)
{
    free(job->logits);
    job->logits = NULL;
}

struct engine_step *harness_step_wait(struct engine *engine)
{
    struct engine_event event;
    for (int i = 0; i < 3000; i++) {
        while (engine_poll(engine, &event))
            if (event.kind == ENGINE_STEP_DONE)
                return event.step;
        engine_wait(engine, NS_PER_S / 100);
    }
    TEST_FAIL("a step did not end within 30 s");
    return NULL;
}

static void job_start(struct engine *engine, struct job *job, uint32_t *next_page,
                      const struct run_options *options)
{
    const struct engine_info *info = engine_info(engine);
    uint32_t tokens = job->prompt_count + job->answer_count;
    job->page_count = (tokens + info->page_tokens - 1) / info->page_tokens;
    CHECK(job->page_count <= JOB_PAGES_MAX && *next_page + job->page_count <= info->page_count);
    uint32_t reused = options->reuse ? options->reuse_pages : 0;
    for (uint32_t i = 0; i < job->page_count; i++) /* scattered: backwards */
        job->pages[i] =
            i < reused ? options->reuse->pages[i] : info->page_count - 1 - (*next_page)++;
    job->done_rows = reused * info->page_tokens;
    if (!options->skip_zeroing)
        engine_pages_zero(engine, job->pages + reused, job->page_count - reused);
    CHECK(engine_slot_take(engine, &job->slot) == STATUS_OK);
    job->pending = ENGINE_NONE;
    job->sampling = (struct kern_sampling){.seed = job->seed,
                                           .prompt = job->prompt,
                                           .prompt_count = job->prompt_count,
                                           .generated = job->answer};
    engine_sampling_set(&job->params, &job->sampling);
    if (job->keep_logits)
        job->logits = calloc((size_t)tokens * info->vocab_size, sizeof(float));
}

/* Adds the first `count` jobs from `jobs` on that have one row each; returns how many do. */
static uint32_t rows_add(struct engine *engine, struct engine_step *step, struct job *jobs,
                         uint32_t count)
{
    struct engine_row rows[64];
    uint32_t found = 0, page_tokens = engine_info(engine)->page_tokens, added, sample;
    for (; found < count; found++) {
        struct job *job = &jobs[found];
        bool unknown = job->pending != ENGINE_NONE;
        /* the last one seals what it leaves partly filled, which rows do not */
        if (job->done_rows < job->prompt_count ||
            job->done_rows + 2 > job->prompt_count + job->answer_count - 1)
            break;
        rows[found] = (struct engine_row){.pages = job->pages,
                                          .sampling = &job->sampling,
                                          .slot = job->slot,
                                          .token = unknown ? ENGINE_TOKEN_PREV(job->pending)
                                                           : job->answer[job->answered - 1],
                                          .position = job->done_rows,
                                          .page_count = job->page_count,
                                          .generated_count = job->answered,
                                          .opens = job->done_rows % page_tokens == 0};
    }
    if (!found)
        return 0;
    CHECK_INT(engine_step_add_rows(step, rows, found, &added, &sample), STATUS_OK);
    CHECK_INT(added, found);
    for (uint32_t i = 0; i < added; i++) {
        jobs[i].done_rows++;
        jobs[i].pending = sample + i;
    }
    return found;
}

/* The rows of job that go into the step being built; 0 when it has none. */
static uint32_t job_add(struct engine *engine, struct engine_step *step, struct job *job,
                        uint32_t chunk)
{
    uint32_t total = job->prompt_count + job->answer_count - 1; /* the last token is never fed */
    if (job->done_rows >= total)
        return 0;
    bool prefill = job->done_rows < job->prompt_count;
    uint32_t rows = 1;
    if (prefill) {
        rows = job->prompt_count - job->done_rows;
        rows = rows < chunk ? rows : chunk;
    }
    bool unknown = !prefill && job->pending != ENGINE_NONE;
    struct engine_seq_input input = {
        .slot = job->slot,
        .row_count = rows,
        .position_begin = job->done_rows,
        .prev_sample = unknown ? job->pending : ENGINE_NONE,
        .pages = job->pages,
        .page_count = job->page_count,
        .seal_partial = job->done_rows + rows == total,
        .sampling = job->done_rows + rows >= job->prompt_count ? &job->sampling : NULL,
        .generated_count = job->answered,
    };
    if (prefill)
        input.tokens = job->prompt + job->done_rows;
    else if (!unknown)
        input.tokens = job->answer + job->answered - 1;
    if (job->keep_logits)
        input.logits_out = job->logits + (size_t)job->done_rows * engine_info(engine)->vocab_size;
    uint32_t index;
    CHECK_INT(engine_step_add(step, &input, &index), STATUS_OK);
    job->done_rows += rows;
    job->pending = index;
    return rows;
}

void jobs_run(struct engine *engine, struct job *jobs, uint32_t count,
              const struct run_options *options, uint32_t page_first)
{
    const struct engine_info *info = engine_info(engine);
    for (uint32_t j = 0; j < count; j++)
        job_start(engine, &jobs[j], &page_first, options);
    uint32_t submitted = 0, collected = 0;
    uint32_t samples[2][64]; /* [step][job] */
    CHECK(count <= 64);
    for (;;) {
        struct engine_step *step = engine_step_begin(engine);
        CHECK(step);
        uint32_t *indices = samples[submitted % 2], rows = 0;
        for (uint32_t j = 0, together; j < count; j += together) {
            together = options->rows ? rows_add(engine, step, &jobs[j], count - j) : 0;
            uint32_t added = together;
            if (!together)
                added = job_add(engine, step, &jobs[j], options->chunk);
            if (!added)
                jobs[j].pending = ENGINE_NONE;
            together += !together;
            for (uint32_t i = j; i < j + together; i++)
                indices[i] = jobs[i].pending;
            rows += added;
        }
        if (rows) {
            CHECK_INT(engine_submit(step), STATUS_OK);
            submitted++;
        } else {
            engine_step_abandon(step);
        }
        /* with a step in flight, collect the one before; else (or at the end) this one */
        while (collected < submitted &&
               (!options->in_flight || !rows || submitted - collected == 2)) {
            step = harness_step_wait(engine);
            indices = samples[collected++ % 2];
            for (uint32_t j = 0; j < count; j++) {
                if (indices[j] == ENGINE_NONE)
                    continue;
                const struct kern_sample_out *out = engine_step_result(step, indices[j]);
                CHECK(out->finished);
                jobs[j].finite = out->finite;
                jobs[j].logprobs[jobs[j].answered] = out->logprob;
                jobs[j].answer[jobs[j].answered++] = out->token;
                if (!options->in_flight)
                    jobs[j].pending = ENGINE_NONE;
            }
        }
        if (!rows && collected == submitted)
            break;
    }
    for (uint32_t j = 0; j < count; j++) {
        struct job *job = &jobs[j];
        CHECK_INT(job->answered, job->answer_count);
        uint32_t pages = (job->done_rows + info->page_tokens - 1) / info->page_tokens;
        for (uint32_t p = 0; p < pages; p++) {
            CHECK(engine_page_sealed(engine, job->pages[p]));
            for (uint32_t r = 0; r < info->run_count && job->sum_count < JOB_SUMS_MAX; r++)
                CHECK(engine_piece_sum(engine, job->pages[p], r, &job->sums[job->sum_count++]));
        }
        engine_slot_release(engine, job->slot);
    }
}

void job_compare(const struct job *expected, const struct job *got, uint32_t vocab,
                 bool compare_sums, const char *what)
{
    CHECK_INT(got->finite, expected->finite);
    for (uint32_t i = 0; i < expected->answer_count; i++) {
        CHECK_MSG(got->answer[i] == expected->answer[i],
                  "%s: prompt of %u: token %u is %u, expected %u", what, expected->prompt_count, i,
                  got->answer[i], expected->answer[i]);
        CHECK_MSG(memcmp(&got->logprobs[i], &expected->logprobs[i], sizeof(float)) == 0,
                  "%s: prompt of %u: logprob %u is %a, expected %a", what, expected->prompt_count,
                  i, (double)got->logprobs[i], (double)expected->logprobs[i]);
    }
    if (expected->logits && got->logits) {
        uint32_t rows = expected->prompt_count + expected->answer_count - 1;
        for (size_t i = 0; i < (size_t)rows * vocab; i++)
            CHECK_MSG(memcmp(&got->logits[i], &expected->logits[i], sizeof(float)) == 0,
                      "%s: prompt of %u: position %zu, logit %zu: %a, expected %a", what,
                      expected->prompt_count, i / vocab, i % vocab, (double)got->logits[i],
                      (double)expected->logits[i]);
    }
    if (compare_sums) {
        CHECK_INT(got->sum_count, expected->sum_count);
        for (uint32_t i = 0; i < expected->sum_count; i++)
            CHECK_MSG(got->sums[i] == expected->sums[i], "%s: checksum %u differs", what, i);
    }
}
