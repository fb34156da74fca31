/* The streams of nodes as the router reads and writes them, with a transport that is this file: what is sealed, what is not, and
 * what becomes of a stream whose messages are not as they were sent. */
#include "tests/router/fake.h"

#include "base/loop.h"

static struct world world;
#define loop_now_ns(loop) world.now_ns
#define loop_late_total_ns(loop) UINT64_C(0)
/* with the transport's functions of below */
#include "router/node_streams.c"

enum { SENT_MAX = 64, MESSAGE_BYTES_MAX = 1024 };

struct rpc_call {
    void *data;
    bool busy; /* takes nothing now */
    bool ended;
    struct {
        uint8_t data[MESSAGE_BYTES_MAX];
        size_t bytes;
    } sent[SENT_MAX];
    int sent_count, read;
};

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
    return !call->busy && !call->ended;
}

enum status rpc_call_send(struct rpc_call *call, const void *data, size_t bytes)
{
    CHECK(rpc_call_writable(call) && call->sent_count < SENT_MAX && bytes <= MESSAGE_BYTES_MAX);
    memcpy(call->sent[call->sent_count].data, data, bytes);
    call->sent[call->sent_count++].bytes = bytes;
    return STATUS_OK;
}

enum status rpc_call_send_sealed(struct rpc_call *call, const ProtobufCMessage *message,
                                 struct seal *seal)
{
    uint8_t data[MESSAGE_BYTES_MAX];
    size_t bytes = protobuf_c_message_get_packed_size(message);
    CHECK(bytes + SEAL_BYTES <= sizeof data);
    protobuf_c_message_pack(message, data);
    seal_put(seal, data, bytes);
    return rpc_call_send(call, data, bytes + seal_room(seal));
}

void rpc_call_finish(struct rpc_call *call, enum grpc_code code, const char *message,
                     const struct rpc_metadata *trailers, size_t trailer_count)
{
    call->ended = true;
}

void rpc_call_abort(struct rpc_call *call, enum grpc_code code, const char *message)
{
    call->ended = true;
}

enum status rpc_server_add(struct rpc_server *server, const char *path,
                           const struct rpc_handler *added, void *context, struct err *err)
{
    return STATUS_OK;
}

/* --- one router, one node --- */

static struct node_streams streams;
static struct rpc_call call;
static struct seal out, in; /* the node's */

static void router_begin(void)
{
    world_init(&world);
    CHECK(!node_streams_init(&streams, NULL, &world.core, NULL, NULL));
}

static void stream_open(bool sealed)
{
    memset(&call, 0, sizeof call);
    out = in = (struct seal){.on = sealed};
    handler.on_open(&streams, &call);
}

static void stream_close(void)
{
    handler.on_closed(&streams, &call, NULL);
    core_schedule(&world.core);
}

static void router_end(void)
{
    core_finish(&world.core);
    metrics_destroy(world.metrics);
}

struct bytes {
    uint8_t data[MESSAGE_BYTES_MAX];
    size_t bytes;
};

static struct bytes said(Baton__Node__V1__NodeMessage__KindCase kind, void *body)
{
    struct bytes said;
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    message.kind_case = kind;
    message.register_ = body;
    size_t bytes = baton__node__v1__node_message__pack(&message, said.data);
    seal_put(&out, said.data, bytes);
    said.bytes = bytes + seal_room(&out);
    return said;
}

static struct bytes said_register(uint32_t wire_max)
{
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    struct fake_register registration;
    fake_register_fill(&world, node, &registration);
    registration.body.wire_max = wire_max;
    return said(BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_, &registration.body);
}

static struct bytes said_heartbeat(uint64_t number)
{
    Baton__Node__V1__Heartbeat beat = BATON__NODE__V1__HEARTBEAT__INIT;
    beat.number = number;
    return said(BATON__NODE__V1__NODE_MESSAGE__KIND_HEARTBEAT, &beat);
}

static void hear(const struct bytes *said)
{
    handler.on_message(&streams, &call, said->data, said->bytes);
    core_schedule(&world.core);
}

/* The next message of the router: its kind, 0 when there is none. */
static int answer(void)
{
    if (call.read == call.sent_count)
        return 0;
    const uint8_t *data = call.sent[call.read].data;
    size_t bytes = call.sent[call.read++].bytes;
    CHECK_INT(seal_take(&in, data, bytes), SEAL_FITS);
    ProtobufCMessage *unpacked = NULL;
    CHECK(!wire_unpack(&baton__node__v1__router_message__descriptor, data, bytes, &unpacked, NULL));
    const router_message *message = (const router_message *)unpacked;
    int kind = (int)message->kind_case;
    CHECK((message->number != 0) == in.on && (message->checksum != 0) == in.on);
    protobuf_c_message_free_unpacked(unpacked, NULL);
    return kind;
}

static double faults(enum seal_verdict fault)
{
    return metric_value(world.stats.stream_faults[fault]);
}

static bool registered(void)
{
    const struct node *node = registry_find(&world.core.registry, "mixed-0");
    return node && node->state != NODE_DEAD;
}

enum {
    WELCOME = BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME,
    REFUSED = BATON__NODE__V1__ROUTER_MESSAGE__KIND_REFUSED,
    ACK = BATON__NODE__V1__ROUTER_MESSAGE__KIND_HEARTBEAT_ACK,
    PEERS = BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS,
};

TEST(streams, sealed_where_both_sides_speak_it)
{
    router_begin();
    for (uint32_t wire = WIRE_OLDEST; wire <= WIRE_NEWEST; wire++) {
        stream_open(wire >= WIRE_SEALED);
        struct bytes first = said_register(wire), beat = said_heartbeat(1);
        hear(&first);
        CHECK(registered());
        CHECK_INT(answer(), WELCOME);
        CHECK_INT(answer(), PEERS);
        hear(&beat);
        CHECK_INT(answer(), ACK);
        CHECK_INT(in.number, wire >= WIRE_SEALED ? 3 : 0);
        stream_close();
    }
    /* an older router takes no notice of the seal on a Register */
    world.core.registry.model.wire.max = WIRE_SEALED - 1;
    stream_open(true);
    struct bytes first = said_register(WIRE_NEWEST);
    out.on = in.on = false;
    struct bytes beat = said_heartbeat(1);
    hear(&first);
    hear(&beat);
    CHECK_INT(answer(), WELCOME);
    CHECK_INT(answer(), PEERS);
    CHECK_INT(answer(), ACK);
    stream_close();
    for (int fault = SEAL_TWICE; fault < SEAL_VERDICT_COUNT; fault++)
        CHECK(faults((enum seal_verdict)fault) == 0);
    router_end();
}

/* A refusal is sealed like all else: it is final, and must not come of a flipped bit. */
TEST(streams, a_refusal_is_sealed)
{
    router_begin();
    stream_open(true);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    struct fake_register registration;
    fake_register_fill(&world, node, &registration);
    registration.identity.vocab_size++;
    struct bytes first = said(BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_, &registration.body);
    hear(&first);
    CHECK_INT(answer(), REFUSED);
    CHECK(call.ended);
    stream_close();
    router_end();
}

/* Each bit of a Register: none of them registers a node, not even one without seals. */
TEST(streams, every_flipped_bit_of_a_register_is_seen)
{
    router_begin();
    stream_open(true);
    struct bytes first = said_register(WIRE_NEWEST);
    stream_close();
    size_t bits = first.bytes * 8;
    for (size_t bit = 0; bit < bits; bit++) {
        stream_open(true);
        first.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        hear(&first);
        first.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_MSG(!registered() && call.ended && answer() == 0, "bit %zu of %zu", bit, bits);
        stream_close();
    }
    CHECK(bits > 800);
    CHECK_INT(faults(SEAL_BROKEN) + faults(SEAL_UNREADABLE), bits);
    CHECK(faults(SEAL_BROKEN) > 0 && faults(SEAL_UNREADABLE) > 0);
    router_end();
}

static void register_sealed(void)
{
    stream_open(true);
    struct bytes first = said_register(WIRE_NEWEST);
    hear(&first);
    CHECK_INT(answer(), WELCOME);
    CHECK_INT(answer(), PEERS);
}

TEST(streams, what_is_altered_or_missing_ends_the_registration)
{
    router_begin();
    for (int way = 0; way < 3; way++) {
        register_sealed();
        struct bytes lost = said_heartbeat(1), next = said_heartbeat(2), last = said_heartbeat(3);
        if (way == 0)
            lost.data[5] ^= 1;
        if (way != 1)
            hear(&lost);
        if (way == 2)
            lost.bytes = 0; /* it was as it should be; the next one is cut short */
        if (way == 2)
            next.bytes--;
        hear(&next);
        hear(&last); /* good, and of no use any more */
        CHECK_INT(answer(), way == 2 ? ACK : 0);
        CHECK_INT(answer(), 0);
        CHECK(!registered() && call.ended);
        stream_close();
    }
    CHECK_INT(faults(SEAL_BROKEN), 2);
    CHECK_INT(faults(SEAL_GAP), 1);
    CHECK_INT(metric_value(world.stats.node_deaths), 3);
    router_end();
}

TEST(streams, what_comes_twice_is_dropped)
{
    router_begin();
    register_sealed();
    for (uint64_t number = 1; number < 5; number++) {
        struct bytes beat = said_heartbeat(number);
        hear(&beat);
        hear(&beat);
        CHECK_INT(answer(), ACK);
        CHECK_INT(answer(), 0);
    }
    CHECK_INT(faults(SEAL_TWICE), 4);
    CHECK(registered());
    stream_close();
    router_end();
}

/* Numbers are those of the order in which messages leave, through the queue or past it. */
TEST(streams, what_waits_in_the_queue_keeps_its_order)
{
    router_begin();
    register_sealed();
    for (uint64_t number = 1; number <= 9; number++) {
        struct bytes beat = said_heartbeat(number);
        call.busy = number % 3 != 0;
        if (!call.busy)
            handler.on_writable(&streams, &call);
        hear(&beat);
    }
    for (int i = 0; i < 9; i++)
        CHECK_INT(answer(), ACK);
    CHECK_INT(answer(), 0);
    stream_close();
    router_end();
}
