/* Attention of one row over four whole blocks side by side, f32 and f16, for AVX2, FMA and F16C: attention_plain.c's operations in the
 * same order on eight lanes.
 *
 * One thread reads memory fastest by about four runs of lines that go on together, and only if what has come is used soon: the
 * first-level cache has room for half of four blocks' K. So four blocks go side by side, with all sums in registers:
 *
 *     scores    eight positions of each block x up to three heads, dimension by dimension: 4 x 3 registers of sums
 *     outputs   sixteen dimensions x up to three heads of two blocks, position by position: 2 x 2 x 3; then of the other two
 *
 * K and V of a block lie in the order in which this reads them (kv_layout.h). Results of the four blocks are merged in ascending order, as
 * everywhere. */
#include "kernels/cpu/attention_avx2.h"
#include "kernels/cpu/kv_layout.h"

enum {
    BLOCKS = ATTENTION_ABREAST,
    HEADS = 3, /* of a KV head, at most */
    STATES = BLOCKS * HEADS,
    GROUP = KV_V_DIMS, /* dimensions that lie together in V */
    LINE = 64,
};

/* Four blocks of one KV head. */
struct quad {
    const uint8_t *k[BLOCKS], *v[BLOCKS];
    const uint8_t *next[BLOCKS]; /* the K that comes after them */
    uint32_t dim;
};

/* What up to three heads make of them: state b * nq + h is head h over block b. */
struct states {
    /* then weights, in their place: both would not stay in the first cache */
    _Alignas(32) float score[STATES * ATTENTION_BLOCK];
    float keep[BLOCKS][CHUNK], add[BLOCKS][CHUNK];
};

/* --- what is asked for, and when ---
 *
 * K is asked for a little before its turn, V twice as far ahead, and that, too, is the beginning of the next K: weights ask for what is
 * between. Further ahead it would have left the first cache before its turn. In lines of one block's K, or V: */

/* Of K, and of V. */
ALWAYS_INLINE uint32_t block_lines(int half, uint32_t dim)
{
    return (uint32_t)(ATTENTION_BLOCK * dim * element_bytes(half) / LINE);
}

ALWAYS_INLINE uint32_t lines_ahead(int half)
{
    return (uint32_t)(ATTENTION_BLOCK * GROUP / 4 * element_bytes(half) / LINE);
}

/* Four runs to be asked for, a line of each in each of `count` rounds; in the `rest` the others. */
struct asks {
    const uint8_t *at[BLOCKS], *then[BLOCKS];
    size_t count, rest;
};

/* From line `line` of `at` on; from the beginning of `then` where that has no more than `lines`. */
ALWAYS_INLINE struct asks asks_of(const uint8_t *const at[BLOCKS],
                                  const uint8_t *const then[BLOCKS], uint32_t line, uint32_t lines,
                                  uint32_t rounds)
{
    bool over = line >= lines;
    struct asks asks = {.count = over || line + rounds <= lines ? rounds : lines - line};
    asks.rest = rounds - asks.count;
    for (int b = 0; b < BLOCKS; b++) {
        asks.at[b] = over ? then[b] + (size_t)(line - lines) * LINE : at[b] + (size_t)line * LINE;
        asks.then[b] = then[b];
    }
    return asks;
}

/* --- three heads: loops in assembly, since gcc 12 copies and spills what goes from one step to the next ---
 *
 * Twelve sums are ymm0 to ymm11, [head][block]; three heads' factors in ymm12 to ymm14 meet a register of values in ymm15: all there are. */

#define EACH_SUM(op)                                                                         \
    op("0") op("1") op("2") op("3") op("4") op("5") op("6") op("7") op("8") op("9") op("10") \
        op("11")
#define SUM_CLEAR(n) "vxorps %%ymm" n ", %%ymm" n ", %%ymm" n "\n\t"
#define SUM_STORE(n) "vmovaps %%ymm" n ", 32*" n "(%[sums])\n\t"
#define ASK(at) "prefetcht0 (%[" at "])\n\tadd $64, %[" at "]\n\t"
#define ASKS ASK("a0") ASK("a1") ASK("a2") ASK("a3")
/* A round's end, and the turn to what is asked for then. */
#define ROUND_ENDS                \
    "dec %[count]\n\t"            \
    "jnz 1b\n\t"                  \
    "mov %[rest], %[count]\n\t"   \
    "xor %k[rest], %k[rest]\n\t"  \
    "mov %[t0], %[a0]\n\t"        \
    "mov %[t1], %[a1]\n\t"        \
    "mov %[t2], %[a2]\n\t"        \
    "mov %[t3], %[a3]\n\t"        \
    "test %[count], %[count]\n\t" \
    "jnz 1b\n\t"
#define ASKS_OF(asks)                                                                           \
    [a0] "+r"(asks.at[0]), [a1] "+r"(asks.at[1]), [a2] "+r"(asks.at[2]), [a3] "+r"(asks.at[3]), \
        [count] "+r"(asks.count), [rest] "+r"(asks.rest)
#define THEN_OF(asks) \
    [t0] "m"(asks.then[0]), [t1] "m"(asks.then[1]), [t2] "m"(asks.then[2]), [t3] "m"(asks.then[3])
#define FACTORS(a, b, c)              \
    "vbroadcastss " a ", %%ymm12\n\t" \
    "vbroadcastss " b ", %%ymm13\n\t" \
    "vbroadcastss " c ", %%ymm14\n\t"
#define VALUES(load, at, s0, s1, s2)                     \
    load " " at ", %%ymm15\n\t"                          \
         "vfmadd231ps %%ymm12, %%ymm15, %%ymm" s0 "\n\t" \
         "vfmadd231ps %%ymm13, %%ymm15, %%ymm" s1 "\n\t" \
         "vfmadd231ps %%ymm14, %%ymm15, %%ymm" s2 "\n\t"
#define SUM_REGISTERS                                                                        \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"

/* A dimension of eight positions of the four blocks: `q` bytes on in the queries, `k` in K. */
#define SCORES_OF(load, q, k)                                          \
    FACTORS(#q "(%[q])", #q "(%[q],%[apart])", #q "(%[q],%[apart],2)") \
    VALUES(load, #k "(%[k0])", "0", "4", "8")                          \
    VALUES(load, #k "(%[k1])", "1", "5", "9")                          \
    VALUES(load, #k "(%[k2])", "2", "6", "10")                         \
    VALUES(load, #k "(%[k3])", "3", "7", "11")

/* Head h's score of eight positions of block b, at its place among the blocks' scores of all heads. */
#define SCORE_STORE(n, b, h)                       \
    "vmulps %%ymm12, %%ymm" #n ", %%ymm" #n "\n\t" \
    "vmovaps %%ymm" #n ", 256*(3*" #b "+" #h ")(%[to])\n\t"
#define SCORES_STORE                                                                             \
    "vbroadcastss %[scale], %%ymm12\n\t" SCORE_STORE(0, 0, 0) SCORE_STORE(4, 0, 1)               \
        SCORE_STORE(8, 0, 2) SCORE_STORE(1, 1, 0) SCORE_STORE(5, 1, 1) SCORE_STORE(9, 1, 2)      \
            SCORE_STORE(2, 2, 0) SCORE_STORE(6, 2, 1) SCORE_STORE(10, 2, 2) SCORE_STORE(3, 3, 0) \
                SCORE_STORE(7, 3, 1) SCORE_STORE(11, 3, 2)

/* A round is a line of each block. */
#define SCORES_LOOP(rounds, q_bytes)                                                             \
    __asm__ volatile(                                                                            \
        EACH_SUM(SUM_CLEAR) "1:\n\t" ASKS rounds "add $" #q_bytes ", %[q]\n\t"                   \
                            "add $64, %[k0]\n\tadd $64, %[k1]\n\tadd $64, %[k2]\n\tadd $64, "    \
                            "%[k3]\n\t" ROUND_ENDS SCORES_STORE                                  \
        : [k0] "+r"(k[0]), [k1] "+r"(k[1]), [k2] "+r"(k[2]), [k3] "+r"(k[3]), [q] "+r"(q),       \
          ASKS_OF(asks)                                                                          \
        : [apart] "r"(apart * sizeof(float)), [to] "r"(score), [scale] "m"(scale), THEN_OF(asks) \
        : SUM_REGISTERS, "memory")

/* Scores of eight positions of the four blocks, [block][head][64]. k goes on; the queries' rows are `apart` floats long. */
ALWAYS_INLINE void scores_three(int half, const float *q, size_t apart, float scale,
                                struct asks asks, const uint8_t *k[BLOCKS], float *score)
{
    if (half)
        SCORES_LOOP(SCORES_OF("vcvtph2ps", 0, 0) SCORES_OF("vcvtph2ps", 4, 16)
                        SCORES_OF("vcvtph2ps", 8, 32) SCORES_OF("vcvtph2ps", 12, 48),
                    16);
    else
        SCORES_LOOP(SCORES_OF("vmovups", 0, 0) SCORES_OF("vmovups", 4, 32), 8);
}

/* A position of sixteen dimensions of two blocks: `e` bytes on in the weights, `v` in V. Heads' weights, then blocks', follow. */
#define OUTPUTS_OF(load, second, e, v)                           \
    FACTORS(#e "(%[e])", #e "+256(%[e])", #e "+512(%[e])")       \
    VALUES(load, #v "(%[v0])", "0", "4", "8")                    \
    VALUES(load, #v "+" #second "(%[v0])", "1", "5", "9")        \
    FACTORS(#e "+768(%[e])", #e "+1024(%[e])", #e "+1280(%[e])") \
    VALUES(load, #v "(%[v1])", "2", "6", "10")                   \
    VALUES(load, #v "+" #second "(%[v1])", "3", "7", "11")

/* A round is two lines of both blocks. */
#define OUTPUTS_LOOP(rounds, e_bytes)                                                     \
    __asm__ volatile(                                                                     \
        EACH_SUM(SUM_CLEAR) "1:\n\t" ASKS rounds "add $" #e_bytes ", %[e]\n\t"            \
                            "add $128, %[v0]\n\tadd $128, %[v1]\n\t" ROUND_ENDS EACH_SUM( \
                                SUM_STORE)                                                \
        : [v0] "+r"(v[0]), [v1] "+r"(v[1]), [e] "+r"(e), ASKS_OF(asks)                    \
        : [sums] "r"(*sums), THEN_OF(asks)                                                \
        : SUM_REGISTERS, "memory")

/* Sums of two blocks' 2 x 8 outputs, [head][block][eight], over all their positions. */
ALWAYS_INLINE void outputs_three(int half, const float *e, const uint8_t *v[2], struct asks asks,
                                 __m256 (*sums)[STATES])
{
    if (half)
        OUTPUTS_LOOP(OUTPUTS_OF("vcvtph2ps", 16, 0, 0) OUTPUTS_OF("vcvtph2ps", 16, 4, 32)
                         OUTPUTS_OF("vcvtph2ps", 16, 8, 64) OUTPUTS_OF("vcvtph2ps", 16, 12, 96),
                     16);
    else
        OUTPUTS_LOOP(OUTPUTS_OF("vmovups", 32, 0, 0) OUTPUTS_OF("vmovups", 32, 4, 64), 8);
}

/* --- fewer heads: the same in C --- */

ALWAYS_INLINE void asks_round(struct asks *asks, size_t round)
{
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) {
        if (round == asks->count)
            asks->at[b] = asks->then[b];
        line_fetch(asks->at[b]);
        asks->at[b] += LINE;
    }
}

ALWAYS_INLINE void scores_few(int nq, int half, const float *q, size_t apart, float scale,
                              struct asks asks, const uint8_t *k[BLOCKS], float *score)
{
    const size_t step = LANES * element_bytes(half);
    const int dims = half ? 4 : 2; /* of a line */
    __m256 sum[HEADS][BLOCKS];
#pragma GCC unroll 3
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 4
        for (int b = 0; b < BLOCKS; b++)
            sum[h][b] = _mm256_setzero_ps();
    for (size_t round = 0; round < asks.count + asks.rest; round++, q += dims) {
        asks_round(&asks, round);
#pragma GCC unroll 4
        for (int x = 0; x < dims; x++)
#pragma GCC unroll 4
            for (int b = 0; b < BLOCKS; b++) {
                __m256 value = operand_load(half, k[b] + (size_t)x * step);
#pragma GCC unroll 3
                for (int h = 0; h < nq; h++)
                    sum[h][b] = _mm256_fmadd_ps(_mm256_broadcast_ss(q + (size_t)h * apart + x),
                                                value, sum[h][b]);
            }
#pragma GCC unroll 4
        for (int b = 0; b < BLOCKS; b++)
            k[b] += LINE;
    }
#pragma GCC unroll 3
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 4
        for (int b = 0; b < BLOCKS; b++)
            _mm256_store_ps(score + (b * nq + h) * ATTENTION_BLOCK,
                            _mm256_mul_ps(sum[h][b], _mm256_set1_ps(scale)));
}

ALWAYS_INLINE void outputs_few(int nq, int half, const float *e, const uint8_t *v[2],
                               struct asks asks, __m256 (*sums)[STATES])
{
    const size_t step = GROUP * element_bytes(half);
    const int positions = half ? 4 : 2; /* of two lines */
    __m256 sum[HEADS][BLOCKS];
#pragma GCC unroll 3
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 4
        for (int n = 0; n < BLOCKS; n++)
            sum[h][n] = _mm256_setzero_ps();
    for (int round = 0; round < ATTENTION_BLOCK / positions; round++, e += positions) {
        asks_round(&asks, (size_t)round);
#pragma GCC unroll 4
        for (int x = 0; x < positions; x++)
#pragma GCC unroll 4
            for (int n = 0; n < BLOCKS; n++) {
                __m256 value =
                    operand_load(half, v[n / 2] + (size_t)x * step + (size_t)(n % 2) * step / 2);
#pragma GCC unroll 3
                for (int h = 0; h < nq; h++)
                    sum[h][n] = _mm256_fmadd_ps(
                        _mm256_broadcast_ss(e + (n / 2 * nq + h) * ATTENTION_BLOCK + x), value,
                        sum[h][n]);
            }
        v[0] += 2 * LINE;
        v[1] += 2 * LINE;
    }
#pragma GCC unroll 3
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 4
        for (int n = 0; n < BLOCKS; n++)
            (*sums)[h * BLOCKS + n] = sum[h][n];
}

/* --- both products --- */

/* Scores of nq heads, scaled; nq and half are constants after inlining. q: [nq][dim]. */
ALWAYS_INLINE void quad_scores(int nq, int half, const struct quad *quad, const float *q,
                               float scale, float *score)
{
    const uint32_t lines = block_lines(half, quad->dim), rounds = lines / (ATTENTION_BLOCK / LANES);
    const uint8_t *k[BLOCKS] = {quad->k[0], quad->k[1], quad->k[2], quad->k[3]};
    for (uint32_t begin = 0, line = lines_ahead(half); begin < ATTENTION_BLOCK;
         begin += LANES, line += rounds) {
        struct asks asks = asks_of(quad->k, quad->v, line, lines, rounds);
        if (nq == HEADS)
            scores_three(half, q, quad->dim, scale, asks, k, score + begin);
        else
            scores_few(nq, half, q, quad->dim, scale, asks, k, score + begin);
    }
}

/* Where the outputs of a state's blocks go: on from those so far, or (partials) each block's own. */
struct outputs {
    float *running; /* [heads][dim] */
    size_t apart;   /* floats from one block's own to the next one's; 0: they are merged */
    bool first;     /* there are none so far */
};

/* Eight outputs of two blocks, of which the first is `b`. */
ALWAYS_INLINE void pair_merge(const struct outputs *to, const struct states *states, int b, int h,
                              __m256 one, __m256 two, float *running)
{
    if (to->apart) {
        _mm256_storeu_ps(running + (size_t)b * to->apart, one);
        _mm256_storeu_ps(running + (size_t)(b + 1) * to->apart, two);
        return;
    }
    merge_store(to->first && b == 0, one, states->keep[b][h], states->add[b][h], running);
    merge_store(false, two, states->keep[b + 1][h], states->add[b + 1][h], running);
}

/* Outputs of nq heads: of each sixteen dimensions those of two blocks, then of the other two. */
ALWAYS_INLINE void quad_outputs(int nq, int half, const struct quad *quad,
                                const struct states *states, const struct outputs *to)
{
    const size_t group_bytes = ATTENTION_BLOCK * GROUP * element_bytes(half);
    const uint32_t passes = quad->dim / GROUP * 2, lines = block_lines(half, quad->dim),
                   rounds = lines / passes;
    __m256 sums[STATES];
    for (uint32_t pass = 0; pass < passes; pass++) {
        const uint32_t group = pass / 2;
        const int b = pass % 2 * 2;
        const float *e = states->score + (size_t)(b * nq) * ATTENTION_BLOCK;
        const uint8_t *v[2] = {quad->v[b] + group * group_bytes,
                               quad->v[b + 1] + group * group_bytes};
        struct asks asks =
            asks_of(quad->v, quad->next, 2 * lines_ahead(half) + pass * rounds, lines, rounds);
        if (nq == HEADS)
            outputs_three(half, e, v, asks, &sums);
        else
            outputs_few(nq, half, e, v, asks, &sums);
#pragma GCC unroll 3
        for (int h = 0; h < nq; h++)
#pragma GCC unroll 2
            for (int n = 0; n < 2; n++)
                pair_merge(to, states, b, h, sums[h * BLOCKS + n], sums[h * BLOCKS + 2 + n],
                           to->running + (size_t)h * quad->dim + group * GROUP + n * LANES);
    }
}

#define DEFINE_QUAD(nq, half, type)                                                     \
    static __attribute__((noinline)) void scores_##nq##_##type(                         \
        const struct quad *quad, const float *q, float scale, float *score)             \
    {                                                                                   \
        quad_scores(nq, half, quad, q, scale, score);                                   \
    }                                                                                   \
    static __attribute__((noinline)) void outputs_##nq##_##type(                        \
        const struct quad *quad, const struct states *states, const struct outputs *to) \
    {                                                                                   \
        quad_outputs(nq, half, quad, states, to);                                       \
    }
DEFINE_QUAD(1, 0, f32)
DEFINE_QUAD(2, 0, f32)
DEFINE_QUAD(3, 0, f32)
DEFINE_QUAD(1, 1, f16)
DEFINE_QUAD(2, 1, f16)
DEFINE_QUAD(3, 1, f16)

static void (*const scores_of[2][HEADS + 1])(const struct quad *quad, const float *q, float scale,
                                             float *score) = {
    {NULL, scores_1_f32, scores_2_f32, scores_3_f32},
    {NULL, scores_1_f16, scores_2_f16, scores_3_f16},
};
static void (*const outputs_of[2][HEADS + 1])(const struct quad *quad, const struct states *states,
                                              const struct outputs *to) = {
    {NULL, outputs_1_f32, outputs_2_f32, outputs_3_f32},
    {NULL, outputs_1_f16, outputs_2_f16, outputs_3_f16},
};

/* The weights of state i of any scores, which have been lost: made again. Rare. */
static __attribute__((noinline)) __m256 weights_any(int half, uint32_t nq, const struct quad *quad,
                                                    const float *q, float scale, uint32_t i,
                                                    float max, float *to)
{
    _Alignas(32) float score[STATES * ATTENTION_BLOCK];
    scores_of[half][nq](quad, q, scale, score);
    return exp_any(score + (size_t)i * ATTENTION_BLOCK, ATTENTION_BLOCK, max, to);
}

/* Scores of nq heads and the four blocks become weights, which are added up; the first few ask for V. */
static void quad_weights(int half, uint32_t nq, const struct quad *quad, const float *q,
                         float scale, struct states *states, float *max, float *sum)
{
    static const uint32_t whole[STATES] = {ATTENTION_BLOCK, ATTENTION_BLOCK, ATTENTION_BLOCK,
                                           ATTENTION_BLOCK, ATTENTION_BLOCK, ATTENTION_BLOCK,
                                           ATTENTION_BLOCK, ATTENTION_BLOCK, ATTENTION_BLOCK,
                                           ATTENTION_BLOCK, ATTENTION_BLOCK, ATTENTION_BLOCK};
    const uint32_t count = BLOCKS * nq, lines = lines_ahead(half),
                   each = (lines + count - 1) / count;
    __m256 sums[STATES];
    softmax_maxima(count, states->score, whole, max);
    for (uint32_t i = 0; i < count; i++) {
        float *at = states->score + (size_t)i * ATTENTION_BLOCK;
        for (uint32_t x = i * each; x < (i + 1) * each && x < lines; x++)
            for (int b = 0; b < BLOCKS; b++)
                line_fetch(quad->v[b] + (size_t)(lines + x) * LINE);
        if (__builtin_expect(!exp_block_near(at, max[i], at, &sums[i]), 0))
            sums[i] = weights_any(half, nq, quad, q, scale, i, max[i], at);
    }
    for (uint32_t i = 0; i < count; i += CHUNK)
        _mm_storeu_ps(sum + i, sum_lanes(sums + i));
}

/* nq heads, from head `state` of the row on, against the four blocks at `begin`. */
static void quad_attend(const struct cpu_attention_tile *tile, int half, uint32_t begin,
                        uint32_t nq, uint32_t state, const struct quad *quad)
{
    const bool first = begin == 0;
    struct cpu_attention_results results = cpu_attention_results_of(tile, begin);
    struct outputs to = {.running = results.outputs + (size_t)state * quad->dim, .first = first};
    struct states states;
    float max[STATES], sum[STATES];
    const float *q = tile->q + (size_t)state * quad->dim;
    scores_of[half][nq](quad, q, tile->scale, states.score);
    quad_weights(half, nq, quad, q, tile->scale, &states, max, sum);
    if (tile->partials) {
        to.apart = cpu_attention_partial_floats(cpu_attention_row_heads(tile), quad->dim);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            memcpy(results.max + b * to.apart + state, max + b * nq, nq * sizeof *max);
            memcpy(results.sum + b * to.apart + state, sum + b * nq, nq * sizeof *sum);
        }
    } else {
        abreast_join(nq, first, max, sum, results.max + state, results.sum + state, states.keep,
                     states.add);
    }
    outputs_of[half][nq](quad, &states, &to);
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
    }
}

bool cpu_avx2_attention_is_abreast(const struct cpu_attention_tile *tile, uint32_t begin,
                                   uint32_t last)
{
    return tile->layer && tile->page_tokens == ATTENTION_BLOCK && tile->head_dim % GROUP == 0 &&
           tile->group <= HEADS && begin + BLOCKS * ATTENTION_BLOCK <= last + 1;
}

void cpu_avx2_attention_abreast(const struct cpu_attention_tile *tile, enum kern_kv_type type,
                                uint32_t begin, uint32_t last)
{
    struct quad quad = {.dim = tile->head_dim}, after;
    quad_find(tile, begin, last, &quad);
    quad_find(tile, begin + BLOCKS * ATTENTION_BLOCK, last, &after);
    for (uint32_t head = 0; head <= tile->heads_more; head++) {
        for (int b = 0; b < BLOCKS; b++)
            quad.next[b] = head < tile->heads_more ? quad.k[b] + tile->head_bytes : after.k[b];
        quad_attend(tile, type == KERN_KV_F16, begin, tile->group, head * tile->group, &quad);
        for (int b = 0; b < BLOCKS; b++) {
            quad.k[b] += tile->head_bytes;
            quad.v[b] += tile->head_bytes;
        }
    }
}
