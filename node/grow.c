/* Growth page by page, headroom, and who gives way. See preempt.h.
 * Owner: the loop thread. */
#include <assert.h>

#include "node/node.h"

/* Where pages are held that somebody may be asked for. SAVING and ENDING give theirs up already. */
static const uint8_t holder_states[] = {WORK_PROMPT, WORK_HOLDING,  WORK_FETCHING,
                                        WORK_ORPHAN, WORK_DECODING, WORK_RESTORING};
enum { HOLDER_STATES = sizeof holder_states };

static struct work *work_of(struct list *link)
{
    return container_of(link, struct work, link);
}

/* --- growth --- */

void grow_take(struct node *node, struct work *work)
{
    assert(work->page_count < work->pages_whole);
    cache_take(node, work, 1, POOL_USED);
    engine_pages_zero(node->engine, &work->pages[work->page_count - 1], 1);
}

bool grow_row(struct node *node, struct work *work)
{
    const struct pool_waiter *first = pool_wait_first(&node->pool);
    /* in this order: its own lies far from what a step looks at */
    if (first && work->waiter.waiting)
        return false;
    if (pool_available(&node->pool) && (!first || first->age > work->age)) {
        grow_take(node, work);
        return true;
    }
    pool_wait(&node->pool, &work->waiter, work->age, 1, work->index);
    return false;
}

/* --- headroom --- */

bool grow_may_enter(const struct node *node, const struct work *work, uint32_t pages)
{
    struct preempt_elders elders = {0};
    uint64_t younger_pages = 0;
    for (int i = 0; i < HOLDER_STATES; i++)
        list_for_each(it, &node->table.states[holder_states[i]])
        {
            const struct work *other = work_of(it);
            if (other->age > work->age) {
                younger_pages += other->page_count; /* theirs are taken before this one's */
            } else if (other->leg != WORK_LEG_PREFILL && other->page_count < other->pages_whole) {
                elders.count++;
                elders.growth_pages += other->pages_whole - other->page_count;
            }
        }
    return pool_available(&node->pool) + younger_pages >=
           pages + preempt_headroom(&elders, work->preemptions);
}

/* --- who gives way --- */

/* Pages that will be free soon without anybody being asked. */
static uint32_t pages_coming(const struct node *node)
{
    uint32_t pages = 0;
    list_for_each(it, &node->table.states[WORK_ENDING]) pages += work_of(it)->page_count;
    list_for_each(it, &node->table.states[WORK_SAVING]) pages += work_of(it)->page_count;
    return pages;
}

/* Those who are younger than `age` and hold pages, the youngest first. */
static uint32_t holders_list(struct node *node, uint64_t age)
{
    struct list *at[HOLDER_STATES];
    uint32_t count = 0;
    for (int i = 0; i < HOLDER_STATES; i++)
        at[i] = node->table.states[holder_states[i]].prev;
    for (;;) {
        int youngest = -1;
        for (int i = 0; i < HOLDER_STATES; i++) {
            if (at[i] == &node->table.states[holder_states[i]] || work_of(at[i])->age <= age)
                continue;
            if (youngest < 0 || work_of(at[i])->age > work_of(at[youngest])->age)
                youngest = i;
        }
        if (youngest < 0)
            return count;
        const struct work *work = work_of(at[youngest]);
        at[youngest] = at[youngest]->prev;
        node->preempt.holders[count++] = (struct preempt_holder){.age = work->age,
                                                                 .pages = work->pages,
                                                                 .page_count = work->page_count,
                                                                 .index = work->index};
    }
}

void grow_ask(struct node *node, uint64_t age, uint32_t pages)
{
    struct preempt *preempt = &node->preempt;
    uint32_t have = pool_available(&node->pool) + pages_coming(node);
    if (have >= pages)
        return;
    uint32_t holder_count = holders_list(node, age);
    uint32_t victim_count = preempt_victims(&node->pool, &preempt->scratch, preempt->holders,
                                            holder_count, age, pages - have, preempt->victims);
    for (uint32_t i = 0; i < victim_count; i++) {
        struct work *victim = &node->table.works[preempt->victims[i]];
        if (preempt_can(victim)) {
            preempt_begin(node, victim);
            continue;
        }
        metric_add(node->counted.dropped, 1);
        node_work_fail(node, victim, BATON__NODE__V1__REPORT__KIND__DROPPED, STATUS_DROPPED,
                       "its pages went to an older request");
    }
}
