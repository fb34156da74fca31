/* See pair.h. */
#include "tests/kvtransfer/pair.h"

#include "tests/test.h"

struct xfer_hub *hub;
struct rig_node p, d;
struct kv_link *p_to_d, *d_to_p;
uint64_t now_ns;

void pair_turn(void)
{
    now_ns += NS_PER_MS;
    rig_node_round(&p, now_ns);
    rig_node_round(&d, now_ns);
}

void pair_turns(unsigned count)
{
    while (count--)
        pair_turn();
}

void pair_start_with(const struct rig_options *options)
{
    struct err err = ERR_INIT;
    now_ns = 1000 * NS_PER_S;
    CHECK(xfer_hub_create(1, 4, &hub, &err) == STATUS_OK);
    xfer_hub_set_automatic(hub, true);
    rig_node_start(&p, hub, NULL, options, 100);
    rig_node_start(&d, hub, NULL, options, 200);
    pair_turn();
    p_to_d = rig_link(&p, &d);
    d_to_p = rig_link(&d, &p);
    pair_turns(5);
    CHECK_INT(kv_link_info(p_to_d).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(d_to_p).state, KV_LINK_UP);
}

void pair_start(void)
{
    pair_start_with(NULL);
}

void pair_stop(void)
{
    rig_node_stop(&p);
    rig_node_stop(&d);
    xfer_hub_destroy(hub);
}

void pair_check_at_rest(void)
{
    CHECK_INT(kv_source_live(p.source), 0);
    CHECK_INT(kv_source_draining(p.source), 0);
    CHECK_INT(kv_sink_live(d.sink), 0);
    CHECK_INT(kv_sink_ending(d.sink), 0);
    CHECK_INT(kv_link_info(p_to_d).outstanding, 0);
    CHECK_INT(kv_link_info(d_to_p).outstanding, 0);
}

void pair_check_complete(const struct rig_give *give, const struct rig_take *take)
{
    CHECK_INT(take->ended, 1);
    CHECK_INT(take->status, STATUS_OK);
    CHECK_INT(take->released, 1);
    CHECK(rig_take_equal(take));
    CHECK_INT(give->ended, 1);
    CHECK_INT(give->status, STATUS_OK);
    CHECK_INT(give->released, 1);
}
