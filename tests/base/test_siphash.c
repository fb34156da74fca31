#include "base/siphash.h"
#include "tests/test.h"

/* Of `openssl mac -macopt hexkey:000102…0f -macopt size:16 SIPHASH` over the bytes 0, 1, 2, … */
TEST(siphash, equals_openssl)
{
    static const struct {
        size_t bytes;
        const char *hex;
    } rows[] = {{0, "A3817F04BA25A8E66DF67214C7550293"},
                {1, "DA87C1D86B99AF44347659119B22FC45"},
                {15, "5493E99933B0A8117E08EC0F97CFC3D9"},
                {16, "6EE2A4CA67B054BBFD3315BF85230577"},
                {63, "5150D1772F50834A503E069A973FBD7C"}};
    uint8_t key[SIPHASH_KEY_BYTES], data[64], out[SIPHASH_BYTES];
    for (uint8_t i = 0; i < sizeof data; i++)
        data[i] = i;
    memcpy(key, data, sizeof key);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char hex[2 * SIPHASH_BYTES + 1];
        siphash(key, data, rows[r].bytes, out);
        for (int i = 0; i < SIPHASH_BYTES; i++)
            snprintf(hex + 2 * i, 3, "%02X", out[i]);
        CHECK_STR(hex, rows[r].hex);
    }
}
