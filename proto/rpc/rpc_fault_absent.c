/* See rpc_fault.h: what production builds have of it. */
#include "proto/rpc/rpc_fault.h"

enum status rpc_fault_start(struct rpc *rpc, const char *path, struct faults *faults,
                            struct err *err)
{
    (void)rpc;
    (void)path;
    (void)faults;
    return err_set(err, STATUS_UNIMPLEMENTED, "faults: this build injects none (-Dfaults=true)");
}
