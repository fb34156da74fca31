/* Streams and events of the CPU backend. See device.h.
 *
 *     ring   0 ──▶ tail ──▶ limit ──▶ head        tail: run; limit: may run; head: pushed
 *
 * An ordinary stream's limit follows its head. A lazy one's (opaque) moves only to an event that is armed or waited for,
 * as a device that runs queued work only when it must.
 *
 * An event is a command like any other: it marks itself done, wakes who waits, and calls what was armed. */
#include "kernels/cpu/device.h"
#include "kernels/cpu/head.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/futex.h"
#include "kernels/cpu/sampler.h"

struct kern_event {
    struct cpu_device *device;
    struct kern_stream *stream; /* of the last record */
    uint64_t index;             /* commands up to and including the record */
    pthread_mutex_t mutex;      /* guards fired, context and the change of done */
    _Atomic uint32_t done;
    void (*fired)(void *context);
    void *context;
};

static void ring_bell(struct kern_stream *stream)
{
    atomic_fetch_add(&stream->bell, 1);
    if (atomic_load(&stream->asleep))
        futex_wake(&stream->bell, 1);
}

/* The loop thread. */
static void limit_raise(struct kern_stream *stream, uint64_t limit)
{
    if (limit <= atomic_load(&stream->limit))
        return;
    atomic_store(&stream->limit, limit);
    ring_bell(stream);
}

void cpu_stream_push_asked(struct kern_stream *stream,
                           void (*run)(struct kern_stream *stream, const void *arguments),
                           bool (*ask)(struct kern_stream *stream, const void *arguments),
                           const void *arguments, size_t bytes)
{
    assert(bytes <= CPU_COMMAND_BYTES);
    assert(stream->head - atomic_load(&stream->tail) < stream->capacity);
    struct cpu_command *command = &stream->ring[stream->head & (stream->capacity - 1)];
    command->run = run;
    command->ask = ask;
    memcpy(command->arguments, arguments, bytes);
    stream->head++;
    if (!stream->device->opaque)
        limit_raise(stream, stream->head);
}

void cpu_stream_ask(struct kern_stream *stream)
{
    enum { COMMANDS = 6 }; /* no further apart are two products of a layer */
    uint64_t next = atomic_load(&stream->tail) + 1, end = atomic_load(&stream->limit);
    end = end < next + COMMANDS ? end : next + COMMANDS;
    for (bool enough = false; next < end && !enough; next++) {
        const struct cpu_command *command = &stream->ring[next & (stream->capacity - 1)];
        enough = command->ask && command->ask(stream, command->arguments);
    }
}

static void enter(struct kern_stream *stream)
{
    if (!stream->entered)
        cpu_device_enter(stream->device);
    stream->entered = true;
}

static void leave(struct kern_stream *stream)
{
    if (stream->entered)
        cpu_device_leave(stream->device);
    stream->entered = false;
}

static void *stream_main(void *argument)
{
    struct kern_stream *stream = argument;
    if (stream->pool)
        cpu_list_pin(&stream->device->cpus, 0);
    for (;;) {
        uint32_t bell = atomic_load(&stream->bell);
        uint64_t tail = atomic_load(&stream->tail), limit = atomic_load(&stream->limit);
        if (tail < limit) {
            enter(stream);
            struct cpu_command *command = &stream->ring[tail & (stream->capacity - 1)];
            command->run(stream, command->arguments);
            atomic_store(&stream->tail, tail + 1);
            continue;
        }
        leave(stream);
        if (atomic_load(&stream->stop))
            return NULL;
        for (int i = 0; i < SPIN_COUNT && atomic_load(&stream->bell) == bell; i++)
            spin_pause();
        atomic_store(&stream->asleep, 1);
        if (atomic_load(&stream->bell) == bell)
            futex_sleep(&stream->bell, bell, NULL);
        atomic_store(&stream->asleep, 0);
    }
}

static void stream_free(struct kern_stream *stream)
{
    if (stream->scratch)
        for (unsigned i = 0; i < stream->device->threads; i++) {
            free(stream->scratch[i].attention);
            free(stream->scratch[i].maxima);
            cpu_sampler_destroy(stream->scratch[i].sampler);
        }
    free(stream->scratch);
    cpu_attention_split_finish(&stream->split);
    cpu_pool_destroy(stream->pool);
    free(stream->ring);
    free(stream);
}

static enum status compute_init(struct kern_stream *stream)
{
    struct cpu_device *device = stream->device;
    stream->scratch = calloc(device->threads, sizeof *stream->scratch);
    if (!stream->scratch)
        return STATUS_MEMORY;
    for (unsigned i = 0; i < device->threads; i++) {
        size_t floats = cpu_attention_scratch_floats(stream->head_dim);
        stream->scratch[i].attention = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
        stream->scratch[i].maxima = calloc(CPU_HEAD_MAXIMA, sizeof(float));
        if (!stream->scratch[i].attention || !stream->scratch[i].maxima)
            return STATUS_MEMORY;
        enum status status = cpu_sampler_create(stream->vocab, &stream->scratch[i].sampler);
        if (status != STATUS_OK)
            return status;
    }
    enum status status = cpu_attention_split_init(&stream->split, device->threads);
    if (status != STATUS_OK)
        return status;
    return cpu_pool_create(device->threads, &device->cpus, &stream->pool);
}

enum status cpu_stream_create(struct kern_device *device_base,
                              const struct kern_stream_options *options,
                              struct kern_stream **stream_out)
{
    struct cpu_device *device = cpu_device_of(device_base);
    struct kern_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return STATUS_MEMORY;
    stream->device = device;
    stream->head_dim = options->head_dim;
    stream->vocab = options->vocab;
    stream->capacity = 16;
    while (stream->capacity < options->commands_max)
        stream->capacity *= 2;
    stream->ring = aligned_alloc(16, stream->capacity * sizeof *stream->ring);
    enum status status = stream->ring ? STATUS_OK : STATUS_MEMORY;
    if (status == STATUS_OK && options->compute) {
        assert(!device->compute_stream);
        status = compute_init(stream);
    }
    if (status == STATUS_OK && pthread_create(&stream->thread, NULL, stream_main, stream) != 0)
        status = STATUS_DEVICE;
    if (status != STATUS_OK) {
        stream_free(stream);
        return status;
    }
    device->compute_stream |= options->compute;
    *stream_out = stream;
    return STATUS_OK;
}

void cpu_stream_destroy(struct kern_stream *stream)
{
    if (!stream)
        return;
    limit_raise(stream, stream->head);
    atomic_store(&stream->stop, true);
    ring_bell(stream);
    pthread_join(stream->thread, NULL);
    if (stream->scratch)
        stream->device->compute_stream = false;
    stream_free(stream);
}

/* --- events --- */

enum status cpu_event_create(struct kern_device *device, struct kern_event **event_out)
{
    struct kern_event *event = calloc(1, sizeof *event);
    if (!event)
        return STATUS_MEMORY;
    event->device = cpu_device_of(device);
    pthread_mutex_init(&event->mutex, NULL);
    atomic_store(&event->done, 1);
    *event_out = event;
    return STATUS_OK;
}

void cpu_event_destroy(struct kern_event *event)
{
    if (!event)
        return;
    pthread_mutex_destroy(&event->mutex);
    free(event);
}

struct record_arguments {
    struct kern_event *event;
};

static void record_run(struct kern_stream *stream, const void *arguments)
{
    struct kern_event *event = ((const struct record_arguments *)arguments)->event;
    leave(stream); /* so that whoever this wakes finds the memory closed */
    pthread_mutex_lock(&event->mutex);
    void (*fired)(void *context) = event->fired;
    void *context = event->context;
    event->fired = NULL;
    atomic_store(&event->done, 1);
    pthread_mutex_unlock(&event->mutex);
    futex_wake(&event->done, INT_MAX);
    if (fired)
        fired(context);
}

void cpu_event_record(struct kern_stream *stream, struct kern_event *event)
{
    assert(atomic_load(&event->done));
    atomic_store(&event->done, 0);
    event->stream = stream;
    struct record_arguments arguments = {event};
    event->index = stream->head + 1;
    cpu_stream_push(stream, record_run, &arguments, sizeof arguments);
}

bool cpu_event_query(const struct kern_event *event)
{
    return atomic_load(&event->done) != 0;
}

void cpu_event_wait(struct kern_event *event)
{
    if (cpu_event_query(event))
        return;
    limit_raise(event->stream, event->index);
    while (!cpu_event_query(event))
        futex_sleep(&event->done, 0, NULL);
}

void cpu_event_arm(struct kern_event *event, void (*fired)(void *context), void *context)
{
    pthread_mutex_lock(&event->mutex);
    bool done = cpu_event_query(event);
    if (!done) {
        event->fired = fired;
        event->context = context;
    }
    pthread_mutex_unlock(&event->mutex);
    if (done)
        fired(context);
    else
        limit_raise(event->stream, event->index);
}

void cpu_stream_sync(struct kern_stream *stream)
{
    struct kern_event *event;
    if (cpu_event_create(&stream->device->base, &event) != STATUS_OK)
        abort(); /* cold path, a few bytes: nothing else would work either */
    cpu_event_record(stream, event);
    cpu_event_wait(event);
    /* the stream thread may still be inside record_run's unlock and wake: let it pass the command */
    uint64_t index = event->index;
    while (atomic_load(&stream->tail) < index)
        spin_pause();
    cpu_event_destroy(event);
}
