/* The calls of xfer.h: checks that hold for every transport, then the transport's own function. */
#include "kvtransfer/xfer.h"

#include <assert.h>

#include "kvtransfer/xfer_impl.h"

const char *xfer_transport_text(enum xfer_transport transport)
{
    static const char *const texts[] = {"auto", "tcp", "shm", "rdma"};
    return (unsigned)transport < sizeof texts / sizeof texts[0] ? texts[transport] : "?";
}

void xfer_destroy(struct xfer *xfer)
{
    if (xfer)
        xfer->ops->destroy(xfer);
}

const uint8_t *xfer_address(const struct xfer *xfer, size_t *bytes_out)
{
    return xfer->ops->address(xfer, bytes_out);
}

const char *xfer_describe(const struct xfer *xfer)
{
    return xfer->ops->describe(xfer);
}

const char *xfer_warning(const struct xfer *xfer)
{
    const char *warning = xfer->ops->warning(xfer);
    return warning && *warning ? warning : NULL;
}

unsigned xfer_progress(struct xfer *xfer)
{
    return xfer->ops->progress(xfer);
}

int xfer_event_fd(const struct xfer *xfer)
{
    return xfer->ops->event_fd(xfer);
}

bool xfer_arm(struct xfer *xfer)
{
    return xfer->ops->arm(xfer);
}

uint64_t xfer_next_ns(const struct xfer *xfer)
{
    return xfer->ops->next_ns(xfer);
}

enum status xfer_expect(struct xfer *xfer, const struct sockaddr *address, uint64_t now_ns,
                        uint64_t window_ns)
{
    return xfer->ops->expect(xfer, address, now_ns, window_ns);
}

void xfer_expect_tick(struct xfer *xfer, uint64_t now_ns)
{
    xfer->ops->expect_tick(xfer, now_ns);
}

enum status xfer_peer_open(struct xfer *xfer, const uint8_t *address, size_t bytes,
                           uint32_t *number_inout, void *context, struct xfer_peer **peer_out,
                           struct err *err)
{
    if (bytes == 0 || bytes > XFER_ADDRESS_BYTES_MAX)
        return err_set(err, STATUS_INVALID, "kv_address: %zu bytes (1 to %d)", bytes,
                       XFER_ADDRESS_BYTES_MAX);
    return xfer->ops->peer_open(xfer, address, bytes, number_inout, context, peer_out, err);
}

void xfer_peer_close(struct xfer_peer *peer)
{
    peer->xfer->ops->peer_close(peer);
}

struct xfer_load xfer_peer_load(const struct xfer_peer *peer)
{
    return peer->load;
}

enum status xfer_send_frame(struct xfer_peer *peer, const void *frame, size_t bytes)
{
    assert(bytes > 0 && bytes <= XFER_FRAME_BYTES_MAX);
    if (peer->state != XFER_PEER_OPEN)
        return STATUS_CLOSED;
    return peer->xfer->ops->send_frame(peer, frame, bytes);
}

enum status xfer_send_piece(struct xfer_peer *peer, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, struct xfer_op *op)
{
    assert(header_bytes > 0 && header_bytes <= XFER_PIECE_HEADER_BYTES_MAX && payload_bytes > 0);
    if (peer->state != XFER_PEER_OPEN)
        return STATUS_CLOSED;
    return peer->xfer->ops->send_piece(peer, header, header_bytes, payload, payload_bytes, op);
}

enum status xfer_accept(struct xfer_incoming *incoming, struct xfer_peer *peer, void *memory,
                        struct xfer_op *op)
{
    assert(peer->xfer == incoming->xfer);
    if (peer->state != XFER_PEER_OPEN)
        return STATUS_CLOSED;
    return peer->xfer->ops->accept(incoming, peer, memory, op);
}
