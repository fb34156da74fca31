/* See identity.h. Every field goes into the hash behind its own length or in a fixed width, so that no two models give the same
 * bytes. Integers in the machine's order: only little-endian machines read GGUF here. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "model/identity.h"

#include <stdio.h>
#include <string.h>

#include "model/gguf_internal.h"

static void add(XXH3_state_t *state, const void *data, size_t bytes)
{
    XXH3_128bits_update(state, data, bytes);
}

static void add_u64(XXH3_state_t *state, uint64_t value)
{
    add(state, &value, sizeof value);
}

static void add_text(XXH3_state_t *state, struct gguf_text text)
{
    add_u64(state, text.bytes);
    add(state, text.data, text.bytes);
}

static void add_config(XXH3_state_t *state, const struct model_config *c)
{
    add_text(state, (struct gguf_text){c->architecture, strlen(c->architecture)});
    const uint32_t fields[] = {c->layers,    c->hidden,     c->heads, c->kv_heads,
                               c->head_dim,  c->ffn,        c->vocab, c->context_tokens,
                               c->rope_dims, c->tied_output};
    add(state, fields, sizeof fields);
    const float values[] = {c->rope_base, c->rms_eps};
    add(state, values, sizeof values);
}

enum status model_identity_compute(const struct gguf *gguf, const struct model_config *config,
                                   struct model_identity *identity_out, struct err *err)
{
    static const char prefix[] = "tokenizer.";
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return err_set(err, STATUS_MEMORY, "%s: no memory", gguf_name(gguf));
    XXH3_128bits_reset(state);
    add_config(state, config);
    for (size_t i = 0; i < gguf->kv_count; i++) {
        const struct gguf_kv *kv = &gguf->kvs[gguf->kv_order[i]];
        if (kv->key.bytes < sizeof prefix - 1 || memcmp(kv->key.data, prefix, sizeof prefix - 1))
            continue;
        add_text(state, kv->key);
        add_u64(state, kv->type);
        add_text(state, (struct gguf_text){(const char *)kv->value, (size_t)(kv->end - kv->value)});
    }
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[gguf->tensor_order[i]];
        add_text(state, tensor->name);
        add_u64(state, tensor->type);
        add(state, tensor->shape, sizeof tensor->shape);
        add_text(state, (struct gguf_text){tensor->data, (size_t)tensor->bytes});
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    XXH3_freeState(state);
    memcpy(identity_out->bytes, canonical.digest, sizeof identity_out->bytes);
    return STATUS_OK;
}

bool model_identity_equal(struct model_identity a, struct model_identity b)
{
    return !memcmp(a.bytes, b.bytes, sizeof a.bytes);
}

void model_identity_text(struct model_identity identity, char text_out[33])
{
    for (size_t i = 0; i < sizeof identity.bytes; i++)
        snprintf(text_out + 2 * i, 3, "%02x", identity.bytes[i]);
}
