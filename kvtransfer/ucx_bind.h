/* A way around another limit of UCX 1.13: its listener's socket does not say SO_REUSEADDR. The connections of a node that was killed
 * stay behind in TIME_WAIT for a minute, on the port that it listened on, and for that long its successor could not have the
 * same one. Behind a firewall that lets one port through, it could not start at all.
 *
 * So this file defines `bind` for the whole program, which the dynamic linker finds before libc's. It is the system call, but
 * that between the two marks a TCP socket says SO_REUSEADDR first. A port on which somebody listens stays refused: that
 * is Linux's rule.
 *
 * Owner: the thread that creates the worker marks; the mark is the thread's own. */
#ifndef BATON_KVTRANSFER_UCX_BIND_H
#define BATON_KVTRANSFER_UCX_BIND_H

void ucx_bind_reuse_begin(void);
void ucx_bind_reuse_end(void);

#endif
