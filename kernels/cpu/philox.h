/* Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC
 * 2011): the same key and counter give the same numbers on any machine, in any order, without state.
 * Owner: any thread; no state. */
#ifndef BATON_KERNELS_CPU_PHILOX_H
#define BATON_KERNELS_CPU_PHILOX_H

#include <stdint.h>

static inline void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)UINT32_C(0xD2511F53) * c0, p1 = (uint64_t)UINT32_C(0xCD9E8D57) * c2;
        uint32_t next0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, next2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = next0;
        c2 = next2;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Two numbers of 64 bits each, of the token at `position` of answer `n_index`; `block` counts on as long as more are wanted. */
static inline void philox_block(uint64_t seed, uint32_t n_index, uint32_t position, uint32_t block,
                                uint64_t numbers_out[2])
{
    const uint32_t counter[4] = {position, 0, n_index, block};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t word[4];
    philox4x32(counter, key, word);
    for (int i = 0; i < 2; i++)
        numbers_out[i] = (uint64_t)word[2 * i] << 32 | word[2 * i + 1];
}

#endif
