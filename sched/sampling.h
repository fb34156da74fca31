/* What a request says about sampling, and the limits of each field. The router checks a request with this table before it
 * queues it, the node checks it again when it arrives, and the engine draws with it: one struct, one set of limits.
 *
 * Order of the draw (docs/NUMERICS.md): logit_bias, repetition, presence and frequency penalties, temperature, top_k,
 * top_p, min_p. temperature 0 is greedy, ties go to the lowest id. Log-probabilities are of the raw logits.
 *
 * Owner: no thread; pure. The arrays belong to the caller. */
#ifndef BATON_SCHED_SAMPLING_H
#define BATON_SCHED_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum {
    SAMPLING_LOGPROBS_MAX = 20,
    SAMPLING_LOGIT_BIAS_MAX = 1024,
    SAMPLING_STOP_IDS_MAX = 64,
    SAMPLING_STOP_STRINGS_MAX = 16,
    SAMPLING_STOP_BYTES_MAX = 256, /* of one stop string */
    SAMPLING_N_MAX = 128,
    SAMPLING_LOGPROBS_NONE = -1
};
#define SAMPLING_TEMPERATURE_MAX 100.0f
#define SAMPLING_REPETITION_MAX 100.0f
#define SAMPLING_PENALTY_MAX 2.0f /* presence and frequency lie in [-2, 2] */
#define SAMPLING_BIAS_MAX 1000.0f /* absolute value */

struct sampling_bias {
    uint32_t token_id;
    float bias; /* added to the raw logit */
};

struct sampling_params {
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* (0, 1]; 1: off */
    float min_p;              /* [0, 1]; 0: off */
    float repetition_penalty; /* 1: off; over prompt and answer */
    float presence_penalty;   /* 0: off; over the answer */
    float frequency_penalty;  /* 0: off; over the answer */
    int32_t logprobs;         /* SAMPLING_LOGPROBS_NONE, 0: the chosen token's, k: and the k best */
    uint32_t n;               /* answers to one prompt */
    uint32_t max_tokens;      /* of the answer; >= 1 */
    uint32_t min_tokens;      /* until then end tokens and stop strings do not end the answer */
    bool ignore_eos;
    const struct sampling_bias *logit_bias; /* [logit_bias_count]; an id twice: both are added */
    uint32_t logit_bias_count;
    const uint32_t *stop_token_ids; /* [stop_token_count] */
    uint32_t stop_token_count;
};

/* The defaults of the API: temperature 1, everything else off, no log-probabilities, n 1, max_tokens UINT32_MAX. */
struct sampling_params sampling_params_default(void);

/* STATUS_INVALID and a message that names the field, its value and the limit; else STATUS_OK. `max_tokens` against the
 * context is the caller's to check: only 0 is refused here. */
enum status sampling_params_check(const struct sampling_params *params, uint32_t vocab_size,
                                  struct err *err);

#endif
