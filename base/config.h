/* Options of a program, declared once in a table and read from four places, the strongest first:
 *
 *     flag                 --page-tokens 32
 *     environment          BATON_PAGE_TOKENS=32
 *     file                 page_tokens: 32
 *     the row's default    .initial = "32"
 *
 * The table also writes --help, so that an option cannot exist without its words. Keys have
 * underscores; flags take dashes or underscores alike, as `--key value` or `--key=value`; a bool
 * flag may stand alone, `--json`.
 *
 * The file is YAML of one fixed shape, for all programs together; a program reads `common` and then
 * its own section, which wins; what stands in the others' sections is checked for spelling only
 * (base/config_keys.c lists all keys of all programs):
 *
 *     common:                    the sections: common, router, prefill, decode
 *       model: /srv/m.gguf       scalars only: no lists, anchors or deeper maps,
 *     decode:                    no key twice, at most 1 MB
 *       page_tokens: 32
 *
 * Errors name the place, the key and the limit:
 *
 *     cluster.yaml:12: unknown key "pagetokens" (did you mean "page_tokens"?)
 *     --page-tokens: 8 is out of range (16 to 128)
 *
 * A row that is declared but not built yet (`unbuilt`) is refused when set, from whatever place,
 * and left out of --help.
 *
 *     struct options {
 *         const char *model;
 *         int64_t page_tokens;
 *     };
 *     static const struct config_option table[] = {
 *         {.key = "model", .type = CONFIG_STRING, CONFIG_FIELD(struct options, model),
 *          .required = true, .argument = "PATH", .help = "the model, a GGUF file"},
 *         {.key = "page_tokens", .type = CONFIG_INT, CONFIG_FIELD(struct options, page_tokens),
 *          .initial = "32", .min = 16, .max = 128, .help = "positions in a KV page"},
 *     };
 *     static const struct config_schema schema = {
 *         .program = "baton-decode", .section = "decode", CONFIG_TABLE(table), .summary = ...};
 *
 *     int main(int argc, char **argv)
 *     {
 *         struct options options;
 *         struct config *config;
 *         int exit_code;
 *         if (!config_start(&schema, argc, argv, &options, &config, &exit_code))
 *             return exit_code;
 *
 * Owner: the thread that starts the program; what was loaded is constant afterwards and may be read
 * from any thread. */
#ifndef BATON_BASE_CONFIG_H
#define BATON_BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* Process exit codes, the same for every program. */
enum exit_code {
    EXIT_CODE_DONE = 0,
    EXIT_CODE_FAILED = 1,    /* at run time: port in use, model unreadable, no memory */
    EXIT_CODE_USAGE = 2,     /* wrong usage or configuration */
    EXIT_CODE_NO_SERVER = 3, /* no server reached */
    EXIT_CODE_REFUSED = 4,   /* the request was refused */
    EXIT_CODE_HALF_WAY = 5,  /* failed half-way */
    EXIT_CODE_INTERRUPTED = 130,
};

/* The field's C type, and what the user writes. */
enum config_type {
    CONFIG_STRING,   /* const char *: any text; lives as long as the struct config */
    CONFIG_INT,      /* int64_t: 42, within min..max */
    CONFIG_FLOAT,    /* double: 0.7, finite, within min..max */
    CONFIG_BYTES,    /* uint64_t: 1048576, 512K, 64M, 1.5G, 1T; powers of 1024 */
    CONFIG_DURATION, /* uint64_t, nanoseconds: 250ms, 2s, 1.5s, 5m, 1h, 10us; bare: seconds */
    CONFIG_BOOL,     /* bool: true, false, yes, no, on, off, 1, 0; a flag alone is true */
    CONFIG_ENUM,     /* int, the index in choices: one of "auto|rdma|tcp|shm" */
    CONFIG_ADDRESS,  /* struct config_address: 127.0.0.1:7070, name:7070, [::1]:7070 */
    CONFIG_STRINGS,  /* struct config_strings: a flag that may come again and again; flag_only */
};

struct config_address {
    char host[254]; /* without brackets; "" when the option is unset */
    uint16_t port;
};

struct config_strings {
    const char *const *items;
    size_t count;
};

/* Where in the file a key may stand; 0 means everywhere. */
enum config_sections {
    CONFIG_COMMON = 1,
    CONFIG_ROUTER = 2,
    CONFIG_PREFILL = 4,
    CONFIG_DECODE = 8,
    CONFIG_NODE = CONFIG_PREFILL | CONFIG_DECODE,
    CONFIG_EVERYWHERE = CONFIG_COMMON | CONFIG_ROUTER | CONFIG_NODE,
};

struct config_option {
    const char *key; /* lower case, underscores */
    enum config_type type;
    size_t offset, field_bytes; /* by CONFIG_FIELD; field_bytes is asserted against the type */
    const char *initial;  /* the default, as a user would write it; NULL: NULL, 0, false or "" */
    const char *argument; /* the word in --help, "PATH"; NULL: one that fits the type */
    const char *help;     /* one line, no full stop */
    unsigned sections;    /* enum config_sections */
    int64_t min, max;     /* numbers, in the field's unit; both 0: no limit */
    const char *choices;  /* CONFIG_ENUM: "auto|tcp|!rdma"; "!" is a choice that is not built yet */
    char letter;          /* 'n' for -n; 0: none */
    bool flag_only;       /* neither environment nor file */
    bool required;        /* an error when it is set nowhere */
    bool unbuilt;         /* refused when set, left out of --help */
    bool hidden;          /* works, but not in --help: what one program passes to another */
};

#define CONFIG_FIELD(struct_type, member) \
    .offset = offsetof(struct_type, member), .field_bytes = sizeof(((struct_type *)0)->member)
#define CONFIG_TABLE(rows) .options = (rows), .option_count = sizeof(rows) / sizeof((rows)[0])

struct config_schema {
    const char *program; /* "baton-decode", "baton generate": begins every error */
    const char *section; /* its own in the file; NULL: neither --config nor --check-config */
    const struct config_option *options;
    size_t option_count;
    const char *summary; /* what the program does: the first line of --help */
    const char *example; /* whole lines for the end of --help */
    const char *version; /* what --version prints, without a last line break; NULL: no --version */
    const char *positionals; /* names of positional arguments, "NODE"; NULL: there are none */
    size_t positionals_min, positionals_max;
    bool rest; /* `-- ARGUMENTS` is allowed; config_rest gives them */
};

struct config;

/* --- for programs --- */

/* The first call of main: loads everything into `values`, answers --help, --version and
 * --check-config, and prints errors as "PROGRAM: message" on stderr. True: go on, and
 * config_destroy *config_out in the end. False: end with *exit_code_out (0 or 2). The one function
 * here that prints. */
bool config_start(const struct config_schema *schema, int argc, char *const *argv, void *values,
                  struct config **config_out, int *exit_code_out);

/* --- the same in steps --- */

enum config_request { CONFIG_RUN, CONFIG_HELP, CONFIG_VERSION, CONFIG_CHECK };

/* Reads flags, environment, file and defaults into `values` (argv[0] is skipped). STATUS_CONFIG:
 * `err` names the place. *request_out says what the user asked for; after CONFIG_HELP and
 * CONFIG_VERSION `values` are the defaults. */
enum status config_load(const struct config_schema *schema, int argc, char *const *argv,
                        void *values, struct config **config_out, enum config_request *request_out,
                        struct err *err);
/* The same for text in memory in place of a file, with no flags and no environment. `file` names it
 * in errors. */
enum status config_load_text(const struct config_schema *schema, const char *file, const void *text,
                             size_t bytes, void *values, struct config **config_out,
                             struct err *err);
void config_destroy(struct config *config); /* takes NULL; strings in `values` end here */
/* All options that are built, with their defaults, and the example. */
void config_help(const struct config_schema *schema, struct buf *out);

/* True when the user set it anywhere (so not the default). The key must be in the table. */
bool config_given(const struct config *config, const char *key);
/* "--page-tokens", "BATON_PAGE_TOKENS", "cluster.yaml:12" or "default": for errors found later, by
 * the program. */
const char *config_origin(const struct config *config, const char *key);
/* Positional arguments, and what stood after `--`. */
struct config_strings config_positionals(const struct config *config);
struct config_strings config_rest(const struct config *config);
/* The text of the value at `index` of an enum's choices, in a static or caller's buffer:
 * "auto|rdma" and 1 give "rdma". */
const char *config_choice(const struct config_option *option, int index, char *buffer,
                          size_t buffer_bytes);

/* --- values, as text --- */

/* Each takes `text` whole or fails with STATUS_CONFIG and a message without the place. */
enum status config_parse_bytes(const char *text, uint64_t *bytes_out, struct err *err);
enum status config_parse_duration(const char *text, uint64_t *ns_out, struct err *err);
enum status config_parse_address(const char *text, struct config_address *address_out,
                                 struct err *err);
/* "HOST:PORT", or "[HOST]:PORT" when the host has colons; returns `buffer`. */
const char *config_format_address(const struct config_address *address, char *buffer,
                                  size_t buffer_bytes);

/* --- the vocabulary of the file: every key of every program --- */

struct config_key {
    const char *key;
    unsigned sections;
};
extern const struct config_key config_keys[];
extern const size_t config_key_count;

#endif
