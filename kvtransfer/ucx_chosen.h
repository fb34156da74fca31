/* What UCX has really chosen, in its own words, so that a transport that was required and is not used is an error and not a
 * slow surprise. Inside kvtransfer only.
 * Owner: the loop thread, at start. */
#ifndef BATON_KVTRANSFER_UCX_CHOSEN_H
#define BATON_KVTRANSFER_UCX_CHOSEN_H

#include <ucp/api/ucp.h>

#include "base/err.h"
#include "kvtransfer/xfer.h"

/* OK when everything that this context can use is of the transport (`device` for the message). CONFIG: names what UCX has
 * instead, "tcp/eth0". */
enum status ucx_chosen_check(ucp_context_h context, enum xfer_transport transport,
                             const char *device, struct err *err);
/* Whether a resource, as UCX names it ("rc_verbs/mlx5_0:1"), belongs to a transport. Pure. */
bool ucx_chosen_is(enum xfer_transport transport, const char *resource);

#endif
