/* See sampling.h. Rows of logits are 32 different ones, so that each comes out of memory as it does behind the output head. */
#include "tests/bench/sampling.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/cpu/sampler.h"

enum { ROWS = 32, AT = 32, ROUNDS_MAX = 200 };

static const struct way {
    const char *name;
    struct kern_sampling how;
} ways[] = {
    {"greedy", {.temperature = 0, .top_p = 1, .logprobs = -1}},
    {"temperature", {.temperature = 0.8f, .top_p = 1, .logprobs = -1}},
    {"min_p", {.temperature = 0.8f, .top_p = 1, .min_p = 0.05f, .logprobs = -1}},
    {"top_k40", {.temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .logprobs = -1}},
    {"top_k300", {.temperature = 0.8f, .top_p = 1, .top_k = 300, .logprobs = -1}},
    {"top_p", {.temperature = 0.8f, .top_p = 0.95f, .logprobs = -1}},
    {"logprobs", {.temperature = 0, .top_p = 1, .logprobs = 5}},
    {"temperature_logprobs", {.temperature = 0.8f, .top_p = 1, .logprobs = 5}},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static double thread_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Bell-shaped, twelve on either side of zero. */
static void logits_fill(float *logits, size_t count)
{
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        logits[i] = 0;
        for (int j = 0; j < 3; j++) {
            state = state * 1664525u + 1013904223u;
            logits[i] += 4 * (float)(int32_t)state * 0x1p-31f;
        }
    }
}

void bench_sampling(struct bench *bench, struct subject *subject, const char *type, double seconds)
{
    static double steps[ROUNDS_MAX], spent[WAYS][ROUNDS_MAX];
    uint32_t vocab = engine_info(subject->engine)->vocab_size;
    float *logits = malloc((size_t)ROWS * vocab * sizeof *logits);
    struct cpu_sampler *sampler;
    if (!logits || cpu_sampler_create(vocab, &sampler) != STATUS_OK) {
        fprintf(stderr, "bench: no memory for logits\n");
        exit(1);
    }
    logits_fill(logits, (size_t)ROWS * vocab);
    size_t rounds = 0;
    double start = bench_now();
    while (rounds < 5 || (rounds < ROUNDS_MAX && bench_now() - start < seconds)) {
        steps[rounds] = subject_step(subject, ROWS, 1, AT);
        for (size_t w = 0; w < WAYS; w++) {
            struct kern_sampling how = ways[w].how;
            how.repetition_penalty = 1;
            how.seed = 5;
            double begin = thread_seconds();
            for (uint32_t r = 0; r < ROWS; r++) { /* nothing here changes the logits */
                struct kern_sample sample = {.sampling = &how,
                                             .generated_count = (uint32_t)rounds * ROWS + r};
                struct kern_sample_out out;
                cpu_sampler_row(sampler, cpu_isa_detect(), &sample, CPU_SAMPLER_NO_EXTRA,
                                logits + (size_t)r * vocab, &out);
            }
            spent[w][rounds] = thread_seconds() - begin;
        }
        rounds++;
    }
    double step = bench_median(steps, rounds);
    for (size_t w = 0; w < WAYS; w++) {
        char id[64];
        snprintf(id, sizeof id, "decode32.%s_%s_1t", ways[w].name, type);
        bench_add(bench,
                  &(struct bench_record){.id = id,
                                         .value = 100 * bench_median(spent[w], rounds) / step,
                                         .unit = "% of a step",
                                         .lower_is_better = true,
                                         BENCH_LIMIT("allowed", 3)});
    }
    cpu_sampler_destroy(sampler);
    free(logits);
}
