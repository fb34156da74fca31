/* Linear layers for AVX-512 with VNNI: equal to linear_plain.c to the bit.
 *
 * A tile is R rows (up to 7) x C panels (1 or 2) of 16 outputs. vpdpbusd adds four products of unsigned weights and signed
 * activations straight into 32 bits, so a block's sum starts from v0 (nibbles) or -128 s (bytes) and needs nothing after its
 * eight groups. Few rows read the records as they lie; many rows unpack the nibbles of a piece of a panel once into L1.
 * Bytes need no unpacking.
 * Owner: as linear.h. Compiled with -mavx512f and friends and -mavx512vnni. */
#include "kernels/cpu/linear_avx512.h"

enum {
    TILE_ROWS = 7,
    TILE_PANELS = 2,
    DIRECT_ROWS = 14,
    CHUNK_ROWS = 98,
    CHUNK_BLOCKS = 16,
    PLANE_BYTES = 512
};

#define INLINE static inline __attribute__((always_inline))

/* What the compiler must know of a form; where scales lie is read from the tile at run time. */
enum kind { KIND_NIBBLE, KIND_BYTE, KIND_WILD };

struct tile {
    enum cpu_form form;
    size_t record_bytes;
    const struct cpu_acts *acts;
    size_t row, block, blocks;           /* the first row; the first block and how many */
    const uint8_t *records[TILE_PANELS]; /* of `block` */
    const uint8_t *planes[TILE_PANELS];  /* or NULL: read the records' own nibbles */
    float *chain;                        /* [R][TILE_PANELS][16] */
};

INLINE int32_t load_i32(const void *p)
{
    int32_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

/* One group: 4 k of C x 16 outputs for every row. */
INLINE void add_group(const int R, const int C, const int8_t *const *a, size_t k, const __m512i *w,
                      __m512i (*sum)[TILE_PANELS])
{
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m512i b = _mm512_set1_epi32(load_i32(a[r] + k));
#pragma GCC unroll 2
        for (int c = 0; c < C; c++)
            sum[r][c] = _mm512_dpbusd_epi32(sum[r][c], w[c], b);
    }
}

INLINE void add_nibbles(const int R, const int C, const int8_t *const *a, size_t k,
                        const uint8_t *const *record, __m512i (*sum)[TILE_PANELS])
{
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int line = 0; line < 4; line++) {
        __m512i low[TILE_PANELS], high[TILE_PANELS];
#pragma GCC unroll 2
        for (int c = 0; c < C; c++) {
            __m512i w = _mm512_loadu_si512(record[c] + line * CPU_LINE_BYTES);
            low[c] = _mm512_and_si512(w, mask);
            high[c] = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
        }
        add_group(R, C, a, k + (size_t)line * 4, low, sum);
        add_group(R, C, a, k + 16 + (size_t)line * 4, high, sum);
    }
}

INLINE void add_lines(const int R, const int C, const int8_t *const *a, size_t k,
                      const uint8_t *const *lines, __m512i (*sum)[TILE_PANELS])
{
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        __m512i w[TILE_PANELS];
#pragma GCC unroll 2
        for (int c = 0; c < C; c++)
            w[c] = _mm512_loadu_si512(lines[c] + g * CPU_LINE_BYTES);
        add_group(R, C, a, k + (size_t)g * 4, w, sum);
    }
}

/* One block of the chains of one row and one panel. */
INLINE void chain_block(const enum kind kind, enum cpu_form form, const uint8_t *scales,
                        __m512i sum, float da, int32_t s, float *chain_at)
{
    __m512 chain = _mm512_loadu_ps(chain_at), act = _mm512_set1_ps(da);
    if (kind == KIND_NIBBLE) {
        __m512i pair = form == CPU_FORM_E32_PAIR
                           ? _mm512_loadu_si512(scales)
                           : _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)scales));
        chain = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_madd_epi16(sum, pair)), act, chain);
    } else if (kind == KIND_BYTE) {
        __m512 d = form == CPU_FORM_BYTE_HALF
                       ? _mm512_cvtph_ps(_mm256_loadu_si256((const void *)scales))
                       : _mm512_loadu_ps(scales);
        chain = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, act), chain);
    } else {
        __m512 d = _mm512_loadu_ps(scales), c = _mm512_loadu_ps(scales + 64);
        sum = _mm512_srai_epi32(_mm512_slli_epi32(sum, 16), 16);
        c = _mm512_mul_ps(c, _mm512_set1_ps((float)s));
        chain = _mm512_fmadd_ps(_mm512_fmadd_ps(d, _mm512_cvtepi32_ps(sum), c), act, chain);
    }
    _mm512_storeu_ps(chain_at, chain);
}

INLINE void tile_blocks(const int R, const int C, const enum kind kind, const bool planes,
                        const struct tile *t)
{
    const bool bytes = kind == KIND_BYTE;
    const int8_t *row[TILE_ROWS]; /* row starts: the rest are offsets common to all rows */
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        row[r] = cpu_acts_a(t->acts, t->row + (size_t)r);
    for (size_t b = 0; b < t->blocks; b++) {
        size_t block = t->block + b, at = block * KERN_BLOCK;
        size_t at_da = t->acts->cols + block * sizeof(float);
        size_t at_v0 = at_da + t->acts->cols / 8, at_s = at_da + t->acts->cols / 4;
        const uint8_t *record[TILE_PANELS], *plane[TILE_PANELS];
        __m512i sum[TILE_ROWS][TILE_PANELS];
#pragma GCC unroll 2
        for (int c = 0; c < C; c++) {
            record[c] = t->records[c] + b * t->record_bytes;
            plane[c] = planes ? t->planes[c] + b * PLANE_BYTES : record[c];
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            /* -128 s is made of vectors: of so many scalars the compiler kept some on the stack */
            __m512i start = _mm512_set1_epi32(load_i32(row[r] + (bytes ? at_s : at_v0)));
            if (bytes)
                start = _mm512_sub_epi32(_mm512_set1_epi32(0), _mm512_slli_epi32(start, 7));
#pragma GCC unroll 2
            for (int c = 0; c < C; c++)
                sum[r][c] = start;
        }
        if (bytes || planes)
            add_lines(R, C, row, at, plane, sum);
        else
            add_nibbles(R, C, row, at, record, sum);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            float da = mathf_from_bits((uint32_t)load_i32(row[r] + at_da));
            int32_t s = kind == KIND_WILD ? load_i32(row[r] + at_s) : 0;
#pragma GCC unroll 2
            for (int c = 0; c < C; c++)
                chain_block(kind, t->form, record[c] + (bytes ? CPU_BYTE_BYTES : CPU_NIBBLE_BYTES),
                            sum[r][c], da, s, t->chain + (r * TILE_PANELS + c) * CPU_PANEL);
        }
    }
}

/* The compiler needs R and C as constants, to keep the sums in registers. */
INLINE void tile_rows(size_t rows, const int C, const enum kind kind, const bool planes,
                      const struct tile *t)
{
    switch (rows) {
    case 1:
        tile_blocks(1, C, kind, planes, t);
        break;
    case 2:
        tile_blocks(2, C, kind, planes, t);
        break;
    case 3:
        tile_blocks(3, C, kind, planes, t);
        break;
    case 4:
        tile_blocks(4, C, kind, planes, t);
        break;
    case 5:
        tile_blocks(5, C, kind, planes, t);
        break;
    case 6:
        tile_blocks(6, C, kind, planes, t);
        break;
    default:
        tile_blocks(TILE_ROWS, C, kind, planes, t);
        break;
    }
}

static void nibble_one(size_t rows, const struct tile *t)
{
    tile_rows(rows, 1, KIND_NIBBLE, false, t);
}

static void nibble_two(size_t rows, const struct tile *t)
{
    tile_rows(rows, 2, KIND_NIBBLE, false, t);
}

static void nibble_one_planes(size_t rows, const struct tile *t)
{
    tile_rows(rows, 1, KIND_NIBBLE, true, t);
}

static void nibble_two_planes(size_t rows, const struct tile *t)
{
    tile_rows(rows, 2, KIND_NIBBLE, true, t);
}

static void byte_one(size_t rows, const struct tile *t)
{
    tile_rows(rows, 1, KIND_BYTE, false, t);
}

static void byte_two(size_t rows, const struct tile *t)
{
    tile_rows(rows, 2, KIND_BYTE, false, t);
}

/* Rows of wild scales are rare: one height and one panel at a time do. */
static void wild_one(size_t rows, const struct tile *t)
{
    (void)rows;
    tile_blocks(1, 1, KIND_WILD, false, t);
}

static enum kind kind_of(enum cpu_form form)
{
    if (form == CPU_FORM_E32_FLOAT)
        return KIND_WILD;
    return cpu_form_is_e32(form) ? KIND_NIBBLE : KIND_BYTE;
}

/* [kind][planes][panels - 1] */
static void (*const tiles[][2][TILE_PANELS])(size_t rows, const struct tile *t) = {
    [KIND_NIBBLE] = {{nibble_one, nibble_two}, {nibble_one_planes, nibble_two_planes}},
    [KIND_BYTE] = {{byte_one, byte_two}, {NULL, NULL}},
    [KIND_WILD] = {{wild_one, NULL}, {NULL, NULL}},
};

static void unpack(const uint8_t *records, size_t record_bytes, size_t blocks, uint8_t *planes)
{
    const __m512i mask = _mm512_set1_epi8(15);
    for (size_t b = 0; b < blocks; b++, records += record_bytes, planes += PLANE_BYTES) {
        for (size_t i = 0; i < CPU_NIBBLE_BYTES; i += 64) {
            __m512i w = _mm512_loadu_si512(records + i);
            _mm512_storeu_si512(planes + i, _mm512_and_si512(w, mask));
            _mm512_storeu_si512(planes + CPU_NIBBLE_BYTES + i,
                                _mm512_and_si512(_mm512_srli_epi16(w, 4), mask));
        }
    }
}

/* `rows` rows over 1 or 2 panels of one form. */
static void panels_int8(const struct cpu_linear_call *call, const struct cpu_panel *panel,
                        size_t panels, size_t row, size_t rows)
{
    _Alignas(64) float chain[CHUNK_ROWS][TILE_PANELS][CPU_PANEL];
    _Alignas(64) uint8_t planes[TILE_PANELS][CHUNK_BLOCKS * PLANE_BYTES];
    memset(chain, 0, rows * sizeof(chain[0]));
    enum kind kind = kind_of(panel[0].form);
    bool direct = kind != KIND_NIBBLE || rows <= DIRECT_ROWS;
    size_t step = direct ? panel[0].blocks : CHUNK_BLOCKS;
    for (size_t b = 0; b < panel[0].blocks; b += step) {
        size_t blocks = panel[0].blocks - b < step ? panel[0].blocks - b : step;
        struct tile t = {.form = panel[0].form,
                         .record_bytes = panel[0].record_bytes,
                         .acts = &call->acts,
                         .block = b,
                         .blocks = blocks};
        for (size_t c = 0; c < panels; c++) {
            t.records[c] = panel[c].records + b * panel[c].record_bytes;
            t.planes[c] = planes[c];
            if (!direct)
                unpack(t.records[c], panel[c].record_bytes, blocks, planes[c]);
        }
        size_t tallest = kind == KIND_WILD ? 1 : TILE_ROWS, count = (rows + tallest - 1) / tallest;
        for (size_t i = 0, done = 0; i < count; i++) {
            size_t height = (rows - done) / (count - i);
            t.row = row + done;
            t.chain = &chain[done][0][0];
            tiles[kind][!direct][panels - 1](height, &t);
            done += height;
        }
    }
    for (size_t c = 0; c < panels; c++)
        cpu_avx512_store(call, &panel[c], row, rows, chain[0][c], TILE_PANELS * CPU_PANEL);
}

static void chunk_int8(const struct cpu_linear_call *call, size_t row, size_t rows)
{
    for (size_t p = call->panel_begin; p < call->panel_end;) {
        struct cpu_panel pair[TILE_PANELS];
        pair[0] = cpu_weights_panel(call->weights, p);
        size_t panels = 1;
        if (p + 1 < call->panel_end) {
            pair[1] = cpu_weights_panel(call->weights, p + 1);
            panels += pair[1].form == pair[0].form && pair[0].form != CPU_FORM_E32_FLOAT;
        }
        panels_int8(call, pair, panels, row, rows);
        p += panels;
    }
}

static void linear(const struct cpu_linear_call *call)
{
    bool int8 = call->acts.compute == KERN_COMPUTE_INT8;
    size_t step = int8 ? CHUNK_ROWS : 96;
    for (size_t row = call->rows.begin; row < call->rows.end; row += step) {
        size_t rows = call->rows.end - row < step ? call->rows.end - row : step;
        if (int8) {
            chunk_int8(call, row, rows);
            continue;
        }
        for (size_t p = call->panel_begin; p < call->panel_end; p++) {
            struct cpu_panel panel = cpu_weights_panel(call->weights, p);
            CPU_AVX512_NAME(cpu_avx512_panel_f32)(call, &panel, row, rows);
        }
    }
}

extern const struct cpu_linear_ops CPU_AVX512_NAME(cpu_linear_ops_avx512vnni);
const struct cpu_linear_ops CPU_AVX512_NAME(cpu_linear_ops_avx512vnni) = {
    .quantise = cpu_avx2_quantise,
    .norm_quantise = cpu_avx2_norm_quantise,
    .silu_mul_quantise = cpu_avx2_silu_mul_quantise,
    .norm = cpu_avx2_norm,
    .linear = linear,
};
