/* See echo_service.h. */
#include "tests/proto/echo_service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/baton/v1/baton.pb-c.h"
#include "proto/wire.h"

enum { TEXT_BYTES_MAX = 1 << 20 };

/* One Generate in progress. */
struct stream {
    char *text;
    uint32_t next, count; /* count 0: no end */
};

static void echo_open(void *context, struct rpc_call *call)
{
    struct echo *echo = context;
    echo->opened++;
    echo->last_call = call;
    echo->last_deadline_ns = rpc_call_deadline_ns(call);
}

static void echo_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    struct echo *echo = context;
    echo->closed++;
    echo->cancelled += end->cancelled;
    echo->last_code = end->code;
    struct stream *stream = rpc_call_data(call);
    if (stream) {
        free(stream->text);
        free(stream);
    }
}

/* The unpacked request, or NULL after the call was finished. */
static void *request_of(struct rpc_call *call, const ProtobufCMessageDescriptor *descriptor,
                        const uint8_t *data, size_t bytes)
{
    struct err err = ERR_INIT;
    ProtobufCMessage *message = NULL;
    if (wire_unpack(descriptor, data, bytes, &message, &err))
        rpc_call_finish_err(call, &err);
    return message;
}

static void bytes_reply(struct rpc_call *call, const char *data, size_t bytes)
{
    Baton__V1__TokenizeResponse response = BATON__V1__TOKENIZE_RESPONSE__INIT;
    uint32_t *ids = malloc((bytes + 1) * sizeof *ids);
    for (size_t i = 0; i < bytes; i++)
        ids[i] = (unsigned char)data[i];
    response.n_ids = bytes;
    response.ids = ids;
    rpc_call_reply(call, &response.base);
    free(ids);
}

static void tokenize(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    (void)context;
    Baton__V1__TokenizeRequest *request =
        request_of(call, &baton__v1__tokenize_request__descriptor, data, bytes);
    if (!request)
        return;
    if (strcmp(request->text, "fail") == 0) {
        struct rpc_metadata trailer = {"grpc-retry-pushback-ms", "5"};
        rpc_call_finish(call, GRPC_CODE_INVALID_ARGUMENT, "text: \"fail\" fails, 100 %", &trailer,
                        1);
    } else if (strcmp(request->text, "deadline") == 0) {
        uint64_t left_ns = rpc_call_remaining_ns(call);
        uint32_t left_ms = left_ns == DEADLINE_NONE ? UINT32_MAX : (uint32_t)(left_ns / NS_PER_MS);
        Baton__V1__TokenizeResponse response = BATON__V1__TOKENIZE_RESPONSE__INIT;
        response.n_ids = 1;
        response.ids = &left_ms;
        rpc_call_reply(call, &response.base);
    } else if (strcmp(request->text, "peer") == 0) {
        const char *peer = rpc_call_peer(call);
        bytes_reply(call, peer, strlen(peer));
    } else if (strcmp(request->text, "metadata") == 0) {
        size_t value_bytes = 0;
        const char *value = rpc_call_metadata(call, "x-test", &value_bytes);
        bytes_reply(call, value, value_bytes);
    } else if (strcmp(request->text, "hang") != 0) {
        bytes_reply(call, request->text, strlen(request->text));
    }
    protobuf_c_message_free_unpacked(&request->base, NULL);
}

static void detokenize(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    (void)context;
    Baton__V1__DetokenizeRequest *request =
        request_of(call, &baton__v1__detokenize_request__descriptor, data, bytes);
    if (!request)
        return;
    size_t count = request->n_ids < TEXT_BYTES_MAX ? request->n_ids : TEXT_BYTES_MAX;
    char *text = malloc(count + 1);
    for (size_t i = 0; i < count; i++)
        text[i] = (char)request->ids[i];
    Baton__V1__DetokenizeResponse response = BATON__V1__DETOKENIZE_RESPONSE__INIT;
    rpc_call_reply_text(call, &response.base, 1, text, count);
    free(text);
    protobuf_c_message_free_unpacked(&request->base, NULL);
}

/* --- Generate --- */

static void stream_go(struct echo *echo, struct rpc_call *call)
{
    struct stream *stream = rpc_call_data(call);
    if (!stream || !rpc_call_writable(call))
        return;
    bool last = stream->count && stream->next + 1 >= stream->count;
    Baton__V1__GenerateResponse response = BATON__V1__GENERATE_RESPONSE__INIT;
    response.position = stream->next++;
    uint32_t id = response.position;
    response.n_token_ids = 1;
    response.token_ids = &id;
    if (last) {
        response.finish_reason = BATON__V1__GENERATE_RESPONSE__FINISH_REASON__LENGTH;
        rpc_call_reply_text(call, &response.base, 3, stream->text, strlen(stream->text));
        return;
    }
    rpc_call_send_text(call, &response.base, 3, stream->text, strlen(stream->text));
    if (echo->abort_message)
        rpc_call_abort(call, GRPC_CODE_RESOURCE_EXHAUSTED, echo->abort_message);
}

static void generate(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    Baton__V1__GenerateRequest *request =
        request_of(call, &baton__v1__generate_request__descriptor, data, bytes);
    if (!request)
        return;
    struct stream *stream = calloc(1, sizeof *stream);
    bool text = request->prompt_case == BATON__V1__GENERATE_REQUEST__PROMPT_TEXT;
    stream->text = strdup(text ? request->text : "");
    if (request->sampling)
        stream->count = request->sampling->max_tokens;
    rpc_call_set_data(call, stream);
    stream_go(context, call);
    protobuf_c_message_free_unpacked(&request->base, NULL);
}

static void generate_writable(void *context, struct rpc_call *call)
{
    struct echo *echo = context;
    echo->generated++;
    stream_go(echo, call);
}

/* --- Connect --- */

static void connect_open(void *context, struct rpc_call *call)
{
    echo_open(context, call);
    rpc_call_read(call);
}

static void connect_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    (void)context;
    rpc_call_send(call, data, bytes);
}

static void connect_writable(void *context, struct rpc_call *call)
{
    (void)context;
    rpc_call_read(call);
}

static void connect_half_close(void *context, struct rpc_call *call)
{
    (void)context;
    rpc_call_finish(call, GRPC_CODE_OK, NULL, NULL, 0);
}

static const struct rpc_handler tokenize_handler = {
    .kind = RPC_UNARY, .on_open = echo_open, .on_message = tokenize, .on_closed = echo_closed};
static const struct rpc_handler detokenize_handler = {
    .kind = RPC_UNARY, .on_open = echo_open, .on_message = detokenize, .on_closed = echo_closed};
static const struct rpc_handler generate_handler = {.kind = RPC_SERVER_STREAM,
                                                    .on_open = echo_open,
                                                    .on_message = generate,
                                                    .on_writable = generate_writable,
                                                    .on_closed = echo_closed};
static const struct rpc_handler connect_handler = {.kind = RPC_BIDI,
                                                   .on_open = connect_open,
                                                   .on_message = connect_message,
                                                   .on_half_close = connect_half_close,
                                                   .on_writable = connect_writable,
                                                   .on_closed = echo_closed};

enum status echo_add(struct echo *echo, struct rpc_server *server, struct err *err)
{
    const struct {
        const char *path;
        const struct rpc_handler *handler;
    } methods[] = {
        {"/baton.v1.Generation/Tokenize", &tokenize_handler},
        {"/baton.v1.Generation/Detokenize", &detokenize_handler},
        {"/baton.v1.Generation/Generate", &generate_handler},
        {"/baton.node.v1.Registry/Connect", &connect_handler},
    };
    enum status status = STATUS_OK;
    for (size_t i = 0; !status && i < sizeof methods / sizeof methods[0]; i++)
        status = rpc_server_add(server, methods[i].path, methods[i].handler, echo, err);
    return status;
}
