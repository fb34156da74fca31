/* What a transport implements: ucx.c and memory.c begin their objects with these. Nobody else includes this.
 * Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_XFER_IMPL_H
#define BATON_KVTRANSFER_XFER_IMPL_H

#include "kvtransfer/xfer.h"

/* Every slot is required. The calls mean what xfer.h says of their namesakes. */
struct xfer_ops {
    void (*destroy)(struct xfer *xfer);
    const uint8_t *(*address)(const struct xfer *xfer, size_t *bytes_out);
    const char *(*describe)(const struct xfer *xfer);
    const char *(*warning)(const struct xfer *xfer); /* NULL or "": none */
    unsigned (*progress)(struct xfer *xfer);
    int (*event_fd)(const struct xfer *xfer);
    bool (*arm)(struct xfer *xfer);
    uint64_t (*next_ns)(const struct xfer *xfer);
    enum status (*expect)(struct xfer *xfer, const struct sockaddr *address, uint64_t now_ns,
                          uint64_t window_ns);
    void (*expect_tick)(struct xfer *xfer, uint64_t now_ns);
    enum status (*peer_open)(struct xfer *xfer, const uint8_t *address, size_t bytes,
                             uint32_t *number_inout, void *context, struct xfer_peer **peer_out,
                             struct err *err);
    void (*peer_close)(struct xfer_peer *peer);
    enum status (*send_frame)(struct xfer_peer *peer, const void *frame, size_t bytes);
    enum status (*send_piece)(struct xfer_peer *peer, const void *header, size_t header_bytes,
                              const void *payload, size_t payload_bytes, struct xfer_op *op);
    enum status (*accept)(struct xfer_incoming *incoming, struct xfer_peer *peer, void *memory,
                          struct xfer_op *op);
};

struct xfer {
    const struct xfer_ops *ops;
    struct xfer_handler handler;
};

/*     OPEN ──failed, closed──▶ CLOSING ──outstanding = 0──▶ (slot free) */
enum xfer_peer_state { XFER_PEER_FREE, XFER_PEER_OPEN, XFER_PEER_CLOSING };

struct xfer_peer {
    struct xfer *xfer;
    void *context;
    enum xfer_peer_state state;
    struct xfer_load load;
    struct list ops; /* outstanding struct xfer_op */
};

/* An operation is outstanding from here to xfer_op_finish. */
static inline void xfer_op_start(struct xfer_peer *peer, struct xfer_op *op)
{
    op->peer = peer;
    peer->load.ops++;
    list_push_back(&peer->ops, &op->link);
}

/* Takes it off its peer and calls `done`. */
static inline void xfer_op_finish(struct xfer_op *op, enum status status)
{
    struct xfer_peer *peer = op->peer;
    list_remove(&op->link);
    peer->load.ops--;
    if (status == STATUS_OK)
        peer->load.ops_done++;
    op->done(op, status);
}

struct xfer_incoming {
    struct xfer *xfer;
};

#endif
