/* See options.h. */
#include "node/options.h"

#include <stdio.h>
#include <string.h>

#include "base/faults.h"
#include "base/wire_version.h"
#include "kvtransfer/xfer.h"

#define BACKEND_CHOICES "auto|cpu|opaque|!cuda"
#define ROLE_CHOICES "prefill|decode|mixed"

#define FIELD(member) CONFIG_FIELD(struct node_options, member)
static struct config_option table[] = {
    {.key = "name",
     .type = CONFIG_STRING,
     FIELD(name),
     .sections = CONFIG_NODE,
     .argument = "NAME",
     .help = "unique in the cluster; by default made from role, host and port"},
    {.key = "model",
     .type = CONFIG_STRING,
     FIELD(model),
     .required = true,
     .argument = "PATH",
     .letter = 'm',
     .help = "the model, a GGUF file"},
    {.key = "router",
     .type = CONFIG_ADDRESS,
     FIELD(router),
     .initial = "127.0.0.1:7071",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "where the router takes its nodes (its node_grpc)"},
    {.key = "role",
     .type = CONFIG_ENUM,
     FIELD(role),
     .choices = ROLE_CHOICES,
     .initial = "prefill",
     .sections = CONFIG_NODE,
     .help = "what this node is preferred for; it can do everything"},
    {.key = "grpc",
     .type = CONFIG_ADDRESS,
     FIELD(grpc),
     .initial = "127.0.0.1:0",
     .sections = CONFIG_NODE,
     .help = "where gRPC health and reflection listen"},
    {.key = "http",
     .type = CONFIG_ADDRESS,
     FIELD(http),
     .initial = "127.0.0.1:0",
     .sections = CONFIG_NODE,
     .help = "where /healthz, /readyz and /metrics listen"},
    {.key = "grpc_file",
     .type = CONFIG_STRING,
     FIELD(grpc_file),
     .sections = CONFIG_NODE,
     .argument = "PATH",
     .help = "write the gRPC address in use to this file"},
    {.key = "http_file",
     .type = CONFIG_STRING,
     FIELD(http_file),
     .sections = CONFIG_NODE,
     .argument = "PATH",
     .help = "write the HTTP address in use to this file"},
    {.key = "log_level",
     .type = CONFIG_ENUM,
     FIELD(log_level),
     .choices = "debug|info|warn|error",
     .initial = "info",
     .help = "least important lines to log"},
    {.key = "backend",
     .type = CONFIG_ENUM,
     FIELD(backend),
     .choices = BACKEND_CHOICES,
     .initial = "auto",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "what computes; opaque is the CPU behind unreadable memory, for tests"},
    {.key = "isa",
     .type = CONFIG_STRING,
     FIELD(isa),
     .initial = "auto",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .argument = "NAME",
     .help = "instruction set of the CPU backend: auto, plain, avx2, avx512, avx512vnni (on Arm: "
             "plain, neon, dotprod); any gives the same bits"},
    {.key = "compute",
     .type = CONFIG_ENUM,
     FIELD(compute),
     .choices = "f32|int8",
     .initial = "int8",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "arithmetic of linear layers; equal in a cluster"},
    {.key = "kv_type",
     .type = CONFIG_ENUM,
     FIELD(kv_type),
     .choices = "f32|f16|int8|!fp8",
     .initial = "f16",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "how keys and values are stored; int8 takes half of f16; equal in a cluster"},
    {.key = "page_tokens",
     .type = CONFIG_INT,
     FIELD(page_tokens),
     .initial = "0",
     .max = 128,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help =
         "positions in a KV page: 16, 32, 64 or 128; 0 chooses by the model; equal in a cluster"},
    {.key = "layer_run",
     .type = CONFIG_INT,
     FIELD(layer_run),
     .initial = "0",
     .max = 1024,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "layers in a piece of a page; 0 chooses by the model; equal in a cluster"},
    {.key = "kv_pages",
     .type = CONFIG_INT,
     FIELD(kv_pages),
     .initial = "0",
     .max = 1 << 24,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "pages in the pool; 0: as kv_memory allows"},
    {.key = "kv_memory",
     .type = CONFIG_BYTES,
     FIELD(kv_memory),
     .initial = "512M",
     .min = 1 << 20,
     .max = INT64_C(1) << 46,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "memory for KV pages"},
    {.key = "context_tokens",
     .type = CONFIG_INT,
     FIELD(context_tokens),
     .initial = "0",
     .max = 1 << 24,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "longest prompt and answer together; 0: the model's; equal in a cluster"},
    {.key = "threads",
     .type = CONFIG_INT,
     FIELD(threads),
     .initial = "0",
     .max = 1024,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "compute threads; 0: one a core"},
    {.key = "cpus",
     .type = CONFIG_STRING,
     FIELD(cpus),
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "processors for the compute threads, as 0-3,8; empty: wherever the system puts them"},
    {.key = "numa",
     .type = CONFIG_ENUM,
     FIELD(numa),
     .choices = "auto|off",
     .initial = "auto",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "auto: weights and KV lie near the compute threads' processors, spread where those "
             "are on several "
             "memory nodes; off: wherever the system puts them"},
    {.key = "peaks",
     .type = CONFIG_STRING,
     FIELD(peaks),
     .initial = "auto",
     .argument = "auto|off|PATH",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "the file that keeps what this machine reaches at best, measured at the first starts; "
             "auto: "
             "baton/peaks in the cache folder; off: not measured, no MFU, MBU and verdicts"},
    {.key = "chunk_tokens",
     .type = CONFIG_INT,
     FIELD(chunk_tokens),
     .initial = "512",
     .min = 1,
     .max = 65536,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "rows of one prompt in a step"},
    {.key = "batch_tokens",
     .type = CONFIG_INT,
     FIELD(batch_tokens),
     .initial = "512",
     .min = 1,
     .max = 65536,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "rows of a step, all in all"},
    {.key = "sequences_max",
     .type = CONFIG_INT,
     FIELD(sequences_max),
     .initial = "64",
     .min = 1,
     .max = 4096,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "sequences in a step; four times as many may wait"},
    {.key = "steps_in_flight",
     .type = CONFIG_INT,
     FIELD(steps_in_flight),
     .initial = "2",
     .min = 1,
     .max = 2,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "2: a step is submitted before the tokens of the one before are known"},
    {.key = "gap_ms",
     .type = CONFIG_INT,
     FIELD(gap_ms),
     .initial = "100",
     .max = 60000,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "a step that decodes takes as many prompt rows as keep it below this; 0: any number"},
    {.key = "reserve",
     .type = CONFIG_ENUM,
     FIELD(reserve),
     .choices = "early|need",
     .initial = "need",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "pages of an answer: all before it begins, or one by one as it grows"},
    {.key = "preempt",
     .type = CONFIG_ENUM,
     FIELD(preempt),
     .choices = "auto|swap|recompute",
     .initial = "auto",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "how a sequence gives its pages up: auto takes what the measured rates make cheaper"},
    {.key = "swap_memory",
     .type = CONFIG_BYTES,
     FIELD(swap_memory),
     .initial = "128M",
     .max = INT64_C(1) << 46,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "host memory for the pages of sequences that gave way; 0: they are computed again"},
    {.key = "preempt_every",
     .type = CONFIG_INT,
     FIELD(preempt_every),
     .initial = "0",
     .max = 1 << 20,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .hidden = true,
     .help = "for tests: each sequence gives way after so many tokens"},
    {.key = "transport",
     .type = CONFIG_ENUM,
     FIELD(transport),
     .choices = XFER_TRANSPORT_CHOICES,
     .initial = "auto",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "what carries KV pages"},
    {.key = "kv_interface",
     .type = CONFIG_STRING,
     FIELD(kv_interface),
     .initial = "lo",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .argument = "DEVICE",
     .help = "network device for KV pages"},
    {.key = "kv_ports",
     .type = CONFIG_STRING,
     FIELD(kv_ports),
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .argument = "FROM-TO",
     .help = "TCP ports for KV pages; by default any"},
    {.key = "kv_host",
     .type = CONFIG_STRING,
     FIELD(kv_host),
     .initial = "127.0.0.1",
     .sections = CONFIG_NODE,
     .argument = "ADDRESS",
     .help = "the IP address that this node's KV connections come from"},
    {.key = "prefix_cache",
     .type = CONFIG_BOOL,
     FIELD(prefix_cache),
     .initial = "true",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help =
         "keep finished pages until their memory is wanted, and reuse them for equal beginnings"},
    {.key = "kv_filter",
     .type = CONFIG_BOOL,
     FIELD(kv_filter),
     .initial = "true",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "over TCP, drop KV connections that the router did not announce"},
    {.key = "kv_rate_max",
     .type = CONFIG_BYTES,
     FIELD(kv_rate_max),
     .initial = "0",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "bytes of KV pages a second that this node sends, to leave room on a shared link; 0: "
             "no limit"},
    {.key = "wire_max",
     .type = CONFIG_INT,
     FIELD(wire_max),
     .initial = "0",
     .max = WIRE_NEWEST,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help =
         "newest version of messages and KV frames to speak, while older programs are about; 0: "
         "all that it can"},
    {.key = "faults",
     .type = CONFIG_STRING,
     FIELD(faults),
     .argument = "SCHEDULE",
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "what goes wrong on purpose, for tests: \"seed=7 frame.drop=0.01 piece.flip=0.01 "
             "max=1000\""},
    {.key = "grace_s",
     .type = CONFIG_DURATION,
     FIELD(grace_ns),
     .initial = "30s",
     .max = INT64_C(86400) * 1000000000,
     .sections = CONFIG_COMMON | CONFIG_NODE,
     .help = "after SIGTERM, how long the work in hand may go on"},
};

const char *node_role_text(enum node_role role)
{
    static const char *const texts[] = {"prefill", "decode", "mixed"};
    return texts[role];
}

const char *node_options_backend(const struct node_options *options)
{
    static const char *const names[] = {"cpu", "cpu", "opaque",
                                        "cuda"}; /* in the order of the choices */
    return names[options->backend];
}

const struct config_schema *node_options_schema(const char *program, const char *section,
                                                enum node_role role, const char *version)
{
    static struct config_schema schema;
    static char example[256];
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i].key, "role"))
            table[i].initial = node_role_text(role);
        else if (!strcmp(table[i].key, "faults"))
            table[i].unbuilt = !faults_built();
    snprintf(
        example, sizeof example,
        "  %s --model model.gguf --router 10.0.0.1:7071 --kv-interface eth0 --kv-host 10.0.0.2\n",
        program);
    schema = (struct config_schema){
        .program = program,
        .section = section,
        CONFIG_TABLE(table),
        .summary = role == NODE_ROLE_PREFILL
                       ? "computes prompts and hands their KV cache to decode nodes"
                       : "fetches KV caches from prefill nodes and decodes, many sequences at once",
        .example = example,
        .version = version,
    };
    return &schema;
}

enum status node_options_check(const struct node_options *o, struct err *err)
{
    static const int page_sizes[] = {0, 16, 32, 64, 128};
    bool known = false;
    for (size_t i = 0; i < sizeof page_sizes / sizeof page_sizes[0]; i++)
        known |= o->page_tokens == page_sizes[i];
    if (!known)
        return err_set(err, STATUS_CONFIG, "page_tokens: %lld is not one of 16, 32, 64, 128 (or 0)",
                       (long long)o->page_tokens);
    if (o->batch_tokens <= o->sequences_max)
        return err_set(err, STATUS_CONFIG,
                       "batch_tokens: %lld must be above sequences_max (%lld), or prompts starve",
                       (long long)o->batch_tokens, (long long)o->sequences_max);
    if (o->kv_rate_max && o->kv_rate_max < 1 << 20)
        return err_set(err, STATUS_CONFIG,
                       "kv_rate_max: %llu bytes a second; 0 for no limit, or at least 1M",
                       (unsigned long long)o->kv_rate_max);
    if (o->name && (strlen(o->name) > 64 || !*o->name))
        return err_set(err, STATUS_CONFIG, "name: must have 1 to 64 bytes");
    return STATUS_OK;
}
