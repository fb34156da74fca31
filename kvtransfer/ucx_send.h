/* A way around one fault of UCX 1.13. While an endpoint wires up, its first messages wait in a queue until the TCP
 * connection is acknowledged. If that connection has been reset by then, sending from within the queue fails, and a check
 * of the queue that Debian's build compiles in (`wireup_ep->pending_count == 0`) ends the process. Nodes that are killed or
 * frozen while others connect to them make such connections, and one death must not bring another. The endpoint may be one
 * that UCX made by itself to answer a peer, so that closing our own in time is no cure.
 *
 * So this file defines `send` for the whole program, which the dynamic linker finds before libc's. It is libc's, but for one
 * case: inside ucp_worker_progress, on a connection that is reset or closed, it says that the bytes were sent, as the kernel
 * itself would have a moment earlier. UCX then learns of the end where it handles it well: when it reads. Bytes lost so
 * are lost as with any death, and the protocol expects that: only D's DONE is a receipt, everything else has a deadline.
 *
 * Owner: the loop thread marks; the mark is the thread's own. */
#ifndef BATON_KVTRANSFER_UCX_SEND_H
#define BATON_KVTRANSFER_UCX_SEND_H

void ucx_send_forgive_begin(void);
void ucx_send_forgive_end(void);

#endif
