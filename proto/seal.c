/* See seal.h. */
#include "proto/seal.h"

#include "base/checksum.h"

/* as node.proto has them, for both kinds of message: number, fixed32, field 14; checksum, fixed64, field 15 */
enum { NUMBER_TAG = 14 << 3 | 5, CHECKSUM_TAG = 15 << 3 | 1 };
enum { NUMBER_AT = 1, CHECKSUM_TAG_AT = 5, CHECKSUM_AT = 6 }; /* in the seal */

static void put(uint8_t *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *from, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << 8 * i;
    return value;
}

void seal_put(struct seal *seal, uint8_t *data, size_t bytes)
{
    if (!seal->on)
        return;
    uint8_t *at = data + bytes;
    at[0] = NUMBER_TAG;
    put(at + NUMBER_AT, ++seal->number, 4);
    at[CHECKSUM_TAG_AT] = CHECKSUM_TAG;
    put(at + CHECKSUM_AT, checksum_of(data, bytes + CHECKSUM_AT), 8);
}

enum seal_verdict seal_take(struct seal *seal, const uint8_t *data, size_t bytes)
{
    if (!seal->on)
        return SEAL_FITS;
    if (bytes < SEAL_BYTES)
        return SEAL_BROKEN;
    size_t before = bytes - SEAL_BYTES;
    const uint8_t *at = data + before;
    if (at[0] != NUMBER_TAG || at[CHECKSUM_TAG_AT] != CHECKSUM_TAG ||
        get(at + CHECKSUM_AT, 8) != checksum_of(data, before + CHECKSUM_AT))
        return SEAL_BROKEN;
    uint32_t number = (uint32_t)get(at + NUMBER_AT, 4);
    uint32_t ahead = number - (seal->number + 1);
    if (ahead)
        return ahead > UINT32_MAX / 2 ? SEAL_TWICE : SEAL_GAP;
    seal->number = number;
    return SEAL_FITS;
}

enum seal_verdict seal_take_first(struct seal *seal, bool due, const uint8_t *data, size_t bytes)
{
    *seal = (struct seal){.on = due};
    return seal_take(seal, data, bytes);
}

const char *seal_label(enum seal_verdict verdict)
{
    static const char *const labels[] = {[SEAL_FITS] = "none",
                                         [SEAL_TWICE] = "twice",
                                         [SEAL_BROKEN] = "checksum",
                                         [SEAL_GAP] = "number",
                                         [SEAL_UNREADABLE] = "format"};
    return labels[verdict];
}
