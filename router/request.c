/* See request.h. */
#include "router/request.h"

#include <assert.h>
#include <stdlib.h>

static const struct sm_state request_rows[] = {
    [REQUEST_QUEUED] = {"queued", SM_TO(REQUEST_PLACED) | SM_TO(REQUEST_ENDING)},
    [REQUEST_PLACED] = {"placed", SM_TO(REQUEST_HANDING_OFF) | SM_TO(REQUEST_STREAMING) |
                                      SM_TO(REQUEST_SETTLING) | SM_TO(REQUEST_QUEUED) |
                                      SM_TO(REQUEST_ENDING)},
    [REQUEST_HANDING_OFF] = {"handing off", SM_TO(REQUEST_STREAMING) | SM_TO(REQUEST_SETTLING) |
                                                SM_TO(REQUEST_QUEUED) | SM_TO(REQUEST_ENDING)},
    [REQUEST_STREAMING] = {"streaming", SM_TO(REQUEST_QUEUED) | SM_TO(REQUEST_ENDING)},
    [REQUEST_SETTLING] = {"settling",
                          SM_TO(REQUEST_STREAMING) | SM_TO(REQUEST_QUEUED) | SM_TO(REQUEST_ENDING)},
    [REQUEST_ENDING] = {"ending", SM_TO(REQUEST_ENDED)},
    [REQUEST_ENDED] = {"ended", 0},
};
const struct sm_table request_states = SM_TABLE("request", request_rows);

static const struct sm_state leg_rows[] = {
    [LEG_SENT] = {"sent", SM_TO(LEG_HELD) | SM_TO(LEG_ENDING)},
    [LEG_HELD] = {"held", SM_TO(LEG_ENDING)},
    [LEG_ENDING] = {"ending", 0},
};
const struct sm_table leg_states = SM_TABLE("leg", leg_rows);

struct request *request_create(void)
{
    struct request *request = calloc(1, sizeof *request);
    if (!request)
        return NULL;
    list_init(&request->all_link);
    list_init(&request->queue_link);
    list_init(&request->seek_link);
    list_init(&request->legs);
    baton__node__v1__sampling__init(&request->sampling);
    request->deadline_ns = DEADLINE_NONE;
    return request;
}

void request_destroy(struct request *request)
{
    if (!request)
        return;
    assert(list_empty(&request->legs));
    list_remove(&request->all_link);
    list_remove(&request->queue_link);
    list_remove(&request->seek_link);
    token_list_finish(&request->prompt);
    if (request->answer_ready)
        answer_free(&request->answer);
    free(request->bias);
    free(request->bias_list);
    free(request->stop_ids);
    free(request->page_hashes);
    free(request);
}

static bool leg_grows(const struct leg *leg)
{
    return leg->kind == LEG_KIND_DECODE || leg->kind == LEG_KIND_LOCAL;
}

struct leg *leg_create(struct node *node, struct request *request, struct attempt_id id,
                       enum leg_kind kind, struct leg_share share, uint64_t life_ns)
{
    struct leg *leg = calloc(1, sizeof *leg);
    if (!leg)
        return NULL;
    leg->id = id;
    leg->node = node;
    leg->request = request;
    leg->kind = kind;
    leg->state = LEG_SENT;
    leg->number = ++node->assignments;
    leg->life_ns = life_ns;
    leg->share = share;
    HASH_ADD(hh, node->legs, id, sizeof leg->id, leg);
    list_push_back(&node->leg_list, &leg->node_link);
    list_push_back(&request->legs, &leg->request_link);
    node->leg_count++;
    node->serving_legs += kind == LEG_KIND_SERVE;
    node->growing_legs += leg_grows(leg);
    node->pages_taken += share.pages;
    node->prefill_tokens += share.prefill_tokens;
    return leg;
}

void leg_prefilled(struct leg *leg)
{
    leg->node->prefill_tokens -= leg->share.prefill_tokens;
    leg->share.prefill_tokens = 0;
}

void leg_grown(struct leg *leg, uint32_t pages)
{
    uint32_t now = leg->share.pages + leg->share.cached_pages;
    if (!leg->node->grows || pages <= now)
        return;
    leg->share.pages += pages - now;
    leg->node->pages_taken += pages - now;
}

void leg_gone(struct leg *leg)
{
    struct node *node = leg->node;
    leg_prefilled(leg);
    HASH_DELETE(hh, node->legs, leg);
    list_remove(&leg->node_link);
    list_remove(&leg->request_link);
    node->leg_count--;
    node->serving_legs -= leg->kind == LEG_KIND_SERVE;
    node->growing_legs -= leg_grows(leg);
    node->pages_taken -= leg->share.pages;
    if (leg->request->source == leg)
        leg->request->source = NULL;
    if (leg->request->sink == leg)
        leg->request->sink = NULL;
    if (leg->request->server == leg)
        leg->request->server = NULL;
    free(leg);
}

struct leg *leg_find(struct node *node, const Baton__Node__V1__AttemptId *id)
{
    if (!id)
        return NULL;
    struct attempt_id key = {.high = id->high, .low = id->low};
    struct leg *leg = NULL;
    HASH_FIND(hh, node->legs, &key, sizeof key, leg);
    return leg;
}
