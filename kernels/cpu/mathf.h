/* The functions that libm would give, as fixed chains of fused multiply-adds, additions, multiplications, divisions and
 * square roots, each correctly rounded. glibc picks variants of its own at run time and so may change an answer from one
 * machine to the next; these cannot. docs/NUMERICS.md ("Functions") lists each chain with its constants.
 *
 * The float ones (exp, silu, rsqrt) have vector twins in mathf_avx2.h and mathf_avx512.h that do the same operations in the
 * same order. The others (log, pow, sin, cos) are for tables and single values: they compute in double and round once to
 * float at the end, so they are right to about half a unit in the last place.
 * Owner: any thread; no state. */
#ifndef BATON_KERNELS_CPU_MATHF_H
#define BATON_KERNELS_CPU_MATHF_H

#include <stdint.h>
#include <string.h>

#define MATHF_EXP_MAX 89.0f     /* above, e^x is infinite */
#define MATHF_EXP_MIN (-104.0f) /* below, e^x rounds to 0 */
#define MATHF_MAGIC \
    12582912.0f /* 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to nearest even */
#define MATHF_LOG2E 0x1.715476p+0f  /* 1/ln 2 */
#define MATHF_LN2_HIGH 0x1.62e0p-1f /* 14 bits of ln 2, so that n * high is exact */
#define MATHF_LN2_LOW 0x1.0bfbe8p-15f
/* e^r = 1 + r + r^2 q(r), |r| <= ln2/2; a minimax fit, relative error 3.1e-9 before rounding */
#define MATHF_EXP_Q0 0x1.fffffcp-2f
#define MATHF_EXP_Q1 0x1.555492p-3f
#define MATHF_EXP_Q2 0x1.5558f2p-5f
#define MATHF_EXP_Q3 0x1.1239e2p-7f
#define MATHF_EXP_Q4 0x1.6a2434p-10f
/* 2^r = 1 + r (P1 + r (P2 + ...)), |r| <= 1/2; a minimax fit, relative error 2.8e-6 */
#define MATHF_EXP2_P1 0x1.62e12cp-1f
#define MATHF_EXP2_P2 0x1.ec0378p-3f
#define MATHF_EXP2_P3 0x1.c9fc4cp-5f
#define MATHF_EXP2_P4 0x1.3a02d2p-7f

static inline uint32_t mathf_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float mathf_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* True unless x is NaN or an infinity. */
static inline int mathf_is_finite(float x)
{
    return (mathf_bits(x) & 0x7f800000u) != 0x7f800000u;
}

/* Rounds to the nearest integer, ties to even; |x| < 2^22. */
static inline float mathf_rint(float x)
{
    return (x + MATHF_MAGIC) - MATHF_MAGIC;
}

/* e^x. NaN gives NaN; results below the normal range are denormal, correctly scaled. */
static inline float mathf_exp(float x)
{
    x = MATHF_EXP_MAX < x ? MATHF_EXP_MAX : x;
    x = MATHF_EXP_MIN > x ? MATHF_EXP_MIN : x;
    float shifted = __builtin_fmaf(x, MATHF_LOG2E, MATHF_MAGIC);
    float n = shifted - MATHF_MAGIC;
    float r = __builtin_fmaf(n, -MATHF_LN2_HIGH, x);
    r = __builtin_fmaf(n, -MATHF_LN2_LOW, r);
    float q = __builtin_fmaf(MATHF_EXP_Q4, r, MATHF_EXP_Q3);
    q = __builtin_fmaf(q, r, MATHF_EXP_Q2);
    q = __builtin_fmaf(q, r, MATHF_EXP_Q1);
    q = __builtin_fmaf(q, r, MATHF_EXP_Q0);
    float r2 = r * r;
    float p = __builtin_fmaf(q, r2, r) + 1.0f;
    /* times 2^n in two exact halves, so that n = 128 and denormal results come out right */
    uint32_t n_int = mathf_bits(shifted) - mathf_bits(MATHF_MAGIC);
    uint32_t half = (uint32_t)((int32_t)n_int >> 1);
    uint32_t rest = n_int - half;
    return p * mathf_from_bits((half + 127u) << 23) * mathf_from_bits((rest + 127u) << 23);
}

/* 2^r for |r| <= 1/2, off by 3e-6 of it at most; of 0 it is 1. */
static inline float mathf_exp2_half(float r)
{
    float p = __builtin_fmaf(MATHF_EXP2_P4, r, MATHF_EXP2_P3);
    p = __builtin_fmaf(p, r, MATHF_EXP2_P2);
    p = __builtin_fmaf(p, r, MATHF_EXP2_P1);
    return __builtin_fmaf(p, r, 1.0f);
}

/* x / (1 + e^-x). */
static inline float mathf_silu(float x)
{
    return x / (1.0f + mathf_exp(-x));
}

/* 1/sqrt(x): a correctly rounded square root, then a correctly rounded division. */
static inline float mathf_rsqrt(float x)
{
    return 1.0f / __builtin_sqrtf(x);
}

/* ---- double chains, for tables and single values ---- */

/* Rounds to the nearest integer, ties to even; |x| < 2^51. */
static inline double mathf_rint_f64(double x)
{
    return (x + 0x1.8p+52) - 0x1.8p+52;
}

/* e^x in double, |x| < 700 (not checked): Taylor to r^13 on |r| <= ln2/2. */
static inline double mathf_exp_f64(double x)
{
    double n = mathf_rint_f64(x * 0x1.71547652b82fep+0);
    double r = __builtin_fma(n, -0x1.62e42fefa2000p-1, x);
    r = __builtin_fma(n, -0x1.9ef35793c7673p-41, r);
    double p = 1.0 / 6227020800.0; /* 1/13! */
    static const double factorial[] = {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0,
                                       5040.0,      720.0,      120.0,     24.0,     6.0,
                                       2.0,         1.0,        1.0};
    for (int i = 0; i < 13; i++)
        p = __builtin_fma(p, r, 1.0 / factorial[i]);
    uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

/* ln x in double for finite, normal x > 0 (not checked): x = m 2^e, m in [sqrt(1/2), sqrt 2); with s = (m-1)/(m+1),
 * ln m = 2 (s + s^3/3 + ... + s^21/21). */
static inline double mathf_log_f64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int64_t e = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof(m));
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        e += 1;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 1.0 / 21.0;
    for (int i = 19; i >= 1; i -= 2)
        p = __builtin_fma(p, z, 1.0 / (double)i);
    double low = __builtin_fma((double)e, 0x1.9ef35793c7673p-41, 2.0 * s * p);
    return __builtin_fma((double)e, 0x1.62e42fefa2000p-1, low);
}

/* ln x. 0 gives -infinity, a negative or NaN x gives NaN. Denormals are exact in double, hence normal there. */
static inline float mathf_log(float x)
{
    if (!(x > 0.0f))
        return x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
    if (!mathf_is_finite(x))
        return x;
    return (float)mathf_log_f64((double)x);
}

/* base^exponent for finite base > 0 and |exponent * ln base| < 700 (not checked): RoPE's frequencies. */
static inline float mathf_pow(float base, float exponent)
{
    return (float)mathf_exp_f64((double)exponent * mathf_log_f64((double)base));
}

/* sin and cos of a finite float, |x| < 2^30 (not checked). The angle is reduced by pi/2 in double (pi/2 as a sum of two
 * doubles), then Taylor series to r^17 and r^16 on |r| <= pi/4. */
static inline void mathf_sincos(float x, float *sin_out, float *cos_out)
{
    double n = mathf_rint_f64((double)x * 0x1.45f306dc9c883p-1);
    double r = __builtin_fma(n, -0x1.921fb54442d18p+0, (double)x);
    r = __builtin_fma(n, -0x1.1a62633145c07p-54, r);
    double z = r * r;
    double s = 1.0 / 355687428096000.0; /* 1/17! */
    s = __builtin_fma(s, z, -1.0 / 1307674368000.0);
    s = __builtin_fma(s, z, 1.0 / 6227020800.0);
    s = __builtin_fma(s, z, -1.0 / 39916800.0);
    s = __builtin_fma(s, z, 1.0 / 362880.0);
    s = __builtin_fma(s, z, -1.0 / 5040.0);
    s = __builtin_fma(s, z, 1.0 / 120.0);
    s = __builtin_fma(s, z, -1.0 / 6.0);
    s = __builtin_fma(s * z, r, r);
    double c = 1.0 / 20922789888000.0; /* 1/16! */
    c = __builtin_fma(c, z, -1.0 / 87178291200.0);
    c = __builtin_fma(c, z, 1.0 / 479001600.0);
    c = __builtin_fma(c, z, -1.0 / 3628800.0);
    c = __builtin_fma(c, z, 1.0 / 40320.0);
    c = __builtin_fma(c, z, -1.0 / 720.0);
    c = __builtin_fma(c, z, 1.0 / 24.0);
    c = __builtin_fma(c, z, -0.5);
    c = __builtin_fma(c, z, 1.0);
    switch ((int64_t)n & 3) {
    case 0:
        *sin_out = (float)s;
        *cos_out = (float)c;
        break;
    case 1:
        *sin_out = (float)c;
        *cos_out = (float)-s;
        break;
    case 2:
        *sin_out = (float)-s;
        *cos_out = (float)-c;
        break;
    default:
        *sin_out = (float)-c;
        *cos_out = (float)s;
        break;
    }
}

static inline float mathf_sin(float x)
{
    float s, c;
    mathf_sincos(x, &s, &c);
    return s;
}

static inline float mathf_cos(float x)
{
    float s, c;
    mathf_sincos(x, &s, &c);
    return c;
}

#endif
