/* What goes up the stream to the router, in order: messages are packed at once into one queue and leave one by one, as the
 * transport takes them. All tokens of a step are gathered and go as one message.
 *
 * Without a stream everything is dropped: work lives no longer than the stream that brought it, so nobody waits for it.
 * Owner: the loop thread. Nothing is allocated after outbox_init but what a slow router leaves lying, up to a limit; then the
 * stream is given up. */
#ifndef BATON_NODE_OUTBOX_H
#define BATON_NODE_OUTBOX_H

#include "base/buf.h"
#include "base/err.h"
#include "kvtransfer/frame.h"
#include "proto/baton/node/v1/node.pb-c.h"
#include "proto/rpc/rpc.h"
#include "proto/seal.h"

enum { OUTBOX_BYTES_MAX = 64 << 20 };
#ifndef OUTBOX_BYTES_READY /* the simulation's is small: it copies whole nodes */
enum { OUTBOX_BYTES_READY = 256 << 10 };
#endif

/* One token of one attempt. */
struct outbox_token {
    struct kv_id attempt;
    uint32_t position; /* in the answer */
    struct kv_logprob token;
    const struct kv_logprob *top; /* [top_count], copied */
    uint32_t top_count;
    int finish; /* enum work_finish */
    uint64_t prefill_us, decode_us, moved_bytes;
    uint32_t cached_tokens;
};

struct outbox_run; /* outbox.c */

struct outbox {
    struct rpc_call *call; /* NULL: no stream */
    struct buf queue;      /* {uint32_t bytes; message; room for its seal} ... */
    struct seal seal;      /* of what leaves; registration.c turns it on */
    struct outbox_run *runs;
    uint32_t runs_max, run_count;
    Baton__Node__V1__TokenRun **run_pointers;
    bool overflowed; /* the router takes nothing any more */
};

/* `runs_max` tokens may be gathered before a flush; more flush by themselves. */
enum status outbox_init(struct outbox *outbox, uint32_t runs_max);
void outbox_finish(struct outbox *outbox);

void outbox_open(struct outbox *outbox, struct rpc_call *call);
void outbox_close(struct outbox *outbox);
/* The call can take a message. */
void outbox_writable(struct outbox *outbox);
bool outbox_idle(const struct outbox *outbox); /* nothing waits to be taken by the transport */

void outbox_send(struct outbox *outbox, const Baton__Node__V1__NodeMessage *message);
void outbox_accepted(struct outbox *outbox, struct kv_id attempt, uint64_t number,
                     Baton__Node__V1__Verdict verdict, const char *text);
void outbox_report(struct outbox *outbox, struct kv_id attempt, Baton__Node__V1__Report__Kind kind,
                   enum status status, const char *text);
/* … of an attempt of which so many pages are verified. */
void outbox_report_pages(struct outbox *outbox, struct kv_id attempt,
                         Baton__Node__V1__Report__Kind kind, const char *text, uint32_t pages);
void outbox_token(struct outbox *outbox, const struct outbox_token *token);
/* Sends the gathered tokens; also done by everything above, so that order is kept. */
void outbox_flush(struct outbox *outbox);

#endif
