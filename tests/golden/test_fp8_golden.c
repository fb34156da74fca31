/* The FP8 definition: every code, and floats at and around every boundary, against an independent reference (README.md); then
 * floats of all sizes against a search of the nearest code. */
#include "kernels/cpu/mathf.h"
#include "kernels/kv_fp8.h"
#include "tests/golden/golden_file.h"

TEST(fp8_golden, codes_and_boundaries)
{
    struct golden file = golden_open("fp8.bin", "BFP80001");
    for (uint32_t code = 0; code < 256; code++) {
        uint32_t want = golden_u32(&file), got = mathf_bits(kern_kv_fp8_decode((uint8_t)code));
        CHECK_MSG(got == want, "code %02x is %08x, expected %08x", code, got, want);
        CHECK_INT(kern_kv_fp8_encode(mathf_from_bits(want)), code); /* NaN with its sign too */
    }
    uint32_t count = golden_u32(&file);
    CHECK(count > 2000);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = golden_u32(&file), want = *golden_bytes(&file, 1);
        uint32_t got = kern_kv_fp8_encode(mathf_from_bits(bits));
        CHECK_MSG(got == want, "float %08x became %02x, expected %02x", bits, got, want);
    }
    golden_finish(&file);
}

/* One in 65,521 of all floats, so that exponents and fractions of every kind occur. */
TEST(fp8_golden, nearest_of_all_codes)
{
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 65521) {
        float x = mathf_from_bits((uint32_t)bits);
        uint8_t code = kern_kv_fp8_encode(x);
        float value = kern_kv_fp8_decode(code);
        if (!mathf_is_finite(x)) {
            CHECK(value != value && code >> 7 == bits >> 31);
            continue;
        }
        CHECK_INT(code >> 7, bits >> 31);
        double off = __builtin_fabs((double)x - (double)value);
        for (uint32_t other = 0; other < 256; other++) {
            double there = __builtin_fabs((double)x - (double)kern_kv_fp8_decode((uint8_t)other));
            CHECK_MSG(!(there < off), "%a became %02x, %02x is nearer", (double)x, code, other);
        }
    }
}
