/* See http.h. The way of a request:
 *
 *     loop: MHD's epoll descriptor is readable ──▶ MHD_run ──▶ request_take (headers, pieces of the body, end)
 *                                                                └─ at the end ──▶ request_answer: route, response queued
 *
 * MHD_run does all the socket work, so MHD's own timeouts (idle connections) are a loop timer.
 *
 * Room for whoever asks: a connection waits (for its first request, or its next one) or has one. When three quarters of the connections
 * are taken, each new one ends the one that has waited longest, so that a crowd that says nothing keeps nobody out: not those that
 * ask whether this program lives.
 * Owner: the loop thread. */
#include "proto/http/http.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/address.h"

enum {
    CONNECTIONS_DEFAULT = 64,
    IDLE_TIMEOUT_DEFAULT_S = 10,
    BODY_BYTES_DEFAULT = 1 << 20,
    DRAIN_FACTOR =
        4, /* of a body that is too large, so much is read and dropped to be able to answer */
};

struct http_server {
    struct loop *loop;
    struct http_server_options options;
    struct MHD_Daemon *daemon;
    int port;
    struct loop_io io;
    struct loop_timer timer;
    struct visit *visits; /* [connections_max] */
    struct list free, waiting, asking;
    int visit_count;
};

/* One connection, from MHD's first word of it to the last. */
struct visit {
    struct list link; /* free; waiting, the longest first; asking */
    struct MHD_Connection *connection;
};

/* One request, from its headers to the end of its response. */
struct exchange {
    struct buf body;
    size_t dropped_bytes;
    bool too_large;
};

/* --- routes --- */

static bool method_fits(const char *allowed, const char *method)
{
    return !allowed || strcmp(allowed, method) == 0 ||
           (strcmp(allowed, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

static bool path_fits(const struct http_route *route, const char *path)
{
    return route->prefix ? strncmp(path, route->path, strlen(route->path)) == 0
                         : strcmp(path, route->path) == 0;
}

static void health_handle(void *context, const struct http_request *request,
                          struct http_response *response)
{
    (void)context;
    (void)request;
    buf_append_text(&response->body, "ok\n");
}

static void ready_handle(void *context, const struct http_request *request,
                         struct http_response *response)
{
    (void)request;
    struct http_server *server = context;
    struct buf reason = BUF_INIT;
    bool ready =
        !server->options.ready || server->options.ready(server->options.ready_context, &reason);
    response->code = ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    if (ready)
        buf_append_text(&response->body, "ready");
    else if (reason.bytes)
        buf_append(&response->body, reason.data, reason.bytes);
    else
        buf_append_text(&response->body, "not ready");
    buf_append_text(&response->body, "\n");
    buf_finish(&reason);
}

static void metrics_handle(void *context, const struct http_request *request,
                           struct http_response *response)
{
    (void)request;
    struct http_server *server = context;
    response->content_type = "text/plain; version=0.0.4; charset=utf-8";
    metrics_render(server->options.metrics, &response->body);
}

/* Runs the first route that fits; without one, 404, or 405 when only the method did not fit. */
static void request_route(struct http_server *server, const struct http_request *request,
                          struct http_response *response, const char **allow_out)
{
    const struct http_route own[] = {
        {"GET", "/healthz", false, health_handle, server},
        {"GET", "/readyz", false, ready_handle, server},
        {"GET", "/metrics", false, metrics_handle, server},
    };
    size_t own_count = server->options.metrics ? 3 : 2;
    size_t count = own_count + server->options.route_count;
    for (size_t i = 0; i < count; i++) {
        const struct http_route *route =
            i < own_count ? &own[i] : &server->options.routes[i - own_count];
        if (!path_fits(route, request->path))
            continue;
        if (method_fits(route->method, request->method)) {
            *allow_out = NULL;
            route->handle(route->context, request, response);
            return;
        }
        *allow_out = route->method;
    }
    response->code = *allow_out ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_NOT_FOUND;
    buf_append_text(&response->body, *allow_out ? "method not allowed\n" : "not found\n");
}

/* --- requests --- */

static enum MHD_Result response_queue(struct MHD_Connection *connection,
                                      struct http_response *response, const char *allow)
{
    if (response->body.failed) {
        buf_finish(&response->body);
        return MHD_NO; /* no memory: the connection is closed */
    }
    /* MHD frees the body */
    struct MHD_Response *made = MHD_create_response_from_buffer(
        response->body.bytes, response->body.data, MHD_RESPMEM_MUST_FREE);
    if (!made) {
        buf_finish(&response->body);
        return MHD_NO;
    }
    MHD_add_response_header(made, MHD_HTTP_HEADER_CONTENT_TYPE, response->content_type);
    if (allow)
        MHD_add_response_header(made, MHD_HTTP_HEADER_ALLOW, allow);
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)response->code, made);
    MHD_destroy_response(made);
    return result;
}

static struct http_response response_init(void)
{
    return (struct http_response){.code = MHD_HTTP_OK, .content_type = "text/plain; charset=utf-8"};
}

static enum MHD_Result refuse_large(const struct http_server *server,
                                    struct MHD_Connection *connection)
{
    struct http_response response = response_init();
    response.code = MHD_HTTP_CONTENT_TOO_LARGE;
    buf_printf(&response.body, "the body is larger than %zu bytes\n",
               server->options.body_bytes_max);
    return response_queue(connection, &response, NULL);
}

/* --- room --- */

static struct visit *visit_of(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

static void visit_move(struct MHD_Connection *connection, struct list *to)
{
    struct visit *visit = visit_of(connection);
    if (!visit)
        return;
    list_remove(&visit->link);
    list_push_back(to, &visit->link);
}

/* MHD sees the end of what it reads, and closes. */
static void longest_end(struct http_server *server)
{
    struct list *link = list_pop_front(&server->waiting);
    if (!link)
        return;
    struct visit *visit = container_of(link, struct visit, link);
    list_push_back(&server->asking, link); /* it is not ended twice */
    shutdown(
        MHD_get_connection_info(visit->connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
        SHUT_RDWR);
}

static void visit_changed(void *context, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http_server *server = context;
    struct visit *visit = *socket_context;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        *socket_context = NULL;
        if (!visit)
            return;
        list_remove(&visit->link);
        list_push_back(&server->free, &visit->link);
        server->visit_count--;
        return;
    }
    struct list *link = list_pop_front(&server->free);
    if (!link)
        return; /* one more than MHD's limit: it is MHD's to close */
    visit = container_of(link, struct visit, link);
    visit->connection = connection;
    *socket_context = visit;
    server->visit_count++;
    if (server->visit_count > server->options.connections_max * 3 / 4)
        longest_end(server);
    list_push_back(&server->waiting, link);
}

static enum MHD_Result request_begin(struct http_server *server, struct MHD_Connection *connection,
                                     void **exchange_out)
{
    visit_move(connection, &server->asking);
    struct exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange)
        return MHD_NO;
    *exchange_out = exchange;
    const char *length =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    /* MHD has checked that it is a number */
    if (length && strtoull(length, NULL, 10) > server->options.body_bytes_max)
        return refuse_large(server, connection);
    return MHD_YES;
}

static enum MHD_Result body_take(struct http_server *server, struct exchange *exchange,
                                 const char *data, size_t *bytes)
{
    size_t max = server->options.body_bytes_max;
    if (exchange->too_large || *bytes > max - exchange->body.bytes) {
        exchange->too_large = true;
        exchange->dropped_bytes += *bytes;
        if (exchange->dropped_bytes / DRAIN_FACTOR > max)
            return MHD_NO;
    } else {
        buf_append(&exchange->body, data, *bytes);
        if (exchange->body.failed)
            return MHD_NO;
    }
    *bytes = 0;
    return MHD_YES;
}

static enum MHD_Result request_take(void *context, struct MHD_Connection *connection,
                                    const char *path, const char *method, const char *version,
                                    const char *data, size_t *bytes, void **exchange_slot)
{
    (void)version;
    struct http_server *server = context;
    struct exchange *exchange = *exchange_slot;
    if (!exchange)
        return request_begin(server, connection, exchange_slot);
    if (*bytes)
        return body_take(server, exchange, data, bytes);
    if (exchange->too_large)
        return refuse_large(server, connection);
    struct http_request request = {.method = method,
                                   .path = path,
                                   .body = exchange->body.data,
                                   .body_bytes = exchange->body.bytes};
    struct http_response response = response_init();
    const char *allow = NULL;
    request_route(server, &request, &response, &allow);
    return response_queue(connection, &response, allow);
}

static void request_completed(void *context, struct MHD_Connection *connection,
                              void **exchange_slot, enum MHD_RequestTerminationCode why)
{
    (void)why;
    struct http_server *server = context;
    visit_move(connection, &server->waiting);
    struct exchange *exchange = *exchange_slot;
    if (!exchange)
        return;
    buf_finish(&exchange->body);
    free(exchange);
    *exchange_slot = NULL;
}

/* --- the loop --- */

static unsigned connection_count(const struct http_server *server)
{
    return MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS)
        ->num_connections;
}

static void daemon_run(struct http_server *server)
{
    /* At its connection limit MHD takes the listening socket out of its epoll, and puts it back only in a later run than the
     * one that closed a connection: so after each close there is another. */
    unsigned before;
    do {
        before = connection_count(server);
        MHD_run(server->daemon);
    } while (connection_count(server) < before);
    MHD_UNSIGNED_LONG_LONG wait_ms;
    if (MHD_get_timeout(server->daemon, &wait_ms) != MHD_YES) {
        loop_timer_stop(&server->timer);
        return;
    }
    /* at least 1 ns: a timer due now would fire in this round again */
    loop_timer_set(&server->timer, loop_now_ns(server->loop) + wait_ms * NS_PER_MS + 1);
}

static void io_ready(void *context, uint32_t epoll_events)
{
    (void)epoll_events;
    daemon_run(context);
}

static void timer_fire(void *context)
{
    daemon_run(context);
}

static void options_complete(struct http_server_options *options)
{
    if (!options->connections_max)
        options->connections_max = CONNECTIONS_DEFAULT;
    if (!options->idle_timeout_s)
        options->idle_timeout_s = IDLE_TIMEOUT_DEFAULT_S;
    if (!options->body_bytes_max)
        options->body_bytes_max = BODY_BYTES_DEFAULT;
}

enum status http_server_create(struct loop *loop, const struct http_server_options *options,
                               struct http_server **server_out, struct err *err)
{
    struct http_server *server = calloc(1, sizeof *server);
    if (!server)
        return err_set(err, STATUS_MEMORY, "http server: no memory");
    server->loop = loop;
    server->options = *options;
    options_complete(&server->options);
    loop_timer_init(loop, &server->timer, timer_fire, server);
    list_init(&server->free);
    list_init(&server->waiting);
    list_init(&server->asking);
    server->visits = calloc((size_t)server->options.connections_max, sizeof *server->visits);
    if (!server->visits) {
        free(server);
        return err_set(err, STATUS_MEMORY, "http server: no memory");
    }
    for (int i = 0; i < server->options.connections_max; i++)
        list_push_back(&server->free, &server->visits[i].link);
    int fd;
    enum status status = address_listen(options->address, &fd, &server->port, err);
    if (status) {
        free(server->visits);
        free(server);
        return status;
    }
    server->daemon = MHD_start_daemon(
        MHD_USE_EPOLL, 0, NULL, NULL, request_take, server, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)server->options.connections_max,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)server->options.idle_timeout_s,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED, request_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, visit_changed, server, MHD_OPTION_END);
    if (!server->daemon) {
        close(fd);
        free(server->visits);
        free(server);
        return err_set(err, STATUS_IO, "http server: libmicrohttpd does not start");
    }
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    status = loop_io_start(loop, &server->io, info->epoll_fd, EPOLLIN, io_ready, server, err);
    if (status) {
        http_server_destroy(server);
        return status;
    }
    *server_out = server;
    return STATUS_OK;
}

int http_server_port(const struct http_server *server)
{
    return server->port;
}

void http_server_destroy(struct http_server *server)
{
    if (!server)
        return;
    loop_timer_stop(&server->timer);
    loop_io_stop(&server->io);
    MHD_stop_daemon(server->daemon); /* closes the listening socket too */
    free(server->visits);
    free(server);
}

/* --- OpenAI paths, until they are built --- */

static void openai_absent(void *context, const struct http_request *request,
                          struct http_response *response)
{
    (void)context;
    (void)request;
    response->code = MHD_HTTP_NOT_IMPLEMENTED;
    response->content_type = "application/json";
    buf_append_text(&response->body,
                    "{\"error\":{\"message\":\"The OpenAI API is not built yet; use gRPC "
                    "(baton.v1.Generation).\",\"type\":\"not_implemented\",\"param\":null,"
                    "\"code\":null}}\n");
}

const struct http_route http_openai_absent_routes[] = {
    {NULL, "/v1/", true, openai_absent, NULL},
};
const size_t http_openai_absent_route_count =
    sizeof http_openai_absent_routes / sizeof http_openai_absent_routes[0];
