/* See wire.h. The encoding is that of the protobuf encoding specification: a message is a run of {key, value}, a key is
 * field number * 8 + wire type, and a length-delimited value is a string, bytes, a message or packed numbers. */
#include "proto/wire.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_LENGTH = 2, WIRE_FIXED32 = 5 };
/* keys and lengths are 32 bits: protobuf-c reads no longer ones */
enum {
    VARINT_BYTES_MAX = 10,
    KEY_BYTES_MAX = 5,
    LENGTH_BYTES_MAX = 5,
    FIELD_NUMBER_MAX = (1 << 29) - 1
};

/* One message being walked; the frames of its parents name the field in an error. */
struct frame {
    const struct frame *parent;
    const ProtobufCMessageDescriptor *descriptor;
    const uint8_t *start, *end;
    /* the field that is looked at now: NULL before the first key is read */
    const ProtobufCFieldDescriptor *field;
    const uint8_t *key; /* where its key begins */
    uint32_t number;
};

/* One {key, value} of a message. */
struct record {
    uint32_t number, wire_type;
    const uint8_t *value; /* of a length-delimited record: behind the length */
    size_t value_bytes;
    const uint8_t *next;
};

/* The bytes of the varint at `at`; 0 when it is cut off or longer than `bytes_max`. */
static size_t varint_read(const uint8_t *at, const uint8_t *end, size_t bytes_max,
                          uint64_t *value_out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes_max && at + i < end; i++) {
        value |= (uint64_t)(at[i] & 0x7f) << (7 * i);
        if (at[i] < 0x80) {
            *value_out = value;
            return i + 1;
        }
    }
    return 0;
}

/* Reads one record; NULL, or what is wrong with it. `record->number` is 0 until the key is known. */
static const char *record_read(const uint8_t *at, const uint8_t *end, struct record *record)
{
    uint64_t key, length = 0;
    record->number = 0;
    size_t n = varint_read(at, end, KEY_BYTES_MAX, &key);
    if (!n)
        return "a field's key is cut off or too long";
    if (key >> 3 == 0 || key >> 3 > FIELD_NUMBER_MAX)
        return "a field's number is out of range";
    record->number = (uint32_t)(key >> 3);
    record->wire_type = (uint32_t)(key & 7);
    at += n;
    switch (record->wire_type) {
    case WIRE_VARINT:
        length = varint_read(at, end, VARINT_BYTES_MAX, &key);
        if (!length)
            return "a number is cut off or longer than 10 bytes";
        break;
    case WIRE_FIXED64:
        length = 8;
        break;
    case WIRE_FIXED32:
        length = 4;
        break;
    case WIRE_LENGTH:
        n = varint_read(at, end, LENGTH_BYTES_MAX, &length);
        if (!n)
            return "a length is cut off or longer than 5 bytes";
        at += n;
        break;
    default:
        return "groups and reserved wire types are not accepted";
    }
    record->value = at;
    record->value_bytes = (size_t)length;
    if (length > (uint64_t)(end - at))
        return "the value ends past the end of the message";
    record->next = at + length;
    return NULL;
}

/* Occurrences of the frame's field before its current one; for a repeated field, its [index]. */
static size_t frame_index(const struct frame *frame)
{
    size_t index = 0;
    struct record record;
    for (const uint8_t *at = frame->start; at < frame->key; at = record.next) {
        if (record_read(at, frame->end, &record))
            break;
        index += record.number == frame->number;
    }
    return index;
}

static size_t path_print(const struct frame *frame, char *out, size_t out_bytes)
{
    size_t n = frame->parent ? path_print(frame->parent, out, out_bytes) : 0;
    if (!frame->number || n >= out_bytes)
        return n;
    const char *dot = n ? "." : "";
    int more;
    if (!frame->field)
        more = snprintf(out + n, out_bytes - n, "%sfield %" PRIu32, dot, frame->number);
    else if (frame->field->label == PROTOBUF_C_LABEL_REPEATED)
        more = snprintf(out + n, out_bytes - n, "%s%s[%zu]", dot, frame->field->name,
                        frame_index(frame));
    else
        more = snprintf(out + n, out_bytes - n, "%s%s", dot, frame->field->name);
    n += more > 0 ? (size_t)more : 0;
    return n < out_bytes ? n : out_bytes - 1;
}

static enum status refuse(const struct frame *frame, struct err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum status refuse(const struct frame *frame, struct err *err, const char *format, ...)
{
    char path[320] = "", what[160];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (!path_print(frame, path, sizeof path))
        snprintf(path, sizeof path, "%s", frame->descriptor->short_name);
    return err_set(err, STATUS_INVALID, "%s: %s", path, what);
}

static int wire_type_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return WIRE_FIXED32;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return WIRE_FIXED64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_LENGTH;
    default:
        return WIRE_VARINT;
    }
}

/* Packed numbers: whole ones only. */
static enum status packed_check(const struct frame *frame, const struct record *record,
                                struct err *err)
{
    int wire_type = wire_type_of(frame->field->type);
    if (wire_type != WIRE_VARINT) {
        size_t unit = wire_type == WIRE_FIXED32 ? 4 : 8;
        if (record->value_bytes % unit)
            return refuse(frame, err, "packed numbers of %zu bytes in %zu bytes", unit,
                          record->value_bytes);
        return STATUS_OK;
    }
    uint64_t value;
    for (const uint8_t *at = record->value; at < record->next;) {
        size_t n = varint_read(at, record->next, VARINT_BYTES_MAX, &value);
        if (!n)
            return refuse(frame, err, "a packed number is cut off or longer than 10 bytes");
        at += n;
    }
    return STATUS_OK;
}

static enum status string_check(const struct frame *frame, const struct record *record,
                                struct err *err)
{
    size_t valid = utf8_valid_prefix(record->value, record->value_bytes);
    if (valid < record->value_bytes)
        return refuse(frame, err, "invalid UTF-8 at byte %zu", valid);
    const uint8_t *nul = record->value_bytes ? memchr(record->value, 0, record->value_bytes) : NULL;
    if (nul)
        return refuse(frame, err, "NUL character at byte %zu", (size_t)(nul - record->value));
    return STATUS_OK;
}

static enum status message_check(const struct frame *parent, int depth,
                                 const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                                 size_t bytes, struct err *err);

static enum status field_check(const struct frame *frame, int depth, const struct record *record,
                               struct err *err)
{
    const ProtobufCFieldDescriptor *field = frame->field;
    int wire_type = wire_type_of(field->type);
    if (field->label == PROTOBUF_C_LABEL_REPEATED && wire_type != WIRE_LENGTH &&
        record->wire_type == WIRE_LENGTH)
        return packed_check(frame, record, err);
    if ((int)record->wire_type != wire_type)
        return refuse(frame, err, "wire type %" PRIu32 ", expected %d", record->wire_type,
                      wire_type);
    if (field->type == PROTOBUF_C_TYPE_STRING)
        return string_check(frame, record, err);
    /* the specification would have the two merged, which protobuf-c 1.4.1 gets wrong inside a oneof; no encoder writes it */
    if (field->type == PROTOBUF_C_TYPE_MESSAGE && field->label != PROTOBUF_C_LABEL_REPEATED &&
        frame_index(frame))
        return refuse(frame, err, "the message occurs more than once");
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return message_check(frame, depth + 1, field->descriptor, record->value,
                             record->value_bytes, err);
    return STATUS_OK;
}

static enum status message_check(const struct frame *parent, int depth,
                                 const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                                 size_t bytes, struct err *err)
{
    if (depth > WIRE_DEPTH_MAX)
        return refuse(parent, err, "messages nest deeper than %d", WIRE_DEPTH_MAX);
    struct frame frame = {
        .parent = parent, .descriptor = descriptor, .start = data, .end = data + bytes};
    struct record record;
    for (const uint8_t *at = data; at < frame.end; at = record.next) {
        const char *wrong = record_read(at, frame.end, &record);
        frame.key = at;
        frame.number = record.number;
        frame.field = record.number
                          ? protobuf_c_message_descriptor_get_field(descriptor, record.number)
                          : NULL;
        if (wrong)
            return refuse(&frame, err, "%s", wrong);
        if (!frame.field)
            continue; /* of a newer client: walked over */
        enum status status = field_check(&frame, depth, &record, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

enum status wire_check(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                       size_t bytes, struct err *err)
{
    if (!bytes)
        return STATUS_OK;
    return message_check(NULL, 1, descriptor, data, bytes, err);
}

enum status wire_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                        size_t bytes, ProtobufCMessage **message_out, struct err *err)
{
    enum status status = wire_check(descriptor, data, bytes, err);
    if (status)
        return status;
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, NULL, bytes, data);
    if (!message) /* well-formed, so what is left is memory */
        return err_set(err, STATUS_MEMORY, "%s: cannot be decoded", descriptor->short_name);
    *message_out = message;
    return STATUS_OK;
}

bool wire_find(const uint8_t *data, size_t bytes, uint32_t field_number, const uint8_t **value_out,
               size_t *value_bytes_out)
{
    struct record record;
    const uint8_t *value = NULL;
    size_t value_bytes = 0;
    for (const uint8_t *at = data, *end = data + bytes; at < end; at = record.next) {
        if (record_read(at, end, &record))
            return false;
        if (record.number == field_number && record.wire_type == WIRE_LENGTH) {
            value = record.value;
            value_bytes = record.value_bytes;
        }
    }
    if (!value)
        return false;
    *value_out = value;
    *value_bytes_out = value_bytes;
    return true;
}

/* --- packing with a text --- */

static size_t varint_write(uint64_t value, uint8_t *out)
{
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        out[n++] = (uint8_t)(value | 0x80);
    out[n++] = (uint8_t)value;
    return n;
}

/* The key and length before the text; nothing for an empty one, as proto3 has it. */
static size_t text_head(uint32_t field_number, size_t text_bytes,
                        uint8_t out[KEY_BYTES_MAX + VARINT_BYTES_MAX])
{
    if (!text_bytes)
        return 0;
    size_t n = varint_write((uint64_t)field_number << 3 | WIRE_LENGTH, out);
    return n + varint_write(text_bytes, out + n);
}

size_t wire_text_packed_bytes(const ProtobufCMessage *message, uint32_t field_number,
                              size_t text_bytes)
{
    uint8_t head[KEY_BYTES_MAX + VARINT_BYTES_MAX];
    return protobuf_c_message_get_packed_size(message) + text_head(field_number, text_bytes, head) +
           text_bytes;
}

void wire_text_pack(const ProtobufCMessage *message, uint32_t field_number, const char *text,
                    size_t text_bytes, uint8_t *out)
{
    /* the order of fields is free, so the text goes behind the rest */
    uint8_t *at = out + protobuf_c_message_pack(message, out);
    at += text_head(field_number, text_bytes, at);
    if (text_bytes)
        memcpy(at, text, text_bytes);
}
