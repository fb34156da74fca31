/* See numa.h. The two numbers of mbind's policies are the kernel's own (linux/mempolicy.h); libnuma would be a package for one
 * call. */
#include "kernels/cpu/numa.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PREFERRED = 1, INTERLEAVE = 3 };

static bool has_node(const char *sysfs, unsigned cpu, unsigned node)
{
    char path[512];
    snprintf(path, sizeof path, "%s/cpu/cpu%u/node%u", sysfs, cpu, node);
    return access(path, F_OK) == 0;
}

/* Bit i: the host has memory node i. */
static uint64_t nodes_of_host(const char *sysfs)
{
    char path[512];
    uint64_t nodes = 0;
    snprintf(path, sizeof path, "%s/node", sysfs);
    DIR *folder = opendir(path);
    if (!folder)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        unsigned node;
        char rest;
        if (sscanf(entry->d_name, "node%u%c", &node, &rest) == 1 && node < CPU_NODES_MAX)
            nodes |= UINT64_C(1) << node;
    }
    closedir(folder);
    return nodes;
}

void cpu_nodes_find(const struct cpu_list *cpus, const char *sysfs, struct cpu_nodes *nodes_out)
{
    *nodes_out = (struct cpu_nodes){0};
    if (!sysfs)
        sysfs = "/sys/devices/system";
    uint64_t host = nodes_of_host(sysfs);
    nodes_out->of_host = (unsigned)__builtin_popcountll(host);
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned i = 0; i < cpus->count; i++)
        CPU_SET(cpus->ids[i], &set);
    if (!cpus->count && sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    for (unsigned cpu = 0; cpu < CPU_LIST_MAX; cpu++) {
        if (!CPU_ISSET(cpu, &set))
            continue;
        for (uint64_t left = host; left; left &= left - 1) {
            unsigned node = (unsigned)__builtin_ctzll(left);
            if (has_node(sysfs, cpu, node)) {
                nodes_out->wanted |= UINT64_C(1) << node;
                break;
            }
        }
    }
}

bool cpu_nodes_place(const struct cpu_nodes *nodes, void *data, size_t bytes)
{
    if (nodes->of_host < 2 || !nodes->wanted)
        return false;
    bool several = nodes->wanted & (nodes->wanted - 1);
    uint64_t mask = nodes->wanted;
    /* the number of bits is one more than the kernel looks at */
    return syscall(SYS_mbind, data, bytes, several ? INTERLEAVE : PREFERRED, &mask,
                   (unsigned long)CPU_NODES_MAX + 1, 0ul) == 0;
}
