/* Byte forms over more than two rows, for AVX2: equal to linear_plain.c to the bit, because sums are integers and exact.
 *
 * Winograd's inner product (1968) halves the multiplications of a pair of k:
 *
 *     u0 a0 + u1 a1 = (a0 + u1) (a1 + u0) - a0 a1 - u0 u1               u = w + 128, unsigned
 *
 * In vectors of 16-bit pairs that is two vpaddw, a vpmaddwd and a vpaddd for 32 products, where two vpmaddwd and two vpaddd
 * would do the same: as many, but an AMD Zen 3 runs 3.9 of these in a cycle and 3.4 of those, because multiplications have two
 * pipes and additions four. What is taken off depends on the row alone or on the output alone: it is computed once for many
 * tiles and is in the number that a block's sum starts at.
 *
 *     quads:   up to 4 rows x one block of activations, widened to 16 bits, with all else that a row brings to a block; made once
 *              for all panels where they fit, else again for each panel and piece
 *     planes:  up to PIECE_BLOCKS blocks of a panel, widened to 16 bits, with the outputs' part of the start and the scales
 *              as floats; in L1 while the chunk's rows pass
 *     tile:    4 rows x 16 outputs: 8 sums, 4 vectors of weights, 4 for what is between
 *
 * Owner: as linear.h. Compiled with -mavx2 -mfma -mf16c; called only where the CPU has them. */
#include <immintrin.h>

#include "kernels/cpu/linear_avx2.h"
#include "kernels/cpu/linear_avx2_store.h"

enum {
    QUAD = 4,
    QUADS = 160,          /* 46 KB */
    PIECE_BLOCKS = 9,     /* 10 KB of planes */
    WHOLE_ROWS = 32,      /* that many rows with all their blocks in `quads`, or else */
    CHUNK_ROWS_MOST = 64, /* that many with the blocks of a piece */
};

#define INLINE static inline __attribute__((always_inline))

/* Word g of words[r][0] holds k = 4 g and 4 g + 2 of row r, that of [1] k = 4 g + 1 and 4 g + 3. */
struct quad {
    _Alignas(32) int32_t words[QUAD][2][8];
    int32_t start[QUAD]; /* -128 s - sum of a[2 i] a[2 i + 1] */
    float da[QUAD];
};

/* [g][0]: the even k of 8 outputs and of the next 8, [g][1]: the odd ones. */
struct plane {
    _Alignas(32) uint16_t words[8][2][2][16];
    int32_t start[CPU_PANEL]; /* -sum of u[2 i] u[2 i + 1] */
    float d[CPU_PANEL];
};

struct work {
    struct quad quads[QUADS];
    struct plane planes[PIECE_BLOCKS];
    _Alignas(32) float chain[CHUNK_ROWS_MOST][CPU_PANEL];
};

/* Rows of a chunk go in tiles of nearly equal height: tile i begins at this row. */
static size_t tile_begin(size_t rows, size_t tiles, size_t i)
{
    return rows * i / tiles;
}

static size_t tiles_of(size_t rows)
{
    return (rows + QUAD - 1) / QUAD;
}

/* --- activations --- */

INLINE __m256i load(const void *p)
{
    return _mm256_load_si256(p);
}

static void quad_make(const struct cpu_acts *acts, size_t row, size_t rows, size_t block,
                      struct quad *quad)
{
    for (size_t r = 0; r < rows; r++) {
        const int8_t *a = cpu_acts_a(acts, row + r) + block * KERN_BLOCK;
        __m256i bytes = _mm256_loadu_si256((const void *)a);
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
        __m256i odd = _mm256_srai_epi16(bytes, 8);
        __m256i sums = _mm256_madd_epi16(even, odd);
        __m128i sum =
            _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
        _mm256_store_si256((void *)quad->words[r][0], even);
        _mm256_store_si256((void *)quad->words[r][1], odd);
        quad->start[r] = -128 * cpu_acts_s(acts, row + r)[block] - _mm_cvtsi128_si32(sum);
        quad->da[r] = cpu_acts_da(acts, row + r)[block];
    }
}

/* All tiles of `rows` rows over `blocks` blocks: [tile][block]. */
static void quads_make(const struct cpu_acts *acts, size_t row, size_t rows, size_t block,
                       size_t blocks, struct quad *quads)
{
    size_t tiles = tiles_of(rows);
    for (size_t i = 0; i < tiles; i++) {
        size_t begin = tile_begin(rows, tiles, i), end = tile_begin(rows, tiles, i + 1);
        for (size_t b = 0; b < blocks; b++)
            quad_make(acts, row + begin, end - begin, block + b, quads++);
    }
}

/* --- weights --- */

static void plane_make(enum cpu_form form, const uint8_t *record, struct plane *plane)
{
    const __m256i mask = _mm256_set1_epi16(255);
    __m256i start[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            __m256i u = _mm256_loadu_si256((const void *)(record + g * 64 + half * 32));
            __m256i even = _mm256_and_si256(u, mask), odd = _mm256_srli_epi16(u, 8);
            _mm256_store_si256((void *)plane->words[g][0][half], even);
            _mm256_store_si256((void *)plane->words[g][1][half], odd);
            start[half] = _mm256_sub_epi32(start[half], _mm256_madd_epi16(even, odd));
        }
    }
    const uint8_t *d = record + CPU_BYTE_BYTES;
    for (int half = 0; half < 2; half++) {
        _mm256_store_si256((void *)(plane->start + half * 8), start[half]);
        __m256 scales = form == CPU_FORM_BYTE_HALF
                            ? _mm256_cvtph_ps(_mm_loadu_si128((const void *)(d + half * 16)))
                            : _mm256_loadu_ps((const void *)(d + half * 32));
        _mm256_store_ps(plane->d + half * 8, scales);
    }
}

/* --- products --- */

/* One row's 4 k of 16 outputs. In assembly because the compiler has no register left to waste. */
INLINE void add_group(const int32_t *even, const int32_t *odd, __m256i e0, __m256i e1, __m256i o0,
                      __m256i o1, __m256i *sum)
{
    __m256i t, u, v, w;
    __asm__("vpbroadcastd %[even], %[t]\n\t"
            "vpbroadcastd %[odd], %[u]\n\t"
            "vpaddw %[t], %[o0], %[v]\n\t"
            "vpaddw %[u], %[e0], %[w]\n\t"
            "vpaddw %[t], %[o1], %[t]\n\t"
            "vpaddw %[u], %[e1], %[u]\n\t"
            "vpmaddwd %[v], %[w], %[v]\n\t"
            "vpmaddwd %[t], %[u], %[t]\n\t"
            "vpaddd %[v], %[s0], %[s0]\n\t"
            "vpaddd %[t], %[s1], %[s1]"
            : [s0] "+x"(sum[0]), [s1] "+x"(sum[1]), [t] "=&x"(t), [u] "=&x"(u), [v] "=&x"(v),
              [w] "=&x"(w)
            : [even] "m"(*even), [odd] "m"(*odd), [e0] "x"(e0), [e1] "x"(e1), [o0] "x"(o0),
              [o1] "x"(o1));
}

/* R rows over one piece of a panel. chain: [R][16]. */
INLINE void tile_rows(const int R, const struct quad *quad, const struct plane *plane,
                      size_t blocks, float *chain)
{
    for (const struct plane *end = plane + blocks; plane < end; plane++, quad++) {
        __m256i sum[QUAD][2];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            __m256i start = _mm256_set1_epi32(quad->start[r]);
            sum[r][0] = _mm256_add_epi32(start, load(plane->start));
            sum[r][1] = _mm256_add_epi32(start, load(plane->start + 8));
        }
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) {
            __m256i e0 = load(plane->words[g][0][0]), e1 = load(plane->words[g][0][1]),
                    o0 = load(plane->words[g][1][0]), o1 = load(plane->words[g][1][1]);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
                add_group(&quad->words[r][0][g], &quad->words[r][1][g], e0, e1, o0, o1, sum[r]);
        }
        __m256 d0 = _mm256_load_ps(plane->d), d1 = _mm256_load_ps(plane->d + 8);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            __m256 da = _mm256_broadcast_ss(&quad->da[r]);
            float *f = chain + r * CPU_PANEL;
            __m256 s0 = _mm256_cvtepi32_ps(sum[r][0]), s1 = _mm256_cvtepi32_ps(sum[r][1]);
            _mm256_store_ps(f, _mm256_fmadd_ps(s0, _mm256_mul_ps(d0, da), _mm256_load_ps(f)));
            _mm256_store_ps(f + 8,
                            _mm256_fmadd_ps(s1, _mm256_mul_ps(d1, da), _mm256_load_ps(f + 8)));
        }
    }
}

/* Four rows, in assembly: left to itself the compiler loads the next groups' weights early, and spills. A line from `next` on is asked for
 * with each block.
 *
 *     ymm0..7 sums, two a row   ymm8, 9 even k   ymm10, 11 odd k   ymm12..15 what is between
 *
 * Numbers are where things lie in struct quad and struct plane. */
/* clang-format off */
#define QUAD_WEIGHTS(e0, e1, o0, o1)                   \
    "vmovdqa " e0 "(%[plane]), %%ymm8\n\t"             \
    "vmovdqa " e1 "(%[plane]), %%ymm9\n\t"             \
    "vmovdqa " o0 "(%[plane]), %%ymm10\n\t"            \
    "vmovdqa " o1 "(%[plane]), %%ymm11\n\t"
#define QUAD_ROW(even, odd, s0, s1)                    \
    "vpbroadcastd " even "(%[quad]), %%ymm12\n\t"      \
    "vpbroadcastd " odd "(%[quad]), %%ymm13\n\t"       \
    "vpaddw %%ymm12, %%ymm10, %%ymm14\n\t"             \
    "vpaddw %%ymm13, %%ymm8, %%ymm15\n\t"              \
    "vpaddw %%ymm12, %%ymm11, %%ymm12\n\t"             \
    "vpaddw %%ymm13, %%ymm9, %%ymm13\n\t"              \
    "vpmaddwd %%ymm14, %%ymm15, %%ymm14\n\t"           \
    "vpmaddwd %%ymm12, %%ymm13, %%ymm12\n\t"           \
    "vpaddd %%ymm14, %%ymm" s0 ", %%ymm" s0 "\n\t"     \
    "vpaddd %%ymm12, %%ymm" s1 ", %%ymm" s1 "\n\t"
#define QUAD_GROUP(g, e0, e1, o0, o1)                  \
    QUAD_WEIGHTS(e0, e1, o0, o1)                       \
    QUAD_ROW(g "+0", g "+32", "0", "1")                \
    QUAD_ROW(g "+64", g "+96", "2", "3")               \
    QUAD_ROW(g "+128", g "+160", "4", "5")             \
    QUAD_ROW(g "+192", g "+224", "6", "7")
#define QUAD_START(at, s0, s1)                         \
    "vpbroadcastd " at "(%[quad]), %%ymm12\n\t"        \
    "vpaddd 1024(%[plane]), %%ymm12, %%ymm" s0 "\n\t"  \
    "vpaddd 1056(%[plane]), %%ymm12, %%ymm" s1 "\n\t"
#define QUAD_END(at, s0, s1, c0, c1)                   \
    "vbroadcastss " at "(%[quad]), %%ymm12\n\t"        \
    "vcvtdq2ps %%ymm" s0 ", %%ymm" s0 "\n\t"           \
    "vcvtdq2ps %%ymm" s1 ", %%ymm" s1 "\n\t"           \
    "vmulps %%ymm12, %%ymm8, %%ymm13\n\t"              \
    "vmulps %%ymm12, %%ymm9, %%ymm14\n\t"              \
    "vfmadd213ps " c0 "(%[chain]), %%ymm13, %%ymm" s0 "\n\t" \
    "vfmadd213ps " c1 "(%[chain]), %%ymm14, %%ymm" s1 "\n\t" \
    "vmovaps %%ymm" s0 ", " c0 "(%[chain])\n\t"        \
    "vmovaps %%ymm" s1 ", " c1 "(%[chain])\n\t"

static void tile_quad(const struct quad *quad, const struct plane *plane, size_t blocks,
                      float *chain, const uint8_t *next)
{
    _Static_assert(sizeof(struct quad) == 288 && sizeof(struct plane) == 1152, "as below");
    __asm__ volatile(
        "1:\n\t"
        QUAD_START("256", "0", "1") QUAD_START("260", "2", "3")
        QUAD_START("264", "4", "5") QUAD_START("268", "6", "7")
        QUAD_GROUP("0", "0", "32", "64", "96") QUAD_GROUP("4", "128", "160", "192", "224")
        QUAD_GROUP("8", "256", "288", "320", "352") QUAD_GROUP("12", "384", "416", "448", "480")
        QUAD_GROUP("16", "512", "544", "576", "608") QUAD_GROUP("20", "640", "672", "704", "736")
        QUAD_GROUP("24", "768", "800", "832", "864") QUAD_GROUP("28", "896", "928", "960", "992")
        "vmovaps 1088(%[plane]), %%ymm8\n\t"
        "vmovaps 1120(%[plane]), %%ymm9\n\t"
        QUAD_END("272", "0", "1", "0", "32") QUAD_END("276", "2", "3", "64", "96")
        QUAD_END("280", "4", "5", "128", "160") QUAD_END("284", "6", "7", "192", "224")
        "prefetcht1 (%[next])\n\t"
        "add $64, %[next]\n\t"
        "add $288, %[quad]\n\t"
        "add $1152, %[plane]\n\t"
        "dec %[blocks]\n\t"
        "jnz 1b"
        : [quad] "+r"(quad), [plane] "+r"(plane), [blocks] "+r"(blocks), [next] "+r"(next)
        : [chain] "r"(chain)
        : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
          "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
/* clang-format on */

static __attribute__((noinline)) void tile(size_t rows, const struct quad *quad,
                                           const struct plane *plane, size_t blocks, float *chain,
                                           const uint8_t *next)
{
    switch (rows) {
    case 1:
        tile_rows(1, quad, plane, blocks, chain);
        break;
    case 2:
        tile_rows(2, quad, plane, blocks, chain);
        break;
    case 3:
        tile_rows(3, quad, plane, blocks, chain);
        break;
    default:
        tile_quad(quad, plane, blocks, chain, next);
        break;
    }
}

/* Asks for the part of the next piece's records (the panel's, or the next panel's: they lie in one run) that tile i of `tiles` stands
 * for, but for `loop_lines` of it, which the tile's loop asks for one by one, since so many at once would wait for each other. Returns
 * where these begin. */
static const uint8_t *ask(const uint8_t *next, size_t next_bytes, size_t i, size_t tiles,
                          size_t loop_lines)
{
    size_t at = next_bytes * i / tiles & ~(size_t)(CPU_LINE_BYTES - 1),
           end = next_bytes * (i + 1) / tiles;
    for (; at + loop_lines * CPU_LINE_BYTES < end; at += CPU_LINE_BYTES)
        _mm_prefetch((const char *)next + at, _MM_HINT_T1);
    return next + at;
}

/* And for the lines that a tile's outputs go to, before its last piece. */
static void ask_outputs(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                        size_t row, size_t rows)
{
    for (size_t r = row; r < row + rows; r++)
        __builtin_prefetch(call->out + r * call->ld_out + panel->first, 1);
}

/* One panel for the chunk's rows. `quads`: of all blocks, or made here piece by piece. */
static void panel_bytes(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                        size_t row, size_t rows, bool whole, struct work *work)
{
    size_t tiles = tiles_of(rows), blocks;
    bool straight = panel->whole && (!call->maxima || call->finite);
    memset(work->chain, 0, rows * sizeof work->chain[0]);
    for (size_t b = 0; b < panel->blocks; b += blocks) {
        blocks = panel->blocks - b < PIECE_BLOCKS ? panel->blocks - b : PIECE_BLOCKS;
        bool last = b + blocks == panel->blocks;
        const uint8_t *records = panel->records + b * panel->record_bytes;
        for (size_t i = 0; i < blocks; i++)
            plane_make(panel->form, records + i * panel->record_bytes, &work->planes[i]);
        if (!whole)
            quads_make(&call->acts, row, rows, b, blocks, work->quads);
        for (size_t i = 0; i < tiles; i++) {
            size_t begin = tile_begin(rows, tiles, i),
                   count = tile_begin(rows, tiles, i + 1) - begin;
            const uint8_t *next =
                ask(records + blocks * panel->record_bytes, blocks * panel->record_bytes, i, tiles,
                    count == QUAD ? blocks : 0);
            if (last)
                ask_outputs(call, panel, row + begin, count);
            tile(count, work->quads + (whole ? i * panel->blocks + b : i * blocks), work->planes,
                 blocks, work->chain[begin], next);
            if (last && straight && count == QUAD)
                cpu_avx2_store_whole(QUAD, false, call, panel, row + begin, work->chain[begin]);
            else if (last)
                cpu_avx2_store(call, panel, row + begin, count, work->chain + begin);
        }
    }
}

void cpu_avx2_bytes(const struct cpu_linear_call *call, size_t begin, size_t end)
{
    struct work work;
    size_t blocks = call->weights->blocks, all = call->rows.end - call->rows.begin;
    size_t whole_rows = all < WHOLE_ROWS ? all : WHOLE_ROWS;
    bool whole = tiles_of(whole_rows) * blocks <= QUADS;
    size_t chunks =
        (all + (whole ? WHOLE_ROWS : CHUNK_ROWS_MOST) - 1) / (whole ? WHOLE_ROWS : CHUNK_ROWS_MOST);
    for (size_t i = 0; i < chunks; i++) {
        size_t row = call->rows.begin + all * i / chunks,
               rows = call->rows.begin + all * (i + 1) / chunks - row;
        if (whole)
            quads_make(&call->acts, row, rows, 0, blocks, work.quads);
        for (size_t p = begin; p < end; p++) {
            struct cpu_panel panel = cpu_weights_panel(call->weights, p);
            panel_bytes(call, &panel, row, rows, whole, &work);
        }
    }
}
