/* See fixture.h. */
#include "tests/node/fixture.h"

#include <assert.h>

#include "base/random.h"
#include "proto/wire.h"

/* Nothing is measured by it: it ends a test that would hang. */
static const uint64_t patience_ns = 200 * NS_PER_S;

/* --- the router --- */

static int stream_of(struct fixture *fixture, struct rpc_call *call)
{
    for (int i = 0; i < fixture->node_count; i++)
        if (fixture->streams[i].call == call)
            return i;
    return -1;
}

static void queue_drain(struct fixture_stream *stream)
{
    while (stream->call && stream->queue.bytes && rpc_call_writable(stream->call)) {
        uint32_t bytes;
        memcpy(&bytes, stream->queue.data, sizeof bytes);
        uint8_t *message = stream->queue.data + sizeof bytes;
        enum fixture_spoil spoil = stream->spoil;
        seal_put(&stream->out, message, bytes);
        stream->spoil = SPOIL_NOTHING;
        if (spoil == SPOIL_FLIP)
            message[bytes / 2] ^= 4;
        if (spoil != SPOIL_DROP &&
            rpc_call_send(stream->call, message, bytes + seal_room(&stream->out)))
            return;
        if (spoil == SPOIL_TWICE)
            stream->out.number--; /* what comes now has the same number */
        buf_consume(&stream->queue, sizeof bytes + bytes + SEAL_BYTES);
    }
}

void fixture_send(struct fixture *fixture, int node, const Baton__Node__V1__RouterMessage *message)
{
    struct fixture_stream *stream = &fixture->streams[node];
    uint32_t bytes = (uint32_t)baton__node__v1__router_message__get_packed_size(message);
    buf_append(&stream->queue, &bytes, sizeof bytes);
    CHECK(buf_reserve(&stream->queue, bytes + SEAL_BYTES));
    baton__node__v1__router_message__pack(message, stream->queue.data + stream->queue.bytes);
    stream->queue.bytes += bytes + SEAL_BYTES;
    queue_drain(stream);
}

static void peers_send(struct fixture *fixture)
{
    Baton__Node__V1__Peer peers[FIXTURE_NODES], *pointers[FIXTURE_NODES];
    for (int to = 0; to < fixture->node_count; to++) {
        if (!fixture->streams[to].incarnation)
            continue;
        Baton__Node__V1__Peers list = BATON__NODE__V1__PEERS__INIT;
        for (int i = 0; i < fixture->node_count; i++) {
            struct fixture_stream *of = &fixture->streams[i];
            if (i == to || !of->incarnation)
                continue;
            baton__node__v1__peer__init(&peers[list.n_peers]);
            peers[list.n_peers].name = of->name;
            peers[list.n_peers].incarnation = of->incarnation;
            peers[list.n_peers].kv_address.data = of->address;
            peers[list.n_peers].kv_address.len = of->address_bytes;
            peers[list.n_peers].kv_host = of->kv_host;
            peers[list.n_peers].wire = wire_common(fixture->streams[to].wires, of->wires);
            pointers[list.n_peers] = &peers[list.n_peers];
            list.n_peers++;
        }
        list.peers = pointers;
        Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
        message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS;
        message.peers = &list;
        fixture_send(fixture, to, &message);
    }
}

static void register_take(struct fixture *fixture, struct rpc_call *call,
                          const Baton__Node__V1__Register *r, const uint8_t *data, size_t bytes)
{
    int index = -1;
    for (int i = 0; i < fixture->node_count; i++)
        if (strcmp(fixture->nodes[i]->name, r->name) == 0)
            index = i;
    CHECK(index >= 0);
    CHECK(r->identity && r->identity->model_hash.len == 16 && r->identity->page_tokens > 0);
    struct fixture_stream *stream = &fixture->streams[index];
    stream->call = call;
    buf_clear(&stream->queue);
    stream->incarnation = r->incarnation;
    stream->number = stream->heartbeats = stream->links_up = 0;
    stream->registrations++;
    snprintf(stream->name, sizeof stream->name, "%s", r->name);
    snprintf(stream->kv_host, sizeof stream->kv_host, "%s", r->kv_host);
    memcpy(stream->address, r->kv_address.data, r->kv_address.len);
    stream->address_bytes = r->kv_address.len;
    stream->wires = (struct wire_range){r->wire_min, r->wire_max};
    stream->in = stream->out = (struct seal){.on = r->wire_max >= WIRE_SEALED};
    CHECK_INT(seal_take(&stream->in, data, bytes), SEAL_FITS);
    Baton__Node__V1__Welcome welcome = BATON__NODE__V1__WELCOME__INIT;
    Baton__Node__V1__Refused refused = BATON__NODE__V1__REFUSED__INIT;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    welcome.router_incarnation = fixture->router_incarnation;
    welcome.wire = fixture->welcome_wire ? fixture->welcome_wire : r->wire_max;
    static const uint8_t no_key[PREFIX_KEY_BYTES];
    if (memcmp(fixture->cache_key, no_key, sizeof no_key) != 0) {
        welcome.cache_key.data = fixture->cache_key;
        welcome.cache_key.len = sizeof fixture->cache_key;
    }
    stream->cached_resets = 0;
    welcome.heartbeat_ms = 50;
    welcome.stop_after_ms = fixture->stop_after_ms;
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME;
    message.welcome = &welcome;
    if (stream->refuse) {
        refused.field = "page_tokens";
        refused.message = "16, but the cluster has 32";
        message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_REFUSED;
        message.refused = &refused;
    }
    fixture_send(fixture, index, &message);
    if (!stream->refuse)
        peers_send(fixture);
}

static struct heard *heard_of(struct fixture *fixture, int node,
                              const Baton__Node__V1__AttemptId *id)
{
    CHECK(id && id->low < FIXTURE_ATTEMPTS);
    return &fixture->heard[node][id->low];
}

static void run_take(struct heard *heard, const Baton__Node__V1__TokenRun *run)
{
    if (!heard->count)
        heard->begin = run->position;
    for (size_t i = 0; i < run->n_tokens; i++) {
        uint32_t at = run->position + (uint32_t)i - heard->begin;
        if (at != heard->count || at >= FIXTURE_TOKENS || heard->finish) {
            heard->gap = true;
            return;
        }
        heard->tokens[at] = run->tokens[i]->id;
        heard->logprobs[at] = run->tokens[i]->logprob;
        heard->count++;
    }
    heard->finish = (int)run->finish;
    if (run->prefill_us)
        heard->prefill_us = run->prefill_us;
    if (run->kv_bytes_moved)
        heard->moved_bytes = run->kv_bytes_moved;
    if (run->cached_tokens)
        heard->cached_tokens = run->cached_tokens;
}

/* Forgets what is gone, then adds what came. */
static void cached_take(struct fixture_stream *stream, const Baton__Node__V1__Cached *cached)
{
    if (cached->reset) {
        stream->cached_count = 0;
        stream->cached_resets++;
    }
    CHECK(stream->cached_resets > 0);
    for (size_t i = 0; i < cached->n_removed; i++) {
        uint32_t at = 0;
        while (at < stream->cached_count && stream->cached[at] != cached->removed[i])
            at++;
        CHECK_MSG(at < stream->cached_count, "a page is gone that never came");
        stream->cached[at] = stream->cached[--stream->cached_count];
    }
    for (size_t i = 0; i < cached->n_added; i++) {
        CHECK(stream->cached_count < FIXTURE_CACHED);
        stream->cached[stream->cached_count++] = cached->added[i];
    }
}

static void message_take(struct fixture *fixture, int node,
                         const Baton__Node__V1__NodeMessage *message)
{
    struct fixture_stream *stream = &fixture->streams[node];
    struct heard *heard;
    switch (message->kind_case) {
    case BATON__NODE__V1__NODE_MESSAGE__KIND_HEARTBEAT: {
        stream->heartbeats++;
        stream->last_heartbeat = message->heartbeat->number;
        stream->alive = (uint32_t)message->heartbeat->n_alive;
        stream->load = *message->heartbeat->load;
        if (stream->mute)
            break;
        Baton__Node__V1__HeartbeatAck ack = BATON__NODE__V1__HEARTBEAT_ACK__INIT;
        Baton__Node__V1__RouterMessage answer = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
        ack.number = message->heartbeat->number;
        answer.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_HEARTBEAT_ACK;
        answer.heartbeat_ack = &ack;
        fixture_send(fixture, node, &answer);
        break;
    }
    case BATON__NODE__V1__NODE_MESSAGE__KIND_ACCEPTED:
        heard = heard_of(fixture, node, message->accepted->attempt);
        heard->accepted++;
        heard->verdict = (uint32_t)message->accepted->verdict;
        snprintf(heard->message, sizeof heard->message, "%s", message->accepted->message);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS:
        for (size_t i = 0; i < message->tokens->n_runs; i++)
            run_take(heard_of(fixture, node, message->tokens->runs[i]->attempt),
                     message->tokens->runs[i]);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_REPORT:
        heard = heard_of(fixture, node, message->report->attempt);
        heard->reports[message->report->kind]++;
        if (message->report->kind == BATON__NODE__V1__REPORT__KIND__FAILED)
            heard->status = message->report->status;
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_LINK:
        stream->links_up += message->link->up ? 1 : 0;
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_CACHED:
        cached_take(stream, message->cached);
        break;
    case BATON__NODE__V1__NODE_MESSAGE__KIND_LEAVING:
        stream->leaving++;
        break;
    default:
        TEST_FAIL("a message of kind %d from a registered node", (int)message->kind_case);
    }
}

static void on_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct fixture *fixture = context;
    ProtobufCMessage *unpacked = NULL;
    struct err err = ERR_INIT;
    CHECK_MSG(
        !wire_unpack(&baton__node__v1__node_message__descriptor, data, bytes, &unpacked, &err),
        "%s", err.message);
    const Baton__Node__V1__NodeMessage *message = (Baton__Node__V1__NodeMessage *)unpacked;
    if (message->kind_case == BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_)
        register_take(fixture, call, message->register_, data, bytes);
    else if (stream_of(fixture, call) >= 0) { /* else: of a stream that was replaced */
        CHECK_INT(seal_take(&fixture->streams[stream_of(fixture, call)].in, data, bytes),
                  SEAL_FITS);
        message_take(fixture, stream_of(fixture, call), message);
    }
    protobuf_c_message_free_unpacked(unpacked, NULL);
}

static void on_writable(void *context, struct rpc_call *call)
{
    int node = stream_of(context, call);
    if (node >= 0)
        queue_drain(&((struct fixture *)context)->streams[node]);
}

static void on_half_close(void *context, struct rpc_call *call)
{
    (void)context;
    rpc_call_finish(call, GRPC_CODE_OK, NULL, NULL, 0);
}

static void on_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    (void)end;
    struct fixture *fixture = context;
    int node = stream_of(fixture, call);
    if (node < 0)
        return;
    fixture->streams[node].call = NULL;
    fixture->streams[node].incarnation = 0;
    peers_send(fixture);
}

static const struct rpc_handler router_handler = {.kind = RPC_BIDI,
                                                  .read_always = true,
                                                  .on_message = on_message,
                                                  .on_writable = on_writable,
                                                  .on_half_close = on_half_close,
                                                  .on_closed = on_closed};

/* --- nodes --- */

struct node_context {
    struct fixture *fixture;
    int index;
};
static struct node_context contexts[FIXTURE_NODES];

static enum status ucx_make(void *context, const struct xfer_handler *handler,
                            struct xfer **xfer_out, struct err *err)
{
    (void)context;
    struct xfer_options options = {.transport = XFER_TRANSPORT_TCP, .peers_max = 64};
    return xfer_ucx_create(&options, handler, xfer_out, err);
}

static enum status memory_make(void *context, const struct xfer_handler *handler,
                               struct xfer **xfer_out, struct err *err)
{
    struct node_context *of = context;
    struct xfer_options options = {.peers_max = 64};
    enum status status = xfer_memory_create(of->fixture->hub, &options, handler, xfer_out, err);
    of->fixture->xfers[of->index] = *xfer_out;
    return status;
}

static void refused(void *context, const struct err *err)
{
    struct node_context *of = context;
    of->fixture->refused[of->index] = true;
    of->fixture->refusal = *err;
}

static void left(void *context)
{
    struct node_context *of = context;
    of->fixture->left[of->index] = true;
}

static void engine_woken(void *context)
{
    (void)context;
}

static void node_make(struct fixture *fixture, int i, const struct fixture_options *o, int port)
{
    static char names[FIXTURE_NODES][sizeof "node-" + 3 * sizeof(int)];
    struct err err = ERR_INIT;
    snprintf(names[i], sizeof names[i], "node-%d", i);
    struct engine_options engine = {.backend = o->backend ? o->backend : "cpu",
                                    .compute = KERN_COMPUTE_F32,
                                    .kv_type = o->kv_type,
                                    .threads = 1,
                                    .page_tokens = o->page_tokens ? o->page_tokens : 16,
                                    .kv_pages = o->kv_pages_of[i] ? o->kv_pages_of[i]
                                                : o->kv_pages     ? o->kv_pages
                                                                  : 64,
                                    .layer_run = 1,
                                    .poison_pages = true, /* only what was written is read */
                                    .rows_max = o->batch_tokens ? o->batch_tokens : 128,
                                    .seqs_max = o->sequences_max ? o->sequences_max : 16};
    CHECK_MSG(!engine_create(&engine, fixture->model, &fixture->engines[i], &err), "%s",
              err.message);
    fixture->options[i] = (struct node_options){
        .router = {.host = "127.0.0.1", .port = (uint16_t)port},
        .role = NODE_ROLE_MIXED,
        .chunk_tokens = o->chunk_tokens ? o->chunk_tokens : 64,
        .steps_in_flight = o->steps_in_flight ? o->steps_in_flight : 2,
        .reserve = (int)o->reserve,
        .preempt = (int)o->preempt,
        .preempt_every = o->preempt_every,
        .swap_memory = o->swap_pages * engine_info(fixture->engines[i])->page_bytes,
        .gap_ms = o->gap_ms,
        .kv_host = "127.0.0.1",
        .prefix_cache = !o->no_cache[i],
        .wire_max = o->wire_max[i],
        .grace_ns = o->grace_ms ? o->grace_ms * NS_PER_MS : 5 * NS_PER_S,
    };
    contexts[i] = (struct node_context){fixture, i};
    CHECK(!metrics_create(&fixture->metrics[i], &err));
    CHECK(!loop_waker_init(fixture->loop, &fixture->wakers[i], engine_woken, NULL, &err));
    struct node_parts parts = {
        .loop = fixture->loop,
        .rpc = fixture->rpc,
        .options = &fixture->options[i],
        .model = fixture->model,
        .engine = fixture->engines[i],
        .limits = o->limits,
        .engine_waker = &fixture->wakers[i],
        .metrics = fixture->metrics[i],
        .prefill = &prefill_leg,
        .decode = &decode_leg,
        .transport = {o->ucx ? ucx_make : memory_make, &contexts[i]},
        .name = names[i],
        .grpc_address = "",
        .http_address = "",
        .refused = refused,
        .left = left,
        .context = &contexts[i],
    };
    CHECK_MSG(!node_create(&parts, &fixture->nodes[i], &err), "%s", err.message);
    CHECK_MSG(!metrics_status(fixture->metrics[i], &err), "%s", err.message);
}

bool fixture_all_met(struct fixture *fixture, void *context)
{
    (void)context;
    for (int i = 0; i < fixture->node_count; i++)
        if (!fixture->streams[i].heartbeats ||
            fixture->streams[i].links_up < (uint32_t)fixture->node_count - 1)
            return false;
    return true;
}

struct fixture *fixture_start(const struct fixture_options *options)
{
    const char *path = getenv("BATON_NODE_TEST_MODEL");
    if (!path)
        TEST_SKIP("BATON_NODE_TEST_MODEL is not set");
    struct fixture *fixture = calloc(1, sizeof *fixture);
    CHECK(fixture);
    struct err err = ERR_INIT;
    fixture->node_count = options->nodes;
    fixture->router_incarnation = random_u64();
    fixture->cache_key[0] = options->cache_key;
    fixture->stop_after_ms = options->stop_after_ms ? options->stop_after_ms : 10000;
    CHECK(!loop_create(&fixture->loop, &err));
    CHECK_MSG(!rpc_create(fixture->loop, &fixture->rpc, &err), "%s", err.message);
    struct rpc_server_options server = {.address = "127.0.0.1:0"};
    CHECK_MSG(!rpc_server_create(fixture->rpc, &server, &fixture->server, &err), "%s", err.message);
    CHECK(!rpc_server_add(fixture->server, "/baton.node.v1.Registry/Connect", &router_handler,
                          fixture, &err));
    CHECK(!xfer_hub_create(1, 8, &fixture->hub, &err));
    xfer_hub_set_automatic(fixture->hub, true);
    CHECK_MSG(!model_open(path, &fixture->model, &err), "%s", err.message);
    for (int i = 0; i < options->nodes; i++)
        node_make(fixture, i, options, rpc_server_port(fixture->server));
    for (int i = 0; i < options->nodes; i++)
        node_start(fixture->nodes[i]);
    fixture_turn(fixture, options->router_late_ns);
    CHECK(!rpc_server_start(fixture->server, &err));
    fixture_until(fixture, fixture_all_met, NULL, "the nodes to meet");
    return fixture;
}

void fixture_stop(struct fixture *fixture)
{
    for (int i = 0; i < fixture->node_count; i++)
        node_destroy(fixture->nodes[i]);
    rpc_server_destroy(fixture->server, NULL, NULL);
    rpc_destroy(fixture->rpc);
    xfer_hub_destroy(fixture->hub);
    for (int i = 0; i < fixture->node_count; i++) {
        engine_destroy(fixture->engines[i]);
        loop_waker_finish(&fixture->wakers[i]);
        metrics_destroy(fixture->metrics[i]);
        buf_finish(&fixture->streams[i].queue);
    }
    model_close(fixture->model);
    loop_destroy(fixture->loop);
    free(fixture);
}

/* Where every node stands, for whoever reads why a test failed. */
static void look(const struct fixture *fixture, char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < fixture->node_count && used < bytes; i++) {
        const struct fixture_stream *stream = &fixture->streams[i];
        const struct pool *pool = &fixture->nodes[i]->pool;
        used += (size_t)snprintf(text + used, bytes - used,
                                 "; node %d: %u registrations, %u heartbeats, %u links came up, "
                                 "%zu works, pages %u used "
                                 "%u reserved %u quarantined",
                                 i, stream->registrations, stream->heartbeats, stream->links_up,
                                 (size_t)node_work_count(fixture->nodes[i]),
                                 pool_count(pool, POOL_USED), pool_count(pool, POOL_RESERVED),
                                 pool_count(pool, POOL_QUARANTINED));
    }
}

void fixture_until(struct fixture *fixture, bool (*done)(struct fixture *fixture, void *context),
                   void *context, const char *what)
{
    uint64_t until_ns = clock_now_ns() + patience_ns;
    while (!done(fixture, context)) {
        loop_round(fixture->loop, NS_PER_MS / 4);
        if (clock_now_ns() < until_ns)
            continue;
        char text[1000] = "";
        look(fixture, text, sizeof text);
        TEST_FAIL("waited %.0f s in vain for %s%s", (double)patience_ns / 1e9, what, text);
    }
}

void fixture_turn(struct fixture *fixture, uint64_t for_ns)
{
    uint64_t until_ns = clock_now_ns() + for_ns;
    for (uint64_t rounds = 0; clock_now_ns() < until_ns || rounds < for_ns / NS_PER_MS; rounds++)
        loop_round(fixture->loop, NS_PER_MS / 4);
}

/* --- what a test sends --- */

uint32_t prompt[FIXTURE_PROMPT];

void prompt_make(uint32_t seed)
{
    for (uint32_t i = 0; i < FIXTURE_PROMPT; i++)
        prompt[i] = (i * 2654435761u + seed * 40503u) % 251;
}

struct assign local(int node, int attempt, uint32_t prompt_count, uint32_t tokens_max)
{
    return (struct assign){.node = node,
                           .attempt = attempt,
                           .leg = BATON__NODE__V1__LEG__LEG_LOCAL,
                           .prompt = prompt,
                           .prompt_count = prompt_count,
                           .tokens_max = tokens_max,
                           .age = (uint64_t)attempt + 1};
}

void hand_off(struct fixture *fixture, struct assign assign)
{
    assign.node = 0;
    assign.leg = BATON__NODE__V1__LEG__LEG_PREFILL;
    uint64_t number = fixture_assign(fixture, &assign);
    assign.node = 1;
    assign.leg = BATON__NODE__V1__LEG__LEG_DECODE;
    assign.fetch_pages = 0; /* P's */
    assign.source = 0;
    assign.source_number = number;
    fixture_assign(fixture, &assign);
}

void heard_equal(const struct heard *a, const struct heard *b, uint32_t count)
{
    CHECK(!a->gap && !b->gap);
    CHECK_MSG(a->count >= count && b->count >= count,
              "%u and %u tokens, not %u; verdict %u \"%s\", failed %u, dropped %u, gave up %u",
              a->count, b->count, count, a->verdict, a->message,
              a->reports[BATON__NODE__V1__REPORT__KIND__FAILED],
              a->reports[BATON__NODE__V1__REPORT__KIND__DROPPED],
              a->reports[BATON__NODE__V1__REPORT__KIND__GAVE_UP]);
    for (uint32_t i = 0; i < count; i++) {
        CHECK_INT(a->tokens[i], b->tokens[i]);
        CHECK(memcmp(&a->logprobs[i], &b->logprobs[i], sizeof(float)) == 0);
    }
}

static Baton__Node__V1__AttemptId attempt_id(int attempt)
{
    Baton__Node__V1__AttemptId id = BATON__NODE__V1__ATTEMPT_ID__INIT;
    id.high = UINT64_C(0xabcdef);
    id.low = (uint64_t)attempt;
    return id;
}

uint64_t fixture_assign(struct fixture *fixture, const struct assign *of)
{
    Baton__Node__V1__AttemptId id = attempt_id(of->attempt);
    Baton__Node__V1__Sampling sampling = BATON__NODE__V1__SAMPLING__INIT;
    Baton__Node__V1__Assign assign = BATON__NODE__V1__ASSIGN__INIT;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    sampling.temperature = of->temperature;
    sampling.repetition_penalty = of->repetition_penalty;
    sampling.presence_penalty = of->presence_penalty;
    sampling.frequency_penalty = of->frequency_penalty;
    sampling.seed = of->seed;
    sampling.stop_ids = (uint32_t *)of->stop_ids;
    sampling.n_stop_ids = of->stop_count;
    sampling.tokens_min = of->tokens_min;
    sampling.logprobs = of->logprobs;
    assign.number = ++fixture->streams[of->node].number;
    assign.attempt = &id;
    assign.request = (uint64_t)(of->request ? of->request : of->attempt) + 1;
    assign.age = of->age;
    assign.leg = of->leg;
    assign.prompt = (uint32_t *)of->prompt;
    assign.n_prompt = of->prompt_count;
    assign.generated = (uint32_t *)of->generated;
    assign.n_generated = of->generated_count;
    assign.sampling = &sampling;
    assign.tokens_max = of->tokens_max;
    assign.deadline_ms = of->deadline_ms;
    assign.alone = of->alone;
    assign.last_leg = of->last_leg;
    if (of->leg == BATON__NODE__V1__LEG__LEG_DECODE) {
        assign.source = fixture->streams[of->source].name;
        assign.source_incarnation = fixture->streams[of->source].incarnation;
        assign.source_number = of->source_number;
    }
    uint8_t salt[PREFIX_SALT_BYTES] = {of->salt};
    if (of->salt) {
        assign.cache_salt.data = salt;
        assign.cache_salt.len = sizeof salt;
    }
    assign.serve_pages = of->serve_pages;
    Baton__Node__V1__AttemptId transfer = attempt_id(of->fetch_attempt);
    Baton__Node__V1__Fetch fetch = BATON__NODE__V1__FETCH__INIT;
    if (of->fetch_pages) {
        fetch.node = fixture->streams[of->fetch_node].name;
        fetch.incarnation = fixture->streams[of->fetch_node].incarnation;
        fetch.number = of->fetch_number;
        fetch.transfer = &transfer;
        fetch.pages = of->fetch_pages;
        assign.fetch = &fetch;
    }
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_ASSIGN;
    message.assign = &assign;
    fixture_send(fixture, of->node, &message);
    return assign.number;
}

void fixture_end(struct fixture *fixture, int node, int attempt)
{
    Baton__Node__V1__AttemptId id = attempt_id(attempt);
    Baton__Node__V1__End end = BATON__NODE__V1__END__INIT;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    end.attempt = &id;
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_END;
    message.end = &end;
    fixture_send(fixture, node, &message);
}

void fixture_drain(struct fixture *fixture, int node)
{
    Baton__Node__V1__Drain drain = BATON__NODE__V1__DRAIN__INIT;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_DRAIN;
    message.drain = &drain;
    fixture_send(fixture, node, &message);
}

void fixture_settle(struct fixture *fixture, int node, int attempt)
{
    Baton__Node__V1__AttemptId id = attempt_id(attempt);
    Baton__Node__V1__Settle settle = BATON__NODE__V1__SETTLE__INIT;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    settle.attempt = &id;
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_SETTLE;
    message.settle = &settle;
    fixture_send(fixture, node, &message);
}

void fixture_first_token(struct fixture *fixture, int node, int attempt, uint32_t position,
                         uint32_t token_id)
{
    Baton__Node__V1__AttemptId id = attempt_id(attempt);
    Baton__Node__V1__Token token = BATON__NODE__V1__TOKEN__INIT;
    Baton__Node__V1__FirstToken first = BATON__NODE__V1__FIRST_TOKEN__INIT;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    token.id = token_id;
    first.attempt = &id;
    first.position = position;
    first.token = &token;
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_FIRST_TOKEN;
    message.first_token = &first;
    fixture_send(fixture, node, &message);
}

/* --- what a test waits for --- */

struct which {
    int node, attempt;
};

static bool ended(struct fixture *fixture, void *context)
{
    struct which *which = context;
    return fixture->heard[which->node][which->attempt]
               .reports[BATON__NODE__V1__REPORT__KIND__ENDED] > 0;
}

void fixture_wait_ended(struct fixture *fixture, int node, int attempt)
{
    struct which which = {node, attempt};
    char what[60];
    snprintf(what, sizeof what, "attempt %d at node %d to end", attempt, node);
    fixture_until(fixture, ended, &which, what);
}

static bool answered(struct fixture *fixture, void *context)
{
    struct which *which = context;
    return fixture->heard[which->node][which->attempt].accepted > 0;
}

void fixture_wait_answered(struct fixture *fixture, const struct assign *assign)
{
    struct which which = {assign->node, assign->attempt};
    char what[60];
    snprintf(what, sizeof what, "a verdict on attempt %d at node %d", which.attempt, which.node);
    fixture_until(fixture, answered, &which, what);
}

static bool at_rest(struct fixture *fixture, void *context)
{
    (void)context;
    for (int i = 0; i < fixture->node_count; i++)
        if (node_work_count(fixture->nodes[i]) || copies_active(&fixture->nodes[i]->copies))
            return false;
    return true;
}

void fixture_check_rest(struct fixture *fixture)
{
    fixture_until(fixture, at_rest, NULL, "the nodes to come to rest");
    for (int i = 0; i < fixture->node_count; i++) {
        const struct pool *pool = &fixture->nodes[i]->pool;
        CHECK(prefix_consistent(&fixture->nodes[i]->cache.prefix));
        CHECK_INT(pool_count(pool, POOL_USED), 0);
        CHECK_INT(pool_count(pool, POOL_RESERVED), 0);
        CHECK_INT(pool_count(pool, POOL_QUARANTINED), 0);
        CHECK_MSG(engine_cancel_layers_max(fixture->engines[i]) <= 1, "cancels took %u layers",
                  engine_cancel_layers_max(fixture->engines[i]));
    }
}
