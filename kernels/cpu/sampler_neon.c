/* The sampler's loops over the vocabulary for 64-bit Arm: equal to sampler_plain.c to the bit. Buckets, which are a number in memory for
 * each value, are plain.
 * Owner: any compute thread. */
#include "kernels/cpu/mathf_neon.h"
#include "kernels/cpu/sampler_best.h"

/* Run by run, so that the first maximum's is known. What is not finite times 0 is a NaN, and stays one. */
static void look(const float *x, uint32_t count, struct cpu_sampler_look *look_out)
{
    struct cpu_sampler_look look = {.max = x[0], .min = x[0], .finite = true};
    float32x4_t bad = vdupq_n_f32(0), low = vdupq_n_f32(x[0]);
    uint32_t i = 0;
    for (; i + CPU_SAMPLER_RUN <= count; i += CPU_SAMPLER_RUN) {
        float32x4_t top = vld1q_f32(x + i);
        for (uint32_t j = 0; j < CPU_SAMPLER_RUN; j += 4) {
            float32x4_t v = vld1q_f32(x + i + j);
            bad = vfmaq_f32(bad, v, vdupq_n_f32(0));
            low = vminq_f32(low, v);
            top = vmaxq_f32(top, v);
        }
        float most = vmaxvq_f32(top);
        if (most > look.max) {
            look.max = most;
            look.at = i;
        }
    }
    look.min = vminvq_f32(low);
    look.finite = vaddvq_f32(bad) == 0.0f;
    *look_out = look;
    sampler_look_from(i, x, count, look_out);
}

static void maxima(const float *x, uint32_t count, float *maxima_out)
{
    uint32_t i = 0;
    for (; i + CPU_SAMPLER_RUN <= count; i += CPU_SAMPLER_RUN) {
        float32x4_t top = vld1q_f32(x + i), bad = vdupq_n_f32(0);
        for (uint32_t j = 0; j < CPU_SAMPLER_RUN; j += 4) {
            float32x4_t v = vld1q_f32(x + i + j);
            bad = vfmaq_f32(bad, v, vdupq_n_f32(0));
            top = vmaxq_f32(top, v);
        }
        maxima_out[i / CPU_SAMPLER_RUN] =
            vaddvq_f32(bad) == 0.0f ? vmaxvq_f32(top) : __builtin_nanf("");
    }
    sampler_maxima_from(i, x, count, maxima_out);
}

static uint64_t runs(const float *x, const float *maxima_of, uint32_t count,
                     const struct cpu_sampler_scale *scale, uint64_t sum, uint64_t *sums)
{
    const float32x4_t max = vdupq_n_f32(scale->max), inverse = vdupq_n_f32(scale->inverse),
                      least = vdupq_n_f32(scale->min_p),
                      unit = vdupq_n_f32(1 << CPU_SAMPLER_UNIT_BITS);
    uint32_t i = 0;
    for (; i + CPU_SAMPLER_RUN <= count; i += CPU_SAMPLER_RUN) {
        float most = cpu_sampler_exponent(scale, maxima_of[i / CPU_SAMPLER_RUN]);
        if (most <= CPU_SAMPLER_NOTHING) {
            sums[i / CPU_SAMPLER_SUM] = sum;
            continue;
        }
        uint64x2_t run = vdupq_n_u64(0);
        for (uint32_t j = 0; j < CPU_SAMPLER_RUN; j += 4) {
            float32x4_t exponent = vmulq_f32(vsubq_f32(vld1q_f32(x + i + j), max), inverse);
            float32x4_t weight = mathf4_exp(exponent);
            uint32x4_t units = vcvtnq_u32_f32(vmulq_f32(weight, unit)); /* ties to even */
            run = vpadalq_u32(run, vandq_u32(units, vcgeq_f32(weight, least)));
        }
        sum += vaddvq_u64(run);
        sums[i / CPU_SAMPLER_SUM] = sum;
    }
    return sampler_runs_from(i, x, count, scale, sum, sums);
}

/* Looks for anything better than the worst that is kept, 16 values at a time: soon there is next to nothing. */
static uint32_t best(const float *x, uint32_t count, uint32_t wanted, uint64_t *keys)
{
    uint32_t have = 0, i = 0;
    if (wanted == 0)
        return 0;
    while (i < count) {
        uint32_t end = i + 16 < count ? i + 16 : count;
        if (have == wanted && i + 16 <= count) {
            float32x4_t low = vmaxq_f32(vld1q_f32(x + i), vld1q_f32(x + i + 4)),
                        high = vmaxq_f32(vld1q_f32(x + i + 8), vld1q_f32(x + i + 12));
            if (!(vmaxvq_f32(vmaxq_f32(low, high)) > cpu_sampler_key_value(keys[have - 1]))) {
                i = end;
                continue;
            }
        }
        for (; i < end; i++)
            have = sampler_best_put(cpu_sampler_key(x[i], i), wanted, have, keys);
    }
    return have;
}

static void exp_add(const float *x, uint32_t count, float max, float partial[16])
{
    float32x4_t sums[4];
    for (int j = 0; j < 4; j++)
        sums[j] = vld1q_f32(partial + 4 * j);
    uint32_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int j = 0; j < 4; j++)
            sums[j] = vaddq_f32(sums[j],
                                mathf4_exp(vsubq_f32(vld1q_f32(x + i + 4 * j), vdupq_n_f32(max))));
    for (int j = 0; j < 4; j++)
        vst1q_f32(partial + 4 * j, sums[j]);
    sampler_exp_from(i, x, count, max, partial);
}

const struct cpu_sampler_loops cpu_sampler_loops_neon = {
    .look = look,
    .maxima = maxima,
    .runs = runs,
    .units = sampler_units,
    .buckets = sampler_buckets,
    .above = sampler_above,
    .gather = sampler_gather,
    .collect = sampler_collect,
    .best = best,
    .exp_add = exp_add,
};
