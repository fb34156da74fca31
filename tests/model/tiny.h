/* The tiny model that tests/data/make_tiny_model.py made at build time (environment BATON_UNIT_MODEL), as bytes that a test may
 * change, and with its keys found so that a test may change them. */
#ifndef BATON_TESTS_MODEL_TINY_H
#define BATON_TESTS_MODEL_TINY_H

#include <stdlib.h>

#include "model/gguf.h"
#include "model/model.h"
#include "tests/test.h"

struct tiny {
    uint8_t *data;
    size_t bytes;
};

static inline struct tiny tiny_read(void)
{
    const char *path = getenv("BATON_UNIT_MODEL");
    CHECK_MSG(path, "BATON_UNIT_MODEL is not set");
    FILE *file = fopen(path, "rb");
    CHECK_MSG(file, "%s cannot be opened", path);
    fseek(file, 0, SEEK_END);
    struct tiny tiny = {NULL, (size_t)ftell(file)};
    rewind(file);
    tiny.data = malloc(tiny.bytes);
    CHECK(tiny.data && fread(tiny.data, 1, tiny.bytes, file) == tiny.bytes);
    fclose(file);
    return tiny;
}

/* Where the value of `key` lies in tiny.data, and its bytes. */
static inline uint8_t *tiny_value(struct tiny tiny, const char *key, size_t *bytes_out)
{
    struct gguf *gguf;
    struct err err = ERR_INIT;
    CHECK_MSG(!gguf_open_memory(tiny.data, tiny.bytes, "tiny", &gguf, &err), "%s", err.message);
    const struct gguf_kv *kv = gguf_kv_find(gguf, key);
    CHECK_MSG(kv, "%s is missing", key);
    uint8_t *value = tiny.data + (kv->value - tiny.data);
    *bytes_out = (size_t)(kv->end - kv->value);
    gguf_close(gguf);
    return value;
}

static inline struct model_file *tiny_open(struct tiny tiny)
{
    struct model_file *model;
    struct err err = ERR_INIT;
    CHECK_MSG(!model_open_memory(tiny.data, tiny.bytes, "tiny", &model, &err), "%s", err.message);
    return model;
}

/* A generator for tests (xorshift64*), the same everywhere. */
static inline uint64_t test_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

#endif
