#include "model/detok.h"

#include "base/buf.h"
#include "base/utf8.h"
#include "model/tokenizer.h"
#include "tests/model/tiny.h"

/* The id of a single byte in the built-in vocabulary of the tiny model: three special tokens, then the bytes in order. */
static uint32_t byte_id(uint8_t byte)
{
    return 3u + byte;
}

static void check_text(const struct tokenizer *tokenizer, const char *bytes, size_t count,
                       const char *expected)
{
    uint32_t ids[64];
    for (size_t i = 0; i < count; i++)
        ids[i] = byte_id((uint8_t)bytes[i]);
    struct buf buf = BUF_INIT;
    detok_text(tokenizer, ids, count, &buf);
    buf_append(&buf, "", 1);
    CHECK_STR((char *)buf.data, expected);
    buf_finish(&buf);
}

#define FFFD "\xef\xbf\xbd"

TEST(detok, whole_characters_only)
{
    struct tiny tiny = tiny_read();
    struct model_file *model = tiny_open(tiny);
    const struct tokenizer *tokenizer = model->tokenizer;
    struct detok detok = DETOK_INIT;
    char out[64];
    CHECK(detok_push_bytes_max(tokenizer) <= sizeof out);
    CHECK_INT(detok_push(&detok, tokenizer, byte_id(0xf0), out), 0);
    CHECK_INT(detok_push(&detok, tokenizer, byte_id(0x9f), out), 0);
    CHECK_INT(detok_push(&detok, tokenizer, byte_id(0x98), out), 0);
    struct detok copy = detok; /* a value: two ends of the same beginning */
    CHECK_INT(detok_push(&detok, tokenizer, byte_id(0x80), out), 4);
    CHECK(!memcmp(out, "\xf0\x9f\x98\x80", 4));
    CHECK_INT(detok_push(&copy, tokenizer, 1 /* special: no text, breaks nothing */, out), 0);
    CHECK_INT(detok_push(&copy, tokenizer, 1u << 30 /* outside the vocabulary */, out), 0);
    CHECK_INT(detok_push(&copy, tokenizer, byte_id('x'), out), 4);
    CHECK(!memcmp(out, FFFD "x", 4));
    CHECK_INT(detok_flush(&copy, out), 0);
    CHECK_INT(detok_push(&copy, tokenizer, byte_id(0xe2), out), 0);
    CHECK_INT(detok_flush(&copy, out), 3);
    CHECK_INT(detok_flush(&copy, out), 0);

    /* Unicode 15, 3.9, tables 3-8 to 3-11 */
    check_text(tokenizer, "\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", 9,
               FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    check_text(tokenizer, "\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", 9,
               FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    check_text(tokenizer, "\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", 9,
               FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B");
    check_text(tokenizer, "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", 9, FFFD FFFD FFFD FFFD "A");
    model_close(model);
    free(tiny.data);
}

/* Whatever the bytes: the text of all of them at once, by the definition. */
static size_t replace_all(const uint8_t *bytes, size_t count, uint8_t *out)
{
    size_t written = 0;
    for (size_t at = 0; at < count;) {
        uint32_t c;
        int length = utf8_decode(bytes + at, count - at, &c);
        if (length > 0) {
            memcpy(out + written, bytes + at, (size_t)length);
            written += (size_t)length;
            at += (size_t)length;
        } else {
            memcpy(out + written, FFFD, 3);
            written += 3;
            at += length ? (size_t)-length : count - at;
        }
    }
    return written;
}

TEST(detok, is_a_function_of_the_ids_alone)
{
    struct tiny tiny = tiny_read();
    struct model_file *model = tiny_open(tiny);
    const struct tokenizer *tokenizer = model->tokenizer;
    uint32_t vocab = tokenizer_vocab_size(tokenizer);
    uint64_t state = 3;
    for (int round = 0; round < 4000; round++) {
        uint32_t ids[40];
        size_t count = test_random(&state) % 40, bytes = 0;
        uint8_t raw[1024], expected[3072];
        for (size_t i = 0; i < count; i++) {
            static const uint8_t likely[] = {0xe2, 0x82, 0xac, 0xf0, 0x9f,
                                             0x98, 0x80, 0xc3, 0xa9, 0xed};
            uint64_t draw = test_random(&state);
            ids[i] = draw % 3 ? byte_id(likely[draw / 3 % 10]) : (uint32_t)(draw / 3 % vocab);
            const char *piece;
            size_t length;
            CHECK(tokenizer_piece(tokenizer, ids[i], &piece, &length));
            if (tokenizer_is_special(tokenizer, ids[i]))
                continue;
            memcpy(raw + bytes, piece, length);
            bytes += length;
        }
        size_t expected_bytes = replace_all(raw, bytes, expected), written = 0;
        struct detok detok = DETOK_INIT;
        char out[64];
        for (size_t i = 0; i < count; i++) {
            size_t n = detok_push(&detok, tokenizer, ids[i], out);
            CHECK(n <= detok_push_bytes_max(tokenizer) && utf8_valid(out, n));
            CHECK(written + n <= expected_bytes && !memcmp(out, expected + written, n));
            written += n;
        }
        size_t n = detok_flush(&detok, out);
        CHECK_INT(written + n, expected_bytes);
        CHECK(!memcmp(out, expected + written, n));
    }
    model_close(model);
    free(tiny.data);
}
