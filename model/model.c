/* See model.h: opening a model. The identity lives in identity.c. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/chat.h"
#include "model/identity.h"
#include "model/tokenizer.h"

static enum status get_in_range(const struct gguf *gguf, const char *key, uint32_t max,
                                uint32_t *value_out, struct err *err)
{
    uint32_t value;
    enum status status = gguf_get_u32(gguf, key, &value, err);
    if (status)
        return status;
    if (!value || value > max)
        return err_set(err, STATUS_FORMAT, "%s: %s: %u is out of range (1 to %u)", gguf_name(gguf),
                       key, value, max);
    *value_out = value;
    return STATUS_OK;
}

/* `absent` when the key is missing. */
static enum status get_or(const struct gguf *gguf, const char *key, uint32_t max, uint32_t absent,
                          uint32_t *value_out, struct err *err)
{
    if (gguf_has(gguf, key))
        return get_in_range(gguf, key, max, value_out, err);
    *value_out = absent;
    return STATUS_OK;
}

static enum status get_positive(const struct gguf *gguf, const char *key, float *value_out,
                                struct err *err)
{
    float value;
    enum status status = gguf_get_f32(gguf, key, &value, err);
    if (status)
        return status;
    if (!isfinite(value) || !(value > 0))
        return err_set(err, STATUS_FORMAT, "%s: %s: %g is not finite and above 0", gguf_name(gguf),
                       key, (double)value);
    *value_out = value;
    return STATUS_OK;
}

static void load_name(const struct gguf *gguf, struct model_config *config)
{
    struct gguf_text name;
    if (gguf_get_text(gguf, "general.name", &name, NULL) || !name.bytes) {
        const char *slash = strrchr(gguf_name(gguf), '/');
        name.data = slash ? slash + 1 : gguf_name(gguf);
        name.bytes = strlen(name.data);
    }
    size_t bytes = name.bytes < MODEL_NAME_BYTES - 1 ? name.bytes : MODEL_NAME_BYTES - 1;
    bytes = utf8_valid_prefix(name.data, bytes); /* cut between characters */
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)name.data[i];
        config->name[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    config->name[bytes] = 0;
}

/* What would change the arithmetic and is not built; an absent key means off. */
static enum status refuse_unbuilt(const struct gguf *gguf, struct err *err)
{
    static const char *const keys[] = {"llama.rope.scaling.type", "llama.rope.scale_linear",
                                       "llama.rope.scaling.factor", "llama.expert_count",
                                       "llama.attention.sliding_window"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const struct gguf_kv *kv = gguf_kv_find(gguf, keys[i]);
        char value[64];
        if (!kv)
            continue;
        gguf_kv_print(kv, value, sizeof value);
        if (strcmp(value, "none") && strcmp(value, "0") && strcmp(value, "1"))
            return err_set(err, STATUS_UNIMPLEMENTED, "%s: %s: %s is not supported",
                           gguf_name(gguf), keys[i], value);
    }
    if (gguf_tensor_find(gguf, "rope_freqs.weight"))
        return err_set(err, STATUS_UNIMPLEMENTED,
                       "%s: tensor rope_freqs.weight: scaled RoPE is not supported",
                       gguf_name(gguf));
    return STATUS_OK;
}

static enum status check_heads(const struct gguf *gguf, const struct model_config *c,
                               struct err *err)
{
    const char *name = gguf_name(gguf);
    if (c->heads % c->kv_heads)
        return err_set(err, STATUS_FORMAT,
                       "%s: llama.attention.head_count_kv: %u does not divide the heads (%u)", name,
                       c->kv_heads, c->heads);
    if (!c->head_dim || c->head_dim % 2 || c->head_dim > MODEL_HEAD_DIM_MAX)
        return err_set(err, STATUS_FORMAT,
                       "%s: llama.attention.key_length: a head of %u values (even, 2 to %d)", name,
                       c->head_dim, MODEL_HEAD_DIM_MAX);
    if (c->rope_dims % 2 || c->rope_dims > c->head_dim)
        return err_set(err, STATUS_FORMAT,
                       "%s: llama.rope.dimension_count: %u is not even and at most a head (%u)",
                       name, c->rope_dims, c->head_dim);
    return STATUS_OK;
}

static enum status load_config(const struct gguf *gguf, struct model_config *c, struct err *err)
{
    struct gguf_text architecture;
    enum status status = gguf_get_text(gguf, "general.architecture", &architecture, err);
    if (status)
        return status;
    if (!gguf_text_is(architecture, "llama")) {
        char print[64];
        gguf_kv_print(gguf_kv_find(gguf, "general.architecture"), print, sizeof print);
        return err_set(err, STATUS_UNIMPLEMENTED,
                       "%s: general.architecture: \"%s\" is not supported (known: llama)",
                       gguf_name(gguf), print);
    }
    strcpy(c->architecture, "llama");
    load_name(gguf, c);
    status = get_in_range(gguf, "llama.block_count", MODEL_LAYERS_MAX, &c->layers, err);
    if (status == STATUS_OK)
        status = get_in_range(gguf, "llama.embedding_length", MODEL_HIDDEN_MAX, &c->hidden, err);
    if (status == STATUS_OK)
        status = get_in_range(gguf, "llama.attention.head_count", MODEL_HEADS_MAX, &c->heads, err);
    if (status == STATUS_OK)
        status = get_or(gguf, "llama.attention.head_count_kv", MODEL_HEADS_MAX, c->heads,
                        &c->kv_heads, err);
    if (status == STATUS_OK)
        status = get_in_range(gguf, "llama.feed_forward_length", MODEL_FFN_MAX, &c->ffn, err);
    if (status == STATUS_OK)
        status =
            get_in_range(gguf, "llama.context_length", MODEL_CONTEXT_MAX, &c->context_tokens, err);
    if (status)
        return status;
    bool own_head_dim = gguf_has(gguf, "llama.attention.key_length");
    if (!own_head_dim && c->hidden % c->heads)
        return err_set(err, STATUS_FORMAT,
                       "%s: llama.attention.head_count: %u does not divide the hidden size (%u)",
                       gguf_name(gguf), c->heads, c->hidden);
    status = get_or(gguf, "llama.attention.key_length", MODEL_HEAD_DIM_MAX, c->hidden / c->heads,
                    &c->head_dim, err);
    uint32_t value_dim = c->head_dim;
    if (status == STATUS_OK)
        status = get_or(gguf, "llama.attention.value_length", MODEL_HEAD_DIM_MAX, c->head_dim,
                        &value_dim, err);
    if (status == STATUS_OK && value_dim != c->head_dim)
        return err_set(err, STATUS_UNIMPLEMENTED,
                       "%s: llama.attention.value_length: %u differs from the key length (%u)",
                       gguf_name(gguf), value_dim, c->head_dim);
    if (status == STATUS_OK)
        status = get_or(gguf, "llama.rope.dimension_count", MODEL_HEAD_DIM_MAX, c->head_dim,
                        &c->rope_dims, err);
    if (status == STATUS_OK)
        status = get_positive(gguf, "llama.attention.layer_norm_rms_epsilon", &c->rms_eps, err);
    c->rope_base = 10000;
    if (status == STATUS_OK && gguf_has(gguf, "llama.rope.freq_base"))
        status = get_positive(gguf, "llama.rope.freq_base", &c->rope_base, err);
    if (status == STATUS_OK)
        status = check_heads(gguf, c, err);
    if (status == STATUS_OK)
        status = refuse_unbuilt(gguf, err);
    return status;
}

/* Finds a tensor and checks type and shape: `rows` 0 is a vector, which must be F32. */
static enum status get_tensor(const struct gguf *gguf, const char *name, uint64_t columns,
                              uint64_t rows, const struct gguf_tensor **tensor_out, struct err *err)
{
    const struct gguf_tensor *tensor = gguf_tensor_find(gguf, name);
    if (!tensor)
        return err_set(err, STATUS_FORMAT, "%s: tensor %s: is missing", gguf_name(gguf), name);
    if (!tensor_type_supported(tensor->type))
        return err_set(err, STATUS_UNIMPLEMENTED,
                       "%s: tensor %s: type %s (%u) is not supported (F32, F16, BF16, Q8_0, Q4_0, "
                       "Q4_1)",
                       gguf_name(gguf), name, tensor_type_name(tensor->type), tensor->type);
    if (!rows && tensor->type != TENSOR_F32)
        return err_set(err, STATUS_UNIMPLEMENTED, "%s: tensor %s: type %s (a norm must be F32)",
                       gguf_name(gguf), name, tensor_type_name(tensor->type));
    if (tensor->shape[0] != columns || tensor->shape[1] != (rows ? rows : 1) ||
        tensor->shape[2] != 1 || tensor->shape[3] != 1)
        return err_set(err, STATUS_FORMAT,
                       "%s: tensor %s: shape %llu x %llu x %llu x %llu, expected %llu x %llu",
                       gguf_name(gguf), name, (unsigned long long)tensor->shape[0],
                       (unsigned long long)tensor->shape[1], (unsigned long long)tensor->shape[2],
                       (unsigned long long)tensor->shape[3], (unsigned long long)columns,
                       (unsigned long long)(rows ? rows : 1));
    *tensor_out = tensor;
    return STATUS_OK;
}

static enum status load_layer(const struct gguf *gguf, const struct model_config *c, uint32_t index,
                              struct model_layer *layer, struct err *err)
{
    uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
    const struct {
        const char *name;
        uint64_t columns, rows;
        const struct gguf_tensor **tensor;
    } wanted[] = {
        {"attn_norm", c->hidden, 0, &layer->attn_norm},
        {"attn_q", c->hidden, q, &layer->attn_q},
        {"attn_k", c->hidden, kv, &layer->attn_k},
        {"attn_v", c->hidden, kv, &layer->attn_v},
        {"attn_output", q, c->hidden, &layer->attn_output},
        {"ffn_norm", c->hidden, 0, &layer->ffn_norm},
        {"ffn_gate", c->hidden, c->ffn, &layer->ffn_gate},
        {"ffn_up", c->hidden, c->ffn, &layer->ffn_up},
        {"ffn_down", c->ffn, c->hidden, &layer->ffn_down},
    };
    char name[64];
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", index, wanted[i].name);
        enum status status =
            get_tensor(gguf, name, wanted[i].columns, wanted[i].rows, wanted[i].tensor, err);
        if (status)
            return status;
        /* Left out in silence, a bias would change every answer. */
        snprintf(name, sizeof name, "blk.%u.%s.bias", index, wanted[i].name);
        if (gguf_tensor_find(gguf, name))
            return err_set(err, STATUS_UNIMPLEMENTED, "%s: tensor %s: biases are not supported",
                           gguf_name(gguf), name);
    }
    return STATUS_OK;
}

static enum status load_tensors(struct model_file *model, struct err *err)
{
    const struct gguf *gguf = model->gguf;
    struct model_config *c = &model->config;
    c->vocab = tokenizer_vocab_size(model->tokenizer);
    uint32_t vocab = c->vocab;
    enum status status = get_or(gguf, "llama.vocab_size", MODEL_VOCAB_MAX, c->vocab, &vocab, err);
    if (status)
        return status;
    if (vocab != c->vocab)
        return err_set(err, STATUS_FORMAT, "%s: llama.vocab_size: %u, but the tokenizer has %u",
                       gguf_name(gguf), vocab, c->vocab);
    status = get_tensor(gguf, "token_embd.weight", c->hidden, c->vocab, &model->token_embd, err);
    if (status == STATUS_OK)
        status = get_tensor(gguf, "output_norm.weight", c->hidden, 0, &model->output_norm, err);
    if (status)
        return status;
    c->tied_output = !gguf_tensor_find(gguf, "output.weight");
    model->output = model->token_embd;
    if (!c->tied_output)
        status = get_tensor(gguf, "output.weight", c->hidden, c->vocab, &model->output, err);
    if (status)
        return status;
    model->layers = calloc(c->layers, sizeof *model->layers);
    if (!model->layers)
        return err_set(err, STATUS_MEMORY, "%s: no memory for %u layers", gguf_name(gguf),
                       c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        status = load_layer(gguf, c, i, &model->layers[i], err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* Takes over `gguf`. */
static enum status load(struct gguf *gguf, struct model_file **model_out, struct err *err)
{
    struct model_file *model = calloc(1, sizeof *model);
    if (!model) {
        gguf_close(gguf);
        return err_set(err, STATUS_MEMORY, "no memory");
    }
    model->gguf = gguf;
    enum status status = load_config(gguf, &model->config, err);
    if (status == STATUS_OK)
        status = tokenizer_create(gguf, &model->tokenizer, err);
    if (status == STATUS_OK)
        status = load_tensors(model, err);
    if (status == STATUS_OK)
        status = model_identity_compute(gguf, &model->config, &model->identity, err);
    if (status == STATUS_OK) {
        /* A model without a chat format still completes text. */
        enum status chat =
            chat_format_create(gguf, model->tokenizer, &model->chat, &model->chat_refusal);
        if (chat != STATUS_OK && chat != STATUS_UNIMPLEMENTED) {
            status = chat;
            if (err)
                *err = model->chat_refusal;
        }
    }
    if (status) {
        model_close(model);
        return status;
    }
    *model_out = model;
    return STATUS_OK;
}

enum status model_open(const char *path, struct model_file **model_out, struct err *err)
{
    struct gguf *gguf;
    enum status status = gguf_open(path, &gguf, err);
    return status ? status : load(gguf, model_out, err);
}

enum status model_open_memory(const void *data, size_t bytes, const char *name,
                              struct model_file **model_out, struct err *err)
{
    struct gguf *gguf;
    enum status status = gguf_open_memory(data, bytes, name, &gguf, err);
    return status ? status : load(gguf, model_out, err);
}

void model_close(struct model_file *model)
{
    if (!model)
        return;
    chat_format_destroy(model->chat);
    tokenizer_destroy(model->tokenizer);
    free(model->layers);
    gguf_close(model->gguf);
    free(model);
}

uint64_t model_parameter_count(const struct model_file *model)
{
    uint64_t count = 0;
    for (size_t i = 0; i < gguf_tensor_count(model->gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(model->gguf, i);
        count += tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * tensor->shape[3];
    }
    return count;
}
