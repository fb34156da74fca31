/* A hundred thousand faults (BATON_FAULTS_COUNT says another number) in the hand-off between two nodes, of every kind, in both
 * directions: no wrong byte passes for a right one, the counter of damaged pieces is the number of those that were hit, exactly,
 * and when the faults end everything ends and nothing is left.
 *
 * What rig.c checks on the way: a piece passes the checksum if and only if its bytes are the giver's own. */
#include "tests/kvtransfer/rig.h"
#include "tests/test.h"

enum { GIVES = 12, PIECE_BYTES = 256, BLOCKS = 9, RUNS = 3 };

struct slot {
    bool active;
    struct rig_give give;
    struct rig_take take;
    bool rotten; /* a piece of the giver's was hit at rest */
};

struct storm {
    struct xfer_hub *hub;
    struct faults *faults, *rest;
    struct rig_node nodes[2];
    struct kv_link *links[2];
    struct slot slots[GIVES];
    uint64_t now_ns, id, numbers[2];
    uint64_t transfers, complete, failed[STATUS_COUNT], rotten, damaged;
    uint64_t served_bytes;
};

static void turn(struct storm *storm)
{
    storm->now_ns += NS_PER_MS;
    for (int i = 0; i < 2; i++)
        rig_node_round(&storm->nodes[i], storm->now_ns);
}

static void storm_start(struct storm *storm, const char *spec, uint64_t seed)
{
    struct err err = ERR_INIT;
    char words[512];
    memset(storm, 0, sizeof *storm);
    storm->now_ns = 1000 * NS_PER_S;
    snprintf(words, sizeof words, "seed=%llu %s", (unsigned long long)seed, spec);
    CHECK_MSG(!faults_create(words, &storm->faults, &err), "%s", err.message);
    CHECK(!xfer_hub_create(seed, 2, &storm->hub, &err));
    xfer_hub_set_automatic(storm->hub, true);
    const struct rig_options options = {.links = {.reopen_ns = 200 * NS_PER_MS},
                                        .faults = storm->faults};
    for (int i = 0; i < 2; i++) {
        rig_node_start(&storm->nodes[i], storm->hub, NULL, &options, 100 + (uint64_t)i);
        rig_node_round(&storm->nodes[i], storm->now_ns);
    }
    for (int i = 0; i < 2; i++)
        storm->links[i] = rig_link(&storm->nodes[i], &storm->nodes[1 - i]);
}

/* In either direction; a giver's sealed pieces may rot before they leave. */
static void slot_start(struct storm *storm, struct slot *slot)
{
    uint64_t id = ++storm->id;
    int from = (int)(id & 1);
    slot->active = true;
    struct kv_key key = rig_key(id, ++storm->numbers[from]);
    slot->take = (struct rig_take){0};
    rig_give_start(&slot->give, &storm->nodes[from], key, rig_shape(BLOCKS, RUNS), PIECE_BYTES);
    CHECK_INT(slot->give.opened, STATUS_OK);
    rig_give_all(&slot->give, (uint32_t)id);
    slot->rotten = false;
    for (uint32_t i = 0; i < slot->give.piece_count; i++) {
        faults_next(storm->faults, FAULTS_REST);
        if (faults_hit(storm->faults, FAULTS_REST, FAULTS_FLIP)) {
            faults_flip_bit(storm->faults, FAULTS_REST, slot->give.data + i * PIECE_BYTES,
                            PIECE_BYTES);
            slot->rotten = true;
        }
    }
    rig_take_start(&slot->take, &storm->nodes[1 - from], storm->links[1 - from], key,
                   slot->give.shape, PIECE_BYTES);
}

static bool slot_finish(struct storm *storm, struct slot *slot)
{
    bool taken = slot->take.begun || slot->take.released;
    if (!taken || !slot->give.released)
        return false;
    storm->transfers++;
    storm->damaged += slot->give.damaged;
    CHECK(slot->give.damaged == 0 || slot->rotten);
    if (!slot->take.begun && slot->take.status == STATUS_OK) {
        CHECK(rig_take_equal(&slot->take));
        CHECK(!slot->rotten);
        CHECK_INT(slot->take.token_id, (uint32_t)slot->take.key.transfer.low);
        storm->complete++;
    } else if (!slot->take.begun) {
        CHECK(rig_take_untouched(&slot->take));
        storm->failed[slot->take.status]++;
    }
    rig_give_finish(&slot->give);
    rig_take_finish(&slot->take);
    slot->active = false;
    return true;
}

static void storm_round(struct storm *storm, bool start)
{
    turn(storm);
    for (int i = 0; i < GIVES; i++) {
        struct slot *slot = &storm->slots[i];
        if (slot->active)
            slot_finish(storm, slot);
        if (!slot->active && start && kv_link_info(storm->links[0]).state == KV_LINK_UP &&
            kv_link_info(storm->links[1]).state == KV_LINK_UP)
            slot_start(storm, slot);
    }
}

static bool storm_idle(const struct storm *storm)
{
    for (int i = 0; i < GIVES; i++)
        if (storm->slots[i].active)
            return false;
    return true;
}

static void storm_stop(struct storm *storm)
{
    for (int i = 0; i < 2; i++)
        rig_node_stop(&storm->nodes[i]);
    xfer_hub_destroy(storm->hub);
    faults_destroy(storm->faults);
}

static void storm_check(struct storm *storm)
{
    uint64_t refused = 0, hit = 0, stray = 0, damaged = 0;
    for (int i = 0; i < 2; i++) {
        const struct rig_node *node = &storm->nodes[i];
        const struct kv_counters *counters = kv_links_counters(node->links);
        refused += counters->checksum_failures;
        damaged += counters->pieces_damaged;
        hit += node->hit_in_flight + node->hit_at_rest;
        stray += node->hit_too_late;
        CHECK_INT(node->hit_in_flight + node->hit_at_rest, counters->checksum_failures);
        CHECK_INT(node->flipped_count, 0);
        CHECK(node->hit_too_late <= counters->pieces_unverified);
        CHECK_INT(kv_source_live(node->source) + kv_source_draining(node->source), 0);
        CHECK_INT(kv_sink_live(node->sink) + kv_sink_ending(node->sink), 0);
        CHECK_INT(kv_link_info(storm->links[i]).outstanding, 0);
    }
    uint64_t in_flight = storm->nodes[0].hit_in_flight + storm->nodes[1].hit_in_flight;
    CHECK_INT(refused, hit);
    CHECK_INT(in_flight + stray, faults_count(storm->faults, FAULTS_PIECE, FAULTS_FLIP));
    CHECK_INT(damaged, storm->damaged);
    fprintf(
        stderr,
        "# %llu faults, %llu transfers, %llu complete, %llu pieces refused (%llu hit in flight, "
        "%llu at rest), "
        "%llu hit too late to matter, %llu givers found their own damage\n",
        (unsigned long long)faults_total(storm->faults), (unsigned long long)storm->transfers,
        (unsigned long long)storm->complete, (unsigned long long)refused,
        (unsigned long long)in_flight, (unsigned long long)(refused - in_flight),
        (unsigned long long)stray, (unsigned long long)damaged);
    for (int place = 0; place < FAULTS_PLACE_COUNT; place++)
        for (int kind = 0; kind < FAULTS_KIND_COUNT; kind++) {
            uint64_t count =
                faults_count(storm->faults, (enum faults_place)place, (enum faults_kind)kind);
            if (count)
                fprintf(stderr, "#   %s.%s %llu\n", faults_place_text((enum faults_place)place),
                        faults_kind_text((enum faults_kind)kind), (unsigned long long)count);
        }
    for (int status = 0; status < STATUS_COUNT; status++)
        if (storm->failed[status])
            fprintf(stderr, "#   ended with \"%s\": %llu\n", status_text((enum status)status),
                    (unsigned long long)storm->failed[status]);
}

static uint64_t number_from(const char *name, uint64_t initial)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : initial;
}

TEST(faults, a_hundred_thousand_change_no_byte_and_are_counted_exactly)
{
    static const char spec[] =
        "frame.drop=0.02 frame.delay=0.03 frame.duplicate=0.04 frame.reorder=0.03 frame.flip=0.02 "
        "frame.stall=0.0001 piece.drop=0.01 piece.delay=0.04 piece.duplicate=0.04 "
        "piece.reorder=0.04 piece.flip=0.02 piece.stall=0.00002 rest.flip=0.0005 "
        "delay_ms=40 stall_ms=6000 max=%llu";
    static struct storm storm;
    char words[512];
    uint64_t count = number_from("BATON_FAULTS_COUNT", 100000);
    uint64_t seed = number_from("BATON_FAULTS_SEED", 1);
    snprintf(words, sizeof words, spec, (unsigned long long)count);
    fprintf(stderr, "# seed %llu\n", (unsigned long long)seed);
    storm_start(&storm, words, seed);
    while (faults_total(storm.faults) < count)
        storm_round(&storm, true);
    for (int i = 0; i < 30000 && !storm_idle(&storm); i++)
        storm_round(&storm, false);
    CHECK(storm_idle(&storm)); /* with the faults over, everything ends */
    storm_check(&storm);
    CHECK(storm.complete > storm.transfers / 2);
    for (int kind = 0; kind < FAULTS_KIND_COUNT; kind++) {
        CHECK(faults_count(storm.faults, FAULTS_FRAME, (enum faults_kind)kind) > 0);
        CHECK(faults_count(storm.faults, FAULTS_PIECE, (enum faults_kind)kind) > 0);
    }
    CHECK(storm.nodes[0].hit_at_rest + storm.nodes[1].hit_at_rest > 0);
    CHECK(storm.damaged > 0);
    /* and afterwards it is as if nothing had been */
    uint64_t complete = storm.complete, until = storm.transfers + 100;
    for (int i = 0; i < 10000 && kv_link_info(storm.links[0]).state != KV_LINK_UP; i++)
        storm_round(&storm, false);
    while (storm.transfers < until)
        storm_round(&storm, true);
    while (!storm_idle(&storm))
        storm_round(&storm, false);
    CHECK_INT(storm.complete - complete, storm.transfers - (until - 100));
    storm_stop(&storm);
}

/* One seed gives one course, another seed another. */
TEST(faults, a_seed_comes_again)
{
    static const char spec[] =
        "frame.drop=0.05 frame.delay=0.05 piece.flip=0.05 piece.reorder=0.05";
    static struct storm storm;
    uint64_t seen[3][4];
    for (int run = 0; run < 3; run++) {
        storm_start(&storm, spec, run < 2 ? 7 : 8);
        for (int i = 0; i < 3000; i++)
            storm_round(&storm, true);
        seen[run][0] = faults_total(storm.faults);
        seen[run][1] = storm.transfers;
        seen[run][2] = storm.complete;
        seen[run][3] = storm.nodes[0].hit_in_flight;
        for (int i = 0; i < 30000 && !storm_idle(&storm); i++)
            storm_round(&storm, false);
        storm_stop(&storm);
    }
    CHECK(memcmp(seen[0], seen[1], sizeof seen[0]) == 0);
    CHECK(memcmp(seen[0], seen[2], sizeof seen[0]) != 0);
}

TEST(faults, words_that_are_wrong_are_named)
{
    static const struct {
        const char *spec, *message;
    } rows[] = {
        {"seed", "faults: \"seed\" is not KEY=VALUE"},
        {"frame.explode=0.1", "faults: unknown key \"frame.explode\""},
        {"box.drop=0.1", "faults: unknown key \"box.drop\""},
        {"frame.drop=1.5", "faults: frame.drop: \"1.5\" is not a number from 0 to 1"},
        {"seed=x", "faults: seed: \"x\" is not a number from 0 to 10^15"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err err = ERR_INIT;
        struct faults *faults = NULL;
        CHECK_INT(faults_create(rows[i].spec, &faults, &err), STATUS_CONFIG);
        CHECK_STR(err.message, rows[i].message);
    }
}
