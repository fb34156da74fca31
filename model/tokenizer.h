/* Byte-level BPE from a GGUF file (tokenizer.ggml.model = "gpt2"), with the pre-tokenizer that the
 * file names.
 *
 *     text ─▶ split at special tokens (only with parse_special)
 *          ─▶ pre-tokenizer: words ─▶ bytes ─▶ merges by rank ─▶ ids
 *
 * A `struct tokenizer` is constant after creation and shared by all threads; what a call changes
 * lies in a `struct tokenizer_scratch`, one for each thread that encodes. The tokenizer copies what
 * it needs, so that the GGUF file may be closed.
 *
 * Text is (pointer, bytes): NUL is a character like any other. It must be valid UTF-8.
 *
 * A vocabulary may lack single bytes (SmolLM2's lacks 21; 8 of them occur in UTF-8). Such a byte
 * that no merge covers has no token: it is left out, as llama.cpp does; never an `unknown` id,
 * which here is a special token that the text did not ask for. */
#ifndef BATON_MODEL_TOKENIZER_H
#define BATON_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct gguf;
struct tokenizer;
struct tokenizer_scratch;

#define TOKEN_NONE UINT32_MAX

/* A growable list of ids. Starts as TOKEN_LIST_INIT; encoding appends. */
struct token_list {
    uint32_t *ids;
    size_t count, capacity;
};
#define TOKEN_LIST_INIT ((struct token_list){0})
/* False when there is no memory. */
bool token_list_append(struct token_list *list, uint32_t id);
void token_list_finish(struct token_list *list);

/* FORMAT names the key; an unknown `tokenizer.ggml.pre` or `.model` is UNIMPLEMENTED with its name.
 */
enum status tokenizer_create(const struct gguf *gguf, struct tokenizer **tokenizer_out,
                             struct err *err);
void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL is fine */

/* Working memory that grows with the longest text seen; NULL when there is none. Owner: one thread
 * at a time. */
struct tokenizer_scratch *tokenizer_scratch_create(void);
void tokenizer_scratch_destroy(struct tokenizer_scratch *scratch);

struct tokenizer_options {
    bool parse_special; /* literals such as <|im_start|> in the text become their ids */
    bool add_special;   /* bos in front and eos behind, each where the file says so */
};

/* Appends the ids of text[0, bytes) to `ids`. INVALID with the byte offset when the text is not
 * UTF-8; MEMORY. On failure `ids->count` is as before. Time O(bytes log bytes). */
enum status tokenizer_encode(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                             const char *text, size_t bytes, struct tokenizer_options options,
                             struct token_list *ids, struct err *err);

uint32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);
/* The bytes that token `id` stands for: for ordinary tokens any bytes, not always whole UTF-8; for
 * special tokens their literal, such as <|im_end|> (to show it; the text of an answer has none: see
 * detok.h). False when id >= vocabulary. */
bool tokenizer_piece(const struct tokenizer *tokenizer, uint32_t id, const char **data_out,
                     size_t *bytes_out);
/* A control (or unknown) token: has no text in an answer. False when id >= vocabulary. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id);
/* Ends a generation: eos, eot, eom of the file and the tokens that llama.cpp treats as such by
 * their text (<|im_end|>, <|endoftext|>, …). */
bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t id);
/* All end tokens, ascending. */
const uint32_t *tokenizer_end_ids(const struct tokenizer *tokenizer, size_t *count_out);
/* The id of a special token with exactly this literal, else TOKEN_NONE. */
uint32_t tokenizer_special_find(const struct tokenizer *tokenizer, const char *literal);
/* TOKEN_NONE where the file has none. */
uint32_t tokenizer_bos(const struct tokenizer *tokenizer);
uint32_t tokenizer_eos(const struct tokenizer *tokenizer);
bool tokenizer_adds_bos(const struct tokenizer *tokenizer);
const char *tokenizer_pre_name(const struct tokenizer *tokenizer); /* "smollm" */
/* Bytes of the longest piece, for sizing buffers. */
size_t tokenizer_piece_bytes_max(const struct tokenizer *tokenizer);

#endif
