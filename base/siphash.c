/* See siphash.h. */
#include "base/siphash.h"

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static uint64_t load(const uint8_t *at, size_t bytes)
{
    uint64_t out = 0;
    for (size_t i = 0; i < bytes; i++)
        out |= (uint64_t)at[i] << 8 * i;
    return out;
}

static void rounds(uint64_t v[4], int count)
{
    while (count--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static void word_in(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    rounds(v, 2);
    v[0] ^= word;
}

static void half_out(uint64_t v[4], uint8_t *out)
{
    rounds(v, 4);
    uint64_t half = v[0] ^ v[1] ^ v[2] ^ v[3];
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(half >> 8 * i);
}

void siphash(const uint8_t key[SIPHASH_KEY_BYTES], const void *data, size_t bytes,
             uint8_t out[SIPHASH_BYTES])
{
    const uint8_t *at = data;
    uint64_t k0 = load(key, 8), k1 = load(key + 8, 8);
    uint64_t v[4] = {k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
                     k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573)};
    size_t left = bytes;
    for (; left >= 8; left -= 8, at += 8)
        word_in(v, load(at, 8));
    word_in(v, load(at, left) | (uint64_t)bytes << 56);
    v[2] ^= 0xee;
    half_out(v, out);
    v[1] ^= 0xdd;
    half_out(v, out + 8);
}
