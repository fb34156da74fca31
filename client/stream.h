/* One streamed answer, resumed by itself: when the stream breaks after tokens have come (the router died, say), the same
 * request is sent again with `resume`, which says what was received; the next token is the one after, as if nothing had
 * happened.
 *
 *     ask ──▶ tokens ──▶ last message ─────────────────────────────────▶ done
 *      ▲         │ UNAVAILABLE or the connection gone                      │ other status
 *      └─ wait ◀─┘  (100 ms, doubling to 1 s; --resume, or --deadline)     └──▶ refused, or failed half-way
 *
 * A router that is frozen, or that no packet reaches any more, breaks no stream by itself: it is asked for a sign of life
 * (--keepalive), and without one the connection counts as gone. A router that only has nothing to say answers, and is waited for.
 *
 * Before the first token a lost connection asks again from the start (nothing was delivered), but a server that answers
 * UNAVAILABLE on a connection that stood all the time is believed, and any other status at once.
 *
 * Owner: the main thread. */
#ifndef BATON_CLIENT_STREAM_H
#define BATON_CLIENT_STREAM_H

#include "client/client.h"
#include "proto/baton/v1/baton.pb-c.h"

/* How long to wait for what; generate and chat share these rows. */
struct stream_patience {
    uint64_t deadline_ns;  /* for the whole answer; 0: none */
    uint64_t keepalive_ns; /* see client_open */
    uint64_t resume_ns;    /* from a break on, for the next message */
};

#define PATIENCE_ROW(key_, struct_type, member) \
    .key = key_, .type = CONFIG_DURATION, CONFIG_FIELD(struct_type, member), .flag_only = true
#define PATIENCE_ROWS(struct_type, member)                                                       \
    {PATIENCE_ROW("deadline", struct_type, member.deadline_ns), .min = 1,                        \
     .max = INT64_C(86400) * 1000000000, .argument = "SECONDS",                                  \
     .help = "give an answer up after so long; unset: never"},                                   \
        {PATIENCE_ROW("keepalive", struct_type, member.keepalive_ns),                            \
         .min = INT64_C(2) * 1000000000,                                                         \
         .max = INT64_C(3600) * 1000000000,                                                      \
         .argument = "SECONDS",                                                                  \
         .initial = "10",                                                                        \
         .help = "ask a silent router for a sign of life; without one for as long, it is gone"}, \
    {                                                                                            \
        PATIENCE_ROW("resume", struct_type, member.resume_ns),                                   \
            .max = INT64_C(86400) * 1000000000, .argument = "SECONDS", .initial = "60",          \
            .help = "after a break, try for so long to go on with the next token; 0: not at all" \
    }

struct stream_options {
    /* `resume` must be unset; it and the seed are filled in here for each attempt */
    Baton__V1__GenerateRequest *request;
    struct stream_patience patience;
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
