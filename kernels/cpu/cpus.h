/* Which processors the compute threads keep to: a list such as "0-3,8", thread i on the i-th of it. For nodes that share a
 * host, and for hosts of several memory nodes, where a thread that wanders loses its caches.
 *
 * Owner: the thread that opens the device; fixed afterwards. */
#ifndef BATON_KERNELS_CPU_CPUS_H
#define BATON_KERNELS_CPU_CPUS_H

#include <stdint.h>

#include "base/err.h"

enum { CPU_LIST_MAX = 1024 };

struct cpu_list {
    unsigned count; /* 0: threads go where the system puts them */
    uint16_t ids[CPU_LIST_MAX];
};

/* Numbers and ranges in ascending or any order, each processor once, all of them among those that this process may run on; NULL
 * or "": an empty list. Otherwise STATUS_CONFIG, and the message names `cpus` and what is wrong. */
enum status cpu_list_parse(const char *text, struct cpu_list *list_out, struct err *err);

/* Puts the calling thread on the list's processor `thread`; does nothing when the list is empty. A processor that was taken
 * away since leaves the thread where it is. `thread` < count unless that is 0. */
void cpu_list_pin(const struct cpu_list *list, unsigned thread);

#endif
