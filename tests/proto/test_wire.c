/* proto/wire: what protobuf-c does not see. */
#include "proto/wire.h"

#include "proto/baton/v1/baton.pb-c.h"
#include "tests/test.h"

#define GENERATE (&baton__v1__generate_request__descriptor)

/* Checks a literal that may hold NULs. */
#define WIRE_CHECK(literal, err) \
    wire_check(GENERATE, (const uint8_t *)(literal), sizeof(literal) - 1, (err))

static void refused(const char *data, size_t bytes, const char *message)
{
    struct err err = ERR_INIT;
    enum status status = wire_check(GENERATE, (const uint8_t *)data, bytes, &err);
    CHECK_MSG(status == STATUS_INVALID, "accepted, expected \"%s\"", message);
    CHECK_STR(err.message, message);
}
#define REFUSED(literal, message) refused((literal), sizeof(literal) - 1, (message))

TEST(wire, good_messages_pass)
{
    struct err err = ERR_INIT;
    CHECK_INT(wire_check(GENERATE, NULL, 0, &err), STATUS_OK);
    CHECK_INT(WIRE_CHECK("\x1a\x03"
                         "abc",
                         &err),
              STATUS_OK);
    CHECK_INT(WIRE_CHECK("\x1a\x04\xf0\x9f\x98\x80", &err), STATUS_OK);
    /* unknown field 100, of each wire type */
    CHECK_INT(WIRE_CHECK("\xa0\x06\x05\xa1\x06"
                         "12345678\xa2\x06\x02\xff\xff\xa5\x06"
                         "1234",
                         &err),
              STATUS_OK);
    /* token_ids {ids: packed 1, 300, then unpacked 7} */
    CHECK_INT(WIRE_CHECK("\x22\x07\x0a\x03\x01\xac\x02\x08\x07", &err), STATUS_OK);
}

TEST(wire, bad_text_names_its_field_and_byte)
{
    REFUSED("\x1a\x04"
            "abc\xff",
            "text: invalid UTF-8 at byte 3");
    REFUSED("\x1a\x03"
            "a\0b",
            "text: NUL character at byte 1");
    REFUSED("\x12\x01\x80", "model: invalid UTF-8 at byte 0");
    /* cut off in a character */
    REFUSED("\x1a\x03\xf0\x9f\x98", "text: invalid UTF-8 at byte 0");
    /* sampling {stop: "ok", stop: "x\xc0\xaf"}: an overlong form */
    REFUSED("\x3a\x09\x52\x02ok\x52\x03x\xc0\xaf", "sampling.stop[1]: invalid UTF-8 at byte 1");
    REFUSED("\x3a\x04\x52\x02\0x", "sampling.stop[0]: NUL character at byte 0");
    /* chat {messages {role: "u"}, messages {role: "u", content: "\xed\xa0\x80"}}: a surrogate */
    REFUSED("\x2a\x0f\x0a\x03\x0a\x01u\x0a\x08\x0a\x01u\x12\x03\xed\xa0\x80",
            "chat.messages[1].content: invalid UTF-8 at byte 0");
}

TEST(wire, malformed_bytes_are_refused)
{
    REFUSED("\x1a\x05"
            "abc",
            "text: the value ends past the end of the message");
    REFUSED("\x1a\xff\xff\xff\xff\x0f"
            "abc",
            "text: the value ends past the end of the message");
    REFUSED("\x1a\x83\x80\x80\x80\x80\x00"
            "abc",
            "text: a length is cut off or longer than 5 bytes");
    REFUSED("\x1a", "text: a length is cut off or longer than 5 bytes");
    REFUSED("\x80", "GenerateRequest: a field's key is cut off or too long");
    REFUSED("\x00\x01", "GenerateRequest: a field's number is out of range");
    REFUSED("\x30\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "parse_special: a number is cut off or longer than 10 bytes");
    REFUSED("\x1b\x1c", "text: groups and reserved wire types are not accepted");
    REFUSED("\x18\x01", "text: wire type 0, expected 2");
    REFUSED("\x32\x01\x01", "parse_special: wire type 2, expected 0");
    REFUSED("\xa3\x06", "field 100: groups and reserved wire types are not accepted");
    REFUSED("\x22\x04\x0a\x02\x01\xac", "token_ids.ids[0]: a packed number is cut off or longer "
                                        "than 10 bytes");
    REFUSED("\x2a\x00\x3a\x00\x2a\x00", "chat: the message occurs more than once");
    REFUSED("\x22\x03\x0a\x05\x01", "token_ids.ids[0]: the value ends past the end of the message");
}

TEST(wire, every_cut_of_a_message_is_refused_or_whole)
{
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    Baton__V1__SamplingParams sampling = BATON__V1__SAMPLING_PARAMS__INIT;
    char *stop[] = {"one", "two"};
    sampling.n_stop = 2;
    sampling.stop = stop;
    sampling._seed_case = BATON__V1__SAMPLING_PARAMS___SEED_SEED;
    sampling.seed = UINT64_MAX;
    request.sampling = &sampling;
    request.request_id = "label";
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = "a prompt";
    uint8_t data[256];
    size_t bytes = baton__v1__generate_request__pack(&request, data), whole = 0;
    for (size_t n = 0; n <= bytes; n++) {
        uint8_t *copy = malloc(n ? n : 1); /* its own block, so that a sanitizer sees an overread */
        memcpy(copy, data, n);
        ProtobufCMessage *message = NULL;
        enum status status = wire_unpack(GENERATE, copy, n, &message, NULL);
        CHECK((status == STATUS_OK) == (message != NULL));
        if (message)
            protobuf_c_message_free_unpacked(message, NULL);
        whole += status == STATUS_OK;
        free(copy);
    }
    CHECK_INT(whole, 4); /* nothing, and behind request_id, text and sampling */
}

TEST(wire, text_with_nul_is_packed_and_found)
{
    Baton__V1__GenerateResponse response = BATON__V1__GENERATE_RESPONSE__INIT;
    response.position = 5;
    const char text[] = "a\0b";
    uint8_t data[64];
    size_t bytes = wire_text_packed_bytes(&response.base, 3, 3);
    memset(data, 0xee, sizeof data);
    wire_text_pack(&response.base, 3, text, 3, data);
    CHECK_INT(data[bytes], 0xee);
    const uint8_t *found;
    size_t found_bytes;
    CHECK(wire_find(data, bytes, 3, &found, &found_bytes));
    CHECK(found_bytes == 3 && memcmp(found, text, 3) == 0);
    CHECK(!wire_find(data, bytes, 4, &found, &found_bytes));
    CHECK(!wire_find(data, bytes - 1, 3, &found, &found_bytes));
    Baton__V1__GenerateResponse *read = baton__v1__generate_response__unpack(NULL, bytes, data);
    CHECK(read && read->position == 5);
    CHECK_STR(read->text, "a"); /* which is why wire_find exists */
    baton__v1__generate_response__free_unpacked(read, NULL);
    CHECK_INT(wire_text_packed_bytes(&response.base, 3, 0),
              protobuf_c_message_get_packed_size(&response.base));
    /* a long text has a long length */
    CHECK_INT(wire_text_packed_bytes(&response.base, 3, 300), bytes - 5 + 303);
}

TEST(wire, depth_is_limited)
{
    /* reflection's response holds a request, whose messages do not nest; a type that nests without end does not exist in this
     * build, so one is made: a message whose field 1 is itself */
    static ProtobufCMessageDescriptor self;
    static ProtobufCFieldDescriptor field;
    static const ProtobufCIntRange range[2] = {{1, 0}, {0, 1}};
    field = (ProtobufCFieldDescriptor){.name = "self",
                                       .id = 1,
                                       .label = PROTOBUF_C_LABEL_NONE,
                                       .type = PROTOBUF_C_TYPE_MESSAGE,
                                       .descriptor = &self};
    self = (ProtobufCMessageDescriptor){.magic = PROTOBUF_C__MESSAGE_DESCRIPTOR_MAGIC,
                                        .short_name = "Self",
                                        .n_fields = 1,
                                        .fields = &field,
                                        .n_field_ranges = 1,
                                        .field_ranges = range};
    uint8_t data[2 * 60];
    for (size_t depth = 1; depth <= 60; depth++) {
        for (size_t i = 0; i < depth; i++) {
            data[2 * i] = 0x0a;
            data[2 * i + 1] = (uint8_t)(2 * (depth - 1 - i));
        }
        struct err err = ERR_INIT;
        enum status status = wire_check(&self, data, 2 * depth, &err);
        CHECK_INT(status, depth < WIRE_DEPTH_MAX ? STATUS_OK : STATUS_INVALID);
        if (status)
            CHECK(strstr(err.message, "messages nest deeper than 16"));
    }
}
