/* Builds GGUF files in memory, right or wrong, for tests. */
#ifndef BATON_TESTS_MODEL_BUILD_GGUF_H
#define BATON_TESTS_MODEL_BUILD_GGUF_H

#include <string.h>

#include "base/buf.h"
#include "model/gguf.h"

static inline void put_u32(struct buf *buf, uint32_t value)
{
    buf_append(buf, &value, 4);
}

static inline void put_u64(struct buf *buf, uint64_t value)
{
    buf_append(buf, &value, 8);
}

static inline void put_text(struct buf *buf, const char *text)
{
    put_u64(buf, strlen(text));
    buf_append_text(buf, text);
}

static inline void put_header(struct buf *buf, uint32_t version, uint64_t tensors, uint64_t kvs)
{
    buf_append_text(buf, "GGUF");
    put_u32(buf, version);
    put_u64(buf, tensors);
    put_u64(buf, kvs);
}

static inline void put_key(struct buf *buf, const char *key, uint32_t type)
{
    put_text(buf, key);
    put_u32(buf, type);
}

static inline void put_kv_u32(struct buf *buf, const char *key, uint32_t value)
{
    put_key(buf, key, GGUF_U32);
    put_u32(buf, value);
}

static inline void put_kv_text(struct buf *buf, const char *key, const char *value)
{
    put_key(buf, key, GGUF_TEXT);
    put_text(buf, value);
}

static inline void put_tensor(struct buf *buf, const char *name, uint64_t columns, uint64_t rows,
                              uint32_t type, uint64_t offset)
{
    put_text(buf, name);
    put_u32(buf, 2);
    put_u64(buf, columns);
    put_u64(buf, rows);
    put_u32(buf, type);
    put_u64(buf, offset);
}

/* Zeros up to the next multiple of `alignment`. */
static inline void put_padding(struct buf *buf, size_t alignment)
{
    while (buf->bytes % alignment)
        buf_append(buf, "", 1);
}

static inline void put_zeros(struct buf *buf, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        buf_append(buf, "", 1);
}

#endif
