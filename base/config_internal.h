/* What the files of base/config*.c share. Not for anyone else.
 *
 *     argv ──▶ config_flags.c ──┐
 *     environment ──▶ config.c ─┼──▶ config_set: the strongest stays ──▶ the program's struct
 *     file ──▶ config_file.c ───┘         (config_value.c)
 *
 * Owner: the thread that loads. */
#ifndef BATON_BASE_CONFIG_INTERNAL_H
#define BATON_BASE_CONFIG_INTERNAL_H

#include "base/config.h"

/* In the order of strength. */
enum config_source {
    SOURCE_DEFAULT,
    SOURCE_FILE_COMMON,
    SOURCE_FILE_SECTION,
    SOURCE_ENVIRONMENT,
    SOURCE_FLAG,
};

enum { CONFIG_FILE_BYTES_MAX = 1 << 20, CONFIG_KEY_BYTES_MAX = 64, CONFIG_ORIGIN_BYTES = 256 };

struct config_value {
    union {
        int64_t integer; /* CONFIG_INT */
        double real;
        uint64_t amount; /* CONFIG_BYTES, CONFIG_DURATION */
        bool truth;
        int choice;
        struct config_address address;
    };
};

struct config_list {
    char **items;
    size_t count, capacity;
};

struct config_setting {
    enum config_source source;
    struct config_value value;
    char *text; /* CONFIG_STRING; NULL: unset */
    struct config_list list;
    char origin[CONFIG_ORIGIN_BYTES];
};

struct config {
    const struct config_schema *schema;
    struct config_setting *settings; /* one an option */
    struct config_list positionals, rest;
};

/* Text to value, by the row's type and limits. The message has no place in it. */
enum status config_value_parse(const struct config_option *option, const char *text,
                               struct config_value *value_out, struct err *err);

/* An enum's choices without those that are not built yet. */
const char *config_choices_built(const struct config_option *option, char *buffer,
                                 size_t buffer_bytes);

/* Checks `text` and keeps it unless a stronger source has set the option; equal strength: the last
 * wins (CONFIG_STRINGS: all are kept). The error begins with `origin`. */
enum status config_set(struct config *config, size_t index, const char *text,
                       enum config_source source, const char *origin, struct err *err);

enum status config_list_add(struct config_list *list, const char *text);

enum status config_flags_read(struct config *config, int argc, char *const *argv,
                              const char **file_out, enum config_request *request_out,
                              struct err *err);
enum status config_file_read(struct config *config, const char *file, const void *text,
                             size_t bytes, struct err *err);

/* The row of that key, or SIZE_MAX. */
size_t config_find(const struct config_schema *schema, const char *key);
/* " (did you mean "page_tokens"?)", or "" when nothing is near. */
const char *config_suggest(const struct config_schema *schema, const char *key, bool as_flag,
                           char *buffer, size_t buffer_bytes);
/* A hostile word made fit for an error line: cut, control characters replaced. */
const char *config_printable(const char *text, size_t bytes, char *buffer, size_t buffer_bytes);
/* page_tokens ──▶ page-tokens */
void config_flag_name(const char *key, char *buffer, size_t buffer_bytes);
/* page_tokens ──▶ BATON_PAGE_TOKENS */
void config_environment_name(const char *key, char *buffer, size_t buffer_bytes);

#endif
