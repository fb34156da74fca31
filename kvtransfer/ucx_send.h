/* Ways around four faults of UCX 1.13.
 *
 * The first: while an endpoint wires up, its first messages wait in a queue until the TCP
 * connection is acknowledged. If that connection has been reset by then, sending from within the queue fails, and a check
 * of the queue that Debian's build compiles in (`wireup_ep->pending_count == 0`) ends the process. Nodes that are killed or
 * frozen while others connect to them make such connections, and one death must not bring another. The endpoint may be one
 * that UCX made by itself to answer a peer, so that closing our own in time is no cure.
 *
 * So this file defines `send` for the whole program, which the dynamic linker finds before libc's. It is libc's, but for one
 * case: inside ucp_worker_progress, on a connection that is over, it says that the bytes were sent, as the kernel
 * itself would have a moment earlier. UCX then learns of the end where it handles it well: when it reads. Bytes lost so
 * are lost as with any death, and the protocol expects that: only D's DONE is a receipt, everything else has a deadline.
 *
 * The second: what a peer sent is handled from within UCX's reading of its connection, and the answer to it may go out at once. If
 * sending fails there, UCX lets go of the buffer that it is reading from, and then does so once more: the process ends (seen on a pair
 * whose network was cut one way). Answers with a payload go by `sendmsg`, which this file therefore defines in the same way.
 *
 * The third: a peer asks for a connection and dies at once; UCX's answer waits behind a connect of its own, which fails; the answer
 * is thrown away, and a check of which kinds of message may be thrown away ends the process. UCX 1.14 threw the check out. The
 * function that has it, ucp_request_send_state_ff, is called through the dynamic linker, so this file defines it too and, in front of
 * UCX's own, gives such a message a kind that the check lets pass; nothing else looks at it any more. It does so with 1.13 alone, and only where
 * the message's own function pointer lies where 1.13 keeps it.
 *
 * The fourth: handling what a peer sent may make an endpoint to that peer, which takes over the connection that is being read, and its
 * buffer if more messages lie in it. Who reads lets go of the buffer nevertheless, which it no longer has: the process ends (seen when
 * a node closed all links and its peer went on sending). uct_tcp_ep_replace_ep, which takes over, is called through the dynamic linker: this
 * file's, behind UCX's own, leaves another buffer in place of the one that is gone. With 1.13 alone, too.
 *
 * Owner: the loop thread marks; the mark is the thread's own. */
#ifndef BATON_KVTRANSFER_UCX_SEND_H
#define BATON_KVTRANSFER_UCX_SEND_H

void ucx_send_forgive_begin(void);
void ucx_send_forgive_end(void);

#endif
