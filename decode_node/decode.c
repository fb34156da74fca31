/* See decode.h. */
#include "decode_node/decode.h"

#include <assert.h>
#include <stdlib.h>

#include "kvtransfer/sink.h"

struct decode {
    struct node *node;
    struct kv_sink *sink;
};

static void give_up(struct decode *decode, struct work *work, enum status status)
{
    node_work_fail(decode->node, work, BATON__NODE__V1__REPORT__KIND__GAVE_UP, status,
                   status_text(status));
}

static bool first_take(struct work *work, const struct kv_first *first)
{
    if (first->position != work->generated_count)
        return false;
    work->first = *first;
    work->first_known = true;
    return true;
}

/* --- the sink's events --- */

static void *sink_piece_memory(void *context, void *user, struct kv_piece piece, size_t *bytes_out)
{
    struct decode *decode = context;
    struct work *work = user;
    assert(piece.block < work->pages_moved);
    *bytes_out = engine_piece_bytes(decode->node->engine, piece.run);
    return copies_memory(&decode->node->copies, work->pages[piece.block], piece.run);
}

static void sink_piece_received(void *context, void *user, uint64_t transfer, struct kv_piece piece,
                                void *memory, size_t bytes, uint64_t checksum)
{
    (void)transfer;
    (void)memory;
    struct decode *decode = context;
    struct work *work = user;
    struct copies *copies = &decode->node->copies;
    work->moved_bytes += bytes;
    copies_begin(copies, work, copies_mirrored(copies) ? ENGINE_COPY_IMPORT : ENGINE_COPY_VERIFY,
                 work->pages[piece.block], piece.run, &checksum);
}

static void sink_ended(void *context, void *user, const struct kv_sink_result *result)
{
    struct decode *decode = context;
    struct work *work = user;
    if (!work_live(work))
        return;
    if (result->first && !work->first_known && !first_take(work, result->first)) {
        give_up(decode, work, STATUS_PROTOCOL);
        return;
    }
    if (!result->pieces_missing && work->first_known)
        node_work_join(decode->node, work);
    else if (!result->pieces_missing)
        work_move(work, WORK_ORPHAN, loop_now_ns(decode->node->loop));
    else
        give_up(decode, work, result->status);
}

static void sink_released(void *context, void *user)
{
    (void)context;
    struct work *work = user;
    work->transfer_live = false;
}

/* --- the leg --- */

static enum status leg_create(struct node *node, void **self_out, struct err *err)
{
    struct decode *decode = calloc(1, sizeof *decode);
    if (!decode)
        return err_set(err, STATUS_MEMORY, "decode: no memory");
    decode->node = node;
    struct kv_sink_options options = {.transfers_max = node->table.count,
                                      .pieces_max = node->table.pages_max * node->info->run_count};
    struct kv_sink_events events = {.context = decode,
                                    .piece_memory = sink_piece_memory,
                                    .piece_received = sink_piece_received,
                                    .ended = sink_ended,
                                    .released = sink_released};
    enum status status = kv_sink_create(node->links, &options, &events, &decode->sink, err);
    if (status) {
        free(decode);
        return status;
    }
    *self_out = decode;
    return STATUS_OK;
}

static void leg_destroy(void *self)
{
    struct decode *decode = self;
    if (!decode)
        return;
    kv_sink_destroy(decode->sink);
    free(decode);
}

static void leg_begin(void *self, struct work *work)
{
    struct decode *decode = self;
    struct kv_link *link = kv_link_find(decode->node->links, work->source_incarnation);
    if (!link) {
        give_up(decode, work, STATUS_CLOSED);
        return;
    }
    struct kv_sink_begin begin = {
        .key = work->key, .link = link, .deadline_ns = work->deadline_ns, .user = work};
    begin.key.assignment = work->source_number; /* the transfer is named by P's number */
    node_shape(decode->node, work->pages_moved, &begin.shape);
    enum status status = kv_sink_begin(decode->sink, &begin, &work->transfer);
    if (status) {
        give_up(decode, work, status);
        return;
    }
    work->transfer_live = true;
    if (work->first_known)
        kv_sink_first(decode->sink, work->transfer, &work->first);
}

static void leg_copied(void *self, struct work *work, const struct engine_copy *copy)
{
    struct decode *decode = self;
    if (work->state != WORK_FETCHING)
        return;
    for (uint32_t block = 0; block < work->pages_moved; block++)
        if (work->pages[block] == copy->page) {
            struct kv_piece piece = {.block = block, .run = (uint16_t)copy->run};
            kv_sink_piece_verified(decode->sink, work->transfer, piece, copy->status == STATUS_OK);
            return;
        }
}

static void leg_first_token(void *self, struct work *work, const struct kv_first *first)
{
    struct decode *decode = self;
    switch (work->state) {
    case WORK_WAITING:
        first_take(work, first);
        break;
    case WORK_FETCHING:
        kv_sink_first(decode->sink, work->transfer, first);
        break;
    case WORK_ORPHAN:
        if (first_take(work, first))
            node_work_join(decode->node, work);
        break;
    default: /* joined already: P's FIRST came before the router's copy */
        break;
    }
}

static void leg_end(void *self, struct work *work, enum status why)
{
    (void)why;
    struct decode *decode = self;
    if (work->transfer_live)
        kv_sink_end(decode->sink, work->transfer); /* NOT_FOUND: it ended by itself */
}

const struct node_leg decode_leg = {
    .create = leg_create,
    .destroy = leg_destroy,
    .begin = leg_begin,
    .copied = leg_copied,
    .first_token = leg_first_token,
    .end = leg_end,
};
