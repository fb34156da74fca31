/* See registration.h. */
#include "node/registration.h"

#include <stdlib.h>
#include <string.h>

#include "base/plant.h"
#include "base/random.h"
#include "base/sm.h"
#include "base/wire_version.h"
#include "proto/wire.h"

enum { HEARTBEATS_REMEMBERED = 64 };
static const uint64_t welcome_wait_ns = 5 * NS_PER_S;
static const uint64_t leave_wait_ns = NS_PER_S;
/* A connection on which nothing came for so long is asked, and after as long again given up: TCP alone would try a segment of
 * before a cut again only minutes after it was healed. */
enum { KEEPALIVE_MS = 2000 };

enum state { IDLE, CONNECTING, REGISTERED, REFUSED, LEAVING, LEFT };
static const struct sm_state states[] = {
    [IDLE] = {"idle", SM_TO(CONNECTING) | SM_TO(LEFT)},
    [CONNECTING] = {"connecting", SM_TO(IDLE) | SM_TO(REGISTERED) | SM_TO(REFUSED) | SM_TO(LEFT)},
    [REGISTERED] = {"registered", SM_TO(IDLE) | SM_TO(REFUSED) | SM_TO(LEAVING)},
    [REFUSED] = {"refused", SM_TO(LEFT)},
    [LEAVING] = {"leaving", SM_TO(LEFT)},
    [LEFT] = {"left", 0},
};
static const struct sm_table table = SM_TABLE("registration", states);

struct registration {
    struct loop *loop;
    struct outbox *outbox;
    struct registration_handler handler;
    struct registration_options options;
    struct rpc_channel *channel;
    struct rpc_call *call; /* the current stream; callbacks of older ones are ignored */
    uint8_t state;
    struct loop_timer timer; /* IDLE: backoff; CONNECTING, LEAVING: patience */
    struct loop_timer beat, stop;
    uint64_t backoff_ns;
    struct wire_range wires; /* offered in Register */
    struct seal in;          /* of what the router sends; known with its first message */
    uint64_t heartbeat_ns, stop_after_ns;
    uint64_t number; /* of the last heartbeat sent */
    uint64_t sent_ns[HEARTBEATS_REMEMBERED];
    uint64_t answered_sent_ns; /* when the last answered heartbeat was sent */
    uint64_t answered;         /* its number */
    uint64_t seen_ns;
    uint64_t malformed;
    unsigned calls_open; /* streams whose on_closed has not come */
    bool destroyed;      /* freed by the last of them */
};

static void connect_now(void *context);

bool registration_up(const struct registration *r)
{
    return r->state == REGISTERED;
}

uint64_t registration_seen_ns(const struct registration *r)
{
    return r->state == REGISTERED ? loop_now_ns(r->loop) : r->seen_ns;
}

uint64_t registration_malformed(const struct registration *r)
{
    return r->malformed;
}

/* --- the end of a stream --- */

static void leave_done(struct registration *r)
{
    if (r->state == LEFT)
        return;
    sm_move(&table, &r->state, LEFT);
    loop_timer_stop(&r->timer);
    outbox_close(r->outbox);
    r->handler.left(r->handler.context);
}

/* The stream has ended, or is to end. Stops the work first. */
static void stream_end(struct registration *r, const char *why)
{
    struct rpc_call *call = r->call;
    bool was_registered = r->state == REGISTERED, leaving = r->state == LEAVING;
    r->call = NULL;
    loop_timer_stop(&r->beat);
    loop_timer_stop(&r->stop);
    outbox_close(r->outbox);
    if (call)
        rpc_call_cancel(call);
    if (leaving) {
        leave_done(r);
        return;
    }
    if (r->state != CONNECTING && r->state != REGISTERED)
        return;
    sm_move(&table, &r->state, IDLE);
    if (was_registered) {
        r->seen_ns = loop_now_ns(r->loop);
        r->backoff_ns = r->options.backoff_min_ns;
        r->handler.lost(r->handler.context, why);
    }
    loop_timer_set(&r->timer, clock_now_ns() + r->backoff_ns);
    r->backoff_ns *= 2;
    if (r->backoff_ns > r->options.backoff_max_ns)
        r->backoff_ns = r->options.backoff_max_ns;
}

void registration_check(struct registration *r)
{
    if (r->state != REGISTERED)
        return;
    if (clock_now_ns() >= r->answered_sent_ns + r->stop_after_ns)
        stream_end(r, "the router answered no heartbeat in time");
    else if (r->outbox->overflowed)
        stream_end(r, "the router takes no messages");
}

static void stop_due(void *context)
{
    registration_check(context);
}

static void patience_over(struct registration *r)
{
    if (r->state == CONNECTING)
        stream_end(r, "the router did not answer the registration");
    else if (r->state == LEAVING)
        stream_end(r, "left");
}

static void timer_fired(void *context)
{
    struct registration *r = context;
    if (r->state == IDLE)
        connect_now(r);
    else
        patience_over(r);
}

/* --- heartbeats --- */

static void beat_due(void *context)
{
    struct registration *r = context;
    registration_check(r);
    if (r->state == REGISTERED)
        registration_beat(r);
}

void registration_beat(struct registration *r)
{
    if (r->state != REGISTERED)
        return;
    Baton__Node__V1__Heartbeat heartbeat = BATON__NODE__V1__HEARTBEAT__INIT;
    Baton__Node__V1__Load load = BATON__NODE__V1__LOAD__INIT;
    heartbeat.load = &load;
    r->handler.heartbeat(r->handler.context, &heartbeat);
    heartbeat.number = ++r->number;
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_HEARTBEAT;
    message.heartbeat = &heartbeat;
    /* before it is handed over: being early errs towards stopping */
    r->sent_ns[r->number % HEARTBEATS_REMEMBERED] = clock_now_ns();
    outbox_send(r->outbox, &message);
    loop_timer_set(&r->beat, clock_now_ns() + r->heartbeat_ns);
}

static void heartbeat_answered(struct registration *r, uint64_t number)
{
    if (number <= r->answered || number > r->number || r->number - number >= HEARTBEATS_REMEMBERED)
        return;
    r->answered = number;
    r->answered_sent_ns = r->sent_ns[number % HEARTBEATS_REMEMBERED];
    loop_timer_set(&r->stop, r->answered_sent_ns + r->stop_after_ns);
}

/* --- messages --- */

static void welcomed(struct registration *r, const Baton__Node__V1__Welcome *welcome)
{
    sm_move(&table, &r->state, REGISTERED);
    loop_timer_stop(&r->timer);
    r->heartbeat_ns = (welcome->heartbeat_ms ? welcome->heartbeat_ms : 250) * NS_PER_MS;
    r->stop_after_ns = (welcome->stop_after_ms ? welcome->stop_after_ms : 2000) * NS_PER_MS;
    PLANT_DO(STOPS_LATE, r->stop_after_ns += 2 * NS_PER_S);
    r->backoff_ns = r->options.backoff_min_ns;
    /* The first heartbeat goes out at once, and until one is answered its time counts. Not Register's: that may have waited
     * for seconds in a channel that had no router to talk to. */
    r->answered_sent_ns = clock_now_ns();
    loop_timer_set(&r->stop, r->answered_sent_ns + r->stop_after_ns);
    r->handler.welcome(r->handler.context, welcome);
    registration_beat(r);
}

static void refused(struct registration *r, const Baton__Node__V1__Refused *refusal)
{
    struct err err = ERR_INIT;
    err_set(&err, STATUS_MISMATCH, "the router %s refused this node: %s: %s", r->options.router,
            refusal->field, refusal->message);
    if (r->state == REGISTERED)
        r->handler.lost(r->handler.context, "refused");
    sm_move(&table, &r->state, REFUSED);
    stream_end(r, "refused");
    loop_timer_stop(&r->timer);
    r->handler.refused(r->handler.context, &err);
}

/* A router that chooses what was not offered would be misunderstood in silence. */
static bool wire_offered(struct registration *r, const Baton__Node__V1__Welcome *welcome)
{
    char text[128];
    uint32_t wire = welcome->wire ? welcome->wire : WIRE_OLDEST;
    if (wire >= r->wires.min && wire <= r->wires.max)
        return true;
    snprintf(text, sizeof text, "the router chose version %u, this node speaks %u to %u", wire,
             r->wires.min, r->wires.max);
    Baton__Node__V1__Refused refusal = BATON__NODE__V1__REFUSED__INIT;
    refusal.field = "wire";
    refusal.message = text;
    refused(r, &refusal);
    return false;
}

static void message_take(struct registration *r, const Baton__Node__V1__RouterMessage *message)
{
    bool up = r->state == REGISTERED;
    switch (message->kind_case) {
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME:
        if (r->state != CONNECTING)
            r->malformed++;
        else if (wire_offered(r, message->welcome))
            welcomed(r, message->welcome);
        break;
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_REFUSED:
        if (r->state == CONNECTING || up)
            refused(r, message->refused);
        break;
    case BATON__NODE__V1__ROUTER_MESSAGE__KIND_HEARTBEAT_ACK:
        if (up)
            heartbeat_answered(r, message->heartbeat_ack->number);
        break;
    default:
        if (up)
            r->handler.message(r->handler.context, message);
        else
            r->malformed++;
    }
}

static void message_fault(struct registration *r, enum seal_verdict fault)
{
    static const char *const whys[SEAL_VERDICT_COUNT] = {
        [SEAL_BROKEN] = "the router sent a message whose checksum is wrong",
        [SEAL_GAP] = "a message that the router sent is missing",
        [SEAL_UNREADABLE] = "the router sent a malformed message",
    };
    r->handler.fault(r->handler.context, fault);
    if (fault != SEAL_TWICE)
        stream_end(r, whys[fault]);
}

/* The router's first message says whether it is sealed, and all that follow, both ways. Refused may come without a seal, from
 * an older router. */
static enum seal_verdict stream_begin(struct registration *r,
                                      const Baton__Node__V1__RouterMessage *message,
                                      const uint8_t *data, size_t bytes)
{
    uint32_t wire = 0;
    if (message->kind_case == BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME)
        wire = message->welcome->wire;
    bool both = wire >= WIRE_SEALED && wire <= r->wires.max;
    /* a flipped bit does not take the seal off by making the router an older one */
    bool there = r->wires.max >= WIRE_SEALED && (message->number || message->checksum);
    enum seal_verdict verdict = seal_take_first(&r->in, both || there, data, bytes);
    r->in.on = r->outbox->seal.on = both;
    return verdict == SEAL_TWICE ? SEAL_BROKEN : verdict; /* not of the first */
}

static void on_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct registration *r = context;
    if (call != r->call)
        return;
    registration_check(r); /* stop first, then read */
    if (call != r->call || r->state == LEAVING)
        return;
    enum seal_verdict verdict = seal_take(&r->in, data, bytes);
    if ((PLANTED(GAPS_PASS) && verdict == SEAL_GAP) ||
        (PLANTED(FLIPS_PASS) && verdict == SEAL_BROKEN))
        verdict = SEAL_FITS;
    ProtobufCMessage *unpacked = NULL;
    if (!verdict &&
        wire_unpack(&baton__node__v1__router_message__descriptor, data, bytes, &unpacked, NULL))
        verdict = SEAL_UNREADABLE;
    const Baton__Node__V1__RouterMessage *message =
        (const Baton__Node__V1__RouterMessage *)unpacked;
    if (!verdict && r->state == CONNECTING)
        verdict = stream_begin(r, message, data, bytes);
    if (verdict)
        message_fault(r, verdict);
    else
        message_take(r, message);
    if (unpacked)
        protobuf_c_message_free_unpacked(unpacked, NULL);
}

static void on_writable(void *context, struct rpc_call *call)
{
    struct registration *r = context;
    if (call != r->call)
        return;
    outbox_writable(r->outbox);
    if (r->state == LEAVING && !r->outbox->queue.bytes)
        rpc_call_half_close(r->call);
}

static void on_half_close(void *context, struct rpc_call *call)
{
    (void)context;
    (void)call; /* on_closed follows */
}

static void stream_closed(struct registration *r, const struct rpc_end *end)
{
    char why[256];
    snprintf(why, sizeof why, "the stream ended: %s", *end->message ? end->message : "closed");
    r->call = NULL;
    stream_end(r, why);
}

static void on_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    struct registration *r = context;
    r->calls_open--;
    if (r->destroyed && !r->calls_open)
        free(r);
    else if (call == r->call)
        stream_closed(r, end);
}

static const struct rpc_handler stream_handler = {
    .kind = RPC_BIDI,
    .read_always = true,
    .on_message = on_message,
    .on_writable = on_writable,
    .on_half_close = on_half_close,
    .on_closed = on_closed,
};

static void connect_now(void *context)
{
    struct registration *r = context;
    sm_move(&table, &r->state, CONNECTING);
    loop_timer_set(&r->timer, clock_now_ns() + welcome_wait_ns);
    struct rpc_call_options call_options = {.path = "/baton.node.v1.Registry/Connect",
                                            .wait_for_ready = true};
    r->call = rpc_channel_call(r->channel, &stream_handler, r, &call_options);
    if (!r->call) {
        stream_end(r, "no memory for a stream");
        return;
    }
    r->calls_open++;
    outbox_open(r->outbox, r->call);
    Baton__Node__V1__Register register_ = BATON__NODE__V1__REGISTER__INIT;
    Baton__Node__V1__Identity identity = BATON__NODE__V1__IDENTITY__INIT;
    register_.identity = &identity;
    register_.incarnation = random_u64();
    r->number = r->answered = 0;
    r->handler.fill(r->handler.context, register_.incarnation, &register_);
    r->wires = (struct wire_range){register_.wire_min, register_.wire_max};
    r->in = (struct seal){0};
    r->outbox->seal.on = r->wires.max >= WIRE_SEALED; /* an older router does not look at it */
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_;
    message.register_ = &register_;
    outbox_send(r->outbox, &message);
}

/* --- life --- */

enum status registration_create(struct loop *loop, struct rpc *rpc, struct outbox *outbox,
                                const struct registration_options *options,
                                const struct registration_handler *handler,
                                struct registration **registration_out, struct err *err)
{
    struct registration *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(err, STATUS_MEMORY, "registration: no memory");
    r->loop = loop;
    r->outbox = outbox;
    r->handler = *handler;
    r->options = *options;
    if (!r->options.backoff_min_ns)
        r->options.backoff_min_ns = 100 * NS_PER_MS;
    if (!r->options.backoff_max_ns)
        r->options.backoff_max_ns = 500 * NS_PER_MS;
    r->backoff_ns = r->options.backoff_min_ns;
    loop_timer_init(loop, &r->timer, timer_fired, r);
    loop_timer_init(loop, &r->beat, beat_due, r);
    loop_timer_init(loop, &r->stop, stop_due, r);
    struct rpc_channel_options channel = {.backoff_initial_ms = 100,
                                          .backoff_max_ms = 500,
                                          .keepalive_ms = KEEPALIVE_MS,
                                          .stay_connected = true};
    enum status status = rpc_channel_create(rpc, r->options.router, &channel, &r->channel, err);
    if (status) {
        free(r);
        return status;
    }
    *registration_out = r;
    return STATUS_OK;
}

void registration_start(struct registration *r)
{
    loop_timer_set(&r->timer, clock_now_ns());
}

void registration_leave(struct registration *r)
{
    if (r->state != REGISTERED) {
        if (r->call)
            rpc_call_cancel(r->call);
        r->call = NULL;
        leave_done(r);
        return;
    }
    Baton__Node__V1__Leaving leaving = BATON__NODE__V1__LEAVING__INIT;
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_LEAVING;
    message.leaving = &leaving;
    outbox_send(r->outbox, &message);
    sm_move(&table, &r->state, LEAVING);
    loop_timer_stop(&r->beat);
    loop_timer_stop(&r->stop);
    loop_timer_set(&r->timer, clock_now_ns() + leave_wait_ns);
    if (!r->outbox->queue.bytes)
        rpc_call_half_close(r->call);
}

void registration_destroy(struct registration *r)
{
    if (!r)
        return;
    struct rpc_call *call = r->call;
    r->call = NULL;
    outbox_close(r->outbox);
    loop_timer_stop(&r->timer);
    loop_timer_stop(&r->beat);
    loop_timer_stop(&r->stop);
    if (call)
        rpc_call_cancel(call);
    rpc_channel_destroy(r->channel);
    r->destroyed = true;
    if (!r->calls_open)
        free(r);
}
