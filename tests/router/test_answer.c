#include "base/utf8.h"
#include "router/answer.h"
#include "tests/test.h"

/* --- a toy vocabulary: id i stands for pieces[i], any bytes; "" is a special token --- */

struct toy {
    const char *pieces[64];
    uint32_t count;
};

/* Written apart from model/detok.c, on the same rule: whole characters only, U+FFFD for what cannot become one. */
static size_t toy_push(const void *vocabulary, struct detok *detok, uint32_t id, char *out)
{
    const struct toy *toy = vocabulary;
    const char *piece = id < toy->count ? toy->pieces[id] : "";
    uint8_t bytes[80];
    size_t count = detok->held_bytes, written = 0, at = 0;
    memcpy(bytes, detok->held, count);
    memcpy(bytes + count, piece, strlen(piece));
    count += strlen(piece);
    while (at < count) {
        uint32_t code_point;
        int n = utf8_decode(bytes + at, count - at, &code_point);
        if (n == 0)
            break;
        if (n > 0)
            memcpy(out + written, bytes + at, (size_t)n);
        else
            memcpy(out + written, "\xef\xbf\xbd", 3);
        written += n > 0 ? (size_t)n : 3;
        at += (size_t)(n > 0 ? n : -n);
    }
    detok->held_bytes = (uint8_t)(count - at);
    memcpy(detok->held, bytes + at, count - at);
    return written;
}

static struct toy letters = {.pieces = {"", "a", "b", "c", "ab", "bc", "abc", " ", "\xc3", "\xa9",
                                        "\xc3\xa9", "d\xc3", "<e", "nd>", "<", "x<end>y"},
                             .count = 16};
enum { SPECIAL, A, B, C, AB, BC, ABC, SPACE, C3, A9, E_ACUTE, D_C3, LT_E, ND_GT, LT, X_END_Y };

static struct answer_text text_of(const struct toy *toy)
{
    return (struct answer_text){.push = toy_push, .push_bytes_max = 512, .vocabulary = toy};
}

/* What a client has. */
struct client {
    uint32_t ids[512];
    uint32_t count;
    struct buf text;
    bool last;
    struct answer_top tops[512];
    float logprobs[512];
};

static bool take(struct answer *answer, struct client *client, uint32_t tokens_max)
{
    struct answer_piece piece;
    if (!answer_peek(answer, tokens_max, &piece))
        return false;
    CHECK(!client->last);
    CHECK_INT(piece.position, client->count);
    CHECK(utf8_valid(piece.text, piece.text_bytes));
    for (uint32_t i = 0; i < piece.token_count; i++) {
        if (answer->options.logprobs) {
            const struct answer_top *top;
            uint32_t top_count;
            client->logprobs[client->count] = answer_logprob(answer, &piece, i, &top, &top_count);
            if (top_count)
                client->tops[client->count] = top[0];
        }
        client->ids[client->count++] = piece.ids[i];
    }
    buf_append(&client->text, piece.text, piece.text_bytes);
    client->last = piece.last;
    answer_taken(answer, &piece);
    return true;
}

static void take_all(struct answer *answer, struct client *client)
{
    while (take(answer, client, 100))
        ;
}

static bool text_is(const struct client *client, const char *expected)
{
    return client->text.bytes == strlen(expected) &&
           (!client->text.bytes || !memcmp(client->text.data, expected, client->text.bytes));
}

static enum answer_result give(struct answer *answer, uint32_t position, uint32_t id,
                               enum answer_finish finish)
{
    struct answer_token token = {.id = id, .logprob = -(float)position};
    return answer_receive(answer, position, &token, finish);
}

#define START(...)                                 \
    struct answer_text source = text_of(&letters); \
    struct answer answer;                          \
    struct client client = {0};                    \
    CHECK(answer_init(&answer, &(struct answer_options){.text = &source, __VA_ARGS__}))
#define END(answer_)              \
    do {                          \
        answer_free(&answer_);    \
        buf_finish(&client.text); \
    } while (0)

/* --- by hand --- */

TEST(answer, positions_exactly_once)
{
    START(.tokens_max = 100, .logprobs = true);
    CHECK_INT(give(&answer, 1, B, ANSWER_OPEN), ANSWER_HELD);
    CHECK(answer_has_gap(&answer));
    CHECK(!take(&answer, &client, 9));
    CHECK_INT(give(&answer, 3, SPACE, ANSWER_OPEN), ANSWER_HELD);
    CHECK_INT(give(&answer, 3, SPACE, ANSWER_OPEN), ANSWER_DUPLICATE);
    CHECK_INT(give(&answer, 3, A, ANSWER_OPEN), ANSWER_MISMATCH);
    CHECK_INT(give(&answer, 0, A, ANSWER_OPEN), ANSWER_ACCEPTED);
    CHECK_INT(give(&answer, 0, A, ANSWER_OPEN), ANSWER_DUPLICATE);
    CHECK_INT(give(&answer, 1, C, ANSWER_OPEN), ANSWER_MISMATCH);
    CHECK_INT(give(&answer, 1000, C, ANSWER_OPEN), ANSWER_DROPPED);
    take_all(&answer, &client);
    CHECK_INT(client.count, 2);
    CHECK_INT(give(&answer, 2, C, ANSWER_OPEN), ANSWER_ACCEPTED);
    CHECK(!answer_has_gap(&answer));
    CHECK_INT(give(&answer, 4, SPECIAL, ANSWER_STOP), ANSWER_ACCEPTED);
    CHECK_INT(give(&answer, 5, C, ANSWER_OPEN), ANSWER_DROPPED);
    take_all(&answer, &client);
    CHECK(client.last && text_is(&client, "abc "));
    CHECK_INT(client.count, 5);
    CHECK_INT(answer_count(&answer), 5);
    CHECK_INT(answer.finish, ANSWER_STOP);
    CHECK(client.logprobs[3] == -3.0f);
    END(answer);
}

TEST(answer, a_stop_string_over_token_boundaries)
{
    const char *stops[] = {"<end>"};
    START(.tokens_max = 100, .stops = stops, .stop_count = 1);
    give(&answer, 0, A, ANSWER_OPEN);
    give(&answer, 1, LT_E, ANSWER_OPEN);
    take_all(&answer, &client);
    CHECK(text_is(&client, "a"));
    CHECK_INT(client.count, 1); /* "<e" may be the beginning */
    give(&answer, 2, B, ANSWER_OPEN);
    take_all(&answer, &client);
    CHECK(text_is(&client, "a<eb"));
    CHECK_INT(client.count, 3);
    give(&answer, 3, LT_E, ANSWER_OPEN);
    CHECK(!take(&answer, &client, 9));
    give(&answer, 4, ND_GT, ANSWER_LENGTH); /* at the same position the stop string wins */
    take_all(&answer, &client);
    CHECK(client.last && text_is(&client, "a<eb"));
    CHECK_INT(client.count, 3);
    CHECK_INT(answer_count(&answer), 3);
    CHECK_INT(answer.finish, ANSWER_STOP);
    CHECK_STR(answer_stop_match(&answer), "<end>");
    END(answer);
}

TEST(answer, text_before_a_match_inside_a_token_comes_without_the_token)
{
    const char *stops[] = {"<end>"};
    START(.tokens_max = 100, .stops = stops, .stop_count = 1);
    give(&answer, 0, AB, ANSWER_OPEN);
    give(&answer, 1, X_END_Y, ANSWER_OPEN);
    take_all(&answer, &client);
    CHECK(client.last && text_is(&client, "abx"));
    CHECK_INT(client.count, 1);
    END(answer);
}

TEST(answer, a_stop_string_that_begins_inside_a_cut_character)
{
    const char *stops[] = {"\xc3\xa9"};
    START(.tokens_max = 100, .stops = stops, .stop_count = 1);
    give(&answer, 0, A, ANSWER_OPEN);
    give(&answer, 1, D_C3, ANSWER_OPEN);
    take_all(&answer, &client);
    CHECK_INT(client.count, 1); /* "d" + half a character that may be the match */
    give(&answer, 2, A9, ANSWER_OPEN);
    take_all(&answer, &client);
    CHECK(client.last && text_is(&client, "ad"));
    CHECK_INT(client.count, 1);
    END(answer);
}

TEST(answer, without_stop_strings_ids_do_not_wait_for_characters)
{
    START(.tokens_max = 3);
    give(&answer, 0, C3, ANSWER_OPEN);
    take_all(&answer, &client);
    CHECK_INT(client.count, 1);
    CHECK(text_is(&client, ""));
    give(&answer, 1, A9, ANSWER_OPEN);
    take_all(&answer, &client);
    CHECK(text_is(&client, "\xc3\xa9"));
    give(&answer, 2, C3, ANSWER_LENGTH); /* never completed */
    take_all(&answer, &client);
    CHECK(client.last && text_is(&client, "\xc3\xa9\xef\xbf\xbd"));
    CHECK_INT(client.count, 3);
    END(answer);
}

TEST(answer, min_tokens_come_before_any_stop_string)
{
    const char *stops[] = {"b", "\xc3\xa9"};
    START(.tokens_max = 100, .stops = stops, .stop_count = 2, .min_tokens = 3);
    give(&answer, 0, AB, ANSWER_OPEN);
    give(&answer, 1, B, ANSWER_OPEN);
    give(&answer, 2, C3, ANSWER_OPEN);
    give(&answer, 3, A9, ANSWER_OPEN); /* begun by token 2: not searched */
    CHECK(!answer_ended(&answer));
    give(&answer, 4, AB, ANSWER_OPEN);
    take_all(&answer, &client);
    CHECK(client.last && text_is(&client, "abb\xc3\xa9"
                                          "a"));
    CHECK_INT(client.count, 4);
    END(answer);
}

TEST(answer, the_match_complete_first_wins_and_then_the_longest)
{
    const char *stops[] = {"bc", "abcd", "abc"};
    START(.tokens_max = 100, .stops = stops, .stop_count = 3);
    give(&answer, 0, SPACE, ANSWER_OPEN);
    give(&answer, 1, ABC, ANSWER_OPEN);
    take_all(&answer, &client);
    CHECK_STR(answer_stop_match(&answer), "abc");
    CHECK(text_is(&client, " "));
    END(answer);
}

TEST(answer, a_client_behind_gets_many_tokens_in_one_piece_with_their_logprobs)
{
    START(.tokens_max = 100, .logprobs = true);
    for (uint32_t i = 0; i < 50; i++) {
        struct answer_top top[2] = {{i, -1}, {i + 1, -2}};
        struct answer_token token = {
            .id = A, .logprob = -(float)i, .top = top, .top_count = i % 3 ? 2 : 0};
        CHECK_INT(answer_receive(&answer, i, &token, ANSWER_OPEN), ANSWER_ACCEPTED);
        if (i == 10)
            CHECK(take(&answer, &client, 4));
    }
    CHECK(take(&answer, &client, 16));
    CHECK_INT(client.count, 20);
    CHECK(take(&answer, &client, 100));
    CHECK_INT(client.count, 50);
    for (uint32_t i = 0; i < 50; i++) {
        CHECK(client.logprobs[i] == -(float)i);
        CHECK(i % 3 == 0 || client.tops[i].id == i);
    }
    END(answer);
}

TEST(answer, a_repeated_token_may_bring_the_end)
{
    START(.tokens_max = 9);
    give(&answer, 0, A, ANSWER_OPEN);
    CHECK_INT(give(&answer, 0, A, ANSWER_STOP), ANSWER_DUPLICATE);
    CHECK(answer_ended(&answer));
    END(answer);
}

/* --- resume --- */

static enum status restore(struct answer *answer, const uint32_t *ids, uint32_t count,
                           uint64_t text_bytes, struct err *err)
{
    static const uint32_t end[] = {SPECIAL};
    return answer_restore(answer, ids, count, text_bytes, end, 1, err);
}

TEST(answer, resume_goes_on_with_the_next_token)
{
    const uint32_t ids[] = {AB, C3};
    struct err err = ERR_INIT;
    START(.tokens_max = 9);
    CHECK_INT(restore(&answer, ids, 2, 1, &err), STATUS_OK);
    client.count = 2;
    give(&answer, 1, C3, ANSWER_OPEN); /* a node's repetition */
    give(&answer, 2, A9, ANSWER_STOP);
    take_all(&answer, &client);
    CHECK(client.last && text_is(&client, "b\xc3\xa9")); /* the text after byte 1 */
    CHECK_INT(answer_count(&answer), 3);
    END(answer);
}

TEST(answer, resume_of_an_ended_answer_gives_only_the_last_piece)
{
    const uint32_t ids[] = {A, B, SPECIAL};
    struct err err = ERR_INIT;
    START(.tokens_max = 9);
    CHECK_INT(restore(&answer, ids, 3, 2, &err), STATUS_OK);
    CHECK_INT(answer.finish, ANSWER_STOP);
    client.count = 3;
    CHECK(take(&answer, &client, 9));
    CHECK(client.last && text_is(&client, ""));
    CHECK(!take(&answer, &client, 9));
    END(answer);
}

TEST(answer, resume_of_a_full_answer_ends_as_length)
{
    const uint32_t ids[] = {A, B};
    struct err err = ERR_INIT;
    START(.tokens_max = 2);
    CHECK_INT(restore(&answer, ids, 2, 0, &err), STATUS_OK);
    CHECK_INT(answer.finish, ANSWER_LENGTH);
    client.count = 2;
    take_all(&answer, &client);
    CHECK(client.last && text_is(&client, "ab"));
    END(answer);
}

static void refused(const uint32_t *ids, uint32_t count, uint64_t text_bytes, const char *words)
{
    const char *stops[] = {"bc"};
    struct err err = ERR_INIT;
    START(.tokens_max = 4, .stops = stops, .stop_count = 1);
    CHECK_INT(restore(&answer, ids, count, text_bytes, &err), STATUS_INVALID);
    CHECK_MSG(strstr(err.message, words), "\"%s\" does not say \"%s\"", err.message, words);
    END(answer);
}

TEST(answer, resume_is_checked)
{
    const uint32_t five[] = {A, A, A, A, A}, middle[] = {A, SPECIAL, A}, match[] = {B, C};
    const uint32_t accent[] = {E_ACUTE};
    refused(five, 5, 0, "resume.received: 5 tokens");
    refused(middle, 3, 0, "resume.received");
    refused(match, 2, 0, "stop string \"bc\"");
    refused(five, 2, 3, "resume.text_bytes: 3");
    refused(accent, 1, 1, "inside a character");
}

/* --- against a plain reference, with everything at random --- */

struct reference {
    char text[4096];
    size_t text_bytes;
    uint32_t count;
    int match; /* -1: none */
};

/* All characters of the first `count` ids with the tokens that own their bytes; then the first match by trying each end. */
static struct reference refer(const struct toy *toy, const uint32_t *ids, uint32_t count,
                              const char *const *stops, uint32_t stop_count, uint32_t min_tokens)
{
    uint8_t bytes[4096];
    uint32_t owner[4096];
    size_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        for (const char *s = toy->pieces[ids[i]]; *s; s++) {
            owner[total] = i;
            bytes[total++] = (uint8_t)*s;
        }
    struct reference out = {.match = -1, .count = count};
    uint32_t first_owner[4096], last_owner[4096]; /* of each byte of text, by its character */
    size_t at = 0;
    while (at < total) {
        uint32_t code_point;
        int n = utf8_decode(bytes + at, total - at, &code_point);
        size_t used = n > 0 ? (size_t)n : n < 0 ? (size_t)-n : total - at;
        size_t wrote = n > 0 ? used : 3;
        memcpy(out.text + out.text_bytes, n > 0 ? (const char *)bytes + at : "\xef\xbf\xbd", wrote);
        for (size_t k = 0; k < wrote; k++) {
            first_owner[out.text_bytes + k] = owner[at];
            last_owner[out.text_bytes + k] = owner[at + used - 1];
        }
        out.text_bytes += wrote;
        at += used;
    }
    for (size_t end = 1; end <= out.text_bytes && out.match < 0; end++)
        for (uint32_t k = 0; k < stop_count; k++) {
            size_t n = strlen(stops[k]);
            if (n > end || memcmp(out.text + end - n, stops[k], n) ||
                first_owner[end - n] < min_tokens)
                continue;
            if (out.match < 0 || n > strlen(stops[out.match]))
                out.match = (int)k;
        }
    for (size_t end = 1; out.match >= 0 && end <= out.text_bytes; end++) {
        size_t n = strlen(stops[out.match]);
        if (n > end || memcmp(out.text + end - n, stops[out.match], n) ||
            first_owner[end - n] < min_tokens)
            continue;
        out.count = first_owner[end - n];
        out.text_bytes = end - n;
        break;
    }
    (void)last_owner;
    return out;
}

static unsigned seed_state;

static uint32_t dice(uint32_t sides)
{
    return (uint32_t)rand_r(&seed_state) % sides;
}

static struct toy pool = {.pieces = {"",
                                     "a",
                                     "b",
                                     "ab",
                                     "ba",
                                     "aab",
                                     "\xc3",
                                     "\xa9",
                                     "\xc3\xa9",
                                     "\xe2",
                                     "\x82",
                                     "\xac",
                                     "\xe2\x82",
                                     "a\xe2",
                                     "\xacz",
                                     "\xf0\x9f\x98",
                                     "\x80",
                                     "\xff",
                                     "b\xc3",
                                     "\xa9"
                                     "a",
                                     "z",
                                     "\xe2\x82\xac"},
                          .count = 22};
static const char *const stop_pool[] = {"ab",
                                        "aba",
                                        "b",
                                        "aabaab",
                                        "\xc3\xa9",
                                        "z",
                                        "\xe2\x82\xac",
                                        "\xc3\xa9"
                                        "a",
                                        "ba\xc3\xa9",
                                        "\xf0\x9f\x98\x80",
                                        "bb"};

static void one_random_answer(void)
{
    uint32_t ids[64], count = 1 + dice(60);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = dice(dice(2) ? 6 : pool.count);
    const char *stops[4];
    uint32_t stop_count = dice(4), min_tokens = dice(3) ? 0 : dice(20);
    for (uint32_t i = 0; i < stop_count; i++)
        stops[i] = stop_pool[dice(sizeof stop_pool / sizeof *stop_pool)];
    struct reference want = refer(&pool, ids, count, stops, stop_count, min_tokens);

    struct answer_text source = text_of(&pool);
    struct answer answer;
    struct client client = {0};
    struct answer_options options = {.text = &source,
                                     .stops = stops,
                                     .stop_count = stop_count,
                                     .min_tokens = min_tokens,
                                     .tokens_max = count + dice(3),
                                     .logprobs = dice(2)};
    CHECK(answer_init(&answer, &options));
    enum answer_finish finish = options.tokens_max == count ? ANSWER_LENGTH : ANSWER_STOP;
    /* tokens come with repetitions, in disorder, sometimes all at the end */
    for (uint32_t guard = 0; !answer_ended(&answer); guard++) {
        CHECK(guard < 100000);
        uint32_t at = answer.received, position = dice(3) ? at : at + dice(8);
        if (dice(4) == 0)
            position = dice(count);
        if (position >= count)
            position = count - 1;
        enum answer_result result =
            give(&answer, position, ids[position], position + 1 == count ? finish : ANSWER_OPEN);
        CHECK(result != ANSWER_MISMATCH && result != ANSWER_NO_MEMORY);
        if (dice(3) == 0)
            take(&answer, &client, 1 + dice(4));
        /* what a client has is never taken back */
        CHECK(client.count <= want.count && client.text.bytes <= want.text_bytes);
    }
    while (take(&answer, &client, 1 + dice(5)))
        ;
    CHECK(client.last);
    CHECK_INT(client.count, want.count);
    CHECK_INT(answer_count(&answer), want.count);
    CHECK(!memcmp(client.ids, ids, client.count * sizeof *ids));
    CHECK_INT(client.text.bytes, want.text_bytes);
    CHECK(!want.text_bytes || !memcmp(client.text.data, want.text, want.text_bytes));
    CHECK_INT(answer.finish, want.match >= 0 ? ANSWER_STOP : finish);
    CHECK_STR(answer_stop_match(&answer), want.match >= 0 ? stops[want.match] : "");
    answer_free(&answer);
    buf_finish(&client.text);
}

TEST(answer, random_streams_equal_the_reference)
{
    for (unsigned seed = 1; seed <= 20000; seed++) {
        seed_state = seed;
        one_random_answer();
    }
}

/* Cut anywhere, taken up again with what the client has: the whole is the same. */
TEST(answer, random_resumes_equal_the_reference)
{
    for (unsigned seed = 1; seed <= 10000; seed++) {
        seed_state = seed;
        uint32_t ids[64], count = 1 + dice(40);
        for (uint32_t i = 0; i < count; i++)
            ids[i] = 1 + dice(pool.count - 1);
        const char *stops[2] = {stop_pool[dice(11)], stop_pool[dice(11)]};
        uint32_t stop_count = dice(3), min_tokens = dice(3) ? 0 : dice(9);
        struct reference want = refer(&pool, ids, count, stops, stop_count, min_tokens);
        struct answer_text source = text_of(&pool);
        struct client client = {0};
        struct answer_options options = {.text = &source,
                                         .stops = stops,
                                         .stop_count = stop_count,
                                         .min_tokens = min_tokens,
                                         .tokens_max = count};
        while (!client.last) {
            struct answer answer;
            struct err err = ERR_INIT;
            CHECK(answer_init(&answer, &options));
            CHECK_MSG(answer_restore(&answer, client.ids, client.count, client.text.bytes, NULL, 0,
                                     &err) == STATUS_OK,
                      "seed %u: %s", seed, err.message);
            uint32_t life = 1 + dice(10);
            while (life-- && !answer_ended(&answer)) {
                uint32_t at = answer.received;
                give(&answer, at, ids[at], at + 1 == count ? ANSWER_LENGTH : ANSWER_OPEN);
                take(&answer, &client, 1 + dice(3));
            }
            if (answer_ended(&answer))
                while (dice(4) && take(&answer, &client, 1 + dice(3)))
                    ;
            answer_free(&answer);
        }
        CHECK_INT(client.count, want.count);
        CHECK(!memcmp(client.ids, ids, client.count * sizeof *ids));
        CHECK_MSG(client.text.bytes == want.text_bytes, "seed %u", seed);
        CHECK(!want.text_bytes || !memcmp(client.text.data, want.text, want.text_bytes));
        buf_finish(&client.text);
    }
}
