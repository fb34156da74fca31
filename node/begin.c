/* From a work's pages to its first row: hits are verified, what others have is fetched, and the rest is left to compute.
 *
 *     pages taken ─▶ hits? ─verified─▶ node_work_checked ─▶ decode: the leg asks for its pages
 *                      │ one is wrong                     ├─ a node to fetch from: FETCHING until that is over, however it ends
 *                      ▼                                  └─▶ node_work_compute: PROMPT, from the first row that is not there
 *                    WAITING again (PREEMPTED, if it computed before and gave way)
 *
 * Owner: the loop thread. */
#include <assert.h>

#include "node/node.h"

/* Whether another node was named that has more of it than was found here. */
static bool fetch_wanted(const struct work *work)
{
    return work->leg != WORK_LEG_DECODE && work->fetch_blocks > work->hit_count;
}

/* It computed before, and gave way. */
static bool comes_back(const struct work *work)
{
    return work->preemptions > 0;
}

uint32_t node_work_find_pages(struct node *node, struct work *work)
{
    uint32_t page_tokens = node->info->page_tokens;
    /* Who computes keeps at least the last row for itself, for its logits; for who receives P computes that. What comes back from
     * host memory has its own bytes. */
    bool receives = work->leg == WORK_LEG_DECODE && !comes_back(work);
    bool restores = comes_back(work) && work->save == PREEMPT_SAVE_SWAP;
    uint32_t blocks = (work_total(work) - (receives ? 0 : 1)) / page_tokens;
    if (!restores && !work->page_count)
        cache_find(node, work, blocks < work->pages_needed ? blocks : work->pages_needed);
    return work->pages_needed - work->page_count;
}

void node_work_begin(struct node *node, struct work *work)
{
    uint32_t found = work->hit_count;
    metric_add(node->cache.hit_pages, found);
    bool receives = !comes_back(work) && (work->leg == WORK_LEG_DECODE || fetch_wanted(work));
    /* what may be received is RESERVED until it is verified, or computed after all */
    work->receives = receives;
    cache_take(node, work, work->pages_needed - work->page_count,
               receives ? POOL_RESERVED : POOL_USED);
    if (comes_back(work) && work->save == PREEMPT_SAVE_SWAP) {
        preempt_resume(node, work);
        return;
    }
    if (receives || found)
        work_move(work, WORK_FETCHING, loop_now_ns(node->loop));
    if (!cache_check(node, work))
        node_work_checked(node, work);
}

void node_work_again(struct node *node, struct work *work)
{
    assert(!work->fetch.live && !work->copies); /* and nothing was zeroed yet */
    cache_release(node, work);
    work_move(work, comes_back(work) ? WORK_PREEMPTED : WORK_WAITING, loop_now_ns(node->loop));
    pool_wait(&node->pool, &work->waiter, work->age, work->pages_needed, work->index);
}

void node_work_checked(struct node *node, struct work *work)
{
    if (work->receives && work->leg == WORK_LEG_DECODE) {
        /* what is computed into starts as zeros; what is received is overwritten whole */
        if (work->page_count > work->pages_moved)
            engine_pages_zero(node->engine, work->pages + work->pages_moved,
                              work->page_count - work->pages_moved);
        node->legs[WORK_LEG_DECODE]->begin(node, work);
        return;
    }
    struct fetch_begin begin = {.transfer = work->fetch_transfer,
                                .incarnation = work->source_incarnation,
                                .number = work->source_number,
                                .blocks = work->fetch_blocks};
    if (work->receives && fetch_begin(node, work, &begin) == STATUS_OK)
        return;
    node_work_compute(node, work, work->hit_count);
}

void node_work_compute(struct node *node, struct work *work, uint32_t blocks)
{
    uint32_t own = work->hit_count;
    if (work->receives)
        pool_fill(&node->pool, work->index, work->pages + own, work->page_count - own);
    engine_pages_zero(node->engine, work->pages + blocks, work->page_count - blocks);
    work->rows_submitted = work->rows_done = blocks * node->info->page_tokens;
    if (!comes_back(work)) {
        work->cached_tokens =
            work->rows_done < work->prompt_count ? work->rows_done : work->prompt_count;
        metric_add(node->counted.tokens_cached, work->cached_tokens);
    }
    work_move(work, WORK_PROMPT, loop_now_ns(node->loop));
    cache_publish(node, work);
    if (work->leg == WORK_LEG_PREFILL)
        node->legs[WORK_LEG_PREFILL]->begin(node, work);
}
