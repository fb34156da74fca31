/* See sampler.h.
 *
 * Candidates are ordered by (logit after all changes, descending; id, ascending): a total order, so there is one result. It is made
 * no further than a draw looks, because sorting a row would take a sixth of a decode step of 32 rows. Sums that decide something are
 * integers, so they have no order, and what lies above a place in the order can be added up without being sorted:
 *
 *     top_k, top_p   what lies above a value that a sample of the row says few will reach is taken out of the row: a part of it, in which
 *                    the draw falls unless the sample misled
 *     top_k up to 64 of a row without such a part: the best, from one pass
 *     larger top_k   a count of each bucket of values; what lies in the buckets down to the last one is sorted
 *     top_p alone    a sum of each bucket; the one bucket in which top_p is passed is sorted, and the one in which the draw falls
 *     none           a sum of each 64 ids; the 64 in which the draw falls are walked through again
 *
 * See docs/NUMERICS.md, "Sampling", for the definition, which knows no buckets. */
#include "kernels/cpu/sampler.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/mathf.h"
#include "kernels/cpu/philox.h"

enum { BEST_MAX = 64, BLOCK = 4096 };

struct cpu_sampler {
    uint32_t vocab;
    uint32_t
        *counts; /* [vocab] times in the answer, PROMPT_BIT if in the prompt; zero between rows */
    float *raw;  /* [vocab] the raw logits, when log-probabilities are asked for and they change */
    float *few;  /* [vocab] the values of a part of the order */
    uint32_t part_max; /* [part_max]: a part of the row */
    float *part_values;
    uint32_t *part_ids;
    uint64_t *sums;   /* [vocab / CPU_SAMPLER_RUN, rounded up] */
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
    sampler->counts = calloc(count, sizeof *sampler->counts);
    sampler->raw = calloc(count, sizeof *sampler->raw);
    sampler->few = calloc(count, sizeof *sampler->few);
    sampler->part_max = vocab / 8 + BLOCK;
    size_t part = sampler->part_max + CPU_SAMPLER_SPARE;
    sampler->part_values = calloc(part, sizeof *sampler->part_values);
    sampler->part_ids = calloc(part, sizeof *sampler->part_ids);
    sampler->sums = calloc(count / CPU_SAMPLER_RUN + 1, sizeof *sampler->sums);
    sampler->order = calloc(count + BEST_MAX, sizeof *sampler->order);
    sampler->spare = calloc(count, sizeof *sampler->spare);
    sampler->units = calloc(count, sizeof *sampler->units);
    sampler->places = calloc(count, sizeof *sampler->places);
    if (!sampler->counts || !sampler->raw || !sampler->few || !sampler->sums || !sampler->order ||
        !sampler->spare || !sampler->units || !sampler->places || !sampler->part_values ||
        !sampler->part_ids) {
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

static void top_fill(const float *raw, uint32_t vocab, const struct cpu_sampler_loops *loops,
                     const struct log_softmax *norm, uint32_t count, struct kern_sample_out *out)
{
    uint64_t best[KERN_TOP_MAX];
    count = count < KERN_TOP_MAX ? count : KERN_TOP_MAX;
    out->top_count = loops->best(raw, vocab, count, best);
    for (uint32_t i = 0; i < out->top_count; i++) {
        out->top_ids[i] = cpu_sampler_key_id(best[i]);
        out->top_logprobs[i] = logprob_of(norm, raw[out->top_ids[i]]);
    }
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

/* --- the draw --- */

static uint32_t greedy(const float *logits, const struct cpu_sampler_look *look)
{
    uint32_t i = look->at;
    while (logits[i] != look->max) /* it is one of the next few */
        i++;
    return i;
}

/* What a draw is made of. */
struct draw {
    const struct kern_sampling *how;
    const struct cpu_sampler_loops *loops;
    const float *values; /* [count] of the row, or of a part of it */
    const uint32_t *ids; /* [count] NULL: the places */
    uint32_t count;
    struct cpu_sampler_scale scale;
    uint32_t best_at; /* a place of the row near its best, as in struct cpu_sampler_look */
    uint64_t u;       /* [0, 2^53) */
};

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

/* Among all, in order of id. */
static uint32_t draw_all(struct cpu_sampler *sampler, const struct draw *draw)
{
    uint32_t vocab = sampler->vocab, run = 0, id = 0;
    uint32_t units[CPU_SAMPLER_RUN];
    uint64_t total = draw->loops->runs(draw->values, vocab, &draw->scale, sampler->sums),
             target = target_of(draw, total);
    while (sampler->sums[run] <= target) /* the last is the total, which is more */
        run++;
    uint64_t sum = run ? sampler->sums[run - 1] : 0;
    uint32_t begin = run * CPU_SAMPLER_RUN,
             count = vocab - begin < CPU_SAMPLER_RUN ? vocab - begin : CPU_SAMPLER_RUN;
    draw->loops->units(draw->values + begin, count, &draw->scale, units);
    while ((sum += units[id]) <= target)
        id++;
    return begin + id;
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
    enum { EACH = 32, LEAST = 8 * EACH * CPU_SAMPLER_RUN, FEW = 10, SOME = 4 };
    const struct kern_sampling *how = draw->how;
    bool by_count = how->top_k && how->top_k < draw->count;
    const float *row = draw->values;
    struct cpu_sampler_scale all = draw->scale;
    uint32_t count = 0, above = 0, first = (draw->best_at / CPU_SAMPLER_RUN + 1) % EACH;
    if (draw->count < LEAST)
        return false;
    for (uint32_t i = first * CPU_SAMPLER_RUN; i + CPU_SAMPLER_RUN <= draw->count;
         i += EACH * CPU_SAMPLER_RUN) {
        memcpy(sampler->few + count, row + i, CPU_SAMPLER_RUN * sizeof *row);
        count += CPU_SAMPLER_RUN;
    }
    all.min_p = 0;
    uint64_t rest = draw->loops->buckets(sampler->few, count, &all, by_count, sampler->places,
                                         sampler->buckets),
             best = UINT64_C(1) << CPU_SAMPLER_UNIT_BITS, enough = how->top_k;
    if (by_count) {
        enough = enough * 3 / (2 * EACH) + SOME;
    } else { /* halfway between top_p and all */
        uint64_t total = best + EACH * rest;
        enough = enough_of(draw, total);
        enough += (total - enough) / 2;
        enough = enough > best ? (enough - best) / EACH : 0;
    }
    uint32_t bucket = bucket_reaching(sampler->buckets, enough);
    for (uint32_t i = 0; i < count; i++)
        above += sampler->places[i] <= bucket;
    *reach_out = (float)(bucket + 1) / -draw->scale.per;
    return bucket < CPU_SAMPLER_BUCKETS - 1 && above < count / FEW;
}

/* A draw among what lies no further than `reach` below the best. `total_out`, where it is wanted: the units of the whole row.
 * False: that is too much. */
static bool part_take(struct cpu_sampler *sampler, const struct draw *draw, float reach,
                      struct draw *part_out, uint64_t *total_out)
{
    struct cpu_sampler_scale all = draw->scale;
    float least = draw->scale.max - reach / draw->scale.inverse;
    least -= fabsf(least) * 0x1p-22f; /* whatever was rounded: not above it */
    uint32_t have = 0, each;
    uint64_t total = 0;
    all.min_p = 0;
    for (uint32_t at = 0; at < draw->count;
         at += each) { /* twice over what is in the first cache */
        each = draw->count - at < BLOCK ? draw->count - at : BLOCK;
        if (have + each > sampler->part_max)
            return false;
        if (total_out)
            total += draw->loops->runs(draw->values + at, each, &all, sampler->sums);
        have += draw->loops->above(draw->values + at, each, at, least, sampler->part_values + have,
                                   sampler->part_ids + have);
    }
    *part_out = *draw;
    part_out->values = sampler->part_values;
    part_out->ids = sampler->part_ids;
    part_out->count = have;
    part_out->scale.per = -(float)(CPU_SAMPLER_BUCKETS - 1) / reach;
    if (total_out)
        *total_out = total;
    return true;
}

/* The first of the `wanted` best in sampler->order; there are as many. */
static void order_best(struct cpu_sampler *sampler, const struct draw *draw, uint32_t wanted)
{
    if (wanted <= BEST_MAX && !draw->ids) {
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

/* Among the top_k best: top_p, of what weighs min_p or more; in descending order. */
static uint32_t draw_top_k(struct cpu_sampler *sampler, const struct draw *whole)
{
    const uint32_t limit = whole->how->top_k;
    const uint32_t *units = sampler->units;
    const struct draw *draw = whole;
    struct draw part;
    float reach;
    if (reach_guess(sampler, whole, &reach) && part_take(sampler, whole, reach, &part, NULL) &&
        part.count >= limit)
        draw = &part;
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
    /* What is further below the best weighs less than min_p, surely: an exponential may be a bit too large. */
    const float surely = 0.01f, min_p = whole->scale.min_p,
                farthest = min_p > 0 ? surely - mathf_log(min_p) : FLT_MAX;
    const struct draw *draw = whole;
    struct draw part;
    uint64_t sum = 0, reached, enough = 1, total;
    float reach;
    if (!reach_guess(sampler, whole, &reach) || reach > farthest)
        reach = farthest;
    if (reach < FLT_MAX && part_take(sampler, whole, reach, &part, &total)) {
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

/* Buckets reach down to e^-16 of the best, or to the least: what is below has so little weight that few draws look so far. */
static struct cpu_sampler_scale scale_of(const struct kern_sampling *how,
                                         const struct cpu_sampler_look *look)
{
    const float range = 16.0f, per_max = 1e30f, inverse = 1 / how->temperature;
    struct cpu_sampler_scale scale = {.max = look->max, .min_p = how->min_p};
    scale.inverse = inverse < FLT_MAX ? inverse : FLT_MAX; /* 0 times it is 0 */
    float wide = -cpu_sampler_exponent(&scale, look->min);
    wide = wide < range ? wide : range;
    float per = (float)(CPU_SAMPLER_BUCKETS - 1) / wide; /* infinite when all are equal */
    scale.per = per < per_max ? -per : -per_max;
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

void cpu_sampler_row(struct cpu_sampler *sampler, enum cpu_isa_level isa,
                     const struct kern_sample *sample, int64_t extra, float *logits,
                     struct kern_sample_out *out)
{
    const struct cpu_sampler_loops *loops = loops_of(isa);
    const struct kern_sampling *sampling = sample->sampling;
    uint32_t vocab = sampler->vocab;
    const float *raw = logits;
    struct cpu_sampler_look look;
    out->token = 0;
    out->logprob = 0;
    out->top_count = 0;
    if (sample->logits_out)
        memcpy(sample->logits_out, logits, vocab * sizeof *logits);
    loops->look(logits, vocab, &look);
    out->finite = look.finite;
    if (!out->finite || !sampling)
        return;
    bool changes = sampling->bias_count || penalises(sampling);
    struct log_softmax norm = {0};
    if (sampling->logprobs >= 0) {
        norm.max = look.max;
        norm.log_sum = mathf_log(loops->exp_sum(logits, vocab, &look));
        if (changes)
            raw = memcpy(sampler->raw, logits, vocab * sizeof *logits);
        top_fill(raw, vocab, loops, &norm, (uint32_t)sampling->logprobs, out);
    }
    if (changes) {
        for (uint32_t i = 0; i < sampling->bias_count; i++)
            logits[sampling->bias[i].token_id] += sampling->bias[i].bias;
        if (penalises(sampling))
            penalties_apply(sampler, sample, extra, logits);
        loops->look(logits, vocab, &look);
        out->finite = mathf_is_finite(look.max); /* a penalty may overflow */
        if (!out->finite)
            return;
    }
    if (sampling->temperature == 0.0f) {
        out->token = greedy(logits, &look);
    } else {
        double u =
            philox_uniform(sampling->seed, sampling->n_index, kern_sample_position(sample), 0);
        struct draw draw = {.how = sampling,
                            .loops = loops,
                            .values = logits,
                            .count = vocab,
                            .best_at = look.at,
                            .scale = scale_of(sampling, &look),
                            .u = (uint64_t)(u * 0x1p53)};
        out->token = sampling->top_k && sampling->top_k < vocab ? draw_top_k(sampler, &draw)
                     : sampling->top_p < 1.0f                   ? draw_top_p(sampler, &draw)
                                                                : draw_all(sampler, &draw);
    }
    if (sampling->logprobs >= 0)
        out->logprob = logprob_of(&norm, raw[out->token]);
}

/* --- the operation --- */

struct sample_arguments {
    struct cpu_step *step;
    float *logits;
    uint32_t vocab;
    struct kern_stream *stream;
};

static bool seq_failed(const struct cpu_step *step, uint32_t s)
{
    const struct kern_seq *seq = &step->base.seqs[s];
    if (atomic_load(&step->base.cancels->failed[seq->slot]))
        return true;
    for (uint32_t r = 0; r < seq->row_count; r++)
        if (step->row_bad[seq->row_begin + r])
            return true;
    return false;
}

static void sample_item(void *context, uint32_t item, unsigned worker)
{
    const struct sample_arguments *a = context;
    const struct kern_sample *sample = &a->step->base.samples[item];
    struct kern_sample_out *out = &a->step->base.outs[item];
    out->finished = !a->step->seq_dead[sample->seq];
    out->token = 0;
    if (!out->finished)
        return;
    int64_t extra =
        sample->unknown_token ? (int64_t)a->step->row_tokens[sample->row] : CPU_SAMPLER_NO_EXTRA;
    cpu_sampler_row(a->stream->scratch[worker].sampler, a->stream->device->isa, sample, extra,
                    a->logits + (size_t)item * a->vocab, out);
    out->finite &= !seq_failed(a->step, sample->seq);
}

static void sample_run(struct kern_stream *stream, const void *arguments)
{
    struct sample_arguments a = *(const struct sample_arguments *)arguments;
    a.stream = stream;
    cpu_pool_run(stream->pool, a.step->base.sample_count, sample_item, &a);
}

void cpu_op_sample(struct kern_stream *stream, struct kern_step *step, struct kern_buffer *logits,
                   uint32_t vocab)
{
    assert(vocab == stream->vocab);
    struct sample_arguments a = {cpu_step_of(step), logits->region.data, vocab, stream};
    cpu_stream_push(stream, sample_run, &a, sizeof a);
}
