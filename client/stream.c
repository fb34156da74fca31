/* See stream.h. */
#include "client/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire.h"

enum { TEXT_FIELD = 3 }; /* GenerateResponse.text */

#define RESUME_WAIT_FIRST_NS (100 * NS_PER_MS)
#define RESUME_WAIT_MAX_NS NS_PER_S

struct stream {
    struct client *client;
    const struct stream_options *options;
    struct answer *answer;
    struct rpc_call *call; /* NULL: none is open */
    bool closed;
    bool progressed; /* the present call delivered something */
    enum grpc_code code;
    char message[512];
    struct err broken; /* the server broke the protocol: code != OK */
    bool gave_up;      /* after trying for as long as `patience.resume_ns` says */
};

void answer_finish(struct answer *answer)
{
    free(answer->ids);
    buf_finish(&answer->text);
    *answer = (struct answer){0};
}

static bool keep_ids(struct answer *answer, const uint32_t *ids, size_t count)
{
    if (answer->id_capacity - answer->id_count < count) {
        size_t capacity = (answer->id_count + count) * 2 + 64;
        uint32_t *grown = realloc(answer->ids, capacity * sizeof *grown);
        if (!grown)
            return false;
        answer->ids = grown;
        answer->id_capacity = capacity;
    }
    memcpy(answer->ids + answer->id_count, ids, count * sizeof *ids);
    answer->id_count += count;
    return true;
}

static void keep_last(struct answer *answer, const Baton__V1__GenerateResponse *message)
{
    if (message->usage) {
        answer->has_usage = true;
        answer->prompt_tokens = message->usage->prompt_tokens;
        answer->completion_tokens = message->usage->completion_tokens;
        answer->cached_tokens = message->usage->cached_tokens;
    }
    const Baton__V1__Timings *timings = message->timings;
    if (timings) {
        answer->has_timings = true;
        answer->queue_us = timings->queue_us;
        answer->placement_us = timings->placement_us;
        answer->prefill_us = timings->prefill_us;
        answer->send_us = timings->send_us;
        answer->ttft_us = timings->ttft_us;
        answer->handoff_us = timings->handoff_us;
        answer->first_decode_us = timings->first_decode_us;
        answer->total_us = timings->total_us;
        answer->kv_bytes_moved = timings->kv_bytes_moved;
        answer->replays = timings->replays;
        snprintf(answer->prefill_node, sizeof answer->prefill_node, "%s", timings->prefill_node);
        snprintf(answer->decode_node, sizeof answer->decode_node, "%s", timings->decode_node);
    }
}

/* One message of the stream: positions must follow each other without a gap, over all resumes. */
static enum status take(struct stream *stream, const uint8_t *data, size_t bytes)
{
    struct answer *answer = stream->answer;
    Baton__V1__GenerateResponse *message = baton__v1__generate_response__unpack(NULL, bytes, data);
    if (!message)
        return err_set(&stream->broken, STATUS_PROTOCOL, "a response that is no GenerateResponse");
    /* protobuf-c ends a string at a NUL; a model may write one */
    const uint8_t *text = NULL;
    size_t text_bytes = 0;
    wire_find(data, bytes, TEXT_FIELD, &text, &text_bytes);
    enum status status = STATUS_OK;
    if (answer->finished)
        status = err_set(&stream->broken, STATUS_PROTOCOL, "a message after the last one");
    else if (message->n_token_ids && message->position != answer->id_count)
        status = err_set(&stream->broken, STATUS_PROTOCOL, "position %u where %zu was expected",
                         message->position, answer->id_count);
    else if (!keep_ids(answer, message->token_ids, message->n_token_ids))
        status = err_set(&stream->broken, STATUS_MEMORY, "out of memory");
    if (status == STATUS_OK) {
        stream->progressed = true;
        buf_append(&answer->text, text, text_bytes);
        if (message->_seed_case == BATON__V1__GENERATE_RESPONSE___SEED_SEED) {
            answer->seed = message->seed;
            answer->seed_known = true;
        }
        if (message->n_token_ids) {
            answer->last_token_ns = clock_now_ns();
            if (!answer->first_token_ns)
                answer->first_token_ns = answer->last_token_ns;
        }
        if (message->finish_reason) {
            answer->finished = true;
            answer->finish_reason = message->finish_reason;
            keep_last(answer, message);
        }
        if (stream->options->message)
            stream->options->message(stream->options->context, message,
                                     text ? (const char *)text : "", text_bytes);
    }
    baton__v1__generate_response__free_unpacked(message, NULL);
    return status;
}

static void on_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct stream *stream = context;
    if (stream->broken.code == STATUS_OK && take(stream, data, bytes) != STATUS_OK)
        rpc_call_cancel(call);
}

static void on_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    struct stream *stream = context;
    stream->closed = true;
    stream->call = NULL;
    stream->code = end->code;
    snprintf(stream->message, sizeof stream->message, "%s", end->message);
}

static void on_interrupt(void *context)
{
    struct stream *stream = context;
    if (stream->call)
        rpc_call_cancel(stream->call);
}

/* One call, from its request to its end. */
static enum exit_code attempt(struct stream *stream, uint64_t deadline_ns)
{
    static const struct rpc_handler handler = {
        .kind = RPC_SERVER_STREAM,
        .read_always = true,
        .on_message = on_message,
        .on_closed = on_closed,
    };
    struct client *client = stream->client;
    struct answer *answer = stream->answer;
    Baton__V1__GenerateRequest request = *stream->options->request;
    Baton__V1__TokenIds received = BATON__V1__TOKEN_IDS__INIT;
    Baton__V1__Resume resume = BATON__V1__RESUME__INIT;
    if (answer->id_count) {
        received.n_ids = answer->id_count;
        received.ids = answer->ids;
        resume.received = &received;
        resume.text_bytes = answer->text.bytes;
        resume.seed = answer->seed;
        request.resume = &resume;
    }
    uint64_t now_ns = clock_now_ns();
    struct rpc_call_options options = {
        .path = "/baton.v1.Generation/Generate",
        .timeout_ns = deadline_ns == DEADLINE_NONE ? DEADLINE_NONE
                      : deadline_ns > now_ns       ? deadline_ns - now_ns
                                                   : 1,
        .request = &request.base,
    };
    stream->closed = stream->progressed = false;
    stream->call = rpc_channel_call(client->channel, &handler, stream, &options);
    if (!stream->call) {
        client_complain(client->command, "out of memory");
        return EXIT_CODE_FAILED;
    }
    if (client->interrupted)
        rpc_call_cancel(stream->call);
    while (!stream->closed)
        loop_round(client->loop, NS_PER_S);
    return EXIT_CODE_DONE;
}

/* Sleeps in the loop, so that the channel's state and signals are seen. */
static void wait_in_loop(struct client *client, uint64_t until_ns)
{
    for (;;) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= until_ns || client->interrupted)
            return;
        loop_round(client->loop, until_ns - now_ns);
    }
}

static enum exit_code judge(struct stream *stream)
{
    struct client *client = stream->client;
    const struct answer *answer = stream->answer;
    if (client->interrupted)
        return EXIT_CODE_INTERRUPTED;
    if (stream->broken.code != STATUS_OK) {
        client_complain(client->command, "%s: the server broke the protocol: %s", client->server,
                        stream->broken.message);
        return EXIT_CODE_HALF_WAY;
    }
    if (stream->code != GRPC_CODE_OK) {
        if (!client_reached(client)) {
            client_complain_unreached(client, stream->message);
            return EXIT_CODE_NO_SERVER;
        }
        char tried[64] = "";
        if (stream->gave_up && stream->options->patience.resume_ns)
            snprintf(tried, sizeof tried, "; tried again for %g s",
                     (double)stream->options->patience.resume_ns / (double)NS_PER_S);
        client_complain(client->command, "%s: %s: %s%s%s", client->server,
                        client_grpc_code_name(stream->code), stream->message, tried,
                        answer->id_count ? " (after a part of the answer)" : "");
        bool vanished = stream->code == GRPC_CODE_UNAVAILABLE &&
                        rpc_channel_state(client->channel) != RPC_CHANNEL_READY;
        return answer->id_count || vanished ? EXIT_CODE_HALF_WAY : EXIT_CODE_REFUSED;
    }
    if (!answer->finished) {
        client_complain(client->command, "%s: the stream ended without a last message",
                        client->server);
        return EXIT_CODE_HALF_WAY;
    }
    if (answer->text.failed) {
        client_complain(client->command, "out of memory");
        return EXIT_CODE_FAILED;
    }
    if (answer->finish_reason == BATON__V1__GENERATE_RESPONSE__FINISH_REASON__STOP ||
        answer->finish_reason == BATON__V1__GENERATE_RESPONSE__FINISH_REASON__LENGTH)
        return EXIT_CODE_DONE;
    client_complain(client->command, "%s: the answer was cut short by the server", client->server);
    return EXIT_CODE_HALF_WAY;
}

enum exit_code stream_run(struct client *client, const struct stream_options *options,
                          struct answer *answer_out)
{
    *answer_out = (struct answer){0};
    struct stream stream = {.client = client, .options = options, .answer = answer_out};
    uint64_t now_ns = clock_now_ns();
    uint64_t deadline_ns =
        options->patience.deadline_ns ? now_ns + options->patience.deadline_ns : DEADLINE_NONE;
    uint64_t wait_ns = RESUME_WAIT_FIRST_NS, give_up_ns = 0;
    enum exit_code code;
    client->on_interrupt = on_interrupt;
    client->interrupt_context = &stream;
    for (;;) {
        unsigned losses = client->losses;
        /* before it: a call that found nobody may end in the very round in which the connection is there at last */
        bool ready = client->state == RPC_CHANNEL_READY;
        code = attempt(&stream, deadline_ns);
        bool connected = ready && client->state == RPC_CHANNEL_READY;
        if (code != EXIT_CODE_DONE)
            break;
        /* UNKNOWN is no status of ours: gRPC core's name for a stream that vanished */
        bool broke = stream.code == GRPC_CODE_UNAVAILABLE || stream.code == GRPC_CODE_UNKNOWN;
        if (!broke || client->interrupted || !client_reached(client) || answer_out->finished ||
            stream.broken.code != STATUS_OK) {
            code = judge(&stream);
            break;
        }
        now_ns = clock_now_ns();
        if (stream.progressed || !give_up_ns) {
            /* each break has its own window, so that a long answer may survive many */
            wait_ns = RESUME_WAIT_FIRST_NS;
            give_up_ns = now_ns + options->patience.resume_ns;
        }
        if (now_ns + wait_ns >= give_up_ns || now_ns + wait_ns >= deadline_ns) {
            stream.gave_up = now_ns + wait_ns >= give_up_ns;
            code = judge(&stream);
            break;
        }
        wait_in_loop(client, now_ns + wait_ns);
        /* connected all the time, and nothing delivered: that was the server's own answer */
        if (!answer_out->id_count && connected && client->state == RPC_CHANNEL_READY &&
            (losses == client->losses)) {
            code = judge(&stream);
            break;
        }
        if (client->interrupted) {
            code = EXIT_CODE_INTERRUPTED;
            break;
        }
        if (answer_out->id_count && !answer_out->seed_known) {
            client_complain(client->command, "%s: %s: %s (cannot resume: no seed came)",
                            client->server, client_grpc_code_name(stream.code), stream.message);
            code = EXIT_CODE_HALF_WAY;
            break;
        }
        answer_out->resumes += answer_out->id_count != 0;
        wait_ns = wait_ns * 2 < RESUME_WAIT_MAX_NS ? wait_ns * 2 : RESUME_WAIT_MAX_NS;
        rpc_channel_connect(client->channel);
    }
    client->on_interrupt = NULL;
    return code;
}
