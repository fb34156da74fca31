/* The versions of what programs say to each other. One number covers the messages of node.proto and the frames of the KV
 * hand-off: a program speaks every version from WIRE_OLDEST to WIRE_NEWEST, so that in a rolling upgrade old and new ones
 * serve together, each pair in the newest version that both speak.
 *
 *     node ── Register{wire_min, wire_max} ──▶ router: Welcome{wire}, or Refused{field} when nothing is common
 *     router ── Peers{wire of each pair} ──▶ nodes: the frames of that link carry it; a pair with nothing common does not meet
 *
 *     version   what it brought
 *     1         the first
 *     2         DONE says why D gave up; GONE says that P's own bytes fail their checksum; Link.epoch; caches that say what
 *               they hold, serving and fetching of cached pages, hand-over at a drain
 *     3         messages between router and node are numbered and carry a checksum (proto/seal.h); frames as before
 *
 * A message of an unknown kind and a field of an unknown number are ignored on a stream (protobuf keeps neither from being
 * read by older programs); a KV frame of an unknown type or of another version than its link's is dropped and counted.
 * Pure. */
#ifndef BATON_BASE_WIRE_VERSION_H
#define BATON_BASE_WIRE_VERSION_H

#include <stdint.h>

enum { WIRE_OLDEST = 1, WIRE_SEALED = 3, WIRE_NEWEST = 3 };

struct wire_range {
    uint32_t min, max;
};

/* What this program speaks, no newer than `newest_allowed` (0: no such limit). */
static inline struct wire_range wire_range_own(uint32_t newest_allowed)
{
    struct wire_range range = {WIRE_OLDEST, WIRE_NEWEST};
    if (newest_allowed && newest_allowed < range.max)
        range.max = newest_allowed;
    return range;
}

/* The newest version that both speak; 0: none. */
static inline uint32_t wire_common(struct wire_range a, struct wire_range b)
{
    uint32_t min = a.min > b.min ? a.min : b.min;
    uint32_t max = a.max < b.max ? a.max : b.max;
    return min <= max ? max : 0;
}

#endif
