/* See sampler.h.
 *
 * Candidates are ordered by (logit after all changes, descending; id, ascending): a total order, so there is one result. It is made
 * no further than a draw looks, because sorting a row would take a sixth of a decode step of 32 rows. Sums that decide something are
 * integers, so they have no order, and what lies above a place in the order can be added up without being sorted:
 *
 *     greedy         the first of the maxima of each 64 that is the greatest
 *     top_k, min_p   only runs of 64 are looked at whose maximum lies above a value that enough of the maxima reach, or that min_p allows:
 *                    what lies above it is taken out of the row, a part of it
 *     top_p          the same, above a value that a sample of the row says few will reach, beside adding up the whole row; the draw falls
 *                    into that part unless the sample misled. So does a top_k that is too large for the maxima
 *     top_k up to 64 of a row without such a part: the best, from one pass
 *     larger top_k   a count of each bucket of values; what lies in the buckets down to the last one is sorted
 *     top_p alone    a sum of each bucket; the one bucket in which top_p is passed is sorted, and the one in which the draw falls
 *     none           a sum of each 256 ids; the 256 in which the draw falls are walked through again
 *
 * The maxima come from the output head, which has the logits in registers. What a row's changes touch is looked at again. The exponentials
 * of the log-probabilities go along with those of the weights where both are added up, a block of the row at a time.
 *
 * See docs/NUMERICS.md, "Sampling", for the definition, which knows no buckets. */
#include "kernels/cpu/sampler.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/mathf.h"
#include "kernels/cpu/philox.h"

enum { BEST_MAX = 64, BLOCK = 4096 };

struct cpu_sampler {
    uint32_t vocab, run_count; /* runs of CPU_SAMPLER_RUN */
    uint32_t
        *counts; /* [vocab] times in the answer, PROMPT_BIT if in the prompt; zero between rows */
    float *raw;  /* [vocab] the raw logits of what changes, when log-probabilities are asked for */
    float *few;  /* [vocab] the values of a part of the order */
    float *part_values; /* [vocab]: a part of the row */
    uint32_t *part_ids;
    float *maxima; /* [run_count] where the caller has none */
    float *picked_values;
    uint32_t *picked; /* [run_count] runs that are looked at, and their maxima */
    uint64_t *sums;   /* [vocab / CPU_SAMPLER_SUM, rounded up] */
    uint64_t *order;  /* [vocab + BEST_MAX] keys, best first: a part of the order */
    uint64_t *spare;  /* [vocab] */
    uint32_t *units;  /* [vocab] of a part of the order */
    uint16_t *places; /* [vocab] buckets */
    uint64_t buckets[CPU_SAMPLER_BUCKETS];
};

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
    sampler->sums = calloc(count / CPU_SAMPLER_SUM + 1, sizeof *sampler->sums);
    sampler->order = calloc(count + BEST_MAX, sizeof *sampler->order);
    sampler->spare = calloc(count, sizeof *sampler->spare);
    sampler->units = calloc(count, sizeof *sampler->units);
    sampler->places = calloc(count, sizeof *sampler->places);
    if (!sampler->counts || !sampler->raw || !sampler->few || !sampler->sums || !sampler->order ||
        !sampler->spare || !sampler->units || !sampler->places || !sampler->part_values ||
        !sampler->part_ids || !sampler->maxima || !sampler->picked_values || !sampler->picked) {
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
    free(sampler->sums);
    free(sampler->order);
    free(sampler->spare);
    free(sampler->units);
    free(sampler->places);
    free(sampler);
}

/* Sorts by the upper halves, the values, descending; keys come in order of id and equal values keep it. What lies in one bucket
 * has most digits in common: these cost a count alone. */
static void keys_sort(uint64_t *keys, uint64_t *spare, uint32_t count)
{
    enum { DIGIT = 8, DIGITS = 1 << DIGIT, PASSES = 4 };
    uint32_t starts[PASSES][DIGITS];
    uint64_t *from = keys, *to = spare;
    memset(starts, 0, sizeof starts);
    for (uint32_t i = 0; i < count; i++)
        for (int pass = 0; pass < PASSES; pass++)
            starts[pass][~(keys[i] >> (32 + pass * DIGIT)) & (DIGITS - 1)]++;
    for (int pass = 0; pass < PASSES; pass++) {
        int shift = 32 + pass * DIGIT;
        if (count == 0 || starts[pass][~(keys[0] >> shift) & (DIGITS - 1)] == count)
            continue;
        uint32_t at = 0;
        for (int digit = 0; digit < DIGITS; digit++) {
            uint32_t here = starts[pass][digit];
            starts[pass][digit] = at;
            at += here;
        }
        for (uint32_t i = 0; i < count; i++)
            to[starts[pass][~(from[i] >> shift) & (DIGITS - 1)]++] = from[i];
        uint64_t *other = from;
        from = to;
        to = other;
    }
    if (from != keys)
        memcpy(keys, from, count * sizeof *keys);
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

/* What a draw is made of. */
struct draw {
    const struct kern_sampling *how;
    const struct cpu_sampler_loops *loops;
    const float *values; /* [count] of the row, or of a part of it */
    const uint32_t *ids; /* [count] NULL: the places */
    const float *maxima; /* of each CPU_SAMPLER_RUN of the row; NULL: a part */
    uint32_t count;
    struct cpu_sampler_scale scale;
    uint32_t best_at; /* a place of the row near its best */
    uint64_t u;       /* [0, 2^53) */
    float *partial; /* NULL, or the sums of exponentials, which go along with a pass over the row */
    bool *passed;   /* … and whether they have */
};

/* The units of the row from `at` on, a block. `sum`, and what it returns: up to there. */
static uint64_t pass_block(struct cpu_sampler *sampler, const struct draw *draw,
                           const struct cpu_sampler_scale *scale, uint32_t at, uint32_t each,
                           uint64_t sum)
{
    if (draw->partial)
        draw->loops->exp_add(draw->values + at, each, scale->max, draw->partial);
    return draw->loops->runs(draw->values + at, draw->maxima + at / CPU_SAMPLER_RUN, each, scale,
                             sum, sampler->sums + at / CPU_SAMPLER_SUM);
}

static uint32_t block_at(const struct draw *draw, uint32_t at)
{
    return draw->count - at < BLOCK ? draw->count - at : BLOCK;
}

/* The first whose running sum exceeds this is drawn from what adds up to `sum`: sum > u * whole. */
static uint64_t target_of(const struct draw *draw, uint64_t sum)
{
    return (uint64_t)((unsigned __int128)draw->u * sum >> 53);
}

/* What the running sum must reach: the least integer that is at least top_p * total. At least 1, so that the best stays. */
static uint64_t enough_of(const struct draw *draw, uint64_t total)
{
    enum { BITS = 40 };
    uint64_t top_p = (uint64_t)((double)draw->how->top_p * 0x1p40);
    unsigned __int128 product = (unsigned __int128)top_p * total + ((UINT64_C(1) << BITS) - 1);
    uint64_t enough = (uint64_t)(product >> BITS);
    return enough ? enough : 1;
}

static uint32_t id_of(const struct draw *draw, uint64_t key)
{
    uint32_t place = cpu_sampler_key_id(key);
    return draw->ids ? draw->ids[place] : place;
}

/* The first bucket in which the running sum reaches `enough`; the last one where none does. */
static uint32_t bucket_reaching(const uint64_t *buckets, uint64_t enough)
{
    uint32_t i = 0;
    for (uint64_t sum = buckets[0]; sum < enough && i < CPU_SAMPLER_BUCKETS - 1; sum += buckets[i])
        i++;
    return i;
}

/* How far below the best, in exponents, top_k or top_p will look, by a sample of the row without its best, which would count many times
 * there; some more, because it is a sample. False: there are many. */
static bool reach_guess(struct cpu_sampler *sampler, const struct draw *draw, float *reach_out)
{
    enum {
        RUNS = 32,
        EACH_LEAST = 32,
        LEAST = 8 * EACH_LEAST * CPU_SAMPLER_RUN,
        FEW = 10,
        SOME = 4
    };
    const uint32_t spread = draw->count / (RUNS * CPU_SAMPLER_RUN),
                   each = spread > EACH_LEAST ? spread : EACH_LEAST;
    const struct kern_sampling *how = draw->how;
    bool by_count = how->top_k && how->top_k < draw->count;
    const float *row = draw->values;
    struct cpu_sampler_scale all = draw->scale;
    uint32_t count = 0, above = 0, first = (draw->best_at / CPU_SAMPLER_RUN + 1) % each;
    if (draw->count < LEAST)
        return false;
    for (uint32_t i = first * CPU_SAMPLER_RUN; i + CPU_SAMPLER_RUN <= draw->count;
         i += each * CPU_SAMPLER_RUN) {
        memcpy(sampler->few + count, row + i, CPU_SAMPLER_RUN * sizeof *row);
        count += CPU_SAMPLER_RUN;
    }
    all.min_p = 0;
    uint64_t rest = draw->loops->buckets(sampler->few, count, &all, by_count, sampler->places,
                                         sampler->buckets),
             best = UINT64_C(1) << CPU_SAMPLER_UNIT_BITS, enough = how->top_k;
    if (by_count) {
        enough = enough * 3 / (2 * each) + SOME;
    } else { /* halfway between top_p and all */
        uint64_t total = best + each * rest;
        enough = enough_of(draw, total);
        enough += (total - enough) / 2;
        enough = enough > best ? (enough - best) / each : 0;
    }
    uint32_t bucket = bucket_reaching(sampler->buckets, enough);
    for (uint32_t i = 0; i < count; i++)
        above += sampler->places[i] <= bucket;
    *reach_out = (float)(bucket + 1) / -draw->scale.per;
    return bucket < CPU_SAMPLER_BUCKETS - 1 && above < count / FEW;
}

/* A value that everything reaches that lies no further than `reach`, in exponents, below the best. */
static float least_of(const struct draw *draw, float reach)
{
    float least = draw->scale.max - reach / draw->scale.inverse;
    return least - fabsf(least) * 0x1p-22f; /* whatever was rounded: not above it */
}

/* In exponents below the best: what is further weighs less than min_p, surely: an exponential may be a bit too large. */
static float farthest_of(const struct draw *draw)
{
    const float surely = 0.01f;
    return draw->scale.min_p > 0 ? surely - mathf_log(draw->scale.min_p) : FLT_MAX;
}

/* Buckets that reach so far below the best. */
static float per_of(float reach)
{
    const float most = 1e30f, least = (float)(CPU_SAMPLER_BUCKETS - 1) / most;
    return reach > least ? -(float)(CPU_SAMPLER_BUCKETS - 1) / reach : -most; /* also of -0 */
}

/* The runs of `each` values from `at` on, whose maximum is `least` or more, into sampler->picked; how many. */
static uint32_t runs_pick(struct cpu_sampler *sampler, const struct draw *draw, uint32_t at,
                          uint32_t each, float least)
{
    uint32_t first = at / CPU_SAMPLER_RUN, count = (each + CPU_SAMPLER_RUN - 1) / CPU_SAMPLER_RUN;
    return draw->loops->above(draw->maxima + first, count, first, least, sampler->picked_values,
                              sampler->picked);
}

/* Appends what is `least` or more of the runs picked to the part, which has `have`; how many it has then. */
static uint32_t part_append(struct cpu_sampler *sampler, const struct draw *draw, uint32_t runs,
                            float least, uint32_t have)
{
    return have + draw->loops->gather(draw->values, draw->count, sampler->picked, runs, least,
                                      sampler->part_values + have, sampler->part_ids + have);
}

static void part_fill(struct cpu_sampler *sampler, const struct draw *draw, float least,
                      uint32_t count, struct draw *part_out)
{
    *part_out = *draw;
    part_out->values = sampler->part_values;
    part_out->ids = sampler->part_ids;
    part_out->maxima = NULL;
    part_out->count = count;
    part_out->scale.per = per_of(-cpu_sampler_exponent(&draw->scale, least));
}

/* A draw among what is `least` or more. */
static void part_pick(struct cpu_sampler *sampler, const struct draw *draw, float least,
                      struct draw *part_out)
{
    uint32_t runs = runs_pick(sampler, draw, 0, draw->count, least);
    part_fill(sampler, draw, least, part_append(sampler, draw, runs, least, 0), part_out);
}

/* The same, and the units of the whole row, in one pass over it. */
static void part_take(struct cpu_sampler *sampler, const struct draw *draw, float least,
                      struct draw *part_out, uint64_t *total_out)
{
    struct cpu_sampler_scale all = draw->scale;
    uint32_t have = 0;
    uint64_t total = 0;
    all.min_p = 0;
    for (uint32_t at = 0; at < draw->count; at += BLOCK) { /* what is in the first cache again */
        uint32_t each = block_at(draw, at);
        total = pass_block(sampler, draw, &all, at, each, total);
        have = part_append(sampler, draw, runs_pick(sampler, draw, at, each, least), least, have);
    }
    *draw->passed = true;
    part_fill(sampler, draw, least, have, part_out);
    *total_out = total;
}

/* Among all, in order of id. */
static uint32_t draw_all(struct cpu_sampler *sampler, const struct draw *draw)
{
    uint32_t run = 0, id = 0, units[CPU_SAMPLER_SUM];
    uint64_t total = 0;
    for (uint32_t at = 0; at < draw->count; at += BLOCK)
        total = pass_block(sampler, draw, &draw->scale, at, block_at(draw, at), total);
    *draw->passed = true;
    uint64_t target = target_of(draw, total);
    while (sampler->sums[run] <= target) /* the last is the total, which is more */
        run++;
    uint64_t sum = run ? sampler->sums[run - 1] : 0;
    uint32_t begin = run * CPU_SAMPLER_SUM,
             count = draw->count - begin < CPU_SAMPLER_SUM ? draw->count - begin : CPU_SAMPLER_SUM;
    draw->loops->units(draw->values + begin, count, &draw->scale, units);
    while ((sum += units[id]) <= target)
        id++;
    return begin + id;
}

/* The same among what weighs min_p or more. */
static uint32_t draw_min_p(struct cpu_sampler *sampler, const struct draw *whole)
{
    struct draw part;
    uint64_t total = 0, sum = 0;
    uint32_t i = 0;
    part_pick(sampler, whole, least_of(whole, farthest_of(whole)), &part);
    part.loops->units(part.values, part.count, &part.scale, sampler->units);
    for (uint32_t k = 0; k < part.count; k++)
        total += sampler->units[k];
    uint64_t target = target_of(&part, total);
    while ((sum += sampler->units[i]) <= target)
        i++;
    return part.ids[i];
}

/* The first of the `wanted` best in sampler->order; there are as many. */
static void order_best(struct cpu_sampler *sampler, const struct draw *draw, uint32_t wanted)
{
    if (wanted <= BEST_MAX) {
        draw->loops->best(draw->values, draw->count, wanted, sampler->order);
        return;
    }
    draw->loops->buckets(draw->values, draw->count, &draw->scale, true, sampler->places,
                         sampler->buckets);
    uint32_t last = 0;
    for (uint64_t have = sampler->buckets[0]; have < wanted; have += sampler->buckets[last])
        last++;
    uint32_t count =
        draw->loops->collect(draw->values, draw->count, sampler->places, 0, last, sampler->order);
    keys_sort(sampler->order, sampler->spare, count);
}

/* The units of the first `count` of sampler->order into sampler->units. */
static void order_units(struct cpu_sampler *sampler, const struct draw *draw, uint32_t count,
                        const struct cpu_sampler_scale *scale)
{
    for (uint32_t i = 0; i < count; i++)
        sampler->few[i] = draw->values[cpu_sampler_key_id(sampler->order[i])];
    draw->loops->units(sampler->few, count, scale, sampler->units);
}

static bool least_by_guess(struct cpu_sampler *sampler, const struct draw *draw, float *least_out)
{
    float reach;
    if (!reach_guess(sampler, draw, &reach))
        return false;
    *least_out = least_of(draw, reach);
    return true;
}

/* A value that `wanted` values or more reach, because as many runs' maxima do. False: they are too few for that. */
static bool least_by_maxima(struct cpu_sampler *sampler, const struct draw *draw, uint32_t wanted,
                            float *least_out)
{
    uint32_t bucket = 0;
    if (wanted > sampler->run_count / 8)
        return false;
    if (wanted <= BEST_MAX) {
        draw->loops->best(draw->maxima, sampler->run_count, wanted, sampler->order);
        *least_out = cpu_sampler_key_value(sampler->order[wanted - 1]);
        return true;
    }
    draw->loops->buckets(draw->maxima, sampler->run_count, &draw->scale, true, sampler->places,
                         sampler->buckets);
    bucket = bucket_reaching(sampler->buckets, wanted);
    *least_out = least_of(draw, (float)(bucket + 1) / -draw->scale.per);
    return bucket < CPU_SAMPLER_BUCKETS - 1;
}

/* Among the top_k best: top_p, of what weighs min_p or more; in descending order. */
static uint32_t draw_top_k(struct cpu_sampler *sampler, const struct draw *whole)
{
    const uint32_t limit = whole->how->top_k;
    const uint32_t *units = sampler->units;
    const struct draw *draw = whole;
    struct draw part;
    float least;
    if (least_by_maxima(sampler, whole, limit, &least) || least_by_guess(sampler, whole, &least)) {
        part_pick(sampler, whole, least, &part);
        draw = part.count >= limit ? &part : whole;
    }
    struct cpu_sampler_scale all = draw->scale;
    uint64_t total = 0, sum = 0, reached = 0;
    uint32_t at = 0;
    all.min_p = 0;
    order_best(sampler, draw, limit);
    order_units(sampler, draw, limit, &all);
    for (uint32_t i = 0; i < limit; i++)
        total += units[i];
    uint64_t enough = draw->how->top_p < 1.0f ? enough_of(draw, total) : total;
    if (draw->scale.min_p > 0)
        order_units(sampler, draw, limit, &draw->scale);
    for (uint32_t i = 0; i < limit && sum < enough; i++)
        sum += units[i];
    uint64_t target = target_of(draw, sum);
    while ((reached += units[at]) <= target)
        at++;
    return id_of(draw, sampler->order[at]);
}

/* The first in the order whose running sum, of what weighs min_p or more, exceeds the target, and that sum. There is one. */
static uint32_t order_find(struct cpu_sampler *sampler, const struct draw *draw, uint64_t target,
                           uint64_t *sum_out)
{
    uint64_t sum = 0;
    uint32_t bucket = 0, at = 0;
    while (sum + sampler->buckets[bucket] <= target)
        sum += sampler->buckets[bucket++];
    uint32_t count = draw->loops->collect(draw->values, draw->count, sampler->places, bucket,
                                          bucket, sampler->order);
    keys_sort(sampler->order, sampler->spare, count);
    order_units(sampler, draw, count, &draw->scale);
    while ((sum += sampler->units[at]) <= target)
        at++;
    assert(at < count);
    *sum_out = sum;
    return id_of(draw, sampler->order[at]);
}

/* Among all: top_p, of what weighs min_p or more; in descending order. */
static uint32_t draw_top_p(struct cpu_sampler *sampler, const struct draw *whole)
{
    const float farthest = farthest_of(whole);
    const struct draw *draw = whole;
    struct draw part;
    uint64_t sum = 0, reached, enough = 1, total;
    float reach;
    if (!reach_guess(sampler, whole, &reach) || reach > farthest)
        reach = farthest;
    if (reach < FLT_MAX) {
        part_take(sampler, whole, least_of(whole, reach), &part, &total);
        draw = &part;
        enough = enough_of(draw, total);
        draw->loops->buckets(draw->values, draw->count, &draw->scale, false, sampler->places,
                             sampler->buckets);
        for (uint32_t i = 0; i < CPU_SAMPLER_BUCKETS; i++)
            sum += sampler->buckets[i];
    }
    /* no part, or not enough in it and more outside */
    if (sum < enough && (draw == whole || reach < farthest)) {
        draw = whole;
        sum = 0;
        enough = enough_of(draw, draw->loops->buckets(draw->values, draw->count, &draw->scale,
                                                      false, sampler->places, sampler->buckets));
        for (uint32_t i = 0; i < CPU_SAMPLER_BUCKETS; i++)
            sum += sampler->buckets[i];
    }
    if (sum > enough)
        order_find(sampler, draw, enough - 1, &sum);
    return order_find(sampler, draw, target_of(draw, sum), &reached);
}

/* Buckets reach down to e^-16 of the best, or to where most maxima end: what is below has so little weight that few draws look so far.
 * look: over the maxima. */
static struct cpu_sampler_scale scale_of(const struct kern_sampling *how,
                                         const struct cpu_sampler_look *look)
{
    const float range = 16.0f, further = 3, inverse = 1 / how->temperature;
    struct cpu_sampler_scale scale = {.max = look->max, .min_p = how->min_p};
    scale.inverse = inverse < FLT_MAX ? inverse : FLT_MAX; /* 0 times it is 0 */
    float wide = -cpu_sampler_exponent(&scale, look->min) * further;
    scale.per = per_of(wide < range ? wide : range);
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
    if (least_by_maxima(sampler, row, wanted, &least)) {
        part_pick(sampler, row, least, &part);
        draw = &part;
    }
    out->top_count = draw->loops->best(draw->values, draw->count, wanted, best);
    for (uint32_t i = 0; i < out->top_count; i++) {
        out->top_ids[i] = id_of(draw, best[i]);
        out->top_logprobs[i] = logprob_of(norm, row->values[out->top_ids[i]]);
    }
}

/* The log-probabilities of the raw logits, but for the token's, which is not known yet or to be changed. `partial`: the exponentials'
 * sums if they are there. */
static struct log_softmax logprobs_fill(struct cpu_sampler *sampler, const struct draw *row,
                                        float *partial, struct kern_sample_out *out)
{
    float sums[16] = {0};
    struct log_softmax norm = {.max = row->scale.max};
    if (!partial) {
        row->loops->exp_add(row->values, row->count, norm.max, sums);
        partial = sums;
    }
    norm.log_sum = mathf_log(tree_sum(partial));
    top_fill(sampler, row, &norm, (uint32_t)row->how->logprobs, out);
    return norm;
}

static uint32_t draw_by(struct cpu_sampler *sampler, const struct draw *draw)
{
    const struct kern_sampling *how = draw->how;
    if (how->top_k && how->top_k < draw->count)
        return draw_top_k(sampler, draw);
    if (how->top_p < 1.0f)
        return draw_top_p(sampler, draw);
    return how->min_p > 0 ? draw_min_p(sampler, draw) : draw_all(sampler, draw);
}

void cpu_sampler_row(struct cpu_sampler *sampler, enum cpu_isa_level isa,
                     const struct kern_sample *sample, int64_t extra, float *logits, float *maxima,
                     struct kern_sample_out *out)
{
    const struct cpu_sampler_loops *loops = loops_of(isa);
    const struct kern_sampling *how = sample->sampling;
    struct cpu_sampler_look look;
    float partial[16] = {0};
    bool passed = false;
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
                        .passed = &passed};
    const uint32_t touched = touched_count(sample, extra);
    const bool logprobs = how->logprobs >= 0;
    struct log_softmax norm = {0};
    if (touched) {
        for (uint32_t i = 0; logprobs && i < touched; i++) {
            uint32_t id = touched_id(sample, extra, i);
            sampler->raw[id] = logits[id];
        }
        if (logprobs)
            norm = logprobs_fill(sampler, &draw, NULL, out);
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
        double u = philox_uniform(how->seed, how->n_index, kern_sample_position(sample), 0);
        draw.best_at = look.at * CPU_SAMPLER_RUN;
        draw.scale = scale_of(how, &look);
        draw.u = (uint64_t)(u * 0x1p53);
        draw.partial = logprobs && !touched ? partial : NULL;
        out->token = draw_by(sampler, &draw);
    }
    if (!logprobs)
        return;
    if (!touched)
        norm = logprobs_fill(sampler, &draw, passed ? partial : NULL, out);
    out->logprob = logprob_of(&norm, touched ? raw_of(sampler, sample, extra, logits, out->token)
                                             : logits[out->token]);
}
