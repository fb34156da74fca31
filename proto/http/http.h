/* The small HTTP server of each program: /healthz, /readyz, /metrics, and whatever else is
 * registered.
 *
 * libmicrohttpd does the protocol without a thread of its own: its epoll descriptor lies in the
 * loop's, so that an answer to /healthz proves that the loop turns. A handler fills its response
 * before it returns.
 *
 * Owner: the loop thread. Only this folder includes <microhttpd.h>. */
#ifndef BATON_PROTO_HTTP_HTTP_H
#define BATON_PROTO_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/metrics.h"

struct http_server;

struct http_request {
    const char *method; /* "GET" */
    const char *path;   /* without the query */
    const uint8_t *body;
    size_t body_bytes;
};

struct http_response {
    int code;                 /* 200 at first */
    const char *content_type; /* "text/plain; charset=utf-8" at first; must outlive the call */
    struct buf body;          /* empty at first; freed by the server */
};

struct http_route {
    const char *method; /* NULL: any; "GET" also answers HEAD */
    const char *path;   /* exact, or all paths that begin with it when `prefix` is set */
    bool prefix;
    void (*handle)(void *context, const struct http_request *request,
                   struct http_response *response);
    void *context;
};

struct http_server_options {
    const char *address; /* "127.0.0.1:7080", "[::1]:0"; port 0 picks a free one */
    int connections_max; /* 0: 64; at three quarters of it a new one ends the one that has waited longest */
    int idle_timeout_s;    /* a connection without progress is closed; 0: 10 */
    size_t body_bytes_max; /* larger bodies get 413; 0: 1 MiB */
    /* /healthz is answered "ok" by the server itself. /readyz: true is 200; false is 503 with what
     * was appended to `reason`. NULL: always ready. */
    bool (*ready)(void *context, struct buf *reason);
    void *ready_context;
    struct metrics *metrics;         /* /metrics renders it; NULL: 404 */
    const struct http_route *routes; /* kept, not copied; the first match wins; may be NULL */
    size_t route_count;
};

/* IN_USE when the address is taken, CONFIG when it does not parse. */
enum status http_server_create(struct loop *loop, const struct http_server_options *options,
                               struct http_server **server_out, struct err *err);
int http_server_port(const struct http_server *server);
/* Closes all connections at once. Takes NULL. */
void http_server_destroy(struct http_server *server);

/* Routes for the OpenAI paths of a router until they are built: 501 with a JSON error object as
 * OpenAI's clients know it. */
extern const struct http_route http_openai_absent_routes[];
extern const size_t http_openai_absent_route_count;

#endif
