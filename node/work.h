/* The work of a node: one `struct work` for each attempt that it holds, whatever the leg, in a table of fixed size.
 *
 *     FREE ──▶ WAITING ──pages, none of which is there──▶ PROMPT ──last chunk, prefill──▶ HOLDING
 *               ▲ │                                      ▲     └──last chunk, local──────────────────▶ DECODING
 *          bad  │ │ pages: found here, or to be fetched  │ prefill, local: checked, fetched             ▲   ▲
 *          page │ └───────▶ FETCHING ────────────────────┘                                              │   │
 *               └──────────────┘ └──────decode: all verified, first token known─────────────────────────┘   │
 *                                └──────decode: all verified, P gone──▶ ORPHAN ──token──────────────────────┘
 *     FREE ──serve: all its pages are in the cache──▶ HOLDING
 *
 *     DECODING, PROMPT (local) ──gives way──▶ SAVING ──its steps have ended, its bytes are saved──▶ PREEMPTED
 *     PREEMPTED ──pages──▶ RESTORING ──all bytes back and verified──▶ DECODING
 *       ▲ │                    └──────a byte is wrong───┐
 *       │ └───────pages, nothing was saved─────────────▶└─▶ PROMPT ──last chunk──▶ DECODING
 *       └─bad page─ FETCHING ◀──some were found here; checked──▶┘
 *
 *     HOLDING ──D has all, lease over──▶ ENDING        DECODING ──last token──▶ ENDING
 *     any of the above ──End, stream's end, dropped, deadline, failure──▶ ENDING
 *
 *     ENDING ──pages free──▶ LEAVING ──last step has ended──▶ FREE
 *       │ 5 s                   ▲
 *       └─────▶ QUARANTINED ────┘ drained after all
 *
 *     state        parked until (waker)                              and at most (deadline)
 *     WAITING      it is the oldest in the pool's line and pages     the request's deadline; the stream
 *                  are free (any page freed)
 *     PROMPT       a step ends                                       the request's deadline; health reports a stuck engine
 *     HOLDING      D's DONE (source)                                 the lease, 8 s, renewed by PULL, piece or Renew
 *     FETCHING     checks of what was found here (copies); then      an engine that is stuck; the sink's 2 s; a receive that
 *                  pieces, FIRST or FirstToken (sink)                does not end 1 s more, then other pages take the place of
 *                                                                    its own; the request's deadline
 *     ORPHAN       FirstToken                                        4 s; the request's deadline
 *     DECODING     a step ends; short of a page: as WAITING          the request's deadline
 *     SAVING       a step ends, a copy ends                          an engine that is stuck; the request's deadline
 *     PREEMPTED    as WAITING                                        the request's deadline; the stream
 *     RESTORING    a copy ends                                       an engine that is stuck; the request's deadline
 *     ENDING       the running layer, copies and transfers end       5 s, then QUARANTINED
 *     QUARANTINED  the same                                          the transport's end; the pages are nobody's meanwhile
 *     LEAVING      the steps in flight that read its arrays end,     an engine that is stuck; the link's 4 s, or the
 *                  and receives into pages that were replaced        transport's end
 *
 * Invariant: pages are owned (pool) by the work's index exactly (its own) or pinned (shared ones) in PROMPT to SAVING, RESTORING and ENDING; an engine slot is held
 * in every state but FREE; `ended` is reported once, when the pages are free or quarantined. The table's lists hold each work
 * in exactly one, that of its state, the older request first.
 *
 * Owner: the loop thread. Nothing is allocated after work_table_init. */
#ifndef BATON_NODE_WORK_H
#define BATON_NODE_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"
#include "base/sm.h"
#include "engine/engine.h"
#include "kvtransfer/frame.h"
#include "sched/pool.h"
#include "sched/prefix.h"
#include "sched/sampling.h"

enum work_leg { WORK_LEG_PREFILL, WORK_LEG_DECODE, WORK_LEG_LOCAL, WORK_LEG_SERVE, WORK_LEG_COUNT };

enum work_state {
    WORK_FREE,
    WORK_WAITING,
    WORK_PROMPT,
    WORK_HOLDING,
    WORK_FETCHING,
    WORK_ORPHAN,
    WORK_DECODING,
    WORK_SAVING,
    WORK_PREEMPTED,
    WORK_RESTORING,
    WORK_ENDING,
    WORK_QUARANTINED,
    WORK_LEAVING,
    WORK_STATE_COUNT
};
extern const struct sm_table work_states;

struct work_table;

/* One side of a transfer that this work takes part in. */
struct work_transfer {
    uint64_t name; /* the source's or the sink's for it */
    bool live;     /* until its `released` */
};

struct work {
    /* what planning and building a step look at, for each running sequence: one line of a processor's cache */
    _Alignas(64) uint8_t state; /* enum work_state */
    uint8_t leg;                /* enum work_leg */
    bool alone, last_leg;
    uint8_t samples_pending, steps_outstanding;
    uint16_t unused;
    uint32_t index; /* in the table; the owner's number in the pool */
    uint32_t life;  /* counts the uses of this entry, so that a late result is recognised */
    uint32_t slot;  /* the engine's */
    uint32_t prompt_count, generated_count;
    uint32_t answer_max;     /* tokens of the whole answer */
    uint32_t rows_submitted; /* positions given to the engine so far */
    uint32_t prev_sample;    /* of the step submitted last */
    uint32_t page_written;   /* DECODING: 1 + the block that its last row went to; 0: not known */
    uint32_t page_count;     /* held */
    uint32_t
        *tokens; /* [tokens_max of the table] prompt and answer: [prompt_count][generated_count] */
    uint32_t *pages; /* block table [pages_max of the table] */

    /* what its end looks at too: one more */
    _Alignas(64) struct list link; /* in the table's list of its state */
    uint64_t age;                  /* admission number; lower is older */
    struct prefix_cursor cursor;   /* how far its pages are shared */
    uint32_t pages_whole;          /* wanted for the whole answer */
    uint32_t rows_done;      /* positions that are computed or received, by steps that have ended */
    uint32_t damaged_end;    /* 1 + the first own block that is not what was sealed; 0: none */
    uint32_t received_count; /* generated tokens that came with the assignment */
    uint32_t preempted_count; /* generated tokens when it gave way last */

    /* whose a token is, and whether it is the last: for each row that samples, one more line */
    _Alignas(64) struct kv_key
        key; /* router incarnation, request, attempt, this node's assignment number */
    uint32_t min_tokens, stop_count;
    uint32_t *stop_ids; /* [SAMPLING_STOP_IDS_MAX] */

    /* how it is sampled: what the engine's threads look at */
    _Alignas(64) struct kern_sampling sampling; /* its arrays are `tokens` and `bias` */

    /* who */
    struct work_table *table;
    struct list attempt_link;   /* in the table's attempts, but for FREE */
    struct sampling_bias *bias; /* [SAMPLING_LOGIT_BIAS_MAX] */
    uint64_t arrived_ns, deadline_ns, state_since_ns;

    /* pages */
    uint32_t pages_needed; /* all at once, when its turn comes */
    uint32_t pages_moved;  /* the first blocks, that travel between P and D */
    struct pool_waiter waiter;

    /* what need not be computed: see node/cache.h */
    uint8_t salt[PREFIX_SALT_BYTES];
    uint32_t hit_count; /* first blocks, found here and pinned */
    uint32_t checked;   /* of these, verified */
    uint64_t check_from;
    uint32_t cached_tokens; /* of the prompt, not computed */
    bool
        receives; /* its own pages are RESERVED until they are verified, or computed into after all */

    /* pages on their way in (fetch) and out (serve) */
    struct work_transfer fetch, serve;
    uint32_t copies;             /* engine copies in flight on its own pages */
    struct kv_id fetch_transfer; /* prefill, local: what Assign.fetch names */
    uint32_t fetch_blocks;       /* first blocks that the other node opened; 0: no fetch */
    uint64_t source_incarnation, source_number; /* where they are */
    uint64_t fetch_over_ns;
    /* Its own pages of a fetch that is over, while a receive into them has not ended: nobody's (QUARANTINED), others have their place. */
    uint32_t *stuck_pages; /* [pages_max of the table] */
    uint32_t stuck_count;
    bool fetch_over;        /* prefill, local: it has ended, in whatever way */
    uint32_t served_blocks; /* first blocks that were there from the start */
    uint32_t pieces_left;   /* not ready yet */
    uint64_t moved_bytes;
    struct kv_first first;
    bool first_known;
    bool joined; /* D: the first token is reported, and it goes on alone */

    /* giving way */
    uint8_t save;         /* enum preempt_save */
    uint32_t preemptions; /* times that it gave way */
    uint32_t rows_before; /* positions once computed: below it, rows are computed again */
    uint32_t *swap_pages; /* [pages_max of the table] its bytes in host memory */
    uint32_t swap_count, swap_begun; /* pages; pieces whose copies on the way out have begun */
    uint64_t swap_begin_ns;          /* of the copies on the way out */
    bool swap_wrong;                 /* a piece did not have its checksum */
    bool ended_reported;
    bool handed_over; /* the router was told that this node leaves before it ends */
    bool silent;      /* its stream is gone: nothing is reported */
};

_Static_assert(offsetof(struct work, link) == 64 && offsetof(struct work, key) == 128 &&
                   offsetof(struct work, sampling) == 192,
               "what a step looks at is together");

/* Whose turn it is. */
struct work_turn {
    uint64_t age;
    struct work *work;
};

struct work_table {
    struct work *works; /* [count] */
    uint32_t count;
    uint32_t tokens_max, pages_max;       /* of one sequence */
    struct list states[WORK_STATE_COUNT]; /* the works in it, the older request first */
    uint32_t state_counts[WORK_STATE_COUNT];
    uint32_t alone_count; /* works that run alone, in whatever state but FREE */
    struct work_turn *
        decoding; /* [count] those that decode, as in their list, for who goes through all of them in each step and looks ahead */
    uint64_t moves; /* of all works so far: whether anything has changed */
    struct list
        *attempts; /* [attempt_mask + 1] all but the free ones, by their attempt's low bits */
    uint32_t attempt_mask;
    void *memory[7];
};

enum status work_table_init(struct work_table *table, uint32_t count, uint32_t tokens_max,
                            uint32_t pages_max);
void work_table_finish(struct work_table *table);

/* A free entry, blank but for its arrays; NULL: all are taken. It stays FREE until work_move. */
struct work *work_take(struct work_table *table);
/* The work of this attempt that is not over (ENDING and later are). NULL: none. */
struct work *work_find(struct work_table *table, struct kv_id attempt);
/* Any entry of this attempt, over or not. */
struct work *work_find_any(struct work_table *table, struct kv_id attempt);
void work_move(struct work *work, enum work_state to, uint64_t now_ns);
/* Works in any of the states of `states` (SM_TO of each, or-ed). */
uint32_t work_count(const struct work_table *table, uint32_t states);

static inline uint32_t work_total(const struct work *work)
{
    return work->prompt_count + work->generated_count;
}
/* It holds pages, or wants to, and is not over. */
static inline bool work_live(const struct work *work)
{
    return work->state != WORK_FREE && work->state < WORK_ENDING;
}

/* Whether the token just appended ends the answer, by ids (stop) or length. generated_count counts it already. It is not read back:
 * a step writes one for each of a thousand sequences, into memory that is far from all of them. */
enum work_finish { WORK_FINISH_NONE, WORK_FINISH_STOP, WORK_FINISH_LENGTH };
enum work_finish work_finish(const struct work *work, uint32_t token);

#endif
