/* See loop.h. Timers are a binary heap of pointers; everything else is a list. */
#include "base/loop.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { EVENTS_PER_ROUND = 64 };
static const uint64_t late_threshold_ns = 250 * NS_PER_MS;

struct loop {
    int epoll_fd;
    atomic_bool stopping;
    struct loop_waker stop_waker;
    uint64_t now_ns, late_ns, late_total_ns;
    struct list hooks[LOOP_PHASE_COUNT];
    struct loop_timer **heap;
    int heap_count, heap_capacity;
    struct epoll_event events[EVENTS_PER_ROUND];
    int event_count;
};

static void stop_woken(void *context)
{
    (void)context;
}

enum status loop_create(struct loop **loop_out, struct err *err)
{
    struct loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return err_set(err, STATUS_MEMORY, "event loop: no memory");
    for (int i = 0; i < LOOP_PHASE_COUNT; i++)
        list_init(&loop->hooks[i]);
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0) {
        free(loop);
        return err_set(err, STATUS_IO, "epoll_create1: %s", strerror(errno));
    }
    enum status status = loop_waker_init(loop, &loop->stop_waker, stop_woken, NULL, err);
    if (status) {
        close(loop->epoll_fd);
        free(loop);
        return status;
    }
    loop->now_ns = clock_now_ns();
    *loop_out = loop;
    return STATUS_OK;
}

void loop_destroy(struct loop *loop)
{
    if (!loop)
        return;
    loop_waker_finish(&loop->stop_waker);
    close(loop->epoll_fd);
    free(loop->heap);
    free(loop);
}

uint64_t loop_now_ns(const struct loop *loop)
{
    return loop->now_ns;
}

uint64_t loop_late_ns(const struct loop *loop)
{
    return loop->late_ns;
}

uint64_t loop_late_total_ns(const struct loop *loop)
{
    return loop->late_total_ns;
}

void loop_stop(struct loop *loop)
{
    atomic_store(&loop->stopping, true);
    loop_waker_wake(&loop->stop_waker);
}

/* --- timers --- */

static void heap_place(struct loop *loop, int index, struct loop_timer *timer)
{
    loop->heap[index] = timer;
    timer->heap_index = index;
}

static void heap_up(struct loop *loop, int index)
{
    struct loop_timer *timer = loop->heap[index];
    while (index > 0) {
        int parent = (index - 1) / 2;
        if (loop->heap[parent]->deadline_ns <= timer->deadline_ns)
            break;
        heap_place(loop, index, loop->heap[parent]);
        index = parent;
    }
    heap_place(loop, index, timer);
}

static void heap_down(struct loop *loop, int index)
{
    struct loop_timer *timer = loop->heap[index];
    for (;;) {
        int child = 2 * index + 1;
        if (child >= loop->heap_count)
            break;
        if (child + 1 < loop->heap_count &&
            loop->heap[child + 1]->deadline_ns < loop->heap[child]->deadline_ns)
            child++;
        if (timer->deadline_ns <= loop->heap[child]->deadline_ns)
            break;
        heap_place(loop, index, loop->heap[child]);
        index = child;
    }
    heap_place(loop, index, timer);
}

void loop_timer_init(struct loop *loop, struct loop_timer *timer, void (*fire)(void *context),
                     void *context)
{
    *timer = (struct loop_timer){.loop = loop,
                                 .deadline_ns = DEADLINE_NONE,
                                 .heap_index = -1,
                                 .fire = fire,
                                 .context = context};
}

void loop_timer_stop(struct loop_timer *timer)
{
    struct loop *loop = timer->loop;
    int index = timer->heap_index;
    if (index < 0)
        return;
    timer->heap_index = -1;
    timer->deadline_ns = DEADLINE_NONE;
    struct loop_timer *last = loop->heap[--loop->heap_count];
    if (last == timer)
        return;
    heap_place(loop, index, last);
    heap_up(loop, index);
    heap_down(loop, last->heap_index);
}

void loop_timer_set(struct loop_timer *timer, uint64_t deadline_ns)
{
    struct loop *loop = timer->loop;
    if (deadline_ns == DEADLINE_NONE) {
        loop_timer_stop(timer);
        return;
    }
    timer->deadline_ns = deadline_ns;
    if (timer->heap_index < 0) {
        if (loop->heap_count == loop->heap_capacity) {
            int capacity = loop->heap_capacity ? 2 * loop->heap_capacity : 64;
            struct loop_timer **heap = realloc(loop->heap, (size_t)capacity * sizeof *heap);
            assert(heap); /* a few kilobytes; without timers no deadline holds */
            loop->heap = heap;
            loop->heap_capacity = capacity;
        }
        heap_place(loop, loop->heap_count++, timer);
    }
    heap_up(loop, timer->heap_index);
    heap_down(loop, timer->heap_index);
}

static void timers_fire(struct loop *loop)
{
    while (loop->heap_count && loop->heap[0]->deadline_ns <= loop->now_ns) {
        struct loop_timer *timer = loop->heap[0];
        loop_timer_stop(timer);
        timer->fire(timer->context);
    }
}

/* --- file descriptors --- */

enum status loop_io_start(struct loop *loop, struct loop_io *io, int fd, uint32_t epoll_events,
                          void (*ready)(void *context, uint32_t epoll_events), void *context,
                          struct err *err)
{
    *io = (struct loop_io){.loop = loop, .fd = fd, .ready = ready, .context = context};
    struct epoll_event event = {.events = epoll_events, .data.ptr = io};
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event)) {
        io->loop = NULL;
        return err_set(err, STATUS_IO, "epoll_ctl add: %s", strerror(errno));
    }
    return STATUS_OK;
}

void loop_io_change(struct loop_io *io, uint32_t epoll_events)
{
    struct epoll_event event = {.events = epoll_events, .data.ptr = io};
    int rc = epoll_ctl(io->loop->epoll_fd, EPOLL_CTL_MOD, io->fd, &event);
    assert(rc == 0);
    (void)rc;
}

void loop_io_stop(struct loop_io *io)
{
    struct loop *loop = io->loop;
    if (!loop)
        return;
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, io->fd, NULL);
    /* an event of this round that was already fetched must not reach a stopped handler */
    for (int i = 0; i < loop->event_count; i++)
        if (loop->events[i].data.ptr == io)
            loop->events[i].data.ptr = NULL;
    io->loop = NULL;
}

/* --- wakers --- */

static void waker_ready(void *context, uint32_t epoll_events)
{
    (void)epoll_events;
    struct loop_waker *waker = context;
    uint64_t count;
    ssize_t n = read(waker->event_fd, &count, sizeof count);
    (void)n;
    waker->woken(waker->context);
}

enum status loop_waker_init(struct loop *loop, struct loop_waker *waker,
                            void (*woken)(void *context), void *context, struct err *err)
{
    *waker = (struct loop_waker){.woken = woken, .context = context};
    waker->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (waker->event_fd < 0)
        return err_set(err, STATUS_IO, "eventfd: %s", strerror(errno));
    enum status status =
        loop_io_start(loop, &waker->io, waker->event_fd, EPOLLIN, waker_ready, waker, err);
    if (status)
        close(waker->event_fd);
    return status;
}

void loop_waker_wake(struct loop_waker *waker)
{
    uint64_t one = 1;
    ssize_t n = write(waker->event_fd, &one, sizeof one);
    (void)n; /* a full counter is a wake already */
}

void loop_waker_finish(struct loop_waker *waker)
{
    if (!waker->io.loop)
        return;
    loop_io_stop(&waker->io);
    close(waker->event_fd);
}

/* --- phases --- */

void loop_hook_add(struct loop *loop, struct loop_hook *hook, enum loop_phase phase,
                   bool (*run)(void *context), void *context)
{
    hook->run = run;
    hook->context = context;
    list_push_back(&loop->hooks[phase], &hook->link);
}

void loop_hook_remove(struct loop_hook *hook)
{
    if (hook->run)
        list_remove(&hook->link);
    hook->run = NULL;
}

static bool phase_run(struct loop *loop, enum loop_phase phase)
{
    bool busy = false;
    list_for_each_safe(it, tmp, &loop->hooks[phase])
    {
        struct loop_hook *hook = container_of(it, struct loop_hook, link);
        busy |= hook->run(hook->context);
    }
    return busy;
}

/* --- rounds --- */

/* Sleeps until an event, the first timer or `wait_ns`, and measures how late it woke. */
static void loop_sleep(struct loop *loop, uint64_t wait_ns, bool busy)
{
    uint64_t before_ns = clock_now_ns();
    uint64_t wake_ns = wait_ns > DEADLINE_NONE - before_ns ? DEADLINE_NONE : before_ns + wait_ns;
    if (loop->heap_count && loop->heap[0]->deadline_ns < wake_ns)
        wake_ns = loop->heap[0]->deadline_ns;
    if (busy || wake_ns < before_ns)
        wake_ns = before_ns;
    struct timespec timeout = {.tv_sec = (time_t)((wake_ns - before_ns) / NS_PER_S),
                               .tv_nsec = (long)((wake_ns - before_ns) % NS_PER_S)};
    int count = epoll_pwait2(loop->epoll_fd, loop->events, EVENTS_PER_ROUND,
                             wake_ns == DEADLINE_NONE ? NULL : &timeout, NULL);
    loop->event_count = count > 0 ? count : 0;
    uint64_t after_ns = clock_now_ns();
    /* Late is what passed beyond the planned wake-up, or, when events cut the sleep short, beyond the last round's start
     * by more than the planned sleep: both show as time that this thread did not run when it wanted to. */
    uint64_t first_due_ns = loop->heap_count ? loop->heap[0]->deadline_ns : DEADLINE_NONE;
    uint64_t due_ns = first_due_ns < wake_ns ? first_due_ns : wake_ns;
    loop->late_ns = 0;
    if (due_ns != DEADLINE_NONE && after_ns > due_ns && after_ns - due_ns > late_threshold_ns) {
        loop->late_ns = after_ns - due_ns;
        loop->late_total_ns += loop->late_ns;
    }
    loop->now_ns = after_ns;
}

void loop_round(struct loop *loop, uint64_t wait_ns)
{
    bool busy = phase_run(loop, LOOP_PREPARE);
    loop_sleep(loop, wait_ns, busy);
    for (int i = 0; i < loop->event_count; i++) {
        struct loop_io *io = loop->events[i].data.ptr;
        if (io)
            io->ready(io->context, loop->events[i].events);
    }
    loop->event_count = 0;
    timers_fire(loop);
    phase_run(loop, LOOP_RECEIVE);
    phase_run(loop, LOOP_COMPLETE);
    phase_run(loop, LOOP_SCHEDULE);
    phase_run(loop, LOOP_SUBMIT);
}

void loop_run(struct loop *loop)
{
    while (!atomic_load(&loop->stopping))
        loop_round(loop, DEADLINE_NONE);
}

/* --- signals --- */

static void signals_ready(void *context, uint32_t epoll_events)
{
    (void)epoll_events;
    struct loop_signals *signals = context;
    struct signalfd_siginfo info;
    while (read(signals->io.fd, &info, sizeof info) == (ssize_t)sizeof info)
        signals->caught(signals->context, (int)info.ssi_signo);
}

enum status loop_signals_start(struct loop *loop, struct loop_signals *signals, const int *numbers,
                               void (*caught)(void *context, int signal_number), void *context,
                               struct err *err)
{
    *signals = (struct loop_signals){.caught = caught, .context = context};
    sigset_t set;
    sigemptyset(&set);
    for (; *numbers; numbers++)
        sigaddset(&set, *numbers);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return err_set(err, STATUS_IO, "signalfd: %s", strerror(errno));
    return loop_io_start(loop, &signals->io, fd, EPOLLIN, signals_ready, signals, err);
}

void loop_signals_stop(struct loop_signals *signals)
{
    if (!signals->io.loop)
        return;
    int fd = signals->io.fd;
    loop_io_stop(&signals->io);
    close(fd);
}
