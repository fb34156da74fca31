/* Attention over an int8 KV cache, and its RoPE+KV write, for AVX2 and FMA: attention_int8_plain.c's integers in any order, its
 * floats in the same order on eight lanes.
 *
 * A block of 64 positions is up to four runs of 16, each in one page. Both products have one shape: 16 lanes (positions for
 * scores, dimensions for outputs) in two registers of 32-bit sums a query head; a step widens 32 bytes of pairs once and
 * meets them with one broadcast pair of each head. Sums have no order, so additions wait for nothing.
 *
 * Masked positions: their sums are computed (whatever the page holds), their weights are 0. */
#include "kernels/cpu/attention_int8_avx2.h"

/* Cache lines that are asked for while something else is computed: two at a time, `step` bytes on. */
struct fetch {
    const int8_t *at[2];
    size_t step;
};

/* Where they come from: of a row that takes all KV heads along, lines_next's or streams_find's; else the next block of the head. */
struct lines {
    const uint8_t *at[STREAMS]; /* NULL: the next block's */
    const struct run *ahead;
};

/* --- the write --- */

static inline uint16_t quantise(const float *x, uint32_t count, int8_t *q_out)
{
    uint16_t scale = kv_int8_scale(amax_bits(x, count));
    float inverse = kv_int8_inverse(scale);
    if (inverse == 0.0f) {
        memset(q_out, 0, count);
        return scale;
    }
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        __m128i q = to_int16x8(x + i, _mm256_set1_ps(inverse));
        _mm_storel_epi64((void *)(q_out + i), _mm_packs_epi16(q, q));
    }
    for (; i < count; i++)
        q_out[i] = (int8_t)mathf_rint(x[i] * inverse);
    return scale;
}

void cpu_avx2_kv_int8_rope(const struct cpu_rope_row *row)
{
    turn_all(row);
    kv_int8_row_store(row, quantise);
}

/* --- attention --- */

static inline __m256i pair_broadcast(const int16_t *pair)
{
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return _mm256_set1_epi32(both);
}

/* *sum += x. As an intrinsic, gcc 12 turns the sums into trees and copies, and spills them. */
ALWAYS_INLINE void add_in_place(__m256i *sum, __m256i x)
{
    __asm__("vpaddd %1, %0, %0" : "+x"(*sum) : "x"(x));
}

/* sum[q][v] += nv registers of 8 pairs times one pair of each a. nq and nv are constants after inlining. */
ALWAYS_INLINE void pairs_step(int nq, int nv, const int8_t *b, const int16_t *a, size_t a_stride,
                              __m256i sum[4][2])
{
    __m256i factor[4];
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
        factor[q] = pair_broadcast(a + q * a_stride);
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(b + v * 16)));
#pragma GCC unroll 4
        for (int q = 0; q < nq; q++)
            add_in_place(&sum[q][v], _mm256_madd_epi16(wide, factor[q]));
    }
}

/* Eight steps of three heads and two registers as one piece, rows of pairs one behind the other; lines are asked for in between. */
ALWAYS_INLINE void pairs_eight(const int8_t *b, const int16_t *a, size_t a_stride,
                               const struct fetch *fetch, __m256i sum[4][2])
{
    __asm__ volatile(
        /* clang-format off */
        "prefetcht0 (%[f])\n\t"
        PAIRS_FIRST(0)
        PAIRS_STEP(1)
        "prefetcht0 (%[g])\n\t"
        PAIRS_STEP(2)
        PAIRS_STEP(3)
        "prefetcht0 (%[f],%[d])\n\t"
        PAIRS_STEP(4)
        PAIRS_STEP(5)
        "prefetcht0 (%[g],%[d])\n\t"
        PAIRS_STEP(6)
        PAIRS_STEP(7)
        PAIRS_LAST
        /* clang-format on */
        : [s0] "+x"(sum[0][0]), [s1] "+x"(sum[1][0]), [s2] "+x"(sum[2][0]), [s3] "+x"(sum[0][1]),
          [s4] "+x"(sum[1][1]), [s5] "+x"(sum[2][1])
        : [b] "r"(b + PAIRS_MIDDLE), [a] "r"(a), [t] "r"(2 * a_stride), [f] "r"(fetch->at[0]),
          [g] "r"(fetch->at[1]), [d] "r"(fetch->step)
        : PAIRS_REGISTERS, "memory");
}

/* The same over `rows` rows (a multiple of 4), `stride` bytes apart (of two registers 32), with fetches spread over them. */
ALWAYS_INLINE void pairs_add(int nq, int nv, const int8_t *b, size_t stride, uint32_t rows,
                             const int16_t *a, size_t a_stride, struct fetch fetch,
                             __m256i sum[4][2])
{
    uint32_t i = 0;
    if (nq == 3 && nv == 2)
        for (; i + 8 <= rows; i += 8, b += 8 * stride, a += 16) {
            pairs_eight(b, a, a_stride, &fetch, sum);
            fetch.at[0] += 2 * fetch.step;
            fetch.at[1] += 2 * fetch.step;
        }
#pragma GCC unroll 1
    for (; i < rows; i += 4) {
        line_fetch(fetch.at[0]);
        pairs_step(nq, nv, b, a, a_stride, sum);
        pairs_step(nq, nv, b + stride, a + 2, a_stride, sum);
        line_fetch(fetch.at[1]);
        pairs_step(nq, nv, b + 2 * stride, a + 4, a_stride, sum);
        pairs_step(nq, nv, b + 3 * stride, a + 6, a_stride, sum);
        fetch.at[0] += fetch.step;
        fetch.at[1] += fetch.step;
        b += 4 * stride;
        a += 8;
    }
}

/* The streams from their `number`th line on; without streams the lines from `next` on. */
ALWAYS_INLINE struct fetch fetch_of(const struct lines *lines, size_t number, const int8_t *next)
{
    if (!lines->at[0])
        return (struct fetch){{next, next + LINE}, (size_t)2 * LINE};
    const int8_t *first = (const int8_t *)lines->at[0], *second = (const int8_t *)lines->at[1];
    return (struct fetch){{first + number * LINE, second + number * LINE}, LINE};
}

ALWAYS_INLINE void sums_clear(int nq, int nv, __m256i sum[4][2])
{
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            sum[q][v] = _mm256_setzero_si256();
}

/* score[q][j] = (float(sum) * factor[q]) * K's scale, for whole runs. */
ALWAYS_INLINE void scores(int nq, const struct cpu_attention_tile *tile, const struct run *runs,
                          const struct lines *lines, uint32_t run_count, const int16_t *query,
                          const float *factor, float *score)
{
    uint32_t dim = tile->head_dim;
    for (uint32_t r = 0; r < run_count; r++) {
        __m256i sum[4][2];
        struct fetch fetch = fetch_of(lines, (size_t)r * (dim / 8), lines->ahead[r].k);
        sums_clear(nq, 2, sum);
        pairs_add(nq, 2, runs[r].k, (size_t)2 * RUN, dim / 2, query, dim, fetch, sum);
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            __m256 scale = scales_load(runs[r].k_scales + v * LANES);
#pragma GCC unroll 4
            for (int q = 0; q < nq; q++)
                _mm256_storeu_ps(score + q * ATTENTION_BLOCK + r * RUN + v * LANES,
                                 _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum[q][v]),
                                                             _mm256_set1_ps(factor[q])),
                                               scale));
        }
    }
}

/* e * V's scale of nq heads as 16-bit integers, 0 from `count` on, and their factors. Both numbers are constants after
 * inlining for whole blocks. Steps go over all heads before the next, so that one head's latencies hide behind the others'. */
ALWAYS_INLINE void weights_make(int nq, const float *e, const struct run *runs, uint32_t count,
                                int16_t *weight_out, float *factor_out)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    float product[CHUNK * ATTENTION_BLOCK], inverse[CHUNK];
    __m256i top[CHUNK];
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
        top[q] = _mm256_setzero_si256();
    uint32_t run_count = (count + RUN - 1) / RUN;
    for (uint32_t r = 0; r < run_count; r++)
#pragma GCC unroll 2
        for (uint32_t j = r * RUN; j < (r + 1) * RUN; j += LANES) {
            __m256 scale = scales_load(runs[r].v_scales + (j - r * RUN));
            __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count - (int)j), lane);
#pragma GCC unroll 4
            for (int q = 0; q < nq; q++) {
                size_t at = (size_t)q * ATTENTION_BLOCK + j;
                __m256 w = _mm256_mul_ps(_mm256_loadu_ps(e + at), scale);
                if (count < ATTENTION_BLOCK)
                    w = _mm256_and_ps(w, _mm256_castsi256_ps(valid));
                top[q] = _mm256_max_epi32(top[q], magnitude(w));
                _mm256_storeu_ps(product + at, w);
            }
        }
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
        factor_out[q] = kv_int8_factor(top_of(top[q]), &inverse[q]);
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++) {
        int16_t *out = weight_out + q * ATTENTION_BLOCK;
        if (__builtin_expect(factor_out[q] != factor_out[q], 0)) { /* else 0 makes zeros of all */
            memset(out, 0, ATTENTION_BLOCK * sizeof *out);
            continue;
        }
        for (uint32_t j = 0; j < run_count * RUN; j += LANES)
            _mm_storeu_si128((void *)(out + j), to_int16x8(product + q * ATTENTION_BLOCK + j,
                                                           _mm256_set1_ps(inverse[q])));
    }
}

/* softmax_heads and weights_make of a whole block in one: scores [nq][64] become weights, and what joins. (Of four heads the two one
 * after the other are faster.) */
ALWAYS_INLINE void softmax_weights(int nq, const float *score, const struct run *runs, bool first,
                                   float *running_max, float *running_sum, struct softmax *s,
                                   int16_t *weight_out, float *factor_out)
{
    _Alignas(32) float scales[ATTENTION_BLOCK], weight[CHUNK * ATTENTION_BLOCK];
    float inverse[CHUNK];
    __m256 best[CHUNK], sums[CHUNK];
    __m256i top[CHUNK];
#pragma GCC unroll 8
    for (int i = 0; i < ATTENTION_BLOCK; i += LANES)
        _mm256_store_ps(scales + i, scales_load(runs[i / RUN].v_scales + i % RUN));
#pragma GCC unroll 4
    for (int q = 0; q < CHUNK; q++)
        best[q] = q < nq ? max_block(score + q * ATTENTION_BLOCK) : best[0];
    __m128 max = max_lanes(best);
    _mm_storeu_ps(s->max, max);
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++) {
        const float *from = score + q * ATTENTION_BLOCK;
        float *to = weight + q * ATTENTION_BLOCK;
        sums[q] = weights_whole(from, s->max[q], scales, to, &top[q]);
    }
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
        factor_out[q] = kv_int8_factor(top_of(top[q]), &inverse[q]);
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
        if (__builtin_expect(factor_out[q] != factor_out[q], 0)) /* else 0 makes zeros of all */
            memset(weight_out + q * ATTENTION_BLOCK, 0, ATTENTION_BLOCK * sizeof *weight_out);
        else
            weights_round(weight + q * ATTENTION_BLOCK, inverse[q],
                          weight_out + q * ATTENTION_BLOCK);
    softmax_end(nq, first, max, sums, running_max, running_sum, s);
}

/* nv registers of 8 outputs of nq heads, float(sum) * factor[q], from dimension `lane` on, merged. */
ALWAYS_INLINE void outputs_at(int nq, int nv, const struct cpu_attention_tile *tile,
                              const struct run *runs, const struct lines *lines, uint32_t run_count,
                              const int16_t *weight, const float *factor, const struct softmax *s,
                              bool first, uint32_t lane, float *running)
{
    uint32_t dim = tile->head_dim;
    __m256i sum[4][2];
    sums_clear(nq, nv, sum);
    for (uint32_t r = 0; r < run_count; r++) {
        /* behind what scores asked for */
        struct fetch fetch = fetch_of(lines, (size_t)RUNS * (dim / 8 + lane / RUN * 2) + r * 2,
                                      run_v(tile, &lines->ahead[r], lane));
        pairs_add(nq, nv, run_v(tile, &runs[r], lane), run_v_stride(tile, lane), RUN / 2,
                  weight + r * RUN, ATTENTION_BLOCK, fetch, sum);
    }
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            merge_store(first,
                        _mm256_mul_ps(_mm256_cvtepi32_ps(sum[q][v]), _mm256_set1_ps(factor[q])),
                        s->keep[q], s->add[q], running + (size_t)q * dim + lane + v * LANES);
}

/* One chunk of heads: what they have so far, and their queries. */
struct chunk {
    float *running, *running_max, *running_sum; /* [head][dim], [head] */
    const float *factor;                        /* [head] */
    const int16_t *query;                       /* [head][dim] */
    bool first;                                 /* the sequence's first block */
};

/* nq query heads against the first `count` positions of one block (a constant after inlining for whole blocks). */
ALWAYS_INLINE void attend_block(int nq, const struct cpu_attention_tile *tile,
                                const struct chunk *chunk, const struct run *runs,
                                const struct lines *lines, uint32_t count)
{
    uint32_t dim = tile->head_dim, run_count = (count + RUN - 1) / RUN;
    int16_t weight[CHUNK * ATTENTION_BLOCK];
    float score[CHUNK * ATTENTION_BLOCK], e[CHUNK * ATTENTION_BLOCK], factor[CHUNK];
    struct softmax s = {0};
    if (count < ATTENTION_BLOCK) /* of runs beyond the last there are no scores */
        memset(score, 0, sizeof score);
    scores(nq, tile, runs, lines, run_count, chunk->query, chunk->factor, score);
    if (nq < 4 && count == ATTENTION_BLOCK)
        softmax_weights(nq, score, runs, chunk->first, chunk->running_max, chunk->running_sum, &s,
                        weight, factor);
    else {
        softmax_heads(nq, chunk->first, score, count, e, chunk->running_max,
                      chunk->running_sum, &s);
        weights_make(nq, e, runs, count, weight, factor);
    }
    uint32_t lane = 0;
    for (; lane + 2 * LANES <= dim; lane += 2 * LANES)
        outputs_at(nq, 2, tile, runs, lines, run_count, weight, factor, &s, chunk->first, lane,
                   chunk->running);
    if (lane < dim)
        outputs_at(nq, 1, tile, runs, lines, run_count, weight, factor, &s, chunk->first, lane,
                   chunk->running);
}

/* Whole blocks and a sequence's last one apart. Not inlined: see attention_avx2.c. */
#define DEFINE_ATTEND(name, nq)                                                                   \
    static __attribute__((noinline)) void name(const struct cpu_attention_tile *tile,             \
                                               const struct chunk *chunk, const struct run *runs, \
                                               const struct lines *lines, uint32_t count)         \
    {                                                                                             \
        if (count < ATTENTION_BLOCK)                                                              \
            attend_block(nq, tile, chunk, runs, lines, count);                                    \
        else                                                                                      \
            attend_block(nq, tile, chunk, runs, lines, ATTENTION_BLOCK);                          \
    }
DEFINE_ATTEND(attend_1, 1)
DEFINE_ATTEND(attend_2, 2)
DEFINE_ATTEND(attend_3, 3)
DEFINE_ATTEND(attend_4, 4)

static void (*const attend[CHUNK + 1])(const struct cpu_attention_tile *tile,
                                       const struct chunk *chunk, const struct run *runs,
                                       const struct lines *lines, uint32_t count) = {
    NULL, attend_1, attend_2, attend_3, attend_4};

/* The tile's queries: 16-bit integers [row][head][dim], and their factors. */
struct queries {
    const int16_t *query;
    const float *factor;
};

static struct chunk chunk_of(const struct cpu_attention_tile *tile, const struct queries *queries,
                             uint32_t begin, uint32_t state)
{
    struct cpu_attention_results results = cpu_attention_results_of(tile, begin);
    return (struct chunk){.running = results.outputs + (size_t)state * tile->head_dim,
                          .running_max = results.max + state,
                          .running_sum = results.sum + state,
                          .factor = queries->factor + state,
                          .query = queries->query + (size_t)state * tile->head_dim,
                          .first = begin == 0 || tile->partials};
}

/* All rows of one KV head against the block at `begin`; `next` is the one behind. */
static void block_rows(const struct cpu_attention_tile *tile, const struct queries *queries,
                       uint32_t begin, const struct run *runs, const struct run *next)
{
    uint32_t group = tile->group, states = tile->rows * group;
    uint32_t row_begin = begin > tile->position ? begin - tile->position : 0;
    /* where all rows see the whole block, chunks run across them */
    bool whole = begin + ATTENTION_BLOCK <= tile->position + 1;
    struct lines lines = {.ahead = next};
    uint32_t nq;
    for (uint32_t state = row_begin * group; state < states; state += nq, lines.ahead = runs) {
        uint32_t r = state / group, seen = tile->position + r + 1 - begin;
        nq = chunk_heads((whole ? states : (r + 1) * group) - state);
        struct chunk chunk = chunk_of(tile, queries, begin, state);
        attend[nq](tile, &chunk, runs, &lines, seen < ATTENTION_BLOCK ? seen : ATTENTION_BLOCK);
    }
}

/* A page that is one block: K and V of the KV head that comes next are asked for, so that they stay in the first cache until then. What is
 * asked for earlier has to be fetched again from the second one. */
static void lines_next(const struct run *runs, size_t bytes, size_t scales_bytes,
                       struct lines *lines_out)
{
    lines_out->at[0] = (const uint8_t *)runs->k + bytes;
    lines_out->at[1] = (const uint8_t *)runs->v + bytes;
    for (size_t i = 0; i < ATTENTION_BLOCK * sizeof *runs->k_scales; i += LINE) {
        line_fetch((const uint8_t *)runs->k_scales + scales_bytes + i);
        line_fetch((const uint8_t *)runs->v_scales + scales_bytes + i);
    }
}

/* One row, all KV heads of the tile in turn; `next` is the block behind. */
static void block_heads(const struct cpu_attention_tile *tile, const struct queries *queries,
                        uint32_t begin, uint32_t last, const struct run *runs,
                        const struct run *next)
{
    uint32_t seen = tile->position + 1 - begin;
    struct run own[RUNS];
    memcpy(own, runs, sizeof own);
    for (uint32_t head = 0, state = 0; head <= tile->heads_more; head++) {
        struct lines lines = {.ahead = own};
        if (seen >= ATTENTION_BLOCK && tile->page_tokens == ATTENTION_BLOCK) {
            bool last_head = head == tile->heads_more;
            lines_next(last_head ? next : own, last_head ? 0 : tile->head_bytes,
                       last_head ? 0 : tile->head_scales_bytes, &lines);
        } else if (seen >= ATTENTION_BLOCK) /* a last block asks for another sequence at most */
            streams_find(tile, begin, last, head, lines.at);
        else if (tile->next) {
            lines.at[0] = tile->next + head * tile->head_bytes;
            lines.at[1] = lines.at[0] + (tile->v - tile->k);
            line_fetch(tile->next + (tile->k_scales - tile->k) + head * tile->head_scales_bytes);
            line_fetch(tile->next + (tile->v_scales - tile->k) + head * tile->head_scales_bytes);
        }
        uint32_t nq;
        for (uint32_t g = 0; g < tile->group; g += nq, state += nq) {
            nq = chunk_heads(tile->group - g);
            struct chunk chunk = chunk_of(tile, queries, begin, state);
            attend[nq](tile, &chunk, own, &lines, seen < ATTENTION_BLOCK ? seen : ATTENTION_BLOCK);
            lines.at[0] = NULL;
        }
        for (int r = 0; r < RUNS; r++) {
            own[r].k += tile->head_bytes;
            own[r].v += tile->head_bytes;
            own[r].k_scales += tile->head_scales_bytes / sizeof(uint16_t);
            own[r].v_scales += tile->head_scales_bytes / sizeof(uint16_t);
        }
    }
}

void cpu_avx2_kv_int8_tile(const struct cpu_attention_tile *tile)
{
    uint32_t dim = tile->head_dim, heads = cpu_attention_row_heads(tile);
    if (dim % LANES != 0) {
        cpu_plain_kv_int8_tile(tile);
        return;
    }
    uint32_t states = tile->rows * heads;
    float *factor = tile->scratch + (size_t)ATTENTION_STATES_MAX * (dim + 2);
    int16_t *query = (int16_t *)(factor + ATTENTION_STATES_MAX);
    if (tile->rows > 1)
        tile_fetch(tile);
    for (uint32_t state = 0; state < states; state++)
        factor[state] =
            query_make(tile->q + state / heads * tile->row_stride + (size_t)(state % heads) * dim,
                       dim, tile->scale, query + (size_t)state * dim);
    if (tile->rows > 1) {
        cpu_avx2_kv_int8_rows(tile, factor, query);
        return;
    }
    const struct queries queries = {query, factor};
    uint32_t begin = 0, last = tile->position + tile->rows - 1;
    if (tile->partials) {
        uint32_t part_last = tile->block_end * ATTENTION_BLOCK - 1;
        begin = tile->block_begin * ATTENTION_BLOCK;
        last = last < part_last ? last : part_last;
    }
    for (; cpu_avx2_kv_int8_is_abreast(tile, begin, last);
         begin += ATTENTION_ABREAST * ATTENTION_BLOCK)
        cpu_avx2_kv_int8_abreast(tile, factor, query, begin, last);
    struct run runs[RUNS], next[RUNS];
    if (begin <= last)
        runs_find(tile, begin, last, next);
    for (; begin <= last; begin += ATTENTION_BLOCK) {
        memcpy(runs, next, sizeof runs);
        if (begin + ATTENTION_BLOCK <= last)
            runs_find(tile, begin + ATTENTION_BLOCK, last, next);
        if (tile->layer)
            block_heads(tile, &queries, begin, last, runs, next);
        else
            block_rows(tile, &queries, begin, runs, next);
    }
    if (!tile->partials)
        tile_finish(tile);
}
