/* The whole state of a node and of a router, for the explorer. Each belongs to one side (node.h or core.h), which both have a
 * `struct node`. */
#ifndef BATON_TESTS_SIM_STATE_H
#define BATON_TESTS_SIM_STATE_H

#include "tests/sim/fake_engine.h"
#include "tests/sim/print.h"

struct loop;
struct node;
struct core;
void state_loop(const struct loop *loop, struct print *print);
void state_node(const struct node *node, struct print *print);
/* A PULL from one node to another as it should not be: for an assignment that has not come yet, for one that is over, for blocks that a
 * live transfer does not have. False: there is no link, or no live transfer. */
enum pull_wrong { PULL_EARLY, PULL_STALE, PULL_OUT_OF_RANGE, PULL_COUNT };
struct kv_frame;
bool state_pull_wrong(const struct node *from, const struct node *to, enum pull_wrong what,
                      struct kv_frame *frame_out);
void state_core(const struct core *core, struct print *print);

#endif
