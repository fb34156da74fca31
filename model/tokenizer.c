/* See tokenizer.h: encoding of whole texts, and what callers ask about tokens. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer_internal.h"

/* Positions in a word are 32-bit. */
static const size_t text_bytes_max = (size_t)1 << 30;

bool token_list_append(struct token_list *list, uint32_t id)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        uint32_t *ids = realloc(list->ids, capacity * sizeof *ids);
        if (!ids)
            return false;
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->count++] = id;
    return true;
}

void token_list_finish(struct token_list *list)
{
    free(list->ids);
    *list = TOKEN_LIST_INIT;
}

/* The longest token that stands literally at the start of the text, or TOKEN_NONE. */
static uint32_t literal_at(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                           bool parse_special)
{
    uint8_t first = (uint8_t)text[0];
    if (!parse_special && !tokenizer->literal_plain[first])
        return TOKEN_NONE;
    for (uint32_t i = tokenizer->literal_start[first]; i < tokenizer->literal_start[first + 1];
         i++) {
        uint32_t id = tokenizer->literals[i];
        size_t length = tokenizer->piece_start[id + 1] - tokenizer->piece_start[id];
        if (!parse_special && tokenizer->kinds[id] != TOKEN_USER_DEFINED)
            continue;
        if (length <= bytes &&
            !memcmp(tokenizer->pieces + tokenizer->piece_start[id], text, length))
            return id;
    }
    return TOKEN_NONE;
}

/* Text without literal tokens. */
static bool encode_plain(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                         const char *text, size_t bytes, struct token_list *ids)
{
    for (size_t at = 0; at < bytes;) {
        size_t word = tokenizer->pretokenizer_next(text + at, bytes - at);
        if (!bpe_encode_word(tokenizer, scratch, text + at, word, ids))
            return false;
        at += word;
    }
    return true;
}

static bool encode(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                   const char *text, size_t bytes, struct tokenizer_options options,
                   struct token_list *ids)
{
    if (options.add_special && tokenizer->add_bos && !token_list_append(ids, tokenizer->bos))
        return false;
    size_t plain = 0; /* where the text not encoded yet begins */
    for (size_t at = 0; at < bytes;) {
        uint32_t id = literal_at(tokenizer, text + at, bytes - at, options.parse_special);
        if (id == TOKEN_NONE) {
            at++;
            continue;
        }
        if (!encode_plain(tokenizer, scratch, text + plain, at - plain, ids) ||
            !token_list_append(ids, id))
            return false;
        at += tokenizer->piece_start[id + 1] - tokenizer->piece_start[id];
        plain = at;
    }
    if (!encode_plain(tokenizer, scratch, text + plain, bytes - plain, ids))
        return false;
    return !options.add_special || !tokenizer->add_eos || token_list_append(ids, tokenizer->eos);
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                             const char *text, size_t bytes, struct tokenizer_options options,
                             struct token_list *ids, struct err *err)
{
    if (bytes > text_bytes_max)
        return err_set(err, STATUS_INVALID, "a text of %zu bytes (at most %zu)", bytes,
                       text_bytes_max);
    size_t valid = utf8_valid_prefix(text, bytes);
    if (valid != bytes)
        return err_set(err, STATUS_INVALID, "not valid UTF-8 at byte %zu (0x%02x)", valid,
                       (uint8_t)text[valid]);
    size_t before = ids->count;
    if (!encode(tokenizer, scratch, text, bytes, options, ids)) {
        ids->count = before;
        return err_set(err, STATUS_MEMORY, "no memory for the tokens of %zu bytes", bytes);
    }
    return STATUS_OK;
}

uint32_t tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
    return tokenizer->vocab;
}

bool tokenizer_piece(const struct tokenizer *tokenizer, uint32_t id, const char **data_out,
                     size_t *bytes_out)
{
    if (id >= tokenizer->vocab)
        return false;
    *data_out = tokenizer->pieces + tokenizer->piece_start[id];
    *bytes_out = tokenizer->piece_start[id + 1] - tokenizer->piece_start[id];
    return true;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->vocab && tokenizer->kinds[id] != TOKEN_NORMAL &&
           tokenizer->kinds[id] != TOKEN_USER_DEFINED;
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t id)
{
    for (size_t i = 0; i < tokenizer->end_count; i++)
        if (tokenizer->end_ids[i] == id)
            return true;
    return false;
}

const uint32_t *tokenizer_end_ids(const struct tokenizer *tokenizer, size_t *count_out)
{
    *count_out = tokenizer->end_count;
    return tokenizer->end_ids;
}

uint32_t tokenizer_special_find(const struct tokenizer *tokenizer, const char *literal)
{
    size_t bytes = strlen(literal);
    if (!bytes)
        return TOKEN_NONE;
    uint8_t first = (uint8_t)literal[0];
    for (uint32_t i = tokenizer->literal_start[first]; i < tokenizer->literal_start[first + 1];
         i++) {
        uint32_t id = tokenizer->literals[i];
        if (tokenizer_is_special(tokenizer, id) &&
            tokenizer->piece_start[id + 1] - tokenizer->piece_start[id] == bytes &&
            !memcmp(tokenizer->pieces + tokenizer->piece_start[id], literal, bytes))
            return id;
    }
    return TOKEN_NONE;
}

uint32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->bos;
}

uint32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->add_bos;
}

const char *tokenizer_pre_name(const struct tokenizer *tokenizer)
{
    return tokenizer->pretokenizer_name;
}

size_t tokenizer_piece_bytes_max(const struct tokenizer *tokenizer)
{
    return tokenizer->piece_bytes_max;
}
