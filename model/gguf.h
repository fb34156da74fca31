/* Reads GGUF files, versions 2 and 3 (ggml's docs/gguf.md), little endian.
 *
 *     header { magic, version, tensor count, kv count }
 *     kv[]     { key, type, value }                 ──▶ gguf_get_*: typed getters
 *     tensor[] { name, dims, shape, type, offset }  ──▶ gguf_tensor_find, gguf_tensor_at
 *     padding to general.alignment
 *     data                                          ──▶ tensor->data points into the mapping
 *
 * The file is hostile until checked: gguf_open reads all of the header once and refuses any count,
 * length, offset, alignment, type or dimension that does not fit in the bytes that remain, any sum
 * or product that overflows, duplicate keys and names, and tensors outside the file. What it
 * allocates is bounded by the bytes of the file, never by a count in it. After gguf_open all
 * accessors are safe and none of them fails for the file's sake, but by type or absence.
 *
 * Owner: any thread; read-only after gguf_open. */
#ifndef BATON_MODEL_GGUF_H
#define BATON_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { GGUF_DIMS_MAX = 4, GGUF_NAME_BYTES_MAX = 255, GGUF_KEY_BYTES_MAX = 1023 };

/* Value types, numbered as in the file. */
enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_TEXT = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};
const char *gguf_type_name(enum gguf_type type);

/* Tensor types, numbered as in the file. Only these six can be used; a file may hold others as long
 * as nobody asks for them (their `data` is NULL and `bytes` 0). */
enum tensor_type {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_Q4_0 = 2, /* blocks of 32: f16 d, 16 bytes of nibbles; w = d (q - 8) */
    TENSOR_Q4_1 = 3, /* blocks of 32: f16 d, f16 m, 16 bytes of nibbles; w = d q + m */
    TENSOR_Q8_0 = 8, /* blocks of 32: f16 d, 32 int8; w = d q */
    TENSOR_BF16 = 30,
};
/* "Q4_1"; for types that Baton cannot use too, as far as they have a name; else "unknown". */
const char *tensor_type_name(uint32_t type);
bool tensor_type_supported(uint32_t type);
/* Values a block, and bytes a block; 0 when not supported. */
uint32_t tensor_type_block_values(uint32_t type);
uint32_t tensor_type_block_bytes(uint32_t type);

/* Text in the file: not terminated, may hold NUL bytes, not checked for UTF-8. */
struct gguf_text {
    const char *data;
    size_t bytes;
};

/* shape[0] is the innermost (contiguous) dimension: a linear weight that maps `in` values to `out`
 * has shape {in, out}, and row r (of `out`) starts at data + r * row_bytes. Absent dimensions
 * are 1. */
struct gguf_tensor {
    struct gguf_text name;
    uint32_t type; /* enum tensor_type when supported */
    uint32_t dims;
    uint64_t shape[GGUF_DIMS_MAX];
    uint64_t offset; /* from the start of the file */
    uint64_t bytes, row_bytes;
    const void *data;
};

/* An array value. Fixed-size elements lie at `data`, unaligned, little endian; texts are read by
 * gguf_array_next_text. */
struct gguf_array {
    enum gguf_type type;
    uint64_t count;
    const uint8_t *data, *end;
};

struct gguf_kv {
    struct gguf_text key;
    enum gguf_type type;
    const uint8_t *value, *end; /* in the file, checked */
};

struct gguf;

/* Maps `path`. Errors begin with the path: IO (cannot be opened or mapped), FORMAT (with the field
 * and the limit), MEMORY. The file must not be truncated or rewritten while it is open (as with any
 * mapping: SIGBUS). */
enum status gguf_open(const char *path, struct gguf **gguf_out, struct err *err);
/* The same from `bytes` bytes of memory, which the caller keeps until gguf_close; `name` stands for
 * the path in errors. */
enum status gguf_open_memory(const void *data, size_t bytes, const char *name,
                             struct gguf **gguf_out, struct err *err);
void gguf_close(struct gguf *gguf); /* NULL is fine */

const char *gguf_name(const struct gguf *gguf); /* the path; errors found later begin with it */
uint32_t gguf_version(const struct gguf *gguf);
uint64_t gguf_file_bytes(const struct gguf *gguf);
uint32_t gguf_alignment(const struct gguf *gguf);

size_t gguf_tensor_count(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t index); /* in file order */
/* NULL when there is none. */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name);

size_t gguf_kv_count(const struct gguf *gguf);
const struct gguf_kv *gguf_kv_at(const struct gguf *gguf, size_t index);
const struct gguf_kv *gguf_kv_find(const struct gguf *gguf, const char *key);
static inline bool gguf_has(const struct gguf *gguf, const char *key)
{
    return gguf_kv_find(gguf, key) != NULL;
}

/* Typed getters. FORMAT when the key is missing or of another type, naming key, type found and type
 * wanted:
 *
 *     model.gguf: llama.block_count: is of type text, expected an unsigned integer
 *
 * Outputs are untouched on failure. Integers of any width are accepted when the value fits. */
enum status gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *value_out,
                         struct err *err);
enum status gguf_get_f32(const struct gguf *gguf, const char *key, float *value_out,
                         struct err *err);
enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *value_out,
                          struct err *err);
enum status gguf_get_text(const struct gguf *gguf, const char *key, struct gguf_text *value_out,
                          struct err *err);
enum status gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_type element,
                           struct gguf_array *value_out, struct err *err);
/* Takes the next text off an array of texts; false at its end. */
bool gguf_array_next_text(struct gguf_array *array, struct gguf_text *text_out);
/* Element `index` of an array of I32 or U32. */
uint32_t gguf_array_u32(const struct gguf_array *array, uint64_t index);

/* True when `text` is exactly the C string `literal`. */
bool gguf_text_is(struct gguf_text text, const char *literal);
/* Writes the value of `kv` for people ("8192", "llama", "[49152 x text]"), cut to the room,
 * terminated, without control characters. */
void gguf_kv_print(const struct gguf_kv *kv, char *out, size_t out_bytes);

#endif
