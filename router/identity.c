/* See identity.h. */
#include "router/identity.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static bool refuse(struct identity_refusal *refusal,
                                                         const char *field, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    refusal->field = field;
    vsnprintf(refusal->message, sizeof refusal->message, format, args);
    va_end(args);
    return false;
}

static bool name_is_sound(const char *name)
{
    size_t bytes = strlen(name);
    if (!bytes || bytes > NODE_NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (name[i] <= ' ' || name[i] == 0x7f) /* also what is not ASCII: char is signed here */
            return false;
    return true;
}

static bool check_version(struct wire_range own, const Baton__Node__V1__Register *r,
                          struct identity_refusal *refusal)
{
    uint64_t demanded = r->features & IDENTITY_FEATURES_DEMANDED;
    if (r->wire_min > r->wire_max)
        return refuse(refusal, "wire_min", "%u is above wire_max (%u)", r->wire_min, r->wire_max);
    if (!wire_common(own, (struct wire_range){r->wire_min, r->wire_max}))
        return refuse(refusal, r->wire_min > own.max ? "wire_min" : "wire_max",
                      "the node speaks versions %u to %u, this router %u to %u", r->wire_min,
                      r->wire_max, own.min, own.max);
    if (demanded)
        return refuse(refusal, "features", "demands what this router does not know: bits 0x%llx",
                      (unsigned long long)demanded);
    return true;
}

static bool check_registration(const Baton__Node__V1__Register *r, struct identity_refusal *refusal)
{
    if (!name_is_sound(r->name))
        return refuse(refusal, "name", "must be 1 to %d printable ASCII characters without spaces",
                      NODE_NAME_BYTES_MAX);
    if (!r->incarnation)
        return refuse(refusal, "incarnation", "must not be 0");
    if (r->role != BATON__NODE__V1__ROLE__ROLE_PREFILL &&
        r->role != BATON__NODE__V1__ROLE__ROLE_DECODE &&
        r->role != BATON__NODE__V1__ROLE__ROLE_MIXED)
        return refuse(refusal, "role", "%d is no role", (int)r->role);
    if (!r->pages_total)
        return refuse(refusal, "pages_total", "must not be 0");
    if (!r->sequences_max)
        return refuse(refusal, "sequences_max", "must not be 0");
    return true;
}

static bool check_model(const struct identity_model *model, const Baton__Node__V1__Identity *i,
                        struct identity_refusal *refusal)
{
    if (i->model_hash.len != sizeof model->hash ||
        memcmp(i->model_hash.data, model->hash, sizeof model->hash) != 0)
        return refuse(refusal, "model_hash", "the node serves another model (\"%.100s\")",
                      i->model_name);
    if (i->vocab_size != model->vocab_size)
        return refuse(refusal, "vocab_size", "%u, this cluster's is %u", i->vocab_size,
                      model->vocab_size);
    if (!i->context_tokens || i->context_tokens > model->context_tokens)
        return refuse(refusal, "context_tokens", "%u is outside 1 to the model's %u",
                      i->context_tokens, model->context_tokens);
    if (!i->page_tokens)
        return refuse(refusal, "page_tokens", "must not be 0");
    return true;
}

static bool text_is(const char *field, const char *theirs, const char *ours,
                    struct identity_refusal *refusal)
{
    return strcmp(theirs, ours) == 0 ||
           refuse(refusal, field, "\"%.64s\", this cluster's is \"%.64s\"", theirs, ours);
}

static bool number_is(const char *field, uint32_t theirs, uint32_t ours,
                      struct identity_refusal *refusal)
{
    return theirs == ours || refuse(refusal, field, "%u, this cluster's is %u", theirs, ours);
}

static bool learn(struct identity *identity, const Baton__Node__V1__Register *r,
                  struct identity_refusal *refusal)
{
    const Baton__Node__V1__Identity *i = r->identity;
    if (!*i->arithmetic || strlen(i->arithmetic) >= sizeof identity->arithmetic)
        return refuse(refusal, "arithmetic", "must have 1 to %zu bytes",
                      sizeof identity->arithmetic - 1);
    if (!*i->kv_type || strlen(i->kv_type) >= sizeof identity->kv_type)
        return refuse(refusal, "kv_type", "must have 1 to %zu bytes", sizeof identity->kv_type - 1);
    if (strlen(r->ucx_version) >= sizeof identity->ucx_version)
        return refuse(refusal, "ucx_version", "must have at most %zu bytes",
                      sizeof identity->ucx_version - 1);
    *identity = (struct identity){.known = true,
                                  .page_tokens = i->page_tokens,
                                  .page_bytes = i->page_bytes,
                                  .layer_begin = i->layer_begin,
                                  .layer_end = i->layer_end,
                                  .head_begin = i->head_begin,
                                  .head_end = i->head_end,
                                  .layers_per_piece = i->layers_per_piece,
                                  .context_tokens = i->context_tokens,
                                  .kv_layout = i->kv_layout};
    strcpy(identity->arithmetic, i->arithmetic);
    strcpy(identity->kv_type, i->kv_type);
    strcpy(identity->ucx_version, r->ucx_version);
    return true;
}

bool identity_check(struct identity *identity, const struct identity_model *model,
                    const Baton__Node__V1__Register *registration,
                    struct identity_refusal *refusal_out)
{
    const Baton__Node__V1__Identity *i = registration->identity;
    if (!check_version(model->wire, registration, refusal_out) ||
        !check_registration(registration, refusal_out))
        return false;
    if (!i)
        return refuse(refusal_out, "identity", "is missing");
    if (!check_model(model, i, refusal_out))
        return false;
    if (!identity->known)
        return learn(identity, registration, refusal_out);
    const struct identity *own = identity;
    return text_is("kv_type", i->kv_type, own->kv_type, refusal_out) &&
           text_is("arithmetic", i->arithmetic, own->arithmetic, refusal_out) &&
           number_is("page_tokens", i->page_tokens, own->page_tokens, refusal_out) &&
           number_is("kv_layout", i->kv_layout, own->kv_layout, refusal_out) &&
           number_is("layer_begin", i->layer_begin, own->layer_begin, refusal_out) &&
           number_is("layer_end", i->layer_end, own->layer_end, refusal_out) &&
           number_is("head_begin", i->head_begin, own->head_begin, refusal_out) &&
           number_is("head_end", i->head_end, own->head_end, refusal_out) &&
           number_is("layers_per_piece", i->layers_per_piece, own->layers_per_piece, refusal_out) &&
           number_is("page_bytes", i->page_bytes, own->page_bytes, refusal_out) &&
           number_is("context_tokens", i->context_tokens, own->context_tokens, refusal_out) &&
           text_is("ucx_version", registration->ucx_version, own->ucx_version, refusal_out);
}
