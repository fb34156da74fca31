/* What the tests of caches share: nodes, hashes of prompts, and who reads one. */
#ifndef BATON_TESTS_ROUTER_CACHES_H
#define BATON_TESTS_ROUTER_CACHES_H

#include <unistd.h>

#include "router/cache_key.h"
#include "tests/router/fake.h"

static inline struct node *find(struct world *world, const char *name)
{
    return registry_find(&world->core.registry, name);
}

/* The prompt of every fake request: 0, 1, 2, … */
static inline uint32_t prompt_hashes(const struct world *world, uint32_t tokens,
                                     uint64_t *hashes_out)
{
    uint32_t ids[4096];
    for (uint32_t i = 0; i < tokens; i++)
        ids[i] = i;
    return fake_hashes(world, NULL, ids, tokens, hashes_out);
}

/* Two prefill nodes (0, 1) and a decode node (2), linked. */
static inline void world_ppd(struct world *world)
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
static inline void give_up(struct world *world, struct request *r)
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
static inline int reader_of(struct world *world, uint32_t tokens)
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

#endif
