/* The echo service with health and reflection as a program, so that clients of other languages can be run against it.
 * Prints its port; ends at the end of its standard input, after a drain.
 * usage: rpc_echo_server [ADDRESS] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "proto/rpc/health.h"
#include "proto/rpc/reflection.h"
#include "tests/proto/echo_service.h"

struct program {
    struct loop *loop;
    struct rpc_server *server;
    struct rpc_health *health;
    bool ending;
};

static void drained(void *context)
{
    loop_stop(((struct program *)context)->loop);
}

/* "not_serving" and "serving" lines change the health; the end of the input drains. */
static void input_ready(void *context, uint32_t events)
{
    (void)events;
    struct program *program = context;
    char byte;
    ssize_t n = read(STDIN_FILENO, &byte, 1);
    if (n == 1 && (byte == '0' || byte == '1'))
        rpc_health_set(program->health, "baton.v1.Generation", byte == '1');
    if (n > 0 || program->ending)
        return;
    program->ending = true;
    rpc_health_end_watches(program->health);
    rpc_server_drain(program->server, drained, program);
}

static void die(const struct err *err)
{
    fprintf(stderr, "rpc_echo_server: %s\n", err->message);
    exit(1);
}

int main(int argc, char **argv)
{
    struct err err = ERR_INIT;
    struct program program = {0};
    struct rpc *rpc;
    struct echo echo = {0};
    struct rpc_reflection *reflection;
    struct rpc_server_options options = {.address = argc > 1 ? argv[1] : "127.0.0.1:0"};
    if (loop_create(&program.loop, &err) || rpc_create(program.loop, &rpc, &err) ||
        rpc_server_create(rpc, &options, &program.server, &err) ||
        echo_add(&echo, program.server, &err) ||
        rpc_health_create(program.server, &program.health, &err) ||
        rpc_reflection_create(program.server, &reflection, &err) ||
        rpc_server_start(program.server, &err))
        die(&err);
    rpc_health_set(program.health, "", true);
    rpc_health_set(program.health, "baton.v1.Generation", true);
    printf("%d\n", rpc_server_port(program.server));
    fflush(stdout);
    struct loop_io input = {0};
    if (loop_io_start(program.loop, &input, STDIN_FILENO, EPOLLIN, input_ready, &program, &err))
        die(&err);
    loop_run(program.loop);
    loop_io_stop(&input);
    rpc_server_destroy(program.server, NULL, NULL);
    rpc_destroy(rpc);
    rpc_health_destroy(program.health);
    rpc_reflection_destroy(reflection);
    loop_destroy(program.loop);
    printf("opened=%zu closed=%zu\n", echo.opened, echo.closed);
    return echo.opened == echo.closed ? 0 : 1;
}
