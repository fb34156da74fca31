/* The library's life, and the way of a finished tag from gRPC core to the loop.
 *
 * The RPC thread waits on the completion queue and pushes each tag on a lock-free stack; when the stack was empty it wakes
 * the loop. The loop takes the whole stack at once in its RECEIVE phase and turns it round, so tags are seen in the order in
 * which core gave them. The stack has many pushes and one take-all, so it has no ABA problem.
 *
 * Most sends, and reads of what has arrived already, complete while they are posted. Core can hand one such completion to
 * the posting thread (its thread-local cache, made for this), which saves two thread switches: one stream carries 5 to 8
 * times as many messages a second with it.
 *
 * Owner: the loop thread, but for rpc_thread. */
#include "proto/rpc/internal.h"

#include <assert.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <grpc/support/log.h>

/* In one round, what completes at once may cause more that does; then the rest of the loop has its turn. */
enum { READY_PASSES = 8 };
/* A teardown that takes longer is our bug: everything was cancelled before. */
static const uint64_t teardown_max_ns = 30 * NS_PER_S;

/* --- the RPC thread --- */

static void *rpc_thread(void *argument)
{
    struct rpc *rpc = argument;
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        struct rpc_tag *tag = event.tag;
        atomic_load_explicit(&tag->out, memory_order_acquire);
        tag->ok = event.success;
        struct rpc_tag *top = atomic_load_explicit(&rpc->stack, memory_order_relaxed);
        do {
            tag->next = top;
        } while (!atomic_compare_exchange_weak_explicit(
            &rpc->stack, &top, tag, memory_order_release, memory_order_relaxed));
        if (!top)
            loop_waker_wake(&rpc->waker);
    }
}

/* --- the loop's side --- */

void rpc_tag_out(struct rpc *rpc, struct rpc_tag *tag)
{
    rpc->tags_out++;
    atomic_store_explicit(&tag->out, true, memory_order_release);
}

void rpc_batch_post(struct rpc *rpc, grpc_call *call, const grpc_op *ops, size_t count,
                    struct rpc_tag *tag)
{
    rpc_tag_out(rpc, tag);
    grpc_completion_queue_thread_local_cache_init(rpc->queue);
    grpc_call_error error = grpc_call_start_batch(call, ops, count, tag, NULL);
    /* what could be refused (two reads, illegal metadata, …) was checked before */
    assert(error == GRPC_CALL_OK);
    (void)error;
    void *done;
    int ok;
    if (!grpc_completion_queue_thread_local_cache_flush(rpc->queue, &done, &ok))
        return;
    struct rpc_tag *completed = done; /* not always `tag` */
    completed->ok = ok;
    completed->next = NULL;
    *rpc->ready_end = completed;
    rpc->ready_end = &completed->next;
}

static void tags_tell(struct rpc *rpc, struct rpc_tag *first)
{
    while (first) {
        struct rpc_tag *tag = first;
        first = tag->next; /* the tag's object may be gone after done */
        assert(rpc->tags_out > 0);
        rpc->tags_out--;
        tag->done(tag->context, tag->ok);
    }
}

static bool tags_take(void *context)
{
    struct rpc *rpc = context;
    struct rpc_tag *top = atomic_exchange_explicit(&rpc->stack, NULL, memory_order_acquire);
    struct rpc_tag *first = NULL;
    while (top) {
        struct rpc_tag *next = top->next;
        top->next = first;
        first = top;
        top = next;
    }
    tags_tell(rpc, first);
    for (int pass = 0; rpc->ready && pass < READY_PASSES; pass++) {
        first = rpc->ready;
        rpc->ready = NULL;
        rpc->ready_end = &rpc->ready;
        tags_tell(rpc, first);
    }
    return false;
}

static bool tags_are_ready(void *context)
{
    return ((struct rpc *)context)->ready != NULL;
}

static void woken(void *context)
{
    (void)context; /* waking up is all: the RECEIVE phase takes the tags */
}

/* --- life --- */

static void log_nothing(gpr_log_func_args *args)
{
    (void)args;
}

/* Core's threads inherit the mask of whoever makes them; signals are for the loop. */
static void signals_block(sigset_t *before_out)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before_out);
}

enum status rpc_create(struct loop *loop, struct rpc **rpc_out, struct err *err)
{
    struct rpc *rpc = calloc(1, sizeof *rpc);
    if (!rpc)
        return err_set(err, STATUS_MEMORY, "rpc: no memory");
    rpc->loop = loop;
    list_init(&rpc->servers);
    list_init(&rpc->channels);
    enum status status = loop_waker_init(loop, &rpc->waker, woken, rpc, err);
    if (status) {
        free(rpc);
        return status;
    }
    /* a library does not log; GRPC_VERBOSITY brings core's own log back for debugging */
    if (!getenv("GRPC_VERBOSITY"))
        gpr_set_log_function(log_nothing);
    sigset_t before;
    signals_block(&before);
    grpc_init();
    rpc->queue = grpc_completion_queue_create_for_next(NULL);
    int rc = pthread_create(&rpc->thread, NULL, rpc_thread, rpc);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        grpc_completion_queue_shutdown(rpc->queue);
        grpc_completion_queue_destroy(rpc->queue);
        grpc_shutdown();
        loop_waker_finish(&rpc->waker);
        free(rpc);
        return err_set(err, STATUS_MEMORY, "rpc: cannot start a thread: %s", strerror(rc));
    }
    rpc->ready_end = &rpc->ready;
    loop_hook_add(loop, &rpc->take_hook, LOOP_RECEIVE, tags_take, rpc);
    loop_hook_add(loop, &rpc->prepare_hook, LOOP_PREPARE, tags_are_ready, rpc);
    *rpc_out = rpc;
    return STATUS_OK;
}

void rpc_destroy(struct rpc *rpc)
{
    if (!rpc)
        return;
    /* Only our own descriptor is served here: a round of the loop would run other parts, which may be gone. */
    uint64_t give_up_ns = clock_now_ns() + teardown_max_ns;
    tags_take(rpc);
    while (rpc->tags_out || !list_empty(&rpc->servers) || !list_empty(&rpc->channels)) {
        struct pollfd wake = {.fd = rpc->waker.event_fd, .events = POLLIN};
        poll(&wake, 1, rpc->ready ? 0 : 10);
        uint64_t count;
        if (wake.revents && read(rpc->waker.event_fd, &count, sizeof count) < 0)
            continue;
        tags_take(rpc);
        assert(clock_now_ns() < give_up_ns);
    }
    grpc_completion_queue_shutdown(rpc->queue);
    pthread_join(rpc->thread, NULL);
    grpc_completion_queue_destroy(rpc->queue);
    loop_hook_remove(&rpc->take_hook);
    loop_hook_remove(&rpc->prepare_hook);
    loop_waker_finish(&rpc->waker);
    grpc_shutdown_blocking();
    if (rpc->tap)
        rpc->tap->destroy(rpc->tap);
    free(rpc);
}

const char *rpc_library_version(void)
{
    return grpc_version_string();
}
