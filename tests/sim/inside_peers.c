/* See inside.h. */
#include "node/peers.c"

#include "kvtransfer/link_impl.h"
#include "tests/sim/inside.h"

void inside_peers(const struct peers *peers, struct print *print)
{
    for (int i = 0; i < peers->max; i++) {
        const struct peer *peer = &peers->peers[i];
        if (!peer->used)
            continue;
        print_head(print, "peer", (uint64_t)i);
        PRINT(print, peer->named);
        PRINT(print, peer->incarnation);
        PRINT(print, peer->link != NULL);
        PRINT(print, peer->open_ns);
        PRINT(print, peer->up);
        PRINT(print, peer->reported_bytes_per_s);
    }
}

static void rate_print(const struct kv_rate *rate, struct print *print)
{
    PRINT(print, rate->active);
    PRINT(print, rate->active ? rate->mark_ns : 0);
    PRINT(print, rate->busy_ns);
    PRINT(print, rate->bytes);
    PRINT(print, rate->bytes_per_s);
}

void inside_links(const struct kv_links *links, struct print *print)
{
    print_head(print, "links", links->incarnation);
    PRINT(print, links->router_incarnation);
    PRINT(print, links->ticked_ns);
    PRINT(print, links->late_ns);
    for (unsigned i = 0; i < links->options.links_max; i++) {
        const struct kv_link *link = &links->slots[i];
        if (link->state == KV_LINK_FREE && link->told == KV_LINK_FREE)
            continue;
        print_head(print, "link", i);
        PRINT(print, link->state);
        PRINT(print, link->told);
        PRINT(print, link->leaving);
        PRINT(print, link->hello_reply_owed);
        PRINT(print, link->incarnation);
        PRINT(print, link->epoch);
        PRINT(print, link->epoch_wanted);
        PRINT(print, link->since_ns);
        PRINT(print, link->hello_ns);
        PRINT(print, link->ops_moved_ns);
        PRINT(print, link->frames_moved_ns);
        PRINT(print, link->sends);
        PRINT(print, link->piece_bytes);
        rate_print(&link->send_rate, print);
        rate_print(&link->receive_rate, print);
        if (!link->peer)
            continue;
        struct xfer_load load = xfer_peer_load(link->peer);
        PRINT(print, load.ops);
        PRINT(print, load.ops_done != link->load.ops_done);
        PRINT(print, load.frames_done != link->load.frames_done);
    }
}
