/* The forward pass of the Llama architecture (Touvron et al. 2023), as backend operations on one ragged batch:
 *
 *     x = embedding(token)
 *     each layer:  q, k, v = W rmsnorm(x);   rope, k and v to their pages;   x += W_o attention(q)
 *                  x += W_down (silu(W_gate n) * (W_up n)),  n = rmsnorm(x)
 *     sampled rows:  logits = W_head rmsnorm(x);  sample
 *
 * After each run of layers the pages that this step fills get their checksums, and an event tells the loop, so that a
 * layer group travels while later layers still compute. Owner: the loop thread enqueues; nothing here waits. */
#include "engine/internal.h"

#include "kernels/backend.h"

/* One matrix, onto the residual stream. */
static void linear_enqueue(struct engine *engine, struct kern_step *step,
                           const struct kern_weights *weights, const struct kern_acts *acts,
                           struct kern_buffer *out)
{
    struct kern_linear_part part = {weights, out};
    engine->ops->linear(engine->stream, step, acts, true, &part, 1);
}

static void layer_enqueue(struct engine *engine, struct kern_step *step, uint32_t index)
{
    const struct kern_ops *ops = engine->ops;
    struct kern_stream *stream = engine->stream;
    const struct engine_layer *layer = &engine->layers[index];
    const struct kern_attention_desc desc = {
        .heads = engine->info.heads,
        .layer = index,
        .scale = 1.0f / __builtin_sqrtf((float)engine->info.head_dim),
    };
    const struct kern_linear_part qkv[] = {
        {layer->q, engine->q}, {layer->k, engine->k}, {layer->v, engine->v}};
    const struct kern_linear_part gate_up[] = {{layer->gate, engine->gate},
                                               {layer->up, engine->up}};
    float eps = engine->config.rms_eps;

    ops->layer_begin(stream, step, index);
    ops->norm(stream, step, KERN_ROWS_ALL, engine->x, layer->attn_norm, eps, engine->acts_hidden);
    ops->linear(stream, step, engine->acts_hidden, false, qkv, 3);
    ops->rope_kv(stream, step, &desc, engine->rope, engine->q, engine->k, engine->v, engine->kv);
    ops->attention(stream, step, &desc, engine->q, engine->kv, engine->attention);
    ops->acts_from(stream, step, engine->attention, engine->acts_attention);
    linear_enqueue(engine, step, layer->output, engine->acts_attention, engine->x);
    ops->norm(stream, step, KERN_ROWS_ALL, engine->x, layer->ffn_norm, eps, engine->acts_hidden);
    ops->linear(stream, step, engine->acts_hidden, false, gate_up, 2);
    ops->silu_mul(stream, step, engine->gate, engine->up, engine->acts_ffn);
    linear_enqueue(engine, step, layer->down, engine->acts_ffn, engine->x);
    ops->layer_end(stream, step, index);
}

void engine_forward(struct engine *engine, struct engine_step *step)
{
    const struct kern_ops *ops = engine->ops;
    struct kern_stream *stream = engine->stream;
    const struct engine_info *info = &engine->info;
    ops->step_begin(stream, step->kern);
    ops->embed(stream, step->kern, engine->embedding, engine->x);
    for (uint32_t run = 0; run < info->run_count; run++) {
        uint32_t begin = run * info->layer_run, end = begin + engine_run_layers(engine, run);
        for (uint32_t layer = begin; layer < end; layer++)
            layer_enqueue(engine, step->kern, layer);
        if (step->kern->sum_count)
            ops->kv_sums(stream, step->kern, engine->kv, run, begin, end);
        ops->event_record(stream, step->run_done[run]);
    }
    if (step->kern->sample_count) {
        ops->norm(stream, step->kern, KERN_ROWS_SAMPLED, engine->x, engine->output_norm,
                  engine->config.rms_eps, engine->acts_head);
        ops->head(stream, step->kern, engine->head, engine->acts_head, engine->logits);
        ops->sample(stream, step->kern, engine->logits);
    }
    ops->step_end(stream, step->kern);
    ops->event_record(stream, step->done);
    /* armed in order, after all is enqueued: a lazy stream starts here */
    for (uint32_t run = 0; run < info->run_count; run++)
        ops->event_arm(step->run_done[run], engine_ring, engine);
    ops->event_arm(step->done, engine_ring, engine);
}
