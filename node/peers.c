/* See peers.h. */
#include "node/peers.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "node/node.h"

static const uint64_t expect_window_ns = NS_PER_S;
/* Between letting a peer in and knocking at its door. The router tells both sides at the same time, but one hears it first: were
 * its first SYN dropped, TCP would try again only after a second. */
static const uint64_t open_delay_ns = 60 * NS_PER_MS;

struct peer {
    bool used;
    bool named; /* in the router's last list; else it goes when its link is FREE */
    char name[256];
    uint64_t incarnation;
    uint32_t wire;        /* version of the frames between us; 0: the first */
    struct kv_link *link; /* NULL: not opened yet, or it could not be */
    uint64_t open_ns;     /* when to open it; DEADLINE_NONE: done, or failed */
    uint8_t address[XFER_ADDRESS_BYTES_MAX];
    size_t address_bytes;
    bool up;
    uint64_t reported_bytes_per_s;
    struct sockaddr_storage host;
    bool host_known;
};

struct peers {
    struct node *node;
    bool closing; /* links are ending with the node */
    int max;
    struct peer peers[]; /* [max] */
};

enum status peers_create(struct node *node, uint32_t max, struct peers **peers_out, struct err *err)
{
    struct peers *peers = calloc(1, sizeof *peers + max * sizeof *peers->peers);
    if (!peers)
        return err_set(err, STATUS_MEMORY, "peers: no memory");
    peers->node = node;
    peers->max = (int)max;
    *peers_out = peers;
    return STATUS_OK;
}

void peers_destroy(struct peers *peers)
{
    free(peers);
}

static bool host_parse(const char *text, struct sockaddr_storage *out)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        return true;
    }
    return false;
}

static void link_report(struct peers *peers, const struct peer *peer, const char *text)
{
    Baton__Node__V1__Link link = BATON__NODE__V1__LINK__INIT;
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    link.peer = (char *)peer->name;
    link.peer_incarnation = peer->incarnation;
    link.up = peer->up;
    link.bytes_per_s = peer->reported_bytes_per_s;
    link.message = (char *)text;
    message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_LINK;
    message.link = &link;
    outbox_send(&peers->node->outbox, &message);
}

static void expect(struct peers *peers, struct peer *peer, uint64_t now_ns)
{
    if (peer->host_known)
        xfer_expect(kv_links_xfer(peers->node->links), (struct sockaddr *)&peer->host, now_ns,
                    expect_window_ns);
}

static void peer_forget(struct peer *peer)
{
    peer->named = false;
    if (peer->link)
        kv_link_close(peer->link);
    else
        *peer = (struct peer){0};
}

static void peer_add(struct peers *peers, const Baton__Node__V1__Peer *of)
{
    struct node *node = peers->node;
    struct peer *peer = NULL;
    for (int i = 0; i < peers->max && !peer; i++)
        if (!peers->peers[i].used)
            peer = &peers->peers[i];
    if (!peer)
        return; /* the router never offers this pair: no Link{up} comes */
    *peer = (struct peer){
        .used = true, .named = true, .incarnation = of->incarnation, .wire = of->wire};
    snprintf(peer->name, sizeof peer->name, "%s", of->name);
    peer->host_known = host_parse(of->kv_host, &peer->host);
    if (of->kv_address.len > sizeof peer->address) {
        peer->open_ns = DEADLINE_NONE;
        link_report(peers, peer, "kv_address: is too long");
        return;
    }
    memcpy(peer->address, of->kv_address.data, of->kv_address.len);
    peer->address_bytes = of->kv_address.len;
    peer->open_ns = loop_now_ns(node->loop) + open_delay_ns;
    expect(peers, peer, loop_now_ns(node->loop));
}

static void peer_open(struct peers *peers, struct peer *peer)
{
    struct kv_link_options options = {.incarnation = peer->incarnation,
                                      .wire = peer->wire,
                                      .address = peer->address,
                                      .address_bytes = peer->address_bytes,
                                      .context = peer};
    struct err err = ERR_INIT;
    peer->open_ns = DEADLINE_NONE;
    if (kv_link_open(peers->node->links, &options, &peer->link, &err)) {
        peer->link = NULL;
        link_report(peers, peer, err.message);
    }
}

void peers_set(struct peers *peers, const Baton__Node__V1__Peers *list)
{
    for (int i = 0; i < peers->max; i++) {
        struct peer *peer = &peers->peers[i];
        bool kept = false;
        for (size_t k = 0; k < list->n_peers && !kept; k++)
            kept = list->peers[k]->incarnation == peer->incarnation;
        if (peer->used && peer->named && !kept)
            peer_forget(peer);
    }
    for (size_t k = 0; k < list->n_peers; k++) {
        const Baton__Node__V1__Peer *of = list->peers[k];
        bool known = of->incarnation == peers->node->incarnation;
        for (int i = 0; i < peers->max && !known; i++)
            known = peers->peers[i].used && peers->peers[i].named &&
                    peers->peers[i].incarnation == of->incarnation;
        if (!known)
            peer_add(peers, of);
    }
}

void peers_clear(struct peers *peers)
{
    for (int i = 0; i < peers->max; i++)
        if (peers->peers[i].used && peers->peers[i].named)
            peer_forget(&peers->peers[i]);
}

void peers_link_changed(void *context, struct kv_link *link, enum kv_link_state state,
                        enum status why)
{
    struct peers *peers = context;
    struct peer *peer = kv_link_context(link);
    if (state == KV_LINK_FREE) {
        bool named = peer->named;
        peer->link = NULL;
        peer->up = false;
        if (!named)
            *peer = (struct peer){0};
        return;
    }
    bool up = state == KV_LINK_UP;
    if (state == KV_LINK_CONNECTING)
        expect(peers, peer, loop_now_ns(peers->node->loop));
    if (up == peer->up || !peer->named)
        return;
    peer->up = up;
    if (up)
        log_info("met %s: frames of version %u, epoch %u", peer->name, kv_link_info(link).wire,
                 kv_link_info(link).epoch);
    else
        log_info("lost the link to %s: %s", peer->name, status_text(why));
    link_report(peers, peer, up ? "" : status_text(why));
}

void peers_tick(struct peers *peers, uint64_t now_ns)
{
    xfer_expect_tick(kv_links_xfer(peers->node->links), now_ns);
    for (int i = 0; i < peers->max; i++) {
        struct peer *peer = &peers->peers[i];
        if (!peer->used)
            continue;
        if (!peer->link) {
            if (peer->named && now_ns >= peer->open_ns)
                peer_open(peers, peer);
            continue;
        }
        struct kv_link_info info = kv_link_info(peer->link);
        if (info.state != KV_LINK_UP) {
            expect(peers, peer, now_ns);
            continue;
        }
        uint64_t rate = info.send_bytes_per_s > info.receive_bytes_per_s ? info.send_bytes_per_s
                                                                         : info.receive_bytes_per_s;
        uint64_t before = peer->reported_bytes_per_s;
        uint64_t change = rate > before ? rate - before : before - rate;
        if (peer->up && change > before / 4) {
            peer->reported_bytes_per_s = rate;
            link_report(peers, peer, "");
        }
    }
}
