/* See terms.h. An operation's real push is asked for in between: whatever is pushed then gets that operation's clock. */
#include "tests/bench/terms.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "tests/bench/bench.h"
#include "tests/bench/undisturbed.h"

typedef void run_function(struct kern_stream *stream, const void *arguments);

static run_function *real[TERM_COUNT]; /* what the operation pushes */
static double spent[TERM_COUNT];
static enum term pushing = TERM_COUNT;
/* Only then are the clocks read: some hundred readings a step, each a call of the system, were a fifth of a step of one row. */
static bool timing;
static double
    reading; /* seconds of one look at the clock, of which each operation's time holds one */
static struct terms_alone *looking; /* NULL: without looks */
static bool alone;                  /* at the last one */

const char *term_name(enum term term)
{
    static const char *const names[TERM_COUNT] = {"embed",     "norm",      "linear",   "rope_kv",
                                                  "attention", "acts_from", "silu_mul", "kv_sums",
                                                  "head",      "sample"};
    return names[term];
}

void terms_begin(struct terms_alone *into)
{
    enum { LOOKS = 64 };
    double begin = bench_cpu_now();
    for (int i = 0; i < LOOKS; i++)
        reading = (bench_cpu_now() - begin) / (i + 1);
    memset(spent, 0, sizeof spent);
    looking = into;
    alone = false; /* nobody looked before the first operation */
    timing = true;
}

void terms_end(double *seconds)
{
    timing = false;
    for (int i = 0; i < TERM_COUNT; i++)
        seconds[i] = spent[i];
    if (looking)
        looking->steps++;
}

double terms_alone_seconds(struct terms_alone *of, enum term term)
{
    double seconds = 0;
    for (int i = 0; i < TERMS_KINDS; i++) {
        struct terms_kind *kind = &of->kinds[term][i];
        seconds += kind->alone ? bench_median(kind->alone_seconds, kind->alone) * (double)kind->runs
                               : kind->seconds;
    }
    return seconds / (double)of->steps;
}

double terms_alone_part(const struct terms_alone *of)
{
    uint64_t runs = 0, count = 0;
    for (int term = 0; term < TERM_COUNT; term++)
        for (int i = 0; i < TERMS_KINDS; i++) {
            runs += of->kinds[term][i].runs;
            count += of->kinds[term][i].alone;
        }
    return runs ? (double)count / (double)runs : 0;
}

/* A layer's products take turns. */
static void kind_add(enum term term, bool was_alone, double seconds)
{
    uint64_t before = 0;
    for (int i = 0; i < TERMS_KINDS; i++)
        before += looking->kinds[term][i].runs;
    struct terms_kind *kind = &looking->kinds[term][term == TERM_LINEAR ? before % TERMS_KINDS : 0];
    kind->runs++;
    kind->seconds += seconds;
    if (was_alone && kind->alone < TERMS_ALONE_MAX)
        kind->alone_seconds[kind->alone++] = seconds;
}

static void run_timed(enum term term, struct kern_stream *stream, const void *arguments)
{
    bool before = alone;
    double begin = bench_cpu_now();
    real[term](stream, arguments);
    double seconds = bench_cpu_now() - begin - reading;
    spent[term] += seconds;
    if (!looking)
        return;
    alone = undisturbed();
    kind_add(term, before && alone, seconds);
}

#define TIMED(term)                                                             \
    static void timed_##term(struct kern_stream *stream, const void *arguments) \
    {                                                                           \
        run_timed(term, stream, arguments);                                     \
    }
TIMED(TERM_EMBED)
TIMED(TERM_NORM)
TIMED(TERM_LINEAR)
TIMED(TERM_ROPE_KV)
TIMED(TERM_ATTENTION)
TIMED(TERM_ACTS_FROM)
TIMED(TERM_SILU_MUL)
TIMED(TERM_KV_SUMS)
TIMED(TERM_HEAD)
TIMED(TERM_SAMPLE)

static run_function *const timed[TERM_COUNT] = {
    timed_TERM_EMBED,     timed_TERM_NORM,      timed_TERM_LINEAR,   timed_TERM_ROPE_KV,
    timed_TERM_ATTENTION, timed_TERM_ACTS_FROM, timed_TERM_SILU_MUL, timed_TERM_KV_SUMS,
    timed_TERM_HEAD,      timed_TERM_SAMPLE};

/* --- the linker sends calls of X to __wrap_X, and those of __real_X to X --- */

#define WRAPPED(name, parameters, arguments, term) \
    void __real_##name parameters;                 \
    void __wrap_##name parameters;                 \
    void __wrap_##name parameters                  \
    {                                              \
        pushing = (term);                          \
        __real_##name arguments;                   \
        pushing = TERM_COUNT;                      \
    }

typedef bool ask_function(struct kern_stream *stream, const void *arguments);
void __real_cpu_stream_push_asked(struct kern_stream *stream, run_function *run, ask_function *ask,
                                  const void *arguments, size_t bytes);
void __wrap_cpu_stream_push_asked(struct kern_stream *stream, run_function *run, ask_function *ask,
                                  const void *arguments, size_t bytes);
void __wrap_cpu_stream_push_asked(struct kern_stream *stream, run_function *run, ask_function *ask,
                                  const void *arguments, size_t bytes)
{
    if (timing && pushing < TERM_COUNT) {
        real[pushing] = run;
        run = timed[pushing];
    }
    __real_cpu_stream_push_asked(stream, run, ask, arguments, bytes);
}

WRAPPED(cpu_op_embed,
        (struct kern_stream * stream, struct kern_step *step, const struct kern_weights *weights,
         struct kern_buffer *x),
        (stream, step, weights, x), TERM_EMBED)
WRAPPED(cpu_op_norm,
        (struct kern_stream * stream, struct kern_step *step, enum kern_rows rows,
         const struct kern_buffer *x, const struct kern_buffer *weight, float eps,
         struct kern_acts *acts),
        (stream, step, rows, x, weight, eps, acts), TERM_NORM)
WRAPPED(cpu_op_linear,
        (struct kern_stream * stream, struct kern_step *step, const struct kern_acts *acts,
         bool accumulate, const struct kern_linear_part *parts, uint32_t part_count),
        (stream, step, acts, accumulate, parts, part_count), TERM_LINEAR)
WRAPPED(cpu_op_head,
        (struct kern_stream * stream, struct kern_step *step, const struct kern_weights *weights,
         const struct kern_acts *acts, struct kern_logits *logits),
        (stream, step, weights, acts, logits), TERM_HEAD)
WRAPPED(cpu_op_rope_kv,
        (struct kern_stream * stream, struct kern_step *step,
         const struct kern_attention_desc *desc, const struct kern_rope *rope,
         struct kern_buffer *q, struct kern_buffer *k, struct kern_buffer *v, struct kern_kv *kv),
        (stream, step, desc, rope, q, k, v, kv), TERM_ROPE_KV)
WRAPPED(cpu_op_attention,
        (struct kern_stream * stream, struct kern_step *step,
         const struct kern_attention_desc *desc, const struct kern_buffer *q,
         const struct kern_kv *kv, struct kern_buffer *out),
        (stream, step, desc, q, kv, out), TERM_ATTENTION)
WRAPPED(cpu_op_acts_from,
        (struct kern_stream * stream, struct kern_step *step, const struct kern_buffer *in,
         struct kern_acts *acts),
        (stream, step, in, acts), TERM_ACTS_FROM)
WRAPPED(cpu_op_silu_mul,
        (struct kern_stream * stream, struct kern_step *step, const struct kern_buffer *gate,
         const struct kern_buffer *up, struct kern_acts *acts),
        (stream, step, gate, up, acts), TERM_SILU_MUL)
WRAPPED(cpu_op_kv_sums,
        (struct kern_stream * stream, struct kern_step *step, const struct kern_kv *kv,
         uint32_t run, uint32_t layer_begin, uint32_t layer_end),
        (stream, step, kv, run, layer_begin, layer_end), TERM_KV_SUMS)
WRAPPED(cpu_op_sample,
        (struct kern_stream * stream, struct kern_step *step, struct kern_logits *logits),
        (stream, step, logits), TERM_SAMPLE)
