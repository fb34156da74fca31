/* May this node join? Every field of a registration that must agree, checked one by one, so that a refusal names the field.
 *
 * A cluster has one identity: the model is the router's own, everything else (arithmetic, KV type and layout, sizes of
 * pages and pieces, ranges of layers and heads, the transport's version) is what the first node brought, kept as long
 * as any node or request lives. Tokens of one answer may come from several nodes, and are the same bits only among equals.
 *
 * Pure. Owner: the loop thread. */
#ifndef BATON_ROUTER_IDENTITY_H
#define BATON_ROUTER_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/wire_version.h"
#include "proto/baton/node/v1/node.pb-c.h"

enum { NODE_NAME_BYTES_MAX = 64 };

/* Feature bits of a registration. The lower half offers what a router may use or not: bits unknown here are nothing to it. The
 * upper half demands what a router must know to be this node's router: an unknown one is refused. None is defined yet. */
#define IDENTITY_FEATURES_DEMANDED UINT64_C(0xffffffff00000000)

/* What the router knows by itself. */
struct identity_model {
    uint8_t hash[16];
    uint32_t vocab_size, context_tokens;
    struct wire_range wire; /* versions that this router speaks; zero: all that it can */
};

struct identity {
    bool known; /* some node has brought it */
    char arithmetic[64], kv_type[16], ucx_version[32];
    uint32_t page_tokens, page_bytes;
    uint32_t layer_begin, layer_end, head_begin, head_end, layers_per_piece;
    uint32_t context_tokens, kv_layout;
};

struct identity_refusal {
    const char *field; /* static */
    char message[256];
};

/* True: it fits, and *identity is filled when it was not known. */
bool identity_check(struct identity *identity, const struct identity_model *model,
                    const Baton__Node__V1__Register *registration,
                    struct identity_refusal *refusal_out);

#endif
