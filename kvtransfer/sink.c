/* See sink.h. One byte of state per piece says whether it may be received; everything else follows from counts of them. */
#include "kvtransfer/sink.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kvtransfer/link_impl.h"
#include "kvtransfer/shape.h"

enum state { FREE, ASKING, RECEIVING, CONFIRMING, ENDING };

static const struct sm_state sink_states[] = {
    [FREE] = {"free", SM_TO(ASKING)},
    [ASKING] = {"asking", SM_TO(RECEIVING) | SM_TO(CONFIRMING) | SM_TO(ENDING)},
    [RECEIVING] = {"receiving", SM_TO(CONFIRMING) | SM_TO(ENDING)},
    [CONFIRMING] = {"confirming", SM_TO(ENDING)},
    [ENDING] = {"ending", SM_TO(FREE)},
};
static const struct sm_table sink_table = SM_TABLE("kv sink", sink_states);

enum piece_state {
    PIECE_NONE, /* not wanted */
    PIECE_WANTED,
    PIECE_RECEIVING,
    PIECE_RECEIVED, /* the owner verifies it */
    PIECE_VERIFIED,
    PIECE_STATE_COUNT
};

struct sink_transfer {
    uint8_t state;
    bool first_known, pull_due, tell_ended;
    bool sent_all;             /* P says that nothing asked for is unsent */
    enum kv_progress_state at; /* what P said last */
    enum status status;        /* with tell_ended */
    uint64_t name;
    struct kv_key key;
    struct kv_layout layout;
    struct kv_link *link; /* until ENDING */
    void *user;
    struct list due; /* in sink->due: flush has something to do */
    unsigned counts[PIECE_STATE_COUNT];
    unsigned mismatches;
    size_t piece_bytes; /* of the last piece, to estimate the window's time */
    uint64_t deadline_ns;
    uint64_t heard_ns, piece_ns; /* patient: last frame, last piece or first word of sending */
    uint64_t pulled_ns;          /* patient: when PULL was last sent */
    uint64_t bytes_wanted, bytes_verified;
    struct kv_first first;
    uint8_t *pieces; /* enum piece_state */
};

struct sink_op {
    struct xfer_op op;
    struct list link; /* free ones */
    struct kv_sink *sink;
    struct sink_transfer *transfer;
    struct kv_link *via;
    uint32_t via_serial, index;
    void *memory;
    size_t bytes;
    uint64_t checksum;
};

struct kv_sink {
    struct kv_links *links;
    struct kv_sink_options options;
    struct kv_sink_events events;
    uint64_t next_name;
    unsigned live, ending;
    struct sink_transfer *transfers;
    uint64_t *id_lows; /* of each, also of those that are over: a search passes over these alone */
    struct sink_op *ops;
    struct list ops_free, due;
    uint8_t *pieces;
};

/* --- small things --- */

static bool is_live(const struct sink_transfer *t)
{
    return t->state == ASKING || t->state == RECEIVING;
}

static struct sink_transfer *transfer_named(const struct kv_sink *sink, uint64_t name)
{
    struct sink_transfer *t = &sink->transfers[name % sink->options.transfers_max];
    return name && t->name == name && is_live(t) ? t : NULL;
}

static struct sink_transfer *transfer_by_id(const struct kv_sink *sink, struct kv_id id)
{
    for (unsigned i = 0; i < sink->options.transfers_max; i++) {
        if (sink->id_lows[i] != id.low)
            continue;
        struct sink_transfer *t = &sink->transfers[i];
        if (is_live(t) && kv_id_equal(t->key.transfer, id))
            return t;
    }
    return NULL;
}

static void piece_set(struct sink_transfer *t, uint32_t index, enum piece_state state)
{
    t->counts[t->pieces[index]]--;
    t->counts[state]++;
    t->pieces[index] = (uint8_t)state;
}

static unsigned pieces_missing(const struct sink_transfer *t)
{
    return t->counts[PIECE_WANTED] + t->counts[PIECE_RECEIVING] + t->counts[PIECE_RECEIVED];
}

/* What must still come from P. */
static unsigned pieces_outstanding(const struct sink_transfer *t)
{
    return t->counts[PIECE_WANTED] + t->counts[PIECE_RECEIVING];
}

static void due_mark(struct kv_sink *sink, struct sink_transfer *t)
{
    if (list_empty(&t->due))
        list_push_back(&sink->due, &t->due);
}

/* --- PULL --- */

/* True when the runs `a` and `b` of a group want the same blocks. */
static bool runs_alike(const struct sink_transfer *t, uint16_t group, uint16_t a, uint16_t b)
{
    const struct kv_group_shape *shape = &t->layout.shape.groups[group];
    for (uint32_t block = 0; block < shape->blocks; block++) {
        uint32_t base = kv_layout_index(&t->layout, (struct kv_piece){block, group, 0});
        if ((t->pieces[base + a] == PIECE_WANTED) != (t->pieces[base + b] == PIECE_WANTED))
            return false;
    }
    return true;
}

/* One run of layers (or several that want the same blocks), in as many frames as it takes. */
static enum status pull_runs(struct sink_transfer *t, uint16_t group, uint16_t run_begin,
                             uint16_t run_count)
{
    const struct kv_group_shape *shape = &t->layout.shape.groups[group];
    struct kv_frame *out = &t->link->links->out;
    uint32_t block = 0;
    while (block < shape->blocks) {
        uint32_t count = 0;
        for (; block < shape->blocks && count < KV_PULL_BLOCKS_MAX; block++) {
            struct kv_piece piece = {block, group, run_begin};
            if (t->pieces[kv_layout_index(&t->layout, piece)] == PIECE_WANTED)
                out->pull.blocks[count++] = block;
        }
        if (count == 0)
            return STATUS_OK;
        out->type = KV_FRAME_PULL;
        out->key = t->key;
        out->pull.group = group;
        out->pull.run_begin = run_begin;
        out->pull.run_count = run_count;
        out->pull.head_begin = 0;
        out->pull.head_count = shape->heads;
        out->pull.block_count = count;
        enum status status = kv_link_send(t->link, out);
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* Asks for everything that is wanted; for nothing, so that FIRST comes, when that is all. A PULL may come twice, so a
 * failure half-way just starts again later. */
static enum status pull_send(struct sink_transfer *t)
{
    if (t->counts[PIECE_WANTED] == 0) {
        struct kv_frame *out = &t->link->links->out;
        out->type = KV_FRAME_PULL;
        out->key = t->key;
        out->pull = (struct kv_pull){0};
        return kv_link_send(t->link, out);
    }
    for (uint16_t group = 0; group < t->layout.shape.group_count; group++) {
        uint16_t runs = t->layout.shape.groups[group].runs;
        for (uint16_t run = 0, count; run < runs; run = (uint16_t)(run + count)) {
            count = 1;
            while (run + count < runs && runs_alike(t, group, run, (uint16_t)(run + count)))
                count++;
            enum status status = pull_runs(t, group, run, count);
            if (status)
                return status;
        }
    }
    return STATUS_OK;
}

static void pull_want(struct kv_sink *sink, struct sink_transfer *t)
{
    t->pull_due = true;
    due_mark(sink, t);
}

/* --- ends --- */

static void transfer_end(struct kv_sink *sink, struct sink_transfer *t, enum status status,
                         bool tell)
{
    if (is_live(t)) {
        sink->live--;
        sink->ending++;
    }
    sm_move(&sink_table, &t->state, ENDING);
    t->link = NULL;
    if (tell) {
        t->tell_ended = true;
        t->status = status;
    }
    due_mark(sink, t);
}

static enum status done_send(struct sink_transfer *t, enum kv_outcome outcome, enum kv_gave_up why)
{
    struct kv_frame *out = &t->link->links->out;
    out->type = KV_FRAME_DONE;
    out->key = t->key;
    out->done.outcome = (uint8_t)outcome;
    out->done.why = (uint8_t)why;
    return kv_link_send(t->link, out);
}

static enum kv_gave_up gave_up_why(enum status status)
{
    switch (status) {
    case STATUS_TIMEOUT:
        return KV_GAVE_UP_SILENCE;
    case STATUS_CHECKSUM:
        return KV_GAVE_UP_CHECKSUM;
    case STATUS_DEADLINE:
        return KV_GAVE_UP_DEADLINE;
    default:
        return KV_GAVE_UP_CANCELLED;
    }
}

/* P is told; when that frame finds no slot, P's lease ends it there. */
static void give_up(struct kv_sink *sink, struct sink_transfer *t, enum status status)
{
    sink->links->counters.gave_up++;
    done_send(t, KV_OUTCOME_GAVE_UP, gave_up_why(status));
    if (status == STATUS_TIMEOUT)
        kv_link_doubt(t->link);
    transfer_end(sink, t, status, true);
}

/* Complete when every piece is verified and the token is known, whichever came last. */
static void complete_check(struct kv_sink *sink, struct sink_transfer *t)
{
    if (!is_live(t) || pieces_missing(t) || !t->first_known)
        return;
    struct kv_counters *counters = &sink->links->counters;
    if (t->at !=
        KV_PROGRESS_SENDING) { /* P had not ended its last layers when all was verified here */
        counters->overlap_bytes_verified += t->bytes_verified;
        counters->overlap_bytes_verified_of += t->bytes_wanted;
    }
    sm_move(&sink_table, &t->state, CONFIRMING);
    sink->live--;
    sink->ending++;
    t->tell_ended = true;
    t->status = STATUS_OK;
    due_mark(sink, t);
}

/* Sends what is due of one transfer and tells its owner. True: nothing more to do now. */
static bool transfer_flush(struct kv_sink *sink, struct sink_transfer *t)
{
    if (t->tell_ended) {
        t->tell_ended = false;
        struct kv_sink_result result = {t->status, t->first_known ? &t->first : NULL,
                                        pieces_missing(t)};
        sink->events.ended(sink->events.context, t->user, &result);
    }
    if (t->state == CONFIRMING) {
        if (done_send(t, KV_OUTCOME_RECEIVED, KV_GAVE_UP_UNSAID) == STATUS_FULL)
            return false;
        transfer_end(sink, t, STATUS_OK, false);
    }
    if (t->state == ENDING) {
        if (t->counts[PIECE_RECEIVING])
            return false;
        sm_move(&sink_table, &t->state, FREE);
        sink->ending--;
        list_remove(&t->due);
        sink->events.released(sink->events.context, t->user);
        return true;
    }
    if (!t->pull_due)
        return true;
    if (t->link->state != KV_LINK_UP || pull_send(t))
        return false;
    t->pull_due = t->sent_all = false;
    t->pulled_ns = sink->links->patient_ns;
    return true;
}

static void sink_flush(void *object)
{
    struct kv_sink *sink = object;
    struct list later, *link;
    list_init(&later);
    while ((link = list_pop_front(&sink->due))) {
        struct sink_transfer *t = container_of(link, struct sink_transfer, due);
        /* The owner may have begun or ended something meanwhile, this slot's next transfer too: then it is in `due` again. */
        if (!transfer_flush(sink, t) && list_empty(link))
            list_push_back(&later, link);
    }
    while ((link = list_pop_front(&later)))
        list_push_back(&sink->due, link);
}

/* --- pieces --- */

static void mismatch(struct kv_sink *sink, struct sink_transfer *t)
{
    if (++t->mismatches > sink->options.repulls_max)
        give_up(sink, t, STATUS_CHECKSUM);
    else
        pull_want(sink, t);
}

static void receive_done(struct xfer_op *base, enum status status)
{
    struct sink_op *op = container_of(base, struct sink_op, op);
    struct kv_sink *sink = op->sink;
    struct sink_transfer *t = op->transfer;
    struct kv_counters *counters = &sink->links->counters;
    struct kv_piece piece = kv_layout_piece(&t->layout, op->index);
    void *memory = op->memory;
    size_t bytes = op->bytes;
    uint64_t checksum = op->checksum;
    if (op->via->serial == op->via_serial)
        kv_rate_end(&op->via->receive_rate, sink->links->now_ns, status ? 0 : bytes);
    list_push_back(&sink->ops_free, &op->link);
    piece_set(t, op->index, status ? PIECE_WANTED : PIECE_RECEIVED);
    if (status)
        counters->pieces_failed++;
    else
        counters->pieces_received++, counters->bytes_received += bytes;
    if (!is_live(t)) {
        counters->pieces_unverified += status == STATUS_OK;
        due_mark(sink, t); /* it waits for this to be released */
        return;
    }
    if (status) {
        pull_want(sink, t);
        return;
    }
    t->heard_ns = t->piece_ns = sink->links->patient_ns;
    sink->events.piece_received(sink->events.context, t->user, t->name, piece, memory, bytes,
                                checksum);
}

/* The live transfer that a frame from this link is about; NULL, counted, when there is none. */
static struct sink_transfer *frame_transfer(struct kv_sink *sink, struct kv_link *link,
                                            const struct kv_frame *frame)
{
    struct sink_transfer *t = transfer_by_id(sink, frame->key.transfer);
    if (t && t->link == link && kv_key_equal(&t->key, &frame->key)) {
        if (t->state == ASKING)
            sm_move(&sink_table, &t->state, RECEIVING);
        t->heard_ns = sink->links->patient_ns;
        return t;
    }
    sink->links->counters.stale[frame->type]++;
    return NULL;
}

static void sink_piece(void *object, struct kv_link *link, const struct kv_frame *frame,
                       size_t payload_bytes, struct xfer_incoming *incoming)
{
    struct kv_sink *sink = object;
    struct kv_counters *counters = &sink->links->counters;
    struct sink_transfer *t = frame_transfer(sink, link, frame);
    if (!t)
        return;
    struct kv_piece piece = frame->piece.piece;
    if (!kv_layout_has(&t->layout, piece)) {
        counters->stale[KV_FRAME_PIECE]++;
        return;
    }
    uint32_t index = kv_layout_index(&t->layout, piece);
    size_t bytes = 0;
    void *memory = NULL;
    if (t->pieces[index] == PIECE_WANTED)
        memory = sink->events.piece_memory(sink->events.context, t->user, piece, &bytes);
    if (!memory || bytes != payload_bytes || frame->piece.bytes != payload_bytes) {
        counters->stale[KV_FRAME_PIECE]++;
        return;
    }
    if (list_empty(&sink->ops_free)) { /* more than all windows: dropped, and asked for again */
        counters->pieces_failed++;
        return;
    }
    struct sink_op *op = container_of(list_pop_front(&sink->ops_free), struct sink_op, link);
    op->op.done = receive_done;
    op->transfer = t;
    op->via = link;
    op->via_serial = link->serial;
    op->index = index;
    op->memory = memory;
    op->bytes = bytes;
    op->checksum = frame->piece.checksum;
    if (xfer_accept(incoming, link->peer, memory, &op->op)) {
        counters->pieces_failed++;
        list_push_front(&sink->ops_free, &op->link);
        return;
    }
    piece_set(t, index, PIECE_RECEIVING);
    t->piece_bytes = bytes;
    kv_rate_begin(&link->receive_rate, sink->links->now_ns);
}

/* --- frames --- */

static void progress_received(struct kv_sink *sink, struct sink_transfer *t,
                              const struct kv_frame *frame)
{
    bool computed = frame->progress.state == KV_PROGRESS_SENDING && t->at != KV_PROGRESS_SENDING;
    if (frame->progress.state > t->at)
        t->at = frame->progress.state;
    t->sent_all = frame->progress.pieces_pending == 0;
    if (!computed)
        return;
    t->piece_ns = sink->links->patient_ns;
    sink->links->counters.overlap_bytes_verified += t->bytes_verified;
    sink->links->counters.overlap_bytes_verified_of += t->bytes_wanted;
}

static void first_take(struct kv_sink *sink, struct sink_transfer *t, const struct kv_first *first)
{
    if (t->first_known) {
        if (t->first.token_id != first->token_id || t->first.position != first->position)
            sink->links->counters.first_mismatches++;
        return;
    }
    t->first = *first;
    t->first_known = true;
    complete_check(sink, t);
}

static enum status gone_status(enum kv_gone_reason reason)
{
    switch (reason) {
    case KV_GONE_DROPPED:
        return STATUS_DROPPED;
    case KV_GONE_REFUSED:
        return STATUS_MISMATCH;
    case KV_GONE_CANCELLED:
        return STATUS_CANCELLED;
    case KV_GONE_CHECKSUM:
        return STATUS_CHECKSUM;
    default:
        return STATUS_GONE;
    }
}

static void sink_frame(void *object, struct kv_link *link, const struct kv_frame *frame)
{
    struct kv_sink *sink = object;
    struct sink_transfer *t = frame_transfer(sink, link, frame);
    if (!t)
        return;
    switch (frame->type) {
    case KV_FRAME_PROGRESS:
        progress_received(sink, t, frame);
        break;
    case KV_FRAME_FIRST:
        first_take(sink, t, &frame->first);
        break;
    case KV_FRAME_GONE:
        sink->links->counters.gone_received++;
        transfer_end(sink, t, gone_status(frame->gone.reason), true);
        break;
    default:
        sink->links->counters.stale[frame->type]++;
    }
}

/* --- deadlines --- */

static void sink_link_ended(void *object, struct kv_link *link, enum status status)
{
    struct kv_sink *sink = object;
    for (unsigned i = 0; i < sink->options.transfers_max; i++) {
        struct sink_transfer *t = &sink->transfers[i];
        if (is_live(t) && t->link == link)
            transfer_end(sink, t, STATUS_CLOSED, true);
        else if (t->state == CONFIRMING && t->link == link)
            transfer_end(sink, t, STATUS_OK, false); /* complete, whether P hears of it or not */
    }
}

/* How long P may send nothing while pieces are outstanding: the base, and 4 times what its window takes. */
static uint64_t piece_patience_ns(const struct kv_sink *sink, const struct sink_transfer *t)
{
    uint64_t rate = t->link->receive_rate.bytes_per_s;
    double window = (double)t->piece_bytes * sink->links->options.window_max;
    double extra_ns = rate ? 4e9 * window / (double)rate : 0;
    double total_ns = (double)sink->options.piece_ns + extra_ns;
    return total_ns < (double)sink->options.piece_cap_ns ? (uint64_t)total_ns
                                                         : sink->options.piece_cap_ns;
}

static void transfer_tick(struct kv_sink *sink, struct sink_transfer *t)
{
    uint64_t now_ns = sink->links->patient_ns;
    if (sink->links->now_ns >= t->deadline_ns) {
        give_up(sink, t, STATUS_DEADLINE);
        return;
    }
    if (now_ns - t->heard_ns >= sink->options.silence_ns) {
        give_up(sink, t, STATUS_TIMEOUT);
        return;
    }
    bool waits_for_p = pieces_outstanding(t) || !t->first_known;
    if (t->at == KV_PROGRESS_SENDING && waits_for_p &&
        now_ns - t->piece_ns >= piece_patience_ns(sink, t)) {
        give_up(sink, t, STATUS_TIMEOUT);
        return;
    }
    /* Something was lost: P is silent, or says that it has sent all. */
    bool lost = now_ns - t->heard_ns >= sink->options.repull_ns ||
                (t->sent_all &&
                 (t->counts[PIECE_WANTED] || (t->at == KV_PROGRESS_SENDING && !t->first_known)));
    if (lost && waits_for_p && !t->pull_due && now_ns - t->pulled_ns >= sink->options.repull_ns)
        pull_want(sink, t);
}

static void sink_tick(void *object)
{
    struct kv_sink *sink = object;
    for (unsigned i = 0; sink->live && i < sink->options.transfers_max; i++)
        if (is_live(&sink->transfers[i]))
            transfer_tick(sink, &sink->transfers[i]);
}

static uint64_t sink_next_ns(const void *object)
{
    const struct kv_sink *sink = object;
    /* Deadlines of a live transfer move with every frame: a look each 50 ms is cheaper than keeping track, and exact enough. */
    return sink->live || !list_empty(&sink->due) ? sink->links->now_ns + 50 * NS_PER_MS
                                                 : DEADLINE_NONE;
}

static void sink_end_all(void *object)
{
    struct kv_sink *sink = object;
    for (unsigned i = 0; i < sink->options.transfers_max; i++) {
        struct sink_transfer *t = &sink->transfers[i];
        if (is_live(t) || t->state == CONFIRMING)
            transfer_end(sink, t, STATUS_CLOSED, false);
        t->tell_ended = false; /* the owner is leaving too: `released` only */
    }
}

/* --- the owner's calls --- */

enum status kv_sink_begin(struct kv_sink *sink, const struct kv_sink_begin *begin,
                          uint64_t *transfer_out)
{
    struct kv_layout layout;
    if (!kv_layout_init(&layout, &begin->shape, sink->options.pieces_max))
        return STATUS_INVALID;
    if (transfer_by_id(sink, begin->key.transfer))
        return STATUS_IN_USE;
    if (!kv_link_usable(begin->link))
        return STATUS_CLOSED;
    if (sink->live + sink->ending == sink->options.transfers_max)
        return STATUS_FULL;
    struct sink_transfer *t;
    do /* names are never used twice, and their remainder is the slot */
        t = &sink->transfers[++sink->next_name % sink->options.transfers_max];
    while (t->state != FREE);
    uint64_t patient_ns = sink->links->patient_ns;
    uint8_t *pieces = t->pieces;
    sm_move(&sink_table, &t->state, ASKING);
    sink->live++;
    t->first_known = t->tell_ended = t->sent_all = false;
    t->at = KV_PROGRESS_QUEUED;
    t->name = sink->next_name;
    t->key = begin->key;
    sink->id_lows[t - sink->transfers] = begin->key.transfer.low;
    t->layout = layout;
    t->link = begin->link;
    t->user = begin->user;
    memset(t->counts, 0, sizeof t->counts);
    t->mismatches = 0;
    t->piece_bytes = 0;
    t->deadline_ns = begin->deadline_ns;
    t->heard_ns = t->piece_ns = t->pulled_ns = patient_ns;
    t->bytes_wanted = t->bytes_verified = 0;
    for (uint32_t i = 0; i < layout.piece_count; i++) {
        size_t bytes = 0;
        bool wanted = sink->events.piece_memory(sink->events.context, begin->user,
                                                kv_layout_piece(&layout, i), &bytes);
        pieces[i] = wanted ? PIECE_WANTED : PIECE_NONE;
        t->counts[pieces[i]]++;
        t->bytes_wanted += wanted ? bytes : 0;
    }
    pull_want(sink, t);
    *transfer_out = t->name;
    return STATUS_OK;
}

enum status kv_sink_piece_verified(struct kv_sink *sink, uint64_t transfer, struct kv_piece piece,
                                   bool ok)
{
    struct sink_transfer *t = transfer_named(sink, transfer);
    if (!t || !kv_layout_has(&t->layout, piece)) {
        sink->links->counters.pieces_unverified++;
        return STATUS_NOT_FOUND;
    }
    uint32_t index = kv_layout_index(&t->layout, piece);
    if (t->pieces[index] != PIECE_RECEIVED)
        return STATUS_NOT_FOUND;
    struct kv_counters *counters = &sink->links->counters;
    if (!ok) {
        counters->checksum_failures++;
        piece_set(t, index, PIECE_WANTED);
        mismatch(sink, t);
        return STATUS_OK;
    }
    size_t bytes = 0;
    sink->events.piece_memory(sink->events.context, t->user, piece, &bytes);
    counters->pieces_verified++;
    counters->bytes_verified += bytes;
    t->bytes_verified += bytes;
    piece_set(t, index, PIECE_VERIFIED);
    complete_check(sink, t);
    return STATUS_OK;
}

enum status kv_sink_first(struct kv_sink *sink, uint64_t transfer, const struct kv_first *first)
{
    struct sink_transfer *t = transfer_named(sink, transfer);
    if (!t)
        return STATUS_NOT_FOUND;
    if (first->top_count > KV_LOGPROBS_MAX)
        return STATUS_INVALID;
    first_take(sink, t, first);
    return STATUS_OK;
}

enum status kv_sink_end(struct kv_sink *sink, uint64_t transfer)
{
    struct sink_transfer *t = transfer_named(sink, transfer);
    if (!t)
        return STATUS_NOT_FOUND;
    done_send(t, KV_OUTCOME_GAVE_UP, KV_GAVE_UP_CANCELLED);
    transfer_end(sink, t, STATUS_CANCELLED, false);
    return STATUS_OK;
}

enum status kv_sink_find(struct kv_sink *sink, struct kv_id id, uint64_t *transfer_out)
{
    struct sink_transfer *t = transfer_by_id(sink, id);
    if (!t)
        return STATUS_NOT_FOUND;
    *transfer_out = t->name;
    return STATUS_OK;
}

bool kv_sink_block_verified(const struct kv_sink *sink, uint64_t transfer, uint16_t group,
                            uint32_t block)
{
    const struct sink_transfer *t = &sink->transfers[transfer % sink->options.transfers_max];
    struct kv_piece piece = {block, group, 0};
    if (!transfer || t->name != transfer || t->state == FREE || !kv_layout_has(&t->layout, piece))
        return false;
    uint32_t base = kv_layout_index(&t->layout, piece);
    for (uint16_t run = 0; run < t->layout.shape.groups[group].runs; run++)
        if (t->pieces[base + run] != PIECE_VERIFIED)
            return false;
    return true;
}

bool kv_sink_computed(const struct kv_sink *sink, uint64_t transfer)
{
    const struct sink_transfer *t = transfer_named(sink, transfer);
    return t && t->at == KV_PROGRESS_SENDING;
}

unsigned kv_sink_live(const struct kv_sink *sink)
{
    return sink->live;
}

unsigned kv_sink_ending(const struct kv_sink *sink)
{
    return sink->ending;
}

/* --- start and end --- */

enum status kv_sink_create(struct kv_links *links, const struct kv_sink_options *options,
                           const struct kv_sink_events *events, struct kv_sink **sink_out,
                           struct err *err)
{
    struct kv_sink *sink = calloc(1, sizeof *sink);
    if (!sink)
        return err_set(err, STATUS_MEMORY, "kv sink: no memory");
    if (options)
        sink->options = *options;
    struct kv_sink_options *o = &sink->options;
    o->transfers_max = o->transfers_max ? o->transfers_max : 256;
    o->pieces_max = o->pieces_max ? o->pieces_max : 4096;
    o->repulls_max = o->repulls_max ? o->repulls_max : 4;
    o->silence_ns = o->silence_ns ? o->silence_ns : 2 * NS_PER_S;
    o->piece_ns = o->piece_ns ? o->piece_ns : 2 * NS_PER_S;
    o->piece_cap_ns = o->piece_cap_ns ? o->piece_cap_ns : 7 * NS_PER_S;
    o->repull_ns = o->repull_ns ? o->repull_ns : 750 * NS_PER_MS;
    sink->links = links;
    sink->events = *events;
    list_init(&sink->ops_free);
    list_init(&sink->due);
    size_t op_count = 2 * (size_t)links->options.links_max * links->options.window_max;
    sink->ops = calloc(op_count, sizeof *sink->ops);
    sink->transfers = calloc(o->transfers_max, sizeof *sink->transfers);
    sink->id_lows = calloc(o->transfers_max, sizeof *sink->id_lows);
    sink->pieces = calloc((size_t)o->transfers_max * o->pieces_max, sizeof *sink->pieces);
    if (!sink->ops || !sink->transfers || !sink->id_lows || !sink->pieces) {
        err_set(err, STATUS_MEMORY, "kv sink: no memory for %u transfers of %u pieces",
                o->transfers_max, o->pieces_max);
        kv_sink_destroy(sink);
        return STATUS_MEMORY;
    }
    for (size_t i = 0; i < op_count; i++) {
        sink->ops[i].sink = sink;
        list_push_back(&sink->ops_free, &sink->ops[i].link);
    }
    for (size_t i = 0; i < o->transfers_max; i++) {
        list_init(&sink->transfers[i].due);
        sink->transfers[i].pieces = sink->pieces + i * o->pieces_max;
    }
    links->sides[KV_SIDE_SINK] = (struct kv_side){
        .object = sink,
        .frame = sink_frame,
        .piece = sink_piece,
        .link_ended = sink_link_ended,
        .tick = sink_tick,
        .flush = sink_flush,
        .next_ns = sink_next_ns,
        .end_all = sink_end_all,
    };
    *sink_out = sink;
    return STATUS_OK;
}

void kv_sink_destroy(struct kv_sink *sink)
{
    if (!sink)
        return;
    free(sink->ops);
    free(sink->transfers);
    free(sink->id_lows);
    free(sink->pieces);
    free(sink);
}
