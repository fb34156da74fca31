/* The sampling options that `generate` and `chat` share: rows for their tables, and their way into a request. What a value may
 * be is the router's to say (it names the field and the limit), so that there is one place for it; here only what cannot be
 * written in the message is refused.
 *
 * Owner: the main thread. */
#ifndef BATON_CLIENT_SAMPLING_H
#define BATON_CLIENT_SAMPLING_H

#include "base/config.h"
#include "proto/baton/v1/baton.pb-c.h"

struct sampling_options {
    int64_t max_tokens, top_k;
    double temperature, top_p;
    const char *seed; /* text, for all of 64 bits */
    struct config_strings stop;
    bool ignore_eos;
};

#define SAMPLING_ROW(type_, key_, struct_type, member) \
    .key = key_, .type = type_, CONFIG_FIELD(struct_type, member), .flag_only = true
#define SAMPLING_ROWS(struct_type, member)                                                      \
    {SAMPLING_ROW(CONFIG_INT, "max_tokens", struct_type, member.max_tokens), .letter = 'n',     \
     .max = UINT32_MAX, .argument = "MAX", .help = "tokens at most; unset: up to the context"}, \
        {SAMPLING_ROW(CONFIG_FLOAT, "temperature", struct_type, member.temperature),            \
         .argument = "T", .help = "0 is greedy; unset: 1"},                                     \
        {SAMPLING_ROW(CONFIG_INT, "top_k", struct_type, member.top_k), .max = UINT32_MAX,       \
         .argument = "K", .help = "draw from the K best; 0: off"},                              \
        {SAMPLING_ROW(CONFIG_FLOAT, "top_p", struct_type, member.top_p), .argument = "P",       \
         .help = "draw from the best that sum to P; unset: 1"},                                 \
        {SAMPLING_ROW(CONFIG_STRING, "seed", struct_type, member.seed), .argument = "S",        \
         .help = "0 to 2^64 - 1; unset: the router draws one"},                                 \
        {SAMPLING_ROW(CONFIG_STRINGS, "stop", struct_type, member.stop), .argument = "STR",     \
         .help = "end before this text; may be given again"},                                   \
    {                                                                                           \
        SAMPLING_ROW(CONFIG_BOOL, "ignore_eos", struct_type, member.ignore_eos),                \
            .help = "go on after an end token"                                                  \
    }

/* Fills `params` from what was given; `config` tells which. Pointers in `params` are into `options`. */
enum status sampling_fill(const struct config *config, const struct sampling_options *options,
                          Baton__V1__SamplingParams *params, struct err *err);

/* "--token-ids: …": a number from 0 to `max`, all of `text`. */
enum status sampling_parse_u64(const char *text, uint64_t max, uint64_t *value_out,
                               struct err *err);

#endif
