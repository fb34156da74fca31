/* Keeps strangers off the transport's listening sockets. UCX's TCP transport always listens, without authentication, and a
 * few bytes from anyone can end the process; so the kernel drops every SYN to those sockets but from an address that was
 * announced a moment ago. Inside kvtransfer only.
 *
 * What remains: within that moment another process at the announced address (on loopback: any process of this host) can
 * still connect. That is a node's death, which the cluster survives. Traffic is plain text: wrap it (WireGuard, IPsec).
 *
 * Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_UCX_FILTER_H
#define BATON_KVTRANSFER_UCX_FILTER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { UCX_FILTER_SOCKETS_MAX = 16, UCX_FILTER_ADDRESSES_MAX = 16, UCX_FILTER_FDS_MAX = 4096 };

struct ucx_filter_window {
    uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint64_t until_ns;   /* 0: free */
};

struct ucx_filter {
    bool active;
    unsigned socket_count;
    int sockets[UCX_FILTER_SOCKETS_MAX];
    struct ucx_filter_window windows[UCX_FILTER_ADDRESSES_MAX];
};

/* The descriptors below UCX_FILTER_FDS_MAX that are listening TCP sockets now, as a set of bits. */
struct ucx_filter_fds {
    uint64_t bits[UCX_FILTER_FDS_MAX / 64];
};
void ucx_filter_listening(struct ucx_filter_fds *fds_out);

/* Filters the listening sockets that are there now and were not `before`; nobody may connect from here on.
 * NOT_FOUND: there is none; FULL: more than UCX_FILTER_SOCKETS_MAX; IO: the kernel refused. */
enum status ucx_filter_start(struct ucx_filter *filter, const struct ucx_filter_fds *before,
                             struct err *err);
/* Lets `address` connect until then. INVALID: neither IPv4 nor IPv6; FULL: too many windows are open. */
enum status ucx_filter_allow(struct ucx_filter *filter, const struct sockaddr *address,
                             uint64_t until_ns);
/* Shuts windows whose time is over. */
void ucx_filter_tick(struct ucx_filter *filter, uint64_t now_ns);

#endif
