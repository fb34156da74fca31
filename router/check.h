/* A client's message becomes a request, or a refusal that names the field and the limit. Everything of GenerateRequest is
 * looked at here, before anything is queued; what is set and not built is refused as UNIMPLEMENTED.
 *
 *     GenerateRequest (strings checked by proto/wire.h) ──▶ model? label? sampling? prompt ─▶ ids ─▶ sizes ─▶ resume? ──▶ request
 *
 * Owner: the loop thread. */
#ifndef BATON_ROUTER_CHECK_H
#define BATON_ROUTER_CHECK_H

#include "model/chat.h"
#include "model/model.h"
#include "proto/baton/v1/baton.pb-c.h"
#include "router/request.h"

struct checker {
    const struct model_file *model;
    struct tokenizer_scratch *scratch;
    const struct registry *registry; /* for the limits of the cluster as it is now */
    struct answer_text text;
    uint32_t prompt_tokens_max;
};

/* `model` and `registry` must outlive it. */
enum status checker_init(struct checker *checker, const struct model_file *model,
                         const struct registry *registry, uint32_t prompt_tokens_max,
                         struct err *err);
void checker_finish(struct checker *checker);

/* NOT_FOUND unless `name` is empty or the served model's. */
enum status check_model_name(const struct checker *checker, const char *name, struct err *err);
/* Fills a fresh request. On failure the caller destroys it. */
enum status check_generate(struct checker *checker, const Baton__V1__GenerateRequest *message,
                           struct request *request, struct err *err);
/* The ids of a conversation; `field` names it in errors. */
enum status check_chat(struct checker *checker, const Baton__V1__Chat *chat, const char *field,
                       struct token_list *ids, struct err *err);
enum status check_ids(const struct checker *checker, const char *field, const uint32_t *ids,
                      size_t count, struct err *err);

#endif
