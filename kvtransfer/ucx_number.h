/* How many endpoints this worker has opened to each worker that it ever met. UCX counts the same (`conn_sn`) and joins the
 * endpoints of one number on both sides. Where the two counts differ (one side called in vain), each side's endpoint gets what was
 * left of the other's earlier one: that dies within a keepalive, and so does the next, and the link never stays up. So the number
 * is what two sides agree on (it is the link's epoch), and who has counted less catches up.
 *
 * Grows by one entry for each worker ever met, and forgets none, as UCX does. Owner: the loop thread. */
#ifndef BATON_KVTRANSFER_UCX_NUMBER_H
#define BATON_KVTRANSFER_UCX_NUMBER_H

#include <stdint.h>
#include <ucp/api/ucp.h>

#include "base/err.h"

struct ucx_numbers {
    struct ucx_number *slots; /* [size], open addressing */
    uint32_t size, used;      /* size: 0 or a power of two */
};

/* Takes the number of the endpoint that the caller opens next, with these parameters: `*number_inout` or, where as many were
 * opened already, the first free one. `peer_checksum` is that of the peer's address and stands for its worker.
 * AGAIN: the number is far ahead, a part of the way is done; MEMORY. */
enum status ucx_number_take(struct ucx_numbers *numbers, uint64_t peer_checksum,
                            ucp_worker_h worker, const ucp_ep_params_t *params,
                            uint32_t *number_inout, struct err *err);
void ucx_numbers_free(struct ucx_numbers *numbers);

#endif
