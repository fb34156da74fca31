/* See buf.h. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool buf_reserve(struct buf *buf, size_t more)
{
    if (buf->failed)
        return false;
    if (more <= buf->capacity - buf->bytes)
        return true;
    size_t capacity = buf->capacity ? buf->capacity : 256;
    while (capacity - buf->bytes < more) {
        if (capacity > SIZE_MAX / 2) {
            buf->failed = true;
            return false;
        }
        capacity *= 2;
    }
    uint8_t *data = realloc(buf->data, capacity);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

void buf_append(struct buf *buf, const void *data, size_t bytes)
{
    if (bytes && buf_reserve(buf, bytes)) {
        memcpy(buf->data + buf->bytes, data, bytes);
        buf->bytes += bytes;
    }
}

void buf_append_text(struct buf *buf, const char *text)
{
    buf_append(buf, text, strlen(text));
}

void buf_printf(struct buf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0 && buf_reserve(buf, (size_t)n + 1)) {
        vsnprintf((char *)buf->data + buf->bytes, (size_t)n + 1, format, again);
        buf->bytes += (size_t)n;
    }
    va_end(again);
}

void buf_consume(struct buf *buf, size_t bytes)
{
    if (bytes == 0)
        return; /* an empty buffer has no memory to move */
    memmove(buf->data, buf->data + bytes, buf->bytes - bytes);
    buf->bytes -= bytes;
}

void buf_clear(struct buf *buf)
{
    buf->bytes = 0;
    buf->failed = false;
}

void buf_finish(struct buf *buf)
{
    free(buf->data);
    *buf = BUF_INIT;
}
