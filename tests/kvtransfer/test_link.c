/* Links: how an endpoint ends and comes again, on the in-process transport and a clock that the test turns. */
#include "tests/kvtransfer/pair.h"
#include "tests/test.h"

TEST(link, the_end_of_an_endpoint_ends_its_transfers_on_both_sides_and_a_new_epoch_serves)
{
    pair_start();
    struct rig_give give, again_give;
    struct rig_take take = {0}, again = {0};
    rig_give_start(&give, &p, rig_key(9, 1), rig_shape(4, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, give.key, give.shape, PIECE_BYTES);
    pair_turns(5);
    /* D's clock says that nothing completed: D froze P's side of the link, so to speak. */
    xfer_hub_freeze(p.xfer, true);
    rig_give_ready(&give, 0);
    for (unsigned i = 0; i < 2100; i++) {
        now_ns += NS_PER_MS;
        rig_node_round(&d, now_ns);
    }
    CHECK_INT(take.status, STATUS_TIMEOUT);
    CHECK_INT(take.released, 1);
    xfer_hub_freeze(p.xfer, false);
    pair_turns(5);
    CHECK_INT(give.ended, 1);
    CHECK_INT(give.status, STATUS_CANCELLED);

    /* Now the endpoint itself: P's worker goes down for D only by D's force close. */
    rig_give_start(&again_give, &p, rig_key(10, 2), rig_shape(4, 2), PIECE_BYTES);
    rig_take_start(&again, &d, d_to_p, again_give.key, again_give.shape, PIECE_BYTES);
    pair_turns(5);
    struct err err = ERR_INIT;
    CHECK_INT(kv_link_reopen(d_to_p, &err), STATUS_AGAIN);
    kv_links_renew(p.links, 101); /* P's new life closes everything */
    pair_turns(5);
    CHECK_INT(again.status, STATUS_CLOSED);
    CHECK_INT(again_give.status, STATUS_CLOSED);
    CHECK_INT(again.released + again_give.released, 2);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_DOWN);
    rig_give_finish(&give);
    rig_take_finish(&take);
    rig_give_finish(&again_give);
    rig_take_finish(&again);
    pair_stop();
}

TEST(link, a_stalled_endpoint_is_closed_after_four_seconds_and_reopened_under_the_next_epoch)
{
    pair_start();
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, rig_key(9, 1), rig_shape(40, 2), PIECE_BYTES);
    rig_give_all(&give, 5);
    rig_take_start(&take, &d, d_to_p, give.key, give.shape, PIECE_BYTES);
    pair_turns(2);
    CHECK(!take.ended);
    xfer_hub_freeze(d.xfer, true); /* SIGSTOP of D in the middle */
    for (unsigned i = 0; i < 3990; i++) {
        now_ns += NS_PER_MS;
        rig_node_round(&p, now_ns);
    }
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    CHECK(kv_link_info(p_to_d).outstanding > 0);
    CHECK_INT(give.ended, 0);
    for (unsigned i = 0; i < 30; i++) {
        now_ns += NS_PER_MS;
        rig_node_round(&p, now_ns);
    }
    CHECK_INT(kv_links_counters(p.links)->links_stalled, 1);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_DOWN);
    CHECK_INT(give.status, STATUS_CLOSED);
    CHECK_INT(give.released, 1);
    struct err err = ERR_INIT;
    CHECK_INT(kv_link_reopen(p_to_d, &err), STATUS_OK);
    CHECK_INT(kv_link_info(p_to_d).epoch, 2);
    xfer_hub_freeze(d.xfer, false);
    d.late_ns += 4 * NS_PER_S;
    pair_turns(10);
    CHECK_INT(take.ended, 1);
    CHECK_INT(take.status, STATUS_CLOSED);
    CHECK_INT(take.released, 1);
    CHECK(rig_take_untouched(&take));
    /* D met the later epoch by itself. */
    CHECK_INT(kv_link_info(d_to_p).epoch, 2);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    struct rig_give give2;
    struct rig_take take2 = {0};
    rig_give_start(&give2, &p, rig_key(10, 2), rig_shape(4, 2), PIECE_BYTES);
    rig_give_all(&give2, 5);
    rig_take_start(&take2, &d, d_to_p, give2.key, give2.shape, PIECE_BYTES);
    pair_turns(10);
    pair_check_complete(&give2, &take2);
    rig_give_finish(&give);
    rig_take_finish(&take);
    rig_give_finish(&give2);
    rig_take_finish(&take2);
    pair_stop();
}

TEST(link, opened_late_on_one_side_meets_all_the_same)
{
    struct err err = ERR_INIT;
    now_ns = 1000 * NS_PER_S;
    CHECK(xfer_hub_create(1, 4, &hub, &err) == STATUS_OK);
    xfer_hub_set_automatic(hub, true);
    rig_node_start(&p, hub, NULL, NULL, 100);
    rig_node_start(&d, hub, NULL, NULL, 200);
    pair_turn();
    p_to_d = rig_link(&p, &d);
    pair_turns(3000);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_CONNECTING);
    d_to_p = rig_link(&d, &p);
    pair_turns(5);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
    pair_stop();
}

TEST(link, killed_peer_is_reported_and_a_new_life_at_the_same_place_is_another_peer)
{
    pair_start();
    struct rig_take take = {0};
    rig_take_start(&take, &d, d_to_p, rig_key(9, 1), rig_shape(4, 2), PIECE_BYTES);
    pair_turns(5);
    xfer_hub_kill(p.xfer);
    pair_turns(5);
    CHECK_INT(take.status, STATUS_CLOSED);
    CHECK_INT(take.released, 1);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_DOWN);
    CHECK_INT(d.changes[KV_LINK_DOWN], 2); /* the first: before it was called */
    rig_node_stop(&p);
    rig_node_start(&p, hub, NULL, NULL, 101);
    rig_node_round(&p, now_ns);
    kv_link_close(d_to_p);
    p_to_d = rig_link(&p, &d);
    d_to_p = rig_link(&d, &p);
    pair_turns(5);
    CHECK_INT(d.changes[KV_LINK_FREE], 1);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
    rig_take_finish(&take);
    pair_stop();
}

TEST(link, errors_name_the_limit)
{
    pair_start_with(&(struct rig_options){.links = {.links_max = 1}});
    struct err err = ERR_INIT;
    struct kv_link *link;
    struct kv_link_options options = {.incarnation = 200};
    options.address = xfer_address(d.xfer, &options.address_bytes);
    CHECK_INT(kv_link_open(p.links, &options, &link, &err), STATUS_IN_USE);
    options.incarnation = 300;
    CHECK_INT(kv_link_open(p.links, &options, &link, &err), STATUS_FULL);
    CHECK_STR(err.message, "kv links: 1 are open already");
    options.address_bytes = 0;
    CHECK_INT(kv_link_open(p.links, &options, &link, &err), STATUS_INVALID);
    pair_stop();
}

/* --- versions --- */

TEST(link, every_version_hands_over)
{
    for (uint32_t wire = WIRE_OLDEST; wire <= WIRE_NEWEST; wire++) {
        pair_start_with(&(struct rig_options){.wire = wire});
        struct rig_give give;
        struct rig_take take = {0};
        rig_give_start(&give, &p, rig_key(9, 1), rig_shape(40, 2), PIECE_BYTES);
        rig_give_all(&give, 5);
        rig_take_start(&take, &d, d_to_p, give.key, give.shape, PIECE_BYTES);
        pair_turns(20);
        pair_check_complete(&give, &take);
        CHECK_INT(kv_link_info(p_to_d).wire, wire);
        for (int type = 0; type < KV_FRAME_TYPE_COUNT; type++)
            CHECK_INT(kv_links_counters(p.links)->stale[type] +
                          kv_links_counters(d.links)->stale[type],
                      0);
        rig_give_finish(&give);
        rig_take_finish(&take);
        pair_stop();
    }
}

/* What no router tells: one side another version than the other. They never meet, and nothing else comes of it. */
TEST(link, sides_that_were_told_different_versions_do_not_meet)
{
    struct err err = ERR_INIT;
    now_ns = 1000 * NS_PER_S;
    CHECK(xfer_hub_create(1, 4, &hub, &err) == STATUS_OK);
    xfer_hub_set_automatic(hub, true);
    rig_node_start(&p, hub, NULL, &(struct rig_options){.wire = 1}, 100);
    rig_node_start(&d, hub, NULL, &(struct rig_options){.wire = 2}, 200);
    pair_turn();
    p_to_d = rig_link(&p, &d);
    d_to_p = rig_link(&d, &p);
    pair_turns(2000);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_CONNECTING);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_DOWN); /* it understands no call */
    CHECK(kv_links_counters(d.links)->stale[KV_FRAME_HELLO] >= 3);
    pair_stop();
}

TEST(link, a_version_that_this_program_does_not_speak_is_refused)
{
    pair_start();
    struct err err = ERR_INIT;
    struct kv_link *link;
    struct kv_link_options options = {.incarnation = 300, .wire = WIRE_NEWEST + 1};
    options.address = xfer_address(d.xfer, &options.address_bytes);
    CHECK_INT(kv_link_open(p.links, &options, &link, &err), STATUS_MISMATCH);
    char expected[64];
    snprintf(expected, sizeof expected, "wire: version %d, this program speaks %d to %d",
             WIRE_NEWEST + 1, WIRE_OLDEST, WIRE_NEWEST);
    CHECK_STR(err.message, expected);
    pair_stop();
}

/* A later version's frames, and types that this version does not have: dropped and counted, the transfer goes on. */
TEST(link, frames_of_a_later_version_and_of_unknown_types_are_counted)
{
    pair_start();
    struct rig_give give;
    struct rig_take take = {0};
    rig_give_start(&give, &p, rig_key(9, 1), rig_shape(4, 2), PIECE_BYTES);
    rig_take_start(&take, &d, d_to_p, give.key, give.shape, PIECE_BYTES);
    pair_turns(5);
    struct kv_frame frame = {.type = KV_FRAME_GONE,
                             .version = WIRE_NEWEST,
                             .from_incarnation = 100,
                             .to_incarnation = 200,
                             .epoch = 1,
                             .key = give.key};
    uint8_t bytes[KV_FRAME_BYTES_MAX];
    struct xfer_peer *raw;
    uint32_t number = 1;
    size_t address_bytes;
    const uint8_t *address = xfer_address(d.xfer, &address_bytes);
    CHECK_INT(xfer_peer_open(p.xfer, address, address_bytes, &number, NULL, &raw, NULL), STATUS_OK);
    size_t count = kv_frame_encode(&frame, bytes);
    bytes[4] = WIRE_NEWEST + 1;
    CHECK_INT(xfer_send_frame(raw, bytes, count), STATUS_OK);
    count = kv_frame_encode(&frame, bytes);
    bytes[8] = KV_FRAME_TYPE_COUNT;
    CHECK_INT(xfer_send_frame(raw, bytes, count), STATUS_OK);
    frame.version = WIRE_OLDEST; /* one that it speaks, but not on this link */
    count = kv_frame_encode(&frame, bytes);
    CHECK_INT(xfer_send_frame(raw, bytes, count), STATUS_OK);
    pair_turns(5);
    CHECK_INT(kv_links_counters(d.links)->stale[KV_FRAME_NONE], 2);
    CHECK_INT(kv_links_counters(d.links)->stale[KV_FRAME_GONE], 1);
    CHECK_INT(take.ended, 0);
    rig_give_all(&give, 5);
    pair_turns(10);
    pair_check_complete(&give, &take);
    rig_give_finish(&give);
    rig_take_finish(&take);
    pair_stop();
}

/* --- who calls --- */

static void pair_begin(const struct rig_options *options)
{
    struct err err = ERR_INIT;
    now_ns = 1000 * NS_PER_S;
    CHECK(xfer_hub_create(1, 4, &hub, &err) == STATUS_OK);
    xfer_hub_set_automatic(hub, true);
    rig_node_start(&p, hub, NULL, options, 100);
    rig_node_start(&d, hub, NULL, options, 200);
    pair_turn();
}

TEST(link, of_a_pair_one_calls_and_the_other_answers)
{
    pair_begin(NULL);
    d_to_p = rig_link(&d, &p);
    pair_turns(3000);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_DOWN); /* it has the larger number */
    CHECK_INT(d.changes[KV_LINK_CONNECTING], 0);
    p_to_d = rig_link(&p, &d);
    pair_turns(5);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(d_to_p).epoch, 1);
    pair_stop();
}

TEST(link, where_no_call_comes_the_other_one_calls_after_all)
{
    pair_begin(
        &(struct rig_options){.links = {.reopen_ns = 500 * NS_PER_MS, .called_ns = 4 * NS_PER_S}});
    xfer_hub_cut(p.xfer, d.xfer, true); /* as behind a wall that lets only one side in */
    p_to_d = rig_link(&p, &d);
    d_to_p = rig_link(&d, &p);
    pair_turns(3900);
    CHECK_INT(d.changes[KV_LINK_CONNECTING], 0);
    pair_turns(200);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_CONNECTING);
    xfer_hub_cut(p.xfer, d.xfer, false);
    pair_turns(2000);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
    pair_stop();
}

/* A transfer that came to nothing without any operation failing: the pair meets again, under the same epoch when it can. */
TEST(link, a_doubted_link_is_up_again_with_the_peers_next_word)
{
    pair_begin(
        &(struct rig_options){.links = {.reopen_ns = 500 * NS_PER_MS, .called_ns = 4 * NS_PER_S}});
    p_to_d = rig_link(&p, &d);
    d_to_p = rig_link(&d, &p);
    pair_turns(5);
    struct rig_take take = {0};
    xfer_hub_cut(p.xfer, d.xfer, true); /* P's answers are lost */
    rig_take_start(&take, &d, d_to_p, rig_key(9, 1), rig_shape(4, 2), PIECE_BYTES);
    pair_turns(2100);
    CHECK_INT(take.status, STATUS_TIMEOUT);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_CONNECTING);
    CHECK_INT(d.changes[KV_LINK_CONNECTING], 2);
    pair_turns(1000);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_CONNECTING);
    xfer_hub_cut(p.xfer, d.xfer, false);
    pair_turns(600);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(d_to_p).epoch, 1);
    CHECK_INT(d.changes[KV_LINK_UP], 2);
    rig_take_finish(&take);
    /* and where no word comes for four seconds, they meet under a new epoch, over a new connection */
    xfer_hub_cut(p.xfer, d.xfer, true);
    rig_take_start(&take, &d, d_to_p, rig_key(10, 2), rig_shape(4, 2), PIECE_BYTES);
    pair_turns(2100 + 4500);
    xfer_hub_cut(p.xfer, d.xfer, false);
    pair_turns(6000);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
    CHECK(kv_link_info(d_to_p).epoch > 1);
    rig_take_finish(&take);
    pair_stop();
}

/* D's endpoint ends while the network is cut, so that P hears nothing of it and has nothing outstanding that could fail: P asks. */
TEST(link, an_end_that_was_lost_on_the_way_is_asked_for)
{
    pair_begin(
        &(struct rig_options){.links = {.reopen_ns = 500 * NS_PER_MS, .idle_ns = 2 * NS_PER_S}});
    p_to_d = rig_link(&p, &d);
    d_to_p = rig_link(&d, &p);
    pair_turns(5);
    /* while all is well the question changes nothing */
    pair_turns(20000);
    CHECK_INT(p.changes[KV_LINK_UP], 1);
    CHECK_INT(d.changes[KV_LINK_UP], 1);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
    CHECK_INT(kv_links_counters(p.links)->links_stalled, 0);
    CHECK_INT(kv_link_info(p_to_d).epoch, 1);
    /* what D says is lost from here on, its end too; P has nothing to say */
    xfer_hub_cut(d.xfer, p.xfer, true);
    pair_turns(3900); /* the last word came at most 2 s earlier */
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    CHECK_INT(kv_links_counters(p.links)->links_stalled, 0);
    pair_turns(2200);
    CHECK_INT(kv_links_counters(p.links)->links_stalled, 1);
    CHECK(kv_link_info(p_to_d).state != KV_LINK_UP);
    xfer_hub_cut(d.xfer, p.xfer, false);
    pair_turns(6000);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(p_to_d).epoch, kv_link_info(d_to_p).epoch);
    CHECK(kv_link_info(p_to_d).epoch > 1);
    pair_stop();
}
