/* How requests wait, in which order they are placed, and what ends them from outside: cancels and deadlines. */
#include "tests/router/pair.h"

TEST(queue, a_cancel_ends_both_legs_and_the_record_stays_until_they_have_ended)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    Baton__Node__V1__AttemptId id = fake_id(pair.to_p->attempt);
    core_cancel(&pair.world.core, pair.r, STATUS_CANCELLED);
    core_release(&pair.world.core, pair.r);
    CHECK(same_id(fake_end_heard(pair.p), &id) && same_id(fake_end_heard(pair.d), &id));
    CHECK_INT(pair.world.core.live, 1);
    fake_report(&pair.world, pair.p, &id, ENDED);
    CHECK_INT(pair.world.core.live, 1);
    fake_die(&pair.world, pair.d); /* a stream's end counts as well */
    check_nothing_left(&pair.world);
    world_finish(&pair.world);
}

TEST(queue, an_ended_that_never_comes_is_not_waited_for_forever)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    core_cancel(&pair.world.core, pair.r, STATUS_CANCELLED);
    core_release(&pair.world.core, pair.r);
    for (int i = 0; i < 18; i++) {
        world_pass(&pair.world, 250 * NS_PER_MS);
        fake_beat(&pair.world, pair.p);
        fake_beat(&pair.world, pair.d);
    }
    check_nothing_left(&pair.world);
    world_finish(&pair.world);
}

TEST(queue, its_own_deadline)
{
    struct pair pair = {0};
    world_pd(&pair.world, 1);
    pair.r = fake_request(&pair.client, 20, 4, NULL);
    pair.r->deadline_ns = pair.world.now_ns + 1500 * NS_PER_MS;
    CHECK_INT(core_admit(&pair.world.core, pair.r, NULL), STATUS_OK);
    core_schedule(&pair.world.core);
    CHECK_INT(fake_assigned(&pair.world.nodes[0])->deadline_ms, 1500);
    world_pass(&pair.world, 1490 * NS_PER_MS);
    CHECK(!pair.client.ended);
    world_pass(&pair.world, 10 * NS_PER_MS);
    CHECK(pair.client.ended);
    CHECK_INT(pair.r->end_code, GRPC_CODE_DEADLINE_EXCEEDED);
    pair_finish(&pair);
}

static void no_node(uint64_t deadline_in_ns, uint64_t patience_ns)
{
    struct world world;
    struct fake_client client;
    world_init(&world);
    struct request *r = fake_request(&client, 20, 4, NULL);
    if (deadline_in_ns)
        r->deadline_ns = world.now_ns + deadline_in_ns;
    CHECK_INT(core_admit(&world.core, r, NULL), STATUS_OK);
    core_schedule(&world.core);
    world_pass(&world, patience_ns - 10 * NS_PER_MS);
    CHECK(!client.ended);
    world_pass(&world, 10 * NS_PER_MS);
    CHECK(client.ended);
    CHECK_INT(r->end_code, GRPC_CODE_UNAVAILABLE);
    CHECK_INT(r->end_status, STATUS_NO_NODE);
    core_release(&world.core, r);
    check_nothing_left(&world);
    world_finish(&world);
}

TEST(queue, without_a_node_unavailable_after_node_wait_or_just_before_the_deadline)
{
    no_node(0, 20 * NS_PER_S);
    no_node(60 * NS_PER_S, 20 * NS_PER_S);
    no_node(3 * NS_PER_S, 2750 * NS_PER_MS);
}

TEST(queue, the_queue_goes_by_priority_then_age_and_nobody_overtakes)
{
    struct world world;
    struct fake_client clients[4];
    struct request *r[4];
    world_init(&world);
    for (int i = 0; i < 4; i++) {
        r[i] = fake_request(&clients[i], 20, 4, NULL);
        r[i]->priority = i == 2 ? 5 : i == 3 ? -1 : 0;
        CHECK_INT(core_admit(&world.core, r[i], NULL), STATUS_OK);
    }
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    node->sequences_max = 1;
    fake_connect(&world, node);
    static const int order[] = {2, 0, 1, 3};
    for (int i = 0; i < 4; i++) {
        const Baton__Node__V1__Assign *assign = fake_assigned(node);
        CHECK(assign && assign->age == r[order[i]]->age);
        CHECK(!fake_assigned(node));
        core_cancel(&world.core, r[order[i]], STATUS_CANCELLED);
        fake_report(&world, node, assign->attempt, ENDED);
        core_release(&world.core, r[order[i]]);
    }
    check_nothing_left(&world);
    world_finish(&world);
}

TEST(queue, a_full_queue_refuses)
{
    struct world world;
    struct fake_client clients[4];
    struct request *r[4];
    world_init_with(&world, (struct core_options){.queue_max = 2, .requests_max = 10});
    struct err err = ERR_INIT;
    for (int i = 0; i < 3; i++) {
        r[i] = fake_request(&clients[i], 20, 4, NULL);
        CHECK_INT(core_admit(&world.core, r[i], &err), i < 2 ? STATUS_OK : STATUS_FULL);
    }
    CHECK(strstr(err.message, "limit is 2"));
    request_destroy(r[2]);
    core_drain(&world.core);
    r[3] = fake_request(&clients[3], 20, 4, NULL);
    CHECK_INT(core_admit(&world.core, r[3], &err), STATUS_DRAINING);
    request_destroy(r[3]);
    core_cancel_all(&world.core, "draining");
    CHECK(clients[0].ended && clients[1].ended);
    CHECK_INT(r[0]->end_code, GRPC_CODE_UNAVAILABLE);
    core_release(&world.core, r[0]);
    core_release(&world.core, r[1]);
    check_nothing_left(&world);
    world_finish(&world);
}

TEST(queue, what_fits_no_pool_steps_aside_and_ends)
{
    struct world world;
    struct fake_client large, small;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    node->pages = 10;
    fake_connect(&world, node);
    struct request *r = fake_admit(&world, &large, 100, 100);
    struct request *s = fake_admit(&world, &small, 20, 20);
    const Baton__Node__V1__Assign *assign = fake_assigned(node);
    CHECK(assign && assign->n_prompt == 20);
    for (int i = 0; i < 85; i++) {
        CHECK(!large.ended);
        world_pass(&world, 250 * NS_PER_MS);
        fake_beat(&world, node);
        if (large.ended)
            break;
    }
    CHECK(large.ended);
    CHECK_INT(r->end_code, GRPC_CODE_UNAVAILABLE);
    CHECK(strstr(r->end_message, "large enough"));
    core_release(&world.core, r);
    if (request_open(s))
        core_cancel(&world.core, s, STATUS_CANCELLED);
    core_release(&world.core, s);
    world_finish(&world);
}

TEST(queue, a_resumed_answer_that_has_ended_needs_no_node)
{
    struct world world;
    struct fake_client client;
    world_init(&world);
    struct request *r = fake_request(&client, 20, 2, NULL);
    uint32_t received[] = {token_at(0), token_at(1)};
    CHECK_INT(answer_restore(&r->answer, received, 2, 2, NULL, 0, NULL), STATUS_OK);
    CHECK_INT(core_admit(&world.core, r, NULL), STATUS_OK);
    CHECK_INT(r->state, REQUEST_ENDED);
    client.count = 2;
    fake_progress(&client);
    CHECK(client.last);
    core_release(&world.core, r);
    check_nothing_left(&world);
    world_finish(&world);
}
