/* The CPU backend's device, memory, and table of operations. See device.h. */
#include "kernels/cpu/device.h"
#include "kernels/cpu/head.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t region_unit = 4096, huge_unit = 2u << 20, huge_from = 1u << 20;

/* --- memory --- */

/* `bytes` of memory, which become whole pages; NULL when there is none. From a megabyte on it lies on huge pages, to its end:
 * a tile writes a line of each of many rows, and a row of 1,536 outputs is a page of 4 KiB of its own. */
static void *region_map(size_t *bytes_inout, int protection)
{
    size_t unit = *bytes_inout < huge_from ? region_unit : huge_unit;
    size_t bytes = (*bytes_inout + unit - 1) / unit * unit, slack = unit - region_unit;
    uint8_t *mapping =
        mmap(NULL, bytes + slack, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return NULL;
    size_t before = (unit - (uintptr_t)mapping % unit) % unit;
    if (before > 0)
        munmap(mapping, before);
    if (slack > before)
        munmap(mapping + before + bytes, slack - before);
    if (unit == huge_unit)
        (void)madvise(mapping + before, bytes, MADV_HUGEPAGE); /* a hint only */
    *bytes_inout = bytes;
    return mapping + before;
}

enum status cpu_region_create(struct cpu_device *device, size_t bytes,
                              struct cpu_region *region_out)
{
    void *data = region_map(&bytes, device->opaque ? PROT_NONE : PROT_READ | PROT_WRITE);
    if (!data)
        return STATUS_MEMORY;
    cpu_nodes_place(&device->nodes, data, bytes);
    enum status status = STATUS_OK;
    pthread_mutex_lock(&device->mutex);
    if (device->region_count == device->region_capacity) {
        uint32_t capacity = 2 * device->region_capacity + 16;
        struct cpu_region *more = realloc(device->regions, capacity * sizeof *more);
        if (more) {
            device->regions = more;
            device->region_capacity = capacity;
        }
    }
    if (device->region_count == device->region_capacity)
        status = STATUS_MEMORY;
    else
        device->regions[device->region_count++] = (struct cpu_region){data, bytes};
    pthread_mutex_unlock(&device->mutex);
    if (status != STATUS_OK) {
        munmap(data, bytes);
        return status;
    }
    *region_out = (struct cpu_region){data, bytes};
    return STATUS_OK;
}

void cpu_region_destroy(struct cpu_device *device, struct cpu_region *region)
{
    if (!region->data)
        return;
    pthread_mutex_lock(&device->mutex);
    for (uint32_t i = 0; i < device->region_count; i++)
        if (device->regions[i].data == region->data) {
            device->regions[i] = device->regions[--device->region_count];
            break;
        }
    pthread_mutex_unlock(&device->mutex);
    munmap(region->data, region->bytes);
    *region = (struct cpu_region){0};
}

static void protect(struct cpu_device *device, int protection)
{
    for (uint32_t i = 0; i < device->region_count; i++)
        if (mprotect(device->regions[i].data, device->regions[i].bytes, protection) != 0)
            abort(); /* the mappings are ours: only a kernel out of memory can refuse */
}

void cpu_device_enter(struct cpu_device *device)
{
    if (!device->opaque)
        return;
    pthread_mutex_lock(&device->mutex);
    if (device->readers++ == 0)
        protect(device, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&device->mutex);
}

void cpu_device_leave(struct cpu_device *device)
{
    if (!device->opaque)
        return;
    pthread_mutex_lock(&device->mutex);
    assert(device->readers > 0);
    if (--device->readers == 0)
        protect(device, PROT_NONE);
    pthread_mutex_unlock(&device->mutex);
}

static enum status buffer_create(struct kern_device *device, uint64_t bytes,
                                 struct kern_buffer **buffer_out)
{
    struct kern_buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer)
        return STATUS_MEMORY;
    buffer->device = cpu_device_of(device);
    enum status status = cpu_region_create(buffer->device, bytes, &buffer->region);
    if (status != STATUS_OK) {
        free(buffer);
        return status;
    }
    *buffer_out = buffer;
    return STATUS_OK;
}

static void buffer_destroy(struct kern_buffer *buffer)
{
    if (!buffer)
        return;
    cpu_region_destroy(buffer->device, &buffer->region);
    free(buffer);
}

struct transfer_arguments {
    void *to;
    const void *from;
    uint64_t bytes;
};

static void transfer_run(struct kern_stream *stream, const void *arguments)
{
    (void)stream;
    const struct transfer_arguments *a = arguments;
    memcpy(a->to, a->from, a->bytes);
}

static void op_upload(struct kern_stream *stream, struct kern_buffer *buffer, uint64_t offset,
                      const void *host, uint64_t bytes)
{
    assert(offset + bytes <= buffer->region.bytes);
    struct transfer_arguments a = {(uint8_t *)buffer->region.data + offset, host, bytes};
    cpu_stream_push(stream, transfer_run, &a, sizeof a);
}

static void op_download(struct kern_stream *stream, const struct kern_buffer *buffer,
                        uint64_t offset, void *host, uint64_t bytes)
{
    assert(offset + bytes <= buffer->region.bytes);
    struct transfer_arguments a = {host, (const uint8_t *)buffer->region.data + offset, bytes};
    cpu_stream_push(stream, transfer_run, &a, sizeof a);
}

/* --- weights and activations --- */

static enum status weights_create(struct kern_device *device, const struct kern_weights_desc *desc,
                                  struct kern_weights **weights_out, struct err *err)
{
    struct kern_weights *weights = calloc(1, sizeof *weights);
    if (!weights)
        return err_set(err, STATUS_MEMORY, "tensor %s: no memory", desc->name);
    struct cpu_weights_options options = {.type = desc->type,
                                          .compute = cpu_device_of(device)->compute,
                                          .out_rows = desc->rows,
                                          .in_cols = desc->columns,
                                          .data = desc->data,
                                          .store = &cpu_device_of(device)->store};
    enum status status = cpu_weights_create(&options, &weights->weights, err);
    if (status != STATUS_OK) {
        free(weights);
        return err_wrap(err, "tensor %s", desc->name);
    }
    weights->bytes = cpu_weights_bytes(weights->weights);
    *weights_out = weights;
    return STATUS_OK;
}

static uint64_t weights_bytes(const struct kern_weights *weights)
{
    return weights->bytes;
}

static uint64_t weights_bytes_ahead(const struct kern_device *device,
                                    const struct kern_weights_desc *desc)
{
    return cpu_weights_bytes_ahead(desc->type, ((const struct cpu_device *)device)->compute,
                                   desc->rows, desc->columns);
}

static void weights_destroy(struct kern_weights *weights)
{
    if (!weights)
        return;
    cpu_weights_destroy(weights->weights);
    free(weights);
}

static enum status acts_create(struct kern_device *device_base, uint32_t rows_max, uint32_t columns,
                               struct kern_acts **acts_out)
{
    struct cpu_device *device = cpu_device_of(device_base);
    struct kern_acts *acts = calloc(1, sizeof *acts);
    if (!acts)
        return STATUS_MEMORY;
    acts->device = device;
    acts->rows_max = rows_max;
    enum status status = cpu_region_create(
        device, cpu_acts_bytes(device->compute, rows_max, columns), &acts->region);
    if (status != STATUS_OK) {
        free(acts);
        return status;
    }
    cpu_acts_init(&acts->acts, device->compute, columns, acts->region.data);
    *acts_out = acts;
    return STATUS_OK;
}

static void acts_destroy(struct kern_acts *acts)
{
    if (!acts)
        return;
    cpu_region_destroy(acts->device, &acts->region);
    free(acts);
}

/* Floats in an odd number of lines of the cache. */
static size_t lines_odd(size_t floats)
{
    enum { LINE = 64 / sizeof(float) };
    return ((floats + LINE - 1) / LINE | 1) * LINE;
}

static enum status logits_create(struct kern_device *device, uint32_t rows_max, uint32_t vocab,
                                 struct kern_logits **logits_out)
{
    struct kern_logits *logits = calloc(1, sizeof *logits);
    if (!logits)
        return STATUS_MEMORY;
    size_t runs = ((size_t)vocab + CPU_SAMPLER_RUN - 1) / CPU_SAMPLER_RUN;
    logits->device = cpu_device_of(device);
    logits->rows_max = rows_max;
    logits->vocab = vocab;
    logits->ld = lines_odd(vocab);
    logits->ld_maxima = lines_odd(runs);
    enum status status = cpu_region_create(
        logits->device, rows_max * (logits->ld + logits->ld_maxima) * sizeof(float),
        &logits->region);
    if (status != STATUS_OK) {
        free(logits);
        return status;
    }
    logits->maxima = cpu_logits_row(logits, rows_max);
    *logits_out = logits;
    return STATUS_OK;
}

static void logits_destroy(struct kern_logits *logits)
{
    if (!logits)
        return;
    cpu_region_destroy(logits->device, &logits->region);
    free(logits);
}

/* --- device --- */

static void device_close(struct kern_device *device_base)
{
    struct cpu_device *device = cpu_device_of(device_base);
    if (!device)
        return;
    assert(device->region_count == 0);
    free(device->regions);
    cpu_store_finish(&device->store);
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

static void device_describe(const struct kern_device *device_base, char *text_out,
                            size_t text_bytes)
{
    const struct cpu_device *device = (const struct cpu_device *)device_base;
    snprintf(text_out, text_bytes, "%s %s, %u thread%s", device->base.ops->name,
             cpu_isa_name(device->isa), device->threads, device->threads == 1 ? "" : "s");
}

static unsigned device_threads(const struct kern_device *device)
{
    return ((const struct cpu_device *)device)->threads;
}

#define CPU_OPS(name_)                                                                             \
    {                                                                                              \
        .name = name_, .device_close = device_close, .device_describe = device_describe,           \
        .device_threads = device_threads, .device_machine = cpu_device_machine,                    \
        .device_peaks = cpu_device_peaks, .weights_bytes_ahead = weights_bytes_ahead,              \
        .buffer_create = buffer_create, .buffer_destroy = buffer_destroy,                          \
        .weights_create = weights_create, .weights_bytes = weights_bytes,                          \
        .weights_destroy = weights_destroy, .acts_create = acts_create,                            \
        .acts_destroy = acts_destroy, .logits_create = logits_create,                              \
        .logits_destroy = logits_destroy, .rope_create = cpu_rope_create,                          \
        .rope_destroy = cpu_rope_destroy, .kv_create = cpu_kv_create,                              \
        .kv_layer_bytes = cpu_kv_layer_bytes, .kv_piece_host = cpu_kv_piece_host,                  \
        .kv_destroy = cpu_kv_destroy, .step_create = cpu_step_create,                              \
        .step_destroy = cpu_step_destroy, .stream_create = cpu_stream_create,                      \
        .stream_destroy = cpu_stream_destroy, .stream_sync = cpu_stream_sync,                      \
        .event_create = cpu_event_create, .event_destroy = cpu_event_destroy,                      \
        .event_record = cpu_event_record, .event_query = cpu_event_query,                          \
        .event_wait = cpu_event_wait, .event_arm = cpu_event_arm, .step_begin = cpu_op_step_begin, \
        .embed = cpu_op_embed, .layer_begin = cpu_op_layer_begin, .layer_end = cpu_op_layer_end,   \
        .norm = cpu_op_norm, .linear = cpu_op_linear, .rope_kv = cpu_op_rope_kv,                   \
        .attention = cpu_op_attention, .acts_from = cpu_op_acts_from, .silu_mul = cpu_op_silu_mul, \
        .head = cpu_op_head, .sample = cpu_op_sample, .step_end = cpu_op_step_end,                 \
        .kv_sums = cpu_op_kv_sums, .kv_copy = cpu_op_kv_copy, .kv_fill = cpu_op_kv_fill,           \
        .upload = op_upload, .download = op_download,                                              \
    }

static const struct kern_ops cpu_ops = CPU_OPS("cpu"), opaque_ops = CPU_OPS("opaque");

static enum status device_open(const struct kern_ops *ops, bool opaque,
                               const struct kern_device_options *options,
                               struct kern_device **device_out, struct err *err)
{
    enum cpu_isa_level best = cpu_isa_detect(), isa = best;
    if (options->isa && strcmp(options->isa, "auto") != 0) {
        if (!cpu_isa_parse(options->isa, &isa))
            return err_set(err, STATUS_CONFIG, "isa: \"%s\" is none of auto, %s", options->isa,
                           cpu_isa_names());
        if (isa > best)
            return err_set(err, STATUS_CONFIG, "isa: this CPU has %s at most, not %s",
                           cpu_isa_name(best), cpu_isa_name(isa));
    }
    struct cpu_list cpus;
    enum status status = cpu_list_parse(options->cpus, &cpus, err);
    if (status != STATUS_OK)
        return status;
    unsigned threads = options->threads ? options->threads : cpus.count;
    if (cpus.count && threads > cpus.count)
        return err_set(err, STATUS_CONFIG, "threads: %u are more than the %u processors of cpus",
                       threads, cpus.count);
    if (threads == 0) {
        cpu_set_t set;
        threads = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
    }
    if (threads > 1024)
        return err_set(err, STATUS_CONFIG, "threads: %u is above 1024", threads);
    struct cpu_device *device = calloc(1, sizeof *device);
    if (!device)
        return err_set(err, STATUS_MEMORY, "no memory");
    device->base.ops = ops;
    device->opaque = opaque;
    device->isa = isa;
    device->compute = options->compute;
    device->threads = threads;
    device->cpus = cpus;
    if (options->numa)
        cpu_nodes_find(&cpus, NULL, &device->nodes);
    device->store.nodes = &device->nodes;
    pthread_mutex_init(&device->mutex, NULL);
    *device_out = &device->base;
    return STATUS_OK;
}

static enum status cpu_open(const struct kern_device_options *options,
                            struct kern_device **device_out, struct err *err)
{
    return device_open(&cpu_ops, false, options, device_out, err);
}

static enum status opaque_open(const struct kern_device_options *options,
                               struct kern_device **device_out, struct err *err)
{
    return device_open(&opaque_ops, true, options, device_out, err);
}

const struct kern_backend kern_backend_cpu = {.name = "cpu", .open = cpu_open};
const struct kern_backend kern_backend_opaque = {.name = "opaque", .open = opaque_open};
