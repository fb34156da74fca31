/* The event loop: one thread, one epoll, timers, wakers and phases.
 *
 * A round of the loop is always the same:
 *
 *     sleep ──▶ events (fds, wakers, timers: handlers only enqueue) ──▶ RECEIVE ──▶ COMPLETE ──▶ SCHEDULE ──▶ SUBMIT
 *       ▲                                                                                                    │
 *       └──────────────── PREPARE (say whether sleeping is allowed) ◀────────────────────────────────────────┘
 *
 * Hooks of a phase run in the order in which they were added. So whatever arrived in this round is seen as a whole before
 * anything is scheduled, and no handler calls into another.
 *
 * Lateness: the loop compares when it should have woken with when it did. A round that starts more than 250 ms late (the
 * machine froze, or a handler was slow) leaves its lateness in loop_late_ns(), and deadlines that declare *another* party
 * dead add it (see docs/PROTOCOL.md).
 *
 * Owner: the thread that runs loop_run. Only loop_waker_wake and loop_stop may be called from other threads. */
#ifndef BATON_BASE_LOOP_H
#define BATON_BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"

struct loop;

enum loop_phase {
    LOOP_RECEIVE,
    LOOP_COMPLETE,
    LOOP_SCHEDULE,
    LOOP_SUBMIT,
    LOOP_PREPARE, /* a hook here returns true to forbid sleeping in this round */
    LOOP_PHASE_COUNT
};

enum status loop_create(struct loop **loop_out, struct err *err);
void loop_destroy(struct loop *loop);
/* Runs until loop_stop. */
void loop_run(struct loop *loop);
/* One round; sleeps at most `wait_ns`. */
void loop_round(struct loop *loop, uint64_t wait_ns);
/* Thread-safe and safe in a signal handler. */
void loop_stop(struct loop *loop);
/* The time at the start of this round, so that all decisions of a round agree. */
uint64_t loop_now_ns(const struct loop *loop);
/* How late this round started, when it was more than 250 ms; else 0. */
uint64_t loop_late_ns(const struct loop *loop);
/* The sum of all lateness so far: `deadline + (loop_late_total_ns now - then)` extends a deadline by what was lost. */
uint64_t loop_late_total_ns(const struct loop *loop);

/* --- file descriptors --- */
struct loop_io {
    struct loop *loop;
    int fd;
    void (*ready)(void *context, uint32_t epoll_events);
    void *context;
};
/* The struct stays with the caller until loop_io_stop. Level-triggered. */
enum status loop_io_start(struct loop *loop, struct loop_io *io, int fd, uint32_t epoll_events,
                          void (*ready)(void *context, uint32_t epoll_events), void *context,
                          struct err *err);
void loop_io_change(struct loop_io *io, uint32_t epoll_events);
void loop_io_stop(struct loop_io *io); /* does not close the fd; stopping twice does no harm */

/* --- timers --- */
struct loop_timer {
    struct loop *loop;
    uint64_t deadline_ns;
    int heap_index; /* -1: not armed */
    void (*fire)(void *context);
    void *context;
};
void loop_timer_init(struct loop *loop, struct loop_timer *timer, void (*fire)(void *context),
                     void *context);
/* Arms or moves; DEADLINE_NONE disarms. */
void loop_timer_set(struct loop_timer *timer, uint64_t deadline_ns);
void loop_timer_stop(struct loop_timer *timer);

/* --- wakers: how another thread gets the loop's attention --- */
struct loop_waker {
    struct loop_io io;
    void (*woken)(void *context);
    void *context;
    int event_fd;
};
enum status loop_waker_init(struct loop *loop, struct loop_waker *waker,
                            void (*woken)(void *context), void *context, struct err *err);
void loop_waker_wake(struct loop_waker *waker); /* any thread; wakes collapse */
void loop_waker_finish(struct loop_waker *waker);

/* --- phases --- */
struct loop_hook {
    struct list link;
    bool (*run)(void *context); /* the result counts in LOOP_PREPARE only */
    void *context;
};
void loop_hook_add(struct loop *loop, struct loop_hook *hook, enum loop_phase phase,
                   bool (*run)(void *context), void *context);
void loop_hook_remove(struct loop_hook *hook);

/* --- signals --- */
/* Blocks `signals` (0-terminated) in this thread, and so in all threads created later, and calls `caught` in the loop. */
struct loop_signals {
    struct loop_io io;
    void (*caught)(void *context, int signal_number);
    void *context;
};
enum status loop_signals_start(struct loop *loop, struct loop_signals *signals, const int *numbers,
                               void (*caught)(void *context, int signal_number), void *context,
                               struct err *err);
void loop_signals_stop(struct loop_signals *signals);

#endif
