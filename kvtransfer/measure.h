/* What a link moves: one pass of a hand-off between two processes, P with everything computed and D that fetches it, by source and
 * sink in their event loops, every checksum verified; and the same pieces
 * by the same calls of UCX with nothing around them, which is what there is to reach. `baton bench kv` and `./dev bench kv` measure
 * with these.
 *
 *     giver ── fd ── taker       fd: a connected stream socket between the two, in whatever way they found each other
 *       │ address ⇄ address │
 *       │ 'r' ─────────────▶ │   everything is filled and ready
 *       ╞══ all pieces ═════▶│   timed by the taker, from its first PULL to the last piece verified
 *
 * Each pass wants a process of its own: UCX keeps what it has learnt, and does not survive a fork.
 * Owner: the caller's thread, which runs the loop until the pass is over. */
#ifndef BATON_KVTRANSFER_MEASURE_H
#define BATON_KVTRANSFER_MEASURE_H

#include "kvtransfer/xfer.h"

enum { KV_MEASURE_PIECES_MAX = 1 << 16, KV_MEASURE_WINDOW = 8 };

struct kv_measure {
    enum xfer_transport transport;
    const char *interface;  /* NULL: "lo" */
    const char *port_range; /* NULL: any */
    bool bare;              /* UCX alone */
    bool spin; /* bare: never sleeps, which is faster where nobody else wants the processor */
    size_t piece_bytes, total_bytes; /* at most KV_MEASURE_PIECES_MAX pieces */
};

/* INVALID: names the size and the limit. */
enum status kv_measure_check(const struct kv_measure *measure, struct err *err);
/* One side each. CLOSED: the other side has gone; else the errors of xfer_ucx_create and of the transfer. */
enum status kv_measure_give(const struct kv_measure *measure, int fd, struct err *err);
enum status kv_measure_take(const struct kv_measure *measure, int fd, double *bytes_per_s_out,
                            struct err *err);
/* Both sides, in two processes of this machine. Forks: no UCX and no other thread may be in this process. */
enum status kv_measure_local(const struct kv_measure *measure, double *bytes_per_s_out,
                             struct err *err);

/* --- inside kvtransfer --- */

/* ucx_bare.c: the same pass by UCX alone. */
enum status ucx_bare_give(const struct kv_measure *measure, const char *device, int fd,
                          uint8_t *memory, struct err *err);
enum status ucx_bare_take(const struct kv_measure *measure, const char *device, int fd,
                          uint8_t *memory, double *seconds_out, struct err *err);
/* Sends the own blob and receives the other's: a length and so many bytes. */
enum status kv_measure_exchange(int fd, const void *own, size_t own_bytes, void *theirs,
                                size_t theirs_max, size_t *theirs_bytes_out, struct err *err);
enum status kv_measure_say(int fd, char word, struct err *err);
enum status kv_measure_hear(int fd, char word, struct err *err);

#endif
