/* proto/json: one line, field names as in the .proto. */
#include "proto/json.h"

#include <math.h>

#include "proto/baton/v1/baton.pb-c.h"
#include "tests/test.h"

static void prints(const ProtobufCMessage *message, const struct json_text *text,
                   const char *expected)
{
    struct buf out = BUF_INIT;
    json_print_message(&out, message, text);
    buf_append(&out, "", 1);
    CHECK(!out.failed);
    CHECK_STR((const char *)out.data, expected);
    buf_finish(&out);
}

TEST(json, empty_message)
{
    Baton__V1__DrainResponse empty = BATON__V1__DRAIN_RESPONSE__INIT;
    prints(&empty.base, NULL, "{}");
    Baton__V1__GenerateResponse response = BATON__V1__GENERATE_RESPONSE__INIT;
    prints(&response.base, NULL, "{}");
}

TEST(json, response_with_everything)
{
    Baton__V1__GenerateResponse response = BATON__V1__GENERATE_RESPONSE__INIT;
    Baton__V1__Usage usage = BATON__V1__USAGE__INIT;
    Baton__V1__TokenLogprobs logprobs = BATON__V1__TOKEN_LOGPROBS__INIT, *list[] = {&logprobs};
    Baton__V1__TopLogprob top = BATON__V1__TOP_LOGPROB__INIT, *tops[] = {&top};
    uint32_t ids[] = {0, 49151};
    response.position = 7;
    response.text = "say \"hi\"\n\t\\ \xc3\xa9\x7f";
    response.n_token_ids = 2;
    response.token_ids = ids;
    logprobs.logprob = -0.1f;
    top.token_id = 4;
    top.logprob = -INFINITY;
    logprobs.n_top = 1;
    logprobs.top = tops;
    response.n_logprobs = 1;
    response.logprobs = list;
    response.finish_reason = BATON__V1__GENERATE_RESPONSE__FINISH_REASON__STOP;
    usage.prompt_tokens = 3;
    response.usage = &usage;
    response._seed_case = BATON__V1__GENERATE_RESPONSE___SEED_SEED;
    response.seed = UINT64_MAX;
    prints(&response.base, NULL,
           "{\"position\":7,\"text\":\"say \\\"hi\\\"\\n\\u0009\\\\ \xc3\xa9\\u007f\","
           "\"token_ids\":[0,49151],\"logprobs\":[{\"logprob\":-0.1,\"top\":[{\"token_id\":4,"
           "\"logprob\":null}]}],\"finish_reason\":\"STOP\",\"usage\":{\"prompt_tokens\":3},"
           "\"seed\":18446744073709551615}");
}

TEST(json, presence_is_kept)
{
    Baton__V1__SamplingParams sampling = BATON__V1__SAMPLING_PARAMS__INIT;
    prints(&sampling.base, NULL, "{}");
    sampling._temperature_case = BATON__V1__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    sampling.temperature = 0;
    sampling.min_p = 0.05f;
    sampling.ignore_eos = true;
    char *stop[] = {"", "x"};
    sampling.n_stop = 2;
    sampling.stop = stop;
    prints(&sampling.base, NULL,
           "{\"temperature\":0,\"min_p\":0.05,\"stop\":[\"\",\"x\"],\"ignore_eos\":true}");
}

TEST(json, text_with_its_true_length)
{
    Baton__V1__GenerateResponse response = BATON__V1__GENERATE_RESPONSE__INIT;
    response.index = 1;
    response.text = "a";
    struct json_text text = {"text", "a\0b", 3};
    prints(&response.base, &text, "{\"index\":1,\"text\":\"a\\u0000b\"}");
    text.bytes = 0;
    prints(&response.base, &text, "{\"index\":1}");
}

TEST(json, invalid_utf8_and_unknown_enum)
{
    Baton__V1__GenerateResponse response = BATON__V1__GENERATE_RESPONSE__INIT;
    response.text = "\xff<\xe2\x82";
    response.finish_reason = 77;
    prints(&response.base, NULL, "{\"text\":\"\xef\xbf\xbd<\xef\xbf\xbd\",\"finish_reason\":77}");
}
