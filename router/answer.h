/* One answer: tokens come in from nodes, in any order and more than once; pieces of text and ids go out to the client, each
 * token exactly once.
 *
 *     receive(position, id) ──▶ next position? ──▶ ids[] ──▶ detokenizer ──▶ stop strings ──▶ ready ──▶ piece, taken
 *                                 │      │
 *                                 │      └ later: held until the gap closes
 *                                 └ earlier: compared, dropped; a difference is a mismatch, and what was delivered stands
 *
 *            text  │ delivered │ ready │ may belong to a stop string │
 *            ids   │ delivered │ ready │ held back: their text reaches into that │
 *
 * A token is ready when no stop string can reach into its text any more, and it leaves together with all of that text. At a
 * match the answer ends before it: tokens whose text reaches into it are neither delivered nor counted, the text before it
 * is delivered. Text of the first `min_tokens` tokens is not searched. Characters cut by token boundaries wait for their
 * last byte (model/detok.h); without stop strings the ids do not wait for them.
 *
 * Nothing here builds a message: a slow client costs memory for ids and text, and no work.
 *
 * Pure. Owner: the loop thread. */
#ifndef BATON_ROUTER_ANSWER_H
#define BATON_ROUTER_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "model/detok.h"
#include "router/stops.h"

enum { ANSWER_LATER_MAX = 256 }; /* positions ahead that are held */

/* Where text comes from: model/detok.h in the router, a toy in tests. */
struct answer_text {
    size_t (*push)(const void *vocabulary, struct detok *detok, uint32_t id, char *out);
    size_t push_bytes_max;
    const void *vocabulary;
};

struct answer_options {
    const struct answer_text *text; /* outlives the answer */
    const char *const *stops;       /* [stop_count]; copied */
    uint32_t stop_count;
    uint32_t min_tokens;
    uint32_t tokens_max; /* of the whole answer, resumed tokens included; >= 1 */
    bool logprobs;       /* keep them */
};

struct answer_top {
    uint32_t id;
    float logprob;
};

struct answer_token {
    uint32_t id;
    float logprob;
    const struct answer_top *top; /* [top_count] */
    uint32_t top_count;
};

enum answer_finish { ANSWER_OPEN, ANSWER_STOP, ANSWER_LENGTH };

enum answer_result {
    ANSWER_ACCEPTED,  /* the next position; ones held before may have followed it */
    ANSWER_HELD,      /* a later position */
    ANSWER_DUPLICATE, /* an earlier position, equal */
    ANSWER_MISMATCH,  /* an earlier position, different: the sender is not to be trusted */
    ANSWER_DROPPED,   /* the answer has ended, or the position is too far ahead */
    ANSWER_NO_MEMORY,
};

struct answer_later; /* a token held for its turn */

struct answer {
    struct answer_options options;
    struct stops stops;
    struct detok detok;
    char *push_room;
    /* received, in order */
    uint32_t *ids;
    uint32_t
        *after;     /* [received]: text bytes after this token x 2, + 1 when it began a character */
    float *logprob; /* with options.logprobs, as are the next two */
    uint32_t *top_end;
    struct buf tops;       /* struct answer_top */
    uint32_t tops_dropped; /* entries no longer in `tops` */
    uint32_t received, capacity;
    struct answer_later *later; /* ascending by position */
    uint32_t later_count;
    /* text of the answer from byte text_base on */
    struct buf text;
    uint32_t text_base;
    bool searching;      /* stop strings count from here on */
    bool skip_character; /* the next character began before they did */
    /* the frontier */
    uint32_t ready_tokens, ready_text;
    uint32_t delivered_tokens, delivered_text;
    bool last_taken;
    enum answer_finish finish;
    uint32_t stop_match; /* index into the stop strings; UINT32_MAX: none */
};

/* What the next message may carry. Pointers live until the next call on this answer. */
struct answer_piece {
    uint32_t position, token_count;
    const uint32_t *ids;
    const char *text;
    size_t text_bytes;
    bool last;
};

/* False without memory. */
bool answer_init(struct answer *answer, const struct answer_options *options);
void answer_free(struct answer *answer); /* frees; also a half-built one */

/* Takes up an answer that a client already has in part: `ids` and `text_bytes` of its text. The answer may have ended with
 * them: then only the last piece comes. `stop_ids` are the ids that end an answer. INVALID names the field of `resume`. */
enum status answer_restore(struct answer *answer, const uint32_t *ids, uint32_t count,
                           uint64_t text_bytes, const uint32_t *stop_ids, size_t stop_id_count,
                           struct err *err);

/* `finish`: what the sending node says ends the answer with this very token. A stop string at the same position wins. */
enum answer_result answer_receive(struct answer *answer, uint32_t position,
                                  const struct answer_token *token, enum answer_finish finish);

static inline bool answer_ended(const struct answer *answer)
{
    return answer->finish != ANSWER_OPEN;
}
/* A token is held for its turn: its predecessors are missing. */
static inline bool answer_has_gap(const struct answer *answer)
{
    return answer->later_count > 0;
}
/* Tokens in the client's usage, once the answer has ended. */
static inline uint32_t answer_count(const struct answer *answer)
{
    return answer->ready_tokens;
}
const char *answer_stop_match(const struct answer *answer); /* "" when none ended it */

/* False: nothing to send now. At most `tokens_max` tokens. */
bool answer_peek(const struct answer *answer, uint32_t tokens_max, struct answer_piece *piece_out);
/* Log-probabilities of the piece's token `index`. */
float answer_logprob(const struct answer *answer, const struct answer_piece *piece, uint32_t index,
                     const struct answer_top **top_out, uint32_t *top_count_out);
/* The piece that peek gave is on its way. */
void answer_taken(struct answer *answer, const struct answer_piece *piece);

#endif
