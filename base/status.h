/* One table of everything that can go wrong, and what each failure destroys.
 *
 * The table gives, for every status: the enum, a short text, the gRPC code that a client sees, whether trying the same
 * request again can help, and the label that metrics carry. Statuses are grouped by what they end: a request, a
 * connection, or the node itself.
 *
 * Owner: no thread; constants only. */
#ifndef BATON_BASE_STATUS_H
#define BATON_BASE_STATUS_H

#include <stdbool.h>

/* gRPC codes, as in the gRPC specification (statuscodes.md). Kept here so that base needs no gRPC header. */
enum grpc_code {
    GRPC_CODE_OK = 0,
    GRPC_CODE_CANCELLED = 1,
    GRPC_CODE_UNKNOWN = 2,
    GRPC_CODE_INVALID_ARGUMENT = 3,
    GRPC_CODE_DEADLINE_EXCEEDED = 4,
    GRPC_CODE_NOT_FOUND = 5,
    GRPC_CODE_ALREADY_EXISTS = 6,
    GRPC_CODE_PERMISSION_DENIED = 7,
    GRPC_CODE_RESOURCE_EXHAUSTED = 8,
    GRPC_CODE_FAILED_PRECONDITION = 9,
    GRPC_CODE_ABORTED = 10,
    GRPC_CODE_OUT_OF_RANGE = 11,
    GRPC_CODE_UNIMPLEMENTED = 12,
    GRPC_CODE_INTERNAL = 13,
    GRPC_CODE_UNAVAILABLE = 14,
    GRPC_CODE_DATA_LOSS = 15,
    GRPC_CODE_UNAUTHENTICATED = 16,
};

enum status_scope { SCOPE_NONE, SCOPE_REQUEST, SCOPE_CONNECTION, SCOPE_NODE };

/* X(name, scope, gRPC code, retry, text, metric label) */
#define STATUS_TABLE(X)                                                                 \
    X(OK, NONE, OK, false, "ok", "ok")                                                  \
    /* these end one request */                                                         \
    X(INVALID, REQUEST, INVALID_ARGUMENT, false, "invalid argument", "invalid")         \
    X(UNIMPLEMENTED, REQUEST, UNIMPLEMENTED, false, "not implemented", "unimplemented") \
    X(NOT_FOUND, REQUEST, NOT_FOUND, false, "not found", "not_found")                   \
    X(CANCELLED, REQUEST, CANCELLED, false, "cancelled", "cancelled")                   \
    X(SLOW_CLIENT, REQUEST, CANCELLED, false, "the client took nothing for too long",   \
      "slow_client")                                                                    \
    X(DEADLINE, REQUEST, DEADLINE_EXCEEDED, false, "deadline exceeded", "deadline")     \
    X(FULL, REQUEST, RESOURCE_EXHAUSTED, true, "no room", "full")                       \
    X(DRAINING, REQUEST, UNAVAILABLE, true, "draining", "draining")                     \
    X(NO_NODE, REQUEST, UNAVAILABLE, true, "no node can serve", "no_node")              \
    X(GONE, REQUEST, ABORTED, true, "the peer no longer has it", "gone")                \
    X(DROPPED, REQUEST, ABORTED, true, "dropped for an older request", "dropped")       \
    X(CHECKSUM, REQUEST, DATA_LOSS, true, "checksum mismatch", "checksum")              \
    X(NONFINITE, REQUEST, INTERNAL, false, "an activation is not finite", "nonfinite")  \
    X(AGAIN, REQUEST, UNAVAILABLE, true, "try again", "again")                          \
    /* these end a connection */                                                        \
    X(CLOSED, CONNECTION, UNAVAILABLE, true, "connection closed", "closed")             \
    X(TIMEOUT, CONNECTION, UNAVAILABLE, true, "the peer made no progress", "timeout")   \
    X(PROTOCOL, CONNECTION, INVALID_ARGUMENT, false, "protocol violation", "protocol")  \
    X(STALE, CONNECTION, ABORTED, false, "from an earlier life", "stale")               \
    X(MISMATCH, CONNECTION, FAILED_PRECONDITION, false, "mismatch", "mismatch")         \
    /* these end the program */                                                         \
    X(MEMORY, NODE, RESOURCE_EXHAUSTED, false, "out of memory", "memory")               \
    X(IO, NODE, INTERNAL, false, "input/output error", "io")                            \
    X(FORMAT, NODE, INVALID_ARGUMENT, false, "malformed file", "format")                \
    X(CONFIG, NODE, INVALID_ARGUMENT, false, "bad configuration", "config")             \
    X(IN_USE, NODE, ALREADY_EXISTS, false, "address in use", "in_use")                  \
    X(DEVICE, NODE, INTERNAL, false, "device failure", "device")                        \
    X(INTERNAL, NODE, INTERNAL, false, "internal error", "internal")

enum status {
#define X(name, scope, grpc, retry, text, label) STATUS_##name,
    STATUS_TABLE(X)
#undef X
        STATUS_COUNT
};

const char *status_text(enum status status);
const char *status_label(enum status status);
enum grpc_code status_grpc(enum status status);
enum status_scope status_scope(enum status status);
/* True when the same request, sent again later or elsewhere, may succeed. */
bool status_retryable(enum status status);

#endif
