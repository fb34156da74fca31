/* See net.h. */
#include "tests/sim/net_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plant.h"
#include "proto/seal.h"
#include "tests/sim/fake_engine.h"

/* --- packets --- */

static uint64_t delay_ns(struct net *net, int place)
{
    const struct place *p = &net->places[place];
    return dice_between(&net->dice, p->delay_min_ns, p->delay_max_ns);
}

static struct packet *packet_create(enum packet_kind kind, size_t bytes)
{
    struct packet *packet = calloc(1, sizeof *packet + bytes);
    assert(packet);
    packet->kind = kind;
    packet->bytes = bytes;
    return packet;
}

static void packet_time(struct stream *stream, struct pipe *pipe, struct packet *packet)
{
    if (stream->net->options.by_hand) {
        packet->at_ns = DEADLINE_NONE;
        return;
    }
    uint64_t at_ns = clock_now_ns() + delay_ns(stream->net, stream->place);
    if (at_ns < pipe->last_ns)
        at_ns = pipe->last_ns;
    packet->at_ns = pipe->last_ns = at_ns;
}

static void packet_put(struct rpc_call *call, struct packet *packet)
{
    struct stream *stream = call->stream;
    struct pipe *pipe = &stream->pipes[call->side];
    bool arriving = call->side == CLIENT && !list_empty(&pipe->packets); /* OPEN is under way */
    bool nobody = stream->connected && !stream->lost && !arriving && !stream->calls[1 - call->side];
    if (call->home->dead || nobody) {
        free(packet); /* nobody is there any more */
        return;
    }
    packet_time(stream, pipe, packet);
    pipe->bytes += packet->bytes;
    list_push_back(&pipe->packets, &packet->link);
}

static void packet_end(struct rpc_call *call, enum grpc_code code, const char *message,
                       bool cancelled)
{
    struct packet *packet = packet_create(PACKET_END, 0);
    packet->code = code;
    packet->cancelled = cancelled;
    snprintf(packet->message, sizeof packet->message, "%s", message ? message : "");
    packet_put(call, packet);
}

static void pipe_clear(struct pipe *pipe)
{
    struct list *link;
    while ((link = list_pop_front(&pipe->packets)))
        free(container_of(link, struct packet, link));
    pipe->bytes = 0;
}

/* --- streams --- */

static bool stream_arriving(const struct stream *stream)
{
    const struct packet *packet = pipe_first(&stream->pipes[CLIENT]);
    return stream->net->server && stream->connected && packet && packet->kind == PACKET_OPEN;
}

/* One whose client has gone may still have to arrive at its server. */
static void stream_free_check(struct stream *stream)
{
    if (stream->calls[CLIENT] || stream->calls[SERVER] || stream_arriving(stream))
        return;
    pipe_clear(&stream->pipes[CLIENT]);
    pipe_clear(&stream->pipes[SERVER]);
    list_remove(&stream->link);
    free(stream);
}

static struct rpc_call *call_create(struct rpc *home, struct stream *stream, enum side side,
                                    const struct rpc_handler *handler, void *context)
{
    struct rpc_call *call = calloc(1, sizeof *call);
    assert(call);
    *call = (struct rpc_call){.home = home,
                              .stream = stream,
                              .side = side,
                              .handler = handler,
                              .context = context,
                              .writable_ns = DEADLINE_NONE,
                              .closed_ns = DEADLINE_NONE};
    stream->calls[side] = call;
    return call;
}

/* The server is there: what waited for it sets off. */
static void stream_connect(struct stream *stream)
{
    struct pipe *pipe = &stream->pipes[CLIENT];
    stream->connected = true;
    list_push_front(&pipe->packets, &packet_create(PACKET_OPEN, 0)->link);
    pipe->last_ns = 0;
    list_for_each(it, &pipe->packets)
        packet_time(stream, pipe, container_of(it, struct packet, link));
    if (stream->calls[CLIENT]->sending)
        stream->calls[CLIENT]->writable_ns = clock_now_ns();
}

static void call_closed(struct rpc_call *call)
{
    struct stream *stream = call->stream;
    call->end.message = call->end_message;
    if (call->handler->on_closed)
        call->handler->on_closed(call->context, call, &call->end);
    stream->calls[call->side] = NULL;
    pipe_clear(&stream->pipes[1 - call->side]); /* nobody reads on */
    free(call);
    stream_free_check(stream);
}

static void call_end_at(struct rpc_call *call, uint64_t at_ns, enum grpc_code code,
                        const char *message, bool cancelled)
{
    if (call->ending)
        return;
    call->ending = true;
    call->out_closed = true;
    call->closed_ns = at_ns;
    call->end.code = code;
    call->end.cancelled = cancelled;
    snprintf(call->end_message, sizeof call->end_message, "%s", message ? message : "");
}

/* --- what a process gets --- */

/* The side of the stream that this process is, or would be. */
static bool stream_side(const struct stream *stream, const struct rpc *rpc, enum side *side_out)
{
    const struct net *net = stream->net;
    if (stream->calls[CLIENT] && stream->calls[CLIENT]->home == rpc)
        *side_out = CLIENT;
    else if (stream->calls[SERVER] && stream->calls[SERVER]->home == rpc)
        *side_out = SERVER;
    else if (net->server && net->server->rpc == rpc && stream_arriving(stream))
        *side_out = SERVER;
    else
        return false;
    return true;
}

static uint64_t packet_due_ns(const struct stream *stream, enum side reader)
{
    const struct packet *packet = pipe_first(&stream->pipes[1 - reader]);
    enum net_direction direction = reader == SERVER ? NET_UP : NET_DOWN;
    bool readable = stream->calls[reader] || (packet && packet->kind == PACKET_OPEN);
    if (!packet || !readable || !stream->connected ||
        stream->net->places[stream->place].blocked[direction])
        return DEADLINE_NONE;
    return packet->at_ns;
}

static uint64_t stream_due_ns(const struct stream *stream, enum side side)
{
    uint64_t due_ns = packet_due_ns(stream, side);
    const struct rpc_call *call = stream->calls[side];
    if (call && call->writable_ns < due_ns)
        due_ns = call->writable_ns;
    if (call && call->closed_ns < due_ns)
        due_ns = call->closed_ns;
    return due_ns;
}

/* What is to become of this message, of which it may be another's turn then. */
static enum net_spoil spoil_take(struct stream *stream, enum net_direction direction,
                                 struct pipe *pipe, struct packet **packet)
{
    enum net_spoil *due = &stream->net->places[stream->place].spoil[direction], spoil = *due;
    struct packet *next = pipe_first(pipe);
    if ((*packet)->kind != PACKET_MESSAGE ||
        (spoil == NET_OVERTAKEN && !(next && next->kind == PACKET_MESSAGE)))
        return NET_PASSES;
    *due = NET_PASSES;
    if (spoil == NET_OVERTAKEN) {
        list_pop_front(&pipe->packets);
        list_push_front(&pipe->packets, &(*packet)->link);
        *packet = next;
    }
    return spoil;
}

static void message_tell(struct net *net, struct rpc_call *call, struct packet *packet,
                         enum net_spoil spoil)
{
    if (spoil == NET_FLIPPED && packet->bytes)
        packet->data[dice_below(&net->dice, (uint32_t)packet->bytes)] ^=
            (uint8_t)(1 << dice_below(&net->dice, 8));
    if (spoil != NET_DROPPED)
        call->handler->on_message(call->context, call, packet->data, packet->bytes);
    if (spoil == NET_TWICE)
        call->handler->on_message(call->context, call, packet->data, packet->bytes);
}

static void packet_take(struct rpc *rpc, struct stream *stream, enum side side)
{
    struct net *net = stream->net;
    struct pipe *pipe = &stream->pipes[1 - side];
    struct packet *packet = container_of(list_pop_front(&pipe->packets), struct packet, link);
    enum net_spoil spoil = spoil_take(stream, side == SERVER ? NET_UP : NET_DOWN, pipe, &packet);
    struct rpc_call *call = stream->calls[side], *sender = stream->calls[1 - side];
    pipe->bytes -= packet->bytes;
    if (sender && sender->sending && sender->writable_ns == DEADLINE_NONE &&
        pipe->bytes <= net->options.window_bytes)
        sender->writable_ns = clock_now_ns();
    switch (packet->kind) {
    case PACKET_OPEN:
        call = call_create(rpc, stream, SERVER, net->server->handler, net->server->context);
        if (call->handler->on_open)
            call->handler->on_open(call->context, call);
        break;
    case PACKET_MESSAGE:
        if (net->options.seen)
            net->options.seen(net->options.context, stream->place,
                              side == SERVER ? NET_UP : NET_DOWN, packet->data, packet->bytes);
        message_tell(net, call, packet, spoil);
        break;
    case PACKET_HALF_CLOSE:
        if (call->handler->on_half_close)
            call->handler->on_half_close(call->context, call);
        break;
    case PACKET_END:
        call->closed_ns = DEADLINE_NONE;
        call->ending = false;
        call_end_at(call, clock_now_ns(), packet->code, packet->message, packet->cancelled);
        call_closed(call);
        break;
    }
    free(packet);
}

static void event_take(struct rpc *rpc, struct stream *stream, enum side side)
{
    struct rpc_call *call = stream->calls[side];
    uint64_t now_ns = clock_now_ns();
    if (packet_due_ns(stream, side) <= now_ns) {
        packet_take(rpc, stream, side);
    } else if (call->writable_ns <= now_ns) {
        call->writable_ns = DEADLINE_NONE;
        call->sending = false;
        if (!call->out_closed && call->handler->on_writable)
            call->handler->on_writable(call->context, call);
    } else {
        call_closed(call);
    }
}

/* The stream whose turn it is; NULL: nothing is due. */
static struct stream *stream_due(struct rpc *rpc, enum side *side_out)
{
    struct stream *first = NULL;
    uint64_t first_ns = clock_now_ns();
    list_for_each(it, &rpc->net->streams)
    {
        struct stream *stream = container_of(it, struct stream, link);
        enum side side;
        if (!stream_side(stream, rpc, &side))
            continue;
        uint64_t due_ns = stream_due_ns(stream, side);
        if (due_ns < first_ns || (due_ns == first_ns && !first)) {
            first = stream;
            first_ns = due_ns;
            *side_out = side;
        }
    }
    return first;
}

static bool receive_run(void *context)
{
    struct rpc *rpc = context;
    enum side side = CLIENT;
    struct stream *stream;
    for (uint32_t i = 0; i < rpc->net->options.burst_max && (stream = stream_due(rpc, &side)); i++)
        event_take(rpc, stream, side);
    return false;
}

uint64_t net_next_ns(const struct rpc *rpc)
{
    uint64_t next_ns = DEADLINE_NONE;
    list_for_each(it, &rpc->net->streams)
    {
        const struct stream *stream = container_of(it, struct stream, link);
        enum side side;
        if (!stream_side(stream, rpc, &side))
            continue;
        uint64_t due_ns = stream_due_ns(stream, side);
        if (due_ns < next_ns)
            next_ns = due_ns;
    }
    return next_ns;
}

/* --- rpc.h: calls --- */

void rpc_call_set_data(struct rpc_call *call, void *data)
{
    call->data = data;
}

void *rpc_call_data(const struct rpc_call *call)
{
    return call->data;
}

bool rpc_call_writable(const struct rpc_call *call)
{
    return !call->sending && !call->out_closed;
}

static struct packet *send_begin(struct rpc_call *call, size_t bytes, enum status *status_out)
{
    *status_out = call->out_closed ? STATUS_CLOSED : call->sending ? STATUS_AGAIN : STATUS_OK;
    return *status_out ? NULL : packet_create(PACKET_MESSAGE, bytes);
}

/* `sent` may put another message in its place. */
static struct packet *packet_alter(struct rpc_call *call, struct packet *packet)
{
    const struct net_options *o = &call->stream->net->options;
    size_t bytes;
    void *other =
        o->sent ? o->sent(o->context, call->stream->place, call->side == CLIENT ? NET_UP : NET_DOWN,
                          packet->data, packet->bytes, &bytes)
                : NULL;
    if (!other)
        return packet;
    free(packet);
    packet = packet_create(PACKET_MESSAGE, bytes);
    memcpy(packet->data, other, bytes);
    free(other);
    return packet;
}

static void send_end(struct rpc_call *call, struct packet *packet)
{
    const struct stream *stream = call->stream;
    packet_put(call, packet_alter(call, packet));
    call->sending = true;
    call->writable_ns =
        stream->connected && stream->pipes[call->side].bytes <= stream->net->options.window_bytes
            ? clock_now_ns()
            : DEADLINE_NONE;
}

enum status rpc_call_send(struct rpc_call *call, const void *data, size_t bytes)
{
    enum status status;
    struct packet *packet = send_begin(call, bytes, &status);
    if (!packet)
        return status;
    memcpy(packet->data, data, bytes);
    send_end(call, packet);
    return STATUS_OK;
}

enum status rpc_call_send_message(struct rpc_call *call, const ProtobufCMessage *message)
{
    enum status status;
    struct packet *packet = send_begin(call, protobuf_c_message_get_packed_size(message), &status);
    if (!packet)
        return status;
    protobuf_c_message_pack(message, packet->data);
    send_end(call, packet);
    return STATUS_OK;
}

enum status rpc_call_send_sealed(struct rpc_call *call, const ProtobufCMessage *message,
                                 struct seal *seal)
{
    enum status status;
    size_t bytes = protobuf_c_message_get_packed_size(message);
    struct packet *packet = send_begin(call, bytes + seal_room(seal), &status);
    if (!packet)
        return status;
    protobuf_c_message_pack(message, packet->data);
    seal_put(seal, packet->data, bytes);
    send_end(call, packet);
    return STATUS_OK;
}

void rpc_call_half_close(struct rpc_call *call)
{
    if (call->out_closed)
        return;
    packet_put(call, packet_create(PACKET_HALF_CLOSE, 0));
    call->out_closed = true;
}

/* What was sent and is still under way may be lost with it, or not. */
static void unsent_drop(struct rpc_call *call)
{
    struct stream *stream = call->stream;
    if (call->home->dead || !stream->connected || stream->net->options.by_hand ||
        dice_chance(&stream->net->dice, 1, 2))
        return;
    struct pipe *pipe = &stream->pipes[call->side];
    list_for_each_safe(it, tmp, &pipe->packets)
    {
        struct packet *packet = container_of(it, struct packet, link);
        if (packet->kind != PACKET_MESSAGE)
            continue;
        pipe->bytes -= packet->bytes;
        list_remove(&packet->link);
        free(packet);
    }
}

void rpc_call_cancel(struct rpc_call *call)
{
    if (call->ending)
        return;
    unsent_drop(call);
    packet_end(call, GRPC_CODE_CANCELLED, "cancelled", true);
    call_end_at(call, clock_now_ns(), GRPC_CODE_CANCELLED, "cancelled", true);
}

void rpc_call_finish(struct rpc_call *call, enum grpc_code code, const char *message,
                     const struct rpc_metadata *trailers, size_t trailer_count)
{
    if (call->ending)
        return;
    packet_end(call, code, message, false);
    call_end_at(call, clock_now_ns() + NS_PER_MS, code, message, false);
}

void rpc_call_abort(struct rpc_call *call, enum grpc_code code, const char *message)
{
    if (call->ending)
        return;
    unsent_drop(call);
    packet_end(call, code, message, false);
    call_end_at(call, clock_now_ns(), code, message, true);
}

/* --- rpc.h: servers and channels --- */

enum status rpc_server_create(struct rpc *rpc, const struct rpc_server_options *options,
                              struct rpc_server **server_out, struct err *err)
{
    struct rpc_server *server = calloc(1, sizeof *server);
    assert(server && !rpc->net->server);
    server->rpc = rpc;
    *server_out = server;
    return STATUS_OK;
}

enum status rpc_server_add(struct rpc_server *server, const char *path,
                           const struct rpc_handler *handler, void *context, struct err *err)
{
    server->path = path;
    server->handler = handler;
    server->context = context;
    return STATUS_OK;
}

enum status rpc_server_start(struct rpc_server *server, struct err *err)
{
    server->started = true;
    server->rpc->net->server = server;
    list_for_each(it, &server->rpc->net->streams)
    {
        struct stream *stream = container_of(it, struct stream, link);
        if (!stream->connected)
            stream_connect(stream);
    }
    return STATUS_OK;
}

void rpc_server_destroy(struct rpc_server *server, void (*done)(void *context), void *context)
{
    if (!server)
        return;
    if (server->rpc->net->server == server)
        server->rpc->net->server = NULL;
    free(server);
    if (done)
        done(context);
}

enum status rpc_channel_create(struct rpc *rpc, const char *target,
                               const struct rpc_channel_options *options,
                               struct rpc_channel **channel_out, struct err *err)
{
    struct rpc_channel *channel = calloc(1, sizeof *channel);
    assert(channel);
    channel->rpc = rpc;
    *channel_out = channel;
    return STATUS_OK;
}

void rpc_channel_destroy(struct rpc_channel *channel)
{
    free(channel);
}

struct rpc_call *rpc_channel_call(struct rpc_channel *channel, const struct rpc_handler *handler,
                                  void *context, const struct rpc_call_options *options)
{
    struct rpc *rpc = channel->rpc;
    struct net *net = rpc->net;
    struct stream *stream = calloc(1, sizeof *stream);
    assert(stream && options->wait_for_ready);
    stream->net = net;
    stream->place = rpc->place;
    list_init(&stream->pipes[CLIENT].packets);
    list_init(&stream->pipes[SERVER].packets);
    list_push_back(&net->streams, &stream->link);
    struct rpc_call *call = call_create(rpc, stream, CLIENT, handler, context);
    if (net->server)
        stream_connect(stream);
    return call;
}

/* --- a process's share --- */

struct rpc *net_rpc_create(struct net *net, struct loop *loop, int place)
{
    struct rpc *rpc = calloc(1, sizeof *rpc);
    assert(rpc && place < PLACES_MAX);
    rpc->net = net;
    rpc->loop = loop;
    rpc->place = place;
    loop_hook_add(loop, &rpc->hook, LOOP_RECEIVE, receive_run, rpc);
    return rpc;
}

static struct rpc_call *call_of(const struct rpc *rpc)
{
    list_for_each(it, &rpc->net->streams)
    {
        struct stream *stream = container_of(it, struct stream, link);
        for (int side = 0; side < 2; side++)
            if (stream->calls[side] && stream->calls[side]->home == rpc)
                return stream->calls[side];
    }
    return NULL;
}

void net_kill(struct rpc *rpc, bool silent)
{
    struct net *net = rpc->net;
    bool server = net->server && net->server->rpc == rpc;
    list_for_each_safe(it, tmp, &net->streams)
    {
        struct stream *stream = container_of(it, struct stream, link);
        bool arriving = server && stream_arriving(stream);
        for (int side = 0; side < 2; side++) {
            struct rpc_call *call = stream->calls[side];
            if (!call || call->home != rpc)
                continue;
            stream->lost = silent;
            if (!silent)
                packet_end(call, GRPC_CODE_UNAVAILABLE, "connection reset by peer", true);
        }
        if (!arriving)
            continue;
        pipe_clear(&stream->pipes[CLIENT]); /* to a server that is no more */
        if (stream->calls[CLIENT])
            call_end_at(stream->calls[CLIENT], clock_now_ns(), GRPC_CODE_UNAVAILABLE,
                        "connection refused", true);
        else
            stream_free_check(stream);
    }
    if (server)
        net->server = NULL;
    rpc->dead = true;
}

void rpc_destroy(struct rpc *rpc)
{
    if (!rpc)
        return;
    rpc->dead = true;
    struct rpc_call *call;
    while ((call = call_of(rpc))) {
        call_end_at(call, 0, GRPC_CODE_CANCELLED, "the library ends", true);
        call_closed(call);
    }
    loop_hook_remove(&rpc->hook);
    free(rpc);
}

/* --- faults --- */

void net_delay(struct net *net, int place, uint64_t min_ns, uint64_t max_ns)
{
    net->places[place].delay_min_ns = min_ns;
    net->places[place].delay_max_ns = max_ns;
}

void net_block(struct net *net, int place, enum net_direction direction, bool blocked)
{
    net->places[place].blocked[direction] = blocked;
}

void net_spoil(struct net *net, int place, enum net_direction direction, enum net_spoil spoil)
{
    net->places[place].spoil[direction] = spoil;
}

void net_reset(struct net *net, int place)
{
    list_for_each_safe(it, tmp, &net->streams)
    {
        struct stream *stream = container_of(it, struct stream, link);
        if (stream->place != place || !stream->connected)
            continue;
        for (int side = 0; side < 2; side++)
            if (stream->calls[side])
                call_end_at(stream->calls[side], clock_now_ns() + delay_ns(net, place),
                            GRPC_CODE_UNAVAILABLE, "connection reset", true);
        if (!stream->calls[SERVER]) /* it had not arrived yet */
            pipe_clear(&stream->pipes[CLIENT]);
        stream_free_check(stream);
    }
}

bool planted_wait(struct rpc_call *call)
{
    call->home->waits_for = call->stream;
    return true;
}

struct net *net_create(const struct net_options *options)
{
    struct net *net = calloc(1, sizeof *net);
    assert(net);
    net->options = *options;
    net->dice.state = options->seed;
    list_init(&net->streams);
    return net;
}

void net_destroy(struct net *net)
{
    if (!net)
        return;
    if (!list_empty(&net->streams))
        sim_fail("a stream is left");
    free(net);
}
