/* A model as its file describes it: the configuration, the tensors by role with their shapes
 * checked, the tokenizer, the chat format, and a hash that says "the same model" to other nodes.
 * Architecture: "llama" (GQA, RoPE, RMSNorm, SwiGLU).
 *
 *     gguf_open ─▶ model_config (limits) ─▶ tensors by name (type, shape) ─▶ tokenizer, chat ─▶ identity
 *
 * Weights stay in the mapping; the engine copies them into a backend's layout. A non-finite block
 * scale is refused there, by the code that reads the blocks.
 *
 * RoPE: files of architecture "llama" hold attn_q and attn_k with their rows permuted, so that the
 * rotation pairs neighbours: (x[2i], x[2i+1]) turn by position * rope_base^(-2i / rope_dims),
 * within each head's first rope_dims values.
 *
 * Owner: any thread; read-only after model_open. */
#ifndef BATON_MODEL_MODEL_H
#define BATON_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "model/gguf.h"

struct tokenizer;
struct chat_format;

/* Limits that model_open enforces. */
enum {
    MODEL_LAYERS_MAX = 1024,
    MODEL_HIDDEN_MAX = 65536,
    MODEL_HEADS_MAX = 1024,
    MODEL_HEAD_DIM_MAX = 1024,
    MODEL_FFN_MAX = 1 << 20,
    MODEL_VOCAB_MAX = 1 << 20,
    MODEL_CONTEXT_MAX = 1 << 24,
    MODEL_NAME_BYTES = 128,
};

struct model_config {
    char architecture[16];       /* "llama" */
    char name[MODEL_NAME_BYTES]; /* general.name, cut, printable; else the file's base name */
    uint32_t layers;             /* llama.block_count */
    uint32_t hidden;             /* llama.embedding_length */
    uint32_t heads, kv_heads; /* llama.attention.head_count, head_count_kv; heads % kv_heads == 0 */
    uint32_t head_dim;        /* llama.attention.key_length, else hidden / heads; even */
    uint32_t ffn;             /* llama.feed_forward_length */
    uint32_t vocab;           /* rows of token_embd.weight = tokenizer's tokens */
    uint32_t context_tokens;  /* llama.context_length */
    uint32_t rope_dims;       /* llama.rope.dimension_count, else head_dim; even, <= head_dim */
    float rope_base;          /* llama.rope.freq_base, else 10000; finite, > 0 */
    float rms_eps;            /* llama.attention.layer_norm_rms_epsilon; finite, > 0 */
    bool tied_output;         /* no output.weight: the output layer is token_embd */
};

/* Shapes are {innermost, rows}: see gguf.h. Norms are F32; matrices any supported type. */
struct model_layer {
    const struct gguf_tensor *attn_norm;   /* {hidden} */
    const struct gguf_tensor *attn_q;      /* {hidden, heads * head_dim} */
    const struct gguf_tensor *attn_k;      /* {hidden, kv_heads * head_dim} */
    const struct gguf_tensor *attn_v;      /* {hidden, kv_heads * head_dim} */
    const struct gguf_tensor *attn_output; /* {heads * head_dim, hidden} */
    const struct gguf_tensor *ffn_norm;    /* {hidden} */
    const struct gguf_tensor *ffn_gate;    /* {hidden, ffn} */
    const struct gguf_tensor *ffn_up;      /* {hidden, ffn} */
    const struct gguf_tensor *ffn_down;    /* {ffn, hidden} */
};

/* XXH3-128 (canonical, big endian) over the configuration, the tokenizer's keys and every tensor's
 * name, type, shape and bytes, in order of name: equal for equal models, whatever the order in the
 * file or its name. Not cryptographic. */
struct model_identity {
    uint8_t bytes[16];
};

struct model_file {
    struct gguf *gguf;
    struct model_config config;
    struct model_identity identity;
    const struct gguf_tensor *token_embd;  /* {hidden, vocab} */
    const struct gguf_tensor *output_norm; /* {hidden} */
    const struct gguf_tensor *output;      /* {hidden, vocab}; == token_embd when tied */
    struct model_layer *layers;            /* [config.layers] */
    struct tokenizer *tokenizer;
    struct chat_format *chat; /* NULL when the chat format is not known, and then … */
    struct err chat_refusal;  /* … this says why */
};

/* Opens, checks and hashes the file (the hash reads all of it once). Errors begin with the path and
 * name the key or tensor: IO, FORMAT, UNIMPLEMENTED (architecture, tensor type, tokenizer),
 * MEMORY. */
enum status model_open(const char *path, struct model_file **model_out, struct err *err);
/* The same from memory, which the caller keeps; `name` stands for the path. */
enum status model_open_memory(const void *data, size_t bytes, const char *name,
                              struct model_file **model_out, struct err *err);
void model_close(struct model_file *model); /* NULL is fine */

bool model_identity_equal(struct model_identity a, struct model_identity b);
/* 32 hexadecimal digits and a NUL. */
void model_identity_text(struct model_identity identity, char text_out[33]);
/* Values in all tensors. */
uint64_t model_parameter_count(const struct model_file *model);

#endif
