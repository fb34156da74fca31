/* See fetch.h. */
#include "node/fetch.h"

#include <assert.h>

#include "node/node.h"

/* A fetch for a prompt is over, and a receive on its pages has not ended: so long, then the prompt goes on without these pages. */
static const uint64_t linger_ns = NS_PER_S;

static bool for_prompt(const struct work *work)
{
    return work->leg != WORK_LEG_DECODE;
}

/* Over, and nothing touches the pages any more: what is there, from the first page on, counts. */
static void prompt_fetched(struct node *node, struct work *work)
{
    if (work->state != WORK_FETCHING || !work->fetch_over || work->fetch.live || work->copies)
        return;
    node_work_compute(node, work, cache_whole(node, work, work->fetch_blocks));
}

/* --- the sink's events --- */

static void *sink_piece_memory(void *context, void *user, struct kv_piece piece, size_t *bytes_out)
{
    struct node *node = context;
    struct work *work = user;
    assert(piece.block < work->page_count);
    if (piece.block < work->hit_count)
        return NULL;
    *bytes_out = engine_piece_bytes(node->engine, piece.run);
    return copies_memory(&node->copies, work->pages[piece.block], piece.run);
}

static void sink_piece_received(void *context, void *user, uint64_t transfer, struct kv_piece piece,
                                void *memory, size_t bytes, uint64_t checksum)
{
    (void)transfer;
    (void)memory;
    struct node *node = context;
    struct work *work = user;
    struct copies *copies = &node->copies;
    work->moved_bytes += bytes;
    copies_begin(copies, work, copies_mirrored(copies) ? ENGINE_COPY_IMPORT : ENGINE_COPY_VERIFY,
                 work->pages[piece.block], piece.run, &checksum);
}

static void sink_ended(void *context, void *user, const struct kv_sink_result *result)
{
    struct node *node = context;
    struct work *work = user;
    if (!work_live(work))
        return;
    if (for_prompt(work)) {
        uint32_t whole = cache_whole(node, work, work->fetch_blocks);
        work->fetch_over = true;
        work->fetch_over_ns = loop_now_ns(node->loop);
        metric_add(node->counted.fetches[result->status ? whole > work->hit_count : 2], 1);
        return; /* goes on when it is released */
    }
    node->legs[work->leg]->fetched(node, work, result);
}

static void sink_released(void *context, void *user)
{
    struct work *work = user;
    if (work->stuck_count) { /* it went on without them */
        cache_replaced(context, work);
        return;
    }
    work->fetch.live = false;
    prompt_fetched(context, work);
}

enum status fetch_create(struct node *node, struct err *err)
{
    struct kv_sink_options options = {.transfers_max = node->table.count,
                                      .pieces_max = node->table.pages_max * node->info->run_count};
    struct kv_sink_events events = {.context = node,
                                    .piece_memory = sink_piece_memory,
                                    .piece_received = sink_piece_received,
                                    .ended = sink_ended,
                                    .released = sink_released};
    return kv_sink_create(node->links, &options, &events, &node->sink, err);
}

void fetch_destroy(struct node *node)
{
    kv_sink_destroy(node->sink);
    node->sink = NULL;
}

/* --- what the node says --- */

enum status fetch_begin(struct node *node, struct work *work, const struct fetch_begin *of)
{
    struct kv_link *link = kv_link_find(node->links, of->incarnation);
    if (!link)
        return STATUS_CLOSED;
    struct kv_sink_begin begin = {
        .key = work->key, .link = link, .deadline_ns = work->deadline_ns, .user = work};
    begin.key.transfer = of->transfer;
    begin.key.assignment = of->number; /* the transfer is named by the other's number */
    node_shape(node, of->blocks, &begin.shape);
    enum status status = kv_sink_begin(node->sink, &begin, &work->fetch.name);
    if (status)
        return status;
    work->fetch.live = true;
    work->fetch_blocks = of->blocks;
    if (!of->first_wanted) /* no token comes: complete with the last page */
        kv_sink_first(node->sink, work->fetch.name, &(struct kv_first){0});
    else if (work->first_known)
        kv_sink_first(node->sink, work->fetch.name, &work->first);
    return STATUS_OK;
}

void fetch_first(struct node *node, struct work *work, const struct kv_first *first)
{
    if (work->fetch.live)
        kv_sink_first(node->sink, work->fetch.name, first);
}

void fetch_end(struct node *node, struct work *work)
{
    if (work->fetch.live)
        kv_sink_end(node->sink, work->fetch.name); /* NOT_FOUND: it ended by itself */
}

void fetch_copied(struct node *node, struct work *work, const struct engine_copy *copy)
{
    if (work->state != WORK_FETCHING)
        return;
    for (uint32_t block = work->hit_count; block < work->fetch_blocks; block++)
        if (work->pages[block] == copy->page) {
            struct kv_piece piece = {.block = block, .run = (uint16_t)copy->run};
            kv_sink_piece_verified(node->sink, work->fetch.name, piece, copy->status == STATUS_OK);
            break;
        }
    if (for_prompt(work))
        prompt_fetched(node, work);
}

/* A receive sticks (its peer is frozen, or cut off): what is not there is computed, into other pages. What may still be written into
 * is nobody's until the receive has ended. */
static void stuck_leave(struct node *node, struct work *work)
{
    uint32_t whole = cache_whole(node, work, work->fetch_blocks);
    if (!cache_replace(node, work, whole, work->fetch_blocks - whole)) {
        node_work_fail(node, work, BATON__NODE__V1__REPORT__KIND__DROPPED, STATUS_DROPPED,
                       "a receive into its pages has not ended, and there are no others");
        return;
    }
    work->fetch.live = false;
    node_work_compute(node, work, whole);
}

void fetch_tick(struct node *node, uint64_t now_ns)
{
    list_for_each_safe(it, next, &node->table.states[WORK_FETCHING])
    {
        struct work *work = container_of(it, struct work, link);
        if (work->fetch_over && work->fetch.live && !work->copies &&
            now_ns - work->fetch_over_ns >= linger_ns)
            stuck_leave(node, work);
    }
}
