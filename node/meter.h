/* How near this node runs to what its machine allows, and what holds it back: sched/roofline.h fed with what really happens.
 *
 *     step loop ── what each step asked for, and its time ──▶ window ──▶ MFU, MBU, verdict, for prefill and decode apart
 *     loop      ── nothing is with the engine, and why   ──▶   │            metrics, heartbeats (so `baton status`)
 *     tick      ── halves it every few seconds           ──▶   └──▶ rate ──▶ a line in the log when it falls below 80 % of its own
 *
 *     engine  ──|step|──────────────────────────────|step|──      the time between two steps is
 *     loop           |round| sleeps: nothing to do |round|        idle or link, as long as nothing was there to compute;
 *                    └host─┘└──── idle or link ────┘└host┘        all the rest is the host's
 *
 * Owner: the loop thread. */
#ifndef BATON_NODE_METER_H
#define BATON_NODE_METER_H

#include "engine/limits.h"

struct node;
struct step_record;

/* Where a node's time goes; the order of the first two is that of enum roofline_phase. */
enum meter_spent {
    METER_PREFILL,
    METER_DECODE,
    METER_HOST,
    METER_LINK,
    METER_IDLE,
    METER_SPENT_COUNT
};

struct meter {
    bool known; /* what the machine allows; else nothing is said */
    struct engine_limits limits;
    struct roofline_window window;
    struct roofline_rate rate;
    uint64_t last_end_ns;   /* of the step that ended last; 0: none yet */
    uint64_t rest_since_ns; /* nothing is with the engine since then; 0: otherwise */
    enum roofline_pause rest;
    uint64_t rested_ns; /* since the last step's end */
    uint64_t look_ns;   /* when the window is halved next */
    struct metric *spent[METER_SPENT_COUNT];
};

/* `limits`: NULL: not known. */
void meter_init(struct node *node, const struct engine_limits *limits);
/* A step has ended; its times are the engine's. */
void meter_step(struct node *node, const struct step_record *record, uint64_t begin_ns,
                uint64_t end_ns);
/* First and last in a round. */
void meter_wake(struct node *node);
void meter_sleep(struct node *node);
/* Every tick. */
void meter_tick(struct node *node, uint64_t now_ns);

#endif
