/* Sampling parameters: every limit from both sides, and the field in the message. */
#include "sched/sampling.h"
#include "tests/test.h"

enum { VOCAB = 100 };

static void refused(struct sampling_params params, const char *field)
{
    struct err err = ERR_INIT;
    CHECK_INT(sampling_params_check(&params, VOCAB, &err), STATUS_INVALID);
    CHECK_MSG(strstr(err.message, field), "\"%s\" does not name %s", err.message, field);
}

static void accepted(struct sampling_params params)
{
    struct err err = ERR_INIT;
    CHECK_MSG(sampling_params_check(&params, VOCAB, &err) == STATUS_OK, "%s", err.message);
}

/* A copy of the defaults with one field changed. */
#define WITH(field_, value_)                                      \
    ({                                                            \
        struct sampling_params with_ = sampling_params_default(); \
        with_.field_ = (value_);                                  \
        with_;                                                    \
    })

TEST(sampling, limits)
{
    const float nan = __builtin_nanf(""), inf = __builtin_inff();
    accepted(sampling_params_default());
    const float bad_temperatures[] = {-0.1f, nan, inf, -inf, 100.1f};
    for (int i = 0; i < 5; i++)
        refused(WITH(temperature, bad_temperatures[i]), "temperature");
    accepted(WITH(temperature, 0.0f));
    accepted(WITH(temperature, 100.0f));
    const float bad_top_p[] = {0.0f, -1.0f, 1.0001f, nan, inf};
    for (int i = 0; i < 5; i++)
        refused(WITH(top_p, bad_top_p[i]), "top_p");
    accepted(WITH(top_p, 1e-9f));
    const float bad_min_p[] = {-0.001f, 1.001f, nan, inf};
    for (int i = 0; i < 4; i++)
        refused(WITH(min_p, bad_min_p[i]), "min_p");
    accepted(WITH(min_p, 1.0f));
    const float bad_repetition[] = {0.0f, -1.0f, nan, inf, 101.0f};
    for (int i = 0; i < 5; i++)
        refused(WITH(repetition_penalty, bad_repetition[i]), "repetition_penalty");
    const float bad_penalty[] = {-2.1f, 2.1f, nan, -inf};
    for (int i = 0; i < 4; i++) {
        refused(WITH(presence_penalty, bad_penalty[i]), "presence_penalty");
        refused(WITH(frequency_penalty, bad_penalty[i]), "frequency_penalty");
    }
    accepted(WITH(presence_penalty, -2.0f));
    refused(WITH(logprobs, SAMPLING_LOGPROBS_MAX + 1), "logprobs");
    accepted(WITH(logprobs, SAMPLING_LOGPROBS_MAX));
    refused(WITH(n, 0u), "sampling.n:");
    refused(WITH(n, SAMPLING_N_MAX + 1u), "sampling.n:");
    refused(WITH(max_tokens, 0u), "max_tokens");
    accepted(WITH(max_tokens, 1u));
    struct sampling_params params = WITH(max_tokens, 5u);
    params.min_tokens = 6;
    refused(params, "min_tokens");
}

TEST(sampling, arrays)
{
    struct sampling_bias bias[2] = {{3, 1}, {VOCAB - 1, -5}};
    uint32_t stops[2] = {0, VOCAB - 1};
    struct sampling_params params = sampling_params_default();
    params.logit_bias = bias;
    params.logit_bias_count = 2;
    params.stop_token_ids = stops;
    params.stop_token_count = 2;
    accepted(params);
    bias[1].token_id = VOCAB;
    refused(params, "logit_bias[1].token_id");
    bias[1].token_id = 1;
    bias[0].bias = __builtin_nanf("");
    refused(params, "logit_bias[0].bias");
    bias[0].bias = 1;
    stops[0] = UINT32_MAX;
    refused(params, "stop_token_ids[0]");
    stops[0] = 1;
    params.stop_token_count = SAMPLING_STOP_IDS_MAX + 1;
    refused(params, "stop_token_ids");
    params.stop_token_count = 0;
    params.logit_bias_count = SAMPLING_LOGIT_BIAS_MAX + 1;
    refused(params, "logit_bias");
}
