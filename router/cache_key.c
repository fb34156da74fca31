/* See cache_key.h. */
#include "router/cache_key.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { DIGITS = 2 * PREFIX_KEY_BYTES };

static int digit_value(char digit)
{
    return isdigit((unsigned char)digit)  ? digit - '0'
           : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
           : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                          : -1;
}

static bool parse(const char *text, size_t bytes, uint8_t key_out[PREFIX_KEY_BYTES])
{
    uint8_t key[PREFIX_KEY_BYTES] = {0};
    if (bytes != DIGITS)
        return false;
    for (int i = 0; i < DIGITS; i++) {
        int value = digit_value(text[i]);
        if (value < 0)
            return false;
        key[i / 2] = (uint8_t)(key[i / 2] << 4 | value);
    }
    memcpy(key_out, key, sizeof key);
    return true;
}

enum status cache_key_read(const char *text, uint8_t key_out[PREFIX_KEY_BYTES], struct err *err)
{
    if (parse(text, strlen(text), key_out))
        return STATUS_OK;
    char room[256];
    FILE *file = fopen(text, "rb");
    if (!file)
        return err_set(err, STATUS_CONFIG,
                       "cache_key: \"%.100s\" is neither %d hexadecimal digits nor a file: %s",
                       text, DIGITS, strerror(errno));
    size_t bytes = fread(room, 1, sizeof room, file), begin = 0;
    fclose(file);
    while (bytes && isspace((unsigned char)room[bytes - 1]))
        bytes--;
    while (begin < bytes && isspace((unsigned char)room[begin]))
        begin++;
    if (!parse(room + begin, bytes - begin, key_out))
        return err_set(err, STATUS_CONFIG, "cache_key: %s: must hold %d hexadecimal digits", text,
                       DIGITS);
    return STATUS_OK;
}
