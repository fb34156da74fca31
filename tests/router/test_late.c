/* What nodes say about an attempt that was aborted, too late or twice, changes nothing: neither that request, which may run on under
 * another attempt, nor anybody else's. Every two words of both nodes, after an abort at every stage. */
#include "tests/router/fake.h"

#define GO BATON__NODE__V1__FINISH__FINISH_NONE
#define LAST BATON__NODE__V1__FINISH__FINISH_LENGTH
#define REPORT(name) BATON__NODE__V1__REPORT__KIND__##name

enum { TOKENS = 4 };

static uint32_t token_at(uint32_t position)
{
    return (position * 37 + 11) % 1000;
}

enum word {
    WORD_ACCEPTED,
    WORD_FULL,
    WORD_TOKEN,   /* the next one, and the answer's last */
    WORD_AGAIN,   /* the first one once more */
    WORD_ANOTHER, /* a different one at a place that was delivered */
    WORD_REPORT,  /* the kinds of Report, from 1 on */
    WORD_COUNT = WORD_REPORT + 8
};

enum stage { STAGE_SENT, STAGE_ACCEPTED, STAGE_FIRST, STAGE_STREAMING, STAGE_COUNT };

struct scene {
    struct world world;
    struct fake_node *p, *d;
    struct fake_client client, other;
    struct request *request, *bystander;
    const Baton__Node__V1__Assign *to_p, *to_d; /* of the attempt that will be aborted */
    const Baton__Node__V1__Assign *other_p, *other_d;
    uint32_t delivered;
};

static void say(struct scene *scene, struct fake_node *node, const Baton__Node__V1__Assign *of,
                uint32_t position, Baton__Node__V1__Finish finish)
{
    fake_token(&scene->world, node, of->attempt, position, token_at(position), finish);
}

static void scene_begin(struct scene *scene, enum stage stage)
{
    *scene = (struct scene){0};
    world_pd(&scene->world, 1);
    scene->p = &scene->world.nodes[0];
    scene->d = &scene->world.nodes[1];
    scene->request = fake_admit(&scene->world, &scene->client, 20, TOKENS);
    scene->to_p = fake_assigned(scene->p);
    scene->to_d = fake_assigned(scene->d);
    scene->bystander = fake_admit(&scene->world, &scene->other, 20, TOKENS);
    scene->other_p = fake_assigned(scene->p);
    scene->other_d = fake_assigned(scene->d);
    CHECK(scene->to_p && scene->to_d && scene->other_p && scene->other_d);
    fake_accept(&scene->world, scene->p, scene->other_p);
    fake_accept(&scene->world, scene->d, scene->other_d);
    say(scene, scene->p, scene->other_p, 0, GO);
    if (stage == STAGE_SENT)
        return;
    fake_accept(&scene->world, scene->p, scene->to_p);
    fake_accept(&scene->world, scene->d, scene->to_d);
    if (stage == STAGE_ACCEPTED)
        return;
    say(scene, scene->p, scene->to_p, 0, GO);
    scene->delivered = 1;
    if (stage == STAGE_FIRST)
        return;
    say(scene, scene->d, scene->to_d, 0, GO);
    say(scene, scene->d, scene->to_d, 1, GO);
    scene->delivered = 2;
}

static void word_say(struct scene *scene, unsigned word)
{
    struct fake_node *node = word % 2 ? scene->d : scene->p;
    const Baton__Node__V1__Assign *of = word % 2 ? scene->to_d : scene->to_p;
    enum word which = (enum word)(word / 2);
    switch (which) {
    case WORD_ACCEPTED:
        fake_accept(&scene->world, node, of);
        break;
    case WORD_FULL:
        fake_verdict(&scene->world, node, of, BATON__NODE__V1__VERDICT__VERDICT_FULL);
        break;
    case WORD_TOKEN:
        say(scene, node, of, scene->delivered, LAST);
        break;
    case WORD_AGAIN:
        say(scene, node, of, 0, GO);
        break;
    case WORD_ANOTHER:
        fake_token(&scene->world, node, of->attempt, 0, token_at(0) + 1, GO);
        break;
    default:
        fake_report(&scene->world, node, of->attempt,
                    (Baton__Node__V1__Report__Kind)(which - WORD_REPORT + 1));
    }
}

/* Nobody was disturbed; the bystander goes on to its end. */
static void bystander_finish(struct scene *scene)
{
    CHECK(!scene->p->ended && !scene->d->ended);
    CHECK(metric_value(scene->world.stats.mismatches) == 0);
    CHECK(!scene->other.ended);
    fake_beat(&scene->world, scene->p);
    fake_beat(&scene->world, scene->d);
    for (uint32_t i = 0; i < TOKENS; i++)
        say(scene, scene->d, scene->other_d, i, i + 1 == TOKENS ? LAST : GO);
    CHECK(scene->other.last);
    CHECK_INT(scene->other.count, TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++)
        CHECK_INT(scene->other.ids[i], token_at(i));
    core_release(&scene->world.core, scene->bystander);
    fake_report(&scene->world, scene->p, scene->other_p->attempt, REPORT(ENDED));
    fake_report(&scene->world, scene->d, scene->other_d->attempt, REPORT(ENDED));
}

static void scene_end(struct scene *scene)
{
    fake_report(&scene->world, scene->p, scene->to_p->attempt, REPORT(ENDED));
    fake_report(&scene->world, scene->d, scene->to_d->attempt, REPORT(ENDED));
    for (size_t i = 0; i < scene->world.core.registry.node_count; i++) {
        const struct node *node = scene->world.core.registry.nodes[i];
        CHECK_INT(node->leg_count, 0);
        CHECK_INT(node->pages_taken, 0);
        CHECK_INT(node->prefill_tokens, 0);
    }
    CHECK_INT(scene->world.core.live, 0);
    world_finish(&scene->world);
}

TEST(late, words_about_a_cancelled_request)
{
    static struct scene scene;
    for (int stage = 0; stage < STAGE_COUNT; stage++)
        for (unsigned pair = 0; pair < 4 * WORD_COUNT * WORD_COUNT; pair++) {
            scene_begin(&scene, (enum stage)stage);
            core_cancel(&scene.world.core, scene.request, STATUS_CANCELLED);
            core_schedule(&scene.world.core);
            word_say(&scene, pair % (2 * WORD_COUNT));
            word_say(&scene, pair / (2 * WORD_COUNT));
            CHECK_INT(scene.client.count, scene.delivered);
            CHECK(!scene.client.last && !scene.client.ended);
            CHECK_INT(scene.request->end_status, STATUS_CANCELLED);
            core_release(&scene.world.core, scene.request);
            bystander_finish(&scene);
            scene_end(&scene);
        }
}

/* The request is placed again, on one node; what the first attempt still has to say is not taken for the second's. */
TEST(late, words_about_an_attempt_that_another_has_followed)
{
    static struct scene scene;
    for (int stage = STAGE_ACCEPTED; stage < STAGE_COUNT; stage++)
        for (unsigned pair = 0; pair < 4 * WORD_COUNT * WORD_COUNT; pair++) {
            scene_begin(&scene, (enum stage)stage);
            fake_report(&scene.world, scene.d, scene.to_d->attempt, REPORT(GAVE_UP));
            bool early =
                pair % 3 ==
                0; /* before the second attempt is made, between, or after its first words */
            if (early)
                word_say(&scene, pair % (2 * WORD_COUNT));
            fake_beat(&scene.world, scene.p);
            fake_beat(&scene.world, scene.d);
            const Baton__Node__V1__Assign *again = fake_assigned(scene.p);
            struct fake_node *node = scene.p;
            if (!again) {
                again = fake_assigned(scene.d);
                node = scene.d;
            }
            CHECK(again && again->leg == BATON__NODE__V1__LEG__LEG_LOCAL);
            CHECK_INT(again->n_generated, scene.delivered);
            if (!early)
                word_say(&scene, pair % (2 * WORD_COUNT));
            fake_accept(&scene.world, node, again);
            word_say(&scene, pair / (2 * WORD_COUNT));
            CHECK_INT(scene.client.count, scene.delivered);
            for (uint32_t i = scene.delivered; i < TOKENS; i++) {
                say(&scene, node, again, i, i + 1 == TOKENS ? LAST : GO);
                if (i + 1 < TOKENS)
                    word_say(&scene, pair / (2 * WORD_COUNT));
                CHECK_INT(scene.client.count, i + 1);
            }
            CHECK(scene.client.last);
            for (uint32_t i = 0; i < TOKENS; i++)
                CHECK_INT(scene.client.ids[i], token_at(i));
            CHECK_INT(scene.request->replays, 1);
            core_release(&scene.world.core, scene.request);
            fake_report(&scene.world, node, again->attempt, REPORT(ENDED));
            bystander_finish(&scene);
            scene_end(&scene);
        }
}
