#include "base/config.h"
#include "base/clock.h"
#include "tests/test.h"

#include <unistd.h>

struct options {
    const char *model, *name;
    int64_t page_tokens;
    double temperature;
    uint64_t kv_memory, grace_ns;
    bool json;
    int transport;
    struct config_address grpc;
    struct config_strings stop;
    const char *soon;
};

static const struct config_option table[] = {
    {.key = "model",
     .type = CONFIG_STRING,
     CONFIG_FIELD(struct options, model),
     .letter = 'm',
     .help = "the model"},
    {.key = "name",
     .type = CONFIG_STRING,
     CONFIG_FIELD(struct options, name),
     .initial = "node-0",
     .sections = CONFIG_NODE,
     .help = "its name"},
    {.key = "page_tokens",
     .type = CONFIG_INT,
     CONFIG_FIELD(struct options, page_tokens),
     .initial = "32",
     .min = 16,
     .max = 128,
     .help = "positions in a page"},
    {.key = "temperature",
     .type = CONFIG_FLOAT,
     CONFIG_FIELD(struct options, temperature),
     .initial = "1",
     .min = 0,
     .max = 100,
     .help = "warmth",
     .flag_only = true},
    {.key = "kv_memory",
     .type = CONFIG_BYTES,
     CONFIG_FIELD(struct options, kv_memory),
     .initial = "64M",
     .help = "bytes of pages"},
    {.key = "grace",
     .type = CONFIG_DURATION,
     CONFIG_FIELD(struct options, grace_ns),
     .initial = "30s",
     .min = 1000000,
     .max = 3600000000000,
     .help = "time to drain"},
    {.key = "json", .type = CONFIG_BOOL, CONFIG_FIELD(struct options, json), .help = "JSON"},
    {.key = "transport",
     .type = CONFIG_ENUM,
     CONFIG_FIELD(struct options, transport),
     .initial = "auto",
     .choices = "auto|rdma|tcp|shm|!pigeon",
     .help = "how"},
    {.key = "grpc",
     .type = CONFIG_ADDRESS,
     CONFIG_FIELD(struct options, grpc),
     .initial = "127.0.0.1:7070",
     .help = "where gRPC listens"},
    {.key = "stop",
     .type = CONFIG_STRINGS,
     CONFIG_FIELD(struct options, stop),
     .flag_only = true,
     .help = "stop strings"},
    {.key = "soon",
     .type = CONFIG_STRING,
     CONFIG_FIELD(struct options, soon),
     .unbuilt = true,
     .help = "not there"},
};

static const struct config_schema schema = {
    .program = "baton-decode",
    .section = "decode",
    CONFIG_TABLE(table),
    .summary = "a test",
    .example = "baton-decode --model m.gguf",
    .version = "baton 0",
    .positionals = "WORD",
    .positionals_max = 2,
    .rest = true,
};

static struct options options;
static struct config *config;
static struct err err;
static enum config_request request;

#define LOAD(...) load((const char *[]){"program", __VA_ARGS__, NULL})
static enum status load(const char *const *argv)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    config_destroy(config);
    config = NULL;
    memset(&options, 0, sizeof options);
    memset(&err, 0, sizeof err);
    enum status status =
        config_load(&schema, argc, (char *const *)argv, &options, &config, &request, &err);
    CHECK(status == STATUS_OK || (config == NULL && options.name == NULL));
    return status;
}

static enum status load_yaml(const char *text, size_t bytes)
{
    config_destroy(config);
    config = NULL;
    memset(&options, 0, sizeof options);
    memset(&err, 0, sizeof err);
    return config_load_text(&schema, "cluster.yaml", text, bytes, &options, &config, &err);
}

#define YAML_REFUSED(text, message_) yaml_refused(text, sizeof(text) - 1, message_)
static void yaml_refused(const char *text, size_t bytes, const char *message)
{
    CHECK_INT(load_yaml(text, bytes), STATUS_CONFIG);
    CHECK_STR(err.message, message);
}

static void refused(enum status status, const char *message)
{
    CHECK_INT(status, STATUS_CONFIG);
    CHECK_STR(err.message, message);
}

static void finish(void)
{
    config_destroy(config);
    config = NULL;
}

/* Writes `text` to a file of its own; the path is good until the next call. */
static const char *file_with(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/baton-test-config-XXXXXX");
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    return path;
}

TEST(config, defaults_fill_every_field)
{
    CHECK_INT(load((const char *[]){"program", NULL}), STATUS_OK);
    CHECK(options.model == NULL && options.soon == NULL && !options.json);
    CHECK_STR(options.name, "node-0");
    CHECK_INT(options.page_tokens, 32);
    CHECK(options.temperature == 1);
    CHECK_INT(options.kv_memory, 64 << 20);
    CHECK_INT(options.grace_ns, 30 * NS_PER_S);
    CHECK_INT(options.transport, 0);
    CHECK_STR(options.grpc.host, "127.0.0.1");
    CHECK_INT(options.grpc.port, 7070);
    CHECK_INT(options.stop.count, 0);
    CHECK(!config_given(config, "page_tokens"));
    CHECK_STR(config_origin(config, "page_tokens"), "default");
    finish();
}

TEST(config, flag_beats_environment_beats_section_beats_common_beats_default)
{
    const char *path =
        file_with("common:\n  page_tokens: 17\n  kv_memory: 1K\n  grace: 1s\n"
                  "  transport: shm\ndecode:\n  page_tokens: 18\n  kv_memory: 2K\n"
                  "  grace: 2s\nprefill:\n  page_tokens: 19\n  transport: nonsense\n");
    setenv("BATON_PAGE_TOKENS", "20", 1);
    setenv("BATON_KV_MEMORY", "3K", 1);
    setenv("BATON_TEMPERATURE", "7", 1); /* a flag-only option has no twin */
    CHECK_INT(LOAD("--config", path, "--page-tokens", "21"), STATUS_OK);
    CHECK_INT(options.page_tokens, 21);
    CHECK_STR(config_origin(config, "page_tokens"), "--page-tokens");
    CHECK_INT(options.kv_memory, 3 << 10);
    CHECK_STR(config_origin(config, "kv_memory"), "BATON_KV_MEMORY");
    CHECK_INT(options.grace_ns, 2 * NS_PER_S);
    char origin[128];
    snprintf(origin, sizeof origin, "%s:9", path);
    CHECK_STR(config_origin(config, "grace"), origin);
    CHECK_INT(options.transport, 3);
    CHECK(options.temperature == 1);
    CHECK_INT(options.grpc.port, 7070);
    /* the file itself may come from the environment; an empty twin counts as unset */
    setenv("BATON_CONFIG", path, 1);
    setenv("BATON_PAGE_TOKENS", "", 1);
    CHECK_INT(LOAD("--json"), STATUS_OK);
    CHECK_INT(options.page_tokens, 18);
    /* common after the section is still the weaker one */
    unsetenv("BATON_CONFIG");
    unlink(path);
    path = file_with("decode:\n  grace: 2s\ncommon:\n  grace: 1s\n");
    CHECK_INT(LOAD("--config", path), STATUS_OK);
    CHECK_INT(options.grace_ns, 2 * NS_PER_S);
    unlink(path);
    finish();
}

TEST(config, flags_take_every_form)
{
    CHECK_INT(LOAD("--page-tokens=64", "--kv_memory", "1.5G", "-m", "a", "-mb", "--json", "one",
                   "--stop", "x", "--stop=", "--stop", "-y", "two", "--", "--model", "z"),
              STATUS_OK);
    CHECK_INT(options.page_tokens, 64);
    CHECK_INT(options.kv_memory, 3ull << 29);
    CHECK_STR(options.model, "b");
    CHECK(options.json);
    CHECK_INT(options.stop.count, 3);
    CHECK_STR(options.stop.items[0], "x");
    CHECK_STR(options.stop.items[1], "");
    CHECK_STR(options.stop.items[2], "-y");
    struct config_strings words = config_positionals(config), rest = config_rest(config);
    CHECK_INT(words.count, 2);
    CHECK_STR(words.items[1], "two");
    CHECK_INT(rest.count, 2);
    CHECK_STR(rest.items[0], "--model");
    CHECK_INT(LOAD("--json=no", "--model=--grpc"), STATUS_OK);
    CHECK(!options.json);
    CHECK_STR(options.model, "--grpc");
    finish();
}

TEST(config, flag_errors_name_the_flag_and_the_limit)
{
    refused(LOAD("--pagetokens", "1"),
            "unknown option \"--pagetokens\" (did you mean \"--page-tokens\"?); see --help");
    refused(LOAD("--zzz"), "unknown option \"--zzz\"; see --help");
    refused(LOAD("-z"), "unknown option \"-z\"; see --help");
    refused(LOAD("--page-tokens", "8"), "--page-tokens: 8 is out of range (16 to 128)");
    refused(LOAD("--page_tokens", "x"), "--page-tokens: \"x\" is not a whole number");
    refused(LOAD("--page-tokens", "99999999999999999999"),
            "--page-tokens: \"99999999999999999999\" is not a number of 64 bits");
    refused(LOAD("--temperature", "nan"), "--temperature: \"nan\" is not a finite number");
    refused(LOAD("--temperature", "-1"), "--temperature: -1 is out of range (0 to 100)");
    refused(LOAD("--grace", "2h"), "--grace: 2h is out of range (0.001 to 3600 seconds)");
    refused(LOAD("--transport", "owl"), "--transport: \"owl\" is not one of auto|rdma|tcp|shm");
    refused(LOAD("--transport", "pigeon"), "--transport: \"pigeon\" is not built yet");
    refused(LOAD("--grpc", "7070"), "--grpc: \"7070\" is not an address HOST:PORT, such as "
                                    "127.0.0.1:7070 or [::1]:7070");
    refused(LOAD("--model"), "--model: needs a value");
    refused(LOAD("--model", "--json"), "--model: needs a value");
    refused(LOAD("--config="), "--config: needs a value");
    refused(LOAD("--json=maybe"), "--json: \"maybe\" is not true or false");
    refused(LOAD("a", "b", "c"), "unexpected argument \"c\"; see --help");
    refused(LOAD("--soon", "x"), "--soon: \"soon\" is not built yet; leave it out");
    refused(LOAD("--check-config=1"), "--check-config: takes no value");
    refused(LOAD("--config", "/nonexistent/x.yaml"),
            "/nonexistent/x.yaml: cannot be read: No such file or directory");
    refused(LOAD("--config", "/"), "/: cannot be read: Is a directory");
    setenv("BATON_PAGE_TOKENS", "200", 1);
    refused(LOAD("--json"), "BATON_PAGE_TOKENS: 200 is out of range (16 to 128)");
}

TEST(config, required_and_too_few_are_errors)
{
    static const struct config_option rows[] = {
        {.key = "model",
         .type = CONFIG_STRING,
         CONFIG_FIELD(struct options, model),
         .required = true,
         .help = "the model's file"},
    };
    struct config_schema small = {.program = "p", .section = "router", CONFIG_TABLE(rows)};
    char *const argv[] = {(char *)"p", NULL};
    CHECK_INT(config_load(&small, 1, argv, &options, &config, &request, &err), STATUS_CONFIG);
    CHECK_STR(err.message, "model is not set: the model's file; give --model, BATON_MODEL or "
                           "\"model:\" in the file");
    small.section = NULL;
    small.positionals = "NODE";
    small.positionals_min = small.positionals_max = 1;
    CHECK_INT(config_load(&small, 1, argv, &options, &config, &request, &err), STATUS_CONFIG);
    CHECK_STR(err.message, "NODE is missing; see --help");
}

TEST(config, requests_win_over_what_follows)
{
    CHECK_INT(LOAD("--help", "--nonsense"), STATUS_OK);
    CHECK_INT(request, CONFIG_HELP);
    CHECK_INT(LOAD("-h"), STATUS_OK);
    CHECK_INT(request, CONFIG_HELP);
    CHECK_INT(LOAD("--version"), STATUS_OK);
    CHECK_INT(request, CONFIG_VERSION);
    CHECK_STR(options.name, "node-0");
    CHECK_INT(LOAD("--check-config"), STATUS_OK);
    CHECK_INT(request, CONFIG_CHECK);
    refused(LOAD("--check-config", "--page-tokens", "1"),
            "--page-tokens: 1 is out of range (16 to 128)");
    finish();
}

TEST(config, help_lists_what_is_built_with_defaults)
{
    struct buf help = BUF_INIT;
    config_help(&schema, &help);
    buf_append(&help, "", 1);
    const char *text = (const char *)help.data;
    static const char *const wanted[] = {
        "usage: baton-decode [OPTIONS] [WORD] [-- ARGUMENTS]",
        "-m, --model TEXT",
        "--page-tokens N               positions in a page (16 to 128; default 32)",
        "--transport auto|rdma|tcp|shm",
        "--kv-memory SIZE              bytes of pages (default 64M)",
        "--stop TEXT ...",
        "--check-config",
        "--version",
        "BATON_MODEL for --model",
        "example:\nbaton-decode --model m.gguf\n",
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        CHECK_MSG(strstr(text, wanted[i]), "help lacks: %s\n%s", wanted[i], text);
    CHECK(!strstr(text, "soon") && !strstr(text, "pigeon"));
    buf_finish(&help);
}

TEST(config, amounts_are_exact_or_refused)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"0", 0},       {"17", 17},         {"1k", 1024},
                 {"2KiB", 2048}, {"3MB", 3u << 20},  {"8G", 8ull << 30},
                 {"1.5K", 1536}, {"1T", 1ull << 40}, {"0.5M", 512 << 10},
                 {"12B", 12}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t bytes = 99;
        CHECK_INT(config_parse_bytes(sizes[i].text, &bytes, NULL), STATUS_OK);
        CHECK_INT(bytes, sizes[i].bytes);
    }
    static const struct {
        const char *text;
        uint64_t ns;
    } times[] = {{"1", NS_PER_S},
                 {"250ms", 250 * NS_PER_MS},
                 {"1.5s", 1500 * NS_PER_MS},
                 {"5m", 300 * NS_PER_S},
                 {"1h", 3600 * NS_PER_S},
                 {"10us", 10000},
                 {"7ns", 7},
                 {"0", 0}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        uint64_t ns = 99;
        CHECK_INT(config_parse_duration(times[i].text, &ns, NULL), STATUS_OK);
        CHECK_INT(ns, times[i].ns);
    }
    static const char *const wrong[] = {"",
                                        "-1",
                                        "1 K",
                                        " 1",
                                        "K",
                                        "1KK",
                                        "1.",
                                        ".5",
                                        "1e3",
                                        "0x1",
                                        "1.5.5",
                                        "99999999T",
                                        "18446744073709551616"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint64_t value = 99;
        CHECK_INT(config_parse_bytes(wrong[i], &value, NULL), STATUS_CONFIG);
        CHECK_INT(config_parse_duration(wrong[i], &value, NULL), STATUS_CONFIG);
        CHECK_INT(value, 99);
    }
}

TEST(config, addresses_are_taken_apart_and_put_together)
{
    static const char *const good[] = {"127.0.0.1:7070", "node-1.rack_2:1", "[::1]:0",
                                       "[fe80::1%eth0]:65535"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct config_address address;
        char text[300];
        CHECK_INT(config_parse_address(good[i], &address, NULL), STATUS_OK);
        CHECK_STR(config_format_address(&address, text, sizeof text), good[i]);
    }
    static const char *const wrong[] = {"",      ":1",    "a:",     "a:65536", "a:-1",
                                        "a:1.0", "a:1x",  "::1:80", "[::1]80", "[::1:80",
                                        "[]:1",  "a b:1", "a:+1",   "a: 1",    "http://a:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct config_address address = {.port = 9};
        CHECK_MSG(config_parse_address(wrong[i], &address, NULL) == STATUS_CONFIG, "%s", wrong[i]);
        CHECK_INT(address.port, 9);
    }
    char text[300], host[400];
    memset(host, 'h', 300);
    strcpy(host + 300, ":1");
    struct config_address address;
    CHECK_INT(config_parse_address(host, &address, NULL), STATUS_CONFIG);
    CHECK_STR(config_choice(&table[7], 2, text, sizeof text), "tcp");
    CHECK_STR(config_choice(&table[7], 4, text, sizeof text), "pigeon");
    CHECK_STR(config_choice(&table[7], 9, text, sizeof text), "");
}

TEST(config, yaml_of_the_one_shape_is_read)
{
    static const char text[] = "# a comment\ncommon:\n  model: \"a b\"   # why\n  compute: int8\n"
                               "router:\n  node_grpc: 127.0.0.1:1\ndecode: {page_tokens: 64, "
                               "'transport': tcp}\nprefill:\n";
    CHECK_INT(load_yaml(text, sizeof text - 1), STATUS_OK);
    CHECK_STR(options.model, "a b");
    CHECK_INT(options.page_tokens, 64);
    CHECK_INT(options.transport, 2);
    CHECK_INT(load_yaml("", 0), STATUS_OK);
    CHECK_INT(load_yaml(NULL, 0), STATUS_OK);
    CHECK_INT(load_yaml("# nothing\n", 10), STATUS_OK);
    CHECK_INT(load_yaml("---\n", 4), STATUS_OK);
    CHECK_INT(load_yaml("---\ndecode:\n  model: ''\n...\n", 28), STATUS_OK);
    CHECK_STR(options.model, "");
    finish();
}

TEST(config, yaml_errors_name_the_line)
{
    YAML_REFUSED("common:\n\n  pagetokens: 1\n",
                 "cluster.yaml:3: unknown key \"pagetokens\" (did you mean \"page_tokens\"?)");
    YAML_REFUSED("router:\n  nod_grpc: 1\n",
                 "cluster.yaml:2: unknown key \"nod_grpc\" (did you mean \"node_grpc\"?)");
    YAML_REFUSED("decode:\n  zzzzzz: 1\n", "cluster.yaml:2: unknown key \"zzzzzz\"");
    YAML_REFUSED("decode:\n  stop: x\n", "cluster.yaml:2: unknown key \"stop\"");
}

TEST(config, yaml_of_other_shapes_is_refused)
{
    YAML_REFUSED("decode:\n  page_tokens: 8\n",
                 "cluster.yaml:2: page_tokens: 8 is out of range (16 to 128)");
    YAML_REFUSED("common:\n  name: x\n", "cluster.yaml:2: key \"name\" has no meaning in section "
                                         "common (only in: router, prefill, decode)");
    YAML_REFUSED("router:\n  kv_pages: 1\n",
                 "cluster.yaml:2: key \"kv_pages\" has no meaning in section router (only in: "
                 "common, prefill, decode)");
    YAML_REFUSED("decode:\n  model: a\n  page_tokens: 16\n  model: b\n",
                 "cluster.yaml:4: key \"model\" stands twice (first in line 2)");
    YAML_REFUSED("prefill:\n  threads: 1\n  threads: 1\n",
                 "cluster.yaml:3: key \"threads\" stands twice (first in line 2)");
    YAML_REFUSED("decode:\n  model: a\ndecode:\n  grace: 1\n",
                 "cluster.yaml:3: section decode stands twice (first in line 1)");
    YAML_REFUSED("page_tokens: 16\n",
                 "cluster.yaml:1: key \"page_tokens\" stands outside of a section (put it under: "
                 "common, router, prefill, decode)");
    YAML_REFUSED("decoder:\n  a: b\n", "cluster.yaml:1: unknown section \"decoder\" (there are: "
                                       "common, router, prefill, decode)");
    YAML_REFUSED("decode:\n  soon: x\n", "cluster.yaml:2: \"soon\" is not built yet; leave it out");
    YAML_REFUSED("decode:\n  model:\n", "cluster.yaml:2: key \"model\" has no value");
    YAML_REFUSED("decode: 5\n", "cluster.yaml:1: section decode must hold \"key: value\" lines");
    YAML_REFUSED("[decode]\n",
                 "cluster.yaml:1: the file must hold sections: common, router, prefill, decode");
    YAML_REFUSED("just text\n",
                 "cluster.yaml:1: the file must hold sections: common, router, prefill, decode");
    YAML_REFUSED("decode:\n  model: [a, b]\n",
                 "cluster.yaml:2: a list where the value of \"model\" should be");
    YAML_REFUSED("decode:\n  model:\n    a: b\n",
                 "cluster.yaml:3: a map where the value of \"model\" should be");
    YAML_REFUSED("decode:\n  ? [a]\n  : b\n", "cluster.yaml:2: a list where a key should be");
    YAML_REFUSED("decode: &x\n  model: a\n", "cluster.yaml:1: anchors are not allowed");
    YAML_REFUSED("decode:\n  model: &x a\n  name: *x\n", "cluster.yaml:2: anchors are not allowed");
    YAML_REFUSED("decode:\n  model: !!str a\n", "cluster.yaml:2: tags are not allowed");
    YAML_REFUSED("decode: !!map\n  model: a\n", "cluster.yaml:1: tags are not allowed");
    YAML_REFUSED("decode:\n  model: \"a\\0b\"\n",
                 "cluster.yaml:2: the value of \"model\" has a NUL byte in it");
    YAML_REFUSED("decode:\n  model: a\n---\ndecode:\n",
                 "cluster.yaml:3: a second document in the file");
}

TEST(config, yaml_that_is_hostile_costs_nothing)
{
    CHECK_INT(load_yaml("decode:\n  model: \"a\n", 19), STATUS_CONFIG);
    CHECK(strstr(err.message, "cluster.yaml:"));
    CHECK_INT(load_yaml("decode:\n\tmodel: a\n", 18), STATUS_CONFIG);
    CHECK_INT(load_yaml("decode:\n  model: \xff\xfe\n", 20), STATUS_CONFIG);
    CHECK_INT(load_yaml("\0\0\0\0", 4), STATUS_CONFIG);
    CHECK_INT(load_yaml("*a\n", 3), STATUS_CONFIG);
    CHECK_INT(load_yaml("%YAML 9.9\n---\n", 14), STATUS_CONFIG);
    /* control characters never reach the terminal */
    CHECK_INT(load_yaml("decode:\n  \"\\e[31mx\\n\": 1\n", 26), STATUS_CONFIG);
    for (const char *at = err.message; *at; at++)
        CHECK(*at >= 0x20 && *at < 0x7f);
    /* a megabyte of depth, of aliases, of one key; and one byte too many */
    size_t bytes = 1 << 20;
    char *big = malloc(bytes + 1);
    memset(big, '[', bytes);
    CHECK_INT(load_yaml(big, bytes), STATUS_CONFIG);
    memset(big, '{', bytes);
    CHECK_INT(load_yaml(big, bytes), STATUS_CONFIG);
    memset(big, 'a', bytes);
    CHECK_INT(load_yaml(big, bytes), STATUS_CONFIG);
    memcpy(big, "decode:\n  ", 10);
    CHECK_INT(load_yaml(big, bytes), STATUS_CONFIG);
    memcpy(big, "decode: {model: ", 16);
    memset(big + 16, '*', bytes - 16);
    CHECK_INT(load_yaml(big, bytes), STATUS_CONFIG);
    CHECK_INT(load_yaml(big, bytes + 1), STATUS_CONFIG);
    CHECK_STR(err.message, "cluster.yaml: larger than 1048576 bytes");
    free(big);
    /* every prefix of a good file is read or refused, and leaves nothing behind */
    static const char text[] = "common:\n  model: \"a \\u00e4\" # x\n  kv_memory: 1.5G\ndecode:\n"
                               "  {page_tokens: 64, transport: 'tcp'}\n";
    for (size_t cut = 0; cut < sizeof text; cut++)
        load_yaml(text, cut);
    finish();
}

TEST(config, vocabulary_is_sound)
{
    for (size_t i = 0; i < config_key_count; i++) {
        CHECK(config_keys[i].sections && !(config_keys[i].sections & ~(unsigned)CONFIG_EVERYWHERE));
        for (size_t j = 0; j < i; j++)
            CHECK_MSG(strcmp(config_keys[i].key, config_keys[j].key), "%s stands twice",
                      config_keys[i].key);
    }
}
