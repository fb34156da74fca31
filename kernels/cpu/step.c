/* A step on the CPU: its metadata, and the operations that are thin over linear.h and quant.h. See backend.h, device.h.
 *
 * Each operation is three pieces: cpu_op_X packs its arguments on the loop thread, X_run unpacks them on the stream thread
 * and cuts the work into items, X_item does one item on any worker. */
#include "kernels/cpu/device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/huge.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/head.h"
#include "kernels/cpu/share.h"

enum {
    ROWS_PER_ITEM = 8, /* of the row-wise operations */
    ROWS_PER_ITEM_FEW = 4,
    ROWS_ALONE_MAX = 8,  /* up to this many rows are not worth waking anyone, */
    ROWS_ALONE_LONG = 4, /* up to this many where a row takes a microsecond */
    PANELS_PER_ITEM_MIN = 4,
    ROWS_FEW = 2,      /* of a product: bound by reading */
    ROWS_MANY = 64,    /* so many that they come from far for every part */
    HEAD_RUNS_MIN = 4, /* whose kernels make the rows ready for each part */
    LINE_BYTES = 64,
    LINEAR_ROWS =
        192, /* whose activations stay in the second cache while all parts pass over them */
};

/* --- creation --- */

enum status cpu_step_create(struct kern_device *device, const struct kern_step_caps *caps,
                            uint32_t runs, struct kern_step **step_out)
{
    (void)device;
    struct cpu_step *step = calloc(1, sizeof *step);
    if (!step)
        return STATUS_MEMORY;
    struct kern_step *base = &step->base;
    base->caps = *caps;
    base->sum_runs = runs;
    base->tokens = huge_alloc(caps->rows_max, sizeof *base->tokens);
    base->positions = huge_alloc(caps->rows_max, sizeof *base->positions);
    base->row_seqs = huge_alloc(caps->rows_max, sizeof *base->row_seqs);
    base->seqs = huge_alloc(caps->seqs_max, sizeof *base->seqs);
    base->samples = huge_alloc(caps->samples_max, sizeof *base->samples);
    base->sum_pages = huge_alloc(caps->sums_max, sizeof *base->sum_pages);
    base->sum_seqs = huge_alloc(caps->sums_max, sizeof *base->sum_seqs);
    base->outs = huge_alloc(caps->samples_max, sizeof *base->outs);
    base->sums = huge_alloc((size_t)runs * caps->sums_max, sizeof *base->sums);
    step->row_tokens = huge_alloc(caps->rows_max, sizeof *step->row_tokens);
    step->row_bad = huge_alloc(caps->rows_max, 1);
    step->seq_dead = huge_alloc(caps->seqs_max, 1);
    step->tiles = huge_alloc(caps->rows_max, sizeof *step->tiles);
    if (!base->tokens || !base->positions || !base->row_seqs || !base->seqs || !base->samples ||
        !base->sum_pages || !base->sum_seqs || !base->outs || !base->sums || !step->row_tokens ||
        !step->row_bad || !step->seq_dead || !step->tiles) {
        cpu_step_destroy(base);
        return STATUS_MEMORY;
    }
    *step_out = base;
    return STATUS_OK;
}

void cpu_step_destroy(struct kern_step *base)
{
    if (!base)
        return;
    struct cpu_step *step = cpu_step_of(base);
    void *const arrays[] = {base->tokens,  base->positions,  base->row_seqs, base->seqs,
                            base->samples, base->sum_pages,  base->sum_seqs, base->outs,
                            base->sums,    step->row_tokens, step->row_bad,  step->seq_dead,
                            step->tiles};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        huge_free(arrays[i]);
    free(step);
}

/* --- begin, end, layers --- */

struct step_arguments {
    struct cpu_step *step;
    uint32_t layer;
};

/* Looks at the cancel flags, and acknowledges them: of the step's sequences, which are dead from here on, and of all others,
 * which may stand in the step that is queued behind this one and will be dead there before its first layer. */
static void cancels_look(struct cpu_step *step)
{
    for (uint32_t slot = 0; slot < step->base.cancels->slot_count; slot++)
        kern_cancels_look(step->base.cancels, slot);
    for (uint32_t s = 0; s < step->base.seq_count; s++)
        if (kern_cancels_look(step->base.cancels, step->base.seqs[s].slot))
            step->seq_dead[s] = 1;
}

static void step_begin_run(struct kern_stream *stream, const void *arguments)
{
    (void)stream;
    struct cpu_step *step = ((const struct step_arguments *)arguments)->step;
    step->base.begin_ns = clock_now_ns();
    memset(step->row_bad, 0, step->base.row_count);
    memset(step->seq_dead, 0, step->base.seq_count);
    step->tile_count = 0;
    for (uint32_t s = 0; s < step->base.seq_count; s++) {
        const struct kern_seq *seq = &step->base.seqs[s];
        for (uint32_t r = 0; r < seq->row_count; r += ATTENTION_TILE_ROWS) {
            uint32_t rest = seq->row_count - r;
            step->tiles[step->tile_count++] = (struct cpu_tile){
                .seq = s,
                .row_begin = seq->row_begin + r,
                .row_count = rest < ATTENTION_TILE_ROWS ? rest : ATTENTION_TILE_ROWS};
        }
    }
}

static void layer_begin_run(struct kern_stream *stream, const void *arguments)
{
    struct cpu_step *step = ((const struct step_arguments *)arguments)->step;
    atomic_fetch_add(&step->base.cancels->layers_begun, 1);
    cancels_look(step);
    stream->layer_begin_ns = clock_now_ns();
}

static void layer_end_run(struct kern_stream *stream, const void *arguments)
{
    struct kern_cancels *cancels = ((const struct step_arguments *)arguments)->step->base.cancels;
    uint64_t now_ns = clock_now_ns(), took_ns = now_ns - stream->layer_begin_ns;
    if (took_ns > atomic_load(&cancels->longest_layer_ns))
        atomic_store(&cancels->longest_layer_ns, took_ns);
    atomic_store(&cancels->last_layer_ns, now_ns);
    atomic_fetch_add(&cancels->layers_finished, 1);
}

static void step_end_run(struct kern_stream *stream, const void *arguments)
{
    (void)stream;
    struct cpu_step *step = ((const struct step_arguments *)arguments)->step;
    cancels_look(step);
    for (uint32_t s = 0; s < step->base.seq_count; s++) {
        const struct kern_seq *seq = &step->base.seqs[s];
        for (uint32_t r = 0; r < seq->row_count && !step->seq_dead[s]; r++)
            if (step->row_bad[seq->row_begin + r])
                atomic_store(&step->base.cancels->failed[seq->slot], 1);
    }
    step->base.end_ns = clock_now_ns();
}

void cpu_op_step_begin(struct kern_stream *stream, struct kern_step *step)
{
    struct step_arguments a = {cpu_step_of(step), 0};
    cpu_stream_push(stream, step_begin_run, &a, sizeof a);
}

void cpu_op_layer_begin(struct kern_stream *stream, struct kern_step *step, uint32_t layer)
{
    struct step_arguments a = {cpu_step_of(step), layer};
    cpu_stream_push(stream, layer_begin_run, &a, sizeof a);
}

void cpu_op_layer_end(struct kern_stream *stream, struct kern_step *step, uint32_t layer)
{
    struct step_arguments a = {cpu_step_of(step), layer};
    cpu_stream_push(stream, layer_end_run, &a, sizeof a);
}

void cpu_op_step_end(struct kern_stream *stream, struct kern_step *step)
{
    struct step_arguments a = {cpu_step_of(step), 0};
    cpu_stream_push(stream, step_end_run, &a, sizeof a);
}

/* --- row-wise operations: one struct of arguments for all of them --- */

struct rows_arguments {
    struct cpu_step *step;
    enum kern_rows rows;
    const struct cpu_weights *weights;
    const float *x, *y;
    float *out;
    struct cpu_acts acts;
    float eps;
    enum cpu_isa_level isa;
};

static uint32_t rows_of(const struct cpu_step *step, enum kern_rows rows)
{
    return rows == KERN_ROWS_ALL ? step->base.row_count : step->base.sample_count;
}

/* Rows of an item: few while there are few, since the two who share them are seldom equally fast. */
static uint32_t rows_per_item(uint32_t rows)
{
    return rows <= ROWS_MANY ? ROWS_PER_ITEM_FEW : ROWS_PER_ITEM;
}

/* Runs `body` over items of rows, alone when there are no more than `alone`. */
static void rows_run(struct kern_stream *stream, const struct rows_arguments *a, uint32_t alone,
                     void (*body)(void *context, uint32_t item, unsigned worker))
{
    uint32_t rows = rows_of(a->step, a->rows), each = rows_per_item(rows);
    cpu_pool_run(rows <= alone ? NULL : stream->pool, (rows + each - 1) / each, body, (void *)a);
}

static struct cpu_rows item_rows(const struct rows_arguments *a, uint32_t item)
{
    uint32_t rows = rows_of(a->step, a->rows), each = rows_per_item(rows), begin = item * each;
    return (struct cpu_rows){begin, begin + each < rows ? begin + each : rows};
}

static void embed_item(void *context, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct rows_arguments *a = context;
    struct cpu_rows rows = item_rows(a, item);
    const struct kern_step *step = &a->step->base;
    size_t columns = cpu_weights_in_cols(a->weights);
    for (size_t r = rows.begin; r < rows.end; r++) {
        uint32_t token = step->tokens[r];
        if (token & KERN_TOKEN_PREV)
            token = step->prev->outs[token & ~KERN_TOKEN_PREV].token;
        a->step->row_tokens[r] = token;
        cpu_weights_row(a->weights, token, a->out + r * columns);
    }
}

static void embed_run(struct kern_stream *stream, const void *arguments)
{
    rows_run(stream, arguments, ROWS_ALONE_MAX, embed_item);
}

void cpu_op_embed(struct kern_stream *stream, struct kern_step *step,
                  const struct kern_weights *weights, struct kern_buffer *x)
{
    struct rows_arguments a = {.step = cpu_step_of(step),
                               .weights = weights->weights,
                               .out = x->region.data,
                               .rows = KERN_ROWS_ALL};
    cpu_stream_push(stream, embed_run, &a, sizeof a);
}

static void norm_item(void *context, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct rows_arguments *a = context;
    struct cpu_rows rows = item_rows(a, item);
    size_t columns = a->acts.cols;
    uint8_t *bad = a->step->row_bad;
    if (a->rows == KERN_ROWS_ALL) {
        cpu_norm_quantise(a->isa, a->x, columns, a->y, a->eps, rows, &a->acts, bad);
        return;
    }
    for (size_t i = rows.begin; i < rows.end; i++) {
        size_t r = a->step->base.samples[i].row;
        struct cpu_acts acts = a->acts;
        acts.data += i * acts.stride_bytes;
        cpu_norm_quantise(a->isa, a->x + r * columns, columns, a->y, a->eps,
                          (struct cpu_rows){0, 1}, &acts, &bad[r]);
    }
}

/* The weights have left the caches since the last step. */
static bool norm_ask(struct kern_stream *stream, const void *arguments)
{
    (void)stream;
    const struct rows_arguments *a = arguments;
    for (size_t i = 0; i < a->acts.cols * sizeof(float); i += LINE_BYTES)
        __builtin_prefetch((const uint8_t *)a->y + i);
    return false;
}

static void norm_run(struct kern_stream *stream, const void *arguments)
{
    rows_run(stream, arguments, ROWS_ALONE_MAX, norm_item);
}

void cpu_op_norm(struct kern_stream *stream, struct kern_step *step, enum kern_rows rows,
                 const struct kern_buffer *x, const struct kern_buffer *weight, float eps,
                 struct kern_acts *acts)
{
    struct rows_arguments a = {.step = cpu_step_of(step),
                               .rows = rows,
                               .x = x->region.data,
                               .y = weight->region.data,
                               .acts = acts->acts,
                               .eps = eps,
                               .isa = stream->device->isa};
    cpu_stream_push_asked(stream, norm_run, norm_ask, &a, sizeof a);
}

static void acts_from_item(void *context, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct rows_arguments *a = context;
    cpu_quantise(a->isa, a->x, a->acts.cols, item_rows(a, item), &a->acts, a->step->row_bad);
}

static void acts_from_run(struct kern_stream *stream, const void *arguments)
{
    rows_run(stream, arguments, ROWS_ALONE_MAX, acts_from_item);
}

void cpu_op_acts_from(struct kern_stream *stream, struct kern_step *step,
                      const struct kern_buffer *in, struct kern_acts *acts)
{
    struct rows_arguments a = {.step = cpu_step_of(step),
                               .rows = KERN_ROWS_ALL,
                               .x = in->region.data,
                               .acts = acts->acts,
                               .isa = stream->device->isa};
    cpu_stream_push(stream, acts_from_run, &a, sizeof a);
}

static void silu_mul_item(void *context, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct rows_arguments *a = context;
    cpu_silu_mul_quantise(a->isa, a->x, a->y, a->acts.cols, item_rows(a, item), &a->acts,
                          a->step->row_bad);
}

static void silu_mul_run(struct kern_stream *stream, const void *arguments)
{
    rows_run(stream, arguments, ROWS_ALONE_LONG, silu_mul_item);
}

void cpu_op_silu_mul(struct kern_stream *stream, struct kern_step *step,
                     const struct kern_buffer *gate, const struct kern_buffer *up,
                     struct kern_acts *acts)
{
    struct rows_arguments a = {.step = cpu_step_of(step),
                               .rows = KERN_ROWS_ALL,
                               .x = gate->region.data,
                               .y = up->region.data,
                               .acts = acts->acts,
                               .isa = stream->device->isa};
    cpu_stream_push(stream, silu_mul_run, &a, sizeof a);
}

/* --- linear --- */

struct linear_arguments {
    struct cpu_step *step;
    enum cpu_isa_level isa;
    struct cpu_acts acts;
    uint32_t part_count;
    bool accumulate;
    struct {
        const struct cpu_weights *weights;
        float *out;
    } parts[KERN_LINEAR_PARTS];
};

/* Panels of all parts, one part's after the other's: shared as they go, or, of few rows, whose kernels read several places of what
 * they get at once, in as many items. */
struct linear_work {
    const struct linear_arguments *arguments;
    size_t panels;
    uint32_t items;
    struct cpu_share share;
};

/* Panels [begin, end), counted from the first part's first, of the rows given. */
static void linear_panels(const struct linear_arguments *a, struct cpu_rows rows, size_t begin,
                          size_t end)
{
    size_t before = 0; /* panels of the parts passed */
    for (uint32_t i = 0; i < a->part_count; i++) {
        const struct cpu_weights *weights = a->parts[i].weights;
        size_t panels = cpu_weights_panels(weights), from = begin > before ? begin - before : 0,
               to = end > before ? end - before : 0;
        struct cpu_linear_call call = {
            .weights = weights,
            .acts = a->acts,
            .rows = rows,
            .panel_begin = from,
            .panel_end = to < panels ? to : panels,
            .out = a->parts[i].out,
            .ld_out = cpu_weights_out_rows(weights),
            .accumulate = a->accumulate,
        };
        if (call.panel_begin < call.panel_end)
            cpu_linear(a->isa, &call);
        if (rows.end - rows.begin == 1 && end > before + panels && i + 1 < a->part_count)
            cpu_linear_ask(a->isa, a->parts[i + 1].weights, 0, end - before - panels);
        before += panels;
    }
}

static void linear_panels_of_all(const struct linear_work *work, size_t begin, size_t end)
{
    size_t rows = work->arguments->step->base.row_count;
    for (size_t row = 0; row < rows; row += LINEAR_ROWS) {
        size_t last = row + LINEAR_ROWS < rows ? row + LINEAR_ROWS : rows;
        linear_panels(work->arguments, (struct cpu_rows){row, last}, begin, end);
    }
}

static void linear_item(void *context, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct linear_work *work = context;
    linear_panels_of_all(work, work->panels * item / work->items,
                         work->panels * (item + 1) / work->items);
}

static void linear_share_item(void *context, uint32_t item, unsigned worker)
{
    (void)item; /* one a worker */
    struct linear_work *work = context;
    uint32_t begin, end;
    while (cpu_share_take(&work->share, worker, &begin, &end))
        linear_panels_of_all(work, begin, end);
}

/* Into how many items the panels of an operation go: where each begins, reading begins anew in several places of a matrix, so there
 * are no more of them than threads. */
static uint32_t items_of(const struct kern_stream *stream, size_t panels)
{
    unsigned threads = cpu_pool_threads(stream->pool);
    uint32_t items = (uint32_t)(panels + PANELS_PER_ITEM_MIN - 1) / PANELS_PER_ITEM_MIN;
    return items < threads ? items : threads;
}

static bool is_shared(const struct kern_stream *stream, size_t rows)
{
    return cpu_pool_threads(stream->pool) > 1 && rows > ROWS_FEW;
}

/* Runs `body` once a worker: each takes of `share`, which is of `count` panels or runs of them, `least` at a time. */
static void share_run(struct kern_stream *stream, struct cpu_share *share, size_t count,
                      uint32_t least, void (*body)(void *context, uint32_t item, unsigned worker),
                      void *work)
{
    unsigned threads = cpu_pool_threads(stream->pool);
    cpu_share_init(share, (uint32_t)count, threads, least);
    cpu_pool_run(stream->pool, threads, body, work);
}

static size_t linear_panels_count(const struct linear_arguments *a)
{
    size_t panels = 0;
    for (uint32_t i = 0; i < a->part_count; i++)
        panels += cpu_weights_panels(a->parts[i].weights);
    return panels;
}

static void linear_run(struct kern_stream *stream, const void *arguments)
{
    struct linear_work work;
    work.arguments = arguments;
    work.panels = linear_panels_count(arguments);
    size_t rows = work.arguments->step->base.row_count;
    if (rows == 0)
        return;
    if (is_shared(stream, rows)) {
        uint32_t least = rows > ROWS_MANY ? PANELS_PER_ITEM_MIN : PANELS_PER_ITEM_MIN / 2;
        share_run(stream, &work.share, work.panels, least, linear_share_item, &work);
        return;
    }
    work.items = items_of(stream, work.panels);
    cpu_pool_run(stream->pool, work.items, linear_item, &work);
    if (rows == 1)
        cpu_stream_ask(stream);
}

/* For what this thread will do of a row alone: it comes first, so it begins with the first of the items that share `panels`. */
static void first_ask(const struct kern_stream *stream, const struct cpu_weights *weights,
                      size_t panels)
{
    size_t own = cpu_weights_panels(weights), item = panels / items_of(stream, panels);
    cpu_linear_ask(stream->device->isa, weights, 0, item < own ? item : own);
}

static bool linear_ask(struct kern_stream *stream, const void *arguments)
{
    const struct linear_arguments *a = arguments;
    if (a->step->base.row_count == 1)
        first_ask(stream, a->parts[0].weights, linear_panels_count(a));
    return true;
}

void cpu_op_linear(struct kern_stream *stream, struct kern_step *step, const struct kern_acts *acts,
                   bool accumulate, const struct kern_linear_part *parts, uint32_t part_count)
{
    assert(part_count >= 1 && part_count <= KERN_LINEAR_PARTS);
    struct linear_arguments a = {
        .step = cpu_step_of(step),
        .isa = stream->device->isa,
        .acts = acts->acts,
        .part_count = part_count,
        .accumulate = accumulate,
    };
    for (uint32_t i = 0; i < part_count; i++) {
        a.parts[i].weights = parts[i].weights->weights;
        a.parts[i].out = parts[i].out->region.data;
    }
    cpu_stream_push_asked(stream, linear_run, linear_ask, &a, sizeof a);
}

/* --- head --- */

struct head_arguments {
    struct cpu_step *step;
    const struct cpu_weights *weights;
    struct cpu_acts acts;
    const struct kern_logits *logits;
    bool with_maxima;
};

struct head_work {
    const struct head_arguments *arguments;
    struct kern_stream *stream;
    size_t runs;
    uint32_t items;
    struct cpu_share share; /* of runs */
};

static void head_runs(const struct head_work *work, size_t begin, size_t end, unsigned worker)
{
    const struct head_arguments *a = work->arguments;
    size_t panels = cpu_weights_panels(a->weights), rows = a->step->base.sample_count;
    struct cpu_head_call call = {
        .weights = a->weights,
        .acts = a->acts,
        .panel_begin = begin * CPU_MAXIMUM_PANELS,
        .panel_end = end * CPU_MAXIMUM_PANELS < panels ? end * CPU_MAXIMUM_PANELS : panels,
        .logits = cpu_logits_row(a->logits, 0),
        .ld = a->logits->ld,
        .maxima = a->with_maxima ? a->logits->maxima : NULL,
        .ld_maxima = a->logits->ld_maxima,
        .scratch = work->stream->scratch[worker].maxima,
    };
    for (size_t row = 0; row < rows; row += LINEAR_ROWS) {
        size_t last = row + LINEAR_ROWS < rows ? row + LINEAR_ROWS : rows;
        call.rows = (struct cpu_rows){row, last};
        cpu_head(work->stream->device->isa, &call);
    }
}

static void head_item(void *context, uint32_t item, unsigned worker)
{
    const struct head_work *work = context;
    head_runs(work, work->runs * item / work->items, work->runs * (item + 1) / work->items, worker);
}

static void head_share_item(void *context, uint32_t item, unsigned worker)
{
    (void)item; /* one a worker */
    struct head_work *work = context;
    uint32_t begin, end;
    while (cpu_share_take(&work->share, worker, &begin, &end))
        head_runs(work, begin, end, worker);
}

static void head_run(struct kern_stream *stream, const void *arguments)
{
    const struct head_arguments *a = arguments;
    struct head_work work;
    work.arguments = a;
    work.stream = stream;
    size_t rows = a->step->base.sample_count, panels = cpu_weights_panels(a->weights);
    if (rows == 0)
        return;
    work.runs = (panels + CPU_MAXIMUM_PANELS - 1) / CPU_MAXIMUM_PANELS;
    if (is_shared(stream, rows)) {
        share_run(stream, &work.share, work.runs, HEAD_RUNS_MIN, head_share_item, &work);
        return;
    }
    work.items = items_of(stream, panels);
    cpu_pool_run(stream->pool, work.items, head_item, &work);
}

static bool head_ask(struct kern_stream *stream, const void *arguments)
{
    const struct head_arguments *a = arguments;
    if (a->step->base.sample_count == 1)
        first_ask(stream, a->weights, cpu_weights_panels(a->weights));
    return true;
}

void cpu_op_head(struct kern_stream *stream, struct kern_step *step,
                 const struct kern_weights *weights, const struct kern_acts *acts,
                 struct kern_logits *logits)
{
    assert(cpu_weights_out_rows(weights->weights) == logits->vocab);
    assert(step->sample_count <= logits->rows_max);
    /* Rows whose scales differ widely lie elsewhere, and of few rows, whose product is bound by reading, maxima cost more than they
     * save (head 6 to 8 % slower, ten times what one look at a row takes): then `sample` looks for them itself. */
    logits->with_maxima =
        cpu_weights_float_rows(weights->weights) == 0 && step->sample_count > ROWS_FEW;
    struct head_arguments a = {.step = cpu_step_of(step),
                               .weights = weights->weights,
                               .acts = acts->acts,
                               .logits = logits,
                               .with_maxima = logits->with_maxima};
    cpu_stream_push_asked(stream, head_run, head_ask, &a, sizeof a);
}
