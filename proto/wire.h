/* What protobuf-c does not see: strings are C strings there, so everything after a NUL is lost in
 * silence, and nothing checks UTF-8. These functions look at the raw bytes of a message, against
 * its descriptor.
 *
 *     message from the network ──▶ wire_check ──▶ protobuf_c_message_unpack ──▶ use
 *
 * A string that passed wire_check has no NUL, so strlen of the unpacked field is its true length.
 * Text that this side writes may hold NULs (a model can produce one): it is packed with its length,
 * and read back with wire_find. `string` and `bytes` have the same form on the wire (protobuf
 * encoding specification, "Length-Delimited Records").
 *
 * Pure; input is hostile. Owner: any thread. */
#ifndef BATON_PROTO_WIRE_H
#define BATON_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/err.h"

enum { WIRE_DEPTH_MAX = 16 };

/* Walks one message. INVALID, with the field named in `err`, when
 *   - a string holds a NUL or is not UTF-8:  "sampling.stop[0]: invalid UTF-8 at byte 3"
 *   - the bytes are no well-formed message:  "token_ids: the value ends past the end of the message"
 *   - a field has another wire type than its descriptor says, messages nest deeper than
 *     WIRE_DEPTH_MAX, or a group is used.
 * Unknown fields are walked over. Allocates nothing. */
enum status wire_check(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                       size_t bytes, struct err *err);
/* Both steps: checks, then unpacks. The message is freed with
 * protobuf_c_message_free_unpacked(message, NULL). */
enum status wire_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                        size_t bytes, ProtobufCMessage **message_out, struct err *err);
/* The raw bytes of a top-level string or bytes field; the last occurrence counts. False when absent
 * or malformed. */
bool wire_find(const uint8_t *data, size_t bytes, uint32_t field_number, const uint8_t **value_out,
               size_t *value_bytes_out);

/* Packing a message whose string field `field_number` is left empty and is written as `text`, which
 * may hold NULs. */
size_t wire_text_packed_bytes(const ProtobufCMessage *message, uint32_t field_number,
                              size_t text_bytes);
/* Writes exactly wire_text_packed_bytes bytes. */
void wire_text_pack(const ProtobufCMessage *message, uint32_t field_number, const char *text,
                    size_t text_bytes, uint8_t *out);

#endif
