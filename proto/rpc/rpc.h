/* Calls between processes: servers, channels and calls of gRPC core, seen from the loop thread.
 *
 * gRPC core reports everything through one completion queue. One thread waits on it and does
 * nothing but push each finished tag on a lock-free stack and wake the loop; all callbacks below
 * run on the loop thread, in the RECEIVE phase, and never inside a call of this interface. So code
 * that uses it needs no lock and is never re-entered.
 *
 *     gRPC core ──tag──▶ RPC thread ──stack──▶ loop, RECEIVE phase ──▶ on_open, on_message, …, on_closed
 *         ▲                                                                          │
 *         └──────────────── rpc_call_send, _read, _finish, _cancel ◀─────────────────┘
 *
 * One call is one `struct rpc_call`, on either side. Its life:
 *
 *                 ┌ rpc_call_send ⇄ on_writable      (one message in flight) ┐
 *     on_open ──▶ ┤ rpc_call_read ⇄ on_message       (one read in flight)    ├ ──▶ on_closed, exactly
 *                 └ on_half_close                    (the peer sends no more)┘     once and last
 *
 * The pointer is dead when on_closed returns; nothing may be asked of it afterwards. A call that
 * was finished or cancelled still gets its on_closed, later.
 *
 * Owner: the loop thread. Only this folder includes <grpc/...>. */
#ifndef BATON_PROTO_RPC_RPC_H
#define BATON_PROTO_RPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/err.h"
#include "base/loop.h"

struct seal;        /* proto/seal.h */
struct rpc;         /* the library, its completion queue and its thread; one a loop */
struct rpc_server;  /* one listening address */
struct rpc_channel; /* one peer that calls are made to */
struct rpc_call;    /* one call, on either side */

/* --- the library --- */

/* Starts gRPC core and the RPC thread (which blocks all signals). */
enum status rpc_create(struct loop *loop, struct rpc **rpc_out, struct err *err);
/* Ends everything that still lives on it: every server and channel must have been given to its
 * _destroy before. Runs what is left of their callbacks itself, so on_closed of calls still open
 * fires inside. Takes NULL. */
void rpc_destroy(struct rpc *rpc);
const char *rpc_library_version(void);

/* --- what a call tells its user --- */

enum rpc_kind {
    RPC_UNARY,         /* one message each way */
    RPC_SERVER_STREAM, /* one request, many responses */
    RPC_BIDI,          /* many each way */
};

struct rpc_metadata {
    const char *key;   /* lower case; ends in "-bin" when the value is binary */
    const char *value; /* NUL-terminated */
};

/* How a call ended. The strings live until on_closed returns. */
struct rpc_end {
    enum grpc_code
        code; /* client: the status received; server: the one sent, else CANCELLED or DEADLINE_EXCEEDED */
    const char *message; /* never NULL */
    /* The call ended before the status that finishes it was delivered: the peer cancelled, its
     * deadline passed, the connection broke, or rpc_call_cancel. */
    bool cancelled;
};

/* One table for both sides. `context` is what was given to rpc_server_add or rpc_channel_call. Each
 * entry may be NULL. */
struct rpc_handler {
    enum rpc_kind kind;
    /* Ask for the next message by itself each time that on_message returns. Otherwise the next
     * message is read (and the peer may send on) only after rpc_call_read. The single message of a
     * unary call, and the single request of a server stream on the server, are always read by
     * themselves. */
    bool read_always;
    /* Server: a call arrived. Client: the server accepted (its initial metadata came); may never
     * come. */
    void (*on_open)(void *context, struct rpc_call *call);
    /* One message; `data` is valid until the callback returns. A unary call gets exactly one or
     * none (then it ends with an error). A server answers a missing request itself. */
    void (*on_message)(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes);
    /* The peer sends no more messages. On a client's stream on_closed follows; a call that failed may skip this. */
    void (*on_half_close)(void *context, struct rpc_call *call);
    /* The transport took the last message: rpc_call_send will be accepted again. Not called after a
     * finish or an end. */
    void (*on_writable)(void *context, struct rpc_call *call);
    /* Exactly once, and last. */
    void (*on_closed)(void *context, struct rpc_call *call, const struct rpc_end *end);
};

/* --- calls, either side --- */

/* A pointer of the user's own, NULL at first (on a server `context` belongs to the method, this to
 * the call). */
void rpc_call_set_data(struct rpc_call *call, void *data);
void *rpc_call_data(const struct rpc_call *call);
/* True when rpc_call_send would be accepted: nothing in flight, not finished, not ended. */
bool rpc_call_writable(const struct rpc_call *call);
/* Sends one message, copied. AGAIN: the one before is still in flight (on_writable will come);
 * CLOSED: the call was finished, half-closed, cancelled, or has ended (on_closed comes or came);
 * FULL: larger than 2 GiB - 1. */
enum status rpc_call_send(struct rpc_call *call, const void *data, size_t bytes);
/* The same, packed straight into the transport's memory. */
enum status rpc_call_send_message(struct rpc_call *call, const ProtobufCMessage *message);
/* The same, with the seal of the next message of this direction behind it, if the stream has them (proto/seal.h). */
enum status rpc_call_send_sealed(struct rpc_call *call, const ProtobufCMessage *message,
                                 struct seal *seal);
/* The same as rpc_call_send_message for a message with a text that may hold NUL bytes: string field `field_number`, which
 * must be empty in `message`, is sent as `text`, `text_bytes` (see proto/wire.h). */
enum status rpc_call_send_text(struct rpc_call *call, const ProtobufCMessage *message,
                               uint32_t field_number, const char *text, size_t text_bytes);
/* Asks for the next message; asking while a read is in flight changes nothing. */
void rpc_call_read(struct rpc_call *call);
/* Ends the call at once, both ways, whatever is still unsent; the peer sees CANCELLED. Does nothing
 * on an ended call. */
void rpc_call_cancel(struct rpc_call *call);
/* "ipv4:127.0.0.1:4242"; lives as long as the call. */
const char *rpc_call_peer(struct rpc_call *call);
/* Server: the request's metadata. Client: the initial metadata, and the trailers from within
 * on_closed. NULL when absent; the value is not NUL-terminated. Keys are lower case. */
const char *rpc_call_metadata(const struct rpc_call *call, const char *key, size_t *bytes_out);

/* --- calls, server side --- */

/* When the client's deadline passes, on clock_now_ns; DEADLINE_NONE without one. gRPC ends the call
 * itself then. */
uint64_t rpc_call_deadline_ns(const struct rpc_call *call);
/* Nanoseconds left until then (0: passed); DEADLINE_NONE without one. */
uint64_t rpc_call_remaining_ns(const struct rpc_call *call);
/* Ends the call with a status, after a message still in flight. Strings are copied; `message` NULL
 * means "". A second finish, or one on an ended call, does nothing. */
void rpc_call_finish(struct rpc_call *call, enum grpc_code code, const char *message,
                     const struct rpc_metadata *trailers, size_t trailer_count);
/* The same from what a library function left: code and text of `err`. */
void rpc_call_finish_err(struct rpc_call *call, const struct err *err);
/* The last message and status OK in one batch (one packet where it fits): every unary answer, or a
 * stream's end. Returns as rpc_call_send does; on AGAIN nothing was sent. */
enum status rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message);
enum status rpc_call_reply_text(struct rpc_call *call, const ProtobufCMessage *message,
                                uint32_t field_number, const char *text, size_t text_bytes);
/* Ends the call at once with a status, dropping what is unsent: for a client that takes nothing any
 * more. */
void rpc_call_abort(struct rpc_call *call, enum grpc_code code, const char *message);
/* The full path, "/baton.v1.Generation/Generate". */
const char *rpc_call_method(const struct rpc_call *call);

/* --- servers --- */

struct rpc_server_options {
    const char *address; /* "127.0.0.1:7070", "[::1]:0", "unix:/path"; port 0 picks a free one */
    size_t message_bytes_max; /* a larger request ends its call with RESOURCE_EXHAUSTED; 0: 4 MiB */
    int streams_max;          /* concurrent calls a connection; 0: no limit */
    /* Ping an idle peer after so long, drop it 1 x later; 0: gRPC's default (2 h). */
    int keepalive_ms;
};

/* Binds. IN_USE when the address is taken, CONFIG when it does not parse or resolve. No call is
 * taken until rpc_server_start. */
enum status rpc_server_create(struct rpc *rpc, const struct rpc_server_options *options,
                              struct rpc_server **server_out, struct err *err);
/* The bound port; 0 for a unix socket. */
int rpc_server_port(const struct rpc_server *server);
/* Registers a method by its full path, before rpc_server_start. `handler` and `path` must outlive
 * the server. INVALID when the path is not "/package.Service/Method" or is registered already.
 * Calls to other paths get UNIMPLEMENTED. */
enum status rpc_server_add(struct rpc_server *server, const char *path,
                           const struct rpc_handler *handler, void *context, struct err *err);
enum status rpc_server_start(struct rpc_server *server, struct err *err);
/* Calls open now. */
size_t rpc_server_calls(const struct rpc_server *server);
/* Takes no new calls and closes the port; calls that run go on. `done` fires when the last one has
 * ended. */
void rpc_server_drain(struct rpc_server *server, void (*done)(void *context), void *context);
/* Ends every open call at once; each gets its on_closed. */
void rpc_server_cancel_all(struct rpc_server *server);
/* Drains, cancels and frees; asynchronous. `done` (may be NULL) fires after the last on_closed,
 * when the server's memory is gone. The handlers and their contexts must live until then, or until
 * rpc_destroy has returned. Takes NULL (then `done` is not called). */
void rpc_server_destroy(struct rpc_server *server, void (*done)(void *context), void *context);

/* --- channels --- */

enum rpc_channel_state {
    RPC_CHANNEL_IDLE,       /* not connected and not trying */
    RPC_CHANNEL_CONNECTING, /* trying */
    RPC_CHANNEL_READY,      /* connected */
    RPC_CHANNEL_FAILING,    /* the last try failed; tries again after the backoff */
};

struct rpc_channel_options {
    int backoff_initial_ms, backoff_max_ms; /* between tries to connect; 0: 100, 500 */
    int connect_timeout_ms;                 /* of one try; 0: 2000 */
    size_t message_bytes_max;               /* of a response; 0: 64 MiB */
    int keepalive_ms;                       /* 0: gRPC's default (never) */
    /* Connect at once and stay connected: a broken connection is tried again without a call asking
     * for it. */
    bool stay_connected;
    /* Called with every state seen, the first included; may be NULL. Short-lived states may be
     * skipped. */
    void (*on_state)(void *context, enum rpc_channel_state state);
    void *context;
};

/* `target` is "host:port", "unix:/path" or any gRPC target. `options` may be NULL. Connects when
 * first needed (or see stay_connected), so an absent server is no error here. Each channel has
 * connections and backoff of its own. */
enum status rpc_channel_create(struct rpc *rpc, const char *target,
                               const struct rpc_channel_options *options,
                               struct rpc_channel **channel_out, struct err *err);
/* The state at this moment, of which on_state may not have told yet, or never will. Asks nobody to connect. */
enum rpc_channel_state rpc_channel_state(const struct rpc_channel *channel);
/* Tries now instead of after the backoff. */
void rpc_channel_connect(struct rpc_channel *channel);
/* Cancels the calls that still run on it (each gets its on_closed, later); on_state is not called
 * any more; the memory goes by itself. Takes NULL. */
void rpc_channel_destroy(struct rpc_channel *channel);

struct rpc_call_options {
    const char *path;    /* "/baton.v1.Generation/Generate" */
    uint64_t timeout_ns; /* from now; DEADLINE_NONE or 0: none */
    /* Wait for a connection (until the deadline) rather than fail with UNAVAILABLE. */
    bool wait_for_ready;
    const struct rpc_metadata *metadata;
    size_t metadata_count;
    /* The request, for RPC_UNARY and RPC_SERVER_STREAM (NULL: an empty one): packed before the
     * function returns. */
    const ProtobufCMessage *request;
};

/* Starts a call. `handler` must live until on_closed. NULL only without memory or after
 * rpc_channel_destroy; everything else that goes wrong arrives in on_closed. A stream's reader must
 * read (rpc_call_read or read_always) until on_half_close, else the status that ends the call waits
 * behind the unread messages. */
struct rpc_call *rpc_channel_call(struct rpc_channel *channel, const struct rpc_handler *handler,
                                  void *context, const struct rpc_call_options *options);
/* RPC_BIDI: no more messages from this side. After a message still in flight. */
void rpc_call_half_close(struct rpc_call *call);

#endif
