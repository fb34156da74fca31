/* How an answer is sampled, from the request's words to the backend's. Apart, because who replaces the engine (tests/sim) keeps it.
 * Owner: any thread. */
#include "engine/engine.h"

void engine_sampling_set(const struct sampling_params *params, struct kern_sampling *sampling_out)
{
    _Static_assert(sizeof(struct kern_bias) == sizeof(struct sampling_bias) &&
                       offsetof(struct kern_bias, bias) == offsetof(struct sampling_bias, bias),
                   "the two structs are one");
    sampling_out->temperature = params->temperature;
    sampling_out->top_p = params->top_p;
    sampling_out->min_p = params->min_p;
    sampling_out->top_k = params->top_k;
    sampling_out->repetition_penalty = params->repetition_penalty;
    sampling_out->presence_penalty = params->presence_penalty;
    sampling_out->frequency_penalty = params->frequency_penalty;
    sampling_out->logprobs = params->logprobs;
    sampling_out->bias = (const struct kern_bias *)params->logit_bias;
    sampling_out->bias_count = params->logit_bias_count;
}
