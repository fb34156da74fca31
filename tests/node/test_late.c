/* What a router says of an attempt that it has ended, late or twice, changes nothing: the pages are free, and the attempt that follows
 * for the same prompt answers as if there had been none before. */
#include "tests/node/fixture.h"

enum { ROUNDS = 24, PROMPT = 300, ANSWER = 16, SECOND = 60 };

static void renew(struct fixture *fixture, int node, int attempt)
{
    Baton__Node__V1__AttemptId id = BATON__NODE__V1__ATTEMPT_ID__INIT;
    Baton__Node__V1__Renew body = BATON__NODE__V1__RENEW__INIT;
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    id.high = UINT64_C(0xabcdef); /* as the fixture's ids */
    id.low = (uint64_t)attempt;
    body.attempt = &id;
    message.kind_case = BATON__NODE__V1__ROUTER_MESSAGE__KIND_RENEW;
    message.renew = &body;
    fixture_send(fixture, node, &message);
}

/* Everything that a router could still say of it, to both nodes; `token` is not its first one. */
static void say_everything(struct fixture *fixture, const struct assign *of, uint32_t token)
{
    for (int node = 0; node < 2; node++) {
        fixture_first_token(fixture, node, of->attempt, 0, token);
        fixture_settle(fixture, node, of->attempt);
        renew(fixture, node, of->attempt);
        fixture_end(fixture, node, of->attempt);
        /* the very assignment again, under its old number */
        uint64_t number = fixture->streams[node].number;
        struct assign again = *of;
        again.node = node;
        fixture->streams[node].number = number - 1;
        fixture_assign(fixture, &again);
        fixture->streams[node].number = number;
    }
}

TEST(node_late, words_about_an_attempt_that_was_ended)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 3, .kv_pages = 48});
    uint64_t random = 7;
    for (int i = 0; i < ROUNDS; i++) {
        prompt_make((uint32_t)i);
        random = random * 6364136223846793005u + 1442695040888963407u;
        struct assign assign = local(2, i, PROMPT, ANSWER);
        assign.logprobs = true;
        fixture_assign(fixture, &assign); /* alone, on the third node */
        fixture_wait_ended(fixture, 2, i);
        uint32_t wrong = fixture->heard[2][i].tokens[0] + 1;
        hand_off(fixture, assign);
        fixture_turn(fixture, (random >> 33) % 12000 * NS_PER_US);
        fixture_end(fixture, 0, i);
        fixture_end(fixture, 1, i);
        if (i % 2) /* while they still let go of it, or when they have */
            fixture_turn(fixture, 20 * NS_PER_MS);
        say_everything(fixture, &assign, wrong);
        struct assign second = assign;
        second.attempt = SECOND + i;
        hand_off(fixture, second);
        say_everything(fixture, &assign, wrong);
        fixture_wait_ended(fixture, 0, SECOND + i);
        fixture_wait_ended(fixture, 1, SECOND + i);
        const struct heard *alone = &fixture->heard[2][i], *d = &fixture->heard[1][SECOND + i];
        CHECK_INT(d->count, ANSWER);
        heard_equal(alone, d, ANSWER);
        heard_equal(alone, &fixture->heard[0][SECOND + i], 1);
        fixture_wait_ended(fixture, 0, i);
        fixture_wait_ended(fixture, 1, i);
    }
    for (int node = 0; node < 2; node++)
        CHECK(metric_value(fixture->nodes[node]->counted.stale_assign) >= 2 * ROUNDS);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}
