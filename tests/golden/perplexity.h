/* Perplexity of a text: exp of the mean of -ln p(token | the tokens before it in its window). The tool and the test share
 * it. Windows of PERPLEXITY_WINDOW tokens begin every PERPLEXITY_STRIDE; of each but the first only the later half counts, so
 * that every token but the first ones has at least half a window before it.
 * Owner: the main thread; failures of our own calls are asserted. */
#ifndef BATON_TESTS_GOLDEN_PERPLEXITY_H
#define BATON_TESTS_GOLDEN_PERPLEXITY_H

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "kernels/cpu/mathf.h"
#include "model/model.h"
#include "model/tokenizer.h"

enum {
    PERPLEXITY_WINDOW = 1024,
    PERPLEXITY_STRIDE = 512,
    PERPLEXITY_ROWS = 64, /* of logits at a time */
    PERPLEXITY_PAGE_TOKENS = 32,
    PERPLEXITY_PAGES = PERPLEXITY_WINDOW / PERPLEXITY_PAGE_TOKENS,
};

/* The ids of a file, without special tokens; false when it cannot be read. */
static inline bool perplexity_ids(const struct model_file *model, const char *path,
                                  struct token_list *ids)
{
    FILE *file = fopen(path, "rb");
    static char text[1 << 20];
    size_t bytes = file ? fread(text, 1, sizeof text, file) : 0;
    if (file)
        fclose(file);
    struct tokenizer_scratch *scratch = tokenizer_scratch_create();
    struct err err = ERR_INIT;
    bool done = bytes && scratch &&
                tokenizer_encode(model->tokenizer, scratch, text, bytes,
                                 (struct tokenizer_options){0}, ids, &err) == STATUS_OK;
    tokenizer_scratch_destroy(scratch);
    return done;
}

/* Options of an engine that perplexity_sum can use. */
static inline struct engine_options perplexity_options(enum kern_compute compute,
                                                       enum kern_kv_type kv_type)
{
    return (struct engine_options){.compute = compute,
                                   .kv_type = kv_type,
                                   .kv_pages = PERPLEXITY_PAGES,
                                   .page_tokens = PERPLEXITY_PAGE_TOKENS,
                                   .context_tokens = PERPLEXITY_WINDOW,
                                   .rows_max = PERPLEXITY_WINDOW,
                                   .seqs_max = 1,
                                   .samples_max = PERPLEXITY_ROWS};
}

static inline void perplexity_rows(struct engine *engine, uint32_t slot, const uint32_t *ids,
                                   uint32_t begin, uint32_t end, float *logits)
{
    uint32_t pages[PERPLEXITY_PAGES];
    for (uint32_t i = 0; i < PERPLEXITY_PAGES; i++)
        pages[i] = i;
    struct engine_step *step = engine_step_begin(engine);
    struct engine_seq_input input = {.slot = slot,
                                     .tokens = ids + begin,
                                     .row_count = end - begin,
                                     .prev_sample = ENGINE_NONE,
                                     .position_begin = begin,
                                     .pages = pages,
                                     .page_count = PERPLEXITY_PAGES,
                                     .logits_out = logits};
    enum status status = engine_step_add(step, &input, NULL);
    assert(status == STATUS_OK);
    status = engine_submit(step);
    assert(status == STATUS_OK);
    struct engine_event event;
    do
        engine_wait(engine, NS_PER_S);
    while (!engine_poll(engine, &event) || event.kind != ENGINE_STEP_DONE);
}

static inline double perplexity_log_sum_exp(const float *logits, uint32_t vocab)
{
    double max = -1e300, sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (uint32_t i = 0; i < vocab; i++)
        if ((double)logits[i] - max > -600)
            sum += mathf_exp_f64((double)logits[i] - max);
    return max + mathf_log_f64(sum);
}

/* The sum of -ln p(ids[i] | ids[0 … i-1]) over i in [first, count): one window. first >= 1. */
static inline double perplexity_window(struct engine *engine, const uint32_t *ids, uint32_t count,
                                       uint32_t first)
{
    uint32_t vocab = engine_info(engine)->vocab_size, slot, begin = first - 1;
    float *logits = malloc((size_t)PERPLEXITY_ROWS * vocab * sizeof *logits);
    enum status status = engine_slot_take(engine, &slot);
    assert(logits && status == STATUS_OK && first >= 1 && count <= PERPLEXITY_WINDOW);
    if (begin)
        perplexity_rows(engine, slot, ids, 0, begin, NULL);
    double sum = 0;
    while (begin + 1 < count) {
        uint32_t rest = count - 1 - begin, rows = rest < PERPLEXITY_ROWS ? rest : PERPLEXITY_ROWS;
        perplexity_rows(engine, slot, ids, begin, begin + rows, logits);
        for (uint32_t i = 0; i < rows; i++) {
            const float *row = logits + (size_t)i * vocab;
            sum += perplexity_log_sum_exp(row, vocab) - (double)row[ids[begin + i + 1]];
        }
        begin += rows;
    }
    engine_slot_release(engine, slot);
    free(logits);
    return sum;
}

/* The sum over a whole text; `scored_out` gets how many tokens it is of. */
static inline double perplexity_sum(struct engine *engine, const uint32_t *ids, size_t count,
                                    size_t *scored_out)
{
    double sum = 0;
    size_t scored = 0;
    for (size_t at = 0; at == 0 || at + PERPLEXITY_STRIDE < count; at += PERPLEXITY_STRIDE) {
        size_t rest = count - at, window = rest < PERPLEXITY_WINDOW ? rest : PERPLEXITY_WINDOW;
        uint32_t first = at ? PERPLEXITY_WINDOW - PERPLEXITY_STRIDE : 1;
        sum += perplexity_window(engine, ids + at, (uint32_t)window, first);
        scored += window - first;
    }
    *scored_out = scored;
    return sum;
}

#endif
