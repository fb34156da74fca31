/* What the tests of requests and of the queue share: what attempts answer, and a prefill and a decode node with one request. */
#ifndef BATON_TESTS_ROUTER_PAIR_H
#define BATON_TESTS_ROUTER_PAIR_H

#include "tests/router/fake.h"

#define END BATON__NODE__V1__FINISH__FINISH_LENGTH
#define GO BATON__NODE__V1__FINISH__FINISH_NONE
#define ENDED BATON__NODE__V1__REPORT__KIND__ENDED
#define FIRST BATON__NODE__V1__ROUTER_MESSAGE__KIND_FIRST_TOKEN
#define SETTLE BATON__NODE__V1__ROUTER_MESSAGE__KIND_SETTLE
#define RENEW BATON__NODE__V1__ROUTER_MESSAGE__KIND_RENEW

/* What every attempt of these tests answers: the token of a position. */
static inline uint32_t token_at(uint32_t position)
{
    return (position * 37 + 11) % 1000;
}

static inline void say(struct world *world, struct fake_node *node,
                       const Baton__Node__V1__AttemptId *id, uint32_t position,
                       Baton__Node__V1__Finish finish)
{
    fake_token(world, node, id, position, token_at(position), finish);
}

static inline void check_ids(const struct fake_client *client, uint32_t count)
{
    CHECK_INT(client->count, count);
    for (uint32_t i = 0; i < count; i++)
        CHECK_INT(client->ids[i], token_at(i));
}

static inline bool same_id(const Baton__Node__V1__AttemptId *a, const Baton__Node__V1__AttemptId *b)
{
    return a && b && a->high == b->high && a->low == b->low;
}

/* Nothing is left of the request anywhere. */
static inline void check_nothing_left(struct world *world)
{
    for (size_t i = 0; i < world->core.registry.node_count; i++) {
        const struct node *node = world->core.registry.nodes[i];
        CHECK_INT(node->leg_count, 0);
        CHECK_INT(node->pages_taken, 0);
        CHECK_INT(node->prefill_tokens, 0);
    }
    CHECK_INT(world->core.waiting, 0);
    CHECK_INT(world->core.running, 0);
    CHECK_INT(world->core.live, 0);
}

/* P and D with one request that both accepted; the ids live in the nodes' messages. */
struct pair {
    struct world world;
    struct fake_node *p, *d;
    struct fake_client client;
    struct request *r;
    const Baton__Node__V1__Assign *to_p, *to_d;
};

static inline void pair_place(struct pair *pair, int decode_count, uint32_t tokens_max)
{
    world_pd(&pair->world, decode_count);
    pair->p = &pair->world.nodes[0];
    pair->r = fake_admit(&pair->world, &pair->client, 20, tokens_max);
    pair->to_p = fake_assigned(pair->p);
    pair->d = NULL;
    for (int i = 1; i <= decode_count && !pair->to_d; i++) {
        pair->d = &pair->world.nodes[i];
        pair->to_d = fake_assigned(pair->d);
    }
    CHECK(pair->to_p && pair->to_d);
}

static inline void pair_accept(struct pair *pair)
{
    fake_accept(&pair->world, pair->p, pair->to_p);
    fake_accept(&pair->world, pair->d, pair->to_d);
}

static inline void pair_finish(struct pair *pair)
{
    if (request_open(pair->r))
        core_cancel(&pair->world.core, pair->r, STATUS_CANCELLED);
    core_release(&pair->world.core, pair->r);
    world_finish(&pair->world);
}

#endif
