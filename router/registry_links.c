/* Who can reach whom, as far as the router is told: each node reports its own view of each peer, once it has met it and when
 * that ends. A pair may carry a transfer when one side says that they have met and neither says otherwise. A transfer
 * that failed marks the pair, not a node, until the two have met again; a pair whose link never went down in spite of it is
 * tried again after ten seconds. Nothing said about a pair for two seconds counts as a try worth making. See registry.h.
 *
 * Owner: the loop thread. */
#include "router/registry.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t unknown_wait_ns = 2 * NS_PER_S;
static const uint64_t failed_wait_ns = 10 * NS_PER_S;

enum view_state { VIEW_UNKNOWN, VIEW_UP, VIEW_DOWN };

struct link_view {
    uint8_t state;
    bool failed; /* of the pair (row: P, column: D) */
    uint64_t since_ns, failed_ns;
    uint64_t bytes_per_s;
};

static struct link_view *view_of(const struct registry *registry, size_t of, size_t about)
{
    return &registry->views[of * registry->node_capacity + about];
}

/* --- what placement sees of it: kept at each change; what only time changes, by registry_links_refresh --- */

static enum placement_link judge(const struct registry *registry, size_t p, size_t d)
{
    if (!registry_pair_wire(registry->nodes[p], registry->nodes[d]))
        return PLACEMENT_LINK_DOWN;
    struct link_view *pair = view_of(registry, p, d), *back = view_of(registry, d, p);
    if (pair->failed && registry->now_ns - pair->failed_ns > failed_wait_ns)
        pair->failed = false;
    if (pair->failed || pair->state == VIEW_DOWN || back->state == VIEW_DOWN)
        return PLACEMENT_LINK_DOWN;
    if (pair->state == VIEW_UP || back->state == VIEW_UP)
        return PLACEMENT_LINK_UP;
    uint64_t since_ns = pair->since_ns > back->since_ns ? pair->since_ns : back->since_ns;
    return registry->now_ns - since_ns > unknown_wait_ns ? PLACEMENT_LINK_UP
                                                         : PLACEMENT_LINK_UNKNOWN;
}

/* The receiver's own measurement, else the sender's. */
static uint32_t rate_of(const struct registry *registry, size_t p, size_t d)
{
    uint64_t bytes_per_s = view_of(registry, d, p)->bytes_per_s;
    if (!bytes_per_s)
        bytes_per_s = view_of(registry, p, d)->bytes_per_s;
    uint64_t kb_per_s = bytes_per_s / 1000 + (bytes_per_s % 1000 != 0);
    return kb_per_s < UINT32_MAX ? (uint32_t)kb_per_s : UINT32_MAX;
}

static void pair_refresh(struct registry *registry, size_t a, size_t b)
{
    size_t stride = registry->node_capacity;
    if (!registry->nodes[a] || !registry->nodes[b])
        return;
    registry->links[a * stride + b] = (uint8_t)judge(registry, a, b);
    registry->links[b * stride + a] = (uint8_t)judge(registry, b, a);
    registry->link_kb_per_s[a * stride + b] = rate_of(registry, a, b);
    registry->link_kb_per_s[b * stride + a] = rate_of(registry, b, a);
}

/* Until when the passing of time alone may change a link. */
static void timed(struct registry *registry, uint64_t wait_ns)
{
    if (registry->links_timed_until_ns < registry->now_ns + wait_ns)
        registry->links_timed_until_ns = registry->now_ns + wait_ns;
}

void registry_links_refresh(struct registry *registry)
{
    if (registry->links_seen_ns == registry->now_ns ||
        registry->links_seen_ns > registry->links_timed_until_ns)
        return;
    registry->links_seen_ns = registry->now_ns;
    for (size_t p = 0; p < registry->node_count; p++)
        for (size_t d = 0; d < p; d++)
            pair_refresh(registry, p, d);
}

bool registry_links_grow(struct registry *registry, size_t capacity, size_t old_capacity)
{
    struct node **nodes = calloc(capacity, sizeof *nodes);
    struct link_view *views = calloc(capacity * capacity, sizeof *views);
    uint8_t *links = calloc(capacity * capacity, sizeof *links);
    uint32_t *rates = calloc(capacity * capacity, sizeof *rates);
    uint32_t *seen = calloc(capacity * capacity, sizeof *seen);
    struct placement_node *placement = calloc(capacity, sizeof *placement);
    if (!nodes || !views || !links || !rates || !seen || !placement) {
        free(nodes);
        free(views);
        free(links);
        free(rates);
        free(seen);
        free(placement);
        return false;
    }
    for (size_t i = 0; i < old_capacity; i++) {
        nodes[i] = registry->nodes[i];
        memcpy(&views[i * capacity], view_of(registry, i, 0), old_capacity * sizeof *views);
        memcpy(&links[i * capacity], &registry->links[i * old_capacity], old_capacity);
        memcpy(&rates[i * capacity], &registry->link_kb_per_s[i * old_capacity],
               old_capacity * sizeof *rates);
        memcpy(&seen[i * capacity], &registry->link_seen_s[i * old_capacity],
               old_capacity * sizeof *seen);
    }
    free(registry->nodes);
    free(registry->views);
    free(registry->links);
    free(registry->link_kb_per_s);
    free(registry->link_seen_s);
    free(registry->placement_nodes);
    registry->nodes = nodes;
    registry->views = views;
    registry->links = links;
    registry->link_kb_per_s = rates;
    registry->link_seen_s = seen;
    registry->placement_nodes = placement;
    registry->node_capacity = capacity;
    return true;
}

void registry_links_reset(struct registry *registry, const struct node *node)
{
    struct link_view fresh = {.state = VIEW_UNKNOWN, .since_ns = registry->now_ns};
    for (size_t i = 0; i < registry->node_capacity; i++)
        *view_of(registry, node->slot, i) = *view_of(registry, i, node->slot) = fresh;
    for (size_t i = 0; i < registry->node_count; i++)
        if (i != node->slot)
            pair_refresh(registry, i, node->slot);
    timed(registry, unknown_wait_ns);
}

void registry_link_report(struct registry *registry, const struct node *node,
                          const Baton__Node__V1__Link *link)
{
    struct node *peer = registry_find(registry, link->peer);
    if (!peer || peer == node || peer->state == NODE_DEAD ||
        peer->incarnation != link->peer_incarnation) {
        metric_add(registry->stats->stale[STALE_LINK], 1);
        return;
    }
    struct link_view *view = view_of(registry, node->slot, peer->slot);
    bool met = link->up && view->state != VIEW_UP; /* else it only repeats, with a new rate */
    view->bytes_per_s = link->bytes_per_s;
    if (met || !link->up) {
        view->state = link->up ? VIEW_UP : VIEW_DOWN;
        view->since_ns = registry->now_ns;
    }
    if (met)
        view->failed = view_of(registry, peer->slot, node->slot)->failed = false;
    pair_refresh(registry, node->slot, peer->slot);
    registry_link_tried(registry, node, peer);
    registry_link_tried(registry, peer, node);
}

void registry_link_tried(struct registry *registry, const struct node *prefill,
                         const struct node *decode)
{
    registry->link_seen_s[prefill->slot * registry->node_capacity + decode->slot] =
        (uint32_t)(registry->now_ns / NS_PER_S);
}

void registry_pair_failed(struct registry *registry, const struct node *prefill,
                          const struct node *decode)
{
    struct link_view *view = view_of(registry, prefill->slot, decode->slot);
    view->failed = true;
    view->failed_ns = registry->now_ns;
    pair_refresh(registry, prefill->slot, decode->slot);
    timed(registry, failed_wait_ns);
}

uint32_t registry_pair_wire(const struct node *a, const struct node *b)
{
    return wire_common(a->wires, b->wires);
}

uint64_t registry_link_rate(const struct registry *registry, const struct node *of,
                            const struct node *about, bool *up_out)
{
    const struct link_view *view = view_of(registry, of->slot, about->slot);
    *up_out = view->state == VIEW_UP;
    return view->bytes_per_s;
}
