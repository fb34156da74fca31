/* The command line and --help. See config.h. */
#include "base/config_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The cursor over argv. */
struct flags {
    struct config *config;
    int argc, at;
    char *const *argv;
    const char **file_out;
    enum config_request *request_out;
    struct err *err;
};

static bool is_bool_word(const char *text)
{
    static const char *const words[] = {"true", "false", "yes", "no", "on", "off", "0", "1"};
    for (int i = 0; i < 8; i++)
        if (!strcasecmp(text, words[i]))
            return true;
    return false;
}

/* The value of the flag at the cursor: after '=', or the next argument. NULL: there is none, and
 * `err` is set. */
static const char *take_value(struct flags *flags, const char *shown, const char *attached)
{
    if (attached)
        return attached;
    const char *next = flags->at + 1 < flags->argc ? flags->argv[flags->at + 1] : NULL;
    /* "--model --grpc x" is a forgotten path, not a model named "--grpc"; such a value can be given
     * as --model=--grpc */
    if (!next || (next[0] == '-' && next[1] == '-')) {
        err_set(flags->err, STATUS_CONFIG, "%s: needs a value", shown);
        return NULL;
    }
    flags->at++;
    return next;
}

static enum status set_option(struct flags *flags, size_t index, const char *shown,
                              const char *attached)
{
    const struct config_schema *schema = flags->config->schema;
    const struct config_option *option = &schema->options[index];
    const char *value = attached;
    if (option->type == CONFIG_BOOL && !attached) {
        const char *next = flags->at + 1 < flags->argc ? flags->argv[flags->at + 1] : NULL;
        value = "true";
        if (next && schema->positionals_max == 0 && is_bool_word(next)) {
            value = next;
            flags->at++;
        }
    } else if (!attached) {
        value = take_value(flags, shown, NULL);
        if (!value)
            return STATUS_CONFIG;
    }
    return config_set(flags->config, index, value, SOURCE_FLAG, shown, flags->err);
}

/* Flags that every program has. *known_out says whether this was one. */
static enum status built_in(struct flags *flags, const char *key, const char *shown,
                            const char *attached, bool *known_out)
{
    const struct config_schema *schema = flags->config->schema;
    *known_out = true;
    if (!strcmp(key, "config") && schema->section) {
        const char *value = take_value(flags, shown, attached);
        if (value && !*value)
            err_set(flags->err, STATUS_CONFIG, "%s: needs a value", shown);
        *flags->file_out = value;
        return value && *value ? STATUS_OK : STATUS_CONFIG;
    }
    enum config_request request = CONFIG_RUN;
    if (!strcmp(key, "help"))
        request = CONFIG_HELP;
    else if (!strcmp(key, "version") && schema->version)
        request = CONFIG_VERSION;
    else if (!strcmp(key, "check_config") && schema->section)
        request = CONFIG_CHECK;
    if (request == CONFIG_RUN) {
        *known_out = false;
        return STATUS_OK;
    }
    if (attached)
        return err_set(flags->err, STATUS_CONFIG, "%s: takes no value", shown);
    *flags->request_out = request;
    return STATUS_OK;
}

static enum status long_flag(struct flags *flags)
{
    const char *argument = flags->argv[flags->at] + 2;
    size_t bytes = strcspn(argument, "=");
    const char *attached = argument[bytes] ? argument + bytes + 1 : NULL;
    char key[CONFIG_KEY_BYTES_MAX + 1], shown[CONFIG_KEY_BYTES_MAX + 8], near[128];
    if (bytes >= sizeof key)
        return err_set(flags->err, STATUS_CONFIG, "unknown option \"--%s\"; see --help",
                       config_printable(argument, bytes, shown, sizeof shown));
    memcpy(key, argument, bytes);
    key[bytes] = 0;
    for (char *at = key; *at; at++)
        *at = *at == '-' ? '_' : *at;
    char flag[CONFIG_KEY_BYTES_MAX + 1];
    config_flag_name(key, flag, sizeof flag);
    snprintf(shown, sizeof shown, "--%s", flag);
    bool known;
    enum status status = built_in(flags, key, shown, attached, &known);
    if (known || status != STATUS_OK)
        return status;
    size_t index = config_find(flags->config->schema, key);
    if (index == SIZE_MAX) {
        char safe[CONFIG_KEY_BYTES_MAX + 8];
        config_suggest(flags->config->schema, key, true, near, sizeof near);
        return err_set(flags->err, STATUS_CONFIG, "unknown option \"%s\"%s; see --help",
                       config_printable(shown, strlen(shown), safe, sizeof safe), near);
    }
    return set_option(flags, index, shown, attached);
}

static enum status letter_flag(struct flags *flags)
{
    const struct config_schema *schema = flags->config->schema;
    const char *argument = flags->argv[flags->at];
    char shown[8];
    snprintf(shown, sizeof shown, "-%c",
             argument[1] > 0x20 && argument[1] < 0x7f ? argument[1] : '?');
    if (!strcmp(argument, "-h")) {
        *flags->request_out = CONFIG_HELP;
        return STATUS_OK;
    }
    for (size_t i = 0; i < schema->option_count; i++) {
        if (schema->options[i].letter != argument[1])
            continue;
        if (schema->options[i].type == CONFIG_BOOL && argument[2])
            break;
        return set_option(flags, i, shown, argument[2] ? argument + 2 : NULL);
    }
    char safe[64];
    return err_set(flags->err, STATUS_CONFIG, "unknown option \"%s\"; see --help",
                   config_printable(argument, strlen(argument), safe, sizeof safe));
}

enum status config_flags_read(struct config *config, int argc, char *const *argv,
                              const char **file_out, enum config_request *request_out,
                              struct err *err)
{
    const struct config_schema *schema = config->schema;
    struct flags flags = {config, argc, 1, argv, file_out, request_out, err};
    bool only_positionals = false;
    for (; flags.at < argc; flags.at++) {
        const char *argument = argv[flags.at];
        enum status status = STATUS_OK;
        char safe[64];
        if (!only_positionals && !strcmp(argument, "--")) {
            if (schema->rest) {
                while (++flags.at < argc)
                    if (config_list_add(&config->rest, argv[flags.at]) != STATUS_OK)
                        return err_set(err, STATUS_MEMORY, "out of memory");
                break;
            }
            only_positionals = true;
        } else if (!only_positionals && argument[0] == '-' && argument[1] == '-') {
            status = long_flag(&flags);
        } else if (!only_positionals && argument[0] == '-' && argument[1]) {
            status = letter_flag(&flags);
        } else if (config->positionals.count == schema->positionals_max) {
            status = err_set(err, STATUS_CONFIG, "unexpected argument \"%s\"; see --help",
                             config_printable(argument, strlen(argument), safe, sizeof safe));
        } else if (config_list_add(&config->positionals, argument) != STATUS_OK) {
            status = err_set(err, STATUS_MEMORY, "out of memory");
        }
        if (status != STATUS_OK)
            return status;
        if (*request_out == CONFIG_HELP || *request_out == CONFIG_VERSION)
            return STATUS_OK;
    }
    if (config->positionals.count < schema->positionals_min)
        return err_set(err, STATUS_CONFIG, "%s is missing; see --help", schema->positionals);
    return STATUS_OK;
}

/* --- help --- */

static const char *argument_word(const struct config_option *option, char *buffer,
                                 size_t buffer_bytes)
{
    static const char *const words[] = {
        [CONFIG_STRING] = "TEXT",   [CONFIG_INT] = "N",
        [CONFIG_FLOAT] = "X",       [CONFIG_BYTES] = "SIZE",
        [CONFIG_DURATION] = "TIME", [CONFIG_BOOL] = "",
        [CONFIG_ENUM] = "",         [CONFIG_ADDRESS] = "HOST:PORT",
        [CONFIG_STRINGS] = "TEXT",
    };
    if (option->argument)
        return option->argument;
    if (option->type == CONFIG_ENUM)
        return config_choices_built(option, buffer, buffer_bytes);
    if (option->type == CONFIG_BOOL && option->initial && strcmp(option->initial, "false"))
        return "true|false"; /* on by itself: its only use is to turn it off */
    return words[option->type];
}

static void help_row(struct buf *out, const struct config_option *option)
{
    char flag[CONFIG_KEY_BYTES_MAX + 1], left[192], limits[96] = "", letter[8] = "    ";
    config_flag_name(option->key, flag, sizeof flag);
    char choices[200];
    const char *word = argument_word(option, choices, sizeof choices);
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    snprintf(left, sizeof left, "  %s--%s%s%s%s", letter, flag, *word ? " " : "", word,
             option->type == CONFIG_STRINGS ? " ..." : "");
    bool whole = option->type == CONFIG_INT || option->type == CONFIG_FLOAT;
    /* a limit of 32 bits is no news to a person */
    if (whole && (option->min || option->max) && option->max < UINT32_MAX)
        snprintf(limits, sizeof limits, "%" PRId64 " to %" PRId64, option->min, option->max);
    const char *initial = option->initial;
    if (option->type == CONFIG_BOOL && initial && !strcmp(initial, "false"))
        initial = NULL;
    buf_printf(out, "%-36s%s%s", left,
               strlen(left) >= 36 ? "\n                                    " : "", option->help);
    if (option->required)
        buf_printf(out, " (required)");
    else if (limits[0] || initial)
        buf_printf(out, " (%s%s%s%s)", limits, limits[0] && initial ? "; " : "",
                   initial ? "default " : "", initial ? initial : "");
    buf_append_text(out, "\n");
}

void config_help(const struct config_schema *schema, struct buf *out)
{
    const char *twin = NULL;
    buf_printf(out, "%s: %s\n\nusage: %s [OPTIONS]", schema->program, schema->summary,
               schema->program);
    if (schema->positionals)
        buf_printf(out, schema->positionals_min ? " %s" : " [%s]", schema->positionals);
    if (schema->rest)
        buf_append_text(out, " [-- ARGUMENTS]");
    buf_append_text(out, "\n\n");
    for (size_t i = 0; i < schema->option_count; i++) {
        const struct config_option *option = &schema->options[i];
        if (option->unbuilt || option->hidden)
            continue;
        help_row(out, option);
        if (!twin && !option->flag_only)
            twin = option->key;
    }
    if (schema->section) {
        buf_printf(out, "%-36sa YAML file: sections common and %s\n", "      --config FILE",
                   schema->section);
        buf_printf(out, "%-36scheck the options and the file, and exit with 0 or 2\n",
                   "      --check-config");
    }
    if (schema->version)
        buf_printf(out, "%-36scommit, backends and library versions\n", "      --version");
    buf_printf(out, "%-36sthis text\n", "  -h, --help");
    if (twin) {
        char name[CONFIG_KEY_BYTES_MAX + 8], flag[CONFIG_KEY_BYTES_MAX + 1];
        config_environment_name(twin, name, sizeof name);
        config_flag_name(twin, flag, sizeof flag);
        if (schema->section)
            buf_printf(out,
                       "\nEach option can also be set in the environment (%s for --%s) and in the "
                       "file (%s: under\n"
                       "common: or %s:). A flag wins over the environment, the environment over "
                       "the file.\n",
                       name, flag, twin, schema->section);
        else
            buf_printf(out, "\nThe environment's %s stands for --%s when that is not given.\n",
                       name, flag);
    }
    if (schema->example)
        buf_printf(
            out, "\nexample:\n%s%s", schema->example,
            schema->example[0] && schema->example[strlen(schema->example) - 1] == '\n' ? "" : "\n");
}
