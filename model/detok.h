/* Incremental detokenizer: turns a stream of ids into text, whole valid UTF-8 only.
 *
 * A character cut by a token boundary is held back until its last byte comes; bytes that cannot
 * become a character turn into U+FFFD, one for each maximal subpart (Unicode 15, 3.9, D93b); what
 * is held at the end is flushed the same way. Special tokens have no text (they neither print nor
 * break a held character). The text is a pure function of the ids, whatever the grouping: all
 * pushes and the flush put together give the same bytes.
 *
 * The state is a plain copyable value; a router keeps one a stream, and rebuilds it from the ids
 * after a replay. Owner: the stream's thread. */
#ifndef BATON_MODEL_DETOK_H
#define BATON_MODEL_DETOK_H

#include <stddef.h>
#include <stdint.h>

struct tokenizer;
struct buf;

struct detok {
    uint8_t held[3]; /* the beginning of a character */
    uint8_t held_bytes;
};
#define DETOK_INIT ((struct detok){0})

enum { DETOK_FLUSH_BYTES = 3 };

/* Room that one push may need: 3 bytes for every byte of the longest piece and of what is held. */
size_t detok_push_bytes_max(const struct tokenizer *tokenizer);
/* Writes the text that token `id` completes to `out` (room: detok_push_bytes_max) and returns its
 * bytes, 0 for specials and ids outside the vocabulary. */
size_t detok_push(struct detok *detok, const struct tokenizer *tokenizer, uint32_t id, char *out);
/* The end of the stream: writes what is still owed (0 or 3 bytes) and empties the state. */
size_t detok_flush(struct detok *detok, char out[DETOK_FLUSH_BYTES]);
/* All at once: appends the text of `count` ids, flush included. `out->failed` when there is no
 * memory. */
void detok_text(const struct tokenizer *tokenizer, const uint32_t *ids, size_t count,
                struct buf *out);

#endif
