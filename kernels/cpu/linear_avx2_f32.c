/* compute=f32 for AVX2 and FMA: a piece of a panel is dequantised into L1 as [k][16] floats, then tiles of 6 rows x 16
 * outputs pass over it, one fmaf chain an output in ascending k.
 *
 *     chunks of up to 192 rows > groups of 4 panels > pieces of 192 k > the group's panels > tiles
 *
 * so that a piece of the chunk's rows (147 KB) comes to the second cache once for the panels of a group. Between pieces the
 * chains lie in work.chain, after the last one they go straight from registers to `out`.
 * Owner: as linear.h. Compiled with -mavx2 -mfma -mf16c. */
#include <immintrin.h>

#include "kernels/cpu/linear_avx2.h"

enum {
    TILE_ROWS = 6,
    CHUNK_ROWS = 192,
    GROUP = 4, /* panels that take turns */
    ROWS_FEW =
        24, /* up to so many there is more to widen than to gain: records are read in order */
    CHUNK_BLOCKS = 6,
    CHUNK_K = CHUNK_BLOCKS * KERN_BLOCK,
    LINE_K = 16 /* floats of a line of the cache */
};

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 load_half8(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

/* The nibbles of each word that begin at bit `shift`, as floats. */
INLINE __m256 nibble8(__m256i words, const int shift)
{
    words = shift ? _mm256_srli_epi32(words, shift) : words;
    return _mm256_cvtepi32_ps(shift == 28 ? words : _mm256_and_si256(words, _mm256_set1_epi32(15)));
}

/* d q is exact, so the fused form rounds like product, then sum; but -0 + 0 needs care: without a minimum the definition has no
 * sum. */
INLINE __m256 weight8(const bool has_min, __m256 q, __m256 d, __m256 m)
{
    return has_min ? _mm256_fmadd_ps(d, q, m)
                   : _mm256_mul_ps(d, _mm256_sub_ps(q, _mm256_set1_ps(8.0f)));
}

INLINE void dequantise_nibbles(const bool has_min, const uint8_t *record, float (*w)[CPU_PANEL])
{
    for (size_t half = 0; half < 2; half++) {
        const uint8_t *scales = record + CPU_NIBBLE_BYTES + half * 16;
        __m256 d = load_half8(scales);
        __m256 m = has_min ? load_half8(scales + 32) : d;
        for (size_t line = 0; line < 4; line++) {
            __m256i words =
                _mm256_loadu_si256((const void *)(record + line * CPU_LINE_BYTES + half * 32));
            float *to = w[line * 4] + half * 8, *to_high = w[16 + line * 4] + half * 8;
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                __m256 low = weight8(has_min, nibble8(words, i * 8), d, m);
                __m256 high = weight8(has_min, nibble8(words, i * 8 + 4), d, m);
                _mm256_store_ps(to + i * CPU_PANEL, low);
                _mm256_store_ps(to_high + i * CPU_PANEL, high);
            }
        }
    }
}

static void dequantise_bytes(const uint8_t *record, float (*w)[CPU_PANEL])
{
    for (size_t half = 0; half < 2; half++) {
        __m256 d = load_half8(record + CPU_BYTE_BYTES + half * 16);
        for (size_t k = 0; k < KERN_BLOCK; k++) {
            const uint8_t *words = record + k / 4 * CPU_LINE_BYTES + half * 32;
            __m256i q = _mm256_loadu_si256((const void *)words);
            q = _mm256_and_si256(_mm256_srli_epi32(q, (int)(k % 4 * 8)), _mm256_set1_epi32(255));
            q = _mm256_sub_epi32(q, _mm256_set1_epi32(128));
            _mm256_store_ps(w[k] + half * 8, _mm256_mul_ps(d, _mm256_cvtepi32_ps(q)));
        }
    }
}

static void dequantise_elements(enum cpu_form form, const uint8_t *record, float (*w)[CPU_PANEL])
{
    size_t element_bytes = form == CPU_FORM_F32 ? 4 : 2;
    for (size_t i = 0; i < KERN_BLOCK * CPU_PANEL; i += 8) {
        const uint8_t *from = record + i * element_bytes;
        __m256 value;
        if (form == CPU_FORM_F32)
            value = _mm256_loadu_ps((const void *)from);
        else if (form == CPU_FORM_F16)
            value = load_half8(from);
        else
            value = _mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16));
        _mm256_store_ps(&w[0][0] + i, value);
    }
}

static void dequantise(const struct cpu_panel *panel, size_t block, size_t blocks,
                       float (*w)[CPU_PANEL])
{
    for (size_t b = 0; b < blocks; b++, w += KERN_BLOCK) {
        const uint8_t *record = panel->records + (block + b) * panel->record_bytes;
        if (panel->form == CPU_FORM_NIBBLE_MIN)
            dequantise_nibbles(true, record, w);
        else if (panel->form == CPU_FORM_NIBBLE)
            dequantise_nibbles(false, record, w);
        else if (panel->form == CPU_FORM_BYTE_HALF)
            dequantise_bytes(record, w);
        else
            dequantise_elements(panel->form, record, w);
    }
}

/* sum = w * b + sum, rounded once. In assembly: the compiler copies and spills sums that it need not. */
INLINE __m256 add_product(__m256 sum, __m256 w, __m256 b)
{
    __asm__("vfmadd231ps %[b], %[w], %[sum]" : [sum] "+x"(sum) : [w] "x"(w), [b] "x"(b));
    return sum;
}

/* Some rows over one piece of a panel: to[r] = start[r] + sum over k of w[k] * x[r][k], or, `add`, to[r] += that. */
struct tile {
    const float *x; /* [rows], x_bytes from one to the next */
    size_t x_bytes;
    size_t ahead; /* bytes from x to what is needed next */
    const float (*w)[CPU_PANEL];
    size_t count;                    /* of k, a multiple of 32 */
    const float (*start)[CPU_PANEL]; /* [rows] */
    float *to;                       /* [rows][16], to_bytes from one to the next */
    size_t to_bytes;
    bool add;
};

INLINE float *row_at(float *first, size_t row_bytes, int row)
{
    return (float *)(void *)((uint8_t *)first + (size_t)row * row_bytes);
}

INLINE void tile_few(const int R, const struct tile *t)
{
    __m256 sum[TILE_ROWS][2];
    const float *row[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        sum[r][0] = _mm256_loadu_ps(t->start[r]);
        sum[r][1] = _mm256_loadu_ps(t->start[r] + 8);
        row[r] = row_at((float *)t->x, t->x_bytes, r);
    }
    for (size_t k = 0; k < t->count; k++) {
        __m256 w0 = _mm256_load_ps(t->w[k]), w1 = _mm256_load_ps(t->w[k] + 8);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m256 b = _mm256_broadcast_ss(row[r] + k);
            sum[r][0] = add_product(sum[r][0], w0, b);
            sum[r][1] = add_product(sum[r][1], w1, b);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        float *to = row_at(t->to, t->to_bytes, r);
        if (t->add) {
            sum[r][0] = _mm256_add_ps(_mm256_loadu_ps(to), sum[r][0]);
            sum[r][1] = _mm256_add_ps(_mm256_loadu_ps(to + 8), sum[r][1]);
        }
        _mm256_storeu_ps(to, sum[r][0]);
        _mm256_storeu_ps(to + 8, sum[r][1]);
    }
}

/* Six rows, the whole loop in assembly: the same sums, with nothing between them but what they need. Of each row's lines those
 * `ahead` are asked for.
 *
 *     ymm0..11 sums, two a row   ymm12, 13 w[k]   ymm14, 15 x[r][k] everywhere */
/* clang-format off */
#define ROW_K(from, b, s0, s1)                         \
    "vbroadcastss " from ", %%ymm" b "\n\t"            \
    "vfmadd231ps %%ymm" b ", %%ymm12, %%ymm" s0 "\n\t" \
    "vfmadd231ps %%ymm" b ", %%ymm13, %%ymm" s1 "\n\t"
#define ONE_K(k, at_w, at_w1)                          \
    "vmovaps " at_w "(%[w]), %%ymm12\n\t"              \
    "vmovaps " at_w1 "(%[w]), %%ymm13\n\t"             \
    ROW_K(k "(%[x])", "14", "0", "1")                  \
    ROW_K(k "(%[x],%[ld])", "15", "2", "3")            \
    ROW_K(k "(%[x],%[ld],2)", "14", "4", "5")          \
    ROW_K(k "(%[x],%[ld3])", "15", "6", "7")           \
    ROW_K(k "(%[x],%[ld],4)", "14", "8", "9")          \
    ROW_K(k "(%[x1],%[ld],4)", "15", "10", "11")
#define LINE_OF_K                                      \
    "prefetcht1 (%[next])\n\t"                         \
    "prefetcht1 (%[next],%[ld])\n\t"                   \
    ONE_K("0", "0", "32") ONE_K("4", "64", "96")       \
    "prefetcht1 (%[next],%[ld],2)\n\t"                 \
    ONE_K("8", "128", "160") ONE_K("12", "192", "224") \
    "prefetcht1 (%[next],%[ld3])\n\t"                  \
    ONE_K("16", "256", "288") ONE_K("20", "320", "352") \
    "prefetcht1 (%[next],%[ld],4)\n\t"                 \
    ONE_K("24", "384", "416") ONE_K("28", "448", "480") \
    "prefetcht1 (%[next1],%[ld],4)\n\t"                \
    ONE_K("32", "512", "544") ONE_K("36", "576", "608") \
    ONE_K("40", "640", "672") ONE_K("44", "704", "736") \
    ONE_K("48", "768", "800") ONE_K("52", "832", "864") \
    ONE_K("56", "896", "928") ONE_K("60", "960", "992")
#define START_ROW(at0, at1, s0, s1)                    \
    "vmovups " at0 "(%[start]), %%ymm" s0 "\n\t"       \
    "vmovups " at1 "(%[start]), %%ymm" s1 "\n\t"
#define STORE_ROW(s0, s1)                              \
    "vmovups %%ymm" s0 ", (%[to])\n\t"                 \
    "vmovups %%ymm" s1 ", 32(%[to])\n\t"               \
    "add %[to_bytes], %[to]\n\t"
#define ADD_ROW(s0, s1)                                \
    "vmovups (%[to]), %%ymm12\n\t"                     \
    "vmovups 32(%[to]), %%ymm13\n\t"                   \
    "vaddps %%ymm" s0 ", %%ymm12, %%ymm" s0 "\n\t"     \
    "vaddps %%ymm" s1 ", %%ymm13, %%ymm" s1 "\n\t"     \
    STORE_ROW(s0, s1)
#define SIX_ROWS(row) row("0", "1") row("2", "3") row("4", "5") row("6", "7") row("8", "9") row("10", "11")
#define TILE_SIX(name, end_row)                                                                  \
    static void name(const struct tile *t)                                                       \
    {                                                                                            \
        const uint8_t *x = (const uint8_t *)t->x, *next = x + t->ahead;                          \
        const uint8_t *x1 = x + t->x_bytes, *next1 = next + t->x_bytes;                          \
        const float(*w)[CPU_PANEL] = t->w;                                                       \
        size_t lines = t->count / LINE_K;                                                        \
        float *to = t->to;                                                                       \
        __asm__ volatile(                                                                        \
            START_ROW("0", "32", "0", "1") START_ROW("64", "96", "2", "3")                       \
            START_ROW("128", "160", "4", "5") START_ROW("192", "224", "6", "7")                  \
            START_ROW("256", "288", "8", "9") START_ROW("320", "352", "10", "11")                \
            "1:\n\t" LINE_OF_K                                                                   \
            "add $64, %[x]\n\t"                                                                  \
            "add $64, %[x1]\n\t"                                                                 \
            "add $64, %[next]\n\t"                                                               \
            "add $64, %[next1]\n\t"                                                              \
            "add $1024, %[w]\n\t"                                                                \
            "dec %[lines]\n\t"                                                                   \
            "jnz 1b\n\t"                                                                         \
            SIX_ROWS(end_row)                                                                    \
            : [x] "+r"(x), [x1] "+r"(x1), [next] "+r"(next), [next1] "+r"(next1), [w] "+r"(w),   \
              [lines] "+r"(lines), [to] "+r"(to)                                                 \
            : [ld] "r"(t->x_bytes), [ld3] "r"(3 * t->x_bytes), [start] "r"(t->start),            \
              [to_bytes] "r"(t->to_bytes)                                                        \
            : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",    \
              "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");             \
    }
/* clang-format on */
TILE_SIX(tile_six_store, STORE_ROW)
TILE_SIX(tile_six_add, ADD_ROW)

/* Not inlined: constants of the caller's loops would take registers that the sums need. */
__attribute__((noinline)) static void tile_rows(size_t rows, const struct tile *t)
{
    switch (rows) {
    case 1:
        tile_few(1, t);
        break;
    case 2:
        tile_few(2, t);
        break;
    case 3:
        tile_few(3, t);
        break;
    case 4:
        tile_few(4, t);
        break;
    case 5:
        tile_few(5, t);
        break;
    default:
        (t->add ? tile_six_add : tile_six_store)(t);
        break;
    }
}

/* Rows of the next tile: six, and what is left in two tiles of nearly equal height, because a tile of less than four rows takes as
 * long as one of four. */
static size_t tile_height(size_t rest)
{
    if (rest <= TILE_ROWS || rest >= 2 * TILE_ROWS - 1)
        return rest < TILE_ROWS ? rest : TILE_ROWS;
    return rest >= TILE_ROWS + 4 ? TILE_ROWS : (rest + 1) / 2;
}

struct group {
    const struct cpu_linear_call *call;
    size_t row, rows; /* of the chunk */
    size_t count;
    struct cpu_panel panels[GROUP];
};

struct work {
    _Alignas(64) float chain[GROUP][CHUNK_ROWS][CPU_PANEL];
    _Alignas(64) float w[CHUNK_K][CPU_PANEL];
};

/* The share of rows [from, to) of `rows` in asking for `bytes` of records: the hardware's own prefetch has forgotten them. */
INLINE void ask(const uint8_t *records, size_t bytes, size_t from, size_t to, size_t rows)
{
    for (size_t at = bytes * from / rows & ~(size_t)63; at < bytes * to / rows;
         at += CPU_LINE_BYTES)
        _mm_prefetch((const char *)records + at, _MM_HINT_T1);
}

/* All rows of the chunk over one widened piece of panel i, from block b on. `next`: the records that are widened after it. */
static void piece(const struct group *group, size_t i, size_t b, size_t blocks, const uint8_t *next,
                  struct work *work)
{
    static const _Alignas(64) float zeros[TILE_ROWS][CPU_PANEL];
    const struct cpu_linear_call *call = group->call;
    const struct cpu_panel *panel = &group->panels[i];
    size_t stride_bytes = call->acts.stride_bytes, piece_bytes = blocks * panel->record_bytes,
           height;
    /* what the last tile asks for: the same rows for the group's next panel, or the first rows of the next piece */
    size_t further_bytes = i + 1 < group->count ? 0 : blocks * KERN_BLOCK * sizeof(float);
    bool last = b + blocks == panel->blocks, straight = last && panel->whole && !call->maxima;
    float(*chain)[CPU_PANEL] = work->chain[i];
    for (size_t r = 0; r < group->rows; r += height) {
        height = tile_height(group->rows - r);
        ask(next, piece_bytes, r, r + height, group->rows);
        struct tile t = {
            .x = cpu_acts_f32_row(&call->acts, group->row + r) + b * KERN_BLOCK,
            .x_bytes = stride_bytes,
            .ahead =
                r + height < group->rows ? height * stride_bytes : further_bytes - r * stride_bytes,
            .w = (const float(*)[CPU_PANEL])work->w,
            .count = blocks * KERN_BLOCK,
            .start = b == 0 ? zeros : (const float(*)[CPU_PANEL])(chain + r),
            .to = chain[r],
            .to_bytes = sizeof chain[0],
        };
        if (straight) {
            t.to = call->out + (group->row + r) * call->ld_out + panel->first;
            t.to_bytes = call->ld_out * sizeof(float);
            t.add = call->accumulate;
            for (size_t k = 0; k < height; k++)
                __builtin_prefetch(t.to + k * call->ld_out, 1);
        }
        tile_rows(height, &t);
        if (last && !straight)
            cpu_avx2_store(call, panel, group->row + r, height, chain + r);
    }
}

static void group_run(const struct group *group, struct work *work)
{
    size_t all = group->panels[0].blocks;
    for (size_t b = 0; b < all; b += CHUNK_BLOCKS) {
        size_t blocks = all - b < CHUNK_BLOCKS ? all - b : CHUNK_BLOCKS;
        for (size_t i = 0; i < group->count; i++) {
            const struct cpu_panel *panel = &group->panels[i],
                                   *after = i + 1 < group->count ? panel + 1 : group->panels;
            const uint8_t *next =
                after->records + (i + 1 < group->count ? b : b + blocks) * after->record_bytes;
            dequantise(panel, b, blocks, work->w);
            piece(group, i, b, blocks, next, work);
        }
    }
}

void cpu_avx2_f32(const struct cpu_linear_call *call)
{
    struct work work;
    for (size_t row = call->rows.begin; row < call->rows.end; row += CHUNK_ROWS) {
        struct group group = {.call = call,
                              .row = row,
                              .rows = call->rows.end - row < CHUNK_ROWS ? call->rows.end - row
                                                                        : CHUNK_ROWS};
        size_t most = group.rows <= ROWS_FEW ? 1 : GROUP;
        for (size_t p = call->panel_begin; p < call->panel_end; p += group.count) {
            group.count = call->panel_end - p < most ? call->panel_end - p : most;
            for (size_t i = 0; i < group.count; i++)
                group.panels[i] = cpu_weights_panel(call->weights, p + i);
            group_run(&group, &work);
        }
    }
}
