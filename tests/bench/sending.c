/* See sending.h. */
#include "tests/bench/sending.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "node/outbox.h"

static const char path[] = "/bench.Bench/Stream";

static int port_pipe[2];

static struct {
    struct loop *loop;
    struct rpc *rpc;
    struct rpc_channel *channel;
    struct outbox outbox;
    uint32_t sequences, position;
} sender;

static void die(const char *what)
{
    fprintf(stderr, "bench: sending: %s\n", what);
    exit(1);
}

static double us_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void message_forget(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    (void)context;
    (void)call;
    (void)data;
    (void)bytes;
}

static const struct rpc_handler reader = {
    .kind = RPC_BIDI, .read_always = true, .on_message = message_forget};

static _Noreturn void read_for_ever(void)
{
    struct err err = ERR_INIT;
    struct loop *loop;
    struct rpc *rpc;
    struct rpc_server *server;
    struct rpc_server_options options = {.address = "127.0.0.1:0"};
    if (loop_create(&loop, &err) || rpc_create(loop, &rpc, &err) ||
        rpc_server_create(rpc, &options, &server, &err) ||
        rpc_server_add(server, path, &reader, NULL, &err) || rpc_server_start(server, &err))
        die(err.message);
    int port = rpc_server_port(server);
    if (write(port_pipe[1], &port, sizeof port) != sizeof port)
        die("no port");
    loop_run(loop);
    _exit(0);
}

void sending_fork(void)
{
    if (pipe(port_pipe))
        die("no pipe");
    pid_t pid = fork();
    if (pid < 0)
        die("no process");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        read_for_ever();
    }
}

static void on_writable(void *context, struct rpc_call *call)
{
    (void)context;
    (void)call;
    outbox_writable(&sender.outbox);
}

static void on_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    (void)context;
    (void)call;
    if (sender.outbox.call)
        die(end->message);
}

static const struct rpc_handler writer = {
    .kind = RPC_BIDI, .read_always = true, .on_writable = on_writable, .on_closed = on_closed};

void sending_open(uint32_t sequences)
{
    struct err err = ERR_INIT;
    int port;
    char target[32];
    if (read(port_pipe[0], &port, sizeof port) != sizeof port)
        die("no port");
    snprintf(target, sizeof target, "127.0.0.1:%d", port);
    sender.sequences = sequences;
    if (loop_create(&sender.loop, &err) || rpc_create(sender.loop, &sender.rpc, &err) ||
        rpc_channel_create(sender.rpc, target, NULL, &sender.channel, &err) ||
        outbox_init(&sender.outbox, sequences))
        die(err.message);
    struct rpc_call_options options = {.path = path, .wait_for_ready = true};
    struct rpc_call *call = rpc_channel_call(sender.channel, &writer, NULL, &options);
    if (!call)
        die("no memory");
    outbox_open(&sender.outbox, call);
    sender.outbox.seal.on = true; /* as nodes agree on */
}

double sending_step(double *process_us_out)
{
    double process = us_of(CLOCK_PROCESS_CPUTIME_ID), thread = us_of(CLOCK_THREAD_CPUTIME_ID);
    for (uint32_t i = 0; i < sender.sequences; i++) {
        struct outbox_token token = {.attempt = {i * UINT64_C(0x9e3779b97f4a7c15), ~(uint64_t)i},
                                     .position = sender.position,
                                     .token = {.token_id = i * 1531 % 49152}};
        outbox_token(&sender.outbox, &token);
    }
    outbox_flush(&sender.outbox);
    while (!outbox_idle(&sender.outbox))
        loop_round(sender.loop, NS_PER_S);
    sender.position++;
    thread = us_of(CLOCK_THREAD_CPUTIME_ID) - thread;
    *process_us_out = us_of(CLOCK_PROCESS_CPUTIME_ID) - process;
    return thread;
}

void sending_close(void)
{
    outbox_close(&sender.outbox);
    rpc_channel_destroy(sender.channel);
    rpc_destroy(sender.rpc);
    outbox_finish(&sender.outbox);
    loop_destroy(sender.loop);
}
