/* What a work holds, from its pages to its last token: pages for the oldest that waits, who gives way to it, and the way
 * back, on which nothing is free before nothing can touch it any more.
 * Owner: the loop thread. */
#include <assert.h>

#include "base/plant.h"
#include "node/node.h"

static const uint64_t drain_patience_ns = 5 * NS_PER_S; /* ENDING, then QUARANTINED */

/* --- pages --- */

static struct pages_refused pages_seen(const struct node *node, uint64_t age)
{
    return (struct pages_refused){.age = age,
                                  .moves = node->table.moves,
                                  .serials = node->cache.prefix.serials,
                                  .available = pool_available(&node->pool)};
}

static bool pages_as_before(const struct node *node, uint64_t age)
{
    struct pages_refused now = pages_seen(node, age);
    const struct pages_refused *then = &node->refused_pages;
    return now.moves && now.age == then->age && now.moves == then->moves &&
           now.serials == then->serials && now.available == then->available;
}

void node_pages_give(struct node *node)
{
    for (;;) {
        PLANT_DO(PAGES_ONE_BY_ONE, planted_one_by_one(node));
        struct pool_waiter *waiter = pool_wait_first(&node->pool);
        if (!waiter || pages_as_before(node, waiter->age))
            return;
        struct work *work = &node->table.works[waiter->owner];
        bool grows = work->state == WORK_DECODING;
        /* what is found here already is pinned first, so that it counts neither as missing nor as to be had */
        uint32_t pages = grows ? 1 : node_work_find_pages(node, work);
        if (pages > pool_available(&node->pool)) {
            grow_ask(node, work->age, pages);
            node_works_settle(node); /* what was dropped is free by now, most often */
        }
        if (pages > pool_available(&node->pool) || (!grows && !grow_may_enter(node, work, pages))) {
            if (!grows && work->page_count == work->hit_count)
                cache_release(node, work);
            node->refused_pages = pages_seen(node, work->age);
            return;
        }
        pool_wait_end(waiter);
        if (grows)
            grow_take(node, work);
        else
            node_work_begin(node, work);
    }
}

/* --- the end of a work --- */

static void ended_report(struct node *node, struct work *work)
{
    if (work->ended_reported)
        return;
    work->ended_reported = true;
    if (!work->silent)
        outbox_report(&node->outbox, work->key.transfer, BATON__NODE__V1__REPORT__KIND__ENDED,
                      STATUS_OK, "");
}

/* Nothing can touch its pages any more. */
static bool work_drained(const struct node *node, const struct work *work)
{
    return !work->fetch.live && !work->serve.live && !work->copies &&
           (engine_cancel_acked(node->engine, work->slot) || PLANTED(FREED_WHILE_RUNNING)) &&
           engine_pages_release(node->engine, work->pages, work->page_count);
}

/* Moves a work that is over as far as it goes now. */
static void work_settle(struct node *node, struct work *work)
{
    uint64_t now_ns = loop_now_ns(node->loop);
    if (work->state == WORK_ENDING && work_drained(node, work)) {
        preempt_forget(node, work);
        cache_release(node, work);
        engine_slot_release(node->engine, work->slot);
        work_move(work, WORK_LEAVING, now_ns);
        ended_report(node, work);
    } else if (work->state == WORK_ENDING && now_ns - work->state_since_ns > drain_patience_ns) {
        pool_quarantine(&node->pool, work->index, work->pages, work->page_count);
        work_move(work, WORK_QUARANTINED, now_ns);
        ended_report(node, work);
    } else if (work->state == WORK_QUARANTINED && work_drained(node, work)) {
        preempt_forget(node, work);
        pool_recover(&node->pool, work->pages, work->page_count);
        work->page_count = 0;
        engine_slot_release(node->engine, work->slot);
        work_move(work, WORK_LEAVING, now_ns);
    }
    if (work->state == WORK_LEAVING && !work->steps_outstanding && !work->stuck_count)
        work_move(work, WORK_FREE, now_ns);
}

void node_works_settle(struct node *node)
{
    preempt_settle(node);
    /* in this order, so that what has nothing to wait for goes all the way */
    static const uint8_t states[] = {WORK_ENDING, WORK_QUARANTINED, WORK_LEAVING};
    for (int i = 0; i < 3; i++)
        list_for_each_safe(it, next, &node->table.states[states[i]])
            work_settle(node, container_of(it, struct work, link));
}

void node_work_end(struct node *node, struct work *work, enum status why)
{
    if (!work_live(work))
        return;
    if (work->state == WORK_FETCHING || work->state == WORK_ORPHAN)
        cache_keep(node, work);
    cache_tell_soon(node);
    pool_wait_end(&work->waiter);
    work_move(work, WORK_ENDING, loop_now_ns(node->loop));
    engine_cancel(node->engine, work->slot);
    serve_end(node, work, why);
    fetch_end(node, work);
}

void node_work_fail(struct node *node, struct work *work, Baton__Node__V1__Report__Kind kind,
                    enum status status, const char *text)
{
    if (!work_live(work))
        return;
    if (kind == BATON__NODE__V1__REPORT__KIND__GAVE_UP)
        outbox_report_pages(&node->outbox, work->key.transfer, kind, text,
                            cache_verified(node, work));
    else
        outbox_report(&node->outbox, work->key.transfer, kind, status, text);
    node_work_end(node, work, status);
}

void node_stop_all(struct node *node)
{
    for (uint32_t i = 0; i < node->table.count; i++) {
        struct work *work = &node->table.works[i];
        work->silent = true;
        node_work_end(node, work, STATUS_CANCELLED);
        work_settle(node, work);
    }
}

/* --- tokens --- */

bool node_work_token(struct node *node, struct work *work, struct outbox_token *token)
{
    assert(token->position == work->generated_count && work_total(work) < node->table.tokens_max);
    work->tokens[work_total(work)] = token->token.token_id;
    work->generated_count++;
    token->finish = work_finish(work, token->token.token_id);
    /* the router hears what is cached before the last token, so that a client's next turn finds all of it; of a prompt
     * soon after its first one, which waits for nothing */
    if (work->state == WORK_PROMPT || token->finish != WORK_FINISH_NONE)
        cache_tell_soon(node);
    if (token->finish != WORK_FINISH_NONE)
        cache_tell(node);
    outbox_token(&node->outbox, token);
    if (token->finish == WORK_FINISH_NONE)
        return true;
    node_work_end(node, work, STATUS_OK);
    return false;
}

void node_work_join(struct node *node, struct work *work)
{
    assert(work->first_known && work->first.position == work->generated_count);
    pool_fill(&node->pool, work->index, work->pages + work->hit_count,
              work->page_count - work->hit_count);
    work->rows_submitted = work->rows_done = work_total(work); /* P computed all of them */
    work->joined = true;
    work_move(work, WORK_DECODING, loop_now_ns(node->loop));
    cache_publish(node, work);
    outbox_report(&node->outbox, work->key.transfer, BATON__NODE__V1__REPORT__KIND__JOINED,
                  STATUS_OK, "");
    struct outbox_token token = {
        .attempt = work->key.transfer,
        .position = work->first.position,
        .token = {work->first.token_id, work->first.logprob},
        .top = work->first.top,
        .top_count = work->first.top_count,
        .moved_bytes = work->moved_bytes,
    };
    node_work_token(node, work, &token);
}
