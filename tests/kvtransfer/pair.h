/* One P and one D that have met, on the in-process transport and a clock that the test turns.
 *
 *     pair_start ──▶ what the test is about, pair_turns in between ──▶ pair_stop
 *
 * Each test is a process of its own, so the pair may be global. Owner: tests. */
#ifndef BATON_TESTS_KVTRANSFER_PAIR_H
#define BATON_TESTS_KVTRANSFER_PAIR_H

#include "tests/kvtransfer/rig.h"

enum { PIECE_BYTES = 512 };

extern struct xfer_hub *hub;
extern struct rig_node p, d;
extern struct kv_link *p_to_d, *d_to_p;
extern uint64_t now_ns;

/* One millisecond for both. */
void pair_turn(void);
void pair_turns(unsigned count);
void pair_start_with(const struct rig_options *options);
void pair_start(void);
void pair_stop(void);
/* Neither side holds a transfer, nothing is outstanding. */
void pair_check_at_rest(void);
/* All of it was moved and released, once. */
void pair_check_complete(const struct rig_give *give, const struct rig_take *take);

#endif
