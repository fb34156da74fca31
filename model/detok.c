/* See detok.h. */
#include "model/detok.h"

#include <assert.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "model/tokenizer.h"

static const char replacement[3] = {(char)0xef, (char)0xbf, (char)0xbd}; /* U+FFFD */

size_t detok_push_bytes_max(const struct tokenizer *tokenizer)
{
    return 3 * (tokenizer_piece_bytes_max(tokenizer) + sizeof((struct detok *)0)->held);
}

/* Takes one byte, which ends a character, belongs to one, or shows that what is held cannot become one. Returns the bytes
 * written. At most 3 a byte: a byte that breaks a held character is looked at again, but then nothing is held. */
static size_t push_byte(struct detok *detok, uint8_t byte, char *out)
{
    size_t written = 0;
    for (;;) {
        uint8_t bytes[4];
        uint32_t code_point;
        size_t count = detok->held_bytes;
        memcpy(bytes, detok->held, count);
        bytes[count++] = byte;
        int length = utf8_decode(bytes, count, &code_point);
        if (length > 0) {
            memcpy(out + written, bytes, count);
            detok->held_bytes = 0;
            return written + count;
        }
        if (length == 0) {
            detok->held[detok->held_bytes++] = byte;
            return written;
        }
        memcpy(out + written, replacement, sizeof replacement);
        written += sizeof replacement;
        /* The held bytes were a valid beginning, so they are the maximal subpart; alone, the byte itself is. */
        bool again = detok->held_bytes > 0;
        detok->held_bytes = 0;
        if (!again)
            return written;
    }
}

size_t detok_push(struct detok *detok, const struct tokenizer *tokenizer, uint32_t id, char *out)
{
    const char *piece;
    size_t bytes, written = 0;
    if (tokenizer_is_special(tokenizer, id) || !tokenizer_piece(tokenizer, id, &piece, &bytes))
        return 0;
    for (size_t i = 0; i < bytes; i++)
        written += push_byte(detok, (uint8_t)piece[i], out + written);
    return written;
}

size_t detok_flush(struct detok *detok, char out[DETOK_FLUSH_BYTES])
{
    if (!detok->held_bytes)
        return 0;
    detok->held_bytes = 0;
    memcpy(out, replacement, sizeof replacement);
    return sizeof replacement;
}

void detok_text(const struct tokenizer *tokenizer, const uint32_t *ids, size_t count,
                struct buf *out)
{
    struct detok detok = DETOK_INIT;
    size_t room = detok_push_bytes_max(tokenizer);
    for (size_t i = 0; i < count && buf_reserve(out, room); i++)
        out->bytes += detok_push(&detok, tokenizer, ids[i], (char *)out->data + out->bytes);
    if (buf_reserve(out, DETOK_FLUSH_BYTES))
        out->bytes += detok_flush(&detok, (char *)out->data + out->bytes);
}
