/* Linear layers for AVX2 and FMA: equal to linear_plain.c to the bit.
 *
 * int8. A tile is R rows x one panel (two vectors of 8 outputs). vpmaddubsw multiplies 4-bit weights, unsigned, by signed
 * activations and adds pairs: at most 15 * 127 * 2 = 3,810 in magnitude, so the eight groups of a block add up in 16 bits
 * (30,480 < 32,767) and one vpmaddwd a block, not one a group, widens them. That is two operations for 32 products where
 * the usual vpmaddubsw, vpmaddwd, vpaddd takes three, two of them on the multipliers. Bytes of more than two rows go by
 * linear_avx2_bytes.c.
 *
 *     one row:    linear_avx2_row.c
 *     two rows:   bound by memory: records are read as they lie, nibbles cut out on the way (of bytes both, as two planes,
 *                 w + 128 = 16 high + low), from two places of the matrix in turn, chains in registers
 *     up to 24:   records are read as they lie, by one tile after another: cutting nibbles again costs less than unpacking; of
 *                 panels that are longer than one piece up to 32
 *     more rows:  the first tile leaves a piece of a panel (equal ones of up to CHUNK_BLOCKS blocks) as planes of one byte a
 *                 nibble, in L1, and up to CHUNK_ROWS rows pass over them; the activations of the chunk stay in L2 while panels go by
 *
 * Each output's chain F lives in memory (L1) between blocks: the registers are full of sums.
 * Owner: as linear.h. Compiled with -mavx2 -mfma -mf16c; called only where the CPU has them. */
#include <immintrin.h>

#include "kernels/cpu/linear_avx2.h"
#include "kernels/cpu/linear_avx2_six.h"
#include "kernels/cpu/linear_avx2_store.h"

enum {
    TILE_ROWS = 6,
    TILE_ROWS_LEAST = 3, /* less is left to no tile, if there are others */
    WILD_ROWS = 2,
    DIRECT_ROWS = 24,
    DIRECT_ROWS_LONG = 32, /* of panels of more than CHUNK_BLOCKS blocks */
    CHUNK_ROWS = 96,
    CHUNK_BLOCKS = 32,
    PLANE_BYTES = 512,
    PREFETCH_BYTES = 1024,
    ROWS_FEW = 2,
    STREAMS_TWO = 2, /* two rows read side by side */
    AHEAD = 4096,    /* and ask for, in both their streams together */
    AHEAD_BYTES = 3072,
    STORE_ROWS = 8 /* at most with maxima, a multiple of four */
};

#define INLINE static inline __attribute__((always_inline))

/* What the compiler must know of a form; what is left (where scales lie) is read from the tile at run time, or the number of
 * instances, and the time to compile them, would double. Rows of wild scales are rare: two heights do. */
enum kind { KIND_NIBBLE, KIND_BYTE, KIND_WILD };

/* How a tile finds its weights: as they lie, or unpacked; UNPACK reads them as they lie and leaves planes for the next tiles. */
enum source { SOURCE_RECORDS, SOURCE_PLANES, SOURCE_UNPACK, SOURCES };

INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256(p);
}

INLINE int32_t load_i32(const void *p)
{
    int32_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

/* sum += pairs of w (unsigned) times b (signed), in 16 bits. In assembly because the compiler, left to itself, turns the
 * chain of additions into a tree and spills all its products. */
INLINE __m256i add_products(__m256i sum, __m256i w, __m256i b)
{
    __m256i products;
    __asm__("vpmaddubsw %[b], %[w], %[products]\n\t"
            "vpaddw %[products], %[sum], %[sum]"
            : [sum] "+x"(sum), [products] "=&x"(products)
            : [w] "x"(w), [b] "x"(b));
    return sum;
}

INLINE __m256i products(__m256i w, __m256i b)
{
    __m256i result;
    __asm__("vpmaddubsw %[b], %[w], %[result]" : [result] "=x"(result) : [w] "x"(w), [b] "x"(b));
    return result;
}

/* One group: 4 k of 16 outputs for every row. w: unsigned nibbles. The first of a block's groups begins its sums. */
INLINE void add_group(const int R, const int8_t *const *a, size_t k, __m256i w0, __m256i w1,
                      const bool first, __m256i (*sum)[2])
{
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m256i b = _mm256_set1_epi32(load_i32(a[r] + k));
        sum[r][0] = first ? products(w0, b) : add_products(sum[r][0], w0, b);
        sum[r][1] = first ? products(w1, b) : add_products(sum[r][1], w1, b);
    }
}

INLINE void add_plane(const int R, const int8_t *const *a, size_t k, const uint8_t *plane,
                      __m256i (*sum)[2])
{
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++)
        add_group(R, a, k + (size_t)g * 4, load(plane + g * 64), load(plane + g * 64 + 32), g == 0,
                  sum);
}

/* The low (high) nibbles of a record; those of the high half start at k = 16. `plane`: where they are left, or NULL. */
INLINE void add_nibbles(const int R, const int8_t *const *a, size_t k, const uint8_t *record,
                        const bool high, uint8_t *plane, __m256i (*sum)[2])
{
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        __m256i w0 = load(record + g * 64), w1 = load(record + g * 64 + 32);
        if (high) {
            w0 = _mm256_srli_epi16(w0, 4);
            w1 = _mm256_srli_epi16(w1, 4);
        }
        w0 = _mm256_and_si256(w0, mask);
        w1 = _mm256_and_si256(w1, mask);
        if (plane) {
            _mm256_store_si256((void *)(plane + g * 64), w0);
            _mm256_store_si256((void *)(plane + g * 64 + 32), w1);
        }
        add_group(R, a, k + (size_t)g * 4, w0, w1, !high && g == 0, sum);
    }
}

/* A nibble record as it lies. Few rows leave registers free to cut both nibbles from one load; and far ahead of a stream that
 * memory bounds, a prefetch helps. */
INLINE void add_records(const int R, const int ahead, const int8_t *const *a, size_t k,
                        const uint8_t *record, uint8_t *planes, __m256i (*sum)[2])
{
    if (R > 3) {
#pragma GCC unroll 5
        for (int g = 0; g <= 4; g++)
            _mm_prefetch((const char *)record + g * 64 + ahead, _MM_HINT_T0);
        add_nibbles(R, a, k, record, false, planes, sum);
        add_nibbles(R, a, k + 16, record, true, planes ? planes + CPU_NIBBLE_BYTES : NULL, sum);
        return;
    }
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        __m256i w0 = load(record + g * 64), w1 = load(record + g * 64 + 32);
        _mm_prefetch((const char *)record + g * 64 + ahead, _MM_HINT_T0);
        add_group(R, a, k + (size_t)g * 4, _mm256_and_si256(w0, mask), _mm256_and_si256(w1, mask),
                  g == 0, sum);
        w0 = _mm256_and_si256(_mm256_srli_epi16(w0, 4), mask);
        w1 = _mm256_and_si256(_mm256_srli_epi16(w1, 4), mask);
        add_group(R, a, k + 16 + (size_t)g * 4, w0, w1, false, sum);
    }
    _mm_prefetch((const char *)record + CPU_NIBBLE_BYTES + ahead, _MM_HINT_T0);
}

/* The scales of one half panel: (k, M) pairs, or d and c. */
struct scales {
    __m256i pair;
    __m256 d, c;
};

INLINE struct scales load_scales(const enum kind kind, enum cpu_form form, const uint8_t *p,
                                 const int half)
{
    struct scales s = {0};
    if (kind == KIND_WILD) {
        s.d = _mm256_loadu_ps((const void *)(p + half * 32));
        s.c = _mm256_loadu_ps((const void *)(p + 64 + half * 32));
    } else if (kind == KIND_NIBBLE && form == CPU_FORM_E32_PAIR) {
        s.pair = load(p + half * 32);
    } else if (kind == KIND_NIBBLE) {
        s.pair = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(p + half * 16)));
    } else if (form == CPU_FORM_BYTE_HALF) {
        s.d = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + half * 16)));
    } else {
        s.d = _mm256_loadu_ps((const void *)(p + half * 32));
    }
    return s;
}

/* One block of the chain for 8 outputs of one row, from the block's integer sum: v for nibbles, S for bytes. */
INLINE __m256 chain_block(const enum kind kind, struct scales scales, __m256i sum, __m256 da,
                          __m256 s, __m256 chain)
{
    if (kind == KIND_NIBBLE)
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(sum, scales.pair)), da, chain);
    if (kind == KIND_BYTE)
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(scales.d, da), chain);
    __m256 low = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(sum, 16), 16));
    __m256 t = _mm256_fmadd_ps(scales.d, low, _mm256_mul_ps(scales.c, s));
    return _mm256_fmadd_ps(t, da, chain);
}

INLINE __m256 broadcast_da(const int8_t *row, struct offsets at)
{
    return _mm256_broadcast_ss((const float *)(const void *)(row + at.da));
}

/* One block of the chains of row r, from the integer sums v and w of its 16 outputs. `held`: the chains, where they stay in
 * registers (few rows); else they are in memory. */
INLINE void chain_row(const enum kind kind, const struct tile *t, const int r,
                      const struct scales *scales, __m256i v, __m256i w, __m256 da, __m256 s,
                      __m256 (*held)[2])
{
    if (held) {
        held[r][0] = chain_block(kind, scales[0], v, da, s, held[r][0]);
        held[r][1] = chain_block(kind, scales[1], w, da, s, held[r][1]);
        return;
    }
    float *chain = t->chain + r * CPU_PANEL;
    _mm256_storeu_ps(chain, chain_block(kind, scales[0], v, da, s, _mm256_loadu_ps(chain)));
    _mm256_storeu_ps(chain + 8, chain_block(kind, scales[1], w, da, s, _mm256_loadu_ps(chain + 8)));
}

/* Nibble forms: one block for R rows. */
INLINE void nibble_block(const int R, const int ahead, const enum kind kind,
                         const enum source source, const struct tile *t, size_t b,
                         const int8_t *const *row, const uint8_t *record, __m256 (*held)[2])
{
    __m256i sum[TILE_ROWS][2];
    struct offsets at = block_offsets(t->acts, t->block + b);
    if (source == SOURCE_PLANES) {
        add_plane(R, row, at.a, t->planes + b * PLANE_BYTES, sum);
    } else {
        add_records(R, ahead, row, at.a, record,
                    source == SOURCE_UNPACK ? t->planes + b * PLANE_BYTES : NULL, sum);
    }
    const __m256i ones = _mm256_set1_epi16(1);
    const uint8_t *at_scales = record + CPU_NIBBLE_BYTES;
    const struct scales scales[2] = {load_scales(kind, t->form, at_scales, 0),
                                     load_scales(kind, t->form, at_scales, 1)};
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m256i v0 = _mm256_set1_epi32(load_i32(row[r] + at.v0));
        __m256 da = broadcast_da(row[r], at), s = da;
        if (kind == KIND_WILD)
            s = _mm256_set1_ps((float)load_i32(row[r] + at.s));
        __m256i v = _mm256_add_epi32(_mm256_madd_epi16(sum[r][0], ones), v0);
        __m256i w = _mm256_add_epi32(_mm256_madd_epi16(sum[r][1], ones), v0);
        chain_row(kind, t, r, scales, v, w, da, s, held);
    }
}

/* Both planes of a byte record in one pass, for two rows: their eight sums stay in registers. */
INLINE void add_byte_record(const int ahead, const int8_t *const *a, size_t k,
                            const uint8_t *record, __m256i (*low)[2], __m256i (*high)[2])
{
    enum { R = ROWS_FEW };
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        __m256i w0 = load(record + g * 64), w1 = load(record + g * 64 + 32);
        __m256i h0 = _mm256_and_si256(_mm256_srli_epi16(w0, 4), mask);
        __m256i h1 = _mm256_and_si256(_mm256_srli_epi16(w1, 4), mask);
        _mm_prefetch((const char *)record + g * 64 + ahead, _MM_HINT_T0);
        add_group(R, a, k + (size_t)g * 4, _mm256_and_si256(w0, mask), _mm256_and_si256(w1, mask),
                  g == 0, low);
        add_group(R, a, k + (size_t)g * 4, h0, h1, g == 0, high);
    }
    _mm_prefetch((const char *)record + CPU_BYTE_BYTES + ahead, _MM_HINT_T0);
}

/* -128 s, made of vectors: fewer instructions than a scalar's way to them. */
INLINE __m256i byte_start(const int8_t *row, struct offsets at)
{
    __m256i s = _mm256_set1_epi32(load_i32(row + at.s));
    return _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(s, 7));
}

/* Byte forms for two rows: S = 16 high + low - 128 s. */
INLINE void byte_block(const int ahead, const struct tile *t, size_t b, const int8_t *const *row,
                       const uint8_t *record, __m256 (*held)[2])
{
    enum { R = ROWS_FEW };
    __m256i sum[R][2], low[R][2];
    struct offsets at = block_offsets(t->acts, t->block + b);
    const __m256i ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16);
    add_byte_record(ahead, row, at.a, record, low, sum);
    const struct scales scales[2] = {load_scales(KIND_BYTE, t->form, record + CPU_BYTE_BYTES, 0),
                                     load_scales(KIND_BYTE, t->form, record + CPU_BYTE_BYTES, 1)};
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
        __m256i start = byte_start(row[r], at);
        __m256 da = broadcast_da(row[r], at);
        __m256i v = _mm256_add_epi32(_mm256_madd_epi16(low[r][0], ones), start);
        __m256i w = _mm256_add_epi32(_mm256_madd_epi16(low[r][1], ones), start);
        v = _mm256_add_epi32(_mm256_madd_epi16(sum[r][0], sixteens), v);
        w = _mm256_add_epi32(_mm256_madd_epi16(sum[r][1], sixteens), w);
        chain_row(KIND_BYTE, t, r, scales, v, w, da, da, held);
    }
}

INLINE void tile_blocks(const int R, const enum kind kind, const enum source source,
                        const struct tile *t)
{
    const int8_t *row[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        row[r] = cpu_acts_a(t->acts, t->row + (size_t)r);
    for (size_t b = 0; b < t->blocks; b++)
        nibble_block(R, PREFETCH_BYTES, kind, source, t, b, row, t->records + b * t->record_bytes,
                     NULL);
}

/* The compiler needs R as a constant, to keep the sums in registers. */
INLINE void tile_rows(size_t rows, const enum kind kind, const enum source source,
                      const struct tile *t)
{
    switch (rows) {
    case 1:
        tile_blocks(1, kind, source, t);
        break;
    case 2:
        tile_blocks(2, kind, source, t);
        break;
    case 3:
        tile_blocks(3, kind, source, t);
        break;
    case 4:
        tile_blocks(4, kind, source, t);
        break;
    case 5:
        tile_blocks(5, kind, source, t);
        break;
    default:
        tile_blocks(TILE_ROWS, kind, source, t);
        break;
    }
}

static bool is_six(size_t rows, const struct tile *t)
{
    return rows == TILE_ROWS && t->form == CPU_FORM_E32_PAIR;
}

static bool is_four(size_t rows, const struct tile *t)
{
    return rows == 4 && t->form == CPU_FORM_E32_PAIR;
}

static void nibble_records(size_t rows, const struct tile *t)
{
    if (is_six(rows, t))
        cpu_avx2_six_records(t);
    else if (is_four(rows, t))
        cpu_avx2_four_records(t);
    else
        tile_rows(rows, KIND_NIBBLE, SOURCE_RECORDS, t);
}

static void nibble_planes(size_t rows, const struct tile *t)
{
    if (is_six(rows, t))
        cpu_avx2_six_planes(t);
    else if (is_four(rows, t))
        cpu_avx2_four_planes(t);
    else
        tile_rows(rows, KIND_NIBBLE, SOURCE_PLANES, t);
}

/* The first of more than DIRECT_ROWS rows: always a whole tile. */
static void nibble_unpack(size_t rows, const struct tile *t)
{
    (void)rows;
    if (is_six(rows, t))
        cpu_avx2_six_unpack(t);
    else
        tile_blocks(TILE_ROWS, KIND_NIBBLE, SOURCE_UNPACK, t);
}

static void wild_records(size_t rows, const struct tile *t)
{
    if (rows == 1)
        tile_blocks(1, KIND_WILD, SOURCE_RECORDS, t);
    else
        tile_blocks(WILD_ROWS, KIND_WILD, SOURCE_RECORDS, t);
}

static enum kind kind_of(enum cpu_form form)
{
    if (form == CPU_FORM_E32_FLOAT)
        return KIND_WILD;
    return cpu_form_is_e32(form) ? KIND_NIBBLE : KIND_BYTE;
}

static void (*const tiles[][SOURCES])(size_t rows, const struct tile *t) = {
    [KIND_NIBBLE] = {nibble_records, nibble_planes, nibble_unpack},
    [KIND_WILD] = {wild_records},
};

/* What will be needed when the tiles are through: the records behind these (the panel's next blocks or the next panel: they
 * lie in one run), asked for in equal parts before each tile, because the hardware's own prefetch has forgotten the stream by
 * then; and the lines of `out` that the chains go to. */
struct ahead {
    const uint8_t *records;
    size_t bytes;
    float *out; /* the first row's, or NULL */
    size_t ld_out;
};

/* The next `bytes` of the records, and the lines of rows [row, row + rows). */
INLINE void ask(struct ahead *ahead, size_t bytes, size_t row, size_t rows)
{
    bytes = bytes < ahead->bytes ? bytes : ahead->bytes;
    for (size_t i = 0; i < bytes; i += CPU_LINE_BYTES)
        _mm_prefetch((const char *)ahead->records + i, _MM_HINT_T1);
    ahead->records += bytes;
    ahead->bytes -= bytes;
    for (size_t r = row; ahead->out && r < row + rows; r++)
        __builtin_prefetch(ahead->out + r * ahead->ld_out, 1);
}

static void store(const struct cpu_linear_call *call, const struct cpu_panel *panel, size_t row,
                  size_t rows, float *chain)
{
    bool straight = cpu_form_is_e32(panel->form) && panel->whole && !call->maxima;
    if (straight && rows == TILE_ROWS)
        cpu_avx2_store_whole(TILE_ROWS, true, call, panel, row, chain);
    else if (straight && rows == 4)
        cpu_avx2_store_whole(4, true, call, panel, row, chain);
    else
        cpu_avx2_store(call, panel, row, rows, (float(*)[CPU_PANEL])chain);
}

/* A tile's chains, whatever its height: no loop, as above. */
INLINE void clear(float *chain)
{
#pragma GCC unroll 16
    for (size_t i = 0; i < TILE_ROWS * CPU_PANEL; i += 8)
        _mm256_store_ps(chain + i, _mm256_setzero_ps());
}

/* All rows of a chunk over the blocks that `t` names, in whole tiles and what is left in two of nearly equal height. `chain`: [rows
 * + TILE_ROWS][16], or one tile's where a panel is done in one go. The last blocks' chains are stored while they are in L1. */
static void run_tiles(const struct cpu_linear_call *call, const struct cpu_panel *panel, size_t row,
                      size_t rows, float (*chain)[CPU_PANEL], struct tile t, struct ahead ahead)
{
    enum kind kind = kind_of(t.form);
    bool first = t.block == 0, last = t.block + t.blocks == panel->blocks;
    size_t tallest = kind == KIND_WILD ? WILD_ROWS : TILE_ROWS,
           count = (rows + tallest - 1) / tallest;
    size_t ask_bytes = (ahead.bytes / count + CPU_LINE_BYTES) & ~(size_t)(CPU_LINE_BYTES - 1);
    for (size_t i = 0, done = 0; i < count; i++) {
        size_t rest = rows - done, height = tallest;
        if (kind == KIND_WILD || rest < tallest + TILE_ROWS_LEAST)
            height = rest / (count - i);
        ask(&ahead, ask_bytes, done, height);
        t.row = row + done;
        t.chain = first && last ? chain[0] : chain[done];
        if (first)
            clear(t.chain);
        enum source source = !t.planes ? SOURCE_RECORDS : i == 0 ? SOURCE_UNPACK : SOURCE_PLANES;
        tiles[kind][source](height, &t);
        if (last)
            store(call, panel, t.row, height, t.chain);
        done += height;
    }
}

static void panel_int8(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                       size_t row, size_t rows)
{
    _Alignas(64) float chain[CHUNK_ROWS + TILE_ROWS][CPU_PANEL];
    _Alignas(64) uint8_t planes[CHUNK_BLOCKS * PLANE_BYTES];
    enum kind kind = kind_of(panel->form);
    size_t most = panel->blocks > CHUNK_BLOCKS ? DIRECT_ROWS_LONG : DIRECT_ROWS;
    bool direct = rows <= most || kind != KIND_NIBBLE;
    size_t pieces = direct ? 1 : (panel->blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS,
           step = (panel->blocks + pieces - 1) / pieces;
    for (size_t b = 0; b < panel->blocks; b += step) {
        struct tile t = {.form = panel->form,
                         .record_bytes = panel->record_bytes,
                         .acts = &call->acts,
                         .block = b,
                         .blocks = panel->blocks - b < step ? panel->blocks - b : step,
                         .records = panel->records + b * panel->record_bytes,
                         .planes = direct ? NULL : planes};
        struct ahead ahead = {.records = t.records + t.blocks * t.record_bytes,
                              .bytes = direct ? 0 : t.blocks * t.record_bytes};
        if (b + step >= panel->blocks && panel->whole) {
            ahead.out = call->out + row * call->ld_out + panel->first;
            ahead.ld_out = call->ld_out;
        }
        run_tiles(call, panel, row, rows, chain, t, ahead);
    }
}

/* --- two rows: bound by reading, so nothing but the records goes through memory; one: linear_avx2_row.c --- */

/* `count` panels of two rows from each of S places in the matrix, `apart` panels from one to the next: memory gives more to two
 * streams than to one, and registers are left for no more. */
INLINE void panels_of_two(const int S, const enum kind kind, const struct cpu_linear_call *call,
                          size_t begin, size_t count, size_t apart)
{
    enum { R = ROWS_FEW };
    struct cpu_panel panel = cpu_weights_panel(call->weights, begin);
    struct tile t = {.form = panel.form, .acts = &call->acts};
    const size_t blocks = panel.blocks, record_bytes = panel.record_bytes,
                 panel_bytes = cpu_form_panel_bytes(panel.form, blocks),
                 apart_bytes = apart * panel_bytes;
    const uint8_t *record = panel.records;
    const int ahead = (kind == KIND_BYTE ? AHEAD_BYTES : AHEAD) / S;
    const int8_t *row[R];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++)
        row[r] = cpu_acts_a(&call->acts, call->rows.begin + (size_t)r);
    for (size_t p = begin; p < begin + count; p++) {
        __m256 held[STREAMS_TWO][R][2];
#pragma GCC unroll 2
        for (int i = 0; i < S; i++) {
#pragma GCC unroll 2
            for (int r = 0; r < R; r++)
                held[i][r][0] = held[i][r][1] = _mm256_setzero_ps();
        }
        for (size_t b = 0; b < blocks; b++, record += record_bytes) {
#pragma GCC unroll 2
            for (int i = 0; i < S; i++) {
                const uint8_t *from = record + (size_t)i * apart_bytes;
                if (kind == KIND_BYTE)
                    byte_block(ahead, &t, b, row, from, held[i]);
                else
                    nibble_block(R, ahead, kind, SOURCE_RECORDS, &t, b, row, from, held[i]);
            }
        }
        record += panel_bytes - blocks * record_bytes; /* past the panel's scales, a line */
#pragma GCC unroll 2
        for (int i = 0; i < S; i++)
            _mm_prefetch((const char *)record + (size_t)i * apart_bytes + ahead - 64, _MM_HINT_T0);
        for (int i = 0; i < S; i++) {
            panel = cpu_weights_panel(call->weights, p + (size_t)i * apart);
            _Alignas(32) float chain[R][CPU_PANEL];
#pragma GCC unroll 2
            for (int r = 0; r < R; r++) {
                _mm256_store_ps(chain[r], held[i][r][0]);
                _mm256_store_ps(chain[r] + 8, held[i][r][1]);
            }
            cpu_avx2_store(call, &panel, call->rows.begin, R, chain);
        }
    }
}

/* Panels of one form, [begin, end). */
INLINE void streams_of_two(const enum kind kind, const struct cpu_linear_call *call, size_t begin,
                           size_t end)
{
    size_t each = (end - begin) / STREAMS_TWO;
    if (each > 0)
        panels_of_two(STREAMS_TWO, kind, call, begin, each, each);
    begin += each * STREAMS_TWO;
    if (begin < end)
        panels_of_two(1, kind, call, begin, end - begin, 0);
}

static void two_rows(enum kind kind, const struct cpu_linear_call *call, size_t begin, size_t end)
{
    if (kind == KIND_BYTE)
        streams_of_two(KIND_BYTE, call, begin, end);
    else
        streams_of_two(KIND_NIBBLE, call, begin, end);
}

/* Does the call's ordinary panels when its rows are few, or its weights bytes; the first panel that is left. */
static size_t few_rows(const struct cpu_linear_call *call)
{
    size_t rows = call->rows.end - call->rows.begin, begin = call->panel_begin,
           end = call->weights->run[0].panels;
    enum kind kind = kind_of(call->weights->run[0].form);
    end = call->panel_end < end ? call->panel_end : end;
    if (rows == 0 || begin >= end)
        return begin;
    if (rows == 1)
        cpu_avx2_row(call, begin, end);
    else if (rows <= ROWS_FEW)
        two_rows(kind, call, begin, end);
    else if (kind == KIND_BYTE)
        cpu_avx2_bytes(call, begin, end);
    else
        return begin;
    return end;
}

/* The maxima of some rows of a whole panel from the greatest lanes of each: top[rows], with room to the next multiple of four. sum: of all
 * their outputs, where it is looked whether they are finite: what is not leaves a sum that is not, and that is not 0 times 0. */
static void maxima_store(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                         size_t row, size_t rows, __m256 *top, __m256 sum)
{
    __m256 none = _mm256_mul_ps(sum, _mm256_setzero_ps());
    if (_mm256_movemask_ps(_mm256_cmp_ps(none, none, _CMP_UNORD_Q))) {
        cpu_linear_maxima(call, panel, row, rows);
        return;
    }
    float *maxima = cpu_linear_maximum(call, panel, row);
    size_t r = 0;
    for (; r + 4 <= rows; r += 4)
        cpu_avx2_maxima_join(maxima + r, top + r);
    if (r == rows)
        return;
    for (size_t i = rows; i < r + 4; i++)
        top[i] = top[0];
    float most[4];
    _mm_storeu_ps(most, cpu_avx2_greatest4(top + r));
    for (size_t i = r; i < rows; i++)
        cpu_linear_maximum_join(&maxima[i], most[i - r]);
}

void cpu_avx2_store_maxima(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                           size_t row, size_t rows, const float *chain, size_t ld_chain)
{
    float some[STORE_ROWS][CPU_PANEL];
    for (size_t r = 0; r < rows; r += STORE_ROWS) {
        size_t count = rows - r < STORE_ROWS ? rows - r : STORE_ROWS;
        for (size_t i = 0; i < count; i++)
            memcpy(some[i], chain + (r + i) * ld_chain, sizeof some[i]);
        cpu_avx2_store(call, panel, row + r, count, some);
    }
}

/* Maxima in this very loop: in a loop of their own beside it the product of 32 rows took 3 % longer, for reasons not found. */
void cpu_avx2_store(const struct cpu_linear_call *call, const struct cpu_panel *panel, size_t row,
                    size_t rows, float (*chain)[CPU_PANEL])
{
    bool e32 = cpu_form_is_e32(panel->form);
    __m256 top[STORE_ROWS], sum = _mm256_setzero_ps();
    __m256 one = _mm256_set1_ps(1.0f); /* times 1 changes no bit */
    __m256 d0 = e32 ? _mm256_loadu_ps(panel->slot_scale) : one;
    __m256 d1 = e32 ? _mm256_loadu_ps(panel->slot_scale + 8) : one;
    for (size_t r = 0; r < rows; r++) {
        float *out = call->out + (row + r) * call->ld_out;
        __m256 y0 = _mm256_mul_ps(_mm256_loadu_ps(chain[r]), d0);
        __m256 y1 = _mm256_mul_ps(_mm256_loadu_ps(chain[r] + 8), d1);
        if (panel->whole) {
            out += panel->first;
            if (call->accumulate) {
                y0 = _mm256_add_ps(_mm256_loadu_ps(out), y0);
                y1 = _mm256_add_ps(_mm256_loadu_ps(out + 8), y1);
            }
            _mm256_storeu_ps(out, y0);
            _mm256_storeu_ps(out + 8, y1);
            if (call->maxima) {
                top[r % STORE_ROWS] = _mm256_max_ps(y0, y1);
                if (!call->finite)
                    sum = _mm256_add_ps(sum, _mm256_add_ps(y0, y1));
            }
            continue;
        }
        _mm256_storeu_ps(chain[r], y0);
        _mm256_storeu_ps(chain[r] + 8, y1);
        for (size_t slot = 0; slot < CPU_PANEL; slot++) {
            if (panel->slot_row[slot] < 0)
                continue;
            float *to = out + panel->slot_row[slot];
            *to = call->accumulate ? *to + chain[r][slot] : chain[r][slot];
        }
    }
    if (!call->maxima)
        return;
    if (panel->whole)
        maxima_store(call, panel, row, rows, top, sum);
    else
        cpu_linear_maxima(call, panel, row, rows);
}

static void linear(const struct cpu_linear_call *call)
{
    if (call->acts.compute != KERN_COMPUTE_INT8) {
        cpu_avx2_f32(call);
        return;
    }
    size_t begin = few_rows(call);
    for (size_t row = call->rows.begin; row < call->rows.end; row += CHUNK_ROWS) {
        size_t rows = call->rows.end - row < CHUNK_ROWS ? call->rows.end - row : CHUNK_ROWS;
        for (size_t p = begin; p < call->panel_end; p++) {
            struct cpu_panel panel = cpu_weights_panel(call->weights, p);
            panel_int8(call, &panel, row, rows);
        }
    }
}

const struct cpu_linear_ops cpu_linear_ops_avx2 = {
    .quantise = cpu_avx2_quantise,
    .norm_quantise = cpu_avx2_norm_quantise,
    .silu_mul_quantise = cpu_avx2_silu_mul_quantise,
    .norm = cpu_avx2_norm,
    .linear = linear,
    .ask = cpu_avx2_row_ask,
};
