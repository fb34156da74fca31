/* Loading and keeping options: see config.h and, for how the parts meet, config_internal.h. */
#include "base/config_internal.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- names --- */

size_t config_find(const struct config_schema *schema, const char *key)
{
    for (size_t i = 0; i < schema->option_count; i++)
        if (!strcmp(schema->options[i].key, key))
            return i;
    return SIZE_MAX;
}

void config_flag_name(const char *key, char *buffer, size_t buffer_bytes)
{
    snprintf(buffer, buffer_bytes, "%s", key);
    for (char *at = buffer; *at; at++)
        *at = *at == '_' ? '-' : *at;
}

void config_environment_name(const char *key, char *buffer, size_t buffer_bytes)
{
    snprintf(buffer, buffer_bytes, "BATON_%s", key);
    for (char *at = buffer; *at; at++)
        *at = (char)toupper((unsigned char)*at);
}

/* Letters to insert, delete, replace or swap with their neighbour to make `a` into `b`. */
static unsigned distance(const char *a, const char *b)
{
    enum { N = CONFIG_KEY_BYTES_MAX };
    unsigned rows[3][N + 1];
    size_t a_bytes = strlen(a), b_bytes = strlen(b);
    if (a_bytes > N || b_bytes > N)
        return N;
    unsigned *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_bytes; j++)
        last[j] = (unsigned)j;
    for (size_t i = 1; i <= a_bytes; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_bytes; j++) {
            unsigned best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = last[j] + 1 < best ? last[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
        unsigned *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[b_bytes];
}

const char *config_suggest(const struct config_schema *schema, const char *key, bool as_flag,
                           char *buffer, size_t buffer_bytes)
{
    const char *best = NULL;
    unsigned best_distance = 1 + (unsigned)strlen(key) / 3;
    for (size_t i = 0; i < schema->option_count; i++) {
        const struct config_option *option = &schema->options[i];
        unsigned d = distance(key, option->key);
        if (d < best_distance && !option->unbuilt && !option->hidden &&
            (as_flag || !option->flag_only)) {
            best = option->key;
            best_distance = d;
        }
    }
    for (size_t i = 0; !as_flag && i < config_key_count; i++)
        if (distance(key, config_keys[i].key) < best_distance) {
            best = config_keys[i].key;
            best_distance = distance(key, best);
        }
    buffer[0] = 0;
    if (best) {
        char name[CONFIG_KEY_BYTES_MAX + 1];
        snprintf(name, sizeof name, "%s", best);
        if (as_flag)
            config_flag_name(best, name, sizeof name);
        snprintf(buffer, buffer_bytes, " (did you mean \"%s%s\"?)", as_flag ? "--" : "", name);
    }
    return buffer;
}

/* --- settings --- */

enum status config_list_add(struct config_list *list, const char *text)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 8;
        char **items = realloc(list->items, capacity * sizeof *items);
        if (!items)
            return STATUS_MEMORY;
        list->items = items;
        list->capacity = capacity;
    }
    char *copy = strdup(text);
    if (!copy)
        return STATUS_MEMORY;
    list->items[list->count++] = copy;
    return STATUS_OK;
}

static void list_finish(struct config_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
}

enum status config_set(struct config *config, size_t index, const char *text,
                       enum config_source source, const char *origin, struct err *err)
{
    const struct config_option *option = &config->schema->options[index];
    struct config_setting *setting = &config->settings[index];
    if (option->unbuilt)
        return err_set(err, STATUS_CONFIG, "%s: \"%s\" is not built yet; leave it out", origin,
                       option->key);
    struct config_value value;
    if (config_value_parse(option, text, &value, err) != STATUS_OK)
        return err_wrap(err, "%s", origin), STATUS_CONFIG;
    if (setting->source > source)
        return STATUS_OK;
    if (option->type == CONFIG_STRINGS) {
        if (config_list_add(&setting->list, text) != STATUS_OK)
            return err_set(err, STATUS_MEMORY, "%s: out of memory", origin);
    } else if (option->type == CONFIG_STRING) {
        char *copy = strdup(text);
        if (!copy)
            return err_set(err, STATUS_MEMORY, "%s: out of memory", origin);
        free(setting->text);
        setting->text = copy;
    }
    setting->value = value;
    setting->source = source;
    snprintf(setting->origin, sizeof setting->origin, "%s", origin);
    return STATUS_OK;
}

static size_t field_bytes(enum config_type type)
{
    switch (type) {
    case CONFIG_STRING:
        return sizeof(const char *);
    case CONFIG_INT:
        return sizeof(int64_t);
    case CONFIG_FLOAT:
        return sizeof(double);
    case CONFIG_BYTES:
    case CONFIG_DURATION:
        return sizeof(uint64_t);
    case CONFIG_BOOL:
        return sizeof(bool);
    case CONFIG_ENUM:
        return sizeof(int);
    case CONFIG_ADDRESS:
        return sizeof(struct config_address);
    case CONFIG_STRINGS:
        return sizeof(struct config_strings);
    }
    return 0;
}

static void store(const struct config_option *option, const struct config_setting *setting,
                  void *values)
{
    void *field = (char *)values + option->offset;
    struct config_strings list = {(const char *const *)setting->list.items, setting->list.count};
    const void *from = &setting->value;
    if (option->type == CONFIG_STRING)
        from = &setting->text;
    else if (option->type == CONFIG_STRINGS)
        from = &list;
    memcpy(field, from, option->field_bytes);
}

static enum status create(const struct config_schema *schema, struct config **config_out,
                          struct err *err)
{
    struct config *config = calloc(1, sizeof *config);
    struct config_setting *settings = calloc(schema->option_count + 1, sizeof *settings);
    if (!config || !settings) {
        free(config);
        free(settings);
        return err_set(err, STATUS_MEMORY, "out of memory");
    }
    config->schema = schema;
    config->settings = settings;
    *config_out = config;
    for (size_t i = 0; i < schema->option_count; i++) {
        const struct config_option *option = &schema->options[i];
        assert(option->field_bytes == field_bytes(option->type));
        assert(strlen(option->key) <= CONFIG_KEY_BYTES_MAX);
        assert(option->type != CONFIG_STRINGS || option->flag_only);
        if (option->initial && !option->unbuilt) {
            enum status status =
                config_set(config, i, option->initial, SOURCE_DEFAULT, "default", err);
            assert(status != STATUS_CONFIG); /* a wrong default is our own bug */
            if (status != STATUS_OK) {
                config_destroy(config);
                return status;
            }
        }
    }
    return STATUS_OK;
}

void config_destroy(struct config *config)
{
    if (!config)
        return;
    for (size_t i = 0; i < config->schema->option_count; i++) {
        free(config->settings[i].text);
        list_finish(&config->settings[i].list);
    }
    list_finish(&config->positionals);
    list_finish(&config->rest);
    free(config->settings);
    free(config);
}

/* The last step: what is required is there, and the program's struct is filled. */
static enum status finish_load(struct config *config, void *values, struct err *err)
{
    const struct config_schema *schema = config->schema;
    for (size_t i = 0; i < schema->option_count; i++) {
        const struct config_option *option = &schema->options[i];
        if (!option->required || config->settings[i].source != SOURCE_DEFAULT)
            continue;
        char flag[CONFIG_KEY_BYTES_MAX + 1], twin[CONFIG_KEY_BYTES_MAX + 8];
        config_flag_name(option->key, flag, sizeof flag);
        config_environment_name(option->key, twin, sizeof twin);
        if (option->flag_only)
            return err_set(err, STATUS_CONFIG, "--%s is missing: %s", flag, option->help);
        return err_set(err, STATUS_CONFIG, "%s is not set: %s; give --%s, %s%s%s%s", option->key,
                       option->help, flag, twin, schema->section ? " or \"" : "",
                       schema->section ? option->key : "",
                       schema->section ? ":\" in the file" : "");
    }
    for (size_t i = 0; i < schema->option_count; i++)
        store(&schema->options[i], &config->settings[i], values);
    return STATUS_OK;
}

/* --- sources --- */

static enum status environment_read(struct config *config, struct err *err)
{
    for (size_t i = 0; i < config->schema->option_count; i++) {
        const struct config_option *option = &config->schema->options[i];
        char twin[CONFIG_KEY_BYTES_MAX + 8];
        config_environment_name(option->key, twin, sizeof twin);
        const char *text = option->flag_only ? NULL : getenv(twin);
        if (!text || !*text)
            continue;
        enum status status = config_set(config, i, text, SOURCE_ENVIRONMENT, twin, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status slurp(const char *file, struct buf *out, struct err *err)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, STATUS_CONFIG, "%s: cannot be read: %s", file, strerror(errno));
    enum status status = STATUS_OK;
    for (;;) {
        if (!buf_reserve(out, 65536)) {
            status = err_set(err, STATUS_MEMORY, "%s: out of memory", file);
            break;
        }
        ssize_t got = read(fd, out->data + out->bytes, 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = err_set(err, STATUS_CONFIG, "%s: cannot be read: %s", file, strerror(errno));
        if (got <= 0)
            break;
        out->bytes += (size_t)got;
        if (out->bytes > CONFIG_FILE_BYTES_MAX) {
            status = err_set(err, STATUS_CONFIG, "%s: larger than %d bytes", file,
                             CONFIG_FILE_BYTES_MAX);
            break;
        }
    }
    close(fd);
    return status;
}

enum status config_load(const struct config_schema *schema, int argc, char *const *argv,
                        void *values, struct config **config_out, enum config_request *request_out,
                        struct err *err)
{
    struct config *config = NULL;
    enum config_request request = CONFIG_RUN;
    const char *file = NULL;
    enum status status = create(schema, &config, err);
    if (status != STATUS_OK)
        return status;
    status = config_flags_read(config, argc, argv, &file, &request, err);
    if (status == STATUS_OK && (request == CONFIG_RUN || request == CONFIG_CHECK)) {
        status = environment_read(config, err);
        if (!file && schema->section)
            file = getenv("BATON_CONFIG");
        if (status == STATUS_OK && file && *file) {
            struct buf text = BUF_INIT;
            status = slurp(file, &text, err);
            if (status == STATUS_OK)
                status = config_file_read(config, file, text.data, text.bytes, err);
            buf_finish(&text);
        }
        if (status == STATUS_OK)
            status = finish_load(config, values, err);
    } else if (status == STATUS_OK) {
        for (size_t i = 0; i < schema->option_count; i++)
            store(&schema->options[i], &config->settings[i], values);
    }
    if (status != STATUS_OK) {
        config_destroy(config);
        return status;
    }
    *config_out = config;
    *request_out = request;
    return STATUS_OK;
}

enum status config_load_text(const struct config_schema *schema, const char *file, const void *text,
                             size_t bytes, void *values, struct config **config_out,
                             struct err *err)
{
    struct config *config = NULL;
    enum status status = create(schema, &config, err);
    if (status != STATUS_OK)
        return status;
    status = config_file_read(config, file, text, bytes, err);
    if (status == STATUS_OK)
        status = finish_load(config, values, err);
    if (status != STATUS_OK) {
        config_destroy(config);
        return status;
    }
    *config_out = config;
    return STATUS_OK;
}

bool config_start(const struct config_schema *schema, int argc, char *const *argv, void *values,
                  struct config **config_out, int *exit_code_out)
{
    struct config *config = NULL;
    struct err err = ERR_INIT;
    enum config_request request;
    enum status status = config_load(schema, argc, argv, values, &config, &request, &err);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", schema->program, err.message);
        *exit_code_out = status == STATUS_CONFIG ? EXIT_CODE_USAGE : EXIT_CODE_FAILED;
        return false;
    }
    if (request == CONFIG_RUN) {
        *config_out = config;
        return true;
    }
    if (request == CONFIG_HELP) {
        struct buf help = BUF_INIT;
        config_help(schema, &help);
        fwrite(help.data, 1, help.bytes, stdout);
        buf_finish(&help);
    } else if (request == CONFIG_VERSION) {
        printf("%s\n", schema->version);
    } else {
        printf("%s: the configuration is valid\n", schema->program);
    }
    config_destroy(config);
    *exit_code_out = fflush(stdout) == 0 ? EXIT_CODE_DONE : EXIT_CODE_FAILED;
    return false;
}

/* --- questions --- */

bool config_given(const struct config *config, const char *key)
{
    size_t index = config_find(config->schema, key);
    assert(index != SIZE_MAX);
    return config->settings[index].source != SOURCE_DEFAULT;
}

const char *config_origin(const struct config *config, const char *key)
{
    size_t index = config_find(config->schema, key);
    assert(index != SIZE_MAX);
    const struct config_setting *setting = &config->settings[index];
    return setting->source == SOURCE_DEFAULT ? "default" : setting->origin;
}

struct config_strings config_positionals(const struct config *config)
{
    return (struct config_strings){(const char *const *)config->positionals.items,
                                   config->positionals.count};
}

struct config_strings config_rest(const struct config *config)
{
    return (struct config_strings){(const char *const *)config->rest.items, config->rest.count};
}
