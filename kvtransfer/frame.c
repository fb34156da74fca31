/* See frame.h. A writer and a reader walk the bytes; the reader refuses to pass the end and remembers that it did, so that
 * a body is read straight through and checked once. */
#include "kvtransfer/frame.h"

#include <assert.h>
#include <string.h>
/* in line, for the few bytes of a frame */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/checksum.h"
#include "kvtransfer/xfer.h"

enum { CHECK_OFFSET = 12, PREFIX_BYTES = 16 };

_Static_assert((int)KV_FRAME_BYTES_MAX == (int)XFER_FRAME_BYTES_MAX, "a frame fits a slot");

const char *kv_frame_label(enum kv_frame_type type)
{
    static const char *const labels[] = {[KV_FRAME_NONE] = "malformed",
#define X(name, label) [KV_FRAME_##name] = label,
                                         KV_FRAME_TABLE(X)
#undef X
    };
    return (unsigned)type < KV_FRAME_TYPE_COUNT ? labels[type] : "?";
}

uint64_t kv_checksum(const void *data, size_t bytes)
{
    return checksum_of(data, bytes);
}

/* --- bytes --- */

struct writer {
    uint8_t *at;
};

static void put(struct writer *writer, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *writer->at++ = (uint8_t)(value >> (8 * i));
}

static void put_float(struct writer *writer, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(writer, bits, 4);
}

struct reader {
    const uint8_t *at, *end;
    bool failed;
};

static uint64_t get(struct reader *reader, unsigned bytes)
{
    if ((size_t)(reader->end - reader->at) < bytes) {
        reader->failed = true;
        return 0;
    }
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)reader->at[i] << (8 * i);
    reader->at += bytes;
    return value;
}

static float get_float(struct reader *reader)
{
    uint32_t bits = (uint32_t)get(reader, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A number that must be below `limit`. */
static uint64_t get_below(struct reader *reader, unsigned bytes, uint64_t limit)
{
    uint64_t value = get(reader, bytes);
    if (value >= limit) {
        reader->failed = true;
        return 0;
    }
    return value;
}

static uint32_t frame_check(const uint8_t *bytes, size_t count)
{
    XXH64_hash_t seed = XXH3_64bits(bytes, CHECK_OFFSET);
    return (uint32_t)XXH3_64bits_withSeed(bytes + PREFIX_BYTES, count - PREFIX_BYTES, seed);
}

/* --- bodies --- */

static void pull_encode(struct writer *w, const struct kv_pull *pull)
{
    assert(pull->block_count <= KV_PULL_BLOCKS_MAX);
    put(w, pull->group, 2);
    put(w, pull->run_begin, 2);
    put(w, pull->run_count, 2);
    put(w, pull->head_begin, 2);
    put(w, pull->head_count, 2);
    put(w, pull->block_count, 2);
    for (uint32_t i = 0; i < pull->block_count; i++)
        put(w, pull->blocks[i], 4);
}

static void pull_decode(struct reader *r, struct kv_pull *pull)
{
    pull->group = (uint16_t)get_below(r, 2, KV_GROUPS_MAX);
    pull->run_begin = (uint16_t)get(r, 2);
    pull->run_count = (uint16_t)get(r, 2);
    pull->head_begin = (uint16_t)get(r, 2);
    pull->head_count = (uint16_t)get(r, 2);
    pull->block_count = (uint32_t)get_below(r, 2, KV_PULL_BLOCKS_MAX + 1);
    for (uint32_t i = 0; i < pull->block_count; i++)
        pull->blocks[i] = (uint32_t)get(r, 4);
    if (pull->block_count > 0 && pull->run_count == 0)
        r->failed = true;
}

static void first_encode(struct writer *w, const struct kv_first *first)
{
    assert(first->top_count <= KV_LOGPROBS_MAX);
    put(w, first->position, 4);
    put(w, first->token_id, 4);
    put_float(w, first->logprob);
    put(w, first->top_count, 4);
    for (uint32_t i = 0; i < first->top_count; i++) {
        put(w, first->top[i].token_id, 4);
        put_float(w, first->top[i].logprob);
    }
}

static void first_decode(struct reader *r, struct kv_first *first)
{
    first->position = (uint32_t)get(r, 4);
    first->token_id = (uint32_t)get(r, 4);
    first->logprob = get_float(r);
    first->top_count = (uint32_t)get_below(r, 4, KV_LOGPROBS_MAX + 1);
    for (uint32_t i = 0; i < first->top_count; i++) {
        first->top[i].token_id = (uint32_t)get(r, 4);
        first->top[i].logprob = get_float(r);
    }
}

static void body_encode(struct writer *w, const struct kv_frame *frame)
{
    switch (frame->type) {
    case KV_FRAME_HELLO:
        put(w, frame->hello.reply_wanted, 1);
        break;
    case KV_FRAME_PULL:
        pull_encode(w, &frame->pull);
        break;
    case KV_FRAME_PROGRESS:
        put(w, frame->progress.state, 1);
        put(w, frame->progress.pages_sealed, 4);
        put(w, frame->progress.pieces_pending, 4);
        break;
    case KV_FRAME_PIECE:
        put(w, frame->piece.piece.block, 4);
        put(w, frame->piece.piece.group, 2);
        put(w, frame->piece.piece.run, 2);
        put(w, frame->piece.checksum, 8);
        put(w, frame->piece.bytes, 8);
        break;
    case KV_FRAME_FIRST:
        first_encode(w, &frame->first);
        break;
    case KV_FRAME_DONE:
        put(w, frame->done.outcome, 1);
        if (frame->version >= 2)
            put(w, frame->done.why, 1);
        break;
    case KV_FRAME_GONE:
        put(w,
            frame->version < 2 && frame->gone.reason == KV_GONE_CHECKSUM ? KV_GONE_FAILED
                                                                         : frame->gone.reason,
            1);
        break;
    default:
        assert(!"a frame without a type");
    }
}

static void body_decode(struct reader *r, struct kv_frame *frame)
{
    switch (frame->type) {
    case KV_FRAME_HELLO:
        frame->hello.reply_wanted = get_below(r, 1, 2);
        break;
    case KV_FRAME_PULL:
        pull_decode(r, &frame->pull);
        break;
    case KV_FRAME_PROGRESS:
        frame->progress.state = (uint8_t)get_below(r, 1, KV_PROGRESS_STATE_COUNT);
        frame->progress.pages_sealed = (uint32_t)get(r, 4);
        frame->progress.pieces_pending = (uint32_t)get(r, 4);
        break;
    case KV_FRAME_PIECE:
        frame->piece.piece.block = (uint32_t)get(r, 4);
        frame->piece.piece.group = (uint16_t)get_below(r, 2, KV_GROUPS_MAX);
        frame->piece.piece.run = (uint16_t)get(r, 2);
        frame->piece.checksum = get(r, 8);
        frame->piece.bytes = get(r, 8);
        break;
    case KV_FRAME_FIRST:
        first_decode(r, &frame->first);
        break;
    case KV_FRAME_DONE:
        frame->done.outcome = (uint8_t)get_below(r, 1, KV_OUTCOME_COUNT);
        frame->done.why =
            frame->version >= 2 ? (uint8_t)get_below(r, 1, KV_GAVE_UP_COUNT) : KV_GAVE_UP_UNSAID;
        break;
    case KV_FRAME_GONE:
        frame->gone.reason =
            (uint8_t)get_below(r, 1, frame->version >= 2 ? KV_GONE_REASON_COUNT : KV_GONE_CHECKSUM);
        break;
    default:
        r->failed = true;
    }
}

/* --- frames --- */

size_t kv_frame_encode(const struct kv_frame *frame, uint8_t *out)
{
    struct writer w = {out};
    assert(frame->version >= WIRE_OLDEST && frame->version <= WIRE_NEWEST);
    put(&w, KV_FRAME_MAGIC, 4);
    put(&w, frame->version, 2);
    put(&w, 0, 2); /* header bytes, below */
    put(&w, frame->type, 2);
    put(&w, 0, 2);
    put(&w, 0, 4); /* check, below */
    put(&w, frame->from_incarnation, 8);
    put(&w, frame->to_incarnation, 8);
    put(&w, frame->epoch, 4);
    put(&w, frame->key.router_incarnation, 8);
    put(&w, frame->key.request, 8);
    put(&w, frame->key.transfer.high, 8);
    put(&w, frame->key.transfer.low, 8);
    put(&w, frame->key.assignment, 8);
    body_encode(&w, frame);
    size_t bytes = (size_t)(w.at - out);
    assert(bytes <= KV_FRAME_BYTES_MAX);
    w.at = out + 6;
    put(&w, bytes, 2);
    uint32_t check = frame_check(out, bytes);
    w.at = out + CHECK_OFFSET;
    put(&w, check, 4);
    return bytes;
}

enum status kv_frame_decode(const uint8_t *bytes, size_t count, struct kv_frame *frame_out)
{
    struct reader r = {bytes, bytes + count, false};
    if (count < PREFIX_BYTES || count > KV_FRAME_BYTES_MAX || get(&r, 4) != KV_FRAME_MAGIC)
        return STATUS_PROTOCOL;
    unsigned version = (unsigned)get(&r, 2);
    if (version < WIRE_OLDEST || version > WIRE_NEWEST)
        return STATUS_MISMATCH;
    if (get(&r, 2) != count)
        return STATUS_PROTOCOL;
    unsigned type = (unsigned)get(&r, 2);
    if (get(&r, 2) != 0 || type == KV_FRAME_NONE || type >= KV_FRAME_TYPE_COUNT)
        return STATUS_PROTOCOL;
    if (get(&r, 4) != frame_check(bytes, count))
        return STATUS_PROTOCOL;
    frame_out->type = (enum kv_frame_type)type;
    frame_out->version = (uint16_t)version;
    frame_out->from_incarnation = get(&r, 8);
    frame_out->to_incarnation = get(&r, 8);
    frame_out->epoch = (uint32_t)get(&r, 4);
    frame_out->key.router_incarnation = get(&r, 8);
    frame_out->key.request = get(&r, 8);
    frame_out->key.transfer.high = get(&r, 8);
    frame_out->key.transfer.low = get(&r, 8);
    frame_out->key.assignment = get(&r, 8);
    body_decode(&r, frame_out);
    return r.failed || r.at != r.end ? STATUS_PROTOCOL : STATUS_OK;
}
