/* The transport under the KV hand-off: what UCX (ucx.c) and the in-process hub (memory.c) have in common.
 *
 * A `struct xfer` is one worker. Its address is an opaque blob that travels over the authenticated gRPC channel; a peer
 * opens an endpoint from it. Two kinds of message go over an endpoint:
 *
 *     frame   up to XFER_FRAME_BYTES_MAX bytes, copied at once: control
 *     piece   a header (a frame too) and a payload that is announced first and moved only when the receiver says where:
 *
 *             sender                             receiver
 *             xfer_send_piece ── header, size ─▶ handler.piece(): xfer_accept(memory) or nothing (drops it)
 *             op.done ◀───────── payload ──────▶ op.done            (dropped: the sender's op completes OK as well)
 *
 *     So a peer never writes memory that was not offered for that very piece.
 *
 * Everything that is in flight is a `struct xfer_op`, owned by the caller until its `done`, which fires exactly once,
 * from xfer_progress or xfer_destroy, never inside the call that posts it; a call that returns an error posts nothing. Frames
 * have no op: they lie in slots of the worker.
 *
 * An endpoint ends in three steps, none of which waits: it fails (handler.peer_failed, or xfer_peer_close), its own
 * outstanding operations drain with STATUS_CLOSED, and at zero handler.peer_closed says that the slot is free. What does not
 * drain is quarantined: peer_closed and those `done`s come from xfer_destroy at the latest.
 *
 * No call blocks and, after xfer creation, none here allocates (the transport below may).
 * Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_XFER_H
#define BATON_KVTRANSFER_XFER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"

enum {
    XFER_FRAME_BYTES_MAX = 4096,
    XFER_PIECE_HEADER_BYTES_MAX = 192,
    XFER_ADDRESS_BYTES_MAX = 4096,
    XFER_NAME_BYTES = 64,
};

enum xfer_transport {
    XFER_TRANSPORT_AUTO,
    XFER_TRANSPORT_TCP,
    XFER_TRANSPORT_SHM,
    XFER_TRANSPORT_RDMA
};

/* In the order of enum xfer_transport, for an option of type enum. */
#define XFER_TRANSPORT_CHOICES "auto|tcp|shm|rdma"
const char *xfer_transport_text(enum xfer_transport transport);

struct xfer;
struct xfer_peer;
struct xfer_incoming; /* a piece that was announced; valid inside handler.piece only */

struct xfer_op {
    void (*done)(struct xfer_op *op, enum status status);
    void *context;
    /* the transport's own, from here on */
    struct list link;
    struct xfer_peer *peer;
    uint64_t note;
    uint8_t header[XFER_PIECE_HEADER_BYTES_MAX];
};

/* Called from xfer_progress and xfer_destroy only. */
struct xfer_handler {
    void *context;
    /* `bytes` is valid during the call. Nothing in it has been checked, not even who sent it. */
    void (*frame)(void *context, const uint8_t *frame, size_t bytes);
    /* A piece of `payload_bytes` waits; the handler calls xfer_accept, or returns and so drops it. */
    void (*piece)(void *context, const uint8_t *header, size_t header_bytes, size_t payload_bytes,
                  struct xfer_incoming *incoming);
    /* The endpoint failed by itself; its operations drain now, then comes peer_closed. Not called after xfer_peer_close. */
    void (*peer_failed)(void *context, void *peer_context, struct xfer_peer *peer,
                        enum status status);
    /* Nothing is outstanding any more: memory is free, the endpoint no longer exists. Exactly once per opened peer. */
    void (*peer_closed)(void *context, void *peer_context, struct xfer_peer *peer);
};

struct xfer_options {
    enum xfer_transport transport;
    const char *interface;  /* network device; NULL: "lo" */
    const char *port_range; /* "20000-20100"; NULL: any */
    unsigned peers_max;     /* endpoints at once, those that are still draining included; 0: 64 */
    unsigned frames_max;    /* frames in flight, over all peers; 0: 1024 */
    bool filter; /* drop every connection but those of xfer_expect (needs a TCP transport) */
};

/* --- the worker --- */

/* UCX. CONFIG names the option and what is missing: the device, the transport, the port range. */
enum status xfer_ucx_create(const struct xfer_options *options, const struct xfer_handler *handler,
                            struct xfer **xfer_out, struct err *err);
/* Closes what is open, calls outstanding `done`s with CLOSED. Takes NULL. */
void xfer_destroy(struct xfer *xfer);
/* The library's version, "1.13.1": part of a node's registration. */
const char *xfer_ucx_version(void);

/* What peers need to open an endpoint to this worker; lives as long as it. At most XFER_ADDRESS_BYTES_MAX bytes. */
const uint8_t *xfer_address(const struct xfer *xfer, size_t *bytes_out);
/* What carries the pieces, "tcp/lo": for the log, registration and `baton status`. */
const char *xfer_describe(const struct xfer *xfer);
/* What a user should know about that choice, one line for the log: `auto` found no RDMA device. NULL: nothing. */
const char *xfer_warning(const struct xfer *xfer);

/* Moves everything that can move now, calls handlers and `done`s; returns how much happened, 0 for nothing. */
unsigned xfer_progress(struct xfer *xfer);
/* A descriptor for epoll (EPOLLIN); -1: none, poll it (memory.c). */
int xfer_event_fd(const struct xfer *xfer);
/* To be called before the thread sleeps, after a progress of 0. False: something is there already, go round again. */
bool xfer_arm(struct xfer *xfer);
/* When progress must come again though nothing arrives, on the clock; DEADLINE_NONE: never. */
uint64_t xfer_next_ns(const struct xfer *xfer);
/* With options.filter: lets `address` connect for the next `window_ns`, and nobody else. Loopback means any process here. */
enum status xfer_expect(struct xfer *xfer, const struct sockaddr *address, uint64_t now_ns,
                        uint64_t window_ns);
/* Closes the window again when its time has come; to be called at least each second. */
void xfer_expect_tick(struct xfer *xfer, uint64_t now_ns);

/* --- peers --- */

/* Starts to connect; does not wait, sending is allowed at once. `context` comes back in the handler.
 * `number`: the how manieth endpoint between the two workers this is, from 1 on. In: at least this; out: what it is, which is more
 * where more were opened. Both sides must be at the same number, else what they have does not last: who has the lower one closes,
 * and opens at the other's.
 * FULL: peers_max; INVALID: not an address; DEVICE: unreachable by any transport here; AGAIN: the number is far ahead, call again
 * soon. */
enum status xfer_peer_open(struct xfer *xfer, const uint8_t *address, size_t bytes,
                           uint32_t *number_inout, void *context, struct xfer_peer **peer_out,
                           struct err *err);
/* Force: what is outstanding ends with CLOSED; handler.peer_closed follows. Closing twice does no harm. */
void xfer_peer_close(struct xfer_peer *peer);
/* What is in flight and what has completed. Frames count apart from pieces: a frame is complete when it has left, also
 * when its receiver sleeps, and must not hide that no piece moves. */
struct xfer_load {
    unsigned ops, frames; /* in flight */
    uint64_t ops_done, frames_done;
};
struct xfer_load xfer_peer_load(const struct xfer_peer *peer);

/* --- messages --- */

/* Copies `frame`. FULL: no slot, try later; CLOSED: the endpoint has failed or is closing. */
enum status xfer_send_frame(struct xfer_peer *peer, const void *frame, size_t bytes);
/* `payload` must stay as it is until op->done (a dropped piece completes OK). The header is copied. Errors as xfer_send_frame. */
enum status xfer_send_piece(struct xfer_peer *peer, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, struct xfer_op *op);
/* Inside handler.piece: receive into `memory`, which must hold the announced bytes and stay the transport's until op->done.
 * `peer` is the endpoint to the sender: the receive counts as its operation and ends with it. */
enum status xfer_accept(struct xfer_incoming *incoming, struct xfer_peer *peer, void *memory,
                        struct xfer_op *op);

#endif
