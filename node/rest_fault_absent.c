/* See rest_fault.h: what production builds have of it. */
#include "node/rest_fault.h"

void rest_fault(struct node *node, void *memory, size_t bytes)
{
    (void)node;
    (void)memory;
    (void)bytes;
}

void rest_fault_page(struct node *node, uint32_t page)
{
    (void)node;
    (void)page;
}
