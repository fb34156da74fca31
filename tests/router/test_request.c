/* A request from its placement on: two attempts and their tokens, refusals, deaths, give-ups. */
#include "tests/router/pair.h"

TEST(request, a_hand_over_from_end_to_end)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    CHECK(same_id(pair.to_p->attempt, pair.to_d->attempt));
    CHECK_INT(pair.to_p->leg, BATON__NODE__V1__LEG__LEG_PREFILL);
    CHECK_INT(pair.to_d->leg, BATON__NODE__V1__LEG__LEG_DECODE);
    CHECK_STR(pair.to_d->source, "prefill-0");
    CHECK(pair.to_d->source_number == pair.to_p->number);
    CHECK(pair.to_d->source_incarnation == pair.p->incarnation);
    CHECK_INT(pair.to_p->n_prompt, 20);
    CHECK_INT(pair.to_d->n_generated, 0);
    CHECK(!pair.to_p->last_leg && !pair.to_p->alone);
    pair_accept(&pair);
    CHECK_INT(pair.r->state, REQUEST_PLACED);
    say(&pair.world, pair.p, pair.to_p->attempt, 0, GO);
    CHECK_INT(pair.r->state, REQUEST_HANDING_OFF);
    CHECK_INT(pair.client.count, 1); /* at once */
    const router_message *m = fake_hear(pair.d, FIRST);
    CHECK(m && m->first_token->position == 0 && m->first_token->token->id == token_at(0));
    say(&pair.world, pair.d, pair.to_d->attempt, 0, GO); /* its first report repeats the token */
    CHECK_INT(pair.r->state, REQUEST_STREAMING);
    fake_report(&pair.world, pair.p, pair.to_p->attempt, ENDED);
    say(&pair.world, pair.d, pair.to_d->attempt, 1, GO);
    say(&pair.world, pair.d, pair.to_d->attempt, 2, GO);
    say(&pair.world, pair.d, pair.to_d->attempt, 3, END);
    check_ids(&pair.client, 4);
    CHECK(pair.client.last);
    CHECK_INT(pair.r->state, REQUEST_ENDING);
    CHECK(same_id(fake_end_heard(pair.d), pair.to_d->attempt));
    CHECK(!fake_end_heard(pair.p)); /* it had ended */
    core_release(&pair.world.core, pair.r);
    CHECK_INT(pair.world.core.live, 1); /* D has not reported */
    fake_report(&pair.world, pair.d, pair.to_d->attempt, ENDED);
    check_nothing_left(&pair.world);
    fake_report(&pair.world, pair.d, pair.to_d->attempt, ENDED); /* said twice: no harm */
    CHECK(metric_value(pair.world.stats.replays) == 0);
    world_finish(&pair.world);
}

TEST(request, one_token_left_needs_no_decode_node)
{
    struct world world;
    struct fake_client client;
    world_pd(&world, 1);
    struct request *r = fake_admit(&world, &client, 20, 1);
    const Baton__Node__V1__Assign *assign = fake_assigned(&world.nodes[0]);
    CHECK(assign && assign->last_leg && assign->leg == BATON__NODE__V1__LEG__LEG_PREFILL);
    CHECK(!fake_assigned(&world.nodes[1]));
    fake_accept(&world, &world.nodes[0], assign);
    say(&world, &world.nodes[0], assign->attempt, 0, END);
    check_ids(&client, 1);
    CHECK(client.last);
    fake_report(&world, &world.nodes[0], assign->attempt, ENDED);
    CHECK_INT(r->state, REQUEST_ENDED);
    core_release(&world.core, r);
    check_nothing_left(&world);
    world_finish(&world);
}

TEST(request, a_first_token_that_ends_the_answer_ends_both_legs)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    say(&pair.world, pair.p, pair.to_p->attempt, 0, BATON__NODE__V1__FINISH__FINISH_STOP);
    CHECK(pair.client.last);
    CHECK(fake_end_heard(pair.p) && fake_end_heard(pair.d));
    CHECK(!fake_heard(pair.d, FIRST));
    pair_finish(&pair);
}

TEST(request, mixed_nodes_get_one_assignment)
{
    struct world world;
    struct fake_client client;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    fake_connect(&world, node);
    struct request *r = fake_admit(&world, &client, 20, 3);
    const Baton__Node__V1__Assign *assign = fake_assigned(node);
    CHECK_INT(assign->leg, BATON__NODE__V1__LEG__LEG_LOCAL);
    CHECK(!fake_assigned(node));
    fake_accept(&world, node, assign);
    for (uint32_t i = 0; i < 3; i++)
        say(&world, node, assign->attempt, i, i == 2 ? END : GO);
    check_ids(&client, 3);
    fake_report(&world, node, assign->attempt, ENDED);
    core_release(&world.core, r);
    check_nothing_left(&world);
    world_finish(&world);
}

TEST(request, a_short_prompt_and_one_behind_a_slow_link_are_read_on_d)
{
    struct world world;
    struct fake_client clients[3];
    struct request *r[3];
    world_pd(&world, 1);
    world.core.options.local_prefill_tokens = 30;
    struct fake_node *p = &world.nodes[0], *d = &world.nodes[1];
    r[0] = fake_admit(&world, &clients[0], 30, 3);
    const Baton__Node__V1__Assign *assign = fake_assigned(d);
    CHECK(assign && assign->leg == BATON__NODE__V1__LEG__LEG_LOCAL && !fake_assigned(p));
    r[1] = fake_admit(&world, &clients[1], 31, 3);
    CHECK(fake_assigned(p) && fake_assigned(d)->leg == BATON__NODE__V1__LEG__LEG_DECODE);
    p->prefill_tokens_per_s = 1000;
    fake_beat(&world, p);
    fake_link_rate(&world, d, p, true, 10000); /* 60 pages of 4 kB: 24 s */
    r[2] = fake_admit(&world, &clients[2], 960, 3);
    assign = fake_assigned(d);
    CHECK(assign && assign->leg == BATON__NODE__V1__LEG__LEG_LOCAL && !fake_assigned(p));
    for (int i = 0; i < 3; i++) {
        core_cancel(&world.core, r[i], STATUS_CANCELLED);
        core_release(&world.core, r[i]);
    }
    /* after half a minute one request tries the link again */
    for (int i = 0; i < 121; i++) {
        world_pass(&world, 250 * NS_PER_MS);
        fake_beat(&world, p);
        fake_beat(&world, d);
    }
    r[0] = fake_admit(&world, &clients[0], 960, 3);
    assign = fake_assigned(d);
    CHECK(assign && assign->leg == BATON__NODE__V1__LEG__LEG_DECODE && fake_assigned(p));
    r[1] = fake_admit(&world, &clients[1], 960, 3);
    assign = fake_assigned(d);
    CHECK(assign && assign->leg == BATON__NODE__V1__LEG__LEG_LOCAL && !fake_assigned(p));
    for (int i = 0; i < 2; i++) {
        core_cancel(&world.core, r[i], STATUS_CANCELLED);
        core_release(&world.core, r[i]);
    }
    world_finish(&world);
}

/* Answers of 9 pages, 3 to begin with, on a node of 20: how many are given to it at once. */
static uint32_t begun_at_once(struct world *world, struct fake_client clients[6], bool grows)
{
    world_init(world);
    struct fake_node *node = fake_add(world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    node->pages = 20;
    node->grows = grows;
    fake_connect(world, node);
    uint32_t begun = 0;
    for (int i = 0; i < 6; i++)
        fake_admit(world, &clients[i], 32, 100);
    while (fake_assigned(node))
        begun++;
    return begun;
}

static void end_all(struct world *world, struct fake_client clients[6])
{
    for (int i = 0; i < 6; i++) {
        core_cancel(&world->core, clients[i].request, STATUS_CANCELLED);
        core_release(&world->core, clients[i].request);
    }
    world_finish(world);
}

TEST(request, where_answers_grow_they_are_counted_as_they_grow)
{
    struct world world;
    struct fake_client clients[6];
    CHECK_INT(begun_at_once(&world, clients, false), 2);
    CHECK_INT(registry_find(&world.core.registry, "mixed-0")->pages_taken, 18);
    end_all(&world, clients);
    /* 3 each, and 1 for each that is there already */
    CHECK_INT(begun_at_once(&world, clients, true), 5);
    struct node *node = registry_find(&world.core.registry, "mixed-0");
    CHECK_INT(node->pages_taken, 15);
    const struct leg *leg = clients[0].request->sink;
    Baton__Node__V1__AttemptId id = BATON__NODE__V1__ATTEMPT_ID__INIT;
    id.high = leg->id.high;
    id.low = leg->id.low;
    for (uint32_t i = 0; i < 99; i++) {
        say(&world, &world.nodes[0], &id, i, GO);
        uint32_t pages = (32 + i + 1 + 15) / 16 + 1;
        CHECK_INT(node->pages_taken, 12 + (pages < 9 ? pages : 9));
    }
    say(&world, &world.nodes[0], &id, 99, END);
    fake_report(&world, &world.nodes[0], &id, ENDED);
    CHECK_INT(node->growing_legs, 5); /* the sixth has begun */
    end_all(&world, clients);
}

/* --- refusals --- */

TEST(request, a_full_prefill_node_is_asked_again_after_a_newer_heartbeat)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    Baton__Node__V1__AttemptId first = fake_id(pair.to_p->attempt);
    fake_accept(&pair.world, pair.d, pair.to_d);
    fake_verdict(&pair.world, pair.p, pair.to_p, BATON__NODE__V1__VERDICT__VERDICT_FULL);
    CHECK_INT(pair.r->state, REQUEST_QUEUED);
    CHECK(same_id(fake_end_heard(pair.d), &first)); /* by name, before anything else of it */
    CHECK(!fake_assigned(pair.p) && !fake_assigned(pair.d));
    fake_beat(&pair.world, pair.p);
    const Baton__Node__V1__Assign *again = fake_assigned(pair.p);
    CHECK(again && !same_id(again->attempt, &first));
    CHECK(again->age == pair.to_p->age);
    CHECK(metric_value(pair.world.stats.replays) == 0);
    pair_finish(&pair);
}

TEST(request, a_full_decode_node_does_not_end_the_prompt)
{
    struct pair pair = {0};
    pair_place(&pair, 2, 4);
    struct fake_node *other =
        pair.d == &pair.world.nodes[1] ? &pair.world.nodes[2] : &pair.world.nodes[1];
    fake_accept(&pair.world, pair.p, pair.to_p);
    fake_verdict(&pair.world, pair.d, pair.to_d, BATON__NODE__V1__VERDICT__VERDICT_FULL);
    CHECK(fake_heard(pair.p, RENEW));
    const Baton__Node__V1__Assign *offer = fake_assigned(other);
    CHECK(offer && same_id(offer->attempt, pair.to_p->attempt));
    CHECK(offer->source_number == pair.to_p->number);
    CHECK(!fake_end_heard(pair.p));
    pair_finish(&pair);
}

TEST(request, the_lease_is_renewed_while_a_decode_node_is_sought)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    fake_accept(&pair.world, pair.p, pair.to_p);
    fake_verdict(&pair.world, pair.d, pair.to_d, BATON__NODE__V1__VERDICT__VERDICT_FULL);
    CHECK(fake_heard(pair.p, RENEW));
    say(&pair.world, pair.p, pair.to_p->attempt, 0, GO);
    CHECK_INT(pair.client.count, 1); /* the client waits for no D */
    Baton__Node__V1__AttemptId id = fake_id(pair.to_p->attempt), *alive[] = {&id};
    for (int i = 0; i < 9; i++) { /* D stays silent about room, and is held for that long */
        world_pass(&pair.world, 250 * NS_PER_MS);
        fake_beat_alive(&pair.world, pair.p, true, alive, 1);
    }
    const router_message *m = fake_hear(pair.p, RENEW);
    CHECK(m && same_id(m->renew->attempt, &id));
    CHECK(!fake_heard(pair.p, RENEW)); /* every two seconds */
    fake_beat(&pair.world, pair.d);
    const Baton__Node__V1__Assign *offer = fake_assigned(pair.d);
    CHECK(offer && same_id(offer->attempt, &id) && offer->n_generated == 0);
    const router_message *first = fake_hear(pair.d, FIRST);
    CHECK(first && first->first_token->token->id == token_at(0));
    fake_accept(&pair.world, pair.d, offer);
    for (uint32_t i = 0; i < 4; i++)
        say(&pair.world, pair.d, offer->attempt, i, i == 3 ? END : GO);
    check_ids(&pair.client, 4);
    pair_finish(&pair);
}

TEST(request, draining_is_no_fault)
{
    struct pair pair = {0};
    pair_place(&pair, 2, 4);
    struct fake_node *other =
        pair.d == &pair.world.nodes[1] ? &pair.world.nodes[2] : &pair.world.nodes[1];
    fake_verdict(&pair.world, pair.d, pair.to_d, BATON__NODE__V1__VERDICT__VERDICT_DRAINING);
    CHECK_INT(registry_find(&pair.world.core.registry, pair.d->name)->state, NODE_DRAINING);
    CHECK(fake_assigned(other));
    CHECK(metric_value(pair.world.stats.replays) == 0);
    CHECK_INT(pair.r->deaths, 0);
    pair_finish(&pair);
}

TEST(request, an_assignment_that_a_node_calls_invalid_fails_the_request)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    fake_verdict(&pair.world, pair.p, pair.to_p, BATON__NODE__V1__VERDICT__VERDICT_INVALID);
    CHECK(pair.client.ended);
    CHECK_INT(pair.r->end_code, GRPC_CODE_INVALID_ARGUMENT);
    CHECK_STR(pair.r->end_message, "says the node");
    pair_finish(&pair);
}

/* --- deaths --- */

/* P dies before or after its token, D answers or dies too: every order ends in the same answer. */
static void prefill_dies(bool token_first, bool complete)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    Baton__Node__V1__AttemptId id = fake_id(pair.to_p->attempt);
    if (token_first)
        say(&pair.world, pair.p, &id, 0, GO);
    fake_die(&pair.world, pair.p);
    CHECK_INT(pair.r->state, REQUEST_SETTLING);
    const router_message *m = fake_hear(pair.d, SETTLE);
    CHECK(m && same_id(m->settle->attempt, &id));
    if (complete) {
        fake_report(&pair.world, pair.d, &id, BATON__NODE__V1__REPORT__KIND__COMPLETE);
        CHECK_INT(pair.r->state, REQUEST_STREAMING);
        for (uint32_t i = 0; i < 4; i++)
            say(&pair.world, pair.d, &id, i, i == 3 ? END : GO);
        CHECK(metric_value(pair.world.stats.replays) == 0);
    } else {
        fake_report(&pair.world, pair.d, &id, BATON__NODE__V1__REPORT__KIND__INCOMPLETE);
        CHECK(same_id(fake_end_heard(pair.d), &id));
        /* only D is left: it does both */
        const Baton__Node__V1__Assign *again = fake_assigned(pair.d);
        CHECK(again && again->leg == BATON__NODE__V1__LEG__LEG_LOCAL);
        CHECK_INT(again->n_generated, token_first);
        fake_accept(&pair.world, pair.d, again);
        for (uint32_t i = token_first; i < 4; i++)
            say(&pair.world, pair.d, again->attempt, i, i == 3 ? END : GO);
        CHECK_INT(pair.r->replays, 1);
        CHECK(metric_value(pair.world.stats.replays) == 1);
    }
    check_ids(&pair.client, 4);
    CHECK(pair.client.last);
    pair_finish(&pair);
}

TEST(request, prefill_dies_in_every_order)
{
    prefill_dies(false, false);
    prefill_dies(false, true);
    prefill_dies(true, false);
    prefill_dies(true, true);
}

TEST(request, a_token_of_d_settles_by_itself)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    fake_die(&pair.world, pair.p);
    CHECK_INT(pair.r->state, REQUEST_SETTLING);
    say(&pair.world, pair.d, pair.to_d->attempt, 0, GO);
    CHECK_INT(pair.r->state, REQUEST_STREAMING);
    CHECK_INT(pair.client.count, 1);
    pair_finish(&pair);
}

TEST(request, settling_has_a_deadline)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    Baton__Node__V1__AttemptId id = fake_id(pair.to_p->attempt), *alive[] = {&id};
    fake_die(&pair.world, pair.p);
    for (int i = 0; i < 17; i++) {
        CHECK_INT(pair.r->state, REQUEST_SETTLING);
        world_pass(&pair.world, 250 * NS_PER_MS);
        fake_beat_alive(&pair.world, pair.d, true, alive, 1);
    }
    CHECK(pair.r->state != REQUEST_SETTLING);
    CHECK(same_id(fake_end_heard(pair.d), &id));
    pair_finish(&pair);
}

/* D dies after `tokens` of its own; a second one goes on with what the router received. */
static void decode_dies(uint32_t tokens)
{
    struct pair pair = {0};
    pair_place(&pair, 2, 50);
    struct fake_node *other =
        pair.d == &pair.world.nodes[1] ? &pair.world.nodes[2] : &pair.world.nodes[1];
    pair_accept(&pair);
    Baton__Node__V1__AttemptId id = fake_id(pair.to_p->attempt);
    for (uint32_t i = 0; i < tokens; i++)
        say(&pair.world, i ? pair.d : pair.p, &id, i, GO);
    fake_die(&pair.world, pair.d);
    CHECK(same_id(fake_end_heard(pair.p), &id)); /* before the next on that stream */
    const Baton__Node__V1__Assign *to_p = fake_assigned(pair.p), *to_d = fake_assigned(other);
    CHECK(to_p && to_d && !same_id(to_p->attempt, &id));
    CHECK_INT(to_p->n_generated, tokens);
    CHECK_INT(to_d->n_generated, tokens);
    for (uint32_t i = 0; i < tokens; i++)
        CHECK_INT(to_p->generated[i], token_at(i));
    fake_accept(&pair.world, pair.p, to_p);
    fake_accept(&pair.world, other, to_d);
    /* what the first attempt still says is stale */
    double stale = metric_value(pair.world.stats.stale[STALE_TOKENS]);
    fake_token(&pair.world, pair.p, &id, tokens, 999, GO);
    CHECK(metric_value(pair.world.stats.stale[STALE_TOKENS]) == stale + 1);
    say(&pair.world, pair.p, to_p->attempt, tokens, GO);
    const router_message *m = fake_hear(other, FIRST);
    CHECK(m && m->first_token->position == tokens);
    for (uint32_t i = tokens; i < 50; i++)
        say(&pair.world, other, to_d->attempt, i, i == 49 ? END : GO);
    check_ids(&pair.client, 50);
    CHECK_INT(pair.r->replays, 1);
    CHECK_INT(pair.r->deaths, 1);
    pair_finish(&pair);
}

TEST(request, decode_dies_after_any_number_of_tokens)
{
    for (uint32_t tokens = 0; tokens < 48; tokens++)
        decode_dies(tokens);
}

TEST(request, tokens_held_back_for_a_stop_string_are_replayed_too)
{
    struct world world;
    struct fake_client client;
    world_pd(&world, 1);
    struct request *r = fake_request(&client, 20, 9, "lmn"); /* ids 11, 12, 13 */
    CHECK_INT(core_admit(&world.core, r, NULL), STATUS_OK);
    core_schedule(&world.core);
    const Baton__Node__V1__Assign *to_p = fake_assigned(&world.nodes[0]),
                                  *to_d = fake_assigned(&world.nodes[1]);
    fake_token(&world, &world.nodes[0], to_p->attempt, 0, 11, GO);
    fake_token(&world, &world.nodes[1], to_d->attempt, 1, 12, GO);
    CHECK_INT(client.count, 0); /* "lm" may become the stop string */
    fake_die(&world, &world.nodes[1]);
    const Baton__Node__V1__Assign *again = fake_assigned(&world.nodes[0]);
    CHECK(again && again->n_generated == 2 && again->generated[1] == 12);
    fake_token(&world, &world.nodes[0], again->attempt, 2, 13, GO);
    CHECK(client.last && client.count == 0);
    CHECK_STR(answer_stop_match(&r->answer), "lmn");
    CHECK(fake_end_heard(&world.nodes[0]));
    core_release(&world.core, r);
    world_finish(&world);
}

TEST(request, both_die)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 3);
    pair_accept(&pair);
    say(&pair.world, pair.p, pair.to_p->attempt, 0, GO);
    fake_die(&pair.world, pair.p);
    fake_die(&pair.world, pair.d);
    CHECK_INT(pair.r->state, REQUEST_QUEUED);
    fake_connect(&pair.world, pair.p);
    const Baton__Node__V1__Assign *again = fake_assigned(pair.p);
    CHECK(again && again->leg == BATON__NODE__V1__LEG__LEG_LOCAL && again->n_generated == 1);
    fake_accept(&pair.world, pair.p, again);
    say(&pair.world, pair.p, again->attempt, 1, GO);
    say(&pair.world, pair.p, again->attempt, 2, END);
    check_ids(&pair.client, 3);
    pair_finish(&pair);
}

TEST(request, from_the_third_death_alone_and_after_the_ninth_internal)
{
    struct world world;
    struct fake_client client;
    world_init(&world);
    struct fake_node *node = fake_add(&world, 0, "mixed-0", BATON__NODE__V1__ROLE__ROLE_MIXED);
    fake_connect(&world, node);
    struct request *r = fake_admit(&world, &client, 20, 30);
    for (uint32_t deaths = 0; deaths < 9; deaths++) {
        const Baton__Node__V1__Assign *assign = fake_assigned(node);
        CHECK(assign);
        CHECK_INT(assign->alone, deaths >= 3);
        CHECK_INT(assign->n_generated, deaths);
        fake_accept(&world, node, assign);
        say(&world, node, assign->attempt, deaths, GO);
        fake_die(&world, node);
        CHECK_INT(r->deaths, deaths + 1);
        if (deaths < 8)
            fake_connect(&world, node);
    }
    CHECK(client.ended);
    CHECK_INT(r->end_code, GRPC_CODE_INTERNAL);
    CHECK_INT(r->end_status, STATUS_INTERNAL);
    CHECK_INT(r->state, REQUEST_ENDED);
    check_ids(&client, 9);
    core_release(&world.core, r);
    check_nothing_left(&world);
    world_finish(&world);
}

TEST(request, a_mismatch_ends_the_registration_and_the_delivered_token_stands)
{
    struct pair pair = {0};
    pair_place(&pair, 2, 4);
    pair_accept(&pair);
    say(&pair.world, pair.p, pair.to_p->attempt, 0, GO);
    fake_token(&pair.world, pair.d, pair.to_d->attempt, 0, token_at(0) + 1, GO);
    CHECK(metric_value(pair.world.stats.mismatches) == 1);
    CHECK(pair.d->ended);
    CHECK(!pair.p->ended);
    CHECK(fake_assigned(pair.p)); /* placed again */
    check_ids(&pair.client, 1);
    pair_finish(&pair);
}

/* --- give-ups and signs of life --- */

TEST(request, a_give_up_marks_the_pair_and_wants_newer_heartbeats)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    Baton__Node__V1__AttemptId id = fake_id(pair.to_d->attempt);
    fake_report(&pair.world, pair.d, &id, BATON__NODE__V1__REPORT__KIND__GAVE_UP);
    CHECK(fake_end_heard(pair.p) && fake_end_heard(pair.d));
    CHECK(!fake_assigned(pair.p) && !fake_assigned(pair.d));
    CHECK_INT(pair.r->deaths, 0);
    fake_beat(&pair.world, pair.p);
    /* the pair is marked: one of the two does it alone */
    const Baton__Node__V1__Assign *again = fake_assigned(pair.p);
    CHECK(again && again->leg == BATON__NODE__V1__LEG__LEG_LOCAL);
    /* another request waits for the link no longer than that */
    struct fake_client second;
    fake_link(&pair.world, pair.d, pair.p, false);
    fake_link(&pair.world, pair.d, pair.p, true);
    fake_beat(&pair.world, pair.d);
    struct request *r = fake_admit(&pair.world, &second, 20, 4);
    const Baton__Node__V1__Assign *to_d = fake_assigned(pair.d);
    CHECK(to_d && to_d->leg == BATON__NODE__V1__LEG__LEG_DECODE);
    core_cancel(&pair.world.core, r, STATUS_CANCELLED);
    core_release(&pair.world.core, r);
    pair_finish(&pair);
}

TEST(request, four_seconds_without_a_sign_of_life)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    Baton__Node__V1__AttemptId id = fake_id(pair.to_p->attempt), *alive[] = {&id};
    for (int i = 0; i < 16; i++) { /* D beats, but lists it no more */
        world_pass(&pair.world, 250 * NS_PER_MS);
        fake_beat_alive(&pair.world, pair.p, true, alive, 1);
        fake_beat_alive(&pair.world, pair.d, true, NULL, 0);
    }
    CHECK_INT(pair.r->state, REQUEST_PLACED);
    world_pass(&pair.world, 250 * NS_PER_MS);
    CHECK_INT(pair.r->state, REQUEST_QUEUED);
    CHECK_INT(pair.r->deaths, 0);
    CHECK_INT(pair.r->replays, 1);
    fake_beat_alive(&pair.world, pair.p, true, NULL, 0);
    CHECK(!fake_assigned(pair.p)); /* D is held, and is the better choice: wait for its heartbeat */
    fake_beat_alive(&pair.world, pair.d, true, NULL, 0);
    CHECK(fake_assigned(pair.p));
    pair_finish(&pair);
}

TEST(request, lateness_of_the_router_is_no_silence_of_the_nodes)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    pair.world.late_ns = 10 * NS_PER_S;
    world_pass(&pair.world, 10 * NS_PER_S);
    CHECK_INT(pair.r->state, REQUEST_PLACED);
    CHECK(!pair.p->ended && !pair.d->ended);
    pair_finish(&pair);
}

TEST(request, a_dropped_source_asks_d)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    say(&pair.world, pair.p, pair.to_p->attempt, 0, GO);
    fake_report(&pair.world, pair.p, pair.to_p->attempt, BATON__NODE__V1__REPORT__KIND__DROPPED);
    CHECK(same_id(fake_end_heard(pair.p), pair.to_p->attempt));
    CHECK(fake_heard(pair.d, SETTLE));
    fake_report(&pair.world, pair.d, pair.to_d->attempt, BATON__NODE__V1__REPORT__KIND__COMPLETE);
    for (uint32_t i = 0; i < 4; i++)
        say(&pair.world, pair.d, pair.to_d->attempt, i, i == 3 ? END : GO);
    check_ids(&pair.client, 4);
    CHECK_INT(pair.r->deaths, 0);
    pair_finish(&pair);
}

TEST(request, a_dropped_reservation_queues_again)
{
    struct pair pair = {0};
    pair_place(&pair, 2, 4);
    struct fake_node *other =
        pair.d == &pair.world.nodes[1] ? &pair.world.nodes[2] : &pair.world.nodes[1];
    pair_accept(&pair);
    say(&pair.world, pair.p, pair.to_p->attempt, 0, GO);
    Baton__Node__V1__AttemptId id = fake_id(pair.to_p->attempt);
    fake_report(&pair.world, pair.d, &id, BATON__NODE__V1__REPORT__KIND__DROPPED);
    CHECK(same_id(fake_end_heard(pair.d), &id) && same_id(fake_end_heard(pair.p), &id));
    const Baton__Node__V1__Assign *again = fake_assigned(other);
    CHECK(again && !same_id(again->attempt, &id) && again->n_generated == 1);
    CHECK_INT(pair.r->deaths, 0);
    pair_finish(&pair);
}

TEST(request, a_failure_of_its_own_ends_the_request)
{
    struct pair pair = {0};
    pair_place(&pair, 1, 4);
    pair_accept(&pair);
    fake_report(&pair.world, pair.p, pair.to_p->attempt, BATON__NODE__V1__REPORT__KIND__FAILED);
    CHECK(pair.client.ended);
    CHECK_INT(pair.r->end_code, GRPC_CODE_INTERNAL);
    CHECK(fake_end_heard(pair.d));
    pair_finish(&pair);
}
