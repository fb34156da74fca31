/* Any bytes as a configuration file: read or refused, the values within their limits, the error one printable line that begins
 * with the file's name. */
#include "base/config.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>
#include <string.h>

struct options {
    const char *model;
    int64_t page_tokens;
    uint64_t kv_memory, grace_ns;
    bool filter;
    int transport;
    struct config_address grpc;
    const char *soon;
};

#define FIELD(member) CONFIG_FIELD(struct options, member)
static const struct config_option table[] = {
    {.key = "model", .type = CONFIG_STRING, FIELD(model), .help = "a text"},
    {.key = "page_tokens",
     .type = CONFIG_INT,
     FIELD(page_tokens),
     .initial = "32",
     .min = 16,
     .max = 128,
     .help = "a number"},
    {.key = "kv_memory",
     .type = CONFIG_BYTES,
     FIELD(kv_memory),
     .initial = "1M",
     .min = 1024,
     .max = 1 << 30,
     .help = "a size"},
    {.key = "grace", .type = CONFIG_DURATION, FIELD(grace_ns), .initial = "1s", .help = "a time"},
    {.key = "filter", .type = CONFIG_BOOL, FIELD(filter), .help = "a truth"},
    {.key = "transport",
     .type = CONFIG_ENUM,
     FIELD(transport),
     .initial = "auto",
     .choices = "auto|rdma|tcp|shm",
     .help = "a choice"},
    {.key = "grpc",
     .type = CONFIG_ADDRESS,
     FIELD(grpc),
     .initial = "127.0.0.1:1",
     .sections = CONFIG_DECODE,
     .help = "an address"},
    {.key = "soon", .type = CONFIG_STRING, FIELD(soon), .unbuilt = true, .help = "not there"},
};

static const struct config_schema schema = {
    .program = "baton-decode", .section = "decode", CONFIG_TABLE(table), .summary = "a target"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct options options;
    struct config *config = NULL;
    struct err err = ERR_INIT;
    enum status status =
        config_load_text(&schema, "cluster.yaml", data, bytes, &options, &config, &err);
    if (status == STATUS_OK) {
        assert(options.page_tokens >= 16 && options.page_tokens <= 128);
        assert(options.kv_memory >= 1024 && options.kv_memory <= 1 << 30);
        assert(options.grace_ns <= INT64_MAX);
        assert(options.transport >= 0 && options.transport < 4);
        assert(options.grpc.host[0] && memchr(options.grpc.host, 0, sizeof options.grpc.host));
        assert(!options.soon);
        fuzz_sink += (unsigned)(options.model ? strlen(options.model) : 0);
        fuzz_sink += (unsigned)strlen(config_origin(config, "page_tokens"));
        config_destroy(config);
    } else {
        assert(status == STATUS_CONFIG && !config);
        assert(!strncmp(err.message, "cluster.yaml:", 13));
        for (const char *at = err.message; *at; at++)
            assert((unsigned char)*at >= 0x20 && (unsigned char)*at < 0x7f);
    }
    return 0;
}
