/* See placement.h. The search looks at all pairs: some hundreds of nodes are some ten thousand comparisons, far below the
 * price of one prompt. */
#include "sched/placement.h"

struct cost {
    unsigned penalty;      /* of the roles; lower wins before anything else */
    uint64_t prefill_us;   /* until P could begin */
    uint64_t decode_share; /* D's sequences per million of what it may hold */
    uint32_t pages_taken;  /* on D: the tie between idle nodes goes to the emptier pool */
};

static unsigned prefill_penalty(enum placement_role role)
{
    return role == PLACEMENT_PREFILL ? 0 : role == PLACEMENT_MIXED ? 1 : 2;
}

static unsigned decode_penalty(enum placement_role role)
{
    return role == PLACEMENT_DECODE ? 0 : role == PLACEMENT_MIXED ? 1 : 2;
}

static enum placement_link link_of(const struct placement_view *view, size_t p, size_t d)
{
    return view->links && p != d ? (enum placement_link)view->links[p * view->link_stride + d]
                                 : PLACEMENT_LINK_UP;
}

static bool has_room(const struct placement_node *node, uint32_t pages)
{
    if (node->held || node->sequences >= node->sequences_max)
        return false;
    /* an idle node is asked whatever the account says: it is the authority */
    return node->sequences == 0 ||
           (uint64_t)node->pages_taken + pages <= (uint64_t)node->pages_total;
}

static uint64_t prefill_wait_us(const struct placement_node *node)
{
    /* an unknown rate counts as one token a microsecond: the order among such nodes is that of their tokens */
    uint64_t rate = node->prefill_tokens_per_s ? node->prefill_tokens_per_s : 1000000;
    return node->prefill_tokens * 1000000 / rate;
}

static struct cost cost_of(const struct placement_node *p, const struct placement_node *d,
                           bool prefill_only)
{
    struct cost cost = {.penalty = prefill_penalty(p->role), .prefill_us = prefill_wait_us(p)};
    if (!prefill_only) {
        cost.penalty += decode_penalty(d->role);
        cost.decode_share =
            (uint64_t)d->sequences * 1000000 / (d->sequences_max ? d->sequences_max : 1);
    }
    cost.pages_taken = d->pages_taken;
    return cost;
}

static bool cost_less(const struct cost *a, const struct cost *b)
{
    if (a->penalty != b->penalty)
        return a->penalty < b->penalty;
    if (a->prefill_us != b->prefill_us)
        return a->prefill_us < b->prefill_us;
    if (a->decode_share != b->decode_share)
        return a->decode_share < b->decode_share;
    return a->pages_taken < b->pages_taken;
}

/* D may take over from P: it serves, the whole sequence fits, and the roles and the link allow a transfer. */
static bool decode_exists(const struct placement_view *view,
                          const struct placement_request *request, size_t p, size_t d)
{
    const struct placement_node *from = &view->nodes[p], *to = &view->nodes[d];
    if (!to->serving || (!request->prefill_only && request->answer_pages > to->pages_total))
        return false;
    if (p == d)
        return true;
    return !request->local_only && !request->prefill_only && from->role < to->role &&
           link_of(view, p, d) != PLACEMENT_LINK_DOWN;
}

static bool pair_exists(const struct placement_view *view, const struct placement_request *request,
                        size_t p, size_t d)
{
    const struct placement_node *from = &view->nodes[p];
    return from->serving && request->prefill_pages <= from->pages_total &&
           decode_exists(view, request, p, d);
}

/* The pair could begin now. */
static bool pair_ready(const struct placement_view *view, const struct placement_request *request,
                       size_t p, size_t d)
{
    if (p == d)
        return has_room(&view->nodes[p],
                        request->prefill_only ? request->prefill_pages : request->answer_pages);
    return has_room(&view->nodes[p], request->prefill_pages) &&
           has_room(&view->nodes[d], request->answer_pages) &&
           link_of(view, p, d) == PLACEMENT_LINK_UP;
}

static enum placement_result nothing_exists(const struct placement_view *view)
{
    return placement_covered(view) ? PLACEMENT_TOO_LARGE : PLACEMENT_NO_NODE;
}

enum placement_result placement_choose(const struct placement_view *view,
                                       const struct placement_request *request,
                                       struct placement *placement_out)
{
    unsigned best_class = UINT32_MAX;
    bool found = false;
    struct cost best = {0};
    for (int pass = 0; pass < 2; pass++)
        for (size_t p = 0; p < view->node_count; p++)
            for (size_t d = 0; d < view->node_count; d++) {
                if (!pair_exists(view, request, p, d))
                    continue;
                struct cost cost = cost_of(&view->nodes[p], &view->nodes[d], request->prefill_only);
                if (pass == 0) {
                    best_class = cost.penalty < best_class ? cost.penalty : best_class;
                } else if (cost.penalty == best_class && pair_ready(view, request, p, d) &&
                           (!found || cost_less(&cost, &best))) {
                    found = true;
                    best = cost;
                    *placement_out = (struct placement){.prefill = p, .decode = d};
                }
            }
    if (found)
        return PLACEMENT_FOUND;
    return best_class == UINT32_MAX ? nothing_exists(view) : PLACEMENT_BUSY;
}

enum placement_result placement_choose_decode(const struct placement_view *view,
                                              const struct placement_request *request,
                                              size_t prefill, size_t not_node, size_t *decode_out)
{
    bool exists = false, found = false;
    struct cost best = {0};
    for (size_t d = 0; d < view->node_count; d++) {
        /* P may have begun to drain: it still serves what it has, so only D's side is asked */
        if (d == prefill || !decode_exists(view, request, prefill, d))
            continue;
        exists = true;
        if (d == not_node || !has_room(&view->nodes[d], request->answer_pages) ||
            link_of(view, prefill, d) != PLACEMENT_LINK_UP)
            continue;
        struct cost cost = cost_of(&view->nodes[prefill], &view->nodes[d], false);
        if (!found || cost_less(&cost, &best)) {
            found = true;
            best = cost;
            *decode_out = d;
        }
    }
    if (found)
        return PLACEMENT_FOUND;
    return exists ? PLACEMENT_BUSY : nothing_exists(view);
}

bool placement_covered(const struct placement_view *view)
{
    for (size_t i = 0; i < view->node_count; i++)
        if (view->nodes[i].serving)
            return true;
    return false;
}
