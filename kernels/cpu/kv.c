/* The KV pool on the CPU: its memory, its checksums (XXH3-64 of a piece's bytes), copies and fills. See device.h for the
 * layout. */
#include "kernels/cpu/device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"

/* Below this, what a pool saves later is not worth a thread. */
enum { PREFAULT_FROM = 16 << 20 };

enum status cpu_kv_create(struct kern_device *device, const struct kern_kv_desc *desc,
                          struct kern_kv **kv_out)
{
    struct kern_kv *kv = calloc(1, sizeof *kv);
    if (!kv)
        return STATUS_MEMORY;
    kv->device = cpu_device_of(device);
    kv->desc = *desc;
    uint64_t rows = (uint64_t)desc->kv_heads * desc->page_tokens;
    kv->scales_bytes = desc->type == KERN_KV_INT8 ? rows * sizeof(uint16_t) : 0;
    kv->layer_bytes = 2 * rows * kern_kv_head_bytes(desc->type, desc->head_dim);
    kv->values_bytes = kv->layer_bytes / 2 - kv->scales_bytes;
    kv->page_bytes = kv->layer_bytes * desc->layers;
    enum status status =
        cpu_region_create(kv->device, kv->page_bytes * desc->page_count, &kv->region);
    if (status != STATUS_OK) {
        free(kv);
        return status;
    }
    if (desc->poison) {
        cpu_device_enter(kv->device);
        memset(kv->region.data, 0xff, kv->region.bytes);
        cpu_device_leave(kv->device);
    } else if (!kv->device->opaque && kv->region.bytes >= PREFAULT_FROM)
        cpu_prefault_begin(&kv->prefault, kv->region.data, kv->region.bytes);
    *kv_out = kv;
    return STATUS_OK;
}

uint64_t cpu_kv_layer_bytes(const struct kern_kv *kv)
{
    return kv->layer_bytes;
}

static size_t piece_bytes(const struct kern_kv *kv, struct kern_piece piece)
{
    return (piece.layer_end - piece.layer_begin) * kv->layer_bytes;
}

void *cpu_kv_piece_host(struct kern_kv *kv, struct kern_piece piece)
{
    assert(piece.page < kv->desc.page_count && piece.layer_begin < piece.layer_end &&
           piece.layer_end <= kv->desc.layers);
    return kv->device->opaque ? NULL : cpu_kv_layer(kv, piece.page, piece.layer_begin);
}

void cpu_kv_destroy(struct kern_kv *kv)
{
    if (!kv)
        return;
    cpu_prefault_end(&kv->prefault);
    cpu_region_destroy(kv->device, &kv->region);
    free(kv);
}

/* --- checksums of a step's pages --- */

struct sums_arguments {
    struct cpu_step *step;
    const struct kern_kv *kv;
    uint32_t run, layer_begin, layer_end;
};

static void sums_item(void *context, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct sums_arguments *a = context;
    struct kern_step *step = &a->step->base;
    if (a->step->seq_dead[step->sum_seqs[item]])
        return;
    struct kern_piece piece = {step->sum_pages[item], a->layer_begin, a->layer_end};
    step->sums[(size_t)a->run * step->caps.sums_max + item] =
        checksum_of(cpu_kv_layer(a->kv, piece.page, piece.layer_begin), piece_bytes(a->kv, piece));
}

static void sums_run(struct kern_stream *stream, const void *arguments)
{
    const struct sums_arguments *a = arguments;
    cpu_pool_run(stream->pool, a->step->base.sum_count, sums_item, (void *)a);
}

void cpu_op_kv_sums(struct kern_stream *stream, struct kern_step *step, const struct kern_kv *kv,
                    uint32_t run, uint32_t layer_begin, uint32_t layer_end)
{
    assert(run < step->sum_runs);
    struct sums_arguments a = {cpu_step_of(step), kv, run, layer_begin, layer_end};
    cpu_stream_push(stream, sums_run, &a, sizeof a);
}

/* --- copies --- */

struct copy_arguments {
    enum kern_copy_kind kind;
    struct kern_kv *kv;
    struct kern_piece piece;
    uint8_t *host;
    uint64_t *sum_out;
};

static void copy_run(struct kern_stream *stream, const void *arguments)
{
    (void)stream;
    const struct copy_arguments *a = arguments;
    uint8_t *pool = cpu_kv_layer(a->kv, a->piece.page, a->piece.layer_begin);
    size_t bytes = piece_bytes(a->kv, a->piece);
    if (a->kind == KERN_COPY_SUM) {
        *a->sum_out = checksum_of(pool, bytes);
        return;
    }
    uint8_t *to = a->kind == KERN_COPY_EXPORT ? a->host : pool;
    const uint8_t *from = a->kind == KERN_COPY_EXPORT ? pool : a->host;
    *a->sum_out = checksum_copy(to, from, bytes);
}

void cpu_op_kv_copy(struct kern_stream *stream, enum kern_copy_kind kind, struct kern_kv *kv,
                    struct kern_piece piece, void *host, uint64_t *sum_out)
{
    assert(piece.page < kv->desc.page_count && piece.layer_begin < piece.layer_end &&
           piece.layer_end <= kv->desc.layers);
    struct copy_arguments a = {kind, kv, piece, host, sum_out};
    cpu_stream_push(stream, copy_run, &a, sizeof a);
}

/* --- fills --- */

struct fill_arguments {
    struct kern_kv *kv;
    const uint32_t *pages;
    uint32_t count;
    int byte;
};

static void fill_item(void *context, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct fill_arguments *a = context;
    assert(a->pages[item] < a->kv->desc.page_count);
    memset(cpu_kv_layer(a->kv, a->pages[item], 0), a->byte, a->kv->page_bytes);
}

static void fill_run(struct kern_stream *stream, const void *arguments)
{
    const struct fill_arguments *a = arguments;
    cpu_pool_run(stream->pool, a->count, fill_item, (void *)a);
}

void cpu_op_kv_fill(struct kern_stream *stream, struct kern_kv *kv, const uint32_t *pages,
                    uint32_t count, bool poison)
{
    struct fill_arguments a = {kv, pages, count, poison ? 0xff : 0}; /* all ones is NaN */
    cpu_stream_push(stream, fill_run, &a, sizeof a);
}
