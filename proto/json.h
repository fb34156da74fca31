/* A protobuf message as one line of JSON, from its descriptor: field names as in the .proto
 * (snake_case), numbers as numbers (64 bits too), enums by name, bytes in base64. Printed are
 * fields with presence that are set, other scalars that differ from their default, and repeated
 * fields that are not empty. NaN and infinities, which JSON has no number for, are null. Pure.
 * Owner: any thread. */
#ifndef BATON_PROTO_JSON_H
#define BATON_PROTO_JSON_H

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"

/* A text with its true length, to print in place of top-level string field `field` (whose C string
 * ends at a NUL). */
struct json_text {
    const char *field;
    const char *text;
    size_t bytes;
};

/* Appends one object without a line feed. `text` may be NULL. Check out->failed. */
void json_print_message(struct buf *out, const ProtobufCMessage *message,
                        const struct json_text *text);
/* Appends a quoted JSON string. Invalid UTF-8 becomes U+FFFD. */
void json_print_string(struct buf *out, const char *text, size_t bytes);

#endif
