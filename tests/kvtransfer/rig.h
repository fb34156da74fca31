/* What the tests of kvtransfer stand on: a node (links, source, sink over any transport), the giving side of a transfer and
 * the taking side, with bytes that are a function of the transfer's id, so that both sides know them. Every callback is
 * counted, and memory that was released is poisoned, so that a late write shows.
 *
 * Owner: the test's thread; kv_peer.c uses it in a process of its own. */
#ifndef BATON_TESTS_KVTRANSFER_RIG_H
#define BATON_TESTS_KVTRANSFER_RIG_H

#include "kvtransfer/memory.h"
#include "kvtransfer/sink.h"
#include "kvtransfer/xfer_fault.h"

struct rig_node {
    uint64_t incarnation, now_ns, late_ns;
    uint32_t wire; /* version of the frames on links that it opens */
    struct kv_links *links;
    struct kv_source *source;
    struct kv_sink *sink;
    struct xfer *xfer;
    unsigned changes[KV_LINK_STATE_COUNT]; /* link_changed, by state */
    struct faults *faults;                 /* NULL: none; the caller's */
    void *flipped[256];                    /* bytes that a fault hit and nobody has verified yet */
    unsigned flipped_count;
    uint64_t hit_in_flight, hit_at_rest; /* pieces verified whose bytes were wrong, and by what */
    uint64_t hit_too_late;               /* of transfers that were over: nobody looks at them */
};

struct rig_options {
    struct kv_links_options links;
    struct kv_source_options source;
    struct kv_sink_options sink;
    uint32_t wire;         /* 0: the newest */
    struct faults *faults; /* what goes wrong at this node; NULL: nothing */
};

/* Over `hub`, or over UCX with `ucx` (one of them NULL). Aborts on failure. */
void rig_node_start(struct rig_node *node, struct xfer_hub *hub, const struct xfer_options *ucx,
                    const struct rig_options *options, uint64_t incarnation);
void rig_node_stop(struct rig_node *node);
/* One round at this time. */
void rig_node_round(struct rig_node *node, uint64_t now_ns);
struct kv_link *rig_link(struct rig_node *from, struct rig_node *to); /* opens */

enum { RIG_ROUTER = 77 };
struct kv_key rig_key(uint64_t id, uint64_t assignment);
struct kv_shape rig_shape(uint32_t blocks, uint16_t runs);
/* The bytes of transfer `id` from `offset` on, a multiple of 8. */
void rig_fill(uint64_t id, size_t offset, uint8_t *out, size_t bytes);

/* P's side. */
struct rig_give {
    struct rig_node *node;
    struct kv_key key;
    struct kv_shape shape;
    size_t piece_bytes;
    uint32_t piece_count;
    uint8_t *data;
    uint64_t transfer;
    enum status opened;
    unsigned ended, released, damaged;
    enum status status;
};
/* Opens; opened says how that went. */
void rig_give_start(struct rig_give *give, struct rig_node *node, struct kv_key key,
                    struct kv_shape shape, size_t piece_bytes);
enum status rig_give_ready(struct rig_give *give, uint32_t index); /* 0 to piece_count */
void rig_give_computed(struct rig_give *give, uint32_t token_id);  /* computed and FIRST */
void rig_give_all(struct rig_give *give, uint32_t token_id);
void rig_give_finish(struct rig_give *give);

/* D's side. */
struct rig_take {
    struct rig_node *node;
    struct kv_key key;
    struct kv_shape shape;
    size_t piece_bytes;
    uint32_t piece_count;
    uint8_t *memory;
    bool (*wanted)(struct kv_piece piece); /* NULL: all */
    bool verify_later;                     /* by the test */
    uint64_t transfer;
    enum status begun;
    unsigned received, ended, released, mismatches;
    enum status status;
    unsigned pieces_missing;
    bool first_known;
    uint32_t token_id;
    struct kv_piece last;
    uint64_t last_checksum;
};
void rig_take_start(struct rig_take *take, struct rig_node *node, struct kv_link *link,
                    struct kv_key key, struct kv_shape shape, size_t piece_bytes);
/* The bytes are the ones that the giver has. */
bool rig_take_equal(const struct rig_take *take);
/* Nothing was written since `released`. */
bool rig_take_untouched(const struct rig_take *take);
void rig_take_finish(struct rig_take *take);

uint32_t rig_piece_index(const struct kv_shape *shape, struct kv_piece piece);
struct kv_piece rig_piece(const struct kv_shape *shape, uint32_t index);

#endif
