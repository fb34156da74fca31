/* A growable run of bytes, for cold paths and for messages being built. A failed allocation sets `failed` and makes every
 * later append a no-op, so that a builder checks once, at the end.
 * Owner: one thread at a time. */
#ifndef BATON_BASE_BUF_H
#define BATON_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t bytes, capacity;
    bool failed;
};

#define BUF_INIT ((struct buf){0})

/* Makes room for `more` bytes; false when there is no memory. */
bool buf_reserve(struct buf *buf, size_t more);
void buf_append(struct buf *buf, const void *data, size_t bytes);
void buf_append_text(struct buf *buf, const char *text);
void buf_printf(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Drops the first `bytes`. */
void buf_consume(struct buf *buf, size_t bytes);
void buf_clear(struct buf *buf); /* keeps the memory */
void buf_finish(struct buf *buf);

#endif
