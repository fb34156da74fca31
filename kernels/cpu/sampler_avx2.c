/* The sampler's loops over the vocabulary for AVX2 and FMA: equal to sampler_plain.c to the bit.
 * Owner: any compute thread. Compiled with -mavx2 -mfma. */
#include "kernels/cpu/mathf_avx2.h"
#include "kernels/cpu/sampler_best.h"

static inline float highest(__m256 x)
{
    __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
    return _mm_cvtss_f32(_mm_max_ss(x2, _mm_movehdup_ps(x2)));
}

/* Run by run, so that the first maximum's is known. What is not finite times 0 is a NaN, and stays one. */
static void look(const float *x, uint32_t count, struct cpu_sampler_look *look_out)
{
    struct cpu_sampler_look look = {.max = x[0], .min = x[0], .finite = true};
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 bad[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 low[2] = {_mm256_set1_ps(x[0]), _mm256_set1_ps(x[0])};
    uint32_t i = 0;
    for (; i + CPU_SAMPLER_RUN <= count; i += CPU_SAMPLER_RUN) {
        __m256 top[2];
        for (uint32_t j = 0; j < CPU_SAMPLER_RUN; j += 16)
            for (uint32_t half = 0; half < 2; half++) {
                __m256 v = _mm256_loadu_ps(x + i + j + 8 * half);
                bad[half] = _mm256_fmadd_ps(v, _mm256_setzero_ps(), bad[half]);
                low[half] = _mm256_min_ps(low[half], v);
                top[half] = j ? _mm256_max_ps(top[half], v) : v;
            }
        __m256 most = _mm256_max_ps(top[0], top[1]);
        __m256 above = _mm256_cmp_ps(most, _mm256_set1_ps(look.max), _CMP_GT_OQ);
        if (!_mm256_testz_ps(above, above)) {
            look.max = highest(most);
            look.at = i;
        }
    }
    look.min = -highest(_mm256_xor_ps(_mm256_min_ps(low[0], low[1]), sign));
    __m256 wrong = _mm256_add_ps(bad[0], bad[1]);
    look.finite = !_mm256_movemask_ps(_mm256_cmp_ps(wrong, wrong, _CMP_UNORD_Q));
    *look_out = look;
    sampler_look_from(i, x, count, look_out);
}

static void maxima(const float *x, uint32_t count, float *maxima_out)
{
    uint32_t i = 0;
    for (; i + CPU_SAMPLER_RUN <= count; i += CPU_SAMPLER_RUN) {
        __m256 top = _mm256_loadu_ps(x + i), bad = _mm256_mul_ps(top, _mm256_setzero_ps());
        for (uint32_t j = 8; j < CPU_SAMPLER_RUN; j += 8) {
            __m256 v = _mm256_loadu_ps(x + i + j);
            bad = _mm256_fmadd_ps(v, _mm256_setzero_ps(), bad);
            top = _mm256_max_ps(top, v);
        }
        bool finite = !_mm256_movemask_ps(_mm256_cmp_ps(bad, bad, _CMP_UNORD_Q));
        maxima_out[i / CPU_SAMPLER_RUN] = finite ? highest(top) : __builtin_nanf("");
    }
    sampler_maxima_from(i, x, count, maxima_out);
}

/* Two vectors take each step in turn. Four leave no registers for the constants, one waits for itself. */
enum { CHAINS = 2 };
#define EACH_CHAIN _Pragma("GCC unroll 2") for (int c = 0; c < CHAINS; c++)

/* r becomes mathf_exp2_half(r) * scale, a power of two. */
static inline __attribute__((always_inline)) void exp2_half_chains(__m256 r[CHAINS], float scale)
{
    const float factors[] = {MATHF_EXP2_P3 * scale, MATHF_EXP2_P2 * scale, MATHF_EXP2_P1 * scale,
                             scale};
    __m256 p[CHAINS];
    EACH_CHAIN p[c] = _mm256_set1_ps(MATHF_EXP2_P4 * scale);
    _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) EACH_CHAIN p[c] =
        _mm256_fmadd_ps(p[c], r[c], _mm256_set1_ps(factors[k]));
    EACH_CHAIN r[c] = p[c];
}

/* cpu_sampler_units of 8 CHAINS values. A shift by more bits than there are leaves nothing, whatever was shifted. */
static inline __attribute__((always_inline)) void units_chains(const float *x, __m256 max,
                                                               __m256 rate, __m256i units[CHAINS])
{
    const __m256 magic = _mm256_set1_ps(MATHF_MAGIC);
    __m256 r[CHAINS], shifted[CHAINS];
    EACH_CHAIN r[c] = _mm256_sub_ps(_mm256_loadu_ps(x + 8 * c), max);
    EACH_CHAIN shifted[c] = _mm256_fnmadd_ps(r[c], rate, magic);
    EACH_CHAIN r[c] = _mm256_fmadd_ps(r[c], rate, _mm256_sub_ps(shifted[c], magic));
    exp2_half_chains(r, 1 << CPU_SAMPLER_UNIT_BITS);
    EACH_CHAIN units[c] = _mm256_srlv_epi32(
        _mm256_cvtps_epi32(r[c]),
        _mm256_sub_epi32(_mm256_castps_si256(shifted[c]), _mm256_castps_si256(magic)));
}

static void units(const float *x, uint32_t count, const struct cpu_sampler_scale *scale,
                  uint32_t *units_out)
{
    const __m256 max = _mm256_set1_ps(scale->max), rate = _mm256_set1_ps(scale->rate);
    uint32_t i = 0;
    for (; i + 8 * CHAINS <= count; i += 8 * CHAINS) {
        __m256i two[CHAINS];
        units_chains(x + i, max, rate, two);
        EACH_CHAIN _mm256_storeu_si256((void *)(units_out + i + 8 * c), two[c]);
    }
    sampler_units(x + i, count - i, scale, units_out + i);
}

/* Adds the lanes by twos. */
static inline __m256i units_add(__m256i sum, __m256i units)
{
    sum = _mm256_add_epi64(sum, _mm256_srli_epi64(units, 32));
    return _mm256_add_epi64(sum, _mm256_blend_epi32(units, _mm256_setzero_si256(), 0xaa));
}

static inline uint64_t units_across(__m256i sum)
{
    __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return (uint64_t)_mm_cvtsi128_si64(two) + (uint64_t)_mm_extract_epi64(two, 1);
}

/* Adds two vectors to `sum`: through what is added up in `run`, where eight of a lane fit its 32 bits, or at once. */
static inline __attribute__((always_inline)) void chains_add(const __m256i units[CHAINS], bool hot,
                                                             __m256i *run, __m256i *sum)
{
    __m256i both = _mm256_add_epi32(units[0], units[1]);
    if (hot)
        *sum = units_add(*sum, both);
    else
        *run = _mm256_add_epi32(*run, both);
}

/* sums[0] += a whole run; sums[1] += those of it above `above`. `hot` and `before` are constants in each copy; not hot: eight weights
 * are less than 2^32. */
static inline __attribute__((always_inline)) void run_add(const float *x, __m256 max, __m256 rate,
                                                          __m256 above, bool hot, bool before,
                                                          __m256i sums[2])
{
    __m256i run[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, two[CHAINS];
    for (uint32_t i = 0; i < CPU_SAMPLER_RUN; i += 8 * CHAINS) {
        units_chains(x + i, max, rate, two);
        chains_add(two, hot, &run[0], &sums[0]);
        if (!before)
            continue;
        for (int c = 0; c < CHAINS; c++) {
            __m256 is = _mm256_cmp_ps(_mm256_loadu_ps(x + i + 8 * c), above, _CMP_GT_OQ);
            two[c] = _mm256_and_si256(two[c], _mm256_castps_si256(is));
        }
        chains_add(two, hot, &run[1], &sums[1]);
    }
    for (int i = 0; i < 1 + before && !hot; i++)
        sums[i] = units_add(sums[i], run[i]);
}

static uint64_t sum(const float *x, const float *maxima_of, uint32_t count, const uint32_t *runs,
                    uint32_t run_count, const struct cpu_sampler_scale *scale, uint32_t id,
                    uint64_t *before_out)
{
    enum { AHEAD = 16, LINE = 16 };
    const float cool = -1.1f; /* eight times 2^30 times two to this are less than 2^32 */
    const __m256 max = _mm256_set1_ps(scale->max), rate = _mm256_set1_ps(scale->rate);
    __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    uint64_t whole = 0, before = 0;
    for (uint32_t k = 0; k < run_count; k++) {
        uint32_t ahead = k + AHEAD < run_count ? k + AHEAD : k;
        uint32_t run = runs ? runs[k] : k, begin = run * CPU_SAMPLER_RUN;
        const float *next = x + (runs ? runs[ahead] : ahead) * CPU_SAMPLER_RUN;
        for (uint32_t i = 0; i < CPU_SAMPLER_RUN; i += LINE)
            _mm_prefetch((const char *)(next + i), _MM_HINT_T0);
        if (count - begin < CPU_SAMPLER_RUN || (before_out && run == id / CPU_SAMPLER_RUN)) {
            whole += sampler_sum_run(x, count, run, scale, id, before_out ? &before : NULL);
            continue;
        }
        const bool hot = !maxima_of || (maxima_of[run] - scale->max) * scale->rate > cool;
        const __m256 above = _mm256_set1_ps(before_out ? sampler_before(x, id, begin) : 0);
        if (hot)
            run_add(x + begin, max, rate, above, true, true, sums);
        else if (before_out)
            run_add(x + begin, max, rate, above, false, true, sums);
        else
            run_add(x + begin, max, rate, above, false, false, sums);
    }
    if (before_out)
        *before_out = before + units_across(sums[1]);
    return whole + units_across(sums[0]);
}

/* Buckets as the loops fill them: the last one is as many as CHAINS vectors have lanes, because half of a row may lie there, and what
 * is added to one place again and again waits for itself. */
enum { SPREAD = CPU_SAMPLER_BUCKETS - 1 + 8 * CHAINS };

/* Where each of vector c lies, as cpu_sampler_bucket, but for the last bucket's spread. */
static inline __m256i places8(const struct cpu_sampler_scale *scale, const float *x, int c)
{
    const __m256 last = _mm256_set1_ps((float)(CPU_SAMPLER_BUCKETS - 1 + 8 * c));
    const __m256 spread = _mm256_add_ps(last, _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7));
    __m256 exponents =
        _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + 8 * c), _mm256_set1_ps(scale->max)),
                      _mm256_set1_ps(scale->inverse));
    __m256 places = _mm256_mul_ps(exponents, _mm256_set1_ps(scale->per));
    return _mm256_cvttps_epi32(_mm256_min_ps(places, spread));
}

/* Counts eight in their buckets, which come out of the register by twos. */
static inline void spread_count(__m256i bucket, uint32_t *spread)
{
    __m128i low = _mm256_castsi256_si128(bucket), high = _mm256_extracti128_si256(bucket, 1);
    uint64_t pair[4] = {(uint64_t)_mm_cvtsi128_si64(low), (uint64_t)_mm_extract_epi64(low, 1),
                        (uint64_t)_mm_cvtsi128_si64(high), (uint64_t)_mm_extract_epi64(high, 1)};
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++)
    {
        spread[(uint32_t)pair[j]]++;
        spread[pair[j] >> 32]++;
    }
}

static inline void places_store(const __m256i bucket[CHAINS], uint16_t *places)
{
    for (int c = 0; c < CHAINS; c += 2) {
        __m256i pair = _mm256_packus_epi32(bucket[c], bucket[c + 1]);
        _mm256_storeu_si256((void *)(places + 8 * c), _mm256_permute4x64_epi64(pair, 0xd8));
    }
}

static void buckets(const float *x, uint32_t count, const struct cpu_sampler_scale *scale,
                    uint16_t *places, uint32_t *counts)
{
    uint32_t spread[SPREAD] = {0}, i = 0;
    for (; i + 8 * CHAINS <= count; i += 8 * CHAINS) {
        __m256i bucket[CHAINS];
        EACH_CHAIN bucket[c] = places8(scale, x + i, c);
        places_store(bucket, places + i);
        EACH_CHAIN spread_count(bucket[c], spread);
    }
    memcpy(counts, spread, CPU_SAMPLER_BUCKETS * sizeof *counts);
    for (int lane = 1; lane < 8 * CHAINS; lane++)
        counts[CPU_SAMPLER_BUCKETS - 1] += spread[CPU_SAMPLER_BUCKETS - 1 + lane];
    for (; i < count; i++)
        sampler_bucket_put(x[i], scale, &places[i], counts);
}

/* [lanes]: which of eight are set, in order, a byte each. */
#define BITS(m)                                                                    \
    (((m)&1) + ((m) >> 1 & 1) + ((m) >> 2 & 1) + ((m) >> 3 & 1) + ((m) >> 4 & 1) + \
     ((m) >> 5 & 1) + ((m) >> 6 & 1))
#define LANE(m, b) ((uint64_t)((m) >> (b)&1) * (b) << 8 * BITS((m) & ((1 << (b)) - 1)))
#define LANES(m) \
    LANE(m, 1) | LANE(m, 2) | LANE(m, 3) | LANE(m, 4) | LANE(m, 5) | LANE(m, 6) | LANE(m, 7)
#define LANES_4(m) LANES(m), LANES((m) + 1), LANES((m) + 2), LANES((m) + 3)
#define LANES_16(m) LANES_4(m), LANES_4((m) + 4), LANES_4((m) + 8), LANES_4((m) + 12)
#define LANES_64(m) LANES_16(m), LANES_16((m) + 16), LANES_16((m) + 32), LANES_16((m) + 48)
static const uint64_t lanes_set[256] = {LANES_64(0), LANES_64(64), LANES_64(128), LANES_64(192)};

/* Appends the ids of those of `count` values, a multiple of 8, that are `from` or more; x[0] has `id`. Without a branch: nobody could
 * foretell it. */
static inline uint32_t ids_append(const float *x, uint32_t count, uint32_t id, __m256 from,
                                  uint32_t have, uint32_t *ids)
{
    for (uint32_t i = 0; i < count; i += 8) {
        __m256 is = _mm256_cmp_ps(_mm256_loadu_ps(x + i), from, _CMP_GE_OQ);
        uint32_t lanes = (uint32_t)_mm256_movemask_ps(is);
        __m256i set = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)&lanes_set[lanes]));
        set = _mm256_add_epi32(set, _mm256_set1_epi32((int)(id + i)));
        _mm256_storeu_si256((void *)(ids + have), set);
        have += (uint32_t)__builtin_popcount(lanes);
    }
    return have;
}

static uint32_t above(const float *x, uint32_t count, uint32_t id, float least, float *values,
                      uint32_t *ids)
{
    uint32_t whole = count / 8 * 8;
    uint32_t have = ids_append(x, whole, id, _mm256_set1_ps(least), 0, ids);
    for (uint32_t k = 0; k < have; k++)
        values[k] = x[ids[k] - id];
    return have +
           sampler_above(x + whole, count - whole, id + whole, least, values + have, ids + have);
}

static uint32_t gather(const float *x, uint32_t count, const uint32_t *runs_of, uint32_t run_count,
                       float least, float *values, uint32_t *ids)
{
    enum { NEXT = 8, LINE = 16 };
    const __m256 from = _mm256_set1_ps(least);
    uint32_t have = 0;
    for (uint32_t k = 0; k < run_count; k++) {
        uint32_t begin = runs_of[k] * CPU_SAMPLER_RUN;
        const float *next = x + runs_of[k + NEXT < run_count ? k + NEXT : k] * CPU_SAMPLER_RUN;
        for (uint32_t i = 0; i < CPU_SAMPLER_RUN; i += LINE)
            _mm_prefetch((const char *)(next + i), _MM_HINT_T0);
        if (begin + CPU_SAMPLER_RUN <= count)
            have = ids_append(x + begin, CPU_SAMPLER_RUN, begin, from, have, ids);
        else
            have +=
                sampler_above(x + begin, count - begin, begin, least, values + have, ids + have);
    }
    for (uint32_t i = 0; i < have; i++)
        values[i] = x[ids[i]];
    return have;
}

static uint32_t collect(const float *x, uint32_t count, const uint16_t *places, uint32_t first,
                        uint32_t last, uint64_t *keys)
{
    const uint32_t most = last < CPU_SAMPLER_BUCKETS - 1 ? last : INT16_MAX - 1;
    const __m256i before = _mm256_set1_epi16((int16_t)(first - 1)),
                  after = _mm256_set1_epi16((int16_t)(most + 1));
    uint32_t have = 0, i = 0;
    for (; i + 64 <= count; i += 64) {
        __m256i within[4], any = _mm256_setzero_si256();
        for (int c = 0; c < 4; c++) {
            __m256i place = _mm256_loadu_si256((const void *)(places + i + 16 * c));
            within[c] = _mm256_and_si256(_mm256_cmpgt_epi16(place, before),
                                         _mm256_cmpgt_epi16(after, place));
            any = _mm256_or_si256(any, within[c]);
        }
        if (_mm256_testz_si256(any, any))
            continue;
        for (uint32_t c = 0; c < 4; c++) {
            uint32_t lanes = (uint32_t)_mm256_movemask_epi8(within[c]) & 0x55555555u;
            for (; lanes; lanes &= lanes - 1) {
                uint32_t id = i + 16 * c + (uint32_t)__builtin_ctz(lanes) / 2;
                keys[have++] = cpu_sampler_key(x[id], id);
            }
        }
    }
    for (; i < count; i++)
        if (sampler_bucket_within(places[i], first, last))
            keys[have++] = cpu_sampler_key(x[i], i);
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

static void exp_add(const float *x, uint32_t count, float max, float partial[16])
{
    enum { AHEAD = 1536 };
    const __m256 top = _mm256_set1_ps(max), beyond = _mm256_set1_ps(CPU_SAMPLER_BEYOND),
                 log2e = _mm256_set1_ps(MATHF_LOG2E),
                 magic = _mm256_set1_ps(MATHF_MAGIC + CPU_SAMPLER_BIAS);
    __m256 sums[CHAINS] = {_mm256_loadu_ps(partial), _mm256_loadu_ps(partial + 8)};
    uint32_t i = 0;
    for (; i + 8 * CHAINS <= count; i += 8 * CHAINS) {
        __m256 r[CHAINS], shifted[CHAINS];
        _mm_prefetch((const char *)(x + i + AHEAD), _MM_HINT_T0);
        EACH_CHAIN r[c] = _mm256_sub_ps(_mm256_loadu_ps(x + i + 8 * c), top);
        EACH_CHAIN r[c] = _mm256_max_ps(r[c], beyond);
        EACH_CHAIN shifted[c] = _mm256_fmadd_ps(r[c], log2e, magic);
        EACH_CHAIN r[c] = _mm256_fmadd_ps(r[c], log2e, _mm256_sub_ps(magic, shifted[c]));
        exp2_half_chains(r, 1);
        for (int c = 0; c < CHAINS; c++) {
            __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted[c]), 23);
            sums[c] = _mm256_fmadd_ps(r[c], _mm256_castsi256_ps(power), sums[c]);
        }
    }
    _mm256_storeu_ps(partial, sums[0]);
    _mm256_storeu_ps(partial + 8, sums[1]);
    sampler_exp_from(i, x, count, max, partial);
}

const struct cpu_sampler_loops cpu_sampler_loops_avx2 = {
    .look = look,
    .maxima = maxima,
    .units = units,
    .sum = sum,
    .buckets = buckets,
    .above = above,
    .gather = gather,
    .collect = collect,
    .best = best,
    .exp_add = exp_add,
};
