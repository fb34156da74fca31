/* Whose cache holds what: nodes say it in Cached, the router remembers hashes (holdings.h), and before a request is placed it asks
 * how many of the request's first pages each node has.
 *
 * The hash is keyed (sched/prefix.h); the key is the configuration's or this router's own, and every node gets it with its
 * Welcome. What a registration said is forgotten with it.
 *
 * Owner: the loop thread. */
#include <string.h>

#include "base/random.h"
#include "router/registry.h"

void registry_cache_init(struct registry *registry, const uint8_t *key, uint64_t entries_max)
{
    if (key)
        memcpy(registry->cache_key, key, PREFIX_KEY_BYTES);
    else
        random_bytes(registry->cache_key, PREFIX_KEY_BYTES);
    prefix_key_init(registry->cache_key, &registry->prefix_key);
    registry->index = (struct holdings_index){.seed = random_u64(), .entries_max = entries_max};
}

void registry_cache_forget(struct registry *registry, struct node *node)
{
    holdings_clear(&registry->index, &node->holdings);
}

void registry_cache_report(struct registry *registry, struct node *node,
                           const Baton__Node__V1__Cached *cached)
{
    uint64_t forgotten = registry->index.forgotten;
    if (cached->reset)
        registry_cache_forget(registry, node);
    for (size_t i = 0; i < cached->n_removed; i++)
        holdings_remove(&registry->index, &node->holdings, cached->removed[i]);
    /* a cache cannot hold more pages than there are */
    for (size_t i = 0; i < cached->n_added; i++)
        holdings_add(&registry->index, &node->holdings, node->pages_total, cached->added[i]);
    metric_add(registry->stats->cache_forgotten, registry->index.forgotten - forgotten);
}

void registry_cache_view(struct registry *registry, const uint64_t *hashes, uint32_t count)
{
    for (size_t i = 0; i < registry->node_count; i++)
        if (registry->placement_nodes[i].shares)
            registry->placement_nodes[i].cached_pages =
                holdings_prefix(&registry->index, &registry->nodes[i]->holdings, hashes, count);
}
