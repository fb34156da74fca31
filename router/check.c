/* See check.h. */
#include "router/check.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "sched/sampling.h"

static size_t text_push(const void *vocabulary, struct detok *detok, uint32_t id, char *out)
{
    return detok_push(detok, vocabulary, id, out);
}

enum status checker_init(struct checker *checker, const struct model_file *model,
                         const struct registry *registry, uint32_t prompt_tokens_max,
                         struct err *err)
{
    *checker = (struct checker){.model = model,
                                .scratch = tokenizer_scratch_create(),
                                .registry = registry,
                                .text = {.push = text_push,
                                         .push_bytes_max = detok_push_bytes_max(model->tokenizer),
                                         .vocabulary = model->tokenizer},
                                .prompt_tokens_max = prompt_tokens_max};
    return checker->scratch ? STATUS_OK : err_set(err, STATUS_MEMORY, "tokenizer: no memory");
}

void checker_finish(struct checker *checker)
{
    tokenizer_scratch_destroy(checker->scratch);
    checker->scratch = NULL;
}

enum status check_model_name(const struct checker *checker, const char *name, struct err *err)
{
    if (!*name || strcmp(name, checker->model->config.name) == 0)
        return STATUS_OK;
    return err_set(err, STATUS_NOT_FOUND, "model: \"%.100s\" is not served here, \"%s\" is", name,
                   checker->model->config.name);
}

static enum status no_memory(struct err *err)
{
    return err_set(err, STATUS_MEMORY, "no memory for another request");
}

/* --- the prompt --- */

enum status check_ids(const struct checker *checker, const char *field, const uint32_t *ids,
                      size_t count, struct err *err)
{
    uint32_t vocab_size = checker->model->config.vocab;
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= vocab_size)
            return err_set(err, STATUS_INVALID, "%s[%zu]: %u is not in the vocabulary of %u", field,
                           i, ids[i], vocab_size);
    return STATUS_OK;
}

/* No text of so many bytes can have so few tokens as are allowed: refused before the tokenizer sees it. */
static enum status check_text_bytes(const struct checker *checker, const char *field, size_t bytes,
                                    struct err *err)
{
    size_t most =
        (size_t)checker->prompt_tokens_max * tokenizer_piece_bytes_max(checker->model->tokenizer);
    if (bytes <= most)
        return STATUS_OK;
    return err_set(err, STATUS_INVALID, "%s: %zu bytes cannot fit into the limit of %u tokens",
                   field, bytes, checker->prompt_tokens_max);
}

enum status check_chat(struct checker *checker, const Baton__V1__Chat *chat, const char *field,
                       struct token_list *ids, struct err *err)
{
    const struct model_file *model = checker->model;
    if (!model->chat) {
        if (err)
            *err = model->chat_refusal;
        err_wrap(err, "%s", field);
        return STATUS_UNIMPLEMENTED;
    }
    if (!chat->n_messages)
        return err_set(err, STATUS_INVALID, "%s.messages: must not be empty", field);
    struct chat_message *messages = calloc(chat->n_messages, sizeof *messages);
    if (!messages)
        return no_memory(err);
    size_t bytes = 0;
    for (size_t i = 0; i < chat->n_messages; i++) {
        const Baton__V1__ChatMessage *of = chat->messages[i];
        messages[i] =
            (struct chat_message){of->role, strlen(of->role), of->content, strlen(of->content)};
        bytes += messages[i].content_bytes;
    }
    struct err inner = ERR_INIT;
    enum status status = check_text_bytes(checker, field, bytes, err);
    if (!status) {
        status = chat_encode(model->chat, checker->scratch, messages, chat->n_messages, true, ids,
                             &inner);
        if (status)
            err_set(err, status, "%s.%s", field, inner.message);
    }
    free(messages);
    return status;
}

static enum status check_text(struct checker *checker, const Baton__V1__GenerateRequest *message,
                              struct token_list *ids, struct err *err)
{
    size_t bytes = strlen(message->text);
    if (!bytes)
        return err_set(err, STATUS_INVALID, "text: must not be empty");
    enum status status = check_text_bytes(checker, "text", bytes, err);
    if (status)
        return status;
    struct tokenizer_options options = {.parse_special = message->parse_special,
                                        .add_special = true};
    status = tokenizer_encode(checker->model->tokenizer, checker->scratch, message->text, bytes,
                              options, ids, err);
    if (status)
        err_wrap(err, "text");
    else if (!ids->count)
        return err_set(err, STATUS_INVALID, "text: has no token");
    return status;
}

static enum status check_token_ids(struct checker *checker, const Baton__V1__TokenIds *from,
                                   struct token_list *ids, struct err *err)
{
    if (!from->n_ids)
        return err_set(err, STATUS_INVALID, "token_ids: must not be empty");
    enum status status = check_ids(checker, "token_ids", from->ids, from->n_ids, err);
    if (status)
        return status;
    ids->ids = malloc(from->n_ids * sizeof *ids->ids);
    if (!ids->ids)
        return no_memory(err);
    memcpy(ids->ids, from->ids, from->n_ids * sizeof *ids->ids);
    ids->count = ids->capacity = from->n_ids;
    return STATUS_OK;
}

static enum status check_prompt(struct checker *checker, const Baton__V1__GenerateRequest *message,
                                struct request *request, const char **field_out, struct err *err)
{
    enum status status;
    struct token_list *ids = &request->prompt;
    switch (message->prompt_case) {
    case BATON__V1__GENERATE_REQUEST__PROMPT_TEXT:
        *field_out = "text";
        status = check_text(checker, message, ids, err);
        break;
    case BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS:
        *field_out = "token_ids";
        status = check_token_ids(checker, message->token_ids, ids, err);
        break;
    case BATON__V1__GENERATE_REQUEST__PROMPT_CHAT:
        *field_out = "chat";
        status = check_chat(checker, message->chat, "chat", ids, err);
        break;
    default:
        return err_set(err, STATUS_INVALID, "prompt: one of text, token_ids, chat must be set");
    }
    if (!status && message->parse_special &&
        message->prompt_case != BATON__V1__GENERATE_REQUEST__PROMPT_TEXT)
        return err_set(err, STATUS_INVALID, "parse_special: goes with text only");
    return status;
}

/* --- sizes: prompt and answer against the context and the page pools --- */

/* `max_tokens` 0: as many as there is room for. */
static enum status check_sizes(const struct checker *checker, const char *field,
                               uint32_t max_tokens, struct request *request, struct err *err)
{
    const struct registry *registry = checker->registry;
    uint32_t context = registry_context_tokens(registry);
    size_t prompt = request->prompt.count;
    if (prompt > checker->prompt_tokens_max)
        return err_set(err, STATUS_INVALID, "%s: %zu tokens, this router's limit is %u", field,
                       prompt, checker->prompt_tokens_max);
    if (prompt >= context)
        return err_set(err, STATUS_INVALID,
                       "%s: %zu tokens leave no room for an answer in the context of %u", field,
                       prompt, context);
    uint64_t room = context - prompt;
    if (max_tokens > room)
        return err_set(err, STATUS_INVALID,
                       "sampling.max_tokens: %u with a prompt of %zu tokens exceeds the context "
                       "of %u",
                       max_tokens, prompt, context);
    /* the last token of an answer takes no place */
    uint64_t pool = (uint64_t)registry_pages_max(registry) * registry->identity.page_tokens + 1;
    if (pool > 1 && prompt >= pool)
        return err_set(err, STATUS_INVALID, "%s: %zu tokens, the largest page pool holds %llu",
                       field, prompt, (unsigned long long)pool - 1);
    if (pool > 1 && room > pool - prompt)
        room = pool - prompt;
    if (!max_tokens)
        max_tokens = (uint32_t)room;
    else if (max_tokens > room)
        return err_set(err, STATUS_INVALID,
                       "sampling.max_tokens: %u with a prompt of %zu tokens, the largest page "
                       "pool holds %llu",
                       max_tokens, prompt, (unsigned long long)pool - 1);
    request->tokens_max = max_tokens;
    return STATUS_OK;
}

/* --- sampling --- */

static enum status check_stops(const Baton__V1__SamplingParams *s, struct err *err)
{
    if (s->n_stop > SAMPLING_STOP_STRINGS_MAX)
        return err_set(err, STATUS_INVALID, "sampling.stop: %zu strings, the limit is %d",
                       s->n_stop, SAMPLING_STOP_STRINGS_MAX);
    for (size_t i = 0; i < s->n_stop; i++) {
        size_t bytes = strlen(s->stop[i]);
        if (!bytes || bytes > SAMPLING_STOP_BYTES_MAX)
            return err_set(err, STATUS_INVALID, "sampling.stop[%zu]: %zu bytes, must be 1 to %d", i,
                           bytes, SAMPLING_STOP_BYTES_MAX);
    }
    return STATUS_OK;
}

static struct sampling_params params_of(const Baton__V1__SamplingParams *s,
                                        struct sampling_bias *bias)
{
    struct sampling_params p = sampling_params_default();
    if (s->_temperature_case)
        p.temperature = s->temperature;
    if (s->_top_p_case)
        p.top_p = s->top_p;
    if (s->_repetition_penalty_case)
        p.repetition_penalty = s->repetition_penalty;
    if (s->_max_tokens_case)
        p.max_tokens = s->max_tokens;
    if (s->_n_case)
        p.n = s->n;
    if (s->_logprobs_case)
        p.logprobs = s->logprobs > INT32_MAX ? INT32_MAX : (int32_t)s->logprobs;
    p.top_k = s->top_k;
    p.min_p = s->min_p;
    p.presence_penalty = s->presence_penalty;
    p.frequency_penalty = s->frequency_penalty;
    p.min_tokens = s->min_tokens;
    p.ignore_eos = s->ignore_eos;
    p.stop_token_ids = s->stop_token_ids;
    p.stop_token_count =
        s->n_stop_token_ids > UINT32_MAX ? UINT32_MAX : (uint32_t)s->n_stop_token_ids;
    for (size_t i = 0; i < s->n_logit_bias && i <= SAMPLING_LOGIT_BIAS_MAX; i++)
        bias[i] = (struct sampling_bias){s->logit_bias[i]->token_id, s->logit_bias[i]->bias};
    p.logit_bias = bias;
    p.logit_bias_count =
        (uint32_t)(s->n_logit_bias > SAMPLING_LOGIT_BIAS_MAX ? SAMPLING_LOGIT_BIAS_MAX + 1
                                                             : s->n_logit_bias);
    return p;
}

/* The ids that end an answer: the model's own unless they are to be ignored, and the client's. */
static enum status fill_stop_ids(const struct checker *checker, const struct sampling_params *p,
                                 struct request *request, struct err *err)
{
    size_t end_count = 0;
    const uint32_t *end_ids = tokenizer_end_ids(checker->model->tokenizer, &end_count);
    if (p->ignore_eos)
        end_count = 0;
    request->stop_ids = malloc((end_count + p->stop_token_count + 1) * sizeof(uint32_t));
    if (!request->stop_ids)
        return no_memory(err);
    size_t count = 0;
    for (size_t i = 0; i < end_count + p->stop_token_count; i++) {
        uint32_t id = i < end_count ? end_ids[i] : p->stop_token_ids[i - end_count];
        bool known = false;
        for (size_t k = 0; k < count; k++)
            known |= request->stop_ids[k] == id;
        if (!known)
            request->stop_ids[count++] = id;
    }
    if (count > SAMPLING_STOP_IDS_MAX)
        return err_set(err, STATUS_INVALID,
                       "sampling.stop_token_ids: %zu with the model's own end tokens, the limit "
                       "is %d",
                       count, SAMPLING_STOP_IDS_MAX);
    request->sampling.stop_ids = request->stop_ids;
    request->sampling.n_stop_ids = count;
    return STATUS_OK;
}

static enum status fill_bias(const struct sampling_params *p, struct request *request,
                             struct err *err)
{
    if (!p->logit_bias_count)
        return STATUS_OK;
    request->bias = calloc(p->logit_bias_count, sizeof *request->bias);
    request->bias_list = calloc(p->logit_bias_count, sizeof *request->bias_list);
    if (!request->bias || !request->bias_list)
        return no_memory(err);
    for (uint32_t i = 0; i < p->logit_bias_count; i++) {
        baton__node__v1__bias__init(&request->bias[i]);
        request->bias[i].token_id = p->logit_bias[i].token_id;
        request->bias[i].bias = p->logit_bias[i].bias;
        request->bias_list[i] = &request->bias[i];
    }
    request->sampling.bias = request->bias_list;
    request->sampling.n_bias = p->logit_bias_count;
    return STATUS_OK;
}

static enum status check_sampling(const struct checker *checker, const Baton__V1__SamplingParams *s,
                                  struct request *request, uint32_t *max_tokens_out,
                                  struct err *err)
{
    static struct sampling_bias bias[SAMPLING_LOGIT_BIAS_MAX + 1]; /* the loop thread's */
    struct sampling_params p = params_of(s, bias);
    enum status status = check_stops(s, err);
    if (!status)
        status = sampling_params_check(&p, checker->model->config.vocab, err);
    if (!status && p.n > 1)
        status = err_set(err, STATUS_UNIMPLEMENTED,
                         "sampling.n: %u, more than one answer is not built yet", p.n);
    if (!status)
        status = fill_stop_ids(checker, &p, request, err);
    if (!status)
        status = fill_bias(&p, request, err);
    if (status)
        return status;
    Baton__Node__V1__Sampling *to = &request->sampling;
    to->temperature = p.temperature;
    to->top_k = p.top_k;
    to->top_p = p.top_p;
    to->min_p = p.min_p;
    to->repetition_penalty = p.repetition_penalty;
    to->presence_penalty = p.presence_penalty;
    to->frequency_penalty = p.frequency_penalty;
    to->seed = s->_seed_case ? s->seed : random_u64();
    to->tokens_min = p.min_tokens;
    to->logprobs = p.logprobs >= 0;
    to->logprobs_top = p.logprobs > 0 ? (uint32_t)p.logprobs : 0;
    *max_tokens_out = s->_max_tokens_case ? p.max_tokens : 0; /* a given 0 was refused */
    return STATUS_OK;
}

/* --- resume --- */

static enum status check_resume(const struct checker *checker, const Baton__V1__Resume *resume,
                                const Baton__V1__SamplingParams *s, struct request *request,
                                struct err *err)
{
    if (resume->index)
        return err_set(err, STATUS_INVALID, "resume.index: %u, but there is one answer only",
                       resume->index);
    if (s && s->_seed_case && s->seed != resume->seed)
        return err_set(err, STATUS_INVALID, "resume.seed: %llu differs from sampling.seed, %llu",
                       (unsigned long long)resume->seed, (unsigned long long)s->seed);
    request->sampling.seed = resume->seed;
    const Baton__V1__TokenIds *received = resume->received;
    size_t count = received ? received->n_ids : 0;
    if (count > request->tokens_max)
        return err_set(err, STATUS_INVALID,
                       "resume.received: %zu tokens, but the answer may have only %u", count,
                       request->tokens_max);
    enum status status =
        check_ids(checker, "resume.received", received ? received->ids : NULL, count, err);
    if (status)
        return status;
    request->resumed = (uint32_t)count;
    return answer_restore(&request->answer, received ? received->ids : NULL, (uint32_t)count,
                          resume->text_bytes, request->stop_ids, request->sampling.n_stop_ids, err);
}

/* --- all of it --- */

static enum status check_labels(const struct checker *checker,
                                const Baton__V1__GenerateRequest *message, struct request *request,
                                struct err *err)
{
    size_t bytes = strlen(message->request_id);
    if (bytes > REQUEST_LABEL_BYTES_MAX)
        return err_set(err, STATUS_INVALID, "request_id: %zu bytes, the limit is %d", bytes,
                       REQUEST_LABEL_BYTES_MAX);
    memcpy(request->label, message->request_id, bytes + 1);
    enum status status = check_model_name(checker, message->model, err);
    if (status)
        return status;
    if (*message->session_id)
        return err_set(err, STATUS_UNIMPLEMENTED, "session_id: is not built yet");
    request->priority = message->priority;
    return STATUS_OK;
}

enum status check_generate(struct checker *checker, const Baton__V1__GenerateRequest *message,
                           struct request *request, struct err *err)
{
    static const Baton__V1__SamplingParams defaults = BATON__V1__SAMPLING_PARAMS__INIT;
    const Baton__V1__SamplingParams *s = message->sampling ? message->sampling : &defaults;
    const char *field = "prompt";
    uint32_t max_tokens = 0;
    enum status status = check_labels(checker, message, request, err);
    if (!status)
        status = check_sampling(checker, s, request, &max_tokens, err);
    if (!status)
        status = check_prompt(checker, message, request, &field, err);
    if (!status)
        status = check_sizes(checker, field, max_tokens, request, err);
    if (!status && s->min_tokens > request->tokens_max)
        status =
            err_set(err, STATUS_INVALID, "sampling.min_tokens: %u, but there is room for %u tokens",
                    s->min_tokens, request->tokens_max);
    if (status)
        return status;
    struct answer_options options = {.text = &checker->text,
                                     .stops = (const char *const *)s->stop,
                                     .stop_count = (uint32_t)s->n_stop,
                                     .min_tokens = s->min_tokens,
                                     .tokens_max = request->tokens_max,
                                     .logprobs = request->sampling.logprobs};
    if (!answer_init(&request->answer, &options))
        return no_memory(err);
    request->answer_ready = true;
    return message->resume ? check_resume(checker, message->resume, message->sampling, request, err)
                           : STATUS_OK;
}
