/* Rotary position embedding (Su et al. 2021) and the KV write. See docs/NUMERICS.md, "RoPE".
 *
 * Pairs are neighbours, (x[2i], x[2i+1]): architecture "llama" in GGUF permutes the rows of q and k for that. With f_i =
 * base^(-2i / rope_dims) rounded to float and the angle position * f_i rounded to float, c and s are its cosine and sine,
 *     x'[2i]   = fmaf(x[2i], c, -(x[2i+1] * s))
 *     x'[2i+1] = fmaf(x[2i], s,   x[2i+1] * c)
 *
 * K and V go to their page in the order that attention reads them (kv_layout.h). int8 is quantised on the way, and both go in
 * pairs (attention_int8.h). */
#include "kernels/cpu/device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/mathf.h"

enum {
    ROWS_PER_ITEM = 16,
    ROWS_PER_ITEM_FEW =
        4, /* up to ROWS_FEW rows: of several sequences, most likely, so that no two share a line of a page */
    ROWS_FEW = 64,
    ROWS_ALONE_MAX = 4,
};

enum status cpu_rope_create(struct kern_device *device, const struct kern_rope_desc *desc,
                            struct kern_rope **rope_out)
{
    (void)device;
    struct kern_rope *rope = calloc(1, sizeof *rope);
    if (!rope)
        return STATUS_MEMORY;
    size_t pairs = desc->rope_dims / 2, count = pairs * desc->positions;
    *rope = (struct kern_rope){.rope_dims = desc->rope_dims,
                               .positions = desc->positions,
                               .cos = calloc(count ? count : 1, sizeof(float)),
                               .sin = calloc(count ? count : 1, sizeof(float))};
    if (!rope->cos || !rope->sin) {
        cpu_rope_destroy(rope);
        return STATUS_MEMORY;
    }
    for (size_t i = 0; i < pairs; i++) {
        double exponent = -(double)(2 * i) / (double)desc->rope_dims;
        float frequency = (float)mathf_exp_f64(exponent * mathf_log_f64((double)desc->base));
        for (uint32_t p = 0; p < desc->positions; p++) {
            float angle = (float)p * frequency;
            mathf_sincos(angle, &rope->sin[p * pairs + i], &rope->cos[p * pairs + i]);
        }
    }
    *rope_out = rope;
    return STATUS_OK;
}

void cpu_rope_destroy(struct kern_rope *rope)
{
    if (!rope)
        return;
    free(rope->cos);
    free(rope->sin);
    free(rope);
}

struct rope_arguments {
    struct cpu_step *step;
    const struct kern_rope *rope;
    const struct kern_kv *kv;
    float *q, *k;
    const float *v;
    uint32_t heads, layer;
    const struct cpu_attention_kernels *kernels;
};

/* Asks for a row's lines. Heads are turned side by side, by lines that the processor does not expect. */
static void row_fetch(const float *row, size_t floats)
{
    for (size_t i = 0; i < floats; i += 64 / sizeof *row)
        __builtin_prefetch(row + i);
}

static uint32_t rows_per_item(uint32_t rows)
{
    return rows <= ROWS_FEW ? ROWS_PER_ITEM_FEW : ROWS_PER_ITEM;
}

static void rope_kv_item(void *context, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct rope_arguments *a = context;
    const struct kern_step *step = &a->step->base;
    const struct kern_kv_desc *kv = &a->kv->desc;
    uint32_t each = rows_per_item(step->row_count), begin = item * each, end = begin + each;
    end = end < step->row_count ? end : step->row_count;
    size_t pairs = a->rope->rope_dims / 2;
    for (uint32_t r = begin; r < end; r++) {
        uint32_t s = step->row_seqs[r], position = step->positions[r];
        if (a->step->seq_dead[s])
            continue;
        const struct kern_seq *seq = &step->seqs[s];
        uint32_t page = seq->blocks[position / kv->page_tokens];
        uint8_t *layer = cpu_kv_layer(a->kv, page, a->layer);
        struct cpu_rope_row row = {
            .cos = a->rope->cos + position * pairs,
            .sin = a->rope->sin + position * pairs,
            .pairs = (uint32_t)pairs,
            .head_dim = kv->head_dim,
            .heads = a->heads,
            .kv_heads = kv->kv_heads,
            .page_tokens = kv->page_tokens,
            .token = position % kv->page_tokens,
            .q = a->q + (size_t)r * a->heads * kv->head_dim,
            .k = a->k + (size_t)r * kv->kv_heads * kv->head_dim,
            .v = a->v + (size_t)r * kv->kv_heads * kv->head_dim,
            .k_page = layer,
            .v_page = layer + a->kv->values_bytes,
            .k_scales = layer + 2 * a->kv->values_bytes,
            .v_scales = layer + 2 * a->kv->values_bytes + a->kv->scales_bytes,
        };
        if (r + 1 < end) {
            row_fetch(row.q + (size_t)a->heads * kv->head_dim, (size_t)a->heads * kv->head_dim);
            row_fetch(row.k + (size_t)kv->kv_heads * kv->head_dim,
                      (size_t)kv->kv_heads * kv->head_dim);
            row_fetch(row.v + (size_t)kv->kv_heads * kv->head_dim,
                      (size_t)kv->kv_heads * kv->head_dim);
        }
        a->kernels->rope_kv[kv->type](&row);
    }
}

static void rope_kv_run(struct kern_stream *stream, const void *arguments)
{
    const struct rope_arguments *a = arguments;
    uint32_t rows = a->step->base.row_count, each = rows_per_item(rows);
    cpu_pool_run(rows <= ROWS_ALONE_MAX ? NULL : stream->pool, (rows + each - 1) / each,
                 rope_kv_item, (void *)a);
}

void cpu_op_rope_kv(struct kern_stream *stream, struct kern_step *step,
                    const struct kern_attention_desc *desc, const struct kern_rope *rope,
                    struct kern_buffer *q, struct kern_buffer *k, struct kern_buffer *v,
                    struct kern_kv *kv)
{
    struct rope_arguments a = {.step = cpu_step_of(step),
                               .rope = rope,
                               .kv = kv,
                               .q = q->region.data,
                               .k = k->region.data,
                               .v = v->region.data,
                               .heads = desc->heads,
                               .layer = desc->layer,
                               .kernels = cpu_attention_kernels_for(stream->device->isa)};
    cpu_stream_push(stream, rope_kv_run, &a, sizeof a);
}
