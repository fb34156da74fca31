/* Attention of several rows over an int8 KV cache, for AVX2 and FMA: attention_int8_plain.c's integers in any order, its floats in
 * the same order on eight lanes. (A row alone: attention_int8_avx2.c.)
 *
 *     once a block     K and V widened to 16 bits                                           struct wide
 *     batch of states  scores ─▶ softmax ─▶ weights as 16-bit integers ─▶ outputs, merged   a state is a row's query head
 *
 * Products are vpmaddwd and vpaddd, 3.1 of which go in a cycle of a Zen 3; but no more than four of anything that has a vector
 * register for a result are handed to its pipes in a cycle, loads and broadcasts as well. So a tile is six states by sixteen lanes, all
 * sixteen registers: 8 of these to 24 others. (Winograd's inner product, where three of four are additions, needs more of them, and is no
 * faster.)
 *
 * Sums have no order, and fit 32 bits. Masked positions: their scores are computed (whatever the page holds), their weights
 * are 0.
 *
 * Owner: any compute thread. */
#include "kernels/cpu/attention_int8_avx2.h"

enum {
    STATES = 6, /* of a tile of products */
    BATCH = STATES_BATCH,
};
_Static_assert(BATCH % STATES == 0 && BATCH % LANES == 0, "whole tiles, and factors in lanes");

/* A block in 16 bits; what takes 16 lanes lies together, a pair after the other. */
struct wide {
    _Alignas(32) int16_t k[RUNS * KERN_HEAD_DIM_MAX * RUN]; /* [run][dim / 2][position][2] */
    int16_t v[KERN_HEAD_DIM_MAX * ATTENTION_BLOCK]; /* [dim / 16][pair of positions][dim][2] */
    float k_scale[ATTENTION_BLOCK], v_scale[ATTENTION_BLOCK];
};

/* The tile's states and their queries, [state] and [state][dim]; as many more behind them as a tile of products may read. */
struct states {
    const float *factor;
    const int16_t *query;
};

struct batch {
    _Alignas(32) float score[BATCH * ATTENTION_BLOCK];
    float e[BATCH * ATTENTION_BLOCK];
    int16_t weights[BATCH * ATTENTION_BLOCK];
    float keep[BATCH + CHUNK], add[BATCH + CHUNK], factor[BATCH];
    uint32_t counts[BATCH]; /* positions of the block that a state sees */
};

/* --- a block in 16 bits --- */

ALWAYS_INLINE __m256i widen(const int8_t *at)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)at));
}

static void k_widen(const struct cpu_attention_tile *tile, const struct run *run, uint32_t r,
                    struct wide *wide)
{
    const size_t stride = (size_t)2 * RUN;
    const int8_t *from = run->k;
    __m256i *to = (void *)(wide->k + (size_t)r * tile->head_dim * RUN);
    for (uint32_t i = 0; i < tile->head_dim; i += 2, from += stride, to += 2) {
        _mm256_store_si256(to, widen(from));
        _mm256_store_si256(to + 1, widen(from + RUN));
    }
    for (uint32_t n = 0; n < RUN; n += LANES) {
        _mm256_storeu_ps(wide->k_scale + r * RUN + n, scales_load(run->k_scales + n));
        _mm256_storeu_ps(wide->v_scale + r * RUN + n, scales_load(run->v_scales + n));
    }
}

/* Dimensions from `lane` on; the second eight are 0 where there are none. The pairs of a run lie as the weights come out of
 * packing. */
ALWAYS_INLINE void v_widen(const struct cpu_attention_tile *tile, const struct run *runs,
                           uint32_t run_count, uint32_t lane, bool half, struct wide *wide)
{
    static const uint8_t order[RUN / 2] = {0, 1, 4, 5, 2, 3, 6, 7};
    __m256i *to = (void *)(wide->v + (size_t)lane * ATTENTION_BLOCK);
    const size_t stride = half ? 2 * LANES : 4 * LANES;
    for (uint32_t r = 0; r < run_count; r++) {
        const int8_t *v = run_v(tile, &runs[r], lane);
#pragma GCC unroll 8
        for (int pair = 0; pair < RUN / 2; pair++, to += 2) {
            const int8_t *from = v + order[pair] * stride;
            _mm256_store_si256(to, widen(from));
            _mm256_store_si256(to + 1, half ? _mm256_setzero_si256() : widen(from + RUN));
        }
    }
}

static void block_widen(const struct cpu_attention_tile *tile, const struct run *runs,
                        uint32_t run_count, struct wide *wide)
{
    uint32_t dim = tile->head_dim, lane = 0;
    for (uint32_t r = 0; r < run_count; r++)
        k_widen(tile, &runs[r], r, wide);
    for (; lane + 2 * LANES <= dim; lane += 2 * LANES)
        v_widen(tile, runs, run_count, lane, false, wide);
    if (lane < dim)
        v_widen(tile, runs, run_count, lane, true, wide);
}

/* --- products --- */

/* sum[s][n] = the products of `pairs` pairs (a multiple of 4): wide [pairs][2 registers], factors of six states `stride` bytes
 * apart. In assembly because the compiler has no register left to waste.
 *
 *     ymm0..11 sums, two a state   ymm12, 13 a pair of sixteen lanes   ymm14, 15 what is between */
/* clang-format off */
#define PAIR_STATE(factor, s0, s1)                     \
    "vpbroadcastd " factor ", %%ymm14\n\t"             \
    "vpmaddwd %%ymm14, %%ymm12, %%ymm15\n\t"           \
    "vpmaddwd %%ymm14, %%ymm13, %%ymm14\n\t"           \
    "vpaddd %[" s0 "], %%ymm15, %[" s0 "]\n\t"         \
    "vpaddd %[" s1 "], %%ymm14, %[" s1 "]\n\t"
#define PAIR_ZERO(sum) "vpxor %[" sum "], %[" sum "], %[" sum "]\n\t"
#define PAIR(at, first, second)                                \
    "vmovdqa " first "(%[wide]), %%ymm12\n\t"                  \
    "vmovdqa " second "(%[wide]), %%ymm13\n\t"                 \
    PAIR_STATE(at "(%[factor])", "s00", "s01")                 \
    PAIR_STATE(at "(%[factor],%[stride])", "s10", "s11")       \
    PAIR_STATE(at "(%[factor],%[stride],2)", "s20", "s21")     \
    PAIR_STATE(at "(%[fourth])", "s30", "s31")                 \
    PAIR_STATE(at "(%[fourth],%[stride])", "s40", "s41")       \
    PAIR_STATE(at "(%[fourth],%[stride],2)", "s50", "s51")

ALWAYS_INLINE void pairs_sum(const int16_t *wide, const int16_t *factor, size_t stride,
                             size_t pairs, __m256i sum[STATES][2])
{
    const int16_t *fourth = factor + 3 * stride / sizeof *factor;
    __asm__ volatile(
        PAIR_ZERO("s00") PAIR_ZERO("s01") PAIR_ZERO("s10") PAIR_ZERO("s11")
        PAIR_ZERO("s20") PAIR_ZERO("s21") PAIR_ZERO("s30") PAIR_ZERO("s31")
        PAIR_ZERO("s40") PAIR_ZERO("s41") PAIR_ZERO("s50") PAIR_ZERO("s51")
        "1:\n\t"
        PAIR("0", "0", "32") PAIR("4", "64", "96") PAIR("8", "128", "160") PAIR("12", "192", "224")
        "add $256, %[wide]\n\t"
        "add $16, %[factor]\n\t"
        "add $16, %[fourth]\n\t"
        "sub $4, %[pairs]\n\t"
        "jnz 1b"
        : [wide] "+r"(wide), [factor] "+r"(factor), [fourth] "+r"(fourth), [pairs] "+r"(pairs),
          [s00] "=&x"(sum[0][0]), [s01] "=&x"(sum[0][1]), [s10] "=&x"(sum[1][0]),
          [s11] "=&x"(sum[1][1]), [s20] "=&x"(sum[2][0]), [s21] "=&x"(sum[2][1]),
          [s30] "=&x"(sum[3][0]), [s31] "=&x"(sum[3][1]), [s40] "=&x"(sum[4][0]),
          [s41] "=&x"(sum[4][1]), [s50] "=&x"(sum[5][0]), [s51] "=&x"(sum[5][1])
        : [stride] "r"(stride)
        : "memory", "cc", "xmm12", "xmm13", "xmm14", "xmm15");
}
/* clang-format on */

/* score[s][j] = (float(sum) * factor) * K's scale of the 16 positions of run r, of six states. */
static void scores_run(const struct wide *wide, uint32_t dim, uint32_t r, const float *factor,
                       const int16_t *query, float *score)
{
    __m256i sum[STATES][2];
    pairs_sum(wide->k + (size_t)r * dim * RUN, query, dim * sizeof *query, dim / 2, sum);
#pragma GCC unroll 6
    for (uint32_t s = 0; s < STATES; s++)
#pragma GCC unroll 2
        for (uint32_t n = 0; n < 2; n++) {
            uint32_t at = r * RUN + n * LANES;
            __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[s][n]), _mm256_set1_ps(factor[s]));
            _mm256_storeu_ps(score + s * ATTENTION_BLOCK + at,
                             _mm256_mul_ps(x, _mm256_loadu_ps(wide->k_scale + at)));
        }
}

/* Sixteen outputs (eight, where `half`) of six states, of which `n` are, from dimension `lane` on, merged. */
ALWAYS_INLINE void outputs_lanes(uint32_t n, bool half, const struct wide *wide, uint32_t dim,
                                 uint32_t lane, uint32_t run_count, const struct batch *batch,
                                 uint32_t i, bool first, float *running)
{
    __m256i sum[STATES][2];
    pairs_sum(wide->v + (size_t)lane * ATTENTION_BLOCK, batch->weights + i * ATTENTION_BLOCK,
              ATTENTION_BLOCK * sizeof *batch->weights, run_count * RUN / 2, sum);
#pragma GCC unroll 6
    for (uint32_t s = 0; s < STATES; s++)
        if (s < n)
#pragma GCC unroll 2
            for (uint32_t v = 0; v < 2 - (uint32_t)half; v++)
                merge_store(first,
                            _mm256_mul_ps(_mm256_cvtepi32_ps(sum[s][v]),
                                          _mm256_set1_ps(batch->factor[i + s])),
                            batch->keep[i + s], batch->add[i + s],
                            running + (size_t)s * dim + lane + v * LANES);
}

static __attribute__((noinline)) void outputs(uint32_t n, const struct wide *wide, uint32_t dim,
                                              uint32_t run_count, const struct batch *batch,
                                              uint32_t i, bool first, float *running)
{
    uint32_t lane = 0;
    for (; lane + 2 * LANES <= dim; lane += 2 * LANES)
        if (n == STATES && !first)
            outputs_lanes(STATES, false, wide, dim, lane, run_count, batch, i, false, running);
        else
            outputs_lanes(n, false, wide, dim, lane, run_count, batch, i, first, running);
    if (lane < dim)
        outputs_lanes(n, true, wide, dim, lane, run_count, batch, i, first, running);
}

/* --- weights --- */

/* e * V's scale, 0 from `count` on; e is gone then. The largest bits of each lane. */
static __m256i weights_scale(const float *scale, uint32_t run_count, uint32_t count, float *e)
{
    __m256i top = _mm256_setzero_si256();
    for (uint32_t j = 0; j < run_count * RUN; j += LANES) {
        __m256 w = _mm256_mul_ps(_mm256_loadu_ps(e + j), _mm256_loadu_ps(scale + j));
        w = _mm256_and_ps(w, valid_lanes(count, j));
        top = _mm256_max_epu32(top, magnitude(w));
        _mm256_storeu_ps(e + j, w);
    }
    return top;
}

/* The batch's scores become weights as words, with their factors, and join what the states have so far. Where a weight is not finite
 * the words are anything, and the factor is NaN. All states take a step before the next one. */
static __attribute__((noinline)) void weights_make(const struct wide *wide, uint32_t run_count,
                                                   uint32_t n, bool first, float *running_max,
                                                   float *running_sum, struct batch *batch)
{
    __m256 sums[BATCH];
    __m256i top[BATCH];
    float max[BATCH], inverse[BATCH];
    softmax_maxima(n, batch->score, batch->counts, max);
    for (uint32_t i = 0; i < n; i++) {
        const float *score = batch->score + i * ATTENTION_BLOCK;
        float *e = batch->e + i * ATTENTION_BLOCK;
        uint32_t count = batch->counts[i];
        if (count == ATTENTION_BLOCK) {
            sums[i] = weights_whole(score, max[i], wide->v_scale, e, &top[i]);
            continue;
        }
        sums[i] = softmax_exp_some(score, count, max[i], e);
        top[i] = weights_scale(wide->v_scale, run_count, count, e);
    }
    for (uint32_t i = n; i % LANES != 0; i++) {
        sums[i] = _mm256_setzero_ps();
        top[i] = _mm256_setzero_si256();
    }
    softmax_states_join(n, first, max, sums, running_max, running_sum, batch->keep, batch->add);
    for (uint32_t i = 0; i < n; i += LANES)
        _mm256_storeu_ps(batch->factor + i, factors_of(mathf8_top_lanes(top + i), inverse + i));
    for (uint32_t i = 0; i < n; i++) {
        const float *from = batch->e + i * ATTENTION_BLOCK;
        int16_t *words = batch->weights + i * ATTENTION_BLOCK;
        __m256 by = _mm256_broadcast_ss(&inverse[i]);
        for (uint32_t r = 0; r < run_count; r++, from += RUN, words += RUN) {
            __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from), by));
            __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + LANES), by));
            _mm256_storeu_si256((void *)words, _mm256_packs_epi32(low, high));
        }
    }
}

/* --- a tile --- */

/* The part of the next block that tile i of `tiles` stands for. */
static void fetch_next(const struct cpu_attention_tile *tile, const struct run *next, uint32_t i,
                       uint32_t tiles)
{
    uint32_t lines = tile->head_dim * RUN / LINE;
    for (uint32_t x = lines * i / tiles; x < lines * (i + 1) / tiles; x++)
        for (uint32_t r = 0; r < RUNS; r++) {
            line_fetch(next[r].k + (size_t)x * LINE);
            line_fetch(run_v(tile, &next[r], x / 4 * KV_V_DIMS) + (size_t)(x % 4) * LINE);
        }
}

/* How many of the block's positions each of n states sees, and of the tile of products that comes last as many more. */
static void counts_fill(const struct cpu_attention_tile *tile, uint32_t begin, uint32_t state,
                        uint32_t n, uint32_t *counts)
{
    uint32_t r = state / tile->group, g = state % tile->group;
    for (uint32_t i = 0; i < BATCH; i++) {
        uint32_t seen = tile->position + r + 1 - begin;
        counts[i] = seen < ATTENTION_BLOCK ? seen : ATTENTION_BLOCK;
        if (i + 1 < n && ++g == tile->group) {
            g = 0;
            r++;
        }
    }
}

static uint32_t runs_of(uint32_t count)
{
    return (count + RUN - 1) / RUN;
}

/* All rows against the block at `begin`, which is wide; `next` is asked for meanwhile. */
static void block_rows(const struct cpu_attention_tile *tile, const struct states *states,
                       uint32_t begin, const struct wide *wide, const struct run *next)
{
    uint32_t dim = tile->head_dim, end = tile->rows * tile->group;
    struct cpu_attention_results results = cpu_attention_results_of(tile, begin);
    uint32_t from = begin > tile->position ? (begin - tile->position) * tile->group : 0;
    uint32_t tiles = (end - from + STATES - 1) / STATES, done = 0;
    bool first = begin == 0;
    struct batch batch;
    for (uint32_t state = from, n; state < end; state += n) {
        n = end - state < BATCH ? end - state : BATCH;
        counts_fill(tile, begin, state, n, batch.counts);
        for (uint32_t i = 0; i < n; i += STATES) {
            fetch_next(tile, next, done++, tiles);
            for (uint32_t r = 0; r < runs_of(batch.counts[i + STATES - 1]); r++)
                scores_run(wide, dim, r, states->factor + state + i,
                           states->query + (size_t)(state + i) * dim,
                           batch.score + (size_t)i * ATTENTION_BLOCK);
        }
        weights_make(wide, runs_of(batch.counts[BATCH - 1]), n, first, results.max + state,
                     results.sum + state, &batch);
        for (uint32_t i = 0; i < n; i += STATES)
            outputs(n - i < STATES ? n - i : STATES, wide, dim,
                    runs_of(batch.counts[i + STATES - 1]), &batch, i, first,
                    results.outputs + (size_t)(state + i) * dim);
    }
}

void cpu_avx2_kv_int8_rows(const struct cpu_attention_tile *tile, const float *factor,
                           const int16_t *query)
{
    const struct states states = {factor, query};
    uint32_t last = tile->position + tile->rows - 1;
    struct run runs[RUNS], next[RUNS];
    struct wide wide;
    runs_find(tile, 0, last, next);
    for (uint32_t begin = 0; begin <= last; begin += ATTENTION_BLOCK) {
        uint32_t run_count = runs_of(last - begin + 1);
        memcpy(runs, next, sizeof runs);
        if (begin + ATTENTION_BLOCK <= last)
            runs_find(tile, begin + ATTENTION_BLOCK, last, next);
        block_widen(tile, runs, run_count < RUNS ? run_count : RUNS, &wide);
        block_rows(tile, &states, begin, &wide, next);
    }
    tile_finish(tile);
}
