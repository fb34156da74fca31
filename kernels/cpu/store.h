/* Memory for what a device keeps until it is closed, its weights: taken piece by piece, given back all at once, and laid
 * on huge pages. A decode step reads every weight once, in order; with pages of 4 KiB each of them costs a walk through
 * the page tables and ends what the processor's prefetcher follows, which took a third of the read bandwidth.
 *
 * Owner: one thread at a time; what was taken is anybody's. */
#ifndef BATON_KERNELS_CPU_STORE_H
#define BATON_KERNELS_CPU_STORE_H

#include "kernels/cpu/numa.h"

struct cpu_store_chunk;

/* Zero-initialised: empty, and wherever the system puts it. */
struct cpu_store {
    const struct cpu_nodes *nodes;  /* where; or NULL */
    struct cpu_store_chunk *chunks; /* the newest first */
};

/* `bytes` > 0 of zeros at a multiple of 64; NULL when there is no memory. */
void *cpu_store_take(struct cpu_store *store, size_t bytes);
/* Gives back all that was taken. */
void cpu_store_finish(struct cpu_store *store);

#endif
