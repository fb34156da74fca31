/* The other nodes of the cluster, as the router names them: this node keeps one link to each and tells the router how it is.
 *
 *     Peers{all there are} ──▶ new ones: kv_link_open, 60 ms later ──▶ Link{up}
 *                          ──▶ absent ones: kv_link_close
 *     link down by itself  ──▶ Link{down}, opened again after 500 ms (links) until Peers says otherwise
 *
 * A link that is not up lets its peer's address connect to this worker (xfer_expect), a second at a time; nobody else can.
 * Owner: the loop thread. */
#ifndef BATON_NODE_PEERS_H
#define BATON_NODE_PEERS_H

#include "base/err.h"
#include "kvtransfer/link.h"
#include "proto/baton/node/v1/node.pb-c.h"

struct node;
struct peers;

enum { PEERS_MAX = 256 };

/* Knows at most `max` others at once. */
enum status peers_create(struct node *node, uint32_t max, struct peers **peers_out,
                         struct err *err);
void peers_destroy(struct peers *peers);
/* The router's list. Entries that cannot be used are reported as Link{down} with a message. */
void peers_set(struct peers *peers, const Baton__Node__V1__Peers *list);
/* The registration is over: nobody is a peer any more. */
void peers_clear(struct peers *peers);
/* For kv_links_events. */
void peers_link_changed(void *peers, struct kv_link *link, enum kv_link_state state,
                        enum status why);
/* Every 250 ms or so: windows for connecting, and rates that changed. */
void peers_tick(struct peers *peers, uint64_t now_ns);

#endif
