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

bool registry_links_grow(struct registry *registry, size_t capacity, size_t old_capacity)
{
    struct node **nodes = calloc(capacity, sizeof *nodes);
    struct link_view *views = calloc(capacity * capacity, sizeof *views);
    uint8_t *links = calloc(capacity * capacity, sizeof *links);
    struct placement_node *placement = calloc(capacity, sizeof *placement);
    if (!nodes || !views || !links || !placement) {
        free(nodes);
        free(views);
        free(links);
        free(placement);
        return false;
    }
    for (size_t i = 0; i < old_capacity; i++) {
        nodes[i] = registry->nodes[i];
        memcpy(&views[i * capacity], view_of(registry, i, 0), old_capacity * sizeof *views);
    }
    free(registry->nodes);
    free(registry->views);
    free(registry->links);
    free(registry->placement_nodes);
    registry->nodes = nodes;
    registry->views = views;
    registry->links = links;
    registry->placement_nodes = placement;
    registry->node_capacity = capacity;
    return true;
}

void registry_links_reset(struct registry *registry, const struct node *node)
{
    struct link_view fresh = {.state = VIEW_UNKNOWN, .since_ns = registry->now_ns};
    for (size_t i = 0; i < registry->node_capacity; i++)
        *view_of(registry, node->slot, i) = *view_of(registry, i, node->slot) = fresh;
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
}

void registry_pair_failed(struct registry *registry, const struct node *prefill,
                          const struct node *decode)
{
    struct link_view *view = view_of(registry, prefill->slot, decode->slot);
    view->failed = true;
    view->failed_ns = registry->now_ns;
}

uint32_t registry_pair_wire(const struct node *a, const struct node *b)
{
    return wire_common(a->wires, b->wires);
}

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

void registry_links_refresh(struct registry *registry)
{
    for (size_t p = 0; p < registry->node_count; p++)
        for (size_t d = 0; d < registry->node_count; d++)
            if (registry->nodes[p] && registry->nodes[d])
                registry->links[p * registry->node_capacity + d] = (uint8_t)judge(registry, p, d);
}
