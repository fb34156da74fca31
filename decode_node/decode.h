/* LEG_DECODE: pages are reserved all at once, those of the prompt that are not in the cache are fetched from the
 * prefill node, verified, and the sequence joins the running batch between two steps.
 *
 *     begin      all pages taken; fetch_begin asks for every piece of the prompt's blocks, but for those that were found here
 *     FETCHING   pieces arrive and are verified (node/fetch.h); the first token comes in FIRST or from the router, whichever is
 *                first
 *     ended OK   joins: DECODING; its first report repeats the token
 *     else       all pieces there and only the token missing: ORPHAN, the router may have it; else GAVE_UP
 *
 * Growth, and who gives way when pages run short: node/preempt.h. What is verified when it ends early stays in the cache.
 * Owner: the loop thread. */
#ifndef BATON_DECODE_NODE_DECODE_H
#define BATON_DECODE_NODE_DECODE_H

#include "node/node.h"

extern const struct node_leg decode_leg;

#endif
