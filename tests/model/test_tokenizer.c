#include "model/tokenizer.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "model/detok.h"
#include "model/tokenizer_internal.h"
#include "tests/model/tiny.h"

static struct tiny tiny;
static struct model_file *model;
static struct tokenizer *tokenizer;
static struct tokenizer_scratch *scratch;
static struct token_list ids;

static void start(void)
{
    tiny = tiny_read();
    model = tiny_open(tiny);
    tokenizer = model->tokenizer;
    scratch = tokenizer_scratch_create();
    CHECK(scratch);
}

static void finish(void)
{
    token_list_finish(&ids);
    tokenizer_scratch_destroy(scratch);
    model_close(model);
    free(tiny.data);
}

static void encode(const char *text, size_t bytes, struct tokenizer_options options)
{
    struct err err = ERR_INIT;
    ids.count = 0;
    CHECK_MSG(!tokenizer_encode(tokenizer, scratch, text, bytes, options, &ids, &err), "%s",
              err.message);
}

static void check_pieces(const char *text, bool parse_special, const char *const *pieces)
{
    encode(text, strlen(text), (struct tokenizer_options){.parse_special = parse_special});
    size_t count = 0;
    for (; pieces[count]; count++) {
        const char *data;
        size_t bytes;
        CHECK_MSG(count < ids.count, "\"%s\": no token %zu", text, count);
        CHECK(tokenizer_piece(tokenizer, ids.ids[count], &data, &bytes));
        CHECK_MSG(bytes == strlen(pieces[count]) && !memcmp(data, pieces[count], bytes),
                  "\"%s\": token %zu is \"%.*s\", expected \"%s\"", text, count, (int)bytes, data,
                  pieces[count]);
    }
    CHECK_INT(ids.count, count);
}

#define PIECES(...)       \
    (const char *const[]) \
    {                     \
        __VA_ARGS__, NULL \
    }

TEST(tokenizer, merges_by_rank_inside_words)
{
    start();
    check_pieces("the the", false, PIECES("t", "he", " the"));
    check_pieces(" and", false, PIECES(" ", "an", "d")); /* "a n" is of lower rank than " a" */
    check_pieces("and", false, PIECES("an", "d"));
    check_pieces("aaaaa", false, PIECES("aaaa", "a"));
    finish();
}

TEST(tokenizer, words_of_the_pretokenizer)
{
    start();
    check_pieces("00", false, PIECES("0", "0")); /* a merge exists, but numbers stand alone */
    check_pieces("\n\n0", false, PIECES("\n", "\n", "0"));
    check_pieces("I'll", false, PIECES("I", "'", "ll"));
    check_pieces("  the", false, PIECES(" ", " the"));
    check_pieces("\t the", false, PIECES("\t", " the"));
    check_pieces("!!", false, PIECES("!!"));
    finish();
}

TEST(tokenizer, special_tokens_only_when_asked)
{
    start();
    encode("<|im_end|>", 10, (struct tokenizer_options){0});
    for (size_t i = 0; i < ids.count; i++)
        CHECK(!tokenizer_is_special(tokenizer, ids.ids[i]));
    CHECK(ids.count > 1);
    check_pieces(
        "a<|im_end|><|im_start|>a<|im_end", true,
        PIECES("a", "<|im_end|>", "<|im_start|>", "a", "<", "|", "i", "m", "_", "en", "d"));
    CHECK_INT(ids.ids[1], 2);
    CHECK(tokenizer_is_special(tokenizer, 2) && tokenizer_is_end(tokenizer, 2));
    CHECK(tokenizer_is_end(tokenizer, 0) && !tokenizer_is_end(tokenizer, 1));
    CHECK(!tokenizer_is_end(tokenizer, TOKEN_NONE) && !tokenizer_is_special(tokenizer, 1u << 30));
    CHECK_INT(tokenizer_special_find(tokenizer, "<|im_start|>"), 1);
    CHECK_INT(tokenizer_special_find(tokenizer, "<|im_star"), TOKEN_NONE);
    CHECK_INT(tokenizer_special_find(tokenizer, "t"), TOKEN_NONE);
    size_t count;
    const uint32_t *ends = tokenizer_end_ids(tokenizer, &count);
    CHECK(count == 2 && ends[0] == 0 && ends[1] == 2);
    CHECK_INT(tokenizer_bos(tokenizer), 1);
    CHECK_INT(tokenizer_eos(tokenizer), 2);
    finish();
}

TEST(tokenizer, add_special_does_what_the_file_says)
{
    start();
    encode("a", 1, (struct tokenizer_options){.add_special = true});
    CHECK_INT(ids.count, 1);
    finish();
    tiny = tiny_read();
    size_t bytes;
    *tiny_value(tiny, "tokenizer.ggml.add_bos_token", &bytes) = 1;
    model = tiny_open(tiny);
    tokenizer = model->tokenizer;
    scratch = tokenizer_scratch_create();
    CHECK(tokenizer_adds_bos(tokenizer));
    encode("a", 1, (struct tokenizer_options){.add_special = true});
    CHECK(ids.count == 2 && ids.ids[0] == 1);
    encode("a", 1, (struct tokenizer_options){.add_special = false});
    CHECK_INT(ids.count, 1);
    finish();
}

TEST(tokenizer, invalid_utf8_is_named_by_its_byte)
{
    start();
    struct err err = ERR_INIT;
    CHECK(token_list_append(&ids, 7));
    CHECK_INT(tokenizer_encode(tokenizer, scratch, "abc\xe2\x82(", 6, (struct tokenizer_options){0},
                               &ids, &err),
              STATUS_INVALID);
    CHECK_STR(err.message, "not valid UTF-8 at byte 3 (0xe2)");
    CHECK_INT(tokenizer_encode(tokenizer, scratch, "\xed\xa0\x80", 3, (struct tokenizer_options){0},
                               &ids, &err),
              STATUS_INVALID);
    CHECK_STR(err.message, "not valid UTF-8 at byte 0 (0xed)");
    CHECK_INT(ids.count, 1); /* as before */
    encode("a\0b", 3, (struct tokenizer_options){0});
    CHECK_INT(ids.count, 3);
    encode("", 0, (struct tokenizer_options){0});
    CHECK_INT(ids.count, 0);
    finish();
}

/* Random text: many scripts, few words, so that merges happen. */
static size_t random_text(uint64_t *state, char *out, size_t bytes_max)
{
    static const char *const words[] = {" the", "the", " and", "ing", "aaaa", "!!", "  ", "\n",
                                        "'s",   "'ll", "0",    "00",  " I",   "é",  "中", "\0"};
    size_t bytes = 0;
    while (bytes + 8 < bytes_max) {
        uint64_t draw = test_random(state);
        if (draw % 4) {
            const char *word = words[draw / 4 % 16];
            size_t length = *word ? strlen(word) : 1;
            memcpy(out + bytes, word, length);
            bytes += length;
        } else {
            uint32_t c = (uint32_t)(draw >> 8) % (draw & 16 ? 0x110000 : 0x3000);
            if (c < 0xd800 || c > 0xdfff)
                bytes += (size_t)utf8_encode(c, (uint8_t *)out + bytes);
        }
    }
    return bytes;
}

TEST(tokenizer, text_comes_back)
{
    start();
    uint64_t state = 1;
    char text[400];
    struct buf back = BUF_INIT;
    for (int round = 0; round < 3000; round++) {
        size_t bytes = random_text(&state, text, 8 + test_random(&state) % 390);
        encode(text, bytes, (struct tokenizer_options){0});
        buf_clear(&back);
        detok_text(tokenizer, ids.ids, ids.count, &back);
        CHECK_MSG(back.bytes == bytes && !memcmp(back.data, text, bytes), "round %d", round);
        for (size_t i = 0; i < ids.count; i++)
            CHECK(!tokenizer_is_special(tokenizer, ids.ids[i]));
    }
    buf_finish(&back);
    finish();
}

/* The definition, as slow as it is plain: the pair of lowest rank, the leftmost among equals, until there is none. */
static size_t merge_plainly(uint32_t *word, size_t count)
{
    for (;;) {
        const struct merge *best = NULL;
        size_t best_at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            const struct merge *merge = tokenizer_merge_find(tokenizer, word[i], word[i + 1]);
            if (merge && (!best || merge->rank < best->rank)) {
                best = merge;
                best_at = i;
            }
        }
        if (!best)
            return count;
        word[best_at] = best->merged;
        count--;
        memmove(word + best_at + 1, word + best_at + 2, (count - best_at - 1) * sizeof *word);
    }
}

TEST(tokenizer, short_and_long_words_merge_as_defined)
{
    start();
    uint64_t state = 5;
    static const char letters[] = "aaaaaathehnigrdoslllc";
    for (int round = 0; round < 3000; round++) {
        char word[300];
        uint32_t expected[300];
        size_t bytes = 1 + test_random(&state) % (round % 2 ? 30 : sizeof word);
        for (size_t i = 0; i < bytes; i++) {
            word[i] = letters[test_random(&state) % (sizeof letters - 1)];
            expected[i] = tokenizer->byte_ids[(uint8_t)word[i]];
        }
        encode(word, bytes, (struct tokenizer_options){0});
        size_t count = merge_plainly(expected, bytes);
        CHECK_INT(ids.count, count);
        CHECK(!memcmp(ids.ids, expected, count * sizeof *expected));
    }
    finish();
}

TEST(tokenizer, a_megabyte_of_one_letter_takes_no_square_time)
{
    start();
    size_t bytes = 1 << 20;
    char *text = malloc(bytes);
    static const char fills[] = "a 0!\n";
    for (int i = 0; fills[i]; i++) {
        memset(text, fills[i], bytes);
        uint64_t before = clock_now_ns();
        encode(text, bytes, (struct tokenizer_options){.parse_special = true});
        uint64_t took_ns = clock_now_ns() - before;
        CHECK_MSG(took_ns < 30 * NS_PER_S, "%c: %llu ms", fills[i],
                  (unsigned long long)(took_ns / NS_PER_MS));
        if (fills[i] == 'a')
            CHECK_INT(ids.count, bytes / 4);
    }
    free(text);
    finish();
}
