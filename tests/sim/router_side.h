/* The router as a process of the simulation: the real core and the real streams to nodes (router/node_streams.c) on an
 * in-memory rpc, and clients that are memory. Knows nothing of node/ (which has a `struct node` of its own). */
#ifndef BATON_TESTS_SIM_ROUTER_SIDE_H
#define BATON_TESTS_SIM_ROUTER_SIDE_H

#include "base/status.h"
#include "tests/sim/net.h"

struct core;
struct router_side;
struct client;

struct router_side_options {
    struct net *net;
    uint32_t replays_max, requests_max, queue_max;
    size_t queue_messages_max; /* to one node; 0: as in production */
    uint64_t node_wait_ns;
    uint32_t local_prefill_tokens;
    uint64_t cache_index_entries;
    int fetch; /* enum placement_fetch */
    bool hand_off_always;
    /* A line of the router's log. */
    void (*note)(void *context, const char *node, const char *text);
    void *context;
};

struct router_side *router_side_create(const struct router_side_options *options);
/* As a kill: nothing more is said to anybody. Clients end as UNAVAILABLE. Takes NULL. */
void router_side_destroy(struct router_side *router);
struct loop *router_side_loop(struct router_side *router);
struct rpc *router_side_rpc(struct router_side *router);

/* --- clients --- */

enum { CLIENT_TOKENS_MAX = 128 };

struct client_options {
    uint32_t prompt[CLIENT_TOKENS_MAX], prompt_count, tokens_max, tokens_min;
    uint64_t seed;
    uint32_t n_index, stop_ids[4], stop_count;
    uint8_t tenant;        /* whose cached pages it may find; 0: everybody's */
    const char *stop_text; /* NULL: none */
    uint64_t deadline_ns;  /* of the clock; DEADLINE_NONE */
};

struct client {
    struct client_options options;
    uint32_t ids[CLIENT_TOKENS_MAX], count; /* delivered */
    uint32_t resumed;                       /* of them, by an earlier router */
    bool last;                              /* the whole answer is here */
    bool ended;                             /* … or never will be */
    bool cancelled;                         /* by this client */
    bool refused;                           /* not admitted */
    enum status status;
    uint64_t ended_ns;
    uint32_t cached_tokens;
    void *request; /* NULL: none (any more) */
};

/* Asks; goes on behind what is delivered already. Between two turns of the router's loop, which must turn next. */
void router_side_request(struct router_side *router, struct client *client);
void router_side_cancel(struct router_side *router, struct client *client);
static inline bool client_open(const struct client *client)
{
    return !client->last && !client->ended;
}

/* --- looking inside --- */
struct router_counts {
    uint64_t replays, mismatches, deaths, stale, requests, legs, stream_faults;
};
void router_side_counts(const struct router_side *router, struct router_counts *counts_out);
/* Asks the node to drain, or gives it another role (0 prefill, 1 decode, 2 mixed); false: no such node is registered. */
bool router_side_drain(struct router_side *router, const char *name);
bool router_side_role(struct router_side *router, const char *name, int role);
const struct core *router_side_core(const struct router_side *router);
/* Describes every open request, for a failure's report. */
void router_side_print(const struct router_side *router);

#endif
