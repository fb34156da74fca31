/* Attention and the RoPE+KV write: every instruction set against the plain definition, to the bit, over shapes; the
 * definition against a straightforward computation in double; half precision against the hardware. */
#include "kernels/cpu/attention.h"

#include "kernels/cpu/half.h"
#include "kernels/cpu/kv_layout.h"
#include "tests/test.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "tests/kernels/emulated.h"
#endif

static uint32_t state = 1;

static float noise(void) /* about [-1, 1] */
{
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

struct shape {
    uint32_t head_dim, group, rows, position, page_tokens;
};

enum { POOL_PAGES = 40 };

static const struct shape shapes[] = {
    {8, 1, 1, 0, 16},    {16, 2, 1, 15, 16},   {32, 3, 5, 60, 16},   {64, 3, 16, 0, 32},
    {64, 3, 1, 511, 32}, {64, 4, 16, 250, 64}, {64, 1, 7, 63, 128},  {128, 8, 3, 127, 64},
    {96, 5, 16, 77, 32}, {64, 7, 2, 128, 128}, {256, 2, 4, 190, 16}, {24, 6, 9, 55, 16},
    {20, 3, 4, 70, 32}, /* not a multiple of eight lanes */
};

static size_t scratch_bytes(uint32_t head_dim)
{
    return (cpu_attention_scratch_floats(head_dim) * sizeof(float) + 63) / 64 * 64;
}

/* One KV head of one layer in `POOL_PAGES` pages; positions beyond the last row hold NaN. */
static struct cpu_attention_tile tile_make(const struct shape *shape, enum kern_kv_type type,
                                           uint8_t **pool_out, uint32_t *blocks, float **q_out)
{
    size_t page_bytes = 2 * shape->page_tokens * (size_t)kern_kv_head_bytes(type, shape->head_dim);
    size_t scales = type == KERN_KV_INT8 ? 2 * shape->page_tokens : 0,
           half = page_bytes / 2 - scales;
    uint8_t *pool = malloc(page_bytes * POOL_PAGES);
    memset(pool, 0xff, page_bytes * POOL_PAGES);
    uint32_t end = shape->position + shape->rows;
    for (uint32_t i = 0; i < POOL_PAGES; i++)
        blocks[i] = POOL_PAGES - 1 - i;
    for (uint32_t p = 0; p < end; p++)
        for (uint32_t d = 0; d < shape->head_dim; d++) {
            uint8_t *page = pool + blocks[p / shape->page_tokens] * page_bytes;
            uint32_t token = p % shape->page_tokens;
            float k = noise(), v = noise();
            if (type == KERN_KV_INT8) {
                int8_t *k8 = (int8_t *)page, *v8 = k8 + half;
                k8[kv_int8_k_index(shape->head_dim, d, token)] = (int8_t)(127 * k);
                v8[kv_int8_v_index(shape->head_dim, shape->page_tokens, token, d)] =
                    (int8_t)(127 * v);
                uint16_t *scale = (uint16_t *)(page + 2 * half);
                scale[token] = (uint16_t)(0x3c00 + p * 37 % 0x80); /* about 1/127 */
                scale[shape->page_tokens + token] = (uint16_t)(0x3b80 + p * 53 % 0x180);
                continue;
            }
            size_t k_at = kv_k_index(shape->head_dim, d, token);
            size_t v_at = kv_v_index(shape->head_dim, shape->page_tokens, token, d);
            if (type == KERN_KV_F16) {
                ((uint16_t *)page)[k_at] = half_from_float(k);
                ((uint16_t *)(page + half))[v_at] = half_from_float(v);
            } else {
                ((float *)page)[k_at] = k;
                ((float *)(page + half))[v_at] = v;
            }
        }
    size_t stride = (size_t)shape->group * shape->head_dim + 3;
    float *q = malloc(shape->rows * stride * sizeof(float));
    for (size_t i = 0; i < shape->rows * stride; i++)
        q[i] = 3 * noise();
    *pool_out = pool;
    *q_out = q;
    return (struct cpu_attention_tile){.q = q,
                                       .row_stride = stride,
                                       .rows = shape->rows,
                                       .group = shape->group,
                                       .position = shape->position,
                                       .head_dim = shape->head_dim,
                                       .page_tokens = shape->page_tokens,
                                       .scale = 1.0f / __builtin_sqrtf((float)shape->head_dim),
                                       .blocks = blocks,
                                       .k = pool,
                                       .v = pool + half,
                                       .k_scales = pool + 2 * half,
                                       .v_scales = pool + 2 * half + scales,
                                       .page_bytes = page_bytes};
}

/* The kernels of this CPU, and AVX-512's over emulated intrinsics, which are slow: with `all`, else in every 16th call. */
static size_t variants(bool all, const struct cpu_attention_kernels *variants_out[5])
{
    size_t count = 0;
    for (int isa = CPU_ISA_PLAIN + 1; isa <= (int)cpu_isa_detect(); isa++) {
        const struct cpu_attention_kernels *kernels =
            cpu_attention_kernels_for((enum cpu_isa_level)isa);
        if (count == 0 || kernels != variants_out[count - 1])
            variants_out[count++] = kernels;
    }
#if defined(__x86_64__)
    static uint32_t calls;
    if (cpu_isa_detect() >= CPU_ISA_AVX2 && (all || calls++ % 16 == 0)) {
        variants_out[count++] = &cpu_attention_avx512_emulated;
        variants_out[count++] = &cpu_attention_avx512vnni_emulated;
    }
#endif
    return count;
}

/* A tile of one row in parts of one to six blocks, the last part first, merged. */
static void tile_in_parts(const struct cpu_attention_kernels *kernels,
                          const struct cpu_attention_tile *whole, enum kern_kv_type type)
{
    struct cpu_attention_tile part = *whole;
    uint32_t count = whole->position / ATTENTION_BLOCK + 1, step = 1 + whole->position % 6;
    uint32_t heads = cpu_attention_row_heads(whole);
    size_t bytes = count * cpu_attention_partial_floats(heads, whole->head_dim) * sizeof(float);
    part.partials = aligned_alloc(64, bytes);
    memset(part.partials, 0xff, bytes);
    for (part.block_end = count; part.block_end > 0; part.block_end = part.block_begin) {
        part.block_begin = part.block_end > step ? part.block_end - step : 0;
        memset(part.scratch, 0xff, scratch_bytes(part.head_dim));
        kernels->tile[type](&part);
    }
    struct cpu_attention_merge merge = {part.partials, part.out, count, heads, part.head_dim};
    kernels->merge(&merge);
    free(part.partials);
}

/* Both kernels over one tile, and a single row in parts as well: equal bits, or NaN in both. `spread` multiplies the queries: scores then lie far apart.
 * `bad` (0: none) is what position 3 holds in place of a value of K and of V. */
static void tile_check(const struct shape *shape, enum kern_kv_type type, float spread, float bad)
{
    uint32_t blocks[POOL_PAGES];
    uint8_t *pool;
    float *q;
    struct cpu_attention_tile tile = tile_make(shape, type, &pool, blocks, &q);
    size_t floats = tile.rows * tile.row_stride;
    for (size_t i = 0; i < floats; i++)
        q[i] *= spread;
    if (bad != 0 && type != KERN_KV_INT8) {
        uint8_t *k = pool + blocks[0] * tile.page_bytes, *v = k + tile.page_bytes / 2;
        size_t k_at = kv_k_index(shape->head_dim, 5, 3),
               v_at = kv_v_index(shape->head_dim, shape->page_tokens, 3, 2);
        if (type == KERN_KV_F16)
            ((uint16_t *)k)[k_at] = ((uint16_t *)v)[v_at] = half_from_float(bad);
        else
            ((float *)k)[k_at] = ((float *)v)[v_at] = bad;
    }
    float *expected = calloc(floats, sizeof(float)), *got = calloc(floats, sizeof(float));
    tile.scratch = aligned_alloc(64, scratch_bytes(tile.head_dim));
    memset(tile.scratch, 0xff, scratch_bytes(tile.head_dim));
    tile.out = expected;
    cpu_attention_plain.tile[type](&tile);
    tile.out = got;
    const struct cpu_attention_kernels *kernels[5];
    size_t count = variants(false, kernels);
    for (size_t pass = 0; pass < 2 * count; pass++) {
        const struct cpu_attention_kernels *variant = kernels[pass / 2];
        memset(got, 0, floats * sizeof(float));
        if (pass % 2 == 0)
            variant->tile[type](&tile);
        else if (tile.rows == 1 && tile.head_dim % 8 == 0 && variant->merge)
            tile_in_parts(variant, &tile, type);
        else
            continue;
        for (size_t i = 0; i < floats; i++)
            CHECK_MSG(memcmp(&expected[i], &got[i], sizeof(float)) == 0 ||
                          (bad != 0 && expected[i] != expected[i] && got[i] != got[i]),
                      "dim %u, group %u, %u rows at %u, pages of %u, type %d, variant %zu%s: value "
                      "%zu is %a, not %a",
                      shape->head_dim, shape->group, shape->rows, shape->position,
                      shape->page_tokens, (int)type, pass / 2, pass % 2 ? ", in parts" : "", i,
                      (double)got[i], (double)expected[i]);
    }
    for (uint32_t r = 0; r < tile.rows && bad == 0; r++)
        CHECK(expected[r * tile.row_stride] == expected[r * tile.row_stride]);
    free(tile.scratch);
    free(expected);
    free(got);
    free(pool);
    free(q);
}

TEST(attention, variants_equal_plain)
{
    if (cpu_isa_detect() == CPU_ISA_PLAIN)
        TEST_SKIP("this CPU has none of the instruction sets");
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int type = 0; type < KERN_KV_TYPE_COUNT; type++)
            tile_check(&shapes[s], (enum kern_kv_type)type, 1, 0);
}

/* One row after 0 to 599 others; groups, heads and pages in turn, queries of all sizes. */
TEST(attention, variants_equal_plain_at_every_length)
{
    if (cpu_isa_detect() == CPU_ISA_PLAIN)
        TEST_SKIP("this CPU has none of the instruction sets");
    static const uint32_t dims[] = {64, 64, 32, 64, 128};
    static const float spreads[] = {1, 20, 0.01f, 60, 500, 1e30f};
    for (uint32_t p = 0; p < 600; p += test_thin()) {
        struct shape shape = {dims[p % 5], 1 + p % 8, 1, p, 16u << p / 8 % 4};
        for (int type = 0; type < KERN_KV_TYPE_COUNT; type++)
            tile_check(&shape, (enum kern_kv_type)type, spreads[p % 6 * (p % 7 < 3)], 0);
    }
}

/* Rows that start and end before, at and behind the edges of blocks, for each size of a group: chunks of heads that lie in
 * one row, and across rows. */
TEST(attention, variants_equal_plain_at_edges)
{
    if (cpu_isa_detect() == CPU_ISA_PLAIN)
        TEST_SKIP("this CPU has none of the instruction sets");
    static const uint32_t positions[] = {0, 47, 48, 49, 62, 63, 64, 113, 127, 128};
    static const uint32_t rows[] = {1, 2, 3, 5, 15, 16};
    uint32_t turn = 0;
    for (uint32_t group = 1; group <= 8; group++)
        for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++)
            for (int type = 0; type < KERN_KV_TYPE_COUNT; type++, turn++) {
                struct shape shape = {turn % 3 ? 32 : 64, group, rows[turn % 6], positions[p],
                                      16u << turn % 4};
                tile_check(&shape, (enum kern_kv_type)type, turn % 5 ? 2 : 100, 0);
            }
}

/* A value that is not finite, or so large that scores are not: NaN where the definition has it, and nowhere else. */
TEST(attention, variants_equal_plain_beside_values_not_finite)
{
    if (cpu_isa_detect() == CPU_ISA_PLAIN)
        TEST_SKIP("this CPU has none of the instruction sets");
    const float bad[] = {__builtin_inff(), -__builtin_inff(), __builtin_nanf(""),
                         mathf_from_bits(0xffffffffu), 65504.0f};
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++)
        for (uint32_t group = 1; group <= 4; group++)
            for (int type = KERN_KV_F32; type <= KERN_KV_F16; type++)
                for (uint32_t rows = 1; rows <= 3; rows += 2) {
                    struct shape shape = {64, group, rows, 150, 32};
                    tile_check(&shape, (enum kern_kv_type)type, 1, bad[b]);
                    tile_check(&shape, (enum kern_kv_type)type, 1e36f, bad[b]);
                }
}

/* A row that takes all KV heads of a layer along, whole and in parts, against its heads one by one as plain C: equal bits, or NaN in
 * both. `spread` multiplies the queries. */
static void heads_check(enum kern_kv_type type, uint32_t kv_heads, uint32_t group, uint32_t dim,
                        uint32_t position, uint32_t page_tokens, float spread)
{
    enum { LAYERS = 2, LAYER = 1 };
    size_t scales = type == KERN_KV_INT8 ? 2 * page_tokens : 0,
           head = page_tokens * (size_t)kern_kv_head_bytes(type, dim) - scales,
           layer = 2 * kv_heads * (head + scales), row = (size_t)kv_heads * group * dim;
    uint32_t pages = position / page_tokens + 1, *blocks = malloc(pages * sizeof *blocks);
    uint8_t *pool = malloc(pages * LAYERS * layer);
    for (size_t i = 0; i < pages * LAYERS * layer; i += 4) {
        float value = noise();
        if (type == KERN_KV_F16) {
            uint16_t both[2] = {half_from_float(value), half_from_float(noise())};
            memcpy(pool + i, both, 4);
        } else if (type == KERN_KV_INT8) {
            uint32_t bits = i % layer < 2 * kv_heads * head
                                ? state & 0x7f7f7f7fu
                                : 0x3c003c00u + (state >> 9 & 0x7f007fu);
            memcpy(pool + i, &bits, 4);
        } else
            memcpy(pool + i, &value, 4);
    }
    for (uint32_t i = 0; i < pages; i++)
        blocks[i] = i / 2 * 2 + 1 - i % 2 < pages ? i / 2 * 2 + 1 - i % 2 : i;
    float *q = malloc(row * sizeof *q), *expected = malloc(row * sizeof *q),
          *got = malloc(row * sizeof *q);
    for (size_t i = 0; i < row; i++)
        q[i] = spread * noise();
    const uint8_t *base = pool + LAYER * layer;
    struct cpu_attention_tile tile = {.q = q,
                                      .out = expected,
                                      .row_stride = row,
                                      .rows = 1,
                                      .group = group,
                                      .position = position,
                                      .head_dim = dim,
                                      .page_tokens = page_tokens,
                                      .scale = 0.125f,
                                      .blocks = blocks,
                                      .k = base,
                                      .v = base + kv_heads * head,
                                      .k_scales = base + 2 * kv_heads * head,
                                      .v_scales = base + kv_heads * (2 * head + scales),
                                      .page_bytes = LAYERS * layer,
                                      .scratch = aligned_alloc(64, scratch_bytes(dim))};
    struct cpu_attention_tile all = tile;
    for (uint32_t h = 0; h < kv_heads; h++) {
        cpu_attention_plain.tile[type](&tile);
        tile.q += group * dim;
        tile.out += group * dim;
        tile.k += head;
        tile.v += head;
        tile.k_scales += scales;
        tile.v_scales += scales;
    }
    all.out = got;
    all.heads_more = kv_heads - 1;
    all.head_bytes = head;
    all.head_scales_bytes = scales;
    all.layer = base;
    all.layer_bytes = layer;
    const struct cpu_attention_kernels *kernels[5];
    size_t count = variants(position < 400 && (position + kv_heads) % 2 == 0, kernels);
    for (size_t pass = 0; pass < 2 * count; pass++) {
        const struct cpu_attention_kernels *variant = kernels[pass / 2];
        if (!variant->heads_together)
            continue;
        memset(got, 0xff, row * sizeof *got);
        memset(all.scratch, 0xff, scratch_bytes(dim));
        if (pass % 2)
            tile_in_parts(variant, &all, type);
        else
            variant->tile[type](&all);
        for (size_t i = 0; i < row; i++)
            CHECK_MSG(
                memcmp(&expected[i], &got[i], sizeof *got) == 0 ||
                    (expected[i] != expected[i] && got[i] != got[i]),
                "%u KV heads x %u of %u at %u, pages of %u, type %d, variant %zu%s: value %zu "
                "is %a, not %a",
                kv_heads, group, dim, position, page_tokens, (int)type, pass / 2,
                pass % 2 ? ", in parts" : "", i, (double)got[i], (double)expected[i]);
    }
    free(all.scratch);
    free(got);
    free(expected);
    free(q);
    free(pool);
    free(blocks);
}

TEST(attention, rows_with_all_heads_equal_their_heads)
{
    if (!cpu_attention_kernels_for(cpu_isa_detect())->heads_together)
        TEST_SKIP("the kernels of this CPU take one KV head at a time");
    static const uint32_t positions[] = {0, 15, 63, 64, 100, 127, 128, 300, 511, 777};
    static const uint32_t dims[] = {64, 32, 96, 8, 64};
    for (uint32_t p = 0; p < sizeof positions / sizeof positions[0]; p++)
        for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads++)
            for (int type = 0; type < KERN_KV_TYPE_COUNT; type++) {
                uint32_t turn = p + kv_heads * 3 + (uint32_t)type;
                heads_check((enum kern_kv_type)type, kv_heads, 1 + turn % 7, dims[turn % 5],
                            positions[p], 16u << turn % 4, 3);
            }
}

/* Four whole blocks go side by side where pages are as long, up to three heads share K and V, and these have sixteens of dimensions (int8:
 * three heads of 64): right before and behind the edges of four blocks, and scores too far apart for the short exponential. */
TEST(attention, long_rows_equal_their_heads)
{
    if (!cpu_attention_kernels_for(cpu_isa_detect())->heads_together)
        TEST_SKIP("the kernels of this CPU take one KV head at a time");
    static const uint32_t positions[] = {254, 255, 256, 319, 500, 511, 767, 1022, 1023, 1300};
    static const uint32_t dims[] = {64, 128, 80, 16, 96, 48, 256};
    for (uint32_t p = 0; p < sizeof positions / sizeof positions[0]; p++)
        for (uint32_t group = 1; group <= 4; group++)
            for (int type = 0; type < KERN_KV_TYPE_COUNT; type++) {
                uint32_t turn = p + group * 3 + (uint32_t)type;
                heads_check((enum kern_kv_type)type, 1 + turn % 3, group, dims[turn % 7],
                            positions[p], 64, 3);
                heads_check((enum kern_kv_type)type, 1 + turn % 3, group, 64, positions[p], 64,
                            300);
                heads_check((enum kern_kv_type)type, 2, group, 64, positions[p], 64, 1e36f);
            }
}

TEST(attention, plain_is_softmax)
{
    const struct shape shape = {64, 1, 3, 150, 32};
    uint32_t blocks[POOL_PAGES];
    uint8_t *pool;
    float *q, out[3 * 67];
    struct cpu_attention_tile tile = tile_make(&shape, KERN_KV_F32, &pool, blocks, &q);
    tile.out = out;
    cpu_attention_plain.tile[KERN_KV_F32](&tile);
    for (uint32_t r = 0; r < 3; r++) {
        double total = 0, sum[64] = {0};
        for (uint32_t p = 0; p <= 150 + r; p++) {
            const uint8_t *page = pool + blocks[p / 32] * tile.page_bytes;
            const float *k = (const float *)page, *v = (const float *)(page + tile.page_bytes / 2);
            double score = 0;
            for (uint32_t d = 0; d < 64; d++)
                score += (double)q[r * 67 + d] * (double)k[kv_k_index(64, d, p % 32)];
            double e = mathf_exp_f64(score / 8);
            total += e;
            for (uint32_t d = 0; d < 64; d++)
                sum[d] += e * (double)v[kv_v_index(64, 32, p % 32, d)];
        }
        for (uint32_t d = 0; d < 64; d++) {
            double error = sum[d] / total - (double)out[r * 67 + d];
            CHECK_MSG(error < 2e-6 && error > -2e-6, "row %u, dim %u: off by %g", r, d, error);
        }
    }
    free(pool);
    free(q);
}

TEST(attention, rope_and_kv_write)
{
    enum { HEADS = 5, KV_HEADS = 2, DIM = 24, PAIRS = 10, PAGE = 16 };
    float cos[PAIRS], sin[PAIRS], q[2][HEADS * DIM], k[2][KV_HEADS * DIM], v[KV_HEADS * DIM];
    for (int i = 0; i < PAIRS; i++)
        mathf_sincos(7.0f * noise(), &sin[i], &cos[i]);
    for (int type = KERN_KV_F32; type <= KERN_KV_F16; type++) { /* int8: test_attention_int8.c */
        static uint8_t pages[2][2][KV_HEADS * DIM * PAGE * 4];
        memset(pages, 0, sizeof pages);
        for (int i = 0; i < HEADS * DIM; i++)
            q[0][i] = q[1][i] = noise();
        for (int i = 0; i < KV_HEADS * DIM; i++) {
            k[0][i] = k[1][i] = 100 * noise();
            v[i] = noise();
        }
        float k_before = k[0][0], k_odd = k[0][1];
        const struct cpu_attention_kernels *kernels[2] = {
            &cpu_attention_plain, cpu_attention_kernels_for(cpu_isa_detect())};
        for (int variant = 0; variant < 2; variant++) {
            struct cpu_rope_row row = {.cos = cos,
                                       .sin = sin,
                                       .pairs = PAIRS,
                                       .head_dim = DIM,
                                       .heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .page_tokens = PAGE,
                                       .token = 9,
                                       .q = q[variant],
                                       .k = k[variant],
                                       .v = v,
                                       .k_page = pages[variant][0],
                                       .v_page = pages[variant][1]};
            kernels[variant]->rope_kv[type](&row);
        }
        CHECK(memcmp(q[0], q[1], sizeof q[0]) == 0);
        CHECK(memcmp(pages[0], pages[1], sizeof pages[0]) == 0);
        double turned = (double)k_before * (double)cos[0] - (double)k_odd * (double)sin[0];
        double error = turned - (double)k[0][0];
        CHECK(error < 1e-4 && error > -1e-4);
        size_t k_at = DIM * PAGE + kv_k_index(DIM, 3, 9), /* head 1, dimension 3 */
            v_at = DIM * PAGE + kv_v_index(DIM, PAGE, 9, 3);
        if (type == KERN_KV_F32) {
            CHECK(((float *)pages[0][0])[k_at] == k[0][DIM + 3]);
            CHECK(((float *)pages[0][1])[v_at] == v[DIM + 3]);
        } else {
            CHECK_INT(((uint16_t *)pages[0][0])[k_at], half_from_float(k[0][DIM + 3]));
            CHECK_INT(((uint16_t *)pages[0][1])[v_at], half_from_float(v[DIM + 3]));
        }
        CHECK(k[0][DIM - 1] == k[1][DIM - 1]); /* beyond the pairs: as it was */
    }
}

/* What the write leaves in a page of two heads, element by element, against docs/NUMERICS.md's layout: each array walked as it is drawn
 * there, so that the order is counted and not computed. */
static void layout_check(const struct cpu_attention_kernels *kernels, enum kern_kv_type type,
                         uint32_t dim, uint32_t page_tokens)
{
    enum { KV_HEADS = 2 };
    size_t head = (size_t)page_tokens * dim, element = type == KERN_KV_F16 ? 2 : 4;
    float *k = malloc(KV_HEADS * head * sizeof *k), *v = malloc(KV_HEADS * head * sizeof *v),
          *turned = malloc(KV_HEADS * dim * sizeof *turned), q[1] = {0};
    uint8_t *page = calloc(2 * KV_HEADS * head, element);
    for (uint32_t j = 0; j < page_tokens; j++) { /* k, v: [position][head][dimension] */
        float *k_row = k + j * KV_HEADS * dim, *v_row = v + j * KV_HEADS * dim;
        for (uint32_t i = 0; i < KV_HEADS * dim; i++) {
            k_row[i] = turned[i] = noise();
            v_row[i] = noise();
        }
        struct cpu_rope_row row = {.head_dim = dim,
                                   .kv_heads = KV_HEADS,
                                   .page_tokens = page_tokens,
                                   .token = j,
                                   .q = q,
                                   .k = turned,
                                   .v = v_row,
                                   .k_page = page,
                                   .v_page = page + KV_HEADS * head * element};
        kernels->rope_kv[type](&row);
    }
    size_t at = 0;
#define NEXT_IS(value)                                                 \
    do {                                                               \
        if (type == KERN_KV_F16)                                       \
            CHECK_INT(((uint16_t *)page)[at], half_from_float(value)); \
        else                                                           \
            CHECK(((float *)page)[at] == (value));                     \
        at++;                                                          \
    } while (0)
    for (uint32_t h = 0; h < KV_HEADS; h++)
        for (uint32_t eight = 0; eight < page_tokens; eight += 8)
            for (uint32_t i = 0; i < dim; i++)
                for (uint32_t j = eight; j < eight + 8; j++)
                    NEXT_IS(k[(j * KV_HEADS + h) * dim + i]);
    for (uint32_t h = 0; h < KV_HEADS; h++)
        for (uint32_t sixteen = 0; sixteen < dim; sixteen += 16)
            for (uint32_t j = 0; j < page_tokens; j++)
                for (uint32_t d = sixteen; d < sixteen + 16 && d < dim; d++)
                    NEXT_IS(v[(j * KV_HEADS + h) * dim + d]);
#undef NEXT_IS
    CHECK_INT(at, 2 * KV_HEADS * head);
    free(page);
    free(turned);
    free(v);
    free(k);
}

TEST(attention, pages_lie_as_documented)
{
    static const uint32_t dims[] = {64, 80, 6}, pages[] = {16, 128};
    const struct cpu_attention_kernels *kernels[] = {&cpu_attention_plain,
                                                     cpu_attention_kernels_for(cpu_isa_detect())};
    for (int d = 0; d < 3; d++)
        for (int p = 0; p < 2; p++)
            for (int type = KERN_KV_F32; type <= KERN_KV_F16; type++)
                for (int k = 0; k < 2; k++)
                    layout_check(kernels[k], (enum kern_kv_type)type, dims[d], pages[p]);
}

TEST(attention, half_round_trip)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = half_to_float((uint16_t)bits);
        uint16_t back = half_from_float(value);
        bool nan = (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff);
        CHECK_MSG(back == bits || (nan && back == (bits | 0x200)), "%04x came back as %04x", bits,
                  back);
    }
    CHECK_INT(half_from_float(65519.0f), 0x7bff);
    CHECK_INT(half_from_float(65520.0f), 0x7c00);
    CHECK_INT(half_from_float(0x1p-25f), 0);   /* a tie, to even */
    CHECK_INT(half_from_float(0x1.8p-24f), 2); /* a tie, to even */
    CHECK_INT(half_from_float(0x1.000002p-25f), 1);
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) static void hardware_compare(void)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = half_to_float((uint16_t)bits), hardware = _cvtsh_ss((uint16_t)bits);
        CHECK(memcmp(&value, &hardware, sizeof value) == 0);
    }
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 1021) {
        float value = mathf_from_bits((uint32_t)bits);
        CHECK_INT(half_from_float(value), (uint16_t)_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
    }
}

TEST(attention, half_equals_hardware)
{
    if (cpu_isa_detect() == CPU_ISA_PLAIN)
        TEST_SKIP("this CPU has no F16C");
    hardware_compare();
}
#elif defined(__aarch64__)
static uint16_t hardware_half(float value)
{
    __fp16 half = (__fp16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

TEST(attention, half_equals_hardware)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t half = (uint16_t)bits;
        __fp16 narrow;
        memcpy(&narrow, &half, sizeof narrow);
        float value = half_to_float(half), hardware = (float)narrow;
        CHECK(memcmp(&value, &hardware, sizeof value) == 0);
    }
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 1021 * test_thin()) {
        float value = mathf_from_bits((uint32_t)bits);
        CHECK_INT(half_from_float(value), hardware_half(value));
    }
}
#endif
