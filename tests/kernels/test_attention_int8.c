/* The int8 KV cache: a row's scale and bytes against the definition and its bounds, the layout to the byte, plain C against
 * AVX2 at the extremes, attention against the same in double, and what becomes of values that are not finite. */
#include "kernels/cpu/attention_int8.h"

#include "tests/test.h"

static uint32_t state = 1;

static float noise(void) /* about [-1, 1] */
{
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

static const struct cpu_attention_kernels *fast(void)
{
    return cpu_attention_kernels_for(cpu_isa_detect());
}

/* --- the write --- */

enum { PAGE = 32, DIM_MAX = 256, KV_HEADS = 2 };

struct page {
    int8_t k[KV_HEADS * DIM_MAX * PAGE], v[KV_HEADS * DIM_MAX * PAGE];
    uint16_t k_scales[KV_HEADS * PAGE], v_scales[KV_HEADS * PAGE];
};

/* One row of KV_HEADS heads to `token`, by the plain and the fast kernel: two equal pages, all of it. `turn`: with RoPE. */
static const struct page *row_write(const float *k, const float *v, uint32_t dim, uint32_t token)
{
    static struct page pages[2];
    const struct cpu_attention_kernels *kernels[2] = {&cpu_attention_plain, fast()};
    memset(pages, 0x5a, sizeof pages);
    for (int i = 0; i < 2; i++) {
        float turned[KV_HEADS * DIM_MAX], none = 0;
        memcpy(turned, k, KV_HEADS * dim * sizeof *k);
        struct cpu_rope_row row = {.cos = &none,
                                   .sin = &none,
                                   .head_dim = dim,
                                   .kv_heads = KV_HEADS,
                                   .page_tokens = PAGE,
                                   .token = token,
                                   .k = turned,
                                   .v = v,
                                   .k_page = pages[i].k,
                                   .v_page = pages[i].v,
                                   .k_scales = pages[i].k_scales,
                                   .v_scales = pages[i].v_scales};
        kernels[i]->rope_kv[KERN_KV_INT8](&row);
    }
    CHECK(memcmp(&pages[0], &pages[1], sizeof pages[0]) == 0);
    return &pages[0];
}

static int8_t k_byte(const struct page *page, uint32_t dim, uint32_t head, uint32_t token,
                     uint32_t i)
{
    return page->k[(size_t)head * dim * PAGE + (token / 16 * dim + i / 2 * 2) * 16 +
                   token % 16 * 2 + i % 2];
}

static int8_t v_byte(const struct page *page, uint32_t dim, uint32_t head, uint32_t token,
                     uint32_t i)
{
    uint32_t group = i / 16 * 16, width = dim - group < 16 ? dim - group : 16;
    return page->v[(size_t)head * dim * PAGE + group * PAGE + token / 2 * width * 2 + i % 16 * 2 +
                   token % 2];
}

/* A scale is the smallest bfloat16 that is not below amax / 127 (as a float), and each value is off by half a step at most. */
static void row_check(const float *x, const int8_t *q, uint32_t count, uint16_t scale)
{
    float amax = 0;
    for (uint32_t i = 0; i < count; i++)
        amax = __builtin_fabsf(x[i]) > amax ? __builtin_fabsf(x[i]) : amax;
    float step = amax / 127, d = kv_int8_scale_value(scale);
    CHECK_MSG(d >= step && kv_int8_scale_value((uint16_t)(scale - 1)) < step,
              "scale %04x (%a) for amax %a", scale, (double)d, (double)amax);
    bool full = false;
    for (uint32_t i = 0; i < count; i++) {
        double off = (double)x[i] - (double)q[i] * (double)d;
        off = off < 0 ? -off : off;
        CHECK_MSG(q[i] >= -127 && off <= (double)d * 0.50002, "%a became %d of %a", (double)x[i],
                  q[i], (double)d);
        full |= q[i] >= 126 || q[i] <= -126;
    }
    CHECK(full); /* rounding the scale up costs at most one step of 127 */
}

TEST(attention_int8, rows_keep_their_bounds)
{
    static const uint32_t dims[] = {2, 8, 20, 24, 64, 96, 128, 256};
    for (size_t n = 0; n < sizeof dims / sizeof dims[0]; n++)
        for (int exponent = -98; exponent < 127; exponent += 3) {
            uint32_t dim = dims[n], token = (uint32_t)(exponent + 98) % PAGE;
            float k[KV_HEADS * DIM_MAX], v[KV_HEADS * DIM_MAX];
            float power = mathf_from_bits((uint32_t)(exponent + 127) << 23);
            for (uint32_t i = 0; i < KV_HEADS * dim; i++) {
                k[i] = power * noise();
                v[i] = power * noise();
            }
            for (uint32_t h = 0; h < KV_HEADS; h++) /* not all of a head tiny */
                k[h * dim] = v[h * dim + 1] = power * (1.5f + 0.25f * noise());
            const struct page *page = row_write(k, v, dim, token);
            for (uint32_t h = 0; h < KV_HEADS; h++) {
                int8_t q[DIM_MAX];
                for (uint32_t i = 0; i < dim; i++)
                    q[i] = k_byte(page, dim, h, token, i);
                row_check(k + h * dim, q, dim, page->k_scales[h * PAGE + token]);
                for (uint32_t i = 0; i < dim; i++)
                    q[i] = v_byte(page, dim, h, token, i);
                row_check(v + h * dim, q, dim, page->v_scales[h * PAGE + token]);
            }
        }
}

/* Every power of two and its neighbours, each rounding of the scale. */
TEST(attention_int8, scales_at_every_boundary)
{
    for (uint32_t top = 0x0d800000u; top < 0x7f800000u; top += 0x8000u)
        for (uint32_t near = 0; near < 3; near++) {
            uint32_t bits = top + near - 1;
            float amax = mathf_from_bits(bits), step = amax / 127;
            uint16_t scale = kv_int8_scale(bits);
            if (amax < KV_INT8_AMAX_MIN) {
                CHECK_INT(scale, 0);
                continue;
            }
            CHECK(kv_int8_scale_value(scale) >= step &&
                  kv_int8_scale_value((uint16_t)(scale - 1)) < step);
            float most = mathf_rint(amax * kv_int8_inverse(scale));
            CHECK_MSG(most == 127 || most == 126, "amax %a gives %g", (double)amax, (double)most);
        }
}

TEST(attention_int8, rows_write_their_own_bytes_alone)
{
    static const uint32_t dims[] = {6, 64, 96};
    for (size_t n = 0; n < sizeof dims / sizeof dims[0]; n++)
        for (uint32_t token = 0; token < PAGE; token++) {
            uint32_t dim = dims[n];
            float k[KV_HEADS * DIM_MAX], v[KV_HEADS * DIM_MAX];
            for (uint32_t i = 0; i < KV_HEADS * dim; i++)
                k[i] = v[i] = i % dim ? 0 : 1; /* the first value of a head 127 or 126, others 0 */
            const struct page *page = row_write(k, v, dim, token);
            size_t changed = 0;
            for (size_t i = 0; i < sizeof page->k; i++)
                changed += (page->k[i] != 0x5a) + (page->v[i] != 0x5a);
            CHECK_INT(changed, 2 * KV_HEADS * dim);
            for (uint32_t i = 0; i < KV_HEADS * PAGE; i++) {
                CHECK((page->k_scales[i] != 0x5a5a) == (i % PAGE == token));
                CHECK((page->v_scales[i] != 0x5a5a) == (i % PAGE == token));
            }
            for (uint32_t h = 0; h < KV_HEADS; h++)
                for (uint32_t i = 0; i < dim; i++) {
                    CHECK(k_byte(page, dim, h, token, i) >= (i ? 0 : 126));
                    CHECK(v_byte(page, dim, h, token, i) >= (i ? 0 : 126));
                    CHECK(i == 0 || k_byte(page, dim, h, token, i) == 0);
                }
        }
}

TEST(attention_int8, rows_that_are_nothing_or_not_finite)
{
    const float infinity = __builtin_inff();
    const struct {
        float value;
        uint16_t scale;
    } cases[] = {
        {0.0f, 0},
        {-0.0f, 0},
        {0x1p-149f, 0},
        {0x1.fffffep-101f, 0},
        {0x1p-100f, 0x0a02}, /* 2^-100 / 127, rounded up */
        {infinity, KV_INT8_NAN},
        {-infinity, KV_INT8_NAN},
        {__builtin_nanf(""), KV_INT8_NAN},
        {mathf_from_bits(0xff812345u), KV_INT8_NAN},
        {0x1.fffffep+127f, 0x7c02}, /* the largest float */
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (uint32_t at = 0; at < 24; at += 23) { /* in a vector, and in what is left of it */
            float k[KV_HEADS * 26] = {0}, v[KV_HEADS * 26] = {0};
            k[at] = cases[c].value;
            v[26 + at] = cases[c].value;
            const struct page *page = row_write(k, v, 26, 3);
            CHECK_MSG(page->k_scales[3] == cases[c].scale, "case %zu: %04x", c, page->k_scales[3]);
            CHECK_INT(page->v_scales[PAGE + 3], cases[c].scale);
            CHECK(page->k_scales[PAGE + 3] == 0 && page->v_scales[3] == 0);
            bool some = cases[c].scale != 0 && cases[c].scale != KV_INT8_NAN;
            for (uint32_t i = 0; i < 26; i++)
                CHECK((k_byte(page, 26, 0, 3, i) != 0) == (some && i == at));
        }
}

/* --- attention --- */

struct cache {
    uint32_t dim, page_tokens, pages;
    uint8_t *pool;
    uint32_t blocks[64];
    struct cpu_attention_tile tile;
};

/* Pages in descending order, all bytes 0xff: NaN scales. */
static void cache_init(struct cache *cache, uint32_t dim, uint32_t page_tokens, uint32_t positions)
{
    size_t values = (size_t)dim * page_tokens, page_bytes = 2 * values + 4 * page_tokens;
    cache->dim = dim;
    cache->page_tokens = page_tokens;
    cache->pages = (positions + page_tokens - 1) / page_tokens;
    CHECK(cache->pages <= 64);
    cache->pool = aligned_alloc(64, (page_bytes * cache->pages + 63) / 64 * 64);
    memset(cache->pool, 0xff, page_bytes * cache->pages);
    for (uint32_t i = 0; i < cache->pages; i++)
        cache->blocks[i] = cache->pages - 1 - i;
    size_t scratch = (cpu_attention_scratch_floats(dim) * sizeof(float) + 63) / 64 * 64;
    cache->tile =
        (struct cpu_attention_tile){.head_dim = dim,
                                    .page_tokens = page_tokens,
                                    .scale = 1.0f / __builtin_sqrtf((float)dim),
                                    .blocks = cache->blocks,
                                    .k = cache->pool,
                                    .v = cache->pool + values,
                                    .k_scales = cache->pool + 2 * values,
                                    .v_scales = cache->pool + 2 * values + 2 * page_tokens,
                                    .page_bytes = page_bytes,
                                    .scratch = aligned_alloc(64, scratch)};
    memset(cache->tile.scratch, 0xff, scratch);
}

static void cache_finish(struct cache *cache)
{
    free(cache->pool);
    free(cache->tile.scratch);
}

/* Writes K and V [dim] at `position` as the engine does. */
static void cache_put(struct cache *cache, uint32_t position, const float *k, const float *v)
{
    uint64_t page = cache->blocks[position / cache->page_tokens] * cache->tile.page_bytes;
    float turned[DIM_MAX], none = 0;
    memcpy(turned, k, cache->dim * sizeof *k);
    struct cpu_rope_row row = {.cos = &none,
                               .sin = &none,
                               .head_dim = cache->dim,
                               .kv_heads = 1,
                               .page_tokens = cache->page_tokens,
                               .token = position % cache->page_tokens,
                               .k = turned,
                               .v = v,
                               .k_page = (uint8_t *)cache->tile.k + page,
                               .v_page = (uint8_t *)cache->tile.v + page,
                               .k_scales = (uint8_t *)cache->tile.k_scales + page,
                               .v_scales = (uint8_t *)cache->tile.v_scales + page};
    fast()->rope_kv[KERN_KV_INT8](&row);
}

/* Attention of `rows` rows from `position` on by both kernels, which must agree; out [rows][group][dim]. */
static void cache_attend(struct cache *cache, const float *q, uint32_t rows, uint32_t group,
                         uint32_t position, float *out)
{
    size_t floats = (size_t)rows * group * cache->dim;
    float *other = malloc(floats * sizeof *other);
    struct cpu_attention_tile tile = cache->tile;
    tile.q = q;
    tile.rows = rows;
    tile.group = group;
    tile.position = position;
    tile.row_stride = (size_t)group * cache->dim;
    tile.out = out;
    cpu_attention_plain.tile[KERN_KV_INT8](&tile);
    tile.out = other;
    fast()->tile[KERN_KV_INT8](&tile);
    for (size_t i = 0; i < floats; i++)
        CHECK_MSG(memcmp(&out[i], &other[i], sizeof(float)) == 0 ||
                      (out[i] != out[i] && other[i] != other[i]),
                  "value %zu is %a, expected %a", i, (double)other[i], (double)out[i]);
    free(other);
}

/* The exact attention over the floats that were written, in double. */
static void attend_exact(const float *q, float (*k)[DIM_MAX], float (*v)[DIM_MAX], uint32_t dim,
                         uint32_t count, double *out)
{
    double max = -1e300, total = 0, scores[512];
    memset(out, 0, dim * sizeof *out);
    for (uint32_t j = 0; j < count; j++) {
        scores[j] = 0;
        for (uint32_t i = 0; i < dim; i++)
            scores[j] += (double)q[i] * (double)k[j][i];
        scores[j] /= __builtin_sqrt((double)dim);
        max = scores[j] > max ? scores[j] : max;
    }
    for (uint32_t j = 0; j < count; j++) {
        double e = scores[j] - max > -600 ? mathf_exp_f64(scores[j] - max) : 0;
        total += e;
        for (uint32_t i = 0; i < dim; i++)
            out[i] += e * (double)v[j][i];
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] /= total;
}

/* The error is that of the quantised rows: K and V made of steps that fit exactly come out as exact as floats do. */
TEST(attention_int8, is_softmax_of_what_is_stored)
{
    enum { DIM = 64, POSITIONS = 200 };
    static float k[POSITIONS][DIM_MAX], v[POSITIONS][DIM_MAX], out[3 * DIM];
    for (int exact = 0; exact < 2; exact++) {
        struct cache cache;
        cache_init(&cache, DIM, 32, POSITIONS);
        for (uint32_t p = 0; p < POSITIONS; p++) {
            for (uint32_t i = 0; i < DIM; i++) {
                k[p][i] = exact ? (float)(int)(127 * noise()) / 64 : 2 * noise();
                v[p][i] = exact ? (float)(int)(127 * noise()) / 128 : noise();
            }
            if (exact) { /* scales of 1/64 and 1/128 exactly */
                k[p][p % DIM] = 127.0f / 64;
                v[p][(p + 1) % DIM] = -127.0f / 128;
            }
            cache_put(&cache, p, k[p], v[p]);
        }
        float q[3 * DIM];
        for (uint32_t i = 0; i < 3 * DIM; i++)
            q[i] = 3 * noise();
        double worst = 0;
        for (uint32_t position = 0; position < POSITIONS; position += 33) {
            cache_attend(&cache, q, 1, 3, position, out);
            for (uint32_t g = 0; g < 3; g++) {
                double want[DIM];
                attend_exact(q + g * DIM, k, v, DIM, position + 1, want);
                for (uint32_t i = 0; i < DIM; i++) {
                    double off = want[i] - (double)out[g * DIM + i];
                    off = off < 0 ? -off : off;
                    worst = off > worst ? off : worst;
                }
            }
        }
        fprintf(stderr, "# %s: greatest error %.2e\n", exact ? "exact steps" : "any values", worst);
        CHECK_MSG(worst < (exact ? 2e-4 : 2e-2), "greatest error %g", worst);
        cache_finish(&cache);
    }
}

/* The largest sums there are: |S| = 32767 x 127 x 256 and 32767 x 127 x 64 fit; a wrap would change the sign. */
TEST(attention_int8, greatest_sums_fit)
{
    static float one[3 * DIM_MAX], minus[DIM_MAX], out[3 * DIM_MAX];
    struct cache cache;
    cache_init(&cache, DIM_MAX, 64, 64);
    for (uint32_t i = 0; i < 3 * DIM_MAX; i++)
        one[i] = 127;
    for (uint32_t i = 0; i < DIM_MAX; i++)
        minus[i] = -127;
    for (uint32_t p = 0; p < 64; p++)
        cache_put(&cache, p, one, minus);
    cache_attend(&cache, one, 1, 1, 63, out);
    for (uint32_t i = 0; i < DIM_MAX; i++)
        CHECK_MSG(out[i] > -127.01f && out[i] < -126.99f, "value %u is %g", i, (double)out[i]);
    cache_attend(&cache, one, 3, 1, 61, out);
    for (uint32_t i = 0; i < 3 * DIM_MAX; i++)
        CHECK_MSG(out[i] > -127.01f && out[i] < -126.99f, "value %u is %g", i, (double)out[i]);
    /* positions against the query must not win */
    for (uint32_t p = 0; p < 32; p++)
        cache_put(&cache, p, minus, one);
    cache_attend(&cache, one, 1, 1, 63, out);
    CHECK(out[0] > -127.01f && out[0] < -126.99f);
    cache_finish(&cache);
}

/* Weights far apart, scales that vanish, queries that vanish, all in one block. */
TEST(attention_int8, variants_agree_at_extremes)
{
    enum { DIM = 64, POSITIONS = 150 };
    for (uint32_t seed = 0; seed < 40; seed++) {
        struct cache cache;
        cache_init(&cache, DIM, 16u << seed % 4, POSITIONS);
        for (uint32_t p = 0; p < POSITIONS; p++) {
            float k[DIM], v[DIM];
            float k_size = mathf_from_bits((uint32_t)(127 + (int)(8 * noise())) << 23);
            float v_size =
                mathf_from_bits((uint32_t)(127 + (int)((seed % 5 * 15 + 1) * noise())) << 23);
            for (uint32_t i = 0; i < DIM; i++) {
                k[i] = p % 11 == seed % 11 ? 0 : k_size * noise();
                v[i] = seed % 7 == 3 ? 0 : v_size * noise();
            }
            cache_put(&cache, p, k, v);
        }
        static float q[7 * 3 * DIM], out[7 * 3 * DIM];
        for (uint32_t i = 0; i < 7 * 3 * DIM; i++)
            q[i] = i / DIM == seed % 5 ? 0 : (float)(1 + seed % 9) * noise();
        cache_attend(&cache, q, 7, 3, POSITIONS - 7 - seed, out);
        for (uint32_t i = 0; i < 7 * 3 * DIM; i++)
            CHECK(out[i] == out[i]);
        cache_finish(&cache);
    }
}

TEST(attention_int8, not_finite_reaches_who_reads_it_alone)
{
    enum { DIM = 32, POSITIONS = 100 };
    static float q[DIM], row[DIM], bad[DIM], out[DIM];
    for (int which = 0; which < 3; which++) {
        struct cache cache;
        cache_init(&cache, DIM, 32, POSITIONS);
        for (uint32_t i = 0; i < DIM; i++)
            q[i] = bad[i] = row[i] = noise();
        bad[5] = which == 2 ? 0 : __builtin_inff();
        for (uint32_t p = 0; p < POSITIONS; p++)
            cache_put(&cache, p, p == 70 && which == 0 ? bad : row,
                      p == 70 && which == 1 ? bad : row);
        cache_attend(&cache, q, 1, 1, 69, out); /* in its block, before it */
        CHECK(out[0] == out[0]);
        for (uint32_t position = 70; position < 100; position += 29) {
            cache_attend(&cache, q, 1, 1, position, out);
            for (uint32_t i = 0; i < DIM; i++)
                CHECK_INT(out[i] != out[i], which < 2);
        }
        /* of several rows at once: those that see it, and one whose query is not finite */
        static float rows[9 * 2 * DIM], outs[9 * 2 * DIM];
        for (uint32_t i = 0; i < 9 * 2 * DIM; i++)
            rows[i] = i == 3 * DIM + 7 ? __builtin_inff() : noise();
        cache_attend(&cache, rows, 9, 2, 66, outs);
        for (uint32_t i = 0; i < 9 * 2 * DIM; i++)
            CHECK_INT(outs[i] != outs[i], (which < 2 && i / (2 * DIM) >= 4) || i / DIM == 3);
        q[3] = __builtin_nanf("");
        cache_attend(&cache, q, 1, 1, 20, out);
        for (uint32_t i = 0; i < DIM; i++)
            CHECK(out[i] != out[i]);
        cache_finish(&cache);
    }
}
