/* Cuts text into words for byte-level BPE, as `tokenizer.ggml.pre` asks. Known: "smollm", which is the split of every numeric
 * character on its own, followed by GPT-2's pattern on the pieces between them:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Hand-written over a table of character classes of our own (pretokenizer_table.h), so that ids depend neither on a library's
 * version of Unicode nor on a regex engine's dialect.
 * Owner: any thread; pure. */
#ifndef BATON_MODEL_PRETOKENIZER_H
#define BATON_MODEL_PRETOKENIZER_H

#include <stddef.h>
#include <stdint.h>

enum char_class { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE };
enum char_class pretokenizer_class(uint32_t code_point);

/* Bytes of the first word of text[0, bytes): at least 1, always whole characters. `text` is valid UTF-8, bytes > 0. */
size_t pretokenizer_smollm_next(const char *text, size_t bytes);

#endif
