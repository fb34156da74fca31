/* Makes memory real before it is written. What mmap gives is taken from the system, and zeroed, at the first write: by whoever
 * writes first, which for the KV pool is the compute thread in a step and the loop that takes in pages from another node. There
 * it cost a third of the time of a step while a long prompt arrived. So a thread of the lowest priority goes ahead of them, in
 * the order in which pages are given out, and never takes more than a quarter of a processor; who is faster than it finds the
 * memory as the system left it.
 *
 *     begin ──▶ [ 2 MiB │ 2 MiB │ … ]  one after another ──▶ the end, or end() was called, or memory gets scarce
 *
 * Owner: whoever made it; the thread is its own. */
#ifndef BATON_KERNELS_CPU_PREFAULT_H
#define BATON_KERNELS_CPU_PREFAULT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cpu_prefault {
    uint8_t *data; /* [bytes], whole pages of a private mapping; stays until _end */
    size_t bytes;
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    _Atomic size_t done_bytes; /* how far it has come */
};

/* Nothing is promised: without memory for a thread, or on a kernel that cannot, all stays as it was. */
void cpu_prefault_begin(struct cpu_prefault *prefault, void *data, size_t bytes);
/* Waits for the piece that is under way, or for its rest: a tenth of a second. May be called without, and after, _begin; not twice at once. */
void cpu_prefault_end(struct cpu_prefault *prefault);

#endif
