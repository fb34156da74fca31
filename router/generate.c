/* See generate.h. */
#include "router/generate.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

/* When a queue is full: long enough for some requests to leave it. */
static const struct rpc_metadata pushback[] = {{"grpc-retry-pushback-ms", "500"}};

struct stream {
    struct list link;
    struct generate *generate;
    struct rpc_call *call;
    struct request *request; /* NULL until admitted */
    uint64_t arrival_ns;
    uint64_t first_sent_ns;
    uint64_t sent_patient_ns; /* when the message in flight was handed over */
    bool begun;               /* the first message was sent */
    bool over;                /* a status was given: nothing more is sent */
    enum status outcome;      /* once over */
};

static uint64_t patient_ns(const struct generate *g)
{
    return loop_now_ns(g->loop) - loop_late_total_ns(g->loop);
}

static void core_now(struct generate *g)
{
    core_time(g->core, loop_now_ns(g->loop), loop_late_total_ns(g->loop));
}

/* --- to the client --- */

static void stream_fail(struct stream *s, enum status outcome, enum grpc_code code,
                        const char *message)
{
    if (s->over)
        return;
    s->over = true;
    s->outcome = outcome;
    s->sent_patient_ns = patient_ns(s->generate);
    bool full = outcome == STATUS_FULL;
    rpc_call_finish(s->call, code, message, full ? pushback : NULL, full ? 1 : 0);
}

static void count_first(struct stream *s, uint64_t now_ns)
{
    s->first_sent_ns = now_ns;
    metric_observe(s->generate->stats->ttft_seconds,
                   (double)(now_ns - s->arrival_ns) / (double)NS_PER_S);
}

/* One message, as soon as the transport is free for one. */
static void pump(struct stream *s)
{
    struct generate *g = s->generate;
    struct answer *answer = &s->request->answer;
    struct answer_piece piece;
    if (s->over || !rpc_call_writable(s->call) || !answer_peek(answer, RESPONSE_TOKENS_MAX, &piece))
        return;
    uint64_t now_ns = clock_now_ns();
    if (!s->first_sent_ns && piece.token_count)
        count_first(s, now_ns);
    struct response_moments moments = {
        .first = !s->begun,
        .first_sent_ns = s->first_sent_ns ? s->first_sent_ns : now_ns,
        .now_ns = now_ns,
    };
    const Baton__V1__GenerateResponse *message =
        response_build(&g->builder, s->request, &piece, &moments);
    enum status status = piece.last
                             ? rpc_call_reply_text(s->call, &message->base, RESPONSE_TEXT_FIELD,
                                                   piece.text, piece.text_bytes)
                             : rpc_call_send_text(s->call, &message->base, RESPONSE_TEXT_FIELD,
                                                  piece.text, piece.text_bytes);
    if (status)
        return; /* the call has ended: on_closed comes */
    s->begun = true;
    s->sent_patient_ns = patient_ns(g);
    if (piece.last) {
        s->over = true;
        s->outcome = STATUS_OK;
    }
    answer_taken(answer, &piece);
    metric_add(g->stats->messages_out, 1);
}

static void request_progress(void *context)
{
    pump(context);
}

static void request_ended(void *context)
{
    struct stream *s = context;
    stream_fail(s, s->request->end_status, s->request->end_code, s->request->end_message);
}

/* --- Generate --- */

static void generate_open(void *context, struct rpc_call *call)
{
    struct generate *g = context;
    struct stream *s = calloc(1, sizeof *s);
    if (!s) {
        rpc_call_abort(call, GRPC_CODE_RESOURCE_EXHAUSTED, "no memory");
        return;
    }
    s->generate = g;
    s->call = call;
    s->arrival_ns = clock_now_ns();
    s->outcome = STATUS_CANCELLED;
    s->sent_patient_ns = patient_ns(g);
    list_push_back(&g->streams, &s->link);
    g->open++;
    rpc_call_set_data(call, s);
}

static enum status admit(struct stream *s, const Baton__V1__GenerateRequest *message,
                         struct err *err)
{
    struct generate *g = s->generate;
    struct request *request = request_create();
    if (!request)
        return err_set(err, STATUS_MEMORY, "no memory for another request");
    request->timing.arrival_ns = s->arrival_ns;
    request->deadline_ns = rpc_call_deadline_ns(s->call);
    request->client = (struct request_client){request_progress, request_ended, s};
    size_t credential_bytes;
    const char *credentials = rpc_call_metadata(s->call, "authorization", &credential_bytes);
    if (credentials)
        core_salt(g->core, request, credentials, credential_bytes);
    enum status status = check_generate(g->checker, message, request, err);
    if (!status)
        status = core_admit(g->core, request, err);
    if (status)
        request_destroy(request);
    else
        s->request = request;
    return status;
}

static void generate_message(void *context, struct rpc_call *call, const uint8_t *data,
                             size_t bytes)
{
    struct generate *g = context;
    struct stream *s = rpc_call_data(call);
    if (!s || s->over || s->request)
        return;
    core_now(g);
    struct err err = ERR_INIT;
    ProtobufCMessage *message = NULL;
    enum status status =
        wire_unpack(&baton__v1__generate_request__descriptor, data, bytes, &message, &err);
    if (!status)
        status = admit(s, (Baton__V1__GenerateRequest *)message, &err);
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
    if (status)
        stream_fail(s, status, status_grpc(status), err.message);
    else
        pump(s); /* a resumed answer may have ended before it began */
}

static void generate_writable(void *context, struct rpc_call *call)
{
    (void)context;
    struct stream *s = rpc_call_data(call);
    if (s && s->request)
        pump(s);
}

static void count_end(const struct stream *s, enum status outcome)
{
    const struct router_stats *stats = s->generate->stats;
    metric_add(stats->outcomes[outcome], 1);
    const struct request *r = s->request;
    if (!r)
        return;
    metric_add(stats->tokens_prompt, r->prompt.count);
    metric_add(stats->tokens_cached, r->timing.cached_tokens);
    metric_add(stats->tokens_completion, r->answer.delivered_tokens - r->resumed);
}

static void generate_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    struct generate *g = context;
    struct stream *s = rpc_call_data(call);
    if (!s)
        return;
    core_now(g);
    enum status outcome = s->outcome;
    if (end->cancelled && (outcome == STATUS_OK || outcome == STATUS_CANCELLED))
        outcome = rpc_call_remaining_ns(call) == 0 ? STATUS_DEADLINE : STATUS_CANCELLED;
    count_end(s, outcome);
    if (s->request) {
        core_cancel(g->core, s->request, outcome == STATUS_OK ? STATUS_CANCELLED : outcome);
        core_release(g->core, s->request);
    }
    list_remove(&s->link);
    free(s);
    g->open--;
}

void generate_tick(struct generate *g)
{
    core_now(g);
    list_for_each_safe(it, tmp, &g->streams)
    {
        struct stream *s = container_of(it, struct stream, link);
        /* a message that is not taken, a status that is not, or a request that never comes */
        bool waits = s->over || !s->request || (s->begun && !rpc_call_writable(s->call));
        if (!waits || patient_ns(g) - s->sent_patient_ns <= g->client_stall_ns)
            continue;
        s->over = true;
        s->outcome = STATUS_SLOW_CLIENT;
        s->sent_patient_ns = patient_ns(g);
        if (s->request)
            core_cancel(g->core, s->request, STATUS_SLOW_CLIENT);
        rpc_call_abort(s->call, GRPC_CODE_CANCELLED, status_text(STATUS_SLOW_CLIENT));
    }
}

static const struct rpc_handler generate_handler = {
    .kind = RPC_SERVER_STREAM,
    .on_open = generate_open,
    .on_message = generate_message,
    .on_writable = generate_writable,
    .on_closed = generate_closed,
};

/* --- Tokenize, Detokenize, ListModels --- */

static void tokenize_message(void *context, struct rpc_call *call, const uint8_t *data,
                             size_t bytes)
{
    struct generate *g = context;
    struct checker *checker = g->checker;
    struct err err = ERR_INIT;
    ProtobufCMessage *unpacked = NULL;
    struct token_list ids = TOKEN_LIST_INIT;
    enum status status =
        wire_unpack(&baton__v1__tokenize_request__descriptor, data, bytes, &unpacked, &err);
    const Baton__V1__TokenizeRequest *m = (Baton__V1__TokenizeRequest *)unpacked;
    if (!status)
        status = check_model_name(checker, m->model, &err);
    if (!status && m->chat && *m->text)
        status = err_set(&err, STATUS_INVALID, "text: not together with chat");
    else if (!status && m->chat)
        status = check_chat(checker, m->chat, "chat", &ids, &err);
    else if (!status)
        status =
            tokenizer_encode(checker->model->tokenizer, checker->scratch, m->text, strlen(m->text),
                             (struct tokenizer_options){.parse_special = m->parse_special,
                                                        .add_special = m->add_special},
                             &ids, &err);
    if (status) {
        rpc_call_finish_err(call, &err);
    } else {
        Baton__V1__TokenizeResponse response = BATON__V1__TOKENIZE_RESPONSE__INIT;
        response.ids = ids.ids;
        response.n_ids = ids.count;
        rpc_call_reply(call, &response.base);
    }
    token_list_finish(&ids);
    if (unpacked)
        protobuf_c_message_free_unpacked(unpacked, NULL);
}

static void detokenize_message(void *context, struct rpc_call *call, const uint8_t *data,
                               size_t bytes)
{
    struct generate *g = context;
    struct err err = ERR_INIT;
    ProtobufCMessage *unpacked = NULL;
    struct buf text = BUF_INIT;
    enum status status =
        wire_unpack(&baton__v1__detokenize_request__descriptor, data, bytes, &unpacked, &err);
    const Baton__V1__DetokenizeRequest *m = (Baton__V1__DetokenizeRequest *)unpacked;
    if (!status)
        status = check_model_name(g->checker, m->model, &err);
    if (!status)
        status = check_ids(g->checker, "ids", m->ids, m->n_ids, &err);
    if (!status) {
        detok_text(g->checker->model->tokenizer, m->ids, m->n_ids, &text);
        if (text.failed)
            status = err_set(&err, STATUS_MEMORY, "no memory");
    }
    if (status) {
        rpc_call_finish_err(call, &err);
    } else {
        Baton__V1__DetokenizeResponse response = BATON__V1__DETOKENIZE_RESPONSE__INIT;
        rpc_call_reply_text(call, &response.base, 1, text.bytes ? (const char *)text.data : "",
                            text.bytes);
    }
    buf_finish(&text);
    if (unpacked)
        protobuf_c_message_free_unpacked(unpacked, NULL);
}

static void list_models_message(void *context, struct rpc_call *call, const uint8_t *data,
                                size_t bytes)
{
    (void)data;
    (void)bytes;
    struct generate *g = context;
    const struct registry *registry = &g->core->registry;
    const struct model_config *config = &g->checker->model->config;
    Baton__V1__ModelInfo model = BATON__V1__MODEL_INFO__INIT, *models[] = {&model};
    model.name = (char *)config->name;
    model.architecture = (char *)config->architecture;
    model.context_tokens = registry_context_tokens(registry);
    model.vocab_size = config->vocab;
    model.arithmetic = (char *)registry->identity.arithmetic; /* "" before the first node */
    model.kv_type = (char *)registry->identity.kv_type;
    Baton__V1__ListModelsResponse response = BATON__V1__LIST_MODELS_RESPONSE__INIT;
    response.models = models;
    response.n_models = 1;
    rpc_call_reply(call, &response.base);
}

static const struct rpc_handler tokenize_handler = {.kind = RPC_UNARY,
                                                    .on_message = tokenize_message};
static const struct rpc_handler detokenize_handler = {.kind = RPC_UNARY,
                                                      .on_message = detokenize_message};
static const struct rpc_handler list_models_handler = {.kind = RPC_UNARY,
                                                       .on_message = list_models_message};

enum status generate_init(struct generate *g, struct rpc_server *server, struct err *err)
{
    list_init(&g->streams);
    const struct {
        const char *path;
        const struct rpc_handler *handler;
    } methods[] = {{"/baton.v1.Generation/Generate", &generate_handler},
                   {"/baton.v1.Generation/Tokenize", &tokenize_handler},
                   {"/baton.v1.Generation/Detokenize", &detokenize_handler},
                   {"/baton.v1.Generation/ListModels", &list_models_handler}};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        enum status status = rpc_server_add(server, methods[i].path, methods[i].handler, g, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}
