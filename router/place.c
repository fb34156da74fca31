/* Where a request goes: what is known of it and of the nodes, put together for sched/placement.h.
 *
 *     prompt, received ids ─▶ hashes of its pages ─▶ what each node holds of them ─┐
 *     heartbeats, links, legs ─▶ registry_view ────────────────────────────────────┴─▶ placement_choose ─▶ attempt.c
 *
 * Owner: the loop thread. */
#include <stdlib.h>
#include <string.h>

#include "router/core.h"
#include "sched/preempt.h"

/* --- the hashes of a request's pages --- */

enum { PAGE_TOKENS_MAX = 1024 }; /* larger pages are not looked for */

/* Prompt and answer are two arrays: the page that lies in both is put together in `room`. */
static const uint32_t *page_ids(const struct request *r, uint64_t begin, uint32_t page_tokens,
                                uint32_t *room)
{
    uint64_t prompt = r->prompt.count;
    if (begin + page_tokens <= prompt)
        return r->prompt.ids + begin;
    if (begin >= prompt)
        return r->answer.ids + (begin - prompt);
    for (uint32_t i = 0; i < page_tokens; i++)
        room[i] = begin + i < prompt ? r->prompt.ids[begin + i] : r->answer.ids[begin + i - prompt];
    return room;
}

/* Once a request, and again when it is placed with more tokens, or on nodes with other pages. */
static void hashes_make(const struct registry *registry, struct request *r, uint64_t known)
{
    uint32_t page_tokens = registry->identity.page_tokens, room[PAGE_TOKENS_MAX];
    if (!page_tokens || page_tokens > PAGE_TOKENS_MAX || !known) {
        r->page_hash_count = 0;
        return;
    }
    uint32_t count = (uint32_t)((known - 1) / page_tokens);
    if (r->hashed_tokens == known && r->hashed_page_tokens == page_tokens)
        return;
    uint64_t *hashes = realloc(r->page_hashes, (count + 1) * sizeof *hashes);
    r->page_hash_count = 0;
    if (!hashes)
        return; /* nothing is found: it is computed */
    r->page_hashes = hashes;
    struct prefix_hash hash = prefix_hash_root(&registry->prefix_key, r->salt);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *ids = page_ids(r, (uint64_t)i * page_tokens, page_tokens, room);
        hash = prefix_hash_page(&registry->prefix_key, hash, ids, page_tokens);
        hashes[i] = hash.low;
    }
    r->page_hash_count = count;
    r->hashed_tokens = known;
    r->hashed_page_tokens = page_tokens;
}

/* --- what placement wants to know --- */

/* The last token of an answer is never computed. */
static uint32_t whole_pages(const struct core *core, const struct request *r)
{
    return registry_pages(&core->registry, (uint64_t)r->prompt.count + r->tokens_max - 1);
}

uint32_t place_pages(const struct core *core, const struct request *r)
{
    uint64_t known = (uint64_t)r->prompt.count + r->answer.received;
    uint32_t page_tokens = core->registry.identity.page_tokens;
    return page_tokens
               ? preempt_pages_first((uint32_t)known, page_tokens, whole_pages(core, r), false)
               : 0;
}

static struct placement_request want_of(const struct core *core, const struct request *r)
{
    uint64_t known = (uint64_t)r->prompt.count + r->answer.received;
    return (struct placement_request){
        .prefill_tokens = (uint32_t)known,
        .prefill_pages = registry_pages(&core->registry, known),
        .answer_pages = whole_pages(core, r),
        .first_pages = place_pages(core, r),
        .page_tokens = core->registry.identity.page_tokens,
        .page_bytes = core->registry.identity.page_bytes,
        .local_prefill_tokens = core->options.local_prefill_tokens,
        .fetch = core->options.fetch,
        .slow_links_too = core->options.hand_off_always,
        .prefill_only = r->tokens_max - r->answer.received == 1,
        .local_only = r->pair_failures >= PAIR_FAILURES_LOCAL,
    };
}

/* See note_left in core.c. */
static void view_left(const struct registry *registry, const struct request *r)
{
    for (int i = 0; i < REQUEST_LEFT_MAX; i++) {
        const struct request_left *left = &r->left[i];
        const struct node *node = left->pages ? registry->nodes[left->slot] : NULL;
        if (!node || node->incarnation != left->incarnation)
            continue;
        struct placement_node *to = &registry->placement_nodes[left->slot];
        if (to->shares && to->cached_pages < left->pages)
            to->cached_pages = left->pages;
    }
}

static struct placement_view view_of(struct core *core, struct request *r, uint64_t known)
{
    struct placement_view view = registry_view(&core->registry);
    if (core->registry.index.entries) {
        hashes_make(&core->registry, r, known);
        registry_cache_view(&core->registry, r->page_hashes, r->page_hash_count);
    }
    view_left(&core->registry, r);
    return view;
}

/* What a leg takes on a node that has some of its pages already. */
static struct leg_share share_of(const struct placement_view *view,
                                 const struct placement_request *want, size_t slot, bool reads,
                                 bool decodes)
{
    uint32_t pages =
        decodes ? placement_decode_pages(want, &view->nodes[slot]) : want->prefill_pages;
    uint32_t usable = placement_usable_pages(want, view->nodes[slot].cached_pages);
    return (struct leg_share){
        .pages = pages > usable ? pages - usable : 0,
        .cached_pages = usable,
        .prefill_tokens = reads ? want->prefill_tokens - (uint64_t)usable * want->page_tokens : 0,
    };
}

bool place_request(struct core *core, struct request *r)
{
    uint64_t begun_ns = core_clock(core);
    struct placement_request want = want_of(core, r);
    struct placement_view view = view_of(core, r, want.prefill_tokens);
    struct placement chosen;
    enum placement_result result = placement_choose(&view, &want, &chosen);
    if (result == PLACEMENT_NO_NODE) {
        if (!core->no_node_ns)
            core->no_node_ns = core->registry.now_ns;
        return false;
    }
    core->no_node_ns = 0;
    if (result == PLACEMENT_TOO_LARGE) {
        if (!r->too_large_ns)
            r->too_large_ns = core->registry.now_ns;
        return true; /* steps aside: nothing that others wait for would help it */
    }
    r->too_large_ns = 0;
    if (result == PLACEMENT_BUSY)
        return false;
    if (!r->timing.first_ns)
        r->timing.dequeued_ns = begun_ns;
    r->prefill_only = want.prefill_only;
    bool local = chosen.prefill == chosen.decode && !want.prefill_only;
    struct attempt_plan plan = {
        .prefill = core->registry.nodes[chosen.prefill],
        .decode = core->registry.nodes[chosen.decode],
        .prefill_share = share_of(&view, &want, chosen.prefill, true, false),
        .decode_share = share_of(&view, &want, chosen.decode, local, true),
        .fetch = chosen.fetch == SIZE_MAX ? NULL : core->registry.nodes[chosen.fetch],
        .fetch_pages = chosen.fetch_pages,
    };
    if (plan.fetch) {
        struct leg_share *reader = local ? &plan.decode_share : &plan.prefill_share;
        reader->prefill_tokens =
            want.prefill_tokens - (uint64_t)chosen.fetch_pages * want.page_tokens;
    }
    attempt_begin(core, r, &plan);
    return true;
}

void place_seek(struct core *core, struct request *r)
{
    struct placement_request want = want_of(core, r);
    struct placement_view view = view_of(core, r, want.prefill_tokens);
    want.prefill_only = false;
    size_t decode;
    switch (placement_choose_decode(&view, &want, r->source->node->slot, SIZE_MAX, &decode)) {
    case PLACEMENT_FOUND:
        attempt_give_decode(core, r, core->registry.nodes[decode],
                            share_of(&view, &want, decode, false, true));
        break;
    case PLACEMENT_BUSY:
        if (core->registry.now_ns - r->renewed_ns >= renew_every_ns)
            attempt_renew(core, r);
        break;
    default:
        /* nobody could take it over: another attempt, another way */
        request_requeue(core, r, false);
    }
}
