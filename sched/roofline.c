/* See roofline.h. */
#include "sched/roofline.h"

struct roofline_cost roofline_cost(const struct roofline_model *model,
                                   const struct roofline_peaks *peaks,
                                   const struct roofline_step *step)
{
    double rows = (double)step->prompt_rows + step->decode_rows;
    return (struct roofline_cost){
        .arithmetic = model->layer_ops * rows / peaks->layer_ops +
                      model->head_ops * step->samples / peaks->head_ops +
                      model->attention_ops * (double)step->pairs / peaks->attention_ops,
        .weights = ((rows > 0 ? model->layer_bytes : 0) + (step->samples ? model->head_bytes : 0)) /
                   peaks->bytes,
        .kv = model->kv_bytes * (double)step->positions / peaks->bytes,
    };
}

enum roofline_bound roofline_bound(struct roofline_cost cost)
{
    if (cost.arithmetic > cost.weights + cost.kv)
        return ROOFLINE_BOUND_ARITHMETIC;
    return cost.weights > cost.kv ? ROOFLINE_BOUND_WEIGHTS : ROOFLINE_BOUND_KV;
}

double roofline_least(struct roofline_cost cost)
{
    double reading = cost.weights + cost.kv;
    return cost.arithmetic > reading ? cost.arithmetic : reading;
}

void roofline_add(struct roofline_window *window, enum roofline_phase phase, double seconds,
                  struct roofline_cost cost)
{
    window->phases[phase].seconds += seconds;
    window->phases[phase].steps += 1;
    window->phases[phase].least += roofline_least(cost);
    window->phases[phase].cost.arithmetic += cost.arithmetic;
    window->phases[phase].cost.weights += cost.weights;
    window->phases[phase].cost.kv += cost.kv;
}

void roofline_pause(struct roofline_window *window, enum roofline_pause pause, double seconds)
{
    window->pauses[pause] += seconds;
}

void roofline_fade(struct roofline_window *window)
{
    for (int i = 0; i < ROOFLINE_PHASES; i++) {
        window->phases[i].seconds /= 2;
        window->phases[i].steps /= 2;
        window->phases[i].least /= 2;
        window->phases[i].cost.arithmetic /= 2;
        window->phases[i].cost.weights /= 2;
        window->phases[i].cost.kv /= 2;
    }
    for (int i = 0; i < ROOFLINE_PAUSES; i++)
        window->pauses[i] /= 2;
}

/* Less of a phase than this is left of what is long past. Seconds. */
static const double phase_least = 1e-3;

static enum roofline_verdict longest(const struct roofline_window *window,
                                     enum roofline_phase phase)
{
    static const enum roofline_verdict of_pause[ROOFLINE_PAUSES] = {
        [ROOFLINE_PAUSE_IDLE] = ROOFLINE_IDLE,
        [ROOFLINE_PAUSE_LINK] = ROOFLINE_LINK,
        [ROOFLINE_PAUSE_HOST] = ROOFLINE_HOST,
    };
    double most = window->phases[phase].seconds;
    if (most < phase_least)
        return ROOFLINE_IDLE;
    enum roofline_verdict verdict = ROOFLINE_VERDICTS; /* the steps */
    for (int i = 0; i < ROOFLINE_PAUSES; i++)
        if (window->pauses[i] > most) {
            most = window->pauses[i];
            verdict = of_pause[i];
        }
    if (verdict != ROOFLINE_VERDICTS)
        return verdict;
    static const enum roofline_verdict of_bound[] = {
        [ROOFLINE_BOUND_ARITHMETIC] = ROOFLINE_ARITHMETIC,
        [ROOFLINE_BOUND_WEIGHTS] = ROOFLINE_WEIGHTS,
        [ROOFLINE_BOUND_KV] = ROOFLINE_KV,
    };
    return of_bound[roofline_bound(window->phases[phase].cost)];
}

struct roofline_report roofline_report(const struct roofline_window *window,
                                       enum roofline_phase phase)
{
    struct roofline_report report = {.verdict = longest(window, phase)};
    double seconds = window->phases[phase].seconds;
    if (seconds >= phase_least) {
        struct roofline_cost cost = window->phases[phase].cost;
        report.mfu = cost.arithmetic / seconds;
        report.mbu = (cost.weights + cost.kv) / seconds;
        report.efficiency = window->phases[phase].least / seconds;
    }
    return report;
}

const char *roofline_verdict_name(enum roofline_verdict verdict)
{
    static const char *const names[ROOFLINE_VERDICTS] = {
        [ROOFLINE_IDLE] = "idle",
        [ROOFLINE_LINK] = "link",
        [ROOFLINE_HOST] = "host overhead",
        [ROOFLINE_ARITHMETIC] = "arithmetic",
        [ROOFLINE_WEIGHTS] = "weight bandwidth",
        [ROOFLINE_KV] = "KV bandwidth",
    };
    return names[verdict];
}

const char *roofline_lever(enum roofline_phase phase, enum roofline_verdict verdict)
{
    static const char *const levers[ROOFLINE_PHASES][ROOFLINE_VERDICTS] = {
        [ROOFLINE_PREFILL] =
            {
                [ROOFLINE_IDLE] = "fewer nodes could prefill: baton role NODE decode",
                [ROOFLINE_LINK] = "a faster link, or int8 KV, which halves what is sent",
                [ROOFLINE_HOST] = "larger chunks: --chunk-tokens",
                [ROOFLINE_ARITHMETIC] = "more nodes that prefill, or compute int8 where it is f32",
                [ROOFLINE_WEIGHTS] =
                    "larger chunks, so that weights are read for more rows at once",
                [ROOFLINE_KV] = "int8 KV, which halves what long prompts read",
            },
        [ROOFLINE_DECODE] =
            {
                [ROOFLINE_IDLE] = "fewer nodes could decode: baton role NODE prefill",
                [ROOFLINE_LINK] = "a faster link, or int8 KV, which halves what is received",
                [ROOFLINE_HOST] = "fewer streams a node, or a processor left to its loop: --cpus",
                [ROOFLINE_ARITHMETIC] = "more nodes that decode: a larger batch gains nothing here",
                [ROOFLINE_WEIGHTS] = "a larger batch: more sequences a node for the same reading",
                [ROOFLINE_KV] = "int8 KV, or more nodes that decode: every sequence reads its own",
            },
    };
    return levers[phase][verdict];
}

/* --- a node beside itself --- */

enum { RATE_COLD = 4, RATE_FIRST = 16, RATE_LOOKS = 2 };
static const double rate_fell = 0.8, rate_rose = 0.9;
/* Less than so many seconds of steps in the window say nothing. */
static const double rate_evidence = 0.25;

/* The bits of a number, at most `most`. */
static uint32_t magnitude(uint64_t number, uint32_t most)
{
    uint32_t bits = number ? 64 - (uint32_t)__builtin_clzll(number) : 0;
    return bits < most ? bits : most;
}

void roofline_rate_add(struct roofline_rate *rate, enum roofline_phase phase,
                       const struct roofline_step *step, double seconds, struct roofline_cost cost)
{
    uint64_t rows = (uint64_t)step->prompt_rows + step->decode_rows;
    if (!rows || seconds <= 0)
        return;
    struct roofline_kind *kind =
        &rate->kinds[phase][magnitude(rows, ROOFLINE_RATE_ROWS - 1)]
                    [magnitude(step->pairs / rows, 2 * ROOFLINE_RATE_CONTEXTS - 1) / 2];
    double least = roofline_least(cost);
    if (kind->steps < RATE_COLD + RATE_FIRST) {
        if (kind->steps++ >= RATE_COLD) {
            kind->least += least;
            kind->seconds += seconds;
        }
        return;
    }
    rate->expected += kind->seconds / kind->least * least;
    rate->seconds += seconds;
}

double roofline_rate_share(const struct roofline_rate *rate)
{
    return rate->seconds >= rate_evidence ? rate->expected / rate->seconds : 0;
}

enum roofline_change roofline_rate_look(struct roofline_rate *rate)
{
    double share = roofline_rate_share(rate);
    enum roofline_change change = ROOFLINE_SAME;
    bool other = share > 0 && (rate->slow ? share >= rate_rose : share < rate_fell);
    rate->looks = other ? rate->looks + 1 : 0;
    if (rate->looks == RATE_LOOKS) {
        change = rate->slow ? ROOFLINE_ROSE : ROOFLINE_FELL;
        rate->slow = !rate->slow;
        rate->looks = 0;
    }
    rate->expected /= 2;
    rate->seconds /= 2;
    return change;
}
