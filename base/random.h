/* Randomness from the kernel, for incarnations, transfer ids and drawn seeds. Never used for sampling: that generator is
 * counter-based and lives with the sampler.
 * Owner: any thread. */
#ifndef BATON_BASE_RANDOM_H
#define BATON_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

void random_bytes(void *out, size_t bytes);
/* Never 0, so that 0 can mean "none". */
uint64_t random_u64(void);

#endif
