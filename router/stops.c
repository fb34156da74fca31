/* See stops.h. */
#include "router/stops.h"

#include <stdlib.h>
#include <string.h>

static bool pattern_init(struct stops_pattern *pattern, const char *text)
{
    size_t bytes = strlen(text);
    pattern->text = malloc(bytes + 1);
    pattern->fail = malloc(bytes * sizeof *pattern->fail);
    if (!pattern->text || !pattern->fail)
        return false;
    memcpy(pattern->text, text, bytes + 1);
    pattern->bytes = (uint32_t)bytes;
    uint32_t border = 0;
    pattern->fail[0] = 0;
    for (uint32_t i = 1; i < pattern->bytes; i++) {
        while (border && text[i] != text[border])
            border = pattern->fail[border - 1];
        if (text[i] == text[border])
            border++;
        pattern->fail[i] = border;
    }
    return true;
}

bool stops_init(struct stops *stops, const char *const *strings, uint32_t count)
{
    *stops = (struct stops){.count = count};
    if (!count)
        return true;
    stops->patterns = calloc(count, sizeof *stops->patterns);
    if (!stops->patterns) {
        stops->count = 0;
        return false;
    }
    for (uint32_t i = 0; i < count; i++)
        if (!pattern_init(&stops->patterns[i], strings[i])) {
            stops_finish(stops);
            return false;
        }
    return true;
}

void stops_finish(struct stops *stops)
{
    for (uint32_t i = 0; i < stops->count; i++) {
        free(stops->patterns[i].text);
        free(stops->patterns[i].fail);
    }
    free(stops->patterns);
    *stops = (struct stops){0};
}

size_t stops_feed(struct stops *stops, const char *text, size_t bytes, uint32_t *match_out)
{
    *match_out = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        for (uint32_t k = 0; k < stops->count; k++) {
            struct stops_pattern *pattern = &stops->patterns[k];
            while (pattern->matched && pattern->text[pattern->matched] != text[i])
                pattern->matched = pattern->fail[pattern->matched - 1];
            if (pattern->text[pattern->matched] == text[i])
                pattern->matched++;
            if (pattern->matched == pattern->bytes &&
                (*match_out == UINT32_MAX || pattern->bytes > stops->patterns[*match_out].bytes))
                *match_out = k;
        }
        if (*match_out != UINT32_MAX)
            return i + 1;
    }
    return bytes;
}

uint32_t stops_partial(const struct stops *stops)
{
    uint32_t longest = 0;
    for (uint32_t k = 0; k < stops->count; k++)
        if (stops->patterns[k].matched > longest)
            longest = stops->patterns[k].matched;
    return longest;
}
