/* The inside of the engine of the simulation: fake_engine.c runs its steps and copies, fake_pages.c has its pages and shows all of it.
 * Owner: the simulation's only thread. */
#ifndef BATON_TESTS_SIM_FAKE_ENGINE_IMPL_H
#define BATON_TESTS_SIM_FAKE_ENGINE_IMPL_H

#include <assert.h>
#include <string.h>

#include "tests/sim/fake_engine.h"
#include "tests/sim/virtual.h"

enum { STEPS = 2, EVENTS_MAX = 512 };
enum fill { FILL_NONE, FILL_ZERO, FILL_DROPPED };
enum step_state { STEP_IDLE, STEP_OPEN, STEP_IN_FLIGHT };

struct fake_seq {
    uint32_t slot, position, row_count, pages_begin, page_count, tokens_begin, prev_sample;
    bool skipped;          /* cancelled when the layer began, or before */
    uint32_t sample;       /* ENGINE_NONE */
    uint32_t answer_index; /* of the token sampled */
    uint64_t seed;
    uint32_t n_index;
    const uint32_t
        *table; /* the caller's: what the step was given must still be there when it runs */
};

struct engine_step {
    struct engine *engine;
    enum step_state state;
    void *cookie;
    struct fake_seq *seqs;
    uint32_t *tokens, *pages, *fills, *sealed, *sealed_seqs;
    uint32_t seq_count, row_count, page_count, sample_count, fill_count, sealed_count;
    struct kern_sample_out *outs;
    uint64_t *sums; /* [runs][sealed] */
    const struct engine_step *prev;
    uint64_t submitted_ns, begin_ns, end_ns;
};

struct fake_slot {
    bool taken, released, cancelled, acked, failed;
    uint32_t in_flight;
    uint32_t page_open; /* 1 + the page that its last row added went to; 0: none */
};

struct engine {
    struct engine_info info;
    struct fake_options options;
    uint64_t *kv;   /* [page][layer][page_tokens] */
    uint8_t *known; /* the same shape: computed or verified since the page was zeroed or unsealed */
    uint64_t *sums; /* [page][run] */
    uint64_t *sealed; /* [page], bits of runs */
    uint8_t *fill;    /* [page] */
    uint32_t *fill_list, fill_count;
    uint64_t *fill_step; /* [page] the number of the step that zeroes it */
    uint64_t fills_done;
    struct fake_slot *slots;
    struct engine_step steps[STEPS];
    struct engine_step *last_submitted;
    uint64_t steps_begun, steps_submitted, steps_run,
        steps_done;        /* run: all layers; done: polled */
    uint32_t layer;        /* of the running step */
    uint64_t layer_end_ns; /* DEADLINE_NONE: no step runs */
    struct engine_copy **copies;
    uint64_t copies_submitted, copies_done, copy_end_ns;
    struct engine_event events[EVENTS_MAX];
    uint64_t events_in, events_out;
    void (*wake)(void *context);
    void *wake_context;
    struct engine_progress progress;
    uint64_t layer_begin_ns;
};

static inline size_t word_of(const struct engine *engine, uint32_t page, uint32_t layer,
                             uint32_t within)
{
    assert(page < engine->info.page_count && layer < engine->info.layers);
    return ((size_t)page * engine->info.layers + layer) * engine->info.page_tokens + within;
}

static inline uint64_t kv_next(uint64_t before, uint32_t token, uint32_t layer)
{
    uint64_t kv = mix64(before ^ mix64(((uint64_t)layer << 32 | token) + 0x51ed2701));
    return kv ? kv : 1;
}

static inline uint64_t token_hash(uint64_t evidence, uint64_t seed, uint32_t n_index,
                                  uint32_t position)
{
    return mix64(evidence ^ mix64(seed + ((uint64_t)n_index << 32 | position)));
}

static inline uint64_t piece_sum(const struct engine *engine, uint32_t page, uint32_t run,
                                 const void *of)
{
    uint64_t word, sum = run;
    const uint8_t *bytes =
        of ? of : (const void *)&engine->kv[word_of(engine, page, run * engine->info.layer_run, 0)];
    for (uint64_t i = 0; i < engine_piece_bytes(engine, run) / sizeof word; i++) {
        memcpy(&word, bytes + i * sizeof word, sizeof word);
        sum = mix64(sum ^ word) + i;
    }
    return sum;
}

#endif
