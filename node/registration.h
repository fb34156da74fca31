/* The node's stream to its router: registers, heartbeats, notices the end, registers again.
 *
 *     IDLE ──backoff──▶ CONNECTING ──Register sent──▶ ... Welcome ──▶ REGISTERED
 *      ▲                   │ stream ends, 5 s                            │ stream ends · no heartbeat answered · overflow
 *      └───────────────────┴─────────────────────────────────────────────┘
 *     any ── Refused ──▶ REFUSED (final)         any ── registration_leave ──▶ LEAVING ──sent, 1 s──▶ LEFT (final)
 *
 *     state        parked until                              and at most
 *     IDLE         the backoff's timer                       100 to 500 ms
 *     CONNECTING   Welcome, Refused, or the stream's end     5 s, then it is cancelled
 *     REGISTERED   messages                                  stop_after (2.0 s) since the last answered heartbeat was sent
 *     LEAVING      the stream's end                          1 s
 *
 * Work lives no longer than the stream that brought it: `lost` is called before anything else happens, and nothing but a heartbeat's
 * answer prolongs a registration. registration_check stops first, and only then may messages be read: a node that wakes
 * late calls it before it looks at anything (docs/PROTOCOL.md).
 *
 * A message whose seal is broken, before which one is missing, or that cannot be read, ends the stream as a lost connection does.
 * Owner: the loop thread. */
#ifndef BATON_NODE_REGISTRATION_H
#define BATON_NODE_REGISTRATION_H

#include "base/loop.h"
#include "node/outbox.h"

struct registration;

struct registration_handler {
    void *context;
    /* Fills Register (its strings and Identity must stay until the call returns to registration.c). */
    void (*fill)(void *context, uint64_t incarnation, Baton__Node__V1__Register *register_out);
    void (*welcome)(void *context, const Baton__Node__V1__Welcome *welcome);
    /* Any message after Welcome but Welcome, Refused and HeartbeatAck. */
    void (*message)(void *context, const Baton__Node__V1__RouterMessage *message);
    /* Fills a heartbeat but for its number; its arrays must stay until the call returns. */
    void (*heartbeat)(void *context, Baton__Node__V1__Heartbeat *heartbeat);
    /* The stream is over: stop everything it brought. `why` is one line. Only after a welcome. */
    void (*lost)(void *context, const char *why);
    /* A message of the router was not as it was sent; but for SEAL_TWICE, the stream's end follows. */
    void (*fault)(void *context, enum seal_verdict fault);
    void (*refused)(void *context, const struct err *err);
    void (*left)(void *context);
};

struct registration_options {
    const char *router;                      /* HOST:PORT */
    uint64_t backoff_min_ns, backoff_max_ns; /* 0: 100 ms, 500 ms */
};

enum status registration_create(struct loop *loop, struct rpc *rpc, struct outbox *outbox,
                                const struct registration_options *options,
                                const struct registration_handler *handler,
                                struct registration **registration_out, struct err *err);
void registration_start(struct registration *registration);
void registration_destroy(struct registration *registration);

/* Stops now if the router has been silent for too long. By the clock, not by the loop's time. */
void registration_check(struct registration *registration);
bool registration_up(const struct registration *registration);
/* When it was last up, on the loop's clock: now if it is; 0: never. */
uint64_t registration_seen_ns(const struct registration *registration);
/* Sends a heartbeat now rather than at its time (a change that the router should know). */
void registration_beat(struct registration *registration);
/* Says Leaving and ends the stream; then `left`. */
void registration_leave(struct registration *registration);
/* Messages that came before Welcome, or a second one. */
uint64_t registration_malformed(const struct registration *registration);

#endif
