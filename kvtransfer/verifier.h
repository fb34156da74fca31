/* A thread that verifies what a measurement receives, as a node's copy thread does, so that the loop can go on receiving.
 *
 *     loop ── verifier_add ─▶ jobs [0 … added) ─▶ thread, in order ─▶ waker ─▶ loop: verified(), in order
 *
 * One pass: each job's place is used once. Owner: the loop thread; the thread is its own. */
#ifndef BATON_KVTRANSFER_VERIFIER_H
#define BATON_KVTRANSFER_VERIFIER_H

#include "base/loop.h"
#include "kvtransfer/frame.h"

struct verifier;
struct verifier_job {
    uint64_t transfer;
    struct kv_piece piece;
    const void *memory;
    size_t bytes;
    uint64_t checksum; /* as the giver says */
    bool good;         /* the thread's, then the loop's */
};

/* Room for `jobs_max`. `verified` is called in the loop, RECEIVE phase, once for each job. */
enum status verifier_create(struct loop *loop, uint32_t jobs_max,
                            void (*verified)(void *context, const struct verifier_job *job),
                            void *context, struct verifier **verifier_out, struct err *err);
/* Asserts room. */
void verifier_add(struct verifier *verifier, const struct verifier_job *job);
/* Ends the thread; what is not verified stays so. NULL is fine. */
void verifier_destroy(struct verifier *verifier);

#endif
