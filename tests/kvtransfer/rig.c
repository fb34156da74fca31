/* See rig.h. */
#include "tests/kvtransfer/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xdb };

static void must(enum status status, const struct err *err)
{
    if (!status)
        return;
    fprintf(stderr, "rig: %s\n", err->message);
    abort();
}

/* --- pieces --- */

uint32_t rig_piece_index(const struct kv_shape *shape, struct kv_piece piece)
{
    uint32_t base = 0;
    for (uint16_t i = 0; i < piece.group; i++)
        base += shape->groups[i].blocks * shape->groups[i].runs;
    return base + piece.block * shape->groups[piece.group].runs + piece.run;
}

struct kv_piece rig_piece(const struct kv_shape *shape, uint32_t index)
{
    struct kv_piece piece = {0};
    for (uint16_t i = 0;; i++) {
        uint32_t count = shape->groups[i].blocks * shape->groups[i].runs;
        piece.group = i;
        if (index < count)
            break;
        index -= count;
    }
    piece.block = index / shape->groups[piece.group].runs;
    piece.run = (uint16_t)(index % shape->groups[piece.group].runs);
    return piece;
}

static uint32_t piece_count(const struct kv_shape *shape)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < shape->group_count; i++)
        count += shape->groups[i].blocks * shape->groups[i].runs;
    return count;
}

void rig_fill(uint64_t id, size_t offset, uint8_t *out, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t z = (id * UINT64_C(0x9e3779b97f4a7c15)) ^ ((offset + i) / 8);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z ^= z >> 27;
        memcpy(out + i, &z, bytes - i < 8 ? bytes - i : 8);
    }
}

struct kv_key rig_key(uint64_t id, uint64_t assignment)
{
    return (struct kv_key){.router_incarnation = RIG_ROUTER,
                           .request = id * 3,
                           .transfer = {id * 5, id},
                           .assignment = assignment};
}

struct kv_shape rig_shape(uint32_t blocks, uint16_t runs)
{
    return (struct kv_shape){.group_count = 1, .groups = {{blocks, runs, 3}}};
}

/* --- callbacks --- */

static void on_link_changed(void *context, struct kv_link *link, enum kv_link_state state,
                            enum status why)
{
    (void)link;
    (void)why;
    ((struct rig_node *)context)->changes[state]++;
}

static void on_give_ended(void *context, void *user, enum status status)
{
    (void)context;
    struct rig_give *give = user;
    give->ended++;
    give->status = status;
    if (give->released)
        abort(); /* ended comes first */
}

static void on_damaged(void *context, void *user, struct kv_piece piece)
{
    (void)context;
    (void)piece;
    ((struct rig_give *)user)->damaged++;
}

static void on_give_released(void *context, void *user)
{
    (void)context;
    struct rig_give *give = user;
    give->released++;
    if (give->data)
        memset(give->data, POISON, give->piece_count * give->piece_bytes);
}

static void *on_piece_memory(void *context, void *user, struct kv_piece piece, size_t *bytes_out)
{
    (void)context;
    struct rig_take *take = user;
    if (take->wanted && !take->wanted(piece))
        return NULL;
    *bytes_out = take->piece_bytes;
    return take->memory + rig_piece_index(&take->shape, piece) * take->piece_bytes;
}

static void on_flipped(void *context, void *memory)
{
    struct rig_node *node = context;
    if (node->flipped_count == sizeof node->flipped / sizeof node->flipped[0])
        abort();
    node->flipped[node->flipped_count++] = memory;
}

static bool flip_forget(struct rig_node *node, const void *memory)
{
    for (unsigned i = 0; i < node->flipped_count; i++)
        if (node->flipped[i] == memory) {
            node->flipped[i] = node->flipped[--node->flipped_count];
            return true;
        }
    return false;
}

static void on_piece_received(void *context, void *user, uint64_t transfer, struct kv_piece piece,
                              void *memory, size_t bytes, uint64_t checksum)
{
    struct rig_node *node = context;
    struct rig_take *take = user;
    if (take->released || take->ended)
        abort();
    take->received++;
    take->last = piece;
    take->last_checksum = checksum;
    if (take->verify_later)
        return;
    bool ok = kv_checksum(memory, bytes) == checksum;
    take->mismatches += !ok;
    bool hit = flip_forget(node, memory);
    if (node->faults) { /* what the bytes really are, whatever the checksum says */
        uint8_t *truth = malloc(bytes);
        rig_fill(take->key.transfer.low, rig_piece_index(&take->shape, piece) * bytes, truth,
                 bytes);
        bool wrong = memcmp(truth, memory, bytes) != 0;
        free(truth);
        if (wrong == ok) /* served wrong, or refused right */
            abort();
        node->hit_in_flight += wrong && hit;
        node->hit_at_rest += wrong && !hit;
    }
    kv_sink_piece_verified(node->sink, transfer, piece, ok);
}

static void on_take_ended(void *context, void *user, const struct kv_sink_result *result)
{
    (void)context;
    struct rig_take *take = user;
    take->ended++;
    take->status = result->status;
    take->pieces_missing = result->pieces_missing;
    take->first_known = result->first != NULL;
    take->token_id = result->first ? result->first->token_id : 0;
    if (take->released)
        abort();
}

/* A complete take keeps its bytes for rig_take_equal; any other is poisoned. */
static void on_take_released(void *context, void *user)
{
    struct rig_node *node = context;
    struct rig_take *take = user;
    for (uint32_t i = 0; i < take->piece_count; i++)
        node->hit_too_late += flip_forget(node, take->memory + i * take->piece_bytes);
    take->released++;
    if (take->memory && !(take->ended && take->status == STATUS_OK))
        memset(take->memory, POISON, take->piece_count * take->piece_bytes);
}

/* --- node --- */

struct rig_transport {
    struct xfer_hub *hub;
    const struct xfer_options *ucx;
};

static enum status transport_make(void *context, const struct xfer_handler *handler,
                                  struct xfer **xfer_out, struct err *err)
{
    const struct rig_transport *of = context;
    return of->hub ? xfer_memory_create(of->hub, NULL, handler, xfer_out, err)
                   : xfer_ucx_create(of->ucx, handler, xfer_out, err);
}

static uint64_t rig_now(void *context)
{
    return ((struct rig_node *)context)->now_ns;
}

void rig_node_start(struct rig_node *node, struct xfer_hub *hub, const struct xfer_options *ucx,
                    const struct rig_options *options, uint64_t incarnation)
{
    static const struct rig_options none;
    if (!options)
        options = &none;
    struct err err = ERR_INIT;
    *node = (struct rig_node){.incarnation = incarnation,
                              .wire = options->wire ? options->wire : WIRE_NEWEST};
    const struct kv_links_events links_events = {node, on_link_changed};
    const struct kv_source_events source_events = {.context = node,
                                                   .ended = on_give_ended,
                                                   .released = on_give_released,
                                                   .damaged = on_damaged};
    const struct kv_sink_events sink_events = {node, on_piece_memory, on_piece_received,
                                               on_take_ended, on_take_released};
    must(kv_links_create(&options->links, &links_events, incarnation, &node->links, &err), &err);
    struct xfer_handler handler = kv_links_handler(node->links);
    struct rig_transport transport = {hub, ucx};
    const struct xfer_fault_options fault_options = {
        .now_ns = rig_now, .flipped = on_flipped, .context = node};
    node->faults = options->faults;
    must(options->faults ? xfer_fault_create(options->faults, &fault_options, transport_make,
                                             &transport, &handler, &node->xfer, &err)
                         : transport_make(&transport, &handler, &node->xfer, &err),
         &err);
    kv_links_start(node->links, node->xfer);
    kv_links_set_router(node->links, RIG_ROUTER);
    must(kv_source_create(node->links, &options->source, &source_events, &node->source, &err),
         &err);
    must(kv_sink_create(node->links, &options->sink, &sink_events, &node->sink, &err), &err);
}

void rig_node_stop(struct rig_node *node)
{
    kv_links_destroy(node->links);
    kv_source_destroy(node->source);
    kv_sink_destroy(node->sink);
    node->links = NULL;
}

void rig_node_round(struct rig_node *node, uint64_t now_ns)
{
    node->now_ns = now_ns;
    kv_links_progress(node->links, now_ns, node->late_ns);
}

struct kv_link *rig_link(struct rig_node *from, struct rig_node *to)
{
    struct err err = ERR_INIT;
    struct kv_link_options options = {.incarnation = to->incarnation, .wire = from->wire};
    options.address = xfer_address(to->xfer, &options.address_bytes);
    struct kv_link *link;
    must(kv_link_open(from->links, &options, &link, &err), &err);
    return link;
}

/* --- giving --- */

void rig_give_start(struct rig_give *give, struct rig_node *node, struct kv_key key,
                    struct kv_shape shape, size_t piece_bytes)
{
    *give = (struct rig_give){.node = node,
                              .key = key,
                              .shape = shape,
                              .piece_bytes = piece_bytes,
                              .piece_count = piece_count(&shape)};
    size_t bytes = give->piece_count * piece_bytes;
    give->data = malloc(bytes);
    rig_fill(key.transfer.low, 0, give->data, bytes);
    give->opened = kv_source_open(node->source, &key, &shape, give, &give->transfer);
}

enum status rig_give_ready(struct rig_give *give, uint32_t index)
{
    const uint8_t *data = give->data + index * give->piece_bytes;
    struct kv_ready_piece ready = {
        .piece = rig_piece(&give->shape, index),
        .data = data,
        .bytes = give->piece_bytes,
        .checksum = kv_checksum(data, give->piece_bytes),
    };
    kv_source_started(give->node->source, give->transfer);
    return kv_source_piece_ready(give->node->source, give->transfer, &ready);
}

void rig_give_computed(struct rig_give *give, uint32_t token_id)
{
    struct kv_first first = {.position = 0, .token_id = token_id, .logprob = -0.5f};
    kv_source_computed(give->node->source, give->transfer);
    kv_source_first(give->node->source, give->transfer, &first);
}

void rig_give_all(struct rig_give *give, uint32_t token_id)
{
    for (uint32_t i = 0; i < give->piece_count; i++)
        rig_give_ready(give, i);
    rig_give_computed(give, token_id);
}

void rig_give_finish(struct rig_give *give)
{
    free(give->data);
    give->data = NULL;
}

/* --- taking --- */

void rig_take_start(struct rig_take *take, struct rig_node *node, struct kv_link *link,
                    struct kv_key key, struct kv_shape shape, size_t piece_bytes)
{
    bool (*wanted)(struct kv_piece) = take->wanted;
    bool verify_later = take->verify_later;
    *take = (struct rig_take){.node = node,
                              .key = key,
                              .shape = shape,
                              .piece_bytes = piece_bytes,
                              .piece_count = piece_count(&shape),
                              .wanted = wanted,
                              .verify_later = verify_later};
    take->memory = calloc(take->piece_count, piece_bytes);
    struct kv_sink_begin begin = {
        .key = key, .link = link, .shape = shape, .deadline_ns = DEADLINE_NONE, .user = take};
    take->begun = kv_sink_begin(node->sink, &begin, &take->transfer);
}

bool rig_take_equal(const struct rig_take *take)
{
    uint8_t *expected = malloc(take->piece_bytes);
    bool equal = true;
    for (uint32_t i = 0; i < take->piece_count && equal; i++) {
        if (take->wanted && !take->wanted(rig_piece(&take->shape, i)))
            continue;
        rig_fill(take->key.transfer.low, i * take->piece_bytes, expected, take->piece_bytes);
        equal = memcmp(expected, take->memory + i * take->piece_bytes, take->piece_bytes) == 0;
    }
    free(expected);
    return equal;
}

bool rig_take_untouched(const struct rig_take *take)
{
    for (size_t i = 0; i < take->piece_count * take->piece_bytes; i++)
        if (take->memory[i] != POISON)
            return false;
    return true;
}

void rig_take_finish(struct rig_take *take)
{
    free(take->memory);
    take->memory = NULL;
}
