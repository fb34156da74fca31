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

/* mathf8_exp of CHAINS vectors, times 2^bits (even). `near`: all are at least CPU_SAMPLER_NEAR and at most 0, so no clamps, and n goes to
 * the exponent of a result that is normal; in turn operation by operation, as one chain alone waits for itself, and in assembly, as gcc
 * 12 copies and spills.
 *
 *     s = magic + bits + x / ln 2     n = s - magic - bits (in q)     r in x     then the polynomial in q */
enum { CHAINS = 4 };
#define EACH_CHAIN _Pragma("GCC unroll 4") for (int c = 0; c < CHAINS; c++)

#define EACH(op) op("0") op("1") op("2") op("3")
#define EXP_SHIFT(v) "vmovaps %[magic], %[s" v "]\n\tvfmadd231ps (%[c]), %[x" v "], %[s" v "]\n\t"
#define EXP_N(v) "vsubps %[magic], %[s" v "], %[q" v "]\n\t"
#define EXP_R(v) "vfmadd231ps 32(%[c]), %[q" v "], %[x" v "]\n\t"
#define EXP_R_LOW(v) "vfmadd231ps 64(%[c]), %[q" v "], %[x" v "]\n\t"
#define EXP_Q3(v) "vmovaps 96(%[c]), %[q" v "]\n\tvfmadd213ps 128(%[c]), %[x" v "], %[q" v "]\n\t"
#define EXP_Q2(v) "vfmadd213ps 160(%[c]), %[x" v "], %[q" v "]\n\t"
#define EXP_Q1(v) "vfmadd213ps 192(%[c]), %[x" v "], %[q" v "]\n\t"
#define EXP_Q0(v) "vfmadd213ps 224(%[c]), %[x" v "], %[q" v "]\n\t"
#define EXP_P(v) "vmulps %[x" v "], %[x" v "], %[t]\n\tvfmadd213ps %[x" v "], %[t], %[q" v "]\n\t"
#define EXP_UP(v) "vpslld $23, %[s" v "], %[s" v "]\n\t"
#define EXP_ONE(v) "vaddps 256(%[c]), %[q" v "], %[q" v "]\n\t"
#define EXP_Y(v) "vpaddd %[s" v "], %[q" v "], %[x" v "]\n\t"
#define EXP_ALL     \
    EACH(EXP_SHIFT) \
    EACH(EXP_N)     \
    EACH(EXP_R)     \
    EACH(EXP_R_LOW) \
    EACH(EXP_Q3) EACH(EXP_Q2) EACH(EXP_Q1) EACH(EXP_Q0) EACH(EXP_P) EACH(EXP_UP) EACH(EXP_ONE)
#define EIGHT(c)               \
    {                          \
        c, c, c, c, c, c, c, c \
    }
static const _Alignas(32) float constants[][8] = {
    EIGHT(MATHF_LOG2E),  EIGHT(-MATHF_LN2_HIGH),    EIGHT(-MATHF_LN2_LOW), EIGHT(MATHF_EXP_Q4),
    EIGHT(MATHF_EXP_Q3), EIGHT(MATHF_EXP_Q2),       EIGHT(MATHF_EXP_Q1),   EIGHT(MATHF_EXP_Q0),
    EIGHT(1.0f),         EIGHT(CPU_SAMPLER_NOTHING)};

static inline __attribute__((always_inline)) void exp_chains(__m256 x[CHAINS], bool near, int bits)
{
    if (!near) {
        EACH_CHAIN x[c] = _mm256_mul_ps(mathf8_exp(x[c]), _mm256_set1_ps((float)(1u << bits)));
        return;
    }
    const __m256 magic = _mm256_set1_ps(MATHF_MAGIC + (float)bits);
    __m256 s[CHAINS], q[CHAINS], t;
    __asm__(EXP_ALL EACH(EXP_Y)
            : [x0] "+x"(x[0]), [x1] "+x"(x[1]), [x2] "+x"(x[2]), [x3] "+x"(x[3]), [s0] "=&x"(s[0]),
              [s1] "=&x"(s[1]), [s2] "=&x"(s[2]), [s3] "=&x"(s[3]), [q0] "=&x"(q[0]),
              [q1] "=&x"(q[1]), [q2] "=&x"(q[2]), [q3] "=&x"(q[3]), [t] "=&x"(t)
            : [c] "r"(constants), [magic] "x"(magic), "m"(constants));
}

/* A row's scale in registers. */
struct scale8 {
    __m256 max, inverse, min_p, per; /* min_p in units */
};

static inline struct scale8 scale8_of(const struct cpu_sampler_scale *scale)
{
    return (struct scale8){_mm256_set1_ps(scale->max), _mm256_set1_ps(scale->inverse),
                           _mm256_set1_ps(scale->min_p * (1 << CPU_SAMPLER_UNIT_BITS)),
                           _mm256_set1_ps(scale->per)};
}

static inline __attribute__((always_inline)) void
exponents_chains(const struct scale8 *s, const float *x, __m256 exponents[CHAINS])
{
    EACH_CHAIN exponents[c] = _mm256_sub_ps(_mm256_loadu_ps(x + 8 * c), s->max);
    EACH_CHAIN exponents[c] = _mm256_mul_ps(exponents[c], s->inverse);
}

/* Exponents to weights that are scaled to units. What has none anyway is clamped, so that all are near. */
static inline __attribute__((always_inline)) void units_chains(__m256 exponents[CHAINS])
{
    EACH_CHAIN exponents[c] = _mm256_max_ps(exponents[c], _mm256_set1_ps(CPU_SAMPLER_NOTHING));
    exp_chains(exponents, true, CPU_SAMPLER_UNIT_BITS);
}

/* Eight weights that are scaled to units, rounded. What weighs less than min_p is nothing. */
static inline __m256i units8(const struct scale8 *s, bool limited, __m256 weights)
{
    if (limited)
        weights = _mm256_and_ps(weights, _mm256_cmp_ps(weights, s->min_p, _CMP_GE_OQ));
    return _mm256_cvtps_epi32(weights);
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

/* Adds the units of 8 CHAINS values to the lanes of `sum`, which has room for them; all of it in assembly, where the compiler would have
 * moved and spilled between the steps. */
static inline __attribute__((always_inline)) void cool_add(const struct scale8 *scale,
                                                           const float *from, __m256i *sum)
{
    const __m256 magic = _mm256_set1_ps(MATHF_MAGIC + (float)CPU_SAMPLER_UNIT_BITS);
    __m256 x[CHAINS], s[CHAINS], q[CHAINS], t;
#define UNITS_LOAD(v) "vmovups 32*" v "(%[from]), %[x" v "]\n\t"
#define UNITS_SUB(v) "vsubps %[max], %[x" v "], %[x" v "]\n\t"
#define UNITS_MUL(v) "vmulps %[inverse], %[x" v "], %[x" v "]\n\t"
#define UNITS_MAX(v) "vmaxps 288(%[c]), %[x" v "], %[x" v "]\n\t"
#define UNITS_Y(v) "vpaddd %[s" v "], %[q" v "], %[q" v "]\n\t"
#define UNITS_ROUND(v) "vcvtps2dq %[q" v "], %[q" v "]\n\t"
#define UNITS_ADD(v) "vpaddd %[q" v "], %[sum], %[sum]\n\t"
    __asm__(
        EACH(UNITS_LOAD) EACH(UNITS_SUB) EACH(UNITS_MUL) EACH(UNITS_MAX) EXP_ALL EACH(UNITS_Y)
            EACH(UNITS_ROUND) EACH(UNITS_ADD)
        : [sum] "+x"(*sum), [x0] "=&x"(x[0]), [x1] "=&x"(x[1]), [x2] "=&x"(x[2]), [x3] "=&x"(x[3]),
          [s0] "=&x"(s[0]), [s1] "=&x"(s[1]), [s2] "=&x"(s[2]), [s3] "=&x"(s[3]), [q0] "=&x"(q[0]),
          [q1] "=&x"(q[1]), [q2] "=&x"(q[2]), [q3] "=&x"(q[3]), [t] "=&x"(t)
        : [from] "r"(from), [c] "r"(constants), [magic] "x"(magic), [max] "x"(scale->max),
          [inverse] "m"(scale->inverse), "m"(constants), "m"(*(const float(*)[8 * CHAINS]) from));
}

/* The units of a whole CPU_SAMPLER_SUM of which none weighs more than half. */
static uint64_t sum_cool(const float *x, const struct scale8 *s)
{
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t i = 0; i < CPU_SAMPLER_SUM; i += CPU_SAMPLER_RUN) {
        __m256i run = _mm256_setzero_si256(); /* eight to a lane */
        for (uint32_t k = 0; k < CPU_SAMPLER_RUN; k += 16)
            _mm_prefetch((const char *)(x + i + k + 1024), _MM_HINT_T0);
        cool_add(s, x + i, &run);
        cool_add(s, x + i + CPU_SAMPLER_RUN / 2, &run);
        sum = units_add(sum, run);
    }
    return units_across(sum);
}

/* The units of whole CHAINS, none more than 2^30; `limited`: of those that weigh min_p or more. */
static uint64_t sum_any(const float *x, uint32_t count, const struct scale8 *s, bool limited)
{
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t i = 0; i < count; i += 8 * CHAINS) {
        __m256 weights[CHAINS];
        exponents_chains(s, x + i, weights);
        units_chains(weights);
        for (int c = 0; c < CHAINS; c += 2) /* two are at most 2^31 */
            sum = units_add(sum, _mm256_add_epi32(units8(s, limited, weights[c]),
                                                  units8(s, limited, weights[c + 1])));
    }
    return units_across(sum);
}

static uint64_t runs(const float *x, const float *maxima_of, uint32_t count,
                     const struct cpu_sampler_scale *scale, uint64_t sum, uint64_t *sums)
{
    enum { RUNS = CPU_SAMPLER_SUM / CPU_SAMPLER_RUN };
    const struct scale8 s = scale8_of(scale);
    const bool limited = scale->min_p > 0;
    uint32_t i = 0;
    for (; i + CPU_SAMPLER_SUM <= count; i += CPU_SAMPLER_SUM, maxima_of += RUNS) {
        float most = maxima_of[0];
        for (int k = 1; k < RUNS; k++)
            most = maxima_of[k] > most ? maxima_of[k] : most;
        most = cpu_sampler_exponent(scale, most);
        if (most > CPU_SAMPLER_COOL || (limited && most > CPU_SAMPLER_NOTHING))
            sum += sum_any(x + i, CPU_SAMPLER_SUM, &s, limited);
        else if (most > CPU_SAMPLER_NOTHING)
            sum += sum_cool(x + i, &s);
        sums[i / CPU_SAMPLER_SUM] = sum;
    }
    return sampler_runs_from(i, x, count, scale, sum, sums);
}

static void units(const float *x, uint32_t count, const struct cpu_sampler_scale *scale,
                  uint32_t *units_out)
{
    const struct scale8 s = scale8_of(scale);
    uint32_t i = 0;
    for (; i + 8 * CHAINS <= count; i += 8 * CHAINS) {
        __m256 weights[CHAINS];
        exponents_chains(&s, x + i, weights);
        units_chains(weights);
        EACH_CHAIN _mm256_storeu_si256((void *)(units_out + i + 8 * c),
                                       units8(&s, true, weights[c]));
    }
    sampler_units(x + i, count - i, scale, units_out + i);
}

/* Buckets as the loops fill them: the last one is as many as CHAINS vectors have lanes, because half of a row may lie there, and what
 * is added to one place again and again waits for itself. */
enum { SPREAD = CPU_SAMPLER_BUCKETS - 1 + 8 * CHAINS };

static inline void spread_fold(const uint64_t spread[SPREAD], uint64_t *sums)
{
    memcpy(sums, spread, CPU_SAMPLER_BUCKETS * sizeof *sums);
    for (int lane = 1; lane < 8 * CHAINS; lane++)
        sums[CPU_SAMPLER_BUCKETS - 1] += spread[CPU_SAMPLER_BUCKETS - 1 + lane];
}

/* Where each of vector c lies by its exponent, as cpu_sampler_bucket, but for the last bucket's spread. */
static inline __m256i places8(const struct scale8 *s, __m256 exponents, int c)
{
    const __m256 last = _mm256_set1_ps((float)(CPU_SAMPLER_BUCKETS - 1 + 8 * c));
    const __m256 spread = _mm256_add_ps(last, _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_cvttps_epi32(_mm256_min_ps(_mm256_mul_ps(exponents, s->per), spread));
}

/* Adds eight numbers to their buckets: these come out of the register by twos, the numbers out of memory, so that neither way is the
 * only one. */
static inline void spread_add(__m256i bucket, const uint32_t units[8], uint64_t *spread)
{
    __asm__ volatile("" : : "m"(*(const uint32_t(*)[8])units) : "memory"); /* it is there */
    __m128i low = _mm256_castsi256_si128(bucket), high = _mm256_extracti128_si256(bucket, 1);
    uint64_t pair[4] = {(uint64_t)_mm_cvtsi128_si64(low), (uint64_t)_mm_extract_epi64(low, 1),
                        (uint64_t)_mm_cvtsi128_si64(high), (uint64_t)_mm_extract_epi64(high, 1)};
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++)
    {
        spread[(uint32_t)pair[j]] += units[2 * j];
        spread[pair[j] >> 32] += units[2 * j + 1];
    }
}

static inline void places_store(const __m256i bucket[CHAINS], uint16_t *places)
{
    for (int c = 0; c < CHAINS; c += 2) {
        __m256i pair = _mm256_packus_epi32(bucket[c], bucket[c + 1]);
        _mm256_storeu_si256((void *)(places + 8 * c), _mm256_permute4x64_epi64(pair, 0xd8));
    }
}

/* The units in each bucket, of the first multiple of 8 CHAINS. `limited` and `ones` are constants in each copy. */
static inline __attribute__((always_inline)) uint32_t
buckets_add(const float *x, uint32_t count, const struct cpu_sampler_scale *scale, bool limited,
            bool ones, uint16_t *places, uint64_t *spread, uint64_t *sum_out)
{
    static const uint32_t one[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const struct scale8 s = scale8_of(scale);
    __m256i whole = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 * CHAINS <= count; i += 8 * CHAINS) {
        __m256 weights[CHAINS];
        __m256i bucket[CHAINS];
        exponents_chains(&s, x + i, weights);
        EACH_CHAIN bucket[c] = places8(&s, weights[c], c);
        places_store(bucket, places + i);
        if (!ones)
            units_chains(weights);
        for (int c = 0; c < CHAINS; c++) {
            if (ones) {
                spread_add(bucket[c], one, spread);
                continue;
            }
            _Alignas(32) uint32_t units[8];
            if (limited)
                whole = units_add(whole, units8(&s, false, weights[c]));
            _mm256_store_si256((void *)units, units8(&s, limited, weights[c]));
            spread_add(bucket[c], units, spread);
        }
    }
    *sum_out = 0;
    if (limited)
        *sum_out = units_across(whole);
    for (uint32_t bucket = 0; !limited && bucket < SPREAD; bucket++)
        *sum_out += spread[bucket];
    return i;
}

static uint64_t buckets(const float *x, uint32_t count, const struct cpu_sampler_scale *scale,
                        bool ones, uint16_t *places, uint64_t *sums)
{
    uint64_t sum, spread[SPREAD] = {0};
    uint32_t i;
    if (ones)
        i = buckets_add(x, count, scale, false, true, places, spread, &sum);
    else if (scale->min_p > 0)
        i = buckets_add(x, count, scale, true, false, places, spread, &sum);
    else
        i = buckets_add(x, count, scale, false, false, places, spread, &sum);
    spread_fold(spread, sums);
    for (; i < count; i++)
        sum += sampler_bucket_put(x[i], scale, ones, &places[i], sums);
    return sum;
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

/* Adds the exponentials of whole CHAINS; how many. `near` is a constant in each copy; low_out: the least exponent. */
static inline __attribute__((always_inline)) uint32_t exp_add_whole(const float *x, uint32_t count,
                                                                    float max, bool near,
                                                                    float partial[16],
                                                                    float *low_out)
{
    const __m256 top = _mm256_set1_ps(max);
    __m256 sums[2] = {_mm256_loadu_ps(partial), _mm256_loadu_ps(partial + 8)};
    __m256 low = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 8 * CHAINS <= count; i += 8 * CHAINS) {
        __m256 weights[CHAINS];
        _mm_prefetch((const char *)(x + i + 1024), _MM_HINT_T0);
        _mm_prefetch((const char *)(x + i + 1024 + 16), _MM_HINT_T0);
        EACH_CHAIN weights[c] = _mm256_sub_ps(_mm256_loadu_ps(x + i + 8 * c), top);
        if (near)
            EACH_CHAIN low = _mm256_min_ps(low, weights[c]);
        exp_chains(weights, near, 0);
        EACH_CHAIN sums[c % 2] = _mm256_add_ps(sums[c % 2], weights[c]);
    }
    _mm256_storeu_ps(partial, sums[0]);
    _mm256_storeu_ps(partial + 8, sums[1]);
    *low_out = -highest(_mm256_xor_ps(low, _mm256_set1_ps(-0.0f)));
    return i;
}

/* As if all were near; again if one was not. */
static void exp_add(const float *x, uint32_t count, float max, float partial[16])
{
    float before[16], low;
    memcpy(before, partial, sizeof before);
    uint32_t i = exp_add_whole(x, count, max, true, partial, &low);
    if (low < CPU_SAMPLER_NEAR) {
        memcpy(partial, before, sizeof before);
        exp_add_whole(x, count, max, false, partial, &low);
    }
    sampler_exp_from(i, x, count, max, partial);
}

const struct cpu_sampler_loops cpu_sampler_loops_avx2 = {
    .look = look,
    .maxima = maxima,
    .runs = runs,
    .units = units,
    .buckets = buckets,
    .above = above,
    .gather = gather,
    .collect = collect,
    .best = best,
    .exp_add = exp_add,
};
