/* Creating an engine: options against limits, weights into the backend's layout, working memory. See engine.h. */
#include "engine/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/huge.h"

enum {
    KV_LAYOUT_VERSION = 3, /* docs/NUMERICS.md, "KV cache" */
    DRAW_VERSION = 3,      /* docs/NUMERICS.md, "Sampling" */
    ROWS_MAX_DEFAULT = 512,
    SEQS_MAX_DEFAULT = 64,
    COPIES_MAX_DEFAULT = 64,
    OPERATIONS_PER_LAYER = 12,
    OPERATIONS_PER_STEP = 16,
    PIECE_BYTES_MIN = 128 << 10,
    PIECE_BYTES_GOOD = 256 << 10,
    RUNS_WANTED = 4,
};

/* --- geometry --- */

static enum status range_check(const char *name, uint64_t value, uint64_t low, uint64_t high,
                               struct err *err)
{
    if (value >= low && value <= high)
        return STATUS_OK;
    return err_set(err, STATUS_CONFIG, "%s: %llu is outside %llu to %llu", name,
                   (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
}

/* The smallest page whose pieces are big enough when the layers are cut into RUNS_WANTED runs. */
static uint32_t page_tokens_choose(uint64_t layer_token_bytes, uint32_t layers)
{
    uint32_t run = layers >= RUNS_WANTED ? layers / RUNS_WANTED : 1;
    for (uint32_t tokens = 16; tokens < 128; tokens *= 2)
        if (layer_token_bytes * tokens * run >= PIECE_BYTES_MIN)
            return tokens;
    return 128;
}

static uint32_t layer_run_choose(uint64_t layer_bytes, uint32_t layers)
{
    uint32_t most = layers >= RUNS_WANTED ? layers / RUNS_WANTED : 1, run = 1;
    while (run < most && run * layer_bytes < PIECE_BYTES_GOOD)
        run++;
    while ((layers + run - 1) / run > ENGINE_RUNS_MAX)
        run++;
    return run;
}

static enum status geometry_init(struct engine *engine, const struct engine_options *options,
                                 struct err *err)
{
    struct engine_info *info = &engine->info;
    uint64_t layer_token_bytes =
        2 * info->kv_heads * (uint64_t)kern_kv_head_bytes(options->kv_type, info->head_dim);
    info->page_tokens = options->page_tokens ? options->page_tokens
                                             : page_tokens_choose(layer_token_bytes, info->layers);
    uint32_t tokens = info->page_tokens;
    if (tokens < 16 || tokens > 128 || (tokens & (tokens - 1)))
        return err_set(err, STATUS_CONFIG, "page_tokens: %u is none of 16, 32, 64, 128", tokens);
    uint64_t layer_bytes = layer_token_bytes * tokens;
    info->layer_run =
        options->layer_run ? options->layer_run : layer_run_choose(layer_bytes, info->layers);
    if (range_check("layer_run", info->layer_run, 1, info->layers, err) != STATUS_OK)
        return STATUS_CONFIG;
    info->run_count = (info->layers + info->layer_run - 1) / info->layer_run;
    if (info->run_count > ENGINE_RUNS_MAX)
        return err_set(err, STATUS_CONFIG, "layer_run: %u gives %u runs, above the limit of %u",
                       info->layer_run, info->run_count, ENGINE_RUNS_MAX);
    info->page_bytes = layer_bytes * info->layers;
    info->piece_bytes = layer_bytes * info->layer_run;
    info->kv_bytes_per_token = layer_token_bytes * info->layers;
    uint64_t pages = options->kv_pages ? options->kv_pages : options->kv_bytes / info->page_bytes;
    if (range_check("kv_pages", pages, 1, 1u << 24, err) != STATUS_OK)
        return STATUS_CONFIG;
    info->page_count = (uint32_t)pages;
    return STATUS_OK;
}

static enum status info_init(struct engine *engine, const struct engine_options *options,
                             struct err *err)
{
    struct engine_info *info = &engine->info;
    const struct model_config *config = &engine->config;
    info->compute = options->compute;
    info->kv_type = options->kv_type;
    info->kv_layout_version = KV_LAYOUT_VERSION;
    info->vocab_size = config->vocab;
    info->layers = config->layers;
    info->hidden = config->hidden;
    info->heads = config->heads;
    info->kv_heads = config->kv_heads;
    info->head_dim = config->head_dim;
    info->context_tokens = config->context_tokens;
    if (options->context_tokens) {
        if (options->context_tokens > config->context_tokens)
            return err_set(err, STATUS_CONFIG, "context_tokens: %u is above the model's %u",
                           options->context_tokens, config->context_tokens);
        info->context_tokens = options->context_tokens;
    }
    if (config->head_dim > KERN_HEAD_DIM_MAX || config->heads / config->kv_heads > KERN_GROUP_MAX)
        return err_set(err, STATUS_UNIMPLEMENTED,
                       "attention: head_dim %u (limit %d) or %u query heads to a KV head (limit "
                       "%d) is not built",
                       config->head_dim, KERN_HEAD_DIM_MAX, config->heads / config->kv_heads,
                       KERN_GROUP_MAX);
    info->rows_max = options->rows_max ? options->rows_max : ROWS_MAX_DEFAULT;
    info->seqs_max = options->seqs_max ? options->seqs_max : SEQS_MAX_DEFAULT;
    info->samples_max = options->samples_max ? options->samples_max : info->seqs_max;
    info->slots_max = options->slots_max ? options->slots_max : 4 * info->seqs_max;
    info->copies_max = options->copies_max ? options->copies_max : COPIES_MAX_DEFAULT;
    if (range_check("rows_max", info->rows_max, 1, 65536, err) != STATUS_OK ||
        range_check("seqs_max", info->seqs_max, 1, 65536, err) != STATUS_OK ||
        range_check("samples_max", info->samples_max, 1, 65536, err) != STATUS_OK ||
        range_check("slots_max", info->slots_max, 1, 1u << 20, err) != STATUS_OK ||
        range_check("copies_max", info->copies_max, 1, 65536, err) != STATUS_OK ||
        range_check("kv_type", options->kv_type, 0, KERN_KV_TYPE_COUNT - 1, err) != STATUS_OK ||
        range_check("compute", options->compute, 0, KERN_COMPUTE_INT8, err) != STATUS_OK)
        return STATUS_CONFIG;
    snprintf(info->arithmetic, sizeof info->arithmetic, "%s/kv-%s/layout-%u/draw-%u",
             options->compute == KERN_COMPUTE_INT8 ? "int8" : "f32",
             kern_kv_type_name(options->kv_type), info->kv_layout_version, DRAW_VERSION);
    return geometry_init(engine, options, err);
}

/* --- weights --- */

struct loader {
    struct engine *engine;
    const struct engine_options *options;
    uint64_t done, total;
    struct err *err;
    enum status status; /* the first failure; later calls do nothing */
};

static void name_copy(struct gguf_text name, char *out, size_t out_bytes)
{
    size_t bytes = name.bytes < out_bytes - 1 ? name.bytes : out_bytes - 1;
    memcpy(out, name.data, bytes);
    out[bytes] = 0;
}

enum status engine_weight_type(const struct gguf_tensor *tensor, enum kern_weight_type *type_out,
                               struct err *err)
{
    static const struct {
        uint32_t tensor;
        enum kern_weight_type weight;
    } table[] = {
        {TENSOR_F32, KERN_WEIGHT_F32},   {TENSOR_F16, KERN_WEIGHT_F16},
        {TENSOR_BF16, KERN_WEIGHT_BF16}, {TENSOR_Q8_0, KERN_WEIGHT_Q8_0},
        {TENSOR_Q4_0, KERN_WEIGHT_Q4_0}, {TENSOR_Q4_1, KERN_WEIGHT_Q4_1},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].tensor == tensor->type) {
            *type_out = table[i].weight;
            return STATUS_OK;
        }
    char name[GGUF_NAME_BYTES_MAX + 1];
    name_copy(tensor->name, name, sizeof name);
    return err_set(err, STATUS_UNIMPLEMENTED, "tensor %s: type %s is not built", name,
                   tensor_type_name(tensor->type));
}

static void loader_progress(struct loader *loader, uint64_t bytes)
{
    loader->done += bytes;
    if (loader->options->load_progress)
        loader->options->load_progress(loader->options->load_context, loader->done, loader->total);
}

static struct kern_weights *matrix_load(struct loader *loader, const struct gguf_tensor *tensor,
                                        bool embedding)
{
    if (loader->status != STATUS_OK)
        return NULL;
    char name[GGUF_NAME_BYTES_MAX + 1];
    name_copy(tensor->name, name, sizeof name);
    struct kern_weights_desc desc = {.name = name,
                                     .data = tensor->data,
                                     .rows = (uint32_t)tensor->shape[1],
                                     .columns = (uint32_t)tensor->shape[0],
                                     .embedding = embedding};
    loader->status = engine_weight_type(tensor, &desc.type, loader->err);
    if (loader->status != STATUS_OK)
        return NULL;
    struct kern_weights *weights = NULL;
    struct engine *engine = loader->engine;
    loader->status = engine->ops->weights_create(engine->device, &desc, &weights, loader->err);
    if (loader->status != STATUS_OK)
        return NULL;
    engine->info.weight_bytes += engine->ops->weights_bytes(weights);
    loader_progress(loader, tensor->bytes);
    return weights;
}

static struct kern_buffer *norm_load(struct loader *loader, const struct gguf_tensor *tensor)
{
    if (loader->status != STATUS_OK)
        return NULL;
    struct engine *engine = loader->engine;
    char name[GGUF_NAME_BYTES_MAX + 1];
    name_copy(tensor->name, name, sizeof name);
    size_t count = tensor->shape[0];
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, (const uint8_t *)tensor->data + i * sizeof value, sizeof value);
        if (!(value - value == 0.0f)) {
            loader->status =
                err_set(loader->err, STATUS_FORMAT, "tensor %s: value %zu is not finite", name, i);
            return NULL;
        }
    }
    struct kern_buffer *buffer = NULL;
    loader->status = engine->ops->buffer_create(engine->device, count * sizeof(float), &buffer);
    if (loader->status != STATUS_OK) {
        err_set(loader->err, loader->status, "tensor %s: no memory", name);
        return NULL;
    }
    engine->ops->upload(engine->stream, buffer, 0, tensor->data, count * sizeof(float));
    engine->ops->stream_sync(engine->stream); /* cold path; also keeps the queue short */
    engine->info.weight_bytes += count * sizeof(float);
    loader_progress(loader, tensor->bytes);
    return buffer;
}

static enum status weights_load(struct engine *engine, const struct engine_options *options,
                                const struct model_file *model, struct err *err)
{
    struct loader loader = {.engine = engine, .options = options, .err = err};
    for (size_t i = 0; i < gguf_tensor_count(model->gguf); i++)
        loader.total += gguf_tensor_at(model->gguf, i)->bytes;
    engine->layers = calloc(engine->info.layers, sizeof *engine->layers);
    if (!engine->layers)
        return err_set(err, STATUS_MEMORY, "no memory for %u layers", engine->info.layers);
    engine->embedding = matrix_load(&loader, model->token_embd, true);
    engine->head = model->output == model->token_embd ? engine->embedding
                                                      : matrix_load(&loader, model->output, false);
    engine->output_norm = norm_load(&loader, model->output_norm);
    for (uint32_t i = 0; i < engine->info.layers; i++) {
        const struct model_layer *from = &model->layers[i];
        struct engine_layer *to = &engine->layers[i];
        to->attn_norm = norm_load(&loader, from->attn_norm);
        to->q = matrix_load(&loader, from->attn_q, false);
        to->k = matrix_load(&loader, from->attn_k, false);
        to->v = matrix_load(&loader, from->attn_v, false);
        to->output = matrix_load(&loader, from->attn_output, false);
        to->ffn_norm = norm_load(&loader, from->ffn_norm);
        to->gate = matrix_load(&loader, from->ffn_gate, false);
        to->up = matrix_load(&loader, from->ffn_up, false);
        to->down = matrix_load(&loader, from->ffn_down, false);
    }
    return loader.status;
}

/* --- working memory --- */

static enum status buffers_create(struct engine *engine)
{
    const struct engine_info *info = &engine->info;
    uint64_t rows = info->rows_max, q_width = (uint64_t)info->heads * info->head_dim,
             kv_width = (uint64_t)info->kv_heads * info->head_dim, ffn = engine->config.ffn;
    const struct {
        struct kern_buffer **buffer;
        uint64_t floats;
    } buffers[] = {
        {&engine->x, rows * info->hidden},
        {&engine->q, rows * q_width},
        {&engine->k, rows * kv_width},
        {&engine->v, rows * kv_width},
        {&engine->attention, rows * q_width},
        {&engine->gate, rows * ffn},
        {&engine->up, rows * ffn},
    };
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        enum status status = engine->ops->buffer_create(
            engine->device, buffers[i].floats * sizeof(float), buffers[i].buffer);
        if (status != STATUS_OK)
            return status;
    }
    const struct {
        struct kern_acts **acts;
        uint32_t rows, columns;
    } acts[] = {
        {&engine->acts_hidden, info->rows_max, info->hidden},
        {&engine->acts_attention, info->rows_max, (uint32_t)q_width},
        {&engine->acts_ffn, info->rows_max, (uint32_t)ffn},
        {&engine->acts_head, info->samples_max, info->hidden},
    };
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        enum status status =
            engine->ops->acts_create(engine->device, acts[i].rows, acts[i].columns, acts[i].acts);
        if (status != STATUS_OK)
            return status;
    }
    return engine->ops->logits_create(engine->device, info->samples_max, info->vocab_size,
                                      &engine->logits);
}

static enum status steps_create(struct engine *engine)
{
    const struct engine_info *info = &engine->info;
    struct kern_step_caps caps = {
        .rows_max = info->rows_max,
        .seqs_max = info->seqs_max,
        .samples_max = info->samples_max,
        .sums_max = info->rows_max / info->page_tokens + 2 * info->seqs_max,
    };
    for (int i = 0; i < ENGINE_STEPS; i++) {
        struct engine_step *step = &engine->steps[i];
        step->engine = engine;
        enum status status =
            engine->ops->step_create(engine->device, &caps, info->run_count, &step->kern);
        if (status != STATUS_OK)
            return status;
        step->kern->cancels = engine->cancels;
        step->fill_pages = calloc(info->page_count, sizeof *step->fill_pages);
        if (!step->fill_pages)
            return STATUS_MEMORY;
        for (uint32_t run = 0; run < info->run_count; run++)
            if ((status = engine->ops->event_create(engine->device, &step->run_done[run])) !=
                STATUS_OK)
                return status;
        if ((status = engine->ops->event_create(engine->device, &step->done)) != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status tables_create(struct engine *engine)
{
    const struct engine_info *info = &engine->info;
    size_t pages = info->page_count;
    engine->slots = calloc(info->slots_max, sizeof *engine->slots);
    engine->free_slots = calloc(info->slots_max, sizeof *engine->free_slots);
    engine->sums = huge_alloc(pages * info->run_count, sizeof *engine->sums);
    engine->pages = huge_alloc(pages, sizeof *engine->pages);
    engine->page_shift = (uint32_t)__builtin_ctz(info->page_tokens);
    engine->fill_list = calloc(pages, sizeof *engine->fill_list);
    engine->copies = calloc(info->copies_max, sizeof *engine->copies);
    if (!engine->slots || !engine->free_slots || !engine->sums || !engine->pages ||
        !engine->fill_list || !engine->copies)
        return STATUS_MEMORY;
    memset(engine->sums, 0, pages * info->run_count * sizeof *engine->sums); /* see base/huge.h */
    memset(engine->pages, 0, pages * sizeof *engine->pages);
    memset(engine->fill_list, 0, pages * sizeof *engine->fill_list);
    for (uint32_t slot = info->slots_max; slot-- > 0;)
        engine->free_slots[engine->free_slot_count++] = slot;
    for (uint32_t i = 0; i < info->copies_max; i++) {
        enum status status = engine->ops->event_create(engine->device, &engine->copies[i].done);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status streams_create(struct engine *engine)
{
    const struct engine_info *info = &engine->info;
    uint32_t step_commands =
        info->layers * OPERATIONS_PER_LAYER + 2 * info->run_count + OPERATIONS_PER_STEP;
    struct kern_stream_options compute = {.commands_max = ENGINE_STEPS * step_commands,
                                          .compute = true,
                                          .vocab = info->vocab_size,
                                          .head_dim = info->head_dim};
    struct kern_stream_options copy = {.commands_max = 2 * info->copies_max + 2};
    enum status status = engine->ops->stream_create(engine->device, &compute, &engine->stream);
    if (status != STATUS_OK)
        return status;
    return engine->ops->stream_create(engine->device, &copy, &engine->copy_stream);
}

static enum status memory_create(struct engine *engine, const struct engine_options *options,
                                 struct err *err)
{
    const struct engine_info *info = &engine->info;
    struct kern_rope_desc rope = {.head_dim = info->head_dim,
                                  .rope_dims = engine->config.rope_dims,
                                  .base = engine->config.rope_base,
                                  .positions = info->context_tokens};
    struct kern_kv_desc kv = {.layers = info->layers,
                              .kv_heads = info->kv_heads,
                              .head_dim = info->head_dim,
                              .page_tokens = info->page_tokens,
                              .page_count = info->page_count,
                              .type = info->kv_type,
                              .poison = options->poison_pages};
    enum status status = kern_cancels_create(info->slots_max, &engine->cancels);
    if (status == STATUS_OK) {
        engine->cancels->acked = engine_ring;
        engine->cancels->acked_context = engine;
        status = engine->ops->rope_create(engine->device, &rope, &engine->rope);
    }
    if (status == STATUS_OK)
        status = engine->ops->kv_create(engine->device, &kv, &engine->kv);
    if (status != STATUS_OK)
        return err_set(err, status, "kv_pages: no memory for %u pages of %llu bytes",
                       info->page_count, (unsigned long long)info->page_bytes);
    engine->layer_bytes = engine->ops->kv_layer_bytes(engine->kv);
    assert(engine->layer_bytes * info->layers == info->page_bytes);
    status = buffers_create(engine);
    if (status == STATUS_OK)
        status = tables_create(engine);
    if (status == STATUS_OK)
        status = steps_create(engine);
    if (status != STATUS_OK)
        return err_set(err, status, "rows_max: no memory for steps of %u rows and %u samples",
                       info->rows_max, info->samples_max);
    return STATUS_OK;
}

static void locks_init(struct engine *engine)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_cond_init(&engine->rung, &attributes);
    pthread_condattr_destroy(&attributes);
}

enum status engine_create(const struct engine_options *options, const struct model_file *model,
                          struct engine **engine_out, struct err *err)
{
    const struct kern_backend *backend;
    enum status status =
        kern_backend_find(options->backend ? options->backend : "cpu", &backend, err);
    if (status != STATUS_OK)
        return status;
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return err_set(err, STATUS_MEMORY, "no memory");
    engine->config = model->config;
    engine->poison_pages = options->poison_pages;
    locks_init(engine);
    status = info_init(engine, options, err);
    if (status == STATUS_OK) {
        struct kern_device_options device = {.threads = options->threads,
                                             .cpus = options->cpus,
                                             .numa = options->numa,
                                             .isa = options->isa,
                                             .compute = options->compute};
        status = backend->open(&device, &engine->device, err);
    }
    if (status == STATUS_OK) {
        engine->ops = engine->device->ops;
        engine->info.backend = backend->name;
        engine->info.threads = engine->ops->device_threads(engine->device);
        engine->ops->device_describe(engine->device, engine->info.device,
                                     sizeof engine->info.device);
        status = streams_create(engine);
        if (status != STATUS_OK)
            err_set(err, status, "backend %s: cannot start its threads", backend->name);
    }
    if (status == STATUS_OK)
        status = memory_create(engine, options, err);
    if (status == STATUS_OK)
        status = weights_load(engine, options, model, err);
    if (status != STATUS_OK) {
        engine_destroy(engine);
        return status;
    }
    *engine_out = engine;
    return STATUS_OK;
}

static void layer_destroy(struct engine *engine, struct engine_layer *layer)
{
    const struct kern_ops *ops = engine->ops;
    struct kern_weights *const matrices[] = {layer->q,    layer->k,  layer->v,   layer->output,
                                             layer->gate, layer->up, layer->down};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        ops->weights_destroy(matrices[i]);
    ops->buffer_destroy(layer->attn_norm);
    ops->buffer_destroy(layer->ffn_norm);
}

static void device_destroy(struct engine *engine)
{
    const struct kern_ops *ops = engine->ops;
    ops->stream_destroy(
        engine->stream); /* runs what is enqueued: nothing below is in use afterwards */
    ops->stream_destroy(engine->copy_stream);
    for (int i = 0; i < ENGINE_STEPS; i++) {
        for (uint32_t run = 0; run < ENGINE_RUNS_MAX; run++)
            ops->event_destroy(engine->steps[i].run_done[run]);
        ops->event_destroy(engine->steps[i].done);
        ops->step_destroy(engine->steps[i].kern);
    }
    for (uint32_t i = 0; engine->copies && i < engine->info.copies_max; i++)
        ops->event_destroy(engine->copies[i].done);
    for (uint32_t i = 0; engine->layers && i < engine->info.layers; i++)
        layer_destroy(engine, &engine->layers[i]);
    if (engine->head != engine->embedding)
        ops->weights_destroy(engine->head);
    ops->weights_destroy(engine->embedding);
    struct kern_buffer *const buffers[] = {engine->output_norm, engine->x, engine->q,
                                           engine->k,           engine->v, engine->attention,
                                           engine->gate,        engine->up};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        ops->buffer_destroy(buffers[i]);
    struct kern_acts *const acts[] = {engine->acts_hidden, engine->acts_attention, engine->acts_ffn,
                                      engine->acts_head};
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        ops->acts_destroy(acts[i]);
    ops->logits_destroy(engine->logits);
    ops->rope_destroy(engine->rope);
    ops->kv_destroy(engine->kv);
    ops->device_close(engine->device);
}

void engine_destroy(struct engine *engine)
{
    if (!engine)
        return;
    if (engine->device)
        device_destroy(engine);
    for (int i = 0; i < ENGINE_STEPS; i++)
        free(engine->steps[i].fill_pages);
    void *const tables[] = {engine->layers, engine->slots, engine->free_slots, engine->fill_list,
                            engine->copies};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        free(tables[i]);
    huge_free(engine->sums);
    huge_free(engine->pages);
    kern_cancels_destroy(engine->cancels);
    pthread_cond_destroy(&engine->rung);
    pthread_mutex_destroy(&engine->mutex);
    free(engine);
}

const struct engine_info *engine_info(const struct engine *engine)
{
    return &engine->info;
}
