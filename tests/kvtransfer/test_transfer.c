/* One rule of the hand-off per test, on the in-process transport and a clock that the test turns. */
#include "tests/kvtransfer/pair.h"
#include "tests/test.h"

TEST(transfer, pieces_in_any_order_then_first_then_done)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct kv_shape shape = {.group_count = 2, .groups = {{5, 4, 3}, {2, 3, 3}}};
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, shape, PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, shape, PIECE_BYTES);
    pair_turns(3);
    CHECK_INT(take.received, 0);
    for (uint32_t i = 0; i < give.piece_count; i++) {
        CHECK_INT(rig_give_ready(&give, i * 7 % give.piece_count), STATUS_OK);
        pair_turns(2);
        CHECK_INT(take.received, i + 1); /* as soon as it is ready */
    }
    pair_turns(5);
    CHECK_INT(take.ended, 0); /* FIRST is missing */
    rig_give_computed(&give, 4711);
    pair_turns(5);
    pair_check_complete(&give, &take);
    CHECK_INT(take.token_id, 4711);
    CHECK_INT(kv_links_counters(d.links)->overlap_bytes_verified, 26 * PIECE_BYTES);
    CHECK_INT(kv_links_counters(d.links)->overlap_bytes_verified_of, 26 * PIECE_BYTES);
    CHECK_INT(kv_links_counters(p.links)->overlap_bytes_sent, 26 * PIECE_BYTES);
    CHECK_INT(kv_links_counters(p.links)->pieces_sent, 26);
    pair_check_at_rest();
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, overlap_counts_only_what_was_verified_before_the_end_of_computing)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(10, 1), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    for (uint32_t i = 0; i < 7; i++)
        rig_give_ready(&give, i);
    pair_turns(10);
    for (uint32_t i = 7; i < 10; i++)
        rig_give_ready(&give, i);
    rig_give_computed(&give, 1);
    pair_turns(10);
    pair_check_complete(&give, &take);
    CHECK_INT(kv_links_counters(d.links)->overlap_bytes_verified, 7 * PIECE_BYTES);
    CHECK_INT(kv_links_counters(d.links)->overlap_bytes_verified_of, 10 * PIECE_BYTES);
    CHECK_INT(kv_links_counters(p.links)->overlap_bytes_sent, 7 * PIECE_BYTES);
    CHECK_INT(kv_links_counters(p.links)->overlap_bytes_sent_of, 10 * PIECE_BYTES);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

static bool odd_blocks(struct kv_piece piece)
{
    return piece.block % 2 == 1;
}

static bool no_blocks(struct kv_piece piece)
{
    (void)piece;
    return false;
}

TEST(transfer, only_what_d_lacks_moves)
{
    pair_start();
    struct rig_give give[2];
    struct rig_take take[2] = {{.wanted = odd_blocks}, {.wanted = no_blocks}};
    for (unsigned i = 0; i < 2; i++) {
        struct kv_key key = rig_key(9 + i, 1 + i);
        rig_give_start(&give[i], &p, key, rig_shape(9, 3), PIECE_BYTES);
        rig_give_all(&give[i], 5);
        rig_take_start(&take[i], &d, d_to_p, key, give[i].shape, PIECE_BYTES);
    }
    pair_turns(20);
    for (unsigned i = 0; i < 2; i++)
        pair_check_complete(&give[i], &take[i]);
    CHECK_INT(take[0].received, 4 * 3);
    CHECK_INT(take[1].received, 0);
    CHECK_INT(kv_links_counters(p.links)->pieces_sent, 4 * 3);
    for (unsigned i = 0; i < 2; i++) {
        rig_give_finish(&give[i]);
        rig_take_finish(&take[i]);
    }
    pair_stop();
}

TEST(transfer, more_blocks_than_one_pull_holds)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(KV_PULL_BLOCKS_MAX * 2 + 3, 3), 16);
    rig_give_all(&give, 5);
    rig_take_start(&take, &d, d_to_p, key, give.shape, 16);
    pair_turns(500);
    pair_check_complete(&give, &take);
    CHECK_INT(kv_links_counters(p.links)->pieces_sent, give.piece_count);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, early_pull_waits_for_its_assignment)
{
    pair_start();
    struct kv_key key = rig_key(9, 5);
    struct rig_give give;
    struct rig_take take = {0};
    rig_take_start(&take, &d, d_to_p, key, rig_shape(4, 2), PIECE_BYTES);
    pair_turns(500);
    CHECK_INT(take.ended, 0);
    CHECK_INT(kv_links_counters(p.links)->parked, 1);
    rig_give_start(&give, &p, key, rig_shape(4, 2), PIECE_BYTES);
    rig_give_all(&give, 5);
    pair_turns(10);
    pair_check_complete(&give, &take);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, parked_for_a_second_then_gone)
{
    pair_start();
    struct rig_take take = {0};
    rig_take_start(&take, &d, d_to_p, rig_key(9, 5), rig_shape(4, 2), PIECE_BYTES);
    pair_turns(995);
    CHECK_INT(take.ended, 0);
    pair_turns(15);
    CHECK_INT(take.ended, 1);
    CHECK_INT(take.status, STATUS_GONE);
    CHECK_INT(take.released, 1);
    CHECK_INT(take.pieces_missing, 8);
    CHECK_INT(kv_links_counters(p.links)->parked_expired, 1);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, at_or_below_the_mark_and_not_live_is_gone_at_once)
{
    pair_start();
    kv_source_seen(p.source, RIG_ROUTER, 5);
    struct rig_take take = {0};
    rig_take_start(&take, &d, d_to_p, rig_key(9, 5), rig_shape(4, 2), PIECE_BYTES);
    pair_turns(5);
    CHECK_INT(take.status, STATUS_GONE);
    CHECK_INT(take.released, 1);
    CHECK_INT(kv_links_counters(p.links)->parked, 0);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, a_refused_assignment_frees_its_parked_pull)
{
    pair_start();
    struct rig_take take = {0};
    rig_take_start(&take, &d, d_to_p, rig_key(9, 5), rig_shape(4, 2), PIECE_BYTES);
    pair_turns(5);
    CHECK_INT(kv_links_counters(p.links)->parked, 1);
    kv_source_seen(p.source, RIG_ROUTER, 5);
    pair_turns(3);
    CHECK_INT(take.status, STATUS_GONE);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, a_peer_parks_so_many_and_no_more)
{
    pair_start_with(&(struct rig_options){.source = {.parked_peer_max = 3}});
    struct rig_take takes[5] = {{0}};
    for (unsigned i = 0; i < 5; i++)
        rig_take_start(&takes[i], &d, d_to_p, rig_key(9 + i, 5 + i), rig_shape(4, 2), PIECE_BYTES);
    pair_turns(5);
    for (unsigned i = 0; i < 5; i++)
        CHECK_INT(takes[i].ended, i >= 3);
    CHECK_INT(kv_links_counters(p.links)->parked_refused, 2);
    pair_turns(1100);
    for (unsigned i = 0; i < 5; i++) {
        CHECK_INT(takes[i].status, STATUS_GONE);
        rig_take_finish(&takes[i]);
    }
    pair_stop();
}

TEST(transfer, lease_runs_once_computed_and_is_renewed_by_name)
{
    pair_start();
    struct rig_give give;
    rig_give_start(&give, &p, rig_key(9, 1), rig_shape(4, 2), PIECE_BYTES);
    pair_turns(9000); /* the prompt is not computed: no lease */
    CHECK_INT(give.ended, 0);
    rig_give_all(&give, 5);
    pair_turns(7900);
    CHECK_INT(kv_source_renew(p.source, &give.key), STATUS_OK);
    pair_turns(7900);
    CHECK_INT(give.ended, 0);
    pair_turns(200);
    CHECK_INT(give.ended, 1);
    CHECK_INT(give.status, STATUS_TIMEOUT);
    CHECK_INT(give.released, 1);
    CHECK_INT(kv_links_counters(p.links)->leases_expired, 1);
    CHECK_INT(kv_source_renew(p.source, &give.key), STATUS_NOT_FOUND);
    struct rig_take take = {0};
    rig_take_start(&take, &d, d_to_p, give.key, give.shape, PIECE_BYTES);
    pair_turns(5);
    CHECK_INT(take.status, STATUS_GONE);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

/* P late by 10 s in all: what it declares about others moves by as much. */
TEST(transfer, lateness_is_granted_to_the_other)
{
    pair_start();
    struct rig_give give;
    rig_give_start(&give, &p, rig_key(9, 1), rig_shape(4, 2), PIECE_BYTES);
    rig_give_all(&give, 5);
    pair_turns(100);
    now_ns += 10 * NS_PER_S;
    p.late_ns += 10 * NS_PER_S;
    d.late_ns += 10 * NS_PER_S;
    pair_turns(100);
    CHECK_INT(give.ended, 0);
    pair_turns(7900);
    CHECK_INT(give.ended, 1);
    rig_give_finish(&give);
    pair_stop();
}

TEST(transfer, silence_of_two_seconds_ends_it_on_d)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(4, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    pair_turns(5000); /* PROGRESS comes each 500 ms: nothing is wrong */
    CHECK_INT(take.ended, 0);
    xfer_hub_cut(p.xfer, d.xfer, true);
    pair_turns(1450); /* the last PROGRESS may be 500 ms old */
    CHECK_INT(take.ended, 0);
    pair_turns(560);
    CHECK_INT(take.ended, 1);
    CHECK_INT(take.status, STATUS_TIMEOUT);
    CHECK_INT(take.released, 1);
    pair_turns(5);
    CHECK_INT(give.ended, 1); /* P learns at once: D's DONE{gave up} was not cut */
    CHECK_INT(give.status, STATUS_CANCELLED);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, no_piece_while_sending_ends_it_below_the_lease)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(4, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    pair_turns(100);
    struct xfer_faults faults = {
        .drop = 65535}; /* pieces, PROGRESS too: silence; so let frames pass below */
    rig_give_all(&give, 5);
    xfer_hub_set_faults(hub, &faults);
    pair_turns(2);
    faults.drop = 0;
    xfer_hub_set_faults(hub, &faults);
    pair_turns(1500);
    /* What was lost was asked for again. */
    pair_check_complete(&give, &take);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, the_requests_own_deadline_cuts)
{
    pair_start();
    struct rig_take take = {0};
    take.memory = calloc(8, PIECE_BYTES);
    take.shape = rig_shape(4, 2);
    take.piece_bytes = PIECE_BYTES;
    take.piece_count = 8;
    struct rig_give give;
    rig_give_start(&give, &p, rig_key(9, 1), take.shape, PIECE_BYTES);
    struct kv_sink_begin begin = {.key = rig_key(9, 1),
                                  .link = d_to_p,
                                  .shape = take.shape,
                                  .deadline_ns = now_ns + 700 * NS_PER_MS,
                                  .user = &take};
    CHECK_INT(kv_sink_begin(d.sink, &begin, &take.transfer), STATUS_OK);
    pair_turns(690);
    CHECK_INT(take.ended, 0);
    pair_turns(20);
    CHECK_INT(take.status, STATUS_DEADLINE);
    CHECK_INT(take.released, 1);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

/* Corruption at rest on P: the stored checksum travels and does not fit. */
TEST(transfer, a_mismatch_is_counted_asked_again_and_never_served)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(4, 2), PIECE_BYTES);
    for (uint32_t i = 0; i < give.piece_count; i++)
        rig_give_ready(&give, i);
    give.data[3 * PIECE_BYTES + 17] ^= 4; /* after it was sealed */
    rig_give_computed(&give, 5);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    pair_turns(50);
    CHECK_INT(take.ended, 1);
    CHECK_INT(take.status, STATUS_CHECKSUM);
    CHECK_INT(take.pieces_missing, 1);
    CHECK_INT(take.mismatches, 1); /* asked again, P looks, and sees that no sending helps */
    CHECK_INT(kv_links_counters(d.links)->checksum_failures, 1);
    CHECK_INT(kv_links_counters(p.links)->pieces_damaged, 1);
    CHECK_INT(give.damaged, 1);
    CHECK_INT(give.status, STATUS_CHECKSUM);
    CHECK_INT(take.released, 1);
    pair_turns(5);
    CHECK_INT(give.released, 1);
    pair_check_at_rest();
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

/* A way that damages the same piece again and again: D does not ask for ever. */
TEST(transfer, too_many_mismatches_end_it)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(1, 1), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    pair_turns(5);
    for (unsigned i = 0; !take.ended && i < 5000; i++) {
        if (i == 0)
            rig_give_all(&give, 5);
        xfer_hub_set_faults(hub, &(struct xfer_faults){.flip = 65535});
        rig_node_round(&p, now_ns += NS_PER_MS); /* only pieces are hit: D's frames are not */
        xfer_hub_set_faults(hub, &(struct xfer_faults){0});
        rig_node_round(&d, now_ns);
    }
    CHECK_INT(take.ended, 1);
    CHECK_INT(take.status, STATUS_CHECKSUM);
    CHECK_INT(take.mismatches, 5); /* the first and 4 repetitions */
    CHECK_INT(kv_links_counters(d.links)->checksum_failures, 5);
    CHECK_INT(kv_links_counters(p.links)->pieces_damaged, 0);
    pair_turns(20);
    CHECK_INT(give.released, 1);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, a_flipped_bit_on_the_way_is_repaired)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(1, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    pair_turns(5);
    rig_give_ready(&give, 0);
    xfer_hub_set_faults(hub, &(struct xfer_faults){.flip = 65535});
    rig_node_round(&p, now_ns); /* sends the piece */
    xfer_hub_set_faults(hub, &(struct xfer_faults){0});
    rig_give_ready(&give, 1);
    rig_give_computed(&give, 5);
    pair_turns(20);
    CHECK_INT(xfer_hub_counters(hub)->pieces_flipped, 1);
    CHECK_INT(kv_links_counters(d.links)->checksum_failures, 1);
    pair_check_complete(&give, &take);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, the_routers_copy_of_the_first_token_counts_as_first)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(2, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    struct kv_first first = {.token_id = 31, .position = 0};
    CHECK_INT(kv_sink_first(d.sink, take.transfer, &first), STATUS_OK);
    CHECK_INT(kv_sink_first(d.sink, take.transfer, &first), STATUS_OK);
    CHECK_INT(kv_links_counters(d.links)->first_mismatches, 0);
    first.token_id = 32;
    CHECK_INT(kv_sink_first(d.sink, take.transfer, &first), STATUS_OK);
    CHECK_INT(kv_links_counters(d.links)->first_mismatches, 1);
    for (uint32_t i = 0; i < give.piece_count; i++)
        rig_give_ready(&give, i);
    pair_turns(10); /* P never says FIRST */
    CHECK_INT(take.status, STATUS_OK);
    CHECK_INT(take.token_id, 31);
    pair_check_complete(&give, &take);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, cancel_on_either_side_tells_the_other_at_once)
{
    pair_start();
    struct rig_give give[2];
    struct rig_take take[2] = {{0}};
    for (unsigned i = 0; i < 2; i++) {
        struct kv_key key = rig_key(9 + i, 1 + i);
        rig_give_start(&give[i], &p, key, rig_shape(4, 2), PIECE_BYTES);
        rig_take_start(&take[i], &d, d_to_p, key, give[i].shape, PIECE_BYTES);
        rig_give_ready(&give[i], 0);
    }
    pair_turns(5);
    CHECK_INT(kv_source_end(p.source, give[0].transfer, STATUS_DROPPED), STATUS_OK);
    CHECK_INT(kv_sink_end(d.sink, take[1].transfer), STATUS_OK);
    CHECK_INT(give[0].released + take[1].released, 0); /* never inside the call */
    pair_turns(3);
    CHECK_INT(take[0].status, STATUS_DROPPED);
    CHECK_INT(take[0].ended, 1);
    CHECK_INT(take[1].ended, 0); /* its owner knows */
    CHECK_INT(give[0].ended, 0);
    CHECK_INT(give[1].ended, 1);
    CHECK_INT(give[1].status, STATUS_CANCELLED);
    for (unsigned i = 0; i < 2; i++) {
        CHECK_INT(give[i].released, 1);
        CHECK_INT(take[i].released, 1);
        CHECK_INT(kv_source_end(p.source, give[i].transfer, STATUS_CANCELLED), STATUS_NOT_FOUND);
        CHECK_INT(kv_sink_end(d.sink, take[i].transfer), STATUS_NOT_FOUND);
        CHECK(rig_take_untouched(&take[i]));
        rig_give_finish(&give[i]);
        rig_take_finish(&take[i]);
    }
    pair_check_at_rest();
    pair_stop();
}

/* The window is 8: two transfers of one peer get as many pieces each. */
TEST(transfer, transfers_of_a_peer_take_turns)
{
    pair_start();
    struct rig_give give[2];
    struct rig_take take[2] = {{0}};
    for (unsigned i = 0; i < 2; i++) {
        struct kv_key key = rig_key(9 + i, 1 + i);
        rig_give_start(&give[i], &p, key, rig_shape(i ? 8 : 100, 4), PIECE_BYTES);
        rig_give_all(&give[i], 5);
        rig_take_start(&take[i], &d, d_to_p, key, give[i].shape, PIECE_BYTES);
    }
    while (!take[1].ended && now_ns < 1010 * NS_PER_S)
        pair_turn();
    CHECK_INT(take[1].status, STATUS_OK);
    CHECK(take[0].received <= 32 + 16); /* not before the long one, but beside it */
    pair_turns(200);
    for (unsigned i = 0; i < 2; i++) {
        pair_check_complete(&give[i], &take[i]);
        rig_give_finish(&give[i]);
        rig_take_finish(&take[i]);
    }
    pair_stop();
}

TEST(transfer, window_bounds_what_is_in_flight)
{
    pair_start_with(&(struct rig_options){.links = {.window_max = 3}});
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(10, 4), PIECE_BYTES);
    rig_give_all(&give, 5);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    pair_turns(1);
    xfer_hub_cut(p.xfer, d.xfer, true);
    pair_turns(5);
    CHECK_INT(kv_link_info(p_to_d).outstanding, 3);
    xfer_hub_cut(p.xfer, d.xfer, false);
    pair_turns(60);
    pair_check_complete(&give, &take);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, a_node_sends_no_faster_than_its_rate)
{
    /* 40 pieces of 512 bytes at one piece in 10 ms */
    pair_start_with(&(struct rig_options){.links = {.rate_max = 100 * PIECE_BYTES}});
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, rig_key(9, 1), rig_shape(10, 4), PIECE_BYTES);
    rig_give_all(&give, 5);
    rig_take_start(&take, &d, d_to_p, give.key, give.shape, PIECE_BYTES);
    pair_turns(100);
    CHECK(take.received >= 9 && take.received <= 11);
    CHECK(kv_links_next_ns(p.links) <= now_ns + 10 * NS_PER_MS); /* it wakes for the next one */
    pair_turns(310);
    pair_check_complete(&give, &take);
    pair_check_at_rest();
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, another_d_may_take_the_same_transfer)
{
    pair_start();
    struct rig_node d2;
    rig_node_start(&d2, hub, NULL, NULL, 300);
    rig_node_round(&d2, now_ns);
    rig_link(&p, &d2);
    struct kv_link *d2_to_p = rig_link(&d2, &p);
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0}, take2 = {0};
    rig_give_start(&give, &p, key, rig_shape(4, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    for (unsigned i = 0; i < 10; i++) {
        pair_turn();
        rig_node_round(&d2, now_ns);
    }
    rig_take_start(&take2, &d2, d2_to_p, key, give.shape, PIECE_BYTES);
    for (unsigned i = 0; i < 3; i++) {
        pair_turn();
        rig_node_round(&d2, now_ns);
    }
    rig_give_all(&give, 5);
    for (unsigned i = 0; i < 20; i++) {
        pair_turn();
        rig_node_round(&d2, now_ns);
    }
    pair_check_complete(&give, &take2);
    CHECK_MSG(take.ended == 0, "status %d",
              take.status); /* the router ends that attempt by name; without it, by silence */
    kv_sink_end(d.sink, take.transfer);
    pair_turns(3);
    CHECK_INT(take.released, 1);
    rig_give_finish(&give);
    rig_take_finish(&take);
    rig_take_finish(&take2);
    rig_node_stop(&d2);
    pair_stop();
}

/* --- what is not of the current tuple --- */

static void send_as(struct rig_node *from, uint64_t from_incarnation, uint64_t to_incarnation,
                    uint32_t epoch, struct kv_key key, enum kv_frame_type type)
{
    struct kv_frame frame;
    memset(&frame, 0, sizeof frame);
    frame.type = type;
    frame.version = WIRE_NEWEST;
    frame.from_incarnation = from_incarnation;
    frame.to_incarnation = to_incarnation;
    frame.epoch = epoch;
    frame.key = key;
    uint8_t bytes[KV_FRAME_BYTES_MAX];
    size_t count = kv_frame_encode(&frame, bytes);
    struct rig_node *to = from == &p ? &d : &p;
    struct xfer_peer *peer;
    uint32_t number = 1;
    size_t address_bytes;
    const uint8_t *address = xfer_address(to->xfer, &address_bytes);
    struct err err = ERR_INIT;
    /* A second endpoint, as a frozen earlier life would still have one. Its close is a message that ends nothing here. */
    CHECK_INT(xfer_peer_open(from->xfer, address, address_bytes, &number, NULL, &peer, &err),
              STATUS_OK);
    CHECK_INT(xfer_send_frame(peer, bytes, count), STATUS_OK);
}

TEST(transfer, anything_but_the_current_tuple_is_dropped_and_counted)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(4, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    pair_turns(5);
    const struct kv_counters *at_d = kv_links_counters(d.links);
    const struct kv_counters *at_p = kv_links_counters(p.links);
    struct kv_key other_router = key, other_request = key, other_transfer = key, other_number = key;
    other_router.router_incarnation++;
    other_request.request++;
    other_transfer.transfer.low++;
    other_number.assignment++;
    send_as(&p, 101, 200, 1, key, KV_FRAME_GONE); /* P's earlier life */
    send_as(&p, 100, 201, 1, key, KV_FRAME_GONE); /* to D's earlier life */
    send_as(&p, 100, 200, 2, key, KV_FRAME_GONE); /* another epoch */
    send_as(&p, 100, 200, 1, other_router, KV_FRAME_GONE);
    send_as(&p, 100, 200, 1, other_request, KV_FRAME_GONE);
    send_as(&p, 100, 200, 1, other_transfer, KV_FRAME_GONE);
    send_as(&p, 100, 200, 1, other_number, KV_FRAME_GONE);
    send_as(&d, 200, 100, 1, other_router, KV_FRAME_PULL);
    send_as(&d, 200, 100, 1, other_request, KV_FRAME_DONE);
    send_as(&d, 200, 100, 0, key, KV_FRAME_DONE);
    pair_turns(5);
    CHECK_INT(at_d->stale[KV_FRAME_GONE], 7);
    CHECK_INT(at_p->stale[KV_FRAME_PULL], 1);
    CHECK_INT(at_p->stale[KV_FRAME_DONE], 2);
    CHECK_INT(take.ended + give.ended, 0);
    rig_give_all(&give, 5);
    pair_turns(10);
    pair_check_complete(&give, &take);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, a_pull_for_what_is_not_there_is_refused_by_name)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, key, rig_shape(4, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, key, rig_shape(5, 2), PIECE_BYTES); /* one block too many */
    pair_turns(5);
    CHECK_INT(take.status, STATUS_MISMATCH);
    CHECK_INT(take.released, 1);
    CHECK_INT(give.ended, 0);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

TEST(transfer, limits_are_kept)
{
    pair_start_with(&(struct rig_options){.source = {.transfers_max = 2, .pieces_max = 10},
                                          .sink = {.transfers_max = 2, .pieces_max = 10}});
    struct rig_give give[4];
    struct rig_take take[4] = {{0}};
    for (unsigned i = 0; i < 3; i++) {
        rig_give_start(&give[i], &p, rig_key(9 + i, 1 + i), rig_shape(4, 2), PIECE_BYTES);
        rig_take_start(&take[i], &d, d_to_p, rig_key(9 + i, 1 + i), rig_shape(4, 2), PIECE_BYTES);
    }
    CHECK_INT(give[1].opened, STATUS_OK);
    CHECK_INT(give[2].opened, STATUS_FULL);
    CHECK_INT(take[2].begun, STATUS_FULL);
    rig_give_start(&give[3], &p, rig_key(50, 4), rig_shape(6, 2), PIECE_BYTES);
    rig_take_start(&take[3], &d, d_to_p, rig_key(50, 4), rig_shape(6, 2), PIECE_BYTES);
    CHECK_INT(give[3].opened, STATUS_INVALID);
    CHECK_INT(take[3].begun, STATUS_INVALID);
    uint64_t name;
    CHECK_INT(kv_source_open(p.source, &give[0].key, &give[0].shape, NULL, &name), STATUS_IN_USE);
    CHECK_INT(kv_source_find(p.source, give[0].key.transfer, &name), STATUS_OK);
    CHECK(name == give[0].transfer);
    CHECK_INT(rig_give_ready(&give[0], 0), STATUS_OK);
    CHECK_INT(rig_give_ready(&give[0], 0), STATUS_INVALID); /* said before */
    CHECK_INT(kv_source_computed(p.source, give[0].transfer), STATUS_INVALID);
    for (unsigned i = 0; i < 4; i++) {
        kv_source_end(p.source, give[i].transfer, STATUS_CANCELLED);
        kv_sink_end(d.sink, take[i].transfer);
    }
    pair_turns(5);
    pair_check_at_rest();
    for (unsigned i = 0; i < 4; i++) {
        rig_give_finish(&give[i]);
        rig_take_finish(&take[i]);
    }
    pair_stop();
}

/* Verification that takes its time: P's silence about pieces is not to blame, and an end in between is safe. */
TEST(transfer, late_verification_and_verification_after_the_end)
{
    pair_start();
    struct kv_key key = rig_key(9, 1);
    struct rig_give give;
    struct rig_take take = {.verify_later = true};
    rig_give_start(&give, &p, key, rig_shape(1, 1), PIECE_BYTES);
    rig_give_all(&give, 5);
    rig_take_start(&take, &d, d_to_p, key, give.shape, PIECE_BYTES);
    pair_turns(6000);
    CHECK_INT(take.received, 1);
    CHECK_INT(take.ended, 0);
    CHECK(!kv_sink_block_verified(d.sink, take.transfer, 0, 0));
    CHECK_INT(kv_sink_piece_verified(d.sink, take.transfer, take.last, true), STATUS_OK);
    CHECK(kv_sink_block_verified(d.sink, take.transfer, 0, 0));
    CHECK_INT(kv_sink_piece_verified(d.sink, take.transfer, take.last, true), STATUS_NOT_FOUND);
    pair_turns(3);
    pair_check_complete(&give, &take);
    CHECK_INT(kv_sink_piece_verified(d.sink, take.transfer, take.last, true), STATUS_NOT_FOUND);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}
