/* UTF-8 as in RFC 3629: shortest forms only, no surrogates, nothing above U+10FFFF. Pure. */
#ifndef BATON_BASE_UTF8_H
#define BATON_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the longest prefix made of whole, valid characters. Equal to `bytes` when all of it is valid. */
size_t utf8_valid_prefix(const void *text, size_t bytes);

static inline bool utf8_valid(const void *text, size_t bytes)
{
    return utf8_valid_prefix(text, bytes) == bytes;
}

/* How the character at `text` stands, given `bytes` of it:
 *   > 0  that many bytes form one whole character, its code point in *code_point_out
 *   0    a valid beginning that needs more bytes
 *   < 0  invalid; -value bytes are to be replaced by one U+FFFD (the maximal subpart, Unicode 15, 3.9, D93b) */
int utf8_decode(const void *text, size_t bytes, uint32_t *code_point_out);
/* Writes 1 to 4 bytes and returns how many. */
int utf8_encode(uint32_t code_point, uint8_t out[4]);

#endif
