/* The fixed chains: close to the true functions, special values, and equal on vectors. libm in double is the yardstick. */
#include "tests/test.h"

#include <math.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/mathf.h"
#include "tests/kernels/mathf_vectors.h"

/* Distance from the true value in units in the last place of float. */
static double ulps(float actual, double exact)
{
    if ((float)exact == actual)
        return 0;
    int exponent;
    frexp(exact, &exponent);
    double unit = ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
    return fabs((double)actual - exact) / unit;
}

TEST(mathf, exp_close)
{
    double worst = 0;
    for (float x = -104.0f; x < 88.72f; x += 0.00037f * (float)test_thin())
        worst = fmax(worst, ulps(mathf_exp(x), exp((double)x)));
    CHECK_MSG(worst < 1.5, "exp is off by %g ulp", worst);
}

TEST(mathf, exp_ends)
{
    CHECK(mathf_exp(0.0f) == 1.0f);
    CHECK(mathf_exp(-0.0f) == 1.0f);
    CHECK(mathf_exp(88.8f) == INFINITY);
    CHECK(mathf_exp(INFINITY) == INFINITY);
    CHECK(mathf_exp(-104.5f) == 0.0f);
    CHECK(mathf_exp(-INFINITY) == 0.0f);
    CHECK(mathf_exp(-103.0f) == 0x1p-149f);
    CHECK(isnan(mathf_exp(NAN)));
}

TEST(mathf, silu)
{
    double worst = 0;
    for (float x = -80.0f; x < 80.0f; x += 0.00031f * (float)test_thin())
        worst = fmax(worst, ulps(mathf_silu(x), (double)x / (1.0 + exp(-(double)x))));
    CHECK_MSG(worst < 3.5, "silu is off by %g ulp", worst);
    CHECK(mathf_silu(0.0f) == 0.0f);
    CHECK(mathf_silu(-200.0f) == 0.0f);
    CHECK(mathf_silu(200.0f) == 200.0f);
}

TEST(mathf, log_close)
{
    double worst = 0;
    for (uint32_t bits = 1; bits < 0x7f800000u; bits += 9973 * test_thin())
        worst =
            fmax(worst, ulps(mathf_log(mathf_from_bits(bits)), log((double)mathf_from_bits(bits))));
    CHECK_MSG(worst < 0.501, "log is off by %g ulp", worst);
    CHECK(mathf_log(1.0f) == 0.0f);
    CHECK(mathf_log(0.0f) == -INFINITY);
    CHECK(mathf_log(INFINITY) == INFINITY);
    CHECK(isnan(mathf_log(-1.0f)) && isnan(mathf_log(NAN)));
}

TEST(mathf, sin_cos_close)
{
    double worst = 0;
    for (float x = -3000.0f; x < 140000.0f;
         x += (x < 100.0f ? 0.0017f : 0.37f) * (float)test_thin()) {
        worst = fmax(worst, ulps(mathf_sin(x), sin((double)x)));
        worst = fmax(worst, ulps(mathf_cos(x), cos((double)x)));
    }
    CHECK_MSG(worst < 0.501, "sin or cos is off by %g ulp", worst);
    CHECK(mathf_sin(0.0f) == 0.0f && mathf_cos(0.0f) == 1.0f);
}

TEST(mathf, pow_close)
{
    static const float bases[] = {10000.0f, 100000.0f, 500000.0f, 1000000.0f, 2.0f, 0.3f};
    double worst = 0;
    for (size_t b = 0; b < 6; b++)
        for (int i = -128; i <= 128; i++)
            worst = fmax(worst, ulps(mathf_pow(bases[b], (float)i / 64.0f),
                                     pow((double)bases[b], (double)((float)i / 64.0f))));
    CHECK_MSG(worst < 0.501, "pow is off by %g ulp", worst);
}

TEST(mathf, rsqrt)
{
    CHECK(mathf_rsqrt(4.0f) == 0.5f);
    CHECK(mathf_rsqrt(3.0f) == 1.0f / sqrtf(3.0f));
}

/* The vector twins that can run here, up to two. */
static int vector_sets(mathf_test_vectors **sets_out)
{
    int count = 0;
#if defined(__x86_64__)
    if (cpu_isa_detect() >= CPU_ISA_AVX2)
        sets_out[count++] = mathf_test_avx2;
    sets_out[count++] = mathf_test_avx512_emulated;
#elif defined(__aarch64__)
    sets_out[count++] = mathf_test_neon;
#endif
    return count;
}

/* Every 509th float: all exponents, both signs, infinities, NaNs. */
TEST(mathf, vectors_equal)
{
    mathf_test_vectors *sets[2];
    int count = vector_sets(sets);
    if (count == 0)
        TEST_SKIP("no instruction set of this processor has twins");
    for (uint64_t start = 0; start < 1ull << 32; start += 509 * 16 * test_thin()) {
        float x[16], exps[16], silus[16];
        for (uint64_t i = 0; i < 16; i++)
            x[i] = mathf_from_bits((uint32_t)(start + i * 509));
        for (int set = 0; set < count; set++) {
            sets[set](x, exps, silus);
            for (int i = 0; i < 16; i++) {
                float e = mathf_exp(x[i]), s = mathf_silu(x[i]);
                CHECK_MSG(mathf_bits(e) == mathf_bits(exps[i]) || (isnan(e) && isnan(exps[i])),
                          "set %d: exp(%a) is %a, expected %a", set, (double)x[i], (double)exps[i],
                          (double)e);
                CHECK_MSG(mathf_bits(s) == mathf_bits(silus[i]) || (isnan(s) && isnan(silus[i])),
                          "set %d: silu(%a) is %a, expected %a", set, (double)x[i],
                          (double)silus[i], (double)s);
            }
        }
    }
}
