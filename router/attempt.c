/* The messages that an attempt consists of. See request.h and docs/PROTOCOL.md. */
#include <assert.h>

#include "base/plant.h"
#include "base/random.h"
#include "router/core.h"

static void send_of(struct core *core, struct node *node,
                    Baton__Node__V1__RouterMessage__KindCase kind, void *body)
{
    Baton__Node__V1__RouterMessage message = BATON__NODE__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = kind;
    message.assign = body; /* a union of pointers */
    node_send(&core->registry, node, &message);
}

static Baton__Node__V1__AttemptId wire_id(struct attempt_id id)
{
    Baton__Node__V1__AttemptId out = BATON__NODE__V1__ATTEMPT_ID__INIT;
    out.high = id.high;
    out.low = id.low;
    return out;
}

/* --- Assign --- */

static uint64_t remaining_ms(const struct core *core, const struct request *request)
{
    if (request->deadline_ns == DEADLINE_NONE)
        return 0;
    uint64_t now_ns = core->registry.now_ns;
    if (request->deadline_ns <= now_ns + NS_PER_MS)
        return 1;
    return (request->deadline_ns - now_ns) / NS_PER_MS;
}

/* `pages`: of a leg that serves, and of the one that fetches them. */
static void send_assign(struct core *core, const struct leg *leg, uint32_t pages)
{
    static const Baton__Node__V1__Leg wire_legs[] = {
        [LEG_KIND_PREFILL] = BATON__NODE__V1__LEG__LEG_PREFILL,
        [LEG_KIND_DECODE] = BATON__NODE__V1__LEG__LEG_DECODE,
        [LEG_KIND_LOCAL] = BATON__NODE__V1__LEG__LEG_LOCAL,
        [LEG_KIND_SERVE] = BATON__NODE__V1__LEG__LEG_SERVE,
    };
    struct request *r = leg->request;
    Baton__Node__V1__AttemptId id = wire_id(leg->id);
    Baton__Node__V1__Assign assign = BATON__NODE__V1__ASSIGN__INIT;
    assign.number = leg->number;
    assign.attempt = &id;
    assign.request = r->key;
    assign.age = r->age;
    assign.leg = wire_legs[leg->kind];
    assign.prompt = r->prompt.ids;
    assign.n_prompt = r->prompt.count;
    /* what the attempt began with: a D that is found late gets the same */
    assign.generated = r->answer.ids;
    assign.n_generated = r->base;
    assign.sampling = &r->sampling;
    assign.tokens_max = r->tokens_max;
    assign.deadline_ms = remaining_ms(core, r);
    assign.alone = r->deaths >= ALONE_FROM_DEATHS;
    if (r->salted) {
        assign.cache_salt.data = r->salt;
        assign.cache_salt.len = sizeof r->salt;
    }
    Baton__Node__V1__Fetch fetch = BATON__NODE__V1__FETCH__INIT;
    Baton__Node__V1__AttemptId transfer;
    if (leg->kind == LEG_KIND_SERVE) {
        assign.serve_pages = pages;
    } else if (leg->kind == LEG_KIND_DECODE) {
        assign.source = r->source->node->name;
        assign.source_incarnation = r->source->node->incarnation;
        assign.source_number = r->source->number;
    } else if (r->server) {
        transfer = wire_id(r->server->id);
        fetch.node = r->server->node->name;
        fetch.incarnation = r->server->node->incarnation;
        fetch.number = r->server->number;
        fetch.transfer = &transfer;
        fetch.pages = pages;
        assign.fetch = &fetch;
    }
    assign.last_leg = leg->kind == LEG_KIND_PREFILL && r->prefill_only;
    send_of(core, leg->node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_ASSIGN, &assign);
}

static struct leg *leg_add(struct core *core, struct request *r, struct node *node,
                           enum leg_kind kind, struct leg_share share)
{
    struct leg *leg = leg_create(node, r, r->attempt, kind, share, core->registry.patient_ns);
    if (!leg)
        request_end(core, r, STATUS_MEMORY, GRPC_CODE_RESOURCE_EXHAUSTED, "no memory");
    return leg;
}

/* Without memory for it nothing is fetched. */
static void serve_begin(struct core *core, struct request *r, const struct attempt_plan *plan)
{
    struct attempt_id id = {random_u64(), random_u64()};
    r->server = leg_create(plan->fetch, r, id, LEG_KIND_SERVE, (struct leg_share){0},
                           core->registry.patient_ns);
    if (!r->server)
        return;
    metric_add(core->stats->fetches, 1);
    send_assign(core, r->server, plan->fetch_pages);
}

static void name_copy(char *to, const struct node *node)
{
    memcpy(to, node->name, sizeof node->name);
}

void attempt_begin(struct core *core, struct request *r, const struct attempt_plan *plan)
{
    struct node *prefill = plan->prefill;
    bool alone = prefill == plan->decode && !r->prefill_only;
    r->attempt = (struct attempt_id){random_u64(), random_u64()};
    r->base = r->answer.received;
    r->progress_ns = core->registry.patient_ns;
    request_move(core, r, REQUEST_PLACED);
    if (plan->fetch)
        serve_begin(core, r, plan);
    if (alone) {
        r->sink = leg_add(core, r, prefill, LEG_KIND_LOCAL, plan->decode_share);
        if (r->sink)
            send_assign(core, r->sink, plan->fetch_pages);
    } else {
        r->source = leg_add(core, r, prefill, LEG_KIND_PREFILL, plan->prefill_share);
        if (!r->source)
            return;
        send_assign(core, r->source, plan->fetch_pages);
        if (!r->prefill_only)
            attempt_give_decode(core, r, plan->decode, plan->decode_share);
    }
    if (!request_open(r))
        return;
    if (!r->timing
             .first_ns) { /* the time to the first token is the last attempt's that could give it */
        r->timing.assigned_ns = core_clock(core);
        name_copy(r->timing.prefill_node, prefill);
    }
    if (alone)
        name_copy(r->timing.decode_node, prefill);
}

void attempt_give_decode(struct core *core, struct request *r, struct node *decode,
                         struct leg_share share)
{
    assert(r->source && !r->sink);
    list_remove(&r->seek_link);
    r->sink = leg_add(core, r, decode, LEG_KIND_DECODE, share);
    if (!r->sink)
        return;
    registry_link_tried(&core->registry, r->source->node, decode);
    send_assign(core, r->sink, 0);
    name_copy(r->timing.decode_node, decode);
    if (r->answer.received > r->base)
        attempt_send_first(core, r);
}

/* --- the others --- */

void attempt_send_first(struct core *core, struct request *r)
{
    assert(r->answer.received > r->base);
    Baton__Node__V1__AttemptId id = wire_id(r->attempt);
    Baton__Node__V1__Token token = BATON__NODE__V1__TOKEN__INIT;
    token.id = r->answer.ids[r->base];
    if (r->answer.options.logprobs)
        token.logprob = r->answer.logprob[r->base];
    Baton__Node__V1__FirstToken first = BATON__NODE__V1__FIRST_TOKEN__INIT;
    first.attempt = &id;
    first.position = r->base;
    first.token = &token;
    send_of(core, r->sink->node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_FIRST_TOKEN, &first);
}

void attempt_settle(struct core *core, struct request *r)
{
    Baton__Node__V1__AttemptId id = wire_id(r->attempt);
    Baton__Node__V1__Settle settle = BATON__NODE__V1__SETTLE__INIT;
    settle.attempt = &id;
    list_remove(&r->seek_link);
    request_move(core, r, REQUEST_SETTLING);
    r->settle_ns = core->registry.patient_ns;
    send_of(core, r->sink->node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_SETTLE, &settle);
}

void attempt_renew(struct core *core, struct request *r)
{
    Baton__Node__V1__AttemptId id = wire_id(r->attempt);
    Baton__Node__V1__Renew renew = BATON__NODE__V1__RENEW__INIT;
    renew.attempt = &id;
    r->renewed_ns = core->registry.now_ns;
    send_of(core, r->source->node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_RENEW, &renew);
}

void attempt_seek(struct core *core, struct request *r)
{
    struct list *at = core->seeking.next;
    while (at != &core->seeking && container_of(at, struct request, seek_link)->age < r->age)
        at = at->next;
    list_insert_before(at, &r->seek_link);
    core->dirty = true;
    attempt_renew(core, r);
}

void leg_end(struct core *core, struct leg *leg, const char *reason)
{
    struct request *r = leg->request;
    if (leg->state == LEG_ENDING || (PLANTED(ONE_LEG_ENDED) && leg->kind == LEG_KIND_PREFILL))
        return;
    Baton__Node__V1__AttemptId id = wire_id(leg->id);
    Baton__Node__V1__End end = BATON__NODE__V1__END__INIT;
    end.attempt = &id;
    end.reason = (char *)reason;
    sm_move(&leg_states, &leg->state, LEG_ENDING);
    leg_prefilled(leg);
    leg->life_ns = core->registry.patient_ns;
    if (r->source == leg)
        r->source = NULL;
    if (r->sink == leg)
        r->sink = NULL;
    if (r->server == leg)
        r->server = NULL;
    send_of(core, leg->node, BATON__NODE__V1__ROUTER_MESSAGE__KIND_END, &end);
}
