/* What the host has to offer, asked before UCX is, so that an error names the device and what is missing. Inside
 * kvtransfer only.
 * Owner: the loop thread, at start. */
#ifndef BATON_KVTRANSFER_UCX_DEVICE_H
#define BATON_KVTRANSFER_UCX_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "kvtransfer/xfer.h"

/* An RDMA device with an active port, "mlx5_0:1" in `device_out`; else `why_out` says what is missing. `wanted` names a
 * device ("mlx5_0" or "mlx5_0:1"), or a network interface, and then any device will do. */
bool ucx_device_rdma(const char *wanted, char *device_out, size_t device_bytes, char *why_out,
                     size_t why_bytes);
/* CONFIG unless `name` is a network interface that is up and has an address. */
enum status ucx_device_interface(const char *name, struct err *err);

struct ucx_choice {
    enum xfer_transport transport;
    char device[56]; /* fits a description */
};

/* What to ask UCX for. CONFIG: a required one is absent; names the device, the port's state and what is missing. `why_out` (may
 * be NULL): what `auto` did not find, "" when it found RDMA. On the loopback it does not look: between processes of one
 * host TCP is the one that bears their deaths best. */
enum status ucx_device_choose(enum xfer_transport wanted, const char *interface,
                              struct ucx_choice *choice_out, char *why_out, size_t why_bytes,
                              struct err *err);

#endif
