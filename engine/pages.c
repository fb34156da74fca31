/* Checksums, zeroing and copies of KV pages. See engine.h.
 *
 * Zeroing is kept as a mark until the next step is submitted, and then goes ahead of it in the same stream: so it costs the
 * loop nothing, and a page that is given back unused is not zeroed twice. */
#include "engine/internal.h"

#include <assert.h>

uint32_t engine_run_layers(const struct engine *engine, uint32_t run)
{
    const struct engine_info *info = &engine->info;
    assert(run < info->run_count);
    uint32_t begin = run * info->layer_run, rest = info->layers - begin;
    return rest < info->layer_run ? rest : info->layer_run;
}

uint64_t engine_piece_bytes(const struct engine *engine, uint32_t run)
{
    return engine_run_layers(engine, run) * engine->layer_bytes;
}

static struct kern_piece piece_of(const struct engine *engine, uint32_t page, uint32_t run)
{
    uint32_t begin = run * engine->info.layer_run;
    return (struct kern_piece){page, begin, begin + engine_run_layers(engine, run)};
}

/* --- zeroing --- */

static void fill_mark(struct engine *engine, const uint32_t *pages, uint32_t count, uint8_t fill)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(pages[i] < engine->info.page_count);
        if (engine->pages[pages[i]].fill_pending == FILL_NONE)
            engine->fill_list[engine->fill_list_count++] = pages[i];
        engine->pages[pages[i]].fill_pending = fill;
        engine->pages[pages[i]].sealed_runs = 0;
    }
}

void engine_pages_zero(struct engine *engine, const uint32_t *pages, uint32_t count)
{
    fill_mark(engine, pages, count, FILL_ZERO);
}

void engine_page_ahead(const struct engine *engine, uint32_t page)
{
    __builtin_prefetch(&engine->pages[page], 1);
}

void engine_pages_poison(struct engine *engine, const uint32_t *pages, uint32_t count)
{
    assert(engine->poison_pages);
    fill_mark(engine, pages, count, FILL_POISON);
}

bool engine_pages_release(struct engine *engine, const uint32_t *pages, uint32_t count)
{
    bool quiet = true;
    for (uint32_t i = 0; i < count; i++) {
        if (engine->pages[pages[i]].fill_pending != FILL_NONE)
            engine->pages[pages[i]].fill_pending = FILL_DROPPED;
        quiet &= engine->pages[pages[i]].fill_step <= engine->fills_done;
    }
    return quiet;
}

void engine_pages_unseal(struct engine *engine, const uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(pages[i] < engine->info.page_count);
        engine->pages[pages[i]].sealed_runs = 0;
        if (engine->pages[pages[i]].fill_pending != FILL_NONE)
            engine->pages[pages[i]].fill_pending =
                FILL_DROPPED; /* of an owner that never used it */
    }
}

void engine_fills_enqueue(struct engine *engine, struct engine_step *step)
{
    /* zeroes first in the array, then poisons */
    uint32_t zero_count = 0, all = 0;
    for (uint8_t fill = FILL_ZERO; fill <= FILL_POISON; fill++) {
        for (uint32_t i = 0; i < engine->fill_list_count; i++)
            if (engine->pages[engine->fill_list[i]].fill_pending == fill)
                step->fill_pages[all++] = engine->fill_list[i];
        if (fill == FILL_ZERO)
            zero_count = all;
    }
    for (uint32_t i = 0; i < all; i++)
        engine->pages[step->fill_pages[i]].fill_step = engine->steps_submitted;
    for (uint32_t i = 0; i < engine->fill_list_count; i++)
        engine->pages[engine->fill_list[i]].fill_pending = FILL_NONE;
    engine->fill_list_count = 0;
    if (zero_count)
        engine->ops->kv_fill(engine->stream, engine->kv, step->fill_pages, zero_count, false);
    if (all > zero_count)
        engine->ops->kv_fill(engine->stream, engine->kv, step->fill_pages + zero_count,
                             all - zero_count, true);
}

/* --- checksums --- */

static void sum_store(struct engine *engine, uint32_t page, uint32_t run, uint64_t sum)
{
    engine->sums[(size_t)page * engine->info.run_count + run] = sum;
    engine->pages[page].sealed_runs |= UINT64_C(1) << run;
}

void engine_sums_store(struct engine *engine, const struct engine_step *step, uint32_t run)
{
    const struct kern_step *kern = step->kern;
    const uint64_t *sums = kern->sums + (size_t)run * kern->caps.sums_max;
    for (uint32_t i = 0; i < kern->sum_count; i++) { /* one wait for all of them */
        engine_page_ahead(engine, kern->sum_pages[i]);
        __builtin_prefetch(&engine->sums[(size_t)kern->sum_pages[i] * engine->info.run_count], 1);
    }
    for (uint32_t i = 0; i < kern->sum_count; i++) {
        /* the page of a cancelled sequence may be someone else's by now */
        uint32_t slot = kern->seqs[kern->sum_seqs[i]].slot;
        if (atomic_load(&engine->cancels->flags[slot]) == 0)
            sum_store(engine, kern->sum_pages[i], run, sums[i]);
    }
}

bool engine_piece_sum(const struct engine *engine, uint32_t page, uint32_t run, uint64_t *sum_out)
{
    assert(page < engine->info.page_count && run < engine->info.run_count);
    if (!(engine->pages[page].sealed_runs >> run & 1))
        return false;
    *sum_out = engine->sums[(size_t)page * engine->info.run_count + run];
    return true;
}

bool engine_page_sealed(const struct engine *engine, uint32_t page)
{
    assert(page < engine->info.page_count);
    return engine->pages[page].sealed_runs == UINT64_MAX >> (64 - engine->info.run_count);
}

void *engine_piece_host(struct engine *engine, uint32_t page, uint32_t run)
{
    return engine->ops->kv_piece_host(engine->kv, piece_of(engine, page, run));
}

/* --- copies --- */

enum status engine_copy_submit(struct engine *engine, struct engine_copy *copy)
{
    static const enum kern_copy_kind kinds[] = {
        [ENGINE_COPY_VERIFY] = KERN_COPY_SUM,
        [ENGINE_COPY_EXPORT] = KERN_COPY_EXPORT,
        [ENGINE_COPY_IMPORT] = KERN_COPY_IMPORT,
    };
    uint32_t copies_max = engine->info.copies_max;
    assert(copy->page < engine->info.page_count && copy->run < engine->info.run_count);
    if (engine->copies_submitted - engine->copies_done == copies_max)
        return STATUS_FULL;
    struct copy_entry *entry = &engine->copies[engine->copies_submitted++ % copies_max];
    entry->copy = copy;
    copy->status = STATUS_OK;
    if (copy->kind != ENGINE_COPY_EXPORT && engine->pages[copy->page].fill_pending != FILL_NONE)
        engine->pages[copy->page].fill_pending = FILL_DROPPED;
    engine->ops->kv_copy(engine->copy_stream, kinds[copy->kind], engine->kv,
                         piece_of(engine, copy->page, copy->run), copy->host, &copy->sum);
    engine->ops->event_record(engine->copy_stream, entry->done);
    engine->ops->event_arm(entry->done, engine_ring, engine);
    return STATUS_OK;
}

struct engine_copy *engine_copy_poll(struct engine *engine)
{
    if (engine->copies_done == engine->copies_submitted)
        return NULL;
    struct copy_entry *entry = &engine->copies[engine->copies_done % engine->info.copies_max];
    if (!engine->ops->event_query(entry->done))
        return NULL;
    engine->copies_done++;
    struct engine_copy *copy = entry->copy;
    if (copy->expect && copy->sum != copy->expected)
        copy->status = STATUS_CHECKSUM;
    else if (copy->expect && copy->kind != ENGINE_COPY_EXPORT)
        sum_store(engine, copy->page, copy->run, copy->sum);
    return copy;
}
