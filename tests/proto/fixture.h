/* A server with the echo service and a channel to it, in one loop, over a loopback socket.
 * Owner: the loop thread, which is the test's. */
#ifndef BATON_TESTS_PROTO_FIXTURE_H
#define BATON_TESTS_PROTO_FIXTURE_H

#include "proto/baton/v1/baton.pb-c.h"
#include "proto/rpc/health.h"
#include "proto/rpc/reflection.h"
#include "proto/rpc/rpc.h"
#include "tests/proto/echo_service.h"
#include "tests/test.h"

struct fixture {
    struct loop *loop;
    struct rpc *rpc;
    struct rpc_server *server;
    struct rpc_channel *channel;
    struct rpc_health *health;
    struct rpc_reflection *reflection;
    struct echo echo;
    char target[64];
    size_t told[RPC_CHANNEL_FAILING + 1]; /* how often each state of the channel was told */
};

void fixture_init(struct fixture *f, const struct rpc_server_options *options);
void fixture_finish(struct fixture *f);

/* Turns the loop until `*flag` is not 0, or the counter at least so much; fails the test after 100 s. */
void fixture_wait(struct fixture *f, const size_t *flag);
void fixture_wait_for(struct fixture *f, const size_t *counter, size_t least);
/* Turns the loop until every call that the server has seen has ended there. */
void fixture_wait_idle(struct fixture *f);
/* Turns the loop so long, and at least once for each millisecond: where the processor was taken away for that time, nobody
 * had the time to do anything. */
void fixture_turn(struct fixture *f, uint64_t duration_ns);

/* What a client's call saw; give it as context with one of the handlers below. */
struct seen {
    struct rpc_call *call;
    size_t opened, messages, half_closed, writable, closed;
    size_t expected_position; /* Generate: the next position */
    bool wrong;               /* a message out of order, or after on_closed */
    enum grpc_code code;
    bool cancelled;
    char message[256];
    char trailer[64];   /* grpc-retry-pushback-ms */
    uint8_t data[4096]; /* the last message */
    size_t bytes;
};
extern const struct rpc_handler unary_seen, stream_seen, stream_seen_unread, bidi_seen;

/* A whole unary call. */
void fixture_tokenize(struct fixture *f, struct seen *seen, const char *text, uint64_t timeout_ns);
/* Starts a Generate of `count` messages that carry `text`. */
void fixture_generate(struct fixture *f, struct seen *seen, const struct rpc_handler *handler,
                      const char *text, uint32_t count, uint64_t timeout_ns);

#endif
