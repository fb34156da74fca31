/* See decode.h. */
#include "decode_node/decode.h"

static void give_up(struct node *node, struct work *work, enum status status)
{
    node_work_fail(node, work, BATON__NODE__V1__REPORT__KIND__GAVE_UP, status, status_text(status));
}

static bool first_take(struct work *work, const struct kv_first *first)
{
    if (first->position != work->generated_count)
        return false;
    work->first = *first;
    work->first_known = true;
    return true;
}

static void leg_begin(struct node *node, struct work *work)
{
    struct fetch_begin begin = {.transfer = work->key.transfer,
                                .incarnation = work->source_incarnation,
                                .number = work->source_number,
                                .blocks = work->pages_moved,
                                .first_wanted = true};
    enum status status = fetch_begin(node, work, &begin);
    if (status)
        give_up(node, work, status);
}

static void leg_fetched(struct node *node, struct work *work, const struct kv_sink_result *result)
{
    if (result->first && !work->first_known && !first_take(work, result->first))
        give_up(node, work, STATUS_PROTOCOL);
    else if (result->pieces_missing)
        give_up(node, work, result->status);
    else if (work->first_known)
        node_work_join(node, work);
    else
        work_move(work, WORK_ORPHAN, loop_now_ns(node->loop));
}

static void leg_first_token(struct node *node, struct work *work, const struct kv_first *first)
{
    switch (work->state) {
    case WORK_WAITING:
        first_take(work, first);
        break;
    case WORK_FETCHING:
        if (work->fetch.live)
            fetch_first(node, work, first);
        else
            first_take(work, first);
        break;
    case WORK_ORPHAN:
        if (first_take(work, first))
            node_work_join(node, work);
        break;
    default: /* joined already: P's FIRST came before the router's copy */
        break;
    }
}

const struct node_leg decode_leg = {
    .begin = leg_begin,
    .fetched = leg_fetched,
    .first_token = leg_first_token,
};
