/* See rpc_fault.h. What is kept back stands in one list, in the order in which it came, with its own time; a timer lets it go. */
#include "proto/rpc/rpc_fault.h"

#include <stdlib.h>
#include <string.h>

#include "proto/rpc/internal.h"

static const uint64_t reorder_wait_ns = 20 * NS_PER_MS; /* for a next one that may never come */

struct held {
    struct list link;
    struct rpc_call *call;
    uint64_t due_ns;
    bool after_next;
    size_t bytes;
    uint8_t data[];
};

struct stall {
    struct list link;
    struct rpc_call *call;
    uint64_t until_ns;
};

struct fault_tap {
    struct rpc_tap tap;
    struct rpc *rpc;
    const char *path;
    struct faults *faults;
    struct list held, stalls;
    struct loop_timer timer; /* wakes; the hook, in RECEIVE, lets go */
    struct loop_hook hook;
};

static uint64_t stalled_until_ns(struct fault_tap *fault, const struct rpc_call *call)
{
    list_for_each(it, &fault->stalls)
    {
        const struct stall *stall = container_of(it, struct stall, link);
        if (stall->call == call)
            return stall->until_ns;
    }
    return 0;
}

static void stall_begin(struct fault_tap *fault, struct rpc_call *call, uint64_t until_ns)
{
    list_for_each(it, &fault->stalls)
    {
        struct stall *stall = container_of(it, struct stall, link);
        if (stall->call == call) {
            stall->until_ns = until_ns;
            return;
        }
    }
    struct stall *stall = calloc(1, sizeof *stall);
    if (!stall)
        return;
    stall->call = call;
    stall->until_ns = until_ns;
    list_push_back(&fault->stalls, &stall->link);
}

static void held_drop(struct held *held)
{
    list_remove(&held->link);
    free(held);
}

static void timer_review(struct fault_tap *fault)
{
    uint64_t next_ns = DEADLINE_NONE;
    list_for_each(it, &fault->held)
    {
        const struct held *held = container_of(it, struct held, link);
        uint64_t stalled_ns = stalled_until_ns(fault, held->call);
        uint64_t due_ns = held->due_ns > stalled_ns ? held->due_ns : stalled_ns;
        if (due_ns < next_ns)
            next_ns = due_ns;
    }
    loop_timer_set(&fault->timer, next_ns);
}

static bool wants(struct rpc_tap *tap, const char *path)
{
    return strcmp(container_of(tap, struct fault_tap, tap)->path, path) == 0;
}

static void timer_fired(void *context)
{
    (void)context;
}

/* A delivered message may end its call; then the entries of that call go with `closed`, later. */
static bool held_release(void *context)
{
    struct fault_tap *fault = context;
    uint64_t now_ns = clock_now_ns();
    list_for_each_safe(it, tmp, &fault->held)
    {
        struct held *held = container_of(it, struct held, link);
        if (held->due_ns > now_ns || stalled_until_ns(fault, held->call) > now_ns)
            continue;
        list_remove(&held->link);
        rpc_call_deliver(held->call, held->data, held->bytes);
        free(held);
    }
    timer_review(fault);
    return false;
}

static struct held *hold(struct fault_tap *fault, struct rpc_call *call, uint64_t due_ns,
                         const uint8_t *data, size_t bytes)
{
    struct held *held = malloc(sizeof *held + bytes);
    if (!held)
        return NULL;
    *held = (struct held){.call = call, .due_ns = due_ns, .bytes = bytes};
    if (bytes)
        memcpy(held->data, data, bytes);
    list_push_back(&fault->held, &held->link);
    return held;
}

/* What waited for a next one to pass. */
static void after_next_release(struct fault_tap *fault, const struct rpc_call *call)
{
    list_for_each(it, &fault->held)
    {
        struct held *held = container_of(it, struct held, link);
        if (held->call == call && held->after_next)
            held->due_ns = 0;
    }
}

static void message(struct rpc_tap *tap, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct fault_tap *fault = container_of(tap, struct fault_tap, tap);
    struct faults *faults = fault->faults;
    uint64_t now_ns = clock_now_ns(), due_ns = 0;
    faults_next(faults, FAULTS_MESSAGE);
    if (faults_hit(faults, FAULTS_MESSAGE, FAULTS_DROP))
        return;
    uint8_t *copy = NULL;
    if (bytes && faults_hit(faults, FAULTS_MESSAGE, FAULTS_FLIP) && (copy = malloc(bytes))) {
        memcpy(copy, data, bytes);
        faults_flip_bit(faults, FAULTS_MESSAGE, copy, bytes);
        data = copy;
    }
    bool after_next = false;
    if (faults_hit(faults, FAULTS_MESSAGE, FAULTS_STALL))
        stall_begin(fault, call, now_ns + faults_stall_ns(faults, FAULTS_MESSAGE));
    if (faults_hit(faults, FAULTS_MESSAGE, FAULTS_DELAY)) {
        due_ns = now_ns + faults_delay_ns(faults, FAULTS_MESSAGE);
    } else if (faults_hit(faults, FAULTS_MESSAGE, FAULTS_REORDER)) {
        due_ns = now_ns + reorder_wait_ns;
        after_next = true;
    }
    bool stalled = stalled_until_ns(fault, call) > now_ns;
    struct held *held = due_ns || stalled ? hold(fault, call, due_ns, data, bytes) : NULL;
    if (held) {
        held->after_next = after_next;
    } else {
        rpc_call_deliver(call, data, bytes);
        if (faults_hit(faults, FAULTS_MESSAGE, FAULTS_DUPLICATE))
            rpc_call_deliver(call, data, bytes);
        after_next_release(fault, call);
    }
    free(copy);
    timer_review(fault);
}

static void closed(struct rpc_tap *tap, struct rpc_call *call)
{
    struct fault_tap *fault = container_of(tap, struct fault_tap, tap);
    list_for_each_safe(it, tmp, &fault->held)
    {
        struct held *held = container_of(it, struct held, link);
        if (held->call == call)
            held_drop(held);
    }
    list_for_each_safe(it, tmp, &fault->stalls)
    {
        struct stall *stall = container_of(it, struct stall, link);
        if (stall->call != call)
            continue;
        list_remove(&stall->link);
        free(stall);
    }
}

static void destroy(struct rpc_tap *tap)
{
    struct fault_tap *fault = container_of(tap, struct fault_tap, tap);
    loop_timer_stop(&fault->timer);
    loop_hook_remove(&fault->hook);
    free(fault);
}

enum status rpc_fault_start(struct rpc *rpc, const char *path, struct faults *faults,
                            struct err *err)
{
    struct fault_tap *fault = calloc(1, sizeof *fault);
    if (!fault)
        return err_set(err, STATUS_MEMORY, "faults: no memory");
    fault->tap = (struct rpc_tap){wants, message, closed, destroy};
    fault->rpc = rpc;
    fault->path = path;
    fault->faults = faults;
    list_init(&fault->held);
    list_init(&fault->stalls);
    loop_timer_init(rpc->loop, &fault->timer, timer_fired, fault);
    loop_hook_add(rpc->loop, &fault->hook, LOOP_RECEIVE, held_release, fault);
    rpc->tap = &fault->tap;
    return STATUS_OK;
}
