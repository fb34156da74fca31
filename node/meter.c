/* See meter.h. */
#include "node/meter.h"

#include "base/log.h"
#include "node/node.h"

/* The window's half-life: long enough for steps of every kind that are about, short enough to be now. */
static const uint64_t look_every_ns = 5 * NS_PER_S;

void meter_init(struct node *node, const struct engine_limits *limits)
{
    static const char *const names[METER_SPENT_COUNT] = {"prefill", "decode", "host", "link",
                                                         "idle"};
    struct meter *meter = &node->meter;
    if (!limits)
        return;
    meter->known = true;
    meter->limits = *limits;
    for (int i = 0; i < METER_SPENT_COUNT; i++)
        meter->spent[i] = metrics_counter(
            node->metrics, "baton_spent_microseconds_total",
            "Where the node's time went: steps, or what was between them", "on", names[i], NULL);
}

static void spend(struct meter *meter, enum meter_spent on, uint64_t ns)
{
    metric_add(meter->spent[on], ns / NS_PER_US);
}

void meter_step(struct node *node, const struct step_record *record, uint64_t begin_ns,
                uint64_t end_ns)
{
    struct meter *meter = &node->meter;
    if (!meter->known)
        return;
    uint64_t gap_ns =
        meter->last_end_ns && begin_ns > meter->last_end_ns ? begin_ns - meter->last_end_ns : 0;
    if (gap_ns > meter->rested_ns) {
        roofline_pause(&meter->window, ROOFLINE_PAUSE_HOST,
                       1e-9 * (double)(gap_ns - meter->rested_ns));
        spend(meter, METER_HOST, gap_ns - meter->rested_ns);
    }
    enum roofline_phase phase = record->prompt_rows ? ROOFLINE_PREFILL : ROOFLINE_DECODE;
    double seconds = 1e-9 * (double)(end_ns - begin_ns);
    struct roofline_cost cost =
        roofline_cost(&meter->limits.model, &meter->limits.peaks, &record->asks);
    roofline_add(&meter->window, phase, seconds, cost);
    roofline_rate_add(&meter->rate, phase, &record->asks, seconds, cost);
    spend(meter, phase == ROOFLINE_PREFILL ? METER_PREFILL : METER_DECODE, end_ns - begin_ns);
    meter->last_end_ns = end_ns;
    meter->rested_ns = 0;
}

/* Why nothing is with the engine. Pages count as on their way when all of them could be here if the link were fast enough. */
static enum roofline_pause rest_of(const struct node *node)
{
    const struct work_table *table = &node->table;
    if (work_count(table, SM_TO(WORK_PROMPT) | SM_TO(WORK_DECODING) | SM_TO(WORK_SAVING) |
                              SM_TO(WORK_RESTORING)))
        return ROOFLINE_PAUSE_HOST;
    list_for_each(it, &table->states[WORK_FETCHING])
    {
        const struct work *work = container_of(it, struct work, link);
        if (work->fetch.live && kv_sink_computed(node->sink, work->fetch.name))
            return ROOFLINE_PAUSE_LINK;
    }
    list_for_each(it, &table->states[WORK_HOLDING])
    {
        const struct work *work = container_of(it, struct work, link);
        if (work->serve.live && kv_source_sending(node->source, work->serve.name))
            return ROOFLINE_PAUSE_LINK;
    }
    return ROOFLINE_PAUSE_IDLE;
}

void meter_wake(struct node *node)
{
    struct meter *meter = &node->meter;
    uint64_t now_ns = loop_now_ns(node->loop);
    if (!meter->rest_since_ns)
        return;
    uint64_t rested_ns = now_ns > meter->rest_since_ns ? now_ns - meter->rest_since_ns : 0;
    meter->rest_since_ns = 0;
    if (meter->rest == ROOFLINE_PAUSE_HOST)
        return; /* the next step counts it, with all else that lies before it */
    roofline_pause(&meter->window, meter->rest, 1e-9 * (double)rested_ns);
    spend(meter, meter->rest == ROOFLINE_PAUSE_LINK ? METER_LINK : METER_IDLE, rested_ns);
    meter->rested_ns += rested_ns;
}

void meter_sleep(struct node *node)
{
    struct meter *meter = &node->meter;
    if (!meter->known || node->steps.in_flight)
        return;
    meter->rest_since_ns = loop_now_ns(node->loop);
    meter->rest = rest_of(node);
}

void meter_tick(struct node *node, uint64_t now_ns)
{
    struct meter *meter = &node->meter;
    if (!meter->known || now_ns < meter->look_ns)
        return;
    meter->look_ns = now_ns + look_every_ns;
    double share = roofline_rate_share(&meter->rate);
    switch (roofline_rate_look(&meter->rate)) {
    case ROOFLINE_FELL:
        log_warn(
            "runs at %.0f %% of the rate that it had after its start: something else takes the "
            "machine's processors or its memory, or it has slowed down",
            100 * share);
        break;
    case ROOFLINE_ROSE:
        log_info("runs at %.0f %% of the rate that it had after its start again", 100 * share);
        break;
    case ROOFLINE_SAME:
        break;
    }
    roofline_fade(&meter->window);
}
