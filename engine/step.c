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
    engine->slots[slot].block_open = 0;
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
    step->logits_only = false;
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

static inline bool slot_valid(const struct engine *engine, uint32_t slot)
{
    return slot < engine->info.slots_max && engine->slots[slot].taken &&
           !engine->slots[slot].released;
}

/* Entries of the block table of a slot, from the first one that is written on, or not seen yet. */
static bool blocks_valid(const struct engine *engine, uint32_t slot, const uint32_t *pages,
                         uint32_t written, uint32_t end)
{
    uint32_t known = engine->slots[slot].blocks_checked;
    for (uint32_t i = written < known ? written : known; i < end; i++)
        if (pages[i] >= engine->info.page_count)
            return false;
    return true;
}

static bool prev_valid(const struct engine *engine, uint32_t sample)
{
    const struct engine_step *last = engine->last_submitted;
    return last && sample < last->kern->sample_count &&
           (!last->logits_only || last->kern->samples[sample].sampling);
}

static bool input_valid(const struct engine_step *step, const struct engine_seq_input *input)
{
    const struct engine *engine = step->engine;
    const struct engine_info *info = &engine->info;
    uint32_t row_count = input->row_count;
    if (!slot_valid(engine, input->slot) || row_count == 0 || row_count > info->context_tokens ||
        input->position_begin > info->context_tokens - row_count)
        return false;
    uint32_t end = blocks_of(engine, input->position_begin + row_count);
    if (input->page_count < end || !blocks_valid(engine, input->slot, input->pages,
                                                 block_at(engine, input->position_begin), end))
        return false;
    if (input->prev_sample != ENGINE_NONE)
        return row_count == 1 && !input->tokens && prev_valid(engine, input->prev_sample);
    if (!input->tokens)
        return false;
    for (uint32_t i = 0; i < row_count; i++)
        if (input->tokens[i] >= info->vocab_size)
            return false;
    return true;
}

/* The step hashes this page of the sequence that is being added. */
static void seal_add(struct kern_step *kern, uint32_t page, uint32_t seq)
{
    assert(kern->sum_count < kern->caps.sums_max);
    kern->sum_pages[kern->sum_count] = page;
    kern->sum_seqs[kern->sum_count++] = seq;
}

/* Pages that these rows write lose their checksums; those that they fill to the end get new ones, and the partial last one when asked
 * for. */
static void seals_add(struct engine_step *step, const struct engine_seq_input *input)
{
    struct engine *engine = step->engine;
    struct kern_step *kern = step->kern;
    uint32_t end = input->position_begin + input->row_count;
    uint32_t last = input->seal_partial ? blocks_of(engine, end) : block_at(engine, end);
    for (uint32_t i = block_at(engine, input->position_begin); i < blocks_of(engine, end); i++) {
        engine->pages[input->pages[i]].sealed_runs = 0;
        if (i < last)
            seal_add(kern, input->pages[i], kern->seq_count);
    }
}

enum status engine_step_add(struct engine_step *step, const struct engine_seq_input *input,
                            uint32_t *sample_out)
{
    struct engine *engine = step->engine;
    struct kern_step *kern = step->kern;
    uint32_t row_count = input->row_count;
    assert(step->state == STEP_OPEN);
    if (!input_valid(step, input))
        return STATUS_INVALID;
    uint32_t samples = input->logits_out ? row_count : input->sampling ? 1 : 0;
    if (row_count > kern->caps.rows_max - kern->row_count ||
        kern->seq_count == kern->caps.seqs_max ||
        samples > kern->caps.samples_max - kern->sample_count)
        return STATUS_FULL;

    seals_add(step, input);
    uint32_t row = kern->row_count, seq = kern->seq_count, sample = kern->sample_count;
    struct engine_slot *slot = &engine->slots[input->slot];
    slot->blocks_checked = blocks_of(engine, input->position_begin + row_count);
    slot->block_open = input->seal_partial ? 0 : slot->blocks_checked;
    kern->seqs[seq] = (struct kern_seq){
        .row_begin = row, .row_count = row_count, .slot = input->slot, .blocks = input->pages};
    bool prev = input->prev_sample != ENGINE_NONE;
    for (uint32_t i = 0; i < row_count; i++) {
        kern->tokens[row + i] = prev ? ENGINE_TOKEN_PREV(input->prev_sample) : input->tokens[i];
        kern->positions[row + i] = input->position_begin + i;
        kern->row_seqs[row + i] = seq;
    }
    if (prev)
        kern->prev = engine->last_submitted->kern;
    for (uint32_t i = row_count - samples; i < row_count; i++) {
        bool sampled = input->sampling && i + 1 == row_count;
        step->logits_only |= !sampled;
        kern->samples[sample++] = (struct kern_sample){
            .row = row + i,
            .seq = seq,
            .sampling = sampled ? input->sampling : NULL,
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

/* --- building: single rows --- */

/* What a row that does not go on in its page needs: its block table is looked at. */
__attribute__((noinline)) static bool row_open(struct engine *engine, const struct engine_row *row)
{
    uint32_t block = block_at(engine, row->position);
    if (!slot_valid(engine, row->slot) || row->page_count <= block ||
        !blocks_valid(engine, row->slot, row->pages, block, block + 1))
        return false;
    engine->pages[row->pages[block]].sealed_runs = 0;
    engine->slots[row->slot].blocks_checked = engine->slots[row->slot].block_open = block + 1;
    return true;
}

/* What bounds a row, at hand for many of them. */
struct row_bounds {
    uint32_t slots, context_tokens, page_shift;
    uint32_t tokens[2]; /* ids; samples of the step submitted last */
    bool logits_only;   /* some of these are without sampling */
};

static struct row_bounds bounds_of(const struct engine *engine)
{
    const struct engine_step *last = engine->last_submitted;
    return (struct row_bounds){
        .slots = engine->info.slots_max,
        .context_tokens = engine->info.context_tokens,
        .page_shift = engine->page_shift,
        .tokens = {engine->info.vocab_size, last ? last->kern->sample_count : 0},
        .logits_only = last && last->logits_only};
}

static inline bool row_valid(struct engine *engine, const struct row_bounds *bounds,
                             const struct engine_row *row)
{
    uint32_t token = row->token & ~KERN_TOKEN_PREV, prev = row->token / KERN_TOKEN_PREV;
    if (token >= bounds->tokens[prev] || row->position >= bounds->context_tokens ||
        row->slot >= bounds->slots || (prev && bounds->logits_only && !prev_valid(engine, token)))
        return false;
    if (row->opens)
        return row_open(engine, row);
    return engine->slots[row->slot].block_open == (row->position >> bounds->page_shift) + 1;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

enum status engine_step_add_rows(struct engine_step *step, const struct engine_row *rows,
                                 uint32_t count, uint32_t *added_out, uint32_t *sample_out)
{
    enum { AHEAD = 16 };
    struct engine *engine = step->engine;
    struct kern_step *kern = step->kern;
    assert(step->state == STEP_OPEN);
    uint32_t row_begin = kern->row_count, seq_begin = kern->seq_count;
    uint32_t sample_begin = kern->sample_count;
    uint32_t room =
        min_u32(kern->caps.seqs_max - seq_begin,
                min_u32(kern->caps.rows_max - row_begin, kern->caps.samples_max - sample_begin));
    enum status status = count > room ? STATUS_FULL : STATUS_OK;
    count = min_u32(count, room);
    uint32_t *tokens = kern->tokens + row_begin, *positions = kern->positions + row_begin;
    uint32_t *row_seqs = kern->row_seqs + row_begin;
    struct kern_seq *seqs = kern->seqs + seq_begin;
    struct kern_sample *samples = kern->samples + sample_begin;
    const struct row_bounds bounds = bounds_of(engine);
    uint32_t added = 0, unknown = 0, page_end = engine->info.page_tokens - 1;
    for (; added < count; added++) {
        const struct engine_row *row = &rows[added];
        if (!row_valid(engine, &bounds, row)) {
            status = STATUS_INVALID;
            break;
        }
        __builtin_prefetch(&seqs[added + AHEAD], 1);
        __builtin_prefetch(&samples[added + AHEAD], 1);
        uint32_t prev = row->token / KERN_TOKEN_PREV;
        unknown |= prev;
        tokens[added] = row->token;
        positions[added] = row->position;
        row_seqs[added] = seq_begin + added;
        seqs[added] = (struct kern_seq){.row_begin = row_begin + added,
                                        .row_count = 1,
                                        .slot = row->slot,
                                        .blocks = row->pages};
        samples[added] = (struct kern_sample){.row = row_begin + added,
                                              .seq = seq_begin + added,
                                              .sampling = row->sampling,
                                              .generated_count = row->generated_count,
                                              .unknown_token = prev};
        if ((row->position & page_end) == page_end)
            seal_add(kern, row->pages[block_at(engine, row->position)], seq_begin + added);
    }
    if (unknown)
        kern->prev = engine->last_submitted->kern;
    kern->row_count = row_begin + added;
    kern->seq_count = seq_begin + added;
    kern->sample_count = sample_begin + added;
    *added_out = added;
    *sample_out = sample_begin;
    return status;
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
    for (uint32_t s = 0; s < kern->seq_count; s++)
        engine->slots[kern->seqs[s].slot].in_flight++;
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
