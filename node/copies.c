/* See copies.h. */
#include "node/copies.h"

#include <assert.h>
#include <stdlib.h>

#include "node/work.h"

enum status copies_init(struct copies *copies, struct engine *engine)
{
    const struct engine_info *info = engine_info(engine);
    *copies = (struct copies){.engine = engine,
                              .run_count = info->run_count,
                              .page_bytes = info->page_bytes,
                              .piece_bytes = info->piece_bytes};
    list_init(&copies->waiting);
    copies->slots = calloc((size_t)info->page_count * info->run_count, sizeof *copies->slots);
    if (!copies->slots)
        return STATUS_MEMORY;
    if (engine_piece_host(engine, 0, 0))
        return STATUS_OK;
    copies->mirror = aligned_alloc(64, ((size_t)info->page_count * info->page_bytes + 63) & ~63ull);
    return copies->mirror ? STATUS_OK : STATUS_MEMORY;
}

void copies_finish(struct copies *copies)
{
    free(copies->slots);
    free(copies->mirror);
    *copies = (struct copies){0};
}

void *copies_memory(const struct copies *copies, uint32_t page, uint32_t run)
{
    if (!copies->mirror)
        return engine_piece_host(copies->engine, page, run);
    return copies->mirror + page * copies->page_bytes + run * copies->piece_bytes;
}

static void submit_waiting(struct copies *copies)
{
    while (!list_empty(&copies->waiting)) {
        struct copy_slot *slot = container_of(copies->waiting.next, struct copy_slot, link);
        if (engine_copy_submit(copies->engine, &slot->copy) == STATUS_FULL)
            return;
        list_remove(&slot->link);
    }
}

void copies_begin(struct copies *copies, struct work *work, enum engine_copy_kind kind,
                  uint32_t page, uint32_t run, const uint64_t *expected)
{
    void *host = kind == ENGINE_COPY_VERIFY ? NULL : copies_memory(copies, page, run);
    copies_begin_at(copies, work, kind, page, run, host, expected);
}

void copies_begin_at(struct copies *copies, struct work *work, enum engine_copy_kind kind,
                     uint32_t page, uint32_t run, void *host, const uint64_t *expected)
{
    struct copy_slot *slot = &copies->slots[(size_t)page * copies->run_count + run];
    assert(!slot->busy);
    slot->busy = true;
    slot->work = work;
    slot->life = work ? work->life : 0;
    slot->copy = (struct engine_copy){
        .kind = kind,
        .page = page,
        .run = run,
        .host = host,
        .expect = expected != NULL,
        .expected = expected ? *expected : 0,
        .cookie = slot,
    };
    if (work)
        work->copies++;
    copies->active++;
    list_push_back(&copies->waiting, &slot->link);
    submit_waiting(copies);
}

struct work *copies_done(struct copies *copies, const struct engine_copy *copy)
{
    struct copy_slot *slot = copy->cookie;
    struct work *work = slot->work;
    assert(slot->busy);
    slot->busy = false;
    slot->work = NULL;
    /* pages are not given away while a copy runs, so the work is still the one that began it */
    assert(!work || (work->life == slot->life && work->copies > 0));
    if (work)
        work->copies--;
    copies->active--;
    submit_waiting(copies);
    return work;
}
