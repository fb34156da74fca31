/* Where memory lies on a host of several memory nodes: near the processors that compute. With all of those on one node, there; with
 * some on several, spread over them page by page, since every thread reads all of it. A node that is full is no error: then
 * memory comes from another.
 *
 *     cpus ── sysfs: cpuN/nodeM ─▶ cpu_nodes ── mbind(2) ─▶ a range that nobody has written to yet
 *
 * A host of one memory node has nothing to choose; there, and where the system does not say, nothing is done.
 *
 * Owner: the thread that opens the device; fixed afterwards. */
#ifndef BATON_KERNELS_CPU_NUMA_H
#define BATON_KERNELS_CPU_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/cpus.h"

enum { CPU_NODES_MAX = 64 };

/* Zero-initialised: nothing to choose. */
struct cpu_nodes {
    unsigned of_host; /* memory nodes that the host has */
    uint64_t wanted;  /* bit i: node i has one of the processors */
};

/* Those of `cpus`, or when that is empty of all processors that this process may run on. `sysfs`: the folder with cpu/ and node/;
 * NULL: the system's own. */
void cpu_nodes_find(const struct cpu_list *cpus, const char *sysfs, struct cpu_nodes *nodes_out);

/* What is first written of the range from now on lies there. `data` at a multiple of the system's page. True: the system has taken
 * it; false: there was nothing to choose, or it may not be chosen here. */
bool cpu_nodes_place(const struct cpu_nodes *nodes, void *data, size_t bytes);

#endif
