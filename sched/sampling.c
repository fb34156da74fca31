/* See sampling.h. */
#include "sched/sampling.h"

struct sampling_params sampling_params_default(void)
{
    return (struct sampling_params){.temperature = 1.0f,
                                    .top_p = 1.0f,
                                    .repetition_penalty = 1.0f,
                                    .logprobs = SAMPLING_LOGPROBS_NONE,
                                    .n = 1,
                                    .max_tokens = UINT32_MAX};
}

/* The comparisons are written so that NaN fails them. */
static bool within(float value, float low, float high)
{
    return value >= low && value <= high;
}

static enum status range_error(struct err *err, const char *field, float value, const char *limit)
{
    return err_set(err, STATUS_INVALID, "sampling.%s: %g is outside %s", field, (double)value,
                   limit);
}

static enum status count_error(struct err *err, const char *field, uint32_t value, uint32_t max)
{
    return err_set(err, STATUS_INVALID, "sampling.%s: %u is above the limit of %u", field, value,
                   max);
}

static enum status arrays_check(const struct sampling_params *params, uint32_t vocab_size,
                                struct err *err)
{
    if (params->logit_bias_count > SAMPLING_LOGIT_BIAS_MAX)
        return count_error(err, "logit_bias (count)", params->logit_bias_count,
                           SAMPLING_LOGIT_BIAS_MAX);
    for (uint32_t i = 0; i < params->logit_bias_count; i++) {
        const struct sampling_bias *entry = &params->logit_bias[i];
        if (entry->token_id >= vocab_size)
            return err_set(err, STATUS_INVALID,
                           "sampling.logit_bias[%u].token_id: %u is not in the vocabulary of %u", i,
                           entry->token_id, vocab_size);
        if (!within(entry->bias, -SAMPLING_BIAS_MAX, SAMPLING_BIAS_MAX))
            return err_set(err, STATUS_INVALID,
                           "sampling.logit_bias[%u].bias: %g is outside [-1000, 1000]", i,
                           (double)entry->bias);
    }
    if (params->stop_token_count > SAMPLING_STOP_IDS_MAX)
        return count_error(err, "stop_token_ids (count)", params->stop_token_count,
                           SAMPLING_STOP_IDS_MAX);
    for (uint32_t i = 0; i < params->stop_token_count; i++)
        if (params->stop_token_ids[i] >= vocab_size)
            return err_set(err, STATUS_INVALID,
                           "sampling.stop_token_ids[%u]: %u is not in the vocabulary of %u", i,
                           params->stop_token_ids[i], vocab_size);
    return STATUS_OK;
}

enum status sampling_params_check(const struct sampling_params *params, uint32_t vocab_size,
                                  struct err *err)
{
    if (!within(params->temperature, 0, SAMPLING_TEMPERATURE_MAX))
        return range_error(err, "temperature", params->temperature, "[0, 100]");
    if (!(params->top_p > 0 && params->top_p <= 1))
        return range_error(err, "top_p", params->top_p, "(0, 1]");
    if (!within(params->min_p, 0, 1))
        return range_error(err, "min_p", params->min_p, "[0, 1]");
    if (!(params->repetition_penalty > 0 && params->repetition_penalty <= SAMPLING_REPETITION_MAX))
        return range_error(err, "repetition_penalty", params->repetition_penalty, "(0, 100]");
    if (!within(params->presence_penalty, -SAMPLING_PENALTY_MAX, SAMPLING_PENALTY_MAX))
        return range_error(err, "presence_penalty", params->presence_penalty, "[-2, 2]");
    if (!within(params->frequency_penalty, -SAMPLING_PENALTY_MAX, SAMPLING_PENALTY_MAX))
        return range_error(err, "frequency_penalty", params->frequency_penalty, "[-2, 2]");
    if (params->logprobs > SAMPLING_LOGPROBS_MAX)
        return count_error(err, "logprobs", (uint32_t)params->logprobs, SAMPLING_LOGPROBS_MAX);
    if (params->n == 0)
        return err_set(err, STATUS_INVALID, "sampling.n: 0 is below the limit of 1");
    if (params->n > SAMPLING_N_MAX)
        return count_error(err, "n", params->n, SAMPLING_N_MAX);
    if (params->max_tokens == 0)
        return err_set(err, STATUS_INVALID, "sampling.max_tokens: 0 is below the limit of 1");
    if (params->min_tokens > params->max_tokens)
        return err_set(err, STATUS_INVALID, "sampling.min_tokens: %u is above max_tokens, %u",
                       params->min_tokens, params->max_tokens);
    return arrays_check(params, vocab_size, err);
}
