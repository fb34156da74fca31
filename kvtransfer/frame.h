/* The frames of the KV hand-off, and nothing else: encoding and decoding, explicit little-endian, every length checked
 * against the bytes that are there. Pure.
 *
 *      0      4    6        8     10       12      16
 *      ├──────┼────┼────────┼─────┼────────┼───────┼──────────────────────────────┬───────────┐
 *      │"BTKV"│vers│ header │type │ 0      │ check │ tuple: who, to whom, what for│ body      │
 *      └──────┴────┴────────┴─────┴────────┴───────┴──────────────────────────────┴───────────┘
 *      header: bytes of everything, tuple and body included.  check: low half of XXH3 over
 *      what follows it, seeded with XXH3 of what precedes it.
 *
 * Anything but the current tuple is dropped and counted by the receiver (link.c, source.c, sink.c). Versions that this program
 * does not speak are MISMATCH, everything else wrong is PROTOCOL; neither is an error of this node. All versions that it speaks
 * (base/wire_version.h) are read; which one a link writes, and takes, was told with the link. */
#ifndef BATON_KVTRANSFER_FRAME_H
#define BATON_KVTRANSFER_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/wire_version.h"

enum {
    KV_FRAME_MAGIC = 0x564b5442, /* "BTKV" */
    KV_FRAME_BYTES_MAX = 4096,
    KV_PULL_BLOCKS_MAX = 512, /* block indices in one PULL */
    KV_LOGPROBS_MAX = 64,     /* alternatives beside a first token */
    KV_GROUPS_MAX = 4,        /* KV groups of a model */
};

/*      name      metric label */
#define KV_FRAME_TABLE(X)                                                                          \
    X(HELLO, "hello")       /* either way: the endpoint works, under this epoch */                 \
    X(PULL, "pull")         /* D to P: send these pieces; may come again, for the same ones too */ \
    X(PROGRESS, "progress") /* P to D, at once and every 500 ms */                                 \
    X(PIECE, "piece")       /* P to D: the header of a piece */                                    \
    X(FIRST, "first")       /* P to D, after the last piece: the token that P sampled */           \
    X(DONE, "done")         /* D to P: the only receipt; or that D gave up */                      \
    X(GONE, "gone")         /* P to D: nothing will come */

enum kv_frame_type {
    KV_FRAME_NONE,
#define X(name, label) KV_FRAME_##name,
    KV_FRAME_TABLE(X)
#undef X
        KV_FRAME_TYPE_COUNT
};
const char *kv_frame_label(enum kv_frame_type type);

/* The random 128-bit number of one attempt at a request. */
struct kv_id {
    uint64_t high, low;
};

/* Names a transfer: the same on both sides. */
struct kv_key {
    uint64_t router_incarnation;
    uint64_t request; /* the router's own key */
    struct kv_id transfer;
    uint64_t assignment; /* the number of P's assignment, from 1, per router incarnation */
};

static inline bool kv_id_equal(struct kv_id a, struct kv_id b)
{
    return a.high == b.high && a.low == b.low;
}

static inline bool kv_key_equal(const struct kv_key *a, const struct kv_key *b)
{
    return a->router_incarnation == b->router_incarnation && a->request == b->request &&
           kv_id_equal(a->transfer, b->transfer) && a->assignment == b->assignment;
}

/* One page x one run of layers of one KV group. `block` counts the sequence's pages of that group from 0. */
struct kv_piece {
    uint32_t block;
    uint16_t group, run;
};

enum kv_progress_state {
    KV_PROGRESS_QUEUED,    /* the prompt waits */
    KV_PROGRESS_COMPUTING, /* pieces may come already */
    KV_PROGRESS_SENDING,   /* the prompt is computed */
    KV_PROGRESS_STATE_COUNT
};

/* On the wire, so the numbers stay. */
enum kv_gone_reason {
    KV_GONE_UNKNOWN = 0, /* not live: ended long ago, never heard of, or not within the second */
    KV_GONE_LEASE = 1,
    KV_GONE_DROPPED = 2, /* its pages went to an older request */
    KV_GONE_CANCELLED = 3,
    KV_GONE_LINK = 4,
    KV_GONE_REFUSED = 5, /* the PULL asks for what this transfer or this version does not have */
    KV_GONE_FAILED = 6,
    KV_GONE_CHECKSUM = 7, /* P's own bytes fail their checksum; since version 2, FAILED before */
    KV_GONE_REASON_COUNT
};

enum kv_outcome { KV_OUTCOME_RECEIVED, KV_OUTCOME_GAVE_UP, KV_OUTCOME_COUNT };

/* Why D gave up: on the wire since version 2, where it is what nothing else says. */
enum kv_gave_up {
    KV_GAVE_UP_UNSAID = 0,
    KV_GAVE_UP_CANCELLED = 1, /* its owner's will */
    KV_GAVE_UP_SILENCE =
        2, /* too long without a frame, or without a piece: the link may be broken one way */
    KV_GAVE_UP_CHECKSUM = 3, /* too many pieces came damaged */
    KV_GAVE_UP_DEADLINE = 4,
    KV_GAVE_UP_COUNT
};

struct kv_logprob {
    uint32_t token_id;
    float logprob;
};

/* The token that P sampled, as the router got it too. */
struct kv_first {
    uint32_t position; /* in the answer, from 0 */
    uint32_t token_id;
    float logprob;
    uint32_t top_count; /* of `top`; at most KV_LOGPROBS_MAX */
    struct kv_logprob top[KV_LOGPROBS_MAX];
};

struct kv_pull {
    uint16_t group;
    uint16_t run_begin, run_count;   /* count >= 1 unless block_count is 0 */
    uint16_t head_begin, head_count; /* KV heads; anything but all is answered with GONE */
    uint32_t block_count;            /* 0: only PROGRESS and FIRST are wanted */
    uint32_t blocks[KV_PULL_BLOCKS_MAX];
};

struct kv_frame {
    enum kv_frame_type type;
    uint16_t version; /* WIRE_OLDEST to WIRE_NEWEST */
    /* tuple */
    uint64_t from_incarnation, to_incarnation; /* of the nodes */
    uint32_t epoch;                            /* of the link between them */
    struct kv_key key;                         /* zero in HELLO */
    union {
        struct {
            bool reply_wanted;
        } hello;
        struct kv_pull pull;
        struct {
            uint8_t state; /* enum kv_progress_state */
            uint32_t pages_sealed;
            uint32_t pieces_pending; /* asked for and not sent completely */
        } progress;
        struct {
            struct kv_piece piece;
            uint64_t checksum; /* XXH3 of the payload, sealed by who computed it */
            uint64_t bytes;    /* of the payload */
        } piece;
        struct kv_first first;
        struct {
            uint8_t outcome; /* enum kv_outcome */
            uint8_t why;     /* enum kv_gave_up; UNSAID in version 1 */
        } done;
        struct {
            uint8_t reason; /* enum kv_gone_reason */
        } gone;
    };
};

/* Writes the frame in its version, leaving out what that version lacks; `out` holds KV_FRAME_BYTES_MAX. Counts beyond their
 * maxima are our own bug. */
size_t kv_frame_encode(const struct kv_frame *frame, uint8_t *out);
/* Fills what the type needs. MISMATCH: a version that this program does not speak; PROTOCOL: malformed. */
enum status kv_frame_decode(const uint8_t *bytes, size_t count, struct kv_frame *frame_out);

/* XXH3, 64 bits, seed 0: the checksum of a piece. */
uint64_t kv_checksum(const void *data, size_t bytes);

#endif
