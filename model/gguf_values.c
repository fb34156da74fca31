/* See gguf.h: names of types, finding by name, typed getters, printing. Everything here works on what gguf.c has checked. */
#include "model/gguf_internal.h"

#include <stdio.h>
#include <string.h>

uint16_t gguf_load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

uint32_t gguf_load_u32(const uint8_t *at)
{
    return gguf_load_u16(at) | (uint32_t)gguf_load_u16(at + 2) << 16;
}

uint64_t gguf_load_u64(const uint8_t *at)
{
    return gguf_load_u32(at) | (uint64_t)gguf_load_u32(at + 4) << 32;
}

/*     type  name       bytes */
#define VALUE_TYPES(X)        \
    X(GGUF_U8, "u8", 1)       \
    X(GGUF_I8, "i8", 1)       \
    X(GGUF_U16, "u16", 2)     \
    X(GGUF_I16, "i16", 2)     \
    X(GGUF_U32, "u32", 4)     \
    X(GGUF_I32, "i32", 4)     \
    X(GGUF_F32, "f32", 4)     \
    X(GGUF_BOOL, "bool", 1)   \
    X(GGUF_TEXT, "text", 0)   \
    X(GGUF_ARRAY, "array", 0) \
    X(GGUF_U64, "u64", 8)     \
    X(GGUF_I64, "i64", 8)     \
    X(GGUF_F64, "f64", 8)

uint32_t gguf_type_bytes(uint32_t type)
{
    switch (type) {
#define X(type_, name_, bytes_) \
    case type_:                 \
        return bytes_;
        VALUE_TYPES(X)
#undef X
    }
    return 0;
}

const char *gguf_type_name(enum gguf_type type)
{
    switch ((uint32_t)type) {
#define X(type_, name_, bytes_) \
    case type_:                 \
        return name_;
        VALUE_TYPES(X)
#undef X
    }
    return "unknown";
}

/* Tensor types by number. Those without a block size are named only (ggml's enum ggml_type). */
static const struct {
    const char *name;
    uint8_t block_values, block_bytes;
} tensor_types[] = {
    [TENSOR_F32] = {"F32", 1, 4},
    [TENSOR_F16] = {"F16", 1, 2},
    [TENSOR_Q4_0] = {"Q4_0", 32, 18},
    [TENSOR_Q4_1] = {"Q4_1", 32, 20},
    [6] = {"Q5_0", 0, 0},
    [7] = {"Q5_1", 0, 0},
    [TENSOR_Q8_0] = {"Q8_0", 32, 34},
    [9] = {"Q8_1", 0, 0},
    [10] = {"Q2_K", 0, 0},
    [11] = {"Q3_K", 0, 0},
    [12] = {"Q4_K", 0, 0},
    [13] = {"Q5_K", 0, 0},
    [14] = {"Q6_K", 0, 0},
    [15] = {"Q8_K", 0, 0},
    [16] = {"IQ2_XXS", 0, 0},
    [17] = {"IQ2_XS", 0, 0},
    [18] = {"IQ3_XXS", 0, 0},
    [19] = {"IQ1_S", 0, 0},
    [20] = {"IQ4_NL", 0, 0},
    [21] = {"IQ3_S", 0, 0},
    [22] = {"IQ2_S", 0, 0},
    [23] = {"IQ4_XS", 0, 0},
    [24] = {"I8", 0, 0},
    [25] = {"I16", 0, 0},
    [26] = {"I32", 0, 0},
    [27] = {"I64", 0, 0},
    [28] = {"F64", 0, 0},
    [29] = {"IQ1_M", 0, 0},
    [TENSOR_BF16] = {"BF16", 1, 2},
    [34] = {"TQ1_0", 0, 0},
    [35] = {"TQ2_0", 0, 0},
    [39] = {"MXFP4", 0, 0},
};
enum { TENSOR_TYPES = sizeof tensor_types / sizeof tensor_types[0] };

const char *tensor_type_name(uint32_t type)
{
    return type < TENSOR_TYPES && tensor_types[type].name ? tensor_types[type].name : "unknown";
}

bool tensor_type_supported(uint32_t type)
{
    return type < TENSOR_TYPES && tensor_types[type].block_values;
}

uint32_t tensor_type_block_values(uint32_t type)
{
    return type < TENSOR_TYPES ? tensor_types[type].block_values : 0;
}

uint32_t tensor_type_block_bytes(uint32_t type)
{
    return type < TENSOR_TYPES ? tensor_types[type].block_bytes : 0;
}

const char *gguf_text_print(struct gguf_text text, char out[GGUF_PRINT_BYTES])
{
    size_t bytes = text.bytes < GGUF_PRINT_BYTES - 1 ? text.bytes : GGUF_PRINT_BYTES - 1;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text.data[i];
        out[i] = c < 0x20 || c >= 0x7f ? '?' : (char)c;
    }
    out[bytes] = 0;
    return out;
}

int gguf_text_compare(struct gguf_text a, struct gguf_text b)
{
    int order = memcmp(a.data, b.data, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

bool gguf_text_is(struct gguf_text text, const char *literal)
{
    size_t bytes = strlen(literal);
    return text.bytes == bytes && !memcmp(text.data, literal, bytes);
}

const char *gguf_name(const struct gguf *gguf)
{
    return gguf->name;
}

uint32_t gguf_version(const struct gguf *gguf)
{
    return gguf->version;
}

uint64_t gguf_file_bytes(const struct gguf *gguf)
{
    return gguf->bytes;
}

uint32_t gguf_alignment(const struct gguf *gguf)
{
    return gguf->alignment;
}

size_t gguf_tensor_count(const struct gguf *gguf)
{
    return gguf->tensor_count;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t index)
{
    return index < gguf->tensor_count ? &gguf->tensors[index] : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name)
{
    struct gguf_text wanted = {name, strlen(name)};
    size_t low = 0, high = gguf->tensor_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct gguf_tensor *tensor = &gguf->tensors[gguf->tensor_order[middle]];
        int order = gguf_text_compare(tensor->name, wanted);
        if (!order)
            return tensor;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

size_t gguf_kv_count(const struct gguf *gguf)
{
    return gguf->kv_count;
}

const struct gguf_kv *gguf_kv_at(const struct gguf *gguf, size_t index)
{
    return index < gguf->kv_count ? &gguf->kvs[index] : NULL;
}

const struct gguf_kv *gguf_kv_find(const struct gguf *gguf, const char *key)
{
    struct gguf_text wanted = {key, strlen(key)};
    size_t low = 0, high = gguf->kv_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct gguf_kv *kv = &gguf->kvs[gguf->kv_order[middle]];
        int order = gguf_text_compare(kv->key, wanted);
        if (!order)
            return kv;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static enum status find(const struct gguf *gguf, const char *key, const struct gguf_kv **kv_out,
                        struct err *err)
{
    *kv_out = gguf_kv_find(gguf, key);
    if (!*kv_out)
        return err_set(err, STATUS_FORMAT, "%s: %s: the key is missing", gguf->name, key);
    return STATUS_OK;
}

static enum status wrong_type(const struct gguf *gguf, const struct gguf_kv *kv, const char *key,
                              const char *wanted, struct err *err)
{
    return err_set(err, STATUS_FORMAT, "%s: %s: is of type %s, expected %s", gguf->name, key,
                   gguf_type_name(kv->type), wanted);
}

/* Any integer, sign-extended; false when `kv` is none. U64 above INT64_MAX reads as -1: out of every range here. */
static bool integer(const struct gguf_kv *kv, int64_t *value_out)
{
    switch (kv->type) {
    case GGUF_U8:
        *value_out = kv->value[0];
        return true;
    case GGUF_I8:
        *value_out = (int8_t)kv->value[0];
        return true;
    case GGUF_U16:
        *value_out = gguf_load_u16(kv->value);
        return true;
    case GGUF_I16:
        *value_out = (int16_t)gguf_load_u16(kv->value);
        return true;
    case GGUF_U32:
        *value_out = gguf_load_u32(kv->value);
        return true;
    case GGUF_I32:
        *value_out = (int32_t)gguf_load_u32(kv->value);
        return true;
    case GGUF_I64:
    case GGUF_U64: {
        uint64_t value = gguf_load_u64(kv->value);
        *value_out = kv->type == GGUF_U64 && value > INT64_MAX ? -1 : (int64_t)value;
        return true;
    }
    default:
        return false;
    }
}

enum status gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *value_out,
                         struct err *err)
{
    const struct gguf_kv *kv;
    enum status status = find(gguf, key, &kv, err);
    if (status)
        return status;
    int64_t value;
    if (!integer(kv, &value))
        return wrong_type(gguf, kv, key, "an unsigned integer", err);
    if (value < 0 || value > UINT32_MAX)
        return err_set(err, STATUS_FORMAT, "%s: %s: is out of range (0 to %u)", gguf->name, key,
                       UINT32_MAX);
    *value_out = (uint32_t)value;
    return STATUS_OK;
}

static float load_f32(const uint8_t *at)
{
    uint32_t bits = gguf_load_u32(at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double load_f64(const uint8_t *at)
{
    uint64_t bits = gguf_load_u64(at);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

enum status gguf_get_f32(const struct gguf *gguf, const char *key, float *value_out,
                         struct err *err)
{
    const struct gguf_kv *kv;
    enum status status = find(gguf, key, &kv, err);
    if (status)
        return status;
    if (kv->type != GGUF_F32)
        return wrong_type(gguf, kv, key, "f32", err);
    *value_out = load_f32(kv->value);
    return STATUS_OK;
}

enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *value_out,
                          struct err *err)
{
    const struct gguf_kv *kv;
    enum status status = find(gguf, key, &kv, err);
    if (status)
        return status;
    if (kv->type != GGUF_BOOL)
        return wrong_type(gguf, kv, key, "bool", err);
    *value_out = kv->value[0] != 0;
    return STATUS_OK;
}

static struct gguf_text load_text(const uint8_t *at)
{
    return (struct gguf_text){(const char *)at + 8, (size_t)gguf_load_u64(at)};
}

enum status gguf_get_text(const struct gguf *gguf, const char *key, struct gguf_text *value_out,
                          struct err *err)
{
    const struct gguf_kv *kv;
    enum status status = find(gguf, key, &kv, err);
    if (status)
        return status;
    if (kv->type != GGUF_TEXT)
        return wrong_type(gguf, kv, key, "text", err);
    *value_out = load_text(kv->value);
    return STATUS_OK;
}

/* An array value is {u32 type, u64 count, elements}. */
static struct gguf_array load_array(const struct gguf_kv *kv)
{
    return (struct gguf_array){(enum gguf_type)gguf_load_u32(kv->value),
                               gguf_load_u64(kv->value + 4), kv->value + 12, kv->end};
}

enum status gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_type element,
                           struct gguf_array *value_out, struct err *err)
{
    const struct gguf_kv *kv;
    enum status status = find(gguf, key, &kv, err);
    if (status)
        return status;
    char wanted[32];
    snprintf(wanted, sizeof wanted, "an array of %s", gguf_type_name(element));
    if (kv->type != GGUF_ARRAY)
        return wrong_type(gguf, kv, key, wanted, err);
    struct gguf_array array = load_array(kv);
    if (array.type != element)
        return err_set(err, STATUS_FORMAT, "%s: %s: is an array of %s, expected %s", gguf->name,
                       key, gguf_type_name(array.type), wanted);
    *value_out = array;
    return STATUS_OK;
}

bool gguf_array_next_text(struct gguf_array *array, struct gguf_text *text_out)
{
    if (array->type != GGUF_TEXT || array->data == array->end)
        return false;
    *text_out = load_text(array->data);
    array->data += 8 + text_out->bytes;
    return true;
}

uint32_t gguf_array_u32(const struct gguf_array *array, uint64_t index)
{
    return gguf_load_u32(array->data + 4 * index);
}

void gguf_kv_print(const struct gguf_kv *kv, char *out, size_t out_bytes)
{
    char text[GGUF_PRINT_BYTES];
    int64_t value;
    if (kv->type == GGUF_TEXT) {
        snprintf(out, out_bytes, "%s", gguf_text_print(load_text(kv->value), text));
    } else if (kv->type == GGUF_ARRAY) {
        struct gguf_array array = load_array(kv);
        snprintf(out, out_bytes, "[%llu x %s]", (unsigned long long)array.count,
                 gguf_type_name(array.type));
    } else if (kv->type == GGUF_U64) {
        snprintf(out, out_bytes, "%llu", (unsigned long long)gguf_load_u64(kv->value));
    } else if (kv->type == GGUF_F32) {
        snprintf(out, out_bytes, "%g", (double)load_f32(kv->value));
    } else if (kv->type == GGUF_F64) {
        snprintf(out, out_bytes, "%g", load_f64(kv->value));
    } else if (kv->type == GGUF_BOOL) {
        snprintf(out, out_bytes, "%s", kv->value[0] ? "true" : "false");
    } else if (integer(kv, &value)) {
        snprintf(out, out_bytes, "%lld", (long long)value);
    } else {
        snprintf(out, out_bytes, "?");
    }
}
