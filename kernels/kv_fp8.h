/* FP8 as a type of the KV cache: its arithmetic in plain C. A definition only (docs/NUMERICS.md, "KV cache, FP8"): no
 * backend stores it yet, and `--kv-type fp8` is refused.
 *
 * The format is E4M3 of the OCP's "OFP8" (Micikevicius et al. 2022): a sign, 4 bits of exponent (bias 7), 3 of fraction; no
 * infinity, one NaN of each sign.
 *
 *     s eeee fff     0 0000 000   zero                  0 0000 001   2^-9, the smallest denormal
 *                    0 0001 000   2^-6, normal          0 1111 110   448, the largest
 *                    0 1111 111   NaN
 *
 * Owner: any thread; no state. */
#ifndef BATON_KERNELS_KV_FP8_H
#define BATON_KERNELS_KV_FP8_H

#include <stdint.h>

/* To nearest, ties to even; a finite value beyond 448 becomes 448 with its sign; NaN and infinities become NaN with their
 * sign, so that a row that is not finite still fails whoever reads it. */
uint8_t kern_kv_fp8_encode(float x);
/* Exact. NaN: quiet, with the sign. */
float kern_kv_fp8_decode(uint8_t code);

#endif
