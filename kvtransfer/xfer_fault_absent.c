/* See xfer_fault.h: what production builds have of it. */
#include "kvtransfer/xfer_fault.h"

enum status xfer_fault_create(struct faults *faults, const struct xfer_fault_options *options,
                              enum status (*make)(void *context, const struct xfer_handler *handler,
                                                  struct xfer **xfer_out, struct err *err),
                              void *make_context, const struct xfer_handler *handler,
                              struct xfer **xfer_out, struct err *err)
{
    return err_set(err, STATUS_UNIMPLEMENTED, "faults: this build injects none (-Dfaults=true)");
}
