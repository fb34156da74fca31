/* The links of one node: one endpoint for each pair of nodes, shared by all transfers between them, in either direction.
 * This is where frames come in (decoded, fenced, handed to source.c or sink.c), where an endpoint's end becomes the end of
 * its transfers, and where the link's rate is measured.
 *
 *                                kv_links ── xfer (ucx.c or memory.c)
 *         PULL, DONE            │        │        PIECE, PROGRESS, FIRST, GONE
 *     kv_source (P's side) ◀────┘        └────▶ kv_sink (D's side)
 *
 *                          ┌──── doubted ────┐
 *                          ▼                 │
 *     FREE ──open──▶ CONNECTING ──good frame──▶ UP
 *      │ open,         │   ▲                    │
 *      │ to be   failed│   │reopen, or the peer │failed, stalled, closed, or the peer met us under a later epoch
 *      ▼ called        ▼   │came with a later   ▼
 *     DOWN ◀────── drained │epoch ────────── CLOSING          (after kv_link_close: FREE in place of DOWN)
 *      └───────────────────┘
 *
 * Of a pair the node with the smaller incarnation calls; the other makes its endpoint when it hears the first HELLO, and so gets one
 * on the connection that is there. Two that called each other at a time had UCX end a process when one of them died just then
 * (an answer of its wire-up, queued behind a connect that fails); so did, once, a network that was cut and mended. Where no call
 * comes for long, as behind a wall that only lets the other one out, that one calls after all.
 *
 * Parked states: CONNECTING says HELLO again every 500 ms, and fails when for `stall_ns` nothing has come; CLOSING waits for the
 * endpoint's own operations, for a second at most, then the endpoint is quarantined (its operations' memory stays pinned until the
 * worker ends); DOWN waits for the peer's call, for kv_link_reopen, or for `reopen_ns` (`called_ns` where the peer calls). UP has a
 * stall clock: operations outstanding and none completed for `stall_ns` ends it. Where nothing has come for `idle_ns` UP says HELLO too,
 * every 500 ms, and ends when nothing comes for `stall_ns` more: the peer's end may have been lost in a network that was cut just then,
 * and it could call in vain for ever, since who is UP lets nobody connect.
 *
 * Doubt: a transfer on it came to nothing though no operation failed. The link serves on, but the pair is to meet again: with a frame
 * from the peer it is UP once more.
 *
 * Epochs: a pair of workers counts its endpoints, over all lives of the nodes that have them; every frame carries the number.
 * Both sides use the larger of the two, and a HELLO with a larger one ends what was there under the smaller. Frames under any other epoch are stale; so are frames in another
 * version than the link's.
 *
 * Time: kv_links_progress is given now and the sum of all lateness of the loop. Deadlines that declare another party dead
 * run on now - lateness, so a loop that was late by L grants L more. Nothing here reads a clock, but to end a wait of `wait_ns`.
 *
 * Owner: the loop thread. Callbacks come from kv_links_progress, kv_links_flush and kv_links_destroy only; they
 * may call back into this module and its siblings. */
#ifndef BATON_KVTRANSFER_LINK_H
#define BATON_KVTRANSFER_LINK_H

#include "base/loop.h"
#include "kvtransfer/frame.h"
#include "kvtransfer/xfer.h"

struct kv_links;
struct kv_link;

enum kv_link_state {
    KV_LINK_FREE,
    KV_LINK_CONNECTING,
    KV_LINK_UP,
    KV_LINK_CLOSING,
    KV_LINK_DOWN,
    KV_LINK_STATE_COUNT
};
const char *kv_link_state_text(enum kv_link_state state);

/* For kv_links_options.wait_ns: what a round trip on one host takes; a sleep and a wake-up cost a node as much. */
enum { KV_WAIT_NS = 20000 };

struct kv_links_options {
    unsigned links_max;  /* peers known at once; 0: 64 */
    unsigned window_max; /* pieces in flight to one peer; 0: 8 */
    /* The window shrinks, to 1 at least, to what the link moves in this time; 0: 250 ms. */
    uint64_t window_ns;
    uint64_t
        rate_max; /* bytes/s of pieces that this node sends, over all links; 0: as fast as they go */
    uint64_t stall_ns; /* operations outstanding and none completed: the endpoint ends; 0: 4 s */
    uint64_t hello_ns; /* between two HELLOs while connecting; 0: 500 ms */
    uint64_t
        idle_ns; /* UP, and nothing has come for so long: asks whether the peer is there; 0: never */
    /* A closing endpoint that has not drained in this time is given up on; 0: 1 s. */
    uint64_t quarantine_ns;
    /* A link that is DOWN opens again by itself after this; 0: by the peer's call or kv_link_reopen only. */
    uint64_t reopen_ns;
    /* With pieces in flight: so long without sleep for the next event, as long as it comes. 0: never. */
    uint64_t wait_ns;
    uint64_t
        called_ns; /* the same where the peer is to call; 0: 20 s, or never when reopen_ns is 0 */
};

struct kv_links_events {
    void *context;
    /* For the report to the router (Link{up}). `why` is OK for UP; FREE comes last, `link` is void afterwards. May be NULL. */
    void (*link_changed)(void *context, struct kv_link *link, enum kv_link_state state,
                         enum status why);
};

struct kv_counters {
    /* By kind; [KV_FRAME_NONE]: no frame at all, or of another version. */
    uint64_t stale[KV_FRAME_TYPE_COUNT];
    uint64_t pieces_sent, bytes_sent;         /* completed */
    uint64_t pieces_received, bytes_received; /* completed; not yet verified */
    uint64_t pieces_verified, bytes_verified;
    uint64_t checksum_failures; /* pieces that came damaged, each time */
    uint64_t pieces_unverified; /* received, but the transfer was over before they were verified */
    uint64_t
        pieces_damaged;     /* own ones that were no longer what was sealed, when asked for again */
    uint64_t pieces_failed; /* operations that ended with an error */
    uint64_t parked, parked_expired, parked_refused;
    uint64_t gone_sent, gone_received;
    uint64_t leases_expired, gave_up;
    uint64_t links_failed, links_stalled, links_quarantined;
    uint64_t first_mismatches; /* FIRST and the router named different tokens */
    /* Overlap, counted: bytes whose send had completed when the owner said kv_source_computed; bytes verified before the
     * source's first PROGRESS{sending}; and the bytes of those transfers in all. */
    uint64_t overlap_bytes_sent, overlap_bytes_sent_of;
    uint64_t overlap_bytes_verified, overlap_bytes_verified_of;
};

/* --- all links --- */

enum status kv_links_create(const struct kv_links_options *options,
                            const struct kv_links_events *events, uint64_t own_incarnation,
                            struct kv_links **links_out, struct err *err);
/* What to give to xfer_ucx_create or xfer_memory_create. */
struct xfer_handler kv_links_handler(struct kv_links *links);
/* Takes the worker over; kv_links_destroy destroys it. Once, before anything else. */
void kv_links_start(struct kv_links *links, struct xfer *xfer);
/* Destroy the source and the sink after it, not before: what is outstanding ends here, with `released`. */
void kv_links_destroy(struct kv_links *links);

/* A new life: closes every link (transfers end with CLOSED) and carries the new number from here on. Open them again. */
void kv_links_renew(struct kv_links *links, uint64_t own_incarnation);
uint64_t kv_links_incarnation(const struct kv_links *links);
/* The router whose keys are current; anything else is stale. Its assignment numbers begin again. */
void kv_links_set_router(struct kv_links *links, uint64_t router_incarnation);

struct xfer *kv_links_xfer(struct kv_links *links);
const struct kv_counters *kv_links_counters(const struct kv_links *links);

/* One round: receive, then act on deadlines, then send. True: there is more to do at once. `late_total_ns` as
 * loop_late_total_ns. */
bool kv_links_progress(struct kv_links *links, uint64_t now_ns, uint64_t late_total_ns);
/* Sends what has become possible since (pieces made ready in SCHEDULE, say). */
void kv_links_flush(struct kv_links *links);
/* When kv_links_progress must come again though nothing arrives: a time of the loop's clock. */
uint64_t kv_links_next_ns(const struct kv_links *links);

/* Runs the links in a loop: progress in RECEIVE, flush in SUBMIT, arming in PREPARE, a timer. Detach before destroying either. */
enum status kv_links_attach(struct kv_links *links, struct loop *loop, struct err *err);
void kv_links_detach(struct kv_links *links);

/* --- one link --- */

struct kv_link_options {
    uint64_t incarnation;   /* the peer's */
    uint32_t wire;          /* the version of the frames on this link; 0: the first */
    const uint8_t *address; /* xfer_address of its worker; copied */
    size_t address_bytes;
    void *context; /* the caller's, for kv_link_context */
};
/* FULL: links_max; ALREADY open for this incarnation: IN_USE; MISMATCH: a version that this program does not speak; INVALID,
 * DEVICE as xfer_peer_open. */
enum status kv_link_open(struct kv_links *links, const struct kv_link_options *options,
                         struct kv_link **link_out, struct err *err);
/* The peer is no longer one: its transfers end with CLOSED; link_changed(FREE) comes later, from progress. */
void kv_link_close(struct kv_link *link);
/* Something on it came to nothing: CONNECTING until a frame has come from the peer. In any state but UP, nothing. */
void kv_link_doubt(struct kv_link *link);
/* DOWN: opens under the next epoch. AGAIN in any other state, and as xfer_peer_open. */
enum status kv_link_reopen(struct kv_link *link, struct err *err);
struct kv_link *kv_link_find(struct kv_links *links, uint64_t incarnation); /* NULL: none */

struct kv_link_info {
    enum kv_link_state state;
    uint64_t incarnation;
    uint32_t epoch, wire;
    unsigned outstanding;      /* sends and receives of pieces in flight */
    unsigned window;           /* pieces that may be in flight now */
    uint64_t send_bytes_per_s; /* measured while pieces were in flight; 0: not yet */
    uint64_t receive_bytes_per_s;
};
struct kv_link_info kv_link_info(const struct kv_link *link);
void *kv_link_context(const struct kv_link *link);

#endif
