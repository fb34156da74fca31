/* See gguf.h. The file is parsed front to back by a cursor that can only move as far as bytes remain; whatever a field claims
 * is compared with them by subtraction or division, so that nothing overflows. */
#include "model/gguf_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    /* The shortest possible entries: a key or name of one byte. */
    KV_BYTES_MIN = 8 + 1 + 4 + 1,
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8,
    /* Far above any real file; they bound the memory of the indices. */
    KV_COUNT_MAX = 65536,
    TENSOR_COUNT_MAX = 65536,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MIN = 8,
    ALIGNMENT_MAX = 1 << 20,
};

struct cursor {
    const uint8_t *base, *at, *end;
};

static size_t cursor_left(const struct cursor *cursor)
{
    return (size_t)(cursor->end - cursor->at);
}

static enum status take(struct cursor *cursor, size_t bytes, const char *what,
                        const uint8_t **at_out, struct err *err)
{
    if (cursor_left(cursor) < bytes)
        return err_set(
            err, STATUS_FORMAT, "%s needs %zu bytes at offset %zu, past the end of the file (%zu)",
            what, bytes, (size_t)(cursor->at - cursor->base), (size_t)(cursor->end - cursor->base));
    *at_out = cursor->at;
    cursor->at += bytes;
    return STATUS_OK;
}

static enum status take_u32(struct cursor *cursor, const char *what, uint32_t *value_out,
                            struct err *err)
{
    const uint8_t *at = NULL;
    enum status status = take(cursor, 4, what, &at, err);
    if (status == STATUS_OK)
        *value_out = gguf_load_u32(at);
    return status;
}

static enum status take_u64(struct cursor *cursor, const char *what, uint64_t *value_out,
                            struct err *err)
{
    const uint8_t *at = NULL;
    enum status status = take(cursor, 8, what, &at, err);
    if (status == STATUS_OK)
        *value_out = gguf_load_u64(at);
    return status;
}

static enum status take_text(struct cursor *cursor, const char *what, struct gguf_text *text_out,
                             struct err *err)
{
    uint64_t bytes;
    enum status status = take_u64(cursor, what, &bytes, err);
    if (status)
        return status;
    if (bytes > cursor_left(cursor))
        return err_set(err, STATUS_FORMAT, "%s of %llu bytes, but only %zu remain in the file",
                       what, (unsigned long long)bytes, cursor_left(cursor));
    *text_out = (struct gguf_text){(const char *)cursor->at, (size_t)bytes};
    cursor->at += bytes;
    return STATUS_OK;
}

/* A name or key: with limits, since it is held in indices and printed. */
static enum status take_name(struct cursor *cursor, const char *what, size_t bytes_max,
                             struct gguf_text *text_out, struct err *err)
{
    struct gguf_text text;
    enum status status = take_text(cursor, what, &text, err);
    if (status)
        return status;
    if (!text.bytes || text.bytes > bytes_max)
        return err_set(err, STATUS_FORMAT, "%s of %zu bytes (1 to %zu)", what, text.bytes,
                       bytes_max);
    *text_out = text;
    return STATUS_OK;
}

static enum status skip_array(struct cursor *cursor, struct err *err)
{
    uint32_t type;
    uint64_t count;
    enum status status = take_u32(cursor, "the array's type", &type, err);
    if (status == STATUS_OK)
        status = take_u64(cursor, "the array's count", &count, err);
    if (status)
        return status;
    size_t left = cursor_left(cursor);
    if (type == GGUF_TEXT) {
        if (count > left / 8)
            return err_set(err, STATUS_FORMAT,
                           "an array of %llu texts, but only %zu bytes remain in the file",
                           (unsigned long long)count, left);
        struct gguf_text text;
        for (uint64_t i = 0; i < count; i++) {
            status = take_text(cursor, "text", &text, err);
            if (status) {
                err_wrap(err, "element %llu", (unsigned long long)i);
                return status;
            }
        }
        return STATUS_OK;
    }
    uint32_t element_bytes = gguf_type_bytes(type);
    if (!element_bytes)
        return err_set(err, STATUS_FORMAT, "an array of type %u (%s)", type,
                       gguf_type_name((enum gguf_type)type));
    if (count > left / element_bytes)
        return err_set(err, STATUS_FORMAT,
                       "an array of %llu elements of %u bytes, but only %zu bytes remain",
                       (unsigned long long)count, element_bytes, left);
    cursor->at += count * element_bytes;
    return STATUS_OK;
}

static enum status parse_value(struct cursor *cursor, struct gguf_kv *kv, struct err *err)
{
    uint32_t type;
    enum status status = take_u32(cursor, "the type", &type, err);
    if (status)
        return status;
    kv->type = (enum gguf_type)type;
    kv->value = cursor->at;
    if (type == GGUF_TEXT) {
        struct gguf_text text;
        status = take_text(cursor, "text", &text, err);
    } else if (type == GGUF_ARRAY) {
        status = skip_array(cursor, err);
    } else if (gguf_type_bytes(type)) {
        const uint8_t *at = NULL;
        status = take(cursor, gguf_type_bytes(type), "the value", &at, err);
        if (status == STATUS_OK && type == GGUF_BOOL && *at > 1)
            return err_set(err, STATUS_FORMAT, "a bool of %u (0 or 1)", *at);
    } else {
        return err_set(err, STATUS_FORMAT, "unknown value type %u", type);
    }
    kv->end = cursor->at;
    return status;
}

static int order_kvs(const void *a, const void *b, void *context)
{
    const struct gguf *gguf = context;
    return gguf_text_compare(gguf->kvs[*(const uint32_t *)a].key,
                             gguf->kvs[*(const uint32_t *)b].key);
}

static int order_tensors(const void *a, const void *b, void *context)
{
    const struct gguf *gguf = context;
    return gguf_text_compare(gguf->tensors[*(const uint32_t *)a].name,
                             gguf->tensors[*(const uint32_t *)b].name);
}

/* calloc that gives a block for 0 elements too, so that NULL means "no memory". */
static void *array_allocate(size_t count, size_t bytes)
{
    return calloc(count ? count : 1, bytes);
}

static enum status parse_kvs(struct gguf *gguf, struct cursor *cursor, struct err *err)
{
    char print[GGUF_PRINT_BYTES];
    gguf->kvs = array_allocate(gguf->kv_count, sizeof *gguf->kvs);
    gguf->kv_order = array_allocate(gguf->kv_count, sizeof *gguf->kv_order);
    if (!gguf->kvs || !gguf->kv_order)
        return err_set(err, STATUS_MEMORY, "no memory for %zu keys", gguf->kv_count);
    for (size_t i = 0; i < gguf->kv_count; i++) {
        struct gguf_kv *kv = &gguf->kvs[i];
        enum status status = take_name(cursor, "key", GGUF_KEY_BYTES_MAX, &kv->key, err);
        if (status) {
            err_wrap(err, "key %zu of %zu", i, gguf->kv_count);
            return status;
        }
        status = parse_value(cursor, kv, err);
        if (status) {
            err_wrap(err, "%s", gguf_text_print(kv->key, print));
            return status;
        }
        gguf->kv_order[i] = (uint32_t)i;
    }
    qsort_r(gguf->kv_order, gguf->kv_count, sizeof *gguf->kv_order, order_kvs, gguf);
    for (size_t i = 1; i < gguf->kv_count; i++)
        if (!order_kvs(&gguf->kv_order[i - 1], &gguf->kv_order[i], gguf))
            return err_set(err, STATUS_FORMAT, "%s: the key is there twice",
                           gguf_text_print(gguf->kvs[gguf->kv_order[i]].key, print));
    return STATUS_OK;
}

static enum status parse_alignment(struct gguf *gguf, struct err *err)
{
    gguf->alignment = ALIGNMENT_DEFAULT;
    if (!gguf_has(gguf, "general.alignment"))
        return STATUS_OK;
    uint32_t alignment;
    enum status status = gguf_get_u32(gguf, "general.alignment", &alignment, err);
    if (status)
        return status;
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return err_set(err, STATUS_FORMAT,
                       "general.alignment: %u is not a power of two from %d to %d", alignment,
                       ALIGNMENT_MIN, ALIGNMENT_MAX);
    gguf->alignment = alignment;
    return STATUS_OK;
}

/* The tensor's own fields; where its data lies is checked when the start of the data is known. */
static enum status parse_tensor(struct cursor *cursor, struct gguf_tensor *tensor, struct err *err)
{
    enum status status = take_u32(cursor, "the number of dimensions", &tensor->dims, err);
    if (status)
        return status;
    if (!tensor->dims || tensor->dims > GGUF_DIMS_MAX)
        return err_set(err, STATUS_FORMAT, "%u dimensions (1 to %d)", tensor->dims, GGUF_DIMS_MAX);
    uint64_t values = 1;
    for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++) {
        tensor->shape[i] = 1;
        if (i >= tensor->dims)
            continue;
        status = take_u64(cursor, "a dimension", &tensor->shape[i], err);
        if (status)
            return status;
        if (!tensor->shape[i])
            return err_set(err, STATUS_FORMAT, "dimension %u is 0", i);
        if (__builtin_mul_overflow(values, tensor->shape[i], &values) || values > INT64_MAX)
            return err_set(err, STATUS_FORMAT, "dimension %u (%llu): too many values", i,
                           (unsigned long long)tensor->shape[i]);
    }
    status = take_u32(cursor, "the type", &tensor->type, err);
    if (status == STATUS_OK)
        status = take_u64(cursor, "the offset", &tensor->offset, err);
    if (status || !tensor_type_supported(tensor->type))
        return status;

    uint32_t block_values = tensor_type_block_values(tensor->type);
    if (tensor->shape[0] % block_values)
        return err_set(err, STATUS_FORMAT, "a row of %llu values is not whole %s blocks of %u",
                       (unsigned long long)tensor->shape[0], tensor_type_name(tensor->type),
                       block_values);
    if (__builtin_mul_overflow(tensor->shape[0] / block_values,
                               (uint64_t)tensor_type_block_bytes(tensor->type),
                               &tensor->row_bytes) ||
        __builtin_mul_overflow(tensor->row_bytes, values / tensor->shape[0], &tensor->bytes))
        return err_set(err, STATUS_FORMAT, "the size of %llu values overflows",
                       (unsigned long long)values);
    return STATUS_OK;
}

/* `start` is where the data section begins. */
static enum status place_tensor(const struct gguf *gguf, struct gguf_tensor *tensor, size_t start,
                                struct err *err)
{
    if (tensor->offset % gguf->alignment)
        return err_set(err, STATUS_FORMAT, "offset %llu is not a multiple of the alignment (%u)",
                       (unsigned long long)tensor->offset, gguf->alignment);
    if (start > gguf->bytes || tensor->offset > gguf->bytes - start)
        return err_set(err, STATUS_FORMAT, "offset %llu is past the end of the file (%zu)",
                       (unsigned long long)(tensor->offset + start < start
                                                ? UINT64_MAX
                                                : tensor->offset + start),
                       gguf->bytes);
    tensor->offset += start;
    if (!tensor_type_supported(tensor->type))
        return STATUS_OK;
    if (tensor->bytes > gguf->bytes - tensor->offset)
        return err_set(
            err, STATUS_FORMAT, "%llu bytes at offset %llu reach past the end of the file (%zu)",
            (unsigned long long)tensor->bytes, (unsigned long long)tensor->offset, gguf->bytes);
    tensor->data = gguf->base + tensor->offset;
    return STATUS_OK;
}

static enum status parse_tensors(struct gguf *gguf, struct cursor *cursor, struct err *err)
{
    char print[GGUF_PRINT_BYTES];
    gguf->tensors = array_allocate(gguf->tensor_count, sizeof *gguf->tensors);
    gguf->tensor_order = array_allocate(gguf->tensor_count, sizeof *gguf->tensor_order);
    if (!gguf->tensors || !gguf->tensor_order)
        return err_set(err, STATUS_MEMORY, "no memory for %zu tensors", gguf->tensor_count);
    enum status status;
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        struct gguf_tensor *tensor = &gguf->tensors[i];
        status = take_name(cursor, "name", GGUF_NAME_BYTES_MAX, &tensor->name, err);
        if (status) {
            err_wrap(err, "tensor %zu of %zu", i, gguf->tensor_count);
            return status;
        }
        status = parse_tensor(cursor, tensor, err);
        if (status) {
            err_wrap(err, "tensor %s", gguf_text_print(tensor->name, print));
            return status;
        }
        gguf->tensor_order[i] = (uint32_t)i;
    }
    size_t start = (size_t)(cursor->at - cursor->base);
    start += (gguf->alignment - start % gguf->alignment) % gguf->alignment;
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        status = place_tensor(gguf, &gguf->tensors[i], start, err);
        if (status) {
            err_wrap(err, "tensor %s", gguf_text_print(gguf->tensors[i].name, print));
            return status;
        }
    }
    qsort_r(gguf->tensor_order, gguf->tensor_count, sizeof *gguf->tensor_order, order_tensors,
            gguf);
    for (size_t i = 1; i < gguf->tensor_count; i++)
        if (!order_tensors(&gguf->tensor_order[i - 1], &gguf->tensor_order[i], gguf))
            return err_set(err, STATUS_FORMAT, "tensor %s: the name is there twice",
                           gguf_text_print(gguf->tensors[gguf->tensor_order[i]].name, print));
    return STATUS_OK;
}

static enum status parse_count(struct cursor *cursor, const char *what, size_t entry_bytes_min,
                               size_t count_max, size_t *count_out, struct err *err)
{
    uint64_t count;
    enum status status = take_u64(cursor, what, &count, err);
    if (status)
        return status;
    if (count > count_max)
        return err_set(err, STATUS_FORMAT, "%s %llu is over the limit (%zu)", what,
                       (unsigned long long)count, count_max);
    if (count > cursor_left(cursor) / entry_bytes_min)
        return err_set(err, STATUS_FORMAT, "%s %llu needs more bytes than remain in the file (%zu)",
                       what, (unsigned long long)count, cursor_left(cursor));
    *count_out = (size_t)count;
    return STATUS_OK;
}

static enum status parse(struct gguf *gguf, struct err *err)
{
    struct cursor cursor = {gguf->base, gguf->base, gguf->base + gguf->bytes};
    const uint8_t *magic = NULL;
    enum status status = take(&cursor, 4, "the magic", &magic, err);
    if (status)
        return status;
    if (memcmp(magic, "GGUF", 4))
        return err_set(err, STATUS_FORMAT, "not a GGUF file (begins with %02x %02x %02x %02x)",
                       magic[0], magic[1], magic[2], magic[3]);
    status = take_u32(&cursor, "the version", &gguf->version, err);
    if (status)
        return status;
    if (gguf->version >= 1 << 16 && !(gguf->version & 0xffff))
        return err_set(err, STATUS_FORMAT, "a big-endian GGUF file (little endian is supported)");
    if (gguf->version != 2 && gguf->version != 3)
        return err_set(err, STATUS_FORMAT, "GGUF version %u (2 and 3 are supported)",
                       gguf->version);
    status = parse_count(&cursor, "the tensor count", TENSOR_BYTES_MIN, TENSOR_COUNT_MAX,
                         &gguf->tensor_count, err);
    if (status == STATUS_OK)
        status =
            parse_count(&cursor, "the key count", KV_BYTES_MIN, KV_COUNT_MAX, &gguf->kv_count, err);
    if (status == STATUS_OK)
        status = parse_kvs(gguf, &cursor, err);
    if (status == STATUS_OK)
        status = parse_alignment(gguf, err);
    if (status == STATUS_OK)
        status = parse_tensors(gguf, &cursor, err);
    return status;
}

static enum status open_bytes(const void *data, size_t bytes, bool mapped, const char *name,
                              struct gguf **gguf_out, struct err *err)
{
    struct gguf *gguf = calloc(1, sizeof *gguf);
    char *copy = strdup(name);
    if (!gguf || !copy) {
        free(gguf);
        free(copy);
        if (mapped)
            munmap((void *)data, bytes);
        return err_set(err, STATUS_MEMORY, "%s: no memory", name);
    }
    gguf->name = copy;
    gguf->base = data;
    gguf->bytes = bytes;
    gguf->mapped = mapped;
    enum status status = parse(gguf, err);
    if (status) {
        err_wrap(err, "%s", name);
        gguf_close(gguf);
        return status;
    }
    *gguf_out = gguf;
    return STATUS_OK;
}

enum status gguf_open(const char *path, struct gguf **gguf_out, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, STATUS_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat stat;
    if (fstat(fd, &stat)) {
        int error = errno;
        close(fd);
        return err_set(err, STATUS_IO, "%s: cannot read: %s", path, strerror(error));
    }
    if (!S_ISREG(stat.st_mode)) {
        close(fd);
        return err_set(err, STATUS_IO, "%s: not a regular file", path);
    }
    if (!stat.st_size) {
        close(fd);
        return err_set(err, STATUS_FORMAT, "%s: the file is empty", path);
    }
    void *data = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int error = errno;
    close(fd);
    if (data == MAP_FAILED)
        return err_set(err, STATUS_IO, "%s: cannot map: %s", path, strerror(error));
    return open_bytes(data, (size_t)stat.st_size, true, path, gguf_out, err);
}

enum status gguf_open_memory(const void *data, size_t bytes, const char *name,
                             struct gguf **gguf_out, struct err *err)
{
    return open_bytes(data, bytes, false, name, gguf_out, err);
}

void gguf_close(struct gguf *gguf)
{
    if (!gguf)
        return;
    if (gguf->mapped)
        munmap((void *)gguf->base, gguf->bytes);
    free(gguf->kvs);
    free(gguf->kv_order);
    free(gguf->tensors);
    free(gguf->tensor_order);
    free(gguf->name);
    free(gguf);
}
