/* The attention operation: cuts a ragged batch into tiles and gives them to the workers. See attention.h. */
#include "kernels/cpu/attention.h"

#include "kernels/cpu/device.h"

size_t cpu_attention_scratch_floats(uint32_t head_dim)
{
    size_t running = (size_t)ATTENTION_TILE_ROWS * KERN_GROUP_MAX * (2 + head_dim);
    size_t one_row = (size_t)KERN_GROUP_MAX * (ATTENTION_BLOCK + head_dim);
    size_t queries = (size_t)ATTENTION_TILE_ROWS * KERN_GROUP_MAX * (1 + (head_dim + 1) / 2);
    return running + one_row + queries;
}

const struct cpu_attention_kernels *cpu_attention_kernels_for(enum cpu_isa_level isa)
{
#if defined(__x86_64__)
    if (isa >= CPU_ISA_AVX2)
        return &cpu_attention_avx2;
#elif defined(__aarch64__)
    if (isa >= CPU_ISA_NEON)
        return &cpu_attention_neon;
#endif
    (void)isa;
    return &cpu_attention_plain;
}

struct attention_arguments {
    struct cpu_step *step;
    const struct kern_kv *kv;
    const float *q;
    float *out;
    struct kern_attention_desc desc;
    const struct cpu_attention_kernels *kernels;
    struct cpu_scratch *scratch;
};

static void attention_item(void *context, uint32_t item, unsigned worker)
{
    const struct attention_arguments *a = context;
    const struct kern_step *step = &a->step->base;
    const struct kern_kv_desc *kv = &a->kv->desc;
    /* late tiles of a prompt read the most: they go first, so that the workers end together */
    uint32_t tile_index = a->step->tile_count - 1 - item / kv->kv_heads;
    uint32_t kv_head = item % kv->kv_heads;
    const struct cpu_tile *tile = &a->step->tiles[tile_index];
    if (a->step->seq_dead[tile->seq])
        return;
    const struct kern_seq *seq = &step->seqs[tile->seq];
    uint32_t group = a->desc.heads / kv->kv_heads;
    uint64_t head_bytes = a->kv->values_bytes / kv->kv_heads;
    uint64_t head_scales = a->kv->scales_bytes / kv->kv_heads;
    const uint8_t *layer = cpu_kv_layer(a->kv, 0, a->desc.layer);
    size_t row_stride = (size_t)a->desc.heads * kv->head_dim;
    size_t offset = tile->row_begin * row_stride + (size_t)kv_head * group * kv->head_dim;
    struct cpu_attention_tile work = {
        .q = a->q + offset,
        .out = a->out + offset,
        .row_stride = row_stride,
        .rows = tile->row_count,
        .group = group,
        .position = step->positions[tile->row_begin],
        .head_dim = kv->head_dim,
        .page_tokens = kv->page_tokens,
        .scale = a->desc.scale,
        .blocks = seq->blocks,
        .k = layer + kv_head * head_bytes,
        .v = layer + a->kv->values_bytes + kv_head * head_bytes,
        .k_scales = layer + 2 * a->kv->values_bytes + kv_head * head_scales,
        .v_scales = layer + 2 * a->kv->values_bytes + a->kv->scales_bytes + kv_head * head_scales,
        .page_bytes = a->kv->page_bytes,
        .scratch = a->scratch[worker].attention,
    };
    a->kernels->tile[kv->type](&work);
}

static void attention_run(struct kern_stream *stream, const void *arguments)
{
    const struct attention_arguments *a = arguments;
    cpu_pool_run(stream->pool, a->step->tile_count * a->kv->desc.kv_heads, attention_item,
                 (void *)a);
}

void cpu_op_attention(struct kern_stream *stream, struct kern_step *step,
                      const struct kern_attention_desc *desc, const struct kern_buffer *q,
                      const struct kern_kv *kv, struct kern_buffer *out)
{
    struct attention_arguments a = {.step = cpu_step_of(step),
                                    .kv = kv,
                                    .q = q->region.data,
                                    .out = out->region.data,
                                    .desc = *desc,
                                    .kernels = cpu_attention_kernels_for(stream->device->isa),
                                    .scratch = stream->scratch};
    cpu_stream_push(stream, attention_run, &a, sizeof a);
}
