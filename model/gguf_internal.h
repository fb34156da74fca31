/* What gguf.c (parsing) and gguf_values.c (reading values) share.
 * Owner: as gguf.h. */
#ifndef BATON_MODEL_GGUF_INTERNAL_H
#define BATON_MODEL_GGUF_INTERNAL_H

#include "model/gguf.h"

struct gguf {
    char *name;
    const uint8_t *base;
    size_t bytes;
    bool mapped;
    uint32_t version, alignment;
    struct gguf_kv *kvs;
    struct gguf_tensor *tensors;
    size_t kv_count, tensor_count;
    uint32_t *kv_order,
        *tensor_order; /* indices in order of key and name, for finding and for duplicates */
};

enum { GGUF_PRINT_BYTES = 96 };
/* `text` for an error message: cut, terminated, without control characters. Returns `out`. */
const char *gguf_text_print(struct gguf_text text, char out[GGUF_PRINT_BYTES]);
/* Bytes of one value of a fixed-size type; 0 for text, arrays and unknown types. */
uint32_t gguf_type_bytes(uint32_t type);
int gguf_text_compare(struct gguf_text a, struct gguf_text b);

/* Little-endian reads of unaligned bytes. */
uint16_t gguf_load_u16(const uint8_t *at);
uint32_t gguf_load_u32(const uint8_t *at);
uint64_t gguf_load_u64(const uint8_t *at);

#endif
