/* The operation that draws a token for each row of logits: an item a row, with the sampler of the compute thread that takes it. See
 * device.h, sampler.h.
 * Owner: as step.c. */
#include <assert.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/sampler.h"

struct sample_arguments {
    struct cpu_step *step;
    const struct kern_logits *logits;
    bool with_maxima;
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
                    cpu_logits_row(a->logits, item),
                    a->with_maxima ? cpu_logits_maxima(a->logits, item) : NULL, out);
    out->finite &= !seq_failed(a->step, sample->seq);
}

static void sample_run(struct kern_stream *stream, const void *arguments)
{
    struct sample_arguments a = *(const struct sample_arguments *)arguments;
    a.stream = stream;
    cpu_pool_run(stream->pool, a.step->base.sample_count, sample_item, &a);
}

void cpu_op_sample(struct kern_stream *stream, struct kern_step *step, struct kern_logits *logits)
{
    assert(logits->vocab == stream->vocab);
    struct sample_arguments a = {cpu_step_of(step), logits, logits->with_maxima, stream};
    cpu_stream_push(stream, sample_run, &a, sizeof a);
}
