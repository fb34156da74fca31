/* Slots, and a step from its building to its events. See engine.h.
 *
 *     IDLE ── engine_step_begin ─▶ OPEN ── engine_submit ─▶ IN_FLIGHT ── STEP_DONE polled ─▶ IDLE
 *       ▲                            │
 *       └── engine_step_abandon ─────┘
 *
 * The two steps are used in turn, so the step submitted last is never the one that is being filled: its samples can be
 * referred to. */
#include "engine/internal.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"

/* --- slots --- */

static void slot_free(struct engine *engine, uint32_t slot)
{
    engine->slots[slot] = (struct engine_slot){0};
    engine->free_slots[engine->free_slot_count++] = slot;
}

enum status engine_slot_take(struct engine *engine, uint32_t *slot_out)
{
    if (engine->free_slot_count == 0)
        return STATUS_FULL;
    uint32_t slot = engine->free_slots[--engine->free_slot_count];
    engine->slots[slot] = (struct engine_slot){.taken = true};
    kern_cancels_reset(engine->cancels, slot);
    *slot_out = slot;
    return STATUS_OK;
}

void engine_slot_release(struct engine *engine, uint32_t slot)
{
    assert(slot < engine->info.slots_max && engine->slots[slot].taken &&
           !engine->slots[slot].released);
    engine->slots[slot].released = true;
    if (engine->slots[slot].in_flight == 0)
        slot_free(engine, slot);
}

void engine_cancel(struct engine *engine, uint32_t slot)
{
    assert(slot < engine->info.slots_max && engine->slots[slot].taken);
    kern_cancels_set(engine->cancels, slot);
    if (engine->slots[slot].in_flight == 0)
        kern_cancels_ack(engine->cancels, slot);
}

bool engine_cancel_acked(const struct engine *engine, uint32_t slot)
{
    assert(slot < engine->info.slots_max);
    return kern_cancels_acked(engine->cancels, slot);
}

bool engine_slot_failed(const struct engine *engine, uint32_t slot)
{
    assert(slot < engine->info.slots_max);
    return atomic_load(&engine->cancels->failed[slot]) != 0;
}

uint32_t engine_cancel_layers_max(const struct engine *engine)
{
    return atomic_load(&engine->cancels->lag_max);
}

/* --- building --- */

struct engine_step *engine_step_begin(struct engine *engine)
{
    struct engine_step *step = &engine->steps[engine->steps_begun % ENGINE_STEPS];
    assert(step->state != STEP_OPEN);
    if (step->state != STEP_IDLE)
        return NULL;
    engine->steps_begun++;
    step->state = STEP_OPEN;
    step->cookie = NULL;
    step->next_run = 0;
    struct kern_step *kern = step->kern;
    kern->row_count = kern->seq_count = kern->sample_count = 0;
    kern->sum_count = 0;
    kern->prev = NULL;
    return step;
}

void engine_step_abandon(struct engine_step *step)
{
    assert(step->state == STEP_OPEN);
    step->state = STEP_IDLE;
    step->engine->steps_begun--;
}

/* Blocks that `rows` rows reach, and the one that a position lies in. */
static uint32_t blocks_of(const struct engine *engine, uint32_t rows)
{
    return (rows + engine->info.page_tokens - 1) >> engine->page_shift;
}

static uint32_t block_at(const struct engine *engine, uint32_t position)
{
    return position >> engine->page_shift;
}

/* From here to engine_step_add, `row_count` is the input's: the constant 1 for all that decode, so that what one row does not need is
 * compiled away. */

static inline bool blocks_valid(const struct engine *engine, const struct engine_seq_input *input,
                                uint32_t row_count)
{
    uint32_t known = engine->slots[input->slot].blocks_checked;
    uint32_t written = block_at(engine, input->position_begin);
    uint32_t end = block_at(engine, input->position_begin + row_count - 1) + 1;
    if (input->page_count < end)
        return false;
    for (uint32_t i = written < known ? written : known; i < end; i++)
        if (input->pages[i] >= engine->info.page_count)
            return false;
    return true;
}

static inline bool input_valid(const struct engine_step *step, const struct engine_seq_input *input,
                               uint32_t row_count)
{
    const struct engine *engine = step->engine;
    const struct engine_info *info = &engine->info;
    if (input->slot >= info->slots_max || !engine->slots[input->slot].taken ||
        engine->slots[input->slot].released || row_count == 0 || row_count > info->context_tokens ||
        input->position_begin > info->context_tokens - row_count)
        return false;
    if (!blocks_valid(engine, input, row_count))
        return false;
    if (input->prev_sample != ENGINE_NONE) {
        const struct engine_step *last = engine->last_submitted;
        return row_count == 1 && !input->tokens && last &&
               input->prev_sample < last->kern->sample_count &&
               last->kern->samples[input->prev_sample].sampling;
    }
    if (!input->tokens)
        return false;
    for (uint32_t i = 0; i < row_count; i++)
        if (input->tokens[i] >= info->vocab_size)
            return false;
    return true;
}

/* Pages that these rows fill to the end, and the partial last one when asked for. */
static inline void seals_add(struct engine_step *step, const struct engine_seq_input *input,
                             uint32_t row_count)
{
    const struct engine *engine = step->engine;
    struct kern_step *kern = step->kern;
    uint32_t end = input->position_begin + row_count;
    uint32_t last = input->seal_partial ? blocks_of(engine, end) : block_at(engine, end);
    for (uint32_t i = block_at(engine, input->position_begin); i < last; i++) {
        assert(kern->sum_count < kern->caps.sums_max);
        kern->sum_pages[kern->sum_count] = input->pages[i];
        kern->sum_seqs[kern->sum_count++] = kern->seq_count;
    }
}

__attribute__((always_inline)) static inline enum status
rows_add(struct engine_step *step, const struct engine_seq_input *input, uint32_t row_count,
         uint32_t *sample_out)
{
    enum { AHEAD = 8 };
    struct engine *engine = step->engine;
    struct kern_step *kern = step->kern;
    assert(step->state == STEP_OPEN);
    __builtin_prefetch(&kern->seqs[kern->seq_count + AHEAD], 1);
    __builtin_prefetch(&kern->samples[kern->sample_count + AHEAD], 1);
    if (!input_valid(step, input, row_count))
        return STATUS_INVALID;
    uint32_t samples = input->logits_out ? row_count : input->sampling ? 1 : 0;
    if (row_count > kern->caps.rows_max - kern->row_count ||
        kern->seq_count == kern->caps.seqs_max ||
        samples > kern->caps.samples_max - kern->sample_count)
        return STATUS_FULL;

    seals_add(step, input, row_count);
    uint32_t row = kern->row_count, seq = kern->seq_count, sample = kern->sample_count;
    uint32_t blocks = blocks_of(engine, input->position_begin + row_count);
    engine->slots[input->slot].blocks_checked = blocks;
    kern->seqs[seq] = (struct kern_seq){.row_begin = row,
                                        .row_count = row_count,
                                        .position_begin = input->position_begin,
                                        .slot = input->slot,
                                        .block_count = blocks,
                                        .blocks = input->pages};
    bool prev = input->prev_sample != ENGINE_NONE;
    for (uint32_t i = 0; i < row_count; i++) {
        kern->tokens[row + i] = prev ? KERN_TOKEN_PREV | input->prev_sample : input->tokens[i];
        kern->positions[row + i] = input->position_begin + i;
        kern->row_seqs[row + i] = seq;
    }
    if (prev)
        kern->prev = engine->last_submitted->kern;
    for (uint32_t i = row_count - samples; i < row_count; i++) {
        bool sampled = input->sampling && i + 1 == row_count;
        kern->samples[sample++] = (struct kern_sample){
            .row = row + i,
            .seq = seq,
            .sampling = sampled ? input->sampling : NULL,
            .position = sampled ? input->generated_count + prev : 0,
            .generated_count = sampled ? input->generated_count : 0,
            .unknown_token = sampled && prev,
            .logits_out =
                input->logits_out ? input->logits_out + (size_t)i * engine->info.vocab_size : NULL,
        };
    }
    if (sample_out)
        *sample_out = input->sampling ? sample - 1 : ENGINE_NONE;
    kern->sample_count = sample;
    kern->row_count += row_count;
    kern->seq_count++;
    return STATUS_OK;
}

__attribute__((noinline)) static enum status
chunk_add(struct engine_step *step, const struct engine_seq_input *input, uint32_t *sample_out)
{
    return rows_add(step, input, input->row_count, sample_out);
}

enum status engine_step_add(struct engine_step *step, const struct engine_seq_input *input,
                            uint32_t *sample_out)
{
    return input->row_count == 1 ? rows_add(step, input, 1, sample_out)
                                 : chunk_add(step, input, sample_out);
}

uint32_t engine_step_rows(const struct engine_step *step)
{
    return step->kern->row_count;
}

void engine_step_cookie_set(struct engine_step *step, void *cookie)
{
    step->cookie = cookie;
}

void *engine_step_cookie(const struct engine_step *step)
{
    return step->cookie;
}

/* --- submitting --- */

enum status engine_submit(struct engine_step *step)
{
    struct engine *engine = step->engine;
    struct kern_step *kern = step->kern;
    assert(step->state == STEP_OPEN);
    if (kern->row_count == 0)
        return STATUS_INVALID;
    for (uint32_t s = 0; s < kern->seq_count; s++) {
        const struct kern_seq *seq = &kern->seqs[s];
        engine->slots[seq->slot].in_flight++;
        /* what is written has no checksum any more */
        for (uint32_t i = block_at(engine, seq->position_begin); i < seq->block_count; i++)
            engine->pages[seq->blocks[i]].sealed_runs = 0;
    }
    step->state = STEP_IN_FLIGHT;
    step->submitted_ns = clock_now_ns();
    engine->steps_submitted++;
    engine->last_submitted = step;
    if (engine->steps_submitted - engine->steps_done == 1)
        atomic_store(&engine->busy_since_ns, step->submitted_ns);
    engine_fills_enqueue(engine, step);
    engine_forward(engine, step);
    return STATUS_OK;
}

/* --- events --- */

static void step_finish(struct engine *engine, struct engine_step *step)
{
    const struct kern_step *kern = step->kern;
    for (uint32_t s = 0; s < kern->seq_count; s++) {
        uint32_t slot = kern->seqs[s].slot;
        struct engine_slot *state = &engine->slots[slot];
        assert(state->in_flight > 0);
        if (--state->in_flight)
            continue;
        kern_cancels_ack(engine->cancels, slot);
        if (state->released)
            slot_free(engine, slot);
    }
    step->state = STEP_IDLE;
    engine->steps_done++;
    const struct engine_step *next = &engine->steps[engine->steps_done % ENGINE_STEPS];
    bool busy = engine->steps_submitted != engine->steps_done;
    atomic_store(&engine->busy_since_ns, busy ? next->submitted_ns : 0);
}

bool engine_poll(struct engine *engine, struct engine_event *event_out)
{
    if (engine->steps_done != engine->steps_submitted) {
        struct engine_step *step = &engine->steps[engine->steps_done % ENGINE_STEPS];
        if (step->next_run < engine->info.run_count) {
            uint32_t run = step->next_run;
            if (engine->ops->event_query(step->run_done[run])) {
                step->next_run++;
                engine->fills_done = engine->steps_done + 1; /* they go ahead of its layers */
                engine_sums_store(engine, step, run);
                *event_out =
                    (struct engine_event){.kind = ENGINE_RUN_DONE, .step = step, .run = run};
                return true;
            }
        } else if (engine->ops->event_query(step->done)) {
            step_finish(engine, step);
            *event_out = (struct engine_event){.kind = ENGINE_STEP_DONE, .step = step};
            return true;
        }
    }
    struct engine_copy *copy = engine_copy_poll(engine);
    if (!copy)
        return false;
    *event_out = (struct engine_event){.kind = ENGINE_COPY_DONE, .copy = copy};
    return true;
}

static bool something_done(const struct engine *engine)
{
    if (engine->steps_done != engine->steps_submitted) {
        const struct engine_step *step = &engine->steps[engine->steps_done % ENGINE_STEPS];
        const struct kern_event *event =
            step->next_run < engine->info.run_count ? step->run_done[step->next_run] : step->done;
        if (engine->ops->event_query(event))
            return true;
    }
    return engine->copies_done != engine->copies_submitted &&
           engine->ops->event_query(
               engine->copies[engine->copies_done % engine->info.copies_max].done);
}

void engine_ring(void *argument)
{
    struct engine *engine = argument;
    pthread_mutex_lock(&engine->mutex);
    engine->bell++;
    pthread_cond_broadcast(&engine->rung);
    pthread_mutex_unlock(&engine->mutex);
    if (engine->wake)
        engine->wake(engine->wake_context);
}

bool engine_wait(struct engine *engine, uint64_t timeout_ns)
{
    uint64_t deadline_ns = clock_now_ns() + timeout_ns;
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / NS_PER_S),
                             .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    bool late = false;
    pthread_mutex_lock(&engine->mutex);
    while (!something_done(engine) && !late)
        late = pthread_cond_timedwait(&engine->rung, &engine->mutex, &until) != 0;
    pthread_mutex_unlock(&engine->mutex);
    return something_done(engine);
}

void engine_set_waker(struct engine *engine, void (*wake)(void *context), void *context)
{
    assert(engine->steps_submitted == 0 && engine->copies_submitted == 0);
    engine->wake = wake;
    engine->wake_context = context;
}

const struct kern_sample_out *engine_step_result(const struct engine_step *step, uint32_t sample)
{
    assert(step->state != STEP_IN_FLIGHT && sample < step->kern->sample_count);
    return &step->kern->outs[sample];
}

void engine_step_times(const struct engine_step *step, uint64_t *begin_ns_out, uint64_t *end_ns_out)
{
    *begin_ns_out = step->kern->begin_ns;
    *end_ns_out = step->kern->end_ns;
}

const uint32_t *engine_step_sealed(const struct engine_step *step, uint32_t *count_out)
{
    *count_out = step->kern->sum_count;
    return step->kern->sum_pages;
}

void engine_progress(const struct engine *engine, struct engine_progress *progress_out)
{
    const struct kern_cancels *cancels = engine->cancels;
    *progress_out = (struct engine_progress){
        .layers_finished = atomic_load(&cancels->layers_finished),
        .longest_layer_ns = atomic_load(&cancels->longest_layer_ns),
        .busy_since_ns = atomic_load(&engine->busy_since_ns),
        .last_layer_ns = atomic_load(&cancels->last_layer_ns),
    };
}
