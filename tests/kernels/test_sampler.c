/* The sampler: the generator against its published answers, each filter against a slow and obvious one, frequencies against
 * probabilities, weights against exact ones, and rows by every instruction set against the plain ones. */
#include "kernels/cpu/sampler.h"

#include <math.h>

#include "kernels/cpu/mathf.h"
#include "kernels/cpu/philox.h"
#include "tests/kernels/slow_draw.h"
#include "tests/test.h"

enum { VOCAB = 1003 };

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
    /* seed, index, position and block: each changes both numbers; which words a number is made of */
    static const struct {
        uint64_t seed;
        uint32_t index, position, block;
    } others[] = {{1, 0, 0, 0}, {1, 1, 0, 0}, {1, 0, 1, 0},
                  {2, 0, 0, 0}, {1, 0, 0, 1}, {UINT64_C(1) | UINT64_C(1) << 32, 0, 0, 0}};
    uint64_t numbers[6][2];
    for (int i = 0; i < 6; i++) {
        philox_block(others[i].seed, others[i].index, others[i].position, others[i].block,
                     numbers[i]);
        for (int j = 0; j < i; j++)
            CHECK(numbers[i][0] != numbers[j][0] && numbers[i][1] != numbers[j][1]);
    }
    philox_block(0, 0, 0, 0, numbers[0]);
    CHECK(numbers[0][0] == 0x6627e8d5e169c58d && numbers[0][1] == 0xbc57ac4c9b00dbd8);
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

/* Of all words of a row whose last run is short: Pearson's chi-square against exact probabilities. */
TEST(sampler, frequencies_of_many)
{
    enum { WORDS_DRAWN = 150 };
    static const struct {
        float top_p, min_p;
        uint32_t top_k;
    } ways[] = {{1, 0, 0},    {1, 0.1f, 0},     {0.8f, 0, 0},
                {0.3f, 0, 0}, {0.9f, 0.02f, 0}, {0.9f, 0, 40}};
    const int draws = 40000 / (int)test_thin();
    float logits[WORDS_DRAWN], copy[WORDS_DRAWN];
    struct cpu_sampler *sampler;
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    CHECK_INT(cpu_sampler_create(WORDS_DRAWN, &sampler), STATUS_OK);
    for (int i = 0; i < WORDS_DRAWN; i++)
        logits[i] = 2 * (slow_noise() + slow_noise() + slow_noise());
    how.temperature = 0.8f;
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        double chance[WORDS_DRAWN], whole = 0, total = 0, square = 0, best = 0, left[WORDS_DRAWN];
        int hits[WORDS_DRAWN] = {0}, kinds = 0;
        for (int i = 0; i < WORDS_DRAWN; i++) {
            chance[i] = exp((double)logits[i] / 0.8);
            best = fmax(best, chance[i]);
        }
        for (int i = 0; i < WORDS_DRAWN; i++) { /* of the top_k best */
            uint32_t better = 0;
            for (int j = 0; j < WORDS_DRAWN; j++)
                better += chance[j] > chance[i];
            left[i] = ways[w].top_k == 0 || better < ways[w].top_k ? chance[i] : 0;
            total += left[i];
        }
        for (int i = 0; i < WORDS_DRAWN; i++) {
            double before = 0;
            for (int j = 0; j < WORDS_DRAWN; j++)
                before += left[j] > left[i] ? left[j] : 0;
            bool out = before >= (double)ways[w].top_p * total && before > 0;
            chance[i] = out || chance[i] < (double)ways[w].min_p * best ? 0 : left[i];
            whole += chance[i];
        }
        how.top_k = ways[w].top_k;
        how.top_p = ways[w].top_p;
        how.min_p = ways[w].min_p;
        for (int n = 0; n < draws; n++) {
            struct kern_sample_out out;
            memcpy(copy, logits, sizeof copy);
            sample.generated_count = (uint32_t)n;
            cpu_sampler_row(sampler, cpu_isa_detect(), &sample, CPU_SAMPLER_NO_EXTRA, copy, NULL,
                            &out);
            hits[out.token]++;
        }
        double rare = 0, rare_hits = 0;
        for (int i = 0; i < WORDS_DRAWN; i++) {
            double expected = chance[i] / whole * draws;
            CHECK_MSG(expected > 0 || hits[i] == 0, "way %zu: %d is drawn, %d times", w, i,
                      hits[i]);
            if (expected < 8) {
                rare += expected;
                rare_hits += hits[i];
                continue;
            }
            square += (hits[i] - expected) * (hits[i] - expected) / expected;
            kinds++;
        }
        if (rare >= 8)
            square += (rare_hits - rare) * (rare_hits - rare) / rare;
        CHECK_MSG(square < kinds + 4 * sqrt(2.0 * kinds), "way %zu: %g for %d kinds of words", w,
                  square, kinds);
    }
    cpu_sampler_destroy(sampler);
}

/* Weights and exponentials against exact ones, over all that they are made for. */
TEST(sampler, weights_close)
{
    static const float temperatures[] = {1, 0.7f, 0.05f, 17};
    double worst = 0, worst_exp = 0;
    for (int t = 0; t < 4; t++) {
        struct cpu_sampler_scale scale = scale_of_temperature(3, temperatures[t]);
        for (double e = 0; e < 24; e += 0.000031 * (double)test_thin()) {
            float x = (float)(3 - e * (double)temperatures[t]);
            double exact = 0x1p30 * exp2((double)(x - 3) * (double)scale.rate),
                   units = cpu_sampler_units(&scale, x),
                   off = units > exact ? units - exact : fmax(0, exact - units - 1);
            worst = fmax(worst, off / exact);
        }
        CHECK(cpu_sampler_units(&scale, 3) == 1u << 30);
        CHECK(cpu_sampler_units(&scale, -3e38f) == 0);
        CHECK(cpu_sampler_units(&scale, -INFINITY) == 0);
    }
    CHECK_MSG(worst < 3e-6, "a weight is off by %g of itself", worst);
    for (double below = 0; below > -87; below -= 0.00011 * (double)test_thin()) {
        double exact = exp((double)(float)below);
        double off = fabs((double)cpu_sampler_exp_add(0, (float)below) - exact) / exact;
        worst_exp =
            fmax(worst_exp, off / (3e-6 - 1.5e-8 * below)); /* of what 1 / ln 2 lacks, more */
    }
    CHECK_MSG(worst_exp < 1, "an exponential is off by %g of what it may be", worst_exp);
    CHECK(cpu_sampler_exp_add(0, 0) == 1.0f);
    CHECK(cpu_sampler_exp_add(0, -3e38f) == cpu_sampler_exp_add(0, -87));
    CHECK_INT(cpu_sampler_least(0), 0);
    CHECK_INT(cpu_sampler_least(0x1p-40f), 1);
    CHECK_INT(cpu_sampler_least(0x1p-30f), 1);
    CHECK_INT(cpu_sampler_least(0x1.8p-29f), 3);
    CHECK_INT(cpu_sampler_least(1), 1 << 30);
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
        logits[i] = 5 * slow_noise();
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
                        values[i] = (float)(int)(slow_noise() * 64) * spreads[s];
                    how.top_k = top_ks[k];
                    how.top_p = top_ps[p];
                    how.min_p = draw == 5 ? 1 : draw % 2 ? 1e-3f : 0;
                    how.temperature = draw < 3 ? 1.0f : 20.0f;
                    sample.generated_count = draw;
                    CHECK_INT(sample_run(&sample, values).token,
                              slow_draw(values, VOCAB, &how, draw));
                }
}

/* One word in each run, so that most proposals are in vain, and now and then all. */
TEST(sampler, proposals_in_vain)
{
    static const float top_ps[] = {1, 0.4f, 0.97f};
    struct cpu_sampler *sampler;
    struct kern_sampling how;
    struct kern_sample sample = sample_make(&how);
    float values[130], copy[130];
    CHECK_INT(cpu_sampler_create(130, &sampler), STATUS_OK);
    for (int i = 0; i < 130; i++)
        values[i] = -50;
    values[70] = 3;
    values[3] = values[129] = 2;
    for (int p = 0; p < 3; p++) {
        slow_fell = 0;
        how.top_p = top_ps[p];
        for (uint32_t n = 0; n < 20000; n++) {
            struct kern_sample_out out;
            memcpy(copy, values, sizeof copy);
            sample.generated_count = n;
            cpu_sampler_row(sampler, cpu_isa_detect(), &sample, CPU_SAMPLER_NO_EXTRA, copy, NULL,
                            &out);
            CHECK_INT(out.token, slow_draw(values, 130, &how, n));
        }
        CHECK(slow_fell > 0);
    }
    cpu_sampler_destroy(sampler);
}

/* Whole rows, of as many words as a model has: every way to draw, from flat rows and peaked ones. */
TEST(sampler, rows_equal_plain)
{
    if (!slow_fast_loops())
        TEST_SKIP("this CPU has none of the instruction sets");
    static float logits[SLOW_WORDS], copy[SLOW_WORDS];
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
    CHECK_INT(cpu_sampler_create(SLOW_WORDS, &sampler), STATUS_OK);
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
            for (uint32_t i = 0; i < SLOW_WORDS; i++) /* bell-shaped */
                logits[i] = ways[w].spread * (slow_noise() + slow_noise() + slow_noise());
            /* a row of which one run in 32 knows what is best and nothing of the rest, that one at which the sampler looks, behind the
             * best; and the other way round */
            for (uint32_t i = 0; w >= LIARS && i < SLOW_WORDS; i++)
                logits[i] = (i / 64 % 32 == 1) == (draw == 0) ? (i % 64 < 2 ? 0 : -40.0f)
                                                              : -9 + slow_noise();
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
                CHECK_INT(out[0].token, slow_draw(logits, SLOW_WORDS, &how, draw));
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
                logits[i] = 4 * slow_noise();
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
            logits[i] = 4 * slow_noise();
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
