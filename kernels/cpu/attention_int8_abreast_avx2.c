/* Attention of one row over four whole blocks side by side, int8, for AVX2 and FMA: attention_int8_plain.c's integers in any order,
 * its floats in the same order on eight lanes.
 *
 * As over f16 (attention_abreast_avx2.c) each block is one of four runs of lines that are read in order, a KiB at a time:
 *
 *     scores    sixteen positions of a block x three heads, all dimensions; then of the next block
 *     weights   of all twelve states at once, so that one's chains of operations hide behind the others'
 *     outputs   sixteen dimensions x three heads, all positions of a block; then of the next block
 *
 * It is for heads of 64 with three query heads each. Lines are asked for all along.
 *
 * Owner: any compute thread. */
#include "kernels/cpu/attention_int8_avx2.h"

enum {
    BLOCKS = ATTENTION_ABREAST,
    HEADS = 3,
    STATES = BLOCKS * HEADS,
    DIM = 64,
    PIECES = BLOCKS * RUNS, /* of K, and of V */
    PIECE = DIM * RUN,      /* bytes */
};

/* Rounds of asking, a line of each block in each: K and V have so many, and they are asked for while a piece's products are made, and
 * while weights are (one with each half of a state, the others after that). K is asked for so far ahead at its begin, and then more and
 * more; V and the next K likewise. */
enum {
    ROUNDS = DIM * ATTENTION_BLOCK / LINE,
    PIECE_ROUNDS = 3,
    WEIGHT_ROUNDS = 34,
    AHEAD = 28,
};
_Static_assert((ROUNDS - AHEAD) % PIECE_ROUNDS == 0 &&
                   (2 * ROUNDS - AHEAD - PIECES * PIECE_ROUNDS - WEIGHT_ROUNDS) % PIECE_ROUNDS == 0,
               "no piece asks for two of K, V and the next K");
_Static_assert(2 * PIECES * PIECE_ROUNDS + WEIGHT_ROUNDS >= 2 * ROUNDS, "all is asked for");

/* Four blocks of one KV head. */
struct quad {
    const uint8_t *k[BLOCKS], *v[BLOCKS];
    const uint8_t *next[BLOCKS]; /* the K that comes after them */
    const uint16_t *k_scales[BLOCKS], *v_scales[BLOCKS];
};

/* What three heads make of them: state b * HEADS + h is head h over block b. */
struct states {
    _Alignas(32) float score[STATES * ATTENTION_BLOCK]; /* then weights as floats, in their place */
    int16_t weight[STATES * ATTENTION_BLOCK];
    float max[STATES], sum[STATES], factor[2 * LANES];
    float keep[BLOCKS][CHUNK], add[BLOCKS][CHUNK];
};

/* A chunk of heads: their queries, and what they have so far. */
struct row {
    const int16_t *query; /* [HEADS][DIM] */
    const float *factor;
    float *max, *sum, *outputs;
    size_t apart; /* floats from one block's own results to the next's (partials); 0: merged */
    bool first;   /* there are none so far */
};

/* What is asked for from round `round` on: K, V, then the next K. */
struct asks {
    const uint8_t *at[BLOCKS];
};

ALWAYS_INLINE struct asks asks_from(const struct quad *quad, uint32_t round)
{
    const uint8_t *const *from = round < ROUNDS       ? quad->k
                                 : round < 2 * ROUNDS ? quad->v
                                                      : quad->next;
    struct asks asks;
    for (int b = 0; b < BLOCKS; b++)
        asks.at[b] = from[b] + (size_t)(round % ROUNDS) * LINE;
    return asks;
}

ALWAYS_INLINE void asks_round(struct asks *asks)
{
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) {
        line_fetch(asks->at[b]);
        asks->at[b] += LINE;
    }
}

/* --- products --- */

/* clang-format off */
#define CLEAR(s) "vpxor %[s" s "], %[s" s "], %[s" s "]\n\t"
#define ASK(at, line) "prefetcht0 64*" #line "(%[a" #at "])\n\t"
#define EIGHT(first, x, y, z)                                                     \
    first(0) x PAIRS_STEP(1) PAIRS_STEP(2) y PAIRS_STEP(3) PAIRS_STEP(4) PAIRS_STEP(5) \
    PAIRS_STEP(6) z PAIRS_STEP(7)
/* to the next eight rows */
#define ON "add $8*32, %[b]\n\tadd $8*4, %[a]\n\t"
/* clang-format on */

/* sum[v * HEADS + h]: 16 lanes of 32 rows of pairs at b times the pairs at a, heads `apart` bytes apart. */
ALWAYS_INLINE void piece_sums(const uint8_t *b, const int16_t *a, size_t apart,
                              const struct asks *asks, __m256i sum[2 * HEADS])
{
    b += PAIRS_MIDDLE;
    __asm__ volatile(
        /* clang-format off */
        CLEAR("0") CLEAR("1") CLEAR("2") CLEAR("3") CLEAR("4") CLEAR("5")
        EIGHT(PAIRS_FIRST, ASK(0, 0), ASK(1, 0), ASK(2, 0)) ON
        EIGHT(PAIRS_STEP, ASK(3, 0), ASK(0, 1), ASK(1, 1)) ON
        EIGHT(PAIRS_STEP, ASK(2, 1), ASK(3, 1), ASK(0, 2)) ON
        EIGHT(PAIRS_STEP, ASK(1, 2), ASK(2, 2), ASK(3, 2))
        PAIRS_LAST
        /* clang-format on */
        : [s0] "=&x"(sum[0]), [s1] "=&x"(sum[1]), [s2] "=&x"(sum[2]), [s3] "=&x"(sum[3]),
          [s4] "=&x"(sum[4]), [s5] "=&x"(sum[5]), [b] "+&r"(b), [a] "+&r"(a)
        : [t] "r"(apart), [a0] "r"(asks->at[0]), [a1] "r"(asks->at[1]), [a2] "r"(asks->at[2]),
          [a3] "r"(asks->at[3])
        : PAIRS_REGISTERS, "cc", "memory");
}

static __attribute__((noinline)) void quad_scores(const struct quad *quad, const struct row *row,
                                                  float *score)
{
    for (uint32_t i = 0; i < PIECES; i++) {
        uint32_t r = i / BLOCKS, b = i % BLOCKS;
        struct asks asks = asks_from(quad, AHEAD + i * PIECE_ROUNDS);
        __m256i sum[2 * HEADS];
        piece_sums(quad->k[b] + (size_t)r * PIECE, row->query, DIM * sizeof *row->query, &asks,
                   sum);
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            __m256 scale = scales_load(quad->k_scales[b] + r * RUN + v * LANES);
#pragma GCC unroll 3
            for (int h = 0; h < HEADS; h++) {
                __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[v * HEADS + h]),
                                         _mm256_broadcast_ss(&row->factor[h]));
                _mm256_store_ps(score + (b * HEADS + h) * ATTENTION_BLOCK + r * RUN + v * LANES,
                                _mm256_mul_ps(x, scale));
            }
        }
    }
}

static __attribute__((noinline)) void quad_outputs(const struct quad *quad, const struct row *row,
                                                   const struct states *states)
{
    for (uint32_t i = 0; i < PIECES; i++) {
        uint32_t g = i / BLOCKS, b = i % BLOCKS;
        float *to = row->outputs + b * row->apart + g * RUN;
        bool first = row->apart || (row->first && b == 0);
        struct asks asks = asks_from(quad, AHEAD + (PIECES + i) * PIECE_ROUNDS + WEIGHT_ROUNDS);
        __m256i sum[2 * HEADS];
        piece_sums(quad->v[b] + (size_t)g * PIECE, states->weight + b * HEADS * ATTENTION_BLOCK,
                   ATTENTION_BLOCK * sizeof *states->weight, &asks, sum);
#pragma GCC unroll 3
        for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++)
                merge_store(first,
                            _mm256_mul_ps(_mm256_cvtepi32_ps(sum[v * HEADS + h]),
                                          _mm256_broadcast_ss(&states->factor[b * HEADS + h])),
                            states->keep[b][h], states->add[b][h], to + h * DIM + v * LANES);
    }
}

/* --- weights --- */

/* The weights of state i of any scores, which have been lost: made again. Rare. */
static __attribute__((noinline)) __m256 weights_again(const struct quad *quad,
                                                      const struct row *row, uint32_t i, float max,
                                                      const float *scales, float *weight,
                                                      __m256i *top_out)
{
    _Alignas(32) float score[STATES * ATTENTION_BLOCK];
    quad_scores(quad, row, score);
    return weights_any(score + (size_t)i * ATTENTION_BLOCK, max, scales, weight, top_out);
}

/* State i's scores become weights, as floats, in their place: returns the sums of e, and the largest magnitudes in *top_out. */
ALWAYS_INLINE __m256 state_weights(const struct quad *quad, const struct row *row, uint32_t i,
                                   const float *scales, struct states *states, struct asks *asks,
                                   __m256i *top_out)
{
    const __m256i limit = _mm256_castps_si256(_mm256_set1_ps(MATHF8_NEAR));
    float *at = states->score + (size_t)i * ATTENTION_BLOCK, max = states->max[i];
    __m256i far = limit, top = _mm256_setzero_si256();
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int half = 0; half < ATTENTION_BLOCK; half += HALF) {
        asks_round(asks);
        weights_near(at + half, max, scales + half, at + half, sum, &far, &top);
    }
    *top_out = top;
    if (__builtin_expect(_mm256_movemask_epi8(_mm256_cmpeq_epi32(far, limit)) != -1, 0))
        return weights_again(quad, row, i, max, scales, at, top_out);
    return _mm256_add_ps(sum[0], sum[1]);
}

/* Scores become weights; all states take a step before the next one. Where a weight is not finite the integers are anything, and the
 * factor is NaN. */
static __attribute__((noinline)) void quad_weights(const struct quad *quad, const struct row *row,
                                                   struct states *states)
{
    static const uint32_t whole[STATES] = {ATTENTION_BLOCK, ATTENTION_BLOCK, ATTENTION_BLOCK,
                                           ATTENTION_BLOCK, ATTENTION_BLOCK, ATTENTION_BLOCK,
                                           ATTENTION_BLOCK, ATTENTION_BLOCK, ATTENTION_BLOCK,
                                           ATTENTION_BLOCK, ATTENTION_BLOCK, ATTENTION_BLOCK};
    struct asks asks = asks_from(quad, AHEAD + PIECES * PIECE_ROUNDS);
    _Alignas(32) float scales[ATTENTION_BLOCK];
    float inverse[2 * LANES];
    __m256 sums[STATES];
    __m256i top[2 * LANES];
    softmax_maxima(STATES, states->score, whole, states->max);
    for (uint32_t i = 0; i < STATES; i++) {
        if (i % HEADS == 0)
#pragma GCC unroll 8
            for (int j = 0; j < ATTENTION_BLOCK; j += LANES)
                _mm256_store_ps(scales + j, scales_load(quad->v_scales[i / HEADS] + j));
        sums[i] = state_weights(quad, row, i, scales, states, &asks, &top[i]);
    }
    for (uint32_t i = STATES; i < 2 * LANES; i++)
        top[i] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < STATES; i += CHUNK)
        _mm_storeu_ps(states->sum + i, sum_lanes(sums + i));
    for (uint32_t i = 0; i < 2 * LANES; i += LANES)
        _mm256_storeu_ps(states->factor + i, factors_of(mathf8_top_lanes(top + i), inverse + i));
    for (uint32_t i = 0; i < STATES; i++) {
        if (i < WEIGHT_ROUNDS - 2 * STATES)
            asks_round(&asks);
        weights_round(states->score + i * ATTENTION_BLOCK, inverse[i],
                      states->weight + i * ATTENTION_BLOCK);
    }
}

/* --- a row --- */

static void quad_attend(const struct quad *quad, const struct row *row)
{
    struct states states;
    quad_scores(quad, row, states.score);
    quad_weights(quad, row, &states);
    if (row->apart)
        for (uint32_t b = 0; b < BLOCKS; b++) {
            memcpy(row->max + b * row->apart, states.max + b * HEADS, HEADS * sizeof *row->max);
            memcpy(row->sum + b * row->apart, states.sum + b * HEADS, HEADS * sizeof *row->sum);
        }
    else
        abreast_join(HEADS, row->first, states.max, states.sum, row->max, row->sum, states.keep,
                     states.add);
    quad_outputs(quad, row, &states);
}

/* Where the tile's first KV head has the four blocks at `begin`. */
static void quad_find(const struct cpu_attention_tile *tile, uint32_t begin, uint32_t last,
                      struct quad *quad)
{
    uint64_t pages[BLOCKS];
    abreast_pages(tile, begin, last, pages);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        quad->k[b] = tile->k + pages[b];
        quad->v[b] = tile->v + pages[b];
        quad->k_scales[b] = (const uint16_t *)(tile->k_scales + pages[b]);
        quad->v_scales[b] = (const uint16_t *)(tile->v_scales + pages[b]);
    }
}

/* The scales of the KV head `heads` behind the quad's: they are few, and asked for all at once. */
static void scales_ask(const struct cpu_attention_tile *tile, const struct quad *quad, size_t heads)
{
    size_t bytes = ATTENTION_BLOCK * sizeof **quad->k_scales;
    for (int b = 0; b < BLOCKS; b++)
        for (size_t i = 0; i < bytes; i += LINE) {
            size_t at = heads * tile->head_scales_bytes + i;
            line_fetch((const uint8_t *)quad->k_scales[b] + at);
            line_fetch((const uint8_t *)quad->v_scales[b] + at);
        }
}

bool cpu_avx2_kv_int8_is_abreast(const struct cpu_attention_tile *tile, uint32_t begin,
                                 uint32_t last)
{
    return tile->layer && tile->page_tokens == ATTENTION_BLOCK && tile->head_dim == DIM &&
           tile->group == HEADS && begin + BLOCKS * ATTENTION_BLOCK <= last + 1;
}

void cpu_avx2_kv_int8_abreast(const struct cpu_attention_tile *tile, const float *factor,
                              const int16_t *query, uint32_t begin, uint32_t last)
{
    struct cpu_attention_results results = cpu_attention_results_of(tile, begin);
    size_t floats = cpu_attention_partial_floats(cpu_attention_row_heads(tile), DIM);
    struct quad quad, after;
    quad_find(tile, begin, last, &quad);
    quad_find(tile, begin + BLOCKS * ATTENTION_BLOCK, last, &after);
    for (uint32_t head = 0; head <= tile->heads_more; head++) {
        bool more = head < tile->heads_more;
        struct row row = {.query = query + (size_t)head * HEADS * DIM,
                          .factor = factor + head * HEADS,
                          .max = results.max + head * HEADS,
                          .sum = results.sum + head * HEADS,
                          .outputs = results.outputs + (size_t)head * HEADS * DIM,
                          .apart = tile->partials ? floats : 0,
                          .first = begin == 0};
        for (int b = 0; b < BLOCKS; b++)
            quad.next[b] = more ? quad.k[b] + tile->head_bytes : after.k[b];
        scales_ask(tile, more ? &quad : &after, more);
        quad_attend(&quad, &row);
        for (int b = 0; b < BLOCKS; b++) {
            quad.k[b] += tile->head_bytes;
            quad.v[b] += tile->head_bytes;
            quad.k_scales[b] += tile->head_scales_bytes / sizeof(uint16_t);
            quad.v_scales[b] += tile->head_scales_bytes / sizeof(uint16_t);
        }
    }
}
