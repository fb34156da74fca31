/* See inside.h. */
#include "kvtransfer/memory.c"

#include "kvtransfer/frame.h"
#include "tests/sim/inside.h"

static void print_message(struct print *print, const struct message *message)
{
    print_head(print, "message", message->kind);
    PRINT(print, message->serial);
    PRINT(print, message->delay);
    PRINT(print, message->flip);
    PRINT(print, message->send_op != NULL);
    PRINT(print, message->receive_op != NULL);
    print_bytes(print, "header", message->header, message->bytes);
    if (message->payload)
        print_bytes(print, "payload", message->payload, message->payload_bytes);
}

void inside_hub(const struct xfer_hub *hub, struct print *print)
{
    PRINT(print, hub->random); /* which bit flips */
    for (unsigned i = 0; i < hub->workers_max; i++) {
        const struct memory_worker *worker = hub->workers[i];
        if (!worker)
            continue;
        print_head(print, "worker", worker->address);
        PRINT(print, worker->killed);
        PRINT(print, worker->frozen);
        for (unsigned k = 0; k < worker->peers_max; k++) {
            const struct memory_peer *peer = &worker->peers[k];
            if (peer->base.state == XFER_PEER_FREE)
                continue;
            print_head(print, "endpoint", k);
            PRINT(print, peer->base.state);
            PRINT(print, peer->remote ? peer->remote->address : 0);
            PRINT(print, peer->serial);
            PRINT(print, peer->failing);
        }
        list_for_each(it, &worker->inbox)
            print_message(print, container_of(it, struct message, link));
        for (unsigned k = 0; k < hub->workers_max; k++) {
            print_head(print, "queue", k);
            PRINT(print, worker->serials[k]);
            PRINT(print, worker->cuts[k]);
            list_for_each(it, &worker->queues[k])
                print_message(print, container_of(it, struct message, link));
        }
    }
}

static struct list *queue_of(struct xfer *from, const struct xfer *to)
{
    return &worker_of(from)->queues[worker_of((struct xfer *)to)->index];
}

const char *inside_hub_first(const struct xfer *from, const struct xfer *to)
{
    const struct list *queue = queue_of((struct xfer *)from, to);
    if (list_empty(queue))
        return NULL;
    const struct message *message = container_of(queue->next, struct message, link);
    static const char *const kinds[] = {[MESSAGE_FRAME] = "frame",
                                        [MESSAGE_PIECE] = "piece",
                                        [MESSAGE_DATA] = "data",
                                        [MESSAGE_SENT] = "sent",
                                        [MESSAGE_ENDED] = "endpoint's end"};
    static struct kv_frame frame;
    if (message->kind == MESSAGE_FRAME &&
        kv_frame_decode(message->header, message->bytes, &frame) == STATUS_OK)
        return kv_frame_label(frame.type);
    return kinds[message->kind];
}

bool inside_hub_can_tamper(struct xfer *from, const struct xfer *to, enum tamper how)
{
    const struct list *queue = queue_of(from, to);
    if (list_empty(queue))
        return false;
    /* what was accepted moves, as over TCP: only what is announced, or a frame, can go astray */
    const struct message *message = container_of(queue->next, struct message, link);
    return (message->kind == MESSAGE_FRAME || message->kind == MESSAGE_PIECE) &&
           (how != TAMPER_SWAP || queue->next->next != queue);
}

static void message_double(struct message *message)
{
    struct message *copy =
        message_create(message->kind, message->from, message->to, message->header, message->bytes);
    assert(copy);
    if (message->payload_bytes) {
        copy->copy = malloc(message->payload_bytes);
        assert(copy->copy);
        memcpy(copy->copy, message->payload, message->payload_bytes);
        copy->payload = copy->copy;
        copy->payload_bytes = message->payload_bytes;
    }
    message_queue(copy);
}

void inside_hub_tamper(struct xfer *from, const struct xfer *to, enum tamper how)
{
    struct list *queue = queue_of(from, to);
    struct message *message = container_of(queue->next, struct message, link);
    assert(inside_hub_can_tamper(from, to, how));
    switch (how) {
    case TAMPER_DROP:
        if (message->kind == MESSAGE_PIECE)
            piece_finish(message);
        else
            message_destroy(message);
        break;
    case TAMPER_DUPLICATE:
        message_double(message);
        break;
    case TAMPER_SWAP: {
        struct list *next = queue->next->next;
        list_remove(&message->link);
        list_insert_before(next->next, &message->link);
        break;
    }
    case TAMPER_FLIP:
        if (message->kind == MESSAGE_PIECE)
            message->flip = true;
        else
            message->header[message->bytes - 1] ^= 4;
        break;
    default:
        break;
    }
}

void inside_hub_inject(struct xfer *from, const struct xfer *to, const void *frame, size_t bytes)
{
    struct message *message =
        message_create(MESSAGE_FRAME, worker_of(from), worker_of((struct xfer *)to), frame, bytes);
    assert(message);
    message_queue(message);
}
