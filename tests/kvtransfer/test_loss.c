/* One thing is lost or fails, exactly one, and which is the test's choice: a control frame that never arrives, a send that ends with an
 * error on a link that lives on. The transport's own operations are replaced by ones that do so, once, to the chosen thing. */
#include "kvtransfer/xfer_impl.h"
#include "tests/kvtransfer/pair.h"
#include "tests/test.h"

/* What goes wrong at one node. */
static struct spoiler {
    const struct xfer_ops *real;
    struct xfer_ops ops;
    enum kv_frame_type lose; /* NONE: nothing */
    unsigned nth;            /* of that type, from 1 */
    unsigned seen, lost;
    unsigned fail_from, fail_count; /* sends of pieces, from 1 */
    unsigned sends;
    struct xfer_op *failing[8];
    unsigned failing_count;
} at_p, at_d;

static struct spoiler *spoiler_of(const struct xfer *xfer)
{
    return xfer == p.xfer ? &at_p : &at_d;
}

static enum status spoiled_frame(struct xfer_peer *peer, const void *bytes, size_t count)
{
    struct spoiler *spoiler = spoiler_of(peer->xfer);
    static struct kv_frame frame;
    CHECK_INT(kv_frame_decode(bytes, count, &frame), STATUS_OK);
    if (frame.type == spoiler->lose && ++spoiler->seen == spoiler->nth) {
        spoiler->lost++;
        return STATUS_OK;
    }
    return spoiler->real->send_frame(peer, bytes, count);
}

static enum status spoiled_piece(struct xfer_peer *peer, const void *header, size_t header_bytes,
                                 const void *payload, size_t payload_bytes, struct xfer_op *op)
{
    struct spoiler *spoiler = spoiler_of(peer->xfer);
    unsigned number = ++spoiler->sends;
    if (number < spoiler->fail_from || number >= spoiler->fail_from + spoiler->fail_count)
        return spoiler->real->send_piece(peer, header, header_bytes, payload, payload_bytes, op);
    CHECK(spoiler->failing_count < 8);
    xfer_op_start(peer, op);
    spoiler->failing[spoiler->failing_count++] = op;
    return STATUS_OK;
}

static unsigned spoiled_progress(struct xfer *xfer)
{
    struct spoiler *spoiler = spoiler_of(xfer);
    unsigned count = spoiler->failing_count;
    struct xfer_op *failing[8];
    memcpy(failing, spoiler->failing, sizeof failing);
    spoiler->failing_count = 0;
    for (unsigned i = 0; i < count; i++)
        xfer_op_finish(failing[i], STATUS_IO);
    return count + spoiler->real->progress(xfer);
}

static void spoil(struct spoiler *spoiler, struct rig_node *node)
{
    *spoiler = (struct spoiler){.real = node->xfer->ops, .ops = *node->xfer->ops};
    spoiler->ops.send_frame = spoiled_frame;
    spoiler->ops.send_piece = spoiled_piece;
    spoiler->ops.progress = spoiled_progress;
    node->xfer->ops = &spoiler->ops;
}

static void spoiled_start(void)
{
    pair_start();
    spoil(&at_p, &p);
    spoil(&at_d, &d);
}

/* A transfer whose prompt takes 1.2 s to compute; turns until D has it all, `ms` after that at most. */
static void transfer_run(struct rig_give *give, struct rig_take *take, unsigned ms)
{
    struct kv_key key = rig_key(9, 1);
    rig_give_start(give, &p, key, rig_shape(6, 2), PIECE_BYTES);
    rig_take_start(take, &d, d_to_p, key, give->shape, PIECE_BYTES);
    kv_source_started(p.source, give->transfer);
    for (uint32_t i = 0; i < give->piece_count; i++) {
        pair_turns(100);
        CHECK_INT(rig_give_ready(give, i), STATUS_OK);
    }
    rig_give_computed(give, 4711);
    for (unsigned i = 0; i < ms && !take->ended; i++)
        pair_turn();
    CHECK_INT(take->ended, 1);
    CHECK_INT(take->status, STATUS_OK);
    CHECK_INT(take->token_id, 4711);
    CHECK(rig_take_equal(take));
}

TEST(loss, of_any_one_control_frame)
{
    static const struct {
        enum kv_frame_type type;
        struct spoiler *at;
        unsigned ms; /* for D, after the end of computing */
    } rows[] = {
        {KV_FRAME_PULL, &at_d, 20}, /* asked again long before */
        {KV_FRAME_PROGRESS, &at_p, 20},
        {KV_FRAME_FIRST, &at_p, 1300}, /* P says that it has sent all, and D asks again */
        {KV_FRAME_DONE, &at_d, 20},
    };
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
        for (unsigned nth = 1; nth <= 2; nth++) {
            struct rig_give give;
            struct rig_take take = {0};
            spoiled_start();
            rows[row].at->lose = rows[row].type;
            rows[row].at->nth = nth;
            transfer_run(&give, &take, rows[row].ms);
            bool lost = rows[row].at->lost > 0;
            CHECK(lost || nth == 2); /* a second one there may not be */
            bool receipt_lost = lost && rows[row].type == KV_FRAME_DONE;
            pair_turns(receipt_lost ? 8100 : 20); /* only then the lease must do it */
            CHECK_INT(give.ended, 1);
            CHECK_INT(give.status, receipt_lost ? STATUS_TIMEOUT : STATUS_OK);
            CHECK_INT(take.released + give.released, 2);
            CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
            CHECK_INT(kv_links_counters(d.links)->gave_up, 0);
            pair_check_at_rest();
            rig_give_finish(&give);
            rig_take_finish(&take);
            pair_stop();
        }
}

TEST(loss, of_the_word_that_nothing_will_come)
{
    struct rig_give give;
    struct rig_take take = {0};
    spoiled_start();
    at_p.lose = KV_FRAME_GONE;
    at_p.nth = 1;
    rig_give_start(&give, &p, rig_key(9, 1), rig_shape(4, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, give.key, give.shape, PIECE_BYTES);
    rig_give_ready(&give, 0);
    pair_turns(10);
    CHECK_INT(kv_source_end(p.source, give.transfer, STATUS_DROPPED), STATUS_OK);
    pair_turns(20);
    CHECK_INT(at_p.lost, 1);
    CHECK_INT(take.ended, 0); /* it has not heard */
    pair_turns(800);          /* but asks again */
    CHECK_INT(take.ended, 1);
    CHECK_INT(take.status, STATUS_GONE);
    CHECK_INT(kv_links_counters(d.links)->gave_up, 0);
    pair_check_at_rest();
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(loss, one_failed_send_is_made_good_at_once)
{
    for (unsigned nth = 1; nth <= 12; nth++) {
        struct rig_give give;
        struct rig_take take = {0};
        spoiled_start();
        at_p.fail_from = nth;
        at_p.fail_count = 1;
        rig_give_start(&give, &p, rig_key(9, 1), rig_shape(6, 2), PIECE_BYTES);
        rig_take_start(&take, &d, d_to_p, give.key, give.shape, PIECE_BYTES);
        rig_give_all(&give, 4711);
        pair_turns(15); /* D asks again only after 750 */
        CHECK_INT(kv_links_counters(p.links)->pieces_failed, 1);
        pair_check_complete(&give, &take);
        pair_check_at_rest();
        rig_give_finish(&give);
        rig_take_finish(&take);
        pair_stop();
    }
}

TEST(loss, of_sends_that_go_on_failing_d_learns_at_once)
{
    struct rig_give give;
    struct rig_take take = {0};
    spoiled_start();
    at_p.fail_from = 3;
    at_p.fail_count = 1000;
    rig_give_start(&give, &p, rig_key(9, 1), rig_shape(6, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, give.key, give.shape, PIECE_BYTES);
    rig_give_all(&give, 4711);
    pair_turns(15);
    CHECK_INT(take.ended, 1);
    CHECK_INT(take.status, STATUS_GONE);
    CHECK(take.pieces_missing > 0);
    CHECK_INT(give.ended, 1);
    CHECK_INT(give.status, STATUS_IO);
    pair_check_at_rest();
    /* the link lives on: the next transfer is served */
    at_p.fail_count = 0;
    struct rig_give another;
    struct rig_take taken = {0};
    rig_give_start(&another, &p, rig_key(10, 2), rig_shape(6, 2), PIECE_BYTES);
    rig_take_start(&taken, &d, d_to_p, another.key, another.shape, PIECE_BYTES);
    rig_give_all(&another, 4712);
    pair_turns(15);
    pair_check_complete(&another, &taken);
    rig_give_finish(&give);
    rig_take_finish(&take);
    rig_give_finish(&another);
    rig_take_finish(&taken);
    pair_stop();
}
