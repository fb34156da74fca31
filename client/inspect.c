/* `baton inspect MODEL`: what a model file holds, checked as a node would check it, and what it will need and reach on this machine.
 * No server is asked.
 * Owner: the main thread. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/client.h"
#include "client/forecast.h"
#include "kernels/backend.h"
#include "model/model.h"

struct inspect_options {
    bool keys, tensors;
    /* as a node's, of the same name: see node/options.c */
    int compute, kv_type;
    const char *isa, *peaks;
    int64_t threads, chunk_tokens;
    uint64_t kv_memory;
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
    {.key = "compute",
     .type = CONFIG_ENUM,
     CONFIG_FIELD(struct inspect_options, compute),
     .choices = "f32|int8",
     .initial = "int8",
     .help = "arithmetic that the nodes are to have"},
    {.key = "kv_type",
     .type = CONFIG_ENUM,
     CONFIG_FIELD(struct inspect_options, kv_type),
     .choices = "f32|f16|int8|!fp8",
     .initial = "f16",
     .help = "how they are to store keys and values"},
    {.key = "kv_memory",
     .type = CONFIG_BYTES,
     CONFIG_FIELD(struct inspect_options, kv_memory),
     .initial = "512M",
     .min = 1 << 20,
     .max = INT64_C(1) << 46,
     .help = "their memory for KV pages"},
    {.key = "threads",
     .type = CONFIG_INT,
     CONFIG_FIELD(struct inspect_options, threads),
     .initial = "0",
     .max = 1024,
     .help = "their compute threads; 0: one a core"},
    {.key = "chunk_tokens",
     .type = CONFIG_INT,
     CONFIG_FIELD(struct inspect_options, chunk_tokens),
     .initial = "512",
     .min = 1,
     .max = 65536,
     .help = "rows of one prompt in a step"},
    {.key = "isa",
     .type = CONFIG_STRING,
     CONFIG_FIELD(struct inspect_options, isa),
     .initial = "auto",
     .argument = "NAME",
     .help = "their instruction set"},
    {.key = "peaks",
     .type = CONFIG_STRING,
     CONFIG_FIELD(struct inspect_options, peaks),
     .initial = "auto",
     .argument = "auto|off|PATH",
     .help = "the file that keeps what this machine reached, as a node's; off: no forecast"},
};

static const struct config_schema schema = {
    .program = "baton inspect",
    CONFIG_TABLE(table),
    .summary =
        "what a model file holds, checked as a node would check it, and what it will need and "
        "reach on this machine",
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

static enum status print_forecast(const struct inspect_options *options,
                                  const struct engine_options *engine,
                                  const struct model_file *model, struct err *err)
{
    char path[4096];
    struct forecast_options forecast = {
        .engine = *engine,
        .peaks_file = options->peaks,
        .chunk_tokens = (uint32_t)options->chunk_tokens,
        .kv_memory = options->kv_memory,
    };
    if (!strcmp(options->peaks, "off"))
        return STATUS_OK;
    if (!strcmp(options->peaks, "auto"))
        forecast.peaks_file = engine_peaks_file(path, sizeof path) ? path : NULL;
    return forecast_print(&forecast, model, err);
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
    const struct engine_options engine = {.isa = options.isa,
                                          .compute = (enum kern_compute)options.compute,
                                          .kv_type = (enum kern_kv_type)options.kv_type,
                                          .threads = (unsigned)options.threads};
    char machine[256];
    enum status status = engine_machine(&engine, machine, sizeof machine, &err); /* wrong options */
    if (!status)
        status = model_open(config_positionals(config).items[0], &model, &err);
    if (!status) {
        print_model(model);
        if (options.keys)
            print_keys(model->gguf);
        if (options.tensors)
            print_tensors(model->gguf);
        status = print_forecast(&options, &engine, model, &err);
        model_close(model);
    }
    if (status)
        client_complain(schema.program, "%s", err.message);
    code = status == STATUS_CONFIG         ? EXIT_CODE_USAGE
           : status || fflush(stdout) != 0 ? EXIT_CODE_FAILED
                                           : EXIT_CODE_DONE;
    config_destroy(config);
    return code;
}
