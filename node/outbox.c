/* See outbox.h. */
#include "node/outbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct outbox_run {
    Baton__Node__V1__TokenRun run;
    Baton__Node__V1__AttemptId attempt;
    Baton__Node__V1__Token token, *tokens[1];
    Baton__Node__V1__TopToken top[KV_LOGPROBS_MAX], *tops[KV_LOGPROBS_MAX];
};

enum status outbox_init(struct outbox *outbox, uint32_t runs_max)
{
    *outbox = (struct outbox){.runs_max = runs_max};
    outbox->runs = calloc(runs_max, sizeof *outbox->runs);
    outbox->run_pointers = calloc(runs_max, sizeof *outbox->run_pointers);
    if (!outbox->runs || !outbox->run_pointers || !buf_reserve(&outbox->queue, OUTBOX_BYTES_READY))
        return STATUS_MEMORY;
    for (uint32_t i = 0; i < runs_max; i++) {
        struct outbox_run *r = &outbox->runs[i];
        baton__node__v1__token_run__init(&r->run);
        baton__node__v1__attempt_id__init(&r->attempt);
        baton__node__v1__token__init(&r->token);
        for (int k = 0; k < KV_LOGPROBS_MAX; k++) {
            baton__node__v1__top_token__init(&r->top[k]);
            r->tops[k] = &r->top[k];
        }
        r->tokens[0] = &r->token;
        r->token.top = r->tops;
        r->run.attempt = &r->attempt;
        r->run.tokens = r->tokens;
        r->run.n_tokens = 1;
        outbox->run_pointers[i] = &r->run;
    }
    return STATUS_OK;
}

void outbox_finish(struct outbox *outbox)
{
    free(outbox->runs);
    free(outbox->run_pointers);
    buf_finish(&outbox->queue);
    *outbox = (struct outbox){0};
}

void outbox_open(struct outbox *outbox, struct rpc_call *call)
{
    outbox->call = call;
    outbox->run_count = 0;
    outbox->overflowed = false;
    outbox->seal = (struct seal){0};
    buf_clear(&outbox->queue);
}

void outbox_close(struct outbox *outbox)
{
    outbox_open(outbox, NULL);
}

bool outbox_idle(const struct outbox *outbox)
{
    return !outbox->call ||
           (!outbox->queue.bytes && !outbox->run_count && rpc_call_writable(outbox->call));
}

void outbox_writable(struct outbox *outbox)
{
    size_t at = 0;
    while (outbox->call && at < outbox->queue.bytes && rpc_call_writable(outbox->call)) {
        uint32_t bytes;
        memcpy(&bytes, outbox->queue.data + at, sizeof bytes);
        uint8_t *message = outbox->queue.data + at + sizeof bytes;
        seal_put(&outbox->seal, message,
                 bytes); /* now: messages leave in the order of their numbers */
        if (rpc_call_send(outbox->call, message, bytes + seal_room(&outbox->seal)))
            break; /* ended: on_closed comes */
        at += sizeof bytes + bytes + SEAL_BYTES;
    }
    buf_consume(&outbox->queue, at);
}

static void push(struct outbox *outbox, const Baton__Node__V1__NodeMessage *message)
{
    if (!outbox->call)
        return;
    if (!outbox->queue.bytes && rpc_call_writable(outbox->call)) {
        rpc_call_send_sealed(outbox->call, &message->base, &outbox->seal);
        return;
    }
    uint32_t bytes = (uint32_t)baton__node__v1__node_message__get_packed_size(message);
    if (outbox->queue.bytes + bytes > OUTBOX_BYTES_MAX ||
        !buf_reserve(&outbox->queue, sizeof bytes + bytes + SEAL_BYTES)) {
        outbox->overflowed = true;
        return;
    }
    buf_append(&outbox->queue, &bytes, sizeof bytes);
    baton__node__v1__node_message__pack(message, outbox->queue.data + outbox->queue.bytes);
    memset(outbox->queue.data + outbox->queue.bytes + bytes, 0, SEAL_BYTES);
    outbox->queue.bytes += bytes + SEAL_BYTES;
}

void outbox_flush(struct outbox *outbox)
{
    if (!outbox->run_count)
        return;
    Baton__Node__V1__Tokens tokens = BATON__NODE__V1__TOKENS__INIT;
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    tokens.runs = outbox->run_pointers;
    tokens.n_runs = outbox->run_count;
    message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS;
    message.tokens = &tokens;
    outbox->run_count = 0;
    push(outbox, &message);
}

void outbox_send(struct outbox *outbox, const Baton__Node__V1__NodeMessage *message)
{
    outbox_flush(outbox);
    push(outbox, message);
}

void outbox_token(struct outbox *outbox, const struct outbox_token *token)
{
    if (!outbox->call)
        return;
    if (outbox->run_count == outbox->runs_max)
        outbox_flush(outbox);
    struct outbox_run *r = &outbox->runs[outbox->run_count++];
    r->attempt.high = token->attempt.high;
    r->attempt.low = token->attempt.low;
    r->run.position = token->position;
    r->run.finish = (Baton__Node__V1__Finish)token->finish;
    r->run.prefill_us = token->prefill_us;
    r->run.decode_us = token->decode_us;
    r->run.cached_tokens = token->cached_tokens;
    r->run.kv_bytes_moved = token->moved_bytes;
    r->token.id = token->token.token_id;
    r->token.logprob = token->token.logprob;
    assert(token->top_count <= KV_LOGPROBS_MAX);
    r->token.n_top = token->top_count;
    for (uint32_t i = 0; i < token->top_count; i++) {
        r->top[i].id = token->top[i].token_id;
        r->top[i].logprob = token->top[i].logprob;
    }
}

void outbox_accepted(struct outbox *outbox, struct kv_id attempt, uint64_t number,
                     Baton__Node__V1__Verdict verdict, const char *text)
{
    Baton__Node__V1__AttemptId id = BATON__NODE__V1__ATTEMPT_ID__INIT;
    Baton__Node__V1__Accepted accepted = BATON__NODE__V1__ACCEPTED__INIT;
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    id.high = attempt.high;
    id.low = attempt.low;
    accepted.attempt = &id;
    accepted.number = number;
    accepted.verdict = verdict;
    accepted.message = (char *)text;
    message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_ACCEPTED;
    message.accepted = &accepted;
    outbox_send(outbox, &message);
}

static void report_send(struct outbox *outbox, struct kv_id attempt,
                        Baton__Node__V1__Report__Kind kind, enum status status, const char *text,
                        uint32_t pages)
{
    Baton__Node__V1__AttemptId id = BATON__NODE__V1__ATTEMPT_ID__INIT;
    Baton__Node__V1__Report report = BATON__NODE__V1__REPORT__INIT;
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    id.high = attempt.high;
    id.low = attempt.low;
    report.attempt = &id;
    report.kind = kind;
    report.status = (uint32_t)status_grpc(status);
    report.message = (char *)text;
    report.pages = pages;
    message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_REPORT;
    message.report = &report;
    outbox_send(outbox, &message);
}

void outbox_report(struct outbox *outbox, struct kv_id attempt, Baton__Node__V1__Report__Kind kind,
                   enum status status, const char *text)
{
    report_send(outbox, attempt, kind, status, text, 0);
}

void outbox_report_pages(struct outbox *outbox, struct kv_id attempt,
                         Baton__Node__V1__Report__Kind kind, const char *text, uint32_t pages)
{
    report_send(outbox, attempt, kind, STATUS_OK, text, pages);
}
