/* See loop.h: time, timers and phases. Timers are a binary heap of pointers; everything else is a list. */
#include "base/loop_impl.h"

#include <assert.h>
#include <stdlib.h>

static const uint64_t late_threshold_ns = 250 * NS_PER_MS;

void loop_init(struct loop *loop)
{
    *loop = (struct loop){.now_ns = clock_now_ns(), .epoll_fd = -1};
    for (int i = 0; i < LOOP_PHASE_COUNT; i++)
        list_init(&loop->hooks[i]);
}

void loop_finish(struct loop *loop)
{
    free(loop->heap);
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

static uint64_t first_due_ns(const struct loop *loop)
{
    return loop->heap_count ? loop->heap[0]->deadline_ns : DEADLINE_NONE;
}

uint64_t loop_plan(struct loop *loop, uint64_t wait_ns)
{
    bool busy = phase_run(loop, LOOP_PREPARE);
    uint64_t now_ns = clock_now_ns();
    uint64_t wake_ns = wait_ns > DEADLINE_NONE - now_ns ? DEADLINE_NONE : now_ns + wait_ns;
    if (first_due_ns(loop) < wake_ns)
        wake_ns = first_due_ns(loop);
    return busy || wake_ns < now_ns ? now_ns : wake_ns;
}

void loop_wake(struct loop *loop, uint64_t wake_ns)
{
    uint64_t now_ns = clock_now_ns();
    /* Late is what passed beyond the planned wake-up, or, when events cut the sleep short, beyond the last round's start
     * by more than the planned sleep: both show as time that this thread did not run when it wanted to. */
    uint64_t due_ns = first_due_ns(loop) < wake_ns ? first_due_ns(loop) : wake_ns;
    loop->late_ns = 0;
    if (due_ns != DEADLINE_NONE && now_ns > due_ns && now_ns - due_ns > late_threshold_ns) {
        loop->late_ns = now_ns - due_ns;
        loop->late_total_ns += loop->late_ns;
    }
    loop->now_ns = now_ns;
}

void loop_act(struct loop *loop)
{
    timers_fire(loop);
    phase_run(loop, LOOP_RECEIVE);
    phase_run(loop, LOOP_COMPLETE);
    phase_run(loop, LOOP_SCHEDULE);
    phase_run(loop, LOOP_SUBMIT);
}
