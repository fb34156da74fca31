/* Any bytes as a message from the network, of each kind that a program reads: refused with one line that names a field, or
 * decoded whole, with text that is UTF-8 without NULs, and then printable, packable, and good again when packed.
 * The corpus was written with protoc --encode. */
#include "proto/baton/node/v1/node.pb-c.h"
#include "proto/baton/v1/baton.pb-c.h"
#include "proto/grpc/reflection/v1/reflection.pb-c.h"
#include "proto/json.h"
#include "proto/wire.h"
#include "base/utf8.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void line_check(const char *message)
{
    assert(message[0] && strchr(message, ':'));
    for (; *message; message++)
        assert((unsigned char)*message >= 0x20 && (unsigned char)*message < 0x7f);
}

static void message_use(const ProtobufCMessageDescriptor *descriptor, ProtobufCMessage *message)
{
    struct buf json = BUF_INIT;
    json_print_message(&json, message, NULL);
    assert(!json.failed && json.bytes >= 2 && utf8_valid(json.data, json.bytes));
    assert(!memchr(json.data, '\n', json.bytes) && !memchr(json.data, 0, json.bytes));
    buf_finish(&json);
    size_t bytes = wire_text_packed_bytes(message, 1000, 3);
    uint8_t *packed = malloc(bytes);
    assert(packed);
    wire_text_pack(message, 1000, "a\0b", 3, packed);
    assert(wire_check(descriptor, packed, bytes, NULL) == STATUS_OK);
    const uint8_t *found;
    size_t found_bytes;
    assert(wire_find(packed, bytes, 1000, &found, &found_bytes) && found_bytes == 3);
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const ProtobufCMessageDescriptor *const kinds[] = {
        &baton__v1__generate_request__descriptor,
        &baton__v1__tokenize_request__descriptor,
        &baton__v1__generate_response__descriptor,
        &baton__node__v1__node_message__descriptor,
        &baton__node__v1__router_message__descriptor,
        &grpc__reflection__v1__server_reflection_request__descriptor,
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct err err = ERR_INIT;
        ProtobufCMessage *message = NULL;
        enum status status = wire_unpack(kinds[i], data, bytes, &message, &err);
        if (status) {
            assert(status == STATUS_INVALID && !message);
            line_check(err.message);
            continue;
        }
        message_use(kinds[i], message);
        protobuf_c_message_free_unpacked(message, NULL);
    }
    return 0;
}
