/* See placement.h. Everything about one node is worked out once; then the search looks at all pairs: some hundreds of nodes
 * are some ten thousand comparisons, far below the price of one prompt. */
#include "sched/placement.h"

#include <assert.h>

static const uint64_t us_per_s = 1000000;
/* What a node that is filled to its last sequence is worse than an empty one: its streams are slower for as long as this
 * answer lasts, which nobody knows. */
static const uint64_t load_us = 1000000;
static const uint64_t slow_floor_us = 50000;
static const uint32_t retry_s = 30;
/* Tokens a second where no node has measured any: only the order among nodes depends on it. */
static const uint64_t rate_unmeasured = 1000;

enum { HOLDERS_MAX = 16 }; /* the longest prefixes are enough to choose a fetch from */

/* What the request would be on one node. */
struct part {
    bool reads, decodes; /* it may take that phase at all */
    bool reads_now, decodes_now, both_now;
    uint32_t usable_pages;
    size_t fetch; /* SIZE_MAX: none */
    uint32_t fetch_pages;
    uint64_t prefill_us; /* until its first token, were it P */
    uint64_t own_us;     /* the same as far as others should compare with: without a fetch */
    uint64_t load_us;    /* were it D */
    uint64_t move_bytes; /* that a D lacks */
};

struct search {
    const struct placement_view *view;
    const struct placement_request *request;
    uint64_t rate;               /* the best measured prefill, tokens a second; 0: none is */
    size_t holders[HOLDERS_MAX]; /* nodes whose caches are shared, the longest prefix first */
    size_t holder_count;
    struct part parts[PLACEMENT_NODES_MAX];
};

struct cost {
    unsigned penalty; /* of the roles; lower wins before anything else */
    uint64_t us;
    bool fetches;         /* own pages are better than equally soon ones */
    uint32_t pages_taken; /* on D: the tie between idle nodes goes to the emptier pool */
};

static unsigned prefill_penalty(enum placement_role role)
{
    return role == PLACEMENT_PREFILL ? 0 : role == PLACEMENT_MIXED ? 1 : 2;
}

static unsigned decode_penalty(enum placement_role role)
{
    return role == PLACEMENT_DECODE ? 0 : role == PLACEMENT_MIXED ? 1 : 2;
}

static bool cost_less(const struct cost *a, const struct cost *b)
{
    if (a->penalty != b->penalty)
        return a->penalty < b->penalty;
    if (a->us != b->us)
        return a->us < b->us;
    return a->fetches != b->fetches ? b->fetches : a->pages_taken < b->pages_taken;
}

/* --- links --- */

static enum placement_link link_of(const struct placement_view *view, size_t from, size_t to)
{
    return view->links && from != to
               ? (enum placement_link)view->links[from * view->link_stride + to]
               : PLACEMENT_LINK_UP;
}

/* 0 as well where no rate is known. */
static uint64_t move_us(const struct placement_view *view, size_t from, size_t to, uint64_t bytes)
{
    uint64_t kb_per_s =
        view->link_kb_per_s ? view->link_kb_per_s[from * view->link_stride + to] : 0;
    return kb_per_s ? bytes * 1000 / kb_per_s : 0;
}

/* --- one node --- */

uint32_t placement_usable_pages(const struct placement_request *request, uint32_t cached_pages)
{
    if (!request->page_tokens || !request->prefill_tokens)
        return 0;
    uint32_t most = (request->prefill_tokens - 1) / request->page_tokens;
    return cached_pages < most ? cached_pages : most;
}

uint32_t placement_decode_pages(const struct placement_request *request,
                                const struct placement_node *node)
{
    return node->grows ? request->first_pages : request->answer_pages;
}

static bool has_room(const struct placement_node *node, uint32_t pages)
{
    if (node->held || node->sequences >= node->sequences_max)
        return false;
    uint64_t wanted = (uint64_t)node->pages_taken + pages + (node->grows ? node->growing : 0);
    /* an idle node is asked whatever the account says: it is the authority */
    return node->sequences == 0 || wanted <= node->pages_total;
}

/* A node that has never read a prompt is taken to be like the best of the others. */
static uint64_t rate_of(const struct search *search, const struct placement_node *node)
{
    return node->prefill_tokens_per_s ? node->prefill_tokens_per_s : search->rate;
}

static uint64_t compute_us(const struct search *search, const struct placement_node *node,
                           uint64_t tokens)
{
    uint64_t rate = rate_of(search, node);
    return tokens * us_per_s / (rate ? rate : rate_unmeasured);
}

/* The cheapest way for node `at` to come by what it lacks; the longest of equally cheap ones. */
static void fetch_choose(const struct search *search, size_t at, struct part *part)
{
    const struct placement_request *request = search->request;
    const struct placement_node *node = &search->view->nodes[at];
    bool always = request->fetch == PLACEMENT_FETCH_ALWAYS;
    uint64_t least_us = UINT64_MAX;
    for (size_t i = 0; i < search->holder_count; i++) {
        size_t from = search->holders[i];
        uint32_t pages = placement_usable_pages(request, search->view->nodes[from].cached_pages);
        if (pages <= part->usable_pages)
            break; /* nor has anybody after it */
        if (from == at || link_of(search->view, from, at) != PLACEMENT_LINK_UP)
            continue;
        uint64_t gained = (uint64_t)(pages - part->usable_pages);
        uint64_t fetch_us = move_us(search->view, from, at, gained * request->page_bytes);
        uint64_t saved_us = compute_us(search, node, gained * request->page_tokens);
        /* without a measured rate on either side it is tried, and then there is one */
        if (!always && rate_of(search, node) && fetch_us && fetch_us >= saved_us)
            continue;
        uint64_t rest = request->prefill_tokens - (uint64_t)pages * request->page_tokens;
        uint64_t us = fetch_us + compute_us(search, node, rest);
        if (us >= least_us)
            continue;
        least_us = us;
        part->fetch = from;
        part->fetch_pages = pages;
        if (always)
            break; /* the longest */
    }
    if (part->fetch != SIZE_MAX)
        part->prefill_us = compute_us(search, node, node->prefill_tokens) + least_us;
}

static struct part part_of(const struct search *search, size_t at)
{
    const struct placement_request *request = search->request;
    const struct placement_node *node = &search->view->nodes[at];
    struct part part = {.fetch = SIZE_MAX};
    if (!node->serving)
        return part;
    uint32_t usable = placement_usable_pages(request, node->cached_pages);
    uint32_t read_pages = request->prefill_pages - usable;
    uint32_t decode_pages = placement_decode_pages(request, node);
    decode_pages = decode_pages > usable ? decode_pages - usable : 0;
    part.usable_pages = usable;
    part.reads = request->prefill_pages <= node->pages_total;
    part.decodes = request->answer_pages <= node->pages_total;
    part.reads_now = has_room(node, read_pages);
    part.decodes_now = has_room(node, decode_pages);
    part.both_now = has_room(node, decode_pages > read_pages ? decode_pages : read_pages);
    part.load_us = node->sequences * load_us / (node->sequences_max ? node->sequences_max : 1);
    part.move_bytes = (uint64_t)read_pages * request->page_bytes;
    uint64_t left = request->prefill_tokens - (uint64_t)usable * request->page_tokens;
    part.own_us = part.prefill_us = compute_us(search, node, node->prefill_tokens + left);
    if (request->fetch != PLACEMENT_FETCH_OFF)
        fetch_choose(search, at, &part);
    return part;
}

static void holder_add(struct search *search, size_t at)
{
    const struct placement_node *nodes = search->view->nodes;
    uint32_t pages = nodes[at].cached_pages;
    size_t i = search->holder_count;
    if (i == HOLDERS_MAX && nodes[search->holders[i - 1]].cached_pages >= pages)
        return;
    i = i == HOLDERS_MAX ? i - 1 : i;
    search->holder_count = i + 1;
    for (; i && nodes[search->holders[i - 1]].cached_pages < pages; i--)
        search->holders[i] = search->holders[i - 1];
    search->holders[i] = at;
}

static void search_begin(struct search *search, const struct placement_view *view,
                         const struct placement_request *request)
{
    assert(view->node_count <= PLACEMENT_NODES_MAX);
    search->view = view;
    search->request = request;
    search->rate = 0;
    search->holder_count = 0;
    for (size_t i = 0; i < view->node_count; i++) {
        if (view->nodes[i].prefill_tokens_per_s > search->rate)
            search->rate = view->nodes[i].prefill_tokens_per_s;
        if (view->nodes[i].shares && view->nodes[i].cached_pages)
            holder_add(search, i);
    }
    for (size_t i = 0; i < view->node_count; i++)
        search->parts[i] = part_of(search, i);
}

/* --- pairs --- */

/* Roles and link allow a transfer. */
static bool pair_allowed(const struct search *search, size_t p, size_t d)
{
    const struct placement_node *nodes = search->view->nodes;
    return nodes[p].role < nodes[d].role && !search->request->local_only &&
           link_of(search->view, p, d) != PLACEMENT_LINK_DOWN;
}

/* D would have computed the prompt before it has come from P. */
static bool pair_slow(const struct search *search, size_t p, size_t d)
{
    const struct part *part = &search->parts[d];
    const struct placement_view *view = search->view;
    return !search->request->slow_links_too && rate_of(search, &view->nodes[d]) &&
           move_us(view, p, d, part->move_bytes) > part->own_us + slow_floor_us &&
           (!view->link_seen_s ||
            view->now_s - view->link_seen_s[p * view->link_stride + d] < retry_s);
}

struct best {
    unsigned class
        ; /* the lowest penalty of all that exists, room or not; UINT32_MAX: nothing does */
    bool found;
    struct cost cost;
    size_t prefill, decode;
};

static void best_offer(struct best *best, const struct cost *cost, bool ready, size_t p, size_t d)
{
    if (cost->penalty < best->class) {
        best->class = cost->penalty;
        best->found = false;
    }
    if (cost->penalty != best->class || !ready || (best->found && !cost_less(cost, &best->cost)))
        return;
    best->found = true;
    best->cost = *cost;
    best->prefill = p;
    best->decode = d;
}

static void offer_prefill_only(const struct search *search, size_t p, struct best *best)
{
    const struct placement_node *node = &search->view->nodes[p];
    const struct part *part = &search->parts[p];
    struct cost cost = {prefill_penalty(node->role), part->prefill_us, part->fetch != SIZE_MAX,
                        node->pages_taken};
    if (part->reads)
        best_offer(best, &cost, part->reads_now, p, p);
}

/* All ways to decode on d: after a transfer from any P, or after reading the prompt there. */
static void offer_decode(const struct search *search, size_t d, struct best *best)
{
    const struct placement_view *view = search->view;
    const struct placement_node *node = &view->nodes[d];
    const struct part *part = &search->parts[d];
    if (!part->decodes)
        return;
    uint64_t lacks = search->request->prefill_tokens -
                     (uint64_t)part->usable_pages * search->request->page_tokens;
    bool reads_itself = part->reads && lacks <= search->request->local_prefill_tokens;
    unsigned own = decode_penalty(node->role);
    unsigned stands_for =
        UINT32_MAX; /* the best class of pairs that are not made because of that */
    bool paired = false;
    for (size_t p = 0; p < view->node_count; p++) {
        if (p == d || !search->parts[p].reads || !pair_allowed(search, p, d))
            continue;
        unsigned penalty = prefill_penalty(view->nodes[p].role) + own;
        if (reads_itself || (part->reads && pair_slow(search, p, d))) {
            stands_for = penalty < stands_for ? penalty : stands_for;
            continue;
        }
        paired = true;
        struct cost cost = {penalty,
                            search->parts[p].prefill_us + part->load_us +
                                move_us(view, p, d, part->move_bytes),
                            search->parts[p].fetch != SIZE_MAX, node->pages_taken};
        best_offer(best, &cost,
                   search->parts[p].reads_now && part->decodes_now &&
                       link_of(view, p, d) == PLACEMENT_LINK_UP,
                   p, d);
    }
    if (!part->reads)
        return;
    struct cost cost = {prefill_penalty(node->role) + own, part->prefill_us + part->load_us,
                        part->fetch != SIZE_MAX, node->pages_taken};
    if (!paired && stands_for < cost.penalty)
        cost.penalty = stands_for;
    best_offer(best, &cost, part->both_now, d, d);
}

static enum placement_result nothing_exists(const struct placement_view *view)
{
    return placement_covered(view) ? PLACEMENT_TOO_LARGE : PLACEMENT_NO_NODE;
}

enum placement_result placement_choose(const struct placement_view *view,
                                       const struct placement_request *request,
                                       struct placement *placement_out)
{
    struct search search;
    struct best best = {.class = UINT32_MAX};
    search_begin(&search, view, request);
    for (size_t i = 0; i < view->node_count; i++)
        if (request->prefill_only)
            offer_prefill_only(&search, i, &best);
        else
            offer_decode(&search, i, &best);
    if (!best.found)
        return best.class == UINT32_MAX ? nothing_exists(view) : PLACEMENT_BUSY;
    *placement_out = (struct placement){.prefill = best.prefill,
                                        .decode = best.decode,
                                        .fetch = search.parts[best.prefill].fetch,
                                        .fetch_pages = search.parts[best.prefill].fetch_pages};
    return PLACEMENT_FOUND;
}

enum placement_result placement_choose_decode(const struct placement_view *view,
                                              const struct placement_request *request,
                                              size_t prefill, size_t not_node, size_t *decode_out)
{
    struct search search;
    bool exists = false, found = false;
    struct cost best = {0};
    search_begin(&search, view, request);
    for (size_t d = 0; d < view->node_count; d++) {
        const struct part *part = &search.parts[d];
        /* P may have begun to drain: it still serves what it has, so only D's side is asked; and a slow link is better than
         * computing again what is there already */
        if (d == prefill || !part->decodes || request->prefill_only ||
            !pair_allowed(&search, prefill, d))
            continue;
        exists = true;
        if (d == not_node || !part->decodes_now || link_of(view, prefill, d) != PLACEMENT_LINK_UP)
            continue;
        struct cost cost = {decode_penalty(view->nodes[d].role),
                            part->load_us + move_us(view, prefill, d, part->move_bytes), false,
                            view->nodes[d].pages_taken};
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
