/* What link.c, source.c and sink.c share: the inside of a link, and how the two sides are called. Nobody else includes this.
 * Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_LINK_IMPL_H
#define BATON_KVTRANSFER_LINK_IMPL_H

#include "base/sm.h"
#include "kvtransfer/link.h"

/* One side (source or sink) as its links see it. */
struct kv_side {
    void *object;
    void (*frame)(void *object, struct kv_link *link, const struct kv_frame *frame);
    /* Sink only; NULL drops every piece. */
    void (*piece)(void *object, struct kv_link *link, const struct kv_frame *frame,
                  size_t payload_bytes, struct xfer_incoming *incoming);
    void (*link_ended)(void *object, struct kv_link *link, enum status status);
    void (*tick)(void *object);  /* deadlines */
    void (*flush)(void *object); /* sends, then tells the owner what ended */
    uint64_t (*next_ns)(const void *object);
    void (*end_all)(void *object); /* the worker is about to be destroyed */
};

enum { KV_SIDE_SOURCE, KV_SIDE_SINK, KV_SIDE_COUNT };

/* Bytes over the time in which at least one piece was in flight. */
struct kv_rate {
    unsigned active;
    uint64_t mark_ns, busy_ns, bytes, bytes_per_s;
};

struct kv_link {
    struct kv_links *links;
    uint8_t state; /* enum kv_link_state */
    uint8_t told;  /* the state that the owner knows */
    bool leaving;  /* FREE follows CLOSING */
    bool hello_reply_owed;
    bool called; /* the peer is the one that calls */
    enum status why;
    uint64_t incarnation;
    uint32_t epoch, epoch_wanted;
    uint16_t wire;          /* version of its frames */
    struct xfer_peer *peer; /* CONNECTING, UP, CLOSING */
    void *context;
    uint64_t since_ns; /* of CLOSING, DOWN; of CONNECTING, patient time */
    uint64_t hello_ns; /* when the next HELLO is due, CONNECTING, or UP and idle */
    uint64_t heard_ns; /* patient time of the last frame or piece under this epoch */
    /* Patient time of the last completion, or of nothing outstanding: of pieces, and of frames. */
    uint64_t ops_moved_ns, frames_moved_ns;
    struct xfer_load load; /* as the stall clock saw it last */
    uint32_t serial; /* counts endpoints: what an operation of an earlier one does here is void */
    unsigned sends;  /* pieces in flight on this endpoint */
    size_t piece_bytes;
    struct kv_rate send_rate, receive_rate;
    struct list source_ring; /* transfers with something to send to this peer, in turn */
    unsigned parked;
    size_t address_bytes;
    uint8_t address[XFER_ADDRESS_BYTES_MAX];
};

struct kv_links {
    struct kv_links_options options;
    struct kv_links_events events;
    struct xfer *xfer;
    uint64_t incarnation, router_incarnation;
    uint64_t now_ns, patient_ns, late_ns; /* patient = now - late: time that this node was awake */
    uint64_t ticked_ns;
    uint64_t paced_ns; /* with rate_max: no piece leaves before */
    struct kv_counters counters;
    struct kv_side sides[KV_SIDE_COUNT];
    struct kv_link *slots;
    unsigned opened; /* slots from here on were never used */
    bool more;       /* the last round left something to do at once */
    unsigned wait_vain,
        wait_skips;          /* waits without sleep that were in vain, and what follows from it */
    struct kv_frame in, out; /* the message being handled, the one being built */
    /* in a loop */
    struct loop *loop;
    struct loop_io io;
    struct loop_timer timer;
    struct loop_hook receive_hook, submit_hook, prepare_hook;
};

static inline bool kv_link_usable(const struct kv_link *link)
{
    return link->state == KV_LINK_CONNECTING || link->state == KV_LINK_UP;
}

/* A piece has left so lately that the next must wait. */
static inline bool kv_links_paced(const struct kv_links *links)
{
    return links->options.rate_max && links->now_ns < links->paced_ns;
}

/* Fills the tuple and sends. FULL: try later; CLOSED. */
enum status kv_link_send(struct kv_link *link, struct kv_frame *frame);
/* A piece's header with the tuple filled, to `out` (XFER_PIECE_HEADER_BYTES_MAX). */
size_t kv_link_piece_header(const struct kv_link *link, struct kv_frame *frame, uint8_t *out);
/* How many pieces may be in flight to this peer. */
unsigned kv_link_window(const struct kv_link *link);

void kv_rate_begin(struct kv_rate *rate, uint64_t now_ns);
/* `bytes` 0: it failed, and the time says nothing about the link. */
void kv_rate_end(struct kv_rate *rate, uint64_t now_ns, size_t bytes);

#endif
