/* Any bytes as KV frames. First as they are: what is decoded must encode to the same bytes. Then as frames from a peer with a
 * bug: length, check and tuple are made right, so that the body reaches source and sink of a node in mid-transfer, as a frame
 * and as the header of a piece. The input is a row of {2 bytes of length, frame}. */
#include "kvtransfer/memory.h"
#include "kvtransfer/sink.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCKS = 6, RUNS = 3, PIECE_BYTES = 8, HEADER_BYTES = 16, TUPLE_BYTES = 60, SENT_MAX = 64 };

static const struct kv_key key = {7, 8, {9, 10}, 11};
static const struct kv_shape shape = {1, {{BLOCKS, RUNS, 3}}};

struct side {
    struct kv_links *links;
    struct kv_source *source;
    struct kv_sink *sink;
    struct kv_link *link;
    struct xfer *xfer;
    unsigned given, taken;
    uint8_t memory[BLOCKS * RUNS * PIECE_BYTES];
};

static void on_given_ended(void *context, void *user, enum status status)
{
}
static void on_given(void *context, void *user)
{
    ((struct side *)context)->given++;
}
static void *on_memory(void *context, void *user, struct kv_piece piece, size_t *bytes_out)
{
    assert(piece.group == 0 && piece.block < BLOCKS && piece.run < RUNS);
    *bytes_out = PIECE_BYTES;
    return ((struct side *)context)->memory + (piece.block * RUNS + piece.run) * PIECE_BYTES;
}
static void on_piece(void *context, void *user, uint64_t transfer, struct kv_piece piece,
                     void *memory, size_t bytes, uint64_t checksum)
{
    struct side *side = context;
    kv_sink_piece_verified(side->sink, transfer, piece, kv_checksum(memory, bytes) == checksum);
}
static void on_taken_ended(void *context, void *user, const struct kv_sink_result *result)
{
    assert(result->status != STATUS_OK || result->pieces_missing == 0);
}
static void on_taken(void *context, void *user)
{
    ((struct side *)context)->taken++;
}

static void side_start(struct side *side, struct xfer_hub *hub, uint64_t incarnation)
{
    const struct kv_links_options options = {.links_max = 2};
    const struct kv_source_options source_options = {
        .transfers_max = 2, .pieces_max = BLOCKS * RUNS, .parked_max = 4};
    const struct kv_sink_options sink_options = {.transfers_max = 2, .pieces_max = BLOCKS * RUNS};
    const struct kv_source_events source_events = {
        .context = side, .ended = on_given_ended, .released = on_given};
    const struct kv_sink_events sink_events = {side, on_memory, on_piece, on_taken_ended, on_taken};
    memset(side, 0, sizeof *side);
    enum status status = kv_links_create(&options, NULL, incarnation, &side->links, NULL);
    struct xfer_handler handler = kv_links_handler(side->links);
    status = status ? status : xfer_memory_create(hub, NULL, &handler, &side->xfer, NULL);
    kv_links_start(side->links, side->xfer);
    kv_links_set_router(side->links, key.router_incarnation);
    status = status ? status
                    : kv_source_create(side->links, &source_options, &source_events, &side->source,
                                       NULL);
    status = status ? status
                    : kv_sink_create(side->links, &sink_options, &sink_events, &side->sink, NULL);
    assert(status == STATUS_OK);
}

static void side_stop(struct side *side)
{
    kv_links_destroy(side->links);
    kv_source_destroy(side->source);
    kv_sink_destroy(side->sink);
}

static void link_start(struct side *from, struct side *to)
{
    struct kv_link_options options = {.incarnation = kv_links_incarnation(to->links),
                                      .wire = WIRE_NEWEST};
    options.address = xfer_address(to->xfer, &options.address_bytes);
    enum status status = kv_link_open(from->links, &options, &from->link, NULL);
    assert(status == STATUS_OK);
}

/* Length, check, sender, receiver and epoch as this link has them; in most frames the key too. */
static size_t repair(const uint8_t *data, size_t bytes, uint8_t *out)
{
    if (bytes < HEADER_BYTES + TUPLE_BYTES || bytes > KV_FRAME_BYTES_MAX)
        return 0;
    memcpy(out, data, bytes);
    struct kv_frame done = {.type = KV_FRAME_DONE,
                            .version = WIRE_NEWEST,
                            .from_incarnation = 100,
                            .to_incarnation = 200};
    uint8_t good[KV_FRAME_BYTES_MAX];
    done.epoch = 1;
    done.key = key;
    kv_frame_encode(&done, good);
    memcpy(out, good, 8);
    out[6] = (uint8_t)bytes;
    out[7] = (uint8_t)(bytes >> 8);
    out[9] = out[10] = out[11] = 0;
    size_t copied = data[HEADER_BYTES] & 7 ? TUPLE_BYTES : 20;
    memcpy(out + HEADER_BYTES, good + HEADER_BYTES, copied);
    uint32_t check = (uint32_t)XXH3_64bits_withSeed(out + HEADER_BYTES, bytes - HEADER_BYTES,
                                                    XXH3_64bits(out, 12));
    for (int i = 0; i < 4; i++)
        out[12 + i] = (uint8_t)(check >> (8 * i));
    return bytes;
}

static void canonical(const uint8_t *data, size_t bytes)
{
    struct kv_frame frame;
    if (kv_frame_decode(data, bytes, &frame))
        return;
    uint8_t again[KV_FRAME_BYTES_MAX];
    size_t count = kv_frame_encode(&frame, again);
    assert(count == bytes && memcmp(again, data, bytes) == 0);
}

static void op_done(struct xfer_op *op, enum status status)
{
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct side peer, node;
    static struct xfer_op ops[SENT_MAX];
    static const uint8_t payload[PIECE_BYTES] = "payload";
    canonical(data, bytes);
    struct xfer_hub *hub;
    enum status status = xfer_hub_create(1, 2, &hub, NULL);
    assert(status == STATUS_OK);
    xfer_hub_set_automatic(hub, true);
    side_start(&peer, hub, 100);
    side_start(&node, hub, 200);
    uint64_t now_ns = NS_PER_S;
    link_start(&peer, &node);
    link_start(&node, &peer);
    for (int i = 0; i < 6; i++, now_ns += 5 * NS_PER_MS) {
        kv_links_progress(peer.links, now_ns, 0);
        kv_links_progress(node.links, now_ns, 0);
    }
    uint64_t given, taken;
    status = kv_source_open(node.source, &key, &shape, NULL, &given);
    assert(status == STATUS_OK);
    for (uint32_t i = 0; i < BLOCKS * RUNS / 2; i++) {
        const struct kv_ready_piece ready = {
            {i / RUNS, 0, (uint16_t)(i % RUNS)}, payload, PIECE_BYTES, 1};
        kv_source_piece_ready(node.source, given, &ready);
    }
    const struct kv_sink_begin begin = {
        .key = key, .link = node.link, .shape = shape, .deadline_ns = DEADLINE_NONE};
    status = kv_sink_begin(node.sink, &begin, &taken);
    assert(status == STATUS_OK);

    struct xfer_peer *raw;
    size_t address_bytes;
    const uint8_t *address = xfer_address(node.xfer, &address_bytes);
    uint32_t number = 1;
    status = xfer_peer_open(peer.xfer, address, address_bytes, &number, NULL, &raw, NULL);
    assert(status == STATUS_OK);
    unsigned sent = 0;
    for (size_t at = 0; at + 2 <= bytes && sent < SENT_MAX;) {
        size_t length = data[at] | (size_t)data[at + 1] << 8;
        at += 2;
        if (length > bytes - at)
            length = bytes - at;
        uint8_t frame[KV_FRAME_BYTES_MAX];
        size_t count = repair(data + at, length, frame);
        at += length;
        if (count) {
            canonical(frame, count);
            xfer_send_frame(raw, frame, count);
            ops[sent].done = op_done;
            if (count <= XFER_PIECE_HEADER_BYTES_MAX)
                xfer_send_piece(raw, frame, count, payload, PIECE_BYTES, &ops[sent]);
            sent++;
        }
        now_ns += 50 * NS_PER_MS;
        kv_links_progress(node.links, now_ns, 0);
        kv_links_progress(peer.links, now_ns, 0);
    }
    side_stop(&node);
    side_stop(&peer);
    assert(node.given == 1 && node.taken == 1);
    xfer_hub_destroy(hub);
    return 0;
}
