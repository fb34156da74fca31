/* The seal of a message between the router and a node: its number in this direction of its stream, and a checksum over all
 * bytes before. Two fields of the message itself, packed last, so that sealed bytes are a message of the same kind for
 * everybody (protobuf's encoding of a message is that of its fields, one behind the other), also for a program that does not
 * know them.
 *
 *     ┌─ fields, as packed ─┬ 0x75 ┬ number, 4 ┬ 0x79 ┬ checksum of all before it, 8 ┐     little-endian
 *     └─────────────────────┴──────┴───────────┴──────┴──────────────────────────────┘     SEAL_BYTES
 *
 *     the number is the next one               FITS
 *     … one that was there already             TWICE: the receiver drops it, nothing is lost
 *     … a later one                            GAP: something was lost, or overtaken; the stream has to end
 *     no seal, or another checksum             BROKEN: the stream has to end
 *
 * It finds what TCP and gRPC let through: a bit that flips past their sums or beside them, in a proxy or in memory, and a
 * message that is lost on a stream which lives on. It is no defence against a forger.
 *
 * Whether a stream is sealed is agreed by its first message in each direction (docs/PROTOCOL.md, section 10). Pure.
 * Owner: the loop thread. */
#ifndef BATON_PROTO_SEAL_H
#define BATON_PROTO_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SEAL_BYTES = 14 };

/* One direction of one stream; zero is a stream without seals. */
struct seal {
    bool on;
    uint32_t number; /* of the last message; the first is 1, and 0 follows the largest */
};

enum seal_verdict {
    SEAL_FITS,
    SEAL_TWICE,
    SEAL_BROKEN,
    SEAL_GAP,
    SEAL_UNREADABLE, /* never seal_take's: for readers, of what is no message of its kind */
    SEAL_VERDICT_COUNT
};

/* Bytes that seal_put adds. */
static inline size_t seal_room(const struct seal *seal)
{
    return seal->on ? SEAL_BYTES : 0;
}

/* Seals the packed message `data`, `bytes`; its next seal_room bytes are written. */
void seal_put(struct seal *seal, uint8_t *data, size_t bytes);
/* Of a received message, seal included. Nothing moves but on FITS. Always FITS on a stream without seals. */
enum seal_verdict seal_take(struct seal *seal, const uint8_t *data, size_t bytes);
/* Of the first message of a stream, of which it is known now whether it must have a seal. The caller sets `on` after it, to
 * what the message agrees on. */
enum seal_verdict seal_take_first(struct seal *seal, bool due, const uint8_t *data, size_t bytes);
/* "twice", "checksum", "number", "format": for metrics. */
const char *seal_label(enum seal_verdict verdict);

#endif
