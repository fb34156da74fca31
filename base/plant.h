/* Faults planted on purpose: what tests/sim/ breaks in production code, one at a time, to prove that it would see it. PLANTED(name) is the
 * constant false everywhere but in the objects that the simulation compiles for itself.
 * Owner: the test. */
#ifndef BATON_BASE_PLANT_H
#define BATON_BASE_PLANT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef BATON_SIM
/*      name                     what is wrong then */
#define PLANT_TABLE(X)                                                                             \
    X(PAGES_ONE_BY_ONE, "waiters get pages one by one and keep them while they wait for the rest") \
    X(NO_AGE_ORDER, "waiters for pages stand in the order in which they came")                     \
    X(FREED_WHILE_RUNNING, "pages are free before the running layer has ended")                    \
    X(ONE_LEG_ENDED, "an attempt is ended by name on its decode node only")                        \
    X(KEPT_OUTSIDE_CACHE, "what a receiver verified is kept where nobody finds it")                \
    X(NO_FRESH_HEARTBEAT, "a node gets work after a give-up without having beaten since")          \
    X(OUTLIVES_ENDPOINT, "a link's end does not end its transfers")                                \
    X(ROUTER_WAITS, "the router waits for a node whose queue is full")                             \
    X(GAPS_PASS, "a message is taken although one before it is missing")                           \
    X(FLIPS_PASS, "a message is taken although its checksum is wrong")                             \
    X(STOPS_LATE, "a node works on for seconds after its router has given it up")                  \
    X(PAGE_NOT_OPENED, "a sequence that comes back goes on in a page as if it had opened it")

enum plant {
    PLANT_NOTHING,
#define X(name, what) PLANT_##name,
    PLANT_TABLE(X)
#undef X
        PLANT_COUNT,
    /* for tests/sim/test_lease.c alone: elsewhere other clocks end first */
    PLANT_LEASE_NEVER_ENDS,
    PLANT_LEASE_ENDS_EARLY
};
extern enum plant planted;
#define PLANTED(name) (planted == PLANT_##name)
/* What takes more than a condition lies in the simulation. */
#define PLANT_DO(name, ...)  \
    do {                     \
        if (PLANTED(name)) { \
            __VA_ARGS__;     \
        }                    \
    } while (0)
struct node;
struct rpc_call;
struct work;
void planted_one_by_one(struct node *node);
void planted_keep(struct node *node, struct work *work, uint32_t pages);
bool planted_wait(struct rpc_call *call);
#else
#define PLANTED(name) false
#define PLANT_DO(name, ...) (void)0
#endif

#endif
