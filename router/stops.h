/* Finds the first of several stop strings in a text that arrives in pieces. Byte by byte, one Knuth-Morris-Pratt automaton
 * a string (Knuth, Morris, Pratt 1977): so the result does not depend on where the text was cut.
 *
 * The first match is the one that is complete first; of those complete at the same byte, the longest.
 *
 * Pure. Owner: the loop thread. */
#ifndef BATON_ROUTER_STOPS_H
#define BATON_ROUTER_STOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stops_pattern {
    char *text; /* NUL-terminated, without NULs inside */
    uint32_t bytes;
    uint32_t matched; /* bytes of it that the text fed so far ends with */
    uint32_t *fail;   /* [bytes]: the longest proper border of text[0, i] */
};

struct stops {
    struct stops_pattern *patterns;
    uint32_t count;
};

/* Copies the strings; none may be empty. False without memory. */
bool stops_init(struct stops *stops, const char *const *strings, uint32_t count);
void stops_finish(struct stops *stops);
/* Feeds text until a match is complete. Returns the bytes fed: all of them without a match; else those up to the end of the
 * match, whose index is then in *match_out (UINT32_MAX otherwise). */
size_t stops_feed(struct stops *stops, const char *text, size_t bytes, uint32_t *match_out);
/* Bytes at the end of the text fed so far that a match may begin with. */
uint32_t stops_partial(const struct stops *stops);

#endif
