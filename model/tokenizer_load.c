/* Builds a tokenizer from a GGUF file. Every id, kind and merge is checked here, so that encoding checks nothing.
 *
 * GPT-2's alphabet: a file holds byte-level tokens as text in which each byte is one printable character ("Ġ" is the space);
 * pieces are kept as the bytes themselves. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/pretokenizer.h"
#include "model/tokenizer_internal.h"

/* Texts of tokens to ids, while loading. */
struct text_index {
    const struct gguf_text *texts; /* by id */
    uint32_t *slots;               /* ids; TOKEN_NONE: empty */
    uint32_t mask;
};

/* A power of two, at least twice `count`. */
static uint32_t slots_for(uint64_t count)
{
    uint32_t slots = 16;
    while (slots < count * 2)
        slots *= 2;
    return slots;
}

static uint32_t *text_index_slot(const struct text_index *index, struct gguf_text text)
{
    uint32_t slot = (uint32_t)XXH3_64bits(text.data, text.bytes) & index->mask;
    while (index->slots[slot] != TOKEN_NONE) {
        struct gguf_text other = index->texts[index->slots[slot]];
        if (other.bytes == text.bytes && !memcmp(other.data, text.data, text.bytes))
            break;
        slot = (slot + 1) & index->mask;
    }
    return &index->slots[slot];
}

static uint32_t text_index_find(const struct text_index *index, struct gguf_text text)
{
    return *text_index_slot(index, text);
}

/* The byte that a character of GPT-2's alphabet stands for, or -1. Printable Latin-1 stands for itself; the other 68 bytes, in
 * order, are U+0100 and on. */
static int alphabet_byte(uint32_t code_point)
{
    if ((code_point >= 0x21 && code_point <= 0x7e) || (code_point >= 0xa1 && code_point <= 0xac) ||
        (code_point >= 0xae && code_point <= 0xff))
        return (int)code_point;
    if (code_point < 0x100 || code_point >= 0x100 + 68)
        return -1;
    uint32_t index = code_point - 0x100;
    if (index <= 0x20)
        return (int)index;
    index -= 0x21;
    if (index < 0xa1 - 0x7f)
        return (int)(0x7f + index);
    return 0xad;
}

/* Writes the bytes of a byte-level token; at most as many as its text has. Returns how many, or -1. */
static long piece_decode(struct gguf_text text, char *out)
{
    long count = 0;
    for (size_t at = 0; at < text.bytes; count++) {
        uint32_t code_point;
        int length = utf8_decode(text.data + at, text.bytes - at, &code_point);
        int byte = length > 0 ? alphabet_byte(code_point) : -1;
        if (byte < 0)
            return -1;
        out[count] = (char)byte;
        at += (size_t)length;
    }
    return count;
}

static enum status load_piece(struct tokenizer *tokenizer, uint32_t id, uint32_t kind,
                              struct gguf_text text, struct err *err)
{
    char *out = tokenizer->pieces + tokenizer->piece_start[id];
    long bytes = (long)text.bytes;
    if (kind < TOKEN_NORMAL || kind > TOKEN_UNUSED)
        return err_set(err, STATUS_FORMAT, "tokenizer.ggml.token_type: token %u is of type %u", id,
                       kind);
    if (!text.bytes)
        return err_set(err, STATUS_FORMAT, "tokenizer.ggml.tokens: token %u is empty", id);
    if (kind == TOKEN_NORMAL) {
        bytes = piece_decode(text, out);
        if (bytes < 0)
            return err_set(err, STATUS_FORMAT,
                           "tokenizer.ggml.tokens: token %u is not in the byte-level alphabet", id);
        if (bytes == 1)
            tokenizer->byte_ids[(uint8_t)out[0]] = id;
    } else {
        if (!utf8_valid(text.data, text.bytes))
            return err_set(err, STATUS_FORMAT, "tokenizer.ggml.tokens: token %u is not UTF-8", id);
        memcpy(out, text.data, text.bytes);
    }
    tokenizer->kinds[id] = (uint8_t)kind;
    tokenizer->piece_start[id + 1] = tokenizer->piece_start[id] + (uint32_t)bytes;
    if ((size_t)bytes > tokenizer->piece_bytes_max)
        tokenizer->piece_bytes_max = (size_t)bytes;
    return STATUS_OK;
}

/* Fills the vocabulary and `index`, whose memory the caller frees. */
static enum status load_vocab(struct tokenizer *tokenizer, const struct gguf *gguf,
                              struct text_index *index, struct err *err)
{
    struct gguf_array tokens, kinds;
    enum status status = gguf_get_array(gguf, "tokenizer.ggml.tokens", GGUF_TEXT, &tokens, err);
    if (status == STATUS_OK)
        status = gguf_get_array(gguf, "tokenizer.ggml.token_type", GGUF_I32, &kinds, err);
    if (status)
        return status;
    const char *name = gguf_name(gguf);
    if (!tokens.count || tokens.count > MODEL_VOCAB_MAX)
        return err_set(err, STATUS_FORMAT, "%s: tokenizer.ggml.tokens: %llu tokens (1 to %d)", name,
                       (unsigned long long)tokens.count, MODEL_VOCAB_MAX);
    if (kinds.count != tokens.count)
        return err_set(err, STATUS_FORMAT,
                       "%s: tokenizer.ggml.token_type: %llu types for %llu tokens", name,
                       (unsigned long long)kinds.count, (unsigned long long)tokens.count);
    uint32_t vocab = tokenizer->vocab = (uint32_t)tokens.count;
    size_t text_bytes = (size_t)(tokens.end - tokens.data) - 8 * (size_t)vocab;
    if (text_bytes > UINT32_MAX)
        return err_set(err, STATUS_FORMAT, "%s: tokenizer.ggml.tokens: %zu bytes (at most %u)",
                       name, text_bytes, UINT32_MAX);
    index->mask = slots_for(vocab) - 1;
    struct gguf_text *texts = calloc(vocab, sizeof *texts);
    index->texts = texts;
    index->slots = malloc(((size_t)index->mask + 1) * sizeof *index->slots);
    tokenizer->pieces = malloc(text_bytes ? text_bytes : 1);
    tokenizer->piece_start = calloc((size_t)vocab + 1, sizeof *tokenizer->piece_start);
    tokenizer->kinds = calloc(vocab, 1);
    if (!texts || !index->slots || !tokenizer->pieces || !tokenizer->piece_start ||
        !tokenizer->kinds)
        return err_set(err, STATUS_MEMORY, "%s: no memory for %u tokens", name, vocab);
    memset(index->slots, 0xff, ((size_t)index->mask + 1) * sizeof *index->slots);
    memset(tokenizer->byte_ids, 0xff, sizeof tokenizer->byte_ids);

    for (uint32_t id = 0; id < vocab; id++) {
        gguf_array_next_text(&tokens, &texts[id]);
        status = load_piece(tokenizer, id, gguf_array_u32(&kinds, id), texts[id], err);
        if (status) {
            err_wrap(err, "%s", name);
            return status;
        }
        uint32_t *slot = text_index_slot(index, texts[id]);
        if (*slot != TOKEN_NONE)
            return err_set(err, STATUS_FORMAT,
                           "%s: tokenizer.ggml.tokens: tokens %u and %u are the same", name, *slot,
                           id);
        *slot = id;
    }
    return STATUS_OK;
}

static enum status load_merge(struct tokenizer *tokenizer, const struct text_index *index,
                              uint32_t rank, struct gguf_text text, struct err *err)
{
    const char *space = memchr(text.data, ' ', text.bytes);
    char joined[2 * 4096];
    if (!space || space == text.data || space + 1 == text.data + text.bytes ||
        text.bytes > sizeof joined)
        return err_set(err, STATUS_FORMAT, "merge %u is not two tokens with a space between", rank);
    size_t left_bytes = (size_t)(space - text.data), right_bytes = text.bytes - left_bytes - 1;
    struct merge merge = {.rank = rank};
    merge.left = text_index_find(index, (struct gguf_text){text.data, left_bytes});
    merge.right = text_index_find(index, (struct gguf_text){space + 1, right_bytes});
    memcpy(joined, text.data, left_bytes);
    memcpy(joined + left_bytes, space + 1, right_bytes);
    merge.merged = text_index_find(index, (struct gguf_text){joined, left_bytes + right_bytes});
    const uint32_t ids[] = {merge.left, merge.right, merge.merged};
    for (int i = 0; i < 3; i++)
        if (ids[i] == TOKEN_NONE || tokenizer->kinds[ids[i]] != TOKEN_NORMAL)
            return err_set(err, STATUS_FORMAT, "merge %u: its %s is not a normal token", rank,
                           i == 0   ? "left side"
                           : i == 1 ? "right side"
                                    : "result");
    if (tokenizer_merge_find(tokenizer, merge.left, merge.right))
        return err_set(err, STATUS_FORMAT, "merge %u is there twice", rank);
    uint32_t slot = tokenizer_pair_hash(merge.left, merge.right) & tokenizer->merge_mask;
    while (tokenizer->merges[slot].left != TOKEN_NONE)
        slot = (slot + 1) & tokenizer->merge_mask;
    tokenizer->merges[slot] = merge;
    return STATUS_OK;
}

static enum status load_merges(struct tokenizer *tokenizer, const struct gguf *gguf,
                               const struct text_index *index, struct err *err)
{
    struct gguf_array merges;
    enum status status = gguf_get_array(gguf, "tokenizer.ggml.merges", GGUF_TEXT, &merges, err);
    if (status)
        return status;
    if (merges.count > 2 * MODEL_VOCAB_MAX)
        return err_set(err, STATUS_FORMAT, "%s: tokenizer.ggml.merges: %llu merges (at most %d)",
                       gguf_name(gguf), (unsigned long long)merges.count, 2 * MODEL_VOCAB_MAX);
    uint32_t slots = slots_for(merges.count);
    tokenizer->merges = malloc(slots * sizeof *tokenizer->merges);
    if (!tokenizer->merges)
        return err_set(err, STATUS_MEMORY, "%s: no memory for %llu merges", gguf_name(gguf),
                       (unsigned long long)merges.count);
    memset(tokenizer->merges, 0xff, slots * sizeof *tokenizer->merges);
    tokenizer->merge_mask = slots - 1;
    struct gguf_text text;
    for (uint32_t rank = 0; gguf_array_next_text(&merges, &text); rank++) {
        status = load_merge(tokenizer, index, rank, text, err);
        if (status) {
            err_wrap(err, "%s: tokenizer.ggml.merges", gguf_name(gguf));
            return status;
        }
    }
    return STATUS_OK;
}

static size_t piece_bytes(const struct tokenizer *tokenizer, uint32_t id)
{
    return tokenizer->piece_start[id + 1] - tokenizer->piece_start[id];
}

/* By first byte, then the longest first. */
static int order_literals(const void *a, const void *b, void *context)
{
    const struct tokenizer *tokenizer = context;
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    uint8_t first_left = (uint8_t)tokenizer->pieces[tokenizer->piece_start[left]];
    uint8_t first_right = (uint8_t)tokenizer->pieces[tokenizer->piece_start[right]];
    if (first_left != first_right)
        return first_left < first_right ? -1 : 1;
    size_t bytes_left = piece_bytes(tokenizer, left), bytes_right = piece_bytes(tokenizer, right);
    return bytes_left != bytes_right ? (bytes_left > bytes_right ? -1 : 1)
                                     : (left > right) - (left < right);
}

static enum status load_literals(struct tokenizer *tokenizer, const char *name, struct err *err)
{
    uint32_t count = 0;
    for (uint32_t id = 0; id < tokenizer->vocab; id++)
        count += tokenizer->kinds[id] != TOKEN_NORMAL && tokenizer->kinds[id] != TOKEN_UNUSED;
    tokenizer->literals = malloc((count ? count : 1) * sizeof *tokenizer->literals);
    if (!tokenizer->literals)
        return err_set(err, STATUS_MEMORY, "%s: no memory for %u special tokens", name, count);
    count = 0;
    for (uint32_t id = 0; id < tokenizer->vocab; id++) {
        uint8_t kind = tokenizer->kinds[id];
        if (kind == TOKEN_NORMAL || kind == TOKEN_UNUSED)
            continue;
        tokenizer->literals[count++] = id;
        uint8_t first = (uint8_t)tokenizer->pieces[tokenizer->piece_start[id]];
        tokenizer->literal_start[first + 1]++;
        tokenizer->literal_plain[first] |= kind == TOKEN_USER_DEFINED;
    }
    for (int byte = 0; byte < 256; byte++)
        tokenizer->literal_start[byte + 1] += tokenizer->literal_start[byte];
    qsort_r(tokenizer->literals, count, sizeof *tokenizer->literals, order_literals, tokenizer);
    return STATUS_OK;
}

/* TOKEN_NONE when the key is absent. */
static enum status load_id(const struct tokenizer *tokenizer, const struct gguf *gguf,
                           const char *key, uint32_t *id_out, struct err *err)
{
    uint32_t id = TOKEN_NONE;
    if (gguf_has(gguf, key)) {
        enum status status = gguf_get_u32(gguf, key, &id, err);
        if (status)
            return status;
        if (id >= tokenizer->vocab)
            return err_set(err, STATUS_FORMAT, "%s: %s: %u is not below the vocabulary (%u)",
                           gguf_name(gguf), key, id, tokenizer->vocab);
    }
    *id_out = id;
    return STATUS_OK;
}

static enum status load_flag(const struct gguf *gguf, const char *key, uint32_t id, bool *flag_out,
                             struct err *err)
{
    bool flag = false;
    if (gguf_has(gguf, key)) {
        enum status status = gguf_get_bool(gguf, key, &flag, err);
        if (status)
            return status;
        if (flag && id == TOKEN_NONE)
            return err_set(err, STATUS_FORMAT, "%s: %s: is true, but the file names no such token",
                           gguf_name(gguf), key);
    }
    *flag_out = flag;
    return STATUS_OK;
}

static int order_ids(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

/* The tokens that end a generation by their text, as llama.cpp decides it; those of other families do no harm. */
static const char *const end_literals[] = {
    "<|endoftext|>",   "<|im_end|>",    "<|eot_id|>",    "<|eom_id|>", "<|end|>",
    "<|end_of_text|>", "</s>",          "<end_of_turn>", "<EOT>",      "_<EOT>",
    "<|return|>",      "<|call|>",      "<|flush|>",     "<|calls|>",  "<end_of_utterance>",
    "<reponame>",      "<|repo_name|>", "<|file_sep|>",
};
enum { END_LITERALS = sizeof end_literals / sizeof end_literals[0] };

static enum status load_ends(struct tokenizer *tokenizer, const struct gguf *gguf, struct err *err)
{
    uint32_t ids[END_LITERALS + 3];
    size_t count = 0;
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (int i = 0; i < 3; i++) {
        enum status status = load_id(tokenizer, gguf, keys[i], &ids[count], err);
        if (status)
            return status;
        if (i == 0)
            tokenizer->eos = ids[count];
        count += ids[count] != TOKEN_NONE;
    }
    for (int i = 0; i < END_LITERALS; i++) {
        ids[count] = tokenizer_special_find(tokenizer, end_literals[i]);
        count += ids[count] != TOKEN_NONE;
    }
    qsort(ids, count, sizeof *ids, order_ids);
    tokenizer->end_ids = malloc((count ? count : 1) * sizeof *ids);
    if (!tokenizer->end_ids)
        return err_set(err, STATUS_MEMORY, "%s: no memory", gguf_name(gguf));
    for (size_t i = 0; i < count; i++)
        if (!i || ids[i] != ids[i - 1])
            tokenizer->end_ids[tokenizer->end_count++] = ids[i];
    return STATUS_OK;
}

static enum status load_kind_of_model(struct tokenizer *tokenizer, const struct gguf *gguf,
                                      struct err *err)
{
    struct gguf_text model, pre;
    char print[64];
    enum status status = gguf_get_text(gguf, "tokenizer.ggml.model", &model, err);
    if (status == STATUS_OK)
        status = gguf_get_text(gguf, "tokenizer.ggml.pre", &pre, err);
    if (status)
        return status;
    const char *key = "tokenizer.ggml.model", *known = "gpt2";
    struct gguf_text found = model;
    if (gguf_text_is(model, "gpt2")) {
        if (gguf_text_is(pre, "smollm")) {
            tokenizer->pretokenizer_next = pretokenizer_smollm_next;
            tokenizer->pretokenizer_name = "smollm";
            return STATUS_OK;
        }
        key = "tokenizer.ggml.pre";
        known = "smollm";
        found = pre;
    }
    size_t bytes = found.bytes < sizeof print - 1 ? found.bytes : sizeof print - 1;
    for (size_t i = 0; i < bytes; i++)
        print[i] = found.data[i] < 0x20 || found.data[i] > 0x7e ? '?' : found.data[i];
    print[bytes] = 0;
    return err_set(err, STATUS_UNIMPLEMENTED, "%s: %s: \"%s\" is not supported (known: %s)",
                   gguf_name(gguf), key, print, known);
}

static enum status load(struct tokenizer *tokenizer, const struct gguf *gguf, struct err *err)
{
    struct text_index index = {0};
    enum status status = load_kind_of_model(tokenizer, gguf, err);
    if (status == STATUS_OK)
        status = load_vocab(tokenizer, gguf, &index, err);
    if (status == STATUS_OK)
        status = load_merges(tokenizer, gguf, &index, err);
    free((void *)index.texts);
    free(index.slots);
    if (status == STATUS_OK)
        status = load_literals(tokenizer, gguf_name(gguf), err);
    if (status == STATUS_OK)
        status = load_id(tokenizer, gguf, "tokenizer.ggml.bos_token_id", &tokenizer->bos, err);
    if (status == STATUS_OK)
        status = load_ends(tokenizer, gguf, err);
    if (status == STATUS_OK)
        status = load_flag(gguf, "tokenizer.ggml.add_bos_token", tokenizer->bos,
                           &tokenizer->add_bos, err);
    if (status == STATUS_OK)
        status = load_flag(gguf, "tokenizer.ggml.add_eos_token", tokenizer->eos,
                           &tokenizer->add_eos, err);
    return status;
}

enum status tokenizer_create(const struct gguf *gguf, struct tokenizer **tokenizer_out,
                             struct err *err)
{
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer)
        return err_set(err, STATUS_MEMORY, "%s: no memory", gguf_name(gguf));
    enum status status = load(tokenizer, gguf, err);
    if (status) {
        tokenizer_destroy(tokenizer);
        return status;
    }
    *tokenizer_out = tokenizer;
    return STATUS_OK;
}

void tokenizer_destroy(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    free(tokenizer->pieces);
    free(tokenizer->piece_start);
    free(tokenizer->kinds);
    free(tokenizer->merges);
    free(tokenizer->literals);
    free(tokenizer->end_ids);
    free(tokenizer);
}
