/* P's side of the hand-off: it answers PULLs from its own table of transfers, with each piece as soon as that is ready.
 * It allocates nothing to serve, never takes a page number from a peer, and never closes an endpoint for one transfer.
 *
 *     FREE ──open──▶ QUEUED ──started──▶ COMPUTING ──computed──▶ READY
 *                      │  └──────────────computed─────────────▶  │
 *                      └────────────────┬──┴─────────────────────┘
 *                                       │ DONE · end (cancel, dropped) · lease over · link's end
 *                                       ▼
 *                                    DRAINING ── operations outstanding = 0 ──▶ released, FREE
 *
 * Who ends a parked state: QUEUED and COMPUTING the owner (work dies with the router's stream); READY the lease, 8 s after the last
 * PULL, completed piece or renewal; DRAINING the transport's callbacks (4 s of stall force the endpoint, see link.h).
 *
 * A piece is sent when it is ready and asked for and not in flight; up to the link's window at once, the transfers of a
 * peer in turn. Asking again sends again, but first looks whether the bytes are still what was sealed: if they are not, no
 * sending helps, and the transfer ends with GONE{CHECKSUM}. FIRST follows when nothing asked for is unsent, and again after each later PULL.
 *
 *     PULL's assignment > the highest seen     parked, 1 s at most, then GONE
 *                       <= and not live        GONE at once
 *
 * Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_SOURCE_H
#define BATON_KVTRANSFER_SOURCE_H

#include "kvtransfer/link.h"

struct kv_source;

/* What a transfer consists of. A piece is (group, block < blocks, run < runs). */
struct kv_group_shape {
    uint32_t blocks; /* pages of the sequence */
    uint16_t runs;   /* runs of layers a page is cut into */
    uint16_t heads;  /* KV heads */
};
struct kv_shape {
    uint32_t group_count; /* 1 to KV_GROUPS_MAX */
    struct kv_group_shape groups[KV_GROUPS_MAX];
};

struct kv_source_options {
    unsigned transfers_max; /* 0: 256 */
    unsigned pieces_max;    /* of one transfer; 0: 4096 */
    unsigned parked_max; /* PULLs waiting for their assignment, over all peers; 0: 4 x the links */
    unsigned parked_peer_max;   /* of one peer; 0: 256 */
    uint64_t park_ns;           /* 0: 1 s */
    uint64_t lease_ns;          /* 0: 8 s */
    uint64_t progress_ns;       /* between two PROGRESS; 0: 500 ms */
    unsigned send_failures_max; /* of one transfer's pieces, then it ends with GONE; 0: 8 */
};

struct kv_source_events {
    void *context;
    /* The transfer ended by itself: OK (D has everything), CANCELLED (D gave up), TIMEOUT (lease), CLOSED (link),
     * IO (sending fails again and again), CHECKSUM (its own bytes are not what was sealed).
     * `released` follows. Not called after kv_source_end. */
    void (*ended)(void *context, void *user, enum status status);
    /* Nothing is outstanding: the pages may be freed. Exactly once per opened transfer. */
    void (*released)(void *context, void *user);
    /* This piece is not what was sealed: its memory must not serve anybody. `ended` with CHECKSUM follows. May be NULL. */
    void (*damaged)(void *context, void *user, struct kv_piece piece);
    /* Both NULL, or for pieces that lie in memory the transport cannot read: `stage` gives bytes to send, or NULL when no
     * staging buffer is free (asked again later); `unstage` when the operation ended. */
    const void *(*stage)(void *context, void *user, struct kv_piece piece, const void *data,
                         size_t bytes);
    void (*unstage)(void *context, void *user, struct kv_piece piece, const void *staged);
};

enum status kv_source_create(struct kv_links *links, const struct kv_source_options *options,
                             const struct kv_source_events *events, struct kv_source **source_out,
                             struct err *err);
void kv_source_destroy(struct kv_source *source); /* after kv_links_destroy */

/* An assignment arrived: from now on it is live, and a parked PULL is answered. *transfer_out names it until `released`
 * (names are never used twice). `shape` says all pieces there will be. The mark rises by this or by kv_source_seen.
 * FULL: transfers_max; INVALID: the shape exceeds pieces_max; IN_USE: this transfer id is live. */
enum status kv_source_open(struct kv_source *source, const struct kv_key *key,
                           const struct kv_shape *shape, void *user, uint64_t *transfer_out);
/* An assignment arrived that this node refused, or that needs no transfer: counts for the mark. */
void kv_source_seen(struct kv_source *source, uint64_t router_incarnation, uint64_t assignment);

/* The prompt's first chunk was submitted. */
enum status kv_source_started(struct kv_source *source, uint64_t transfer);

struct kv_ready_piece {
    struct kv_piece piece;
    const void *data; /* stays as it is until `released` */
    size_t bytes;
    uint64_t checksum; /* XXH3 of the bytes, sealed with the page */
};
/* Any order; once per piece. INVALID: outside the shape or said before; NOT_FOUND: the transfer has ended. */
enum status kv_source_piece_ready(struct kv_source *source, uint64_t transfer,
                                  const struct kv_ready_piece *ready);
/* Whether it was said to be ready; false also when the transfer has ended. */
bool kv_source_piece_known(const struct kv_source *source, uint64_t transfer,
                           struct kv_piece piece);
/* All pieces are ready: the lease begins, D is told at once. INVALID when pieces are missing. */
enum status kv_source_computed(struct kv_source *source, uint64_t transfer);
/* The sampled token, copied. */
enum status kv_source_first(struct kv_source *source, uint64_t transfer,
                            const struct kv_first *first);
/* The router looks for (another) D: the lease begins again. NOT_FOUND: not live. */
enum status kv_source_renew(struct kv_source *source, const struct kv_key *key);
/* Ends it by the owner's will; D gets GONE with what is nearest to `why`. `released` follows. */
enum status kv_source_end(struct kv_source *source, uint64_t transfer, enum status why);
/* The live transfer of this id. NOT_FOUND: none. */
enum status kv_source_find(struct kv_source *source, struct kv_id id, uint64_t *transfer_out);
/* All is computed, and pieces that D asked for have not left. */
bool kv_source_sending(const struct kv_source *source, uint64_t transfer);

/* Live and draining transfers; pieces in flight. For gauges and tests of leaks. */
unsigned kv_source_live(const struct kv_source *source);
unsigned kv_source_draining(const struct kv_source *source);

#endif
