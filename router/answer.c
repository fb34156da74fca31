/* See answer.h. */
#include "router/answer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct answer_later {
    uint32_t position;
    struct answer_token token; /* its `top` is a copy of our own */
    enum answer_finish finish;
};

enum { TEXT_BYTES_MAX = 1 << 30 };

bool answer_init(struct answer *answer, const struct answer_options *options)
{
    *answer = (struct answer){.options = *options, .stop_match = UINT32_MAX};
    answer->options.stops = NULL; /* copied by the matcher */
    answer->push_room = malloc(options->text->push_bytes_max + DETOK_FLUSH_BYTES);
    answer->later = calloc(ANSWER_LATER_MAX, sizeof *answer->later);
    bool ok = stops_init(&answer->stops, options->stops, options->stop_count);
    if (ok && answer->push_room && answer->later)
        return true;
    answer_free(answer);
    return false;
}

void answer_free(struct answer *answer)
{
    for (uint32_t i = 0; i < answer->later_count; i++)
        free((void *)answer->later[i].token.top);
    free(answer->later);
    free(answer->push_room);
    free(answer->ids);
    free(answer->after);
    free(answer->logprob);
    free(answer->top_end);
    buf_finish(&answer->tops);
    buf_finish(&answer->text);
    stops_finish(&answer->stops);
    *answer = (struct answer){.stop_match = UINT32_MAX};
}

static bool grow(struct answer *answer)
{
    if (answer->received < answer->capacity)
        return true;
    uint32_t capacity = answer->capacity ? 2 * answer->capacity : 64;
    uint32_t **arrays[] = {&answer->ids, &answer->after, (uint32_t **)&answer->logprob,
                           &answer->top_end};
    for (int i = 0; i < (answer->options.logprobs ? 4 : 2); i++) {
        uint32_t *more = realloc(*arrays[i], capacity * sizeof *more);
        if (!more)
            return false;
        *arrays[i] = more;
    }
    answer->capacity = capacity;
    return true;
}

static uint32_t text_total(const struct answer *answer)
{
    return answer->text_base + (uint32_t)answer->text.bytes;
}

/* --- the end --- */

/* A match whose text begins at `begin`: what reaches into it is taken back. */
static void end_at_match(struct answer *answer, uint32_t match, uint32_t begin)
{
    uint32_t count = answer->delivered_tokens;
    while (count < answer->received &&
           (answer->after[count] >> 1) + (answer->after[count] & 1) <= begin)
        count++;
    answer->finish = ANSWER_STOP;
    answer->stop_match = match;
    answer->ready_tokens = count;
    answer->ready_text = begin > answer->delivered_text ? begin : answer->delivered_text;
}

static void text_append(struct answer *answer, const char *text, size_t bytes)
{
    if (!bytes)
        return;
    size_t at = 0;
    if (answer->searching && answer->skip_character) {
        for (at = 1; at < bytes && ((uint8_t)text[at] & 0xc0) == 0x80; at++)
            ;
        answer->skip_character = false;
    }
    uint32_t before = text_total(answer);
    buf_append(&answer->text, text, bytes);
    if (!answer->searching || answer->finish != ANSWER_OPEN)
        return;
    uint32_t match;
    at += stops_feed(&answer->stops, text + at, bytes - at, &match);
    if (match != UINT32_MAX)
        end_at_match(answer, match, before + (uint32_t)at - answer->stops.patterns[match].bytes);
}

static void end_all(struct answer *answer, enum answer_finish finish)
{
    char flushed[DETOK_FLUSH_BYTES];
    size_t bytes = detok_flush(&answer->detok, flushed);
    text_append(answer, flushed, bytes);
    if (answer->finish != ANSWER_OPEN)
        return; /* what was owed completed a stop string */
    answer->finish = finish;
    answer->ready_tokens = answer->received;
    answer->ready_text = text_total(answer);
}

/* --- the next token --- */

static void advance_ready(struct answer *answer)
{
    if (!answer->stops.count) {
        answer->ready_tokens = answer->received;
        answer->ready_text = text_total(answer);
        return;
    }
    uint32_t safe = text_total(answer) - stops_partial(&answer->stops);
    while (answer->ready_tokens < answer->received) {
        uint32_t after = answer->after[answer->ready_tokens];
        if ((after >> 1) + (after & 1) > safe)
            break;
        answer->ready_tokens++;
        if (after >> 1 > answer->ready_text)
            answer->ready_text = after >> 1;
    }
}

static bool push(struct answer *answer, const struct answer_token *token, enum answer_finish finish)
{
    uint32_t index = answer->received;
    if (!grow(answer) || text_total(answer) > TEXT_BYTES_MAX)
        return false;
    if (answer->stops.count && !answer->searching && index >= answer->options.min_tokens) {
        answer->searching = true;
        answer->skip_character = answer->detok.held_bytes > 0;
    }
    const struct answer_text *source = answer->options.text;
    struct detok before = answer->detok;
    size_t bytes = source->push(source->vocabulary, &answer->detok, token->id, answer->push_room);
    if (!buf_reserve(&answer->text, bytes))
        return false;
    /* a token that only leaves a held character as it was (a special one) has no part in it */
    bool begins =
        answer->detok.held_bytes && (bytes || before.held_bytes != answer->detok.held_bytes ||
                                     memcmp(before.held, answer->detok.held, before.held_bytes));
    answer->ids[index] = token->id;
    answer->after[index] = (text_total(answer) + (uint32_t)bytes) << 1 | begins;
    if (answer->options.logprobs) {
        answer->logprob[index] = token->logprob;
        buf_append(&answer->tops, token->top, token->top_count * sizeof *token->top);
        if (answer->tops.failed)
            return false;
        answer->top_end[index] = (index ? answer->top_end[index - 1] : 0) + token->top_count;
    }
    answer->received++;
    text_append(answer, answer->push_room, bytes);
    if (answer->finish != ANSWER_OPEN)
        return true;
    if (finish == ANSWER_OPEN && answer->received == answer->options.tokens_max)
        finish = ANSWER_LENGTH; /* the sampling node says so too; nothing may follow in any case */
    if (finish != ANSWER_OPEN)
        end_all(answer, finish);
    else
        advance_ready(answer);
    return true;
}

/* --- tokens out of turn --- */

static enum answer_result hold(struct answer *answer, uint32_t position,
                               const struct answer_token *token, enum answer_finish finish)
{
    if (position - answer->received > ANSWER_LATER_MAX || answer->later_count == ANSWER_LATER_MAX)
        return ANSWER_DROPPED;
    uint32_t at = 0;
    while (at < answer->later_count && answer->later[at].position < position)
        at++;
    if (at < answer->later_count && answer->later[at].position == position)
        return answer->later[at].token.id == token->id ? ANSWER_DUPLICATE : ANSWER_MISMATCH;
    struct answer_later later = {.position = position, .token = *token, .finish = finish};
    if (token->top_count) {
        struct answer_top *copy = malloc(token->top_count * sizeof *copy);
        if (!copy)
            return ANSWER_NO_MEMORY;
        memcpy(copy, token->top, token->top_count * sizeof *copy);
        later.token.top = copy;
    } else {
        later.token.top = NULL;
    }
    memmove(&answer->later[at + 1], &answer->later[at],
            (answer->later_count - at) * sizeof *answer->later);
    answer->later[at] = later;
    answer->later_count++;
    return ANSWER_HELD;
}

/* Accepts what was held and is next now. */
static bool drain_later(struct answer *answer)
{
    uint32_t taken = 0;
    bool ok = true;
    while (ok && taken < answer->later_count &&
           (answer->later[taken].position == answer->received || answer_ended(answer))) {
        struct answer_later *later = &answer->later[taken++];
        if (!answer_ended(answer))
            ok = push(answer, &later->token, later->finish);
        free((void *)later->token.top);
    }
    answer->later_count -= taken;
    memmove(answer->later, answer->later + taken, answer->later_count * sizeof *answer->later);
    return ok;
}

enum answer_result answer_receive(struct answer *answer, uint32_t position,
                                  const struct answer_token *token, enum answer_finish finish)
{
    if (position < answer->received) {
        if (answer->ids[position] != token->id)
            return ANSWER_MISMATCH;
        /* the same token, and only now with the word that it is the last one */
        if (finish != ANSWER_OPEN && position + 1 == answer->received && !answer_ended(answer))
            end_all(answer, finish);
        return ANSWER_DUPLICATE;
    }
    if (answer_ended(answer))
        return ANSWER_DROPPED;
    if (position > answer->received)
        return hold(answer, position, token, finish);
    if (!push(answer, token, finish) || !drain_later(answer))
        return ANSWER_NO_MEMORY;
    return ANSWER_ACCEPTED;
}

/* --- taking up an answer --- */

enum status answer_restore(struct answer *answer, const uint32_t *ids, uint32_t count,
                           uint64_t text_bytes, const uint32_t *stop_ids, size_t stop_id_count,
                           struct err *err)
{
    assert(answer->received == 0);
    if (count > answer->options.tokens_max)
        return err_set(err, STATUS_INVALID,
                       "resume.received: %u tokens, but the answer may have only %u", count,
                       answer->options.tokens_max);
    for (uint32_t i = 0; i < count; i++) {
        if (answer_ended(answer))
            return err_set(err, STATUS_INVALID,
                           "resume.received: the answer ended before token %u of it", i);
        enum answer_finish finish = ANSWER_OPEN;
        for (size_t k = 0; k < stop_id_count; k++)
            if (ids[i] == stop_ids[k] && i + 1 >= answer->options.min_tokens)
                finish = ANSWER_STOP;
        struct answer_token token = {.id = ids[i]};
        if (!push(answer, &token, finish))
            return err_set(err, STATUS_MEMORY, "resume.received: no memory");
    }
    if (answer->stop_match != UINT32_MAX)
        return err_set(err, STATUS_INVALID,
                       "resume.received: reaches into a match of stop string \"%s\"",
                       answer_stop_match(answer));
    uint32_t total = text_total(answer);
    if (text_bytes > total)
        return err_set(err, STATUS_INVALID,
                       "resume.text_bytes: %llu, but resume.received has only %u bytes of text",
                       (unsigned long long)text_bytes, total);
    if (text_bytes < total && (answer->text.data[text_bytes] & 0xc0) == 0x80)
        return err_set(err, STATUS_INVALID,
                       "resume.text_bytes: byte %llu of the text is inside a character",
                       (unsigned long long)text_bytes);
    answer->delivered_tokens = count;
    answer->delivered_text = (uint32_t)text_bytes;
    if (answer->ready_tokens < count)
        answer->ready_tokens = count;
    if (answer->ready_text < answer->delivered_text)
        answer->ready_text = answer->delivered_text;
    return STATUS_OK;
}

/* --- to the client --- */

const char *answer_stop_match(const struct answer *answer)
{
    return answer->stop_match == UINT32_MAX ? "" : answer->stops.patterns[answer->stop_match].text;
}

bool answer_peek(const struct answer *answer, uint32_t tokens_max, struct answer_piece *piece_out)
{
    uint32_t count = answer->ready_tokens - answer->delivered_tokens;
    uint32_t text_end = answer->ready_text;
    bool cut = count > tokens_max;
    if (cut) {
        count = tokens_max;
        uint32_t after = answer->after[answer->delivered_tokens + count - 1] >> 1;
        text_end = after > answer->delivered_text ? after : answer->delivered_text;
        if (text_end > answer->ready_text)
            text_end = answer->ready_text;
    }
    bool last = answer_ended(answer) && !cut && !answer->last_taken;
    if (!count && text_end == answer->delivered_text && !last)
        return false;
    *piece_out = (struct answer_piece){
        .position = answer->delivered_tokens,
        .token_count = count,
        .ids = answer->ids + answer->delivered_tokens,
        .text =
            text_end == answer->delivered_text
                ? ""
                : (const char *)answer->text.data + (answer->delivered_text - answer->text_base),
        .text_bytes = text_end - answer->delivered_text,
        .last = last,
    };
    return true;
}

float answer_logprob(const struct answer *answer, const struct answer_piece *piece, uint32_t index,
                     const struct answer_top **top_out, uint32_t *top_count_out)
{
    assert(answer->options.logprobs && index < piece->token_count);
    uint32_t at = piece->position + index;
    uint32_t begin = at ? answer->top_end[at - 1] : 0;
    *top_count_out = answer->top_end[at] - begin;
    *top_out = *top_count_out
                   ? (const struct answer_top *)answer->tops.data + (begin - answer->tops_dropped)
                   : NULL;
    return answer->logprob[at];
}

void answer_taken(struct answer *answer, const struct answer_piece *piece)
{
    answer->delivered_tokens += piece->token_count;
    answer->delivered_text += (uint32_t)piece->text_bytes;
    answer->last_taken |= piece->last;
    assert(answer->delivered_tokens <= answer->received);
    /* memory of what is gone: at once when nothing is left, else in large steps */
    size_t gone = answer->delivered_text - answer->text_base;
    if (gone && (gone == answer->text.bytes || gone > 64 * 1024)) {
        buf_consume(&answer->text, gone);
        answer->text_base += (uint32_t)gone;
    }
    if (answer->options.logprobs && answer->delivered_tokens == answer->received &&
        answer->received) {
        buf_clear(&answer->tops);
        answer->tops_dropped = answer->top_end[answer->received - 1];
    }
}
