/* When pages run short: who comes in, who gives way, and how what gave way comes back.
 *
 *     newcomer ──pages + headroom are to be had──▶ runs ──an older one lacks pages──▶ gives way
 *         ▲                                                                          │
 *         │                          swap: its bytes wait in host memory  ◀──────────┤ whichever the measured rates
 *         │                          recompute: only its ids wait         ◀──────────┘ make cheaper
 *         └──── headroom doubled ────┘
 *
 * A sequence that comes in beside older ones that still grow would be the first to give way again. So it waits until, beyond
 * its own pages, there is headroom for what they may take meanwhile: at first one page for each of them, twice as much after
 * every time that it gave way, and never more than all that they can ever take, with which it cannot be asked again. Hence
 * a sequence gives way to given neighbours at most log2(pages) + 1 times. The oldest needs no headroom: nobody may ask it.
 *
 * Pure: no clock, no pointer kept. Owner: the loop thread of the node. */
#ifndef BATON_SCHED_PREEMPT_H
#define BATON_SCHED_PREEMPT_H

#include "sched/pool.h"

/* --- coming in --- */

/* The pages that an answer wants before it begins, or begins again: those of the `rows` known and one more, so that its next tokens
 * find room, or with `early` all of them; never more than `pages_whole`, those of the whole answer. */
uint32_t preempt_pages_first(uint32_t rows, uint32_t page_tokens, uint32_t pages_whole, bool early);

/* Those who are older than the newcomer and still grow. */
struct preempt_elders {
    uint32_t count;
    uint64_t growth_pages; /* all that they can still take */
};
/* Pages that must be to be had beyond its own before a sequence that gave way `times` times comes in. */
uint64_t preempt_headroom(const struct preempt_elders *elders, uint32_t times);

/* --- giving way --- */

/* One that holds pages and may be asked for them. */
struct preempt_holder {
    uint64_t age;
    const uint32_t *pages; /* block table; a page may be shared with others */
    uint32_t page_count;
    uint32_t index; /* the caller's */
};

/* Memory for preempt_victims, of pool->total entries each, all zero between calls. */
struct preempt_scratch {
    uint32_t *drops; /* pins that would be gone */
};
enum status preempt_scratch_init(struct preempt_scratch *scratch, uint32_t pages);
void preempt_scratch_finish(struct preempt_scratch *scratch);

/* Which holders give way to a request of `age` that lacks `pages_missing`: the youngest first, never one that is as old or
 * older, and nobody unless it is enough. Counts what would really be to be had: of a page that several hold nothing before the
 * last of them goes. `holders` come youngest first. Returns how many of them, from the first on (they may hold nothing that helps:
 * preempt_victims leaves those out of victims_out, which has room for `count`); 0 when it cannot be enough. */
uint32_t preempt_victims(const struct pool *pool, struct preempt_scratch *scratch,
                         const struct preempt_holder *holders, uint32_t count, uint64_t age,
                         uint32_t pages_missing, uint32_t *victims_out);

/* --- the way out and back --- */

enum preempt_way { PREEMPT_RECOMPUTE, PREEMPT_SWAP };
/* In the order of the option's choices. */
enum preempt_rule { PREEMPT_RULE_AUTO, PREEMPT_RULE_SWAP, PREEMPT_RULE_RECOMPUTE };

struct preempt_cost {
    enum preempt_rule rule;
    bool swap_room;             /* host memory has room for its bytes */
    uint64_t bytes;             /* of its computed pages */
    uint32_t tokens;            /* that would be computed again */
    double copy_bytes_per_s;    /* measured; 0: not yet */
    double prompt_tokens_per_s; /* measured; 0: not yet */
};
/* The cheaper one: bytes out and in again against tokens again. Without room it is recomputation whatever the rule; as long as
 * a rate is not measured it is swapping, which measures one of them and computes nothing twice. */
enum preempt_way preempt_choose(const struct preempt_cost *cost);

/* --- leaving --- */

/* Whether a sequence with so much left ends within `left_ns`, by a step's measured time and the prompts' measured rate; what is
 * not measured yet counts as nothing. */
struct preempt_rest {
    uint32_t tokens_left, prompt_tokens_left;
    double step_ns, prompt_tokens_per_s;
};
bool preempt_ends_within(const struct preempt_rest *rest, uint64_t left_ns);

#endif
