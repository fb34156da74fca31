/* Pieces on their way between the engine's memory and memory that the transport can read and write, and their checksums.
 *
 * When the engine's pages lie in host memory, pieces travel from and to where they are, and D verifies them in place.
 * When they do not (engine_piece_host is NULL), a mirror of the pool in host memory stands between: EXPORT before a
 * piece is sent, IMPORT (which verifies) after one was received.
 *
 * One engine_copy for each piece of the pool, so a piece has at most one copy in flight and nothing is allocated; what the
 * engine has no room for waits in a list (waker: any COPY_DONE; it needs no deadline, as the engine always ends copies).
 * Owner: the loop thread. */
#ifndef BATON_NODE_COPIES_H
#define BATON_NODE_COPIES_H

#include "base/list.h"
#include "engine/engine.h"

struct work;

struct copy_slot {
    struct engine_copy copy;
    struct list link;  /* in `waiting` */
    struct work *work; /* NULL: it runs for nobody in particular */
    uint32_t life;
    bool busy;
};

struct copies {
    struct engine *engine;
    struct copy_slot *slots; /* [pages][runs] */
    uint32_t run_count;
    struct list waiting;
    uint32_t active; /* begun and not done */
    uint8_t *mirror; /* NULL: the engine's memory is the host's */
    uint64_t page_bytes, piece_bytes;
};

enum status copies_init(struct copies *copies, struct engine *engine);
void copies_finish(struct copies *copies);

/* Where the transport reads or writes this piece. */
void *copies_memory(const struct copies *copies, uint32_t page, uint32_t run);
static inline uint32_t copies_active(const struct copies *copies)
{
    return copies->active;
}
static inline bool copies_mirrored(const struct copies *copies)
{
    return copies->mirror != NULL;
}
static inline bool copies_busy(const struct copies *copies, uint32_t page, uint32_t run)
{
    return copies->slots[(size_t)page * copies->run_count + run].busy;
}
/* Begins one on a piece that is not busy; work->copies counts it until copies_done. Without a work the caller keeps the page as it
 * is until then. */
void copies_begin_at(struct copies *copies, struct work *work, enum engine_copy_kind kind,
                     uint32_t page, uint32_t run, void *host, const uint64_t *expected);
/* The same from or to where the transport reads or writes the piece. */
void copies_begin(struct copies *copies, struct work *work, enum engine_copy_kind kind,
                  uint32_t page, uint32_t run, const uint64_t *expected);
/* COPY_DONE came: gives the work that began it, which may be over; NULL: it had none. */
struct work *copies_done(struct copies *copies, const struct engine_copy *copy);

#endif
