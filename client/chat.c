/* `baton chat`: a conversation on the terminal. Every turn sends the whole history, so the server keeps nothing.
 *
 *     line from stdin ──▶ history ──▶ stream_run ──▶ stdout, and into the history
 *
 * Ctrl-C during an answer ends that answer (what came stays in the history); at the prompt it ends the program. /reset forgets
 * the conversation. A turn that fails is forgotten, and the conversation goes on.
 *
 * Owner: the main thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "client/sampling.h"
#include "client/stream.h"

enum { LINE_BYTES_MAX = 1 << 20 };

struct chat_options {
    struct config_address server;
    const char *system;
    struct stream_patience patience;
    bool stats;
    struct sampling_options sampling;
};

#define FIELD(member) CONFIG_FIELD(struct chat_options, member)
static const struct config_option table[] = {
    CLIENT_SERVER_ROW(struct chat_options, server),
    {.key = "system",
     .type = CONFIG_STRING,
     FIELD(system),
     .flag_only = true,
     .help = "a system message that begins the conversation"},
    SAMPLING_ROWS(struct chat_options, sampling),
    PATIENCE_ROWS(struct chat_options, patience),
    {.key = "stats",
     .type = CONFIG_BOOL,
     FIELD(stats),
     .flag_only = true,
     .help = "two lines after each answer: where the time went"},
};

static const struct config_schema schema = {
    .program = "baton chat",
    CONFIG_TABLE(table),
    .summary = "a conversation; Ctrl-C ends an answer, /reset forgets, Ctrl-D leaves",
    .example = "  baton chat --system \"Answer in one sentence.\"\n",
};

/* --- lines from stdin, with the loop running, so that Ctrl-C is seen --- */

struct input {
    struct client *client;
    struct loop_io io;
    bool watched, ready, ended;
    struct buf bytes;
};

static void input_ready(void *context, uint32_t epoll_events)
{
    struct input *input = context;
    input->ready = true;
}

static void input_start(struct input *input, struct client *client)
{
    *input = (struct input){.client = client};
    /* epoll refuses plain files, which are always ready */
    input->watched = loop_io_start(client->loop, &input->io, STDIN_FILENO, EPOLLIN, input_ready,
                                   input, NULL) == STATUS_OK;
    if (input->watched)
        loop_io_change(&input->io, 0); /* look only when a line is wanted */
}

static void input_finish(struct input *input)
{
    if (input->watched)
        loop_io_stop(&input->io);
    buf_finish(&input->bytes);
}

/* The next line without its line feed, valid until the next call; NULL at the end, or when interrupted. */
static char *input_line(struct input *input, size_t *consumed)
{
    buf_consume(&input->bytes, *consumed);
    *consumed = 0;
    for (;;) {
        uint8_t *end =
            input->bytes.bytes ? memchr(input->bytes.data, '\n', input->bytes.bytes) : NULL;
        if (!end && input->ended && input->bytes.bytes) {
            buf_append(&input->bytes, "\n", 1);
            continue;
        }
        if (end) {
            *consumed = (size_t)(end - input->bytes.data) + 1;
            *end = 0;
            return (char *)input->bytes.data;
        }
        if (input->ended || input->bytes.failed || input->bytes.bytes > LINE_BYTES_MAX)
            return NULL;
        input->ready = !input->watched;
        if (input->watched)
            loop_io_change(&input->io, EPOLLIN);
        while (!input->ready && !input->client->interrupted)
            loop_round(input->client->loop, NS_PER_S);
        if (input->watched)
            loop_io_change(&input->io, 0);
        if (input->client->interrupted || !buf_reserve(&input->bytes, 4096))
            return NULL;
        ssize_t got = read(STDIN_FILENO, input->bytes.data + input->bytes.bytes, 4096);
        if (got > 0)
            input->bytes.bytes += (size_t)got;
        else if (got == 0 || errno != EINTR)
            input->ended = true;
    }
}

/* --- the history --- */

struct history {
    Baton__V1__ChatMessage *messages;
    Baton__V1__ChatMessage **pointers;
    size_t count, capacity;
};

static bool history_add(struct history *history, const char *role, const char *content)
{
    if (history->count == history->capacity) {
        size_t capacity = history->capacity * 2 + 16;
        Baton__V1__ChatMessage *messages = realloc(history->messages, capacity * sizeof *messages);
        if (messages)
            history->messages = messages;
        Baton__V1__ChatMessage **pointers = realloc(history->pointers, capacity * sizeof *pointers);
        if (pointers)
            history->pointers = pointers;
        if (!messages || !pointers)
            return false;
        history->capacity = capacity;
    }
    Baton__V1__ChatMessage *message = &history->messages[history->count];
    *message = (Baton__V1__ChatMessage)BATON__V1__CHAT_MESSAGE__INIT;
    message->role = (char *)role;
    message->content = strdup(content);
    if (!message->content)
        return false;
    history->count++;
    for (size_t i = 0; i < history->count; i++)
        history->pointers[i] = &history->messages[i];
    return true;
}

static void history_cut(struct history *history, size_t count)
{
    while (history->count > count)
        free(history->messages[--history->count].content);
}

static void show(void *context, const Baton__V1__GenerateResponse *message, const char *text,
                 size_t text_bytes)
{
    client_print_text(text, text_bytes);
}

/* One turn: the history ends with the user's message. A failed turn takes it away again. */
static enum exit_code turn(struct client *client, const struct chat_options *options,
                           Baton__V1__SamplingParams *sampling, struct history *history)
{
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    Baton__V1__Chat chat = BATON__V1__CHAT__INIT;
    chat.n_messages = history->count;
    chat.messages = history->pointers;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request.chat = &chat;
    request.sampling = sampling;
    struct stream_options stream = {
        .request = &request,
        .patience = options->patience,
        .message = show,
    };
    struct answer answer;
    enum exit_code code = stream_run(client, &stream, &answer);
    bool interrupted = code == EXIT_CODE_INTERRUPTED;
    client->interrupted = false;
    printf("\n");
    fflush(stdout);
    size_t before = history->count;
    if (code == EXIT_CODE_DONE || (interrupted && answer.text.bytes)) {
        buf_append(&answer.text, "",
                   1); /* a NUL inside would end it here; no message can hold one */
        if (answer.text.failed || !history_add(history, "assistant", (char *)answer.text.data)) {
            client_complain(client->command, "out of memory");
            code = EXIT_CODE_FAILED;
        }
    }
    if (history->count == before)
        history_cut(history, before - 1);
    if (code == EXIT_CODE_DONE && options->stats)
        stats_print(client, &answer);
    answer_finish(&answer);
    return interrupted ? EXIT_CODE_DONE : code;
}

static int converse(struct client *client, const struct chat_options *options,
                    Baton__V1__SamplingParams *sampling)
{
    struct history history = {0};
    struct input input;
    enum exit_code code = EXIT_CODE_DONE;
    size_t consumed = 0;
    bool terminal = isatty(STDIN_FILENO);
    input_start(&input, client);
    if (options->system && !history_add(&history, "system", options->system))
        code = EXIT_CODE_FAILED;
    size_t first = history.count;
    while (code != EXIT_CODE_FAILED) {
        if (terminal) {
            printf("> ");
            fflush(stdout);
        }
        char *line = input_line(&input, &consumed);
        if (!line)
            break;
        if (!strcmp(line, "/reset")) {
            history_cut(&history, first);
            continue;
        }
        if (line[strspn(line, " \t\r")] == 0)
            continue;
        if (!history_add(&history, "user", line)) {
            code = EXIT_CODE_FAILED;
            break;
        }
        code = turn(client, options, sampling, &history);
        if (code == EXIT_CODE_NO_SERVER)
            break;
    }
    if (terminal && code == EXIT_CODE_DONE)
        printf("\n");
    if (client->interrupted)
        code = EXIT_CODE_INTERRUPTED;
    else if (input.bytes.bytes > LINE_BYTES_MAX) {
        client_complain(client->command, "a line of more than %d bytes", LINE_BYTES_MAX);
        code = EXIT_CODE_USAGE;
    }
    history_cut(&history, 0);
    free(history.messages);
    free(history.pointers);
    input_finish(&input);
    return code;
}

int cmd_chat(int argc, char **argv)
{
    struct chat_options options;
    struct config *config;
    int code;
    if (!config_start(&schema, argc, argv, &options, &config, &code))
        return code;
    struct err err = ERR_INIT;
    Baton__V1__SamplingParams sampling = BATON__V1__SAMPLING_PARAMS__INIT;
    struct client client;
    if (sampling_fill(config, &options.sampling, &sampling, &err) != STATUS_OK) {
        client_complain(schema.program, "%s", err.message);
        code = EXIT_CODE_USAGE;
    } else {
        code = client_open(&client, schema.program, &options.server, options.patience.keepalive_ns);
        if (code == EXIT_CODE_DONE) {
            code = converse(&client, &options, &sampling);
            client_close(&client);
        }
    }
    config_destroy(config);
    return code;
}
