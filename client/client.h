/* What the commands of `baton` share: a connection to a router, calls that wait for their answer, and exit codes.
 *
 *     main.c ──▶ cmd_generate, cmd_chat      stream.c (one answer, resumed when its stream breaks), stats.c
 *            ──▶ cmd_status, cmd_drain       client_call
 *            ──▶ cmd_up                      child.c (a child process that is started again), spawns the programs
 *            ──▶ cmd_inspect                 model/ and engine/limits.h, no server
 *
 * Each command is one short life: parse, connect, run the loop until done, exit. Errors are printed here, as one line on stderr
 * that begins with the command and ends with the next step.
 *
 * Owner: the main thread, which runs the loop. */
#ifndef BATON_CLIENT_CLIENT_H
#define BATON_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/loop.h"
#include "proto/rpc/rpc.h"

#define CLIENT_SERVER_INITIAL "127.0.0.1:7070"
/* The first row of every table: which router. */
#define CLIENT_SERVER_ROW(struct_type, member)                                                     \
    {                                                                                              \
        .key = "server", .type = CONFIG_ADDRESS, CONFIG_FIELD(struct_type, member), .letter = 's', \
        .initial = CLIENT_SERVER_INITIAL, .help = "the router"                                     \
    }
#define CLIENT_KEEPALIVE_NS (10 * NS_PER_S)

struct client {
    const char *command; /* "baton generate": begins every error */
    char server[300];
    struct loop *loop;
    struct rpc *rpc;
    struct rpc_channel *channel;
    enum rpc_channel_state state; /* of the channel */
    bool reached;                 /* it was READY once */
    unsigned losses;              /* times that it stopped being READY */
    bool interrupted;             /* SIGINT or SIGTERM came; the command clears it */
    void (*on_interrupt)(void *context);
    void *interrupt_context;
    struct loop_signals signals;
};

/* Blocks SIGINT and SIGTERM, creates loop and channel; connects when first needed. Prints its error. A server that says
 * nothing for `keepalive_ns` during a call is asked for a sign of life; after as long again its calls end as UNAVAILABLE. */
enum exit_code client_open(struct client *client, const char *command,
                           const struct config_address *server, uint64_t keepalive_ns);
void client_close(struct client *client);

/* Whether the server was ever reached, asked when a call has ended without an answer. A connection that lived too short for
 * on_state to see it counts too: it leaves the channel ready (its end is not noted yet) or idle, where one that could not be
 * made leaves it failing. */
bool client_reached(struct client *client);

/* One unary call. EXIT_CODE_DONE: *response_out is to be freed with protobuf_c_message_free_unpacked(…, NULL). Otherwise the
 * error was printed: NO_SERVER, REFUSED or INTERRUPTED. */
enum exit_code client_call(struct client *client, const char *path, const ProtobufCMessage *request,
                           const ProtobufCMessageDescriptor *response_descriptor,
                           uint64_t timeout_ns, ProtobufCMessage **response_out);

/* "COMMAND: message" on stderr, as one printable line. */
void client_complain(const char *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The line for "nobody answers at that address". */
void client_complain_unreached(const struct client *client, const char *detail);
/* "INVALID_ARGUMENT" */
const char *client_grpc_code_name(enum grpc_code code);
/* Text from a model or a server, to stdout. On a terminal, control characters but line feed and tab become '?', so that
 * no answer can drive it. False when it cannot be written. */
bool client_print_text(const char *text, size_t bytes);

/* --- the commands; argv[0] is the command's own word; they return the exit code --- */
int cmd_up(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_drain(int argc, char **argv);
int cmd_role(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_bench(int argc, char **argv);

#endif
