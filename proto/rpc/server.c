/* Servers: one port each, calls taken generically and sent to their method by path.
 *
 * Every call comes through grpc_server_request_call, and the path is looked up here, so a call to an unknown method is
 * answered UNIMPLEMENTED instead of hanging until its deadline. RPC_SLOTS such requests are kept posted.
 *
 * The way down:  serving ──rpc_server_drain──▶ draining ──last call ended──▶ drained ──▶ (destroying) freed
 * Core's own shutdown is done only when all connections are closed too, which a frozen peer can delay; a drain does not wait
 * for that, a destroy makes it quick by cancelling everything.
 *
 * Owner: the loop thread. */
#include "proto/rpc/internal.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/address.h"

enum { MESSAGE_BYTES_DEFAULT = 4 << 20, HANDSHAKE_MS = 10000, PING_INTERVAL_MIN_MS = 1000 };

/* --- creating --- */

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static grpc_server *server_make(const struct rpc_server_options *options)
{
    grpc_arg args[12];
    size_t count = 0;
    size_t bytes = options->message_bytes_max ? options->message_bytes_max : MESSAGE_BYTES_DEFAULT;
    args[count++] = int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0); /* else a second bind succeeds */
    args[count++] =
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, bytes > INT_MAX ? INT_MAX : (int)bytes);
    args[count++] = int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1); /* identity */
    args[count++] = int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
    args[count++] = int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    args[count++] = int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_MS);
    args[count++] =
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_INTERVAL_MIN_MS);
    args[count++] = int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    if (options->streams_max)
        args[count++] = int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, options->streams_max);
    if (options->keepalive_ms) {
        args[count++] = int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, options->keepalive_ms);
        args[count++] = int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options->keepalive_ms);
        args[count++] = int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    }
    assert(count <= sizeof args / sizeof args[0]);
    grpc_channel_args list = {.num_args = count, .args = args};
    return grpc_server_create(&list, NULL);
}

static void shutdown_done(void *context, bool ok)
{
    (void)ok;
    struct rpc_server *server = context;
    server->shutdown_out = false;
    rpc_server_settle(server);
}

enum status rpc_server_create(struct rpc *rpc, const struct rpc_server_options *options,
                              struct rpc_server **server_out, struct err *err)
{
    bool local = strncmp(options->address, "unix:", 5) == 0;
    enum status status = local ? STATUS_OK : address_probe(options->address, err);
    if (status)
        return status;
    struct rpc_server *server = calloc(1, sizeof *server);
    if (!server)
        return err_set(err, STATUS_MEMORY, "rpc server: no memory");
    server->rpc = rpc;
    list_init(&server->calls);
    server->shutdown_tag = (struct rpc_tag){.done = shutdown_done, .context = server};
    server->server = server_make(options);
    grpc_server_register_completion_queue(server->server, rpc->queue, NULL);
    grpc_server_credentials *plain = grpc_insecure_server_credentials_create();
    server->port = grpc_server_add_http2_port(server->server, options->address, plain);
    grpc_server_credentials_release(plain);
    list_push_back(&rpc->servers, &server->link);
    if (!server->port) {
        rpc_server_destroy(server, NULL, NULL);
        status = local ? STATUS_OK : address_probe(options->address, err); /* lost a race? */
        return status ? status
                      : err_set(err, local ? STATUS_IN_USE : STATUS_IO,
                                "address \"%s\": cannot listen there", options->address);
    }
    if (local)
        server->port = 0;
    *server_out = server;
    return STATUS_OK;
}

int rpc_server_port(const struct rpc_server *server)
{
    return server->port;
}

size_t rpc_server_calls(const struct rpc_server *server)
{
    return server->call_count;
}

/* --- methods --- */

/* "/package.Service/Method": two slashes, two names. */
static bool path_valid(const char *path)
{
    const char *slash = path[0] == '/' ? strchr(path + 1, '/') : NULL;
    return slash && slash > path + 1 && slash[1] && !strchr(slash + 1, '/');
}

static const struct rpc_method *method_find(const struct rpc_server *server, const char *path)
{
    for (size_t i = 0; i < server->method_count; i++)
        if (strcmp(server->methods[i].path, path) == 0)
            return &server->methods[i];
    return NULL;
}

enum status rpc_server_add(struct rpc_server *server, const char *path,
                           const struct rpc_handler *handler, void *context, struct err *err)
{
    assert(!server->started);
    if (!path_valid(path))
        return err_set(err, STATUS_INVALID, "rpc method \"%s\": not /package.Service/Method", path);
    if (method_find(server, path))
        return err_set(err, STATUS_INVALID, "rpc method %s: registered already", path);
    if (server->method_count == server->method_capacity) {
        size_t capacity = server->method_capacity ? 2 * server->method_capacity : 16;
        struct rpc_method *methods = realloc(server->methods, capacity * sizeof *methods);
        if (!methods)
            return err_set(err, STATUS_MEMORY, "rpc method %s: no memory", path);
        server->methods = methods;
        server->method_capacity = capacity;
    }
    server->methods[server->method_count++] =
        (struct rpc_method){.path = path, .handler = handler, .context = context};
    return STATUS_OK;
}

size_t rpc_server_method_count(const struct rpc_server *server)
{
    return server->method_count;
}

const char *rpc_server_method_path(const struct rpc_server *server, size_t index)
{
    return server->methods[index].path;
}

/* --- taking calls --- */

static void unknown_open(void *context, struct rpc_call *call)
{
    (void)context;
    char message[256];
    snprintf(message, sizeof message, "unknown method %.200s", rpc_call_method(call));
    rpc_call_finish(call, GRPC_CODE_UNIMPLEMENTED, message, NULL, 0);
}

/* RPC_BIDI: nothing is read */
static const struct rpc_handler unknown_handler = {.kind = RPC_BIDI, .on_open = unknown_open};

static void slot_post(struct rpc_slot *slot)
{
    struct rpc_server *server = slot->server;
    slot->call = NULL;
    rpc_tag_out(server->rpc, &slot->tag);
    server->slots_posted++;
    grpc_call_error error =
        grpc_server_request_call(server->server, &slot->call, &slot->request, &slot->head,
                                 server->rpc->queue, server->rpc->queue, &slot->tag);
    assert(error == GRPC_CALL_OK);
    (void)error;
}

/* No memory for the call: it ends, the server goes on. */
static void slot_refuse(struct rpc_slot *slot)
{
    grpc_call_cancel_with_status(slot->call, GRPC_STATUS_RESOURCE_EXHAUSTED, "no memory", NULL);
    grpc_call_unref(slot->call);
    grpc_call_details_destroy(&slot->request);
    grpc_metadata_array_destroy(&slot->head);
    grpc_call_details_init(&slot->request);
    grpc_metadata_array_init(&slot->head);
}

static void slot_done(void *context, bool ok)
{
    struct rpc_slot *slot = context;
    struct rpc_server *server = slot->server;
    server->slots_posted--;
    struct rpc_call *call = NULL;
    if (ok) {
        call = rpc_call_accept(server, slot->call, &slot->request, &slot->head);
        if (!call)
            slot_refuse(slot);
        if (!server->draining)
            slot_post(slot);
    }
    if (call) {
        const struct rpc_method *method = method_find(server, rpc_call_method(call));
        rpc_call_begin(call, method ? method->handler : &unknown_handler,
                       method ? method->context : NULL);
    }
    rpc_server_settle(server);
}

enum status rpc_server_start(struct rpc_server *server, struct err *err)
{
    (void)err; /* the port was bound when the server was made */
    assert(!server->started);
    server->started = true;
    grpc_server_start(server->server);
    for (int i = 0; i < RPC_SLOTS; i++) {
        struct rpc_slot *slot = &server->slots[i];
        slot->server = server;
        slot->tag = (struct rpc_tag){.done = slot_done, .context = slot};
        grpc_call_details_init(&slot->request);
        grpc_metadata_array_init(&slot->head);
        slot_post(slot);
    }
    return STATUS_OK;
}

/* --- ending --- */

static void server_free(struct rpc_server *server)
{
    list_remove(&server->link);
    grpc_server_destroy(server->server);
    for (int i = 0; server->started && i < RPC_SLOTS; i++) {
        grpc_call_details_destroy(&server->slots[i].request);
        grpc_metadata_array_destroy(&server->slots[i].head);
    }
    void (*destroyed)(void *context) = server->destroyed;
    void *context = server->destroyed_context;
    free(server->methods);
    free(server);
    if (destroyed)
        destroyed(context);
}

void rpc_server_settle(struct rpc_server *server)
{
    if (!server->draining || server->slots_posted || server->call_count)
        return;
    void (*drained)(void *context) = server->drained;
    server->drained = NULL;
    if (drained)
        drained(server->drained_context); /* may call rpc_server_destroy */
    if (server->destroying && !server->shutdown_out)
        server_free(server);
}

/* Posted again after it came back, core answers at once: so an end that nothing else would announce is announced too. */
static void shutdown_post(struct rpc_server *server)
{
    server->draining = true;
    if (server->shutdown_out)
        return;
    server->shutdown_out = true;
    rpc_tag_out(server->rpc, &server->shutdown_tag);
    grpc_server_shutdown_and_notify(server->server, server->rpc->queue, &server->shutdown_tag);
}

void rpc_server_drain(struct rpc_server *server, void (*done)(void *context), void *context)
{
    server->drained = done;
    server->drained_context = context;
    shutdown_post(server);
}

void rpc_server_cancel_all(struct rpc_server *server)
{
    list_for_each(it, &server->calls) rpc_call_cancel(container_of(it, struct rpc_call, link));
}

void rpc_server_destroy(struct rpc_server *server, void (*done)(void *context), void *context)
{
    if (!server)
        return;
    assert(!server->destroying);
    server->destroying = true;
    server->destroyed = done;
    server->destroyed_context = context;
    shutdown_post(server);
    rpc_server_cancel_all(server);
    grpc_server_cancel_all_calls(server->server); /* closes the connections too */
}
