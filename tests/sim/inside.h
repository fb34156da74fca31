/* What only the modules themselves can say of their private state, for the explorer's fingerprint. Each inside_*.c includes the module's
 * source, and so takes its place in the explorer. */
#ifndef BATON_TESTS_SIM_INSIDE_H
#define BATON_TESTS_SIM_INSIDE_H

#include "tests/sim/print.h"

struct kv_link;
struct kv_links;
struct kv_source;
struct kv_sink;
struct xfer;
struct xfer_hub;
struct registration;
struct peers;
struct registry;
struct node_stream;

void inside_source(const struct kv_source *source, struct print *print);
void inside_sink(const struct kv_sink *sink, struct print *print);
void inside_registration(const struct registration *registration, struct print *print);
void inside_peers(const struct peers *peers, struct print *print);
void inside_hub(const struct xfer_hub *hub, struct print *print);
void inside_link_views(const struct registry *registry, struct print *print);
void inside_stream(const struct node_stream *stream, struct print *print);
/* The key of some live transfer, and the highest assignment seen. False: there is none. */
struct kv_key;
bool inside_source_any(const struct kv_source *source, struct kv_key *key_out, uint64_t *mark_out);
/* The links' own state is open to all of kvtransfer/ (link_impl.h). */
void inside_links(const struct kv_links *links, struct print *print);

/* --- the hub's messages, for faults at a chosen place --- */
enum tamper { TAMPER_DROP, TAMPER_DUPLICATE, TAMPER_SWAP, TAMPER_FLIP, TAMPER_COUNT };
/* Of the first message from one worker to another. */
bool inside_hub_can_tamper(struct xfer *from, const struct xfer *to, enum tamper how);
void inside_hub_tamper(struct xfer *from, const struct xfer *to, enum tamper how);
/* One word for the first message; NULL: there is none. */
const char *inside_hub_first(const struct xfer *from, const struct xfer *to);
/* A frame of the test's own making, as if `from` had sent it. */
void inside_hub_inject(struct xfer *from, const struct xfer *to, const void *frame, size_t bytes);

#endif
