/* `baton generate`: one prompt, one answer, streamed to the terminal or as JSON lines.
 *
 *     -p TEXT | --token-ids 1,2,3 | -f FILE | stdin ──▶ GenerateRequest ──▶ stream_run ──▶ stdout
 *
 * Owner: the main thread. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/sampling.h"
#include "client/stream.h"
#include "proto/json.h"

enum { PROMPT_BYTES_MAX = 64 << 20 };

struct generate_options {
    struct config_address server;
    const char *prompt, *token_ids, *file, *system;
    bool chat, parse_special, json, stats;
    int64_t logprobs;
    struct stream_patience patience;
    struct sampling_options sampling;
};

#define FIELD(member) CONFIG_FIELD(struct generate_options, member)
static const struct config_option table[] = {
    CLIENT_SERVER_ROW(struct generate_options, server),
    {.key = "prompt",
     .type = CONFIG_STRING,
     FIELD(prompt),
     .letter = 'p',
     .flag_only = true,
     .help = "the prompt"},
    {.key = "token_ids",
     .type = CONFIG_STRING,
     FIELD(token_ids),
     .flag_only = true,
     .argument = "1,2,3",
     .help = "the prompt as token ids"},
    {.key = "file",
     .type = CONFIG_STRING,
     FIELD(file),
     .letter = 'f',
     .flag_only = true,
     .argument = "FILE",
     .help = "the prompt is in this file; with none of the three: stdin"},
    {.key = "chat",
     .type = CONFIG_BOOL,
     FIELD(chat),
     .flag_only = true,
     .help = "the prompt is one message of a user"},
    {.key = "system",
     .type = CONFIG_STRING,
     FIELD(system),
     .flag_only = true,
     .help = "with --chat: a system message before it"},
    {.key = "parse_special",
     .type = CONFIG_BOOL,
     FIELD(parse_special),
     .flag_only = true,
     .help = "words such as <|im_start|> in the prompt are special tokens"},
    SAMPLING_ROWS(struct generate_options, sampling),
    {.key = "logprobs",
     .type = CONFIG_INT,
     FIELD(logprobs),
     .flag_only = true,
     .max = UINT32_MAX,
     .help = "with --json: log-probabilities of each token and the N best"},
    PATIENCE_ROWS(struct generate_options, patience),
    {.key = "json",
     .type = CONFIG_BOOL,
     FIELD(json),
     .flag_only = true,
     .help = "one GenerateResponse a line, as JSON"},
    {.key = "stats",
     .type = CONFIG_BOOL,
     FIELD(stats),
     .flag_only = true,
     .help = "then two lines on stderr: where the time went"},
};

static const struct config_schema schema = {
    .program = "baton generate",
    CONFIG_TABLE(table),
    .summary = "streams the answer to one prompt; resumes by itself when the stream breaks",
    .example = "  baton generate --chat -p \"Why is the sky blue?\" --temperature 0 -n 100\n"
               "  baton generate --token-ids 1,2,3 -n 5 --json\n",
};

/* --- the prompt --- */

static enum status read_all(int fd, const char *name, struct buf *out, struct err *err)
{
    for (;;) {
        if (!buf_reserve(out, 65536))
            return err_set(err, STATUS_MEMORY, "%s: out of memory", name);
        ssize_t got = read(fd, out->data + out->bytes, 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set(err, STATUS_IO, "%s: cannot be read: %s", name, strerror(errno));
        if (got == 0)
            return STATUS_OK;
        out->bytes += (size_t)got;
        if (out->bytes > PROMPT_BYTES_MAX)
            return err_set(err, STATUS_CONFIG, "%s: larger than %d bytes", name, PROMPT_BYTES_MAX);
    }
}

/* The prompt as a C string in `text`. */
static enum status read_prompt(const struct generate_options *options, struct buf *text,
                               struct err *err)
{
    const char *name = options->file ? options->file : "stdin";
    if (options->prompt) {
        buf_append_text(text, options->prompt);
    } else {
        int fd = STDIN_FILENO;
        if (options->file) {
            fd = open(options->file, O_RDONLY | O_CLOEXEC);
            if (fd < 0)
                return err_set(err, STATUS_IO, "%s: cannot be read: %s", name, strerror(errno));
        } else if (isatty(STDIN_FILENO)) {
            fprintf(stderr, "baton generate: reading the prompt; end it with Ctrl-D\n");
        }
        enum status status = read_all(fd, name, text, err);
        if (options->file)
            close(fd);
        if (status != STATUS_OK)
            return status;
        const void *nul = text->bytes ? memchr(text->data, 0, text->bytes) : NULL;
        if (nul)
            return err_set(err, STATUS_CONFIG, "%s: has a NUL byte at offset %zu", name,
                           (size_t)((const uint8_t *)nul - text->data));
    }
    buf_append(text, "", 1);
    return text->failed ? err_set(err, STATUS_MEMORY, "out of memory") : STATUS_OK;
}

/* "1,2,3" into `ids` (an array of uint32_t in a buf). */
static enum status parse_ids(const char *text, struct buf *ids, struct err *err)
{
    while (*text) {
        char word[24];
        size_t bytes = strcspn(text, ",");
        uint64_t id;
        snprintf(word, sizeof word, "%.*s", (int)(bytes < 23 ? bytes : 23), text);
        if (sampling_parse_u64(word, UINT32_MAX, &id, err) != STATUS_OK)
            return err_wrap(err, "--token-ids");
        uint32_t id32 = (uint32_t)id;
        buf_append(ids, &id32, sizeof id32);
        text += bytes + (text[bytes] == ',');
        if (!*text && text[-1] == ',')
            return err_set(err, STATUS_CONFIG, "--token-ids: ends with a comma");
    }
    return ids->failed ? err_set(err, STATUS_MEMORY, "out of memory") : STATUS_OK;
}

static enum status check_sources(const struct generate_options *options, struct err *err)
{
    int sources = !!options->prompt + !!options->token_ids + !!options->file;
    if (sources > 1)
        return err_set(err, STATUS_CONFIG,
                       "--prompt, --token-ids and --file exclude each other; see --help");
    if (options->chat && options->token_ids)
        return err_set(err, STATUS_CONFIG, "--chat and --token-ids exclude each other");
    if (options->system && !options->chat)
        return err_set(err, STATUS_CONFIG, "--system needs --chat");
    if (options->chat && options->parse_special)
        return err_set(err, STATUS_CONFIG, "--chat and --parse-special exclude each other");
    return STATUS_OK;
}

/* --- output --- */

struct output {
    bool json, failed, line_open;
    struct buf line;
};

static void show(void *context, const Baton__V1__GenerateResponse *message, const char *text,
                 size_t text_bytes)
{
    struct output *output = context;
    if (!output->json) {
        output->failed |= !client_print_text(text, text_bytes);
        if (text_bytes)
            output->line_open = text[text_bytes - 1] != '\n';
        return;
    }
    struct json_text whole = {"text", text, text_bytes};
    buf_clear(&output->line);
    json_print_message(&output->line, &message->base, &whole);
    buf_append_text(&output->line, "\n");
    output->failed |=
        output->line.failed ||
        fwrite(output->line.data, 1, output->line.bytes, stdout) != output->line.bytes ||
        fflush(stdout) != 0;
}

static int run(const struct generate_options *options, Baton__V1__GenerateRequest *request)
{
    struct client client;
    enum exit_code code =
        client_open(&client, schema.program, &options->server, options->patience.keepalive_ns);
    if (code != EXIT_CODE_DONE)
        return code;
    struct output output = {.json = options->json};
    struct answer answer;
    struct stream_options stream = {
        .request = request,
        .patience = options->patience,
        .message = show,
        .context = &output,
    };
    code = stream_run(&client, &stream, &answer);
    /* a person's terminal ends with a whole line; a file gets the text and nothing else */
    if (!options->json && output.line_open && (isatty(STDOUT_FILENO) || options->stats)) {
        putchar('\n');
        fflush(stdout);
    }
    if (code == EXIT_CODE_DONE && output.failed) {
        client_complain(schema.program, "stdout: cannot be written");
        code = EXIT_CODE_FAILED;
    }
    if (code == EXIT_CODE_DONE && options->stats)
        stats_print(&client, &answer);
    answer_finish(&answer);
    buf_finish(&output.line);
    client_close(&client);
    return code;
}

int cmd_generate(int argc, char **argv)
{
    struct generate_options options;
    struct config *config;
    int code;
    if (!config_start(&schema, argc, argv, &options, &config, &code))
        return code;
    struct err err = ERR_INIT;
    struct buf text = BUF_INIT, ids = BUF_INIT;
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    Baton__V1__SamplingParams sampling = BATON__V1__SAMPLING_PARAMS__INIT;
    Baton__V1__TokenIds token_ids = BATON__V1__TOKEN_IDS__INIT;
    Baton__V1__ChatMessage system = BATON__V1__CHAT_MESSAGE__INIT,
                           user = BATON__V1__CHAT_MESSAGE__INIT;
    Baton__V1__ChatMessage *messages[2];
    Baton__V1__Chat chat = BATON__V1__CHAT__INIT;
    enum status status = check_sources(&options, &err);
    if (status == STATUS_OK)
        status = sampling_fill(config, &options.sampling, &sampling, &err);
    if (status == STATUS_OK && options.token_ids)
        status = parse_ids(options.token_ids, &ids, &err);
    else if (status == STATUS_OK)
        status = read_prompt(&options, &text, &err);
    if (status != STATUS_OK) {
        client_complain(schema.program, "%s", err.message);
        code = status == STATUS_CONFIG ? EXIT_CODE_USAGE : EXIT_CODE_FAILED;
    } else {
        if (config_given(config, "logprobs")) {
            sampling._logprobs_case = BATON__V1__SAMPLING_PARAMS___LOGPROBS_LOGPROBS;
            sampling.logprobs = (uint32_t)options.logprobs;
        }
        request.sampling = &sampling;
        request.parse_special = options.parse_special;
        if (options.token_ids) {
            request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
            request.token_ids = &token_ids;
            token_ids.n_ids = ids.bytes / sizeof(uint32_t);
            token_ids.ids = (uint32_t *)ids.data;
        } else if (options.chat) {
            request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_CHAT;
            request.chat = &chat;
            chat.messages = messages;
            if (options.system) {
                system.role = (char *)"system";
                system.content = (char *)options.system;
                messages[chat.n_messages++] = &system;
            }
            user.role = (char *)"user";
            user.content = (char *)text.data;
            messages[chat.n_messages++] = &user;
        } else {
            request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TEXT;
            request.text = (char *)text.data;
        }
        code = run(&options, &request);
    }
    buf_finish(&text);
    buf_finish(&ids);
    config_destroy(config);
    return code;
}
