/* The in-process transport: any number of workers on one hub, for tests, the simulator and programs that are P and D at
 * once. Deterministic: nothing moves by itself, and what moves next is a pure function of the seed and the calls.
 *
 * A message lies in the queue of its direction (from one worker to another) and steps as UCX's do:
 *
 *     frame   queued ──▶ handler.frame
 *     piece   announced ──▶ handler.piece ──accepted──▶ data copied, both ops done     (two steps: a receive is outstanding between)
 *                                         └─dropped───▶ the sender's op done
 *
 * Faults, each with its own chance per message: drop, duplicate (frames and pieces), reorder, delay, and a flipped bit
 * (in a frame, or in a piece's bytes after the copy). A worker can be killed (its peers' endpoints fail, its memory is never
 * touched again), frozen (nothing it should do happens; what peers send to it waits) and woken.
 *
 * Owner: one thread. */
#ifndef BATON_KVTRANSFER_MEMORY_H
#define BATON_KVTRANSFER_MEMORY_H

#include "kvtransfer/xfer.h"

struct xfer_hub;

/* In parts of 65536, per message. */
struct xfer_faults {
    uint16_t drop, duplicate, reorder, delay, flip;
    unsigned delay_steps; /* a delayed message is passed over so often */
    bool frames_only;     /* leave pieces alone */
};

struct xfer_hub_counters {
    uint64_t steps, dropped, duplicated, reordered, delayed, frames_flipped, pieces_flipped;
};

enum status xfer_hub_create(uint64_t seed, unsigned workers_max, struct xfer_hub **hub_out,
                            struct err *err);
void xfer_hub_destroy(struct xfer_hub *hub); /* after its workers */
void xfer_hub_set_faults(struct xfer_hub *hub, const struct xfer_faults *faults);
const struct xfer_hub_counters *xfer_hub_counters(const struct xfer_hub *hub);

/* A worker on the hub; `interface` and `transport` of the options do not matter. */
enum status xfer_memory_create(struct xfer_hub *hub, const struct xfer_options *options,
                               const struct xfer_handler *handler, struct xfer **xfer_out,
                               struct err *err);

/* Lets one message move by one step, chosen by the seed among the queues' heads; false when nothing can. Its effect shows at the
 * receiving worker's next xfer_progress. With `automatic` on, xfer_progress moves everything itself, in order. */
bool xfer_hub_step(struct xfer_hub *hub);
void xfer_hub_set_automatic(struct xfer_hub *hub, bool automatic);
unsigned xfer_hub_pending(const struct xfer_hub *hub);
/* The same for one direction, for whoever decides the order: could a message move, and moving one. */
bool xfer_hub_can_step(const struct xfer *from, const struct xfer *to);
bool xfer_hub_step_between(struct xfer *from, const struct xfer *to);

/* Of the worker: nothing more leaves it or reaches it; endpoints to it fail at their owners' next progress. */
void xfer_hub_kill(struct xfer *xfer);
void xfer_hub_freeze(struct xfer *xfer, bool frozen);
/* One direction between two workers: messages wait while cut. */
void xfer_hub_cut(struct xfer *from, struct xfer *to, bool cut);

#endif
