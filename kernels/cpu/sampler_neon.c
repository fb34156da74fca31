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

/* As cpu_sampler_units; vfmaq_f32(c, a, b) is fma(a, b, c). */
static inline uint32x4_t units4(float32x4_t x, float32x4_t max, float32x4_t rate)
{
    const float32x4_t magic = vdupq_n_f32(MATHF_MAGIC);
    float32x4_t below = vsubq_f32(x, max), shifted = vfmsq_f32(magic, below, rate);
    uint32x4_t down =
        vsubq_u32(vreinterpretq_u32_f32(shifted), vdupq_n_u32(mathf_bits(MATHF_MAGIC)));
    float32x4_t r = vfmaq_f32(vsubq_f32(shifted, magic), below, rate);
    float32x4_t unit = vdupq_n_f32(1 << CPU_SAMPLER_UNIT_BITS);
    uint32x4_t units = vcvtq_u32_f32(vmulq_f32(mathf4_exp2_half(r), unit));
    int32x4_t up = vnegq_s32(vreinterpretq_s32_u32(vminq_u32(down, vdupq_n_u32(32))));
    return vshlq_u32(units, up);
}

static void units(const float *x, uint32_t count, const struct cpu_sampler_scale *scale,
                  uint32_t *units_out)
{
    const float32x4_t max = vdupq_n_f32(scale->max), rate = vdupq_n_f32(scale->rate);
    uint32_t i = 0;
    for (; i + 4 <= count; i += 4)
        vst1q_u32(units_out + i, units4(vld1q_f32(x + i), max, rate));
    sampler_units(x + i, count - i, scale, units_out + i);
}

static uint64_t sum(const float *x, const float *maxima_of, uint32_t count, const uint32_t *runs,
                    uint32_t run_count, const struct cpu_sampler_scale *scale, uint32_t id,
                    uint64_t *before_out)
{
    const float32x4_t max = vdupq_n_f32(scale->max), rate = vdupq_n_f32(scale->rate);
    uint64_t whole = 0;
    (void)maxima_of;
    if (before_out)
        *before_out = 0;
    for (uint32_t k = 0; k < run_count; k++) {
        uint32_t run = runs ? runs[k] : k, begin = run * CPU_SAMPLER_RUN;
        if (count - begin < CPU_SAMPLER_RUN || (before_out && run == id / CPU_SAMPLER_RUN)) {
            whole += sampler_sum_run(x, count, run, scale, id, before_out);
            continue;
        }
        float32x4_t above = vdupq_n_f32(sampler_before(x, id, begin));
        uint64x2_t all = vdupq_n_u64(0), before = all;
        for (uint32_t j = 0; j < CPU_SAMPLER_RUN; j += 4) {
            float32x4_t v = vld1q_f32(x + begin + j);
            uint32x4_t u = units4(v, max, rate);
            all = vpadalq_u32(all, u);
            before = vpadalq_u32(before, vandq_u32(u, vcgtq_f32(v, above)));
        }
        whole += vaddvq_u64(all);
        if (before_out)
            *before_out += vaddvq_u64(before);
    }
    return whole;
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

static inline float32x4_t exp_add4(float32x4_t sum, float32x4_t below)
{
    const float32x4_t magic = vdupq_n_f32(MATHF_MAGIC + CPU_SAMPLER_BIAS),
                      log2e = vdupq_n_f32(MATHF_LOG2E);
    below = vmaxq_f32(below, vdupq_n_f32(CPU_SAMPLER_BEYOND));
    float32x4_t shifted = vfmaq_f32(magic, below, log2e);
    float32x4_t r = vfmaq_f32(vsubq_f32(magic, shifted), below, log2e);
    uint32x4_t up = vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23);
    return vfmaq_f32(sum, mathf4_exp2_half(r), vreinterpretq_f32_u32(up));
}

static void exp_add(const float *x, uint32_t count, float max, float partial[16])
{
    float32x4_t sums[4];
    for (int j = 0; j < 4; j++)
        sums[j] = vld1q_f32(partial + 4 * j);
    uint32_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int j = 0; j < 4; j++)
            sums[j] = exp_add4(sums[j], vsubq_f32(vld1q_f32(x + i + 4 * j), vdupq_n_f32(max)));
    for (int j = 0; j < 4; j++)
        vst1q_f32(partial + 4 * j, sums[j]);
    sampler_exp_from(i, x, count, max, partial);
}

const struct cpu_sampler_loops cpu_sampler_loops_neon = {
    .look = look,
    .maxima = maxima,
    .units = units,
    .sum = sum,
    .buckets = sampler_buckets,
    .above = sampler_above,
    .gather = sampler_gather,
    .collect = sampler_collect,
    .best = best,
    .exp_add = exp_add,
};
