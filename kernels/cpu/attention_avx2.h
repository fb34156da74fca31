/* What the AVX2 attention kernels of all KV types share: the softmax of a block and the merging of blocks. Operations and
 * order: attention_plain.c. Include only from files compiled for AVX2 and FMA.
 * Owner: any compute thread. */
#ifndef BATON_KERNELS_CPU_ATTENTION_AVX2_H
#define BATON_KERNELS_CPU_ATTENTION_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/attention_streams.h"
#include "kernels/cpu/mathf_avx2.h"
#include "kernels/cpu/rope_turn.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Up to CHUNK query heads share the loads of a block, which is four runs of 16 positions, each within one page. */
enum { LANES = 8, CHUNK = 4, RUN = 16, RUNS = ATTENTION_BLOCK / RUN };

/* Of an f16 (`half`, a constant after inlining) or f32 cache: bytes of a value, and eight of them. */
ALWAYS_INLINE size_t element_bytes(int half)
{
    return half ? sizeof(uint16_t) : sizeof(float);
}

ALWAYS_INLINE __m256 operand_load(int half, const uint8_t *at)
{
    if (half)
        return _mm256_cvtph_ps(_mm_loadu_si128((const void *)at));
    return _mm256_loadu_ps((const float *)(const void *)at);
}

/* Heads of the next chunk out of the `left` ones that remain: threes keep twelve sums in registers; a single one left over
 * would load as much for itself. */
static inline uint32_t chunk_heads(uint32_t left)
{
    return left == 4 ? 4 : left < 3 ? left : 3;
}

/* What a chunk's heads make of one block. */
struct softmax {
    float max[CHUNK], sum[CHUNK];
    float keep[CHUNK],
        add[CHUNK]; /* what the results so far, and this block's, are multiplied by */
};

/* Asks for a line. Volatile, so that the compiler leaves it where it is: what is asked for in heaps waits for itself. */
ALWAYS_INLINE void line_fetch(const void *at)
{
    __asm__ volatile("prefetcht0 %0" : : "m"(*(const uint8_t *)at));
}

/* e[j] = exp(score[j] - max), 0 from `count` on, for any values; returns the first eight sums of the tree. */
static inline __m256 exp_block(const float *score, uint32_t count, float max, float *e)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int v = 0; v < ATTENTION_BLOCK / LANES; v++) {
        __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count - v * LANES), lane);
        __m256 x = _mm256_sub_ps(_mm256_loadu_ps(score + v * LANES), _mm256_set1_ps(max));
        __m256 y = _mm256_and_ps(mathf8_exp(x), _mm256_castsi256_ps(valid));
        _mm256_storeu_ps(e + v * LANES, y);
        sum[v % 2] = _mm256_add_ps(sum[v % 2], y);
    }
    return _mm256_add_ps(sum[0], sum[1]);
}

/* Vectors that take an exponential's steps in turn. */
enum { NEAR = 4 };

/* A block is two halves, of which each is seen whole (a constant after inlining), or in part. */
enum { HALF = ATTENTION_BLOCK / 2 };

ALWAYS_INLINE __m256 valid_lanes(uint32_t count, uint32_t at)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)count - (int)at), lane));
}

/* e[j] = exp(score[j] - max) of a half whose scores all lie at most MATHF8_NEAR below the maximum, 0 from `count` on; *far has more
 * than MATHF8_NEAR, as bits, when a score lies lower or is NaN, and e is nothing then. */
ALWAYS_INLINE void exp_half_near(bool whole, const float *score, uint32_t count, float max,
                                 float *e, __m256 sum[2], __m256i *far)
{
    __m256 x[NEAR];
    /* x = max - score, the argument's exact negative: as bits, everything above the limit and every NaN is greater */
#pragma GCC unroll 4
    for (uint32_t v = 0; v < NEAR; v++) {
        x[v] = _mm256_sub_ps(_mm256_set1_ps(max), _mm256_loadu_ps(score + v * LANES));
        if (!whole)
            x[v] = _mm256_and_ps(x[v], valid_lanes(count, v * LANES));
    }
#pragma GCC unroll 4
    for (uint32_t v = 0; v < NEAR; v++)
        *far = _mm256_max_epu32(*far, _mm256_castps_si256(x[v]));
    mathf8_exp4_near(x);
#pragma GCC unroll 4
    for (uint32_t v = 0; v < NEAR; v++) {
        if (!whole)
            x[v] = _mm256_and_ps(x[v], valid_lanes(count, v * LANES));
        _mm256_storeu_ps(e + v * LANES, x[v]);
        sum[v % 2] = _mm256_add_ps(sum[v % 2], x[v]);
    }
}

/* exp_block of a block whose scores all lie at most MATHF8_NEAR below the maximum; else false, and *sum_out and e are nothing. Of a
 * half that is not seen nothing is written. */
ALWAYS_INLINE bool exp_near(const float *score, uint32_t count, float max, float *e,
                            __m256 *sum_out)
{
    const __m256i limit = _mm256_castps_si256(_mm256_set1_ps(MATHF8_NEAR));
    __m256i far = limit;
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    if (count <= HALF)
        exp_half_near(false, score, count, max, e, sum, &far);
    else
        exp_half_near(true, score, HALF, max, e, sum, &far);
    if (count == ATTENTION_BLOCK)
        exp_half_near(true, score + HALF, HALF, max, e + HALF, sum, &far);
    else if (count > HALF)
        exp_half_near(false, score + HALF, count - HALF, max, e + HALF, sum, &far);
    *sum_out = _mm256_add_ps(sum[0], sum[1]);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(far, limit)) == -1;
}

ALWAYS_INLINE bool exp_block_near(const float *score, float max, float *e, __m256 *sum_out)
{
    return exp_near(score, ATTENTION_BLOCK, max, e, sum_out);
}

static inline bool exp_some_near(const float *score, uint32_t count, float max, float *e,
                                 __m256 *sum_out)
{
    return exp_near(score, count, max, e, sum_out);
}

/* The largest lane, and the rest of the tree, of four vectors at a time. */
ALWAYS_INLINE __m128 max_lanes(const __m256 x[CHUNK])
{
    __m128 four[CHUNK];
    for (int i = 0; i < CHUNK; i++)
        four[i] = _mm_max_ps(_mm256_castps256_ps128(x[i]), _mm256_extractf128_ps(x[i], 1));
    __m128 low = _mm_max_ps(_mm_movelh_ps(four[0], four[1]), _mm_movehl_ps(four[1], four[0]));
    __m128 high = _mm_max_ps(_mm_movelh_ps(four[2], four[3]), _mm_movehl_ps(four[3], four[2]));
    return _mm_max_ps(_mm_shuffle_ps(low, high, 0x88), _mm_shuffle_ps(low, high, 0xdd));
}

ALWAYS_INLINE __m128 sum_lanes(const __m256 x[CHUNK])
{
    __m128 four[CHUNK];
    for (int i = 0; i < CHUNK; i++)
        four[i] = _mm_add_ps(_mm256_castps256_ps128(x[i]), _mm256_extractf128_ps(x[i], 1));
    __m128 low = _mm_add_ps(_mm_movelh_ps(four[0], four[1]), _mm_movehl_ps(four[1], four[0]));
    __m128 high = _mm_add_ps(_mm_movelh_ps(four[2], four[3]), _mm_movehl_ps(four[3], four[2]));
    return _mm_add_ps(_mm_shuffle_ps(low, high, 0x88), _mm_shuffle_ps(low, high, 0xdd));
}

/* The largest of the first `count` scores of a half, of each lane, and of `best`; NaN never wins. */
ALWAYS_INLINE __m256 max_half(bool whole, const float *score, uint32_t count, __m256 best)
{
#pragma GCC unroll 4
    for (uint32_t i = 0; i < HALF; i += LANES) {
        __m256 value = _mm256_loadu_ps(score + i);
        if (!whole)
            value =
                _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), value, valid_lanes(count, i));
        best = _mm256_max_ps(value, best); /* `best` where the value is NaN */
    }
    return best;
}

ALWAYS_INLINE __m256 max_block(const float *score)
{
    __m256 none = _mm256_set1_ps(-__builtin_inff());
    return max_half(true, score + HALF, HALF, max_half(true, score, HALF, none));
}

static inline __m256 max_some(const float *score, uint32_t count)
{
    const __m256 none = _mm256_set1_ps(-__builtin_inff());
    if (count <= HALF)
        return max_half(false, score, count, none);
    return max_half(false, score + HALF, count - HALF, max_half(true, score, HALF, none));
}

/* n of four floats (constant after inlining), and 0: through no memory, which would wait for what was written in other pieces. */
ALWAYS_INLINE __m128 few_load(uint32_t n, const float *at)
{
    __m128 zero = _mm_setzero_ps();
    if (n == 4)
        return _mm_loadu_ps(at);
    if (n == 3)
        return _mm_movelh_ps(_mm_loadl_pi(zero, (const void *)at), _mm_load_ss(at + 2));
    return n == 2 ? _mm_loadl_pi(zero, (const void *)at) : _mm_load_ss(at);
}

ALWAYS_INLINE void few_store(uint32_t n, float *at, __m128 x)
{
    if (n == 4)
        _mm_storeu_ps(at, x);
    else if (n == 1)
        _mm_store_ss(at, x);
    else
        _mm_storel_pi((void *)at, x);
    if (n == 3)
        _mm_store_ss(at + 2, _mm_movehl_ps(x, x));
}

/* Maxima and sums of up to four states join those they have so far; the factors of the outputs so far, and of this block's. */
ALWAYS_INLINE void softmax_join(uint32_t n, __m128 max, __m128 sum, float *running_max,
                                float *running_sum, float *keep, float *add)
{
    __m128 old_max = few_load(n, running_max), old_sum = few_load(n, running_sum);
    __m128 new_max = _mm_max_ps(max, old_max); /* the second where one is NaN */
    __m256 factor =
        mathf8_exp(_mm256_set_m128(_mm_sub_ps(max, new_max), _mm_sub_ps(old_max, new_max)));
    __m128 kept = _mm256_castps256_ps128(factor), added = _mm256_extractf128_ps(factor, 1);
    few_store(n, running_max, new_max);
    few_store(n, running_sum, _mm_fmadd_ps(old_sum, kept, _mm_mul_ps(sum, added)));
    _mm_storeu_ps(keep, kept);
    _mm_storeu_ps(add, added);
}

/* The end of a block's softmax: maxima, and sums of nq heads, by lanes, become those so far (`first`), or join them. */
ALWAYS_INLINE void softmax_end(int nq, bool first, __m128 max, __m256 sums[CHUNK],
                               float *running_max, float *running_sum, struct softmax *s)
{
#pragma GCC unroll 4
    for (int q = nq; q < CHUNK; q++)
        sums[q] = sums[0];
    __m128 sum = sum_lanes(sums);
    if (first) {
        _mm_storeu_ps(s->sum, sum);
        memcpy(running_max, s->max, (size_t)nq * sizeof *s->max);
        memcpy(running_sum, s->sum, (size_t)nq * sizeof *s->sum);
        return;
    }
    softmax_join((uint32_t)nq, max, sum, running_max, running_sum, s->keep, s->add);
}

/* score[nq][64], already scaled, of the first `count` positions (a constant 64 after inlining for whole blocks) becomes
 * e[nq][64], and joins the maxima and sums that the heads have so far; `first`: there are none. Steps go over all heads
 * before the next, so that one head's latencies hide behind the others'. */
ALWAYS_INLINE void softmax_heads(int nq, bool first, const float *score, uint32_t count, float *e,
                                 float *running_max, float *running_sum, struct softmax *s)
{
    __m256 best[CHUNK], sums[CHUNK];
#pragma GCC unroll 4
    for (int q = 0; q < CHUNK; q++)
        if (q >= nq)
            best[q] = best[0];
        else if (count < ATTENTION_BLOCK)
            best[q] = max_some(score + q * ATTENTION_BLOCK, count);
        else
            best[q] = max_block(score + q * ATTENTION_BLOCK);
    __m128 max = max_lanes(best);
    _mm_storeu_ps(s->max, max);
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++) {
        const float *from = score + q * ATTENTION_BLOCK;
        float *to = e + q * ATTENTION_BLOCK;
        if (count < ATTENTION_BLOCK ||
            __builtin_expect(!exp_block_near(from, s->max[q], to, &sums[q]), 0))
            sums[q] = exp_block(from, count, s->max[q], to);
    }
    softmax_end(nq, first, max, sums, running_max, running_sum, s);
}

/* For any values. Not inlined: rare, and long. Scores behind the last run may be anything. */
static __attribute__((noinline)) __m256 exp_any(const float *score, uint32_t count, float max,
                                                float *e)
{
    return exp_block(score, count, max, e);
}

/* softmax_join of eight states. */
ALWAYS_INLINE void softmax_join_eight(const float *max, const float *sum, float *running_max,
                                      float *running_sum, float *keep, float *add)
{
    __m256 own = _mm256_loadu_ps(max), old = _mm256_loadu_ps(running_max);
    __m256 most = _mm256_max_ps(own, old); /* the second where one is NaN */
    __m256 kept = mathf8_exp(_mm256_sub_ps(old, most)),
           added = mathf8_exp(_mm256_sub_ps(own, most));
    _mm256_storeu_ps(running_max, most);
    _mm256_storeu_ps(running_sum, _mm256_fmadd_ps(_mm256_loadu_ps(running_sum), kept,
                                                  _mm256_mul_ps(_mm256_loadu_ps(sum), added)));
    _mm256_storeu_ps(keep, kept);
    _mm256_storeu_ps(add, added);
}

enum { ATTENTION_ABREAST = 4 }; /* whole blocks that go side by side */

/* Where the pages of the blocks at `begin`, a page each, begin; those beyond `last` are the last one. */
static inline void abreast_pages(const struct cpu_attention_tile *tile, uint32_t begin,
                                 uint32_t last, uint64_t pages_out[ATTENTION_ABREAST])
{
    for (uint32_t b = 0; b < ATTENTION_ABREAST; b++) {
        uint32_t block = begin / ATTENTION_BLOCK + b, most = last / ATTENTION_BLOCK;
        pages_out[b] = tile->blocks[block < most ? block : most] * tile->page_bytes;
    }
}

/* Maxima and sums of nq heads, [block][nq], join those so far, block by block; the factors of all blocks take their exponentials
 * together. */
static inline void abreast_join(uint32_t nq, bool first, const float *max, const float *sum,
                                float *running_max, float *running_sum,
                                float keep[ATTENTION_ABREAST][CHUNK],
                                float add[ATTENTION_ABREAST][CHUNK])
{
    __m128 so_far = first ? few_load(nq, max) : few_load(nq, running_max),
           total = first ? few_load(nq, sum) : few_load(nq, running_sum);
    __m256 factors[ATTENTION_ABREAST];
    for (uint32_t b = 0; b < ATTENTION_ABREAST; b++) {
        __m128 own = few_load(nq, max + b * nq),
               most = first && b == 0 ? own
                                      : _mm_max_ps(own, so_far); /* the second where one is NaN */
        factors[b] = _mm256_set_m128(_mm_sub_ps(own, most), _mm_sub_ps(so_far, most));
        so_far = most;
    }
    for (uint32_t b = 0; b < ATTENTION_ABREAST; b++)
        factors[b] = mathf8_exp(factors[b]);
    for (uint32_t b = 0; b < ATTENTION_ABREAST; b++) {
        __m128 kept = _mm256_castps256_ps128(factors[b]),
               added = _mm256_extractf128_ps(factors[b], 1);
        _mm_storeu_ps(keep[b], kept);
        _mm_storeu_ps(add[b], added);
        if (!first || b > 0)
            total = _mm_fmadd_ps(total, kept, _mm_mul_ps(few_load(nq, sum + b * nq), added));
    }
    few_store(nq, running_max, so_far);
    few_store(nq, running_sum, total);
}

enum { STATES_BATCH = 48 }; /* states that take a softmax's steps together, whole vectors */

/* What up to STATES_BATCH states make of one block: of scores [n][64] state i sees the first counts[i]. All states take a step before
 * the next one: maxima, exponentials and what joins are long chains. First the maxima. */
static inline void softmax_maxima(uint32_t n, const float *score, const uint32_t *counts,
                                  float *max)
{
    __m256 lanes[STATES_BATCH];
    for (uint32_t i = 0; i < n; i++)
        if (counts[i] < ATTENTION_BLOCK)
            lanes[i] = max_some(score + (size_t)i * ATTENTION_BLOCK, counts[i]);
        else
            lanes[i] = max_block(score + (size_t)i * ATTENTION_BLOCK);
    for (uint32_t i = n; i % CHUNK != 0; i++)
        lanes[i] = lanes[0];
    for (uint32_t i = 0; i < n; i += CHUNK)
        _mm_storeu_ps(max + i, max_lanes(lanes + i));
}

/* At last maxima and sums (sums: [n], and anything up to a multiple of CHUNK) join those so far; what is left are the factors of the
 * outputs so far and of this block's (with room for CHUNK more). */
static inline void softmax_states_join(uint32_t n, bool first, const float *max, const __m256 *sums,
                                       float *running_max, float *running_sum, float *keep,
                                       float *add)
{
    float sum[STATES_BATCH];
    for (uint32_t i = 0; i < n; i += CHUNK)
        _mm_storeu_ps(sum + i, sum_lanes(sums + i));
    if (first) {
        memcpy(running_max, max, n * sizeof *max);
        memcpy(running_sum, sum, n * sizeof *sum);
        return;
    }
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        softmax_join_eight(max + i, sum + i, running_max + i, running_sum + i, keep + i, add + i);
    if (i < n && n - i <= CHUNK) {
        softmax_join(n - i, _mm_loadu_ps(max + i), _mm_loadu_ps(sum + i), running_max + i,
                     running_sum + i, keep + i, add + i);
    } else if (i < n) {
        float some[2][LANES] = {{0}};
        memcpy(some[0], running_max + i, (n - i) * sizeof **some);
        memcpy(some[1], running_sum + i, (n - i) * sizeof **some);
        softmax_join_eight(max + i, sum + i, some[0], some[1], keep + i, add + i);
        memcpy(running_max + i, some[0], (n - i) * sizeof **some);
        memcpy(running_sum + i, some[1], (n - i) * sizeof **some);
    }
}

/* The exponentials of a state that sees a part of a block, or of any values; returns the sums. */
static inline __m256 softmax_exp_some(const float *score, uint32_t count, float max, float *e)
{
    __m256 sum;
    if (__builtin_expect(!exp_some_near(score, count, max, e, &sum), 0))
        sum = exp_any(score, count, max, e);
    return sum;
}

/* All three, for e [n][64]. */
static inline void softmax_states(uint32_t n, bool first, const float *score,
                                  const uint32_t *counts, float *e, float *running_max,
                                  float *running_sum, float *keep, float *add)
{
    float max[STATES_BATCH];
    __m256 sums[STATES_BATCH];
    softmax_maxima(n, score, counts, max);
    for (uint32_t i = 0; i < n; i++) {
        const float *from = score + (size_t)i * ATTENTION_BLOCK;
        float *to = e + (size_t)i * ATTENTION_BLOCK;
        if (counts[i] < ATTENTION_BLOCK)
            sums[i] = softmax_exp_some(from, counts[i], max[i], to);
        else if (__builtin_expect(!exp_block_near(from, max[i], to, &sums[i]), 0))
            sums[i] = exp_any(from, ATTENTION_BLOCK, max[i], to);
    }
    for (uint32_t i = n; i % CHUNK != 0; i++)
        sums[i] = sums[0];
    softmax_states_join(n, first, max, sums, running_max, running_sum, keep, add);
}

/* Eight of a head's outputs of one block join what it has so far. */
ALWAYS_INLINE void merge_store(bool first, __m256 output, float keep, float add, float *running)
{
    if (!first)
        output = _mm256_fmadd_ps(_mm256_loadu_ps(running), _mm256_set1_ps(keep),
                                 _mm256_mul_ps(output, _mm256_set1_ps(add)));
    _mm256_storeu_ps(running, output);
}

/* rope_turn.h's rope_turn_all, four pairs at a time: even lanes are even * cos - odd * sin, odd ones even * sin + odd * cos, with
 * the same roundings. */
static inline void turn_all(const struct cpu_rope_row *row)
{
    uint32_t i = 0;
    for (; i + 4 <= row->pairs; i += 4) {
        __m128 c = _mm_loadu_ps(row->cos + i), s = _mm_loadu_ps(row->sin + i);
        __m256 even = _mm256_set_m128(_mm_unpackhi_ps(c, s), _mm_unpacklo_ps(c, s)),
               odd = _mm256_permute_ps(even, 0xb1);
        for (uint32_t h = 0; h < row->heads + row->kv_heads; h++) {
            float *at = (h < row->heads ? row->q + (size_t)h * row->head_dim
                                        : row->k + (size_t)(h - row->heads) * row->head_dim) +
                        2 * (size_t)i;
            __m256 x = _mm256_loadu_ps(at);
            x = _mm256_fmaddsub_ps(_mm256_moveldup_ps(x), even,
                                   _mm256_mul_ps(_mm256_movehdup_ps(x), odd));
            _mm256_storeu_ps(at, x);
        }
    }
    if (i < row->pairs) { /* what is left: the same row, seen from there on */
        struct cpu_rope_row rest = *row;
        rest.cos += i;
        rest.sin += i;
        rest.pairs -= i;
        rest.q += 2 * (size_t)i;
        rest.k += 2 * (size_t)i;
        rope_turn_all(&rest);
    }
}

/* Asks for the queries of several rows, and for where their outputs go: short runs of lines that lie apart. */
static inline void tile_fetch(const struct cpu_attention_tile *tile)
{
    size_t floats = (size_t)tile->group * tile->head_dim, line = 64 / sizeof(float);
    for (uint32_t r = 0; r < tile->rows; r++)
        for (size_t i = 0; i < floats; i += line) {
            line_fetch(tile->q + r * tile->row_stride + i);
            _mm_prefetch((const char *)(tile->out + r * tile->row_stride + i), _MM_HINT_T1);
        }
}

/* out = running / sum, for all rows and heads. */
static inline void tile_finish(const struct cpu_attention_tile *tile)
{
    uint32_t dim = tile->head_dim, heads = cpu_attention_row_heads(tile);
    struct cpu_attention_results results = cpu_attention_results_of(tile, 0);
    for (uint32_t r = 0; r < tile->rows; r++)
        for (uint32_t g = 0; g < heads; g++) {
            size_t state = (size_t)r * heads + g;
            float *out = tile->out + r * tile->row_stride + (size_t)g * dim;
            __m256 inverse = _mm256_set1_ps(1.0f / results.sum[state]);
            for (uint32_t i = 0; i < dim; i += LANES)
                _mm256_storeu_ps(
                    out + i,
                    _mm256_mul_ps(_mm256_loadu_ps(results.outputs + state * dim + i), inverse));
        }
}

/* attention_abreast_avx2.c: one row over ATTENTION_ABREAST whole blocks side by side, all KV heads of the tile, of an f32 or f16 cache.
 * It is for rows alone (tile->layer), pages of one block, heads of sixteens of dimensions and up to three query heads to each, where all
 * these blocks from position `begin` on end at `last` or before. The results join those of the blocks before `begin`, or stay apart (partials). */
bool cpu_avx2_attention_is_abreast(const struct cpu_attention_tile *tile, uint32_t begin,
                                   uint32_t last);
void cpu_avx2_attention_abreast(const struct cpu_attention_tile *tile, enum kern_kv_type type,
                                uint32_t begin, uint32_t last);

#endif
