/* D's side of the hand-off: it asks for pieces, takes only those that it asked for into memory that its owner chose, and
 * says DONE when every one is verified and the first token is known.
 *
 *     FREE ──begin──▶ ASKING ──PROGRESS, piece──▶ RECEIVING ──all verified, FIRST──▶ CONFIRMING ──DONE sent──▶ ENDING
 *                        │                            │                                 │                       │
 *                        └────────────────────────────┴── gave up · GONE · link · end ──┴──────────────────────▶│
 *                                                                              receives outstanding = 0:  released, FREE
 *
 *     piece:  NONE (not wanted) · WANTED ──▶ RECEIVING ──▶ RECEIVED ──▶ VERIFIED      (a mismatch or failed receive: WANTED)
 *
 * Who ends a parked state: ASKING and RECEIVING by 2 s without any frame of this transfer, by 2 s + 4 x the window's estimated time
 * (7 s at most) without a piece once P is sending, or by the request's deadline; CONFIRMING by a free frame slot;
 * ENDING by the receives' callbacks (4 s of stall force the endpoint, see link.h). After 750 ms of silence, and when P
 * says it has sent everything, what is missing is asked for again: a lost frame costs time, not the transfer.
 *
 * Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_SINK_H
#define BATON_KVTRANSFER_SINK_H

#include "kvtransfer/source.h"

struct kv_sink;

struct kv_sink_options {
    unsigned transfers_max; /* 0: 256 */
    unsigned pieces_max;    /* of one transfer; 0: 4096 */
    unsigned repulls_max;   /* mismatches of one transfer before it fails with CHECKSUM; 0: 4 */
    uint64_t silence_ns;    /* without any frame; 0: 2 s */
    uint64_t piece_ns;      /* without a piece, before the window's time is added; 0: 2 s */
    uint64_t piece_cap_ns;  /* and at most; below P's lease; 0: 7 s */
    uint64_t repull_ns;     /* of silence before asking again; 0: 750 ms */
};

struct kv_sink_result {
    enum status
        status; /* OK: complete. GONE and what P named, TIMEOUT, CLOSED, CHECKSUM, DEADLINE */
    const struct kv_first *first; /* NULL: not known; valid during the call */
    unsigned
        pieces_missing; /* not verified; 0 with another status than OK: only the token is missing */
};

struct kv_sink_events {
    void *context;
    /* Where this piece goes, and how large it is; NULL: it is not wanted (D has it already). Asked at begin for every piece of the
     * shape, and once more when the piece comes; the answer must be the same until `released`. */
    void *(*piece_memory)(void *context, void *user, struct kv_piece piece, size_t *bytes_out);
    /* The bytes are there and unverified: compare kv_checksum with `checksum` (later, on another thread, or here), then
     * call kv_sink_piece_verified. Not called after the end. */
    void (*piece_received)(void *context, void *user, uint64_t transfer, struct kv_piece piece,
                           void *memory, size_t bytes, uint64_t checksum);
    /* It ended by itself, complete or not. `released` follows. Not called after kv_sink_end. */
    void (*ended)(void *context, void *user, const struct kv_sink_result *result);
    /* No receive is outstanding: the memory is the owner's again. Exactly once per transfer. */
    void (*released)(void *context, void *user);
};

enum status kv_sink_create(struct kv_links *links, const struct kv_sink_options *options,
                           const struct kv_sink_events *events, struct kv_sink **sink_out,
                           struct err *err);
void kv_sink_destroy(struct kv_sink *sink); /* after kv_links_destroy */

struct kv_sink_begin {
    struct kv_key key;     /* its assignment number is P's (Assign.source_number) */
    struct kv_link *link;  /* to P */
    struct kv_shape shape; /* as P opened it: blocks of the whole prompt */
    uint64_t deadline_ns;  /* the request's own; DEADLINE_NONE */
    void *user;
};
/* Asks for every piece that has memory. *transfer_out names it until `released` (names are never used twice).
 * FULL: transfers_max; INVALID: the shape exceeds pieces_max; CLOSED: the link is not usable; IN_USE: this id is live. */
enum status kv_sink_begin(struct kv_sink *sink, const struct kv_sink_begin *begin,
                          uint64_t *transfer_out);
/* The owner compared the checksums. False: counted, asked for again. NOT_FOUND: the transfer has ended meanwhile, or the
 * piece does not wait for this. */
enum status kv_sink_piece_verified(struct kv_sink *sink, uint64_t transfer, struct kv_piece piece,
                                   bool ok);
/* The router sent the first token too (FirstToken): whichever comes first counts, a difference is counted. */
enum status kv_sink_first(struct kv_sink *sink, uint64_t transfer, const struct kv_first *first);
/* Ends it by the owner's will (cancel, dropped): P is told, `released` follows. */
enum status kv_sink_end(struct kv_sink *sink, uint64_t transfer);
enum status kv_sink_find(struct kv_sink *sink, struct kv_id id, uint64_t *transfer_out);
/* True when every piece of this block was wanted and is verified. */
bool kv_sink_block_verified(const struct kv_sink *sink, uint64_t transfer, uint16_t group,
                            uint32_t block);
/* P has said that all is computed: what is still missing is the link's. */
bool kv_sink_computed(const struct kv_sink *sink, uint64_t transfer);

/* Live and ending transfers. */
unsigned kv_sink_live(const struct kv_sink *sink);
unsigned kv_sink_ending(const struct kv_sink *sink);

#endif
