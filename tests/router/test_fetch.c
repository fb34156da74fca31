/* Pages that move between caches: fetches, what an attempt left behind, and hand-overs by nodes that leave. */
#include "tests/router/caches.h"

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

TEST(fetch, p_fetches_what_d_has_and_d_serves_until_the_first_token)
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

TEST(fetch, fetching_can_be_switched_off)
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

TEST(fetch, who_will_not_serve_changes_nothing)
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

TEST(fetch, who_stops_serving_changes_nothing)
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

TEST(fetch, who_serves_may_die)
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

TEST(fetch, p_dies_while_it_fetches)
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

TEST(fetch, a_cancel_ends_all_three_legs)
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

TEST(fetch, a_silent_server_is_ended_and_the_attempt_goes_on)
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

TEST(fetch, usage_says_what_was_not_computed)
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

TEST(fetch, after_a_drop_the_node_that_read_the_prompt_is_preferred)
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

TEST(fetch, what_d_verified_before_p_died_is_fetched_from_it)
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

TEST(fetch, what_d_verified_before_it_gave_up_is_fetched_from_it)
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

TEST(fetch, a_leaving_node_hands_over_what_it_decodes)
{
    for (uint32_t tokens = 2; tokens < 59; tokens++)
        handed_over(tokens, tokens % 2);
}

TEST(fetch, a_hand_over_before_the_first_token)
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

TEST(fetch, pages_on_their_way_to_d_are_not_handed_over)
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

TEST(fetch, with_nobody_else_a_hand_over_waits_for_a_node)
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
