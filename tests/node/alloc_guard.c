/* See alloc_guard.h. */
#include "tests/node/alloc_guard.h"

#include <execinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/loop.h"
#include "engine/engine.h"
#include "node/node.h"
#include "proto/rpc/rpc.h"

/* the linker makes the calls of __wrap_*, and no header can declare them */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { SHOWN = 4, FRAMES = 24, CALLBACKS = 256 };

static atomic_bool counting;
static atomic_ullong seen;
static _Thread_local unsigned guarded, exempt;
static bool in_rpc_create, in_engine_create;

void alloc_guard_begin(void)
{
    atomic_store(&seen, 0);
    atomic_store(&counting, true);
}

uint64_t alloc_guard_end(void)
{
    atomic_store(&counting, false);
    return atomic_load(&seen);
}

static void allocation(const char *what)
{
    if (!guarded || exempt || !atomic_load(&counting))
        return;
    exempt++; /* what reports it may allocate */
    if (atomic_fetch_add(&seen, 1) < SHOWN) {
        void *frames[FRAMES];
        fprintf(stderr, "%s while the node runs:\n", what);
        backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
    }
    exempt--;
}

/* --- allocation --- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
char *__real_strdup(const char *text);

void *__wrap_malloc(size_t bytes)
{
    allocation("malloc");
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    allocation("calloc");
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    allocation("realloc");
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    allocation("aligned_alloc");
    return __real_aligned_alloc(alignment, bytes);
}

char *__wrap_strdup(const char *text)
{
    allocation("strdup");
    return __real_strdup(text);
}

/* glibc's sorts in memory that it allocates when there is much of it */
void __real_qsort(void *base, size_t count, size_t bytes,
                  int (*compare)(const void *, const void *));
void __wrap_qsort(void *base, size_t count, size_t bytes,
                  int (*compare)(const void *, const void *))
{
    allocation("qsort");
    __real_qsort(base, count, bytes, compare);
}

/* --- what is guarded: everything that the loop calls --- */

struct callback {
    bool (*run)(void *context);
    void (*fire)(void *context);
    void (*ready)(void *context, uint32_t events);
    void *context;
};
static struct callback callbacks[CALLBACKS];
static unsigned callback_count;

static struct callback *callback_new(void *context)
{
    if (callback_count == CALLBACKS)
        abort();
    callbacks[callback_count].context = context;
    return &callbacks[callback_count++];
}

static bool run_guarded(void *context)
{
    struct callback *callback = context;
    guarded++;
    bool result = callback->run(callback->context);
    guarded--;
    return result;
}

static void fire_guarded(void *context)
{
    struct callback *callback = context;
    guarded++;
    callback->fire(callback->context);
    guarded--;
}

static void ready_guarded(void *context, uint32_t events)
{
    struct callback *callback = context;
    guarded++;
    callback->ready(callback->context, events);
    guarded--;
}

void __real_loop_hook_add(struct loop *loop, struct loop_hook *hook, enum loop_phase phase,
                          bool (*run)(void *context), void *context);
void __wrap_loop_hook_add(struct loop *loop, struct loop_hook *hook, enum loop_phase phase,
                          bool (*run)(void *context), void *context)
{
    if (in_rpc_create) {
        __real_loop_hook_add(loop, hook, phase, run, context);
        return;
    }
    struct callback *callback = callback_new(context);
    callback->run = run;
    __real_loop_hook_add(loop, hook, phase, run_guarded, callback);
}

void __real_loop_timer_init(struct loop *loop, struct loop_timer *timer,
                            void (*fire)(void *context), void *context);
void __wrap_loop_timer_init(struct loop *loop, struct loop_timer *timer,
                            void (*fire)(void *context), void *context)
{
    struct callback *callback = callback_new(context);
    callback->fire = fire;
    __real_loop_timer_init(loop, timer, fire_guarded, callback);
}

enum status __real_loop_io_start(struct loop *loop, struct loop_io *io, int fd, uint32_t events,
                                 void (*ready)(void *context, uint32_t events), void *context,
                                 struct err *err);
enum status __wrap_loop_io_start(struct loop *loop, struct loop_io *io, int fd, uint32_t events,
                                 void (*ready)(void *context, uint32_t events), void *context,
                                 struct err *err)
{
    struct callback *callback = callback_new(context);
    callback->ready = ready;
    return __real_loop_io_start(loop, io, fd, events, ready_guarded, callback, err);
}

/* what comes from the router enters here, below rpc's own hook */
void __real_node_message(struct node *node, const Baton__Node__V1__RouterMessage *message);
void __wrap_node_message(struct node *node, const Baton__Node__V1__RouterMessage *message)
{
    guarded++;
    __real_node_message(node, message);
    guarded--;
}

/* --- the engine's threads --- */

struct thread_start {
    void *(*run)(void *argument);
    void *argument;
};

static void *thread_guarded(void *argument)
{
    struct thread_start start = *(struct thread_start *)argument;
    free(argument);
    guarded++;
    return start.run(start.argument);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *argument), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *argument), void *argument)
{
    if (!in_engine_create)
        return __real_pthread_create(thread, attributes, run, argument);
    struct thread_start *start = __real_malloc(sizeof *start);
    *start = (struct thread_start){run, argument};
    return __real_pthread_create(thread, attributes, thread_guarded, start);
}

enum status __real_engine_create(const struct engine_options *options,
                                 const struct model_file *model, struct engine **engine_out,
                                 struct err *err);
enum status __wrap_engine_create(const struct engine_options *options,
                                 const struct model_file *model, struct engine **engine_out,
                                 struct err *err)
{
    in_engine_create = true;
    enum status status = __real_engine_create(options, model, engine_out, err);
    in_engine_create = false;
    return status;
}

/* --- what is left out --- */

enum status __real_rpc_create(struct loop *loop, struct rpc **rpc_out, struct err *err);
enum status __wrap_rpc_create(struct loop *loop, struct rpc **rpc_out, struct err *err)
{
    in_rpc_create = true;
    enum status status = __real_rpc_create(loop, rpc_out, err);
    in_rpc_create = false;
    return status;
}

enum status __real_rpc_call_send(struct rpc_call *call, const void *data, size_t bytes);
enum status __wrap_rpc_call_send(struct rpc_call *call, const void *data, size_t bytes)
{
    exempt++;
    enum status status = __real_rpc_call_send(call, data, bytes);
    exempt--;
    return status;
}

enum status __real_rpc_call_send_message(struct rpc_call *call, const ProtobufCMessage *message);
enum status __wrap_rpc_call_send_message(struct rpc_call *call, const ProtobufCMessage *message)
{
    exempt++;
    enum status status = __real_rpc_call_send_message(call, message);
    exempt--;
    return status;
}

enum status __real_rpc_call_send_sealed(struct rpc_call *call, const ProtobufCMessage *message,
                                        struct seal *seal);
enum status __wrap_rpc_call_send_sealed(struct rpc_call *call, const ProtobufCMessage *message,
                                        struct seal *seal)
{
    exempt++;
    enum status status = __real_rpc_call_send_sealed(call, message, seal);
    exempt--;
    return status;
}
