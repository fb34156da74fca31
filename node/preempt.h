/* Pages run short on a node: growth page by page, who gives way to whom, and sequences that give their pages up and come back.
 *
 *     grow.c      step loop ─▶ grow_row: one page more ─▶ free? take it : wait in the pool's line
 *                 node_pages_give ─▶ grow_ask: the youngest give way ─▶ dropped (sources, reservations) or preempted (all others)
 *                                    grow_may_enter: headroom for a newcomer
 *     preempt.c   preempt_begin ─▶ SAVING ─▶ its steps end ─▶ swap: bytes to host memory ─▶ PREEMPTED, in line for its pages
 *                                               └─ recompute: nothing is kept but its ids ─▶┘
 *                 preempt_resume ─▶ RESTORING: bytes back, verified ─▶ DECODING, or PROMPT again
 *
 * Policy is sched/preempt.h; this is what it takes to carry it out. A sequence keeps its entry, its engine slot and its tokens
 * throughout; a step that was submitted before ends as ever, so no token is lost and none is made twice.
 *
 * Owner: the loop thread. Nothing is allocated after preempt_init. */
#ifndef BATON_NODE_PREEMPT_H
#define BATON_NODE_PREEMPT_H

#include "node/swap.h"
#include "sched/preempt.h"

struct node;
struct work;

enum preempt_save {
    PREEMPT_SAVE_UNDECIDED,
    PREEMPT_SAVE_SWAP,
    PREEMPT_SAVE_NOTHING, /* recompute */
};

struct preempt {
    enum preempt_rule rule;
    bool early;     /* pages for the whole answer at once */
    uint32_t every; /* tests: give way after so many tokens; 0: never */
    struct swap swap;
    struct preempt_scratch scratch;
    struct preempt_holder *holders; /* [works] scratch */
    uint32_t *victims;              /* [works] scratch */
    double copy_bytes_per_s;        /* measured on the way out; 0: not yet */
    uint64_t swapped, recomputed;   /* times that a sequence gave way */
    uint64_t recomputed_tokens;
    uint64_t checksum_failures; /* pieces that were wrong when they left or came back */
};

enum status preempt_init(struct node *node);
void preempt_finish(struct node *node);

/* --- grow.c --- */

/* The page for the next row of a sequence that decodes: true when it is there. Else the sequence waits in line for it. */
bool grow_row(struct node *node, struct work *work);
/* Gives the page that a decoding sequence stood in line for. */
void grow_take(struct node *node, struct work *work);
/* Whether the first in line, for which there are pages, may have them: see preempt_headroom. */
bool grow_may_enter(const struct node *node, const struct work *work, uint32_t pages);
/* Asks the youngest to give way to one of `age` that wants `pages`; see "No circular wait" in docs/PROTOCOL.md. */
void grow_ask(struct node *node, uint64_t age, uint32_t pages);

/* --- preempt.c --- */

/* Whether it could be asked to come back later (else its work is dropped). */
bool preempt_can(const struct work *work);
/* It takes part in no further step, and gives its pages up as soon as nothing needs them. */
void preempt_begin(struct node *node, struct work *work);
/* Moves what is SAVING as far as it goes now. */
void preempt_settle(struct node *node);
/* A PREEMPTED sequence whose bytes were saved has its pages again (work->pages): brings the bytes back. */
void preempt_resume(struct node *node, struct work *work);
/* A copy of a SAVING or RESTORING sequence has ended. */
void preempt_copied(struct node *node, struct work *work, const struct engine_copy *copy);
/* The work is over and nothing runs for it: its host memory is free. */
void preempt_forget(struct node *node, struct work *work);

#endif
