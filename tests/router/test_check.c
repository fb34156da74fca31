#include <math.h>

#include "router/check.h"
#include "router/response.h"
#include "tests/test.h"

/* A checker over the unit tests' model, in a cluster of one node with `pages` pages of 16 tokens (0: no node yet). */
struct fixture {
    struct model_file *model;
    struct registry registry;
    struct node node, *nodes[1];
    struct checker checker;
    Baton__V1__GenerateRequest message;
    Baton__V1__SamplingParams sampling;
    Baton__V1__TokenIds ids;
    uint32_t id_room[5000];
    struct request *request;
    struct err err;
};

static struct fixture *fixture_create(uint32_t pages)
{
    const char *path = getenv("BATON_UNIT_MODEL");
    CHECK_MSG(path != NULL, "BATON_UNIT_MODEL is not set");
    struct fixture *f = calloc(1, sizeof *f);
    f->err = ERR_INIT;
    CHECK_MSG(model_open(path, &f->model, &f->err) == STATUS_OK, "%s", f->err.message);
    f->registry.model.context_tokens = f->model->config.context_tokens;
    if (pages) {
        f->registry.identity = (struct identity){
            .known = true, .page_tokens = 16, .context_tokens = f->model->config.context_tokens};
        f->node = (struct node){.state = NODE_SERVING, .pages_total = pages};
        f->nodes[0] = &f->node;
        f->registry.nodes = f->nodes;
        f->registry.node_count = 1;
    }
    CHECK_INT(
        checker_init(&f->checker, f->model, &f->registry, f->model->config.context_tokens, NULL),
        STATUS_OK);
    baton__v1__generate_request__init(&f->message);
    baton__v1__sampling_params__init(&f->sampling);
    baton__v1__token_ids__init(&f->ids);
    f->message.sampling = &f->sampling;
    f->message.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    f->message.token_ids = &f->ids;
    f->ids.ids = f->id_room;
    f->ids.n_ids = 4;
    return f;
}

static void fixture_destroy(struct fixture *f)
{
    request_destroy(f->request);
    checker_finish(&f->checker);
    model_close(f->model);
    free(f);
}

static enum status check(struct fixture *f)
{
    request_destroy(f->request);
    f->request = request_create();
    f->err = ERR_INIT;
    return check_generate(&f->checker, &f->message, f->request, &f->err);
}

static void accepted(struct fixture *f)
{
    CHECK_MSG(check(f) == STATUS_OK, "refused: %s", f->err.message);
}

static void refused(struct fixture *f, enum status status, const char *words)
{
    enum status got = check(f);
    CHECK_MSG(got == status, "%s: status is %s: %s", words, status_text(got), f->err.message);
    CHECK_MSG(strstr(f->err.message, words), "\"%s\" does not say \"%s\"", f->err.message, words);
}

static void max_tokens(struct fixture *f, uint32_t value)
{
    f->sampling._max_tokens_case = BATON__V1__SAMPLING_PARAMS___MAX_TOKENS_MAX_TOKENS;
    f->sampling.max_tokens = value;
}

TEST(check, a_plain_request)
{
    struct fixture *f = fixture_create(1000);
    accepted(f);
    CHECK_INT(f->request->prompt.count, 4);
    CHECK_INT(f->request->tokens_max, f->model->config.context_tokens - 4);
    CHECK(f->request->sampling.seed != 0); /* drawn */
    uint64_t seed = f->request->sampling.seed;
    accepted(f);
    CHECK(f->request->sampling.seed != seed);
    CHECK(f->request->sampling.temperature == 1);
    CHECK(!f->request->sampling.logprobs);
    size_t end_count;
    tokenizer_end_ids(f->model->tokenizer, &end_count);
    CHECK_INT(f->request->sampling.n_stop_ids, end_count);
    f->sampling.ignore_eos = true;
    accepted(f);
    CHECK_INT(f->request->sampling.n_stop_ids, 0);
    f->message.sampling = NULL;
    accepted(f);
    fixture_destroy(f);
}

TEST(check, prompts)
{
    struct fixture *f = fixture_create(1000);
    f->ids.n_ids = 0;
    refused(f, STATUS_INVALID, "token_ids: must not be empty");
    f->message.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT__NOT_SET;
    refused(f, STATUS_INVALID, "prompt: one of");
    f->message.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TEXT;
    f->message.text = (char *)"";
    refused(f, STATUS_INVALID, "text: must not be empty");
    f->message.text = (char *)"hello";
    accepted(f);
    Baton__V1__Chat chat = BATON__V1__CHAT__INIT;
    f->message.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_CHAT;
    f->message.chat = &chat;
    f->message.parse_special = false;
    if (f->model->chat)
        refused(f, STATUS_INVALID, "chat.messages: must not be empty");
    else
        refused(f, STATUS_UNIMPLEMENTED, "chat");
    f->message.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    f->message.token_ids = &f->ids;
    f->ids.n_ids = 2;
    f->id_room[1] = f->model->config.vocab;
    refused(f, STATUS_INVALID, "token_ids[1]");
    f->id_room[1] = 0;
    f->message.parse_special = true;
    refused(f, STATUS_INVALID, "parse_special");
    fixture_destroy(f);
}

TEST(check, sizes_against_the_context)
{
    struct fixture *f = fixture_create(0);
    uint32_t context = f->model->config.context_tokens;
    char text[32];
    snprintf(text, sizeof text, "context of %u", context);
    CHECK(context < 5000);
    max_tokens(f, 1);
    f->ids.n_ids = context - 1;
    accepted(f);
    max_tokens(f, 2);
    refused(f, STATUS_INVALID, "sampling.max_tokens: 2");
    refused(f, STATUS_INVALID, text);
    max_tokens(f, 1);
    f->ids.n_ids = context;
    refused(f, STATUS_INVALID, text);
    f->ids.n_ids = 4;
    max_tokens(f, 0);
    refused(f, STATUS_INVALID, "sampling.max_tokens: 0");
    max_tokens(f, UINT32_MAX);
    refused(f, STATUS_INVALID, "sampling.max_tokens: 4294967295");
    max_tokens(f, 5);
    f->sampling.min_tokens = 6;
    refused(f, STATUS_INVALID, "sampling.min_tokens: 6");
    f->sampling.min_tokens = 0;
    f->checker.prompt_tokens_max = 3;
    refused(f, STATUS_INVALID, "token_ids: 4 tokens, this router's limit is 3");
    fixture_destroy(f);
}

TEST(check, sizes_against_the_page_pools)
{
    struct fixture *f =
        fixture_create(2); /* 32 positions: the last token of an answer takes none */
    f->ids.n_ids = 20;
    max_tokens(f, 13);
    accepted(f);
    max_tokens(f, 14);
    refused(f, STATUS_INVALID, "sampling.max_tokens: 14");
    f->sampling._max_tokens_case = 0;
    accepted(f);
    CHECK_INT(f->request->tokens_max, 13);
    f->ids.n_ids = 32;
    accepted(f);
    CHECK_INT(f->request->tokens_max, 1);
    f->ids.n_ids = 33;
    refused(f, STATUS_INVALID, "token_ids: 33 tokens, the largest page pool holds 32");
    fixture_destroy(f);
}

TEST(check, sampling)
{
    struct fixture *f = fixture_create(1000);
    max_tokens(f, 5);
    f->sampling._temperature_case = BATON__V1__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    f->sampling.temperature = NAN;
    refused(f, STATUS_INVALID, "sampling.temperature");
    f->sampling.temperature = 0;
    accepted(f);
    f->sampling.min_p = -1;
    refused(f, STATUS_INVALID, "sampling.min_p");
    f->sampling.min_p = 0;
    f->sampling._n_case = BATON__V1__SAMPLING_PARAMS___N_N;
    f->sampling.n = 0;
    refused(f, STATUS_INVALID, "sampling.n");
    f->sampling.n = 2;
    refused(f, STATUS_UNIMPLEMENTED, "sampling.n");
    f->sampling.n = 1;
    f->sampling._logprobs_case = BATON__V1__SAMPLING_PARAMS___LOGPROBS_LOGPROBS;
    f->sampling.logprobs = UINT32_MAX;
    refused(f, STATUS_INVALID, "sampling.logprobs");
    f->sampling.logprobs = 0;
    accepted(f);
    CHECK(f->request->sampling.logprobs && f->request->sampling.logprobs_top == 0);
    char *stops[17] = {(char *)"x", (char *)""};
    f->sampling.stop = stops;
    f->sampling.n_stop = 2;
    refused(f, STATUS_INVALID, "sampling.stop[1]: 0 bytes");
    f->sampling.n_stop = 17;
    refused(f, STATUS_INVALID, "sampling.stop: 17 strings");
    f->sampling.n_stop = 1;
    accepted(f);
    uint32_t stop_ids[65];
    for (uint32_t i = 0; i < 65; i++)
        stop_ids[i] = i;
    f->sampling.stop_token_ids = stop_ids;
    f->sampling.n_stop_token_ids = 65;
    refused(f, STATUS_INVALID, "sampling.stop_token_ids");
    f->sampling.n_stop_token_ids = 1;
    stop_ids[0] = f->model->config.vocab;
    refused(f, STATUS_INVALID, "sampling.stop_token_ids[0]");
    stop_ids[0] = 7;
    accepted(f);
    Baton__V1__LogitBias bias = BATON__V1__LOGIT_BIAS__INIT, *list[1100];
    for (int i = 0; i < 1100; i++)
        list[i] = &bias;
    bias.token_id = 3;
    bias.bias = 2;
    f->sampling.logit_bias = list;
    f->sampling.n_logit_bias = 1100;
    refused(f, STATUS_INVALID, "sampling.logit_bias");
    f->sampling.n_logit_bias = 2;
    accepted(f);
    CHECK_INT(f->request->sampling.n_bias, 2);
    CHECK(f->request->sampling.bias[1]->token_id == 3 && f->request->sampling.bias[1]->bias == 2);
    bias.bias = INFINITY;
    refused(f, STATUS_INVALID, "sampling.logit_bias[0].bias");
    fixture_destroy(f);
}

TEST(check, labels)
{
    struct fixture *f = fixture_create(1000);
    char label[258];
    memset(label, 'x', 257);
    label[257] = 0;
    f->message.request_id = label;
    refused(f, STATUS_INVALID, "request_id: 257 bytes, the limit is 256");
    label[256] = 0;
    accepted(f);
    f->message.model = (char *)"nobody";
    refused(f, STATUS_NOT_FOUND, "nobody");
    f->message.model = f->model->config.name;
    accepted(f);
    f->message.session_id = (char *)"abc";
    refused(f, STATUS_UNIMPLEMENTED, "session_id");
    fixture_destroy(f);
}

TEST(check, resume)
{
    struct fixture *f = fixture_create(1000);
    Baton__V1__Resume resume = BATON__V1__RESUME__INIT;
    Baton__V1__TokenIds received = BATON__V1__TOKEN_IDS__INIT;
    uint32_t ids[] = {30, 31, 32};
    received.ids = ids;
    received.n_ids = 3;
    resume.received = &received;
    resume.seed = 77;
    f->message.resume = &resume;
    f->sampling.ignore_eos = true;
    max_tokens(f, 5);
    accepted(f);
    CHECK(f->request->sampling.seed == 77);
    CHECK_INT(f->request->answer.received, 3);
    CHECK_INT(f->request->resumed, 3);
    f->sampling._seed_case = BATON__V1__SAMPLING_PARAMS___SEED_SEED;
    f->sampling.seed = 78;
    refused(f, STATUS_INVALID, "resume.seed: 77");
    f->sampling.seed = 77;
    accepted(f);
    resume.index = 1;
    refused(f, STATUS_INVALID, "resume.index");
    resume.index = 0;
    ids[1] = f->model->config.vocab;
    refused(f, STATUS_INVALID, "resume.received[1]");
    ids[1] = 31;
    resume.text_bytes = 100000;
    refused(f, STATUS_INVALID, "resume.text_bytes: 100000");
    resume.text_bytes = 0;
    max_tokens(f, 2);
    refused(f, STATUS_INVALID, "resume.received: 3 tokens");
    max_tokens(f, 3);
    accepted(f);
    CHECK_INT(f->request->answer.finish, ANSWER_LENGTH);
    fixture_destroy(f);
}

/* --- the sums of Timings --- */

TEST(check, timings_add_up_whatever_the_clocks_say)
{
    unsigned seed = 3;
    for (int i = 0; i < 20000; i++) {
        struct request *r = request_create();
        struct request_timing *t = &r->timing;
        uint64_t at = 1000 * NS_PER_S;
#define LATER (at += (uint64_t)(rand_r(&seed) % 3000000))
        t->arrival_ns = at;
        if (rand_r(&seed) % 8)
            t->dequeued_ns = LATER;
        if (t->dequeued_ns && rand_r(&seed) % 8)
            t->assigned_ns = LATER;
        t->prefill_us = (uint64_t)rand_r(&seed) % 5000; /* a node's clock: may exceed the whole */
        t->first_ns = LATER;
        struct response_moments moments = {.first_sent_ns = LATER};
        if (rand_r(&seed) % 2)
            t->second_ns = LATER;
        t->first_decode_us = (uint64_t)rand_r(&seed) % 5000;
        moments.now_ns = LATER;
        Baton__V1__Timings out = BATON__V1__TIMINGS__INIT;
        response_timings(r, &moments, &out);
        CHECK(out.queue_us + out.placement_us + out.prefill_us + out.send_us == out.ttft_us);
        CHECK(out.ttft_us == (moments.first_sent_ns - t->arrival_ns) / NS_PER_US);
        CHECK(out.handoff_us + out.first_decode_us ==
              (t->second_ns ? (t->second_ns - t->first_ns) / NS_PER_US : 0));
        CHECK(out.total_us >= out.ttft_us);
        request_destroy(r);
    }
}
