/* See work.h. */
#include "node/work.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct sm_state states[] = {
    [WORK_FREE] = {"free", SM_TO(WORK_WAITING)},
    [WORK_WAITING] = {"waiting", SM_TO(WORK_PROMPT) | SM_TO(WORK_FETCHING) | SM_TO(WORK_ENDING)},
    [WORK_PROMPT] = {"prompt", SM_TO(WORK_HOLDING) | SM_TO(WORK_DECODING) | SM_TO(WORK_ENDING)},
    [WORK_HOLDING] = {"holding", SM_TO(WORK_ENDING)},
    [WORK_FETCHING] = {"fetching", SM_TO(WORK_ORPHAN) | SM_TO(WORK_DECODING) | SM_TO(WORK_ENDING)},
    [WORK_ORPHAN] = {"orphan", SM_TO(WORK_DECODING) | SM_TO(WORK_ENDING)},
    [WORK_DECODING] = {"decoding", SM_TO(WORK_ENDING)},
    [WORK_ENDING] = {"ending", SM_TO(WORK_LEAVING) | SM_TO(WORK_QUARANTINED)},
    [WORK_QUARANTINED] = {"quarantined", SM_TO(WORK_LEAVING)},
    [WORK_LEAVING] = {"leaving", SM_TO(WORK_FREE)},
};
const struct sm_table work_states = SM_TABLE("work", states);

enum status work_table_init(struct work_table *table, uint32_t count, uint32_t tokens_max,
                            uint32_t pages_max)
{
    *table = (struct work_table){.count = count, .tokens_max = tokens_max, .pages_max = pages_max};
    table->works = calloc(count, sizeof *table->works);
    uint32_t *tokens = table->memory[0] = calloc((size_t)count * tokens_max, sizeof *tokens);
    uint32_t *pages = table->memory[1] = calloc((size_t)count * pages_max, sizeof *pages);
    struct sampling_bias *bias = table->memory[2] =
        calloc((size_t)count * SAMPLING_LOGIT_BIAS_MAX, sizeof *bias);
    uint32_t *stops = table->memory[3] =
        calloc((size_t)count * SAMPLING_STOP_IDS_MAX, sizeof *stops);
    if (!table->works || !tokens || !pages || !bias || !stops)
        return STATUS_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        table->works[i] = (struct work){
            .index = i,
            .tokens = tokens + (size_t)i * tokens_max,
            .pages = pages + (size_t)i * pages_max,
            .bias = bias + (size_t)i * SAMPLING_LOGIT_BIAS_MAX,
            .stop_ids = stops + (size_t)i * SAMPLING_STOP_IDS_MAX,
        };
    return STATUS_OK;
}

void work_table_finish(struct work_table *table)
{
    free(table->works);
    for (int i = 0; i < 4; i++)
        free(table->memory[i]);
    *table = (struct work_table){0};
}

struct work *work_take(struct work_table *table)
{
    for (uint32_t i = 0; i < table->count; i++) {
        struct work *work = &table->works[i];
        if (work->state != WORK_FREE)
            continue;
        *work = (struct work){.index = i,
                              .life = work->life + 1,
                              .tokens = work->tokens,
                              .pages = work->pages,
                              .bias = work->bias,
                              .stop_ids = work->stop_ids};
        return work;
    }
    return NULL;
}

struct work *work_find_any(struct work_table *table, struct kv_id attempt)
{
    for (uint32_t i = 0; i < table->count; i++) {
        struct work *work = &table->works[i];
        if (work->state != WORK_FREE && kv_id_equal(work->key.transfer, attempt))
            return work;
    }
    return NULL;
}

struct work *work_find(struct work_table *table, struct kv_id attempt)
{
    for (uint32_t i = 0; i < table->count; i++) {
        struct work *work = &table->works[i];
        if (work_live(work) && kv_id_equal(work->key.transfer, attempt))
            return work;
    }
    return NULL;
}

void work_move(struct work *work, enum work_state to, uint64_t now_ns)
{
    sm_move(&work_states, &work->state, to);
    work->state_since_ns = now_ns;
}

enum work_finish work_finish(const struct work *work)
{
    assert(work->generated_count > 0);
    if (work->generated_count >= work->sampling.min_tokens) {
        uint32_t token = work->tokens[work_total(work) - 1];
        for (uint32_t i = 0; i < work->sampling.stop_token_count; i++)
            if (work->stop_ids[i] == token)
                return WORK_FINISH_STOP;
    }
    return work->generated_count >= work->answer_max ? WORK_FINISH_LENGTH : WORK_FINISH_NONE;
}
