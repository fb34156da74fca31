/* Attention for AVX2, FMA and F16C: attention_plain.c's operations in the same order on eight lanes.
 *
 * Both products have one shape, out[q][lane] = chain over k of fmaf(a[q][k], b[k][lane], .): scores have k = dimension and
 * lane = position, outputs k = position and lane = dimension. The query heads of a group share the loads of b.
 *
 * Blocks are the outer loop, rows the inner one: a block's K and V (16 to 32 KB) stay in the first-level cache while all
 * rows of the tile pass. Masked positions: their scores are computed (whatever the page holds), then replaced by 0 after
 * exp, and the chain over positions ends before them. */
#include "kernels/cpu/attention_avx2.h"

#include <string.h>

#include "kernels/cpu/attention_int8.h"
#include "kernels/cpu/kv_layout.h"

/* K of a run is two pieces of eight positions, one behind the other. */
enum { PIECES = 2 * RUNS };

/* Where the runs of a block lie. */
struct block {
    const uint8_t *k[RUNS];
    const uint8_t *v[RUNS]; /* the head's V in the run's page */
    uint32_t token[RUNS];   /* the run's first position in its page */
};

/* What does not change within a tile. */
struct source {
    uint32_t dim, page_tokens;
};

/* One step of three heads and four registers: twelve sums, three factors and one value are all sixteen registers, of which gcc 12
 * would spill one, and wait for it in every step. So it is written down as two pieces (one would have too many operands), two
 * registers each, of which the first loads the factors. (Of K and V the first byte stands for the operand: nothing in this file
 * that is in flight writes them.) */
#define STEP_LINE(load, value, a, b, c)             \
    load " %[" value "], %%ymm15\n\t"               \
         "vfmadd231ps %[f0], %%ymm15, %[" a "]\n\t" \
         "vfmadd231ps %[f1], %%ymm15, %[" b "]\n\t" \
         "vfmadd231ps %[f2], %%ymm15, %[" c "]\n\t"
#define STEP_TWO(load) \
    STEP_LINE(load, "v0", "s00", "s10", "s20") STEP_LINE(load, "v1", "s01", "s11", "s21")
#define STEP_SUMS(n)                                                           \
    [s00] "+x"(sum[0][n]), [s01] "+x"(sum[0][(n) + 1]), [s10] "+x"(sum[1][n]), \
        [s11] "+x"(sum[1][(n) + 1]), [s20] "+x"(sum[2][n]), [s21] "+x"(sum[2][(n) + 1])
#define STEP(load)                                                                                \
    do {                                                                                          \
        __m256 f0, f1, f2;                                                                        \
        __asm__ volatile(                                                                         \
            "vbroadcastss %[a0], %[f0]\n\t"                                                       \
            "vbroadcastss %[a1], %[f1]\n\t"                                                       \
            "vbroadcastss %[a2], %[f2]\n\t" STEP_TWO(load)                                        \
            : STEP_SUMS(0), [f0] "=&x"(f0), [f1] "=&x"(f1), [f2] "=&x"(f2)                        \
            : [a0] "m"(*a[0]), [a1] "m"(*a[1]), [a2] "m"(*a[2]), [v0] "m"(*v[0]), [v1] "m"(*v[1]) \
            : "xmm15");                                                                           \
        __asm__ volatile(                                                                         \
            STEP_TWO(load)                                                                        \
            : STEP_SUMS(2)                                                                        \
            : [f0] "x"(f0), [f1] "x"(f1), [f2] "x"(f2), [v0] "m"(*v[2]), [v1] "m"(*v[3])          \
            : "xmm15");                                                                           \
    } while (0)

/* sum[h][n] = fma(*a[h], value at v[n], sum[h][n]); nq, nv and half are constants after inlining. */
ALWAYS_INLINE void step(int nq, int nv, int half, const float *const *a, const uint8_t *const *v,
                        __m256 sum[CHUNK][8])
{
    if (nq == 3 && nv == 4) {
        if (half)
            STEP("vcvtph2ps");
        else
            STEP("vmovups");
        return;
    }
    __m256 factor[CHUNK];
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
        factor[h] = _mm256_broadcast_ss(a[h]);
#pragma GCC unroll 8
    for (int n = 0; n < nv; n++) {
        __m256 value = operand_load(half, v[n]);
#pragma GCC unroll 4
        for (int h = 0; h < nq; h++)
            sum[h][n] = _mm256_fmadd_ps(factor[h], value, sum[h][n]);
    }
}

/* What is asked for while something else is computed: four runs of lines that go on together by a row of 64 values a round. Of a
 * row that takes all KV heads along, the two streams of streams_find, each twice (the second a row ahead); else half the next
 * block, as two runs of K and two of V. */
struct fetch {
    const uint8_t *at[4];
    size_t step; /* bytes from one round to the next */
};

/* The lines of step `i` of a round of `steps`, which are constants after inlining. At the round's end the streams go on. */
ALWAYS_INLINE void fetch_lines(struct fetch *fetch, int half, int i, int steps)
{
    const int lines = 4 * ATTENTION_BLOCK * (int)element_bytes(half) / 64;
    const int begin = i * lines / steps, end = (i + 1) * lines / steps;
#pragma GCC unroll 16
    for (int x = 0; x < lines; x++)
        if (x >= begin && x < end)
            line_fetch(fetch->at[x % 4] + x / 4 * 64);
    if (i == steps - 1)
#pragma GCC unroll 4
        for (int x = 0; x < 4; x++)
            __asm__ volatile("addq %1, %0" : "+r"(fetch->at[x]) : "rm"(fetch->step) : "cc");
}

/* Steps of a round of fetches: a phase (scores or outputs) has dim / 4 rounds. */
ALWAYS_INLINE int round_steps(int nq)
{
    return nq == 1 ? 4 : nq == 4 ? 16 : 8;
}

/* Steps that read the same line, in which `width` values a step follow each other: a constant after inlining. */
ALWAYS_INLINE uint32_t line_steps(int width, int half)
{
    return 64 / ((uint32_t)width * (uint32_t)element_bytes(half));
}

/* The lines `apart` bytes from those of n registers of values, each piece's in one of the steps that read it; x: the step's number,
 * modulo 4. */
ALWAYS_INLINE void beside_fetch(int n, int half, const uint8_t *const *values, int x,
                                ptrdiff_t apart)
{
    const int steps = (int)line_steps(KV_K_POSITIONS, half);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        if (i % steps == x % steps)
            line_fetch(values[i] + apart);
}

/* The products of dimension i + x and `pieces` pieces of K. `beside`: what lies so far from it is asked for, or NULL. */
ALWAYS_INLINE void scores_step(int nq, int pieces, int half, const float *const *q,
                               const uint8_t *const *k, uint32_t i, int x, const ptrdiff_t *beside,
                               __m256 sum[CHUNK][8])
{
    const size_t stride = KV_K_POSITIONS * element_bytes(half);
    const float *factors[CHUNK];
    const uint8_t *values[PIECES];
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
        factors[h] = q[h] + i + x;
#pragma GCC unroll 8
    for (int n = 0; n < pieces; n++)
        values[n] = k[n] + i * stride + (size_t)x * stride;
    if (beside)
        beside_fetch(pieces, half, values, x, *beside);
    step(nq, pieces, half, factors, values, sum);
}

/* scale * (q . K) of `pieces` pieces from `first` on for nq heads; all but `first` and `half` are constants after inlining, at most
 * 12 sums. With `fetching` lines are asked for in every step. */
ALWAYS_INLINE void scores_at(int nq, int pieces, int half, bool fetching,
                             const struct source *source, const float *const *q, float scale,
                             const struct block *block, uint32_t first, struct fetch *fetch,
                             const ptrdiff_t *beside, float *score)
{
    const int steps = round_steps(nq);
    __m256 sum[CHUNK][8];
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 8
        for (int n = 0; n < pieces; n++)
            sum[h][n] = _mm256_setzero_ps();
    const uint8_t *k[PIECES];
#pragma GCC unroll 8
    for (uint32_t n = 0; n < (uint32_t)pieces; n++)
        k[n] = block->k[(first + n) / 2] +
               (first + n) % 2 * source->dim * KV_K_POSITIONS * element_bytes(half);
    uint32_t i = 0;
    for (; i + (uint32_t)steps <= source->dim; i += (uint32_t)steps)
#pragma GCC unroll 16
        for (int x = 0; x < steps; x++) {
            if (fetching)
                fetch_lines(fetch, half, x, steps);
            scores_step(nq, pieces, half, q, k, i, x, beside, sum);
        }
    for (; steps > LANES && i < source->dim; i += 4)
#pragma GCC unroll 4
        for (int x = 0; x < 4; x++)
            scores_step(nq, pieces, half, q, k, i, x, beside, sum);
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 8
        for (int n = 0; n < pieces; n++)
            _mm256_storeu_ps(score + h * ATTENTION_BLOCK + (first + (uint32_t)n) * LANES,
                             _mm256_mul_ps(sum[h][n], _mm256_set1_ps(scale)));
}

/* Of a whole block. */
ALWAYS_INLINE void scores(int nq, int half, bool fetching, const struct source *source,
                          const float *const *q, float scale, const struct block *block,
                          struct fetch *fetch, float *score)
{
    const int pieces = nq == 1 ? 8 : nq == 4 ? 2 : 4;
    for (uint32_t first = 0; first < PIECES; first += (uint32_t)pieces)
        scores_at(nq, pieces, half, fetching, source, q, scale, block, first, fetch, NULL, score);
}

/* Of the pieces that hold the first `count` positions, so many at a time that none of more than one is alone (four heads' last may be):
 * it would be bound by latency. */
ALWAYS_INLINE void scores_some(int nq, int half, const struct source *source, const float *const *q,
                               float scale, const struct block *block, uint32_t count,
                               const ptrdiff_t *beside, float *score)
{
    struct fetch none = {0};
    uint32_t pieces = (count + KV_K_POSITIONS - 1) / KV_K_POSITIONS;
    if (nq == 1) { /* less would be, too */
        scores_at(nq, PIECES, half, false, source, q, scale, block, 0, &none, beside, score);
        return;
    }
    for (uint32_t first = 0, n; first < pieces; first += n) {
        uint32_t left = pieces - first;
        if (nq == 4)
            n = left < 2 ? left : 2;
        else
            n = left == 5 || left == 6 ? 3 : left < 4 ? left : 4;
        if (n == 1)
            scores_at(nq, 1, half, false, source, q, scale, block, first, &none, beside, score);
        else if (n == 2)
            scores_at(nq, 2, half, false, source, q, scale, block, first, &none, beside, score);
        else if (n == 3)
            scores_at(nq, 3, half, false, source, q, scale, block, first, &none, beside, score);
        else
            scores_at(nq, 4, half, false, source, q, scale, block, first, &none, beside, score);
    }
}

/* The products of one position, weights [nq][64] and V at `v`; `group` bytes from one group of dimensions, two registers, to the
 * next. */
ALWAYS_INLINE void outputs_step(int nq, int nv, int half, const float *weights, const uint8_t *v,
                                size_t group, __m256 sum[CHUNK][8])
{
    const float *factors[CHUNK];
    const uint8_t *values[8];
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
        factors[h] = weights + h * ATTENTION_BLOCK;
#pragma GCC unroll 8
    for (int n = 0; n < nv; n++)
        values[n] = v + (size_t)(n / 2) * group + n % 2 * LANES * element_bytes(half);
    step(nq, nv, half, factors, values, sum);
}

/* nv registers of outputs of nq heads, from dimension `lane` on, merged. With `fetching` lines are asked for in every step; in a
 * block that is not whole what lies `beside`. */
ALWAYS_INLINE void outputs_at(int nq, int nv, int half, bool fetching, const struct source *source,
                              const struct block *block, struct fetch *fetch, uint32_t count,
                              const float *e, const float *keep, const float *add,
                              const ptrdiff_t *beside, bool first, uint32_t lane, float *running)
{
    const int steps = round_steps(nq), width = nv == 1 ? LANES : KV_V_DIMS;
    const size_t stride = (size_t)width * element_bytes(half);
    const size_t group = source->page_tokens * KV_V_DIMS * element_bytes(half);
    __m256 sum[CHUNK][8];
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 8
        for (int n = 0; n < nv; n++)
            sum[h][n] = _mm256_setzero_ps();
    for (uint32_t r = 0; r < RUNS && r * RUN < count; r++) {
        const uint8_t *v = block->v[r] + lane / KV_V_DIMS * group + block->token[r] * stride;
        const float *weights = e + r * RUN;
        if (count < ATTENTION_BLOCK) {
            uint32_t rest = count - r * RUN, positions = rest < RUN ? rest : RUN;
            for (uint32_t j = 0; j < positions; j++, v += stride) {
                if (beside && j % line_steps(width, half) == 0)
#pragma GCC unroll 4
                    for (int n = 0; n < nv; n += 2)
                        line_fetch(v + (size_t)(n / 2) * group + *beside);
                outputs_step(nq, nv, half, weights + j, v, group, sum);
            }
            continue;
        }
#pragma GCC unroll 1
        for (int begin = 0; begin < RUN; begin += steps)
#pragma GCC unroll 16
            for (int x = 0; x < steps; x++, v += stride) {
                if (fetching)
                    fetch_lines(fetch, half, x, steps);
                outputs_step(nq, nv, half, weights + begin + x, v, group, sum);
            }
    }
#pragma GCC unroll 4
    for (int h = 0; h < nq; h++)
#pragma GCC unroll 8
        for (int n = 0; n < nv; n++)
            merge_store(first, sum[h][n], keep[h], add[h],
                        running + (size_t)h * source->dim + lane + n * LANES);
}

ALWAYS_INLINE void outputs(int nq, int half, bool fetching, const struct source *source,
                           const struct block *block, struct fetch *fetch, uint32_t count,
                           const float *e, const float *keep, const float *add,
                           const ptrdiff_t *beside, bool first, float *running)
{
    const int nv = nq == 1 ? 8 : nq == 4 ? 2 : 4;
    uint32_t lane = 0;
    for (; lane + (uint32_t)nv * LANES <= source->dim; lane += (uint32_t)nv * LANES)
        outputs_at(nq, nv, half, fetching, source, block, fetch, count, e, keep, add, beside, first,
                   lane, running);
    for (; lane + 2 * LANES <= source->dim; lane += 2 * LANES)
        outputs_at(nq, 2, half, false, source, block, fetch, count, e, keep, add, beside, first,
                   lane, running);
    for (; lane < source->dim; lane += LANES)
        outputs_at(nq, 1, half, false, source, block, fetch, count, e, keep, add, beside, first,
                   lane, running);
}

/* One chunk of heads. */
struct chunk {
    const float *q[CHUNK];
    float *running, *running_max, *running_sum;
    float scale;
    bool first; /* the sequence's first block */
    /* Of a sequence's last block: from its K, and V, to what is asked for meanwhile; 0: nothing is. */
    ptrdiff_t beside_k, beside_v;
};

/* Scores of nq states for the runs that hold the first `count` positions, and their outputs. */
#define DEFINE_PHASES(nq, half, type)                                                            \
    static __attribute__((noinline)) void scores_##nq##_##type(                                  \
        const struct source *source, const float *const *q, float scale,                         \
        const struct block *block, const struct fetch *ahead, ptrdiff_t beside, uint32_t count,  \
        float *score)                                                                            \
    {                                                                                            \
        struct fetch fetch = ahead ? *ahead : (struct fetch){0};                                 \
        if (count < ATTENTION_BLOCK && beside)                                                   \
            scores_some(nq, half, source, q, scale, block, count, &beside, score);               \
        else if (count < ATTENTION_BLOCK)                                                        \
            scores_some(nq, half, source, q, scale, block, count, NULL, score);                  \
        else if (ahead)                                                                          \
            scores(nq, half, true, source, q, scale, block, &fetch, score);                      \
        else                                                                                     \
            scores(nq, half, false, source, q, scale, block, &fetch, score);                     \
    }                                                                                            \
    static __attribute__((noinline)) void outputs_##nq##_##type(                                 \
        const struct source *source, const struct block *block, const struct fetch *ahead,       \
        ptrdiff_t beside, uint32_t count, const float *e, const float *keep, const float *add,   \
        bool first, float *running)                                                              \
    {                                                                                            \
        struct fetch fetch = ahead ? *ahead : (struct fetch){0};                                 \
        if (count < ATTENTION_BLOCK && beside)                                                   \
            outputs(nq, half, false, source, block, &fetch, count, e, keep, add, &beside, first, \
                    running);                                                                    \
        else if (count < ATTENTION_BLOCK)                                                        \
            outputs(nq, half, false, source, block, &fetch, count, e, keep, add, NULL, first,    \
                    running);                                                                    \
        else if (ahead)                                                                          \
            outputs(nq, half, true, source, block, &fetch, ATTENTION_BLOCK, e, keep, add, 0,     \
                    first, running);                                                             \
        else                                                                                     \
            outputs(nq, half, false, source, block, &fetch, ATTENTION_BLOCK, e, keep, add, 0,    \
                    first, running);                                                             \
    }

DEFINE_PHASES(1, 0, f32)
DEFINE_PHASES(2, 0, f32)
DEFINE_PHASES(3, 0, f32)
DEFINE_PHASES(4, 0, f32)
DEFINE_PHASES(1, 1, f16)
DEFINE_PHASES(2, 1, f16)
DEFINE_PHASES(3, 1, f16)
DEFINE_PHASES(4, 1, f16)

static void (*const scores_of[2][CHUNK + 1])(const struct source *source, const float *const *q,
                                             float scale, const struct block *block,
                                             const struct fetch *ahead, ptrdiff_t beside,
                                             uint32_t count, float *score) = {
    {NULL, scores_1_f32, scores_2_f32, scores_3_f32, scores_4_f32},
    {NULL, scores_1_f16, scores_2_f16, scores_3_f16, scores_4_f16},
};
static void (*const outputs_of[2][CHUNK + 1])(const struct source *source,
                                              const struct block *block, const struct fetch *ahead,
                                              ptrdiff_t beside, uint32_t count, const float *e,
                                              const float *keep, const float *add, bool first,
                                              float *running) = {
    {NULL, outputs_1_f32, outputs_2_f32, outputs_3_f32, outputs_4_f32},
    {NULL, outputs_1_f16, outputs_2_f16, outputs_3_f16, outputs_4_f16},
};

/* nq heads of one row against the first `count` positions of one block. */
static void attend(uint32_t nq, int half, const struct source *source, const struct chunk *chunk,
                   const struct block *block, const struct fetch *ahead, uint32_t count)
{
    _Alignas(32) float score[CHUNK * ATTENTION_BLOCK], e[CHUNK * ATTENTION_BLOCK];
    const uint32_t counts[CHUNK] = {count, count, count, count};
    float keep[CHUNK], add[CHUNK];
    scores_of[half][nq](source, chunk->q, chunk->scale, block, ahead, chunk->beside_k, count,
                        score);
    softmax_states(nq, chunk->first, score, counts, e, chunk->running_max, chunk->running_sum, keep,
                   add);
    outputs_of[half][nq](source, block, ahead ? ahead + 1 : NULL, chunk->beside_v, count, e, keep,
                         add, chunk->first, chunk->running);
}

/* Where a walk over a sequence's runs is: they come in order, so that nothing is divided. */
struct place {
    uint32_t page, token; /* number in the block table, first position in the page */
};

static inline void place_next(struct place *place, uint32_t page_tokens)
{
    place->token += RUN;
    if (place->token == page_tokens)
        *place = (struct place){place->page + 1, 0};
}

/* The runs of the block at `begin`, where `place` is. Beyond `last` there is none, and the first stands in: what is read there is
 * masked. */
static void block_find(const struct cpu_attention_tile *tile, size_t element, uint32_t begin,
                       uint32_t last, struct place *place, struct block *block_out)
{
    uint32_t page_tokens = tile->page_tokens;
    for (uint32_t r = 0; r < RUNS; r++) {
        if (begin + r * RUN > last) {
            block_out->k[r] = block_out->k[0];
            block_out->v[r] = block_out->v[0];
            block_out->token[r] = block_out->token[0];
            continue;
        }
        uint64_t page = tile->blocks[place->page] * tile->page_bytes;
        block_out->k[r] = tile->k + page + kv_k_index(tile->head_dim, 0, place->token) * element;
        block_out->v[r] = tile->v + page;
        block_out->token[r] = place->token;
        place_next(place, page_tokens);
    }
}

/* Run r's share of the block's V, as much as a run's K, to be asked for from there on. In pages of up to 64 positions a block's V, or
 * its part in a page, is contiguous; in longer ones each group's is: so a share is a run of lines for heads of 64, and for others
 * as far as its first group goes. */
static const uint8_t *v_share(const struct source *source, const struct block *block, int r,
                              int half)
{
    uint32_t token = block->token[r];
    size_t at = (size_t)token * source->dim;
    if (source->page_tokens > ATTENTION_BLOCK)
        at = kv_v_index(source->dim, source->page_tokens, token / ATTENTION_BLOCK * ATTENTION_BLOCK,
                        token % ATTENTION_BLOCK * source->dim / ATTENTION_BLOCK);
    return block->v[r] + at * element_bytes(half);
}

/* The two halves of `block`, to be asked for. */
static void fetches_of(const struct source *source, const struct block *block, int half,
                       struct fetch *fetch_out)
{
    for (int x = 0; x < 2; x++)
        fetch_out[x] = (struct fetch){{block->k[x], v_share(source, block, x, half),
                                       block->k[x + 2], v_share(source, block, x + 2, half)},
                                      ATTENTION_BLOCK * element_bytes(half)};
}

/* --- several rows --- */

/* Scores of all states of a batch, then their softmax, then their outputs, so that no product waits for an exponential. What lies
 * between fits the first cache beside K, or V. */
enum { BATCH = 24 };

struct batch {
    _Alignas(32) float score[BATCH * ATTENTION_BLOCK];
    _Alignas(32) float e[BATCH * ATTENTION_BLOCK];
    float keep[BATCH + CHUNK], add[BATCH + CHUNK];
    const float *q[BATCH];
    uint32_t counts[BATCH]; /* positions of the block that a state sees */
};

/* The queries of `n` states from `state` on, and how many of the block's positions each sees. */
static void batch_fill(const struct cpu_attention_tile *tile, uint32_t begin, uint32_t state,
                       uint32_t n, struct batch *batch)
{
    uint32_t r = state / tile->group, g = state % tile->group;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t seen = tile->position + r + 1 - begin;
        batch->q[i] = tile->q + r * tile->row_stride + (size_t)g * tile->head_dim;
        batch->counts[i] = seen < ATTENTION_BLOCK ? seen : ATTENTION_BLOCK;
        if (++g == tile->group) {
            g = 0;
            r++;
        }
    }
}

/* States from i on, of the n in the batch, that see as many positions; beyond CHUNK it does not matter how many. */
static uint32_t states_alike(const struct batch *batch, uint32_t i, uint32_t n)
{
    uint32_t end = i + 1;
    while (end < n && end - i <= CHUNK && batch->counts[end] == batch->counts[i])
        end++;
    return end - i;
}

/* All rows of one KV head against the block at `begin`. */
static void block_rows(const struct cpu_attention_tile *tile, int half, const struct source *source,
                       uint32_t begin, const struct block *block, const struct fetch *fetch)
{
    uint32_t dim = tile->head_dim, group = tile->group, states = tile->rows * group;
    struct cpu_attention_results results = cpu_attention_results_of(tile, begin);
    uint32_t row_begin = begin > tile->position ? begin - tile->position : 0;
    bool first = begin == 0 || tile->partials;
    struct batch batch;
    for (uint32_t state = row_begin * group, n; state < states; state += n) {
        n = states - state < BATCH ? states - state : BATCH;
        batch_fill(tile, begin, state, n, &batch);
        const struct fetch *ahead = state == 0 ? fetch : NULL;
        uint32_t nq;
        for (uint32_t i = 0; i < n; i += nq) {
            nq = chunk_heads(n - i);
            scores_of[half][nq](source, batch.q + i, tile->scale, block, i == 0 ? ahead : NULL, 0,
                                batch.counts[i + nq - 1],
                                batch.score + (size_t)i * ATTENTION_BLOCK);
        }
        softmax_states(n, first, batch.score, batch.counts, batch.e, results.max + state,
                       results.sum + state, batch.keep, batch.add);
        for (uint32_t i = 0; i < n; i += nq) {
            nq = chunk_heads(states_alike(&batch, i, n));
            outputs_of[half][nq](source, block, i == 0 && ahead ? ahead + 1 : NULL, 0,
                                 batch.counts[i], batch.e + (size_t)i * ATTENTION_BLOCK,
                                 batch.keep + i, batch.add + i, first,
                                 results.outputs + (state + i) * dim);
        }
    }
}

/* One row, all KV heads of the tile in turn. */
static void block_heads(const struct cpu_attention_tile *tile, int half,
                        const struct source *source, uint32_t begin, uint32_t last,
                        const struct block *block)
{
    const size_t row = ATTENTION_BLOCK * element_bytes(half);
    uint32_t dim = tile->head_dim, seen = tile->position + 1 - begin;
    uint32_t count = seen < ATTENTION_BLOCK ? seen : ATTENTION_BLOCK;
    struct cpu_attention_results results = cpu_attention_results_of(tile, begin);
    struct block own = *block;
    for (uint32_t head = 0, state = 0; head <= tile->heads_more; head++) {
        const uint8_t *at[STREAMS] = {tile->layer, tile->layer};
        if (count == ATTENTION_BLOCK) /* a last block asks for another sequence at most */
            streams_find(tile, begin, last, head, at);
        struct fetch fetch[2];
        for (int x = 0; x < 2; x++, at[0] += dim / 2 * row, at[1] += dim / 2 * row)
            fetch[x] = (struct fetch){{at[0], at[1], at[0] + row, at[1] + row}, 2 * row};
        uint32_t nq;
        for (uint32_t g = 0; g < tile->group; g += nq, state += nq) {
            nq = chunk_heads(tile->group - g);
            struct chunk chunk = {.running = results.outputs + (size_t)state * dim,
                                  .running_max = results.max + state,
                                  .running_sum = results.sum + state,
                                  .scale = tile->scale,
                                  .first = begin == 0 || tile->partials};
            if (tile->next && g == 0) {
                chunk.beside_k = tile->next - block->k[0];
                chunk.beside_v = tile->next + (tile->v - tile->k) -
                                 (block->v[0] + block->token[0] * KV_V_DIMS * element_bytes(half));
            }
            for (uint32_t h = 0; h < nq; h++)
                chunk.q[h] = tile->q + (size_t)(state + h) * dim;
            attend(nq, half, source, &chunk, &own, g == 0 ? fetch : NULL, count);
        }
        for (int r = 0; r < RUNS; r++) {
            own.k[r] += tile->head_bytes;
            own.v[r] += tile->head_bytes;
        }
    }
}

static void tile_avx2(const struct cpu_attention_tile *tile, int half)
{
    const size_t element = element_bytes(half);
    struct source source = {tile->head_dim, tile->page_tokens};
    uint32_t begin = 0, last = tile->position + tile->rows - 1;
    if (tile->partials) {
        uint32_t part_last = tile->block_end * ATTENTION_BLOCK - 1;
        begin = tile->block_begin * ATTENTION_BLOCK;
        last = last < part_last ? last : part_last;
    }
    enum kern_kv_type type = half ? KERN_KV_F16 : KERN_KV_F32;
    for (; cpu_avx2_attention_is_abreast(tile, begin, last);
         begin += ATTENTION_ABREAST * ATTENTION_BLOCK)
        cpu_avx2_attention_abreast(tile, type, begin, last);
    struct block block, ahead;
    struct fetch fetch[2];
    struct place place = {begin / tile->page_tokens, begin % tile->page_tokens};
    block_find(tile, element, begin, last, &place, &ahead);
    if (!tile->layer)
        tile_fetch(tile);
    for (; begin <= last; begin += ATTENTION_BLOCK) {
        block = ahead;
        if (begin + ATTENTION_BLOCK <= last)
            block_find(tile, element, begin + ATTENTION_BLOCK, last, &place, &ahead);
        if (tile->layer) {
            block_heads(tile, half, &source, begin, last, &block);
            continue;
        }
        fetches_of(&source, &ahead, half, fetch);
        block_rows(tile, half, &source, begin, &block, fetch);
    }
    if (!tile->partials)
        tile_finish(tile);
}

static void tile_f32(const struct cpu_attention_tile *tile)
{
    if (tile->head_dim % LANES != 0)
        cpu_attention_plain.tile[KERN_KV_F32](tile);
    else
        tile_avx2(tile, 0);
}

static void tile_f16(const struct cpu_attention_tile *tile)
{
    if (tile->head_dim % LANES != 0)
        cpu_attention_plain.tile[KERN_KV_F16](tile);
    else
        tile_avx2(tile, 1);
}

/* Factors of eight blocks of one head: what is kept of the results before each, and what is added of its own. `max` becomes the
 * maximum of all so far. */
static void merge_factors(const float *maxima, size_t stride, uint32_t count, float *max,
                          float *keep_out, float *add_out)
{
    float keep[LANES] = {0}, add[LANES] = {0};
    for (uint32_t b = 0; b < count; b++) {
        float m = maxima[b * stride], new_max = m > *max ? m : *max;
        keep[b] = *max - new_max;
        add[b] = m - new_max;
        *max = new_max;
    }
    _mm256_storeu_ps(keep_out, mathf8_exp(_mm256_loadu_ps(keep)));
    _mm256_storeu_ps(add_out, mathf8_exp(_mm256_loadu_ps(add)));
}

/* One head: eight blocks' factors at a time, then all outputs go through these blocks. */
static void merge_head(const struct cpu_attention_merge *merge, uint32_t head)
{
    uint32_t dim = merge->head_dim;
    size_t stride = cpu_attention_partial_floats(merge->heads, dim);
    const float *outputs = merge->partials + (size_t)head * dim,
                *maxima = merge->partials + (size_t)merge->heads * dim + head,
                *sums = maxima + merge->heads;
    float *out = merge->out + (size_t)head * dim;
    float max = maxima[0], sum = sums[0], keep[LANES], add[LANES];
    memcpy(out, outputs, dim * sizeof *out);
    for (uint32_t block = 1; block < merge->block_count; block += LANES) {
        uint32_t left = merge->block_count - block, count = left < LANES ? left : LANES;
        merge_factors(maxima + block * stride, stride, count, &max, keep, add);
        for (uint32_t b = 0; b < count; b++)
            sum = __builtin_fmaf(sum, keep[b], sums[(block + b) * stride] * add[b]);
        for (uint32_t i = 0; i < dim; i += LANES) {
            __m256 o = _mm256_loadu_ps(out + i);
            for (uint32_t b = 0; b < count; b++)
                o = _mm256_fmadd_ps(
                    o, _mm256_broadcast_ss(&keep[b]),
                    _mm256_mul_ps(_mm256_loadu_ps(outputs + (block + b) * stride + i),
                                  _mm256_broadcast_ss(&add[b])));
            _mm256_storeu_ps(out + i, o);
        }
    }
    __m256 inverse = _mm256_set1_ps(1.0f / sum);
    for (uint32_t i = 0; i < dim; i += LANES)
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(out + i), inverse));
}

void cpu_avx2_attention_merge(const struct cpu_attention_merge *merge)
{
    for (uint32_t head = 0; head < merge->heads; head++)
        merge_head(merge, head);
}

const struct cpu_attention_kernels cpu_attention_avx2 = {
    .rope_kv = {cpu_avx2_rope_kv_f32, cpu_avx2_rope_kv_f16, cpu_avx2_kv_int8_rope},
    .tile = {tile_f32, tile_f16, cpu_avx2_kv_int8_tile},
    .merge = cpu_avx2_attention_merge,
    .heads_together = true,
};
