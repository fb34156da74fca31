#include "tests/router/fake.h"

static struct node *find(struct world *world, const char *name)
{
    return registry_find(&world->core.registry, name);
}

TEST(registry, registers_and_serves_after_a_heartbeat)
{
    struct world world;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    struct fake_register registration;
    fake_register_fill(&world, node, &registration);
    fake_connect_with(&world, node, &registration);
    const router_message *m = fake_hear(node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME);
    CHECK(m && m->welcome->router_incarnation == world.core.registry.incarnation);
    CHECK_INT(m->welcome->wire, WIRE_NEWEST);
    CHECK_INT(m->welcome->stop_after_ms, 2000);
    CHECK_INT(find(&world, "mixed-0")->state, NODE_STARTING);
    CHECK(!registry_covered(&world.core.registry));
    fake_beat(&world, node);
    m = fake_hear(node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_HEARTBEAT_ACK);
    CHECK(m && m->heartbeat_ack->number == 1);
    CHECK_INT(find(&world, "mixed-0")->state, NODE_SERVING);
    CHECK(registry_covered(&world.core.registry));
    fake_beat_alive(&world, node, false, NULL, 0);
    CHECK_INT(find(&world, "mixed-0")->state, NODE_STARTING);
    CHECK(!registry_covered(&world.core.registry));
    world_finish(&world);
}

/* --- refusals name the field --- */

typedef void (*spoiler)(struct fake_register *r);

static void refused_with(const char *field, spoiler spoil)
{
    struct world world;
    world_init(&world);
    struct fake_node *good = fake_add(&world, 0, "prefill-0", BATON__NODE__V1__ROLE__ROLE_PREFILL);
    struct fake_node *odd = fake_add(&world, 1, "decode-0", BATON__NODE__V1__ROLE__ROLE_DECODE);
    fake_connect(&world, good);
    struct fake_register registration;
    fake_register_fill(&world, odd, &registration);
    spoil(&registration);
    fake_connect_with(&world, odd, &registration);
    const router_message *m = fake_hear(odd, BATON__NODE__V1__ROUTER_MESSAGE__KIND_REFUSED);
    CHECK_MSG(m != NULL, "%s: accepted", field);
    CHECK_STR(m->refused->field, field);
    CHECK(*m->refused->message);
    CHECK(odd->ended);
    CHECK(!find(&world, "decode-0"));
    CHECK_INT(find(&world, "prefill-0")->state, NODE_SERVING); /* nobody else notices */
    /* and without the fault it is taken */
    fake_connect(&world, odd);
    CHECK_INT(find(&world, "decode-0")->state, NODE_SERVING);
    world_finish(&world);
}

#define SPOIL(name_, statement_)                       \
    static void spoil_##name_(struct fake_register *r) \
    {                                                  \
        statement_;                                    \
    }
static const uint8_t other_hash[16] = "other";
SPOIL(wire_min, r->body.wire_min = r->body.wire_max = WIRE_NEWEST + 1)
SPOIL(wire_max, r->body.wire_min = r->body.wire_max = 0)
SPOIL(wire_turned, r->body.wire_min = r->body.wire_max + 1)
SPOIL(features, r->body.features = UINT64_C(4) << 32)
SPOIL(name, r->body.name = (char *)"two words")
SPOIL(incarnation, r->body.incarnation = 0)
SPOIL(role, r->body.role = BATON__NODE__V1__ROLE__ROLE_UNSPECIFIED)
SPOIL(identity, r->body.identity = NULL)
SPOIL(model_hash, r->identity.model_hash.data = (uint8_t *)other_hash)
SPOIL(model_hash_short, r->identity.model_hash.len = 4)
SPOIL(vocab_size, r->identity.vocab_size++)
SPOIL(arithmetic, r->identity.arithmetic = (char *)"f32/kv-f16/layout-1")
SPOIL(kv_type, r->identity.kv_type = (char *)"f32")
SPOIL(page_tokens, r->identity.page_tokens = 32)
SPOIL(page_bytes, r->identity.page_bytes = 8192)
SPOIL(layer_end, r->identity.layer_end = 15)
SPOIL(layer_begin, r->identity.layer_begin = 15)
SPOIL(head_begin, r->identity.head_begin = 1)
SPOIL(head_end, r->identity.head_end = 2)
SPOIL(layers_per_piece, r->identity.layers_per_piece = 4)
SPOIL(context, r->identity.context_tokens = 2048)
SPOIL(context_large, r->identity.context_tokens = 8192)
SPOIL(kv_layout, r->identity.kv_layout = 2)
SPOIL(ucx, r->body.ucx_version = (char *)"1.14.0")
SPOIL(pages, r->body.pages_total = 0)
SPOIL(sequences, r->body.sequences_max = 0)

TEST(registry, each_mismatch_is_refused_by_name)
{
    refused_with("wire_min", spoil_wire_min);
    refused_with("wire_max", spoil_wire_max);
    refused_with("wire_min", spoil_wire_turned);
    refused_with("features", spoil_features);
    refused_with("name", spoil_name);
    refused_with("incarnation", spoil_incarnation);
    refused_with("role", spoil_role);
    refused_with("identity", spoil_identity);
    refused_with("model_hash", spoil_model_hash);
    refused_with("model_hash", spoil_model_hash_short);
    refused_with("vocab_size", spoil_vocab_size);
    refused_with("arithmetic", spoil_arithmetic);
    refused_with("kv_type", spoil_kv_type);
    refused_with("page_tokens", spoil_page_tokens);
    refused_with("page_bytes", spoil_page_bytes);
    refused_with("layer_begin", spoil_layer_begin);
    refused_with("layer_end", spoil_layer_end);
    refused_with("head_begin", spoil_head_begin);
    refused_with("head_end", spoil_head_end);
    refused_with("layers_per_piece", spoil_layers_per_piece);
    refused_with("context_tokens", spoil_context);
    refused_with("context_tokens", spoil_context_large);
    refused_with("kv_layout", spoil_kv_layout);
    refused_with("ucx_version", spoil_ucx);
    refused_with("pages_total", spoil_pages);
    refused_with("sequences_max", spoil_sequences);
}

/* --- versions --- */

static void connect_wires(struct world *world, struct fake_node *node, uint32_t min, uint32_t max)
{
    struct fake_register registration;
    fake_register_fill(world, node, &registration);
    registration.body.wire_min = min;
    registration.body.wire_max = max;
    registration.body.features = 5; /* offers what this router has never heard of */
    fake_connect_with(world, node, &registration);
    fake_beat(world, node);
}

/* What the last Peers to `node` said of `of`: 0 when that was left out. */
static uint32_t peer_wire(struct fake_node *node, const struct fake_node *of)
{
    uint32_t wire = 0;
    for (size_t i = 0; i < node->message_count; i++) {
        if (node->messages[i]->kind_case != BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS)
            continue;
        wire = 0;
        const Baton__Node__V1__Peers *peers = node->messages[i]->peers;
        for (size_t k = 0; k < peers->n_peers; k++)
            if (peers->peers[k]->incarnation == of->incarnation)
                wire = peers->peers[k]->wire;
    }
    return wire;
}

/* An older node, one of today and a newer one that has forgotten the oldest version: each speaks with the router, each pair in
 * the newest that both know, and the pair that has none is not asked to hand over. */
TEST(registry, each_pair_is_told_the_newest_version_that_both_speak)
{
    static const struct {
        const char *name;
        uint32_t min, max, welcome;
        Baton__Node__V1__Role role;
    } rows[] = {
        {"older", 1, 1, 1, BATON__NODE__V1__ROLE__ROLE_PREFILL},
        {"today", WIRE_OLDEST, WIRE_NEWEST, WIRE_NEWEST, BATON__NODE__V1__ROLE__ROLE_DECODE},
        {"newer", 2, 7, WIRE_NEWEST, BATON__NODE__V1__ROLE__ROLE_DECODE},
    };
    struct world world;
    world_init(&world);
    for (int i = 0; i < 3; i++) {
        struct fake_node *node = fake_add(&world, i, rows[i].name, rows[i].role);
        connect_wires(&world, node, rows[i].min, rows[i].max);
        const router_message *m = fake_hear(node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME);
        CHECK(m != NULL);
        CHECK_INT(m->welcome->wire, rows[i].welcome);
    }
    struct fake_node *older = &world.nodes[0], *today = &world.nodes[1], *newer = &world.nodes[2];
    CHECK_INT(peer_wire(older, today), 1);
    CHECK_INT(peer_wire(today, older), 1);
    CHECK_INT(peer_wire(today, newer), WIRE_NEWEST);
    CHECK_INT(peer_wire(newer, today), WIRE_NEWEST);
    CHECK_INT(peer_wire(older, newer), 0);
    CHECK_INT(peer_wire(newer, older), 0);

    fake_link(&world, today, older, true);
    fake_link(&world, newer, older, true); /* a lie; it must not help */
    world_pass(&world, 5 * NS_PER_S / 2 - NS_PER_MS);
    for (int i = 0; i < 3; i++)
        fake_beat(&world, &world.nodes[i]);
    for (int i = 0; i < 4;
         i++) { /* more than one node takes at a time, were placement free to choose */
        static struct fake_client clients[4];
        fake_admit(&world, &clients[i], 20, 4);
        CHECK(fake_assigned(older) != NULL);
        CHECK(fake_assigned(today) != NULL);
        CHECK(fake_assigned(newer) == NULL);
        core_cancel(&world.core, clients[i].request, STATUS_CANCELLED);
        core_release(&world.core, clients[i].request);
    }
    world_finish(&world);
}

/* A router that is itself of another release. */
TEST(registry, an_older_and_a_newer_router_choose_or_refuse_by_name)
{
    struct world world;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    world.core.registry.model.wire = (struct wire_range){1, 1};
    connect_wires(&world, node, WIRE_OLDEST, WIRE_NEWEST);
    const router_message *m = fake_hear(node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME);
    CHECK(m != NULL);
    CHECK_INT(m->welcome->wire, 1);
    fake_die(&world, node);
    world.core.registry.model.wire = (struct wire_range){WIRE_NEWEST + 1, WIRE_NEWEST + 2};
    connect_wires(&world, node, WIRE_OLDEST, WIRE_NEWEST);
    m = fake_hear(node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_REFUSED);
    CHECK(m != NULL);
    CHECK_STR(m->refused->field, "wire_max");
    CHECK_STR(m->refused->message, "the node speaks versions 1 to 3, this router 4 to 5");
    world_finish(&world);
}

TEST(registry, a_cluster_without_nodes_may_change_its_identity)
{
    struct world world;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    fake_connect(&world, node);
    fake_die(&world, node);
    struct fake_register registration;
    fake_register_fill(&world, node, &registration);
    registration.identity.page_tokens = 32;
    fake_connect_with(&world, node, &registration);
    CHECK(fake_heard(node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME));
    fake_beat(&world, node);
    /* a request that began under one identity keeps it */
    struct fake_client client;
    struct request *r = fake_admit(&world, &client, 10, 4);
    fake_die(&world, node);
    fake_register_fill(&world, node, &registration);
    fake_connect_with(&world, node, &registration);
    const router_message *m = fake_hear(node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_REFUSED);
    CHECK(m);
    CHECK_STR(m->refused->field, "page_tokens");
    core_cancel(&world.core, r, STATUS_CANCELLED);
    core_release(&world.core, r);
    world_finish(&world);
}

TEST(registry, a_new_registration_replaces_the_old_stream_at_once)
{
    struct world world;
    world_init(&world);
    struct fake_node *first = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    struct fake_node *second = fake_add(&world, 1, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    fake_connect(&world, first);
    struct fake_client client;
    struct request *r = fake_admit(&world, &client, 10, 4);
    const Baton__Node__V1__Assign *assign = fake_assigned(first);
    CHECK(assign && assign->number == 1);
    fake_connect(&world, second);
    CHECK(first->ended && !second->ended);
    CHECK_INT(find(&world, "mixed-0")->incarnation, second->incarnation);
    CHECK(fake_assigned(second)->number == 2); /* numbers go on: they are per name */
    /* what the old stream still says is stale */
    double before = metric_value(world.stats.stale[STALE_STREAM]);
    fake_token(&world, first, assign->attempt, 0, 5, BATON__NODE__V1__FINISH__FINISH_NONE);
    CHECK(metric_value(world.stats.stale[STALE_STREAM]) == before + 1);
    CHECK_INT(client.count, 0);
    core_cancel(&world.core, r, STATUS_CANCELLED);
    core_release(&world.core, r);
    world_finish(&world);
}

TEST(registry, silence_of_two_and_a_half_seconds_is_death)
{
    struct world world;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    fake_connect(&world, node);
    world_pass(&world, 2400 * NS_PER_MS);
    CHECK(!node->ended);
    fake_beat(&world, node);
    world_pass(&world, 2500 * NS_PER_MS);
    CHECK(!node->ended);
    world_pass(&world, 10 * NS_PER_MS);
    CHECK(node->ended);
    CHECK_INT(find(&world, "mixed-0")->state, NODE_DEAD);
    CHECK(metric_value(world.stats.node_deaths) == 1);
    world_finish(&world);
}

TEST(registry, the_routers_own_lateness_kills_nobody_but_wants_a_newer_heartbeat)
{
    struct world world;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    fake_connect(&world, node);
    world.late_ns = 3 * NS_PER_S;
    world_pass(&world, 3 * NS_PER_S);
    CHECK(!node->ended);
    struct fake_client client;
    struct request *r = fake_admit(&world, &client, 10, 4);
    CHECK(!fake_assigned(node));
    for (int i = 0; i < 12; i++) { /* these lay in the socket all the while */
        fake_beat(&world, node);
        CHECK(!fake_assigned(node));
    }
    fake_beat(&world, node);
    CHECK(fake_assigned(node));
    core_cancel(&world.core, r, STATUS_CANCELLED);
    core_release(&world.core, r);
    world_finish(&world);
}

TEST(registry, a_full_send_queue_is_death_and_blocks_nobody)
{
    struct world world;
    world_pd(&world, 1);
    world.nodes[1].deaf = true;
    fake_beat(&world, &world.nodes[1]);
    CHECK(world.nodes[1].ended);
    CHECK_INT(find(&world, "decode-0")->state, NODE_DEAD);
    CHECK(!world.nodes[0].ended);
    world_finish(&world);
}

/* Else a burst of waiting requests would fill the queue of a node that has just come, end it, and do so again. */
TEST(registry, half_a_queue_is_kept_for_what_is_said_about_work_that_is_there)
{
    struct world world;
    world_pd(&world, 1);
    struct fake_node *p = &world.nodes[0], *d = &world.nodes[1];
    struct fake_node *const each[] = {p, d};
    for (int i = 0; i < 2; i++) {
        each[i]->scant = true;
        struct fake_client client;
        struct request *r = fake_admit(&world, &client, 10, 4);
        CHECK(!fake_assigned(p) && !fake_assigned(d));
        CHECK(!p->ended && !d->ended);
        each[i]->scant = false;
        fake_beat(&world, each[i]);
        CHECK(fake_assigned(p) && fake_assigned(d));
        core_cancel(&world.core, r, STATUS_CANCELLED);
        core_release(&world.core, r);
    }
    world_finish(&world);
}

TEST(registry, peers_are_told_of_each_change)
{
    struct world world;
    world_pd(&world, 1);
    struct fake_node *p = &world.nodes[0], *d = &world.nodes[1];
    const router_message *m = NULL, *next;
    while ((next = fake_hear(p, BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS)))
        m = next;
    CHECK(m && m->peers->n_peers == 1);
    CHECK_STR(m->peers->peers[0]->name, "decode-0");
    CHECK(m->peers->peers[0]->incarnation == d->incarnation);
    fake_die(&world, d);
    m = fake_hear(p, BATON__NODE__V1__ROUTER_MESSAGE__KIND_PEERS);
    CHECK(m && m->peers->n_peers == 0);
    world_finish(&world);
}

TEST(registry, a_stream_must_register_first_and_in_time)
{
    struct world world;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    node->open = true;
    registry_stream_open(&world.core.registry, &node->stream, &fake_port, node);
    fake_beat(&world, node);
    CHECK(node->ended);
    node->ended = false;
    registry_stream_open(&world.core.registry, &node->stream, &fake_port, node);
    world_pass(&world, 5100 * NS_PER_MS);
    CHECK(node->ended);
    /* twice on one stream is no node of ours */
    fake_connect(&world, node);
    struct fake_register registration;
    fake_register_fill(&world, node, &registration);
    fake_say(&world, node, BATON__NODE__V1__NODE_MESSAGE__KIND_REGISTER_, &registration.body);
    CHECK(node->ended);
    world_finish(&world);
}

TEST(registry, links_decide_where_a_transfer_may_go)
{
    struct world world;
    world_pd(&world, 2);
    struct registry *registry = &world.core.registry;
    size_t p = find(&world, "prefill-0")->slot, d = find(&world, "decode-0")->slot;
#define LINK() (registry_view(registry).links[p * registry->node_capacity + d])
    CHECK_INT(LINK(), PLACEMENT_LINK_UP);
    fake_link(&world, &world.nodes[0], &world.nodes[1], false); /* either side may say so */
    CHECK_INT(LINK(), PLACEMENT_LINK_DOWN);
    fake_link(&world, &world.nodes[0], &world.nodes[1], true);
    CHECK_INT(LINK(), PLACEMENT_LINK_UP);
    registry_pair_failed(registry, find(&world, "prefill-0"), find(&world, "decode-0"));
    CHECK_INT(LINK(), PLACEMENT_LINK_DOWN);
    fake_link(&world, &world.nodes[1], &world.nodes[0], true); /* a new rate, not a new meeting */
    CHECK_INT(LINK(), PLACEMENT_LINK_DOWN);
    fake_link(&world, &world.nodes[1], &world.nodes[0], false);
    fake_link(&world, &world.nodes[1], &world.nodes[0], true);
    CHECK_INT(LINK(), PLACEMENT_LINK_UP);
    fake_die(&world, &world.nodes[1]);
    fake_connect(&world, &world.nodes[1]);
    CHECK_INT(LINK(), PLACEMENT_LINK_UNKNOWN);
    double before = metric_value(world.stats.stale[STALE_LINK]);
    world.nodes[1].incarnation--; /* of an earlier life */
    fake_link(&world, &world.nodes[0], &world.nodes[1], true);
    world.nodes[1].incarnation++;
    CHECK(metric_value(world.stats.stale[STALE_LINK]) == before + 1);
    CHECK_INT(LINK(), PLACEMENT_LINK_UNKNOWN);
    fake_link(&world, &world.nodes[0], &world.nodes[1], true);
    CHECK_INT(LINK(), PLACEMENT_LINK_UP);
    world_finish(&world);
}

TEST(registry, time_alone_changes_links_too)
{
    struct world world;
    world_init(&world);
    struct fake_node *p = fake_add(&world, 0, "prefill-0", BATON__NODE__V1__ROLE__ROLE_PREFILL);
    struct fake_node *d = fake_add(&world, 1, "decode-0", BATON__NODE__V1__ROLE__ROLE_DECODE);
    fake_connect(&world, p);
    fake_connect(&world, d);
    struct registry *registry = &world.core.registry;
    struct placement_view view = registry_view(registry);
    CHECK_INT(view.links[1], PLACEMENT_LINK_UNKNOWN);
    world.now_ns += 2 * NS_PER_S;
    core_time(&world.core, world.now_ns, 0);
    CHECK_INT(registry_view(registry).links[1], PLACEMENT_LINK_UNKNOWN);
    world.now_ns += 1;
    core_time(&world.core, world.now_ns, 0);
    CHECK_INT(registry_view(registry).links[1],
              PLACEMENT_LINK_UP); /* nothing was said: worth a try */
    registry_pair_failed(registry, find(&world, "prefill-0"), find(&world, "decode-0"));
    for (int i = 0; i < 10; i++) {
        world.now_ns += NS_PER_S;
        core_time(&world.core, world.now_ns, 0);
        CHECK_INT(registry_view(registry).links[1], PLACEMENT_LINK_DOWN);
    }
    world.now_ns += 1;
    core_time(&world.core, world.now_ns, 0);
    CHECK_INT(registry_view(registry).links[1], PLACEMENT_LINK_UP);
    world_finish(&world);
}

TEST(registry, rates_are_the_receivers_own_where_it_has_one)
{
    struct world world;
    world_pd(&world, 1);
    struct registry *registry = &world.core.registry;
    size_t p = find(&world, "prefill-0")->slot, d = find(&world, "decode-0")->slot;
#define RATE(from, to) (registry_view(registry).link_kb_per_s[from * registry->node_capacity + to])
    CHECK_INT(RATE(p, d), 0);
    fake_link_rate(&world, &world.nodes[0], &world.nodes[1], true, 5000000);
    CHECK_INT(RATE(p, d), 5000);
    CHECK_INT(RATE(d, p), 5000);
    fake_link_rate(&world, &world.nodes[1], &world.nodes[0], true, 700);
    CHECK_INT(RATE(p, d), 1); /* never 0 once it was measured */
    CHECK_INT(RATE(d, p), 5000);
    fake_link_rate(&world, &world.nodes[1], &world.nodes[0], true, UINT64_MAX);
    CHECK(RATE(p, d) == UINT32_MAX);
    fake_die(&world, &world.nodes[1]);
    fake_connect(&world, &world.nodes[1]);
    CHECK_INT(RATE(p, d), 0);
    world_finish(&world);
}

TEST(registry, leaving_is_no_death)
{
    struct world world;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    fake_connect(&world, node);
    Baton__Node__V1__Leaving leaving = BATON__NODE__V1__LEAVING__INIT;
    fake_say(&world, node, BATON__NODE__V1__NODE_MESSAGE__KIND_LEAVING, &leaving);
    CHECK_INT(find(&world, "mixed-0")->state, NODE_DRAINING);
    fake_die(&world, node);
    CHECK(metric_value(world.stats.node_deaths) == 0);
    world_finish(&world);
}

TEST(registry, many_nodes)
{
    struct world world;
    world_init(&world);
    static struct fake_node nodes[40];
    static char names[40][24];
    for (int i = 0; i < 40; i++) {
        snprintf(names[i], sizeof names[i], "node-%d", i);
        nodes[i] = (struct fake_node){.name = names[i],
                                      .role = BATON__NODE__V1__ROLE__ROLE_MIXED,
                                      .pages = 10,
                                      .sequences_max = 4};
        fake_connect(&world, &nodes[i]);
    }
    CHECK_INT(registry_view(&world.core.registry).node_count, 40);
    /* what was said before the tables grew is still known */
    fake_link_rate(&world, &nodes[3], &nodes[39], true, 4000000);
    static struct fake_node more[90];
    static char more_names[90][24];
    for (int i = 0; i < 90; i++) {
        snprintf(more_names[i], sizeof more_names[i], "more-%d", i);
        more[i] = (struct fake_node){.name = more_names[i],
                                     .role = BATON__NODE__V1__ROLE__ROLE_MIXED,
                                     .pages = 10,
                                     .sequences_max = 4};
        fake_connect(&world, &more[i]);
    }
    struct placement_view view = registry_view(&world.core.registry);
    size_t pair = find(&world, names[3])->slot * view.link_stride + find(&world, names[39])->slot;
    CHECK_INT(view.links[pair], PLACEMENT_LINK_UP);
    CHECK_INT(view.link_kb_per_s[pair], 4000);
    for (int i = 0; i < 90; i++) {
        fake_die(&world, &more[i]);
        fake_forget(&more[i]);
    }
    for (int i = 0; i < 40; i++) {
        CHECK_INT(find(&world, names[i])->state, NODE_SERVING);
        fake_die(&world, &nodes[i]);
        fake_forget(&nodes[i]);
    }
    world_finish(&world);
}
