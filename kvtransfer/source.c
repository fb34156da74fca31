/* See source.h, and source_transfer.h for what a transfer is. Transfers that have something to send stand in their link's ring, and
 * flush serves each ring in turn up to the link's window. */
#include "kvtransfer/source.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/plant.h"
#include "kvtransfer/link_impl.h"
#include "kvtransfer/park.h"
#include "kvtransfer/source_transfer.h"

struct source_op {
    struct xfer_op op;
    struct list link; /* free ones */
    struct kv_source *source;
    struct source_transfer *transfer;
    struct kv_link *via;
    uint32_t via_serial, index;
    const void *staged;
};

struct kv_source {
    struct kv_links *links;
    struct kv_source_options options;
    struct kv_source_events events;
    uint64_t next_name;
    uint64_t mark_router, mark; /* the highest assignment seen from this router */
    unsigned live, draining;
    struct source_transfer *transfers;
    uint64_t *id_lows; /* of each, also of those that are over: a search passes over these alone */
    struct source_op *ops;
    struct list ops_free, ended;
    struct kv_park park;
    /* the arrays behind the transfers' pointers */
    uint64_t *sets;
    uint16_t *block_counts;
    struct source_piece *pieces;
};

/* --- small things --- */

static struct source_transfer *transfer_named(const struct kv_source *source, uint64_t name)
{
    struct source_transfer *t = &source->transfers[name % source->options.transfers_max];
    return name && t->name == name && is_live(t) ? t : NULL;
}

static struct source_transfer *transfer_by_id(struct kv_source *source, struct kv_id id)
{
    for (unsigned i = 0; i < source->options.transfers_max; i++) {
        if (source->id_lows[i] != id.low)
            continue;
        struct source_transfer *t = &source->transfers[i];
        if (is_live(t) && kv_id_equal(t->key.transfer, id))
            return t;
    }
    return NULL;
}

static void ring_update(struct source_transfer *t)
{
    if (t->link && is_live(t) && list_empty(&t->ring) && next_to_send(t) < t->layout.piece_count)
        list_push_back(&t->link->source_ring, &t->ring);
}

/* --- frames to D --- */

static void gone_send(struct kv_source *source, struct kv_link *link, const struct kv_key *key,
                      enum kv_gone_reason reason)
{
    struct kv_frame *out = &source->links->out;
    out->type = KV_FRAME_GONE;
    out->key = *key;
    out->gone.reason = (uint8_t)reason;
    source->links->counters.gone_sent++;
    kv_link_send(link, out); /* when no slot is free it is lost, and D finds out by asking again */
}

static void progress_send(struct kv_source *source, struct source_transfer *t)
{
    struct kv_frame *out = &source->links->out;
    out->type = KV_FRAME_PROGRESS;
    out->key = t->key;
    out->progress.state = t->state == QUEUED      ? KV_PROGRESS_QUEUED
                          : t->state == COMPUTING ? KV_PROGRESS_COMPUTING
                                                  : KV_PROGRESS_SENDING;
    out->progress.pages_sealed = t->sealed;
    out->progress.pieces_pending = pieces_pending(t);
    bool sent = kv_link_send(t->link, out) == STATUS_OK;
    t->progress_due_ns = source->links->now_ns + (sent ? source->options.progress_ns : 0);
}

static void first_send(struct kv_source *source, struct source_transfer *t)
{
    if (!t->first_known || !t->first_due || !t->link || t->in_flight || !set_empty(t, t->wanted))
        return;
    struct kv_frame *out = &source->links->out;
    out->type = KV_FRAME_FIRST;
    out->key = t->key;
    out->first = t->first;
    if (kv_link_send(t->link, out) == STATUS_OK)
        t->first_due = false; /* else the next tick tries again */
}

/* --- the end of a transfer --- */

/* `tell`: it ended by itself, the owner hears of it. */
static void transfer_end(struct kv_source *source, struct source_transfer *t, enum status status,
                         bool tell)
{
    sm_move(&source_table, &t->state, DRAINING);
    source->live--;
    source->draining++;
    list_remove(&t->ring);
    t->link = NULL;
    t->progress_due_ns = DEADLINE_NONE;
    t->tell_ended = tell;
    t->status = status;
    list_push_back(&source->ended, &t->ended);
}

/* Tells the owner what ended, and what has drained. Callbacks may open and end transfers. */
static void ended_tell(struct kv_source *source)
{
    struct list later;
    list_init(&later);
    struct list *link;
    while ((link = list_pop_front(&source->ended))) {
        struct source_transfer *t = container_of(link, struct source_transfer, ended);
        if (t->tell_ended) {
            t->tell_ended = false;
            source->events.ended(source->events.context, t->user, t->status);
        }
        if (t->in_flight) {
            list_push_back(&later, link);
            continue;
        }
        sm_move(&source_table, &t->state, FREE);
        source->draining--;
        source->events.released(source->events.context, t->user);
    }
    while ((link = list_pop_front(&later)))
        list_push_back(&source->ended, link);
}

/* --- sending pieces --- */

/* On a link that lives on it goes out again at once; D hears at once of one that goes on failing. */
static void piece_failed(struct kv_source *source, struct source_transfer *t, uint32_t index)
{
    source->links->counters.pieces_failed++;
    if (!is_live(t) || !t->link || !kv_link_usable(t->link))
        return;
    if (++t->sends_failed <= source->options.send_failures_max) {
        bit_set(t->wanted, index);
        ring_update(t);
        return;
    }
    gone_send(source, t->link, &t->key, KV_GONE_FAILED);
    transfer_end(source, t, STATUS_IO, true);
}

static void piece_done(struct xfer_op *base, enum status status)
{
    struct source_op *op = container_of(base, struct source_op, op);
    struct kv_source *source = op->source;
    struct source_transfer *t = op->transfer;
    struct kv_counters *counters = &source->links->counters;
    struct kv_piece piece = kv_layout_piece(&t->layout, op->index);
    size_t bytes = t->pieces[op->index].bytes;
    if (op->via->serial == op->via_serial) {
        op->via->sends--;
        kv_rate_end(&op->via->send_rate, source->links->now_ns, status ? 0 : bytes);
    }
    t->in_flight--;
    bit_clear(t->flying, op->index);
    if (op->staged && source->events.unstage)
        source->events.unstage(source->events.context, t->user, piece, op->staged);
    list_push_back(&source->ops_free, &op->link);
    if (status) {
        piece_failed(source, t, op->index);
        return;
    }
    counters->pieces_sent++;
    counters->bytes_sent += bytes;
    if (!bit_get(t->sent, op->index)) {
        bit_set(t->sent, op->index);
        t->bytes_sent += bytes;
    }
    if (!is_live(t))
        return;
    t->lease_from_ns = source->links->patient_ns;
    ring_update(t);
    first_send(source, t);
}

/* D asked again for a piece that had left. */
static bool piece_sound(struct kv_source *source, struct source_transfer *t, uint32_t index)
{
    const struct source_piece *piece = &t->pieces[index];
    if (!bit_get(t->sent, index) || kv_checksum(piece->data, piece->bytes) == piece->checksum)
        return true;
    source->links->counters.pieces_damaged++;
    if (source->events.damaged)
        source->events.damaged(source->events.context, t->user, kv_layout_piece(&t->layout, index));
    gone_send(source, t->link, &t->key, KV_GONE_CHECKSUM);
    transfer_end(source, t, STATUS_CHECKSUM, true);
    return false;
}

/* OK: one was posted. AGAIN: nothing to send. FULL: a slot or staging buffer is missing; CLOSED; CHECKSUM: it has ended. */
static enum status piece_send(struct kv_source *source, struct source_transfer *t)
{
    struct kv_links *links = source->links;
    struct kv_link *link = t->link;
    uint32_t index = next_to_send(t);
    if (index == t->layout.piece_count)
        return STATUS_AGAIN;
    if (list_empty(&source->ops_free))
        return STATUS_FULL;
    if (!piece_sound(source, t, index))
        return STATUS_CHECKSUM;
    const struct source_piece *ready = &t->pieces[index];
    struct kv_piece piece = kv_layout_piece(&t->layout, index);
    const void *payload = ready->data;
    const void *staged = NULL;
    if (source->events.stage) {
        payload = staged =
            source->events.stage(source->events.context, t->user, piece, ready->data, ready->bytes);
        if (!payload)
            return STATUS_FULL;
    }
    struct kv_frame *out = &links->out;
    out->type = KV_FRAME_PIECE;
    out->key = t->key;
    out->piece.piece = piece;
    out->piece.checksum = ready->checksum;
    out->piece.bytes = ready->bytes;
    uint8_t header[KV_FRAME_BYTES_MAX];
    size_t header_bytes = kv_link_piece_header(link, out, header);
    struct source_op *op = container_of(list_pop_front(&source->ops_free), struct source_op, link);
    op->op.done = piece_done;
    op->transfer = t;
    op->via = link;
    op->via_serial = link->serial;
    op->index = index;
    op->staged = staged;
    enum status status =
        xfer_send_piece(link->peer, header, header_bytes, payload, ready->bytes, &op->op);
    if (status) {
        if (staged && source->events.unstage)
            source->events.unstage(source->events.context, t->user, piece, staged);
        list_push_front(&source->ops_free, &op->link);
        return status;
    }
    bit_clear(t->wanted, index);
    bit_set(t->flying, index);
    t->in_flight++;
    t->cursor = index + 1 < t->layout.piece_count ? index + 1 : 0;
    link->sends++;
    link->piece_bytes = ready->bytes;
    kv_rate_begin(&link->send_rate, links->now_ns);
    if (links->options.rate_max) {
        uint64_t from_ns = links->paced_ns > links->now_ns ? links->paced_ns : links->now_ns;
        links->paced_ns =
            from_ns + (uint64_t)((double)ready->bytes * 1e9 / (double)links->options.rate_max);
    }
    return STATUS_OK;
}

static void link_serve(struct kv_source *source, struct kv_link *link)
{
    unsigned window = kv_link_window(link);
    while (link->sends < window && !list_empty(&link->source_ring) &&
           !kv_links_paced(link->links)) {
        struct list *first = list_pop_front(&link->source_ring);
        struct source_transfer *t = container_of(first, struct source_transfer, ring);
        enum status status = piece_send(source, t);
        if (status == STATUS_FULL || status == STATUS_CLOSED) {
            list_push_front(&link->source_ring, &t->ring);
            return;
        }
        ring_update(t);
    }
}

static void source_flush(void *object)
{
    struct kv_source *source = object;
    struct kv_links *links = source->links;
    for (unsigned i = 0; i < links->opened; i++) {
        struct kv_link *link = &links->slots[i];
        if (kv_link_usable(link) && !list_empty(&link->source_ring))
            link_serve(source, link);
    }
    ended_tell(source);
}

/* --- PULL --- */

/* True when the transfer has all of what is asked for. */
static bool pull_fits(const struct source_transfer *t, const struct kv_pull *pull)
{
    if (pull->block_count == 0)
        return true;
    if (pull->group >= t->layout.shape.group_count)
        return false;
    const struct kv_group_shape *group = &t->layout.shape.groups[pull->group];
    if (pull->run_begin + pull->run_count > group->runs)
        return false;
    if (pull->head_begin != 0 || pull->head_count != group->heads)
        return false; /* ranges of heads are not built yet */
    for (uint32_t i = 0; i < pull->block_count; i++)
        if (pull->blocks[i] >= group->blocks)
            return false;
    return true;
}

static void pull_take(struct kv_source *source, struct source_transfer *t, struct kv_link *link,
                      const struct kv_pull *pull)
{
    if (!pull_fits(t, pull)) {
        gone_send(source, link, &t->key, KV_GONE_REFUSED);
        return;
    }
    if (t->link != link) {
        /* Another D, or the first: what an earlier one asked for is not owed any more. */
        list_remove(&t->ring);
        memset(t->wanted, 0, set_words(t) * sizeof *t->wanted);
        t->link = link;
    }
    for (uint32_t i = 0; i < pull->block_count; i++)
        for (uint16_t run = 0; run < pull->run_count; run++)
            bit_set(t->wanted, kv_layout_index(&t->layout, (struct kv_piece){
                                                               pull->blocks[i], pull->group,
                                                               (uint16_t)(pull->run_begin + run)}));
    t->first_due = true;
    t->lease_from_ns = source->links->patient_ns;
    ring_update(t);
    progress_send(source, t);
    first_send(source, t);
}

static void pull_park(struct kv_source *source, struct kv_link *link, const struct kv_frame *frame)
{
    struct kv_counters *counters = &source->links->counters;
    uint64_t deadline_ns = source->links->patient_ns + source->options.park_ns;
    if (kv_park_add(&source->park, link, frame, deadline_ns)) {
        counters->parked++;
    } else {
        counters->parked_refused++;
        gone_send(source, link, &frame->key, KV_GONE_UNKNOWN);
    }
}

static void pull_received(struct kv_source *source, struct kv_link *link,
                          const struct kv_frame *frame)
{
    struct kv_links *links = source->links;
    if (frame->key.router_incarnation != links->router_incarnation) {
        links->counters.stale[KV_FRAME_PULL]++;
        return;
    }
    struct source_transfer *t = transfer_by_id(source, frame->key.transfer);
    if (t && !kv_key_equal(&t->key, &frame->key)) {
        links->counters.stale[KV_FRAME_PULL]++;
        return;
    }
    uint64_t mark = source->mark_router == links->router_incarnation ? source->mark : 0;
    if (t) {
        pull_take(source, t, link, &frame->pull);
    } else if (frame->key.assignment > mark) {
        pull_park(source, link, frame);
    } else {
        gone_send(source, link, &frame->key, KV_GONE_UNKNOWN);
    }
}

static void done_received(struct kv_source *source, struct kv_link *link,
                          const struct kv_frame *frame)
{
    struct source_transfer *t = transfer_by_id(source, frame->key.transfer);
    if (!t || t->link != link || !kv_key_equal(&t->key, &frame->key)) {
        source->links->counters.stale[KV_FRAME_DONE]++;
        return;
    }
    bool received = frame->done.outcome == KV_OUTCOME_RECEIVED;
    transfer_end(source, t, received ? STATUS_OK : STATUS_CANCELLED, true);
}

static void source_frame(void *object, struct kv_link *link, const struct kv_frame *frame)
{
    if (frame->type == KV_FRAME_PULL)
        pull_received(object, link, frame);
    else
        done_received(object, link, frame);
}

/* The mark rose to `assignment`: what is parked up to there is live now, or never will be. */
static void parked_review(struct kv_source *source)
{
    list_for_each_safe(it, tmp, &source->park.waiting)
    {
        struct kv_parked *parked = container_of(it, struct kv_parked, link);
        if (parked->key.router_incarnation == source->mark_router &&
            parked->key.assignment > source->mark)
            continue;
        struct source_transfer *t = transfer_by_id(source, parked->key.transfer);
        if (t && kv_key_equal(&t->key, &parked->key))
            pull_take(source, t, parked->from, &parked->pull);
        else
            gone_send(source, parked->from, &parked->key, KV_GONE_UNKNOWN);
        kv_park_remove(&source->park, parked);
    }
}

/* --- deadlines and ends --- */

static void source_link_ended(void *object, struct kv_link *link, enum status status)
{
    struct kv_source *source = object;
    for (unsigned i = 0; i < source->options.transfers_max; i++) {
        struct source_transfer *t = &source->transfers[i];
        if (is_live(t) && t->link == link)
            transfer_end(source, t, STATUS_CLOSED, true);
    }
    kv_park_forget(&source->park, link);
}

static uint64_t lease_length_ns(const struct kv_source *source)
{
    if (PLANTED(LEASE_NEVER_ENDS))
        return 1000 * NS_PER_S;
    return PLANTED(LEASE_ENDS_EARLY) ? source->options.lease_ns / 2 : source->options.lease_ns;
}

static void source_tick(void *object)
{
    struct kv_source *source = object;
    struct kv_links *links = source->links;
    for (unsigned i = 0; source->live && i < source->options.transfers_max; i++) {
        struct source_transfer *t = &source->transfers[i];
        if (!is_live(t))
            continue;
        if (t->state == READY && links->patient_ns - t->lease_from_ns >= lease_length_ns(source)) {
            links->counters.leases_expired++;
            if (t->link)
                gone_send(source, t->link, &t->key, KV_GONE_LEASE);
            transfer_end(source, t, STATUS_TIMEOUT, true);
            continue;
        }
        if (t->link && links->now_ns >= t->progress_due_ns)
            progress_send(source, t);
        first_send(source, t);
    }
    struct kv_parked *parked;
    while ((parked = kv_park_first(&source->park)) && links->patient_ns >= parked->deadline_ns) {
        links->counters.parked_expired++;
        gone_send(source, parked->from, &parked->key, KV_GONE_UNKNOWN);
        kv_park_remove(&source->park, parked);
    }
}

static uint64_t source_next_ns(const void *object)
{
    const struct kv_source *source = object;
    uint64_t next_ns = DEADLINE_NONE;
    for (unsigned i = 0; source->live && i < source->options.transfers_max; i++) {
        const struct source_transfer *t = &source->transfers[i];
        if (is_live(t) && t->progress_due_ns < next_ns)
            next_ns = t->progress_due_ns;
        uint64_t lease_ns = t->lease_from_ns + lease_length_ns(source) + source->links->late_ns;
        if (t->state == READY && lease_ns < next_ns)
            next_ns = lease_ns;
    }
    const struct kv_parked *parked = kv_park_first(&source->park);
    if (parked && parked->deadline_ns + source->links->late_ns < next_ns)
        next_ns = parked->deadline_ns + source->links->late_ns;
    return next_ns;
}

static void source_end_all(void *object)
{
    struct kv_source *source = object;
    source->events.ended = NULL; /* the owner is leaving too: `released` only */
    for (unsigned i = 0; i < source->options.transfers_max; i++) {
        struct source_transfer *t = &source->transfers[i];
        if (is_live(t))
            transfer_end(source, t, STATUS_CLOSED, false);
        t->tell_ended = false;
    }
}

/* --- the owner's calls --- */

static void mark_raise(struct kv_source *source, uint64_t router_incarnation, uint64_t assignment)
{
    if (source->mark_router != router_incarnation) {
        source->mark_router = router_incarnation;
        source->mark = 0;
    }
    if (assignment > source->mark)
        source->mark = assignment;
}

enum status kv_source_open(struct kv_source *source, const struct kv_key *key,
                           const struct kv_shape *shape, void *user, uint64_t *transfer_out)
{
    struct kv_layout layout;
    enum status status = STATUS_OK;
    struct source_transfer *t = NULL;
    if (!kv_layout_init(&layout, shape, source->options.pieces_max))
        status = STATUS_INVALID;
    else if (transfer_by_id(source, key->transfer))
        status = STATUS_IN_USE;
    else if (source->live + source->draining == source->options.transfers_max)
        status = STATUS_FULL;
    if (status) {
        kv_source_seen(source, key->router_incarnation, key->assignment);
        return status;
    }
    unsigned max = source->options.transfers_max;
    do /* names are never used twice, and their remainder is the slot */
        t = &source->transfers[++source->next_name % max];
    while (t->state != FREE);
    sm_move(&source_table, &t->state, QUEUED);
    source->live++;
    t->name = source->next_name;
    t->key = *key;
    source->id_lows[t - source->transfers] = key->transfer.low;
    t->layout = layout;
    t->user = user;
    t->link = NULL;
    t->first_known = t->first_due = t->tell_ended = false;
    t->in_flight = t->ready_count = t->sealed = t->sends_failed = 0;
    t->cursor = 0;
    t->bytes_ready = t->bytes_sent = 0;
    t->lease_from_ns = source->links->patient_ns;
    t->progress_due_ns = DEADLINE_NONE;
    size_t set_bytes = set_words(t) * sizeof *t->ready;
    memset(t->ready, 0, set_bytes);
    memset(t->wanted, 0, set_bytes);
    memset(t->flying, 0, set_bytes);
    memset(t->sent, 0, set_bytes);
    memset(t->block_ready, 0, layout.block_count * sizeof *t->block_ready);
    mark_raise(source, key->router_incarnation, key->assignment);
    parked_review(source);
    *transfer_out = t->name;
    return STATUS_OK;
}

void kv_source_seen(struct kv_source *source, uint64_t router_incarnation, uint64_t assignment)
{
    mark_raise(source, router_incarnation, assignment);
    parked_review(source);
}

enum status kv_source_started(struct kv_source *source, uint64_t transfer)
{
    struct source_transfer *t = transfer_named(source, transfer);
    if (!t)
        return STATUS_NOT_FOUND;
    if (t->state == QUEUED)
        sm_move(&source_table, &t->state, COMPUTING);
    return STATUS_OK;
}

enum status kv_source_piece_ready(struct kv_source *source, uint64_t transfer,
                                  const struct kv_ready_piece *ready)
{
    struct source_transfer *t = transfer_named(source, transfer);
    if (!t)
        return STATUS_NOT_FOUND;
    if (!kv_layout_has(&t->layout, ready->piece) || ready->bytes == 0)
        return STATUS_INVALID;
    uint32_t index = kv_layout_index(&t->layout, ready->piece);
    if (bit_get(t->ready, index))
        return STATUS_INVALID;
    bit_set(t->ready, index);
    t->pieces[index] = (struct source_piece){ready->data, ready->bytes, ready->checksum};
    t->ready_count++;
    t->bytes_ready += ready->bytes;
    uint32_t block = t->layout.block_base[ready->piece.group] + ready->piece.block;
    if (++t->block_ready[block] == t->layout.shape.groups[ready->piece.group].runs)
        t->sealed++;
    ring_update(t);
    return STATUS_OK;
}

bool kv_source_piece_known(const struct kv_source *source, uint64_t transfer, struct kv_piece piece)
{
    const struct source_transfer *t = &source->transfers[transfer % source->options.transfers_max];
    return transfer && t->name == transfer && is_live(t) && kv_layout_has(&t->layout, piece) &&
           bit_get(t->ready, kv_layout_index(&t->layout, piece));
}

enum status kv_source_computed(struct kv_source *source, uint64_t transfer)
{
    struct source_transfer *t = transfer_named(source, transfer);
    if (!t)
        return STATUS_NOT_FOUND;
    if (t->ready_count != t->layout.piece_count)
        return STATUS_INVALID;
    if (t->state == READY)
        return STATUS_OK;
    sm_move(&source_table, &t->state, READY);
    t->lease_from_ns = source->links->patient_ns;
    source->links->counters.overlap_bytes_sent += t->bytes_sent;
    source->links->counters.overlap_bytes_sent_of += t->bytes_ready;
    if (t->link)
        progress_send(source, t);
    return STATUS_OK;
}

enum status kv_source_first(struct kv_source *source, uint64_t transfer,
                            const struct kv_first *first)
{
    struct source_transfer *t = transfer_named(source, transfer);
    if (!t)
        return STATUS_NOT_FOUND;
    if (first->top_count > KV_LOGPROBS_MAX)
        return STATUS_INVALID;
    t->first = *first;
    t->first_known = true;
    first_send(source, t);
    return STATUS_OK;
}

enum status kv_source_renew(struct kv_source *source, const struct kv_key *key)
{
    struct source_transfer *t = transfer_by_id(source, key->transfer);
    if (!t || !kv_key_equal(&t->key, key))
        return STATUS_NOT_FOUND;
    t->lease_from_ns = source->links->patient_ns;
    return STATUS_OK;
}

static enum kv_gone_reason gone_reason(enum status why)
{
    switch (why) {
    case STATUS_CANCELLED:
    case STATUS_DEADLINE:
        return KV_GONE_CANCELLED;
    case STATUS_DROPPED:
        return KV_GONE_DROPPED;
    case STATUS_TIMEOUT:
        return KV_GONE_LEASE;
    case STATUS_CLOSED:
        return KV_GONE_LINK;
    case STATUS_CHECKSUM:
        return KV_GONE_CHECKSUM;
    default:
        return KV_GONE_FAILED;
    }
}

enum status kv_source_end(struct kv_source *source, uint64_t transfer, enum status why)
{
    struct source_transfer *t = transfer_named(source, transfer);
    if (!t)
        return STATUS_NOT_FOUND;
    if (t->link)
        gone_send(source, t->link, &t->key, gone_reason(why));
    transfer_end(source, t, why, false);
    return STATUS_OK;
}

enum status kv_source_find(struct kv_source *source, struct kv_id id, uint64_t *transfer_out)
{
    struct source_transfer *t = transfer_by_id(source, id);
    if (!t)
        return STATUS_NOT_FOUND;
    *transfer_out = t->name;
    return STATUS_OK;
}

bool kv_source_sending(const struct kv_source *source, uint64_t transfer)
{
    const struct source_transfer *t = transfer_named(source, transfer);
    return t && t->link && t->state == READY && pieces_pending(t);
}

unsigned kv_source_live(const struct kv_source *source)
{
    return source->live;
}

unsigned kv_source_draining(const struct kv_source *source)
{
    return source->draining;
}

/* --- start and end --- */

enum status kv_source_create(struct kv_links *links, const struct kv_source_options *options,
                             const struct kv_source_events *events, struct kv_source **source_out,
                             struct err *err)
{
    struct kv_source *source = calloc(1, sizeof *source);
    if (!source)
        return err_set(err, STATUS_MEMORY, "kv source: no memory");
    if (options)
        source->options = *options;
    struct kv_source_options *o = &source->options;
    o->transfers_max = o->transfers_max ? o->transfers_max : 256;
    o->pieces_max = o->pieces_max ? o->pieces_max : 4096;
    o->parked_max = o->parked_max ? o->parked_max : 4 * links->options.links_max;
    o->parked_peer_max = o->parked_peer_max ? o->parked_peer_max : 256;
    o->park_ns = o->park_ns ? o->park_ns : NS_PER_S;
    o->lease_ns = o->lease_ns ? o->lease_ns : 8 * NS_PER_S;
    o->progress_ns = o->progress_ns ? o->progress_ns : 500 * NS_PER_MS;
    o->send_failures_max = o->send_failures_max ? o->send_failures_max : 8;
    source->links = links;
    source->events = *events;
    list_init(&source->ops_free);
    list_init(&source->ended);
    /* Twice what all windows hold, so that quarantined operations do not starve the living. */
    size_t op_count = 2 * (size_t)links->options.links_max * links->options.window_max;
    size_t words = (o->pieces_max + 63) / 64, transfers = o->transfers_max;
    source->ops = calloc(op_count, sizeof *source->ops);
    source->transfers = calloc(transfers, sizeof *source->transfers);
    source->id_lows = calloc(transfers, sizeof *source->id_lows);
    bool parks = kv_park_init(&source->park, o->parked_max, o->parked_peer_max);
    source->sets = calloc(transfers * words * 4, sizeof *source->sets);
    source->block_counts = calloc(transfers * o->pieces_max, sizeof *source->block_counts);
    source->pieces = calloc(transfers * o->pieces_max, sizeof *source->pieces);
    if (!source->ops || !source->transfers || !source->id_lows || !parks || !source->sets ||
        !source->block_counts || !source->pieces) {
        err_set(err, STATUS_MEMORY, "kv source: no memory for %u transfers of %u pieces",
                o->transfers_max, o->pieces_max);
        kv_source_destroy(source);
        return STATUS_MEMORY;
    }
    for (size_t i = 0; i < op_count; i++) {
        source->ops[i].source = source;
        list_push_back(&source->ops_free, &source->ops[i].link);
    }
    for (size_t i = 0; i < transfers; i++) {
        struct source_transfer *t = &source->transfers[i];
        list_init(&t->ring);
        list_init(&t->ended);
        t->ready = source->sets + (i * 4 + 0) * words;
        t->wanted = source->sets + (i * 4 + 1) * words;
        t->flying = source->sets + (i * 4 + 2) * words;
        t->sent = source->sets + (i * 4 + 3) * words;
        t->block_ready = source->block_counts + i * o->pieces_max;
        t->pieces = source->pieces + i * o->pieces_max;
    }
    links->sides[KV_SIDE_SOURCE] = (struct kv_side){
        .object = source,
        .frame = source_frame,
        .link_ended = source_link_ended,
        .tick = source_tick,
        .flush = source_flush,
        .next_ns = source_next_ns,
        .end_all = source_end_all,
    };
    *source_out = source;
    return STATUS_OK;
}

void kv_source_destroy(struct kv_source *source)
{
    if (!source)
        return;
    free(source->ops);
    free(source->transfers);
    free(source->id_lows);
    kv_park_finish(&source->park);
    free(source->sets);
    free(source->block_counts);
    free(source->pieces);
    free(source);
}
