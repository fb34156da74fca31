/* The inside of the simulated network: what net.c moves and net_look.c looks at.
 * Owner: the simulation's only thread. */
#ifndef BATON_TESTS_SIM_NET_IMPL_H
#define BATON_TESTS_SIM_NET_IMPL_H

#include "base/list.h"
#include "tests/sim/net.h"

enum { PLACES_MAX = 16 };
enum side { CLIENT, SERVER };
enum packet_kind { PACKET_OPEN, PACKET_MESSAGE, PACKET_HALF_CLOSE, PACKET_END };

struct packet {
    struct list link;
    enum packet_kind kind;
    uint64_t at_ns;
    enum grpc_code code; /* END */
    bool cancelled;
    char message[128];
    size_t bytes;
    uint8_t data[];
};

struct pipe {
    struct list packets;
    size_t bytes; /* of messages under way */
    uint64_t last_ns;
};

struct stream {
    struct list link; /* net->streams */
    struct net *net;
    int place;
    bool connected;
    bool lost; /* one side is gone and nobody was told: what is sent stays under way */
    struct rpc_call *calls[2]; /* NULL: not there yet, or over */
    struct pipe pipes[2];      /* by sender */
};

struct rpc_call {
    struct rpc *home;
    struct stream *stream;
    enum side side;
    const struct rpc_handler *handler;
    void *context, *data;
    bool sending, out_closed, ending;
    uint64_t writable_ns, closed_ns;
    struct rpc_end end;
    char end_message[128];
};

struct rpc {
    struct net *net;
    struct loop *loop;
    int place;
    bool dead;
    const struct stream *waits_for; /* planted */
    struct loop_hook hook;
    struct rpc_channel *channels;
};

struct rpc_server {
    struct rpc *rpc;
    const struct rpc_handler *handler;
    void *context;
    const char *path;
    bool started;
};

struct rpc_channel {
    struct rpc *rpc;
};

struct place {
    uint64_t delay_min_ns, delay_max_ns;
    bool blocked[2];
    enum net_spoil spoil[2]; /* by direction, as `blocked` */
};

struct net {
    struct net_options options;
    struct dice dice;
    struct list streams;
    struct rpc_server *server; /* the router's, while it lives */
    struct place places[PLACES_MAX];
};

static inline struct packet *pipe_first(const struct pipe *pipe)
{
    return list_empty(&pipe->packets) ? NULL
                                      : container_of(pipe->packets.next, struct packet, link);
}

#endif
