/* What the tokenizer's files share: tokenizer.c (vocabulary and answers), tokenizer_load.c (from the file), bpe.c (encoding).
 * Owner: as tokenizer.h. */
#ifndef BATON_MODEL_TOKENIZER_INTERNAL_H
#define BATON_MODEL_TOKENIZER_INTERNAL_H

#include "model/tokenizer.h"

/* token_type of the file. */
enum token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
};

/* One merge: tokens `left` and `right` become `merged`. Lower ranks merge first. */
struct merge {
    uint32_t left, right, rank, merged;
};

struct tokenizer {
    uint32_t vocab;
    char *pieces;          /* all pieces, one behind the other */
    uint32_t *piece_start; /* [vocab + 1] */
    uint8_t *kinds;        /* [vocab] enum token_kind */
    size_t piece_bytes_max;
    uint32_t byte_ids[256]; /* the token of a single byte, or TOKEN_NONE */
    struct merge *merges;   /* open addressing by (left, right); left == TOKEN_NONE: empty */
    uint32_t merge_mask;    /* slots - 1 */
    /* Tokens that are looked for in text as they stand, by first byte, the longest first. */
    uint32_t *literals; /* ids */
    uint32_t
        literal_start[257]; /* literals[literal_start[b], literal_start[b + 1]) begin with byte b */
    bool literal_plain
        [256]; /* a user-defined one begins with this byte: looked for without parse_special too */
    uint32_t *end_ids; /* ascending */
    size_t end_count;
    uint32_t bos, eos;
    bool add_bos, add_eos;
    size_t (*pretokenizer_next)(const char *text, size_t bytes);
    const char *pretokenizer_name;
};

/* The merge of the pair, or NULL. */
const struct merge *tokenizer_merge_find(const struct tokenizer *tokenizer, uint32_t left,
                                         uint32_t right);
uint32_t tokenizer_pair_hash(uint32_t left, uint32_t right);

/* Appends the ids of one word. False when there is no memory. */
bool bpe_encode_word(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                     const char *word, size_t bytes, struct token_list *ids);

#endif
