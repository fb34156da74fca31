/* See json.h. A protobuf-c message is a C struct; its descriptor gives each member's offset, and the offset of its count
 * (repeated), its has_ flag (proto2 optional) or its case (oneof, and proto3 optional, which comes out as a oneof of one). */
#include "proto/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

void json_print_string(struct buf *out, const char *text, size_t bytes)
{
    buf_append_text(out, "\"");
    for (size_t at = 0; at < bytes;) {
        unsigned char c = (unsigned char)text[at];
        uint32_t code_point;
        int n = utf8_decode(text + at, bytes - at, &code_point);
        if (n <= 0) { /* invalid, or cut off at the end */
            buf_append_text(out, "\xEF\xBF\xBD");
            at += n < 0 ? (size_t)-n : bytes - at;
            continue;
        }
        if (c == '"' || c == '\\')
            buf_printf(out, "\\%c", c);
        else if (c == '\n')
            buf_append_text(out, "\\n");
        else if (c < 0x20 || c == 0x7f)
            buf_printf(out, "\\u%04x", c);
        else
            buf_append(out, text + at, (size_t)n);
        at += (size_t)n;
    }
    buf_append_text(out, "\"");
}

static void base64_print(struct buf *out, const uint8_t *data, size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    buf_append_text(out, "\"");
    for (size_t i = 0; i < bytes; i += 3) {
        uint32_t word = (uint32_t)data[i] << 16;
        word |= i + 1 < bytes ? (uint32_t)data[i + 1] << 8 : 0;
        word |= i + 2 < bytes ? data[i + 2] : 0;
        char group[4] = {digits[word >> 18], digits[word >> 12 & 63],
                         i + 1 < bytes ? digits[word >> 6 & 63] : '=',
                         i + 2 < bytes ? digits[word & 63] : '='};
        buf_append(out, group, sizeof group);
    }
    buf_append_text(out, "\"");
}

/* The shortest text that reads back as the same number of this type. */
static void real_print(struct buf *out, double value, bool single)
{
    char text[40];
    if (!isfinite(value)) {
        buf_append_text(out, "null");
        return;
    }
    for (int digits = single ? 6 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (single ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value)
            break;
    }
    buf_append_text(out, text);
}

static void enum_print(struct buf *out, const ProtobufCEnumDescriptor *descriptor, int value)
{
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(descriptor, value);
    if (found)
        json_print_string(out, found->name, strlen(found->name));
    else
        buf_printf(out, "%d", value);
}

/* Bytes of one element in memory, as protobuf-c lays it out. */
static size_t element_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

static void message_print(struct buf *out, const ProtobufCMessage *message,
                          const struct json_text *text);

static void value_print(struct buf *out, const ProtobufCFieldDescriptor *field, const void *value)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        buf_printf(out, "%" PRId32, *(const int32_t *)value);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        buf_printf(out, "%" PRId64, *(const int64_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        buf_printf(out, "%" PRIu32, *(const uint32_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        buf_printf(out, "%" PRIu64, *(const uint64_t *)value);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        real_print(out, *(const float *)value, true);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        real_print(out, *(const double *)value, false);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        buf_append_text(out, *(const protobuf_c_boolean *)value ? "true" : "false");
        break;
    case PROTOBUF_C_TYPE_ENUM:
        enum_print(out, field->descriptor, *(const int *)value);
        break;
    case PROTOBUF_C_TYPE_STRING: {
        const char *string = *(char *const *)value;
        json_print_string(out, string ? string : "", string ? strlen(string) : 0);
        break;
    }
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *binary = value;
        base64_print(out, binary->data, binary->len);
        break;
    }
    case PROTOBUF_C_TYPE_MESSAGE:
        message_print(out, *(ProtobufCMessage *const *)value, NULL);
        break;
    }
}

static bool value_is_default(const ProtobufCFieldDescriptor *field, const void *value)
{
    static const uint8_t zeros[sizeof(ProtobufCBinaryData)];
    if (field->type == PROTOBUF_C_TYPE_STRING) {
        const char *string = *(char *const *)value;
        return !string || !string[0];
    }
    if (field->type == PROTOBUF_C_TYPE_BYTES)
        return ((const ProtobufCBinaryData *)value)->len == 0;
    return memcmp(value, zeros, element_bytes(field->type)) == 0;
}

static bool field_is_printed(const ProtobufCFieldDescriptor *field, const char *base)
{
    const void *value = base + field->offset;
    const void *quantifier = base + field->quantifier_offset;
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return *(const size_t *)quantifier > 0;
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
        if (*(const uint32_t *)quantifier != field->id)
            return false;
        return field->type != PROTOBUF_C_TYPE_MESSAGE || *(void *const *)value;
    }
    return !value_is_default(field, value);
}

static void field_print(struct buf *out, const ProtobufCFieldDescriptor *field, const char *base)
{
    const char *value = base + field->offset;
    if (field->label != PROTOBUF_C_LABEL_REPEATED) {
        value_print(out, field, value);
        return;
    }
    size_t count = *(const size_t *)(base + field->quantifier_offset);
    const char *elements = *(char *const *)value;
    for (size_t i = 0; i < count; i++) {
        buf_append_text(out, i ? "," : "[");
        value_print(out, field, elements + i * element_bytes(field->type));
    }
    buf_append_text(out, "]");
}

static void message_print(struct buf *out, const ProtobufCMessage *message,
                          const struct json_text *text)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    const char *base = (const char *)message;
    const char *separator = "{";
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        bool replaced = text && strcmp(text->field, field->name) == 0;
        if (replaced ? !text->bytes : !field_is_printed(field, base))
            continue;
        buf_printf(out, "%s\"%s\":", separator, field->name);
        separator = ",";
        if (replaced)
            json_print_string(out, text->text, text->bytes);
        else
            field_print(out, field, base);
    }
    buf_append_text(out, *separator == '{' ? "{}" : "}");
}

void json_print_message(struct buf *out, const ProtobufCMessage *message,
                        const struct json_text *text)
{
    message_print(out, message, text);
}
