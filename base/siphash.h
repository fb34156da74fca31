/* SipHash-2-4 with 128 bits of result: a keyed hash whose results say nothing about the input or each other to whoever does not
 * know the key. (Aumasson, Bernstein: SipHash, a fast short-input PRF, 2012; the 128-bit form as in OpenSSL's SIPHASH.)
 * Pure. Owner: any thread. */
#ifndef BATON_BASE_SIPHASH_H
#define BATON_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

enum { SIPHASH_KEY_BYTES = 16, SIPHASH_BYTES = 16 };

void siphash(const uint8_t key[SIPHASH_KEY_BYTES], const void *data, size_t bytes,
             uint8_t out[SIPHASH_BYTES]);

#endif
