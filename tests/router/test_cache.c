/* What nodes say of their caches, and what the router makes of it. */
#include <unistd.h>

#include "router/cache_key.h"
#include "tests/router/fake.h"

static struct node *find(struct world *world, const char *name)
{
    return registry_find(&world->core.registry, name);
}

/* The prompt of every fake request: 0, 1, 2, … */
static uint32_t prompt_hashes(const struct world *world, uint32_t tokens, uint64_t *hashes_out)
{
    uint32_t ids[4096];
    for (uint32_t i = 0; i < tokens; i++)
        ids[i] = i;
    return fake_hashes(world, NULL, ids, tokens, hashes_out);
}

/* Two prefill nodes (0, 1) and a decode node (2), linked. */
static void world_ppd(struct world *world)
{
    static const char *const names[] = {"prefill-0", "prefill-1", "decode-0"};
    world_init(world);
    for (int i = 0; i < 3; i++) {
        fake_add(world, i, names[i],
                 i == 2 ? BATON__NODE__V1__ROLE__ROLE_DECODE : BATON__NODE__V1__ROLE__ROLE_PREFILL);
        fake_connect(world, &world->nodes[i]);
    }
    for (int i = 0; i < 2; i++)
        fake_link(world, &world->nodes[2], &world->nodes[i], true);
    fake_link(world, &world->nodes[0], &world->nodes[1], true);
}

/* Ends it, and every node that still holds something of it says that it is free. */
static void give_up(struct world *world, struct request *r)
{
    core_cancel(&world->core, r, STATUS_CANCELLED);
    while (!list_empty(&r->legs)) {
        const struct leg *leg = container_of(r->legs.next, struct leg, request_link);
        Baton__Node__V1__AttemptId id = BATON__NODE__V1__ATTEMPT_ID__INIT;
        id.high = leg->id.high;
        id.low = leg->id.low;
        for (int i = 0; i < FAKE_NODES_MAX; i++)
            if (world->nodes[i].open && &world->nodes[i].stream == leg->node->stream) {
                fake_report(world, &world->nodes[i], &id, BATON__NODE__V1__REPORT__KIND__ENDED);
                break;
            }
    }
    CHECK_INT(r->state, REQUEST_ENDED);
    core_release(&world->core, r);
}

/* Which of the two prefill nodes reads a prompt of so many tokens. */
static int reader_of(struct world *world, uint32_t tokens)
{
    struct fake_client client;
    struct request *r = fake_admit(world, &client, tokens, 4);
    int reader = -1;
    for (int i = 0; i < 2; i++) {
        const Baton__Node__V1__Assign *assign = fake_assigned(&world->nodes[i]);
        if (assign && assign->leg == BATON__NODE__V1__LEG__LEG_PREFILL)
            reader = i;
    }
    give_up(world, r);
    return reader;
}

TEST(cache, every_node_gets_the_same_key)
{
    struct world world;
    static const uint8_t key[PREFIX_KEY_BYTES] = "fifteen letters";
    for (int configured = 0; configured < 2; configured++) {
        world_init_with(&world, (struct core_options){.cache_key = configured ? key : NULL});
        const char *const names[] = {"a", "b"};
        uint8_t keys[2][PREFIX_KEY_BYTES];
        for (int i = 0; i < 2; i++) {
            fake_add(&world, i, names[i], BATON__NODE__V1__ROLE__ROLE_MIXED);
            fake_connect(&world, &world.nodes[i]);
            const router_message *m =
                fake_hear(&world.nodes[i], BATON__NODE__V1__ROUTER_MESSAGE__KIND_WELCOME);
            CHECK(m);
            CHECK_INT(m->welcome->cache_key.len, PREFIX_KEY_BYTES);
            memcpy(keys[i], m->welcome->cache_key.data, PREFIX_KEY_BYTES);
        }
        CHECK(memcmp(keys[0], keys[1], PREFIX_KEY_BYTES) == 0);
        CHECK((memcmp(keys[0], key, PREFIX_KEY_BYTES) == 0) == configured);
        world_finish(&world);
    }
}

TEST(cache, a_key_is_given_as_digits_or_in_a_file)
{
    static const struct {
        const char *content; /* of a file; NULL: the text itself */
        const char *text;
        bool good;
    } rows[] = {
        {NULL, "00112233445566778899aAbBcCdDeEfF", true},
        {NULL, "00112233445566778899aabbccddeef", false},
        {NULL, "00112233445566778899aabbccddeefg", false},
        {NULL, "", false},
        {"\n 00112233445566778899aabbccddeeff \n", NULL, true},
        {"00112233445566778899aabbccddeeff0", NULL, false},
        {"00112233 445566778899aabbccddeeff", NULL, false},
        {"", NULL, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[] = "/tmp/baton-test-key-XXXXXX";
        if (rows[i].content) {
            int fd = mkstemp(path);
            CHECK(fd >= 0 && write(fd, rows[i].content, strlen(rows[i].content)) >= 0);
            close(fd);
        }
        uint8_t key[PREFIX_KEY_BYTES] = {7};
        struct err err = ERR_INIT;
        enum status status = cache_key_read(rows[i].content ? path : rows[i].text, key, &err);
        if (rows[i].content)
            unlink(path);
        CHECK_MSG(status == (rows[i].good ? STATUS_OK : STATUS_CONFIG), "row %zu", i);
        CHECK(rows[i].good ? key[1] == 0x11 && key[15] == 0xff : key[0] == 7);
        CHECK(rows[i].good || strstr(err.message, "cache_key: "));
    }
}

TEST(cache, a_prompt_goes_where_its_pages_are)
{
    struct world world;
    uint64_t hashes[FAKE_PAGES_MAX];
    world_ppd(&world);
    CHECK_INT(prompt_hashes(&world, 160, hashes), 10);
    CHECK_INT(reader_of(&world, 160), 0);
    fake_cached(&world, &world.nodes[1], false, hashes, 4, NULL, 0);
    CHECK_INT(reader_of(&world, 160), 1);
    CHECK_INT(reader_of(&world, 16),
              0); /* the last token is computed: its only page does not count */
    CHECK_INT(reader_of(&world, 17), 1);
    fake_cached(&world, &world.nodes[0], false, hashes, 5, NULL, 0);
    CHECK_INT(reader_of(&world, 160), 0);
    CHECK_INT(reader_of(&world, 65), 0); /* both have all four that count */
    fake_cached(&world, &world.nodes[0], false, NULL, 0, hashes + 2, 3);
    CHECK_INT(reader_of(&world, 160), 1);
    CHECK_INT(world.core.registry.index.entries, 6);
    /* twice, and what was never there */
    fake_cached(&world, &world.nodes[0], false, hashes, 2, hashes + 2, 8);
    CHECK_INT(world.core.registry.index.entries, 6);
    /* gone first, then come */
    fake_cached(&world, &world.nodes[0], false, hashes, 5, hashes, 5);
    CHECK_INT(reader_of(&world, 160), 0);
    fake_cached(&world, &world.nodes[0], true, hashes, 1, NULL, 0);
    CHECK_INT(reader_of(&world, 160), 1);
    CHECK_INT(world.core.registry.index.entries, 5);
    world_finish(&world);
}

TEST(cache, what_a_registration_said_ends_with_it)
{
    struct world world;
    uint64_t hashes[FAKE_PAGES_MAX];
    world_ppd(&world);
    prompt_hashes(&world, 160, hashes);
    fake_cached(&world, &world.nodes[1], false, hashes, 9, NULL, 0);
    CHECK_INT(reader_of(&world, 160), 1);
    fake_die(&world, &world.nodes[1]);
    CHECK_INT(world.core.registry.index.entries, 0);
    fake_connect(&world, &world.nodes[1]);
    fake_link(&world, &world.nodes[2], &world.nodes[1], true);
    CHECK_INT(reader_of(&world, 160), 0);
    /* also when a new one comes beside the old stream */
    fake_cached(&world, &world.nodes[1], false, hashes, 9, NULL, 0);
    struct fake_node *second =
        fake_add(&world, 3, "prefill-1", BATON__NODE__V1__ROLE__ROLE_PREFILL);
    fake_connect(&world, second);
    CHECK(world.nodes[1].ended);
    world.nodes[1].open = false;
    CHECK_INT(world.core.registry.index.entries, 0);
    world_finish(&world);
    CHECK_INT(world.core.registry.index.bytes, 0);
}

TEST(cache, what_is_beyond_the_bounds_is_forgotten_and_counted)
{
    struct world world;
    uint64_t hashes[FAKE_PAGES_MAX], forged[3000];
    world_ppd(&world);
    prompt_hashes(&world, 160, hashes);
    for (uint64_t i = 0; i < 3000; i++)
        forged[i] = i * UINT64_C(0x123456789abcdef);
    /* of a node: more than it has pages */
    fake_cached(&world, &world.nodes[1], false, forged, 3000, NULL, 0);
    CHECK_INT(world.core.registry.index.entries, 1000);
    CHECK(metric_value(world.stats.cache_forgotten) == 2000);
    CHECK_INT(reader_of(&world, 160), 0);
    fake_cached(&world, &world.nodes[1], false, hashes, 9, NULL, 0);
    CHECK(metric_value(world.stats.cache_forgotten) == 2009);
    CHECK_INT(reader_of(&world, 160), 0);
    fake_cached(&world, &world.nodes[1], false, hashes, 9, forged, 9);
    CHECK_INT(reader_of(&world, 160), 1);
    /* of all nodes */
    world.core.registry.index.entries_max = 1010;
    fake_cached(&world, &world.nodes[0], false, forged, 20, NULL, 0);
    CHECK_INT(world.core.registry.index.entries, 1010);
    CHECK(metric_value(world.stats.cache_forgotten) == 2019);
    fake_cached(&world, &world.nodes[1], true, NULL, 0, NULL, 0);
    CHECK_INT(world.core.registry.index.entries, 10);
    world_finish(&world);
}

TEST(cache, without_an_index_nothing_is_remembered)
{
    struct world world;
    uint64_t hashes[FAKE_PAGES_MAX];
    world_ppd(&world);
    world.core.registry.index.entries_max = 0;
    prompt_hashes(&world, 160, hashes);
    fake_cached(&world, &world.nodes[1], false, hashes, 9, NULL, 0);
    CHECK_INT(reader_of(&world, 160), 0);
    CHECK_INT(world.core.registry.index.bytes, 0);
    world_finish(&world);
}

TEST(cache, accounts_are_of_what_is_not_cached)
{
    struct world world;
    struct fake_client client;
    uint64_t hashes[FAKE_PAGES_MAX];
    world_pd(&world, 1);
    struct node *p = find(&world, "prefill-0"), *d = find(&world, "decode-0");
    prompt_hashes(&world, 160, hashes);
    fake_cached(&world, &world.nodes[0], false, hashes, 6, NULL, 0);
    fake_cached(&world, &world.nodes[1], false, hashes, 3, NULL, 0);
    struct request *r = fake_admit(&world, &client, 160, 33); /* 10 pages, and 12 in the end */
    CHECK_INT(p->pages_taken, 4);
    CHECK_INT(p->prefill_tokens, 64);
    CHECK_INT(d->pages_taken, 9);
    CHECK_INT(d->prefill_tokens, 0);
    give_up(&world, r);
    CHECK(p->pages_taken == 0 && p->prefill_tokens == 0 && d->pages_taken == 0);
    world_finish(&world);
}

/* D dies after 30 tokens; another prefill node has the pages of all that was said so far. */
TEST(cache, a_replay_finds_the_pages_of_the_answer_too)
{
    struct world world;
    struct fake_client client;
    uint32_t ids[64];
    uint64_t hashes[FAKE_PAGES_MAX];
    world_ppd(&world);
    struct fake_node *d = &world.nodes[2];
    struct request *r = fake_admit(&world, &client, 20, 40);
    const Baton__Node__V1__Assign *to_d = fake_assigned(d);
    CHECK(fake_assigned(&world.nodes[0]) && to_d);
    for (uint32_t i = 0; i < 64; i++)
        ids[i] = i < 20 ? i : 500 + i;
    for (uint32_t i = 0; i < 30; i++)
        fake_token(&world, i ? d : &world.nodes[0], to_d->attempt, i, ids[20 + i],
                   BATON__NODE__V1__FINISH__FINISH_NONE);
    /* the second page lies in prompt and answer */
    CHECK_INT(fake_hashes(&world, NULL, ids, 50, hashes), 3);
    fake_cached(&world, &world.nodes[1], false, hashes, 3, NULL, 0);
    fake_die(&world, d);
    fake_connect(&world, d);
    for (int i = 0; i < 2; i++)
        fake_link(&world, d, &world.nodes[i], true);
    const Baton__Node__V1__Assign *again = fake_assigned(&world.nodes[1]);
    CHECK(again && again->n_generated == 30);
    CHECK_INT(find(&world, "prefill-1")->prefill_tokens, 2); /* of 50 */
    give_up(&world, r);
    world_finish(&world);
}

/* --- tenants --- */

static struct request *admit_as(struct world *world, struct fake_client *client, uint32_t tokens,
                                const char *credentials)
{
    struct request *r = fake_request(client, tokens, 4, NULL);
    if (credentials)
        core_salt(&world->core, r, credentials, strlen(credentials));
    CHECK_INT(core_admit(&world->core, r, NULL), STATUS_OK);
    core_schedule(&world->core);
    return r;
}

TEST(cache, tenants_find_their_own_pages_only)
{
    struct world world;
    struct fake_client client;
    uint32_t ids[160];
    uint64_t hashes[FAKE_PAGES_MAX];
    world_ppd(&world);
    for (uint32_t i = 0; i < 160; i++)
        ids[i] = i;
    struct request *r = admit_as(&world, &client, 160, "Bearer a");
    uint8_t salt[PREFIX_SALT_BYTES];
    const Baton__Node__V1__Assign *assign = fake_assigned(&world.nodes[0]);
    CHECK(assign && assign->cache_salt.len == PREFIX_SALT_BYTES);
    memcpy(salt, assign->cache_salt.data, sizeof salt);
    assign = fake_assigned(&world.nodes[2]);
    CHECK(assign && assign->cache_salt.len == PREFIX_SALT_BYTES &&
          memcmp(assign->cache_salt.data, salt, sizeof salt) == 0);
    give_up(&world, r);
    fake_hashes(&world, salt, ids, 160, hashes);
    fake_cached(&world, &world.nodes[1], false, hashes, 9, NULL, 0);
    static const struct {
        const char *credentials;
        int reader;
    } rows[] = {{"Bearer a", 1}, {"Bearer b", 0}, {NULL, 0}, {"", 0}, {"Bearer a ", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        r = admit_as(&world, &client, 160, rows[i].credentials);
        assign = fake_assigned(&world.nodes[rows[i].reader]);
        CHECK_MSG(assign, "credentials %zu", i);
        CHECK_INT(assign->cache_salt.len, rows[i].credentials ? PREFIX_SALT_BYTES : 0);
        CHECK(!assign->fetch);
        give_up(&world, r);
    }
    world_finish(&world);
}

/* --- fetching from another node's cache --- */

#define GO BATON__NODE__V1__FINISH__FINISH_NONE
#define KIND(kind_) BATON__NODE__V1__REPORT__KIND__##kind_

/* A conversation's next turn: D holds 9 of the prompt's 10 pages, P none. */
struct turn {
    struct world world;
    struct fake_node *p, *d;
    struct fake_client client;
    struct request *r;
    const Baton__Node__V1__Assign *to_p, *to_d, *to_server;
    uint64_t hashes[FAKE_PAGES_MAX];
};

static void turn_place(struct turn *turn, int decode_count)
{
    world_pd(&turn->world, decode_count);
    turn->p = &turn->world.nodes[0];
    turn->d = &turn->world.nodes[1];
    prompt_hashes(&turn->world, 160, turn->hashes);
    fake_cached(&turn->world, turn->d, false, turn->hashes, 9, NULL, 0);
    turn->r = fake_admit(&turn->world, &turn->client, 160, 4);
    turn->to_server = fake_assigned(turn->d);
    turn->to_d = fake_assigned(turn->d);
    turn->to_p = fake_assigned(turn->p);
    CHECK(turn->to_p && turn->to_d && turn->to_server);
    CHECK_INT(turn->to_server->leg, BATON__NODE__V1__LEG__LEG_SERVE);
    CHECK_INT(turn->to_d->leg, BATON__NODE__V1__LEG__LEG_DECODE);
    CHECK_INT(turn->to_p->leg, BATON__NODE__V1__LEG__LEG_PREFILL);
}

static void turn_accept(struct turn *turn)
{
    fake_accept(&turn->world, turn->d, turn->to_server);
    fake_accept(&turn->world, turn->d, turn->to_d);
    fake_accept(&turn->world, turn->p, turn->to_p);
}

static bool ended(struct fake_node *node, const Baton__Node__V1__AttemptId *id)
{
    const Baton__Node__V1__AttemptId *heard = fake_end_heard(node);
    return heard && heard->high == id->high && heard->low == id->low;
}

/* The attempt goes on to its end, as if nobody had served anything. */
static void turn_goes_on(struct turn *turn)
{
    CHECK_INT(turn->r->state, REQUEST_PLACED);
    CHECK(!fake_assigned(turn->p));
    for (uint32_t i = 0; i < 4; i++)
        fake_token(&turn->world, i ? turn->d : turn->p, turn->to_d->attempt, i, 700 + i,
                   i == 3 ? BATON__NODE__V1__FINISH__FINISH_LENGTH : GO);
    CHECK(turn->client.last && turn->client.count == 4);
    CHECK(turn->r->replays == 0 && turn->r->deaths == 0);
    CHECK(metric_value(turn->world.stats.fetches) == 1);
}

static void turn_finish(struct turn *turn)
{
    give_up(&turn->world, turn->r);
    for (size_t i = 0; i < turn->world.core.registry.node_count; i++) {
        const struct node *node = turn->world.core.registry.nodes[i];
        CHECK(node->leg_count == 0 && node->serving_legs == 0 && node->pages_taken == 0 &&
              node->prefill_tokens == 0);
    }
    world_finish(&turn->world);
}

TEST(cache, p_fetches_what_d_has_and_d_serves_until_the_first_token)
{
    struct turn turn = {0};
    turn_place(&turn, 1);
    const Baton__Node__V1__Fetch *fetch = turn.to_p->fetch;
    CHECK(fetch && !turn.to_d->fetch && !turn.to_server->fetch);
    CHECK_STR(fetch->node, "decode-0");
    CHECK(fetch->incarnation == turn.d->incarnation && fetch->number == turn.to_server->number);
    CHECK(fetch->transfer->high == turn.to_server->attempt->high &&
          fetch->transfer->low == turn.to_server->attempt->low);
    CHECK(turn.to_server->attempt->high != turn.to_p->attempt->high);
    CHECK_INT(fetch->pages, 9);
    CHECK_INT(turn.to_server->serve_pages, 9);
    CHECK_INT(turn.to_server->n_prompt, 160);
    CHECK(turn.to_server->number < turn.to_d->number); /* P may ask at once */
    struct node *p = find(&turn.world, "prefill-0"), *d = find(&turn.world, "decode-0");
    CHECK_INT(p->prefill_tokens, 16);
    CHECK_INT(p->pages_taken, 10); /* they come into pages of its own */
    CHECK_INT(d->pages_taken, 2);
    CHECK_INT(registry_view(&turn.world.core.registry).nodes[d->slot].sequences, 1);
    turn_accept(&turn);
    CHECK(!fake_end_heard(turn.d));
    Baton__Node__V1__AttemptId served = fake_id(turn.to_server->attempt);
    fake_token(&turn.world, turn.p, turn.to_p->attempt, 0, 700, GO);
    CHECK(ended(turn.d, &served));
    CHECK_INT(d->serving_legs, 1);
    fake_report(&turn.world, turn.d, &served, KIND(ENDED));
    CHECK_INT(d->serving_legs, 0);
    CHECK_INT(turn.r->state, REQUEST_HANDING_OFF);
    turn_finish(&turn);
}

TEST(cache, fetching_can_be_switched_off)
{
    struct world world;
    struct fake_client client;
    uint64_t hashes[FAKE_PAGES_MAX];
    world_pd(&world, 1);
    world.core.options.fetch = PLACEMENT_FETCH_OFF;
    prompt_hashes(&world, 160, hashes);
    fake_cached(&world, &world.nodes[1], false, hashes, 9, NULL, 0);
    struct request *r = fake_admit(&world, &client, 160, 4);
    CHECK(!fake_assigned(&world.nodes[0])->fetch);
    CHECK_INT(fake_assigned(&world.nodes[1])->leg, BATON__NODE__V1__LEG__LEG_DECODE);
    give_up(&world, r);
    world_finish(&world);
}

TEST(cache, who_will_not_serve_changes_nothing)
{
    static const Baton__Node__V1__Verdict verdicts[] = {
        BATON__NODE__V1__VERDICT__VERDICT_GONE, BATON__NODE__V1__VERDICT__VERDICT_FULL,
        BATON__NODE__V1__VERDICT__VERDICT_DRAINING, BATON__NODE__V1__VERDICT__VERDICT_INVALID};
    for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++) {
        struct turn turn = {0};
        turn_place(&turn, 1);
        fake_verdict(&turn.world, turn.d, turn.to_server, verdicts[i]);
        CHECK_INT(find(&turn.world, "decode-0")->serving_legs, 0);
        CHECK_INT(find(&turn.world, "decode-0")->state, NODE_SERVING);
        CHECK(metric_value(turn.world.stats.fetches_refused) == 1);
        fake_accept(&turn.world, turn.d, turn.to_d);
        fake_accept(&turn.world, turn.p, turn.to_p);
        CHECK(!fake_end_heard(turn.d));
        turn_goes_on(&turn);
        turn_finish(&turn);
    }
}

TEST(cache, who_stops_serving_changes_nothing)
{
    static const Baton__Node__V1__Report__Kind kinds[] = {KIND(ENDED), KIND(DROPPED), KIND(FAILED),
                                                          KIND(GAVE_UP), KIND(HAND_OVER)};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct turn turn = {0};
        turn_place(&turn, 1);
        turn_accept(&turn);
        Baton__Node__V1__AttemptId served = fake_id(turn.to_server->attempt);
        fake_report(&turn.world, turn.d, &served, kinds[i]);
        if (kinds[i] == KIND(DROPPED) || kinds[i] == KIND(FAILED))
            CHECK(ended(turn.d, &served)); /* by name, and answered */
        else
            CHECK(!fake_end_heard(turn.d));
        fake_report(&turn.world, turn.d, &served, KIND(ENDED));
        fake_report(&turn.world, turn.d, &served, KIND(ENDED)); /* said twice */
        CHECK_INT(find(&turn.world, "decode-0")->serving_legs, 0);
        turn_goes_on(&turn);
        CHECK_INT(turn.world.core.live, 1);
        turn_finish(&turn);
    }
}

TEST(cache, who_serves_may_die)
{
    struct turn turn = {0};
    turn_place(&turn, 2);
    turn_accept(&turn);
    /* another decode node took the sequence? no: here D both serves and decodes, so a third node serves a second request */
    give_up(&turn.world, turn.r);
    struct fake_node *other = &turn.world.nodes[2];
    fake_cached(&turn.world, turn.d, true, NULL, 0, NULL, 0);
    fake_cached(&turn.world, other, false, turn.hashes, 9, NULL, 0);
    turn.world.core.options.local_prefill_tokens = 0;
    /* `other` holds the pages, but is too full to decode */
    find(&turn.world, "decode-1")->sequences_max = 0;
    turn.r = fake_admit(&turn.world, &turn.client, 160, 4);
    turn.to_server = fake_assigned(other);
    turn.to_d = fake_assigned(turn.d);
    turn.to_p = fake_assigned(turn.p);
    CHECK(turn.to_server && turn.to_server->leg == BATON__NODE__V1__LEG__LEG_SERVE);
    CHECK(turn.to_d && turn.to_p && turn.to_p->fetch);
    CHECK_STR(turn.to_p->fetch->node, "decode-1");
    fake_accept(&turn.world, other, turn.to_server);
    fake_accept(&turn.world, turn.d, turn.to_d);
    fake_accept(&turn.world, turn.p, turn.to_p);
    fake_die(&turn.world, other);
    CHECK_INT(turn.r->deaths, 0);
    CHECK(!turn.r->server);
    CHECK(metric_value(turn.world.stats.replays) == 0);
    for (uint32_t i = 0; i < 4; i++)
        fake_token(&turn.world, i ? turn.d : turn.p, turn.to_d->attempt, i, 700 + i,
                   i == 3 ? BATON__NODE__V1__FINISH__FINISH_LENGTH : GO);
    CHECK(turn.client.last && turn.client.count == 4);
    turn_finish(&turn);
}

TEST(cache, p_dies_while_it_fetches)
{
    struct turn turn = {0};
    turn_place(&turn, 1);
    turn_accept(&turn);
    Baton__Node__V1__AttemptId served = fake_id(turn.to_server->attempt),
                               id = fake_id(turn.to_d->attempt);
    fake_die(&turn.world, turn.p);
    CHECK_INT(turn.r->state, REQUEST_SETTLING);
    fake_report(&turn.world, turn.d, &id, KIND(INCOMPLETE));
    /* both legs there are ended by name before the next on that stream; D computes, with its own pages */
    size_t ends = 0;
    const Baton__Node__V1__Assign *again = NULL;
    for (; turn.d->read < turn.d->message_count && !again; turn.d->read++) {
        const router_message *m = turn.d->messages[turn.d->read];
        if (m->kind_case == BATON__NODE__V1__ROUTER_MESSAGE__KIND_END)
            ends += m->end->attempt->high == served.high || m->end->attempt->high == id.high;
        if (m->kind_case == BATON__NODE__V1__ROUTER_MESSAGE__KIND_ASSIGN)
            again = m->assign;
    }
    CHECK_INT(ends, 2);
    CHECK(again && again->leg == BATON__NODE__V1__LEG__LEG_LOCAL && !again->fetch);
    CHECK_INT(find(&turn.world, "decode-0")->prefill_tokens, 16);
    CHECK_INT(turn.r->deaths, 1);
    fake_report(&turn.world, turn.d, &served, KIND(ENDED));
    fake_report(&turn.world, turn.d, &id, KIND(ENDED));
    CHECK_INT(find(&turn.world, "decode-0")->leg_count, 1);
    turn_finish(&turn);
}

TEST(cache, a_cancel_ends_all_three_legs)
{
    struct turn turn = {0};
    turn_place(&turn, 1);
    turn_accept(&turn);
    Baton__Node__V1__AttemptId served = fake_id(turn.to_server->attempt),
                               id = fake_id(turn.to_d->attempt);
    core_cancel(&turn.world.core, turn.r, STATUS_CANCELLED);
    CHECK(fake_end_heard(turn.p) && fake_end_heard(turn.d) && fake_end_heard(turn.d));
    fake_report(&turn.world, turn.p, &id, KIND(ENDED));
    fake_report(&turn.world, turn.d, &id, KIND(ENDED));
    CHECK_INT(turn.r->state, REQUEST_ENDING);
    fake_report(&turn.world, turn.d, &served, KIND(ENDED));
    CHECK_INT(turn.r->state, REQUEST_ENDED);
    turn_finish(&turn);
}

TEST(cache, a_silent_server_is_ended_and_the_attempt_goes_on)
{
    struct turn turn = {0};
    turn_place(&turn, 1);
    turn_accept(&turn);
    Baton__Node__V1__AttemptId served = fake_id(turn.to_server->attempt),
                               id = fake_id(turn.to_d->attempt), *alive[] = {&id};
    for (int i = 0; i < 17; i++) { /* the leg that serves is listed no more */
        CHECK(!fake_end_heard(turn.d));
        world_pass(&turn.world, 250 * NS_PER_MS);
        fake_beat_alive(&turn.world, turn.p, true, alive, 1);
        fake_beat_alive(&turn.world, turn.d, true, alive, 1);
    }
    CHECK(ended(turn.d, &served));
    for (int i = 0; i < 18; i++) { /* and an ENDED that never comes is not waited for forever */
        world_pass(&turn.world, 250 * NS_PER_MS);
        fake_beat_alive(&turn.world, turn.p, true, alive, 1);
        fake_beat_alive(&turn.world, turn.d, true, alive, 1);
    }
    CHECK_INT(find(&turn.world, "decode-0")->serving_legs, 0);
    turn_goes_on(&turn);
    turn_finish(&turn);
}

TEST(cache, usage_says_what_was_not_computed)
{
    struct turn turn = {0};
    turn_place(&turn, 1);
    turn_accept(&turn);
    Baton__Node__V1__AttemptId id = fake_id(turn.to_p->attempt);
    Baton__Node__V1__Token token = BATON__NODE__V1__TOKEN__INIT, *tokens[] = {&token};
    Baton__Node__V1__TokenRun run = BATON__NODE__V1__TOKEN_RUN__INIT, *runs[] = {&run};
    Baton__Node__V1__Tokens body = BATON__NODE__V1__TOKENS__INIT;
    run.attempt = &id;
    run.tokens = tokens;
    run.n_tokens = 1;
    body.runs = runs;
    body.n_runs = 1;
    /* D's repetition overtakes P's report */
    fake_say(&turn.world, turn.d, BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS, &body);
    CHECK_INT(turn.r->timing.cached_tokens, 0);
    run.cached_tokens = 144;
    run.prefill_us = 5000;
    fake_say(&turn.world, turn.p, BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS, &body);
    CHECK_INT(turn.r->timing.cached_tokens, 144);
    turn_finish(&turn);
    /* also in an attempt that follows another which gave no token */
    struct turn second = {0};
    turn_place(&second, 1);
    turn_accept(&second);
    fake_report(&second.world, second.p, second.to_p->attempt, KIND(DROPPED));
    id = fake_id(second.to_d->attempt);
    fake_report(&second.world, second.d, &id, KIND(INCOMPLETE));
    fake_beat(&second.world, second.p);
    const Baton__Node__V1__Assign *again = fake_assigned(second.p);
    CHECK(again && second.r->replays == 1);
    id = fake_id(again->attempt);
    run.cached_tokens = 0;
    run.prefill_us = 0;
    fake_say(&second.world, second.d, BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS, &body);
    run.cached_tokens = 144;
    run.prefill_us = 5000;
    fake_say(&second.world, second.p, BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS, &body);
    CHECK_INT(second.r->timing.cached_tokens, 144);
    turn_finish(&second);
    /* never more than the prompt has */
    struct turn forged = {0};
    turn_place(&forged, 1);
    turn_accept(&forged);
    id = fake_id(forged.to_p->attempt);
    run.cached_tokens = 100000;
    fake_say(&forged.world, forged.p, BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS, &body);
    CHECK_INT(forged.r->timing.cached_tokens, 160);
    turn_finish(&forged);
}

/* --- what an attempt left behind --- */

TEST(cache, after_a_drop_the_node_that_read_the_prompt_is_preferred)
{
    struct world world;
    struct fake_client client;
    world_ppd(&world);
    world.core.options.fetch = PLACEMENT_FETCH_OFF;
    struct request *r = fake_admit(&world, &client, 160, 4);
    const Baton__Node__V1__Assign *to_p = fake_assigned(&world.nodes[0]);
    CHECK(to_p && !fake_assigned(&world.nodes[1]));
    fake_token(&world, &world.nodes[0], to_p->attempt, 0, 700, GO);
    find(&world, "prefill-0")->prefill_tokens +=
        100; /* it has got other work since, the other has none */
    fake_report(&world, &world.nodes[2], to_p->attempt, KIND(DROPPED));
    fake_beat(&world, &world.nodes[2]);
    const Baton__Node__V1__Assign *again = fake_assigned(&world.nodes[0]);
    CHECK(again && again->n_generated == 1 && !again->fetch);
    CHECK_INT(find(&world, "prefill-0")->prefill_tokens, 101); /* one of its 161 */
    /* of a later life it is not true any more */
    fake_report(&world, &world.nodes[2], again->attempt, KIND(DROPPED));
    find(&world, "prefill-0")->prefill_tokens -= 100;
    fake_die(&world, &world.nodes[0]);
    fake_connect(&world, &world.nodes[0]);
    fake_link(&world, &world.nodes[2], &world.nodes[0], true);
    fake_beat(&world, &world.nodes[2]);
    CHECK(fake_assigned(&world.nodes[0]) || fake_assigned(&world.nodes[1]));
    CHECK_INT(find(&world, "prefill-0")->prefill_tokens + find(&world, "prefill-1")->prefill_tokens,
              161);
    give_up(&world, r);
    world_finish(&world);
}

TEST(cache, what_d_verified_before_p_died_is_fetched_from_it)
{
    for (uint32_t pages = 0; pages < 12;
         pages += 11) { /* none; more than count, as somebody forged it */
        struct world world;
        struct fake_client client;
        world_ppd(&world);
        struct request *r = fake_admit(&world, &client, 160, 4);
        const Baton__Node__V1__Assign *to_p = fake_assigned(&world.nodes[0]);
        CHECK(to_p && fake_assigned(&world.nodes[2]));
        Baton__Node__V1__AttemptId id = fake_id(to_p->attempt);
        fake_die(&world, &world.nodes[0]);
        CHECK_INT(r->state, REQUEST_SETTLING);
        fake_report_pages(&world, &world.nodes[2], &id, KIND(INCOMPLETE), pages);
        CHECK(ended(&world.nodes[2], &id));
        const Baton__Node__V1__Assign *serve = fake_assigned(&world.nodes[2]),
                                      *again = fake_assigned(&world.nodes[1]);
        CHECK(serve && again);
        CHECK_INT(serve->leg,
                  pages ? BATON__NODE__V1__LEG__LEG_SERVE : BATON__NODE__V1__LEG__LEG_DECODE);
        CHECK((again->fetch != NULL) == (pages > 0));
        if (pages)
            CHECK(serve->serve_pages == 9 && again->fetch->pages == 9);
        CHECK_INT(find(&world, "prefill-1")->prefill_tokens, pages ? 16 : 160);
        give_up(&world, r);
        world_finish(&world);
    }
}

TEST(cache, what_d_verified_before_it_gave_up_is_fetched_from_it)
{
    struct world world;
    struct fake_client client;
    world_ppd(&world);
    struct request *r = fake_admit(&world, &client, 160, 4);
    const Baton__Node__V1__Assign *to_p = fake_assigned(&world.nodes[0]);
    Baton__Node__V1__AttemptId id = fake_id(to_p->attempt);
    fake_report_pages(&world, &world.nodes[2], &id, KIND(GAVE_UP), 7);
    CHECK(!fake_assigned(&world.nodes[1])); /* after a newer heartbeat */
    fake_beat(&world, &world.nodes[2]);
    const Baton__Node__V1__Assign *again = fake_assigned(&world.nodes[1]);
    CHECK(again && again->fetch && again->fetch->pages == 7);
    give_up(&world, r);
    world_finish(&world);
}

/* --- hand-over --- */

/* D leaves after `tokens` of its own; another goes on, from D's cache. */
static void handed_over(uint32_t tokens, bool late_end)
{
    struct world world;
    struct fake_client client;
    world_pd(&world, 2);
    struct fake_node *p = &world.nodes[0];
    struct request *r = fake_admit(&world, &client, 100, 60);
    const Baton__Node__V1__Assign *to_d = fake_assigned(&world.nodes[1]);
    struct fake_node *d = &world.nodes[to_d ? 1 : 2], *other = &world.nodes[to_d ? 2 : 1];
    to_d = to_d ? to_d : fake_assigned(d);
    CHECK(to_d && fake_assigned(p));
    Baton__Node__V1__AttemptId id = fake_id(to_d->attempt);
    for (uint32_t i = 0; i < tokens; i++)
        fake_token(&world, i ? d : p, &id, i, 500 + i, GO);
    fake_report(&world, d, &id, KIND(HAND_OVER));
    CHECK_INT(find(&world, d->name)->state, NODE_DRAINING);
    CHECK(metric_value(world.stats.handovers) == 1);
    CHECK(metric_value(world.stats.replays) == 0 && r->replays == 0 && r->deaths == 0);
    CHECK(ended(d, &id)); /* before it is to serve */
    const Baton__Node__V1__Assign *serve = fake_assigned(d), *again = fake_assigned(p),
                                  *to_other = fake_assigned(other);
    CHECK(again && to_other && again->n_generated == tokens);
    /* whole pages of all that it has computed: not the last token; P has those of the prompt */
    uint32_t pages = tokens < 2 ? 0 : (100 + tokens - 1) / 16;
    CHECK((serve != NULL) == (pages > 6));
    if (serve) {
        CHECK_INT(serve->leg, BATON__NODE__V1__LEG__LEG_SERVE);
        CHECK_INT(serve->serve_pages, pages);
        CHECK(again->fetch && again->fetch->number == serve->number);
        fake_accept(&world, d, serve);
    }
    fake_token(&world, d, &id, tokens, 999, GO); /* it goes on until it hears of it */
    CHECK_INT(client.count, tokens);
    if (!late_end)
        fake_report(&world, d, &id, KIND(ENDED));
    for (uint32_t i = tokens; i < 60; i++)
        fake_token(&world, i > tokens ? other : p, again->attempt, i, 500 + i,
                   i == 59 ? BATON__NODE__V1__FINISH__FINISH_LENGTH : GO);
    CHECK(client.last && client.count == 60);
    for (uint32_t i = 0; i < 60; i++)
        CHECK_INT(client.ids[i], 500 + i);
    if (late_end)
        fake_report(&world, d, &id, KIND(ENDED));
    give_up(&world, r);
    world_finish(&world);
}

TEST(cache, a_leaving_node_hands_over_what_it_decodes)
{
    for (uint32_t tokens = 2; tokens < 59; tokens++)
        handed_over(tokens, tokens % 2);
}

TEST(cache, a_hand_over_before_the_first_token)
{
    struct world world;
    struct fake_client client;
    static const char *const names[] = {"mixed-0", "mixed-1"};
    world_init(&world);
    for (int i = 0; i < 2; i++) {
        fake_add(&world, i, names[i], BATON__NODE__V1__ROLE__ROLE_MIXED);
        fake_connect(&world, &world.nodes[i]);
    }
    fake_link(&world, &world.nodes[0], &world.nodes[1], true);
    struct request *r = fake_admit(&world, &client, 100, 3);
    const Baton__Node__V1__Assign *first = fake_assigned(&world.nodes[0]);
    CHECK(first);
    Baton__Node__V1__AttemptId id = fake_id(first->attempt);
    /* it has computed some of it, and says so */
    uint64_t hashes[FAKE_PAGES_MAX];
    prompt_hashes(&world, 100, hashes);
    fake_cached(&world, &world.nodes[0], false, hashes, 3, NULL, 0);
    fake_report(&world, &world.nodes[0], &id, KIND(HAND_OVER));
    CHECK(ended(&world.nodes[0], &id));
    const Baton__Node__V1__Assign *serve = fake_assigned(&world.nodes[0]),
                                  *again = fake_assigned(&world.nodes[1]);
    CHECK(serve && serve->serve_pages == 3 && again && again->n_generated == 0);
    CHECK(again->fetch && again->fetch->pages == 3);
    CHECK_INT(r->replays, 0);
    /* the leaving node goes while it serves: computed */
    Baton__Node__V1__Leaving leaving = BATON__NODE__V1__LEAVING__INIT;
    fake_say(&world, &world.nodes[0], BATON__NODE__V1__NODE_MESSAGE__KIND_LEAVING, &leaving);
    fake_die(&world, &world.nodes[0]);
    for (uint32_t i = 0; i < 3; i++)
        fake_token(&world, &world.nodes[1], again->attempt, i, 500 + i,
                   i == 2 ? BATON__NODE__V1__FINISH__FINISH_LENGTH : GO);
    CHECK(client.last);
    CHECK(r->replays == 0 && r->deaths == 0 && metric_value(world.stats.node_deaths) == 0);
    give_up(&world, r);
    world_finish(&world);
}

TEST(cache, pages_on_their_way_to_d_are_not_handed_over)
{
    struct world world;
    struct fake_client client;
    world_pd(&world, 1);
    struct fake_node *p = &world.nodes[0], *d = &world.nodes[1];
    struct request *r = fake_admit(&world, &client, 100, 3);
    const Baton__Node__V1__Assign *to_p = fake_assigned(p);
    Baton__Node__V1__AttemptId id = fake_id(to_p->attempt);
    fake_token(&world, p, &id, 0, 500, GO);
    fake_report(&world, p, &id, KIND(HAND_OVER));
    CHECK_INT(r->state, REQUEST_HANDING_OFF);
    CHECK(!fake_end_heard(p) && !fake_end_heard(d));
    CHECK_INT(find(&world, "prefill-0")->state, NODE_DRAINING);
    CHECK(metric_value(world.stats.handovers) == 0);
    fake_token(&world, d, &id, 1, 501, GO);
    fake_report(&world, p, &id, KIND(HAND_OVER)); /* and its part is over now */
    CHECK_INT(r->state, REQUEST_STREAMING);
    give_up(&world, r);
    world_finish(&world);
}

TEST(cache, with_nobody_else_a_hand_over_waits_for_a_node)
{
    struct world world;
    struct fake_client client;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    fake_connect(&world, node);
    struct request *r = fake_admit(&world, &client, 40, 5);
    Baton__Node__V1__AttemptId id = fake_id(fake_assigned(node)->attempt);
    fake_token(&world, node, &id, 0, 500, GO);
    fake_report(&world, node, &id, KIND(HAND_OVER));
    CHECK_INT(r->state, REQUEST_QUEUED);
    CHECK(ended(node, &id) && !fake_assigned(node));
    struct fake_node *second = fake_add(&world, 1, "mixed-1", BATON__NODE__V1__ROLE__ROLE_MIXED);
    fake_connect(&world, second);
    const Baton__Node__V1__Assign *again = fake_assigned(second);
    CHECK(again && again->n_generated == 1);
    give_up(&world, r);
    world_finish(&world);
}
