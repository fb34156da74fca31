/* What the host has to offer, asked before UCX is, so that an error names the device and what is missing. Inside
 * kvtransfer only.
 * Owner: the loop thread, at start. */
#ifndef BATON_KVTRANSFER_UCX_DEVICE_H
#define BATON_KVTRANSFER_UCX_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* An RDMA device with an active port, "mlx5_0:1" in `device_out`; else `why_out` says what is missing. `wanted` names a
 * device ("mlx5_0" or "mlx5_0:1"), or a network interface, and then any device will do. */
bool ucx_device_rdma(const char *wanted, char *device_out, size_t device_bytes, char *why_out,
                     size_t why_bytes);
/* CONFIG unless `name` is a network interface that is up and has an address. */
enum status ucx_device_interface(const char *name, struct err *err);

#endif
