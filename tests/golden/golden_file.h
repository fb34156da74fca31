/* Reads the golden files (formats: README.md): little endian, a cursor that fails the test at the end of the file. */
#ifndef BATON_TESTS_GOLDEN_GOLDEN_FILE_H
#define BATON_TESTS_GOLDEN_GOLDEN_FILE_H

#include "tests/test.h"

struct golden {
    uint8_t *data;
    size_t bytes, at;
};

/* GOLDEN_FOLDER is defined by the build. */
static inline struct golden golden_open(const char *name, const char *magic)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", GOLDEN_FOLDER, name);
    FILE *file = fopen(path, "rb");
    CHECK_MSG(file, "%s cannot be opened", path);
    fseek(file, 0, SEEK_END);
    struct golden golden = {.bytes = (size_t)ftell(file)};
    rewind(file);
    golden.data = malloc(golden.bytes);
    CHECK(golden.data && fread(golden.data, 1, golden.bytes, file) == golden.bytes);
    fclose(file);
    CHECK_MSG(golden.bytes >= 8 && !memcmp(golden.data, magic, 8), "%s is not %s", path, magic);
    golden.at = 8;
    return golden;
}

static inline const uint8_t *golden_bytes(struct golden *golden, size_t bytes)
{
    CHECK_MSG(bytes <= golden->bytes - golden->at, "the golden file ends early");
    golden->at += bytes;
    return golden->data + golden->at - bytes;
}

static inline uint32_t golden_u32(struct golden *golden)
{
    uint32_t value;
    memcpy(&value, golden_bytes(golden, 4), 4);
    return value;
}

static inline float golden_f32(struct golden *golden)
{
    float value;
    memcpy(&value, golden_bytes(golden, 4), 4);
    return value;
}

/* `count` 16-bit ids, widened; the caller frees. */
static inline uint32_t *golden_ids(struct golden *golden, size_t count)
{
    const uint8_t *at = golden_bytes(golden, 2 * count);
    uint32_t *ids = malloc((count ? count : 1) * sizeof *ids);
    CHECK(ids);
    for (size_t i = 0; i < count; i++)
        ids[i] = (uint32_t)(at[2 * i] | at[2 * i + 1] << 8);
    return ids;
}

static inline void golden_finish(struct golden *golden)
{
    CHECK_MSG(golden->at == golden->bytes, "the golden file has bytes left");
    free(golden->data);
}

#endif
