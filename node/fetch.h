/* Pages on their way in: the node's one kv_sink, which asks other nodes for pages and verifies what comes.
 *
 *     LEG_DECODE              all pages of the prompt but its own hits, and the first token: the leg decides what follows (`fetched`)
 *     LEG_PREFILL, LEG_LOCAL  the pages that Assign.fetch names, beyond its own hits: what comes, from the first on, need not be
 *                             computed; what does not come is. Never a failure of the request.
 *
 *     a piece arrives ─▶ VERIFY where it lies, or IMPORT (which verifies) where the engine's memory is not the host's
 *                     ─▶ kv_sink_piece_verified; a mismatch is counted, and asked for again
 *
 * Owner: the loop thread. */
#ifndef BATON_NODE_FETCH_H
#define BATON_NODE_FETCH_H

#include "engine/engine.h"
#include "kvtransfer/sink.h"

struct node;
struct work;

enum status fetch_create(struct node *node, struct err *err);
/* After the links. */
void fetch_destroy(struct node *node);

struct fetch_begin {
    struct kv_id transfer;
    uint64_t incarnation, number; /* of the node that serves it, and of its assignment */
    uint32_t blocks;   /* as many as it opened; the first work->hit_count are not asked for */
    bool first_wanted; /* the token that it samples belongs to it */
};
/* CLOSED: no link to that node; and as kv_sink_begin. */
enum status fetch_begin(struct node *node, struct work *work, const struct fetch_begin *begin);
/* The router knows the first token too. */
void fetch_first(struct node *node, struct work *work, const struct kv_first *first);
/* The work is over; work->fetch.live says whether something is still outstanding. */
void fetch_end(struct node *node, struct work *work);
/* A copy on its own page has ended. */
void fetch_copied(struct node *node, struct work *work, const struct engine_copy *copy);
/* Every 50 ms or so. */
void fetch_tick(struct node *node, uint64_t now_ns);

#endif
