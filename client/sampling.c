/* See sampling.h. */
#include "client/sampling.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum status sampling_parse_u64(const char *text, uint64_t max, uint64_t *value_out, struct err *err)
{
    uint64_t value = 0;
    for (const char *at = text; *at || at == text; at++) {
        if (*at < '0' || *at > '9')
            return err_set(err, STATUS_CONFIG, "\"%.40s\" is not a whole number", text);
        uint64_t digit = (uint64_t)(*at - '0');
        if (value > (max - digit) / 10)
            return err_set(err, STATUS_CONFIG, "%.40s is out of range (0 to %" PRIu64 ")", text,
                           max);
        value = value * 10 + digit;
    }
    *value_out = value;
    return STATUS_OK;
}

enum status sampling_fill(const struct config *config, const struct sampling_options *options,
                          Baton__V1__SamplingParams *params, struct err *err)
{
    if (config_given(config, "max_tokens")) {
        params->_max_tokens_case = BATON__V1__SAMPLING_PARAMS___MAX_TOKENS_MAX_TOKENS;
        params->max_tokens = (uint32_t)options->max_tokens;
    }
    if (config_given(config, "temperature")) {
        params->_temperature_case = BATON__V1__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
        params->temperature = (float)options->temperature;
    }
    if (config_given(config, "top_p")) {
        params->_top_p_case = BATON__V1__SAMPLING_PARAMS___TOP_P_TOP_P;
        params->top_p = (float)options->top_p;
    }
    if (options->seed) {
        if (sampling_parse_u64(options->seed, UINT64_MAX, &params->seed, err) != STATUS_OK)
            return err_wrap(err, "--seed");
        params->_seed_case = BATON__V1__SAMPLING_PARAMS___SEED_SEED;
    }
    params->top_k = (uint32_t)options->top_k;
    params->ignore_eos = options->ignore_eos;
    params->n_stop = options->stop.count;
    params->stop = (char **)options->stop.items; /* protobuf-c only reads it when it packs */
    return STATUS_OK;
}
