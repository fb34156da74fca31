/* One transfer of a source: its states, and which of its pieces are where. Three sets of pieces say everything: ready, wanted, in
 * flight. What may be sent is ready and wanted and not in flight; sending takes it out of wanted, so asking again sends again.
 * Only source.c includes this. Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_SOURCE_TRANSFER_H
#define BATON_KVTRANSFER_SOURCE_TRANSFER_H

#include "kvtransfer/link_impl.h"
#include "kvtransfer/shape.h"

enum state { FREE, QUEUED, COMPUTING, READY, DRAINING };

static const struct sm_state source_states[] = {
    [FREE] = {"free", SM_TO(QUEUED)},
    [QUEUED] = {"queued", SM_TO(COMPUTING) | SM_TO(READY) | SM_TO(DRAINING)},
    [COMPUTING] = {"computing", SM_TO(READY) | SM_TO(DRAINING)},
    [READY] = {"ready", SM_TO(DRAINING)},
    [DRAINING] = {"draining", SM_TO(FREE)},
};
static const struct sm_table source_table = SM_TABLE("kv source", source_states);

struct source_piece {
    const void *data;
    size_t bytes;
    uint64_t checksum;
};

struct source_transfer {
    uint8_t state;
    bool first_known, first_due; /* due: D asked since the last FIRST */
    bool tell_ended;
    enum status status; /* with tell_ended */
    uint64_t name;
    struct kv_key key;
    struct kv_layout layout;
    void *user;
    struct kv_link *link; /* who asked last; NULL: nobody, or its link ended */
    struct list ring;     /* in link->source_ring */
    struct list ended;    /* in source->ended */
    unsigned in_flight;   /* operations, over all links */
    unsigned ready_count, sealed;
    uint32_t cursor;          /* where the search for the next piece begins */
    uint64_t lease_from_ns;   /* patient */
    uint64_t progress_due_ns; /* DEADLINE_NONE: nobody asked */
    unsigned sends_failed;    /* on links that lived on */
    uint64_t bytes_ready, bytes_sent;
    struct kv_first first;
    uint64_t *ready, *wanted, *flying, *sent; /* sets */
    uint16_t *block_ready;                    /* pieces of a block that are ready */
    struct source_piece *pieces;
};

static inline bool is_live(const struct source_transfer *t)
{
    return t->state == QUEUED || t->state == COMPUTING || t->state == READY;
}

static inline unsigned set_words(const struct source_transfer *t)
{
    return (t->layout.piece_count + 63) / 64;
}

static inline bool set_empty(const struct source_transfer *t, const uint64_t *set)
{
    for (unsigned i = 0; i < set_words(t); i++)
        if (set[i])
            return false;
    return true;
}

static inline uint32_t pieces_pending(const struct source_transfer *t)
{
    uint32_t count = 0;
    for (unsigned i = 0; i < set_words(t); i++)
        count += (uint32_t)__builtin_popcountll(t->wanted[i] | t->flying[i]);
    return count;
}

/* The next piece to send from the cursor on, round the end; piece_count when there is none. */
static inline uint32_t next_to_send(const struct source_transfer *t)
{
    unsigned words = set_words(t);
    for (unsigned i = 0; i <= words; i++) {
        unsigned word = (t->cursor / 64 + i) % (words ? words : 1);
        uint64_t bits = words ? t->ready[word] & t->wanted[word] & ~t->flying[word] : 0;
        if (i == 0)
            bits &= ~UINT64_C(0) << (t->cursor % 64);
        if (bits)
            return word * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return t->layout.piece_count;
}

#endif
