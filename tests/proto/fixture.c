/* See fixture.h. */
#include "tests/proto/fixture.h"

/* Nothing is measured by it: it ends a test that would hang. */
static const uint64_t PATIENCE_NS = 100 * NS_PER_S;

static void state_seen(void *context, enum rpc_channel_state state)
{
    struct fixture *f = context;
    f->told[state]++;
}

void fixture_init(struct fixture *f, const struct rpc_server_options *options)
{
    struct err err = ERR_INIT;
    struct rpc_server_options defaults = {.address = "127.0.0.1:0"};
    struct rpc_channel_options channel = {
        .on_state = state_seen, .context = f, .connect_timeout_ms = 10000};
    *f = (struct fixture){0};
    bool ok = !loop_create(&f->loop, &err) && !rpc_create(f->loop, &f->rpc, &err) &&
              !rpc_server_create(f->rpc, options ? options : &defaults, &f->server, &err) &&
              !echo_add(&f->echo, f->server, &err) &&
              !rpc_health_create(f->server, &f->health, &err) &&
              !rpc_reflection_create(f->server, &f->reflection, &err) &&
              !rpc_server_start(f->server, &err);
    CHECK_MSG(ok, "%s", err.message);
    snprintf(f->target, sizeof f->target, "127.0.0.1:%d", rpc_server_port(f->server));
    CHECK(!rpc_channel_create(f->rpc, f->target, &channel, &f->channel, &err));
}

void fixture_finish(struct fixture *f)
{
    rpc_channel_destroy(f->channel);
    rpc_server_destroy(f->server, NULL, NULL);
    rpc_destroy(f->rpc);
    rpc_health_destroy(f->health);
    rpc_reflection_destroy(f->reflection);
    loop_destroy(f->loop);
    CHECK_INT(f->echo.closed, f->echo.opened);
}

void fixture_wait(struct fixture *f, const size_t *flag)
{
    fixture_wait_for(f, flag, 1);
}

void fixture_wait_for(struct fixture *f, const size_t *counter, size_t least)
{
    uint64_t give_up_ns = clock_now_ns() + PATIENCE_NS;
    while (*counter < least) {
        loop_round(f->loop, 10 * NS_PER_MS);
        CHECK_MSG(
            clock_now_ns() < give_up_ns,
            "waited %.0f s in vain for the count of %zu, which stands at %zu; server: %zu calls "
            "opened, %zu closed",
            (double)PATIENCE_NS / 1e9, least, *counter, f->echo.opened, f->echo.closed);
    }
}

void fixture_wait_idle(struct fixture *f)
{
    uint64_t give_up_ns = clock_now_ns() + PATIENCE_NS;
    while (rpc_server_calls(f->server) || f->echo.closed < f->echo.opened) {
        loop_round(f->loop, 10 * NS_PER_MS);
        CHECK_MSG(clock_now_ns() < give_up_ns,
                  "the server has %zu calls still, of %zu opened %zu closed",
                  rpc_server_calls(f->server), f->echo.opened, f->echo.closed);
    }
}

void fixture_turn(struct fixture *f, uint64_t duration_ns)
{
    uint64_t end_ns = clock_now_ns() + duration_ns;
    for (uint64_t rounds = 0; clock_now_ns() < end_ns || rounds < duration_ns / NS_PER_MS; rounds++)
        loop_round(f->loop, NS_PER_MS);
}

/* --- what a client sees --- */

static void seen_open(void *context, struct rpc_call *call)
{
    (void)call;
    ((struct seen *)context)->opened++;
}

static void seen_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    (void)call;
    struct seen *seen = context;
    seen->messages++;
    seen->wrong |= seen->closed > 0;
    seen->bytes = bytes;
    memcpy(seen->data, data, bytes < sizeof seen->data ? bytes : sizeof seen->data);
}

static void seen_response(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct seen *seen = context;
    seen_message(context, call, data, bytes);
    Baton__V1__GenerateResponse *response = baton__v1__generate_response__unpack(NULL, bytes, data);
    seen->wrong |= !response || response->position != seen->expected_position++;
    if (response)
        baton__v1__generate_response__free_unpacked(response, NULL);
}

static void seen_half_close(void *context, struct rpc_call *call)
{
    (void)call;
    ((struct seen *)context)->half_closed++;
}

static void seen_writable(void *context, struct rpc_call *call)
{
    (void)call;
    ((struct seen *)context)->writable++;
}

static void seen_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    struct seen *seen = context;
    seen->wrong |= seen->closed > 0;
    seen->closed++;
    seen->code = end->code;
    seen->cancelled = end->cancelled;
    snprintf(seen->message, sizeof seen->message, "%s", end->message);
    size_t bytes = 0;
    const char *trailer = rpc_call_metadata(call, "grpc-retry-pushback-ms", &bytes);
    if (trailer && bytes < sizeof seen->trailer)
        memcpy(seen->trailer, trailer, bytes);
    seen->call = NULL;
}

const struct rpc_handler unary_seen = {
    .kind = RPC_UNARY, .on_open = seen_open, .on_message = seen_message, .on_closed = seen_closed};
const struct rpc_handler stream_seen = {.kind = RPC_SERVER_STREAM,
                                        .read_always = true,
                                        .on_open = seen_open,
                                        .on_message = seen_response,
                                        .on_half_close = seen_half_close,
                                        .on_closed = seen_closed};
const struct rpc_handler stream_seen_unread = {.kind = RPC_SERVER_STREAM,
                                               .on_open = seen_open,
                                               .on_message = seen_response,
                                               .on_half_close = seen_half_close,
                                               .on_closed = seen_closed};
const struct rpc_handler bidi_seen = {.kind = RPC_BIDI,
                                      .read_always = true,
                                      .on_open = seen_open,
                                      .on_message = seen_message,
                                      .on_half_close = seen_half_close,
                                      .on_writable = seen_writable,
                                      .on_closed = seen_closed};

void fixture_tokenize(struct fixture *f, struct seen *seen, const char *text, uint64_t timeout_ns)
{
    Baton__V1__TokenizeRequest request = BATON__V1__TOKENIZE_REQUEST__INIT;
    request.text = (char *)text;
    struct rpc_metadata metadata = {"x-test", "some value"};
    struct rpc_call_options options = {.path = "/baton.v1.Generation/Tokenize",
                                       .timeout_ns = timeout_ns,
                                       .metadata = &metadata,
                                       .metadata_count = 1,
                                       .request = &request.base};
    *seen = (struct seen){0};
    seen->call = rpc_channel_call(f->channel, &unary_seen, seen, &options);
    CHECK(seen->call);
    fixture_wait(f, &seen->closed);
}

void fixture_generate(struct fixture *f, struct seen *seen, const struct rpc_handler *handler,
                      const char *text, uint32_t count, uint64_t timeout_ns)
{
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    Baton__V1__SamplingParams sampling = BATON__V1__SAMPLING_PARAMS__INIT;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = (char *)text;
    if (count) {
        request.sampling = &sampling;
        sampling._max_tokens_case = BATON__V1__SAMPLING_PARAMS___MAX_TOKENS_MAX_TOKENS;
        sampling.max_tokens = count;
    }
    struct rpc_call_options options = {.path = "/baton.v1.Generation/Generate",
                                       .timeout_ns = timeout_ns,
                                       .request = &request.base};
    *seen = (struct seen){0};
    seen->call = rpc_channel_call(f->channel, handler, seen, &options);
    CHECK(seen->call);
}
