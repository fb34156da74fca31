/* See bare_grpc.h. */
#include "tests/bench/bare_grpc.h"

#include <assert.h>
#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>

enum { SLOTS = 32 };

static grpc_byte_buffer *buffer_of(const void *data, size_t bytes)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(data, bytes);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static void post(grpc_call *call, const grpc_op *ops, size_t count, void *tag)
{
    grpc_call_error error = grpc_call_start_batch(call, ops, count, tag, NULL);
    assert(error == GRPC_CALL_OK);
    (void)error;
}

/* --- the server --- */

struct served {
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *received, *sent;
    int cancelled;
    uint32_t left;
    bool known, started;
};

struct server {
    grpc_server *server;
    grpc_completion_queue *queue;
    const uint8_t *message;
    size_t bytes;
};

static void served_request(struct server *server)
{
    struct served *served = calloc(1, sizeof *served);
    grpc_call_details_init(&served->details);
    grpc_metadata_array_init(&served->metadata);
    grpc_server_request_call(server->server, &served->call, &served->details, &served->metadata,
                             server->queue, server->queue, served);
}

/* Only one batch of a call is out at a time, so one tag serves all: the state says what is done. */
static void served_step(struct server *server, struct served *served)
{
    grpc_op ops[4];
    size_t count = 0;
    if (!served->known) {
        served->known = true;
        served_request(server);
        ops[count++] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE,
                                 .data.recv_message.recv_message = &served->received};
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
        post(served->call, ops, count, served);
        return;
    }
    if (served->sent)
        grpc_byte_buffer_destroy(served->sent);
    served->sent = NULL;
    if (!served->started && served->received) {
        grpc_byte_buffer_reader reader;
        grpc_byte_buffer_reader_init(&reader, served->received);
        grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
        memcpy(&served->left, GRPC_SLICE_START_PTR(slice), sizeof served->left);
        grpc_slice_unref(slice);
        grpc_byte_buffer_reader_destroy(&reader);
        grpc_byte_buffer_destroy(served->received);
        served->started = true;
    }
    if (!served->left) {
        grpc_metadata_array_destroy(&served->metadata);
        grpc_call_details_destroy(&served->details);
        grpc_call_unref(served->call);
        free(served);
        return;
    }
    served->sent = buffer_of(server->message, server->bytes);
    ops[count++] =
        (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = served->sent};
    if (--served->left == 0) {
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
        ops[count++] = (grpc_op){.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                                 .data.recv_close_on_server.cancelled = &served->cancelled};
    }
    post(served->call, ops, count, served);
}

void bare_serve(int port_fd, const uint8_t *message, size_t bytes)
{
    grpc_init();
    struct server server = {.message = message, .bytes = bytes};
    server.queue = grpc_completion_queue_create_for_next(NULL);
    server.server = grpc_server_create(NULL, NULL);
    grpc_server_register_completion_queue(server.server, server.queue, NULL);
    int port = grpc_server_add_http2_port(server.server, "127.0.0.1:0",
                                          grpc_insecure_server_credentials_create());
    grpc_server_start(server.server);
    for (int i = 0; i < SLOTS; i++)
        served_request(&server);
    ssize_t n = write(port_fd, &port, sizeof port);
    assert(n == sizeof port);
    (void)n;
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(server.queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        served_step(&server, event.tag);
    }
}

/* --- the client --- */

struct bare_client {
    grpc_channel *channel;
    grpc_completion_queue *queue;
    size_t received, open;
};

struct asked {
    struct bare_client *client;
    grpc_call *call;
    grpc_metadata_array head, tail;
    grpc_byte_buffer *request, *received;
    grpc_status_code status;
    grpc_slice details;
    int out;
};

struct bare_client *bare_connect(int port)
{
    grpc_init();
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%d", port);
    struct bare_client *client = calloc(1, sizeof *client);
    client->queue = grpc_completion_queue_create_for_next(NULL);
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    client->channel = grpc_channel_create(target, plain, NULL);
    grpc_channel_credentials_release(plain);
    return client;
}

void bare_disconnect(struct bare_client *client)
{
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->queue);
    while (
        grpc_completion_queue_next(client->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
        GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(client->queue);
    grpc_shutdown_blocking();
    free(client);
}

/* A tag is the address of the call with the lowest bit set for its end. */
static void *end_tag(struct asked *asked)
{
    return (void *)((uintptr_t)asked | 1);
}

static void asked_begin(struct bare_client *client, struct asked *asked, uint32_t count)
{
    *asked = (struct asked){.client = client, .out = 2};
    grpc_metadata_array_init(&asked->head);
    grpc_metadata_array_init(&asked->tail);
    grpc_slice path = grpc_slice_from_static_string("/bare.Bench/Call");
    asked->call = grpc_channel_create_call(client->channel, NULL, 0xffff, client->queue, path, NULL,
                                           gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    asked->request = buffer_of(&count, sizeof count);
    grpc_op end = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                   .data.recv_status_on_client = {.trailing_metadata = &asked->tail,
                                                  .status = &asked->status,
                                                  .status_details = &asked->details}};
    post(asked->call, &end, 1, end_tag(asked));
    grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = asked->request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &asked->head},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &asked->received},
    };
    post(asked->call, ops, sizeof ops / sizeof ops[0], asked);
}

static void asked_step(struct asked *asked, bool end)
{
    asked->out--;
    if (!end && asked->received) {
        asked->client->received++;
        grpc_byte_buffer_destroy(asked->received);
        grpc_op op = {.op = GRPC_OP_RECV_MESSAGE,
                      .data.recv_message.recv_message = &asked->received};
        asked->out++;
        post(asked->call, &op, 1, asked);
    }
    if (asked->out)
        return;
    assert(asked->status == GRPC_STATUS_OK);
    grpc_byte_buffer_destroy(asked->request);
    grpc_metadata_array_destroy(&asked->head);
    grpc_metadata_array_destroy(&asked->tail);
    grpc_slice_unref(asked->details);
    grpc_call_unref(asked->call);
    asked->client->open--;
}

size_t bare_call(struct bare_client *client, uint32_t count, size_t streams)
{
    struct asked *asked = calloc(streams, sizeof *asked);
    client->received = 0;
    client->open = streams;
    for (size_t i = 0; i < streams; i++)
        asked_begin(client, &asked[i], count);
    while (client->open) {
        grpc_event event =
            grpc_completion_queue_next(client->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        uintptr_t tag = (uintptr_t)event.tag;
        asked_step((struct asked *)(tag & ~(uintptr_t)1), tag & 1);
    }
    free(asked);
    return client->received;
}
