/* See prefill.h. */
#include "prefill_node/prefill.h"

#include <assert.h>
#include <stdlib.h>

#include "kvtransfer/source.h"

struct prefill {
    struct node *node;
    struct kv_source *source;
};

static void piece_ready(struct prefill *prefill, struct work *work, uint32_t block, uint32_t run)
{
    struct node *node = prefill->node;
    struct kv_ready_piece ready = {
        .piece = {.block = block, .run = (uint16_t)run},
        .data = copies_memory(&node->copies, work->pages[block], run),
        .bytes = engine_piece_bytes(node->engine, run),
    };
    bool sealed = engine_piece_sum(node->engine, work->pages[block], run, &ready.checksum);
    assert(sealed);
    enum status status = kv_source_piece_ready(prefill->source, work->transfer, &ready);
    if (status == STATUS_NOT_FOUND)
        return; /* the transfer has just ended by itself; its event comes */
    assert(status == STATUS_OK && work->pieces_left > 0);
    if (--work->pieces_left == 0)
        kv_source_computed(prefill->source, work->transfer);
}

/* --- the source's events --- */

static void source_ended(void *context, void *user, enum status status)
{
    struct prefill *prefill = context;
    node_work_end(prefill->node, user, status);
}

static void source_released(void *context, void *user)
{
    (void)context;
    struct work *work = user;
    work->transfer_live = false;
}

/* --- the leg --- */

static enum status leg_create(struct node *node, void **self_out, struct err *err)
{
    struct prefill *prefill = calloc(1, sizeof *prefill);
    if (!prefill)
        return err_set(err, STATUS_MEMORY, "prefill: no memory");
    prefill->node = node;
    struct kv_source_options options = {.transfers_max = node->table.count,
                                        .pieces_max =
                                            node->table.pages_max * node->info->run_count};
    struct kv_source_events events = {
        .context = prefill, .ended = source_ended, .released = source_released};
    enum status status = kv_source_create(node->links, &options, &events, &prefill->source, err);
    if (status) {
        free(prefill);
        return status;
    }
    *self_out = prefill;
    return STATUS_OK;
}

static void leg_destroy(void *self)
{
    struct prefill *prefill = self;
    if (!prefill)
        return;
    kv_source_destroy(prefill->source);
    free(prefill);
}

static void leg_number_seen(void *self, uint64_t router_incarnation, uint64_t number)
{
    struct prefill *prefill = self;
    kv_source_seen(prefill->source, router_incarnation, number);
}

static enum status leg_accept(void *self, struct work *work, struct err *err)
{
    struct prefill *prefill = self;
    if (work->last_leg)
        return STATUS_OK; /* nobody comes for the pages */
    struct kv_shape shape;
    node_shape(prefill->node, work->pages_moved, &shape);
    enum status status = kv_source_open(prefill->source, &work->key, &shape, work, &work->transfer);
    if (status)
        return err_set(err, STATUS_FULL, "transfer: %s", status_text(status));
    work->transfer_live = true;
    work->pieces_left = work->pages_moved * prefill->node->info->run_count;
    return STATUS_OK;
}

static void leg_step_submitted(void *self, struct work *work)
{
    struct prefill *prefill = self;
    if (work->transfer_live)
        kv_source_started(prefill->source, work->transfer);
}

static void leg_piece_sealed(void *self, struct work *work, uint32_t block, uint32_t run)
{
    struct prefill *prefill = self;
    struct copies *copies = &prefill->node->copies;
    if (work->last_leg)
        return;
    if (copies_mirrored(copies))
        copies_begin(copies, work, ENGINE_COPY_EXPORT, work->pages[block], run, NULL);
    else
        piece_ready(prefill, work, block, run);
}

static void leg_copied(void *self, struct work *work, const struct engine_copy *copy)
{
    if (!work_live(work))
        return;
    for (uint32_t block = 0; block < work->pages_moved; block++)
        if (work->pages[block] == copy->page) {
            piece_ready(self, work, block, copy->run);
            return;
        }
}

static void leg_sampled(void *self, struct work *work, const struct kv_first *first)
{
    struct prefill *prefill = self;
    kv_source_first(prefill->source, work->transfer, first);
}

static void leg_renew(void *self, struct work *work)
{
    struct prefill *prefill = self;
    if (work->transfer_live)
        kv_source_renew(prefill->source, &work->key);
}

static void leg_end(void *self, struct work *work, enum status why)
{
    struct prefill *prefill = self;
    if (work->transfer_live)
        kv_source_end(prefill->source, work->transfer, why); /* NOT_FOUND: it ended by itself */
}

const struct node_leg prefill_leg = {
    .create = leg_create,
    .destroy = leg_destroy,
    .number_seen = leg_number_seen,
    .accept = leg_accept,
    .step_submitted = leg_step_submitted,
    .piece_sealed = leg_piece_sealed,
    .copied = leg_copied,
    .sampled = leg_sampled,
    .renew = leg_renew,
    .end = leg_end,
};
