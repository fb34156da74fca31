/* proto/http over loopback sockets: the client is a plain socket, so that bad requests can be sent too. */
#include "proto/http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/test.h"

struct web {
    struct loop *loop;
    struct http_server *server;
    struct metrics *metrics;
    bool ready;
    size_t body_seen;
};

static bool web_ready(void *context, struct buf *reason)
{
    struct web *web = context;
    if (!web->ready)
        buf_append_text(reason, "no decode node");
    return web->ready;
}

static void web_echo(void *context, const struct http_request *request,
                     struct http_response *response)
{
    struct web *web = context;
    web->body_seen = request->body_bytes;
    buf_append(&response->body, request->body, request->body_bytes);
}

static struct http_route routes[8];

static void web_init(struct web *web, int connections_max, int idle_timeout_s)
{
    struct err err = ERR_INIT;
    *web = (struct web){0};
    CHECK(!loop_create(&web->loop, &err) && !metrics_create(&web->metrics, &err));
    metric_add(metrics_counter(web->metrics, "baton_test_total", "Test", NULL), 2);
    routes[0] = (struct http_route){"POST", "/echo", false, web_echo, web};
    for (size_t i = 0; i < http_openai_absent_route_count; i++)
        routes[1 + i] = http_openai_absent_routes[i];
    struct http_server_options options = {.address = "127.0.0.1:0",
                                          .connections_max = connections_max,
                                          .idle_timeout_s = idle_timeout_s,
                                          .body_bytes_max = 100000,
                                          .ready = web_ready,
                                          .ready_context = web,
                                          .metrics = web->metrics,
                                          .routes = routes,
                                          .route_count = 1 + http_openai_absent_route_count};
    CHECK_MSG(!http_server_create(web->loop, &options, &web->server, &err), "%s", err.message);
}

static void web_finish(struct web *web)
{
    http_server_destroy(web->server);
    metrics_destroy(web->metrics);
    loop_destroy(web->loop);
}

static int web_connect(const struct web *web)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)http_server_port(web->server))};
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EINPROGRESS);
    return fd;
}

/* Sends `request` and reads until the server closes; a NUL-terminated answer in `answer`. */
static void web_talk(struct web *web, const char *request, size_t request_bytes, char *answer,
                     size_t answer_bytes)
{
    int fd = web_connect(web);
    size_t sent = 0, got = 0;
    uint64_t give_up_ns = clock_now_ns() + 100 * NS_PER_S; /* of a test that would hang */
    for (;;) {
        CHECK_MSG(clock_now_ns() < give_up_ns,
                  "no answer in 100 s; %zu of %zu bytes sent, %zu came", sent, request_bytes, got);
        loop_round(web->loop, NS_PER_MS);
        if (sent < request_bytes) {
            ssize_t n = send(fd, request + sent, request_bytes - sent, MSG_NOSIGNAL);
            sent += n > 0 ? (size_t)n : 0;
        }
        ssize_t n = recv(fd, answer + got, answer_bytes - 1 - got, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            break;
        got += n > 0 ? (size_t)n : 0;
    }
    answer[got] = '\0';
    close(fd);
}

static void web_get(struct web *web, const char *method, const char *path, char *answer,
                    size_t answer_bytes)
{
    char request[512];
    int n = snprintf(request, sizeof request,
                     "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", method, path);
    web_talk(web, request, (size_t)n, answer, answer_bytes);
}

static void answers(struct web *web, const char *method, const char *path, const char *status,
                    const char *body)
{
    char answer[8192];
    web_get(web, method, path, answer, sizeof answer);
    CHECK_MSG(strncmp(answer, status, strlen(status)) == 0, "%s %s: %s", method, path, answer);
    CHECK_MSG(strstr(answer, body), "%s %s: %s", method, path, answer);
}

TEST(http, health_ready_and_metrics)
{
    struct web web;
    web_init(&web, 0, 0);
    answers(&web, "GET", "/healthz", "HTTP/1.1 200 ", "\r\n\r\nok\n");
    answers(&web, "GET", "/healthz?verbose=1", "HTTP/1.1 200 ", "\r\n\r\nok\n");
    answers(&web, "HEAD", "/healthz", "HTTP/1.1 200 ", "Content-Length: 3\r\n");
    answers(&web, "GET", "/readyz", "HTTP/1.1 503 ", "\r\n\r\nno decode node\n");
    web.ready = true;
    answers(&web, "GET", "/readyz", "HTTP/1.1 200 ", "\r\n\r\nready\n");
    answers(&web, "GET", "/metrics", "HTTP/1.1 200 ", "\nbaton_test_total 2\n");
    answers(&web, "GET", "/metrics", "HTTP/1.1 200 ",
            "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    answers(&web, "POST", "/healthz", "HTTP/1.1 405 ", "Allow: GET\r\n");
    answers(&web, "GET", "/nothing", "HTTP/1.1 404 ", "not found\n");
    web_finish(&web);
}

TEST(http, openai_paths_are_501)
{
    struct web web;
    web_init(&web, 0, 0);
    answers(&web, "POST", "/v1/chat/completions", "HTTP/1.1 501 ", "{\"error\":{\"message\":");
    answers(&web, "GET", "/v1/models", "HTTP/1.1 501 ", "Content-Type: application/json\r\n");
    web_finish(&web);
}

TEST(http, bodies_and_their_limit)
{
    struct web web;
    web_init(&web, 0, 0);
    static char request[400000], answer[400000];
    int n = snprintf(request, sizeof request,
                     "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     "Content-Length: 100000\r\n\r\n");
    memset(request + n, 'b', 100000);
    web_talk(&web, request, (size_t)n + 100000, answer, sizeof answer);
    CHECK(strncmp(answer, "HTTP/1.1 200 ", 13) == 0);
    CHECK_INT(web.body_seen, 100000);
    CHECK_INT(strlen(strstr(answer, "\r\n\r\n") + 4), 100000);
    web.body_seen = 0;
    n = snprintf(request, sizeof request,
                 "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                 "Content-Length: 100001\r\n\r\n");
    web_talk(&web, request, (size_t)n, answer, sizeof answer); /* refused before it is sent */
    CHECK_MSG(strncmp(answer, "HTTP/1.1 413 ", 13) == 0, "%s", answer);
    /* chunked: the length is not known beforehand */
    n = snprintf(request, sizeof request,
                 "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                 "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 3; i++) {
        n += snprintf(request + n, 16, "c350\r\n"); /* 50,000 */
        memset(request + n, 'c', 50000);
        n += 50000;
        n += snprintf(request + n, 16, "\r\n");
    }
    n += snprintf(request + n, 16, "0\r\n\r\n");
    web_talk(&web, request, (size_t)n, answer, sizeof answer);
    CHECK_MSG(strncmp(answer, "HTTP/1.1 413 ", 13) == 0, "%s", answer);
    CHECK_INT(web.body_seen, 0);
    web_finish(&web);
}

TEST(http, bad_requests_disturb_nobody)
{
    static const char *const bad[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET /healthz HTTP/1.1\r\n\r\n", /* no Host */
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzzzz\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", /* a TLS hello */
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /%00%ff%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    };
    struct web web;
    web_init(&web, 0, 1); /* what never completes is closed after 1 s */
    char answer[8192];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        web_talk(&web, bad[i], strlen(bad[i]), answer, sizeof answer);
        CHECK(strncmp(answer, "HTTP/1.1 200 ", 13) != 0);
        answers(&web, "GET", "/healthz", "HTTP/1.1 200 ", "ok\n");
    }
    static char headers[200000];
    int n = snprintf(headers, sizeof headers, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: ");
    memset(headers + n, 'h', sizeof headers - (size_t)n);
    web_talk(&web, headers, sizeof headers, answer, sizeof answer);
    CHECK(strncmp(answer, "HTTP/1.1 200 ", 13) != 0);
    answers(&web, "GET", "/healthz", "HTTP/1.1 200 ", "ok\n");
    web_finish(&web);
}

TEST(http, idle_connections_make_room_again)
{
    struct web web;
    web_init(&web, 8, 1);
    int fds[20];
    for (int i = 0; i < 20; i++)
        fds[i] = web_connect(&web);
    for (int i = 0; i < 50; i++)
        loop_round(web.loop, NS_PER_MS);
    answers(&web, "GET", "/healthz", "HTTP/1.1 200 ", "ok\n"); /* once the idle ones are closed */
    for (int i = 0; i < 20; i++)
        close(fds[i]);
    web_finish(&web);
}

static bool stays_open(struct web *web, int fd)
{
    for (int i = 0; i < 20; i++)
        loop_round(web->loop, NS_PER_MS);
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

/* More strangers than there is room for, who stay and say nothing or half a request; idle ones would be closed after an hour only. */
TEST(http, a_crowd_keeps_nobody_out)
{
    enum { ROOM = 16, CROWD = 100 };
    struct web web;
    web_init(&web, ROOM, 3600);
    int fds[CROWD];
    for (int i = 0; i < CROWD; i++) {
        fds[i] = web_connect(&web);
        loop_round(web.loop, NS_PER_MS);
        if (i % 2)
            CHECK(send(fds[i], "GET /metr", 9, MSG_NOSIGNAL) == 9);
    }
    uint64_t begin_ns = clock_now_ns();
    for (int i = 0; i < 40; i++)
        answers(&web, "GET", "/healthz", "HTTP/1.1 200 ", "ok\n");
    CHECK(clock_now_ns() - begin_ns < 60 * NS_PER_S);
    CHECK(!stays_open(&web, fds[0]));
    for (int i = 0; i < CROWD; i++)
        close(fds[i]);
    web_finish(&web);
    /* with room, nobody is sent away */
    web_init(&web, ROOM, 3600);
    for (int i = 0; i < ROOM * 3 / 4 - 1; i++)
        fds[i] = web_connect(&web);
    answers(&web, "GET", "/healthz", "HTTP/1.1 200 ", "ok\n");
    for (int i = 0; i < ROOM * 3 / 4 - 1; i++) {
        CHECK(stays_open(&web, fds[i]));
        close(fds[i]);
    }
    web_finish(&web);
}

TEST(http, port_in_use_is_clear)
{
    struct web web;
    struct err err = ERR_INIT;
    struct http_server *other;
    char address[64];
    web_init(&web, 0, 0);
    snprintf(address, sizeof address, "127.0.0.1:%d", http_server_port(web.server));
    struct http_server_options options = {.address = address};
    CHECK_INT(http_server_create(web.loop, &options, &other, &err), STATUS_IN_USE);
    CHECK(strstr(err.message, address));
    options.address = "nonsense";
    CHECK_INT(http_server_create(web.loop, &options, &other, &err), STATUS_CONFIG);
    options.address = "no-such-host.invalid:80";
    CHECK_INT(http_server_create(web.loop, &options, &other, &err), STATUS_CONFIG);
    web_finish(&web);
}

TEST(http, the_loop_sleeps_when_nothing_happens)
{
    struct web web;
    web_init(&web, 0, 0);
    int fd = web_connect(&web);
    uint64_t start_ns = clock_now_ns();
    size_t rounds = 0;
    while (clock_now_ns() - start_ns < 300 * NS_PER_MS) {
        loop_round(web.loop, 50 * NS_PER_MS);
        rounds++;
    }
    CHECK_MSG(rounds < 40, "%zu rounds in 0.3 s with one idle connection", rounds);
    close(fd);
    web_finish(&web);
}
