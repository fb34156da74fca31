/* See explore_setup.h. */
#include "tests/sim/explore_setup.h"

#include <string.h>

#include "base/clock.h"
#include "tests/sim/fake_engine.h"
#include "tests/sim/virtual.h"

struct cluster_options explore_cluster_options(const struct explore_config *config)
{
    struct cluster_options options = {
        .seed = 1,
        .nodes = (uint32_t)strlen(config->roles),
        .by_hand = true,
        .boast = config->boast ? 4 : 1,
        .router = {.replays_max = 100,
                   .requests_max = 10,
                   .queue_max = 10,
                   .queue_messages_max = config->queue_messages_max,
                   .cache_index_entries = config->next_turn ? 100 : 0,
                   .fetch = 1, /* PLACEMENT_FETCH_ALWAYS */
                   .node_wait_ns = 60 * NS_PER_S},
        .window_bytes = config->window_bytes ? config->window_bytes : 1 << 20,
        .burst_max = 1,
    };
    for (uint32_t i = 1; i <= options.nodes; i++) {
        char role = config->roles[i - 1];
        options.node[i] = (struct node_side_options){
            .role = role == 'p'   ? 0
                    : role == 'd' ? 1
                                  : 2,
            .chunk_tokens = 16,
            .steps_in_flight = config->steps_in_flight,
            .peers_max = 4,
            .engine = {.layers = config->layers,
                       .layer_run = 1,
                       .page_tokens = config->page_tokens,
                       .page_count = config->pages,
                       .context_tokens = 16,
                       .rows_max = 16,
                       .seqs_max = 3,
                       .slots_max = 4,
                       .copies_max = 4,
                       .mirrored = config->mirrored},
        };
    }
    return options;
}

/* A conversation's next prompt begins as the one before and its answer. */
static void turn_before(const struct client_options *o, const uint32_t *answer,
                        struct client_options *next)
{
    for (uint32_t k = 0; k < next->prompt_count && k < o->prompt_count + o->tokens_max; k++)
        next->prompt[k] = k < o->prompt_count ? o->prompt[k] : answer[k - o->prompt_count];
}

void explore_requests(const struct explore_config *config, struct client *clients,
                      uint32_t (*reference)[CLIENT_TOKENS_MAX])
{
    for (uint32_t i = 0; i < config->request_count; i++) {
        struct client_options *o = &clients[i].options;
        o->prompt_count = config->requests[i].prompt_tokens;
        for (uint32_t k = 0; k < o->prompt_count; k++)
            o->prompt[k] = (uint32_t)(mix64(i * 100 + k) % FAKE_VOCAB);
        if (config->next_turn && i == config->request_count - 1)
            turn_before(&clients[0].options, reference[0], o);
        o->tokens_max = config->requests[i].answer_tokens;
        o->seed = i + 1;
        o->deadline_ns = DEADLINE_NONE;
        fake_answer(config->layers, o->prompt, o->prompt_count, o->seed, 0, o->tokens_max,
                    reference[i]);
    }
}
