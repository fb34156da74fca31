/* What a call costs: client and server as two processes over loopback, proto/rpc on both sides, beside the same calls by gRPC
 * core alone (bare_grpc.h). Each message is a GenerateResponse with one token.
 *
 *     bench_rpc [--json FILE]
 *
 * Owner: each process's main thread. */
#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/baton/v1/baton.pb-c.h"
#include "proto/rpc/rpc.h"
#include "tests/bench/bare_grpc.h"
#include "tests/bench/bench.h"

enum { CALLS = 3000, WARM_CALLS = 300, STREAM_TOKENS = 50000, ROUNDS = 3, STREAMS = 32 };

/* --- the server of proto/rpc --- */

static void token_fill(Baton__V1__GenerateResponse *response, uint32_t *id, uint32_t position)
{
    baton__v1__generate_response__init(response);
    *id = 1000 + position % 1000;
    response->position = position;
    response->n_token_ids = 1;
    response->token_ids = id;
}

/* What is left to send lies in the call's data pointer, so that the benchmark's own part costs nothing. */
static void stream_go(struct rpc_call *call)
{
    uintptr_t left = (uintptr_t)rpc_call_data(call);
    Baton__V1__GenerateResponse response;
    uint32_t id;
    token_fill(&response, &id, (uint32_t)left);
    rpc_call_set_data(call, (void *)(left - 1));
    if (left > 1)
        rpc_call_send_text(call, &response.base, 3, " token", 6);
    else
        rpc_call_reply_text(call, &response.base, 3, " token", 6);
}

static void server_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    (void)context;
    Baton__V1__SamplingParams *params = baton__v1__sampling_params__unpack(NULL, bytes, data);
    assert(params);
    rpc_call_set_data(call, (void *)(uintptr_t)params->max_tokens);
    baton__v1__sampling_params__free_unpacked(params, NULL);
    stream_go(call);
}

static void server_writable(void *context, struct rpc_call *call)
{
    (void)context;
    stream_go(call);
}

static const struct rpc_handler server_handler = {
    .kind = RPC_SERVER_STREAM, .on_message = server_message, .on_writable = server_writable};

static void ours_serve(int port_fd)
{
    struct err err = ERR_INIT;
    struct loop *loop;
    struct rpc *rpc;
    struct rpc_server *server;
    struct rpc_server_options options = {.address = "127.0.0.1:0"};
    if (loop_create(&loop, &err) || rpc_create(loop, &rpc, &err) ||
        rpc_server_create(rpc, &options, &server, &err) ||
        rpc_server_add(server, "/bench.Bench/Call", &server_handler, NULL, &err) ||
        rpc_server_start(server, &err)) {
        fprintf(stderr, "bench_rpc: %s\n", err.message);
        _exit(1);
    }
    int port = rpc_server_port(server);
    ssize_t n = write(port_fd, &port, sizeof port);
    assert(n == sizeof port);
    (void)n;
    loop_run(loop);
}

/* --- the client of proto/rpc --- */

struct client {
    struct loop *loop;
    struct rpc *rpc;
    struct rpc_channel *channel;
    size_t received, open;
};

static void client_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    (void)call;
    (void)data;
    (void)bytes;
    ((struct client *)context)->received++;
}

static void client_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    (void)call;
    assert(end->code == GRPC_CODE_OK);
    ((struct client *)context)->open--;
}

static const struct rpc_handler client_handler = {.kind = RPC_SERVER_STREAM,
                                                  .read_always = true,
                                                  .on_message = client_message,
                                                  .on_closed = client_closed};

static size_t ours_call(struct client *client, uint32_t count, size_t streams)
{
    Baton__V1__SamplingParams params = BATON__V1__SAMPLING_PARAMS__INIT;
    params._max_tokens_case = BATON__V1__SAMPLING_PARAMS___MAX_TOKENS_MAX_TOKENS;
    params.max_tokens = count;
    struct rpc_call_options options = {.path = "/bench.Bench/Call", .request = &params.base};
    client->received = 0;
    client->open = streams;
    for (size_t i = 0; i < streams; i++)
        rpc_channel_call(client->channel, &client_handler, client, &options);
    while (client->open)
        loop_round(client->loop, NS_PER_S);
    return client->received;
}

/* --- measuring --- */

struct figures {
    double call_us, stream_tokens_s, streams_tokens_s;
};

struct side {
    struct client ours;
    struct bare_client *bare; /* NULL: ours */
};

static size_t side_call(struct side *side, uint32_t count, size_t streams)
{
    return side->bare ? bare_call(side->bare, count, streams)
                      : ours_call(&side->ours, count, streams);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double rate(struct side *side, uint32_t count, size_t streams)
{
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double start = bench_now();
        size_t received = side_call(side, count, streams);
        assert(received == count * streams);
        double per_s = (double)received / (bench_now() - start);
        best = per_s > best ? per_s : best;
    }
    return best;
}

static struct figures measure(struct side *side)
{
    static double us[CALLS];
    for (int i = 0; i < WARM_CALLS; i++)
        side_call(side, 1, 1);
    for (int i = 0; i < CALLS; i++) {
        double start = bench_now();
        size_t received = side_call(side, 1, 1);
        assert(received == 1);
        us[i] = (bench_now() - start) * 1e6;
    }
    qsort(us, CALLS, sizeof us[0], compare);
    return (struct figures){.call_us = us[CALLS / 2],
                            .stream_tokens_s = rate(side, STREAM_TOKENS, 1),
                            .streams_tokens_s = rate(side, STREAM_TOKENS / STREAMS, STREAMS)};
}

/* The bare server sends the same bytes: one packed message. */
static size_t message_pack(uint8_t *out)
{
    Baton__V1__GenerateResponse response;
    uint32_t id;
    token_fill(&response, &id, 100);
    response.text = " token";
    return baton__v1__generate_response__pack(&response, out);
}

/* Both sides are made new, in processes of their own: gRPC core does not survive a fork. */
static pid_t serve(bool bare, int *port_out)
{
    int ends[2];
    if (pipe(ends)) {
        perror("bench_rpc: pipe");
        exit(1);
    }
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        uint8_t message[128];
        if (bare)
            bare_serve(ends[1], message, message_pack(message));
        else
            ours_serve(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    if (pid < 0 || read(ends[0], port_out, sizeof *port_out) != sizeof *port_out) {
        fprintf(stderr, "bench_rpc: the server did not start\n");
        exit(1);
    }
    close(ends[0]);
    return pid;
}

static struct figures run(bool bare)
{
    int port;
    pid_t pid = serve(bare, &port);
    struct side side = {0};
    struct err err = ERR_INIT;
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%d", port);
    if (bare) {
        side.bare = bare_connect(port);
    } else if (loop_create(&side.ours.loop, &err) ||
               rpc_create(side.ours.loop, &side.ours.rpc, &err) ||
               rpc_channel_create(side.ours.rpc, target, NULL, &side.ours.channel, &err)) {
        fprintf(stderr, "bench_rpc: %s\n", err.message);
        exit(1);
    }
    struct figures figures = measure(&side);
    if (bare) {
        bare_disconnect(side.bare);
    } else {
        rpc_channel_destroy(side.ours.channel);
        rpc_destroy(side.ours.rpc);
        loop_destroy(side.ours.loop);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return figures;
}

/* A child measures and passes its figures on, so that each run starts with a gRPC core of its own. */
static struct figures run_apart(bool bare)
{
    int ends[2];
    struct figures figures = {0};
    if (pipe(ends)) {
        perror("bench_rpc: pipe");
        exit(1);
    }
    pid_t pid = fork();
    if (pid == 0) {
        figures = run(bare);
        _exit(write(ends[1], &figures, sizeof figures) != sizeof figures);
    }
    close(ends[1]);
    if (read(ends[0], &figures, sizeof figures) != sizeof figures) {
        fprintf(stderr, "bench_rpc: a run ended early\n");
        exit(1);
    }
    close(ends[0]);
    waitpid(pid, NULL, 0);
    return figures;
}

int main(int argc, char **argv)
{
    struct bench bench;
    if (bench_begin(&bench, &argc, argv) < 0)
        return 2;
    struct figures bare = run_apart(true), ours = run_apart(false);
    bench_add(&bench, &(struct bench_record){.id = "rpc_one_token_call_p50",
                                             .value = ours.call_us,
                                             .unit = "us",
                                             .lower_is_better = true,
                                             BENCH_PEER("gRPC core alone", bare.call_us)});
    bench_add(&bench, &(struct bench_record){.id = "rpc_stream_tokens",
                                             .value = ours.stream_tokens_s,
                                             .unit = "1/s",
                                             BENCH_PEER("gRPC core alone", bare.stream_tokens_s)});
    bench_add(&bench, &(struct bench_record){.id = "rpc_32_streams_tokens",
                                             .value = ours.streams_tokens_s,
                                             .unit = "1/s",
                                             BENCH_PEER("gRPC core alone", bare.streams_tokens_s)});
    return bench_end(&bench);
}
