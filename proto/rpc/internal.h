/* What the files of this folder share: tags, and the insides of the objects of rpc.h.
 *
 * A tag is what gRPC core gives back when a batch is done. It lies in the object that posted the batch, so passing it from
 * the RPC thread to the loop allocates nothing. An object is freed only when none of its tags is out.
 *
 * Owner: the loop thread, but for struct rpc's stack. */
#ifndef BATON_PROTO_RPC_INTERNAL_H
#define BATON_PROTO_RPC_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include "proto/rpc/rpc.h"

struct rpc_tag {
    struct rpc_tag *next; /* in the stack */
    void (*done)(void *context, bool ok);
    void *context;
    bool ok;
    /* Set when the tag goes out and read by the RPC thread. Core's queue orders the two already, but a race detector cannot
     * see into core. */
    atomic_bool out;
};

/* Stands between a call's messages and its handler: passes them on (rpc_call_deliver), later, or not at all. Only test builds
 * have one (rpc_fault.h). */
struct rpc_tap {
    bool (*wants)(struct rpc_tap *tap, const char *path);
    void (*message)(struct rpc_tap *tap, struct rpc_call *call, const uint8_t *data, size_t bytes);
    void (*closed)(struct rpc_tap *tap, struct rpc_call *call); /* the call is about to go */
    void (*destroy)(struct rpc_tap *tap);
};

struct rpc {
    struct loop *loop;
    struct rpc_tap *tap; /* NULL: every message goes straight to its handler */
    grpc_completion_queue *queue;
    pthread_t thread;
    _Atomic(struct rpc_tag *) stack; /* pushed by the RPC thread, taken whole by the loop */
    struct loop_waker waker;
    struct loop_hook take_hook, prepare_hook;
    struct rpc_tag *ready, **ready_end; /* completed on this thread, oldest first */
    size_t tags_out;                    /* given to gRPC core and not back yet */
    struct list servers, channels;
};

/* Call it before each use of `tag` in a batch or a request. */
void rpc_tag_out(struct rpc *rpc, struct rpc_tag *tag);
/* Posts a batch. What completes while it is posted (a write that the socket took, a message that was there already) comes
 * back to this thread without a detour by the RPC thread, and is told in the next RECEIVE phase, or later in this one. */
void rpc_batch_post(struct rpc *rpc, grpc_call *call, const grpc_op *ops, size_t count,
                    struct rpc_tag *tag);

/* --- calls --- */

struct rpc_call {
    struct rpc *rpc;
    struct rpc_server *server;   /* NULL on a client */
    struct rpc_channel *channel; /* NULL on a server */
    struct list link;            /* of the server's or channel's calls */
    grpc_call *call;
    const struct rpc_handler *handler;
    void *context, *data;

    unsigned batches;    /* in flight; 0 and `ended` end the call */
    bool head_sent;      /* server: initial metadata */
    bool head_received;  /* `head` is filled */
    bool sending;        /* a message is in flight */
    bool reading;        /* a read is in flight */
    bool got_message;    /* at least one arrived */
    bool tapped;         /* its messages go through rpc->tap */
    bool peer_done;      /* no more messages will come */
    bool close_wanted;   /* finish or half-close waits for the message in flight */
    bool close_sent;     /* status (server) or half-close (client) is posted */
    bool cancelled_here; /* by rpc_call_cancel or _abort: nothing but on_closed is told any more */
    bool ended;          /* the end's batch is back */

    struct rpc_tag open_tag, read_tag, write_tag, close_tag, end_tag;
    grpc_byte_buffer *received, *unsent;

    /* the status to send (server), received (client) or set by rpc_call_abort */
    grpc_status_code code;
    char *message;           /* malloc'ed; NULL is "" */
    grpc_metadata *trailers; /* owned slices, until posted */
    size_t trailer_count;

    /* client: what the end's batch fills */
    grpc_metadata_array head, tail;
    grpc_slice details;
    /* server */
    int cancelled;
    grpc_call_details request;
    uint64_t accepted_ns, deadline_ns;
    char *path, *peer;
};

/* Hands a message to the handler, unless nothing but the end may be told any more. From the loop only. */
void rpc_call_deliver(struct rpc_call *call, const uint8_t *data, size_t bytes);

/* Server: takes over what the request slot received. */
struct rpc_call *rpc_call_accept(struct rpc_server *server, grpc_call *call,
                                 grpc_call_details *request, grpc_metadata_array *head);
/* Server: posts the first batches and calls on_open. */
void rpc_call_begin(struct rpc_call *call, const struct rpc_handler *handler, void *context);

/* --- servers --- */

struct rpc_method {
    const char *path;
    const struct rpc_handler *handler;
    void *context;
};

/* One grpc_server_request_call kept posted. */
struct rpc_slot {
    struct rpc_server *server;
    struct rpc_tag tag;
    grpc_call *call;
    grpc_call_details request;
    grpc_metadata_array head;
};

/* Several, so that a burst of calls does not wait for the loop to post the next. */
enum { RPC_SLOTS = 32 };

struct rpc_server {
    struct rpc *rpc;
    struct list link;
    grpc_server *server;
    int port;
    bool started, draining, destroying;
    bool shutdown_out; /* shutdown_tag is with core */
    struct rpc_method *methods;
    size_t method_count, method_capacity;
    struct list calls;
    size_t call_count;
    size_t slots_posted;
    struct rpc_slot slots[RPC_SLOTS];
    struct rpc_tag shutdown_tag;
    void (*drained)(void *context);
    void *drained_context;
    void (*destroyed)(void *context);
    void *destroyed_context;
};

/* The registered paths, for reflection. */
size_t rpc_server_method_count(const struct rpc_server *server);
const char *rpc_server_method_path(const struct rpc_server *server, size_t index);

/* After anything that may have been the last: fires drained, frees when destroying. */
void rpc_server_settle(struct rpc_server *server);

/* --- channels --- */

struct rpc_channel {
    struct rpc *rpc;
    struct list link;
    grpc_channel *channel; /* NULL once destroyed */
    bool stay_connected, watching;
    int state; /* last told; -1: none yet */
    struct rpc_tag watch_tag;
    void (*on_state)(void *context, enum rpc_channel_state state);
    void *context;
    struct list calls;
};

void rpc_channel_settle(struct rpc_channel *channel);

#endif
