/* Nodes of a cluster in one process: real engines, a real gRPC stream to a router of a few lines, KV over the in-process
 * transport, one loop. The router here only speaks the protocol; what it sends is the test's decision. */
#ifndef BATON_TESTS_NODE_FIXTURE_H
#define BATON_TESTS_NODE_FIXTURE_H

#include "decode_node/decode.h"
#include "kvtransfer/memory.h"
#include "node/node.h"
#include "prefill_node/prefill.h"
#include "tests/test.h"

enum {
    FIXTURE_NODES = 3,
    FIXTURE_ATTEMPTS = 128,
    FIXTURE_TOKENS = 2048,
    FIXTURE_PROMPT = 2048,
    FIXTURE_CACHED = 4096
};

/* What the nodes said about one attempt, per node. */
struct heard {
    uint32_t accepted, verdict; /* how often; the last one */
    char message[512];
    uint32_t tokens[FIXTURE_TOKENS], count; /* by position, from `begin` on */
    float logprobs[FIXTURE_TOKENS];
    uint32_t begin;
    int finish;
    uint32_t reports[9]; /* by kind */
    uint32_t status;
    uint64_t prefill_us, moved_bytes;
    uint32_t cached_tokens;
    bool gap; /* a token came at a position that is not the next */
};

struct fixture_stream {
    struct rpc_call *call;
    uint64_t incarnation, number;
    uint32_t registrations, leaving;
    char name[64], kv_host[64];
    uint8_t address[4096];
    size_t address_bytes;
    struct wire_range wires; /* as registered */
    uint64_t last_heartbeat;
    uint32_t heartbeats, alive, links_up;
    Baton__Node__V1__Load load;
    uint64_t cached[FIXTURE_CACHED]; /* what the node said that it holds */
    uint32_t cached_count, cached_resets;
    bool mute;        /* answer no heartbeats */
    bool refuse;      /* the next registration */
    struct buf queue; /* {uint32_t bytes; message; room for its seal} ... */
    struct seal in, out;
    enum fixture_spoil {
        SPOIL_NOTHING,
        SPOIL_FLIP,
        SPOIL_DROP,
        SPOIL_TWICE
    } spoil; /* the next message to the node */
};

struct fixture {
    struct loop *loop;
    struct rpc *rpc;
    struct rpc_server *server;
    struct xfer_hub *hub;
    struct metrics *metrics[FIXTURE_NODES];
    struct model_file *model;
    struct engine *engines[FIXTURE_NODES];
    struct loop_waker wakers[FIXTURE_NODES];
    struct node *nodes[FIXTURE_NODES];
    struct node_options options[FIXTURE_NODES];
    struct xfer *xfers[FIXTURE_NODES];
    int node_count;
    struct fixture_stream streams[FIXTURE_NODES];
    struct heard heard[FIXTURE_NODES][FIXTURE_ATTEMPTS];
    uint64_t router_incarnation, request;
    uint8_t cache_key[PREFIX_KEY_BYTES]; /* in the next welcome; all zeros: none */
    uint32_t stop_after_ms;
    uint32_t welcome_wire; /* what the router chooses, whatever was offered; 0: the newest */
    bool left[FIXTURE_NODES], refused[FIXTURE_NODES];
    struct err refusal;
};

struct fixture_options {
    int nodes;
    bool no_cache[FIXTURE_NODES];
    uint8_t cache_key; /* the first byte of the router's; 0: it has none */
    const char *backend;
    enum kern_kv_type kv_type; /* f32, unless said otherwise */
    uint32_t kv_pages, page_tokens, chunk_tokens, batch_tokens, steps_in_flight, sequences_max;
    enum node_reserve reserve; /* early, unless said otherwise */
    enum preempt_rule preempt;
    uint32_t swap_pages, preempt_every, gap_ms;
    uint32_t kv_pages_of[FIXTURE_NODES]; /* 0: kv_pages */
    uint32_t grace_ms;                   /* 0: 5 s */
    const struct engine_limits *limits;  /* that nodes believe their machine to have; NULL: none */
    bool ucx;                            /* KV goes through UCX, not from memory to memory */
    uint32_t
        stop_after_ms; /* a node stops when the router is silent for so long; 0: 10 s, for slow machines */
    uint64_t router_late_ns;         /* the router takes no calls for so long */
    int64_t wire_max[FIXTURE_NODES]; /* 0: the newest */
};

/* Starts everything and waits until all nodes are registered and have met. Skips the test without BATON_NODE_TEST_MODEL. */
struct fixture *fixture_start(const struct fixture_options *options);
void fixture_stop(struct fixture *fixture);
/* Turns the loop until `done` says so; fails the test after 20 s. */
void fixture_until(struct fixture *fixture, bool (*done)(struct fixture *fixture, void *context),
                   void *context, const char *what);
/* Turns the loop so long, and at least once for each millisecond: where the processor was taken away for that time, nobody
 * had the time to do anything. */
void fixture_turn(struct fixture *fixture, uint64_t for_ns);
/* For fixture_until: every node has sent a heartbeat over its latest stream, and says that its links are up. */
bool fixture_all_met(struct fixture *fixture, void *context);

struct assign {
    int node, attempt; /* index into heard; the id is made from it */
    Baton__Node__V1__Leg leg;
    const uint32_t *prompt, *generated;
    uint32_t prompt_count, generated_count, tokens_max;
    uint64_t age;
    int source; /* LEG_DECODE: the node */
    uint64_t source_number;
    float temperature, repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
    const uint32_t *stop_ids;
    uint32_t stop_count, tokens_min;
    bool last_leg, alone, logprobs;
    uint64_t deadline_ms;
    uint8_t salt;         /* the first byte; 0: none */
    int request;          /* 0: of its own; else of this attempt */
    uint32_t serve_pages; /* LEG_SERVE */
    uint32_t fetch_pages; /* 0: no fetch */
    int fetch_node, fetch_attempt;
    uint64_t fetch_number;
};
/* Ids that tests ask about, made anew from `seed`: assignments that were sent keep theirs. */
extern uint32_t prompt[FIXTURE_PROMPT];
void prompt_make(uint32_t seed);
/* The first ids of `prompt`, on one node, as old as its attempt says. */
struct assign local(int node, int attempt, uint32_t prompt_count, uint32_t tokens_max);
/* Sends both legs of one attempt, to node 0 and node 1. */
void hand_off(struct fixture *fixture, struct assign assign);
/* The first `count` tokens are the same, with their logprobs, to the bit. */
void heard_equal(const struct heard *a, const struct heard *b, uint32_t count);
/* Returns the assignment's number. */
uint64_t fixture_assign(struct fixture *fixture, const struct assign *assign);
void fixture_end(struct fixture *fixture, int node, int attempt);
void fixture_drain(struct fixture *fixture, int node);
void fixture_settle(struct fixture *fixture, int node, int attempt);
void fixture_first_token(struct fixture *fixture, int node, int attempt, uint32_t position,
                         uint32_t token);
void fixture_send(struct fixture *fixture, int node, const Baton__Node__V1__RouterMessage *message);
/* Waits until this node reported that the attempt ended. */
/* Until the node has accepted or refused it. */
void fixture_wait_answered(struct fixture *fixture, const struct assign *assign);
void fixture_wait_ended(struct fixture *fixture, int node, int attempt);
/* No work, and no page in use, on every node; what the caches keep may be there. */
void fixture_check_rest(struct fixture *fixture);

#endif
