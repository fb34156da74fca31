/* The YAML file: libyaml's events, of which only one shape is taken.
 *
 *     stream ─▶ document ─▶ { section: { key: scalar, ... }, ... } ─▶ end
 *
 * Anything else (lists, deeper maps, anchors, aliases, tags, a second document, a key twice) ends
 * the reading with the line. The reader stops at the first such event, so depth and expansion
 * tricks cost nothing; the size was capped before.
 *
 * Owner: the thread that loads. */
#include "base/config_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { SECTION_COUNT = 4 };
static const struct {
    const char *name;
    unsigned bit;
} sections[SECTION_COUNT] = {
    {"common", CONFIG_COMMON},
    {"router", CONFIG_ROUTER},
    {"prefill", CONFIG_PREFILL},
    {"decode", CONFIG_DECODE},
};

struct seen {
    const char *key; /* of a table: constant */
    unsigned section;
    size_t line;
};

struct reader {
    struct config *config;
    const char *file;
    struct err *err;
    yaml_parser_t parser;
    yaml_event_t event;
    bool event_live;
    size_t section_lines[SECTION_COUNT]; /* 0: not met yet */
    struct seen *seen;
    size_t seen_count;
};

static size_t line_of(const struct reader *reader)
{
    return reader->event.start_mark.line + 1;
}

static enum status next(struct reader *reader)
{
    if (reader->event_live)
        yaml_event_delete(&reader->event);
    reader->event_live = false;
    if (yaml_parser_parse(&reader->parser, &reader->event)) {
        reader->event_live = true;
        return STATUS_OK;
    }
    if (reader->parser.error == YAML_MEMORY_ERROR)
        return err_set(reader->err, STATUS_MEMORY, "%s: out of memory", reader->file);
    const char *problem = reader->parser.problem ? reader->parser.problem : "not YAML";
    size_t line = reader->parser.problem_mark.line + 1;
    if (reader->parser.error == YAML_READER_ERROR)
        return err_set(reader->err, STATUS_CONFIG, "%s: byte %zu: %s", reader->file,
                       reader->parser.problem_offset, problem);
    return err_set(reader->err, STATUS_CONFIG, "%s:%zu: %s", reader->file, line, problem);
}

#define fail(reader, ...) fail_at((reader), line_of(reader), __VA_ARGS__)
static enum status __attribute__((format(printf, 3, 4)))
fail_at(struct reader *reader, size_t line, const char *format, ...)
{
    char message[320];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return err_set(reader->err, STATUS_CONFIG, "%s:%zu: %s", reader->file, line, message);
}

/* The present event must be a bare scalar; `what` says what should stand here. */
static enum status expect_scalar(struct reader *reader, const char *what)
{
    const yaml_event_t *event = &reader->event;
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        if (event->data.scalar.anchor)
            return fail(reader, "anchors are not allowed");
        if (event->data.scalar.tag)
            return fail(reader, "tags are not allowed");
        if (memchr(event->data.scalar.value, 0, event->data.scalar.length))
            return fail(reader, "%s has a NUL byte in it", what);
        return STATUS_OK;
    case YAML_ALIAS_EVENT:
        return fail(reader, "aliases are not allowed");
    case YAML_SEQUENCE_START_EVENT:
        return fail(reader, "a list where %s should be", what);
    case YAML_MAPPING_START_EVENT:
        return fail(reader, "a map where %s should be", what);
    default:
        return fail(reader, "%s is missing", what);
    }
}

static const char *section_names(unsigned mask, char *buffer, size_t buffer_bytes)
{
    size_t used = 0;
    buffer[0] = 0;
    for (int i = 0; i < SECTION_COUNT; i++)
        if (mask & sections[i].bit)
            used += (size_t)snprintf(buffer + used, buffer_bytes - used, "%s%s", used ? ", " : "",
                                     sections[i].name);
    return buffer;
}

/* Finds the key among our options (*index_out) or the others' keys (SIZE_MAX); its constant name
 * and sections. */
static bool look_up(const struct config_schema *schema, const char *key, const char **name_out,
                    size_t *index_out, unsigned *mask_out)
{
    size_t index = config_find(schema, key);
    if (index != SIZE_MAX && !schema->options[index].flag_only) {
        *name_out = schema->options[index].key;
        *index_out = index;
        *mask_out =
            schema->options[index].sections ? schema->options[index].sections : CONFIG_EVERYWHERE;
        /* a key that others have too may stand where they allow it, though it says nothing to us
         * there */
        for (size_t i = 0; i < config_key_count; i++)
            if (!strcmp(config_keys[i].key, key))
                *mask_out |= config_keys[i].sections;
        return true;
    }
    for (size_t i = 0; i < config_key_count; i++)
        if (!strcmp(config_keys[i].key, key)) {
            *name_out = config_keys[i].key;
            *index_out = SIZE_MAX;
            *mask_out = config_keys[i].sections;
            return true;
        }
    return false;
}

static enum status note_seen(struct reader *reader, const char *name, unsigned section, size_t line)
{
    for (size_t i = 0; i < reader->seen_count; i++)
        if (reader->seen[i].section == section && !strcmp(reader->seen[i].key, name))
            return fail_at(reader, line, "key \"%s\" stands twice (first in line %zu)", name,
                           reader->seen[i].line);
    reader->seen[reader->seen_count++] = (struct seen){name, section, line};
    return STATUS_OK;
}

/* One key and its value; the event is the key. */
static enum status read_key(struct reader *reader, int section)
{
    const struct config_schema *schema = reader->config->schema;
    unsigned bit = sections[section].bit;
    bool ours = schema->section && !strcmp(schema->section, sections[section].name);
    char shown[64], near[128], names[64], origin[CONFIG_ORIGIN_BYTES];
    enum status status = expect_scalar(reader, "a key");
    if (status != STATUS_OK)
        return status;
    const char *key = (const char *)reader->event.data.scalar.value, *name = NULL;
    size_t line = line_of(reader), index;
    unsigned mask;
    config_printable(key, reader->event.data.scalar.length, shown, sizeof shown);
    if (!look_up(schema, key, &name, &index, &mask))
        return fail(reader, "unknown key \"%s\"%s", shown,
                    config_suggest(schema, key, false, near, sizeof near));
    if (!(mask & bit))
        return fail(reader, "key \"%s\" has no meaning in section %s (only in: %s)", name,
                    sections[section].name, section_names(mask, names, sizeof names));
    status = note_seen(reader, name, bit, line);
    if (status == STATUS_OK)
        status = next(reader);
    if (status != STATUS_OK)
        return status;
    char what[CONFIG_KEY_BYTES_MAX + 24];
    snprintf(what, sizeof what, "the value of \"%s\"", name);
    status = expect_scalar(reader, what);
    if (status != STATUS_OK)
        return status;
    if (reader->event.data.scalar.length == 0 &&
        reader->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return fail_at(reader, line, "key \"%s\" has no value", name);
    if (index == SIZE_MAX || !(ours || bit == CONFIG_COMMON))
        return STATUS_OK; /* another program's business */
    snprintf(origin, sizeof origin, "%s:%zu", reader->file, line);
    status = config_set(reader->config, index, (const char *)reader->event.data.scalar.value,
                        ours ? SOURCE_FILE_SECTION : SOURCE_FILE_COMMON, origin, reader->err);
    if (status == STATUS_CONFIG && !schema->options[index].unbuilt && reader->err) {
        /* put the key between the place and the complaint: "cluster.yaml:12: page_tokens: 8 is out
         * of range" */
        char message[ERR_MESSAGE_BYTES];
        snprintf(message, sizeof message, "%s", reader->err->message);
        size_t skip = strlen(origin) + 2;
        return fail_at(reader, line, "%s: %s", name, strlen(message) > skip ? message + skip : "");
    }
    return status;
}

/* A section's name was read; the next event is its map, or nothing at all. */
static enum status read_section(struct reader *reader, int section)
{
    enum status status = next(reader);
    if (status != STATUS_OK)
        return status;
    const yaml_event_t *event = &reader->event;
    if (event->type == YAML_SCALAR_EVENT && event->data.scalar.length == 0 &&
        event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !event->data.scalar.anchor &&
        !event->data.scalar.tag)
        return STATUS_OK; /* "decode:" with everything under it commented out */
    if (event->type != YAML_MAPPING_START_EVENT)
        return fail(reader, "section %s must hold \"key: value\" lines", sections[section].name);
    if (event->data.mapping_start.anchor)
        return fail(reader, "anchors are not allowed");
    if (event->data.mapping_start.tag)
        return fail(reader, "tags are not allowed");
    for (;;) {
        status = next(reader);
        if (status != STATUS_OK)
            return status;
        if (reader->event.type == YAML_MAPPING_END_EVENT)
            return STATUS_OK;
        status = read_key(reader, section);
        if (status != STATUS_OK)
            return status;
    }
}

static enum status read_top(struct reader *reader)
{
    char shown[64];
    enum status status;
    for (;;) {
        status = next(reader);
        if (status != STATUS_OK)
            return status;
        if (reader->event.type == YAML_MAPPING_END_EVENT)
            return STATUS_OK;
        status = expect_scalar(reader, "a section");
        if (status != STATUS_OK)
            return status;
        const char *name = (const char *)reader->event.data.scalar.value;
        int section = 0;
        while (section < SECTION_COUNT && strcmp(sections[section].name, name))
            section++;
        size_t line = line_of(reader);
        if (section == SECTION_COUNT) {
            const char *known;
            size_t index;
            unsigned mask;
            char names[64];
            if (look_up(reader->config->schema, name, &known, &index, &mask))
                return fail(reader, "key \"%s\" stands outside of a section (put it under: %s)",
                            known, section_names(mask, names, sizeof names));
            return fail(reader,
                        "unknown section \"%s\" (there are: common, router, prefill, decode)",
                        config_printable(name, strlen(name), shown, sizeof shown));
        }
        if (reader->section_lines[section])
            return fail(reader, "section %s stands twice (first in line %zu)",
                        sections[section].name, reader->section_lines[section]);
        reader->section_lines[section] = line;
        status = read_section(reader, section);
        if (status != STATUS_OK)
            return status;
    }
}

static enum status read_stream(struct reader *reader)
{
    enum status status = next(reader); /* the stream's start */
    if (status == STATUS_OK)
        status = next(reader);
    if (status != STATUS_OK || reader->event.type == YAML_STREAM_END_EVENT)
        return status;     /* an empty file */
    status = next(reader); /* after the document's start */
    if (status != STATUS_OK)
        return status;
    const yaml_event_t *event = &reader->event;
    bool nothing = event->type == YAML_SCALAR_EVENT && event->data.scalar.length == 0 &&
                   !event->data.scalar.anchor && !event->data.scalar.tag; /* only "---" */
    if (!nothing) {
        if (event->type != YAML_MAPPING_START_EVENT)
            return fail(reader, "the file must hold sections: common, router, prefill, decode");
        if (event->data.mapping_start.anchor)
            return fail(reader, "anchors are not allowed");
        if (event->data.mapping_start.tag)
            return fail(reader, "tags are not allowed");
        status = read_top(reader);
        if (status != STATUS_OK)
            return status;
    }
    status = next(reader); /* the document's end */
    if (status == STATUS_OK)
        status = next(reader);
    if (status == STATUS_OK && reader->event.type != YAML_STREAM_END_EVENT)
        return fail(reader, "a second document in the file");
    return status;
}

enum status config_file_read(struct config *config, const char *file, const void *text,
                             size_t bytes, struct err *err)
{
    struct reader reader = {.config = config, .file = file, .err = err};
    if (bytes > CONFIG_FILE_BYTES_MAX)
        return err_set(err, STATUS_CONFIG, "%s: larger than %d bytes", file, CONFIG_FILE_BYTES_MAX);
    /* a key is noted once a section, so this bounds the list */
    size_t seen_max = SECTION_COUNT * (config->schema->option_count + config_key_count);
    reader.seen = calloc(seen_max, sizeof *reader.seen);
    if (!reader.seen || !yaml_parser_initialize(&reader.parser)) {
        free(reader.seen);
        return err_set(err, STATUS_MEMORY, "%s: out of memory", file);
    }
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, bytes ? text : (const void *)"", bytes);
    enum status status = read_stream(&reader);
    if (reader.event_live)
        yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    free(reader.seen);
    return status;
}
