/* Builds GenerateResponse from a piece of an answer, in memory that is used again for each message. Owner: the loop thread. */
#ifndef BATON_ROUTER_RESPONSE_H
#define BATON_ROUTER_RESPONSE_H

#include "proto/baton/v1/baton.pb-c.h"
#include "router/request.h"

enum { RESPONSE_TOKENS_MAX = 256, RESPONSE_TEXT_FIELD = 3 };

struct response_builder {
    Baton__V1__GenerateResponse message; /* its text is left empty: see rpc_call_send_text */
    Baton__V1__Usage usage;
    Baton__V1__Timings timings;
    Baton__V1__TokenLogprobs *logprobs;      /* [RESPONSE_TOKENS_MAX] */
    Baton__V1__TokenLogprobs **logprob_list; /* [RESPONSE_TOKENS_MAX] */
    Baton__V1__TopLogprob *tops;             /* [RESPONSE_TOKENS_MAX * SAMPLING_LOGPROBS_MAX] */
    Baton__V1__TopLogprob **top_list;
};

bool response_builder_init(struct response_builder *builder);
void response_builder_finish(struct response_builder *builder);

/* Moments of the client's side, on the router's clock. */
struct response_moments {
    bool first; /* this is the stream's first message */
    uint64_t
        first_sent_ns; /* when the first token, or the last message if there is none, was handed to the transport */
    uint64_t now_ns;
};
/* The message lives until the next call on this builder. */
const Baton__V1__GenerateResponse *response_build(struct response_builder *builder,
                                                  const struct request *request,
                                                  const struct answer_piece *piece,
                                                  const struct response_moments *moments);
/* Where the time went: the sums of the .proto hold exactly. */
void response_timings(const struct request *request, const struct response_moments *moments,
                      Baton__V1__Timings *out);

#endif
