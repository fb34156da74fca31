/* See client.h. */
#include "client/client.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire.h"

void client_complain(const char *command, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    for (char *at = message; *at; at++) /* a server's words are not to drive the terminal */
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = ' ';
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", command, message);
}

void client_complain_unreached(const struct client *client, const char *detail)
{
    client_complain(client->command,
                    "%s: no server reached (%s); start one with \"baton up -m MODEL\", or name "
                    "another with -s HOST:PORT",
                    client->server, detail && *detail ? detail : "no connection");
}

const char *client_grpc_code_name(enum grpc_code code)
{
    static const char *const names[] = {
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    };
    return (unsigned)code < sizeof names / sizeof names[0] ? names[code] : "unknown code";
}

bool client_print_text(const char *text, size_t bytes)
{
    static int terminal = -1;
    if (terminal < 0)
        terminal = isatty(STDOUT_FILENO);
    if (!terminal)
        return fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
        /* U+0080 to U+009F, control characters too, are c2 80 to c2 9f in UTF-8 */
        if (c == 0xc2 && i + 1 < bytes && (unsigned char)text[i + 1] < 0xa0) {
            control = true;
            i++;
        }
        putchar(control ? '?' : c);
    }
    return fflush(stdout) == 0;
}

static void state_changed(void *context, enum rpc_channel_state state)
{
    struct client *client = context;
    client->losses += client->state == RPC_CHANNEL_READY && state != RPC_CHANNEL_READY;
    client->state = state;
    client->reached |= state == RPC_CHANNEL_READY;
}

bool client_reached(struct client *client)
{
    enum rpc_channel_state now = rpc_channel_state(client->channel);
    client->reached |= now == RPC_CHANNEL_READY || now == RPC_CHANNEL_IDLE;
    return client->reached;
}

static void signal_caught(void *context, int signal_number)
{
    struct client *client = context;
    client->interrupted = true;
    if (client->on_interrupt)
        client->on_interrupt(client->interrupt_context);
}

enum exit_code client_open(struct client *client, const char *command,
                           const struct config_address *server, uint64_t keepalive_ns)
{
    static const int numbers[] = {SIGINT, SIGTERM, 0};
    struct err err = ERR_INIT;
    *client = (struct client){.command = command};
    config_format_address(server, client->server, sizeof client->server);
    if (loop_create(&client->loop, &err) != STATUS_OK)
        goto failed;
    if (loop_signals_start(client->loop, &client->signals, numbers, signal_caught, client, &err) !=
        STATUS_OK)
        goto failed;
    if (rpc_create(client->loop, &client->rpc, &err) != STATUS_OK)
        goto failed;
    struct rpc_channel_options options = {.keepalive_ms = (int)(keepalive_ns / NS_PER_MS),
                                          .on_state = state_changed,
                                          .context = client};
    if (rpc_channel_create(client->rpc, client->server, &options, &client->channel, &err) !=
        STATUS_OK)
        goto failed;
    return EXIT_CODE_DONE;
failed:
    client_complain(command, "%s", err.message);
    client_close(client);
    return EXIT_CODE_FAILED;
}

void client_close(struct client *client)
{
    if (client->channel)
        rpc_channel_destroy(client->channel);
    if (client->rpc)
        rpc_destroy(client->rpc);
    if (client->loop) {
        loop_signals_stop(&client->signals);
        loop_destroy(client->loop);
    }
    *client = (struct client){0};
}

/* --- one unary call --- */

struct unary {
    struct client *client;
    struct rpc_call *call;
    const ProtobufCMessageDescriptor *descriptor;
    ProtobufCMessage *response;
    struct err unpack_err;
    bool closed;
    enum grpc_code code;
    char message[512];
};

static void unary_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct unary *unary = context;
    wire_unpack(unary->descriptor, data, bytes, &unary->response, &unary->unpack_err);
}

static void unary_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    struct unary *unary = context;
    unary->closed = true;
    unary->code = end->code;
    snprintf(unary->message, sizeof unary->message, "%s", end->message);
}

static void unary_interrupt(void *context)
{
    struct unary *unary = context;
    if (!unary->closed)
        rpc_call_cancel(unary->call);
}

enum exit_code client_call(struct client *client, const char *path, const ProtobufCMessage *request,
                           const ProtobufCMessageDescriptor *response_descriptor,
                           uint64_t timeout_ns, ProtobufCMessage **response_out)
{
    static const struct rpc_handler handler = {
        .kind = RPC_UNARY,
        .read_always = true,
        .on_message = unary_message,
        .on_closed = unary_closed,
    };
    struct unary unary = {.client = client, .descriptor = response_descriptor};
    struct rpc_call_options options = {.path = path, .timeout_ns = timeout_ns, .request = request};
    unary.call = rpc_channel_call(client->channel, &handler, &unary, &options);
    if (!unary.call) {
        client_complain(client->command, "out of memory");
        return EXIT_CODE_FAILED;
    }
    client->on_interrupt = unary_interrupt;
    client->interrupt_context = &unary;
    while (!unary.closed) /* the call has a deadline, and so has this */
        loop_round(client->loop, NS_PER_S);
    client->on_interrupt = NULL;
    if (unary.code == GRPC_CODE_OK && unary.response) {
        *response_out = unary.response;
        return EXIT_CODE_DONE;
    }
    if (unary.response)
        protobuf_c_message_free_unpacked(unary.response, NULL);
    if (client->interrupted)
        return EXIT_CODE_INTERRUPTED;
    if (!client_reached(client)) {
        client_complain_unreached(client, unary.message);
        return EXIT_CODE_NO_SERVER;
    }
    if (unary.code == GRPC_CODE_OK) {
        client_complain(client->command, "%s: %s: the answer cannot be read: %s", client->server,
                        path, unary.unpack_err.message);
        return EXIT_CODE_HALF_WAY;
    }
    client_complain(client->command, "%s: %s: %s", client->server,
                    client_grpc_code_name(unary.code), unary.message);
    return EXIT_CODE_REFUSED;
}
