/* See sampler.h.
 *
 * Candidates are ordered by (logit after all changes, descending; id, ascending): a total order, so there is one result. It is made
 * no further than a draw looks, because sorting a row would take a sixth of a decode step of 32 rows. Sums that decide something are
 * integers, so they have no order.
 *
 *     greedy              the first of the maxima of each 64 that is the greatest
 *     temperature, min_p  proposals: a run of 64 by its maximum, one of the 64, and whether it weighs enough. One in 64 is taken at
 *                         least, so that of the row's exponentials next to none is needed
 *     top_p               the same, until one is proposed that lies within: whether it does is seen from what runs weigh whose maximum
 *                         comes before it, or else from what the whole row weighs
 *     top_k               only runs of 64 are looked at whose maximum lies above a value that enough of the maxima reach, or that a
 *                         sample of the row says few will reach: what lies above it is taken out of the row, a part of it. Of a row
 *                         without such a part the best 64 come from one pass; for more, buckets of values are counted and those down
 *                         to the last needed sorted
 *
 * The maxima come from the output head, which has the logits in registers. What a row's changes touch is looked at again.
 *
 * See docs/NUMERICS.md, "Sampling", for the definition, which knows no buckets. */
#include "kernels/cpu/sampler_internal.h"

#include <assert.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_BIT UINT32_C(0x80000000)

enum status cpu_sampler_create(uint32_t vocab, struct cpu_sampler **sampler_out)
{
    assert(vocab <= CPU_SAMPLER_VOCAB_MAX);
    struct cpu_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        return STATUS_MEMORY;
    size_t count = vocab ? vocab : 1;
    sampler->vocab = vocab;
    sampler->run_count = (uint32_t)(count + CPU_SAMPLER_RUN - 1) / CPU_SAMPLER_RUN;
    sampler->counts = calloc(count, sizeof *sampler->counts);
    sampler->raw = calloc(count, sizeof *sampler->raw);
    sampler->few = calloc(count, sizeof *sampler->few);
    sampler->part_values = calloc(count + CPU_SAMPLER_SPARE, sizeof *sampler->part_values);
    sampler->part_ids = calloc(count + CPU_SAMPLER_SPARE, sizeof *sampler->part_ids);
    sampler->maxima = calloc(sampler->run_count, sizeof *sampler->maxima);
    sampler->picked_values =
        calloc(sampler->run_count + CPU_SAMPLER_SPARE, sizeof *sampler->picked_values);
    sampler->picked = calloc(sampler->run_count + CPU_SAMPLER_SPARE, sizeof *sampler->picked);
    sampler->others = calloc(sampler->run_count + CPU_SAMPLER_SPARE, sizeof *sampler->others);
    sampler->bounds = calloc(sampler->run_count, sizeof *sampler->bounds);
    sampler->sums = calloc(sampler->run_count, sizeof *sampler->sums);
    sampler->order = calloc(count + SAMPLER_BEST_MAX, sizeof *sampler->order);
    sampler->spare = calloc(count, sizeof *sampler->spare);
    sampler->units = calloc(count, sizeof *sampler->units);
    sampler->places = calloc(count, sizeof *sampler->places);
    if (!sampler->counts || !sampler->raw || !sampler->few || !sampler->sums || !sampler->order ||
        !sampler->spare || !sampler->units || !sampler->places || !sampler->part_values ||
        !sampler->part_ids || !sampler->maxima || !sampler->picked_values || !sampler->picked ||
        !sampler->others || !sampler->bounds) {
        cpu_sampler_destroy(sampler);
        return STATUS_MEMORY;
    }
    *sampler_out = sampler;
    return STATUS_OK;
}

void cpu_sampler_destroy(struct cpu_sampler *sampler)
{
    if (!sampler)
        return;
    free(sampler->counts);
    free(sampler->raw);
    free(sampler->few);
    free(sampler->part_values);
    free(sampler->part_ids);
    free(sampler->maxima);
    free(sampler->picked_values);
    free(sampler->picked);
    free(sampler->others);
    free(sampler->bounds);
    free(sampler->sums);
    free(sampler->order);
    free(sampler->spare);
    free(sampler->units);
    free(sampler->places);
    free(sampler);
}

/* --- log-probabilities of the raw logits --- */

struct log_softmax {
    float max, log_sum;
};

static float logprob_of(const struct log_softmax *norm, float logit)
{
    return (logit - norm->max) - norm->log_sum;
}

/* The sum of exponentials, which are 16 partial ones by id, is their tree. */
static float tree_sum(float partial[16])
{
    for (int half = 8; half >= 1; half /= 2)
        for (int lane = 0; lane < half; lane++)
            partial[lane] = partial[lane] + partial[lane + half];
    return partial[0];
}

/* --- changes of the logits --- */

static void penalise(struct cpu_sampler *sampler, const struct kern_sampling *sampling, uint32_t id,
                     float *logits)
{
    uint32_t count = sampler->counts[id] & ~PROMPT_BIT;
    if (!sampler->counts[id])
        return;
    float logit = logits[id];
    logit = logit > 0 ? logit / sampling->repetition_penalty : logit * sampling->repetition_penalty;
    if (count) {
        logit = logit - sampling->frequency_penalty * (float)count;
        logit = logit - sampling->presence_penalty;
    }
    logits[id] = logit;
    sampler->counts[id] = 0; /* each id once; also leaves the table clean */
}

static bool penalises(const struct kern_sampling *sampling)
{
    return sampling->repetition_penalty != 1.0f || sampling->presence_penalty != 0.0f ||
           sampling->frequency_penalty != 0.0f;
}

static void penalties_apply(struct cpu_sampler *sampler, const struct kern_sample *sample,
                            int64_t extra, float *logits)
{
    const struct kern_sampling *sampling = sample->sampling;
    uint32_t *counts = sampler->counts;
    for (uint32_t i = 0; i < sampling->prompt_count; i++)
        counts[sampling->prompt[i]] |= PROMPT_BIT;
    for (uint32_t i = 0; i < sample->generated_count; i++)
        counts[sampling->generated[i]]++;
    if (extra >= 0)
        counts[extra]++;
    for (uint32_t i = 0; i < sampling->prompt_count; i++)
        penalise(sampler, sampling, sampling->prompt[i], logits);
    for (uint32_t i = 0; i < sample->generated_count; i++)
        penalise(sampler, sampling, sampling->generated[i], logits);
    if (extra >= 0)
        penalise(sampler, sampling, (uint32_t)extra, logits);
}

/* How many ids a row's changes name, some of them more than once; 0: it has none. */
static uint32_t touched_count(const struct kern_sample *sample, int64_t extra)
{
    const struct kern_sampling *how = sample->sampling;
    return how->bias_count + (penalises(how) ? how->prompt_count + sample->generated_count +
                                                   (extra != CPU_SAMPLER_NO_EXTRA)
                                             : 0);
}

static uint32_t touched_id(const struct kern_sample *sample, int64_t extra, uint32_t i)
{
    const struct kern_sampling *how = sample->sampling;
    if (i < how->bias_count)
        return how->bias[i].token_id;
    i -= how->bias_count;
    if (i < how->prompt_count)
        return how->prompt[i];
    i -= how->prompt_count;
    return i < sample->generated_count ? how->generated[i] : (uint32_t)extra;
}

static void changes_apply(struct cpu_sampler *sampler, const struct kern_sample *sample,
                          int64_t extra, float *logits)
{
    const struct kern_sampling *how = sample->sampling;
    for (uint32_t i = 0; i < how->bias_count; i++)
        logits[how->bias[i].token_id] += how->bias[i].bias;
    if (penalises(how))
        penalties_apply(sampler, sample, extra, logits);
}

/* After changes, which may have left infinite values: a maximum all the same. */
static float run_maximum(const float *x, uint32_t count)
{
    enum { LANES = 8 };
    float lanes[LANES], most = x[0];
    if (count == CPU_SAMPLER_RUN) {
        memcpy(lanes, x, sizeof lanes);
        for (uint32_t i = LANES; i < CPU_SAMPLER_RUN; i += LANES)
            for (uint32_t j = 0; j < LANES; j++)
                lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
        x = lanes;
        count = LANES;
    }
    for (uint32_t i = 0; i < count; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

static void run_renew(const struct cpu_sampler *sampler, const float *logits, uint32_t run,
                      float *maxima)
{
    uint32_t begin = run * CPU_SAMPLER_RUN, rest = sampler->vocab - begin;
    maxima[run] = run_maximum(logits + begin, rest < CPU_SAMPLER_RUN ? rest : CPU_SAMPLER_RUN);
}

static void maxima_renew(const struct cpu_sampler *sampler, const struct kern_sample *sample,
                         int64_t extra, const float *logits, float *maxima)
{
    uint32_t count = touched_count(sample, extra);
    if (count < sampler->run_count)
        for (uint32_t i = 0; i < count; i++)
            run_renew(sampler, logits, touched_id(sample, extra, i) / CPU_SAMPLER_RUN, maxima);
    else
        for (uint32_t run = 0; run < sampler->run_count; run++)
            run_renew(sampler, logits, run, maxima);
}

static float raw_of(const struct cpu_sampler *sampler, const struct kern_sample *sample,
                    int64_t extra, const float *logits, uint32_t id)
{
    uint32_t count = touched_count(sample, extra);
    for (uint32_t i = 0; i < count; i++)
        if (touched_id(sample, extra, i) == id)
            return sampler->raw[id];
    return logits[id];
}

/* --- the draw --- */

/* look: over the maxima. */
static uint32_t greedy(const float *logits, const float *maxima,
                       const struct cpu_sampler_look *look)
{
    uint32_t run = look->at;
    while (maxima[run] != look->max) /* it is one of the next few */
        run++;
    uint32_t i = run * CPU_SAMPLER_RUN;
    while (logits[i] != look->max)
        i++;
    return i;
}

/* Buckets reach down to e^-16 of the best, or to where most maxima end: what is below has so little weight that few draws look so far.
 * look: over the maxima. */
static struct cpu_sampler_scale scale_of(const struct kern_sampling *how,
                                         const struct cpu_sampler_look *look)
{
    const float range = 16.0f, further = 3, inverse = 1 / how->temperature;
    struct cpu_sampler_scale scale = {.max = look->max, .least = cpu_sampler_least(how->min_p)};
    scale.inverse = inverse < FLT_MAX ? inverse : FLT_MAX; /* 0 times it is 0 */
    float rate = scale.inverse * MATHF_LOG2E;
    scale.rate = rate < FLT_MAX ? rate : FLT_MAX;
    float wide = -cpu_sampler_exponent(&scale, look->min) * further;
    scale.per = sampler_per(wide < range ? wide : range);
    return scale;
}

static const struct cpu_sampler_loops *loops_of(enum cpu_isa_level isa)
{
    if (isa == CPU_ISA_PLAIN)
        return &cpu_sampler_loops_plain;
#if defined(__x86_64__)
    return &cpu_sampler_loops_avx2; /* of all levels from there on */
#elif defined(__aarch64__)
    return &cpu_sampler_loops_neon;
#else
    return &cpu_sampler_loops_plain;
#endif
}

/* The k best of the row, and their log-probabilities. */
static void top_fill(struct cpu_sampler *sampler, const struct draw *row,
                     const struct log_softmax *norm, uint32_t wanted, struct kern_sample_out *out)
{
    uint64_t best[KERN_TOP_MAX];
    struct draw part;
    const struct draw *draw = row;
    float least;
    wanted = wanted < KERN_TOP_MAX ? wanted : KERN_TOP_MAX;
    if (wanted == 0)
        return;
    if (sampler_least_by_maxima(sampler, row, wanted, &least)) {
        sampler_part_pick(sampler, row, least, &part);
        draw = &part;
    }
    out->top_count = draw->loops->best(draw->values, draw->count, wanted, best);
    for (uint32_t i = 0; i < out->top_count; i++) {
        out->top_ids[i] = sampler_id(draw, best[i]);
        out->top_logprobs[i] = logprob_of(norm, row->values[out->top_ids[i]]);
    }
}

/* The log-probabilities of the raw logits, but for the token's, which is not known yet or to be changed. */
static struct log_softmax logprobs_fill(struct cpu_sampler *sampler, const struct draw *row,
                                        struct kern_sample_out *out)
{
    float partial[16] = {0};
    struct log_softmax norm = {.max = row->scale.max};
    row->loops->exp_add(row->values, row->count, norm.max, partial);
    norm.log_sum = mathf_log(tree_sum(partial));
    top_fill(sampler, row, &norm, (uint32_t)row->how->logprobs, out);
    return norm;
}

void cpu_sampler_row(struct cpu_sampler *sampler, enum cpu_isa_level isa,
                     const struct kern_sample *sample, int64_t extra, float *logits, float *maxima,
                     struct kern_sample_out *out)
{
    const struct cpu_sampler_loops *loops = loops_of(isa);
    const struct kern_sampling *how = sample->sampling;
    struct cpu_sampler_look look;
    out->token = 0;
    out->logprob = 0;
    out->top_count = 0;
    if (sample->logits_out)
        memcpy(sample->logits_out, logits, sampler->vocab * sizeof *logits);
    if (!maxima) {
        maxima = sampler->maxima;
        loops->maxima(logits, sampler->vocab, maxima);
    }
    loops->look(maxima, sampler->run_count, &look);
    out->finite = look.finite;
    if (!out->finite || !how)
        return;
    struct draw draw = {.how = how,
                        .loops = loops,
                        .values = logits,
                        .maxima = maxima,
                        .count = sampler->vocab,
                        .scale = {.max = look.max},
                        .position = kern_sample_position(sample)};
    const uint32_t touched = touched_count(sample, extra);
    const bool logprobs = how->logprobs >= 0;
    struct log_softmax norm = {0};
    for (uint32_t i = 0; logprobs && i < touched; i++) {
        uint32_t id = touched_id(sample, extra, i);
        sampler->raw[id] = logits[id];
    }
    if (logprobs)
        norm = logprobs_fill(sampler, &draw, out);
    if (touched) {
        changes_apply(sampler, sample, extra, logits);
        maxima_renew(sampler, sample, extra, logits, maxima);
        loops->look(maxima, sampler->run_count, &look);
        out->finite = mathf_is_finite(look.max); /* a penalty may overflow */
        if (!out->finite)
            return;
    }
    if (how->temperature == 0.0f) {
        out->token = greedy(logits, maxima, &look);
    } else {
        draw.best_at = look.at * CPU_SAMPLER_RUN;
        draw.scale = scale_of(how, &look);
        out->token = how->top_k && how->top_k < draw.count ? sampler_draw_top_k(sampler, &draw)
                                                           : sampler_draw_all(sampler, &draw);
    }
    if (logprobs)
        out->logprob =
            logprob_of(&norm, touched ? raw_of(sampler, sample, extra, logits, out->token)
                                      : logits[out->token]);
}
