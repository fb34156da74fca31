/* See memory.h. A hub holds one queue of messages per direction; a step takes one message from the head of a queue (or from
 * further back, with faults) to the inbox of the worker it concerns, and xfer_progress of that worker acts on it:
 *
 *     A ── send ──▶ queue[A][B] ── step ──▶ inbox of B ── progress ──▶ B's handler
 *                                                            │ accepted: a DATA message into queue[A][B]
 *                                                            ▼ moved, or dropped: SENT into the inbox of A
 *
 * Messages are allocated as they come: this transport serves tests and single processes, not the hot path. */
#include "kvtransfer/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kvtransfer/xfer_impl.h"

enum message_kind {
    MESSAGE_FRAME,
    MESSAGE_PIECE, /* announced */
    MESSAGE_DATA,  /* accepted; the bytes move when this arrives */
    MESSAGE_SENT,  /* to the sender: its piece was moved or dropped */
    MESSAGE_ENDED, /* to the other side: the endpoint it was connected to is closed */
};

struct memory_peer {
    struct xfer_peer base;
    struct memory_worker *remote;
    uint32_t
        serial; /* the how-manieth endpoint of this worker to that one: pairs endpoints of both sides */
    bool failing; /* peer_failed is to be told */
    enum status cause;
};

struct message {
    struct list link;
    enum message_kind kind;
    struct memory_worker *from, *to;
    struct memory_peer *peer; /* of the sender; NULL for a duplicate */
    struct xfer_op *send_op;  /* NULL for a duplicate, whose payload is `copy` */
    struct xfer_op *receive_op;
    struct memory_peer *receive_peer;
    void *memory;
    const void *payload;
    void *copy;
    size_t payload_bytes, bytes;
    uint32_t serial;
    unsigned delay;
    bool flip;
    uint8_t header[]; /* `bytes` of it: the frame, or the piece's header */
};

struct memory_worker {
    struct xfer base;
    struct xfer_hub *hub;
    unsigned index;
    uint64_t address; /* unique over the hub's life */
    bool killed, frozen;
    unsigned peers_max;
    struct memory_peer *peers;
    uint32_t *serials; /* endpoints opened so far, by the other's index */
    struct list inbox;
    struct list *queues; /* from here, by the other's index */
    bool *cuts;
};

struct xfer_hub {
    uint64_t random, next_address;
    unsigned workers_max;
    bool automatic;
    struct memory_worker **workers;
    struct xfer_faults faults;
    struct xfer_hub_counters counters;
};

struct memory_incoming {
    struct xfer_incoming base;
    struct message *message;
    bool accepted;
};

/* splitmix64 */
static uint64_t hub_random(struct xfer_hub *hub)
{
    uint64_t z = hub->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static bool hub_chance(struct xfer_hub *hub, uint16_t parts)
{
    return parts && (hub_random(hub) & 0xffff) < parts;
}

static struct memory_worker *worker_of(struct xfer *xfer)
{
    return container_of(xfer, struct memory_worker, base);
}

static struct memory_peer *peer_of(struct xfer_peer *peer)
{
    return container_of(peer, struct memory_peer, base);
}

static struct message *message_create(enum message_kind kind, struct memory_worker *from,
                                      struct memory_worker *to, const void *header, size_t bytes)
{
    struct message *message = calloc(1, sizeof *message + bytes);
    if (!message)
        return NULL;
    message->kind = kind;
    message->from = from;
    message->to = to;
    message->bytes = bytes;
    if (bytes)
        memcpy(message->header, header, bytes);
    list_init(&message->link);
    return message;
}

static void message_destroy(struct message *message)
{
    list_remove(&message->link);
    free(message->copy);
    free(message);
}

static void message_queue(struct message *message)
{
    list_push_back(&message->from->queues[message->to->index], &message->link);
}

/* --- operations --- */

/* Tells the sender that its piece was moved or dropped. */
static void piece_finish(struct message *message)
{
    if (!message->send_op || message->from->killed) {
        message_destroy(message);
        return;
    }
    list_remove(&message->link);
    message->kind = MESSAGE_SENT;
    list_push_back(&message->from->inbox, &message->link);
}

/* --- endpoints --- */

/* Messages that need this endpoint's memory or operations must not move any more. */
static void messages_forget(struct list *messages, const struct memory_peer *peer)
{
    list_for_each_safe(it, tmp, messages)
    {
        struct message *message = container_of(it, struct message, link);
        if (message->kind == MESSAGE_FRAME || message->kind == MESSAGE_ENDED)
            continue;
        if (message->peer == peer) {
            message_destroy(message);
        } else if (message->receive_peer == peer) {
            /* The receiver went away in mid-piece: nothing moves; the sender hears of it by its endpoint's end. */
            message_destroy(message);
        }
    }
}

static void peer_forget(struct memory_peer *peer)
{
    struct memory_worker *worker = worker_of(peer->base.xfer);
    struct xfer_hub *hub = worker->hub;
    for (unsigned i = 0; i < hub->workers_max; i++) {
        struct memory_worker *other = hub->workers[i];
        if (!other)
            continue;
        messages_forget(&other->inbox, peer);
        for (unsigned j = 0; j < hub->workers_max; j++)
            messages_forget(&other->queues[j], peer);
    }
}

static void peer_begin_close(struct memory_peer *peer)
{
    if (peer->base.state != XFER_PEER_OPEN)
        return;
    peer->base.state = XFER_PEER_CLOSING;
    peer_forget(peer);
    struct memory_worker *worker = worker_of(peer->base.xfer);
    if (!peer->remote || peer->remote->killed || worker->killed)
        return;
    struct message *message = message_create(MESSAGE_ENDED, worker, peer->remote, NULL, 0);
    if (message) {
        message->serial = peer->serial;
        message_queue(message);
    }
}

/* Tells what failed, ends the operations of what closes, frees what has drained. */
static unsigned peer_settle(struct memory_peer *peer)
{
    struct memory_worker *worker = worker_of(peer->base.xfer);
    const struct xfer_handler *handler = &worker->base.handler;
    unsigned count = 0;
    if (peer->base.state == XFER_PEER_OPEN && peer->failing) {
        enum status cause = peer->cause;
        peer_begin_close(peer);
        handler->peer_failed(handler->context, peer->base.context, &peer->base, cause);
        count++;
    }
    if (peer->base.state != XFER_PEER_CLOSING)
        return count;
    while (!list_empty(&peer->base.ops)) {
        xfer_op_finish(container_of(peer->base.ops.next, struct xfer_op, link), STATUS_CLOSED);
        count++;
    }
    peer->base.state = XFER_PEER_FREE;
    peer->failing = false;
    handler->peer_closed(handler->context, peer->base.context, &peer->base);
    return count + 1;
}

static void peers_fail(struct memory_worker *worker, struct memory_worker *remote, uint32_t serial)
{
    for (unsigned i = 0; i < worker->peers_max; i++) {
        struct memory_peer *peer = &worker->peers[i];
        if (peer->base.state == XFER_PEER_OPEN && peer->remote == remote &&
            peer->serial <= serial) {
            peer->failing = true;
            peer->cause = STATUS_CLOSED;
        }
    }
}

static enum status memory_peer_open(struct xfer *xfer, const uint8_t *address, size_t bytes,
                                    uint32_t *number_inout, void *context,
                                    struct xfer_peer **peer_out, struct err *err)
{
    struct memory_worker *worker = worker_of(xfer);
    struct xfer_hub *hub = worker->hub;
    uint64_t wanted;
    if (bytes != sizeof wanted)
        return err_set(err, STATUS_INVALID, "kv_address: %zu bytes (%zu)", bytes, sizeof wanted);
    memcpy(&wanted, address, sizeof wanted);
    for (unsigned i = 0; i < worker->peers_max; i++) {
        struct memory_peer *peer = &worker->peers[i];
        if (peer->base.state != XFER_PEER_FREE)
            continue;
        *peer = (struct memory_peer){
            .base = {.xfer = xfer, .context = context, .state = XFER_PEER_OPEN}};
        list_init(&peer->base.ops);
        for (unsigned j = 0; j < hub->workers_max; j++) {
            struct memory_worker *other = hub->workers[j];
            if (other && other->address == wanted && !other->killed)
                peer->remote = other;
        }
        if (peer->remote) {
            peer->serial = ++worker->serials[peer->remote->index];
        } else {
            peer->failing =
                true; /* as with a real transport, only trying shows that nobody is there */
            peer->cause = STATUS_CLOSED;
        }
        *peer_out = &peer->base;
        return STATUS_OK;
    }
    return err_set(err, STATUS_FULL, "kv peers: %u are open already", worker->peers_max);
}

static void memory_peer_close(struct xfer_peer *peer)
{
    peer_begin_close(peer_of(peer));
}

/* --- sending --- */

/* True when the message was lost. */
static bool faults_apply(struct xfer_hub *hub, struct message *message)
{
    const struct xfer_faults *faults = &hub->faults;
    if (faults->frames_only && message->kind != MESSAGE_FRAME)
        return false;
    if (hub_chance(hub, faults->delay)) {
        message->delay = faults->delay_steps;
        hub->counters.delayed++;
    }
    if (hub_chance(hub, faults->flip)) {
        if (message->kind == MESSAGE_FRAME) {
            message->header[hub_random(hub) % message->bytes] ^= 1u << (hub_random(hub) & 7);
            hub->counters.frames_flipped++;
        } else {
            message->flip = true;
        }
    }
    if (hub_chance(hub, faults->duplicate)) {
        struct message *copy = message_create(message->kind, message->from, message->to,
                                              message->header, message->bytes);
        if (copy && message->payload_bytes) {
            copy->copy = malloc(message->payload_bytes);
            if (copy->copy)
                memcpy(copy->copy, message->payload, message->payload_bytes);
            copy->payload = copy->copy;
            copy->payload_bytes = message->payload_bytes;
        }
        if (copy && (!message->payload_bytes || copy->copy)) {
            message_queue(copy);
            hub->counters.duplicated++;
        } else if (copy) {
            message_destroy(copy);
        }
    }
    if (hub_chance(hub, faults->drop)) {
        hub->counters.dropped++;
        return true;
    }
    return false;
}

static enum status memory_send_frame(struct xfer_peer *base, const void *frame, size_t bytes)
{
    struct memory_peer *peer = peer_of(base);
    struct memory_worker *worker = worker_of(base->xfer);
    if (!peer->remote || peer->remote->killed)
        return STATUS_OK; /* lost, as in a socket's buffer; the endpoint's end follows */
    struct message *message = message_create(MESSAGE_FRAME, worker, peer->remote, frame, bytes);
    if (!message)
        return STATUS_FULL;
    base->load.frames_done++;
    if (faults_apply(worker->hub, message))
        message_destroy(message);
    else
        message_queue(message);
    return STATUS_OK;
}

static enum status memory_send_piece(struct xfer_peer *base, const void *header,
                                     size_t header_bytes, const void *payload, size_t payload_bytes,
                                     struct xfer_op *op)
{
    struct memory_peer *peer = peer_of(base);
    struct memory_worker *worker = worker_of(base->xfer);
    if (!peer->remote)
        return STATUS_CLOSED;
    struct message *message =
        message_create(MESSAGE_PIECE, worker, peer->remote, header, header_bytes);
    if (!message)
        return STATUS_FULL;
    message->peer = peer;
    message->send_op = op;
    message->payload = payload;
    message->payload_bytes = payload_bytes;
    xfer_op_start(&peer->base, op);
    if (peer->remote->killed)
        message_destroy(message);
    else if (faults_apply(worker->hub, message))
        piece_finish(message);
    else
        message_queue(message);
    return STATUS_OK;
}

static enum status memory_accept(struct xfer_incoming *base, struct xfer_peer *peer, void *memory,
                                 struct xfer_op *op)
{
    struct memory_incoming *incoming = container_of(base, struct memory_incoming, base);
    assert(!incoming->accepted);
    struct message *message = incoming->message;
    incoming->accepted = true;
    message->kind = MESSAGE_DATA;
    message->receive_op = op;
    message->receive_peer = peer_of(peer);
    message->memory = memory;
    xfer_op_start(&message->receive_peer->base, op);
    return STATUS_OK;
}

/* --- receiving --- */

static void data_move(struct memory_worker *worker, struct message *message)
{
    memcpy(message->memory, message->payload, message->payload_bytes);
    if (message->flip) {
        uint64_t bit = hub_random(worker->hub) % (message->payload_bytes * 8);
        ((uint8_t *)message->memory)[bit / 8] ^= 1u << (bit & 7);
        worker->hub->counters.pieces_flipped++;
    }
    xfer_op_finish(message->receive_op, STATUS_OK);
    message->receive_op = NULL;
    message->receive_peer = NULL;
    piece_finish(message);
}

static void message_act(struct memory_worker *worker, struct message *message)
{
    const struct xfer_handler *handler = &worker->base.handler;
    switch (message->kind) {
    case MESSAGE_FRAME:
        handler->frame(handler->context, message->header, message->bytes);
        message_destroy(message);
        break;
    case MESSAGE_PIECE: {
        struct memory_incoming incoming = {{&worker->base}, message, false};
        handler->piece(handler->context, message->header, message->bytes, message->payload_bytes,
                       &incoming.base);
        if (incoming.accepted)
            message_queue(message);
        else
            piece_finish(message);
        break;
    }
    case MESSAGE_DATA:
        data_move(worker, message);
        break;
    case MESSAGE_SENT: {
        struct xfer_op *op = message->send_op;
        message_destroy(message);
        xfer_op_finish(op, STATUS_OK);
        break;
    }
    case MESSAGE_ENDED:
        peers_fail(worker, message->from, message->serial);
        message_destroy(message);
        break;
    }
}

static bool queue_blocked(const struct memory_worker *from, unsigned to_index)
{
    const struct memory_worker *to = from->hub->workers[to_index];
    return !to || from->frozen || to->frozen || from->cuts[to_index];
}

/* Takes one message from this queue to where it is acted upon; false when the queue is empty or blocked. */
static bool queue_step(struct memory_worker *from, unsigned to_index)
{
    struct list *queue = &from->queues[to_index];
    struct xfer_hub *hub = from->hub;
    if (list_empty(queue) || queue_blocked(from, to_index))
        return false;
    struct list *chosen = queue->next;
    if (hub_chance(hub, hub->faults.reorder) && chosen->next != queue) {
        unsigned skip = 1 + (unsigned)(hub_random(hub) % 4);
        while (skip-- && chosen->next != queue)
            chosen = chosen->next;
        hub->counters.reordered++;
    }
    struct message *message = container_of(chosen, struct message, link);
    hub->counters.steps++;
    if (message->delay) {
        message->delay--;
        list_remove(&message->link);
        list_push_back(queue, &message->link);
        return true;
    }
    list_remove(&message->link);
    list_push_back(&message->to->inbox, &message->link);
    return true;
}

static void worker_pull_all(struct memory_worker *worker)
{
    struct xfer_hub *hub = worker->hub;
    for (unsigned i = 0; i < hub->workers_max; i++)
        while (hub->workers[i] && queue_step(hub->workers[i], worker->index))
            ;
}

static unsigned memory_progress(struct xfer *xfer)
{
    struct memory_worker *worker = worker_of(xfer);
    if (worker->frozen || worker->killed)
        return 0;
    if (worker->hub->automatic)
        worker_pull_all(worker);
    unsigned count = 0;
    struct list *link;
    while ((link = list_pop_front(&worker->inbox))) {
        message_act(worker, container_of(link, struct message, link));
        count++;
    }
    for (unsigned i = 0; i < worker->peers_max; i++)
        if (worker->peers[i].base.state != XFER_PEER_FREE)
            count += peer_settle(&worker->peers[i]);
    return count;
}

/* --- worker --- */

static const uint8_t *memory_address(const struct xfer *xfer, size_t *bytes_out)
{
    const struct memory_worker *worker = worker_of((struct xfer *)xfer);
    *bytes_out = sizeof worker->address;
    return (const uint8_t *)&worker->address;
}

static const char *memory_describe(const struct xfer *xfer)
{
    (void)xfer;
    return "memory";
}

static const char *memory_warning(const struct xfer *xfer)
{
    return NULL;
}

static int memory_event_fd(const struct xfer *xfer)
{
    (void)xfer;
    return -1;
}

static bool memory_arm(struct xfer *xfer)
{
    const struct memory_worker *worker = worker_of(xfer);
    const struct xfer_hub *hub = worker->hub;
    if (worker->frozen || worker->killed)
        return true;
    for (unsigned i = 0; i < worker->peers_max; i++)
        if (worker->peers[i].failing || worker->peers[i].base.state == XFER_PEER_CLOSING)
            return false;
    for (unsigned i = 0; hub->automatic && i < hub->workers_max; i++)
        if (hub->workers[i] && !list_empty(&hub->workers[i]->queues[worker->index]) &&
            !queue_blocked(hub->workers[i], worker->index))
            return false;
    return list_empty(&worker->inbox);
}

static uint64_t memory_next_ns(const struct xfer *xfer)
{
    return DEADLINE_NONE;
}

static enum status memory_expect(struct xfer *xfer, const struct sockaddr *address, uint64_t now_ns,
                                 uint64_t window_ns)
{
    return STATUS_OK;
}

static void memory_expect_tick(struct xfer *xfer, uint64_t now_ns)
{
}

static void messages_destroy(struct list *messages)
{
    struct list *link;
    while ((link = list_pop_front(messages)))
        message_destroy(container_of(link, struct message, link));
}

static void memory_destroy(struct xfer *xfer)
{
    struct memory_worker *worker = worker_of(xfer);
    struct xfer_hub *hub = worker->hub;
    for (unsigned i = 0; worker->peers && i < worker->peers_max; i++) {
        if (worker->peers[i].base.state == XFER_PEER_FREE)
            continue;
        peer_begin_close(&worker->peers[i]);
        peer_settle(&worker->peers[i]);
    }
    xfer_hub_kill(xfer);
    hub->workers[worker->index] = NULL;
    for (unsigned i = 0; worker->queues && i < hub->workers_max; i++)
        messages_destroy(&worker->queues[i]);
    messages_destroy(&worker->inbox);
    free(worker->queues);
    free(worker->cuts);
    free(worker->serials);
    free(worker->peers);
    free(worker);
}

static const struct xfer_ops memory_ops = {
    .destroy = memory_destroy,
    .address = memory_address,
    .describe = memory_describe,
    .warning = memory_warning,
    .progress = memory_progress,
    .event_fd = memory_event_fd,
    .arm = memory_arm,
    .next_ns = memory_next_ns,
    .expect = memory_expect,
    .expect_tick = memory_expect_tick,
    .peer_open = memory_peer_open,
    .peer_close = memory_peer_close,
    .send_frame = memory_send_frame,
    .send_piece = memory_send_piece,
    .accept = memory_accept,
};

enum status xfer_memory_create(struct xfer_hub *hub, const struct xfer_options *options,
                               const struct xfer_handler *handler, struct xfer **xfer_out,
                               struct err *err)
{
    unsigned index = 0;
    while (index < hub->workers_max && hub->workers[index])
        index++;
    if (index == hub->workers_max)
        return err_set(err, STATUS_FULL, "hub: %u workers are there already", hub->workers_max);
    struct memory_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return err_set(err, STATUS_MEMORY, "hub worker: no memory");
    worker->base = (struct xfer){&memory_ops, *handler};
    worker->hub = hub;
    worker->index = index;
    worker->address = ++hub->next_address;
    worker->peers_max = options && options->peers_max ? options->peers_max : 64;
    list_init(&worker->inbox);
    worker->peers = calloc(worker->peers_max, sizeof *worker->peers);
    worker->serials = calloc(hub->workers_max, sizeof *worker->serials);
    worker->queues = calloc(hub->workers_max, sizeof *worker->queues);
    worker->cuts = calloc(hub->workers_max, sizeof *worker->cuts);
    for (unsigned i = 0; worker->queues && i < hub->workers_max; i++)
        list_init(&worker->queues[i]);
    hub->workers[index] = worker;
    if (!worker->peers || !worker->serials || !worker->queues || !worker->cuts) {
        memory_destroy(&worker->base);
        return err_set(err, STATUS_MEMORY, "hub worker: no memory");
    }
    for (unsigned i = 0; i < hub->workers_max; i++)
        if (hub->workers[i] && hub->workers[i] != worker)
            hub->workers[i]->serials[index] = 0; /* the index may have had another life */
    *xfer_out = &worker->base;
    return STATUS_OK;
}

/* --- hub --- */

enum status xfer_hub_create(uint64_t seed, unsigned workers_max, struct xfer_hub **hub_out,
                            struct err *err)
{
    struct xfer_hub *hub = calloc(1, sizeof *hub);
    if (hub)
        hub->workers = calloc(workers_max, sizeof(struct memory_worker *));
    if (!hub || !hub->workers) {
        free(hub);
        return err_set(err, STATUS_MEMORY, "hub: no memory");
    }
    hub->random = seed;
    hub->workers_max = workers_max;
    *hub_out = hub;
    return STATUS_OK;
}

void xfer_hub_destroy(struct xfer_hub *hub)
{
    if (!hub)
        return;
    for (unsigned i = 0; i < hub->workers_max; i++)
        assert(!hub->workers[i]);
    free(hub->workers);
    free(hub);
}

void xfer_hub_set_faults(struct xfer_hub *hub, const struct xfer_faults *faults)
{
    hub->faults = *faults;
}

const struct xfer_hub_counters *xfer_hub_counters(const struct xfer_hub *hub)
{
    return &hub->counters;
}

void xfer_hub_set_automatic(struct xfer_hub *hub, bool automatic)
{
    hub->automatic = automatic;
}

bool xfer_hub_step(struct xfer_hub *hub)
{
    unsigned pairs = hub->workers_max * hub->workers_max;
    unsigned start = (unsigned)(hub_random(hub) % pairs);
    for (unsigned i = 0; i < pairs; i++) {
        unsigned pair = (start + i) % pairs;
        struct memory_worker *from = hub->workers[pair / hub->workers_max];
        if (from && queue_step(from, pair % hub->workers_max))
            return true;
    }
    return false;
}

bool xfer_hub_can_step(const struct xfer *from, const struct xfer *to)
{
    const struct memory_worker *worker = worker_of((struct xfer *)from);
    unsigned index = worker_of((struct xfer *)to)->index;
    return !list_empty(&worker->queues[index]) && !queue_blocked(worker, index);
}

bool xfer_hub_step_between(struct xfer *from, const struct xfer *to)
{
    return queue_step(worker_of(from), worker_of((struct xfer *)to)->index);
}

unsigned xfer_hub_pending(const struct xfer_hub *hub)
{
    unsigned count = 0;
    for (unsigned i = 0; i < hub->workers_max; i++) {
        const struct memory_worker *worker = hub->workers[i];
        if (!worker)
            continue;
        list_for_each(it, &worker->inbox) count++;
        for (unsigned j = 0; j < hub->workers_max; j++)
            list_for_each(it, &worker->queues[j]) count++;
    }
    return count;
}

/* What a kill leaves: nothing that needs the dead one's memory; frames that had left it may still arrive. */
void xfer_hub_kill(struct xfer *xfer)
{
    struct memory_worker *worker = worker_of(xfer);
    struct xfer_hub *hub = worker->hub;
    if (worker->killed)
        return;
    worker->killed = true;
    for (unsigned i = 0; i < worker->peers_max; i++)
        if (worker->peers[i].base.state != XFER_PEER_FREE)
            peer_forget(&worker->peers[i]);
    for (unsigned i = 0; i < hub->workers_max; i++) {
        struct memory_worker *other = hub->workers[i];
        if (!other || other == worker)
            continue;
        messages_destroy(&other->queues[worker->index]);
        list_for_each_safe(it, tmp, &other->inbox)
        {
            struct message *message = container_of(it, struct message, link);
            if (message->from == worker)
                message_destroy(
                    message); /* simpler than keeping what it names; a frame may be lost at a kill */
        }
        peers_fail(other, worker, UINT32_MAX);
        for (unsigned j = 0; j < other->peers_max; j++)
            if (other->peers[j].remote == worker)
                other->peers[j].remote = NULL;
    }
    messages_destroy(&worker->inbox);
    for (unsigned i = 0; worker->queues && i < hub->workers_max; i++)
        messages_destroy(&worker->queues[i]);
}

void xfer_hub_freeze(struct xfer *xfer, bool frozen)
{
    worker_of(xfer)->frozen = frozen;
}

void xfer_hub_cut(struct xfer *from, struct xfer *to, bool cut)
{
    worker_of(from)->cuts[worker_of(to)->index] = cut;
}
