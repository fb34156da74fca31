/* See loop.h: how a loop sleeps in epoll, and what wakes it: descriptors, wakers, signals. */
#include "base/loop_impl.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

static void stop_woken(void *context)
{
    (void)context;
}

enum status loop_create(struct loop **loop_out, struct err *err)
{
    struct loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return err_set(err, STATUS_MEMORY, "event loop: no memory");
    loop_init(loop);
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
    *loop_out = loop;
    return STATUS_OK;
}

void loop_destroy(struct loop *loop)
{
    if (!loop)
        return;
    loop_waker_finish(&loop->stop_waker);
    close(loop->epoll_fd);
    loop_finish(loop);
    free(loop);
}

void loop_stop(struct loop *loop)
{
    atomic_store(&loop->stopping, true);
    loop_waker_wake(&loop->stop_waker);
}

/* --- rounds --- */

/* Sleeps until an event or `wake_ns`. */
static void loop_sleep(struct loop *loop, uint64_t wake_ns)
{
    uint64_t now_ns = clock_now_ns(), sleep_ns = wake_ns > now_ns ? wake_ns - now_ns : 0;
    struct timespec timeout = {.tv_sec = (time_t)(sleep_ns / NS_PER_S),
                               .tv_nsec = (long)(sleep_ns % NS_PER_S)};
    int count = epoll_pwait2(loop->epoll_fd, loop->events, LOOP_EVENTS_PER_ROUND,
                             wake_ns == DEADLINE_NONE ? NULL : &timeout, NULL);
    loop->event_count = count > 0 ? count : 0;
}

void loop_round(struct loop *loop, uint64_t wait_ns)
{
    uint64_t wake_ns = loop_plan(loop, wait_ns);
    loop_sleep(loop, wake_ns);
    loop_wake(loop, wake_ns);
    for (int i = 0; i < loop->event_count; i++) {
        struct loop_io *io = loop->events[i].data.ptr;
        if (io)
            io->ready(io->context, loop->events[i].events);
    }
    loop->event_count = 0;
    loop_act(loop);
}

void loop_run(struct loop *loop)
{
    while (!atomic_load(&loop->stopping))
        loop_round(loop, DEADLINE_NONE);
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
