/* PULLs that came before their assignment: the router tells P and D at the same time, and D may be faster. Each waits a
 * second at most, then is answered GONE; so does what finds no room. Inside kvtransfer only.
 * Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_PARK_H
#define BATON_KVTRANSFER_PARK_H

#include "kvtransfer/link_impl.h"

struct kv_parked {
    struct list link; /* in the order of deadlines */
    struct kv_link *from;
    uint64_t deadline_ns; /* patient */
    struct kv_key key;
    struct kv_pull pull;
};

struct kv_park {
    struct list waiting, unused;
    struct kv_parked *slots;
    unsigned peer_max;
};

/* Room for `max` in all and `peer_max` of one peer. False: no memory. */
bool kv_park_init(struct kv_park *park, unsigned max, unsigned peer_max);
void kv_park_finish(struct kv_park *park);
/* False when there is no room. */
bool kv_park_add(struct kv_park *park, struct kv_link *from, const struct kv_frame *pull,
                 uint64_t deadline_ns);
void kv_park_remove(struct kv_park *park, struct kv_parked *parked);
void kv_park_forget(struct kv_park *park, const struct kv_link *from);
/* The one that waits longest; NULL: none. */
struct kv_parked *kv_park_first(const struct kv_park *park);

#endif
