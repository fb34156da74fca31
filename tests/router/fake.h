/* A router core on a clock of the test's own, and nodes that are memory: what the router sends them is kept, what they say
 * is scripted. */
#ifndef BATON_TESTS_ROUTER_FAKE_H
#define BATON_TESTS_ROUTER_FAKE_H

#include "router/core.h"
#include "tests/test.h"

enum { FAKE_MESSAGES_MAX = 4096, FAKE_NODES_MAX = 8, FAKE_PAGE_TOKENS = 16, FAKE_PAGES_MAX = 256 };

typedef Baton__Node__V1__RouterMessage router_message;

struct fake_node {
    struct node_stream stream;
    const char *name;
    Baton__Node__V1__Role role;
    uint64_t incarnation, heartbeat;
    router_message *messages[FAKE_MESSAGES_MAX];
    size_t message_count, read; /* those before `read` were looked at */
    bool open, ended;           /* the router ended the stream */
    bool deaf;                  /* takes no messages: the queue is full */
    bool scant;                 /* more than half of it is */
    uint32_t pages, sequences_max;
    uint32_t prefill_tokens_per_s; /* that it says it has measured */
    bool grows;                    /* its answers take pages as they grow */
};

struct world {
    struct metrics *metrics;
    struct router_stats stats;
    struct core core;
    uint64_t now_ns, late_ns, incarnations;
    struct fake_node nodes[FAKE_NODES_MAX];
};

static inline bool fake_send(void *port, const router_message *message)
{
    struct fake_node *node = port;
    if (node->deaf)
        return false;
    CHECK(node->message_count < FAKE_MESSAGES_MAX && !node->ended);
    size_t bytes = baton__node__v1__router_message__get_packed_size(message);
    uint8_t *packed = malloc(bytes + 1);
    baton__node__v1__router_message__pack(message, packed);
    node->messages[node->message_count++] =
        baton__node__v1__router_message__unpack(NULL, bytes, packed);
    free(packed);
    return true;
}

static inline void fake_end(void *port, enum grpc_code code, const char *message, bool graceful)
{
    struct fake_node *node = port;
    node->ended = true;
    (void)code;
    (void)message;
    (void)graceful;
}

static inline bool fake_ample(const void *port)
{
    return !((const struct fake_node *)port)->scant;
}

static const struct node_port fake_port = {.send = fake_send, .ample = fake_ample, .end = fake_end};

static const uint8_t fake_hash[16] = "0123456789abcde";

static inline void world_init_with(struct world *world, struct core_options options)
{
    *world = (struct world){.now_ns = 1000 * NS_PER_S};
    struct identity_model model = {.vocab_size = 1000, .context_tokens = 4096};
    memcpy(model.hash, fake_hash, 16);
    CHECK_INT(metrics_create(&world->metrics, NULL), STATUS_OK);
    CHECK_INT(router_stats_init(&world->stats, world->metrics, NULL), STATUS_OK);
    CHECK_INT(core_init(&world->core, &options, &model, &world->stats, NULL), STATUS_OK);
    core_time(&world->core, world->now_ns, 0);
}

static inline void world_init(struct world *world)
{
    world_init_with(world, (struct core_options){.queue_max = 100,
                                                 .requests_max = 1000,
                                                 .replays_max = 8,
                                                 .cache_index_entries = 10000,
                                                 .node_wait_ns = 20 * NS_PER_S});
}

static inline void world_settle(struct world *world)
{
    core_schedule(&world->core);
}

static inline void fake_forget(struct fake_node *node)
{
    for (size_t i = 0; i < node->message_count; i++)
        baton__node__v1__router_message__free_unpacked(node->messages[i], NULL);
    node->message_count = node->read = 0;
}

static inline void world_finish(struct world *world)
{
    for (int i = 0; i < FAKE_NODES_MAX; i++) {
        if (world->nodes[i].open)
            registry_stream_closed(&world->nodes[i].stream, "the test ends");
        fake_forget(&world->nodes[i]);
    }
    core_finish(&world->core);
    metrics_destroy(world->metrics);
}

/* Time passes without anybody doing anything. */
static inline void world_pass(struct world *world, uint64_t ns)
{
    world->now_ns += ns;
    core_time(&world->core, world->now_ns, world->late_ns);
    core_tick(&world->core);
    core_schedule(&world->core);
}

/* --- what nodes say --- */

static inline void fake_say(struct world *world, struct fake_node *node,
                            Baton__Node__V1__NodeMessage__KindCase kind, void *body)
{
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    message.kind_case = kind;
    message.register_ = body;
    core_time(&world->core, world->now_ns, world->late_ns);
    registry_stream_message(&node->stream, &message);
    core_schedule(&world->core);
}

static inline void fake_beat_alive(struct world *world, struct fake_node *node, bool serving,
                                   Baton__Node__V1__AttemptId **alive, size_t alive_count)
{
    Baton__Node__V1__Load load = BATON__NODE__V1__LOAD__INIT;
    load.serving = serving;
    load.pages_total = node->pages;
    load.prefill_tokens_per_s = node->prefill_tokens_per_s;
    Baton__Node__V1__Heartbeat beat = BATON__NODE__V1__HEARTBEAT__INIT;
    beat.number = ++node->heartbeat;
    beat.load = &load;
    beat.alive = alive;
    beat.n_alive = alive_count;
    fake_say(world, node, BATON__NODE__V1__NODE_MESSAGE__KIND_HEARTBEAT, &beat);
}

static inline void fake_beat(struct world *world, struct fake_node *node)
{
    fake_beat_alive(world, node, true, NULL, 0);
}

/* A registration of which a test may change any field before fake_connect_with sends it. */
struct fake_register {
    Baton__Node__V1__Register body;
    Baton__Node__V1__Identity identity;
};

static inline void fake_register_fill(struct world *world, struct fake_node *node,
                                      struct fake_register *out)
{
    baton__node__v1__register__init(&out->body);
    baton__node__v1__identity__init(&out->identity);
    out->body.name = (char *)node->name;
    out->body.role = node->role;
    out->body.incarnation = node->incarnation = ++world->incarnations;
    out->body.wire_min = WIRE_OLDEST;
    out->body.wire_max = WIRE_NEWEST;
    out->body.identity = &out->identity;
    out->body.transport = (char *)"tcp";
    out->body.pages_total = node->pages;
    out->body.sequences_max = node->sequences_max;
    out->body.grows = node->grows;
    out->body.ucx_version = (char *)"1.13.1";
    out->identity.model_hash.data = (uint8_t *)fake_hash;
    out->identity.model_hash.len = 16;
    out->identity.model_name = (char *)"toy";
    out->identity.arithmetic = (char *)"int8/kv-f16/layout-1";
    out->identity.kv_type = (char *)"f16";
    out->identity.page_tokens = FAKE_PAGE_TOKENS;
    out->identity.page_bytes = 4096;
    out->identity.layer_end = 30;
    out->identity.head_end = 3;
    out->identity.layers_per_piece = 8;
    out->identity.context_tokens = 4096;
    out->identity.vocab_size = 1000;
    out->identity.kv_layout = 1;
}

static inline struct fake_node *fake_add(struct world *world, int index, const char *name,
                                         Baton__Node__V1__Role role)
{
    struct fake_node *node = &world->nodes[index];
    *node = (struct fake_node){.name = name, .role = role, .pages = 1000, .sequences_max = 16};
    return node;
}

static inline void fake_connect_with(struct world *world, struct fake_node *node,
                                     struct fake_register *registration)
{
    fake_forget(node);
    node->open = true;
    node->ended = false;
    node->heartbeat = 0;
    core_time(&world->core, world->now_ns, world->late_ns);
    registry_stream_open(&world->core.registry, &node->stream, &fake_port, node);
    fake_say(world, node, BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_, &registration->body);
}

static inline void fake_connect(struct world *world, struct fake_node *node)
{
    struct fake_register registration;
    fake_register_fill(world, node, &registration);
    fake_connect_with(world, node, &registration);
    fake_beat(world, node);
}

static inline void fake_die(struct world *world, struct fake_node *node)
{
    core_time(&world->core, world->now_ns, world->late_ns);
    registry_stream_closed(&node->stream, "connection lost");
    node->open = false;
    core_schedule(&world->core);
}

/* `bytes_per_s`: what `from` has measured; 0: nothing yet. */
static inline void fake_link_rate(struct world *world, struct fake_node *from, struct fake_node *to,
                                  bool up, uint64_t bytes_per_s)
{
    Baton__Node__V1__Link link = BATON__NODE__V1__LINK__INIT;
    link.peer = (char *)to->name;
    link.peer_incarnation = to->incarnation;
    link.up = up;
    link.bytes_per_s = bytes_per_s;
    fake_say(world, from, BATON__NODE__V1__NODE_MESSAGE__KIND_LINK, &link);
}

static inline void fake_link(struct world *world, struct fake_node *from, struct fake_node *to,
                             bool up)
{
    fake_link_rate(world, from, to, up, 0);
}

static inline void fake_cached(struct world *world, struct fake_node *node, bool reset,
                               const uint64_t *added, size_t added_count, const uint64_t *removed,
                               size_t removed_count)
{
    Baton__Node__V1__Cached cached = BATON__NODE__V1__CACHED__INIT;
    cached.reset = reset;
    cached.added = (uint64_t *)added;
    cached.n_added = added_count;
    cached.removed = (uint64_t *)removed;
    cached.n_removed = removed_count;
    fake_say(world, node, BATON__NODE__V1__NODE_MESSAGE__KIND_CACHED, &cached);
}

static inline Baton__Node__V1__AttemptId fake_id(const Baton__Node__V1__AttemptId *id)
{
    Baton__Node__V1__AttemptId out = BATON__NODE__V1__ATTEMPT_ID__INIT;
    out.high = id->high;
    out.low = id->low;
    return out;
}

static inline void fake_verdict(struct world *world, struct fake_node *node,
                                const Baton__Node__V1__Assign *assign,
                                Baton__Node__V1__Verdict verdict)
{
    Baton__Node__V1__AttemptId id = fake_id(assign->attempt);
    Baton__Node__V1__Accepted accepted = BATON__NODE__V1__ACCEPTED__INIT;
    accepted.attempt = &id;
    accepted.number = assign->number;
    accepted.verdict = verdict;
    accepted.message = (char *)"says the node";
    fake_say(world, node, BATON__NODE__V1__NODE_MESSAGE__KIND_ACCEPTED, &accepted);
}

static inline void fake_accept(struct world *world, struct fake_node *node,
                               const Baton__Node__V1__Assign *assign)
{
    fake_verdict(world, node, assign, BATON__NODE__V1__VERDICT__VERDICT_OK);
}

/* `pages`: that a decode node has verified. */
static inline void fake_report_pages(struct world *world, struct fake_node *node,
                                     const Baton__Node__V1__AttemptId *attempt,
                                     Baton__Node__V1__Report__Kind kind, uint32_t pages)
{
    Baton__Node__V1__AttemptId id = fake_id(attempt);
    Baton__Node__V1__Report report = BATON__NODE__V1__REPORT__INIT;
    report.attempt = &id;
    report.kind = kind;
    report.status = GRPC_CODE_INTERNAL;
    report.message = (char *)"says the node";
    report.pages = pages;
    fake_say(world, node, BATON__NODE__V1__NODE_MESSAGE__KIND_REPORT, &report);
}

static inline void fake_report(struct world *world, struct fake_node *node,
                               const Baton__Node__V1__AttemptId *attempt,
                               Baton__Node__V1__Report__Kind kind)
{
    fake_report_pages(world, node, attempt, kind, 0);
}

static inline void fake_token(struct world *world, struct fake_node *node,
                              const Baton__Node__V1__AttemptId *attempt, uint32_t position,
                              uint32_t id, Baton__Node__V1__Finish finish)
{
    Baton__Node__V1__AttemptId attempt_id = fake_id(attempt);
    Baton__Node__V1__Token token = BATON__NODE__V1__TOKEN__INIT, *tokens[] = {&token};
    Baton__Node__V1__TokenRun run = BATON__NODE__V1__TOKEN_RUN__INIT, *runs[] = {&run};
    Baton__Node__V1__Tokens body = BATON__NODE__V1__TOKENS__INIT;
    token.id = id;
    run.attempt = &attempt_id;
    run.position = position;
    run.tokens = tokens;
    run.n_tokens = 1;
    run.finish = finish;
    run.prefill_us = 1000;
    run.decode_us = 100;
    body.runs = runs;
    body.n_runs = 1;
    fake_say(world, node, BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS, &body);
}

/* --- what nodes hear --- */

/* The next message of this kind that was not looked at; passes over others. NULL: none. */
static inline const router_message *fake_hear(struct fake_node *node,
                                              Baton__Node__V1__RouterMessage__KindCase kind)
{
    for (size_t i = node->read; i < node->message_count; i++)
        if (node->messages[i]->kind_case == kind) {
            node->read = i + 1;
            return node->messages[i];
        }
    return NULL;
}

static inline const Baton__Node__V1__Assign *fake_assigned(struct fake_node *node)
{
    const router_message *m = fake_hear(node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_ASSIGN);
    return m ? m->assign : NULL;
}

static inline const Baton__Node__V1__AttemptId *fake_end_heard(struct fake_node *node)
{
    const router_message *m = fake_hear(node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_END);
    return m ? m->end->attempt : NULL;
}

static inline bool fake_heard(struct fake_node *node, Baton__Node__V1__RouterMessage__KindCase kind)
{
    return fake_hear(node, kind) != NULL;
}

/* --- requests --- */

/* Whole pages of a sequence, hashed as the router tells its nodes to; returns how many. `salt` NULL: the common one. */
static inline uint32_t fake_hashes(const struct world *world, const uint8_t *salt,
                                   const uint32_t *ids, uint32_t count, uint64_t *hashes_out)
{
    static const uint8_t common[PREFIX_SALT_BYTES];
    struct prefix_hash hashes[FAKE_PAGES_MAX];
    uint32_t pages = prefix_hashes(&world->core.registry.prefix_key, salt ? salt : common, ids,
                                   count, FAKE_PAGE_TOKENS, hashes);
    for (uint32_t i = 0; i < pages; i++)
        hashes_out[i] = hashes[i].low;
    return pages;
}

/* Every id has the text of one letter. */
static inline size_t fake_push(const void *vocabulary, struct detok *detok, uint32_t id, char *out)
{
    (void)vocabulary;
    (void)detok;
    out[0] = (char)('a' + id % 26);
    return 1;
}

static const struct answer_text fake_text = {.push = fake_push, .push_bytes_max = 4};

struct fake_client {
    struct request *request;
    uint32_t ids[512];
    uint32_t count;
    bool last, ended;
};

static inline void fake_progress(void *context)
{
    struct fake_client *client = context;
    struct answer_piece piece;
    while (answer_peek(&client->request->answer, 1000, &piece)) {
        CHECK(!client->last && piece.position == client->count);
        memcpy(client->ids + client->count, piece.ids, piece.token_count * sizeof *piece.ids);
        client->count += piece.token_count;
        client->last = piece.last;
        answer_taken(&client->request->answer, &piece);
    }
}

static inline void fake_ended(void *context)
{
    struct fake_client *client = context;
    CHECK(!client->last && !client->ended);
    client->ended = true;
}

static inline struct request *fake_request(struct fake_client *client, uint32_t prompt_tokens,
                                           uint32_t tokens_max, const char *stop)
{
    *client = (struct fake_client){.request = request_create()};
    struct request *r = client->request;
    for (uint32_t i = 0; i < prompt_tokens; i++)
        CHECK(token_list_append(&r->prompt, i));
    r->tokens_max = tokens_max;
    r->answer_ready = answer_init(&r->answer, &(struct answer_options){.text = &fake_text,
                                                                       .tokens_max = tokens_max,
                                                                       .stops = &stop,
                                                                       .stop_count = stop ? 1 : 0});
    CHECK(r->answer_ready);
    r->client = (struct request_client){fake_progress, fake_ended, client};
    return r;
}

static inline struct request *fake_admit(struct world *world, struct fake_client *client,
                                         uint32_t prompt_tokens, uint32_t tokens_max)
{
    struct request *r = fake_request(client, prompt_tokens, tokens_max, NULL);
    r->timing.arrival_ns = world->now_ns;
    core_time(&world->core, world->now_ns, world->late_ns);
    CHECK_INT(core_admit(&world->core, r, NULL), STATUS_OK);
    core_schedule(&world->core);
    return r;
}

/* One prefill node (0) and `decode_count` decode nodes (1, …), all connected and linked. */
static inline void world_pd(struct world *world, int decode_count)
{
    static const char *const names[] = {"prefill-0", "decode-0", "decode-1", "decode-2"};
    world_init(world);
    for (int i = 0; i <= decode_count; i++) {
        fake_add(world, i, names[i],
                 i ? BATON__NODE__V1__ROLE__ROLE_DECODE : BATON__NODE__V1__ROLE__ROLE_PREFILL);
        fake_connect(world, &world->nodes[i]);
    }
    for (int i = 1; i <= decode_count; i++)
        fake_link(world, &world->nodes[i], &world->nodes[0], true);
}

#endif
