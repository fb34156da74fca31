/* See xfer_fault.h. Every peer stands for a peer of the real transport, and every operation of a piece for one or two of its
 * operations. What is kept back stands in one list, in the order in which it came, each entry with its own time.
 *
 *     send ──┬── nothing hits it ─────────────────────────────▶ real peer
 *            ├── kept back: held ── its time, or after the next ─▶ real peer        (or the peer's end: gone, CLOSED)
 *            └── dropped: told as sent from the next progress
 *
 * Messages and operations are allocated as they come: this serves tests, not the hot path. */
#include "kvtransfer/xfer_fault.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kvtransfer/xfer_impl.h"

static const uint64_t reorder_wait_ns = 20 * NS_PER_MS; /* for a next one that may never come */

struct fault_peer {
    struct xfer_peer base;
    struct xfer_peer *inner; /* NULL: closed there */
    uint64_t stalled_until_ns;
    unsigned held_frames;
    uint64_t dropped_frames;
};

/* One operation of the real transport on behalf of one of ours. A duplicate's twin is the operation that it doubles. */
struct fault_op {
    struct xfer_op inner;
    struct fault_xfer *fault;
    struct fault_peer *peer;
    struct xfer_op *outer; /* NULL: a duplicate */
    struct fault_op *twin;
    unsigned waiting_for; /* real operations until the outer one is done */
    enum status status;
    void *memory; /* of a receive */
    size_t bytes;
};

enum held_kind { HELD_FRAME, HELD_PIECE, HELD_RECEIVED };

struct held {
    struct list link; /* in fault->held */
    enum held_kind kind;
    struct fault_peer *peer;
    struct fault_op *op; /* of PIECE and RECEIVED */
    const void *payload;
    size_t payload_bytes;
    uint64_t due_ns;
    bool after_next; /* or as soon as the next one to this peer has left */
    size_t bytes;
    uint8_t data[]; /* the frame, or the piece's header */
};

struct fault_xfer {
    struct xfer base;
    struct xfer *inner;
    struct faults *faults;
    struct xfer_fault_options options;
    unsigned peers_max;
    struct fault_peer *peers;
    struct list held;
    struct list dropped; /* outer operations that are to be told as done */
};

struct fault_incoming {
    struct xfer_incoming base;
    struct xfer_incoming *inner;
    size_t bytes;
};

static struct fault_xfer *fault_of(const struct xfer *xfer)
{
    return container_of(xfer, struct fault_xfer, base);
}

static struct fault_peer *peer_of(struct xfer_peer *peer)
{
    return container_of(peer, struct fault_peer, base);
}

static uint64_t now_of(const struct fault_xfer *fault)
{
    return fault->options.now_ns ? fault->options.now_ns(fault->options.context) : clock_now_ns();
}

/* The real peer's frames, and those that it has not seen. */
static void load_update(struct fault_peer *peer)
{
    if (!peer->inner)
        return;
    struct xfer_load load = xfer_peer_load(peer->inner);
    peer->base.load.frames = load.frames + peer->held_frames;
    peer->base.load.frames_done = load.frames_done + peer->dropped_frames;
}

/* --- what is kept back --- */

static struct held *hold(struct fault_peer *peer, enum held_kind kind, uint64_t due_ns,
                         const void *data, size_t bytes)
{
    struct held *held = calloc(1, sizeof *held + bytes);
    if (!held)
        return NULL;
    held->kind = kind;
    held->peer = peer;
    held->due_ns = due_ns;
    held->bytes = bytes;
    if (bytes)
        memcpy(held->data, data, bytes);
    list_push_back(&fault_of(peer->base.xfer)->held, &held->link);
    peer->held_frames += kind == HELD_FRAME;
    return held;
}

static void held_drop(struct held *held)
{
    held->peer->held_frames -= held->kind == HELD_FRAME;
    list_remove(&held->link);
    free(held);
}

/* When what leaves now may leave: 0 at once. `after_next_out`: or after the next. */
static uint64_t held_until_ns(struct fault_xfer *fault, struct fault_peer *peer,
                              enum faults_place place, bool *after_next_out)
{
    uint64_t now_ns = now_of(fault), due_ns = 0;
    *after_next_out = false;
    if (faults_hit(fault->faults, place, FAULTS_STALL))
        peer->stalled_until_ns = now_ns + faults_stall_ns(fault->faults, place);
    if (faults_hit(fault->faults, place, FAULTS_DELAY)) {
        due_ns = now_ns + faults_delay_ns(fault->faults, place);
    } else if (faults_hit(fault->faults, place, FAULTS_REORDER)) {
        due_ns = now_ns + reorder_wait_ns;
        *after_next_out = true;
    }
    if (peer->stalled_until_ns > now_ns && peer->stalled_until_ns > due_ns)
        due_ns = peer->stalled_until_ns;
    return due_ns;
}

/* --- operations --- */

static struct fault_op *op_make(struct fault_xfer *fault, struct fault_peer *peer,
                                struct xfer_op *outer)
{
    struct fault_op *op = calloc(1, sizeof *op);
    if (!op)
        return NULL;
    op->fault = fault;
    op->peer = peer;
    op->outer = outer;
    list_init(&op->inner.link);
    return op;
}

/* The outer operation's end; from progress and destroy only. */
static void op_finish(struct fault_op *op, enum status status)
{
    struct xfer_op *outer = op->outer;
    free(op);
    xfer_op_finish(outer, status);
}

static void sent_done(struct xfer_op *inner, enum status status)
{
    struct fault_op *op = container_of(inner, struct fault_op, inner);
    struct fault_op *of = op->twin ? op->twin : op;
    if (op == of)
        of->status = status;
    else
        free(op);
    if (--of->waiting_for == 0)
        op_finish(of, of->status);
}

static void received_done(struct xfer_op *inner, enum status status)
{
    struct fault_op *op = container_of(inner, struct fault_op, inner);
    struct fault_xfer *fault = op->fault;
    if (status) {
        op_finish(op, status);
        return;
    }
    faults_next(fault->faults, FAULTS_PIECE);
    if (faults_hit(fault->faults, FAULTS_PIECE, FAULTS_FLIP)) {
        faults_flip_bit(fault->faults, FAULTS_PIECE, op->memory, op->bytes);
        if (fault->options.flipped)
            fault->options.flipped(fault->options.context, op->memory);
    }
    if (op->peer->inner && faults_hit(fault->faults, FAULTS_PIECE, FAULTS_DELAY)) {
        uint64_t due_ns = now_of(fault) + faults_delay_ns(fault->faults, FAULTS_PIECE);
        struct held *held = hold(op->peer, HELD_RECEIVED, due_ns, NULL, 0);
        if (held) {
            held->op = op;
            return;
        }
    }
    op_finish(op, STATUS_OK);
}

/* --- leaving --- */

static void after_next_release(struct fault_peer *peer);

static enum status frame_leave(struct fault_peer *peer, const void *frame, size_t bytes, bool twice)
{
    enum status status = xfer_send_frame(peer->inner, frame, bytes);
    if (!status && twice)
        xfer_send_frame(peer->inner, frame, bytes);
    load_update(peer);
    return status;
}

static enum status piece_leave(struct fault_peer *peer, const void *header, size_t header_bytes,
                               const void *payload, size_t payload_bytes, struct fault_op *op,
                               bool twice)
{
    op->inner.done = sent_done;
    op->waiting_for = 1;
    enum status status =
        xfer_send_piece(peer->inner, header, header_bytes, payload, payload_bytes, &op->inner);
    if (status || !twice)
        return status;
    struct fault_op *copy = op_make(op->fault, peer, NULL);
    if (!copy)
        return STATUS_OK;
    copy->inner.done = sent_done;
    copy->twin = op;
    if (xfer_send_piece(peer->inner, header, header_bytes, payload, payload_bytes, &copy->inner))
        free(copy);
    else
        op->waiting_for++;
    return STATUS_OK;
}

/* True when it has gone, or never will. */
static bool held_leave(struct held *held)
{
    struct fault_peer *peer = held->peer;
    enum status status = STATUS_OK;
    if (held->kind == HELD_RECEIVED) {
        struct fault_op *op = held->op;
        held_drop(held);
        op_finish(op, STATUS_OK);
        return true;
    }
    if (held->kind == HELD_FRAME)
        status = frame_leave(peer, held->data, held->bytes, false);
    else
        status = piece_leave(peer, held->data, held->bytes, held->payload, held->payload_bytes,
                             held->op, false);
    if (status == STATUS_FULL)
        return false;
    if (status && held->kind == HELD_PIECE)
        return false; /* the endpoint is ending: its end finishes this */
    held_drop(held);
    load_update(peer);
    return true;
}

static void after_next_release(struct fault_peer *peer)
{
    list_for_each_safe(it, tmp, &fault_of(peer->base.xfer)->held)
    {
        struct held *held = container_of(it, struct held, link);
        if (held->peer == peer && held->after_next)
            held->due_ns = 0; /* at the next progress: not inside a call that posts */
    }
}

static enum status fault_send_frame(struct xfer_peer *base, const void *frame, size_t bytes)
{
    struct fault_xfer *fault = fault_of(base->xfer);
    struct fault_peer *peer = peer_of(base);
    if (!peer->inner)
        return STATUS_CLOSED;
    uint8_t copy[XFER_FRAME_BYTES_MAX];
    memcpy(copy, frame, bytes);
    faults_next(fault->faults, FAULTS_FRAME);
    if (faults_hit(fault->faults, FAULTS_FRAME, FAULTS_DROP)) {
        peer->dropped_frames++;
        load_update(peer);
        return STATUS_OK;
    }
    if (faults_hit(fault->faults, FAULTS_FRAME, FAULTS_FLIP))
        faults_flip_bit(fault->faults, FAULTS_FRAME, copy, bytes);
    bool after_next;
    uint64_t due_ns = held_until_ns(fault, peer, FAULTS_FRAME, &after_next);
    struct held *held = due_ns ? hold(peer, HELD_FRAME, due_ns, copy, bytes) : NULL;
    if (held) {
        held->after_next = after_next;
        load_update(peer);
        return STATUS_OK;
    }
    bool twice = faults_hit(fault->faults, FAULTS_FRAME, FAULTS_DUPLICATE);
    enum status status = frame_leave(peer, copy, bytes, twice);
    after_next_release(peer);
    return status;
}

static enum status fault_send_piece(struct xfer_peer *base, const void *header, size_t header_bytes,
                                    const void *payload, size_t payload_bytes,
                                    struct xfer_op *outer)
{
    struct fault_xfer *fault = fault_of(base->xfer);
    struct fault_peer *peer = peer_of(base);
    struct fault_op *op = peer->inner ? op_make(fault, peer, outer) : NULL;
    if (!op)
        return peer->inner ? STATUS_FULL : STATUS_CLOSED;
    uint8_t copy[XFER_PIECE_HEADER_BYTES_MAX];
    memcpy(copy, header, header_bytes);
    faults_next(fault->faults, FAULTS_PIECE);
    faults_next(fault->faults, FAULTS_FRAME);
    if (faults_hit(fault->faults, FAULTS_PIECE, FAULTS_DROP)) {
        free(op);
        xfer_op_start(base, outer);
        list_remove(&outer->link);
        list_push_back(&fault->dropped, &outer->link);
        return STATUS_OK;
    }
    if (faults_hit(fault->faults, FAULTS_FRAME, FAULTS_FLIP))
        faults_flip_bit(fault->faults, FAULTS_FRAME, copy, header_bytes);
    bool after_next;
    uint64_t due_ns = held_until_ns(fault, peer, FAULTS_PIECE, &after_next);
    struct held *held = due_ns ? hold(peer, HELD_PIECE, due_ns, copy, header_bytes) : NULL;
    enum status status = STATUS_OK;
    if (held) {
        held->after_next = after_next;
        held->op = op;
        held->payload = payload;
        held->payload_bytes = payload_bytes;
    } else {
        bool twice = faults_hit(fault->faults, FAULTS_PIECE, FAULTS_DUPLICATE);
        status = piece_leave(peer, copy, header_bytes, payload, payload_bytes, op, twice);
        after_next_release(peer);
    }
    if (status)
        free(op);
    else
        xfer_op_start(base, outer);
    return status;
}

static enum status fault_accept(struct xfer_incoming *base, struct xfer_peer *peer_base,
                                void *memory, struct xfer_op *outer)
{
    struct fault_incoming *incoming = container_of(base, struct fault_incoming, base);
    struct fault_peer *peer = peer_of(peer_base);
    struct fault_op *op = peer->inner ? op_make(fault_of(peer_base->xfer), peer, outer) : NULL;
    if (!op)
        return STATUS_CLOSED;
    op->memory = memory;
    op->bytes = incoming->bytes;
    op->inner.done = received_done;
    enum status status = xfer_accept(incoming->inner, peer->inner, memory, &op->inner);
    if (status)
        free(op);
    else
        xfer_op_start(peer_base, outer);
    return status;
}

/* --- what the real transport calls --- */

static void on_frame(void *context, const uint8_t *frame, size_t bytes)
{
    struct fault_xfer *fault = context;
    fault->base.handler.frame(fault->base.handler.context, frame, bytes);
}

static void on_piece(void *context, const uint8_t *header, size_t header_bytes,
                     size_t payload_bytes, struct xfer_incoming *inner)
{
    struct fault_xfer *fault = context;
    struct fault_incoming incoming = {{&fault->base}, inner, payload_bytes};
    fault->base.handler.piece(fault->base.handler.context, header, header_bytes, payload_bytes,
                              &incoming.base);
}

static void on_peer_failed(void *context, void *peer_context, struct xfer_peer *inner,
                           enum status status)
{
    struct fault_xfer *fault = context;
    struct fault_peer *peer = peer_context;
    if (peer->base.state != XFER_PEER_OPEN)
        return;
    peer->base.state = XFER_PEER_CLOSING;
    fault->base.handler.peer_failed(fault->base.handler.context, peer->base.context, &peer->base,
                                    status);
}

/* Nothing of the real peer is outstanding; what was kept back for it ends here. */
static void on_peer_closed(void *context, void *peer_context, struct xfer_peer *inner)
{
    struct fault_xfer *fault = context;
    struct fault_peer *peer = peer_context;
    peer->inner = NULL;
    list_for_each_safe(it, tmp, &fault->held)
    {
        struct held *held = container_of(it, struct held, link);
        if (held->peer != peer)
            continue;
        struct fault_op *op = held->op;
        enum status status = held->kind == HELD_RECEIVED ? STATUS_OK : STATUS_CLOSED;
        held_drop(held);
        if (op)
            op_finish(op, status);
    }
    list_for_each_safe(it, tmp, &fault->dropped)
    {
        struct xfer_op *outer = container_of(it, struct xfer_op, link);
        if (outer->peer == &peer->base)
            xfer_op_finish(outer, STATUS_OK);
    }
    assert(peer->base.load.ops == 0);
    peer->base.state = XFER_PEER_FREE;
    fault->base.handler.peer_closed(fault->base.handler.context, peer->base.context, &peer->base);
}

/* --- peers --- */

static enum status fault_peer_open(struct xfer *xfer, const uint8_t *address, size_t bytes,
                                   uint32_t *number_inout, void *context,
                                   struct xfer_peer **peer_out, struct err *err)
{
    struct fault_xfer *fault = fault_of(xfer);
    struct fault_peer *peer = NULL;
    for (unsigned i = 0; i < fault->peers_max && !peer; i++)
        if (fault->peers[i].base.state == XFER_PEER_FREE)
            peer = &fault->peers[i];
    if (!peer)
        return err_set(err, STATUS_FULL, "kv peers: %u are open already", fault->peers_max);
    *peer = (struct fault_peer){.base = {.xfer = xfer, .context = context}};
    list_init(&peer->base.ops);
    enum status status =
        xfer_peer_open(fault->inner, address, bytes, number_inout, peer, &peer->inner, err);
    if (status)
        return status;
    peer->base.state = XFER_PEER_OPEN;
    *peer_out = &peer->base;
    return STATUS_OK;
}

static void fault_peer_close(struct xfer_peer *base)
{
    struct fault_peer *peer = peer_of(base);
    if (base->state != XFER_PEER_OPEN)
        return;
    base->state = XFER_PEER_CLOSING;
    xfer_peer_close(peer->inner);
}

/* --- rounds --- */

static unsigned fault_progress(struct xfer *xfer)
{
    struct fault_xfer *fault = fault_of(xfer);
    unsigned count = xfer_progress(fault->inner);
    struct list *link;
    struct list dropped;
    list_init(&dropped);
    while ((link = list_pop_front(&fault->dropped)))
        list_push_back(&dropped, link);
    while (!list_empty(&dropped)) {
        xfer_op_finish(container_of(dropped.next, struct xfer_op, link), STATUS_OK);
        count++;
    }
    uint64_t now_ns = now_of(fault);
    /* A leaving one may call the owner, which may post more: these are not due, and stand behind. */
    list_for_each_safe(it, tmp, &fault->held)
    {
        struct held *held = container_of(it, struct held, link);
        if (held->due_ns > now_ns || held->peer->stalled_until_ns > now_ns)
            continue;
        if (held_leave(held))
            count++;
    }
    for (unsigned i = 0; i < fault->peers_max; i++)
        if (fault->peers[i].base.state != XFER_PEER_FREE)
            load_update(&fault->peers[i]);
    return count;
}

static uint64_t fault_next_ns(const struct xfer *xfer)
{
    const struct fault_xfer *fault = fault_of(xfer);
    uint64_t next_ns = list_empty(&fault->dropped) ? xfer_next_ns(fault->inner) : 0;
    list_for_each(it, &fault->held)
    {
        const struct held *held = container_of(it, struct held, link);
        uint64_t due_ns = held->due_ns > held->peer->stalled_until_ns
                              ? held->due_ns
                              : held->peer->stalled_until_ns;
        if (due_ns < next_ns)
            next_ns = due_ns;
    }
    return next_ns;
}

static bool fault_arm(struct xfer *xfer)
{
    struct fault_xfer *fault = fault_of(xfer);
    return list_empty(&fault->dropped) && xfer_arm(fault->inner);
}

static int fault_event_fd(const struct xfer *xfer)
{
    return xfer_event_fd(fault_of(xfer)->inner);
}

static enum status fault_expect(struct xfer *xfer, const struct sockaddr *address, uint64_t now_ns,
                                uint64_t window_ns)
{
    return xfer_expect(fault_of(xfer)->inner, address, now_ns, window_ns);
}

static void fault_expect_tick(struct xfer *xfer, uint64_t now_ns)
{
    xfer_expect_tick(fault_of(xfer)->inner, now_ns);
}

static const uint8_t *fault_address(const struct xfer *xfer, size_t *bytes_out)
{
    return xfer_address(fault_of(xfer)->inner, bytes_out);
}

static const char *fault_describe(const struct xfer *xfer)
{
    return xfer_describe(fault_of(xfer)->inner);
}

static const char *fault_warning(const struct xfer *xfer)
{
    return xfer_warning(fault_of(xfer)->inner);
}

/* --- life --- */

static void fault_destroy(struct xfer *xfer)
{
    struct fault_xfer *fault = fault_of(xfer);
    xfer_destroy(fault->inner); /* every peer ends in it, and with it what was kept back */
    assert(!fault->peers || list_empty(&fault->held));
    free(fault->peers);
    free(fault);
}

static const struct xfer_ops fault_ops = {
    .destroy = fault_destroy,
    .address = fault_address,
    .describe = fault_describe,
    .warning = fault_warning,
    .progress = fault_progress,
    .event_fd = fault_event_fd,
    .arm = fault_arm,
    .next_ns = fault_next_ns,
    .expect = fault_expect,
    .expect_tick = fault_expect_tick,
    .peer_open = fault_peer_open,
    .peer_close = fault_peer_close,
    .send_frame = fault_send_frame,
    .send_piece = fault_send_piece,
    .accept = fault_accept,
};

enum status xfer_fault_create(struct faults *faults, const struct xfer_fault_options *options,
                              enum status (*make)(void *context, const struct xfer_handler *handler,
                                                  struct xfer **xfer_out, struct err *err),
                              void *make_context, const struct xfer_handler *handler,
                              struct xfer **xfer_out, struct err *err)
{
    struct fault_xfer *fault = calloc(1, sizeof *fault);
    if (!fault)
        return err_set(err, STATUS_MEMORY, "faults: no memory");
    fault->base = (struct xfer){&fault_ops, *handler};
    fault->faults = faults;
    if (options)
        fault->options = *options;
    list_init(&fault->held);
    list_init(&fault->dropped);
    fault->peers_max = fault->options.peers_max ? fault->options.peers_max : 64;
    fault->peers = calloc(fault->peers_max, sizeof *fault->peers);
    const struct xfer_handler own = {.context = fault,
                                     .frame = on_frame,
                                     .piece = on_piece,
                                     .peer_failed = on_peer_failed,
                                     .peer_closed = on_peer_closed};
    enum status status = fault->peers ? make(make_context, &own, &fault->inner, err)
                                      : err_set(err, STATUS_MEMORY, "faults: no memory");
    if (status) {
        fault_destroy(&fault->base);
        return status;
    }
    *xfer_out = &fault->base;
    return STATUS_OK;
}
