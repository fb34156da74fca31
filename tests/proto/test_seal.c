/* The seal: what is altered, lost, twice or out of order on its way is seen, and sealed bytes are a message like any other. */
#include "proto/baton/node/v1/node.pb-c.h"
#include "proto/seal.h"
#include "proto/wire.h"
#include "tests/test.h"

enum { BYTES_MAX = 2048, KINDS = 4 };

struct sealed {
    uint8_t data[BYTES_MAX];
    size_t bytes;
};

static void seal_message(struct seal *seal, const ProtobufCMessage *message, struct sealed *out)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    CHECK(bytes + SEAL_BYTES < BYTES_MAX);
    protobuf_c_message_pack(message, out->data);
    out->data[bytes + seal_room(seal)] = 0xee;
    seal_put(seal, out->data, bytes);
    out->bytes = bytes + seal_room(seal);
    CHECK_INT(out->data[out->bytes], 0xee); /* no further than it says */
}

/* The report of one token. */
static void token_sealed(struct seal *seal, uint32_t position, struct sealed *out)
{
    Baton__Node__V1__AttemptId attempt = BATON__NODE__V1__ATTEMPT_ID__INIT;
    Baton__Node__V1__Token token = BATON__NODE__V1__TOKEN__INIT, *list[] = {&token};
    Baton__Node__V1__TokenRun run = BATON__NODE__V1__TOKEN_RUN__INIT, *runs[] = {&run};
    Baton__Node__V1__Tokens tokens = BATON__NODE__V1__TOKENS__INIT;
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    attempt.high = 0x0123456789abcdef;
    attempt.low = 0xfedcba9876543210;
    token.id = 31337;
    token.logprob = -1.5f;
    run.attempt = &attempt;
    run.position = position;
    run.tokens = list;
    run.n_tokens = 1;
    tokens.runs = runs;
    tokens.n_runs = 1;
    message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS;
    message.tokens = &tokens;
    seal_message(seal, &message.base, out);
}

/* An empty one, one token, a heartbeat's answer, a prompt. */
static void kind_sealed(int kind, struct seal *seal, struct sealed *out)
{
    Baton__Node__V1__NodeMessage empty = BATON__NODE__V1__NODE_MESSAGE__INIT;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    Baton__Node__V1__HeartbeatAck ack = BATON__NODE__V1__HEARTBEAT_ACK__INIT;
    Baton__Node__V1__Assign assign = BATON__NODE__V1__ASSIGN__INIT;
    uint32_t prompt[300];
    for (uint32_t i = 0; i < 300; i++)
        prompt[i] = i * 163;
    switch (kind) {
    case 0:
        seal_message(seal, &empty.base, out);
        return;
    case 1:
        token_sealed(seal, 17, out);
        return;
    case 2:
        ack.number = 400;
        message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_HEARTBEAT_ACK;
        message.heartbeat_ack = &ack;
        break;
    default:
        assign.number = 9;
        assign.prompt = prompt;
        assign.n_prompt = 300;
        message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_ASSIGN;
        message.assign = &assign;
    }
    seal_message(seal, &message.base, out);
}

static enum seal_verdict verdict_after(uint32_t number, const uint8_t *data, size_t bytes)
{
    struct seal in = {.on = true, .number = number};
    enum seal_verdict verdict = seal_take(&in, data, bytes);
    CHECK_INT(in.number, number + (verdict == SEAL_FITS));
    return verdict;
}

TEST(seal, is_two_fields_of_the_message)
{
    struct seal out = {.on = true, .number = 0x01020303};
    struct sealed sealed;
    Baton__Node__V1__NodeMessage empty = BATON__NODE__V1__NODE_MESSAGE__INIT;
    seal_message(&out, &empty.base, &sealed);
    /* XXH3 of the first six, by its library */
    static const uint8_t want[SEAL_BYTES] = {0x75, 0x04, 0x03, 0x02, 0x01, 0x79, 0xb0,
                                             0x40, 0x34, 0x0a, 0x59, 0xc6, 0x3a, 0xcf};
    CHECK_INT(sealed.bytes, SEAL_BYTES);
    CHECK(memcmp(sealed.data, want, sizeof want) == 0);

    out.number = 6;
    token_sealed(&out, 17, &sealed);
    ProtobufCMessage *unpacked = NULL;
    CHECK(!wire_unpack(&baton__node__v1__node_message__descriptor, sealed.data, sealed.bytes,
                       &unpacked, NULL));
    const Baton__Node__V1__NodeMessage *message = (Baton__Node__V1__NodeMessage *)unpacked;
    CHECK_INT(message->kind_case, BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS);
    CHECK_INT(message->tokens->runs[0]->tokens[0]->id, 31337);
    CHECK_INT(message->number, 7);
    CHECK(message->checksum != 0);
    /* a program that does not know the two reads the same: here another message, with no field of these numbers */
    CHECK(!wire_check(&baton__node__v1__cached__descriptor, want, sizeof want, NULL));
    protobuf_c_message_free_unpacked(unpacked, NULL);
}

/* Of messages of each size, every bit: some seven thousand. */
TEST(seal, every_flipped_bit_is_seen)
{
    unsigned flips = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        struct seal out = {.on = true, .number = 41};
        struct sealed sealed;
        kind_sealed(kind, &out, &sealed);
        CHECK_INT(verdict_after(41, sealed.data, sealed.bytes), SEAL_FITS);
        for (size_t bit = 0; bit < sealed.bytes * 8; bit++) {
            sealed.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK_INT(verdict_after(41, sealed.data, sealed.bytes), SEAL_BROKEN);
            sealed.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            flips++;
        }
    }
    CHECK(flips > 5000);
}

TEST(seal, every_two_flipped_bits_are_seen)
{
    struct seal out = {.on = true, .number = 41};
    struct sealed sealed;
    kind_sealed(2, &out, &sealed);
    for (size_t a = 0; a < sealed.bytes * 8; a++)
        for (size_t b = 0; b < a; b++) {
            sealed.data[a / 8] ^= (uint8_t)(1 << a % 8);
            sealed.data[b / 8] ^= (uint8_t)(1 << b % 8);
            CHECK_INT(verdict_after(41, sealed.data, sealed.bytes), SEAL_BROKEN);
            sealed.data[a / 8] ^= (uint8_t)(1 << a % 8);
            sealed.data[b / 8] ^= (uint8_t)(1 << b % 8);
        }
}

TEST(seal, a_message_cut_short_or_with_more_behind_it_is_seen)
{
    struct seal out = {.on = true, .number = 41};
    struct sealed sealed;
    kind_sealed(1, &out, &sealed);
    for (size_t bytes = 0; bytes < sealed.bytes; bytes++) {
        uint8_t *copy =
            malloc(bytes ? bytes : 1); /* its own block, so that a sanitizer sees an overread */
        memcpy(copy, sealed.data, bytes);
        CHECK_INT(verdict_after(41, copy, bytes), SEAL_BROKEN);
        free(copy);
    }
    for (unsigned more = 0; more < 256; more++) {
        sealed.data[sealed.bytes] = (uint8_t)more;
        CHECK_INT(verdict_after(41, sealed.data, sealed.bytes + 1), SEAL_BROKEN);
    }
}

/* Every run of up to five of the first five messages, in any order: what is taken is what was sent, up to where it stops. */
TEST(seal, what_is_lost_twice_or_out_of_order_is_seen)
{
    enum { SENT = 5 };
    struct seal out = {.on = true};
    struct sealed sent[SENT];
    for (uint32_t i = 0; i < SENT; i++)
        token_sealed(&out, i, &sent[i]);
    unsigned whole = 0;
    for (unsigned order = 0; order < 5 * 5 * 5 * 5 * 5; order++) {
        struct seal in = {.on = true};
        uint32_t taken = 0;
        unsigned rest = order;
        for (int i = 0; i < SENT; i++, rest /= SENT) {
            uint32_t which = rest % SENT;
            enum seal_verdict verdict = seal_take(&in, sent[which].data, sent[which].bytes);
            CHECK_INT(verdict, which == taken ? SEAL_FITS : which < taken ? SEAL_TWICE : SEAL_GAP);
            taken += verdict == SEAL_FITS;
        }
        CHECK_INT(in.number, taken);
        whole += taken == SENT;
    }
    CHECK_INT(whole, 1);
}

TEST(seal, numbers_go_on_behind_the_largest)
{
    struct seal out = {.on = true, .number = UINT32_MAX - 1}, in = out;
    struct sealed last, zero, one;
    token_sealed(&out, 0, &last);
    token_sealed(&out, 1, &zero);
    token_sealed(&out, 2, &one);
    CHECK_INT(out.number, 1);
    CHECK_INT(seal_take(&in, zero.data, zero.bytes), SEAL_GAP);
    CHECK_INT(seal_take(&in, last.data, last.bytes), SEAL_FITS);
    CHECK_INT(seal_take(&in, one.data, one.bytes), SEAL_GAP);
    CHECK_INT(seal_take(&in, zero.data, zero.bytes), SEAL_FITS);
    CHECK_INT(seal_take(&in, last.data, last.bytes), SEAL_TWICE);
    CHECK_INT(seal_take(&in, one.data, one.bytes), SEAL_FITS);
}

TEST(seal, a_stream_without_it_has_the_bytes_of_an_older_program)
{
    struct seal none = {0};
    struct sealed sealed;
    token_sealed(&none, 3, &sealed);
    CHECK_INT(none.number, 0);
    CHECK_INT(seal_take(&none, sealed.data, sealed.bytes), SEAL_FITS);
    CHECK_INT(seal_take(&none, NULL, 0), SEAL_FITS);
    struct seal first;
    CHECK_INT(seal_take_first(&first, false, sealed.data, sealed.bytes), SEAL_FITS);
    CHECK(!first.on);
    CHECK_INT(seal_take_first(&first, true, sealed.data, sealed.bytes), SEAL_BROKEN);
}
