/* One streamed answer, resumed by itself: when the stream breaks after tokens have come (the router died, say), the same
 * request is sent again with `resume`, which says what was received; the next token is the one after, as if nothing had
 * happened.
 *
 *     ask ──▶ tokens ──▶ last message ─────────────────────────────────▶ done
 *      ▲         │ UNAVAILABLE or the connection gone                      │ other status
 *      └─ wait ◀─┘  (100 ms, doubling to 1 s; at most 60 s, or --deadline) └──▶ refused, or failed half-way
 *
 * Before the first token a lost connection asks again from the start (nothing was delivered), but a server that answers with
 * a status is believed at once.
 *
 * Owner: the main thread. */
#ifndef BATON_CLIENT_STREAM_H
#define BATON_CLIENT_STREAM_H

#include "client/client.h"
#include "proto/baton/v1/baton.pb-c.h"

struct stream_options {
    /* `resume` must be unset; it and the seed are filled in here for each attempt */
    Baton__V1__GenerateRequest *request;
    uint64_t timeout_ns; /* for the whole answer; DEADLINE_NONE: none */
    /* Each message as it arrives, its positions checked; `text` may hold NUL bytes. May be NULL. */
    void (*message)(void *context, const Baton__V1__GenerateResponse *message, const char *text,
                    size_t text_bytes);
    void *context;
};

/* What was received, and when (this side's clock). */
struct answer {
    uint32_t *ids;
    size_t id_count, id_capacity;
    struct buf text;
    uint64_t seed;
    bool seed_known;
    Baton__V1__GenerateResponse__FinishReason finish_reason;
    bool finished;
    bool has_timings, has_usage;
    uint64_t queue_us, placement_us, prefill_us, send_us, ttft_us, handoff_us, first_decode_us;
    uint64_t total_us, kv_bytes_moved;
    char prefill_node[128], decode_node[128];
    uint32_t replays, prompt_tokens, completion_tokens, cached_tokens;
    unsigned resumes;
    uint64_t first_token_ns, last_token_ns;
};

/* Runs one answer to its end. Errors are printed. `answer_out` must be given to answer_finish whatever came. */
enum exit_code stream_run(struct client *client, const struct stream_options *options,
                          struct answer *answer_out);
void answer_finish(struct answer *answer);

/* The two lines of --stats, on stderr: where the time went, and what moved over what. */
void stats_print(struct client *client, const struct answer *answer);

#endif
