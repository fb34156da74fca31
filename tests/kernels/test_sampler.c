/* The sampler: the generator against its published answers, each filter against a slow and obvious one, frequencies against
 * probabilities, and the loops of every instruction set against the plain ones. */
#include "kernels/cpu/sampler.h"

#include <stdlib.h>

#include "kernels/cpu/mathf.h"
#include "kernels/cpu/philox.h"
#include "tests/test.h"

enum { VOCAB = 1003, WORDS = 49152 + 5 };

static uint32_t state = 7;

static float noise(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

/* The sample of a row, and how: all that a test changes. */
static struct kern_sample sample_make(struct kern_sampling *how)
{
    *how = (struct kern_sampling){
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .seed = 5};
    return (struct kern_sample){.sampling = how};
}

static struct kern_sample_out sample_run(const struct kern_sample *sample, const float *logits)
{
    struct cpu_sampler *sampler;
    CHECK_INT(cpu_sampler_create(VOCAB, &sampler), STATUS_OK);
    float copy[VOCAB];
    struct kern_sample_out out[2];
    memset(out, 0, sizeof out);
    memcpy(copy, logits, sizeof copy);
    cpu_sampler_row(sampler, CPU_ISA_PLAIN, sample, CPU_SAMPLER_NO_EXTRA, copy, NULL, &out[0]);
    memcpy(copy, logits, sizeof copy);
    cpu_sampler_row(sampler, cpu_isa_detect(), sample, CPU_SAMPLER_NO_EXTRA, copy, NULL, &out[1]);
    CHECK(memcmp(&out[0], &out[1], sizeof out[0]) == 0);
    cpu_sampler_destroy(sampler);
    return out[0];
}

TEST(sampler, philox_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];
        philox4x32(cases[i].counter, cases[i].key, out);
        CHECK(memcmp(out, cases[i].expected, sizeof out) == 0);
    }
    CHECK(philox_uniform(1, 0, 0, 0) != philox_uniform(1, 1, 0, 0));
    CHECK(philox_uniform(1, 0, 0, 0) != philox_uniform(1, 0, 1, 0));
    CHECK(philox_uniform(1, 0, 0, 0) != philox_uniform(2, 0, 0, 0));
    CHECK(philox_uniform(1, 0, 0, 0) != philox_uniform(1, 0, 0, 1));
    CHECK(philox_uniform(1, 0, 0, 0) != philox_uniform(UINT64_C(1) | UINT64_C(1) << 32, 0, 0, 0));
}

TEST(sampler, greedy_takes_the_lowest_of_equals)
{
    float logits[VOCAB] = {0};
    logits[40] = logits[7] = logits[900] = 2.5f;
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    how.temperature = 0;
    CHECK_INT(sample_run(&sample, logits).token, 7);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = i % 2 ? 0.0f : -0.0f; /* equal, though the bits differ */
    CHECK_INT(sample_run(&sample, logits).token, 0);
}

TEST(sampler, frequencies_follow_probabilities)
{
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -50;
    static const float chance[4] = {0.5f, 0.3f, 0.15f, 0.05f};
    static const int id[4] = {900, 2, 501, 77};
    for (int i = 0; i < 4; i++)
        logits[id[i]] = mathf_log(chance[i]) * 2; /* temperature 2 gives `chance` */
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    how.temperature = 2;
    static const struct {
        uint32_t top_k;
        float top_p, min_p;
        double expected[4];
    } cases[] = {
        {0, 1, 0, {0.5, 0.3, 0.15, 0.05}},
        {2, 1, 0, {0.625, 0.375, 0, 0}},
        {0, 0.79f, 0, {0.625, 0.375, 0, 0}},
        {0, 0.81f, 0, {0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0}},
        {0, 1, 0.2f, {0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0}},
        {3, 0.5f, 0, {1, 0, 0, 0}},
        {1, 1, 0, {1, 0, 0, 0}},
        {4, 1, 0.55f, {0.625, 0.375, 0, 0}},
    };
    struct cpu_sampler *sampler;
    CHECK_INT(cpu_sampler_create(VOCAB, &sampler), STATUS_OK);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        enum { DRAWS = 4000 };
        int hits[4] = {0}, others = 0;
        how.top_k = cases[c].top_k;
        how.top_p = cases[c].top_p;
        how.min_p = cases[c].min_p;
        for (uint32_t n = 0; n < DRAWS; n++) {
            float copy[VOCAB];
            struct kern_sample_out out;
            memcpy(copy, logits, sizeof copy);
            sample.generated_count = n;
            cpu_sampler_row(sampler, cpu_isa_detect(), &sample, CPU_SAMPLER_NO_EXTRA, copy, NULL,
                            &out);
            CHECK(out.finite);
            int which = 0;
            while (which < 4 && id[which] != (int)out.token)
                which++;
            if (which < 4)
                hits[which]++;
            else
                others++;
        }
        CHECK_INT(others, 0);
        for (int i = 0; i < 4; i++) {
            double off = (double)hits[i] / DRAWS - cases[c].expected[i];
            CHECK_MSG(off < 0.03 && off > -0.03, "case %zu: token %d came %d times of %d", c, id[i],
                      hits[i], DRAWS);
            if (cases[c].expected[i] == 0)
                CHECK_INT(hits[i], 0);
        }
    }
    cpu_sampler_destroy(sampler);
}

TEST(sampler, penalties_and_bias)
{
    float logits[VOCAB] = {0};
    logits[10] = 4;    /* prompt and answer, three times in the answer */
    logits[11] = 3.5f; /* prompt only */
    logits[12] = 3.0f;
    logits[13] = -1;
    uint32_t prompt[] = {10, 11, 11}, generated[] = {10, 10, 10, 13};
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    how.temperature = 0;
    how.prompt = prompt;
    how.prompt_count = 3;
    how.generated = generated;
    sample.generated_count = 4;
    CHECK_INT(sample_run(&sample, logits).token, 10);
    how.presence_penalty = 0.4f; /* 3.6 */
    CHECK_INT(sample_run(&sample, logits).token, 10);
    how.presence_penalty = 0.6f; /* 3.4 */
    CHECK_INT(sample_run(&sample, logits).token, 11);
    how.presence_penalty = 0;
    how.frequency_penalty = 0.2f; /* 3.4 */
    CHECK_INT(sample_run(&sample, logits).token, 11);
    how.repetition_penalty = 1.25f; /* 2.6 and 2.8: only 12 is new */
    CHECK_INT(sample_run(&sample, logits).token, 12);
    struct kern_bias bias[] = {{500, 2}, {500, 1.5f}};
    how.bias = bias;
    how.bias_count = 2;
    CHECK_INT(sample_run(&sample, logits).token, 500);
    /* an unknown last token counts as generated */
    struct cpu_sampler *sampler;
    CHECK_INT(cpu_sampler_create(VOCAB, &sampler), STATUS_OK);
    struct kern_sample_out out;
    for (int i = 0; i < 2; i++) { /* twice: the table of counts is clean again */
        float copy[VOCAB];
        memcpy(copy, logits, sizeof copy);
        how.presence_penalty = 2;
        cpu_sampler_row(sampler, CPU_ISA_PLAIN, &sample, 500, copy, NULL, &out);
        CHECK_INT(out.token, 12);
    }
    cpu_sampler_destroy(sampler);
}

TEST(sampler, logprobs_are_of_the_raw_logits)
{
    float logits[VOCAB];
    double total = 0;
    for (int i = 0; i < VOCAB; i++) {
        logits[i] = 5 * noise();
        total += mathf_exp_f64((double)logits[i]);
    }
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    how.logprobs = KERN_TOP_MAX;
    how.temperature = 0.1f; /* changes the draw, not the log-probabilities */
    struct kern_bias bias = {3, 100};
    how.bias = &bias;
    how.bias_count = 1;
    struct kern_sample_out out = sample_run(&sample, logits);
    CHECK_INT(out.token, 3);
    CHECK_INT(out.top_count, KERN_TOP_MAX);
    double error = (double)out.logprob - ((double)logits[3] - mathf_log_f64(total));
    CHECK(error < 1e-5 && error > -1e-5);
    for (uint32_t i = 0; i < out.top_count; i++) {
        uint32_t better = 0;
        for (uint32_t j = 0; j < VOCAB; j++)
            better += logits[j] > logits[out.top_ids[i]];
        CHECK_INT(better, i);
        error =
            (double)out.top_logprobs[i] - ((double)logits[out.top_ids[i]] - mathf_log_f64(total));
        CHECK(error < 1e-5 && error > -1e-5);
    }
    how.logprobs = 0;
    out = sample_run(&sample, logits);
    CHECK_INT(out.top_count, 0);
    CHECK(out.logprob < 0);
}

TEST(sampler, not_finite_is_told)
{
    float logits[VOCAB] = {0};
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    CHECK(sample_run(&sample, logits).finite);
    logits[VOCAB - 1] = __builtin_nanf("");
    CHECK(!sample_run(&sample, logits).finite);
    logits[VOCAB - 1] = -__builtin_inff();
    CHECK(!sample_run(&sample, logits).finite);
    logits[VOCAB - 1] = 3e38f;
    how.temperature = 1e-30f; /* extreme but legal: greedy in effect */
    CHECK_INT(sample_run(&sample, logits).token, VOCAB - 1);
    CHECK(sample_run(&sample, logits).finite);
}

/* --- top_k, top_p and min_p by the definition: all candidates sorted --- */

static const float *sorted_values;

static int better_first(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sorted_values[x] != sorted_values[y])
        return sorted_values[x] > sorted_values[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* Weights in units of 2^-30, to the nearest, ties to even: what cpu_sampler_units must be. */
static uint64_t units_of(float weight)
{
    double scaled = (double)weight * 0x1p30; /* exact */
    return (uint64_t)mathf_rint_f64(scaled);
}

static uint32_t slow_draw(const float *values, uint32_t vocab, const struct kern_sampling *how,
                          uint32_t position)
{
    static uint32_t ids[WORDS];
    static float weight[WORDS];
    static uint64_t units[WORDS];
    for (uint32_t i = 0; i < vocab; i++)
        ids[i] = i;
    sorted_values = values;
    qsort(ids, vocab, sizeof ids[0], better_first);
    float max = values[ids[0]];
    uint32_t limit = how->top_k && how->top_k < vocab ? how->top_k : vocab, count = 0;
    uint64_t total = 0, sum = 0, reached = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        weight[i] = mathf_exp((values[i] - max) * (1 / how->temperature));
        units[i] = units_of(weight[i]);
        CHECK(units[i] == cpu_sampler_units(weight[i]));
    }
    for (uint32_t i = 0; i < limit; i++)
        total += units[ids[i]];
    unsigned __int128 enough = (unsigned __int128)(uint64_t)((double)how->top_p * 0x1p40) * total;
    for (uint32_t i = 0; i < vocab; i++) /* what weighs less counts nothing */
        units[i] = weight[i] >= how->min_p ? units[i] : 0;
    while (count < limit) {
        sum += units[ids[count++]];
        if (how->top_p < 1.0f && (unsigned __int128)sum << 40 >= enough)
            break;
    }
    uint64_t u = (uint64_t)(philox_uniform(how->seed, how->n_index, position, 0) * 0x1p53);
    unsigned __int128 target = (unsigned __int128)u * sum;
    bool in_order_of_id = limit == vocab && how->top_p >= 1;
    for (uint32_t i = 0; i < (in_order_of_id ? vocab : count); i++) {
        uint32_t id = in_order_of_id ? i : ids[i];
        reached += units[id];
        if ((unsigned __int128)reached << 53 > target)
            return id;
    }
    return vocab;
}

TEST(sampler, best_by_the_definition)
{
    static const uint32_t top_ks[] = {0, 1, 2, 40, 63, 64, 65, 300, VOCAB - 1, VOCAB};
    static const float top_ps[] = {0.1f, 0.9f, 0.9999f, 1},
                       spreads[] = {0, 0.01f, 0.125f, 3, 30}; /* all equal, nearly, ... */
    static float values[VOCAB];
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    for (size_t s = 0; s < sizeof spreads / sizeof spreads[0]; s++)
        for (size_t k = 0; k < sizeof top_ks / sizeof top_ks[0]; k++)
            for (size_t p = 0; p < sizeof top_ps / sizeof top_ps[0]; p++)
                for (uint32_t draw = 0; draw < 6; draw++) {
                    for (uint32_t i = 0; i < VOCAB; i++) /* ties, in both signs of zero */
                        values[i] = (float)(int)(noise() * 64) * spreads[s];
                    how.top_k = top_ks[k];
                    how.top_p = top_ps[p];
                    how.min_p = draw % 2 ? 1e-3f : 0;
                    how.temperature = draw < 3 ? 1.0f : 20.0f;
                    sample.generated_count = draw;
                    CHECK_INT(sample_run(&sample, values).token,
                              slow_draw(values, VOCAB, &how, draw));
                }
}

static const struct cpu_sampler_loops *fast_loops(void)
{
#if defined(__x86_64__)
    return cpu_isa_detect() >= CPU_ISA_AVX2 ? &cpu_sampler_loops_avx2 : NULL;
#elif defined(__aarch64__)
    return &cpu_sampler_loops_neon;
#else
    return NULL;
#endif
}

/* A scale whose buckets reach `range` below the best, in exponents. */
static struct cpu_sampler_scale scale_make(const struct cpu_sampler_look *look, float temperature,
                                           float min_p, float range)
{
    return (struct cpu_sampler_scale){.max = look->max,
                                      .inverse = 1 / temperature,
                                      .min_p = min_p,
                                      .per = range > 0 ? -(float)(CPU_SAMPLER_BUCKETS - 1) / range
                                                       : -1e30f};
}

static void scales_compare(const struct cpu_sampler_loops *fast, const float *x, uint32_t count,
                           const struct cpu_sampler_scale *scale)
{
    enum { RUNS = VOCAB / CPU_SAMPLER_RUN + 1, FROM = 12345 };
    const struct cpu_sampler_loops *plain = &cpu_sampler_loops_plain;
    static uint64_t runs[2][RUNS], sums[2][CPU_SAMPLER_BUCKETS], keys[2][VOCAB];
    static uint16_t places[2][VOCAB];
    size_t sum_count = (count + CPU_SAMPLER_SUM - 1) / CPU_SAMPLER_SUM;
    static float maxima[RUNS];
    plain->maxima(x, count, maxima);
    static uint32_t units[2][VOCAB];
    plain->units(x, count, scale, units[0]);
    fast->units(x, count, scale, units[1]);
    CHECK(memcmp(units[0], units[1], count * sizeof units[0][0]) == 0);
    CHECK(plain->runs(x, maxima, count, scale, FROM, runs[0]) ==
          fast->runs(x, maxima, count, scale, FROM, runs[1]));
    CHECK(memcmp(runs[0], runs[1], sum_count * sizeof runs[0][0]) == 0);
    for (int ones = 0; ones < 2; ones++) {
        CHECK(plain->buckets(x, count, scale, ones, places[0], sums[0]) ==
              fast->buckets(x, count, scale, ones, places[1], sums[1]));
        CHECK(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
    }
    static const uint32_t bounds[][2] = {{0, 0},
                                         {3, 500},
                                         {0, CPU_SAMPLER_BUCKETS - 2},
                                         {CPU_SAMPLER_BUCKETS - 1, CPU_SAMPLER_BUCKETS - 1}};
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        uint32_t have = plain->collect(x, count, places[0], bounds[i][0], bounds[i][1], keys[0]);
        CHECK_INT(fast->collect(x, count, places[1], bounds[i][0], bounds[i][1], keys[1]), have);
        CHECK(memcmp(keys[0], keys[1], have * sizeof keys[0][0]) == 0);
    }
    CHECK_INT(cpu_sampler_bucket(scale, scale->max), 0);
    static uint32_t ids[2][VOCAB + CPU_SAMPLER_SPARE];
    static float values[2][VOCAB + CPU_SAMPLER_SPARE];
    for (int i = 0; i < 4; i++) { /* all, a half, the best alone, none */
        const float leasts[] = {-31, x[count / 2], scale->max, scale->max + 1}, least = leasts[i];
        uint32_t have = plain->above(x, count, 7, least, values[0], ids[0]), expected = 0;
        CHECK_INT(fast->above(x, count, 7, least, values[1], ids[1]), have);
        CHECK(memcmp(ids[0], ids[1], have * sizeof ids[0][0]) == 0);
        CHECK(memcmp(values[0], values[1], have * sizeof values[0][0]) == 0);
        for (uint32_t k = 0; k < count; k++)
            if (x[k] >= least) {
                CHECK_INT(ids[0][expected], k + 7);
                CHECK(values[0][expected] == x[k]);
                expected++;
            }
        CHECK_INT(have, expected);
        uint32_t picked[RUNS], picked_count = 0; /* every run, and every second one */
        for (uint32_t k = 0; k * CPU_SAMPLER_RUN < count; k += 1 + i % 2)
            picked[picked_count++] = k;
        have = plain->gather(x, count, picked, picked_count, least, values[0], ids[0]);
        CHECK_INT(fast->gather(x, count, picked, picked_count, least, values[1], ids[1]), have);
        CHECK(memcmp(ids[0], ids[1], have * sizeof ids[0][0]) == 0);
        CHECK(memcmp(values[0], values[1], have * sizeof values[0][0]) == 0);
        for (uint32_t k = 0; k < have; k++)
            CHECK(values[0][k] == x[ids[0][k]] && values[0][k] >= least);
        if (i % 2 == 0)
            CHECK_INT(have, expected);
    }
}

/* In one go and in two are the same, too. */
static void exp_add_compare(const struct cpu_sampler_loops *fast, const float *x, uint32_t count,
                            float max)
{
    float sums[3][16];
    uint32_t half = count / 2 / 16 * 16;
    for (int i = 0; i < 16; i++)
        sums[0][i] = sums[1][i] = sums[2][i] = (float)i * 0.25f;
    cpu_sampler_loops_plain.exp_add(x, count, max, sums[0]);
    fast->exp_add(x, count, max, sums[1]);
    fast->exp_add(x, half, max, sums[2]);
    fast->exp_add(x + half, count - half, max, sums[2]);
    CHECK(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
    CHECK(memcmp(sums[0], sums[2], sizeof sums[0]) == 0);
}

/* Of each run, by the definition; one value is `wrong`, or none is (UINT32_MAX). */
static void maxima_compare(const struct cpu_sampler_loops *fast, const float *x, uint32_t count,
                           uint32_t wrong)
{
    float maxima[2][VOCAB / CPU_SAMPLER_RUN + 1];
    cpu_sampler_loops_plain.maxima(x, count, maxima[0]);
    fast->maxima(x, count, maxima[1]);
    for (uint32_t i = 0; i < count; i += CPU_SAMPLER_RUN) {
        float most = x[i];
        for (uint32_t k = i; k < count && k < i + CPU_SAMPLER_RUN; k++)
            most = x[k] > most ? x[k] : most;
        bool bad = wrong / CPU_SAMPLER_RUN == i / CPU_SAMPLER_RUN;
        for (int j = 0; j < 2; j++) {
            float got = maxima[j][i / CPU_SAMPLER_RUN];
            CHECK(bad ? got != got : got == most);
        }
    }
}

TEST(sampler, loops_equal_plain)
{
    const struct cpu_sampler_loops *plain = &cpu_sampler_loops_plain, *fast = fast_loops();
    if (!fast)
        TEST_SKIP("this CPU has none of the instruction sets");
    static float x[VOCAB];
    for (uint32_t count = 1; count <= VOCAB; count += count < 40 ? 3 : 160) {
        for (uint32_t i = 0; i < count; i++)
            x[i] = 30 * noise();
        if (count > 100)
            x[count / 2] = x[count / 3] = 31; /* the best twice */
        struct cpu_sampler_look looks[2];
        memset(looks, 0, sizeof looks);
        plain->look(x, count, &looks[0]);
        fast->look(x, count, &looks[1]);
        CHECK(memcmp(&looks[0], &looks[1], sizeof looks[0]) == 0);
        CHECK(looks[0].finite);
        maxima_compare(fast, x, count, UINT32_MAX);
        /* buckets for some, for all, for the best alone; with min_p and without */
        static const float temperatures[] = {0.7f, 0.1f, 3}, ranges[] = {20, 1e3f, 0, 1e-4f},
                           limits[] = {0, 1e-3f};
        for (int i = 0; i < 24; i++) {
            struct cpu_sampler_scale scale =
                scale_make(&looks[0], temperatures[i / 8], limits[i % 2], ranges[i / 2 % 4]);
            scales_compare(fast, x, count, &scale);
        }
        exp_add_compare(fast, x, count, looks[0].max);
        uint64_t best[2][20];
        uint32_t have = plain->best(x, count, 20, best[0]);
        CHECK_INT(have, count < 20 ? count : 20);
        CHECK_INT(fast->best(x, count, 20, best[1]), have);
        CHECK(memcmp(best[0], best[1], have * sizeof best[0][0]) == 0);
        static const float wrong[] = {__builtin_inff(), -__builtin_inff(), __builtin_nanf("")};
        for (int i = 0; i < 6; i++) {
            uint32_t at = i % 2 ? count - 1 : 0;
            float was = x[at];
            x[at] = wrong[i / 2];
            plain->look(x, count, &looks[0]);
            fast->look(x, count, &looks[1]);
            CHECK(!looks[0].finite && !looks[1].finite);
            maxima_compare(fast, x, count, at);
            x[at] = was;
        }
    }
    for (uint32_t i = 0; i < VOCAB; i++) /* exponentials that need clamps */
        x[i] = 200 * noise();
    struct cpu_sampler_look look;
    plain->look(x, VOCAB, &look);
    exp_add_compare(fast, x, VOCAB, look.max);
}

/* Whole rows, of as many words as a model has: every way to draw, from flat rows and peaked ones. */
TEST(sampler, rows_equal_plain)
{
    if (!fast_loops())
        TEST_SKIP("this CPU has none of the instruction sets");
    static float logits[WORDS], copy[WORDS];
    static const struct {
        float temperature, top_p, min_p, spread;
        uint32_t top_k;
    } ways[] = {{0, 1, 0, 4, 0},          {1, 1, 0, 4, 0},        {0.7f, 1, 0.01f, 4, 0},
                {0.8f, 0.95f, 0, 4, 0},   {0.8f, 0.95f, 0, 0, 0}, {5, 0.99f, 0.3f, 1, 0},
                {0.05f, 0.9f, 0, 30, 0},  {0.8f, 0.9f, 0, 4, 40}, {2, 0.9f, 0.001f, 4, 3000},
                {1e-30f, 0.9f, 0, 4, 0},  {1, 0.9999f, 0, 9, 0},  {0.8f, 0.95f, 0.02f, 4, 0},
                {1, 0.9999f, 0.4f, 2, 0}, {0.8f, 1, 0, 4, 300},   {1, 0.95f, 0, 0, 0},
                {1, 0.95f, 0.01f, 0, 0},  {1, 0.95f, 0, 0, 100}};
    enum { LIARS = sizeof ways / sizeof ways[0] - 3 };
    struct cpu_sampler *sampler;
    CHECK_INT(cpu_sampler_create(WORDS, &sampler), STATUS_OK);
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    how.logprobs = 5;
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++)
        for (uint32_t draw = 0; draw < 2; draw++) {
            how.temperature = ways[w].temperature;
            how.top_p = ways[w].top_p;
            how.min_p = ways[w].min_p;
            how.top_k = ways[w].top_k;
            sample.generated_count = draw;
            for (uint32_t i = 0; i < WORDS; i++) /* bell-shaped */
                logits[i] = ways[w].spread * (noise() + noise() + noise());
            /* a row of which one run in 32 knows what is best and nothing of the rest, that one at which the sampler looks, behind the
             * best; and the other way round */
            for (uint32_t i = 0; w >= LIARS && i < WORDS; i++)
                logits[i] =
                    (i / 64 % 32 == 1) == (draw == 0) ? (i % 64 < 2 ? 0 : -40.0f) : -9 + noise();
            logits[0] = w >= LIARS ? 0.25f : logits[0];
            struct kern_sample_out out[2];
            memset(out, 0, sizeof out);
            for (int fast = 0; fast < 2; fast++) {
                memcpy(copy, logits, sizeof copy);
                /* levels above have no loops of their own: theirs are these */
                enum cpu_isa_level level = draw ? CPU_ISA_LEVELS - 1 : cpu_isa_detect();
                cpu_sampler_row(sampler, fast ? level : CPU_ISA_PLAIN, &sample,
                                CPU_SAMPLER_NO_EXTRA, copy, NULL, &out[fast]);
            }
            CHECK_MSG(memcmp(&out[0], &out[1], sizeof out[0]) == 0, "way %zu, draw %u", w, draw);
            if (how.temperature > 1e-20f)
                CHECK_INT(out[0].token, slow_draw(logits, WORDS, &how, draw));
        }
    cpu_sampler_destroy(sampler);
}

/* --- maxima: a row with the head's and one without, changes that touch some runs --- */

enum { ROW_MOST = 4097 };

/* Both instruction sets, maxima given and made: one result. */
static struct kern_sample_out maxima_run(struct cpu_sampler *sampler, uint32_t vocab,
                                         const struct kern_sample *sample, int64_t extra,
                                         const float *logits)
{
    static float copy[ROW_MOST], maxima[ROW_MOST / CPU_SAMPLER_RUN + 1];
    struct kern_sample_out out[4];
    memset(out, 0, sizeof out);
    for (int i = 0; i < 4; i++) {
        memcpy(copy, logits, vocab * sizeof copy[0]);
        cpu_sampler_loops_plain.maxima(logits, vocab, maxima);
        cpu_sampler_row(sampler, i % 2 ? CPU_ISA_PLAIN : cpu_isa_detect(), sample, extra, copy,
                        i / 2 ? maxima : NULL, &out[i]);
        CHECK_MSG(memcmp(&out[0], &out[i], sizeof out[0]) == 0, "%u words, way %d: %u, then %u",
                  vocab, i, out[0].token, out[i].token);
    }
    return out[0];
}

/* As docs/NUMERICS.md says it; prompt and answer as below. */
static void changes_by_the_definition(const struct kern_sample *sample, int64_t extra,
                                      uint32_t vocab, float *x)
{
    const struct kern_sampling *how = sample->sampling;
    for (uint32_t i = 0; i < how->bias_count; i++)
        x[how->bias[i].token_id] += how->bias[i].bias;
    for (uint32_t id = 0; id < vocab; id++) {
        uint32_t prompt = 0, answer = extra == (int64_t)id;
        for (uint32_t i = 0; i < how->prompt_count; i++)
            prompt += how->prompt[i] == id;
        for (uint32_t i = 0; i < sample->generated_count; i++)
            answer += how->generated[i] == id;
        if (prompt || answer)
            x[id] = x[id] > 0 ? x[id] / how->repetition_penalty : x[id] * how->repetition_penalty;
        if (answer) {
            x[id] = x[id] - how->frequency_penalty * (float)answer;
            x[id] = x[id] - how->presence_penalty;
        }
    }
}

/* The best lies at a run's border or is there twice; a change lowers it, or lifts another above it. */
TEST(sampler, maxima_and_changes)
{
    static const uint32_t sizes[] = {1, 2, 63, 64, 65, 128, 129, 1000, ROW_MOST};
    static const struct {
        float temperature, top_p, min_p;
        uint32_t top_k;
    } ways[] = {{0, 1, 0, 0},    {1, 1, 0, 0},   {1, 1, 0.1f, 0},      {1, 0.9f, 0, 0},
                {1, 0.8f, 0, 3}, {2, 1, 0, 100}, {1, 0.9f, 0.05f, 70}, {0.5f, 0.99f, 0.2f, 0}};
    enum { WAYS = sizeof ways / sizeof ways[0], CHANGES = 6 };
    static float logits[ROW_MOST], changed[ROW_MOST];
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const uint32_t vocab = sizes[s];
        struct cpu_sampler *sampler;
        CHECK_INT(cpu_sampler_create(vocab, &sampler), STATUS_OK);
        for (uint32_t c = 0; c < 5 * CHANGES * WAYS; c++) {
            const uint32_t bests[] = {0, 63, 64, vocab - 1, vocab / 2};
            uint32_t best = bests[c % 5] % vocab, other = (best + vocab / 2 + 1) % vocab,
                     change = c / 5 % CHANGES, way = c / 5 / CHANGES;
            for (uint32_t i = 0; i < vocab; i++)
                logits[i] = 4 * noise();
            logits[best] = 5;
            if (c % 2)
                logits[(best + 64) % vocab] = 5; /* equal, in another run */
            uint32_t prompt[] = {best, other, best}, answer[] = {other, best, best};
            struct kern_bias bias[] = {{other, 2}, {best, -9}, {other, 5}};
            how = (struct kern_sampling){.temperature = ways[way].temperature,
                                         .top_p = ways[way].top_p,
                                         .min_p = ways[way].min_p,
                                         .top_k = ways[way].top_k,
                                         .repetition_penalty = change >= 3 ? 1.5f : 1,
                                         .frequency_penalty = change == 4 ? 0.75f : 0,
                                         .presence_penalty = change == 5 ? -3 : 0,
                                         .logprobs = c % 3 ? 3 : -1,
                                         .seed = c,
                                         .bias = bias,
                                         .bias_count = change == 1   ? 1
                                                       : change == 2 ? 3
                                                                     : 0,
                                         .prompt = prompt,
                                         .prompt_count = 3,
                                         .generated = answer};
            sample.generated_count = 3;
            int64_t extra = c % 4 ? CPU_SAMPLER_NO_EXTRA : (int64_t)other;
            struct kern_sample_out out = maxima_run(sampler, vocab, &sample, extra, logits);
            memcpy(changed, logits, sizeof changed);
            changes_by_the_definition(&sample, extra, vocab, changed);
            CHECK(out.finite);
            if (how.temperature > 0) {
                CHECK_INT(out.token, slow_draw(changed, vocab, &how, 3));
            } else {
                uint32_t first = 0;
                for (uint32_t i = 1; i < vocab; i++)
                    first = changed[i] > changed[first] ? i : first;
                CHECK_INT(out.token, first);
            }
            if (how.logprobs < 0)
                continue;
            CHECK_INT(out.top_count, vocab < 3 ? vocab : 3);
            float max = logits[out.top_ids[0]], log_sum = -out.top_logprobs[0];
            CHECK(out.logprob == (logits[out.token] - max) - log_sum); /* the raw logits */
            for (uint32_t i = 0; i < out.top_count; i++) {
                uint32_t better = 0;
                for (uint32_t j = 0; j < vocab; j++)
                    better += logits[j] > logits[out.top_ids[i]] ||
                              (logits[j] == logits[out.top_ids[i]] && j < out.top_ids[i]);
                CHECK_INT(better, i);
            }
        }
        cpu_sampler_destroy(sampler);
    }
}

/* In any run, alone or beside another; and what only changes make infinite. */
TEST(sampler, maxima_of_what_is_not_finite)
{
    static const float wrong[] = {__builtin_inff(), -__builtin_inff(), __builtin_nanf("")};
    static const uint32_t sizes[] = {1, 64, 65, 1000, ROW_MOST};
    static float logits[ROW_MOST];
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint32_t vocab = sizes[s], step = vocab / 40 + 1;
        struct cpu_sampler *sampler;
        CHECK_INT(cpu_sampler_create(vocab, &sampler), STATUS_OK);
        for (uint32_t i = 0; i < vocab; i++)
            logits[i] = 4 * noise();
        for (uint32_t at = 0; at < vocab; at += step)
            for (int i = 0; i < 6; i++) {
                float was = logits[at], was_last = logits[vocab - 1];
                if (i >= 3)
                    logits[vocab - 1] = -wrong[i % 3];
                logits[at] = wrong[i % 3];
                how.temperature = (float)(i % 2);
                CHECK(!maxima_run(sampler, vocab, &sample, CPU_SAMPLER_NO_EXTRA, logits).finite);
                logits[vocab - 1] = was_last;
                logits[at] = was;
            }
        struct kern_bias bias[] = {{vocab / 2, 3e38f}, {vocab / 2, 3e38f}};
        how.bias = bias;
        how.bias_count = 2;
        CHECK(!maxima_run(sampler, vocab, &sample, CPU_SAMPLER_NO_EXTRA, logits).finite);
        bias[0].bias = bias[1].bias = -3e38f; /* is never drawn, if there is another */
        struct kern_sample_out out =
            maxima_run(sampler, vocab, &sample, CPU_SAMPLER_NO_EXTRA, logits);
        CHECK(vocab == 1 ? !out.finite : out.finite && out.token != vocab / 2);
        how.bias_count = 0;
        cpu_sampler_destroy(sampler);
    }
}
