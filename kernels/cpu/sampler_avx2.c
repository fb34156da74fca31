/* The sampler's loops over the vocabulary for AVX2 and FMA: equal to sampler_plain.c to the bit.
 * Owner: any compute thread. Compiled with -mavx2 -mfma. */
#include "kernels/cpu/mathf_avx2.h"
#include "kernels/cpu/sampler_best.h"

static bool all_finite(const float *x, uint32_t count)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    uint32_t i = 0, rest = 0;
    for (; i + 8 <= count; i += 8) {
        __m256i bits = _mm256_and_si256(_mm256_loadu_si256((const void *)(x + i)), exponent);
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(bits, exponent));
    }
    for (; i < count; i++)
        rest |= (uint32_t)((mathf_bits(x[i]) & 0x7f800000u) == 0x7f800000u);
    return _mm256_testz_si256(bad, bad) && rest == 0;
}

static float max_of(const float *x, uint32_t count)
{
    float best = x[0];
    uint32_t i = 0;
    if (count >= 32) {
        __m256 top[4];
        for (int j = 0; j < 4; j++)
            top[j] = _mm256_loadu_ps(x + j * 8);
        for (i = 32; i + 32 <= count; i += 32)
            for (int j = 0; j < 4; j++)
                top[j] = _mm256_max_ps(top[j], _mm256_loadu_ps(x + i + j * 8));
        top[0] = _mm256_max_ps(_mm256_max_ps(top[0], top[1]), _mm256_max_ps(top[2], top[3]));
        float lanes[8];
        _mm256_storeu_ps(lanes, top[0]);
        for (int j = 0; j < 8; j++)
            best = lanes[j] > best ? lanes[j] : best;
    }
    for (; i < count; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

/* The sum waits for itself alone, value by value; the next weights are made meanwhile. */
static double weights(const float *x, float max, float temperature, float min, uint32_t count,
                      float *weight, double *sums)
{
    const __m256 top = _mm256_set1_ps(max), scale = _mm256_set1_ps(temperature),
                 least = _mm256_set1_ps(min);
    double sum = 0;
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        _Alignas(32) double counted[8];
        __m256 w = mathf8_exp(_mm256_div_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), top), scale));
        _mm256_storeu_ps(weight + i, w);
        w = _mm256_and_ps(w, _mm256_cmp_ps(w, least, _CMP_GE_OQ)); /* + 0 changes nothing */
        _mm256_store_pd(counted, _mm256_cvtps_pd(_mm256_castps256_ps128(w)));
        _mm256_store_pd(counted + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(w, 1)));
        for (int j = 0; j < 8; j++)
            sum += counted[j];
        sums[i / CPU_SAMPLER_RUN] = sum;
    }
    for (; i < count; i++) {
        weight[i] = mathf_exp((x[i] - max) / temperature);
        sum += weight[i] >= min ? (double)weight[i] : 0.0;
        sums[i / CPU_SAMPLER_RUN] = sum;
    }
    return sum;
}

/* Eight at a time are dropped together: few are likely. */
static uint32_t collect(const float *x, uint32_t count, uint64_t below, float floor, bool likely,
                        uint64_t *keys)
{
    const __m256 limit = _mm256_set1_ps(floor);
    const int side = likely ? 0 : 255;
    uint32_t have = 0, i = 0;
    while (i < count) {
        uint32_t end = i + 8 < count ? i + 8 : count;
        if (i + 8 <= count &&
            _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), limit, _CMP_GE_OQ)) == side) {
            i = end;
            continue;
        }
        for (; i < end; i++) {
            uint64_t key = cpu_sampler_key(x[i], i);
            keys[have] = key;
            have += key < below && (x[i] >= floor) == likely;
        }
    }
    return have;
}

/* Looks for anything better than the worst that is kept, 32 values at a time: soon there is next to nothing. */
static uint32_t best(const float *x, uint32_t count, uint32_t wanted, uint64_t *keys)
{
    uint32_t have = 0, i = 0;
    if (wanted == 0)
        return 0;
    while (i < count) {
        uint32_t end = i + 32 < count ? i + 32 : count;
        if (have == wanted && i + 32 <= count) {
            __m256 worst = _mm256_set1_ps(cpu_sampler_key_value(keys[have - 1]));
            __m256 better = _mm256_cmp_ps(_mm256_loadu_ps(x + i), worst, _CMP_GT_OQ);
            for (uint32_t j = 8; j < 32; j += 8)
                better = _mm256_or_ps(better,
                                      _mm256_cmp_ps(_mm256_loadu_ps(x + i + j), worst, _CMP_GT_OQ));
            if (_mm256_testz_si256(_mm256_castps_si256(better), _mm256_castps_si256(better))) {
                i = end;
                continue;
            }
        }
        for (; i < end; i++)
            have = sampler_best_put(cpu_sampler_key(x[i], i), wanted, have, keys);
    }
    return have;
}

static float exp_sum(const float *x, float max, uint32_t count)
{
    const __m256 top = _mm256_set1_ps(max);
    __m256 low = _mm256_setzero_ps(), high = low;
    uint32_t i = 0;
    for (; i + 16 <= count; i += 16) {
        low = _mm256_add_ps(low, mathf8_exp(_mm256_sub_ps(_mm256_loadu_ps(x + i), top)));
        high = _mm256_add_ps(high, mathf8_exp(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), top)));
    }
    float partial[16];
    _mm256_storeu_ps(partial, low);
    _mm256_storeu_ps(partial + 8, high);
    for (int lane = 0; i < count; i++, lane++)
        partial[lane] = partial[lane] + mathf_exp(x[i] - max);
    return mathf8_sum16(_mm256_loadu_ps(partial), _mm256_loadu_ps(partial + 8));
}

const struct cpu_sampler_loops cpu_sampler_loops_avx2 = {
    .all_finite = all_finite,
    .max = max_of,
    .weights = weights,
    .collect = collect,
    .best = best,
    .exp_sum = exp_sum,
};
