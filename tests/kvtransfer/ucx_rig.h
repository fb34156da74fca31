/* What test_ucx.c and kv_peer.c share: addresses as text, and what a process holds.
 * Owner: the caller's thread. */
#ifndef BATON_TESTS_KVTRANSFER_UCX_RIG_H
#define BATON_TESTS_KVTRANSFER_UCX_RIG_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kvtransfer/rig.h"

static inline enum xfer_transport ucx_rig_transport(const char *text)
{
    return strcmp(text, "shm") == 0 ? XFER_TRANSPORT_SHM : XFER_TRANSPORT_TCP;
}

static inline void ucx_rig_print_address(struct rig_node *node, FILE *out, const char *word)
{
    size_t bytes;
    const uint8_t *address = xfer_address(node->xfer, &bytes);
    fprintf(out, "%s %llu ", word, (unsigned long long)node->incarnation);
    for (size_t i = 0; i < bytes; i++)
        fprintf(out, "%02x", address[i]);
    fputc('\n', out);
}

static inline struct kv_link *ucx_rig_link(struct rig_node *node, uint64_t incarnation,
                                           const char *hex)
{
    uint8_t address[XFER_ADDRESS_BYTES_MAX];
    struct kv_link_options options = {
        .incarnation = incarnation, .address = address, .address_bytes = strlen(hex) / 2};
    for (size_t i = 0; i < options.address_bytes && i < sizeof address; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        address[i] = (uint8_t)byte;
    }
    struct err err = ERR_INIT;
    struct kv_link *link = NULL;
    if (kv_link_open(node->links, &options, &link, &err))
        fprintf(stderr, "kv_link_open: %s\n", err.message);
    return link;
}

static inline unsigned ucx_rig_fds(void)
{
    unsigned count = 0;
    DIR *fds = opendir("/proc/self/fd");
    while (fds && readdir(fds))
        count++;
    if (fds)
        closedir(fds);
    return count;
}

static inline unsigned ucx_rig_rss_kb(void)
{
    unsigned long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%lu %lu", &total, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return (unsigned)(resident * 4);
}

#endif
