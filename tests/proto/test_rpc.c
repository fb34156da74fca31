/* proto/rpc over loopback sockets: server and client in one loop. */
#include "tests/proto/fixture.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- unary --- */

TEST(rpc, unary_carries_message_metadata_and_peer)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    fixture_tokenize(&f, &seen, "hello", NS_PER_S * 60);
    CHECK_INT(seen.code, GRPC_CODE_OK);
    CHECK_INT(seen.messages, 1);
    CHECK_INT(seen.opened, 1);
    CHECK(!seen.cancelled && !seen.wrong);
    Baton__V1__TokenizeResponse *response =
        baton__v1__tokenize_response__unpack(NULL, seen.bytes, seen.data);
    CHECK(response && response->n_ids == 5 && response->ids[0] == 'h' && response->ids[4] == 'o');
    baton__v1__tokenize_response__free_unpacked(response, NULL);
    fixture_tokenize(&f, &seen, "metadata", 0);
    CHECK_INT(seen.bytes, 2 + strlen("some value"));
    fixture_tokenize(&f, &seen, "peer", 0);
    CHECK(seen.bytes > strlen("ipv4:127.0.0.1:"));
    fixture_tokenize(&f, &seen, "", 0); /* an empty request has no bytes at all */
    CHECK_INT(seen.code, GRPC_CODE_OK);
    CHECK_INT(seen.bytes, 0);
    fixture_wait_idle(&f);
    CHECK_INT(f.echo.cancelled, 0);
    CHECK_INT(f.echo.closed, 4);
    fixture_finish(&f);
}

TEST(rpc, status_message_and_trailers_arrive)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    fixture_tokenize(&f, &seen, "fail", 0);
    CHECK_INT(seen.code, GRPC_CODE_INVALID_ARGUMENT);
    CHECK_STR(seen.message, "text: \"fail\" fails, 100 %");
    CHECK_STR(seen.trailer, "5");
    CHECK_INT(seen.messages, 0);
    fixture_wait_idle(&f);
    CHECK_INT(f.echo.last_code, GRPC_CODE_INVALID_ARGUMENT);
    CHECK_INT(f.echo.cancelled, 0);
    fixture_finish(&f);
}

TEST(rpc, unknown_method_is_unimplemented)
{
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f, NULL);
    struct rpc_call_options options = {.path = "/baton.v1.Generation/Guess"};
    CHECK(rpc_channel_call(f.channel, &unary_seen, &seen, &options));
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.code, GRPC_CODE_UNIMPLEMENTED);
    CHECK_STR(seen.message, "unknown method /baton.v1.Generation/Guess");
    fixture_finish(&f);
}

TEST(rpc, text_with_nul_travels_whole)
{
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f, NULL);
    uint32_t ids[] = {'a', 0, 'b'};
    Baton__V1__DetokenizeRequest request = BATON__V1__DETOKENIZE_REQUEST__INIT;
    request.n_ids = 3;
    request.ids = ids;
    struct rpc_call_options options = {.path = "/baton.v1.Generation/Detokenize",
                                       .request = &request.base};
    CHECK(rpc_channel_call(f.channel, &unary_seen, &seen, &options));
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.bytes, 5);
    CHECK(memcmp(seen.data, "\012\003a\0b", 5) == 0);
    fixture_finish(&f);
}

TEST(rpc, oversized_message_is_resource_exhausted)
{
    struct fixture f;
    struct seen seen;
    struct rpc_server_options options = {.address = "127.0.0.1:0", .message_bytes_max = 10000};
    fixture_init(&f, &options);
    char *text = malloc(20001);
    memset(text, 'x', 20000);
    text[20000] = '\0';
    fixture_tokenize(&f, &seen, text, 0);
    CHECK_INT(seen.code, GRPC_CODE_RESOURCE_EXHAUSTED);
    text[9000] = '\0';
    fixture_tokenize(&f, &seen, text, 0);
    CHECK_INT(seen.code, GRPC_CODE_OK);
    free(text);
    fixture_finish(&f);
}

TEST(rpc, malformed_request_names_the_field)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    fixture_tokenize(&f, &seen, "ab\xff", 0);
    CHECK_INT(seen.code, GRPC_CODE_INVALID_ARGUMENT);
    CHECK_STR(seen.message, "text: invalid UTF-8 at byte 2");
    fixture_finish(&f);
}

/* --- streams --- */

TEST(rpc, stream_delivers_everything_in_order)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    fixture_generate(&f, &seen, &stream_seen, "token", 5000, 0);
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.messages, 5000);
    CHECK_INT(seen.half_closed, 1);
    CHECK_INT(seen.code, GRPC_CODE_OK);
    CHECK(!seen.wrong);
    fixture_finish(&f);
}

TEST(rpc, slow_reader_holds_back_its_own_stream_only)
{
    struct fixture f;
    struct seen slow, quick;
    fixture_init(&f, NULL);
    char text[1001];
    memset(text, 't', 1000);
    text[1000] = '\0';
    fixture_generate(&f, &slow, &stream_seen_unread, text, 10000, 0);
    fixture_wait(&f, &f.echo.generated);
    size_t taken = 0;
    while (taken != f.echo.generated) {
        taken = f.echo.generated;
        fixture_turn(&f, 200 * NS_PER_MS);
    }
    /* 10 MB wait; windows and buffers hold some of it, not all */
    CHECK_MSG(taken > 10 && taken < 5000, "the transport took %zu messages", taken);
    fixture_generate(&f, &quick, &stream_seen, text, 500, 0);
    fixture_wait(&f, &quick.closed);
    CHECK_INT(quick.messages, 500);
    CHECK_INT(slow.messages, 0);
    while (!slow.closed) {
        size_t before = slow.messages + slow.half_closed;
        rpc_call_read(slow.call);
        for (int i = 0; i < 10000 && slow.messages + slow.half_closed == before && !slow.closed;
             i++)
            loop_round(f.loop, NS_PER_MS);
        CHECK(slow.messages + slow.half_closed > before || slow.closed);
        if (slow.half_closed)
            fixture_wait(&f, &slow.closed);
    }
    CHECK_INT(slow.messages, 10000);
    CHECK_INT(slow.code, GRPC_CODE_OK);
    CHECK(!slow.wrong);
    fixture_finish(&f);
}

TEST(rpc, send_while_one_is_in_flight_says_again)
{
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f, NULL);
    struct rpc_call_options options = {.path = "/baton.node.v1.Registry/Connect"};
    struct rpc_call *call = rpc_channel_call(f.channel, &bidi_seen, &seen, &options);
    CHECK(rpc_call_writable(call));
    CHECK_INT(rpc_call_send(call, "one", 3), STATUS_OK);
    CHECK_INT(rpc_call_send(call, "two", 3), STATUS_AGAIN);
    fixture_wait(&f, &seen.messages);
    fixture_wait(&f, &seen.writable); /* either may be told first */
    CHECK_INT(seen.writable, 1);
    CHECK(seen.bytes == 3 && memcmp(seen.data, "one", 3) == 0);
    CHECK_INT(rpc_call_send(call, "three", 5), STATUS_OK);
    rpc_call_half_close(call); /* waits for the message in flight */
    CHECK_INT(rpc_call_send(call, "four", 4), STATUS_CLOSED);
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.messages, 2);
    CHECK(seen.bytes == 5 && memcmp(seen.data, "three", 5) == 0);
    CHECK_INT(seen.half_closed, 1);
    CHECK_INT(seen.code, GRPC_CODE_OK);
    fixture_finish(&f);
}

TEST(rpc, bidi_carries_many_messages_both_ways)
{
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f, NULL);
    struct rpc_call_options options = {.path = "/baton.node.v1.Registry/Connect"};
    struct rpc_call *call = rpc_channel_call(f.channel, &bidi_seen, &seen, &options);
    uint8_t block[100000]; /* larger than a window, so it takes several pieces */
    memset(block, 7, sizeof block);
    for (size_t i = 0; i < 200; i++) {
        size_t want = i + 1, bytes = i % 20 ? i : sizeof block;
        CHECK_INT(rpc_call_send(call, block, bytes), STATUS_OK);
        while (seen.messages < want || !rpc_call_writable(call))
            loop_round(f.loop, NS_PER_S);
        CHECK_INT(seen.bytes, bytes);
    }
    rpc_call_half_close(call);
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.code, GRPC_CODE_OK);
    fixture_finish(&f);
}

/* --- deadlines and cancels --- */

TEST(rpc, deadline_ends_both_sides)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    fixture_tokenize(&f, &seen, "connected", 0); /* else a deadline covers connecting as well */
    /* A timeout travels, and the server's clock starts when the call comes: where the machine stood still in between, the client
     * gives up long before the server's deadline, or before the server has seen the call at all. Then a longer one is tried. */
    bool in_time = false;
    for (uint64_t timeout_ns = 100 * NS_PER_MS; !in_time; timeout_ns *= 2) {
        CHECK_MSG(timeout_ns < 60 * NS_PER_S, "no call came to the server in time");
        size_t opened = f.echo.opened;
        uint64_t start_ns = clock_now_ns();
        fixture_tokenize(&f, &seen, "hang", timeout_ns);
        CHECK_INT(seen.code, GRPC_CODE_DEADLINE_EXCEEDED);
        CHECK(clock_now_ns() - start_ns >= timeout_ns - NS_PER_MS);
        fixture_wait_idle(&f); /* nobody else ends it there */
        CHECK_INT(f.echo.cancelled, f.echo.opened - 1);
        in_time = f.echo.opened > opened &&
                  f.echo.last_deadline_ns < start_ns + timeout_ns + timeout_ns / 64;
    }
    CHECK_INT(f.echo.last_code, GRPC_CODE_DEADLINE_EXCEEDED);
    fixture_tokenize(&f, &seen, "deadline", 60 * NS_PER_S);
    Baton__V1__TokenizeResponse *response =
        baton__v1__tokenize_response__unpack(NULL, seen.bytes, seen.data);
    CHECK(response);
    /* gRPC rounds a timeout up to the few digits that it sends */
    CHECK_MSG(response->ids[0] > 1000 && response->ids[0] <= 62000, "%u ms left", response->ids[0]);
    baton__v1__tokenize_response__free_unpacked(response, NULL);
    fixture_tokenize(&f, &seen, "deadline", DEADLINE_NONE);
    response = baton__v1__tokenize_response__unpack(NULL, seen.bytes, seen.data);
    CHECK(response && response->ids[0] == UINT32_MAX);
    baton__v1__tokenize_response__free_unpacked(response, NULL);
    fixture_finish(&f);
}

TEST(rpc, client_cancel_reaches_the_server)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    fixture_generate(&f, &seen, &stream_seen, "x", 0, 0);
    fixture_wait_for(&f, &seen.messages, 100);
    rpc_call_cancel(seen.call);
    size_t before = seen.messages;
    fixture_wait(&f, &seen.closed);
    fixture_wait(&f, &f.echo.closed);
    CHECK_INT(seen.code, GRPC_CODE_CANCELLED);
    CHECK(seen.cancelled && !seen.wrong);
    CHECK_INT(seen.messages, before); /* nothing but the end after a cancel */
    CHECK_INT(f.echo.cancelled, 1);
    CHECK_INT(f.echo.last_code, GRPC_CODE_CANCELLED);
    fixture_finish(&f);
}

TEST(rpc, server_cancel_reaches_the_client)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    fixture_generate(&f, &seen, &stream_seen, "x", 0, 0);
    fixture_wait(&f, &seen.messages);
    rpc_call_cancel(f.echo.last_call);
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.code, GRPC_CODE_CANCELLED);
    fixture_wait(&f, &f.echo.closed); /* either side may hear of it first */
    CHECK_INT(f.echo.closed, 1);
    fixture_finish(&f);
}

TEST(rpc, abort_ends_a_stream_that_nobody_reads)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    char text[1001];
    memset(text, 't', 1000);
    text[1000] = '\0';
    fixture_generate(&f, &seen, &stream_seen_unread, text, 0, 0);
    fixture_wait(&f, &f.echo.generated);
    for (size_t before = 0; before != f.echo.generated;) { /* until the windows are full */
        before = f.echo.generated;
        fixture_turn(&f, 200 * NS_PER_MS);
    }
    CHECK_INT(f.echo.closed, 0);
    rpc_call_abort(f.echo.last_call, GRPC_CODE_CANCELLED, "took nothing for 30 s");
    fixture_wait(&f, &f.echo.closed);
    CHECK_INT(f.echo.last_code, GRPC_CODE_CANCELLED);
    for (int i = 0; i < 10000 && !seen.closed; i++) {
        rpc_call_read(seen.call); /* a client's status waits behind what it has not read */
        loop_round(f.loop, NS_PER_MS);
    }
    CHECK_INT(seen.closed, 1);
    CHECK_INT(seen.code, GRPC_CODE_CANCELLED);
    CHECK_STR(seen.message, "took nothing for 30 s");
    fixture_finish(&f);
}

TEST(rpc, abort_sends_its_status)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    f.echo.abort_message = "enough";
    fixture_generate(&f, &seen, &stream_seen, "x", 0, 0);
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.code, GRPC_CODE_RESOURCE_EXHAUSTED);
    CHECK_STR(seen.message, "enough");
    fixture_wait(&f, &f.echo.closed);
    CHECK_INT(f.echo.last_code, GRPC_CODE_RESOURCE_EXHAUSTED);
    fixture_finish(&f);
}

TEST(rpc, destroying_a_channel_ends_its_calls)
{
    struct fixture f;
    struct seen streams[10];
    fixture_init(&f, NULL);
    for (int i = 0; i < 10; i++)
        fixture_generate(&f, &streams[i], &stream_seen, "x", 0, 0);
    for (int i = 0; i < 10; i++)
        fixture_wait(&f, &streams[i].messages);
    rpc_channel_destroy(f.channel);
    f.channel = NULL;
    for (int i = 0; i < 10; i++)
        fixture_wait(&f, &streams[i].closed);
    fixture_wait_for(&f, &f.echo.closed, 10);
    CHECK_INT(f.echo.cancelled, 10);
    fixture_finish(&f);
}

/* --- servers' ends --- */

static void count_up(void *context)
{
    ++*(size_t *)context;
}

TEST(rpc, drain_lets_running_calls_end_and_takes_no_new_ones)
{
    struct fixture f;
    struct seen seen = {0}, late = {0};
    size_t drained = 0, gone = 0;
    fixture_init(&f, NULL);
    struct rpc_call_options options = {.path = "/baton.node.v1.Registry/Connect"};
    struct rpc_call *call = rpc_channel_call(f.channel, &bidi_seen, &seen, &options);
    CHECK_INT(rpc_call_send(call, "before", 6), STATUS_OK);
    fixture_wait(&f, &seen.messages);
    rpc_server_drain(f.server, count_up, &drained);
    fixture_turn(&f, 100 * NS_PER_MS);
    CHECK_INT(drained, 0);
    CHECK_INT(rpc_call_send(call, "during", 6), STATUS_OK);
    fixture_wait_for(&f, &seen.messages, 2);
    struct rpc_channel *other;
    CHECK(!rpc_channel_create(f.rpc, f.target, NULL, &other, NULL));
    struct rpc_call_options ask = {.path = "/baton.v1.Generation/Tokenize"};
    CHECK(rpc_channel_call(other, &unary_seen, &late, &ask));
    fixture_wait(&f, &late.closed);
    CHECK_INT(late.code, GRPC_CODE_UNAVAILABLE);
    CHECK_INT(drained, 0);
    rpc_call_half_close(call);
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.code, GRPC_CODE_OK);
    fixture_wait(&f, &drained);
    rpc_server_destroy(f.server, count_up, &gone);
    f.server = NULL;
    fixture_wait(&f, &gone);
    CHECK_INT(drained, 1);
    rpc_channel_destroy(other);
    fixture_finish(&f);
}

TEST(rpc, destroying_a_server_ends_calls_and_then_tells)
{
    struct fixture f;
    struct seen seen;
    size_t gone = 0;
    fixture_init(&f, NULL);
    fixture_generate(&f, &seen, &stream_seen, "x", 0, 0);
    fixture_wait(&f, &seen.messages);
    rpc_server_destroy(f.server, count_up, &gone);
    f.server = NULL;
    fixture_wait(&f, &gone);
    CHECK_INT(f.echo.closed, 1);
    fixture_wait(&f, &seen.closed);
    CHECK(seen.code == GRPC_CODE_UNAVAILABLE || seen.code == GRPC_CODE_CANCELLED);
    fixture_finish(&f);
}

TEST(rpc, teardown_with_everything_open)
{
    struct fixture f;
    struct seen streams[20];
    fixture_init(&f, NULL);
    for (int i = 0; i < 20; i++)
        fixture_generate(&f, &streams[i], i % 2 ? &stream_seen : &stream_seen_unread, "x", 0, 0);
    fixture_turn(&f, 50 * NS_PER_MS);
    fixture_finish(&f);
    for (int i = 0; i < 20; i++)
        CHECK_INT(streams[i].closed, 1);
}

TEST(rpc, port_in_use_and_bad_addresses_are_clear)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct rpc_server *server;
    fixture_init(&f, NULL);
    struct rpc_server_options options = {.address = f.target};
    CHECK_INT(rpc_server_create(f.rpc, &options, &server, &err), STATUS_IN_USE);
    CHECK(strstr(err.message, f.target) && strstr(err.message, "in use"));
    options.address = "127.0.0.1";
    CHECK_INT(rpc_server_create(f.rpc, &options, &server, &err), STATUS_CONFIG);
    options.address = "127.0.0.1:99999";
    CHECK_INT(rpc_server_create(f.rpc, &options, &server, &err), STATUS_CONFIG);
    options.address = "::1:80";
    CHECK_INT(rpc_server_create(f.rpc, &options, &server, &err), STATUS_CONFIG);
    options.address = "203.0.113.9:0"; /* not ours */
    CHECK_INT(rpc_server_create(f.rpc, &options, &server, &err), STATUS_IO);
    CHECK(strstr(err.message, "203.0.113.9:0"));
    options.address = "unix:/nonexistent/folder/socket";
    CHECK(rpc_server_create(f.rpc, &options, &server, &err) != STATUS_OK);
    options.address = "127.0.0.1:0";
    CHECK_INT(rpc_server_create(f.rpc, &options, &server, &err), STATUS_OK);
    CHECK_INT(rpc_server_add(server, "nonsense", &unary_seen, NULL, &err), STATUS_INVALID);
    CHECK_INT(rpc_server_add(server, "/a.B/C/D", &unary_seen, NULL, &err), STATUS_INVALID);
    CHECK_INT(rpc_server_add(server, "/a.B/C", &unary_seen, NULL, &err), STATUS_OK);
    CHECK_INT(rpc_server_add(server, "/a.B/C", &unary_seen, NULL, &err), STATUS_INVALID);
    rpc_server_destroy(server, NULL, NULL); /* never started */
    fixture_finish(&f);
}

/* --- channels --- */

TEST(rpc, absent_server_is_unavailable_and_waiting_is_possible)
{
    struct fixture f;
    struct seen seen = {0}, patient = {0};
    fixture_init(&f, NULL);
    struct rpc_channel *channel;
    CHECK(!rpc_channel_create(f.rpc, "127.0.0.1:1", NULL, &channel, NULL));
    struct rpc_call_options options = {.path = "/baton.v1.Generation/Tokenize"};
    CHECK(rpc_channel_call(channel, &unary_seen, &seen, &options));
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.code, GRPC_CODE_UNAVAILABLE);
    options.wait_for_ready = true;
    options.timeout_ns = 300 * NS_PER_MS;
    CHECK(rpc_channel_call(channel, &unary_seen, &patient, &options));
    fixture_wait(&f, &patient.closed);
    CHECK_INT(patient.code, GRPC_CODE_DEADLINE_EXCEEDED);
    rpc_channel_destroy(channel);
    fixture_finish(&f);
}

static void state_note(void *context, enum rpc_channel_state state)
{
    struct fixture *f = context;
    f->told[state]++;
}

/* A socket that listens at the target, "127.0.0.1:port", and does not block. */
static int raw_listen(const char *target)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strchr(target, ':') + 1))};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 10) == 0);
    return fd;
}

TEST(rpc, channel_reconnects_to_a_restarted_server)
{
    struct fixture f;
    struct rpc_channel *channel;
    fixture_init(&f, NULL);
    rpc_channel_destroy(f.channel);
    f.channel = NULL;
    memset(f.told, 0, sizeof f.told);
    struct rpc_channel_options options = {
        .stay_connected = true, .on_state = state_note, .context = &f};
    CHECK(!rpc_channel_create(f.rpc, f.target, &options, &channel, NULL));
    for (size_t i = 0; i < sizeof f.told / sizeof f.told[0]; i++)
        CHECK_INT(f.told[i], 0); /* never told inside a call */
    fixture_wait(&f, &f.told[RPC_CHANNEL_READY]);
    size_t gone = 0;
    rpc_server_destroy(f.server, count_up, &gone);
    fixture_wait(&f, &gone);
    rpc_health_destroy(f.health);
    rpc_reflection_destroy(f.reflection);
    /* Somebody else at the port, who hangs up at once, counts the tries: states that last shortly may go untold. Six come within
     * 2 s by our backoff of 100 to 500 ms; by gRPC's own, which grows from 1 s, they take 16 s. */
    int listener = raw_listen(f.target);
    uint64_t start_ns = clock_now_ns();
    for (int tries = 0; tries < 6;) {
        loop_round(f.loop, NS_PER_MS);
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0) {
            close(fd);
            tries++;
        }
        CHECK_MSG(clock_now_ns() - start_ns < 10 * NS_PER_S, "%d tries in 10 s", tries);
    }
    close(listener);
    fixture_wait(&f, &f.told[RPC_CHANNEL_FAILING]);
    struct rpc_server_options again = {.address = f.target};
    struct err err = ERR_INIT;
    CHECK_MSG(!rpc_server_create(f.rpc, &again, &f.server, &err), "%s", err.message);
    CHECK(!echo_add(&f.echo, f.server, &err));
    CHECK(!rpc_health_create(f.server, &f.health, &err));
    f.reflection = NULL;
    CHECK(!rpc_server_start(f.server, &err));
    fixture_wait_for(&f, &f.told[RPC_CHANNEL_READY], 2);
    rpc_channel_destroy(channel);
    fixture_finish(&f);
}

/* --- hostile peers, leaks --- */

static int raw_connect(const struct fixture *f)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)rpc_server_port(f->server))};
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

TEST(rpc, garbage_on_the_port_disturbs_nobody)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    unsigned state = 12345;
    for (int i = 0; i < 50; i++) {
        int fd = raw_connect(&f);
        if (i % 2)
            CHECK(send(fd, preface, sizeof preface - 1, MSG_NOSIGNAL) > 0);
        char noise[257];
        for (size_t j = 0; j < sizeof noise; j++)
            noise[j] = (char)((state = state * 1103515245 + 12345) >> 16);
        ssize_t n = send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        (void)n; /* the server may have hung up already */
        fixture_tokenize(&f, &seen, "fine", 0);
        CHECK_INT(seen.code, GRPC_CODE_OK);
        close(fd);
    }
    fixture_finish(&f);
}

static size_t descriptors_open(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

TEST(rpc, thousand_calls_leave_nothing_open)
{
    struct fixture f;
    struct seen seen;
    fixture_init(&f, NULL);
    fixture_tokenize(&f, &seen, "warm", 0);
    fixture_turn(&f, 50 * NS_PER_MS);
    size_t before = descriptors_open();
    for (int i = 0; i < 1000; i++) {
        if (i % 4 == 3) {
            fixture_generate(&f, &seen, &stream_seen, "x", i % 8 == 3 ? 0 : 3, 0);
            fixture_wait(&f, &seen.messages);
            if (i % 8 == 3)
                rpc_call_cancel(seen.call);
            fixture_wait(&f, &seen.closed);
        } else {
            fixture_tokenize(&f, &seen, i % 4 ? "text" : "fail", 0);
        }
    }
    fixture_wait_idle(&f);
    CHECK_INT(f.echo.opened, 1001);
    CHECK_INT(descriptors_open(), before);
    fixture_finish(&f);
}

/* --- health --- */

static void health_ask(struct fixture *f, struct seen *seen, const char *path,
                       const struct rpc_handler *handler, const uint8_t *service, size_t bytes)
{
    /* HealthCheckRequest {service} is the same on the wire as DetokenizeResponse {text} */
    Baton__V1__DetokenizeResponse request = BATON__V1__DETOKENIZE_RESPONSE__INIT;
    char name[64] = "";
    memcpy(name, service, bytes);
    request.text = name;
    struct rpc_call_options options = {.path = path, .request = &request.base};
    *seen = (struct seen){0};
    seen->call = rpc_channel_call(f->channel, handler, seen, &options);
}

/* Reads on, and does not look at positions as Generate's handler does. */
static void watch_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    bidi_seen.on_message(context, call, data, bytes);
}

static void watch_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    bidi_seen.on_closed(context, call, end);
}

static const struct rpc_handler watch_seen = {.kind = RPC_SERVER_STREAM,
                                              .read_always = true,
                                              .on_message = watch_message,
                                              .on_closed = watch_closed};

TEST(rpc, health_check_and_watch)
{
    struct fixture f;
    struct seen seen, watch;
    fixture_init(&f, NULL);
    const uint8_t *name = (const uint8_t *)"a.Service";
    health_ask(&f, &seen, "/grpc.health.v1.Health/Check", &unary_seen, name, 9);
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.code, GRPC_CODE_NOT_FOUND);
    health_ask(&f, &seen, "/grpc.health.v1.Health/Check", &unary_seen, name, 0);
    fixture_wait(&f, &seen.closed);
    CHECK_INT(seen.code, GRPC_CODE_OK);
    CHECK(seen.bytes == 2 && seen.data[1] == 2); /* NOT_SERVING */
    health_ask(&f, &watch, "/grpc.health.v1.Health/Watch", &watch_seen, name, 9);
    fixture_wait(&f, &watch.messages);
    CHECK(watch.bytes == 2 && watch.data[1] == 3); /* SERVICE_UNKNOWN */
    rpc_health_set(f.health, "a.Service", true);
    fixture_wait_for(&f, &watch.messages, 2);
    CHECK(watch.data[1] == 1); /* SERVING */
    rpc_health_set(f.health, "a.Service", true);
    fixture_turn(&f, 50 * NS_PER_MS);
    CHECK_INT(watch.messages, 2); /* nothing new, nothing told */
    rpc_health_set(f.health, "a.Service", false);
    fixture_wait_for(&f, &watch.messages, 3);
    CHECK(watch.data[1] == 2);
    rpc_health_end_watches(f.health);
    fixture_wait(&f, &watch.closed);
    CHECK_INT(watch.code, GRPC_CODE_UNAVAILABLE);
    fixture_finish(&f);
}
