/* See reach.h. */
#include "engine/reach.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/internal.h"

enum {
    SEQS = 64,     /* the most of a step */
    PROMPT = 256,  /* rows of the prompt's step */
    FAR_ROWS = 32, /* of a prompt, far into the context */
    FAR = 2048,    /* how far; less where the context ends before */
    PAGE = 64,     /* positions */
    FAR_PAGES = FAR / PAGE + 1,
    ROUNDS_LONG = 2, /* with the long step */
    ROUNDS = 4
};
/* After so many seconds no further round of steps is begun: a machine that is slow is measured once. */
static const double enough_seconds = 1.0;
/* A step that is expected to take longer is not run: fewer rows tell, which is slower than it is where rows share something. */
static const double step_enough_seconds = 1.5;
static const uint64_t step_patience_ns = 60 * NS_PER_S;

static const uint32_t points[ENGINE_REACH_POINTS] = {1, 4, 16, SEQS, PROMPT};

struct trial {
    struct engine *engine;
    struct kern_sampling greedy;
    uint32_t slots[SEQS];
    uint32_t far; /* a position */
    uint32_t tokens[PROMPT];
    uint32_t pages[SEQS + PROMPT / PAGE + FAR_PAGES];
    /* the best of each, seconds */
    double bare[ENGINE_REACH_POINTS], whole[ENGINE_REACH_POINTS], far_one, far_rows, near_rows;
};

/* One step: `seqs` sequences of `rows` rows each from `position` on. Its time, if it is the best, into *best. */
static enum status step_run(struct trial *trial, uint32_t seqs, uint32_t rows, uint32_t position,
                            bool logits, double *best)
{
    struct engine_step *step = engine_step_begin(trial->engine);
    uint32_t each = seqs > 1 ? 1 : sizeof trial->pages / sizeof trial->pages[0];
    enum status status = step ? STATUS_OK : STATUS_INTERNAL;
    for (uint32_t s = 0; !status && s < seqs; s++) {
        struct engine_seq_input input = {.slot = trial->slots[s],
                                         .tokens = trial->tokens,
                                         .row_count = rows,
                                         .prev_sample = ENGINE_NONE,
                                         .position_begin = position,
                                         .pages = trial->pages + s * each,
                                         .page_count = each,
                                         .sampling = logits ? &trial->greedy : NULL};
        status = engine_step_add(step, &input, NULL);
    }
    if (!status)
        status = engine_submit(step);
    if (status) {
        if (step)
            engine_step_abandon(step);
        return status;
    }
    uint64_t until_ns = clock_now_ns() + step_patience_ns, begin_ns, end_ns;
    for (struct engine_event event = {0}; event.kind != ENGINE_STEP_DONE;) {
        if (engine_poll(trial->engine, &event))
            continue;
        event.kind = ENGINE_RUN_DONE;
        if (clock_now_ns() > until_ns)
            return STATUS_DEVICE;
        engine_wait(trial->engine, NS_PER_S);
    }
    engine_step_times(step, &begin_ns, &end_ns);
    double seconds = (double)(end_ns - begin_ns) * 1e-9;
    if (*best == 0 || seconds < *best)
        *best = seconds;
    return STATUS_OK;
}

/* The best of a few: of short ones more, since whoever else wants the processor for a moment has all of it. */
static enum status step_best(struct trial *trial, uint32_t seqs, uint32_t rows, uint32_t position,
                             bool logits, double *best)
{
    enum { TRIES = 5 };
    const double enough = 0.1;
    enum status status = STATUS_OK;
    for (int i = 0; !status && i < TRIES && (i == 0 || *best * i < enough); i++)
        status = step_run(trial, seqs, rows, position, logits, best);
    return status;
}

/* Whether a step of `rows` rows is short enough, by one of `fewer` rows; else *best is what it tells. */
static bool short_enough(double seconds, uint32_t fewer, uint32_t rows, double *best)
{
    double guess = seconds * rows / fewer;
    if (guess <= step_enough_seconds)
        return true;
    *best = guess;
    return false;
}

/* Every kind of step; the prompt's, a long one, not each time. */
static enum status round_run(struct trial *trial, bool prompts)
{
    double *bare = trial->bare, *whole = trial->whole;
    enum status status = STATUS_OK;
    for (int i = 0; !status && i < ENGINE_REACH_POINTS; i++) {
        bool prompt = points[i] == PROMPT;
        uint32_t seqs = prompt ? 1 : points[i], rows = prompt ? PROMPT : 1;
        if (prompt && !prompts)
            continue;
        if (i == 0 || short_enough(bare[i - 1], points[i - 1], points[i], &bare[i]))
            status = step_best(trial, seqs, rows, 0, false, &bare[i]);
        if (status || prompt)
            continue;
        if (i == 0 || short_enough(whole[i - 1], points[i - 1], points[i], &whole[i]))
            status = step_best(trial, seqs, rows, 0, true, &whole[i]);
    }
    if (!status)
        status = step_best(trial, 1, 1, trial->far, false, &trial->far_one);
    if (!status && short_enough(trial->far_one, 1, FAR_ROWS, &trial->far_rows)) {
        status = step_best(trial, 1, FAR_ROWS, 0, false, &trial->near_rows);
        if (!status)
            status = step_best(trial, 1, FAR_ROWS, trial->far, false, &trial->far_rows);
    } else {
        trial->near_rows = bare[0] * FAR_ROWS;
    }
    return status;
}

static double positive(double seconds)
{
    return seconds > 0 ? seconds : 0;
}

static void reach_fill(const struct trial *trial, double layers, struct engine_reach *reach)
{
    double far = trial->far;
    memset(reach, 0, sizeof *reach);
    reach->decode_pair = positive(trial->far_one - trial->bare[0]) / far * layers;
    reach->prompt_pair = positive(trial->far_rows - trial->near_rows) / (FAR_ROWS * far) * layers;
    for (int i = 0; i < ENGINE_REACH_POINTS; i++) {
        reach->rows[i] = points[i];
        reach->layers[i] = trial->bare[i] * layers;
        reach->head[i] = positive(trial->whole[i] - trial->bare[i]);
        if (points[i] == PROMPT) { /* it saw itself, and nobody asked it for as many logits */
            reach->layers[i] =
                positive(reach->layers[i] - reach->prompt_pair * (double)roofline_pairs(0, PROMPT));
            reach->head[i] = reach->head[i - 1] * PROMPT / SEQS;
        }
        /* more rows take no less: what says so was measured while somebody else had the processor */
        if (i > 0 && reach->layers[i] < reach->layers[i - 1])
            reach->layers[i] = reach->layers[i - 1];
    }
}

static enum status trial_run(struct trial *trial, double layers, struct engine_reach *reach_out)
{
    const struct engine_info *info = engine_info(trial->engine);
    struct sampling_params params = sampling_params_default();
    params.temperature = 0;
    engine_sampling_set(&params, &trial->greedy);
    for (uint32_t i = 0; i < SEQS; i++)
        if (engine_slot_take(trial->engine, &trial->slots[i]))
            return STATUS_INTERNAL;
    for (uint32_t i = 0; i < sizeof trial->pages / sizeof trial->pages[0]; i++)
        trial->pages[i] = i;
    for (uint32_t i = 0; i < PROMPT; i++)
        trial->tokens[i] = (i * 2654435761u >> 8) % info->vocab_size;
    /* memory that was never written is one page of zeros, which stays in the caches */
    engine_pages_zero(trial->engine, trial->pages, sizeof trial->pages / sizeof trial->pages[0]);
    double warm = 0;
    enum status status = step_run(trial, 1, FAR_ROWS, 0, true, &warm);
    uint64_t begin_ns = clock_now_ns();
    for (int i = 0; !status && i < ROUNDS; i++)
        if (i == 0 || (double)(clock_now_ns() - begin_ns) * 1e-9 < enough_seconds)
            status = round_run(trial, i < ROUNDS_LONG);
    if (!status)
        reach_fill(trial, layers, reach_out);
    return status;
}

enum status engine_reach_measure(const struct engine_options *options,
                                 const struct model_file *model, const struct engine_limits *limits,
                                 struct engine_reach *reach_out, struct err *err)
{
    struct trial *trial = calloc(1, sizeof *trial);
    if (!trial)
        return err_set(err, STATUS_MEMORY, "no memory to measure the model");
    struct model_file part = *model;
    double layer_bytes = limits->model.layer_bytes / model->config.layers;
    double wanted = (double)ENGINE_REACH_BYTES / layer_bytes + 1;
    part.config.layers = wanted < model->config.layers ? (uint32_t)wanted : model->config.layers;
    uint32_t context =
        options->context_tokens ? options->context_tokens : model->config.context_tokens;
    trial->far = context > FAR + FAR_ROWS ? FAR : context > 2 * FAR_ROWS ? context - FAR_ROWS : 0;
    struct engine_options own = *options;
    own.context_tokens = context > PROMPT ? context : PROMPT;
    own.page_tokens = PAGE;
    own.kv_pages = sizeof trial->pages / sizeof trial->pages[0];
    own.rows_max = PROMPT;
    own.seqs_max = own.samples_max = SEQS;
    own.slots_max = 0;
    enum status status =
        trial->far ? engine_create(&own, &part, &trial->engine, err)
                   : err_set(err, STATUS_UNIMPLEMENTED, "a context of %u is too short", context);
    if (!status) {
        status = trial_run(trial, (double)model->config.layers / part.config.layers, reach_out);
        if (status)
            err_set(err, status, "a step to measure the model failed");
        engine_destroy(trial->engine);
    }
    free(trial);
    return status;
}

/* Straight lines between the points, and on from the last one as many times as long. */
static double at_rows(const struct engine_reach *reach, const double *seconds, uint32_t rows)
{
    const int last = ENGINE_REACH_POINTS - 1;
    if (rows >= reach->rows[last])
        return seconds[last] * rows / reach->rows[last];
    int i = 1;
    while (rows > reach->rows[i])
        i++;
    double part =
        ((double)rows - reach->rows[i - 1]) / ((double)reach->rows[i] - reach->rows[i - 1]);
    return seconds[i - 1] + part * (seconds[i] - seconds[i - 1]);
}

double engine_reach_seconds(const struct engine_reach *reach, const struct roofline_step *step)
{
    uint32_t rows = step->prompt_rows + step->decode_rows;
    if (!rows)
        return 0;
    double pair = step->decode_rows ? reach->decode_pair : reach->prompt_pair;
    return at_rows(reach, reach->layers, rows) +
           (step->samples ? at_rows(reach, reach->head, step->samples) : 0) +
           pair * (double)step->pairs;
}
