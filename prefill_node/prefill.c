/* See prefill.h. */
#include "prefill_node/prefill.h"

static enum status leg_accept(struct node *node, struct work *work, struct err *err)
{
    if (work->last_leg)
        return STATUS_OK; /* nobody comes for the pages */
    return serve_open(node, work, work->pages_moved, err);
}

static void leg_begin(struct node *node, struct work *work)
{
    serve_blocks(node, work, work->rows_done / node->info->page_tokens);
}

const struct node_leg prefill_leg = {
    .accept = leg_accept,
    .begin = leg_begin,
    .step_submitted = serve_started,
    .piece_sealed = serve_piece,
    .sampled = serve_first,
};
