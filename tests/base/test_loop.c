#include "base/loop.h"
#include "tests/test.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

static char trace[64];

static void mark(char c)
{
    size_t n = strlen(trace);
    if (n + 1 < sizeof trace)
        trace[n] = c;
}

static bool hook_receive(void *context)
{
    mark('r');
    return false;
}
static bool hook_complete(void *context)
{
    mark('c');
    return false;
}
static bool hook_schedule(void *context)
{
    mark('s');
    return false;
}
static bool hook_submit(void *context)
{
    mark('b');
    return false;
}

TEST(loop, phases_run_in_order_each_round)
{
    struct loop *loop;
    CHECK_INT(loop_create(&loop, NULL), STATUS_OK);
    struct loop_hook hooks[4] = {0};
    loop_hook_add(loop, &hooks[3], LOOP_SUBMIT, hook_submit, NULL);
    loop_hook_add(loop, &hooks[2], LOOP_SCHEDULE, hook_schedule, NULL);
    loop_hook_add(loop, &hooks[1], LOOP_COMPLETE, hook_complete, NULL);
    loop_hook_add(loop, &hooks[0], LOOP_RECEIVE, hook_receive, NULL);
    loop_round(loop, 0);
    loop_round(loop, 0);
    CHECK_STR(trace, "rcsbrcsb");
    loop_destroy(loop);
}

static struct loop_timer timers[500];
static uint64_t last_fired_ns;
static int fired;

static void timer_fire(void *context)
{
    uint64_t *deadline_ns = context;
    CHECK(*deadline_ns >= last_fired_ns);
    last_fired_ns = *deadline_ns;
    fired++;
}

TEST(loop, timers_fire_in_order_and_stopped_ones_never)
{
    struct loop *loop;
    static uint64_t deadlines_ns[500];
    CHECK_INT(loop_create(&loop, NULL), STATUS_OK);
    uint64_t now_ns = clock_now_ns();
    unsigned seed = 7;
    for (int i = 0; i < 500; i++) {
        deadlines_ns[i] = now_ns + (uint64_t)(rand_r(&seed) % 1000) * 1000;
        loop_timer_init(loop, &timers[i], timer_fire, &deadlines_ns[i]);
        loop_timer_set(&timers[i], now_ns + 5 * NS_PER_S);
        loop_timer_set(&timers[i], deadlines_ns[i]); /* moving an armed timer */
    }
    for (int i = 0; i < 500; i += 5)
        loop_timer_stop(&timers[i]);
    while (fired < 400)
        loop_round(loop, 10 * NS_PER_MS);
    loop_round(loop, 2 * NS_PER_MS);
    CHECK_INT(fired, 400);
    loop_destroy(loop);
}

static struct loop *stopped_loop;
static struct loop_waker waker;
static _Atomic int woken; /* written by the loop, read by the thread that wakes it */

static void on_woken(void *context)
{
    if (++woken == 3)
        loop_stop(stopped_loop);
}

static void *wake_from_outside(void *context)
{
    while (woken < 3) {
        loop_waker_wake(&waker);
        usleep(1000);
    }
    return NULL;
}

TEST(loop, wakers_reach_the_loop_from_another_thread)
{
    CHECK_INT(loop_create(&stopped_loop, NULL), STATUS_OK);
    CHECK_INT(loop_waker_init(stopped_loop, &waker, on_woken, NULL, NULL), STATUS_OK);
    pthread_t thread;
    pthread_create(&thread, NULL, wake_from_outside, NULL);
    loop_run(stopped_loop);
    pthread_join(thread, NULL);
    CHECK(woken >= 3);
    loop_waker_finish(&waker);
    loop_destroy(stopped_loop);
}

static struct loop_io ios[2];
static int ready_count;

static void io_ready(void *context, uint32_t events)
{
    ready_count++;
    loop_io_stop(&ios[0]);
    loop_io_stop(&ios[1]);
}

TEST(loop, an_io_stopped_by_another_handler_of_the_same_round_is_not_called)
{
    struct loop *loop;
    int pipes[2][2];
    CHECK_INT(loop_create(&loop, NULL), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(pipe(pipes[i]) == 0);
        CHECK(write(pipes[i][1], "x", 1) == 1);
        CHECK_INT(loop_io_start(loop, &ios[i], pipes[i][0], EPOLLIN, io_ready, NULL, NULL),
                  STATUS_OK);
    }
    loop_round(loop, 0);
    CHECK_INT(ready_count, 1);
    loop_destroy(loop);
}

static void slow_fire(void *context)
{
    usleep(400 * 1000);
}

TEST(loop, lateness_is_measured_only_beyond_a_quarter_second)
{
    struct loop *loop;
    struct loop_timer slow, next;
    CHECK_INT(loop_create(&loop, NULL), STATUS_OK);
    uint64_t now_ns;
    do { /* a machine that stood still is late, and rightly so */
        now_ns = clock_now_ns();
        loop_round(loop, NS_PER_MS);
    } while (clock_now_ns() - now_ns > 200 * NS_PER_MS);
    CHECK_INT(loop_late_ns(loop), 0);
    now_ns = clock_now_ns();
    static uint64_t due_ns;
    due_ns = now_ns + 2000;
    loop_timer_init(loop, &slow, slow_fire, NULL);
    loop_timer_init(loop, &next, timer_fire, &due_ns);
    loop_timer_set(&slow, now_ns + 1000);
    loop_timer_set(&next, now_ns + 20 * NS_PER_MS); /* due while the slow handler runs */
    loop_round(loop, NS_PER_S);
    loop_round(loop, NS_PER_S);
    CHECK(loop_late_ns(loop) > 250 * NS_PER_MS);
    CHECK(loop_late_total_ns(loop) >= loop_late_ns(loop));
    loop_destroy(loop);
}
