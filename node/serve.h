/* Pages on their way out: the node's one kv_source, which answers the PULLs of others. Two kinds of work are behind it:
 *
 *     LEG_PREFILL   accepted ─▶ serve_open; pages that were found or fetched ─▶ serve_blocks; each piece as it is computed ─▶ serve_piece;
 *                   the last ─▶ the lease begins; the sampled token ─▶ serve_first
 *     LEG_SERVE     computes nothing: its pages are found in the cache, pinned, and all ready at once; HOLDING from the start
 *
 * Where the engine's memory is not the host's, a piece is ready once it lies in the mirror (an EXPORT).
 * Who gave up fetching may have found a page wrong: then those of LEG_SERVE are verified, for whoever comes next.
 *
 * Owner: the loop thread. */
#ifndef BATON_NODE_SERVE_H
#define BATON_NODE_SERVE_H

#include "engine/engine.h"
#include "kvtransfer/source.h"

struct node;
struct work;

enum status serve_create(struct node *node, struct err *err);
/* After the links. */
void serve_destroy(struct node *node);

/* A PULL for the work's first `blocks` pages is answered from now on. FULL, with `err`. */
enum status serve_open(struct node *node, struct work *work, uint32_t blocks, struct err *err);
void serve_started(struct node *node, struct work *work);
/* These of its first pages are there with their checksums. */
void serve_blocks(struct node *node, struct work *work, uint32_t blocks);
/* A piece of its own page is computed and has its checksum. */
void serve_piece(struct node *node, struct work *work, uint32_t block, uint32_t run);
void serve_first(struct node *node, struct work *work, const struct kv_first *first);
/* False: nothing of it is served. */
bool serve_renew(struct node *node, struct work *work);
/* The work is over; work->serve.live says whether something is still outstanding. */
void serve_end(struct node *node, struct work *work, enum status why);

/* Its own page's piece is in the mirror. */
void serve_copied(struct node *node, struct work *work, const struct engine_copy *copy);
/* A shared page's piece is: for all who asked (cache_export). */
void serve_exported(struct node *node, uint32_t page, uint32_t run);

#endif
