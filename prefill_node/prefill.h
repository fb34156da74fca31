/* LEG_PREFILL: a prompt is computed here, its pages are kept for the decode node that comes for them, and the token sampled
 * after it goes to the router at once and to that node with the last piece.
 *
 *     accept       serve_open: a PULL that comes from now on is answered, PROGRESS{queued} at first
 *     begin        the pages that were found here, or fetched, are ready at once
 *     PROMPT       each run of layers of a chunk ─▶ its pieces are ready (through an EXPORT where the engine's memory is not the host's)
 *     last piece   the lease begins
 *     sampled      serve_first; HOLDING until DONE, the lease's end, an older request's need, or End
 *
 * Owner: the loop thread. */
#ifndef BATON_PREFILL_NODE_PREFILL_H
#define BATON_PREFILL_NODE_PREFILL_H

#include "node/node.h"

extern const struct node_leg prefill_leg;

#endif
