/* How a node leaves, within its grace time.
 *
 *     drain ──▶ no new work ──▶ what can end in time does
 *                          └──▶ what cannot is handed over: HAND_OVER, once; it goes on here until the router, having placed it
 *                               elsewhere, ends it by name; its pages stay in the cache, to be fetched
 *     nothing is left (and nobody has come for a while for the pages of what was handed over), or the grace time is over ──▶ leave
 *
 * A sequence is handed over at once when it could not end in time at the pace of lately, else after half of the grace time. A router
 * that knows no HAND_OVER lets it run on, and replays elsewhere what is cut off in the end.
 *
 * Owner: the loop thread. */
#include "node/node.h"

static const uint64_t leave_patience_ns = 5 * NS_PER_S; /* for works to end after the grace time */
static const uint64_t fetch_patience_ns =
    NS_PER_S; /* for others to come for what was handed over */

void node_drain(struct node *node, uint64_t grace_ns)
{
    if (node->draining)
        return;
    uint64_t now_ns = loop_now_ns(node->loop);
    node->draining = true;
    node->hand_over_ns = now_ns + grace_ns / 2;
    node->drain_until_ns = now_ns + grace_ns;
    registration_beat(node->registration); /* so that the router places elsewhere at once */
}

static bool ends_in_time(const struct node *node, const struct work *work, uint64_t left_ns)
{
    uint32_t total = work_total(work);
    bool computes = work->leg != WORK_LEG_DECODE || work->preemptions;
    bool prompt =
        work->state == WORK_WAITING || work->state == WORK_PROMPT || work->state == WORK_PREEMPTED;
    struct preempt_rest rest = {
        .tokens_left = work->leg == WORK_LEG_PREFILL ? 0 : work->answer_max - work->generated_count,
        .prompt_tokens_left = prompt && computes ? total - work->rows_submitted : 0,
        .step_ns = node->steps.pace.decode_ns,
        .prompt_tokens_per_s = node->steps.prompt_tokens_per_s,
    };
    return preempt_ends_within(&rest, left_ns);
}

static void hand_over(struct node *node, struct work *work)
{
    work->handed_over = true;
    metric_add(node->counted.handed_over, 1);
    outbox_report(&node->outbox, work->key.transfer, BATON__NODE__V1__REPORT__KIND__HAND_OVER,
                  STATUS_DRAINING, "this node leaves");
}

void drain_tick(struct node *node, uint64_t now_ns)
{
    if (!node->draining || node->leaving)
        return;
    bool over = now_ns >= node->drain_until_ns;
    uint64_t left_ns = over ? 0 : node->drain_until_ns - now_ns;
    for (uint32_t i = 0; i < node->table.count; i++) {
        struct work *work = &node->table.works[i];
        if (!work_live(work))
            continue;
        bool due =
            over ||
            now_ns >= node->hand_over_ns; /* a loop that woke too late says so all the same */
        if (!work->handed_over && work->leg != WORK_LEG_SERVE &&
            (due || !ends_in_time(node, work, left_ns)))
            hand_over(node, work);
        if (over)
            node_work_end(node, work, STATUS_DRAINING);
        if (work->handed_over)
            node->fetched_until_ns = now_ns + fetch_patience_ns;
    }
    outbox_flush(&node->outbox);
    bool wanted = node_work_count(node) || now_ns < node->fetched_until_ns;
    if (over ? node_work_count(node) && now_ns < node->drain_until_ns + leave_patience_ns : wanted)
        return;
    node->leaving = true;
    registration_leave(node->registration);
}
