/* What nodes say of their caches, and what the router makes of it. */
#include "tests/router/caches.h"

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
