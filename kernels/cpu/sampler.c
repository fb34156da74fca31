/* See sampler.h.
 *
 * Candidates are ordered by (logit after all changes, descending; id, ascending): a total order, so there is one result. The
 * order is produced lazily, because making all of it would take a sixth of a decode step of 32 rows: a look over the vocabulary
 * keeps the 64 best, which is nearly always enough; a sort of 64-bit keys gives the rest. Sums that decide something are in
 * double, in the order given in docs/NUMERICS.md. */
#include "kernels/cpu/sampler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/mathf.h"
#include "kernels/cpu/philox.h"

enum { BEST_MAX = 64 };

struct cpu_sampler {
    uint32_t vocab;
    uint32_t
        *counts; /* [vocab] times in the answer, PROMPT_BIT if in the prompt; zero between rows */
    float *raw;  /* [vocab] the raw logits, when log-probabilities are asked for */
    float *weights;  /* [vocab] */
    double *sums;    /* [vocab / CPU_SAMPLER_RUN, rounded up] */
    uint64_t *order; /* [vocab + 1] keys, best first: a part of the order */
    uint64_t *spare; /* [vocab + 1] */
    uint32_t order_count, order_taken;
    uint32_t parts; /* after the best: what is at or above the floor, then what is below */
    uint64_t below; /* the last of the best */
    float floor;
    float *kept_weights; /* [vocab] of the candidates taken from the order */
    uint32_t *kept_ids;  /* [vocab] */
};

#define PROMPT_BIT UINT32_C(0x80000000)

enum status cpu_sampler_create(uint32_t vocab, struct cpu_sampler **sampler_out)
{
    struct cpu_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        return STATUS_MEMORY;
    size_t count = vocab ? vocab : 1;
    *sampler = (struct cpu_sampler){.vocab = vocab,
                                    .counts = calloc(count, sizeof *sampler->counts),
                                    .raw = calloc(count, sizeof *sampler->raw),
                                    .weights = calloc(count, sizeof *sampler->weights),
                                    .sums = calloc(count, sizeof *sampler->sums),
                                    .order = calloc(count + 1, sizeof *sampler->order),
                                    .spare = calloc(count + 1, sizeof *sampler->spare),
                                    .kept_weights = calloc(count, sizeof *sampler->kept_weights),
                                    .kept_ids = calloc(count, sizeof *sampler->kept_ids)};
    if (!sampler->counts || !sampler->raw || !sampler->weights || !sampler->sums ||
        !sampler->order || !sampler->spare || !sampler->kept_weights || !sampler->kept_ids) {
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
    free(sampler->weights);
    free(sampler->sums);
    free(sampler->order);
    free(sampler->spare);
    free(sampler->kept_weights);
    free(sampler->kept_ids);
    free(sampler);
}

/* --- the order of candidates: the best from one look over all, then, when more are wanted, what is likely, sorted, then the
 * rest. Each is made only when the one before is used up. --- */

/* Sorts by the upper halves, the values, descending; keys come in order of id and equal values keep it. */
static void keys_sort(uint64_t *keys, uint64_t *spare, uint32_t count)
{
    enum { DIGIT = 11, DIGITS = 1 << DIGIT, PASSES = 3 };
    uint32_t starts[PASSES][DIGITS];
    memset(starts, 0, sizeof starts);
    for (uint32_t i = 0; i < count; i++)
        for (int pass = 0; pass < PASSES; pass++)
            starts[pass][~(keys[i] >> (32 + pass * DIGIT)) & (DIGITS - 1)]++;
    for (int pass = 0; pass < PASSES; pass++) {
        uint32_t at = 0;
        for (int digit = 0; digit < DIGITS; digit++) {
            uint32_t here = starts[pass][digit];
            starts[pass][digit] = at;
            at += here;
        }
        for (uint32_t i = 0; i < count; i++)
            spare[starts[pass][~(keys[i] >> (32 + pass * DIGIT)) & (DIGITS - 1)]++] = keys[i];
        uint64_t *other = keys;
        keys = spare;
        spare = other;
    }
    memcpy(spare, keys,
           count * sizeof *keys); /* after three passes the spare has become the keys */
}

/* e^-10: what is below has so little weight that few draws look so far. */
static const float likely_range = 10.0f;

static void order_begin(struct cpu_sampler *sampler, const struct cpu_sampler_loops *loops,
                        const float *values, float max, float temperature, uint32_t wanted)
{
    wanted = wanted < BEST_MAX ? wanted : BEST_MAX;
    sampler->order_count = loops->best(values, sampler->vocab, wanted, sampler->order);
    sampler->order_taken = sampler->parts = 0;
    sampler->below = sampler->order[sampler->order_count - 1];
    sampler->floor = max - likely_range * temperature;
}

/* The next best. There is one. */
static uint32_t order_take(struct cpu_sampler *sampler, const struct cpu_sampler_loops *loops,
                           const float *values)
{
    while (sampler->order_taken == sampler->order_count) {
        assert(sampler->parts < 2);
        sampler->order_taken = 0;
        sampler->order_count =
            loops->collect(values, sampler->vocab, sampler->below, sampler->floor,
                           sampler->parts++ == 0, sampler->order);
        keys_sort(sampler->order, sampler->spare, sampler->order_count);
    }
    return cpu_sampler_key_id(sampler->order[sampler->order_taken++]);
}

/* --- log-probabilities of the raw logits --- */

struct log_softmax {
    float max, log_sum;
};

static float logprob_of(const struct log_softmax *norm, float logit)
{
    return (logit - norm->max) - norm->log_sum;
}

static void top_fill(struct cpu_sampler *sampler, const struct cpu_sampler_loops *loops,
                     const struct log_softmax *norm, uint32_t count, struct kern_sample_out *out)
{
    uint64_t best[KERN_TOP_MAX];
    count = count < KERN_TOP_MAX ? count : KERN_TOP_MAX;
    out->top_count = loops->best(sampler->raw, sampler->vocab, count, best);
    for (uint32_t i = 0; i < out->top_count; i++) {
        out->top_ids[i] = cpu_sampler_key_id(best[i]);
        out->top_logprobs[i] = logprob_of(norm, sampler->raw[out->top_ids[i]]);
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

static void penalties_apply(struct cpu_sampler *sampler, const struct kern_sample *sample,
                            int64_t extra, float *logits)
{
    const struct kern_sampling *sampling = sample->sampling;
    if (sampling->repetition_penalty == 1.0f && sampling->presence_penalty == 0.0f &&
        sampling->frequency_penalty == 0.0f)
        return;
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

static uint32_t greedy(const float *logits, uint32_t vocab, float max)
{
    enum { LOOK = 64 };
    uint32_t i = 0;
    for (; i + LOOK <= vocab; i += LOOK) {
        uint32_t found = 0;
        for (uint32_t j = 0; j < LOOK; j++)
            found |= (uint32_t)(logits[i + j] == max);
        if (found)
            break;
    }
    while (i + 1 < vocab && logits[i] != max) /* max is one of them */
        i++;
    return i;
}

/* What a draw is made of. */
struct draw {
    const struct kern_sampling *how;
    const struct cpu_sampler_loops *loops;
    const float *values; /* [vocab] */
    float max;           /* of them */
    double u;
};

/* Among all, in order of id. */
static uint32_t draw_all(struct cpu_sampler *sampler, const struct draw *draw)
{
    const struct kern_sampling *how = draw->how;
    double total = draw->loops->weights(draw->values, draw->max, how->temperature, how->min_p,
                                        sampler->vocab, sampler->weights, sampler->sums);
    /* the sums at every 64th tell where the target is passed: the same sums as those of a walk through all */
    double target = draw->u * total;
    uint32_t runs = (sampler->vocab + CPU_SAMPLER_RUN - 1) / CPU_SAMPLER_RUN, run = 0, last = 0;
    while (run < runs && !(sampler->sums[run] > target))
        run++;
    uint32_t begin = run < runs ? run * CPU_SAMPLER_RUN : 0;
    double sum = begin ? sampler->sums[run - 1] : 0;
    for (uint32_t i = begin; i < sampler->vocab; i++) {
        if (!(sampler->weights[i] >= how->min_p) || sampler->weights[i] == 0.0f)
            continue;
        last = i;
        sum += (double)sampler->weights[i];
        if (sum > target)
            break;
    }
    return last;
}

/* The next best into kept_*[at]; its weight. `made`: all weights are. */
static float keep_next(struct cpu_sampler *sampler, const struct draw *draw, bool made, uint32_t at)
{
    uint32_t id = order_take(sampler, draw->loops, draw->values);
    sampler->kept_ids[at] = id;
    sampler->kept_weights[at] =
        made ? sampler->weights[id]
             : mathf_exp((draw->values[id] - draw->max) / draw->how->temperature);
    return sampler->kept_weights[at];
}

/* Among the best: top_k, then top_p, then min_p; in descending order. */
static uint32_t draw_best(struct cpu_sampler *sampler, const struct draw *draw)
{
    const struct kern_sampling *how = draw->how;
    uint32_t vocab = sampler->vocab, kept = 0;
    double total = 0;
    bool top_k = how->top_k && how->top_k < vocab;
    order_begin(sampler, draw->loops, draw->values, draw->max, how->temperature,
                top_k ? how->top_k : BEST_MAX);
    if (top_k)
        for (; kept < how->top_k; kept++)
            total += (double)keep_next(sampler, draw, false, kept);
    else
        total = draw->loops->weights(draw->values, draw->max, how->temperature, 0, vocab,
                                     sampler->weights, sampler->sums);
    double enough = (double)how->top_p * total, sum = 0;
    uint32_t limit = top_k ? kept : vocab, count = 0;
    while (count < limit) {
        if (!top_k)
            keep_next(sampler, draw, true, count);
        if (count > 0 && !(sampler->kept_weights[count] >= how->min_p))
            break;
        sum += (double)sampler->kept_weights[count++];
        if (how->top_p < 1.0f && sum >= enough)
            break;
    }
    double target = draw->u * sum, reached = 0;
    for (uint32_t i = 0; i < count; i++) {
        reached += (double)sampler->kept_weights[i];
        if (reached > target)
            return sampler->kept_ids[i];
    }
    return sampler->kept_ids[count - 1];
}

void cpu_sampler_row(struct cpu_sampler *sampler, enum cpu_isa_level isa,
                     const struct kern_sample *sample, int64_t extra, float *logits,
                     struct kern_sample_out *out)
{
    const struct cpu_sampler_loops *loops = &cpu_sampler_loops_plain;
#if defined(__x86_64__)
    if (isa >= CPU_ISA_AVX2)
        loops = &cpu_sampler_loops_avx2;
#endif
    const struct kern_sampling *sampling = sample->sampling;
    uint32_t vocab = sampler->vocab;
    out->token = 0;
    out->logprob = 0;
    out->top_count = 0;
    if (sample->logits_out)
        memcpy(sample->logits_out, logits, vocab * sizeof *logits);
    out->finite = loops->all_finite(logits, vocab);
    if (!out->finite || !sampling)
        return;
    struct log_softmax norm = {0};
    if (sampling->logprobs >= 0) {
        norm.max = loops->max(logits, vocab);
        norm.log_sum = mathf_log(loops->exp_sum(logits, norm.max, vocab));
        memcpy(sampler->raw, logits, vocab * sizeof *logits);
        top_fill(sampler, loops, &norm, (uint32_t)sampling->logprobs, out);
    }
    for (uint32_t i = 0; i < sampling->bias_count; i++)
        logits[sampling->bias[i].token_id] += sampling->bias[i].bias;
    penalties_apply(sampler, sample, extra, logits);
    float max = loops->max(logits, vocab);
    if (!mathf_is_finite(max)) { /* a penalty overflowed */
        out->finite = false;
        return;
    }
    if (sampling->temperature == 0.0f) {
        out->token = greedy(logits, vocab, max);
    } else {
        struct draw draw = {
            .how = sampling,
            .loops = loops,
            .values = logits,
            .max = max,
            .u = philox_uniform(sampling->seed, sampling->n_index, sample->position, 0)};
        bool all = (!sampling->top_k || sampling->top_k >= vocab) && sampling->top_p >= 1.0f;
        out->token = all ? draw_all(sampler, &draw) : draw_best(sampler, &draw);
    }
    if (sampling->logprobs >= 0)
        out->logprob = logprob_of(&norm, sampler->raw[out->token]);
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
