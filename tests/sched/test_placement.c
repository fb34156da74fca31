#include <time.h>

#include "sched/placement.h"
#include "tests/test.h"

static struct placement_node node(enum placement_role role)
{
    return (struct placement_node){
        .role = role, .serving = true, .shares = true, .sequences_max = 16, .pages_total = 100};
}

static struct placement_request request_of(uint32_t tokens)
{
    return (struct placement_request){.prefill_tokens = tokens,
                                      .prefill_pages = tokens / 16 + 1,
                                      .answer_pages = tokens / 16 + 2,
                                      .first_pages = tokens / 16 + 2,
                                      .page_tokens = 16,
                                      .page_bytes = 16000};
}

static void check_choice(const struct placement_view *view, const struct placement_request *request,
                         size_t prefill, size_t decode)
{
    struct placement got = {.prefill = 99, .decode = 99};
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
    struct placement got = {.prefill = 77, .decode = 78};
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
        struct placement got = {.prefill = SIZE_MAX, .decode = SIZE_MAX};
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

/* --- what caches hold --- */

static void check_fetch(const struct placement_view *view, const struct placement_request *request,
                        size_t prefill, size_t decode, size_t fetch, uint32_t pages)
{
    struct placement got = {.prefill = 99, .decode = 99};
    CHECK_INT(placement_choose(view, request, &got), PLACEMENT_FOUND);
    CHECK_INT(got.prefill, prefill);
    CHECK_INT(got.decode, decode);
    CHECK(got.fetch == fetch);
    CHECK_INT(got.fetch_pages, pages);
}

TEST(placement, the_last_token_is_always_computed)
{
    struct placement_request request = request_of(32);
    CHECK_INT(placement_usable_pages(&request, 5), 1); /* 32 tokens fill two pages */
    request.prefill_tokens = 33;
    CHECK_INT(placement_usable_pages(&request, 5), 2);
    CHECK_INT(placement_usable_pages(&request, 1), 1);
    request.page_tokens = 0;
    CHECK_INT(placement_usable_pages(&request, 5), 0);
    request = (struct placement_request){.page_tokens = 16};
    CHECK_INT(placement_usable_pages(&request, 5), 0);
}

TEST(placement, the_prefill_node_that_holds_the_prompt_is_taken_until_its_queue_is_longer)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_PREFILL),
                                     node(PLACEMENT_DECODE)};
    struct placement_view view = {.nodes = nodes, .node_count = 3};
    struct placement_request request = request_of(800);
    request.fetch = PLACEMENT_FETCH_OFF;
    nodes[1].cached_pages = 40;
    check_fetch(&view, &request, 1, 2, SIZE_MAX, 0);
    nodes[1].prefill_tokens = 639;
    check_choice(&view, &request, 1, 2);
    nodes[1].prefill_tokens = 641; /* 160 of its own to compute then, against 800 */
    check_choice(&view, &request, 0, 2);
    nodes[0].prefill_tokens_per_s = 500;
    nodes[1].prefill_tokens_per_s = 1000;
    check_choice(&view, &request, 1, 2);
}

TEST(placement, pages_that_are_there_need_no_room)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_DECODE)};
    struct placement_view view = {.nodes = nodes, .node_count = 2};
    struct placement_request request = request_of(800); /* 51 and 52 pages */
    struct placement got;
    nodes[0].sequences = nodes[1].sequences = 1;
    nodes[0].pages_taken = nodes[1].pages_taken = 60;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_BUSY);
    nodes[0].cached_pages = 11;
    nodes[1].cached_pages = 11;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_BUSY);
    nodes[1].cached_pages = 12;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_FOUND);
    /* but the pool must be able to hold all of it */
    nodes[1].pages_total = 51;
    nodes[0].pages_taken = 59;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_FOUND);
    CHECK_INT(got.decode, 0);
}

TEST(placement, what_another_node_holds_is_fetched_when_that_is_sooner)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_DECODE),
                                     node(PLACEMENT_DECODE)};
    uint8_t links[9] = {0};
    uint32_t rates[9] = {0};
    struct placement_view view = {
        .nodes = nodes, .node_count = 3, .links = links, .link_kb_per_s = rates, .link_stride = 3};
    struct placement_request request = request_of(800);
    nodes[0].cached_pages = 10;
    check_fetch(&view, &request, 0, 1, SIZE_MAX, 0);
    /* no rate is known: it is tried; the own hits are better than equal ones elsewhere */
    nodes[2].cached_pages = 10;
    check_fetch(&view, &request, 0, 1, SIZE_MAX, 0);
    nodes[2].cached_pages = 60;
    check_fetch(&view, &request, 0, 1, 2, 49); /* 49 pages: 784 of 800 tokens */
    /* 39 pages of 16 kB: 624 kB, 624 tokens */
    nodes[0].prefill_tokens_per_s = 1000;
    rates[2 * 3 + 0] = 1010;
    check_fetch(&view, &request, 0, 1, 2, 49);
    rates[2 * 3 + 0] = 990;
    check_fetch(&view, &request, 0, 1, SIZE_MAX, 0);
    request.fetch = PLACEMENT_FETCH_ALWAYS;
    check_fetch(&view, &request, 0, 1, 2, 49);
    request.fetch = PLACEMENT_FETCH_OFF;
    check_fetch(&view, &request, 0, 1, SIZE_MAX, 0);
    /* a shorter prefix over a better link */
    request.fetch = PLACEMENT_FETCH_AUTO;
    nodes[1].cached_pages = 30;
    rates[1 * 3 + 0] = 100000;
    check_fetch(&view, &request, 0, 1, 1, 30);
    links[1 * 3 + 0] = PLACEMENT_LINK_DOWN;
    check_fetch(&view, &request, 0, 1, SIZE_MAX, 0);
    links[1 * 3 + 0] = PLACEMENT_LINK_UNKNOWN; /* not worth waiting for */
    check_fetch(&view, &request, 0, 1, SIZE_MAX, 0);
}

TEST(placement, a_draining_cache_is_fetched_from)
{
    struct placement_node nodes[] = {node(PLACEMENT_MIXED), node(PLACEMENT_MIXED)};
    struct placement_view view = {.nodes = nodes, .node_count = 2};
    struct placement_request request = request_of(800);
    nodes[0].cached_pages = 20;
    nodes[0].serving = false;
    check_fetch(&view, &request, 1, 1, 0, 20);
    nodes[0].shares = false;
    check_fetch(&view, &request, 1, 1, SIZE_MAX, 0);
}

TEST(placement, a_conversation_stays_with_its_decode_node_until_that_is_busier)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_DECODE),
                                     node(PLACEMENT_DECODE)};
    uint32_t rates[9];
    for (int i = 0; i < 9; i++)
        rates[i] = 4000; /* 51 pages: 816 kB, 204 ms */
    struct placement_view view = {
        .nodes = nodes, .node_count = 3, .link_kb_per_s = rates, .link_stride = 3};
    struct placement_request request = request_of(800);
    nodes[2].cached_pages = 49;
    check_choice(&view, &request, 0, 2);
    nodes[2].sequences = 3; /* of 16 */
    check_choice(&view, &request, 0, 2);
    nodes[2].sequences = 4;
    check_choice(&view, &request, 0, 1);
}

TEST(placement, over_a_slow_link_d_computes)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_DECODE)};
    uint8_t links[4] = {0};
    uint32_t rates[4] = {0};
    struct placement_view view = {
        .nodes = nodes, .node_count = 2, .links = links, .link_kb_per_s = rates, .link_stride = 2};
    struct placement_request request = request_of(800); /* 816 kB */
    rates[0 * 2 + 1] = 101;
    check_choice(&view, &request, 0, 1); /* nobody knows how long a prefill takes */
    nodes[0].prefill_tokens_per_s = 100;
    check_choice(&view, &request, 1, 1); /* 8,079 ms against 8,000 */
    rates[0 * 2 + 1] = 102;
    check_choice(&view, &request, 0, 1);
    rates[0 * 2 + 1] = 80;
    nodes[0].prefill_tokens_per_s = 200;
    check_choice(&view, &request, 1, 1); /* D is taken to be as fast as P */
    nodes[1].prefill_tokens_per_s = 50;
    check_choice(&view, &request, 0, 1); /* it is not */
    nodes[1].prefill_tokens_per_s = 200;
    nodes[1].prefill_tokens = 1300; /* and others wait there already */
    check_choice(&view, &request, 0, 1);
    nodes[1].prefill_tokens = 0;
    nodes[1].cached_pages = 40; /* 11 pages to move, or 160 tokens to compute */
    check_choice(&view, &request, 1, 1);
    uint32_t seen_s[4] = {0};
    view.link_seen_s = seen_s;
    view.now_s = seen_s[1] = 100;
    for (; view.now_s < 130; view.now_s++)
        check_choice(&view, &request, 1, 1);
    check_choice(&view, &request, 0, 1); /* for too long nobody has looked */
    seen_s[1] = 130;
    check_choice(&view, &request, 1, 1);
    /* it stands for the pair: it is the best class, and waited for */
    nodes[1].held = true;
    struct placement got;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_BUSY);
    nodes[1].held = false;
    request.slow_links_too = true;
    check_choice(&view, &request, 0, 1);
    request.slow_links_too = false;
    /* computed already: a slow link is the better way */
    size_t decode = 99;
    CHECK_INT(placement_choose_decode(&view, &request, 0, SIZE_MAX, &decode), PLACEMENT_FOUND);
    CHECK_INT(decode, 1);
}

TEST(placement, one_fast_way_to_d_is_enough)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_PREFILL),
                                     node(PLACEMENT_DECODE)};
    uint32_t rates[9] = {0};
    struct placement_view view = {
        .nodes = nodes, .node_count = 3, .link_kb_per_s = rates, .link_stride = 3};
    struct placement_request request = request_of(800);
    for (int i = 0; i < 3; i++)
        nodes[i].prefill_tokens_per_s = 1000;
    rates[0 * 3 + 2] = 10;
    rates[1 * 3 + 2] = 100000;
    check_choice(&view, &request, 1, 2);
    struct placement got;
    nodes[1].held = true;
    CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_BUSY);
    nodes[1].serving = false;
    check_choice(&view, &request, 2, 2);
}

TEST(placement, short_prompts_are_read_on_d)
{
    struct placement_node nodes[] = {node(PLACEMENT_PREFILL), node(PLACEMENT_DECODE)};
    struct placement_view view = {.nodes = nodes, .node_count = 2};
    struct placement_request request = request_of(100);
    check_choice(&view, &request, 0, 1);
    request.local_prefill_tokens = 99;
    check_choice(&view, &request, 0, 1);
    request.local_prefill_tokens = 100;
    check_choice(&view, &request, 1, 1);
    request = request_of(800);
    request.local_prefill_tokens = 100;
    nodes[1].cached_pages = 43;
    check_choice(&view, &request, 0, 1);
    nodes[1].cached_pages = 44; /* 96 tokens are left */
    check_choice(&view, &request, 1, 1);
}

/* --- all small cases against the rules, written down a second time --- */

struct plan {
    size_t p, d;
    unsigned penalty;
    uint64_t us;
    uint32_t pages_taken;
    bool ready, fetches;
};

static const unsigned penalties[] = {0, 1, 2};

static uint64_t slow_fetch(const struct placement_view *view, size_t from, size_t to,
                           uint64_t bytes)
{
    uint64_t rate = view->link_kb_per_s[from * view->link_stride + to];
    return rate ? bytes * 1000 / rate : 0;
}

static uint64_t rate_at(const struct placement_view *view, size_t at)
{
    uint64_t best = 0;
    for (size_t i = 0; i < view->node_count; i++)
        best =
            view->nodes[i].prefill_tokens_per_s > best ? view->nodes[i].prefill_tokens_per_s : best;
    return view->nodes[at].prefill_tokens_per_s ? view->nodes[at].prefill_tokens_per_s : best;
}

static uint64_t read_us(const struct placement_view *view, size_t at, uint64_t tokens)
{
    uint64_t rate = rate_at(view, at);
    return tokens * 1000000 / (rate ? rate : 1000);
}

/* Until the first token on node p, with what it is to fetch; SIZE_MAX: nothing. */
static uint64_t first_us(const struct placement_view *view, const struct placement_request *request,
                         size_t p, size_t *fetch_out)
{
    const struct placement_node *n = &view->nodes[p];
    uint32_t own = placement_usable_pages(request, n->cached_pages);
    uint64_t best = read_us(view, p, n->prefill_tokens + request->prefill_tokens - own * 16);
    bool fetched = false;
    *fetch_out = SIZE_MAX;
    for (size_t f = 0; f < view->node_count && request->fetch == PLACEMENT_FETCH_AUTO; f++) {
        uint32_t theirs = placement_usable_pages(request, view->nodes[f].cached_pages);
        if (f == p || !view->nodes[f].shares || theirs <= own ||
            view->links[f * view->link_stride + p] != PLACEMENT_LINK_UP)
            continue;
        uint64_t move = slow_fetch(view, f, p, (uint64_t)(theirs - own) * request->page_bytes);
        if (rate_at(view, p) && move && move >= read_us(view, p, (theirs - own) * 16))
            continue;
        uint64_t us = read_us(view, p, n->prefill_tokens) + move +
                      read_us(view, p, request->prefill_tokens - theirs * 16);
        if (fetched && us >= best)
            continue;
        fetched = true;
        best = us;
        *fetch_out = f;
    }
    return best;
}

static bool room_at(const struct placement_view *view, size_t at, uint32_t pages)
{
    const struct placement_node *n = &view->nodes[at];
    return !n->held && n->sequences < n->sequences_max &&
           (!n->sequences ||
            n->pages_taken + pages + (n->grows ? n->growing : 0) <= n->pages_total);
}

static size_t all_plans(const struct placement_view *view, const struct placement_request *request,
                        struct plan *plans)
{
    size_t count = 0, unused;
    for (size_t d = 0; d < view->node_count; d++) {
        const struct placement_node *n = &view->nodes[d];
        uint32_t have = placement_usable_pages(request, n->cached_pages);
        uint32_t decode_pages = (n->grows ? request->first_pages : request->answer_pages) - have,
                 read_pages = request->prefill_pages - have;
        if (!n->serving || n->pages_total < request->prefill_pages)
            continue;
        if (request->prefill_only) {
            plans[count++] = (struct plan){d,
                                           d,
                                           penalties[n->role],
                                           first_us(view, request, d, &unused),
                                           n->pages_taken,
                                           room_at(view, d, read_pages),
                                           false};
            continue;
        }
        if (n->pages_total < request->answer_pages)
            continue;
        uint64_t load = n->sequences * UINT64_C(1000000) / n->sequences_max;
        uint64_t bytes = (uint64_t)read_pages * request->page_bytes;
        uint64_t alone_us =
            read_us(view, d, n->prefill_tokens + request->prefill_tokens - have * 16);
        unsigned local = penalties[n->role] + penalties[2 - n->role];
        bool pairs = false;
        unsigned instead = 99;
        for (size_t p = 0; p < view->node_count; p++) {
            const struct placement_node *from = &view->nodes[p];
            enum placement_link link = (enum placement_link)view->links[p * view->link_stride + d];
            if (p == d || !from->serving || from->pages_total < request->prefill_pages ||
                from->role >= n->role || request->local_only || link == PLACEMENT_LINK_DOWN)
                continue;
            uint64_t move = slow_fetch(view, p, d, bytes);
            unsigned penalty = penalties[from->role] + penalties[2 - n->role];
            if (request->prefill_tokens - have * 16 <= request->local_prefill_tokens ||
                (rate_at(view, d) && move > alone_us + 50000 &&
                 view->now_s - view->link_seen_s[p * view->link_stride + d] < 30)) {
                instead = penalty < instead ? penalty : instead;
                continue;
            }
            pairs = true;
            uint32_t p_have = placement_usable_pages(request, from->cached_pages);
            plans[count++] = (struct plan){p,
                                           d,
                                           penalty,
                                           first_us(view, request, p, &unused) + load + move,
                                           n->pages_taken,
                                           link == PLACEMENT_LINK_UP &&
                                               room_at(view, p, request->prefill_pages - p_have) &&
                                               room_at(view, d, decode_pages),
                                           false};
        }
        if (!pairs && instead < local)
            local = instead;
        plans[count++] = (struct plan){d,
                                       d,
                                       local,
                                       first_us(view, request, d, &unused) + load,
                                       n->pages_taken,
                                       room_at(view, d, decode_pages),
                                       false};
    }
    return count;
}

static uint64_t worth(const struct plan *plan)
{
    return 2 * plan->us + plan->fetches;
}

static void check_against_plans(const struct placement_view *view,
                                const struct placement_request *request)
{
    struct plan plans[32];
    size_t count = all_plans(view, request, plans);
    unsigned class = 99;
    const struct plan *best = NULL;
    size_t fetch;
    for (size_t i = 0; i < count; i++) {
        first_us(view, request, plans[i].p, &fetch);
        plans[i].fetches = fetch != SIZE_MAX;
    }
    for (size_t i = 0; i < count; i++)
        class = plans[i].penalty < class ? plans[i].penalty : class;
    for (size_t i = 0; i < count; i++)
        if (plans[i].penalty == class && plans[i].ready &&
            (!best || worth(&plans[i]) < worth(best) ||
             (worth(&plans[i]) == worth(best) && plans[i].pages_taken < best->pages_taken)))
            best = &plans[i];
    struct placement got = {.prefill = 77, .decode = 77, .fetch = 77, .fetch_pages = 77};
    enum placement_result result = placement_choose(view, request, &got);
    if (!best) {
        CHECK_INT(result, count                     ? PLACEMENT_BUSY
                          : placement_covered(view) ? PLACEMENT_TOO_LARGE
                                                    : PLACEMENT_NO_NODE);
        CHECK(got.prefill == 77 && got.fetch == 77);
        return;
    }
    CHECK_INT(result, PLACEMENT_FOUND);
    const struct plan *made = NULL;
    for (size_t i = 0; i < count; i++)
        if (plans[i].p == got.prefill && plans[i].d == got.decode)
            made = &plans[i];
    CHECK(made && made->ready && made->penalty == class && worth(made) == worth(best) &&
          made->pages_taken == best->pages_taken);
    first_us(view, request, got.prefill, &fetch);
    CHECK((fetch == SIZE_MAX) == (got.fetch == SIZE_MAX));
    if (fetch != SIZE_MAX)
        CHECK(got.fetch_pages ==
              placement_usable_pages(request, view->nodes[got.fetch].cached_pages));
}

/* One of 216 nodes. */
static struct placement_node node_number(unsigned number)
{
    static const uint32_t cached[] = {0, 3, 9};
    struct placement_node n = node((enum placement_role)(number % 3));
    number /= 3;
    n.cached_pages = cached[number % 3];
    number /= 3;
    n.prefill_tokens = number % 2 ? 300 : 0;
    n.prefill_tokens_per_s = number / 2 % 2 ? 1000 : 0;
    number /= 4;
    n.grows = number % 2;
    n.growing = 1;
    switch (number) {
    case 0:
        n.serving = false; /* and draining */
        break;
    case 1:
        n.serving = n.shares = false;
        break;
    case 2:
        n.held = true;
        break;
    case 3:
        n.sequences = 5;
        n.pages_taken = 93; /* room for what is mostly cached */
        break;
    case 4:
        n.pages_total = 8; /* too small for it */
        break;
    default:
        n.sequences = 1;
        break;
    }
    return n;
}

enum { NODE_NUMBERS = 216, LINK_NUMBERS = 4 };

static void link_number(uint8_t *link, uint32_t *rate, unsigned number)
{
    static const uint32_t rates[LINK_NUMBERS] = {0, 1, 1000000, 0};
    *link = number == 3 ? PLACEMENT_LINK_DOWN : PLACEMENT_LINK_UP;
    *rate = rates[number];
}

static struct placement_request request_number(unsigned number)
{
    struct placement_request request = request_of(150); /* 10 pages and 11, 9 of them reusable */
    request.answer_pages = 13;
    request.prefill_only = number % 3 == 1;
    request.local_only = number % 3 == 2;
    number /= 3;
    request.fetch = number % 2 ? PLACEMENT_FETCH_OFF : PLACEMENT_FETCH_AUTO;
    request.local_prefill_tokens = number / 2 % 2 ? 20 : 0;
    return request;
}

TEST(placement, every_case_of_two_nodes_follows_the_rules)
{
    for (unsigned a = 0; a < NODE_NUMBERS; a++)
        for (unsigned b = 0; b < NODE_NUMBERS; b++)
            for (unsigned l = 0; l < LINK_NUMBERS * LINK_NUMBERS; l++) {
                struct placement_node nodes[] = {node_number(a), node_number(b)};
                uint8_t links[4] = {0};
                uint32_t rates[4] = {0};
                link_number(&links[1], &rates[1], l % LINK_NUMBERS);
                link_number(&links[2], &rates[2], l / LINK_NUMBERS);
                uint32_t seen_s[4] = {50, 50, 50, 50};
                struct placement_view view = {.nodes = nodes,
                                              .node_count = 2,
                                              .links = links,
                                              .link_kb_per_s = rates,
                                              .link_seen_s = seen_s,
                                              .now_s = a % 5 ? 60 : 80,
                                              .link_stride = 2};
                struct placement_request request = request_number((a + b + l) % 12);
                check_against_plans(&view, &request);
            }
}

TEST(placement, many_cases_of_up_to_five_nodes_follow_the_rules)
{
    unsigned seed = 5;
    for (int round = 0; round < 200000; round++) {
        struct placement_node nodes[5];
        uint8_t links[25];
        uint32_t rates[25], seen_s[25];
        struct placement_view view = {.nodes = nodes,
                                      .node_count = 1 + (size_t)(rand_r(&seed) % 5),
                                      .links = links,
                                      .link_kb_per_s = rates,
                                      .link_seen_s = seen_s,
                                      .now_s = 100,
                                      .link_stride = 5};
        for (size_t i = 0; i < 5; i++)
            nodes[i] = node_number((unsigned)rand_r(&seed) % NODE_NUMBERS);
        for (size_t i = 0; i < 25; i++) {
            link_number(&links[i], &rates[i], (unsigned)rand_r(&seed) % LINK_NUMBERS);
            seen_s[i] = 60 + (uint32_t)rand_r(&seed) % 40;
            if (rand_r(&seed) % 8 == 0)
                links[i] = PLACEMENT_LINK_UNKNOWN;
        }
        struct placement_request request = request_number((unsigned)rand_r(&seed) % 12);
        check_against_plans(&view, &request);
    }
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

TEST(placement, a_choice_among_two_hundred_nodes_is_well_below_a_millisecond)
{
    enum { NODES = 200, CHOICES = 200 };
    static struct placement_node nodes[NODES];
    static uint8_t links[NODES * NODES];
    static uint32_t rates[NODES * NODES];
    unsigned seed = 3;
    for (size_t i = 0; i < NODES; i++) {
        nodes[i] = node(i % 2 ? PLACEMENT_DECODE : PLACEMENT_PREFILL);
        nodes[i].cached_pages = (uint32_t)rand_r(&seed) % 60;
        nodes[i].sequences = (uint32_t)rand_r(&seed) % 15;
        nodes[i].prefill_tokens_per_s = 1000;
    }
    for (size_t i = 0; i < NODES * NODES; i++)
        rates[i] = 1000000 + (uint32_t)rand_r(&seed) % 1000;
    struct placement_view view = {.nodes = nodes,
                                  .node_count = NODES,
                                  .links = links,
                                  .link_kb_per_s = rates,
                                  .link_stride = NODES};
    struct placement_request request = request_of(800);
    struct placement got;
    double least = 1;
    for (int i = 0; i < CHOICES; i++) {
        double begun = seconds();
        CHECK_INT(placement_choose(&view, &request, &got), PLACEMENT_FOUND);
        double took = seconds() - begun;
        least = took < least ? took : least;
    }
    printf("# a choice among %d nodes: %.0f us\n", NODES, least * 1e6);
    CHECK_MSG(least < 5e-3, "%.0f us", least * 1e6);
}
