#include "model/gguf.h"

#include "tests/model/build_gguf.h"
#include "tests/model/tiny.h"

/* Opens what was built from a block of exactly its size, so that a sanitizer sees a read past the end. */
static enum status open_exact(const struct buf *buf, struct gguf **gguf_out, struct err *err,
                              void **copy_out)
{
    void *copy = malloc(buf->bytes ? buf->bytes : 1);
    if (buf->bytes)
        memcpy(copy, buf->data, buf->bytes);
    *copy_out = copy;
    return gguf_open_memory(copy, buf->bytes, "x.gguf", gguf_out, err);
}

static void check_refused(struct buf *buf, const char *message)
{
    struct gguf *gguf = NULL;
    struct err err = ERR_INIT;
    void *copy;
    enum status status = open_exact(buf, &gguf, &err, &copy);
    CHECK_MSG(status == STATUS_FORMAT, "status %d for \"%s\"", status, message);
    CHECK_MSG(strstr(err.message, message) && !strncmp(err.message, "x.gguf: ", 8),
              "\"%s\" does not hold \"%s\"", err.message, message);
    CHECK(!gguf);
    free(copy);
    buf_finish(buf);
}

TEST(gguf, reads_every_type_of_value)
{
    struct buf buf = BUF_INIT;
    put_header(&buf, 3, 1, 13);
    put_kv_u32(&buf, "u32", 7);
    put_kv_text(&buf, "text", "hello");
    put_key(&buf, "u8", GGUF_U8);
    buf_append(&buf, "\xff", 1);
    put_key(&buf, "i8", GGUF_I8);
    buf_append(&buf, "\xff", 1);
    put_key(&buf, "u16", GGUF_U16);
    buf_append(&buf, "\x01\x02", 2);
    put_key(&buf, "i16", GGUF_I16);
    buf_append(&buf, "\xfe\xff", 2);
    put_key(&buf, "i32", GGUF_I32);
    put_u32(&buf, (uint32_t)-3);
    put_key(&buf, "f32", GGUF_F32);
    buf_append(&buf, &(float){1.5f}, 4);
    put_key(&buf, "bool", GGUF_BOOL);
    buf_append(&buf, "\x01", 1);
    put_key(&buf, "u64", GGUF_U64);
    put_u64(&buf, UINT64_MAX);
    put_key(&buf, "f64", GGUF_F64);
    buf_append(&buf, &(double){2.5}, 8);
    put_key(&buf, "texts", GGUF_ARRAY);
    put_u32(&buf, GGUF_TEXT);
    put_u64(&buf, 2);
    put_text(&buf, "a");
    put_text(&buf, "");
    put_key(&buf, "ids", GGUF_ARRAY);
    put_u32(&buf, GGUF_I32);
    put_u64(&buf, 2);
    put_u32(&buf, 5);
    put_u32(&buf, 6);
    put_tensor(&buf, "w", 32, 2, TENSOR_Q4_1, 0);
    put_padding(&buf, 32);
    put_zeros(&buf, 40);

    struct gguf *gguf;
    struct err err = ERR_INIT;
    void *copy;
    CHECK_MSG(!open_exact(&buf, &gguf, &err, &copy), "%s", err.message);
    CHECK_INT(gguf_version(gguf), 3);
    CHECK_INT(gguf_alignment(gguf), 32);
    CHECK_INT(gguf_kv_count(gguf), 13);
    uint32_t value = 0;
    float f32 = 0;
    bool flag = false;
    struct gguf_text text;
    struct gguf_array array;
    CHECK(!gguf_get_u32(gguf, "u32", &value, &err) && value == 7);
    CHECK(!gguf_get_u32(gguf, "u8", &value, &err) && value == 255);
    CHECK(!gguf_get_u32(gguf, "u16", &value, &err) && value == 0x201);
    CHECK(!gguf_get_f32(gguf, "f32", &f32, &err) && f32 == 1.5f);
    CHECK(!gguf_get_bool(gguf, "bool", &flag, &err) && flag);
    CHECK(!gguf_get_text(gguf, "text", &text, &err) && gguf_text_is(text, "hello"));
    CHECK(!gguf_get_array(gguf, "texts", GGUF_TEXT, &array, &err));
    CHECK(gguf_array_next_text(&array, &text) && gguf_text_is(text, "a"));
    CHECK(gguf_array_next_text(&array, &text) && gguf_text_is(text, ""));
    CHECK(!gguf_array_next_text(&array, &text));
    CHECK(!gguf_get_array(gguf, "ids", GGUF_I32, &array, &err));
    CHECK_INT(gguf_array_u32(&array, 1), 6);

    static const struct {
        const char *key, *message;
    } refused[] = {
        {"text", "x.gguf: text: is of type text, expected an unsigned integer"},
        {"i8", "x.gguf: i8: is out of range (0 to 4294967295)"},
        {"i16", "x.gguf: i16: is out of range"},
        {"i32", "x.gguf: i32: is out of range"},
        {"u64", "x.gguf: u64: is out of range"},
        {"none", "x.gguf: none: the key is missing"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        value = 99;
        CHECK_INT(gguf_get_u32(gguf, refused[i].key, &value, &err), STATUS_FORMAT);
        CHECK_MSG(strstr(err.message, refused[i].message), "%s", err.message);
        CHECK_INT(value, 99);
    }
    CHECK_INT(gguf_get_f32(gguf, "f64", &f32, &err), STATUS_FORMAT);
    CHECK_STR(err.message, "x.gguf: f64: is of type f64, expected f32");
    CHECK_INT(gguf_get_array(gguf, "ids", GGUF_TEXT, &array, &err), STATUS_FORMAT);
    CHECK_STR(err.message, "x.gguf: ids: is an array of i32, expected an array of text");
    CHECK_INT(gguf_get_bool(gguf, "u8", &flag, NULL), STATUS_FORMAT);

    const struct gguf_tensor *tensor = gguf_tensor_find(gguf, "w");
    CHECK(tensor && tensor == gguf_tensor_at(gguf, 0) && !gguf_tensor_at(gguf, 1));
    CHECK_INT(tensor->bytes, 40);
    CHECK_INT(tensor->row_bytes, 20);
    CHECK((const uint8_t *)tensor->data + 40 == (const uint8_t *)copy + buf.bytes);
    CHECK(!gguf_tensor_find(gguf, "v") && !gguf_tensor_find(gguf, "ww"));
    char print[32];
    gguf_kv_print(gguf_kv_find(gguf, "texts"), print, sizeof print);
    CHECK_STR(print, "[2 x text]");
    gguf_kv_print(gguf_kv_find(gguf, "u64"), print, sizeof print);
    CHECK_STR(print, "18446744073709551615");
    gguf_kv_print(gguf_kv_find(gguf, "text"), print, 3);
    CHECK_STR(print, "he");
    gguf_close(gguf);
    gguf_close(NULL);
    free(copy);
    buf_finish(&buf);
}

TEST(gguf, refuses_wrong_headers)
{
    static const struct {
        const char *bytes;
        size_t count;
        const char *message;
    } cases[] = {
        {"", 0, "the magic needs 4 bytes"},
        {"GGU", 3, "the magic needs 4 bytes"},
        {"GGML\3\0\0\0", 8, "not a GGUF file (begins with 47 47 4d 4c)"},
        {"GGUF\3\0\0", 7, "the version needs 4 bytes"},
        {"GGUF\1\0\0\0", 8, "GGUF version 1 (2 and 3 are supported)"},
        {"GGUF\4\0\0\0", 8, "GGUF version 4"},
        {"GGUF\0\0\0\0", 8, "GGUF version 0"},
        {"GGUF\0\0\0\3", 8, "big-endian"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf buf = BUF_INIT;
        buf_append(&buf, cases[i].bytes, cases[i].count);
        check_refused(&buf, cases[i].message);
    }
    static const struct {
        uint64_t tensors, kvs;
        const char *message;
    } counts[] = {
        {UINT64_MAX, 0, "the tensor count 18446744073709551615 is over the limit"},
        {65536, 0, "the tensor count 65536 needs more bytes than remain"},
        {65537, 0, "the tensor count 65537 is over the limit (65536)"},
        {0, UINT64_C(1) << 63, "the key count 9223372036854775808 is over the limit"},
        {0, 60000, "the key count 60000 needs more bytes than remain in the file (0)"},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct buf buf = BUF_INIT;
        put_header(&buf, 3, counts[i].tensors, counts[i].kvs);
        check_refused(&buf, counts[i].message);
    }
}

TEST(gguf, refuses_hostile_values)
{
    for (int i = 0; i < 14; i++) {
        struct buf buf = BUF_INIT;
        const char *message = "";
        put_header(&buf, 2, 0, i == 12 ? 2 : 1);
        switch (i) {
        case 0:
            put_u64(&buf, UINT64_MAX);
            put_zeros(&buf, 32);
            message = "key of 18446744073709551615 bytes, but only 32 remain";
            break;
        case 1:
            put_key(&buf, "", GGUF_U32);
            put_zeros(&buf, 8);
            message = "key 0 of 1: key of 0 bytes (1 to 1023)";
            break;
        case 2:
            put_key(&buf, "k", 13);
            put_zeros(&buf, 8);
            message = "k: unknown value type 13";
            break;
        case 3:
            put_key(&buf, "k", GGUF_TEXT);
            put_u64(&buf, UINT64_MAX - 7);
            message = "k: text of 18446744073709551608 bytes, but only 0 remain";
            break;
        case 4:
            put_key(&buf, "k", GGUF_ARRAY);
            put_u32(&buf, GGUF_U64);
            put_u64(&buf, UINT64_C(1) << 61); /* times 8 is 0 */
            message = "k: an array of 2305843009213693952 elements of 8 bytes";
            break;
        case 5:
            put_key(&buf, "k", GGUF_ARRAY);
            put_u32(&buf, GGUF_ARRAY);
            put_u64(&buf, 1);
            put_zeros(&buf, 16);
            message = "k: an array of type 9 (array)";
            break;
        case 6:
            put_key(&buf, "k", GGUF_ARRAY);
            put_u32(&buf, GGUF_TEXT);
            put_u64(&buf, 1000000000000);
            put_zeros(&buf, 16);
            message = "k: an array of 1000000000000 texts, but only 16 bytes remain";
            break;
        case 7:
            put_key(&buf, "k", GGUF_ARRAY);
            put_u32(&buf, GGUF_TEXT);
            put_u64(&buf, 2);
            put_u64(&buf, 0);
            put_u64(&buf, 1);
            message = "k: element 1: text of 1 bytes, but only 0 remain";
            break;
        case 8:
            put_key(&buf, "k", GGUF_BOOL);
            buf_append(&buf, "\2", 1);
            put_zeros(&buf, 8);
            message = "k: a bool of 2 (0 or 1)";
            break;
        case 9:
            put_kv_u32(&buf, "general.alignment", 0);
            message = "general.alignment: 0 is not a power of two from 8 to 1048576";
            break;
        case 10:
            put_kv_u32(&buf, "general.alignment", 48);
            message = "general.alignment: 48 is not a power of two";
            break;
        case 11:
            put_kv_text(&buf, "general.alignment", "32");
            message = "general.alignment: is of type text, expected an unsigned integer";
            break;
        case 12:
            put_kv_u32(&buf, "twice", 1);
            put_kv_u32(&buf, "twice", 2);
            message = "twice: the key is there twice";
            break;
        case 13:
            put_key(&buf, "k", GGUF_U64);
            put_zeros(&buf, 7);
            message = "k: the value needs 8 bytes at offset";
            break;
        }
        check_refused(&buf, message);
    }
}

TEST(gguf, refuses_hostile_tensors)
{
    static const struct {
        uint64_t columns, rows;
        uint32_t type;
        uint64_t offset;
        const char *message;
    } cases[] = {
        {0, 1, TENSOR_F32, 0, "tensor t: dimension 0 is 0"},
        {1, 0, TENSOR_F32, 0, "tensor t: dimension 1 is 0"},
        {UINT64_C(1) << 32, UINT64_C(1) << 32, TENSOR_F32, 0, "tensor t: dimension 1 (4294967296)"},
        {UINT64_MAX, 1, TENSOR_F32, 0, "tensor t: dimension 0 (18446744073709551615): too many"},
        {UINT64_C(1) << 62, 1, TENSOR_F32, 0, "tensor t: the size of 4611686018427387904 values"},
        {33, 1, TENSOR_Q8_0, 0, "tensor t: a row of 33 values is not whole Q8_0 blocks of 32"},
        {16, 2, TENSOR_Q4_0, 0, "tensor t: a row of 16 values is not whole Q4_0 blocks"},
        {32, 1, TENSOR_Q4_1, 16, "tensor t: offset 16 is not a multiple of the alignment (32)"},
        {32, 1, TENSOR_Q4_1, 64, "tensor t: offset 160 is past the end of the file (128)"},
        {32, 1, TENSOR_F32, 0, "tensor t: 128 bytes at offset 96 reach past the end of the file"},
        {9, 1, TENSOR_F32, 0,
         "tensor t: 36 bytes at offset 96 reach past the end of the file (128)"},
        {8, 1, TENSOR_F32, UINT64_MAX - 31, "is past the end of the file (128)"},
        {8, 1, 14 /* Q6_K */, 64, "tensor t: offset 160 is past the end of the file (128)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf buf = BUF_INIT;
        put_header(&buf, 3, 1, 0);
        put_tensor(&buf, "t", cases[i].columns, cases[i].rows, cases[i].type, cases[i].offset);
        put_padding(&buf, 32);
        CHECK_INT(buf.bytes, 96);
        put_zeros(&buf, 32);
        check_refused(&buf, cases[i].message);
    }
    static const uint32_t dims[] = {0, 5, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        struct buf buf = BUF_INIT;
        put_header(&buf, 3, 1, 0);
        put_text(&buf, "t");
        put_u32(&buf, dims[i]);
        put_zeros(&buf, 100);
        check_refused(&buf, "dimensions (1 to 4)");
    }
    struct buf buf = BUF_INIT;
    put_header(&buf, 3, 2, 0);
    put_tensor(&buf, "t", 8, 1, TENSOR_F32, 0);
    put_tensor(&buf, "t", 8, 1, TENSOR_F32, 0);
    put_padding(&buf, 32);
    put_zeros(&buf, 32);
    check_refused(&buf, "tensor t: the name is there twice");
    put_header(&buf, 3, 1, 0);
    char name[300];
    memset(name, 'n', 256);
    name[256] = 0;
    put_tensor(&buf, name, 8, 1, TENSOR_F32, 0);
    put_zeros(&buf, 64);
    check_refused(&buf, "tensor 0 of 1: name of 256 bytes (1 to 255)");
    put_header(&buf, 3, 1, 0);
    put_tensor(&buf, "bad\n\x1b[2J", 0, 1, TENSOR_F32, 0);
    put_zeros(&buf, 64);
    check_refused(&buf, "tensor bad??[2J: dimension 0 is 0"); /* nothing reaches the terminal */
}

TEST(gguf, the_last_byte_is_enough_and_one_less_is_not)
{
    for (int missing = 0; missing < 2; missing++) {
        struct buf buf = BUF_INIT;
        put_header(&buf, 3, 1, 0);
        put_tensor(&buf, "t", 8, 1, TENSOR_F32, 0);
        put_padding(&buf, 32);
        put_zeros(&buf, 32 - (size_t)missing);
        struct gguf *gguf;
        struct err err = ERR_INIT;
        void *copy;
        CHECK_INT(open_exact(&buf, &gguf, &err, &copy), missing ? STATUS_FORMAT : STATUS_OK);
        if (!missing)
            gguf_close(gguf);
        free(copy);
        buf_finish(&buf);
    }
}

TEST(gguf, files_that_cannot_be_read)
{
    struct gguf *gguf;
    struct err err = ERR_INIT;
    CHECK_INT(gguf_open("/nonexistent/model.gguf", &gguf, &err), STATUS_IO);
    CHECK_STR(err.message, "/nonexistent/model.gguf: cannot open: No such file or directory");
    CHECK_INT(gguf_open("/", &gguf, &err), STATUS_IO);
    CHECK_STR(err.message, "/: not a regular file");
    char path[] = "/tmp/baton-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    fclose(fdopen(fd, "w"));
    CHECK_INT(gguf_open(path, &gguf, &err), STATUS_FORMAT);
    CHECK(strstr(err.message, ": the file is empty"));
    remove(path);
}

/* Any change of a few bytes of the header gives a model or an error, never a fault. */
TEST(gguf, survives_changed_bytes)
{
    struct tiny tiny = tiny_read();
    uint8_t *changed = malloc(tiny.bytes);
    uint64_t state = 42;
    size_t header = 14000 < tiny.bytes ? 14000 : tiny.bytes;
    int opened = 0;
    for (int round = 0; round < 6000; round++) {
        memcpy(changed, tiny.data, tiny.bytes);
        for (uint64_t i = 0, count = 1 + test_random(&state) % 3; i < count; i++) {
            uint64_t at = test_random(&state) % header;
            static const uint8_t favourites[] = {0, 1, 0x7f, 0x80, 0xff};
            uint64_t draw = test_random(&state);
            changed[at] = draw & 1 ? favourites[draw / 2 % 5] : (uint8_t)(draw >> 8);
        }
        struct model_file *model;
        struct err err = ERR_INIT;
        if (!model_open_memory(changed, tiny.bytes, "x", &model, &err)) {
            opened++;
            model_close(model);
        } else {
            CHECK(err.message[0]);
        }
    }
    CHECK_MSG(opened > 0 && opened < 6000, "%d of 6000 opened", opened);
    free(changed);
    free(tiny.data);
}
