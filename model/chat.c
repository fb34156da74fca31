/* See chat.h. The two templates that are known are compared as text, the default system prompt cut out. */
#include "model/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "model/gguf.h"

struct chat_format {
    const struct tokenizer *tokenizer;
    uint32_t start, end;  /* <|im_start|>, <|im_end|> */
    char *default_system; /* NULL: none */
    size_t default_system_bytes;
};

/* ChatML as a Jinja template, as model makers write it. In front of LOOP some put a default system prompt. */
static const char head[] = "{% for message in messages %}";
static const char default_open[] =
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n";
static const char default_close[] = "<|im_end|>\n' }}{% endif %}";
static const char tail[] =
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static const char *const roles[] = {"system", "user", "assistant"};
enum { ROLES = sizeof roles / sizeof roles[0] };

/* Skips `literal` at the front of *text. */
static bool skip(struct gguf_text *text, const char *literal)
{
    size_t bytes = strlen(literal);
    if (text->bytes < bytes || memcmp(text->data, literal, bytes))
        return false;
    text->data += bytes;
    text->bytes -= bytes;
    return true;
}

/* Fills the format from the template; false when it is not known. `template` has its \n as newlines. */
static bool recognise(struct chat_format *format, struct gguf_text template)
{
    if (!skip(&template, head))
        return false;
    if (skip(&template, default_open)) {
        const char *end =
            memmem(template.data, template.bytes, default_close, sizeof default_close - 1);
        if (!end)
            return false;
        size_t bytes = (size_t)(end - template.data);
        /* A quote or a backslash would mean that this is not the plain string it looks like. */
        if (memchr(template.data, '\'', bytes) || memchr(template.data, '\\', bytes))
            return false;
        format->default_system = malloc(bytes + 1);
        if (!format->default_system)
            return false;
        memcpy(format->default_system, template.data, bytes);
        format->default_system[bytes] = 0;
        format->default_system_bytes = bytes;
        template.data += bytes;
        template.bytes -= bytes;
        skip(&template, default_close);
    }
    return skip(&template, tail) && !template.bytes;
}

/* Inside a template a newline may stand as itself or as \n. */
static enum status normalise(struct gguf_text template, struct buf *out)
{
    for (size_t i = 0; i < template.bytes; i++) {
        bool escaped =
            template.data[i] == '\\' && i + 1 < template.bytes && template.data[i + 1] == 'n';
        buf_append(out, escaped ? "\n" : &template.data[i], 1);
        i += escaped;
    }
    return out->failed ? STATUS_MEMORY : STATUS_OK;
}

enum status chat_format_create(const struct gguf *gguf, const struct tokenizer *tokenizer,
                               struct chat_format **format_out, struct err *err)
{
    static const char key[] = "tokenizer.chat_template";
    if (!gguf_has(gguf, key))
        return err_set(err, STATUS_UNIMPLEMENTED, "%s: %s: the file has no chat template",
                       gguf_name(gguf), key);
    struct gguf_text template;
    enum status status = gguf_get_text(gguf, key, &template, err);
    if (status)
        return status;
    struct buf text = BUF_INIT;
    struct chat_format *format = calloc(1, sizeof *format);
    if (!format || normalise(template, &text)) {
        status = err_set(err, STATUS_MEMORY, "%s: %s: no memory", gguf_name(gguf), key);
    } else if (!recognise(format, (struct gguf_text){(char *)text.data, text.bytes})) {
        status = err_set(err, STATUS_UNIMPLEMENTED,
                         "%s: %s: this template is not supported (known: ChatML, with or without "
                         "a default system prompt)",
                         gguf_name(gguf), key);
    } else {
        format->tokenizer = tokenizer;
        format->start = tokenizer_special_find(tokenizer, "<|im_start|>");
        format->end = tokenizer_special_find(tokenizer, "<|im_end|>");
        if (format->start == TOKEN_NONE || format->end == TOKEN_NONE)
            status = err_set(err, STATUS_FORMAT,
                             "%s: %s: is ChatML, but the vocabulary lacks the special token %s",
                             gguf_name(gguf), key,
                             format->start == TOKEN_NONE ? "<|im_start|>" : "<|im_end|>");
    }
    buf_finish(&text);
    if (status) {
        chat_format_destroy(format);
        return status;
    }
    *format_out = format;
    return STATUS_OK;
}

void chat_format_destroy(struct chat_format *format)
{
    if (!format)
        return;
    free(format->default_system);
    free(format);
}

const char *chat_format_name(const struct chat_format *format)
{
    return "chatml";
}

static enum status encode_plain(const struct chat_format *format, struct tokenizer_scratch *scratch,
                                const void *text, size_t bytes, struct token_list *ids,
                                struct err *err)
{
    return tokenizer_encode(format->tokenizer, scratch, text, bytes, (struct tokenizer_options){0},
                            ids, err);
}

static enum status append(struct token_list *ids, uint32_t id, struct err *err)
{
    return token_list_append(ids, id) ? STATUS_OK : err_set(err, STATUS_MEMORY, "no memory");
}

/* Role and content are one text to the tokenizer, since the newline between them may join a word of the content. */
static enum status encode_turn(const struct chat_format *format, struct tokenizer_scratch *scratch,
                               const char *role, const char *content, size_t content_bytes,
                               struct buf *text, struct token_list *ids, struct err *err)
{
    enum status status = append(ids, format->start, err);
    if (status)
        return status;
    buf_clear(text);
    buf_append_text(text, role);
    buf_append(text, "\n", 1);
    buf_append(text, content, content_bytes);
    if (text->failed)
        return err_set(err, STATUS_MEMORY, "no memory for %zu bytes", content_bytes);
    status = encode_plain(format, scratch, text->data, text->bytes, ids, err);
    if (status == STATUS_OK)
        status = append(ids, format->end, err);
    if (status == STATUS_OK)
        status = encode_plain(format, scratch, "\n", 1, ids, err);
    return status;
}

static const char *role_find(const struct chat_message *message)
{
    for (int i = 0; i < ROLES; i++)
        if (message->role_bytes == strlen(roles[i]) &&
            !memcmp(message->role, roles[i], message->role_bytes))
            return roles[i];
    return NULL;
}

static enum status encode_messages(const struct chat_format *format,
                                   struct tokenizer_scratch *scratch,
                                   const struct chat_message *messages, size_t message_count,
                                   struct buf *text, struct token_list *ids, struct err *err)
{
    if (!message_count)
        return err_set(err, STATUS_INVALID, "messages: is empty (at least 1)");
    for (size_t i = 0; i < message_count; i++) {
        const struct chat_message *message = &messages[i];
        const char *role = role_find(message);
        if (!role)
            return err_set(err, STATUS_INVALID,
                           "messages[%zu].role: is not known (system, user, assistant)", i);
        size_t valid = utf8_valid_prefix(message->content, message->content_bytes);
        if (valid != message->content_bytes)
            return err_set(err, STATUS_INVALID,
                           "messages[%zu].content: not valid UTF-8 at byte %zu (0x%02x)", i, valid,
                           (uint8_t)message->content[valid]);
        enum status status = STATUS_OK;
        if (i == 0 && format->default_system && strcmp(role, "system"))
            status = encode_turn(format, scratch, "system", format->default_system,
                                 format->default_system_bytes, text, ids, err);
        if (status == STATUS_OK)
            status = encode_turn(format, scratch, role, message->content, message->content_bytes,
                                 text, ids, err);
        if (status) {
            err_wrap(err, "messages[%zu].content", i);
            return status;
        }
    }
    return STATUS_OK;
}

enum status chat_encode(const struct chat_format *format, struct tokenizer_scratch *scratch,
                        const struct chat_message *messages, size_t message_count,
                        bool add_generation_prompt, struct token_list *ids, struct err *err)
{
    struct buf text = BUF_INIT;
    size_t before = ids->count;
    enum status status = encode_messages(format, scratch, messages, message_count, &text, ids, err);
    if (status == STATUS_OK && add_generation_prompt) {
        status = append(ids, format->start, err);
        if (status == STATUS_OK)
            status = encode_plain(format, scratch, "assistant\n", 10, ids, err);
    }
    buf_finish(&text);
    if (status)
        ids->count = before;
    return status;
}
