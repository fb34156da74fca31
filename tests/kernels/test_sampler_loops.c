/* The sampler's loops of each instruction set against the plain ones, and their sums against the definition. */
#include "kernels/cpu/sampler.h"
#include "tests/kernels/slow_draw.h"
#include "tests/test.h"

enum { VOCAB = 1003 };

/* A scale whose buckets reach `range` below the best, in exponents. */
static struct cpu_sampler_scale scale_make(const struct cpu_sampler_look *look, float temperature,
                                           float range)
{
    struct cpu_sampler_scale scale = scale_of_temperature(look->max, temperature);
    scale.per = range > 0 ? -(float)(CPU_SAMPLER_BUCKETS - 1) / range : -1e30f;
    return scale;
}

/* Sums of all runs, of every second one, with the maxima and without, before each of some values; against the definition, too. */
static void sums_compare(const struct cpu_sampler_loops *fast, const float *x, const float *maxima,
                         uint32_t count, const struct cpu_sampler_scale *scale)
{
    enum { RUNS = VOCAB / CPU_SAMPLER_RUN + 1 };
    const struct cpu_sampler_loops *plain = &cpu_sampler_loops_plain;
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t runs[RUNS], run_count = 0, id = (count - 1) * (i / 2) / 5;
        for (uint32_t k = i % 2; k * CPU_SAMPLER_RUN < count; k += 1 + i % 2)
            runs[run_count++] = k;
        const uint32_t *listed = i % 2 ? runs : NULL;
        if (x[id] < -FLT_MAX)
            continue; /* is never asked for */
        uint64_t sum = 0, before = 0, before_fast = 1;
        for (uint32_t k = 0; k < run_count * CPU_SAMPLER_RUN; k++) {
            uint32_t at = runs[k / CPU_SAMPLER_RUN] * CPU_SAMPLER_RUN + k % CPU_SAMPLER_RUN;
            if (at >= count)
                continue;
            uint32_t units = cpu_sampler_units(scale, x[at]);
            sum += units;
            if (cpu_sampler_key(x[at], at) > cpu_sampler_key(x[id], id))
                before += units;
        }
        CHECK(plain->sum(x, maxima, count, listed, run_count, scale, id, &before_fast) == sum);
        CHECK(before_fast == before);
        CHECK(fast->sum(x, maxima, count, listed, run_count, scale, id, &before_fast) == sum);
        CHECK(before_fast == before);
        CHECK(fast->sum(x, NULL, count, listed, run_count, scale, id, &before_fast) == sum);
        CHECK(before_fast == before);
        CHECK(plain->sum(x, maxima, count, listed, run_count, scale, 0, NULL) == sum);
        CHECK(fast->sum(x, maxima, count, listed, run_count, scale, 0, NULL) == sum);
    }
}

static void scales_compare(const struct cpu_sampler_loops *fast, const float *x, uint32_t count,
                           const struct cpu_sampler_scale *scale)
{
    enum { RUNS = VOCAB / CPU_SAMPLER_RUN + 1 };
    const struct cpu_sampler_loops *plain = &cpu_sampler_loops_plain;
    static uint32_t counts[2][CPU_SAMPLER_BUCKETS];
    static uint64_t keys[2][VOCAB];
    static uint16_t places[2][VOCAB];
    static float maxima[RUNS];
    plain->maxima(x, count, maxima);
    static uint32_t units[2][VOCAB];
    plain->units(x, count, scale, units[0]);
    fast->units(x, count, scale, units[1]);
    CHECK(memcmp(units[0], units[1], count * sizeof units[0][0]) == 0);
    sums_compare(fast, x, maxima, count, scale);
    plain->buckets(x, count, scale, places[0], counts[0]);
    fast->buckets(x, count, scale, places[1], counts[1]);
    CHECK(memcmp(counts[0], counts[1], sizeof counts[0]) == 0);
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

TEST(sampler_loops, equal_plain)
{
    const struct cpu_sampler_loops *plain = &cpu_sampler_loops_plain, *fast = slow_fast_loops();
    if (!fast)
        TEST_SKIP("this CPU has none of the instruction sets");
    static float x[VOCAB];
    for (uint32_t count = 1; count <= VOCAB; count += count < 40 ? 3 : 160) {
        for (uint32_t i = 0; i < count; i++)
            x[i] = 30 * slow_noise();
        if (count > 100)
            x[count / 2] = x[count / 3] = 31; /* the best twice */
        struct cpu_sampler_look looks[2];
        memset(looks, 0, sizeof looks);
        plain->look(x, count, &looks[0]);
        fast->look(x, count, &looks[1]);
        CHECK(memcmp(&looks[0], &looks[1], sizeof looks[0]) == 0);
        CHECK(looks[0].finite);
        maxima_compare(fast, x, count, UINT32_MAX);
        /* buckets for some, for all, for the best alone; weights of all sizes, of the best alone, about equal */
        static const float temperatures[] = {0.7f, 0.1f, 3, 1e-30f, 1e-42f, 1e4f},
                           ranges[] = {20, 1e3f, 0, 1e-4f};
        for (int i = 0; i < 24; i++) {
            struct cpu_sampler_scale scale =
                scale_make(&looks[0], temperatures[i / 4], ranges[i % 4]);
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
        x[i] = 200 * slow_noise();
    struct cpu_sampler_look look;
    plain->look(x, VOCAB, &look);
    exp_add_compare(fast, x, VOCAB, look.max);
    for (uint32_t i = 0; i < VOCAB;
         i++) { /* equal ones, zeros of both signs, and what changes may leave */
        static const float kinds[] = {0, -0.0f, 0.25f, -0.25f, 0.5f, -3e38f, -3.4e38f, -INFINITY};
        x[i] = kinds[(uint32_t)(4 + 4 * slow_noise()) % 8];
    }
    for (int i = 0; i < 4; i++) {
        struct cpu_sampler_scale scale = scale_of_temperature(0.5f, i % 2 ? 1e-42f : 1);
        if (i / 2)
            scale.max = 3e38f;
        sums_compare(fast, x, NULL, VOCAB, &scale);
        uint32_t units[2][VOCAB];
        plain->units(x, VOCAB, &scale, units[0]);
        fast->units(x, VOCAB, &scale, units[1]);
        CHECK(memcmp(units[0], units[1], sizeof units[0]) == 0);
    }
}
