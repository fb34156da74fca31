/* See park.h. */
#include "kvtransfer/park.h"

#include <stdlib.h>

bool kv_park_init(struct kv_park *park, unsigned max, unsigned peer_max)
{
    list_init(&park->waiting);
    list_init(&park->unused);
    park->peer_max = peer_max;
    park->slots = calloc(max, sizeof *park->slots);
    if (!park->slots)
        return false;
    for (unsigned i = 0; i < max; i++)
        list_push_back(&park->unused, &park->slots[i].link);
    return true;
}

void kv_park_finish(struct kv_park *park)
{
    free(park->slots);
    park->slots = NULL;
}

bool kv_park_add(struct kv_park *park, struct kv_link *from, const struct kv_frame *pull,
                 uint64_t deadline_ns)
{
    struct list *slot = from->parked < park->peer_max ? list_pop_front(&park->unused) : NULL;
    if (!slot)
        return false;
    struct kv_parked *parked = container_of(slot, struct kv_parked, link);
    parked->from = from;
    parked->deadline_ns = deadline_ns;
    parked->key = pull->key;
    parked->pull = pull->pull;
    from->parked++;
    list_push_back(&park->waiting, &parked->link);
    return true;
}

void kv_park_remove(struct kv_park *park, struct kv_parked *parked)
{
    parked->from->parked--;
    list_remove(&parked->link);
    list_push_back(&park->unused, &parked->link);
}

void kv_park_forget(struct kv_park *park, const struct kv_link *from)
{
    list_for_each_safe(it, tmp, &park->waiting)
    {
        struct kv_parked *parked = container_of(it, struct kv_parked, link);
        if (parked->from == from)
            kv_park_remove(park, parked);
    }
}

struct kv_parked *kv_park_first(const struct kv_park *park)
{
    return list_empty(&park->waiting) ? NULL
                                      : container_of(park->waiting.next, struct kv_parked, link);
}
