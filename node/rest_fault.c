/* See rest_fault.h. */
#include "node/rest_fault.h"

#include "node/node.h"

void rest_fault(struct node *node, void *memory, size_t bytes)
{
    faults_next(node->faults, FAULTS_REST);
    if (faults_hit(node->faults, FAULTS_REST, FAULTS_FLIP))
        faults_flip_bit(node->faults, FAULTS_REST, memory, bytes);
}
