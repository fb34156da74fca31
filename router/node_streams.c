/* See node_streams.h. */
#include "router/node_streams.h"

#include <stdlib.h>
#include <string.h>

#include "base/plant.h"
#include "proto/seal.h"
#include "proto/wire.h"

struct packed {
    struct list link;
    size_t bytes;
    uint8_t data[]; /* with room for the seal: put when it leaves, so that numbers go in order */
};

struct connection {
    struct node_stream stream;
    struct node_streams *streams;
    struct rpc_call *call;
    struct list queue;
    size_t queued, queued_bytes;
    struct seal in, out; /* what the first message of the node agrees on */
    bool begun;          /* it has come */
    bool broken;         /* nothing is taken from it any more */
    bool ending;         /* finish with this once the queue is empty */
    enum grpc_code code;
    char message[256];
};

/* --- to the node --- */

static bool port_ample(const void *port)
{
    const struct connection *c = port;
    return c->queued <= c->streams->queue_messages_max / 2 &&
           c->queued_bytes <= NODE_QUEUE_BYTES_MAX / 2;
}

static void pump(struct connection *c)
{
    bool was_ample = port_ample(c);
    while (!list_empty(&c->queue) && rpc_call_writable(c->call)) {
        struct packed *packed = container_of(list_pop_front(&c->queue), struct packed, link);
        seal_put(&c->out, packed->data, packed->bytes);
        rpc_call_send(c->call, packed->data, packed->bytes + seal_room(&c->out));
        c->queued--;
        c->queued_bytes -= packed->bytes;
        free(packed);
    }
    if (!was_ample && port_ample(c))
        c->streams->core->dirty = true; /* what waited for this node may go to it */
    if (c->ending && list_empty(&c->queue))
        rpc_call_finish(c->call, c->code, c->message, NULL, 0);
}

static bool port_send(void *port, const Baton__Node__V1__RouterMessage *message)
{
    struct connection *c = port;
    if (list_empty(&c->queue) && rpc_call_writable(c->call)) {
        /* CLOSED is no failure here: the end of the call is on its way */
        enum status status = rpc_call_send_sealed(c->call, &message->base, &c->out);
        return status == STATUS_OK || status == STATUS_CLOSED;
    }
    size_t bytes = baton__node__v1__router_message__get_packed_size(message);
    bool full = c->queued >= c->streams->queue_messages_max ||
                c->queued_bytes + bytes > NODE_QUEUE_BYTES_MAX;
    PLANT_DO(ROUTER_WAITS, full = full && !planted_wait(c->call));
    if (full)
        return false;
    struct packed *packed = malloc(sizeof *packed + bytes + SEAL_BYTES);
    if (!packed)
        return false;
    packed->bytes = bytes;
    baton__node__v1__router_message__pack(message, packed->data);
    list_push_back(&c->queue, &packed->link);
    c->queued++;
    c->queued_bytes += bytes;
    return true;
}

static void port_end(void *port, enum grpc_code code, const char *message, bool graceful)
{
    struct connection *c = port;
    if (!graceful) {
        rpc_call_abort(c->call, code, message);
        return;
    }
    c->ending = true;
    c->code = code;
    snprintf(c->message, sizeof c->message, "%s", message);
    pump(c);
}

static const struct node_port port_of_calls = {
    .send = port_send, .ample = port_ample, .end = port_end};

/* --- from the node --- */

static struct core *core_now(struct node_streams *streams)
{
    core_time(streams->core, loop_now_ns(streams->loop), loop_late_total_ns(streams->loop));
    return streams->core;
}

static void on_open(void *context, struct rpc_call *call)
{
    struct node_streams *streams = context;
    struct connection *c = calloc(1, sizeof *c);
    if (!c) {
        rpc_call_abort(call, GRPC_CODE_RESOURCE_EXHAUSTED, "no memory");
        return;
    }
    c->streams = streams;
    c->call = call;
    list_init(&c->queue);
    rpc_call_set_data(call, c);
    streams->open++;
    registry_stream_open(&core_now(streams)->registry, &c->stream, &port_of_calls, c);
}

/* The node keeps its work until it hears of the end; whatever of that still comes is stale. */
static void stream_fault(struct connection *c, enum seal_verdict fault, const char *detail)
{
    static const char *const whys[SEAL_VERDICT_COUNT] = {
        [SEAL_BROKEN] = "it sent a message whose checksum is wrong",
        [SEAL_GAP] = "a message that it sent is missing",
        [SEAL_UNREADABLE] = "it sent a malformed message",
    };
    struct core *core = c->streams->core;
    metric_add(core->stats->stream_faults[fault], 1);
    if (fault == SEAL_TWICE)
        return;
    c->broken = true;
    if (detail || !c->stream.node)
        core_note(core, c->stream.node, detail ? detail : whys[fault]);
    registry_stream_broken(&c->stream, whys[fault]);
}

/* Its first message says whether it is sealed, and all that follow, both ways. */
static enum seal_verdict stream_begin(struct connection *c,
                                      const Baton__Node__V1__NodeMessage *message,
                                      const uint8_t *data, size_t bytes)
{
    struct wire_range own = c->streams->core->registry.model.wire, wires = {0};
    if (message->kind_case == BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_)
        wires = (struct wire_range){message->register_->wire_min, message->register_->wire_max};
    bool both = wire_common(own, wires) >= WIRE_SEALED;
    /* a flipped bit does not take the seal off by making the node an older one */
    bool there = own.max >= WIRE_SEALED && (message->number || message->checksum);
    enum seal_verdict verdict = seal_take_first(&c->in, both || there, data, bytes);
    c->begun = true;
    c->in.on = c->out.on = both;
    return verdict == SEAL_TWICE ? SEAL_BROKEN : verdict; /* not of the first */
}

static void on_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct connection *c = rpc_call_data(call);
    if (!c)
        return;
    struct core *core = core_now(context);
    if (c->broken || c->stream.over) {
        metric_add(core->stats->stale[STALE_STREAM], 1);
        return;
    }
    enum seal_verdict verdict = seal_take(&c->in, data, bytes);
    if ((PLANTED(GAPS_PASS) && verdict == SEAL_GAP) ||
        (PLANTED(FLIPS_PASS) && verdict == SEAL_BROKEN))
        verdict = SEAL_FITS;
    struct err err = ERR_INIT;
    ProtobufCMessage *unpacked = NULL;
    if (!verdict &&
        wire_unpack(&baton__node__v1__node_message__descriptor, data, bytes, &unpacked, &err))
        verdict = SEAL_UNREADABLE;
    const Baton__Node__V1__NodeMessage *message = (const Baton__Node__V1__NodeMessage *)unpacked;
    if (!verdict && !c->begun)
        verdict = stream_begin(c, message, data, bytes);
    if (verdict)
        stream_fault(c, verdict, *err.message ? err.message : NULL);
    else
        registry_stream_message(&c->stream, message);
    if (unpacked)
        protobuf_c_message_free_unpacked(unpacked, NULL);
}

static void on_half_close(void *context, struct rpc_call *call)
{
    struct connection *c = rpc_call_data(call);
    core_now(context);
    if (c)
        registry_stream_closed(&c->stream, "it ended its stream");
}

static void on_writable(void *context, struct rpc_call *call)
{
    (void)context;
    struct connection *c = rpc_call_data(call);
    if (c)
        pump(c);
}

static void on_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    struct node_streams *streams = context;
    struct connection *c = rpc_call_data(call);
    if (!c)
        return;
    (void)end;
    core_now(streams);
    /* first, so that the end of the registration finds nothing to send to */
    while (!list_empty(&c->queue))
        free(container_of(list_pop_front(&c->queue), struct packed, link));
    c->queued = c->queued_bytes = 0;
    registry_stream_closed(&c->stream, "its connection was lost");
    streams->open--;
    free(c);
}

static const struct rpc_handler handler = {
    .kind = RPC_BIDI,
    .read_always = true,
    .on_open = on_open,
    .on_message = on_message,
    .on_half_close = on_half_close,
    .on_writable = on_writable,
    .on_closed = on_closed,
};

enum status node_streams_init(struct node_streams *streams, struct rpc_server *server,
                              struct core *core, struct loop *loop, struct err *err)
{
    *streams = (struct node_streams){
        .core = core, .loop = loop, .queue_messages_max = NODE_QUEUE_MESSAGES_MAX};
    return rpc_server_add(server, "/baton.node.v1.Registry/Connect", &handler, streams, err);
}
