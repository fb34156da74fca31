/* See pretokenizer.h. */
#include "model/pretokenizer.h"

#include <assert.h>
#include <stdbool.h>

#include "base/utf8.h"
#include "model/pretokenizer_table.h"

static bool in_ranges(const uint32_t (*ranges)[2], size_t count, uint32_t code_point)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle][1] < code_point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[low][0] <= code_point;
}

#define IN_RANGES(ranges, code_point) \
    in_ranges((ranges), sizeof(ranges) / sizeof((ranges)[0]), (code_point))

enum char_class pretokenizer_class(uint32_t code_point)
{
    if (code_point < 0x80) {
        uint32_t lower = code_point | 0x20;
        if (lower >= 'a' && lower <= 'z')
            return CHAR_LETTER;
        if (code_point >= '0' && code_point <= '9')
            return CHAR_NUMBER;
        return code_point == ' ' || (code_point >= '\t' && code_point <= '\r') ? CHAR_SPACE
                                                                               : CHAR_OTHER;
    }
    if (IN_RANGES(letters, code_point))
        return CHAR_LETTER;
    if (IN_RANGES(numbers, code_point))
        return CHAR_NUMBER;
    return IN_RANGES(spaces, code_point) ? CHAR_SPACE : CHAR_OTHER;
}

struct character {
    enum char_class class;
    size_t bytes;
};

static struct character character_at(const char *text, size_t bytes)
{
    uint32_t code_point;
    int length = utf8_decode(text, bytes, &code_point);
    assert(length > 0); /* the caller has checked the text */
    return (struct character){pretokenizer_class(code_point), (size_t)length};
}

/* Where the run of `class` that continues at `at` ends. */
static size_t run_end(const char *text, size_t bytes, size_t at, enum char_class class)
{
    while (at < bytes) {
        struct character next = character_at(text + at, bytes - at);
        if (next.class != class)
            break;
        at += next.bytes;
    }
    return at;
}

/* Bytes of 's 't 're 've 'm 'll 'd at the start, else 0. */
static size_t contraction(const char *text, size_t bytes)
{
    if (bytes < 2 || text[0] != '\'')
        return 0;
    char a = text[1], b = bytes > 2 ? text[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+: a run of spaces leaves its last one to the word behind it. At a number the piece ends (numbers are split
 * off first), so there the run stays whole, as at the end of the text. */
static size_t spaces_end(const char *text, size_t bytes)
{
    size_t at = 0, last = 0;
    while (at < bytes) {
        struct character next = character_at(text + at, bytes - at);
        if (next.class == CHAR_NUMBER)
            return at;
        if (next.class != CHAR_SPACE)
            return last ? last : at;
        last = at;
        at += next.bytes;
    }
    return at;
}

size_t pretokenizer_smollm_next(const char *text, size_t bytes)
{
    struct character first = character_at(text, bytes);
    if (first.class == CHAR_NUMBER)
        return first.bytes;
    size_t short_form = contraction(text, bytes);
    if (short_form)
        return short_form;
    if (first.class != CHAR_SPACE)
        return run_end(text, bytes, first.bytes, first.class);
    if (text[0] == ' ' && bytes > 1) {
        enum char_class next = character_at(text + 1, bytes - 1).class;
        if (next == CHAR_LETTER || next == CHAR_OTHER)
            return run_end(text, bytes, 1, next);
    }
    return spaces_end(text, bytes);
}
