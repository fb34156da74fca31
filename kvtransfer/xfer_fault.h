/* A transport around another one, UCX's or the in-process hub's, in which things go wrong by a seeded schedule (base/faults.h).
 * Test builds only; without -Dfaults=true it is xfer_fault_absent.c and cannot be made.
 *
 *     owner ── xfer.h ──▶ this ── xfer.h ──▶ the real one
 *
 *     frame   dropped (and said to have left) · sent twice · kept back for a while · kept back until the next one has left · one
 *             bit flipped (also in the header of a piece)
 *     piece   dropped (its op completes OK, as when the receiver drops it) · sent twice · kept back, as frames; at the receiving
 *             side: one bit of the bytes flipped before the op is done, or the op done later than it is
 *     stall   everything to one peer is kept back, in order, until it is over
 *
 * What is kept back counts as in flight, so a stall that lasts looks to the link as one of the network's would.
 * Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_XFER_FAULT_H
#define BATON_KVTRANSFER_XFER_FAULT_H

#include "base/faults.h"
#include "kvtransfer/xfer.h"

struct xfer_fault_options {
    unsigned peers_max; /* as of the real one; 0: 64 */
    /* NULL: the clock */
    uint64_t (*now_ns)(void *context);
    /* A bit of these bytes was flipped; `done` of their op follows. May be NULL. */
    void (*flipped)(void *context, void *memory);
    void *context;
};

/* Makes the real one with `make` and wraps it. `faults` stays the caller's, and must live longer. */
enum status xfer_fault_create(struct faults *faults, const struct xfer_fault_options *options,
                              enum status (*make)(void *context, const struct xfer_handler *handler,
                                                  struct xfer **xfer_out, struct err *err),
                              void *make_context, const struct xfer_handler *handler,
                              struct xfer **xfer_out, struct err *err);

#endif
