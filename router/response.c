/* See response.h. */
#include "router/response.h"

#include <stdlib.h>

#include "sched/sampling.h"

bool response_builder_init(struct response_builder *builder)
{
    size_t tops = (size_t)RESPONSE_TOKENS_MAX * SAMPLING_LOGPROBS_MAX;
    *builder = (struct response_builder){
        .logprobs = calloc(RESPONSE_TOKENS_MAX, sizeof *builder->logprobs),
        .logprob_list = calloc(RESPONSE_TOKENS_MAX, sizeof *builder->logprob_list),
        .tops = calloc(tops, sizeof *builder->tops),
        .top_list = calloc(tops, sizeof *builder->top_list),
    };
    if (builder->logprobs && builder->logprob_list && builder->tops && builder->top_list)
        return true;
    response_builder_finish(builder);
    return false;
}

void response_builder_finish(struct response_builder *builder)
{
    free(builder->logprobs);
    free(builder->logprob_list);
    free(builder->tops);
    free(builder->top_list);
    *builder = (struct response_builder){0};
}

static void fill_logprobs(struct response_builder *b, const struct answer *answer,
                          const struct answer_piece *piece)
{
    size_t used = 0;
    for (uint32_t i = 0; i < piece->token_count; i++) {
        const struct answer_top *top;
        uint32_t top_count;
        Baton__V1__TokenLogprobs *to = &b->logprobs[i];
        baton__v1__token_logprobs__init(to);
        to->logprob = answer_logprob(answer, piece, i, &top, &top_count);
        if (top_count > SAMPLING_LOGPROBS_MAX)
            top_count = SAMPLING_LOGPROBS_MAX;
        to->top = &b->top_list[used];
        to->n_top = top_count;
        for (uint32_t k = 0; k < top_count; k++, used++) {
            baton__v1__top_logprob__init(&b->tops[used]);
            b->tops[used].token_id = top[k].id;
            b->tops[used].logprob = top[k].logprob;
            b->top_list[used] = &b->tops[used];
        }
        b->logprob_list[i] = to;
    }
    b->message.logprobs = b->logprob_list;
    b->message.n_logprobs = piece->token_count;
}

static uint64_t us_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (to_ns - from_ns) / NS_PER_US : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void response_timings(const struct request *request, const struct response_moments *moments,
                      Baton__V1__Timings *out)
{
    const struct request_timing *t = &request->timing;
    /* each part is cut to what the whole leaves for it, so that clocks of several machines cannot break a sum */
    uint64_t left = us_between(t->arrival_ns, moments->first_sent_ns);
    out->ttft_us = left;
    out->queue_us = t->dequeued_ns ? least(us_between(t->arrival_ns, t->dequeued_ns), left) : left;
    left -= out->queue_us;
    out->placement_us = least(us_between(t->dequeued_ns, t->assigned_ns), left);
    left -= out->placement_us;
    out->prefill_us = least(t->prefill_us, left);
    out->send_us = left - out->prefill_us;
    if (t->second_ns) {
        uint64_t gap = us_between(t->first_ns, t->second_ns);
        out->first_decode_us = least(t->first_decode_us, gap);
        out->handoff_us = gap - out->first_decode_us;
    }
    out->total_us = us_between(t->arrival_ns, moments->now_ns);
    out->prefill_node = (char *)t->prefill_node;
    out->decode_node = (char *)t->decode_node;
    out->replays = request->replays;
    out->handovers = request->handovers;
    out->kv_bytes_moved = t->kv_bytes_moved;
}

const Baton__V1__GenerateResponse *response_build(struct response_builder *b,
                                                  const struct request *request,
                                                  const struct answer_piece *piece,
                                                  const struct response_moments *moments)
{
    const struct answer *answer = &request->answer;
    Baton__V1__GenerateResponse *m = &b->message;
    baton__v1__generate_response__init(m);
    m->position = piece->position;
    m->token_ids = (uint32_t *)piece->ids;
    m->n_token_ids = piece->token_count;
    if (answer->options.logprobs)
        fill_logprobs(b, answer, piece);
    if (moments->first) {
        m->_seed_case = BATON__V1__GENERATE_RESPONSE___SEED_SEED;
        m->seed = request->sampling.seed;
    }
    if (!piece->last)
        return m;
    m->finish_reason = answer->finish == ANSWER_STOP
                           ? BATON__V1__GENERATE_RESPONSE__FINISH_REASON__STOP
                           : BATON__V1__GENERATE_RESPONSE__FINISH_REASON__LENGTH;
    m->stop_match = (char *)answer_stop_match(answer);
    baton__v1__usage__init(&b->usage);
    b->usage.prompt_tokens = (uint32_t)request->prompt.count;
    b->usage.completion_tokens = answer_count(answer);
    b->usage.cached_tokens = request->timing.cached_tokens;
    m->usage = &b->usage;
    baton__v1__timings__init(&b->timings);
    response_timings(request, moments, &b->timings);
    m->timings = &b->timings;
    return m;
}
