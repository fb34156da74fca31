/* A node's stream to its router, with a transport that is this file: which messages are sealed, and every bit of the router's first
 * one. The rest is test_node.c's, over real connections. */
/* with the transport's functions of below */
#include "node/registration.c"

#include "tests/test.h"

enum { SENT_MAX = 8, MESSAGE_BYTES_MAX = 256 };

struct rpc_call {
    bool ended;
    struct {
        uint8_t data[MESSAGE_BYTES_MAX];
        size_t bytes;
    } sent[SENT_MAX];
    int sent_count, read;
};

static struct rpc_call call;

bool rpc_call_writable(const struct rpc_call *of)
{
    return !of->ended;
}

enum status rpc_call_send(struct rpc_call *to, const void *data, size_t bytes)
{
    CHECK(!to->ended && to->sent_count < SENT_MAX && bytes <= MESSAGE_BYTES_MAX);
    memcpy(to->sent[to->sent_count].data, data, bytes);
    to->sent[to->sent_count++].bytes = bytes;
    return STATUS_OK;
}

enum status rpc_call_send_sealed(struct rpc_call *to, const ProtobufCMessage *message,
                                 struct seal *seal)
{
    uint8_t data[MESSAGE_BYTES_MAX];
    size_t bytes = protobuf_c_message_get_packed_size(message);
    CHECK(bytes + SEAL_BYTES <= sizeof data);
    protobuf_c_message_pack(message, data);
    seal_put(seal, data, bytes);
    return rpc_call_send(to, data, bytes + seal_room(seal));
}

void rpc_call_cancel(struct rpc_call *of)
{
    of->ended = true;
}

void rpc_call_half_close(struct rpc_call *of)
{
    of->ended = true;
}

enum status rpc_channel_create(struct rpc *rpc, const char *target,
                               const struct rpc_channel_options *options,
                               struct rpc_channel **channel_out, struct err *err)
{
    *channel_out = NULL;
    return STATUS_OK;
}

void rpc_channel_destroy(struct rpc_channel *channel)
{
}

struct rpc_call *rpc_channel_call(struct rpc_channel *channel, const struct rpc_handler *handler,
                                  void *context, const struct rpc_call_options *options)
{
    memset(&call, 0, sizeof call);
    return &call;
}

/* --- one node, one router --- */

static struct loop *loop;
static struct outbox outbox;
static struct registration *node;
static uint32_t node_newest;
static struct seal out, in; /* the router's */
static uint32_t welcomes, refusals, losses, peers, faults[SEAL_VERDICT_COUNT];

static void on_fill(void *context, uint64_t incarnation, Baton__Node__V1__Register *r)
{
    r->name = "a node";
    r->wire_min = WIRE_OLDEST;
    r->wire_max = node_newest;
}

static void on_welcome(void *context, const Baton__Node__V1__Welcome *welcome)
{
    welcomes++;
}

static void on_router_message(void *context, const Baton__Node__V1__RouterMessage *message)
{
    peers += message->kind_case == BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS;
}

static void on_heartbeat(void *context, Baton__Node__V1__Heartbeat *heartbeat)
{
}

static void on_lost(void *context, const char *why)
{
    losses++;
}

static void on_fault(void *context, enum seal_verdict fault)
{
    faults[fault]++;
}

static void on_refused(void *context, const struct err *err)
{
    refusals++;
}

static void on_left(void *context)
{
}

static void node_begin(uint32_t newest)
{
    node_newest = newest;
    const struct registration_handler with = {.fill = on_fill,
                                              .welcome = on_welcome,
                                              .message = on_router_message,
                                              .heartbeat = on_heartbeat,
                                              .lost = on_lost,
                                              .fault = on_fault,
                                              .refused = on_refused,
                                              .left = on_left};
    CHECK(!loop_create(&loop, NULL));
    CHECK(!outbox_init(&outbox, 4));
    CHECK(!registration_create(loop, NULL, &outbox,
                               &(struct registration_options){.router = "nowhere:1"}, &with, &node,
                               NULL));
    welcomes = refusals = losses = peers = 0;
    memset(faults, 0, sizeof faults);
}

static void node_finish(void)
{
    node->calls_open = 0; /* their ends were not told */
    registration_destroy(node);
    outbox_finish(&outbox);
    loop_destroy(loop);
}

/* Anew; its Register is read. */
static void node_connect(bool sealed)
{
    loop_timer_stop(&node->timer);
    connect_now(node);
    out = in = (struct seal){.on = sealed};
    CHECK_INT(call.sent_count, 1);
    CHECK_INT(seal_take(&in, call.sent[0].data, call.sent[0].bytes), SEAL_FITS);
    call.read = 1;
}

struct bytes {
    uint8_t data[MESSAGE_BYTES_MAX];
    size_t bytes;
};

static struct bytes said(Baton__Node__V1__RouterMessage__KindCase kind, void *body)
{
    struct bytes said;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = kind;
    message.welcome = body;
    size_t bytes = baton__node__v1__router_message__pack(&message, said.data);
    seal_put(&out, said.data, bytes);
    said.bytes = bytes + seal_room(&out);
    return said;
}

static struct bytes said_welcome(uint32_t wire)
{
    static uint8_t key[16] = "0123456789abcde";
    Baton__Node__V1__Welcome body = BATON__NODE__V1__WELCOME__INIT;
    body.router_incarnation = 0x123456789;
    body.wire = wire;
    body.heartbeat_ms = 250;
    body.stop_after_ms = 2000;
    body.cache_key.data = key;
    body.cache_key.len = sizeof key;
    return said(BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME, &body);
}

static struct bytes said_peers(void)
{
    Baton__Node__V1__Peers body = BATON__NODE__V1__PEERS__INIT;
    return said(BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS, &body);
}

static void hear(const struct bytes *said)
{
    on_message(node, &call, said->data, said->bytes);
}

TEST(registration, sealed_where_both_sides_speak_it)
{
    for (uint32_t newest = WIRE_OLDEST; newest <= WIRE_NEWEST; newest++)
        for (uint32_t wire = WIRE_OLDEST; wire <= newest; wire++) {
            node_begin(newest);
            node_connect(newest >= WIRE_SEALED);
            in.on = out.on = wire >= WIRE_SEALED;
            struct bytes first = said_welcome(wire), second = said_peers();
            hear(&first);
            hear(&second);
            CHECK(registration_up(node) && welcomes == 1 && peers == 1);
            CHECK_INT(call.sent_count, 2); /* its first heartbeat */
            CHECK_INT(seal_take(&in, call.sent[1].data, call.sent[1].bytes), SEAL_FITS);
            CHECK_INT(in.number, in.on ? 2 : newest >= WIRE_SEALED);
            for (int i = 0; i < SEAL_VERDICT_COUNT; i++)
                CHECK_INT(faults[i], 0);
            node_finish();
        }
}

/* None of them registers it, with seals or without, and none is taken for a refusal, which is final. */
TEST(registration, every_flipped_bit_of_a_welcome_is_seen)
{
    node_begin(WIRE_NEWEST);
    node_connect(true);
    struct bytes first = said_welcome(WIRE_NEWEST);
    stream_end(node, "for the next one");
    size_t bits = first.bytes * 8;
    for (size_t bit = 0; bit < bits; bit++) {
        node_connect(true);
        first.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        hear(&first);
        first.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_MSG(!welcomes && !refusals && node->state == IDLE && call.ended, "bit %zu of %zu",
                  bit, bits);
    }
    CHECK_INT(faults[SEAL_BROKEN] + faults[SEAL_UNREADABLE], bits);
    CHECK(faults[SEAL_BROKEN] > 200 && faults[SEAL_UNREADABLE] > 0);
    CHECK_INT(losses, 0);
    node_connect(true);
    first = said_welcome(WIRE_NEWEST);
    hear(&first);
    CHECK(registration_up(node));
    node_finish();
}

TEST(registration, a_welcome_that_is_missing)
{
    node_begin(WIRE_NEWEST);
    node_connect(true);
    said_welcome(WIRE_NEWEST);
    struct bytes second = said_peers();
    hear(&second);
    CHECK(node->state == IDLE && call.ended && !peers);
    CHECK_INT(faults[SEAL_GAP], 1);
    node_finish();
}

/* An older router's refusal has no seal. */
TEST(registration, a_refusal_without_a_seal)
{
    node_begin(WIRE_NEWEST);
    node_connect(true);
    out.on = false;
    Baton__Node__V1__Refused body = BATON__NODE__V1__REFUSED__INIT;
    body.field = "page_tokens";
    body.message = "16, but the cluster has 32";
    struct bytes first = said(BATON__NODE__V1__ROUTER_MESSAGE__KIND_REFUSED, &body);
    hear(&first);
    CHECK(refusals == 1 && node->state == REFUSED);
    node_finish();
}
