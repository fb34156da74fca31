/* The thread pool of a CPU device: a parallel for over items, run by the calling thread (worker 0) and by workers that
 * join while items remain.
 *
 * Made for two shared cores as well as for many of its own: nobody waits for a worker that has not joined, so a worker
 * that the system does not run delays nothing; whoever waits spins for some microseconds, then sleeps in the kernel.
 * Which worker computes an item never changes a result.
 *
 * Owner: one thread calls cpu_pool_run (the compute stream's). */
#ifndef BATON_KERNELS_CPU_POOL_H
#define BATON_KERNELS_CPU_POOL_H

#include <stdint.h>

#include "kernels/cpu/cpus.h"

struct cpu_pool;

/* `threads` counts the caller: 1 starts none. Worker i keeps to the i-th processor of `cpus`, which may be NULL or empty and is
 * read until the pool is destroyed; the caller, worker 0, pins itself. */
enum status cpu_pool_create(unsigned threads, const struct cpu_list *cpus,
                            struct cpu_pool **pool_out);
void cpu_pool_destroy(struct cpu_pool *pool);
unsigned cpu_pool_threads(const struct cpu_pool *pool); /* NULL: 1 */

/* body(context, item, worker) for each item in 0 … items-1, worker < threads; returns when all are done. NULL: the caller
 * does it alone. */
void cpu_pool_run(struct cpu_pool *pool, uint32_t items,
                  void (*body)(void *context, uint32_t item, unsigned worker), void *context);

#endif
