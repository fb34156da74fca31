/* See fake_engine.h. */
#include "tests/sim/fake_engine_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* --- creation --- */

static void *room(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    assert(memory);
    return memory;
}

struct engine *fake_engine_create(const struct fake_options *o)
{
    struct engine *engine = room(1, sizeof *engine);
    engine->options = *o;
    struct engine_info *info = &engine->info;
    *info = (struct engine_info){
        .backend = "fake",
        .device = "fake",
        .arithmetic = "fake/kv-f32",
        .kv_type = KERN_KV_F32,
        .kv_layout_version = 1,
        .threads = 1,
        .vocab_size = FAKE_VOCAB,
        .layers = o->layers,
        .hidden = 1,
        .heads = 1,
        .kv_heads = 1,
        .head_dim = 1,
        .context_tokens = o->context_tokens,
        .page_tokens = o->page_tokens,
        .page_count = o->page_count,
        .layer_run = o->layer_run,
        .run_count = (o->layers + o->layer_run - 1) / o->layer_run,
        .rows_max = o->rows_max,
        .seqs_max = o->seqs_max,
        .samples_max = o->seqs_max,
        .slots_max = o->slots_max,
        .copies_max = o->copies_max,
    };
    info->page_bytes = (uint64_t)o->layers * o->page_tokens * sizeof(uint64_t);
    info->piece_bytes = (uint64_t)o->layer_run * o->page_tokens * sizeof(uint64_t);
    info->kv_bytes_per_token = o->layers * sizeof(uint64_t);
    size_t words = (size_t)o->page_count * o->layers * o->page_tokens;
    engine->kv = room(words, sizeof *engine->kv);
    memset(engine->kv, 0xa5, words * sizeof *engine->kv); /* as memory comes */
    engine->known = room(words, 1);
    engine->sums = room((size_t)o->page_count * info->run_count, sizeof *engine->sums);
    engine->sealed = room(o->page_count, sizeof *engine->sealed);
    engine->fill = room(o->page_count, 1);
    engine->fill_list = room(o->page_count, sizeof *engine->fill_list);
    engine->fill_step = room(o->page_count, sizeof *engine->fill_step);
    engine->slots = room(o->slots_max, sizeof *engine->slots);
    engine->copies = room(o->copies_max, sizeof(struct engine_copy *));
    engine->layer_end_ns = engine->copy_end_ns = DEADLINE_NONE;
    uint32_t blocks = o->seqs_max * ((o->context_tokens + o->page_tokens - 1) / o->page_tokens);
    for (int i = 0; i < STEPS; i++) {
        struct engine_step *step = &engine->steps[i];
        step->engine = engine;
        step->seqs = room(o->seqs_max, sizeof *step->seqs);
        step->tokens = room(o->rows_max, sizeof *step->tokens);
        step->pages = room(blocks, sizeof *step->pages);
        step->fills = room(o->page_count, sizeof *step->fills);
        step->sealed = room(blocks, sizeof *step->sealed);
        step->sealed_seqs = room(blocks, sizeof *step->sealed_seqs);
        step->outs = room(o->seqs_max, sizeof *step->outs);
        step->sums = room((size_t)blocks * info->run_count, sizeof *step->sums);
    }
    return engine;
}

void engine_destroy(struct engine *engine)
{
    if (!engine)
        return;
    for (int i = 0; i < STEPS; i++) {
        struct engine_step *step = &engine->steps[i];
        free(step->seqs);
        free(step->tokens);
        free(step->pages);
        free(step->fills);
        free(step->sealed);
        free(step->sealed_seqs);
        free(step->outs);
        free(step->sums);
    }
    free(engine->kv);
    free(engine->known);
    free(engine->sums);
    free(engine->sealed);
    free(engine->fill);
    free(engine->fill_list);
    free(engine->fill_step);
    free(engine->slots);
    free(engine->copies);
    free(engine);
}

const struct engine_info *engine_info(const struct engine *engine)
{
    return &engine->info;
}

uint32_t engine_run_layers(const struct engine *engine, uint32_t run)
{
    uint32_t begin = run * engine->info.layer_run, rest = engine->info.layers - begin;
    assert(run < engine->info.run_count);
    return rest < engine->info.layer_run ? rest : engine->info.layer_run;
}

uint64_t engine_piece_bytes(const struct engine *engine, uint32_t run)
{
    return (uint64_t)engine_run_layers(engine, run) * engine->info.page_tokens * sizeof(uint64_t);
}

/* --- KV --- */

void fake_answer(uint32_t layers, const uint32_t *prompt, uint32_t prompt_count, uint64_t seed,
                 uint32_t n_index, uint32_t count, uint32_t *tokens_out)
{
    uint64_t kv[64] = {0}, evidence = 0;
    assert(layers <= 64 && prompt_count);
    for (uint32_t p = 0; p + 1 < prompt_count + count; p++) {
        uint32_t token = p < prompt_count ? prompt[p] : tokens_out[p - prompt_count];
        for (uint32_t layer = 0; layer < layers; layer++) {
            kv[layer] = kv_next(kv[layer], token, layer);
            evidence = mix64(evidence ^ kv[layer]);
        }
        if (p + 1 >= prompt_count)
            tokens_out[p + 1 - prompt_count] =
                (uint32_t)(token_hash(evidence, seed, n_index, p + 1 - prompt_count) % FAKE_VOCAB);
    }
}

/* --- slots --- */

enum status engine_slot_take(struct engine *engine, uint32_t *slot_out)
{
    for (uint32_t i = 0; i < engine->info.slots_max; i++)
        if (!engine->slots[i].taken) {
            engine->slots[i] = (struct fake_slot){.taken = true};
            *slot_out = i;
            return STATUS_OK;
        }
    return STATUS_FULL;
}

static void slot_free_check(struct fake_slot *slot)
{
    if (slot->released && !slot->in_flight)
        *slot = (struct fake_slot){0};
}

/* Some layer that is running touches the slot's pages. */
static bool slot_touched(const struct engine *engine, uint32_t slot)
{
    if (engine->layer_end_ns == DEADLINE_NONE)
        return false;
    const struct engine_step *step = &engine->steps[engine->steps_run % STEPS];
    for (uint32_t i = 0; i < step->seq_count; i++)
        if (step->seqs[i].slot == slot && !step->seqs[i].skipped)
            return true;
    return false;
}

void engine_slot_release(struct engine *engine, uint32_t slot)
{
    assert(engine->slots[slot].taken && !engine->slots[slot].released);
    if (slot_touched(engine, slot))
        sim_fail("a sequence is let go of while a layer runs that touches its pages");
    engine->slots[slot].released = true;
    slot_free_check(&engine->slots[slot]);
}

void engine_cancel(struct engine *engine, uint32_t slot)
{
    struct fake_slot *s = &engine->slots[slot];
    assert(s->taken);
    s->cancelled = true;
    if (!slot_touched(engine, slot))
        s->acked = true;
}

bool engine_cancel_acked(const struct engine *engine, uint32_t slot)
{
    return engine->slots[slot].acked;
}

bool engine_slot_failed(const struct engine *engine, uint32_t slot)
{
    return engine->slots[slot].failed;
}

uint32_t engine_cancel_layers_max(const struct engine *engine)
{
    return 1;
}

/* --- building a step --- */

struct engine_step *engine_step_begin(struct engine *engine)
{
    struct engine_step *step = &engine->steps[engine->steps_begun % STEPS];
    assert(step->state != STEP_OPEN);
    if (step->state != STEP_IDLE)
        return NULL;
    engine->steps_begun++;
    step->state = STEP_OPEN;
    step->cookie = NULL;
    step->seq_count = step->row_count = step->page_count = step->sample_count = 0;
    step->fill_count = step->sealed_count = 0;
    step->prev = NULL;
    return step;
}

void engine_step_abandon(struct engine_step *step)
{
    assert(step->state == STEP_OPEN);
    step->state = STEP_IDLE;
    step->engine->steps_begun--;
}

static void seals_add(struct engine_step *step, const struct engine_seq_input *input)
{
    uint32_t page_tokens = step->engine->info.page_tokens;
    uint32_t end = input->position_begin + input->row_count, last = end / page_tokens;
    if (input->seal_partial && end % page_tokens != 0)
        last++;
    for (uint32_t i = input->position_begin / page_tokens; i < last; i++) {
        step->sealed[step->sealed_count] = input->pages[i];
        step->sealed_seqs[step->sealed_count++] = step->seq_count;
    }
}

enum status engine_step_add(struct engine_step *step, const struct engine_seq_input *input,
                            uint32_t *sample_out)
{
    struct engine *engine = step->engine;
    const struct engine_info *info = &engine->info;
    assert(step->state == STEP_OPEN && !input->logits_out);
    uint32_t end = input->position_begin + input->row_count;
    uint32_t pages = (end + info->page_tokens - 1) / info->page_tokens;
    if (!input->row_count || end > info->context_tokens || input->page_count < pages ||
        !engine->slots[input->slot].taken || engine->slots[input->slot].released)
        return STATUS_INVALID;
    if (input->row_count > info->rows_max - step->row_count || step->seq_count == info->seqs_max)
        return STATUS_FULL;
    struct fake_seq *seq = &step->seqs[step->seq_count];
    *seq = (struct fake_seq){.slot = input->slot,
                             .position = input->position_begin,
                             .row_count = input->row_count,
                             .pages_begin = step->page_count,
                             .page_count = pages,
                             .tokens_begin = step->row_count,
                             .prev_sample = input->prev_sample,
                             .sample = ENGINE_NONE,
                             .table = input->pages};
    for (uint32_t i = 0; i < pages; i++) {
        if (input->pages[i] >= info->page_count)
            return STATUS_INVALID;
        step->pages[step->page_count++] = input->pages[i];
    }
    if (input->prev_sample != ENGINE_NONE) {
        assert(engine->last_submitted && input->prev_sample < engine->last_submitted->sample_count);
        step->prev = engine->last_submitted;
        step->tokens[step->row_count] = 0;
    } else {
        for (uint32_t i = 0; i < input->row_count; i++)
            if (input->tokens[i] >= FAKE_VOCAB)
                return STATUS_INVALID;
        memcpy(step->tokens + step->row_count, input->tokens,
               input->row_count * sizeof *step->tokens);
    }
    step->row_count += input->row_count;
    if (input->sampling) {
        seq->sample = step->sample_count++;
        seq->seed = input->sampling->seed;
        seq->n_index = input->sampling->n_index;
        seq->answer_index = input->generated_count + (input->prev_sample != ENGINE_NONE ? 1 : 0);
        /* the history must be what the position says */
        if (input->sampling->prompt_count + seq->answer_index != end)
            sim_fail("a row at %u is to sample token %u of an answer to %u ids", end - 1,
                     seq->answer_index, input->sampling->prompt_count);
    }
    if (sample_out)
        *sample_out = seq->sample;
    seals_add(step, input);
    step->seq_count++;
    engine->slots[input->slot].page_open = input->seal_partial ? 0 : 1 + input->pages[pages - 1];
    return STATUS_OK;
}

/* One after the other, as if each were added alone; and what is said not to be news is looked up all the same. */
enum status engine_step_add_rows(struct engine_step *step, const struct engine_row *rows,
                                 uint32_t count, uint32_t *added_out, uint32_t *sample_out)
{
    struct engine *engine = step->engine;
    uint32_t added = 0;
    enum status status = STATUS_OK;
    *sample_out = step->sample_count;
    for (; added < count; added++) {
        const struct engine_row *row = &rows[added];
        bool prev = row->token & KERN_TOKEN_PREV;
        uint32_t sample, page = row->pages[row->position / engine->info.page_tokens];
        if (!row->opens && (engine->slots[row->slot].page_open != page + 1 || engine->sealed[page]))
            sim_fail("the row at %u goes on in page %u, which its slot has not opened",
                     row->position, page);
        struct engine_seq_input input = {.slot = row->slot,
                                         .tokens = prev ? NULL : &row->token,
                                         .row_count = 1,
                                         .prev_sample =
                                             prev ? row->token & ~KERN_TOKEN_PREV : ENGINE_NONE,
                                         .position_begin = row->position,
                                         .pages = row->pages,
                                         .page_count = row->page_count,
                                         .sampling = row->sampling,
                                         .generated_count = row->generated_count};
        status = engine_step_add(step, &input, &sample);
        if (status)
            break;
    }
    *added_out = added;
    return status;
}

uint32_t engine_step_rows(const struct engine_step *step)
{
    return step->row_count;
}

void engine_step_cookie_set(struct engine_step *step, void *cookie)
{
    step->cookie = cookie;
}

void *engine_step_cookie(const struct engine_step *step)
{
    return step->cookie;
}

const struct kern_sample_out *engine_step_result(const struct engine_step *step, uint32_t sample)
{
    assert(sample < step->sample_count);
    return &step->outs[sample];
}

void engine_step_times(const struct engine_step *step, uint64_t *begin_ns_out, uint64_t *end_ns_out)
{
    *begin_ns_out = step->begin_ns;
    *end_ns_out = step->end_ns;
}

const uint32_t *engine_step_sealed(const struct engine_step *step, uint32_t *count_out)
{
    *count_out = step->sealed_count;
    return step->sealed;
}

/* --- running: steps --- */

static struct engine_step *running(struct engine *engine)
{
    return &engine->steps[engine->steps_run % STEPS];
}

/* Cancelled sequences take no part from here on, and are acknowledged: nothing runs that touches them. */
static void layer_begin(struct engine *engine, uint64_t now_ns)
{
    struct engine_step *step = running(engine);
    for (uint32_t i = 0; i < step->seq_count; i++) {
        struct fake_slot *slot = &engine->slots[step->seqs[i].slot];
        if (slot->cancelled) {
            step->seqs[i].skipped = true;
            slot->acked = true;
        }
    }
    engine->layer_begin_ns = now_ns;
    engine->layer_end_ns =
        now_ns + engine->options.layer_ns + step->row_count * engine->options.row_ns;
}

static void step_begin(struct engine *engine, uint64_t now_ns)
{
    struct engine_step *step = running(engine);
    size_t words = (size_t)engine->info.layers * engine->info.page_tokens;
    step->begin_ns = now_ns;
    for (uint32_t i = 0; i < step->fill_count; i++) {
        memset(&engine->kv[step->fills[i] * words], 0, words * sizeof *engine->kv);
        memset(&engine->known[step->fills[i] * words], 0, words);
    }
    for (uint32_t i = 0; i < step->seq_count; i++)
        if (step->seqs[i].prev_sample != ENGINE_NONE) {
            const struct kern_sample_out *out = &step->prev->outs[step->seqs[i].prev_sample];
            step->tokens[step->seqs[i].tokens_begin] = out->finished ? out->token : 0;
        }
    engine->layer = 0;
    layer_begin(engine, now_ns);
}

static uint64_t kv_read(const struct engine *engine, const struct engine_step *step,
                        const struct fake_seq *seq, uint32_t position, uint32_t layer)
{
    uint32_t page_tokens = engine->info.page_tokens;
    uint32_t page = step->pages[seq->pages_begin + position / page_tokens];
    size_t word = word_of(engine, page, layer, position % page_tokens);
    /* what a cancelled sequence computes is for nobody, and its pages may have proved damaged meanwhile */
    if (!engine->known[word] && !engine->slots[seq->slot].cancelled)
        sim_fail("a row at %u reads position %u of layer %u in page %u, neither computed nor "
                 "verified",
                 seq->position, position, layer, page);
    return engine->kv[word];
}

static void seq_layer(struct engine *engine, const struct engine_step *step,
                      const struct fake_seq *seq, uint32_t layer)
{
    uint32_t page_tokens = engine->info.page_tokens;
    for (uint32_t block = 0; block < seq->page_count; block++)
        if (seq->table[block] != step->pages[seq->pages_begin + block])
            sim_fail("block %u of a table changes while a step reads it", block);
    for (uint32_t row = 0; row < seq->row_count; row++) {
        uint32_t position = seq->position + row;
        uint64_t before = position ? kv_read(engine, step, seq, position - 1, layer) : 0;
        size_t word = word_of(engine, step->pages[seq->pages_begin + position / page_tokens], layer,
                              position % page_tokens);
        engine->kv[word] = kv_next(before, step->tokens[seq->tokens_begin + row], layer);
        engine->known[word] = 1;
    }
}

static void seq_sample(struct engine *engine, struct engine_step *step, const struct fake_seq *seq)
{
    struct kern_sample_out *out = &step->outs[seq->sample];
    *out = (struct kern_sample_out){.finite = true, .finished = !seq->skipped};
    if (seq->skipped)
        return;
    uint32_t layers = engine->info.layers, page_tokens = engine->info.page_tokens;
    uint32_t end = seq->position + seq->row_count;
    uint64_t evidence = 0;
    for (uint32_t position = 0; position < end; position++)
        for (uint32_t layer = 0; layer < layers; layer++)
            evidence = mix64(evidence ^ kv_read(engine, step, seq, position, layer));
    for (uint32_t position = end; position % page_tokens; position++) /* must be zero */
        for (uint32_t layer = 0; layer < layers; layer++) {
            uint32_t page = step->pages[seq->pages_begin + position / page_tokens];
            uint64_t kv = engine->kv[word_of(engine, page, layer, position % page_tokens)];
            if (kv)
                evidence = mix64(evidence ^ kv ^ position);
        }
    uint64_t hash = token_hash(evidence, seq->seed, seq->n_index, seq->answer_index);
    out->token = (uint32_t)(hash % FAKE_VOCAB);
    out->logprob = -(float)(hash >> 40 & 0xff) / 16;
}

static void event_put(struct engine *engine, struct engine_event event)
{
    assert(engine->events_in - engine->events_out < EVENTS_MAX);
    engine->events[engine->events_in++ % EVENTS_MAX] = event;
    if (engine->wake)
        engine->wake(engine->wake_context);
}

/* The end of a layer's time: now its rows are written, and what it completes is summed. */
static void layer_end(struct engine *engine)
{
    struct engine_step *step = running(engine);
    uint64_t now_ns = engine->layer_end_ns;
    uint32_t layer = engine->layer, run = layer / engine->info.layer_run;
    for (uint32_t i = 0; i < step->seq_count; i++)
        if (!step->seqs[i].skipped)
            seq_layer(engine, step, &step->seqs[i], layer);
    engine->progress.layers_finished++;
    engine->progress.last_layer_ns = now_ns;
    if (now_ns - engine->layer_begin_ns > engine->progress.longest_layer_ns)
        engine->progress.longest_layer_ns = now_ns - engine->layer_begin_ns;
    bool last = layer + 1 == engine->info.layers;
    if (last || (layer + 1) % engine->info.layer_run == 0) {
        for (uint32_t i = 0; i < step->sealed_count; i++)
            step->sums[(size_t)run * step->sealed_count + i] =
                piece_sum(engine, step->sealed[i], run, NULL);
        event_put(engine, (struct engine_event){ENGINE_RUN_DONE, step, run, NULL});
    }
    if (!last) {
        engine->layer++;
        layer_begin(engine, now_ns);
        return;
    }
    for (uint32_t i = 0; i < step->seq_count; i++)
        if (step->seqs[i].sample != ENGINE_NONE)
            seq_sample(engine, step, &step->seqs[i]);
    for (uint32_t i = 0; i < step->seq_count; i++) {
        struct fake_slot *slot = &engine->slots[step->seqs[i].slot];
        if (slot->cancelled) /* the step touches it no more; the next one will not begin to */
            slot->acked = true;
    }
    step->end_ns = now_ns;
    engine->layer_end_ns = DEADLINE_NONE;
    engine->steps_run++;
    event_put(engine, (struct engine_event){ENGINE_STEP_DONE, step, 0, NULL});
    if (engine->steps_run < engine->steps_submitted)
        step_begin(engine, now_ns);
}

enum status engine_submit(struct engine_step *step)
{
    struct engine *engine = step->engine;
    assert(step->state == STEP_OPEN);
    if (!step->row_count)
        return STATUS_INVALID;
    step->state = STEP_IN_FLIGHT;
    for (uint32_t i = 0; i < engine->fill_count; i++) {
        uint32_t page = engine->fill_list[i];
        if (engine->fill[page] == FILL_ZERO) {
            step->fills[step->fill_count++] = page;
            engine->fill_step[page] = engine->steps_submitted + 1;
        }
        engine->fill[page] = FILL_NONE;
    }
    engine->fill_count = 0;
    uint32_t page_tokens = engine->info.page_tokens;
    for (uint32_t i = 0; i < step->seq_count; i++) {
        const struct fake_seq *seq = &step->seqs[i];
        engine->slots[seq->slot].in_flight++;
        /* what is written has no checksum any more */
        for (uint32_t k = seq->position / page_tokens;
             k <= (seq->position + seq->row_count - 1) / page_tokens; k++)
            engine->sealed[step->pages[seq->pages_begin + k]] = 0;
    }
    step->submitted_ns = clock_now_ns();
    engine->last_submitted = step;
    engine->steps_submitted++;
    if (engine->layer_end_ns == DEADLINE_NONE)
        step_begin(engine, step->submitted_ns);
    return STATUS_OK;
}

/* --- running: copies --- */

enum status engine_copy_submit(struct engine *engine, struct engine_copy *copy)
{
    uint32_t copies_max = engine->info.copies_max;
    assert(copy->page < engine->info.page_count && copy->run < engine->info.run_count);
    if (engine->copies_submitted - engine->copies_done == copies_max)
        return STATUS_FULL;
    copy->status = STATUS_OK;
    if (copy->kind != ENGINE_COPY_EXPORT && engine->fill[copy->page] != FILL_NONE)
        engine->fill[copy->page] = FILL_DROPPED;
    engine->copies[engine->copies_submitted++ % copies_max] = copy;
    if (engine->copy_end_ns == DEADLINE_NONE)
        engine->copy_end_ns = clock_now_ns() + engine->options.copy_ns;
    return STATUS_OK;
}

static void copy_end(struct engine *engine)
{
    struct engine_copy *copy = engine->copies[engine->copies_done % engine->info.copies_max];
    size_t word = word_of(engine, copy->page, copy->run * engine->info.layer_run, 0);
    size_t bytes = engine_piece_bytes(engine, copy->run);
    if (copy->kind == ENGINE_COPY_EXPORT)
        memcpy(copy->host, &engine->kv[word], bytes);
    else if (copy->kind == ENGINE_COPY_IMPORT)
        memcpy(&engine->kv[word], copy->host, bytes);
    copy->sum = piece_sum(engine, copy->page, copy->run,
                          copy->kind == ENGINE_COPY_EXPORT ? copy->host : NULL);
    engine->copies_done++;
    engine->copy_end_ns = engine->copies_done < engine->copies_submitted
                              ? engine->copy_end_ns + engine->options.copy_ns
                              : DEADLINE_NONE;
    event_put(engine, (struct engine_event){ENGINE_COPY_DONE, NULL, 0, copy});
}

/* --- time --- */

uint64_t fake_engine_next_ns(const struct engine *engine)
{
    return engine->layer_end_ns < engine->copy_end_ns ? engine->layer_end_ns : engine->copy_end_ns;
}

void fake_engine_pass(struct engine *engine, uint64_t now_ns)
{
    while (fake_engine_next_ns(engine) <= now_ns) {
        if (engine->copy_end_ns < engine->layer_end_ns)
            copy_end(engine);
        else
            layer_end(engine);
    }
}

uint64_t fake_engine_next_step_ns(const struct engine *engine)
{
    return engine->layer_end_ns;
}

uint64_t fake_engine_next_copy_ns(const struct engine *engine)
{
    return engine->copy_end_ns;
}

bool fake_engine_one(struct engine *engine, bool copies)
{
    uint64_t *end_ns = copies ? &engine->copy_end_ns : &engine->layer_end_ns;
    if (*end_ns == DEADLINE_NONE)
        return false;
    *end_ns = clock_now_ns();
    if (copies)
        copy_end(engine);
    else
        layer_end(engine);
    return true;
}

void fake_engine_speed(struct engine *engine, uint64_t layer_ns)
{
    engine->options.layer_ns = layer_ns;
}

void fake_engine_shift(struct engine *engine, uint64_t by_ns)
{
    if (engine->layer_end_ns != DEADLINE_NONE)
        engine->layer_end_ns += by_ns;
    if (engine->copy_end_ns != DEADLINE_NONE)
        engine->copy_end_ns += by_ns;
}

/* --- completion --- */

void engine_set_waker(struct engine *engine, void (*wake)(void *context), void *context)
{
    engine->wake = wake;
    engine->wake_context = context;
}

static void sum_store(struct engine *engine, uint32_t page, uint32_t run, uint64_t sum)
{
    engine->sums[(size_t)page * engine->info.run_count + run] = sum;
    engine->sealed[page] |= UINT64_C(1) << run;
}

static void sums_store(struct engine *engine, const struct engine_step *step, uint32_t run)
{
    for (uint32_t i = 0; i < step->sealed_count; i++)
        if (!engine->slots[step->seqs[step->sealed_seqs[i]].slot].cancelled)
            sum_store(engine, step->sealed[i], run,
                      step->sums[(size_t)run * step->sealed_count + i]);
}

static void step_retire(struct engine *engine, struct engine_step *step)
{
    for (uint32_t i = 0; i < step->seq_count; i++) {
        struct fake_slot *slot = &engine->slots[step->seqs[i].slot];
        slot->in_flight--;
        slot_free_check(slot);
    }
    step->state = STEP_IDLE;
    engine->steps_done++;
}

static void copy_retire(struct engine *engine, struct engine_copy *copy)
{
    if (copy->expect && copy->sum != copy->expected) {
        copy->status = STATUS_CHECKSUM;
        return;
    }
    if (!copy->expect || copy->kind == ENGINE_COPY_EXPORT)
        return;
    sum_store(engine, copy->page, copy->run, copy->sum);
    size_t word = word_of(engine, copy->page, copy->run * engine->info.layer_run, 0);
    memset(&engine->known[word], 1, engine_piece_bytes(engine, copy->run) / sizeof(uint64_t));
}

bool engine_poll(struct engine *engine, struct engine_event *event_out)
{
    if (engine->events_out == engine->events_in)
        return false;
    *event_out = engine->events[engine->events_out++ % EVENTS_MAX];
    if (event_out->kind == ENGINE_RUN_DONE) {
        engine->fills_done = engine->steps_done + 1;
        sums_store(engine, event_out->step, event_out->run);
    } else if (event_out->kind == ENGINE_STEP_DONE)
        step_retire(engine, event_out->step);
    else
        copy_retire(engine, event_out->copy);
    return true;
}

/* Only a node that is taken down waits: whatever runs is over then. */
bool engine_wait(struct engine *engine, uint64_t timeout_ns)
{
    fake_engine_pass(engine, DEADLINE_NONE - 1);
    return engine->events_in != engine->events_out;
}

void engine_progress(const struct engine *engine, struct engine_progress *progress_out)
{
    *progress_out = engine->progress;
    if (engine->steps_run < engine->steps_submitted)
        progress_out->busy_since_ns = engine->steps[engine->steps_run % STEPS].submitted_ns;
}
