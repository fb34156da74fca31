/* Every interleaving of small clusters: see explore.h. SIM_ONLY=NAME explores one of them, SIM_PATH=NAME:1,0,2 shows one path. */
#include <stdarg.h>
#include <time.h>

#include "tests/sim/cluster.h"
#include "tests/sim/explore.h"
#include "tests/test.h"

/*      name, seconds on one core or so, and the configuration */
#define SMALL .pages = 2, .layers = 1, .page_tokens = 4, .steps_in_flight = 1
#define FAULTS(count) .faults = FAULT_ALL, .faults_max = count
#define NEXT_TURN                                                                       \
    .roles = "pd", .requests = {{3, 6}, {9, 2}}, .request_count = 2, .next_turn = true, \
    .pages = 4, .layers = 1, .page_tokens = 4, .steps_in_flight = 1
#define EXPLORE_TABLE(X)                                                                                  \
    /* one request of one page goes from P to D */                                                        \
    X(hand_off, LIGHT, .roles = "pd", .requests = {{3, 2}}, .request_count = 1, SMALL,                    \
      .states_max = 10000)                                                                                \
    /* … of two pages in two runs of layers, with two steps in flight */                                \
    X(two_pages, LIGHT, .roles = "pd", .requests = {{6, 3}}, .request_count = 1, .pages = 3,              \
      .layers = 2, .page_tokens = 4, .steps_in_flight = 2, .states_max = 10000)                           \
    /* two nodes that do both */                                                                          \
    X(mixed, LIGHT, .roles = "mm", .requests = {{3, 2}, {3, 2}}, .request_count = 2, SMALL,               \
      .states_max = 10000)                                                                                \
    /* … which are given more than they have room for */                                                \
    X(mixed_boast, LIGHT, .roles = "mm", .requests = {{5, 3}, {5, 3}}, .request_count = 2,                \
      .boast = true, SMALL, .states_max = 10000)                                                          \
    /* the next turn of a conversation, whose pages D has and P fetches */                                \
    X(next_turn, HEAVY, NEXT_TURN, .states_max = 20000)                                                   \
    /* … and once something goes wrong, while everything else moves in one order; and in every order */ \
    X(next_turn_straight, HEAVY, NEXT_TURN, .straight = true, FAULTS(1), .states_max = 1000)              \
    X(next_turn_fault, SOAK, NEXT_TURN, FAULTS(1), .states_max = 2000000)                                 \
    /* everything that can go wrong, once, at every step of a hand-off */                                 \
    X(hand_off_fault, HEAVY, .roles = "pd", .requests = {{3, 2}}, .request_count = 1, SMALL,              \
      FAULTS(1), .states_max = 200000)                                                                    \
    X(mixed_fault, HEAVY, .roles = "mm", .requests = {{3, 2}, {3, 2}}, .request_count = 2, SMALL,         \
      FAULTS(1), .states_max = 200000)                                                                    \
    X(mixed_boast_fault, SOAK, .roles = "mm", .requests = {{5, 3}, {5, 3}}, .request_count = 2,           \
      .boast = true, SMALL, FAULTS(1), .states_max = 200000)                                              \
    /* twice, while everything else moves in one order: what may differ is what goes wrong, and when */   \
    X(hand_off_two_faults, SOAK, .roles = "pd", .requests = {{3, 2}}, .request_count = 1, SMALL,          \
      .straight = true, FAULTS(2), .states_max = 100000)                                                  \
    X(mixed_two_faults, SOAK, .roles = "mm", .requests = {{3, 2}, {3, 2}}, .request_count = 2,            \
      SMALL, .straight = true, FAULTS(2), .states_max = 100000)                                           \
    /* two requests on two pools with room for one and a half */                                          \
    X(boast, HEAVY, .roles = "pd", .requests = {{5, 3}, {5, 3}}, .request_count = 2,                      \
      .boast = true, SMALL, .states_max = 200000)                                                         \
    X(two_requests, SOAK, .roles = "pd", .requests = {{3, 2}, {3, 2}}, .request_count = 2, SMALL,         \
      .states_max = 400000)                                                                               \
    /* two pages, and once something goes wrong */                                                        \
    X(two_pages_fault, SOAK, .roles = "pd", .requests = {{6, 3}}, .request_count = 1, .pages = 3,         \
      .layers = 2, .page_tokens = 4, .steps_in_flight = 2, FAULTS(1), .states_max = 4000000)

/* Under sanitizers a state is reached again by its whole path: only what is light. SIM_SOAK=1: all. */
enum weight { LIGHT, HEAVY, SOAK };

#define X(name_, weight_, ...) {.name = #name_, __VA_ARGS__},
static const struct explore_config configs[] = {EXPLORE_TABLE(X)};
#undef X
#define X(name_, weight_, ...) CONFIG_##name_,
enum { EXPLORE_TABLE(X) CONFIG_COUNT };
#undef X

static const struct explore_config *exploring;

void sim_fail(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    TEST_FAIL("SIM_PATH=%s:%s: %s", exploring->name, explore_where(), text);
    abort();
}

static double seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void explore_one(const struct explore_config *config, enum weight weight)
{
    const char *only = getenv("SIM_ONLY"), *path = getenv("SIM_PATH");
    exploring = config;
    size_t name_bytes = strlen(config->name);
    if (path) {
        if (strncmp(path, config->name, name_bytes) || path[name_bytes] != ':')
            return;
        trace_on = true;
        explore_path(config, path + name_bytes + 1);
        return;
    }
    if (only && strcmp(only, config->name))
        return;
#ifdef BATON_SANITIZED
    if (weight > LIGHT && !only)
        TEST_SKIP("takes too long under a sanitizer");
#endif
    if (weight == SOAK && !only && !getenv("SIM_SOAK"))
        TEST_SKIP("part of ./dev test soak");
    struct explore_result r;
    double begin = seconds();
    explore(config, &r);
    printf("# %s: %llu states, %llu steps, %llu paths to their ends, %llu met a state seen before "
           "(of %llu was seen that they go on alike); %llu choices deep; %.1f s: %s\n",
           config->name, (unsigned long long)r.states, (unsigned long long)r.steps,
           (unsigned long long)r.ends, (unsigned long long)r.merged, (unsigned long long)r.checked,
           (unsigned long long)r.depth_max, seconds() - begin,
           r.complete ? "complete" : "NOT complete");
    /* a fault may end the request before, or make it whole without a fetch */
    CHECK_MSG(!config->next_turn || r.fetches >= (config->faults_max ? 1 : r.ends),
              "nothing was fetched on some path");
    CHECK_MSG(r.complete, "%s has more than %llu states", config->name,
              (unsigned long long)config->states_max);
}

#define X(name_, weight_, ...)                          \
    TEST(explore, name_)                                \
    {                                                   \
        explore_one(&configs[CONFIG_##name_], weight_); \
    }
EXPLORE_TABLE(X)
#undef X
