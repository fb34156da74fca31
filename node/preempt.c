/* The way out of the pages and back into them. See preempt.h.
 * Owner: the loop thread. */
#include <assert.h>
#include <stdlib.h>

#include "node/node.h"

enum status preempt_init(struct node *node)
{
    const struct node_options *o = node->options;
    struct preempt *preempt = &node->preempt;
    uint32_t works = node->table.count;
    *preempt = (struct preempt){.rule = (enum preempt_rule)o->preempt,
                                .early = o->reserve == NODE_RESERVE_EARLY,
                                .every = (uint32_t)o->preempt_every};
    preempt->holders = calloc(works, sizeof *preempt->holders);
    preempt->victims = calloc(works, sizeof *preempt->victims);
    if (!preempt->holders || !preempt->victims)
        return STATUS_MEMORY;
    enum status status = preempt_scratch_init(&preempt->scratch, node->pool.total);
    return status ? status : swap_init(&preempt->swap, node->info, o->swap_memory);
}

void preempt_finish(struct node *node)
{
    struct preempt *preempt = &node->preempt;
    free(preempt->holders);
    free(preempt->victims);
    preempt_scratch_finish(&preempt->scratch);
    swap_finish(&preempt->swap);
}

static uint32_t pages_of(const struct node *node, uint32_t rows)
{
    return (rows + node->info->page_tokens - 1) / node->info->page_tokens;
}

/* --- out --- */

bool preempt_can(const struct work *work)
{
    switch (work->state) {
    case WORK_DECODING:
    case WORK_RESTORING:
        return true;
    case WORK_FETCHING: /* what it found again is being checked */
        return work->preemptions > 0;
    case WORK_PROMPT:
        return work->leg != WORK_LEG_PREFILL; /* whose pages a transfer may be taking */
    default:
        return false;
    }
}

void preempt_begin(struct node *node, struct work *work)
{
    assert(preempt_can(work));
    pool_wait_end(&work->waiter);
    if (work->state != WORK_RESTORING)
        work->save = PREEMPT_SAVE_UNDECIDED; /* else its bytes are where they were */
    work->preemptions++;
    work->preempted_count = work->generated_count;
    work_move(work, WORK_SAVING, loop_now_ns(node->loop));
}

/* All its rows are computed: by which way it goes. */
static void save_decide(struct node *node, struct work *work)
{
    struct preempt *preempt = &node->preempt;
    uint32_t count = pages_of(node, work->rows_submitted);
    struct preempt_cost cost = {
        .rule = preempt->rule,
        .swap_room = count > 0 && count <= preempt->swap.free_count &&
                     !engine_slot_failed(node->engine, work->slot),
        .bytes = count * node->info->page_bytes,
        .tokens = work->rows_submitted,
        .copy_bytes_per_s = preempt->copy_bytes_per_s,
        .prompt_tokens_per_s = node->steps.prompt_tokens_per_s,
    };
    if (preempt_choose(&cost) == PREEMPT_RECOMPUTE) {
        work->save = PREEMPT_SAVE_NOTHING;
        return;
    }
    work->save = PREEMPT_SAVE_SWAP;
    bool taken = swap_take(&preempt->swap, count, work->swap_pages);
    assert(taken && count <= work->page_count);
    (void)taken;
    work->swap_count = count;
    work->swap_begun = 0;
    work->swap_wrong = false;
    work->swap_begin_ns = clock_now_ns();
}

/* Begins the copies on its way out. False: not all of them yet, a shared page's piece is busy with somebody else's (waker: that
 * COPY_DONE, after which this comes again). */
static bool save_copies(struct node *node, struct work *work)
{
    uint32_t runs = node->info->run_count;
    for (; work->swap_begun < work->swap_count * runs; work->swap_begun++) {
        uint32_t i = work->swap_begun / runs, run = work->swap_begun % runs;
        if (copies_busy(&node->copies, work->pages[i], run))
            return false;
        uint64_t sum; /* what has a checksum is to have it still */
        bool sealed = engine_piece_sum(node->engine, work->pages[i], run, &sum);
        copies_begin_at(&node->copies, work, ENGINE_COPY_EXPORT, work->pages[i], run,
                        swap_piece(&node->preempt.swap, work->swap_pages[i], run),
                        sealed ? &sum : NULL);
    }
    return true;
}

static void rate_follow(double *mean, double value)
{
    *mean = *mean > 0 ? 0.75 * *mean + 0.25 * value : value;
}

/* Nothing touches its pages any more, and what is to be kept is kept. */
static void save_finish(struct node *node, struct work *work)
{
    struct preempt *preempt = &node->preempt;
    if (work->swap_wrong) {
        preempt_forget(node, work);
        work->save = PREEMPT_SAVE_NOTHING;
    }
    if (work->swap_begin_ns && work->swap_count)
        rate_follow(&preempt->copy_bytes_per_s,
                    (double)(work->swap_count * node->info->page_bytes) * 1e9 /
                        (double)(clock_now_ns() - work->swap_begin_ns + 1));
    work->swap_begin_ns = 0;
    cache_release(node, work);
    if (work->save == PREEMPT_SAVE_NOTHING) {
        preempt->recomputed++;
        metric_add(node->counted.preempted_recompute, 1);
        if (work->rows_submitted > work->rows_before)
            work->rows_before = work->rows_submitted;
        work->rows_submitted = work->rows_done = 0;
    } else {
        preempt->swapped++;
        metric_add(node->counted.preempted_swap, 1);
    }
    work->pages_needed = preempt_pages_first(work_total(work), node->info->page_tokens,
                                             work->pages_whole, preempt->early);
    work_move(work, WORK_PREEMPTED, loop_now_ns(node->loop));
    pool_wait(&node->pool, &work->waiter, work->age, work->pages_needed, work->index);
}

void preempt_settle(struct node *node)
{
    list_for_each_safe(it, next, &node->table.states[WORK_SAVING])
    {
        struct work *work = container_of(it, struct work, link);
        if (work->steps_outstanding || work->copies || work->fetch.live || work->serve.live)
            continue;
        if (work->save == PREEMPT_SAVE_UNDECIDED)
            save_decide(node, work);
        if (work->save == PREEMPT_SAVE_SWAP && !save_copies(node, work))
            continue;
        if (!work->copies && engine_pages_release(node->engine, work->pages, work->page_count))
            save_finish(node, work);
    }
}

/* --- back --- */

void preempt_resume(struct node *node, struct work *work)
{
    struct preempt *preempt = &node->preempt;
    assert(work->save == PREEMPT_SAVE_SWAP && work->swap_count <= work->page_count);
    /* what comes back is overwritten whole; what comes after it starts as zeros */
    engine_pages_unseal(node->engine, work->pages, work->swap_count);
    engine_pages_zero(node->engine, work->pages + work->swap_count,
                      work->page_count - work->swap_count);
    work_move(work, WORK_RESTORING, loop_now_ns(node->loop));
    work->swap_wrong = false;
    for (uint32_t i = 0; i < work->swap_count; i++)
        for (uint32_t run = 0; run < node->info->run_count; run++)
            copies_begin_at(&node->copies, work, ENGINE_COPY_IMPORT, work->pages[i], run,
                            swap_piece(&preempt->swap, work->swap_pages[i], run),
                            swap_sum(&preempt->swap, work->swap_pages[i], run));
}

static void restored(struct node *node, struct work *work)
{
    uint64_t now_ns = loop_now_ns(node->loop);
    if (work->swap_wrong) { /* computed again instead; save_finish sees to the rest */
        work_move(work, WORK_SAVING, now_ns);
        return;
    }
    preempt_forget(node, work);
    work_move(work, work_total(work) - work->rows_submitted > 1 ? WORK_PROMPT : WORK_DECODING,
              now_ns);
}

void preempt_copied(struct node *node, struct work *work, const struct engine_copy *copy)
{
    struct preempt *preempt = &node->preempt;
    if (copy->status != STATUS_OK) {
        preempt->checksum_failures++;
        work->swap_wrong = true;
    }
    if (copy->kind == ENGINE_COPY_EXPORT) {
        uint64_t offset = (uint64_t)((uint8_t *)copy->host - preempt->swap.memory);
        *swap_sum(&preempt->swap, (uint32_t)(offset / preempt->swap.page_bytes), copy->run) =
            copy->sum;
    }
    if (work->state == WORK_RESTORING && !work->copies)
        restored(node, work);
}

void preempt_forget(struct node *node, struct work *work)
{
    swap_give(&node->preempt.swap, work->swap_pages, work->swap_count);
    work->swap_count = 0;
}
