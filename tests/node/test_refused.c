/* What an engine does not take of a step's rows: a sequence that it refuses fails alone, and what it has no room for goes along with
 * the next step. Neither happens as long as node and engine agree; here the linker's --wrap makes it happen. */
#include <string.h>

#include "tests/node/fixture.h"

enum { STREAMS = 5, TOKENS = 40 };

enum status __real_engine_step_add_rows(struct engine_step *step, const struct engine_row *rows,
                                        uint32_t count, uint32_t *added_out, uint32_t *sample_out);
enum status __wrap_engine_step_add_rows(struct engine_step *step, const struct engine_row *rows,
                                        uint32_t count, uint32_t *added_out, uint32_t *sample_out);

/* The engine takes so many rows of a call that has more, says `status`, and that `times` times. */
static uint32_t taken, times;
static enum status said;

enum status __wrap_engine_step_add_rows(struct engine_step *step, const struct engine_row *rows,
                                        uint32_t count, uint32_t *added_out, uint32_t *sample_out)
{
    bool strikes = times && count == STREAMS;
    enum status status =
        __real_engine_step_add_rows(step, rows, strikes ? taken : count, added_out, sample_out);
    if (!strikes)
        return status;
    times--;
    return said;
}

static struct fixture *streams_start(void)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 2});
    for (int i = 0; i < STREAMS; i++) {
        prompt_make((uint32_t)i);
        struct assign assign = local(1, i, 20 + (uint32_t)i, TOKENS); /* undisturbed */
        assign.temperature = i % 2 ? 0.7f : 0;
        assign.repetition_penalty = 1.1f;
        assign.seed = 5;
        fixture_assign(fixture, &assign);
    }
    for (int i = 0; i < STREAMS; i++)
        fixture_wait_ended(fixture, 1, i);
    for (int i = 0; i < STREAMS; i++) {
        prompt_make((uint32_t)i);
        struct assign assign = local(0, i, 20 + (uint32_t)i, TOKENS);
        assign.temperature = i % 2 ? 0.7f : 0;
        assign.repetition_penalty = 1.1f;
        assign.seed = 5;
        fixture_assign(fixture, &assign);
    }
    return fixture;
}

static bool all_have_some(struct fixture *fixture, void *context)
{
    (void)context;
    for (int i = 0; i < STREAMS; i++)
        if (fixture->heard[0][i].count < 4)
            return false;
    return true;
}

static bool has_struck(struct fixture *fixture, void *context)
{
    (void)fixture;
    (void)context;
    return !times;
}

TEST(node_refused, what_finds_no_room_goes_along_later)
{
    struct fixture *fixture = streams_start();
    fixture_until(fixture, all_have_some, NULL, "some tokens of each");
    said = STATUS_FULL;
    for (taken = 0; taken < STREAMS; taken++) {
        times = 2;
        fixture_until(fixture, has_struck, NULL, "a step that is cut");
    }
    for (int i = 0; i < STREAMS; i++) {
        fixture_wait_ended(fixture, 0, i);
        CHECK(!fixture->heard[0][i].gap);
        CHECK_INT(fixture->heard[0][i].count, TOKENS);
        heard_equal(&fixture->heard[0][i], &fixture->heard[1][i], TOKENS);
    }
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(node_refused, a_sequence_that_is_refused_fails_alone)
{
    struct fixture *fixture = streams_start();
    fixture_until(fixture, all_have_some, NULL, "some tokens of each");
    said = STATUS_INVALID;
    taken = 2; /* so it is the third */
    times = 1;
    fixture_until(fixture, has_struck, NULL, "a step that is cut");
    for (int i = 0; i < STREAMS; i++) {
        const struct heard *heard = &fixture->heard[0][i];
        fixture_wait_ended(fixture, 0, i);
        CHECK_INT(heard->reports[BATON__NODE__V1__REPORT__KIND__FAILED], i == 2);
        CHECK(!heard->gap);
        CHECK(i == 2 ? heard->count < TOKENS : heard->count == TOKENS);
        heard_equal(heard, &fixture->heard[1][i], heard->count);
    }
    CHECK_INT(fixture->heard[0][2].status, GRPC_CODE_INTERNAL);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}
