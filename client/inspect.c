/* `baton inspect MODEL`: what a model file holds, checked as a node would check it. No server is asked.
 * Owner: the main thread. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/client.h"
#include "kernels/backend.h"
#include "model/model.h"

struct inspect_options {
    bool keys, tensors;
};

static const struct config_option table[] = {
    {.key = "keys",
     .type = CONFIG_BOOL,
     CONFIG_FIELD(struct inspect_options, keys),
     .flag_only = true,
     .help = "every key of the file's header too"},
    {.key = "tensors",
     .type = CONFIG_BOOL,
     CONFIG_FIELD(struct inspect_options, tensors),
     .flag_only = true,
     .help = "every tensor too"},
};

static const struct config_schema schema = {
    .program = "baton inspect",
    CONFIG_TABLE(table),
    .summary = "what a model file holds, checked as a node would check it",
    .example = "  baton inspect model.gguf --tensors\n",
    .positionals = "MODEL",
    .positionals_min = 1,
    .positionals_max = 1,
};

static void print_types(const struct gguf *gguf)
{
    enum { TYPES = 64 };
    size_t counts[TYPES] = {0};
    uint64_t bytes[TYPES] = {0};
    for (size_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        unsigned type = tensor->type < TYPES ? tensor->type : TYPES - 1;
        counts[type]++;
        bytes[type] += tensor->bytes;
    }
    printf("tensors        %zu\n", gguf_tensor_count(gguf));
    for (unsigned type = 0; type < TYPES; type++)
        if (counts[type])
            printf("  %-12s %zu, %.1f MB\n", tensor_type_name(type), counts[type],
                   (double)bytes[type] / 1e6);
}

static void print_model(const struct model_file *model)
{
    const struct model_config *config = &model->config;
    char identity[33];
    model_identity_text(model->identity, identity);
    printf("file           %s (GGUF %u, %.1f MB)\n", gguf_name(model->gguf),
           gguf_version(model->gguf), (double)gguf_file_bytes(model->gguf) / 1e6);
    printf("name           %s\n", config->name);
    printf("architecture   %s\n", config->architecture);
    printf("identity       %s\n", identity);
    printf("parameters     %.1f M\n", (double)model_parameter_count(model) / 1e6);
    printf("layers         %u\n", config->layers);
    printf("hidden         %u\n", config->hidden);
    printf("heads          %u, %u for KV, of %u\n", config->heads, config->kv_heads,
           config->head_dim);
    printf("ffn            %u\n", config->ffn);
    printf("vocabulary     %u\n", config->vocab);
    printf("context        %u tokens\n", config->context_tokens);
    printf("rope           base %g, %u of %u dimensions\n", (double)config->rope_base,
           config->rope_dims, config->head_dim);
    printf("output         %s\n", config->tied_output ? "tied to the embedding" : "its own");
    printf("KV a token    ");
    for (int type = 0; type < KERN_KV_TYPE_COUNT; type++)
        printf("%s %.1f KB in %s", type ? "," : "",
               2.0 * config->layers * config->kv_heads *
                   kern_kv_head_bytes((enum kern_kv_type)type, config->head_dim) / 1e3,
               kern_kv_type_name((enum kern_kv_type)type));
    printf("\n");
    printf("chat           %s\n", model->chat ? "known format" : model->chat_refusal.message);
    print_types(model->gguf);
}

static void print_keys(const struct gguf *gguf)
{
    for (size_t i = 0; i < gguf_kv_count(gguf); i++) {
        const struct gguf_kv *kv = gguf_kv_at(gguf, i);
        char value[100], key[64];
        gguf_kv_print(kv, value, sizeof value);
        snprintf(key, sizeof key, "%.*s", (int)(kv->key.bytes < 60 ? kv->key.bytes : 60),
                 kv->key.data);
        printf("key            %s = %s\n", key, value);
    }
}

static void print_tensors(const struct gguf *gguf)
{
    for (size_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        printf("tensor         %-28.*s %-5s [",
               (int)(tensor->name.bytes < 255 ? tensor->name.bytes : 255), tensor->name.data,
               tensor_type_name(tensor->type));
        for (uint32_t d = 0; d < tensor->dims; d++)
            printf("%s%" PRIu64, d ? ", " : "", tensor->shape[d]);
        printf("]\n");
    }
}

int cmd_inspect(int argc, char **argv)
{
    struct inspect_options options;
    struct config *config;
    struct err err = ERR_INIT;
    struct model_file *model;
    int code;
    if (!config_start(&schema, argc, argv, &options, &config, &code))
        return code;
    if (model_open(config_positionals(config).items[0], &model, &err) != STATUS_OK) {
        client_complain(schema.program, "%s", err.message);
        code = EXIT_CODE_FAILED;
    } else {
        print_model(model);
        if (options.keys)
            print_keys(model->gguf);
        if (options.tensors)
            print_tensors(model->gguf);
        model_close(model);
        code = fflush(stdout) == 0 ? EXIT_CODE_DONE : EXIT_CODE_FAILED;
    }
    config_destroy(config);
    return code;
}
