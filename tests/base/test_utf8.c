#include "base/utf8.h"
#include "tests/test.h"

/* RFC 3629 and Unicode 15, table 3-7 and section 3.9. */
TEST(utf8, accepts_every_scalar_value_and_round_trips)
{
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        uint8_t bytes[4];
        uint32_t back = 0;
        int n = utf8_encode(c, bytes);
        CHECK_INT(utf8_decode(bytes, (size_t)n, &back), n);
        CHECK_INT(back, c);
        for (int cut = 1; cut < n; cut++)
            CHECK_INT(utf8_decode(bytes, (size_t)cut, &back), 0);
    }
}

TEST(utf8, refuses_what_is_not_shortest_or_not_a_scalar)
{
    static const char *const bad[] = {"\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x80\x80",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xed\xbf\xbf",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\x80",
                                      "\xbf",
                                      "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!utf8_valid(bad[i], strlen(bad[i])));
        uint32_t c;
        CHECK(utf8_decode(bad[i], strlen(bad[i]), &c) < 0);
    }
    uint32_t c;
    CHECK_INT(utf8_decode("\xe1\x80\xe2", 3, &c), -2); /* the maximal subpart is two bytes */
    CHECK_INT(utf8_decode("\xf1\x80\x80 ", 4, &c), -3);
    CHECK_INT(utf8_valid_prefix("ab\xe2\x82", 4), 2);
}
