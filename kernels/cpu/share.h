/* How workers share the panels of a product. Each has a run of its own, so that it reads memory in order and the same part of it in
 * every step, and takes it from the front, less and less at a time; who has nothing left takes from the back of the fullest. So all
 * end within the time of `least` panels, however unequal their cores are or however late one wakes.
 *
 *     worker 0's run                      worker 1's
 *     |taken by 0 ──▶ ...... ◀── taken by 1|taken by 1 ─────────▶|
 *
 * Owner: init by the stream's thread before the job; take by any worker. */
#ifndef BATON_KERNELS_CPU_SHARE_H
#define BATON_KERNELS_CPU_SHARE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CPU_SHARE_RUNS = 64 }; /* at most; of more workers several have one together */

struct cpu_share {
    unsigned count;
    uint32_t least; /* panels taken at a time, if there are so many */
    struct {
        _Alignas(64) _Atomic uint64_t left; /* begin, end << 32 */
    } runs[CPU_SHARE_RUNS];
};

static inline void cpu_share_init(struct cpu_share *share, uint32_t panels, unsigned workers,
                                  uint32_t least)
{
    share->count = workers < CPU_SHARE_RUNS ? workers : CPU_SHARE_RUNS;
    share->least = least;
    for (uint64_t i = 0; i < share->count; i++) {
        uint64_t begin = panels * i / share->count, end = panels * (i + 1) / share->count;
        atomic_init(&share->runs[i].left, begin | end << 32);
    }
}

static inline uint32_t cpu_share_left(const struct cpu_share *share, unsigned run)
{
    uint64_t left = atomic_load_explicit(&share->runs[run].left, memory_order_relaxed);
    return (uint32_t)(left >> 32) - (uint32_t)left;
}

/* A quarter of what is left of a run, from its front or its back; false: nothing. */
static inline bool cpu_share_cut(struct cpu_share *share, unsigned run, bool front,
                                 uint32_t *begin_out, uint32_t *end_out)
{
    _Atomic uint64_t *at = &share->runs[run].left;
    uint64_t left = atomic_load_explicit(at, memory_order_relaxed);
    for (;;) {
        uint32_t begin = (uint32_t)left, end = (uint32_t)(left >> 32), rest = end - begin;
        if (rest == 0)
            return false;
        uint32_t take = rest / 4 > share->least ? rest / 4 : share->least;
        take = take < rest ? take : rest;
        *begin_out = front ? begin : end - take;
        *end_out = *begin_out + take;
        uint64_t then = front ? (uint64_t)*end_out | (uint64_t)end << 32
                              : (uint64_t)begin | (uint64_t)*begin_out << 32;
        if (atomic_compare_exchange_weak_explicit(at, &left, then, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    }
}

/* The worker's next panels [begin, end); false: all are taken. */
static inline bool cpu_share_take(struct cpu_share *share, unsigned worker, uint32_t *begin_out,
                                  uint32_t *end_out)
{
    unsigned own = worker % share->count;
    if (cpu_share_cut(share, own, true, begin_out, end_out))
        return true;
    for (;;) {
        unsigned fullest = own;
        for (unsigned i = 0; i < share->count; i++)
            if (cpu_share_left(share, i) > cpu_share_left(share, fullest))
                fullest = i;
        if (fullest == own) /* empty, and so are all */
            return false;
        if (cpu_share_cut(share, fullest, false, begin_out, end_out))
            return true;
    }
}

#endif
