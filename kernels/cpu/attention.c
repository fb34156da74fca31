/* The attention operation: cuts a ragged batch into tiles and gives them to the workers. See attention.h.
 *
 *     a tile of several rows x a KV head     one item, which writes the rows' outputs
 *     a row alone, all KV heads              one item: a layer of a page is read from end to end. (A KV head, where the kernels know
 *                                            only one at a time.)
 *     a long row alone                       several items, parts of consecutive blocks, so that one long sequence keeps all
 *                                            threads busy. Each block's own results go to `split`; whoever finishes a row's
 *                                            last part merges all of them, ascending
 *
 * Where rows are cut depends on the batch and the number of threads, and changes no bit: a block's results are the same in any
 * part, and so is the order of merging. */
#include "kernels/cpu/attention.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/huge.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/kv_layout.h"

enum {
    PARTS_PER_THREAD = 6, /* so that threads end together though one is held up */
    PART_BLOCKS_MIN = 4,  /* less is not worth an item */
    LINE_BYTES = 64,
    SPLIT_BYTES =
        64
        << 20, /* of addresses: memory is taken where results are written. Rows beyond stay whole */
};

enum status cpu_attention_split_init(struct cpu_attention_split *split, unsigned threads)
{
    if (threads == 1)
        return STATUS_OK;
    split->counters_max = threads * PARTS_PER_THREAD;
    split->floats_max = SPLIT_BYTES / sizeof(float);
    split->left = calloc(split->counters_max, sizeof *split->left);
    split->partials = huge_alloc(split->floats_max, sizeof(float));
    return split->left && split->partials ? STATUS_OK : STATUS_MEMORY;
}

void cpu_attention_split_finish(struct cpu_attention_split *split)
{
    free(split->left);
    huge_free(split->partials);
}

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
    if (isa >= CPU_ISA_AVX512VNNI)
        return &cpu_attention_avx512vnni;
    if (isa >= CPU_ISA_AVX512)
        return &cpu_attention_avx512;
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
    const struct cpu_attention_split *split;
    bool together; /* rows alone take all KV heads in one item */
    uint32_t threads;
    uint32_t items; /* of all tiles */
};

/* --- items --- */

/* Blocks that a tile's last row sees. */
static uint32_t tile_blocks(const struct kern_step *step, const struct cpu_tile *tile)
{
    return step->positions[tile->row_begin + tile->row_count - 1] / ATTENTION_BLOCK + 1;
}

/* Items that share a tile's blocks, or each part of them, by KV heads. */
static uint32_t tile_heads(const struct attention_arguments *a, const struct cpu_tile *tile)
{
    return a->together && tile->row_count == 1 ? 1 : a->kv->desc.kv_heads;
}

/* Blocks of a row alone beyond which it is cut: a thread's share; 0: none is. */
static uint64_t split_share(const struct attention_arguments *a, unsigned threads)
{
    const struct kern_step *step = &a->step->base;
    if (threads == 1 || !a->split->partials || !a->kernels->merge || a->kv->desc.head_dim % 8 != 0)
        return 0;
    uint64_t work = 0, shares = (uint64_t)threads * PARTS_PER_THREAD;
    for (uint32_t t = 0; t < a->step->tile_count; t++)
        work += (uint64_t)a->step->tiles[t].row_count * tile_blocks(step, &a->step->tiles[t]);
    if (!a->together)
        work *= a->kv->desc.kv_heads;
    uint64_t share = (work + shares - 1) / shares;
    return share < PART_BLOCKS_MIN ? PART_BLOCKS_MIN : share;
}

/* Numbers the items, and cuts single rows that are longer than a thread's share of the batch, while there is room. */
static void items_plan(struct attention_arguments *a, unsigned threads)
{
    const struct cpu_attention_split *split = a->split;
    uint64_t share = split_share(a, threads);
    uint32_t counters = 0, kv_heads = a->kv->desc.kv_heads;
    size_t used = 0,
           block_floats = cpu_attention_partial_floats(
               (a->together ? kv_heads : 1) * (a->desc.heads / kv_heads), a->kv->desc.head_dim);
    for (uint32_t t = 0; t < a->step->tile_count; t++) {
        struct cpu_tile *tile = &a->step->tiles[t];
        uint64_t blocks = tile_blocks(&a->step->base, tile);
        uint32_t heads = tile_heads(a, tile);
        size_t floats = heads * blocks * block_floats;
        tile->parts = 1;
        tile->item_begin = a->items;
        if (share > 0 && tile->row_count == 1 && blocks > share &&
            used + floats <= split->floats_max && counters + heads <= split->counters_max) {
            tile->parts = (uint32_t)((blocks + share - 1) / share);
            tile->partial_begin = used;
            tile->counter_begin = counters;
            for (uint32_t h = 0; h < heads; h++)
                atomic_store_explicit(&split->left[counters + h], tile->parts,
                                      memory_order_relaxed);
            used += floats;
            counters += heads;
        }
        a->items += tile->parts * heads;
    }
}

/* The tile that item `number` belongs to. */
static const struct cpu_tile *tile_of_item(const struct cpu_step *step, uint32_t number)
{
    uint32_t low = 0, high = step->tile_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (step->tiles[middle].item_begin <= number)
            low = middle;
        else
            high = middle - 1;
    }
    return &step->tiles[low];
}

/* The item that this thread will come to next, or about then, if it is a row alone and short: its first page's layer. Short rows
 * are over before the processor sees what is read, and wait for memory at each head. */
static const uint8_t *next_layer(const struct attention_arguments *a, uint32_t number,
                                 const uint8_t *layer)
{
    if (!a->together || number < a->threads || a->kv->desc.page_tokens < ATTENTION_BLOCK)
        return NULL;
    const struct cpu_tile *tile = tile_of_item(a->step, number - a->threads);
    if (tile->row_count != 1 || tile->parts != 1 || a->step->seq_dead[tile->seq])
        return NULL;
    return layer + a->step->base.seqs[tile->seq].blocks[0] * a->kv->page_bytes;
}

/* One part of the tile's `item`; the last one to finish merges all. */
static void part_run(const struct attention_arguments *a, const struct cpu_tile *tile,
                     uint32_t kv_head, uint32_t part, struct cpu_attention_tile *work)
{
    uint32_t heads = cpu_attention_row_heads(work);
    uint64_t blocks = tile_blocks(&a->step->base, tile);
    size_t floats = blocks * cpu_attention_partial_floats(heads, work->head_dim);
    work->partials = a->split->partials + tile->partial_begin + kv_head * floats;
    work->block_begin = (uint32_t)(blocks * part / tile->parts);
    work->block_end = (uint32_t)(blocks * (part + 1) / tile->parts);
    a->kernels->tile[a->kv->desc.type](work);
    if (atomic_fetch_sub(&a->split->left[tile->counter_begin + kv_head], 1) > 1)
        return;
    struct cpu_attention_merge merge = {.partials = work->partials,
                                        .out = work->out,
                                        .block_count = (uint32_t)blocks,
                                        .heads = heads,
                                        .head_dim = work->head_dim};
    a->kernels->merge(&merge);
}

/* --- the operation --- */

static void attention_item(void *context, uint32_t item, unsigned worker)
{
    const struct attention_arguments *a = context;
    const struct kern_step *step = &a->step->base;
    const struct kern_kv_desc *kv = &a->kv->desc;
    /* late tiles of a prompt read the most: they go first, so that the workers end together */
    uint32_t number = a->items - 1 - item;
    const struct cpu_tile *tile = tile_of_item(a->step, number);
    uint32_t heads = tile_heads(a, tile), part = (number - tile->item_begin) / heads,
             kv_head = (number - tile->item_begin) % heads;
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
    if (a->together && tile->row_count == 1) {
        work.heads_more = kv->kv_heads - 1;
        work.head_bytes = head_bytes;
        work.head_scales_bytes = head_scales;
        work.layer = layer;
        work.layer_bytes = a->kv->layer_bytes;
        work.next = next_layer(a, number, layer);
    }
    if (tile->parts > 1)
        part_run(a, tile, kv_head, part, &work);
    else
        a->kernels->tile[kv->type](&work);
}

static void attention_run(struct kern_stream *stream, const void *arguments)
{
    struct attention_arguments a = *(const struct attention_arguments *)arguments;
    a.together = a.kernels->heads_together && a.kv->desc.head_dim % 8 == 0 &&
                 a.desc.heads <= ATTENTION_STATES_MAX;
    a.threads = cpu_pool_threads(stream->pool);
    items_plan(&a, a.threads);
    cpu_pool_run(stream->pool, a.items, attention_item, &a);
}

/* Runs of lines that are read of one head's K, or V, in a page. */
struct runs {
    size_t count, stride, bytes; /* `bytes` of each */
};

static void runs_ask(const uint8_t *at, struct runs runs)
{
    for (size_t run = 0; run < runs.count; run++)
        for (size_t i = 0; i < runs.bytes; i += LINE_BYTES)
            __builtin_prefetch(at + run * runs.stride + i, 1);
}

/* Of a row that sees `positions` of the page. */
static void runs_find(const struct kern_kv_desc *kv, uint32_t positions, struct runs *k_out,
                      struct runs *v_out)
{
    size_t dim = kv->head_dim,
           element = kv->type == KERN_KV_F32    ? sizeof(float)
                     : kv->type == KERN_KV_INT8 ? sizeof(int8_t)
                                                : sizeof(uint16_t),
           piece = kv->type == KERN_KV_INT8 ? KV_INT8_K_POSITIONS : KV_K_POSITIONS,
           pieces = (positions + piece - 1) / piece, groups = (dim + KV_V_DIMS - 1) / KV_V_DIMS,
           position = KV_V_DIMS * element;
    *k_out = (struct runs){1, 0, pieces * piece * dim * element};
    *v_out = (struct runs){groups, kv->page_tokens * position, positions * position};
}

/* What the first item reads of its first page, if that is a row alone: K's lines as far as the row sees, of each head a run, and
 * V's, of each group of dimensions a run. RoPE writes some of them before. A product of the same step lies between this and the step's begin, and asks are
 * passed on no further than to the next product: so the tiles are this step's. */
static bool attention_ask(struct kern_stream *stream, const void *arguments)
{
    (void)stream;
    const struct attention_arguments *a = arguments;
    const struct kern_kv_desc *kv = &a->kv->desc;
    if (a->step->tile_count == 0)
        return false;
    const struct cpu_tile *tile = &a->step->tiles[a->step->tile_count - 1]; /* the first to run */
    if (tile->row_count != 1 || a->step->seq_dead[tile->seq])
        return false;
    uint32_t positions = a->step->base.positions[tile->row_begin] + 1;
    positions = positions < kv->page_tokens ? positions : kv->page_tokens;
    const uint8_t *k = cpu_kv_layer(a->kv, a->step->base.seqs[tile->seq].blocks[0], a->desc.layer),
                  *v = k + a->kv->values_bytes;
    size_t head_bytes = a->kv->values_bytes / kv->kv_heads;
    struct runs k_runs, v_runs;
    runs_find(kv, positions, &k_runs, &v_runs);
    for (size_t head = 0; head < kv->kv_heads; head++)
        runs_ask(k + head * head_bytes, k_runs);
    for (size_t head = 0; head < kv->kv_heads; head++)
        runs_ask(v + head * head_bytes, v_runs);
    return false;
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
                                    .scratch = stream->scratch,
                                    .split = &stream->split};
    cpu_stream_push_asked(stream, attention_run, attention_ask, &a, sizeof a);
}
