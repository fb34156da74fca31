/* Frames: what is encoded comes back; what is cut, longer, flipped or out of range is refused. */
#include <math.h>

#include "kvtransfer/frame.h"
#include "tests/test.h"

static struct kv_frame frame_base(enum kv_frame_type type)
{
    struct kv_frame frame;
    memset(&frame, 0, sizeof frame);
    frame.type = type;
    frame.version = WIRE_NEWEST;
    frame.from_incarnation = UINT64_C(0x1122334455667788);
    frame.to_incarnation = UINT64_MAX;
    frame.epoch = 7;
    frame.key = (struct kv_key){0x0102030405060708, 42, {UINT64_MAX - 1, 3}, 99};
    return frame;
}

static struct kv_frame frame_sample(enum kv_frame_type type)
{
    struct kv_frame frame = frame_base(type);
    switch (type) {
    case KV_FRAME_HELLO:
        frame.hello.reply_wanted = true;
        break;
    case KV_FRAME_PULL:
        frame.pull.group = 1;
        frame.pull.run_begin = 2;
        frame.pull.run_count = 3;
        frame.pull.head_count = 8;
        frame.pull.block_count = KV_PULL_BLOCKS_MAX;
        for (uint32_t i = 0; i < KV_PULL_BLOCKS_MAX; i++)
            frame.pull.blocks[i] = i * 1000003;
        break;
    case KV_FRAME_PROGRESS:
        frame.progress.state = KV_PROGRESS_SENDING;
        frame.progress.pages_sealed = 70000;
        frame.progress.pieces_pending = 3;
        break;
    case KV_FRAME_PIECE:
        frame.piece.piece = (struct kv_piece){123456, 3, 9};
        frame.piece.checksum = 0xdeadbeefcafe;
        frame.piece.bytes = 262144;
        break;
    case KV_FRAME_FIRST:
        frame.first.position = 5;
        frame.first.token_id = 49151;
        frame.first.logprob = -1.25f;
        frame.first.top_count = KV_LOGPROBS_MAX;
        for (uint32_t i = 0; i < KV_LOGPROBS_MAX; i++)
            frame.first.top[i] = (struct kv_logprob){i, -(float)i / 3};
        break;
    case KV_FRAME_DONE:
        frame.done.outcome = KV_OUTCOME_GAVE_UP;
        frame.done.why = KV_GAVE_UP_SILENCE;
        break;
    default:
        frame.gone.reason = KV_GONE_CHECKSUM;
    }
    return frame;
}

static void comes_back(enum kv_frame_type type, uint16_t version)
{
    struct kv_frame frame = frame_sample(type), back;
    memset(&back, 0, sizeof back);
    frame.version = version;
    uint8_t bytes[KV_FRAME_BYTES_MAX];
    size_t count = kv_frame_encode(&frame, bytes);
    CHECK_INT(kv_frame_decode(bytes, count, &back), STATUS_OK);
    CHECK_INT(back.type, frame.type);
    CHECK_INT(back.version, version);
    CHECK(back.from_incarnation == frame.from_incarnation);
    CHECK(back.to_incarnation == frame.to_incarnation);
    CHECK_INT(back.epoch, frame.epoch);
    CHECK(kv_key_equal(&back.key, &frame.key));
    uint8_t again[KV_FRAME_BYTES_MAX];
    CHECK_INT(kv_frame_encode(&back, again), count);
    CHECK(memcmp(bytes, again, count) == 0);
}

TEST(frame, every_type_comes_back_in_every_version)
{
    for (int type = KV_FRAME_NONE + 1; type < KV_FRAME_TYPE_COUNT; type++)
        for (uint16_t version = WIRE_OLDEST; version <= WIRE_NEWEST; version++)
            comes_back((enum kv_frame_type)type, version);
}

/* The bytes of the first version are what programs of the first release wrote: the sum was taken with their code. */
TEST(frame, the_first_version_stays_as_it_was)
{
    static uint8_t all[KV_FRAME_TYPE_COUNT * KV_FRAME_BYTES_MAX];
    size_t all_bytes = 0;
    for (int type = KV_FRAME_NONE + 1; type < KV_FRAME_TYPE_COUNT; type++) {
        struct kv_frame frame = frame_sample((enum kv_frame_type)type);
        frame.version = 1;
        if (type == KV_FRAME_GONE)
            frame.gone.reason = KV_GONE_DROPPED;
        all_bytes += kv_frame_encode(&frame, all + all_bytes);
    }
    CHECK_INT(all_bytes, 3156);
    CHECK(kv_checksum(all, all_bytes) == UINT64_C(0x2450d4f80074ec8a));
}

TEST(frame, what_the_first_version_cannot_say_is_left_out)
{
    struct kv_frame frame = frame_sample(KV_FRAME_DONE), back;
    uint8_t bytes[KV_FRAME_BYTES_MAX];
    frame.version = 1;
    CHECK_INT(kv_frame_encode(&frame, bytes), 16 + 60 + 1);
    CHECK_INT(bytes[4] | bytes[5] << 8, 1);
    CHECK_INT(kv_frame_decode(bytes, 77, &back), STATUS_OK);
    CHECK_INT(back.done.why, KV_GAVE_UP_UNSAID);
    frame = frame_sample(KV_FRAME_GONE);
    frame.version = 1;
    size_t count = kv_frame_encode(&frame, bytes);
    CHECK_INT(kv_frame_decode(bytes, count, &back), STATUS_OK);
    CHECK_INT(back.gone.reason, KV_GONE_FAILED); /* it had no word for a checksum */
}

TEST(frame, bytes_are_little_endian_and_fixed)
{
    struct kv_frame frame = frame_sample(KV_FRAME_DONE);
    uint8_t bytes[KV_FRAME_BYTES_MAX];
    CHECK_INT(kv_frame_encode(&frame, bytes), 16 + 60 + 2);
    CHECK(memcmp(bytes, "BTKV", 4) == 0);
    CHECK_INT(bytes[4] | bytes[5] << 8, WIRE_NEWEST);
    CHECK_INT(bytes[6] | bytes[7] << 8, 78);
    CHECK_INT(bytes[16], 0x88);
    CHECK_INT(bytes[76], KV_OUTCOME_GAVE_UP);
    CHECK_INT(bytes[77], KV_GAVE_UP_SILENCE);
}

TEST(frame, cut_or_extended_anywhere_is_refused)
{
    for (int type = KV_FRAME_NONE + 1; type < KV_FRAME_TYPE_COUNT; type++) {
        struct kv_frame frame = frame_sample((enum kv_frame_type)type), back;
        uint8_t bytes[KV_FRAME_BYTES_MAX + 1] = {0};
        size_t count = kv_frame_encode(&frame, bytes);
        for (size_t cut = 0; cut < count; cut++) {
            uint8_t *exact = malloc(cut ? cut : 1); /* so that a sanitizer sees a read beyond it */
            memcpy(exact, bytes, cut);
            CHECK(kv_frame_decode(exact, cut, &back) != STATUS_OK);
            free(exact);
        }
        CHECK(kv_frame_decode(bytes, count + 1, &back) != STATUS_OK);
    }
}

TEST(frame, every_flipped_bit_is_refused)
{
    for (int type = KV_FRAME_NONE + 1; type < KV_FRAME_TYPE_COUNT; type++) {
        struct kv_frame frame = frame_sample((enum kv_frame_type)type), back;
        uint8_t bytes[KV_FRAME_BYTES_MAX];
        size_t count = kv_frame_encode(&frame, bytes);
        for (size_t bit = 0; bit < count * 8; bit++) {
            bytes[bit / 8] ^= 1u << (bit % 8);
            CHECK(kv_frame_decode(bytes, count, &back) != STATUS_OK);
            bytes[bit / 8] ^= 1u << (bit % 8);
        }
    }
}

TEST(frame, a_version_of_nobodys_is_a_mismatch)
{
    struct kv_frame frame = frame_sample(KV_FRAME_GONE), back;
    uint8_t bytes[KV_FRAME_BYTES_MAX];
    size_t count = kv_frame_encode(&frame, bytes);
    bytes[4] = WIRE_NEWEST + 1;
    CHECK_INT(kv_frame_decode(bytes, count, &back), STATUS_MISMATCH);
    bytes[4] = WIRE_OLDEST - 1;
    CHECK_INT(kv_frame_decode(bytes, count, &back), STATUS_MISMATCH);
}

/* Values out of range with a right check: a peer with a bug, not a damaged frame. */
TEST(frame, values_out_of_range_are_refused)
{
    struct kv_frame frame, back;
    uint8_t bytes[KV_FRAME_BYTES_MAX];
    frame = frame_sample(KV_FRAME_GONE);
    frame.gone.reason = KV_GONE_REASON_COUNT;
    CHECK_INT(kv_frame_decode(bytes, kv_frame_encode(&frame, bytes), &back), STATUS_PROTOCOL);
    frame = frame_sample(KV_FRAME_DONE);
    frame.done.outcome = KV_OUTCOME_COUNT;
    CHECK_INT(kv_frame_decode(bytes, kv_frame_encode(&frame, bytes), &back), STATUS_PROTOCOL);
    frame = frame_sample(KV_FRAME_DONE);
    frame.done.why = KV_GAVE_UP_COUNT;
    CHECK_INT(kv_frame_decode(bytes, kv_frame_encode(&frame, bytes), &back), STATUS_PROTOCOL);
    frame = frame_sample(KV_FRAME_PROGRESS);
    frame.progress.state = KV_PROGRESS_STATE_COUNT;
    CHECK_INT(kv_frame_decode(bytes, kv_frame_encode(&frame, bytes), &back), STATUS_PROTOCOL);
    frame = frame_sample(KV_FRAME_PIECE);
    frame.piece.piece.group = KV_GROUPS_MAX;
    CHECK_INT(kv_frame_decode(bytes, kv_frame_encode(&frame, bytes), &back), STATUS_PROTOCOL);
    frame = frame_sample(KV_FRAME_PULL);
    frame.pull.run_count = 0;
    CHECK_INT(kv_frame_decode(bytes, kv_frame_encode(&frame, bytes), &back), STATUS_PROTOCOL);
    frame = frame_sample(KV_FRAME_PULL);
    frame.pull.group = KV_GROUPS_MAX;
    CHECK_INT(kv_frame_decode(bytes, kv_frame_encode(&frame, bytes), &back), STATUS_PROTOCOL);
}

TEST(frame, labels)
{
    CHECK_STR(kv_frame_label(KV_FRAME_NONE), "malformed");
    CHECK_STR(kv_frame_label(KV_FRAME_PULL), "pull");
    CHECK_STR(kv_frame_label(KV_FRAME_GONE), "gone");
}
