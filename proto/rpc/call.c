/* Calls of both sides: batches out, callbacks in. See rpc.h for a call's life.
 *
 * Which batch answers to which tag:
 *
 *              server                                        client
 *   open_tag   -                                             stream: initial metadata both ways (+ request, half-close)
 *   read_tag   one RECV_MESSAGE                              stream: one RECV_MESSAGE
 *   write_tag  SEND_MESSAGE (+ initial metadata, + status)   stream: SEND_MESSAGE
 *   close_tag  status, without a message                     half-close
 *   end_tag    RECV_CLOSE_ON_SERVER                          stream: RECV_STATUS; unary: the whole call in one batch
 *
 * The end's batch is posted first, so that a vanished peer is noticed even while nothing is sent or read. After a cancel core
 * brings all batches back soon, failed. on_closed is told when the end is known and no batch is out, so it is the last.
 *
 * Owner: the loop thread. */
#include "proto/rpc/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer_reader.h>
#include <grpc/impl/codegen/propagation_bits.h>

#include "proto/seal.h"
#include "proto/wire.h"

static char *text_copy(const char *text)
{
    return text && text[0] ? strdup(text) : NULL;
}

/* --- the end --- */

static const char *slice_text(grpc_slice slice, char **copy_out)
{
    size_t bytes = GRPC_SLICE_LENGTH(slice);
    char *copy = malloc(bytes + 1);
    if (!copy)
        return "";
    memcpy(copy, GRPC_SLICE_START_PTR(slice), bytes);
    copy[bytes] = '\0';
    free(*copy_out);
    *copy_out = copy;
    return copy;
}

static void trailers_free(struct rpc_call *call)
{
    for (size_t i = 0; i < call->trailer_count; i++) {
        grpc_slice_unref(call->trailers[i].key);
        grpc_slice_unref(call->trailers[i].value);
    }
    free(call->trailers);
    call->trailers = NULL;
    call->trailer_count = 0;
}

static void call_free(struct rpc_call *call)
{
    list_remove(&call->link);
    if (call->received)
        grpc_byte_buffer_destroy(call->received);
    if (call->unsent)
        grpc_byte_buffer_destroy(call->unsent);
    trailers_free(call);
    grpc_metadata_array_destroy(&call->head);
    grpc_metadata_array_destroy(&call->tail);
    grpc_slice_unref(call->details);
    if (call->server)
        grpc_call_details_destroy(&call->request);
    grpc_call_unref(call->call);
    gpr_free(call->peer);
    free(call->path);
    free(call->message);
    free(call);
}

/* A client whose deadline passes cancels, and its clock runs out a little before ours: timeouts travel rounded up to three
 * digits, and travelling takes time. So an end so near to the deadline counts as the deadline's. */
static bool deadline_passed(const struct rpc_call *call)
{
    if (call->deadline_ns == DEADLINE_NONE)
        return false;
    uint64_t margin_ns = 10 * NS_PER_MS + (call->deadline_ns - call->accepted_ns) / 64;
    return rpc_call_remaining_ns(call) <= margin_ns;
}

static void end_describe(struct rpc_call *call, struct rpc_end *end)
{
    *end = (struct rpc_end){.code = (enum grpc_code)call->code,
                            .message = call->message ? call->message : "",
                            .cancelled = call->cancelled_here};
    if (call->server) {
        end->cancelled |= call->cancelled != 0 || !call->close_sent;
        if (end->cancelled && !call->cancelled_here)
            end->code = deadline_passed(call) ? GRPC_CODE_DEADLINE_EXCEEDED : GRPC_CODE_CANCELLED;
        return;
    }
    if (!call->cancelled_here)
        end->message = slice_text(call->details, &call->message);
    end->cancelled |= call->code == GRPC_STATUS_CANCELLED;
}

/* False when nothing but the end may be told any more. */
static bool call_live(const struct rpc_call *call)
{
    if (call->cancelled_here)
        return false;
    return call->channel || (!call->close_wanted && !call->close_sent && !call->ended);
}

static void call_settle(struct rpc_call *call)
{
    if (!call->ended || call->batches)
        return;
    /* the status may come before the read that would have found the end of a client's stream */
    if (call->channel && call->handler->kind != RPC_UNARY && !call->peer_done &&
        call->code == GRPC_STATUS_OK && call_live(call)) {
        call->peer_done = true;
        if (call->handler->on_half_close)
            call->handler->on_half_close(call->context, call);
    }
    struct rpc_end end;
    end_describe(call, &end);
    if (call->tapped)
        call->rpc->tap->closed(call->rpc->tap, call);
    if (call->handler->on_closed)
        call->handler->on_closed(call->context, call, &end);
    struct rpc_server *server = call->server;
    struct rpc_channel *channel = call->channel;
    call_free(call);
    if (server) {
        server->call_count--;
        rpc_server_settle(server);
    } else {
        rpc_channel_settle(channel);
    }
}

/* --- batches --- */

static void batch_post(struct rpc_call *call, const grpc_op *ops, size_t count, struct rpc_tag *tag)
{
    call->batches++;
    rpc_batch_post(call->rpc, call->call, ops, count, tag);
}

static void end_done(void *context, bool ok)
{
    (void)ok; /* receiving the end always succeeds */
    struct rpc_call *call = context;
    call->batches--;
    call->ended = true;
    call_settle(call);
}

static void close_done(void *context, bool ok)
{
    (void)ok;
    struct rpc_call *call = context;
    call->batches--;
    call_settle(call);
}

static void close_post(struct rpc_call *call);

static void write_done(void *context, bool ok)
{
    struct rpc_call *call = context;
    call->batches--;
    call->sending = false;
    if (call->unsent)
        grpc_byte_buffer_destroy(call->unsent);
    call->unsent = NULL;
    if (call->close_wanted && !call->close_sent)
        close_post(call);
    else if (ok && call_live(call) && !call->ended && !call->close_sent &&
             call->handler->on_writable)
        call->handler->on_writable(call->context, call);
    call_settle(call);
}

/* --- reading --- */

void rpc_call_deliver(struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    if (call_live(call))
        call->handler->on_message(call->context, call, data, bytes);
}

static void message_pass(struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    if (call->tapped)
        call->rpc->tap->message(call->rpc->tap, call, data, bytes);
    else
        call->handler->on_message(call->context, call, data, bytes);
}

static bool tap_wants(const struct rpc *rpc, const char *path)
{
    return rpc->tap && rpc->tap->wants(rpc->tap, path);
}

static void message_deliver(struct rpc_call *call)
{
    grpc_byte_buffer *buffer = call->received;
    call->received = NULL;
    call->got_message = true;
    if (!call->handler->on_message) {
        grpc_byte_buffer_destroy(buffer);
        return;
    }
    const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    if (buffer->data.raw.compression != GRPC_COMPRESS_NONE) {
        /* decompressing is off (a small message could become gigabytes), and core refuses such calls by itself */
        grpc_byte_buffer_destroy(buffer);
        if (call->server)
            rpc_call_finish(call, GRPC_CODE_UNIMPLEMENTED, "compressed messages are not accepted",
                            NULL, 0);
        else
            rpc_call_cancel(call);
        return;
    }
    if (slices->count == 1) {
        message_pass(call, GRPC_SLICE_START_PTR(slices->slices[0]),
                     GRPC_SLICE_LENGTH(slices->slices[0]));
    } else {
        grpc_byte_buffer_reader reader;
        grpc_byte_buffer_reader_init(&reader, buffer);
        grpc_slice joined = grpc_byte_buffer_reader_readall(&reader);
        grpc_byte_buffer_reader_destroy(&reader);
        message_pass(call, GRPC_SLICE_START_PTR(joined), GRPC_SLICE_LENGTH(joined));
        grpc_slice_unref(joined);
    }
    grpc_byte_buffer_destroy(buffer);
}

/* True when the peer sends exactly one message. */
static bool peer_sends_one(const struct rpc_call *call)
{
    return call->handler->kind == RPC_UNARY ||
           (call->server && call->handler->kind == RPC_SERVER_STREAM);
}

static void read_done(void *context, bool ok)
{
    struct rpc_call *call = context;
    call->batches--;
    call->reading = false;
    if (ok && call->received && call_live(call)) {
        message_deliver(call);
        if (call->handler->read_always && !peer_sends_one(call))
            rpc_call_read(call);
    } else if (!call->received) {
        call->peer_done = true;
        /* on a server, a read that failed is the end's business, not a half-close; a client's core calls every end a failure */
        bool clean = call_live(call) &&
                     (call->channel || (ok && !grpc_call_failed_before_recv_message(call->call)));
        if (clean && call->server && peer_sends_one(call))
            rpc_call_finish(call, GRPC_CODE_INVALID_ARGUMENT, "the request message is missing",
                            NULL, 0);
        else if (clean && call->handler->on_half_close)
            call->handler->on_half_close(call->context, call);
    }
    call_settle(call);
}

void rpc_call_read(struct rpc_call *call)
{
    if (call->reading || call->peer_done || call->ended || !call_live(call) ||
        (peer_sends_one(call) && call->got_message) ||
        (call->channel && call->handler->kind == RPC_UNARY))
        return;
    if (call->received) {
        grpc_byte_buffer_destroy(call->received);
        call->received = NULL;
    }
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->received};
    call->reading = true;
    batch_post(call, &op, 1, &call->read_tag);
}

/* --- sending --- */

bool rpc_call_writable(const struct rpc_call *call)
{
    return !call->sending && !call->close_wanted && !call->close_sent && !call->ended &&
           !call->cancelled_here;
}

static enum status send_allowed(const struct rpc_call *call, size_t bytes)
{
    if (call->close_wanted || call->close_sent || call->ended || call->cancelled_here)
        return STATUS_CLOSED;
    if (call->sending)
        return STATUS_AGAIN;
    return bytes > INT32_MAX ? STATUS_FULL : STATUS_OK;
}

static grpc_op status_op(struct rpc_call *call, grpc_slice *details)
{
    *details = grpc_slice_from_copied_string(call->message ? call->message : "");
    return (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
                     .data.send_status_from_server = {
                         .trailing_metadata_count = call->trailer_count,
                         .trailing_metadata = call->trailers,
                         .status = call->code,
                         .status_details = details,
                     }};
}

/* Posts `slice` (taken over), with status OK behind it when `last`. */
static void message_post(struct rpc_call *call, grpc_slice slice, bool last)
{
    call->unsent = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    grpc_op ops[3];
    size_t count = 0;
    grpc_slice details = grpc_empty_slice();
    if (call->server && !call->head_sent)
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    ops[count++] =
        (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = call->unsent};
    if (last) {
        call->code = GRPC_STATUS_OK;
        call->close_sent = true;
        ops[count++] = status_op(call, &details);
    }
    call->head_sent = true;
    call->sending = true;
    batch_post(call, ops, count, &call->write_tag);
    grpc_slice_unref(details);
}

enum status rpc_call_send(struct rpc_call *call, const void *data, size_t bytes)
{
    enum status status = send_allowed(call, bytes);
    if (status)
        return status;
    grpc_slice slice = grpc_slice_malloc(bytes);
    if (bytes)
        memcpy(GRPC_SLICE_START_PTR(slice), data, bytes);
    message_post(call, slice, false);
    return STATUS_OK;
}

static enum status text_send(struct rpc_call *call, const ProtobufCMessage *message,
                             uint32_t field_number, const char *text, size_t text_bytes, bool last)
{
    enum status status = send_allowed(call, 0); /* before the work of measuring */
    if (status)
        return status;
    size_t bytes = wire_text_packed_bytes(message, field_number, text_bytes);
    status = send_allowed(call, bytes);
    if (status)
        return status;
    grpc_slice slice = grpc_slice_malloc(bytes);
    wire_text_pack(message, field_number, text, text_bytes, GRPC_SLICE_START_PTR(slice));
    message_post(call, slice, last);
    return STATUS_OK;
}

enum status rpc_call_send_message(struct rpc_call *call, const ProtobufCMessage *message)
{
    return text_send(call, message, 1, NULL, 0, false);
}

enum status rpc_call_send_sealed(struct rpc_call *call, const ProtobufCMessage *message,
                                 struct seal *seal)
{
    enum status status = send_allowed(call, 0);
    if (status)
        return status;
    size_t bytes = protobuf_c_message_get_packed_size(message), whole = bytes + seal_room(seal);
    status = send_allowed(call, whole);
    if (status)
        return status;
    grpc_slice slice = grpc_slice_malloc(whole);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    seal_put(seal, GRPC_SLICE_START_PTR(slice), bytes);
    message_post(call, slice, false);
    return STATUS_OK;
}

enum status rpc_call_send_text(struct rpc_call *call, const ProtobufCMessage *message,
                               uint32_t field_number, const char *text, size_t text_bytes)
{
    return text_send(call, message, field_number, text, text_bytes, false);
}

enum status rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message)
{
    assert(call->server);
    return text_send(call, message, 1, NULL, 0, true);
}

enum status rpc_call_reply_text(struct rpc_call *call, const ProtobufCMessage *message,
                                uint32_t field_number, const char *text, size_t text_bytes)
{
    assert(call->server);
    return text_send(call, message, field_number, text, text_bytes, true);
}

/* --- metadata --- */

/* Copies pairs into slices. What the protocol forbids in a value (control characters, say) becomes '?'; an illegal key is a
 * bug of ours. */
static bool metadata_copy(const struct rpc_metadata *pairs, size_t count, grpc_metadata **out)
{
    grpc_metadata *copies = calloc(count ? count : 1, sizeof *copies);
    if (!copies)
        return false;
    for (size_t i = 0; i < count; i++) {
        copies[i].key = grpc_slice_from_copied_string(pairs[i].key);
        copies[i].value = grpc_slice_from_copied_string(pairs[i].value);
        assert(grpc_header_key_is_legal(copies[i].key));
        if (grpc_is_binary_header(copies[i].key) ||
            grpc_header_nonbin_value_is_legal(copies[i].value))
            continue;
        uint8_t *at = GRPC_SLICE_START_PTR(copies[i].value);
        for (size_t j = 0; j < GRPC_SLICE_LENGTH(copies[i].value); j++)
            if (at[j] < 0x20 || at[j] > 0x7e)
                at[j] = '?';
    }
    *out = copies;
    return true;
}

static const char *metadata_find(const grpc_metadata_array *array, const char *key,
                                 size_t *bytes_out)
{
    for (size_t i = 0; i < array->count; i++)
        if (grpc_slice_str_cmp(array->metadata[i].key, key) == 0) {
            /* inlined slices lie in the array itself, which lives as long as the call */
            *bytes_out = GRPC_SLICE_LENGTH(array->metadata[i].value);
            return (const char *)GRPC_SLICE_START_PTR(array->metadata[i].value);
        }
    return NULL;
}

const char *rpc_call_metadata(const struct rpc_call *call, const char *key, size_t *bytes_out)
{
    const char *found = NULL;
    if (call->channel && call->ended)
        found = metadata_find(&call->tail, key, bytes_out);
    /* until its tag is back, a client's head is core's to fill */
    if (!found && call->head_received)
        found = metadata_find(&call->head, key, bytes_out);
    return found;
}

/* --- ending --- */

static void close_post(struct rpc_call *call)
{
    call->close_sent = true;
    if (call->channel) {
        grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
        batch_post(call, &op, 1, &call->close_tag);
        return;
    }
    grpc_op ops[2];
    size_t count = 0;
    grpc_slice details;
    if (!call->head_sent)
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    ops[count++] = status_op(call, &details);
    call->head_sent = true;
    batch_post(call, ops, count, &call->close_tag);
    grpc_slice_unref(details);
}

void rpc_call_finish(struct rpc_call *call, enum grpc_code code, const char *message,
                     const struct rpc_metadata *trailers, size_t trailer_count)
{
    assert(call->server);
    if (call->close_wanted || call->close_sent || call->ended || call->cancelled_here)
        return;
    call->code = (grpc_status_code)code;
    call->message = text_copy(message);
    if (metadata_copy(trailers, trailer_count, &call->trailers))
        call->trailer_count = trailer_count;
    call->close_wanted = true;
    if (!call->sending)
        close_post(call);
}

void rpc_call_finish_err(struct rpc_call *call, const struct err *err)
{
    rpc_call_finish(call, status_grpc(err->code), err->message, NULL, 0);
}

void rpc_call_half_close(struct rpc_call *call)
{
    assert(call->channel);
    if (call->close_wanted || call->close_sent || call->ended || call->cancelled_here)
        return;
    call->close_wanted = true;
    if (!call->sending)
        close_post(call);
}

static void call_end_now(struct rpc_call *call, enum grpc_code code, const char *message)
{
    if (call->ended || call->cancelled_here)
        return;
    call->cancelled_here = true;
    /* a server's status that was already posted stands, if it still gets through */
    if (!(call->server && call->close_sent)) {
        call->code = (grpc_status_code)code;
        free(call->message);
        call->message = text_copy(message);
    }
    grpc_call_cancel_with_status(call->call, (grpc_status_code)code, message ? message : "", NULL);
}

void rpc_call_cancel(struct rpc_call *call)
{
    call_end_now(call, GRPC_CODE_CANCELLED, "cancelled");
}

void rpc_call_abort(struct rpc_call *call, enum grpc_code code, const char *message)
{
    assert(call->server && code != GRPC_CODE_OK);
    call_end_now(call, code, message);
}

/* --- questions --- */

void rpc_call_set_data(struct rpc_call *call, void *data)
{
    call->data = data;
}

void *rpc_call_data(const struct rpc_call *call)
{
    return call->data;
}

const char *rpc_call_peer(struct rpc_call *call)
{
    if (!call->peer)
        call->peer = grpc_call_get_peer(call->call);
    return call->peer;
}

const char *rpc_call_method(const struct rpc_call *call)
{
    return call->path ? call->path : "";
}

uint64_t rpc_call_deadline_ns(const struct rpc_call *call)
{
    return call->deadline_ns;
}

uint64_t rpc_call_remaining_ns(const struct rpc_call *call)
{
    if (call->deadline_ns == DEADLINE_NONE)
        return DEADLINE_NONE;
    uint64_t now_ns = clock_now_ns();
    return call->deadline_ns > now_ns ? call->deadline_ns - now_ns : 0;
}

/* --- beginning --- */

static struct rpc_call *call_new(struct rpc *rpc, const struct rpc_handler *handler, void *context)
{
    struct rpc_call *call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    call->rpc = rpc;
    call->handler = handler;
    call->context = context;
    call->deadline_ns = DEADLINE_NONE;
    call->details = grpc_empty_slice();
    grpc_metadata_array_init(&call->head);
    grpc_metadata_array_init(&call->tail);
    call->read_tag = (struct rpc_tag){.done = read_done, .context = call};
    call->write_tag = (struct rpc_tag){.done = write_done, .context = call};
    call->close_tag = (struct rpc_tag){.done = close_done, .context = call};
    call->end_tag = (struct rpc_tag){.done = end_done, .context = call};
    list_init(&call->link);
    return call;
}

/* A gRPC deadline on our clock. */
static uint64_t deadline_convert(gpr_timespec deadline)
{
    deadline = gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC);
    if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == 0)
        return DEADLINE_NONE;
    gpr_timespec left = gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC));
    if (left.tv_sec < 0)
        return clock_now_ns();
    if ((uint64_t)left.tv_sec > DEADLINE_NONE / NS_PER_S / 2)
        return DEADLINE_NONE;
    return clock_now_ns() + (uint64_t)left.tv_sec * NS_PER_S + (uint64_t)left.tv_nsec;
}

struct rpc_call *rpc_call_accept(struct rpc_server *server, grpc_call *grpc,
                                 grpc_call_details *request, grpc_metadata_array *head)
{
    struct rpc_call *call = call_new(server->rpc, NULL, NULL);
    if (!call)
        return NULL;
    call->server = server;
    call->call = grpc;
    call->request = *request;
    call->head = *head;
    call->head_received = true;
    grpc_call_details_init(request);
    grpc_metadata_array_init(head);
    call->accepted_ns = clock_now_ns();
    call->deadline_ns = deadline_convert(call->request.deadline);
    slice_text(call->request.method, &call->path);
    list_push_back(&server->calls, &call->link);
    server->call_count++;
    return call;
}

void rpc_call_begin(struct rpc_call *call, const struct rpc_handler *handler, void *context)
{
    call->handler = handler;
    call->context = context;
    call->tapped = tap_wants(call->rpc, call->path);
    grpc_op end = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                   .data.recv_close_on_server.cancelled = &call->cancelled};
    batch_post(call, &end, 1, &call->end_tag);
    if (peer_sends_one(call) || handler->read_always)
        rpc_call_read(call);
    if (handler->on_open)
        handler->on_open(context, call);
}

static void open_done(void *context, bool ok)
{
    struct rpc_call *call = context;
    call->batches--;
    call->head_received = true;
    if (ok && call_live(call) && !call->ended && call->handler->on_open)
        call->handler->on_open(call->context, call);
    call_settle(call);
}

/* A unary call of a client is one batch, so it costs one pass through the completion queue. */
static void unary_done(void *context, bool ok)
{
    (void)ok;
    struct rpc_call *call = context;
    call->batches--;
    call->ended = true;
    call->head_received = true;
    if (call->received && call_live(call) && call->code == GRPC_STATUS_OK) {
        if (call->handler->on_open)
            call->handler->on_open(call->context, call);
        message_deliver(call);
    }
    call_settle(call);
}

static grpc_op status_receive_op(struct rpc_call *call)
{
    return (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                     .data.recv_status_on_client = {
                         .trailing_metadata = &call->tail,
                         .status = &call->code,
                         .status_details = &call->details,
                     }};
}

/* Posts what opens a client's call; `metadata` and `request` are consumed by core before it returns. */
static void client_begin(struct rpc_call *call, const struct rpc_call_options *options,
                         grpc_metadata *metadata)
{
    grpc_op ops[6];
    size_t count = 0;
    ops[count++] = (grpc_op){
        .op = GRPC_OP_SEND_INITIAL_METADATA,
        .flags = options->wait_for_ready ? GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                                               GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET
                                         : 0,
        .data.send_initial_metadata = {.count = options->metadata_count, .metadata = metadata}};
    ops[count++] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA,
                             .data.recv_initial_metadata.recv_initial_metadata = &call->head};
    if (call->handler->kind != RPC_BIDI) {
        size_t bytes = options->request ? protobuf_c_message_get_packed_size(options->request) : 0;
        grpc_slice slice = grpc_slice_malloc(bytes);
        if (options->request)
            protobuf_c_message_pack(options->request, GRPC_SLICE_START_PTR(slice));
        call->unsent = grpc_raw_byte_buffer_create(&slice, 1);
        grpc_slice_unref(slice);
        ops[count++] =
            (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = call->unsent};
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
        call->close_sent = true;
    }
    if (call->handler->kind == RPC_UNARY) {
        ops[count++] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE,
                                 .data.recv_message.recv_message = &call->received};
        ops[count++] = status_receive_op(call);
        call->end_tag.done = unary_done;
        batch_post(call, ops, count, &call->end_tag);
        return;
    }
    grpc_op end = status_receive_op(call);
    batch_post(call, &end, 1, &call->end_tag);
    batch_post(call, ops, count, &call->open_tag);
    if (call->handler->read_always)
        rpc_call_read(call);
}

struct rpc_call *rpc_channel_call(struct rpc_channel *channel, const struct rpc_handler *handler,
                                  void *context, const struct rpc_call_options *options)
{
    if (!channel->channel)
        return NULL;
    struct rpc_call *call = call_new(channel->rpc, handler, context);
    grpc_metadata *metadata = NULL;
    if (!call || !metadata_copy(options->metadata, options->metadata_count, &metadata)) {
        free(call);
        return NULL;
    }
    call->channel = channel;
    call->tapped = tap_wants(channel->rpc, options->path);
    call->open_tag = (struct rpc_tag){.done = open_done, .context = call};
    list_push_back(&channel->calls, &call->link);
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (options->timeout_ns && options->timeout_ns <= INT64_MAX) {
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_nanos((int64_t)options->timeout_ns, GPR_TIMESPAN));
        call->deadline_ns = clock_now_ns() + options->timeout_ns;
    }
    grpc_slice path = grpc_slice_from_copied_string(options->path);
    call->call = grpc_channel_create_call(channel->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                          channel->rpc->queue, path, NULL, deadline, NULL);
    grpc_slice_unref(path);
    client_begin(call, options, metadata);
    call->trailers = metadata; /* slices live until the call's end */
    call->trailer_count = options->metadata_count;
    return call;
}
