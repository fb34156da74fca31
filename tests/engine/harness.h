/* Runs whole requests on an engine, in any way the tests want to vary: chunk size, batch mates, one step of unknown tokens
 * in flight or none. Every logit of every position, every token and every page's checksum is kept, so that two ways can be
 * compared to the bit. */
#ifndef BATON_TESTS_ENGINE_HARNESS_H
#define BATON_TESTS_ENGINE_HARNESS_H

#include "engine/engine.h"
#include "model/model.h"

enum { JOB_PROMPT_MAX = 600, JOB_ANSWER_MAX = 64, JOB_PAGES_MAX = 64, JOB_SUMS_MAX = 1024 };

struct job {
    /* what to run */
    uint32_t prompt[JOB_PROMPT_MAX], prompt_count, answer_count;
    struct sampling_params params;
    struct kern_sampling sampling; /* of them */
    uint64_t seed;
    bool keep_logits;
    /* what came out */
    uint32_t answer[JOB_ANSWER_MAX];
    float logprobs[JOB_ANSWER_MAX];
    bool finite;
    float *logits; /* [prompt_count + answer_count - 1][vocab] */
    uint64_t sums[JOB_SUMS_MAX];
    uint32_t sum_count;
    /* running */
    uint32_t slot, pages[JOB_PAGES_MAX], page_count, done_rows, answered;
    uint32_t pending; /* its sample in the step submitted last, ENGINE_NONE */
};

struct run_options {
    uint32_t chunk;    /* rows of a prompt in one step */
    bool in_flight;    /* submit step n+1 before step n's tokens are known */
    bool skip_zeroing; /* leave the pages as they are */
    bool rows;         /* what decodes goes to the engine as rows, many in one call */
    /* The first pages of this job, which has run, are used as they are: their rows are not computed, their logits stay zero. */
    const struct job *reuse;
    uint32_t reuse_pages;
};

/* A deterministic job: prompt of `prompt_count` tokens; odd numbers are sampled with everything on, even ones greedy. */
void job_init(struct job *job, uint32_t number, uint32_t prompt_count, uint32_t answer_count,
              uint32_t vocab);
void job_finish(struct job *job);
/* Runs the jobs together to their ends. Pages are taken from `page_first` on, in a scattered order. */
void jobs_run(struct engine *engine, struct job *jobs, uint32_t count,
              const struct run_options *options, uint32_t page_first);
/* Fails the test unless the two gave the same bits. `what` names the way that `got` was run. */
void job_compare(const struct job *expected, const struct job *got, uint32_t vocab,
                 bool compare_sums, const char *what);
/* Polls until STEP_DONE of the oldest step. */
struct engine_step *harness_step_wait(struct engine *engine);
struct model_file *harness_model(void); /* the tiny model */
struct engine *harness_engine(const struct model_file *model, struct engine_options options);

#endif
