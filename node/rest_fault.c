/* See rest_fault.h. */
#include "node/rest_fault.h"

#include "node/node.h"

void rest_fault(struct node *node, void *memory, size_t bytes)
{
    faults_next(node->faults, FAULTS_REST);
    if (faults_hit(node->faults, FAULTS_REST, FAULTS_FLIP))
        faults_flip_bit(node->faults, FAULTS_REST, memory, bytes);
}

void rest_fault_page(struct node *node, uint32_t page)
{
    const struct cache_page *cached = &node->cache.pages[page];
    if (node->pool.pages[page].pins != 1 ||
        cached->check_todo | cached->check_busy | cached->export_todo | cached->export_busy)
        return;
    /* one piece at most, so that a page that is hit is one hit */
    if (!engine_piece_host(node->engine, page, 0))
        return;
    faults_next(node->faults, FAULTS_REST);
    if (!faults_hit(node->faults, FAULTS_REST, FAULTS_FLIP))
        return;
    uint32_t run = (uint32_t)faults_random(node->faults, FAULTS_REST, node->info->run_count);
    faults_flip_bit(node->faults, FAULTS_REST, engine_piece_host(node->engine, page, run),
                    engine_piece_bytes(node->engine, run));
}
