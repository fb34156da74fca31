/* See utf8.h. The table of second-byte ranges is RFC 3629, section 4. */
#include "base/utf8.h"

int utf8_decode(const void *text, size_t bytes, uint32_t *code_point_out)
{
    const uint8_t *s = text;
    if (!bytes)
        return 0;
    uint8_t lead = s[0], low = 0x80, high = 0xbf;
    if (lead < 0x80) {
        *code_point_out = lead;
        return 1;
    }
    int length;
    uint32_t code_point;
    if (lead >= 0xc2 && lead <= 0xdf) {
        length = 2;
        code_point = lead & 0x1f;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        length = 3;
        code_point = lead & 0x0f;
        low = lead == 0xe0 ? 0xa0 : 0x80;
        high = lead == 0xed ? 0x9f : 0xbf;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        length = 4;
        code_point = lead & 0x07;
        low = lead == 0xf0 ? 0x90 : 0x80;
        high = lead == 0xf4 ? 0x8f : 0xbf;
    } else {
        return -1;
    }
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= bytes)
            return 0;
        if (s[i] < low || s[i] > high)
            return -i;
        code_point = code_point << 6 | (s[i] & 0x3f);
        low = 0x80;
        high = 0xbf;
    }
    *code_point_out = code_point;
    return length;
}

size_t utf8_valid_prefix(const void *text, size_t bytes)
{
    const uint8_t *s = text;
    size_t at = 0;
    uint32_t code_point;
    while (at < bytes) {
        int n = s[at] < 0x80 ? 1 : utf8_decode(s + at, bytes - at, &code_point);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    return at;
}

int utf8_encode(uint32_t code_point, uint8_t out[4])
{
    if (code_point < 0x80) {
        out[0] = (uint8_t)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (uint8_t)(0xc0 | code_point >> 6);
        out[1] = (uint8_t)(0x80 | (code_point & 0x3f));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (uint8_t)(0xe0 | code_point >> 12);
        out[1] = (uint8_t)(0x80 | (code_point >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (code_point & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | code_point >> 18);
    out[1] = (uint8_t)(0x80 | (code_point >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (code_point >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (code_point & 0x3f));
    return 4;
}
