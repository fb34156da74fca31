/* The pages of the engine of the simulation, what else a storm does to them, and what a fingerprint sees of the engine. See
 * fake_engine.h. */
#include <string.h>

#include "tests/sim/fake_engine_impl.h"
#include "tests/sim/print.h"

/* --- pages --- */

void engine_pages_zero(struct engine *engine, const uint32_t *pages, uint32_t count)
{
    engine_pages_unseal(engine, pages, count);
    for (uint32_t i = 0; i < count; i++) {
        if (engine->fill[pages[i]] == FILL_NONE)
            engine->fill_list[engine->fill_count++] = pages[i];
        engine->fill[pages[i]] = FILL_ZERO;
    }
}

void engine_page_ahead(const struct engine *engine, uint32_t page)
{
}

bool engine_pages_release(struct engine *engine, const uint32_t *pages, uint32_t count)
{
    bool quiet = true;
    for (uint32_t i = 0; i < count; i++) {
        if (engine->fill[pages[i]] != FILL_NONE)
            engine->fill[pages[i]] = FILL_DROPPED;
        quiet &= engine->fill_step[pages[i]] <= engine->fills_done;
    }
    return quiet;
}

void engine_pages_unseal(struct engine *engine, const uint32_t *pages, uint32_t count)
{
    size_t words = (size_t)engine->info.layers * engine->info.page_tokens;
    for (uint32_t i = 0; i < count; i++) {
        assert(pages[i] < engine->info.page_count);
        engine->sealed[pages[i]] = 0;
        if (engine->fill[pages[i]] != FILL_NONE)
            engine->fill[pages[i]] = FILL_DROPPED;
        memset(&engine->known[pages[i] * words], 0, words);
    }
}

bool engine_piece_sum(const struct engine *engine, uint32_t page, uint32_t run, uint64_t *sum_out)
{
    if (!(engine->sealed[page] >> run & 1))
        return false;
    *sum_out = engine->sums[(size_t)page * engine->info.run_count + run];
    return true;
}

bool engine_page_sealed(const struct engine *engine, uint32_t page)
{
    return engine->sealed[page] == UINT64_MAX >> (64 - engine->info.run_count);
}

void *engine_piece_host(struct engine *engine, uint32_t page, uint32_t run)
{
    return engine->options.mirrored
               ? NULL
               : &engine->kv[word_of(engine, page, run * engine->info.layer_run, 0)];
}

/* --- for the simulation --- */

bool fake_engine_flip(struct engine *engine, uint32_t page, uint32_t run, uint32_t bit)
{
    if (!(engine->sealed[page] >> run & 1))
        return false;
    bit %= (uint32_t)engine_piece_bytes(engine, run) * 8;
    size_t word = word_of(engine, page, run * engine->info.layer_run, 0) + bit / 64;
    engine->kv[word] ^= UINT64_C(1) << bit % 64;
    return true;
}

bool fake_engine_idle(const struct engine *engine)
{
    for (uint32_t i = 0; i < engine->info.slots_max; i++)
        if (engine->slots[i].taken)
            return false;
    return fake_engine_next_ns(engine) == DEADLINE_NONE && engine->events_in == engine->events_out;
}

static void step_print(const struct engine_step *step, struct print *print)
{
    print_head(print, "step", step->state);
    for (uint32_t i = 0; i < step->seq_count; i++) {
        const struct fake_seq *seq = &step->seqs[i];
        PRINT(print, seq->slot);
        PRINT(print, seq->position);
        PRINT(print, seq->row_count);
        PRINT(print, seq->prev_sample);
        PRINT(print, seq->sample);
        PRINT(print, seq->skipped);
        PRINT(print, seq->seed);
        PRINT(print, seq->answer_index);
    }
    print_bytes(print, "tokens", step->tokens, step->row_count * sizeof *step->tokens);
    print_bytes(print, "pages", step->pages, step->page_count * sizeof *step->pages);
    print_bytes(print, "fills", step->fills, step->fill_count * sizeof *step->fills);
    print_bytes(print, "sealed", step->sealed, step->sealed_count * sizeof *step->sealed);
}

static void page_print(const struct engine *engine, uint32_t page, enum fake_page_use use,
                       struct print *print)
{
    size_t words = (size_t)engine->info.layers * engine->info.page_tokens, at = page * words;
    uint64_t begun = engine->steps_run + (engine->layer_end_ns != DEADLINE_NONE);
    bool all = use == FAKE_PAGE_COMPUTES && engine->fill[page] != FILL_ZERO &&
               engine->fill_step[page] <= begun;
    print_head(print, "page", page);
    for (size_t i = at; i < at + words; i++)
        if (all || engine->known[i])
            print_value(print, "kv", engine->kv[i]);
    print_bytes(print, "known", &engine->known[at], words);
    PRINT(print, engine->sealed[page]);
}

void fake_engine_print(const struct engine *engine,
                       enum fake_page_use (*use)(const void *context, uint32_t page),
                       const void *context, struct print *print)
{
    const struct engine_info *info = &engine->info;
    print_head(print, "engine", engine->layer_end_ns != DEADLINE_NONE ? engine->layer : 99);
    for (uint32_t page = 0; page < info->page_count; page++) {
        PRINT(print, engine->fill[page]);
        PRINT(print, engine->fill_step[page] > engine->fills_done);
        if (use(context, page) != FAKE_PAGE_FREE)
            page_print(engine, page, use(context, page), print);
    }
    for (uint32_t i = 0; i < info->slots_max; i++) {
        const struct fake_slot *slot = &engine->slots[i];
        print_value(print, "slot",
                    slot->taken | slot->released << 1 | slot->cancelled << 2 | slot->acked << 3 |
                        slot->in_flight << 4);
    }
    for (uint64_t i = engine->steps_done; i < engine->steps_submitted; i++)
        step_print(&engine->steps[i % STEPS], print);
    const struct engine_step *last = engine->last_submitted; /* the next may refer to its samples */
    for (uint32_t i = 0; last && i < last->sample_count; i++)
        print_value(print, "out", last->outs[i].token << 1 | last->outs[i].finished);
    PRINT(print, engine->steps_run - engine->steps_done);
    PRINT(print, engine->steps_begun % STEPS);
    for (uint64_t i = engine->copies_done; i < engine->copies_submitted; i++) {
        const struct engine_copy *copy = engine->copies[i % info->copies_max];
        print_value(print, "copy", copy->kind << 24 | copy->page << 8 | copy->run);
        PRINT(print, copy->expected);
        PRINT(print, piece_sum(engine, copy->page, copy->run,
                               copy->kind == ENGINE_COPY_IMPORT ? copy->host : NULL));
    }
    for (uint64_t i = engine->events_out; i < engine->events_in; i++) {
        const struct engine_event *event = &engine->events[i % EVENTS_MAX];
        print_value(print, "event", event->kind << 8 | event->run);
    }
}
