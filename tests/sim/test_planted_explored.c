/* Each fault of base/plant.h is planted, and the explorer finds it: in a child, in the small cluster named beside it, up to the first
 * state in which something does not hold. The same cluster without it is looked at in test_explore.c (SIM_PLANT=NOTHING SIM_ONLY=NAME
 * explores one of these here). SIM_PLANT=NAME SIM_PATH=1,0,2 shows one path, with SIM_TRACE=1.
 *
 * Beside each stands what its cluster needs for it, and what is to be said: another violation does not count. Where things move in one
 * order only (`straight`), three requests at three moments are more than all orders could be walked with. */
#include "tests/sim/cluster.h"
#include "tests/sim/explore.h"
#include "tests/sim/planting.h"

#define SMALL .page_tokens = 4, .steps_in_flight = 1, .states_max = 100000
#define TINY SMALL, .faults_max = 1
#define THREE SMALL, .faults_max = 3
#define EXPLORED_TABLE(X)                                                                                                          \
    /* one node, where two wait for two pages that become free when a client goes */                                               \
    X(PAGES_ONE_BY_ONE, SHORT, "no progress", .roles = "m", .requests = {{5, 3}, {5, 3}, {5, 3}},                                  \
      .request_count = 3, .boast = true, .pages = 2, .layers = 1, .straight = true,                                                \
      .faults = FAULT_CANCEL, TINY)                                                                                                \
    /* the oldest comes again after a fault, behind one that waits already */                                                      \
    X(NO_AGE_ORDER, SHORT, "gave them to an older one", .roles = "mm",                                                             \
      .requests = {{5, 3}, {5, 3}, {5, 3}}, .request_count = 3, .boast = true, .pages = 2,                                         \
      .layers = 1, .straight = true, .faults = FAULT_RESET, TINY)                                                                  \
    /* a client goes in mid-step */                                                                                                \
    X(FREED_WHILE_RUNNING, SHORT, "let go of while a layer runs", .roles = "pd",                                                   \
      .requests = {{3, 2}}, .request_count = 1, .pages = 2, .layers = 2, .faults = FAULT_CANCEL,                                   \
      TINY)                                                                                                                        \
    /* D's stream breaks, and the request comes back to P */                                                                       \
    X(ONE_LEG_ENDED, LONG, "are of the same request", .roles = "pd", .requests = {{3, 2}},                                         \
      .request_count = 1, .pages = 2, .layers = 1, .faults = FAULT_RESET, TINY)                                                    \
    /* P dies when D has one page of two */                                                                                        \
    X(KEPT_OUTSIDE_CACHE, SHORT, "pages in block tables", .roles = "pd", .requests = {{6, 3}},                                     \
      .request_count = 1, .pages = 3, .layers = 1, .faults = FAULT_KILL, TINY)                                                     \
    /* what one P sends stands still, and D gives up; another P is there */                                                        \
    X(NO_FRESH_HEARTBEAT, SHORT, "before a newer heartbeat", .roles = "ppd", .requests = {{3, 3}},                                 \
      .request_count = 1, .pages = 2, .layers = 1, .straight = true, .faults = FAULT_HOLD_KV,                                      \
      TINY)                                                                                                                        \
    /* the link ends while pieces are on it */                                                                                     \
    X(OUTLIVES_ENDPOINT, LONG, "link_fail: Assertion", .roles = "pd", .requests = {{3, 2}},                                        \
      .request_count = 1, .pages = 2, .layers = 1, .faults = FAULT_KILL, TINY)                                                     \
    /* a queue of three messages, a node that stands still with all three requests, and two clients that go (without the fault a \
     * node that comes back does not get through such a queue: this cluster has no other use) */ \
    X(ROUTER_WAITS, LONG, "process 0 stands still", .roles = "m",                                                                  \
      .requests = {{3, 2}, {3, 2}, {3, 2}}, .request_count = 3, .pages = 6, .layers = 1,                                           \
      .queue_messages_max = 3, .window_bytes = 1, .straight = true,                                                                \
      .faults = FAULT_FREEZE | FAULT_CANCEL, THREE)

/* Without saved states (arena.h) LONG ones take 10 to 30 s of a core. */
enum length { SHORT, LONG };

static const struct explore_config *exploring;

void sim_fail(const char *format, ...)
{
    char where[300];
    va_list args;
    snprintf(where, sizeof where, "path %s", explore_where());
    va_start(args, format);
    planting_found(where, format, args);
}

static void look(const void *context)
{
    struct explore_result r;
    const char *path = getenv("SIM_PATH");
    exploring = context;
    trace_on = getenv("SIM_TRACE") != NULL;
    if (path) {
        explore_path(exploring, path);
        return;
    }
    explore(exploring, &r);
    printf("# %llu states, %s\n", (unsigned long long)r.states,
           r.complete ? "complete" : "NOT complete");
}

static void plant_and_find(enum plant plant, const struct explore_config *config, const char *name,
                           enum length length, const char *says)
{
    const char *only = getenv("SIM_PLANT");
    bool nothing = only && strcmp(only, "NOTHING") == 0;
    const char *one = nothing ? getenv("SIM_ONLY") : only;
    if (one && strcmp(one, name))
        return;
#ifdef BATON_SANITIZED
    if (length == LONG && !one && !getenv("SIM_SOAK"))
        TEST_SKIP(
            "takes too long under a sanitizer, where each path is run again from its beginning");
#endif
    (void)length;
    char text[600];
    bool found = planting_run(nothing ? PLANT_NOTHING : plant, look, config, text, sizeof text);
    printf("# %s%s: %s\n", name, nothing ? " not planted" : "", found ? text : "NOT FOUND");
    CHECK_MSG(!found || nothing || strstr(text, says), "%s was found by something else", name);
    CHECK_MSG(found != nothing, "%s %s", name,
              nothing ? "needs no fault to be found" : "was not found");
}

#define X(name_, length, says, ...)                                                \
    TEST(planted_explored, name_)                                                  \
    {                                                                              \
        static const struct explore_config config = {.name = #name_, __VA_ARGS__}; \
        plant_and_find(PLANT_##name_, &config, #name_, length, says);              \
    }
EXPLORED_TABLE(X)
#undef X
/* What breaks the order of deadlines needs seconds that pass while something computes, and here time passes only when nothing can move;
 * no message is altered here, and no sequence gives way in the middle of a page. So STOPS_LATE, GAPS_PASS, FLIPS_PASS and
 * PAGE_NOT_OPENED are for the storms alone. */
enum { STORMS_ALONE = 4 };
#define X(...) +1
_Static_assert(0 EXPLORED_TABLE(X) == PLANT_COUNT - 1 - STORMS_ALONE, "each fault is looked for");
#undef X
