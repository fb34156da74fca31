/* Any bytes as a GGUF file: the reader, and, where it is a whole model, everything that model_open does with it. */
#include "model/chat.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>
#include <stdlib.h>

static void use(const struct model_file *model)
{
    struct tokenizer_scratch *scratch = tokenizer_scratch_create();
    struct token_list ids = TOKEN_LIST_INIT;
    static const char text[] = "Hello, world! 123 <|im_end|> the the  the\n";
    const struct chat_message message = {"user", 4, text, sizeof text - 1};
    if (scratch) {
        tokenizer_encode(model->tokenizer, scratch, text, sizeof text - 1,
                         (struct tokenizer_options){.parse_special = true, .add_special = true},
                         &ids, NULL);
        if (model->chat)
            chat_encode(model->chat, scratch, &message, 1, true, &ids, NULL);
    }
    for (size_t i = 0; i < ids.count; i++)
        assert(ids.ids[i] < model->config.vocab);
    token_list_finish(&ids);
    tokenizer_scratch_destroy(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct gguf *gguf;
    struct err err = ERR_INIT;
    if (gguf_open_memory(data, bytes, "fuzz", &gguf, &err)) {
        assert(err.message[0]);
        return 0;
    }
    char print[64];
    unsigned sum = 0;
    for (size_t i = 0; i < gguf_kv_count(gguf); i++) {
        gguf_kv_print(gguf_kv_at(gguf, i), print, sizeof print);
        struct gguf_array array;
        struct gguf_text text;
        if (!gguf_get_array(gguf, "tokenizer.ggml.tokens", GGUF_TEXT, &array, NULL))
            while (i == 0 && gguf_array_next_text(&array, &text))
                sum += text.bytes ? (unsigned char)text.data[text.bytes - 1] : 0;
    }
    for (size_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        if (tensor->bytes)
            sum += ((const uint8_t *)tensor->data)[0] +
                   ((const uint8_t *)tensor->data)[tensor->bytes - 1];
    }
    fuzz_sink = sum;
    gguf_close(gguf);

    struct model_file *model;
    if (!model_open_memory(data, bytes, "fuzz", &model, &err)) {
        use(model);
        model_close(model);
    }
    return 0;
}
