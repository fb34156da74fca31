#include "model/model.h"

#include <math.h>
#include <unistd.h>

#include "model/chat.h"
#include "model/tokenizer.h"
#include "tests/model/tiny.h"

TEST(model, opens_the_tiny_model)
{
    struct model_file *model;
    struct err err = ERR_INIT;
    CHECK_MSG(!model_open(getenv("BATON_UNIT_MODEL"), &model, &err), "%s", err.message);
    const struct model_config *c = &model->config;
    CHECK_STR(c->architecture, "llama");
    CHECK_STR(c->name, "tiny-q4_1-1");
    CHECK_INT(c->layers, 4);
    CHECK_INT(c->hidden, 64);
    CHECK_INT(c->heads, 4);
    CHECK_INT(c->kv_heads, 2);
    CHECK_INT(c->head_dim, 16);
    CHECK_INT(c->rope_dims, 16);
    CHECK_INT(c->ffn, 128);
    CHECK_INT(c->context_tokens, 2048);
    CHECK_INT(c->vocab, tokenizer_vocab_size(model->tokenizer));
    CHECK(c->rope_base == 10000.0f && c->rms_eps == 1e-5f && c->tied_output);
    CHECK(model->output == model->token_embd && model->chat);
    CHECK_INT(model->token_embd->type, TENSOR_Q8_0);
    CHECK_INT(model->layers[3].ffn_down->type, TENSOR_Q4_1);
    CHECK_INT(model->layers[3].ffn_down->shape[0], 128);
    CHECK_INT(model->layers[3].ffn_down->row_bytes, 128 / 32 * 20);
    CHECK_INT((uintptr_t)model->layers[0].attn_norm->data % 4, 0);
    uint64_t layer = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 128 + 2 * 64;
    CHECK_INT(model_parameter_count(model), 64 * c->vocab + 4 * layer + 64);
    model_close(model);
}

TEST(model, identity_is_the_content)
{
    struct tiny tiny = tiny_read();
    struct model_file *model = tiny_open(tiny);
    struct model_identity identity = model->identity;
    char text[33];
    model_identity_text(identity, text);
    CHECK_INT(strlen(text), 32);
    /* one bit of one weight; one byte of the tokenizer; a field of the configuration; and back */
    size_t bytes, weight = model->layers[2].ffn_up->offset + 5;
    model_close(model);
    size_t places[3] = {
        weight, (size_t)(tiny_value(tiny, "tokenizer.ggml.eos_token_id", &bytes) - tiny.data),
        (size_t)(tiny_value(tiny, "llama.context_length", &bytes) - tiny.data)};
    for (int i = 0; i < 3; i++) {
        tiny.data[places[i]] ^= 1;
        model = tiny_open(tiny);
        CHECK(!model_identity_equal(identity, model->identity));
        model_close(model);
        tiny.data[places[i]] ^= 1;
    }
    /* a name is no part of the model */
    tiny_value(tiny, "general.name", &bytes)[8] = 'T';
    model = tiny_open(tiny);
    CHECK_STR(model->config.name, "Tiny-q4_1-1");
    CHECK(model_identity_equal(identity, model->identity));
    model_close(model);
    free(tiny.data);
}

static void check_value_refused(const char *key, uint32_t value, enum status expected,
                                const char *message)
{
    struct tiny tiny = tiny_read();
    size_t bytes;
    uint8_t *at = tiny_value(tiny, key, &bytes);
    CHECK_INT(bytes, 4);
    memcpy(at, &value, 4);
    struct model_file *model = NULL;
    struct err err = ERR_INIT;
    enum status status = model_open_memory(tiny.data, tiny.bytes, "t.gguf", &model, &err);
    CHECK_MSG(status == expected && strstr(err.message, message), "%s = %u: status %d, \"%s\"", key,
              value, status, err.message);
    CHECK(!model && !strncmp(err.message, "t.gguf: ", 8));
    free(tiny.data);
}

static uint32_t bits(float value)
{
    uint32_t out;
    memcpy(&out, &value, 4);
    return out;
}

TEST(model, refuses_wrong_configurations)
{
    static const struct {
        const char *key;
        uint32_t value;
        const char *message;
    } cases[] = {
        {"llama.block_count", 0, "llama.block_count: 0 is out of range (1 to 1024)"},
        {"llama.block_count", 1025, "llama.block_count: 1025 is out of range"},
        {"llama.block_count", 5, "tensor blk.4.attn_norm.weight: is missing"},
        {"llama.embedding_length", 0, "llama.embedding_length: 0 is out of range"},
        {"llama.embedding_length", UINT32_MAX,
         "llama.embedding_length: 4294967295 is out of range"},
        {"llama.embedding_length", 128, "tensor token_embd.weight: shape 64 x"},
        {"llama.attention.head_count", 0, "llama.attention.head_count: 0 is out of range"},
        {"llama.attention.head_count", 2,
         "tensor blk.0.attn_q.weight: shape 64 x 64 x 1 x 1, "
         "expected 64 x 32"},
        {"llama.attention.head_count_kv", 3, "head_count_kv: 3 does not divide the heads (4)"},
        {"llama.attention.head_count_kv", 4, "tensor blk.0.attn_k.weight: shape 64 x 32"},
        {"llama.attention.key_length", 2048, "key_length: 2048 is out of range (1 to 1024)"},
        {"llama.rope.dimension_count", 18,
         "llama.rope.dimension_count: 18 is not even and at most"},
        {"llama.rope.dimension_count", 7, "llama.rope.dimension_count: 7 is not even and at most"},
        {"llama.feed_forward_length", 0, "llama.feed_forward_length: 0 is out of range"},
        {"llama.feed_forward_length", 96, "tensor blk.0.ffn_gate.weight: shape 64 x 128"},
        {"llama.context_length", 0, "llama.context_length: 0 is out of range (1 to 16777216)"},
        {"llama.vocab_size", 7, "llama.vocab_size: 7, but the tokenizer has"},
        {"tokenizer.ggml.bos_token_id", 1u << 30, "tokenizer.ggml.bos_token_id: 1073741824 is not"},
        {"tokenizer.ggml.eos_token_id", UINT32_MAX, "tokenizer.ggml.eos_token_id: 4294967295 is"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_value_refused(cases[i].key, cases[i].value, STATUS_FORMAT, cases[i].message);
    const float wrong[] = {0, -1, INFINITY, NAN};
    for (int i = 0; i < 4; i++) {
        check_value_refused("llama.rope.freq_base", bits(wrong[i]), STATUS_FORMAT,
                            "llama.rope.freq_base: ");
        check_value_refused("llama.attention.layer_norm_rms_epsilon", bits(wrong[i]), STATUS_FORMAT,
                            "is not finite and above 0");
    }
    check_value_refused("llama.attention.value_length", 8, STATUS_UNIMPLEMENTED,
                        "value_length: 8 differs from the key length (16)");
}

TEST(model, refuses_an_odd_head)
{
    struct tiny tiny = tiny_read();
    size_t bytes;
    tiny_value(tiny, "llama.attention.key_length", &bytes)[0] = 15;
    tiny_value(tiny, "llama.attention.value_length", &bytes)[0] = 15;
    struct model_file *model;
    struct err err = ERR_INIT;
    CHECK_INT(model_open_memory(tiny.data, tiny.bytes, "t.gguf", &model, &err), STATUS_FORMAT);
    CHECK_STR(err.message,
              "t.gguf: llama.attention.key_length: a head of 15 values (even, 2 to 1024)");
    free(tiny.data);
}

/* Replaces a text value by one of the same length. */
static void check_text_refused(const char *key, const char *from, const char *to,
                               const char *message)
{
    struct tiny tiny = tiny_read();
    size_t bytes;
    uint8_t *at = tiny_value(tiny, key, &bytes);
    uint8_t *found = memmem(at, bytes, from, strlen(from));
    CHECK(found && strlen(from) == strlen(to));
    memcpy(found, to, strlen(to));
    struct model_file *model;
    struct err err = ERR_INIT;
    CHECK(model_open_memory(tiny.data, tiny.bytes, "t.gguf", &model, &err) != STATUS_OK);
    CHECK_MSG(strstr(err.message, message), "%s", err.message);
    free(tiny.data);
}

TEST(model, refuses_what_is_not_built_with_its_name)
{
    check_text_refused("general.architecture", "llama", "mamba",
                       "t.gguf: general.architecture: \"mamba\" is not supported (known: llama)");
    check_text_refused("tokenizer.ggml.model", "gpt2", "bert",
                       "t.gguf: tokenizer.ggml.model: \"bert\" is not supported (known: gpt2)");
    check_text_refused("tokenizer.ggml.pre", "smollm", "qwen\n2",
                       "t.gguf: tokenizer.ggml.pre: \"qwen?2\" is not supported (known: smollm)");
}

TEST(model, refuses_wrong_vocabularies)
{
    /* The merges of the built-in vocabulary begin with "Ġ t", "h e". */
    check_text_refused("tokenizer.ggml.merges", "h e",
                       "h\x01"
                       "e",
                       "t.gguf: tokenizer.ggml.merges: merge 1 is not two tokens");
    check_text_refused("tokenizer.ggml.merges", "h e", "h z",
                       "t.gguf: tokenizer.ggml.merges: merge 1: its result is not a normal token");
    check_text_refused("tokenizer.ggml.merges", "i n", "h e",
                       "t.gguf: tokenizer.ggml.merges: merge 3 is there twice");
    check_text_refused("tokenizer.ggml.tokens", "#", "\xff", "is not in the byte-level alphabet");
    check_text_refused("tokenizer.ggml.tokens", "$", "#", "are the same");
    struct tiny tiny = tiny_read();
    size_t bytes;
    uint8_t *kinds = tiny_value(tiny, "tokenizer.ggml.token_type", &bytes);
    kinds[12 + 4 * 7] = 9;
    struct model_file *model;
    struct err err = ERR_INIT;
    CHECK_INT(model_open_memory(tiny.data, tiny.bytes, "t.gguf", &model, &err), STATUS_FORMAT);
    CHECK_STR(err.message, "t.gguf: tokenizer.ggml.token_type: token 7 is of type 9");
    free(tiny.data);
}

/* Changes the type of a tensor in the tensor table. */
TEST(model, refuses_tensor_types_when_used)
{
    struct tiny tiny = tiny_read();
    static const char name[] = "blk.1.attn_v.weight";
    uint8_t *at = memmem(tiny.data, tiny.bytes, name, strlen(name));
    CHECK(at);
    uint32_t type = 14;
    memcpy(at + strlen(name) + 4 + 16, &type, 4);
    struct gguf *gguf;
    struct err err = ERR_INIT;
    CHECK_MSG(!gguf_open_memory(tiny.data, tiny.bytes, "t.gguf", &gguf, &err), "%s", err.message);
    const struct gguf_tensor *tensor = gguf_tensor_find(gguf, name);
    CHECK(tensor && !tensor->data && !tensor->bytes);
    gguf_close(gguf);
    struct model_file *model;
    CHECK_INT(model_open_memory(tiny.data, tiny.bytes, "t.gguf", &model, &err),
              STATUS_UNIMPLEMENTED);
    CHECK_STR(err.message, "t.gguf: tensor blk.1.attn_v.weight: type Q6_K (14) is not supported "
                           "(F32, F16, BF16, Q8_0, Q4_0, Q4_1)");
    free(tiny.data);
}

/* A file cut at `bytes`, from a block of exactly that size. */
static bool opens_when_cut(struct tiny tiny, size_t bytes)
{
    uint8_t *cut = malloc(bytes ? bytes : 1);
    memcpy(cut, tiny.data, bytes);
    struct model_file *model = NULL;
    struct err err = ERR_INIT;
    enum status status = model_open_memory(cut, bytes, "cut.gguf", &model, &err);
    CHECK_MSG(status == STATUS_OK || (status == STATUS_FORMAT && err.message[0]),
              "cut at %zu: status %d", bytes, status);
    model_close(model);
    free(cut);
    return status == STATUS_OK;
}

TEST(model, cut_at_every_byte_of_the_first_64_kb)
{
    struct tiny tiny = tiny_read();
    CHECK(tiny.bytes > 65536);
    for (size_t bytes = 0; bytes <= 65536; bytes++)
        CHECK_MSG(!opens_when_cut(tiny, bytes), "opens when cut at %zu", bytes);
    free(tiny.data);
}

TEST(model, cut_around_each_tensors_ends)
{
    struct tiny tiny = tiny_read();
    struct model_file *model = tiny_open(tiny);
    size_t end = 0, count = gguf_tensor_count(model->gguf), ends[64];
    CHECK(2 * count <= 2 * 64 && count <= 64);
    for (size_t i = 0; i < count; i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(model->gguf, i);
        ends[i] = tensor->offset + tensor->bytes;
        end = ends[i] > end ? ends[i] : end;
    }
    model_close(model);
    for (size_t i = 0; i < count; i++)
        for (int delta = -1; delta <= 1; delta++) {
            size_t bytes = ends[i] + (size_t)(ptrdiff_t)delta;
            if (bytes <= tiny.bytes)
                CHECK_INT(opens_when_cut(tiny, bytes), bytes >= end);
        }
    free(tiny.data);
}

TEST(model, cut_as_a_file)
{
    struct tiny tiny = tiny_read();
    char path[] = "/tmp/baton-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, tiny.data, tiny.bytes) == (ssize_t)tiny.bytes);
    struct model_file *model;
    struct err err = ERR_INIT;
    CHECK_INT(model_open(path, &model, &err), STATUS_OK);
    model_close(model);
    for (size_t bytes = tiny.bytes - tiny.bytes % 4096; bytes > 4096; bytes -= 4096) {
        CHECK_INT(ftruncate(fd, (off_t)bytes), 0);
        CHECK_INT(model_open(path, &model, &err), STATUS_FORMAT);
        CHECK(!strncmp(err.message, path, strlen(path)));
    }
    close(fd);
    remove(path);
    free(tiny.data);
}
