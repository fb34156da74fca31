/* See serve.h. */
#include "node/serve.h"

#include <assert.h>

#include "node/node.h"
#include "node/rest_fault.h"

static void piece_ready(struct node *node, struct work *work, uint32_t block, uint32_t run)
{
    struct kv_ready_piece ready = {
        .piece = {.block = block, .run = (uint16_t)run},
        .data = copies_memory(&node->copies, work->pages[block], run),
        .bytes = engine_piece_bytes(node->engine, run),
    };
    bool sealed = engine_piece_sum(node->engine, work->pages[block], run, &ready.checksum);
    assert(sealed);
    (void)sealed;
    if (work->rows_submitted >= work_total(work) && work->steps_outstanding <= 1 &&
        !node->pool.pages[work->pages[block]].indexed)
        rest_fault(node, (void *)ready.data, ready.bytes); /* nothing computes on it any more */
    enum status status = kv_source_piece_ready(node->source, work->serve.name, &ready);
    if (status == STATUS_NOT_FOUND)
        return; /* the transfer has just ended by itself; its event comes */
    assert(status == STATUS_OK && work->pieces_left > 0);
    if (--work->pieces_left == 0)
        kv_source_computed(node->source, work->serve.name);
}

/* --- the source's events --- */

static void source_ended(void *context, void *user, enum status status)
{
    struct node *node = context;
    struct work *work = user;
    if (status == STATUS_CANCELLED && work->leg == WORK_LEG_SERVE)
        for (uint32_t i = 0; i < work->hit_count; i++)
            cache_check_page(node, work->pages[i]);
    node_work_end(node, work, status);
}

/* Not what was sealed any more: a shared page is looked at, and goes; an own one will never be shared. */
static void source_damaged(void *context, void *user, struct kv_piece piece)
{
    struct node *node = context;
    struct work *work = user;
    uint32_t page = work->pages[piece.block];
    node->cache.pages[page].mirrored &= ~(UINT64_C(1) << piece.run);
    if (node->pool.pages[page].indexed)
        cache_check_page(node, page);
    else if (!work->damaged_end || piece.block + 1 < work->damaged_end)
        work->damaged_end = piece.block + 1; /* its step may still be at it: the checksums stay */
}

static void source_released(void *context, void *user)
{
    (void)context;
    ((struct work *)user)->serve.live = false;
}

enum status serve_create(struct node *node, struct err *err)
{
    struct kv_source_options options = {.transfers_max = node->table.count,
                                        .pieces_max =
                                            node->table.pages_max * node->info->run_count};
    struct kv_source_events events = {.context = node,
                                      .ended = source_ended,
                                      .released = source_released,
                                      .damaged = source_damaged};
    return kv_source_create(node->links, &options, &events, &node->source, err);
}

void serve_destroy(struct node *node)
{
    kv_source_destroy(node->source);
    node->source = NULL;
}

/* --- what the node says --- */

enum status serve_open(struct node *node, struct work *work, uint32_t blocks, struct err *err)
{
    struct kv_shape shape;
    node_shape(node, blocks, &shape);
    enum status status = kv_source_open(node->source, &work->key, &shape, work, &work->serve.name);
    if (status)
        return err_set(err, STATUS_FULL, "transfer: %s", status_text(status));
    work->serve.live = true;
    work->pieces_left = blocks * node->info->run_count;
    return STATUS_OK;
}

void serve_started(struct node *node, struct work *work)
{
    if (work->serve.live)
        kv_source_started(node->source, work->serve.name);
}

void serve_blocks(struct node *node, struct work *work, uint32_t blocks)
{
    if (!work->serve.live)
        return;
    bool mirrored = copies_mirrored(&node->copies);
    work->served_blocks = blocks;
    for (uint32_t block = 0; block < blocks; block++)
        for (uint32_t run = 0; run < node->info->run_count; run++)
            if (!mirrored || cache_mirrored(&node->cache, work->pages[block], run))
                piece_ready(node, work, block, run);
            else
                cache_export(node, work->pages[block], run);
}

void serve_piece(struct node *node, struct work *work, uint32_t block, uint32_t run)
{
    if (!work->serve.live)
        return;
    if (copies_mirrored(&node->copies))
        copies_begin(&node->copies, work, ENGINE_COPY_EXPORT, work->pages[block], run, NULL);
    else
        piece_ready(node, work, block, run);
}

void serve_first(struct node *node, struct work *work, const struct kv_first *first)
{
    if (work->serve.live)
        kv_source_first(node->source, work->serve.name, first);
}

bool serve_renew(struct node *node, struct work *work)
{
    return work->serve.live && kv_source_renew(node->source, &work->key) == STATUS_OK;
}

void serve_end(struct node *node, struct work *work, enum status why)
{
    if (work->serve.live)
        kv_source_end(node->source, work->serve.name, why); /* NOT_FOUND: it ended by itself */
}

/* --- copies --- */

void serve_copied(struct node *node, struct work *work, const struct engine_copy *copy)
{
    if (!work_live(work))
        return;
    for (uint32_t block = work->served_blocks; block < work->pages_moved; block++)
        if (work->pages[block] == copy->page) {
            piece_ready(node, work, block, copy->run);
            return;
        }
}

void serve_exported(struct node *node, uint32_t page, uint32_t run)
{
    for (uint32_t i = 0; i < node->table.count; i++) {
        struct work *work = &node->table.works[i];
        if (!work_live(work) || !work->serve.live)
            continue;
        for (uint32_t block = 0; block < work->served_blocks; block++) {
            struct kv_piece piece = {.block = block, .run = (uint16_t)run};
            /* a damaged copy is made anew for who comes after; this one may have had it before */
            if (work->pages[block] == page &&
                !kv_source_piece_known(node->source, work->serve.name, piece))
                piece_ready(node, work, block, run);
        }
    }
}
