/* The list of the best that the sampler's loops keep.
 * Owner: any compute thread; no state. */
#ifndef BATON_KERNELS_CPU_SAMPLER_BEST_H
#define BATON_KERNELS_CPU_SAMPLER_BEST_H

#include "kernels/cpu/sampler.h"

/* Puts a key into the `have` best, best first, at most `wanted`; returns how many there are. */
static inline uint32_t sampler_best_put(uint64_t key, uint32_t wanted, uint32_t have,
                                        uint64_t *best)
{
    if (have == wanted && key <= best[have - 1])
        return have;
    uint32_t at = have < wanted ? have : have - 1;
    have = at + 1;
    for (; at > 0 && best[at - 1] < key; at--)
        best[at] = best[at - 1];
    best[at] = key;
    return have;
}

#endif
