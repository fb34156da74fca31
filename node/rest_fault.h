/* Bits that flip in pages at rest, by a seeded schedule (base/faults.h, place "rest"). Called where sealed bytes lie just before
 * somebody looks at them again, so that every hit must be found. Test builds only; without -Dfaults=true it does nothing.
 * Owner: the loop thread. */
#ifndef BATON_NODE_REST_FAULT_H
#define BATON_NODE_REST_FAULT_H

#include <stddef.h>
#include <stdint.h>

struct node;

/* `memory` holds a sealed piece that is about to be sent, or compared with its checksum. */
void rest_fault(struct node *node, void *memory, size_t bytes);
/* A cached page is about to be verified for its next use; it is spared while anybody else uses it. */
void rest_fault_page(struct node *node, uint32_t page);

#endif
