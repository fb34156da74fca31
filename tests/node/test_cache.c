/* The prefix cache of real nodes: what is found, fetched and served changes no bit, moves only what is missing, and is checked before it
 * is used. Every answer is compared with that of a node without a cache (node 2), tokens and logprobs. */
#include "tests/node/fixture.h"

enum { PAGE = 16, ANSWER = 24, COLD = 2 };
#define LEG_PREFILL BATON__NODE__V1__LEG__LEG_PREFILL
#define LEG_DECODE BATON__NODE__V1__LEG__LEG_DECODE
#define LEG_SERVE BATON__NODE__V1__LEG__LEG_SERVE
#define REPORT(name) BATON__NODE__V1__REPORT__KIND__##name
#define VERDICT(name) BATON__NODE__V1__VERDICT__VERDICT_##name

static struct fixture *nodes_start(const char *backend, enum kern_kv_type kv_type)
{
    return fixture_start(&(struct fixture_options){.nodes = 3,
                                                   .backend = backend,
                                                   .kv_type = kv_type,
                                                   .kv_pages = 160,
                                                   .no_cache = {[COLD] = true},
                                                   .cache_key = 7});
}

static struct assign ask(int node, int attempt, uint32_t prompt_count)
{
    struct assign assign = local(node, attempt, prompt_count, ANSWER);
    assign.logprobs = true;
    assign.temperature = attempt % 2 ? 0.8f : 0;
    assign.seed = 5 + (uint64_t)attempt;
    return assign;
}

/* The same request on the node without a cache; its answer. */
static const struct heard *cold(struct fixture *fixture, struct assign assign)
{
    assign.node = COLD;
    assign.leg = BATON__NODE__V1__LEG__LEG_LOCAL;
    assign.fetch_pages = 0;
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, COLD, assign.attempt);
    const struct heard *heard = &fixture->heard[COLD][assign.attempt];
    CHECK_INT(heard->cached_tokens, 0);
    CHECK_INT(heard->count, assign.tokens_max - assign.generated_count);
    return heard;
}

static const struct heard *alone(struct fixture *fixture, const struct assign *assign,
                                 uint32_t cached_tokens)
{
    fixture_assign(fixture, assign);
    fixture_wait_ended(fixture, assign->node, assign->attempt);
    const struct heard *heard = &fixture->heard[assign->node][assign->attempt];
    CHECK_INT(heard->cached_tokens, cached_tokens);
    heard_equal(heard, cold(fixture, *assign), ANSWER);
    return heard;
}

/* The answer becomes part of the prompt, and `more` ids follow it; returns the new prompt's length. */
static uint32_t next_turn(const struct heard *heard, uint32_t prompt_count, uint32_t more)
{
    memcpy(prompt + prompt_count, heard->tokens, ANSWER * sizeof *prompt);
    for (uint32_t i = 0; i < more; i++)
        prompt[prompt_count + ANSWER + i] = (i * 77 + prompt_count) % 251;
    return prompt_count + ANSWER + more;
}

static uint32_t whole(uint32_t tokens)
{
    return tokens / PAGE * PAGE;
}

/* One node: the same prompt again, one that differs in the middle, and a conversation of three turns. */
static void reuse_alone(const char *backend, enum kern_kv_type kv_type)
{
    struct fixture *fixture = nodes_start(backend, kv_type);
    prompt_make(1);
    struct assign assign = ask(0, 1, 100);
    alone(fixture, &assign, 0);
    assign = ask(0, 2, 100);
    alone(fixture, &assign, whole(99));
    assign = ask(0, 3, 96); /* ends at a page: its last row is computed all the same */
    alone(fixture, &assign, 80);
    prompt[50] ^= 1; /* the fourth page differs, and so all behind it */
    assign = ask(0, 4, 100);
    alone(fixture, &assign, 48);
    prompt_make(2);
    uint32_t count = 70;
    for (int turn = 0; turn < 3; turn++) {
        assign = ask(0, 10 + turn, count);
        /* the last token of an answer was never a row */
        uint32_t known = turn ? count - 20 - 1 : 0;
        const struct heard *heard = alone(fixture, &assign, whole(known));
        count = next_turn(heard, count, 20);
    }
    /* a replay in mid-answer finds its own pages too, and says what of the prompt was not computed */
    prompt_make(1);
    const struct heard *first = &fixture->heard[0][1];
    assign = ask(0, 1, 100);
    assign.attempt = 20;
    assign.generated = first->tokens;
    assign.generated_count = 15;
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 20);
    const struct heard *rest = &fixture->heard[0][20];
    CHECK_INT(rest->begin, 15);
    CHECK_INT(rest->cached_tokens, 100);
    for (uint32_t i = 0; i < rest->count; i++)
        CHECK_INT(rest->tokens[i], first->tokens[15 + i]);
    fixture_check_rest(fixture);
    CHECK(pool_count(&fixture->nodes[0]->pool, POOL_CACHED) > 10);
    CHECK_INT(pool_count(&fixture->nodes[COLD]->pool, POOL_CACHED), 0);
    fixture_stop(fixture);
}

TEST(cache, a_hit_changes_no_bit)
{
    reuse_alone("cpu", KERN_KV_F32);
}

TEST(cache, a_hit_changes_no_bit_behind_opaque_memory)
{
    reuse_alone("opaque", KERN_KV_F32);
}

static uint64_t page_bytes(const struct fixture *fixture)
{
    return engine_info(fixture->engines[0])->page_bytes;
}

static uint64_t sent(const struct fixture *fixture, int node)
{
    return kv_links_counters(fixture->nodes[node]->links)->bytes_sent;
}

/* P and D each hold a part of it; what moves is what D lacks, and P computes what it lacks. */
static void hand_off_moves_what_is_missing(const char *backend, enum kern_kv_type kv_type)
{
    struct fixture *fixture = nodes_start(backend, kv_type);
    prompt_make(3);
    struct assign assign = ask(1, 1, 90); /* D has 5 pages of the prompt; the answer is its own */
    alone(fixture, &assign, 0);
    assign = ask(0, 2, 60); /* P has 3 */
    alone(fixture, &assign, 0);
    uint64_t before = sent(fixture, 0);
    prompt[95] ^= 1;
    assign = ask(0, 3, 150);
    hand_off(fixture, assign);
    fixture_wait_ended(fixture, 1, 3);
    fixture_wait_ended(fixture, 0, 3);
    heard_equal(&fixture->heard[1][3], cold(fixture, assign), ANSWER);
    CHECK_INT(fixture->heard[0][3].cached_tokens, 48);
    CHECK_INT(fixture->heard[1][3].moved_bytes, (10 - 5) * page_bytes(fixture));
    CHECK_INT(sent(fixture, 0) - before, (10 - 5) * page_bytes(fixture));
    /* again, with all of it on both sides: the last page alone, which is not whole, and the token */
    before = sent(fixture, 0);
    assign = ask(0, 4, 150);
    hand_off(fixture, assign);
    fixture_wait_ended(fixture, 1, 4);
    fixture_wait_ended(fixture, 0, 4);
    heard_equal(&fixture->heard[1][4], cold(fixture, assign), ANSWER);
    CHECK_INT(fixture->heard[0][4].cached_tokens, whole(149));
    CHECK_INT(sent(fixture, 0) - before, page_bytes(fixture));
    /* all whole pages: nothing but the token */
    before = sent(fixture, 0);
    assign = ask(0, 5, 144);
    hand_off(fixture, assign);
    fixture_wait_ended(fixture, 1, 5);
    fixture_wait_ended(fixture, 0, 5);
    heard_equal(&fixture->heard[1][5], cold(fixture, assign), ANSWER);
    CHECK_INT(fixture->heard[0][5].cached_tokens, 128);
    CHECK_INT(sent(fixture, 0) - before, 0);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(cache, only_what_is_missing_moves)
{
    hand_off_moves_what_is_missing("cpu", KERN_KV_F32);
}

TEST(cache, only_what_is_missing_moves_behind_opaque_memory)
{
    hand_off_moves_what_is_missing("opaque", KERN_KV_F32);
}

/* Tells node 1 to serve the first pages of the prompt, and gives what node 0 has to be told. */
static void serve(struct fixture *fixture, struct assign *assign, int attempt, uint32_t pages)
{
    struct assign server = *assign;
    server.node = 1;
    server.attempt = attempt;
    server.request = assign->attempt;
    server.leg = LEG_SERVE;
    server.serve_pages = pages;
    assign->fetch_pages = pages;
    assign->fetch_node = 1;
    assign->fetch_attempt = attempt;
    assign->fetch_number = fixture_assign(fixture, &server);
}

/* The second turn of a conversation: P fetches from D what D generated, and D then fetches from P only what is new. */
static void second_turn(const char *backend, enum kern_kv_type kv_type)
{
    struct fixture *fixture = nodes_start(backend, kv_type);
    prompt_make(4);
    struct assign assign = ask(0, 1, 100);
    hand_off(fixture, assign);
    fixture_wait_ended(fixture, 1, 1);
    heard_equal(&fixture->heard[1][1], cold(fixture, assign), ANSWER);
    uint32_t count = next_turn(&fixture->heard[1][1], 100, 30);
    uint64_t p_before = sent(fixture, 0), d_before = sent(fixture, 1);
    assign = ask(0, 2, count);
    serve(fixture, &assign, 50, (100 + ANSWER - 1) / PAGE); /* 7 pages, of which P has 6 */
    hand_off(fixture, assign);
    fixture_wait_ended(fixture, 1, 2);
    fixture_wait_ended(fixture, 0, 2);
    fixture_wait_ended(fixture, 1, 50);
    heard_equal(&fixture->heard[1][2], cold(fixture, assign), ANSWER);
    CHECK_INT(fixture->heard[1][50].verdict, VERDICT(OK));
    CHECK_INT(fixture->heard[0][2].cached_tokens, 112);
    CHECK_INT(sent(fixture, 1) - d_before, page_bytes(fixture));
    CHECK_INT(sent(fixture, 0) - p_before, ((count + PAGE - 1) / PAGE - 7) * page_bytes(fixture));
    CHECK_INT(metric_value(fixture->nodes[0]->counted.fetches[2]), 1);
    /* the same for one that computes and decodes by itself, from nothing */
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

TEST(cache, the_second_turn_is_fetched_from_where_it_was_generated)
{
    second_turn("cpu", KERN_KV_F32);
}

TEST(cache, the_second_turn_is_fetched_behind_opaque_memory)
{
    second_turn("opaque", KERN_KV_F32);
}

/* The same with smaller KV: other sizes of pages and pieces, and rows that are rounded once, when they are written. */
TEST(cache, a_hit_changes_no_bit_in_any_kv_type)
{
    reuse_alone("cpu", KERN_KV_F16);
    reuse_alone("cpu", KERN_KV_INT8);
}

TEST(cache, pages_of_any_kv_type_are_handed_over_and_fetched)
{
    hand_off_moves_what_is_missing("cpu", KERN_KV_F16);
    hand_off_moves_what_is_missing("opaque", KERN_KV_INT8);
    second_turn("cpu", KERN_KV_INT8);
    second_turn("opaque", KERN_KV_F16);
}

static bool got_pieces(struct fixture *fixture, void *context)
{
    return kv_links_counters(fixture->nodes[0]->links)->pieces_received >= *(uint64_t *)context;
}

static bool serves_nothing(struct fixture *fixture, void *context)
{
    (void)context;
    return !fixture->nodes[1]->table.state_counts[WORK_HOLDING];
}

static bool nothing_stuck(struct fixture *fixture, void *context)
{
    (void)context;
    return !pool_count(&fixture->nodes[0]->pool, POOL_QUARANTINED);
}

/* Whether node 0's attempt 2 has ended; `context`: the most pages that were quarantined there meanwhile. */
static bool ended_watched(struct fixture *fixture, void *context)
{
    uint32_t *most = context, now = pool_count(&fixture->nodes[0]->pool, POOL_QUARANTINED);
    *most = now > *most ? now : *most;
    return fixture->heard[0][2].reports[REPORT(ENDED)] > 0;
}

/* A fetch that stops half-way, in every way that there is: what came counts, the rest is computed, the answer is the same. */
static void fetch_broken(const char *backend)
{
    enum { END, FLIPS, CUT, KILL, NEVER, WAYS };
    for (int way = 0, tries = 0; way < WAYS; way++) {
        struct fixture *fixture = nodes_start(backend, KERN_KV_F32);
        prompt_make(10 + (uint32_t)way);
        struct assign assign = ask(1, 1, 200);
        alone(fixture, &assign, 0);
        const struct kv_counters *got = kv_links_counters(fixture->nodes[0]->links);
        assign = ask(0, 2, 220);
        uint64_t half = 6; /* of 24 pieces; at most 8 more are under way */
        xfer_hub_set_automatic(fixture->hub, false);
        if (way != NEVER)
            serve(fixture, &assign, 50, 12);
        if (way == NEVER) { /* a number that the other node has long passed */
            serve(fixture, &assign, 50, 12);
            assign.fetch_number = 1;
            assign.fetch_attempt = 51;
        }
        fixture_assign(fixture, &assign);
        uint64_t until_ns = clock_now_ns() + 60 * NS_PER_S;
        if (way == FLIPS) {
            /* of three pieces (and frames, which are then lost) one is flipped: more often than anybody has patience for */
            xfer_hub_set_faults(fixture->hub, &(struct xfer_faults){.flip = 20000});
            half = 1;
        }
        while (way != NEVER && got->pieces_received < half && clock_now_ns() < until_ns &&
               fixture->nodes[0]->table.state_counts[WORK_PROMPT] == 0) {
            xfer_hub_step(fixture->hub);
            loop_round(fixture->loop, 0);
        }
        if (way != FLIPS && way != NEVER)
            CHECK(got_pieces(fixture, &half));
        if (way == END || way == CUT) { /* and nothing else moves before that is known there */
            fixture_end(fixture, 1, 50);
            fixture_until(fixture, serves_nothing, NULL, "the end of the server's work");
        }
        if (way == KILL)
            xfer_hub_kill(fixture->xfers[1]);
        if (way == CUT) /* what is under way never comes */
            xfer_hub_cut(fixture->xfers[1], fixture->xfers[0], true);
        xfer_hub_set_automatic(fixture->hub, true);
        bool killed = way == KILL;
        uint32_t quarantined = 0;
        fixture_until(fixture, ended_watched, &quarantined, "an attempt to end");
        const struct heard *heard = &fixture->heard[0][2];
        xfer_hub_set_faults(fixture->hub, &(struct xfer_faults){0});
        heard_equal(heard, cold(fixture, assign), ANSWER);
        CHECK_INT(heard->cached_tokens % PAGE, 0);
        CHECK_MSG(heard->cached_tokens < 192, "way %d: %u tokens came", way, heard->cached_tokens);
        if (way == NEVER)
            CHECK_INT(heard->cached_tokens, 0);
        if (way == FLIPS) { /* pieces, or else the frames that ask for them */
            const struct kv_counters *asked = kv_links_counters(fixture->nodes[1]->links);
            CHECK(got->checksum_failures + got->stale[KV_FRAME_NONE] + asked->stale[KV_FRAME_NONE] >
                  0);
        }
        uint64_t fetched = (uint64_t)metric_value(fixture->nodes[0]->counted.fetches[0]) +
                           (uint64_t)metric_value(fixture->nodes[0]->counted.fetches[1]);
        CHECK_INT(fetched, 1);
        if (way ==
            CUT) { /* a receive that did not end: other pages took the place of its own, until it did */
            CHECK_INT(heard->reports[REPORT(DROPPED)], 0);
            /* by chance nothing may have been under way just then: once more */
            CHECK_MSG(quarantined > 0 || tries < 7, "nothing was ever under way");
            if (!quarantined)
                tries++, way--;
            xfer_hub_cut(fixture->xfers[1], fixture->xfers[0], false);
            fixture_until(fixture, nothing_stuck, NULL, "the receive's end");
        }
        if (!killed) {
            fixture_end(fixture, 1, 50);
            fixture_check_rest(fixture);
        }
        fixture_stop(fixture);
    }
}

TEST(cache, a_broken_fetch_is_computed)
{
    fetch_broken("cpu");
}

TEST(cache, a_broken_fetch_is_computed_behind_opaque_memory)
{
    fetch_broken("opaque");
}

/* A bit of the prompt's page flips in memory while nobody looks. */
static void flip(struct fixture *fixture, int node, uint32_t block)
{
    uint32_t pages[64], count;
    const uint8_t salt[PREFIX_SALT_BYTES] = {0};
    count = prefix_lookup(&fixture->nodes[node]->cache.prefix, salt, prompt, block + 1, pages);
    CHECK_INT(count, block + 1);
    uint8_t *bytes = engine_piece_host(fixture->engines[node], pages[block], 1);
    CHECK(bytes != NULL);
    bytes[77] ^= 4;
}

TEST(cache, a_page_that_went_bad_at_rest_is_computed_again)
{
    struct fixture *fixture = nodes_start("cpu", KERN_KV_F32);
    prompt_make(20);
    struct assign assign = ask(0, 1, 150);
    alone(fixture, &assign, 0);
    flip(fixture, 0, 4);
    assign = ask(0, 2, 150);
    alone(fixture, &assign, 64);
    CHECK_INT(fixture->nodes[0]->cache.bad_pages, 1);
    assign = ask(0, 3, 150); /* the page is a new one */
    alone(fixture, &assign, 144);
    /* on a decode node: what is bad is fetched instead */
    hand_off(fixture, ask(0, 4, 150));
    fixture_wait_ended(fixture, 1, 4);
    flip(fixture, 1, 2);
    assign = ask(0, 5, 150);
    hand_off(fixture, assign);
    fixture_wait_ended(fixture, 1, 5);
    fixture_wait_ended(fixture, 0, 5);
    heard_equal(&fixture->heard[1][5], cold(fixture, assign), ANSWER);
    CHECK_INT(fixture->nodes[1]->cache.bad_pages, 1);
    CHECK_INT(fixture->heard[1][5].moved_bytes, (10 - 2) * page_bytes(fixture));
    /* on a node that serves: the fetcher's checksums find it, and then its own */
    prompt_make(21);
    assign = ask(1, 6, 150);
    alone(fixture, &assign, 0);
    flip(fixture, 1, 5);
    assign = ask(0, 7, 150);
    serve(fixture, &assign, 50, 9);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 7);
    heard_equal(&fixture->heard[0][7], cold(fixture, assign), ANSWER);
    CHECK(fixture->heard[0][7].cached_tokens < 144);
    fixture_wait_ended(fixture, 1, 50);
    fixture_check_rest(fixture);
    CHECK_INT(fixture->nodes[1]->cache.bad_pages, 2);
    CHECK(fixture->nodes[0]->cache.bad_pages == 1);
    fixture_stop(fixture);
}

TEST(cache, salts_share_nothing)
{
    struct fixture *fixture = nodes_start("cpu", KERN_KV_F32);
    prompt_make(30);
    struct assign assign = ask(0, 1, 100);
    alone(fixture, &assign, 0);
    for (int i = 0; i < 2; i++) {
        assign = ask(0, 2 + 2 * i, 100);
        assign.salt = (uint8_t)(1 + i);
        alone(fixture, &assign, 0);
        assign = ask(0, 3 + 2 * i, 100);
        assign.salt = (uint8_t)(1 + i);
        alone(fixture, &assign, 96);
    }
    /* nor between nodes */
    assign = ask(1, 10, 100);
    assign.leg = LEG_SERVE;
    assign.node = 0;
    assign.serve_pages = 6;
    assign.salt = 3;
    fixture_assign(fixture, &assign);
    fixture_wait_answered(fixture, &assign);
    CHECK_INT(fixture->heard[0][10].verdict, VERDICT(GONE));
    CHECK_INT(fixture->heard[0][10].reports[REPORT(ENDED)], 0);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

static bool waits_on_heartbeat(struct fixture *fixture, void *context)
{
    return fixture->streams[0].heartbeats >= *(uint32_t *)context;
}

/* What the router was told is what is there, by the hashes that it computes itself. */
static void told_check(struct fixture *fixture, uint32_t tokens, bool all)
{
    uint32_t beats = fixture->streams[0].heartbeats + 2;
    fixture_until(fixture, waits_on_heartbeat, &beats, "two heartbeats");
    struct prefix_key key;
    struct prefix_hash hashes[64];
    const uint8_t salt[PREFIX_SALT_BYTES] = {0};
    prefix_key_init(fixture->cache_key, &key);
    uint32_t count = prefix_hashes(&key, salt, prompt, tokens, PAGE, hashes);
    const struct fixture_stream *stream = &fixture->streams[0];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t known = 0;
        for (uint32_t k = 0; k < stream->cached_count; k++)
            known += stream->cached[k] == hashes[i].low;
        CHECK_INT(known, all);
    }
    CHECK_INT(stream->cached_count, fixture->nodes[0]->cache.prefix.count);
    CHECK_INT(stream->cached_resets, 1);
}

static bool registered_again(struct fixture *fixture, void *context)
{
    return fixture->streams[0].registrations >= *(uint32_t *)context &&
           fixture->streams[0].heartbeats > 0;
}

/* The router is told what comes and goes; a new one with another key is told anew, and finds the same pages. */
TEST(cache, the_router_is_told_and_another_one_anew)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){
        .nodes = 3, .kv_pages = 30, .no_cache = {[COLD] = true}, .cache_key = 9});
    prompt_make(40);
    struct assign assign = ask(0, 1, 100);
    alone(fixture, &assign, 0);
    told_check(fixture, 100, true);
    fixture->cache_key[0] = 10;
    rpc_call_abort(fixture->streams[0].call, GRPC_CODE_UNAVAILABLE, "another router");
    uint32_t wanted = 2;
    fixture_until(fixture, registered_again, &wanted, "a second registration");
    told_check(fixture, 100, true);
    assign = ask(0, 2, 100);
    alone(fixture, &assign, 96);
    /* others push it out: the router hears of that too */
    for (int i = 0; i < 3; i++) {
        prompt_make(41 + (uint32_t)i);
        assign = ask(0, 3 + i, 300);
        alone(fixture, &assign, 0);
    }
    CHECK(metric_value(fixture->nodes[0]->cache.evicted) > 0);
    prompt_make(40);
    told_check(fixture, 100, false);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

/* LEG_SERVE: all or nothing, also while draining; ended by name, by its lease, or for an older request's pages. */
TEST(cache, serving_is_all_or_nothing_and_gives_way)
{
    struct fixture *fixture = fixture_start(&(struct fixture_options){.nodes = 1, .kv_pages = 20});
    prompt_make(50);
    struct assign assign = local(0, 1, 100, ANSWER);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 1);
    struct assign server = local(0, 2, 100, 0);
    server.leg = LEG_SERVE;
    server.serve_pages = 7; /* of 100 tokens 6 are whole */
    fixture_assign(fixture, &server);
    server.attempt = 3;
    server.serve_pages = 0;
    fixture_assign(fixture, &server);
    server.attempt = 4;
    server.serve_pages = 6;
    server.age = 100;
    fixture_assign(fixture, &server);
    fixture_wait_answered(fixture, &server);
    CHECK_INT(fixture->heard[0][2].verdict, VERDICT(INVALID));
    CHECK(strstr(fixture->heard[0][2].message, "serve_pages"));
    CHECK_INT(fixture->heard[0][3].verdict, VERDICT(INVALID));
    CHECK_INT(fixture->heard[0][4].verdict, VERDICT(OK));
    CHECK_INT(pool_count(&fixture->nodes[0]->pool, POOL_SHARED), 6);
    /* an older request that needs them all */
    prompt_make(51);
    struct assign old = local(0, 5, 290, ANSWER);
    fixture_assign(fixture, &old);
    fixture_wait_ended(fixture, 0, 5);
    CHECK_INT(fixture->heard[0][5].count, ANSWER);
    CHECK_INT(fixture->heard[0][4].reports[REPORT(DROPPED)], 1);
    CHECK_INT(fixture->heard[0][4].reports[REPORT(ENDED)], 1);
    /* its pages went: GONE now; what is there is served while the node drains */
    prompt_make(50);
    server.attempt = 6;
    fixture_assign(fixture, &server);
    prompt_make(51);
    server.attempt = 7;
    server.prompt_count = 290;
    server.serve_pages = 18;
    server.age = 200;
    fixture_drain(fixture, 0);
    fixture_assign(fixture, &server);
    old.attempt = 8;
    fixture_assign(fixture, &old);
    fixture_wait_answered(fixture, &old);
    CHECK_INT(fixture->heard[0][6].verdict, VERDICT(GONE));
    CHECK_INT(fixture->heard[0][7].verdict, VERDICT(OK));
    CHECK_INT(fixture->heard[0][7].reports[REPORT(HAND_OVER)], 0);
    CHECK_INT(fixture->heard[0][8].verdict, VERDICT(DRAINING));
    fixture_end(fixture, 0, 7);
    fixture_wait_ended(fixture, 0, 7);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

static bool serves_all(struct fixture *fixture, void *context)
{
    uint32_t holding = 0;
    list_for_each(it, &fixture->nodes[0]->table.states[WORK_HOLDING])
    {
        const struct work *work = container_of(it, struct work, link);
        holding += work->leg == WORK_LEG_SERVE && !work->pieces_left;
    }
    return holding == *(const uint32_t *)context;
}

/* What lies in the mirror was damaged while somebody waited to be fetched from: it is copied again for the next who serves the same
 * pages, and who had it ready before is not told a second time. */
TEST(cache, a_copy_made_anew_is_ready_once)
{
    struct fixture *fixture =
        fixture_start(&(struct fixture_options){.nodes = 1, .kv_pages = 20, .backend = "opaque"});
    prompt_make(50);
    struct assign assign = local(0, 1, 100, ANSWER);
    fixture_assign(fixture, &assign);
    fixture_wait_ended(fixture, 0, 1);
    struct node *node = fixture->nodes[0];
    CHECK(copies_mirrored(&node->copies));
    struct assign server = local(0, 2, 100, 0);
    server.leg = LEG_SERVE;
    server.serve_pages = 6;
    fixture_assign(fixture, &server);
    uint32_t wanted = 1;
    fixture_until(fixture, serves_all, &wanted, "all pieces in the mirror");
    for (uint32_t page = 0; page < node->pool.total; page++)
        node->cache.pages[page].mirrored = 0;
    server.attempt = 3;
    fixture_assign(fixture, &server);
    wanted = 2;
    fixture_until(fixture, serves_all, &wanted, "all pieces in the mirror again");
    fixture_end(fixture, 0, 2);
    fixture_end(fixture, 0, 3);
    fixture_wait_ended(fixture, 0, 2);
    fixture_wait_ended(fixture, 0, 3);
    fixture_check_rest(fixture);
    fixture_stop(fixture);
}

static bool holds_it(struct fixture *fixture, void *context)
{
    (void)context;
    return fixture->nodes[0]->table.state_counts[WORK_HOLDING] == 1;
}

/* P dies in mid-transfer: D keeps what it verified, and the next attempt finds it. */
TEST(cache, a_decode_node_keeps_what_it_verified)
{
    static const char *const backends[] = {"cpu", "opaque"};
    for (int b = 0; b < 2; b++) {
        struct fixture *fixture = nodes_start(backends[b], KERN_KV_F32);
        prompt_make(60);
        struct assign assign = ask(0, 1, 300);
        xfer_hub_set_automatic(fixture->hub, false);
        hand_off(fixture, assign);
        const struct kv_counters *got = kv_links_counters(fixture->nodes[1]->links);
        /* all is computed before anything moves, so it goes in the order of pages */
        fixture_until(fixture, holds_it, NULL, "the prompt to be computed");
        uint64_t until_ns = clock_now_ns() + 60 * NS_PER_S;
        while (got->bytes_received < 9 * page_bytes(fixture) && clock_now_ns() < until_ns) {
            xfer_hub_step(fixture->hub);
            loop_round(fixture->loop, 0);
        }
        while (got->bytes_verified < 5 * page_bytes(fixture) && clock_now_ns() < until_ns)
            loop_round(fixture->loop, 0);
        xfer_hub_kill(fixture->xfers[0]);
        xfer_hub_set_automatic(fixture->hub, true);
        fixture_wait_ended(fixture, 1, 1);
        CHECK_INT(fixture->heard[1][1].reports[REPORT(GAVE_UP)], 1);
        assign = ask(1, 2, 300);
        fixture_assign(fixture, &assign);
        fixture_wait_ended(fixture, 1, 2);
        heard_equal(&fixture->heard[1][2], cold(fixture, assign), ANSWER);
        CHECK_MSG(fixture->heard[1][2].cached_tokens >= PAGE, "of 9 pages' bytes nothing was kept");
        CHECK_INT(pool_count(&fixture->nodes[1]->pool, POOL_USED), 0);
        fixture_stop(fixture);
    }
}

/* Pools for one and a half requests, prefixes that are shared, hand-offs of which some come late: pages are evicted all the time,
 * and never one that somebody will still send, read or check. */
static void storm(const char *backend, uint64_t seed, uint32_t pages)
{
    enum { ROUNDS = 90, ALIVE = 4, LENGTHS = 6, FAMILIES = 3 };
    struct fixture *fixture = fixture_start(
        &(struct fixture_options){.nodes = 3,
                                  .backend = backend,
                                  .kv_pages = pages,
                                  .kv_pages_of = {[COLD] = 160},
                                  .no_cache = {[COLD] = true},
                                  .cache_key = 7,
                                  .reserve = seed % 2 ? NODE_RESERVE_NEED : NODE_RESERVE_EARLY});
    static struct heard expected[FAMILIES][LENGTHS];
    for (int f = 0; f < FAMILIES; f++)
        for (int l = 0; l < LENGTHS; l++) {
            prompt_make(70 + (uint32_t)f);
            struct assign assign = ask(COLD, 0, 40 + 23 * (uint32_t)l);
            assign.attempt = FIXTURE_ATTEMPTS - 1 - (f * LENGTHS + l);
            assign.seed = 11;
            assign.temperature = 0.7f;
            expected[f][l] = *cold(fixture, assign);
        }
    struct {
        bool on, handed;
        int node, family, length, attempt;
    } alive[ALIVE] = {0};
    int began = 0;
    uint32_t cached = 0, retried = 0;
    while (began < ROUNDS || alive[0].on || alive[1].on || alive[2].on || alive[3].on) {
        for (int i = 0; i < ALIVE; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            if (!alive[i].on && began < ROUNDS) {
                alive[i].on = true;
                alive[i].handed = (seed >> 60) % 2;
                alive[i].family = (int)((seed >> 40) % FAMILIES);
                alive[i].length = (int)((seed >> 33) % LENGTHS);
                alive[i].attempt = 1 + began++;
                alive[i].node = alive[i].handed ? 1 : (int)((seed >> 50) % 2);
                prompt_make(70 + (uint32_t)alive[i].family);
                struct assign assign =
                    ask(alive[i].node, alive[i].attempt, 40 + 23 * (uint32_t)alive[i].length);
                assign.seed = 11;
                assign.temperature = 0.7f;
                if (alive[i].handed)
                    hand_off(fixture, assign);
                else
                    fixture_assign(fixture, &assign);
            } else if (alive[i].on) {
                const struct heard *heard = &fixture->heard[alive[i].node][alive[i].attempt];
                const struct heard *p = &fixture->heard[0][alive[i].attempt];
                bool refused = heard->accepted && heard->verdict != VERDICT(OK);
                if (!refused && !heard->reports[REPORT(ENDED)])
                    continue;
                if (heard->finish)
                    heard_equal(heard, &expected[alive[i].family][alive[i].length], ANSWER);
                else
                    retried++; /* dropped for an older one, or P was */
                cached += heard->cached_tokens + p->cached_tokens;
                if (alive[i].handed)
                    fixture_end(fixture, 0, alive[i].attempt);
                alive[i].on = false;
            }
        }
        fixture_turn(fixture, NS_PER_MS);
    }
    fixture_check_rest(fixture);
    uint32_t evicted = (uint32_t)metric_value(fixture->nodes[0]->cache.evicted) +
                       (uint32_t)metric_value(fixture->nodes[1]->cache.evicted);
    CHECK_MSG(cached > 500 && evicted > 20 && retried < ROUNDS / 2,
              "%u tokens cached, %u pages evicted, %u given up", cached, evicted, retried);
    fixture_stop(fixture);
}

TEST(cache, tiny_pools_with_shared_prefixes)
{
    storm("cpu", 1, 18);
    storm("cpu", 2, 14);
}

TEST(cache, tiny_pools_with_shared_prefixes_behind_opaque_memory)
{
    storm("opaque", 3, 18);
}
