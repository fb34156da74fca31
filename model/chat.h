/* The chat format of a model: messages in, token ids out.
 *
 * The format is recognised from `tokenizer.chat_template`: ChatML, with or without a default system
 * prompt. Templates are programs; Baton runs none of them, and refuses what it does not recognise.
 *
 *     <|im_start|>ROLE\nCONTENT<|im_end|>\n … <|im_start|>assistant\n
 *
 * The marks are set as ids. Contents are tokenised as plain text, so that a literal <|im_start|>
 * inside a message stays text and nobody can forge a turn. Owner: any thread; constant after
 * creation. */
#ifndef BATON_MODEL_CHAT_H
#define BATON_MODEL_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "model/tokenizer.h"

struct gguf;
struct chat_format;

struct chat_message {
    const char *role; /* "system", "user" or "assistant"; not terminated */
    size_t role_bytes;
    const char *content; /* UTF-8, may hold NUL; not terminated */
    size_t content_bytes;
};

/* UNIMPLEMENTED when the file has no chat template or one that is not known. The tokenizer must
 * outlive the format. */
enum status chat_format_create(const struct gguf *gguf, const struct tokenizer *tokenizer,
                               struct chat_format **format_out, struct err *err);
void chat_format_destroy(struct chat_format *format);           /* NULL is fine */
const char *chat_format_name(const struct chat_format *format); /* "chatml" */

/* Appends the ids of the conversation; with `add_generation_prompt` the opening of the assistant's
 * turn too. INVALID with the field ("messages[2].role: …") when there is no message, a role is not
 * known, or a content is not UTF-8. On failure `ids->count` is as before. */
enum status chat_encode(const struct chat_format *format, struct tokenizer_scratch *scratch,
                        const struct chat_message *messages, size_t message_count,
                        bool add_generation_prompt, struct token_list *ids, struct err *err);

#endif
