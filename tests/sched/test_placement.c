#include "sched/placement.h"
#include "tests/test.h"

static struct placement_node node(enum placement_role role)
{
    return (struct placement_node){
        .role = role, .serving = true, .sequences_max = 16, .pages_total = 100};
}

static struct placement_request request_of(uint32_t tokens)
{
    return (struct placement_request){.prefill_tokens = tokens,
                                      .prefill_pages = tokens / 16 + 1,
                                      .answer_pages = tokens / 16 + 2};
}

static void check_choice(const struct placement_view *view, const struct placement_request *request,
                         size_t prefill, size_t decode)
{
    struct placement got = {99, 99};
    CHECK_INT(placement_choose(view, request, &got), PLACEMENT_FOUND);
    CHECK_INT(got.prefill, prefill);
    CHECK_INT(got.decode, decode);
}

TEST(placement, a_prefill_and_a_decode_node_hand_over)
{
    struct placement_node nodes[] = {node(PLACEMENT_DECODE), node(PLACEMENT_PREFILL)};
    struct placement_view view = {.nodes = nodes, .node_count = 2};
    struct placement_request request = request_of(100);
    check_choice(&view, &request, 1, 0);
    request.prefill_only = true;
    check_choice(&view, &request, 1, 1);
}

TEST(placement, mixed_nodes_work_alone_and_the_least_loaded_is_taken)
{
    struct placement_node nodes[] = {node(PLACEMENT_MIXED), node(PLACEMENT_MIXED),
                                     node(PLACEMENT_MIXED)};
    struct placement_view view = {.nodes = nodes, .node_count = 3};
    struct placement_request request = request_of(100);
    nodes[0].prefill_tokens = 500;
    nodes[1].sequences = 3;
    check_choice(&view, &request, 2, 2);
    nodes[2].sequences = 4;
    check_choice(&view, &request, 1, 1);
    nodes[0].prefill_tokens = 0;
    check_choice(&view, &request, 0, 0);
}

TEST(placement, a_mixed_node_completes_a_lone_phase)
{
    struct placement_node nodes[] = {node(PLACEMENT_MIXED), node(PLACEMENT_PREFILL)};
    struct placement_view view = {.nodes = nodes, .node_count = 2};
    struct placement_request request = request_of(100);
    check_choice(&view, &request, 1, 0);
    nodes[1].role = PLACEMENT_DECODE;
    check_choice(&view, &request, 0, 1);
}

TEST(placement, a_lone_role_does_both)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_DECODE)};
    struct placement_view view = {.nodes = nodes, .node_count = 2};
    struct placement_request request = request_of(100);
    nodes[1].serving = false;
    check_choice(&view, &request, 0, 0);
    nodes[1].serving = true;
    nodes[0].serving = false;
    check_choice(&view, &request, 1, 1);
    nodes[1].serving = false;
    struct placement got;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_NO_NODE);
    CHECK(!placement_covered(&view));
}

TEST(placement, a_busy_class_is_waited_for)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_DECODE)};
    struct placement_view view = {.nodes = nodes, .node_count = 2};
    struct placement_request request = request_of(100);
    struct placement got = {77, 78};
    nodes[1].held = true;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_BUSY);
    CHECK_INT(got.prefill, 77); /* untouched */
    nodes[1].held = false;
    nodes[1].sequences = 16;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_BUSY);
    nodes[1].sequences = 2;
    nodes[1].pages_taken = 95;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_BUSY);
    nodes[1].sequences = 0; /* idle: its own word counts, not our account */
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_FOUND);
}

TEST(placement, links)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_PREFILL),
                                     node(PLACEMENT_DECODE), node(PLACEMENT_DECODE)};
    uint8_t links[16] = {0};
    struct placement_view view = {
        .nodes = nodes, .node_count = 4, .links = links, .link_stride = 4};
    struct placement_request request = request_of(100);
    links[0 * 4 + 2] = links[0 * 4 + 3] = PLACEMENT_LINK_DOWN;
    nodes[1].prefill_tokens = 10000; /* the better P has no way out */
    check_choice(&view, &request, 1, 2);
    links[1 * 4 + 2] = PLACEMENT_LINK_UNKNOWN;
    check_choice(&view, &request, 1, 3);
    links[1 * 4 + 3] = PLACEMENT_LINK_UNKNOWN;
    struct placement got;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_BUSY);
    links[1 * 4 + 2] = links[1 * 4 + 3] = PLACEMENT_LINK_DOWN;
    check_choice(&view, &request, 0, 0); /* no pair at all: alone */
    links[1 * 4 + 2] = PLACEMENT_LINK_UP;
    request.local_only = true;
    check_choice(&view, &request, 0, 0);
}

TEST(placement, another_decode_node)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_DECODE),
                                     node(PLACEMENT_DECODE)};
    struct placement_view view = {.nodes = nodes, .node_count = 3};
    struct placement_request request = request_of(100);
    size_t decode = 99;
    CHECK_INT(placement_choose_decode(&view, &request, 0, 1, &decode), PLACEMENT_FOUND);
    CHECK_INT(decode, 2);
    nodes[0].serving = false; /* draining: what it holds may still be fetched */
    nodes[0].held = true;
    CHECK_INT(placement_choose_decode(&view, &request, 0, SIZE_MAX, &decode), PLACEMENT_FOUND);
    nodes[2].held = true;
    CHECK_INT(placement_choose_decode(&view, &request, 0, 1, &decode), PLACEMENT_BUSY);
    nodes[1].serving = nodes[2].serving = false;
    CHECK_INT(placement_choose_decode(&view, &request, 0, SIZE_MAX, &decode), PLACEMENT_NO_NODE);
}

TEST(placement, what_never_fits_is_said)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_DECODE)};
    struct placement_view view = {.nodes = nodes, .node_count = 2};
    struct placement_request request = request_of(100);
    request.answer_pages = 101;
    struct placement got;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_TOO_LARGE);
    nodes[0].pages_total = 200; /* P alone could hold it */
    check_choice(&view, &request, 0, 0);
}

/* Whatever the load: what is chosen serves, has room, and obeys roles and links. */
TEST(placement, choices_are_always_legal)
{
    unsigned seed = 11;
    for (int round = 0; round < 20000; round++) {
        struct placement_node nodes[6];
        uint8_t links[36];
        size_t count = 1 + (size_t)(rand_r(&seed) % 6);
        for (size_t i = 0; i < count; i++) {
            nodes[i] = node((enum placement_role)(rand_r(&seed) % 3));
            nodes[i].serving = rand_r(&seed) % 4 != 0;
            nodes[i].held = rand_r(&seed) % 4 == 0;
            nodes[i].sequences = (uint32_t)rand_r(&seed) % 18;
            nodes[i].prefill_tokens = (uint64_t)rand_r(&seed) % 5000;
            nodes[i].pages_taken = (uint32_t)rand_r(&seed) % 100;
        }
        for (int i = 0; i < 36; i++)
            links[i] = (uint8_t)(rand_r(&seed) % 3);
        struct placement_view view = {
            .nodes = nodes, .node_count = count, .links = links, .link_stride = 6};
        struct placement_request request = request_of((uint32_t)rand_r(&seed) % 1000);
        request.prefill_only = rand_r(&seed) % 5 == 0;
        struct placement got = {SIZE_MAX, SIZE_MAX};
        enum placement_result result = placement_choose(&view, &request, &got);
        if (result == PLACEMENT_NO_NODE)
            CHECK(!placement_covered(&view));
        if (result != PLACEMENT_FOUND)
            continue;
        const struct placement_node *p = &nodes[got.prefill], *d = &nodes[got.decode];
        CHECK(p->serving && d->serving && !p->held && !d->held);
        CHECK(p->sequences < p->sequences_max && d->sequences < d->sequences_max);
        CHECK(p == d || (p->role < d->role && !request.prefill_only &&
                         links[got.prefill * 6 + got.decode] == PLACEMENT_LINK_UP));
    }
}
