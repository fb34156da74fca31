/* The inside of a loop, for loop.c (time, timers, phases) and for what puts it to sleep: loop_epoll.c in programs, virtual time
 * in the simulation (tests/sim/). Nobody else includes this.
 *
 *     loop_plan ──▶ when it would like to wake ──▶ (sleep: epoll, or nothing but a number) ──▶ loop_wake ──▶ handlers of fds ──▶ loop_act
 *
 * Owner: the loop thread. */
#ifndef BATON_BASE_LOOP_IMPL_H
#define BATON_BASE_LOOP_IMPL_H

#include <stdatomic.h>
#include <sys/epoll.h>

#include "base/loop.h"

enum { LOOP_EVENTS_PER_ROUND = 64 };

struct loop {
    uint64_t now_ns, late_ns, late_total_ns;
    struct list hooks[LOOP_PHASE_COUNT];
    struct loop_timer **heap;
    int heap_count, heap_capacity;
    /* asleep */
    int epoll_fd;
    atomic_bool stopping;
    struct loop_waker stop_waker;
    struct epoll_event events[LOOP_EVENTS_PER_ROUND];
    int event_count;
};

void loop_init(struct loop *loop);
void loop_finish(struct loop *loop);
/* Runs PREPARE; when to wake at the latest: at the first timer, after `wait_ns`, or at once. DEADLINE_NONE: not by itself. */
uint64_t loop_plan(struct loop *loop, uint64_t wait_ns);
/* It is awake again, and had planned to be so at `wake_ns`: the round's time, and how late it is. */
void loop_wake(struct loop *loop, uint64_t wake_ns);
/* The rest of the round: timers, then the phases. */
void loop_act(struct loop *loop);

#endif
