/* Every string and conversation of the golden files gives exactly the reference's ids. */
#include "base/buf.h"
#include "base/utf8.h"
#include "model/chat.h"
#include "model/detok.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "tests/golden/demo_model.h"
#include "tests/golden/golden_file.h"

struct fixture {
    struct model_file *model;
    struct tokenizer_scratch *scratch;
    struct token_list ids;
};

static struct fixture start(void)
{
    struct fixture f = {.ids = TOKEN_LIST_INIT};
    struct err err = ERR_INIT;
    CHECK_MSG(!model_open(demo_model_path(), &f.model, &err), "%s", err.message);
    f.scratch = tokenizer_scratch_create();
    CHECK(f.scratch);
    return f;
}

static void finish(struct fixture *f)
{
    token_list_finish(&f->ids);
    tokenizer_scratch_destroy(f->scratch);
    model_close(f->model);
}

static bool same(const struct token_list *ids, const uint32_t *expected, size_t count)
{
    return ids->count == count && (!count || !memcmp(ids->ids, expected, count * sizeof *expected));
}

/* The ids as text, where the vocabulary has every byte of it. */
static bool comes_back(const struct fixture *f, const uint8_t *text, size_t bytes)
{
    struct buf back = BUF_INIT;
    detok_text(f->model->tokenizer, f->ids.ids, f->ids.count, &back);
    bool equal = back.bytes == bytes && (!bytes || !memcmp(back.data, text, bytes));
    buf_finish(&back);
    return equal;
}

/* Bytes of UTF-8 for which SmolLM2 has no token. */
static bool has_lacking_byte(const uint8_t *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (memchr("\x04\x06\x13\x14\x16\x1d\xf1\xf2", text[i], 8))
            return true;
    return false;
}

TEST(golden, token_ids_equal_the_references)
{
    struct fixture f = start();
    struct golden golden = golden_open("tokenizer.bin", "BTOK0001");
    uint32_t count = golden_u32(&golden), wrong = 0, first = 0;
    CHECK_MSG(count >= 2000, "%u strings", count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bytes = golden_u32(&golden);
        const uint8_t *text = golden_bytes(&golden, bytes);
        uint32_t plain_count = golden_u32(&golden);
        uint32_t *plain = golden_ids(&golden, plain_count);
        uint32_t special_count = golden_u32(&golden);
        uint32_t *special = special_count == UINT32_MAX ? NULL : golden_ids(&golden, special_count);
        for (int parse_special = 0; parse_special < 2; parse_special++) {
            struct err err = ERR_INIT;
            f.ids.count = 0;
            CHECK_MSG(!tokenizer_encode(f.model->tokenizer, f.scratch, (const char *)text, bytes,
                                        (struct tokenizer_options){.parse_special = parse_special},
                                        &f.ids, &err),
                      "string %u: %s", i, err.message);
            bool equal = parse_special && special ? same(&f.ids, special, special_count)
                                                  : same(&f.ids, plain, plain_count);
            if (!equal && !wrong++)
                first = i;
            if (!parse_special && !has_lacking_byte(text, bytes))
                CHECK_MSG(comes_back(&f, text, bytes), "string %u does not come back", i);
        }
        free(plain);
        free(special);
    }
    CHECK_MSG(!wrong, "%u of %u differ, the first is string %u", wrong, 2 * count, first);
    golden_finish(&golden);
    finish(&f);
}

TEST(golden, conversations_equal_the_references)
{
    struct fixture f = start();
    CHECK_MSG(f.model->chat, "%s", f.model->chat_refusal.message);
    struct golden golden = golden_open("chat.bin", "BCHT0001");
    uint32_t count = golden_u32(&golden);
    CHECK_MSG(count >= 100, "%u conversations", count);
    for (uint32_t i = 0; i < count; i++) {
        bool prompt = *golden_bytes(&golden, 1);
        uint32_t message_count = golden_u32(&golden);
        struct chat_message messages[16];
        CHECK(message_count <= 16);
        for (uint32_t j = 0; j < message_count; j++) {
            messages[j].role_bytes = golden_u32(&golden);
            messages[j].role = (const char *)golden_bytes(&golden, messages[j].role_bytes);
            messages[j].content_bytes = golden_u32(&golden);
            messages[j].content = (const char *)golden_bytes(&golden, messages[j].content_bytes);
        }
        uint32_t id_count = golden_u32(&golden);
        uint32_t *expected = golden_ids(&golden, id_count);
        struct err err = ERR_INIT;
        f.ids.count = 0;
        CHECK_MSG(
            !chat_encode(f.model->chat, f.scratch, messages, message_count, prompt, &f.ids, &err),
            "conversation %u: %s", i, err.message);
        CHECK_MSG(same(&f.ids, expected, id_count), "conversation %u differs", i);
        free(expected);
    }
    golden_finish(&golden);
    finish(&f);
}

/* What llama.cpp ends a generation at with this file (make_tokenizer_golden.py prints it). */
TEST(golden, end_tokens_equal_llama_cpps)
{
    struct fixture f = start();
    size_t count;
    const uint32_t *ends = tokenizer_end_ids(f.model->tokenizer, &count);
    CHECK(count == 3 && ends[0] == 0 && ends[1] == 2 && ends[2] == 4);
    CHECK_INT(tokenizer_eos(f.model->tokenizer), 2);
    finish(&f);
}

/* The demo model: SmolLM2-135M-Instruct, every linear weight Q4_1. */
TEST(golden, configuration_of_the_demo_model)
{
    struct fixture f = start();
    const struct model_config *c = &f.model->config;
    CHECK(c->layers == 30 && c->hidden == 576 && c->heads == 9 && c->kv_heads == 3);
    CHECK(c->head_dim == 64 && c->rope_dims == 64 && c->ffn == 1536 && c->vocab == 49152);
    CHECK(c->context_tokens == 8192 && c->rope_base == 100000.0f && c->tied_output);
    CHECK_INT(f.model->token_embd->type, TENSOR_Q8_0);
    CHECK_INT(f.model->layers[29].ffn_down->type, TENSOR_Q4_1);
    CHECK_INT(model_parameter_count(f.model), 134515008);
    finish(&f);
}
