/* Every interleaving of small clusters: see explore.h. SIM_ONLY=NAME explores one of them, SIM_PATH=NAME:1,0,2 shows one path. */
#include <stdarg.h>
#include <time.h>

#include "tests/sim/cluster.h"
#include "tests/sim/explore.h"
#include "tests/test.h"

/* One request of one page, handed from P to D; its end and what can go wrong with it. */
#define SMALL .pages = 2, .layers = 1, .page_tokens = 4, .steps_in_flight = 1

static const struct explore_config configs[] = {
    {.name = "hand_off",
     .roles = "pd",
     .requests = {{3, 2}},
     .request_count = 1,
     SMALL,
     .states_max = 100000},
    {.name = "hand_off_fault",
     .roles = "pd",
     .requests = {{3, 2}},
     .request_count = 1,
     SMALL,
     .faults = FAULT_ALL,
     .faults_max = 1,
     .states_max = 1000000},
    {.name = "two_pages",
     .roles = "pd",
     .requests = {{6, 3}},
     .request_count = 1,
     .pages = 3,
     .layers = 2,
     .page_tokens = 4,
     .steps_in_flight = 2,
     .states_max = 1000000},
    {.name = "two_requests",
     .roles = "pd",
     .requests = {{3, 2}, {3, 2}},
     .request_count = 2,
     SMALL,
     .states_max = 1000000},
    {.name = "mixed",
     .roles = "mm",
     .requests = {{3, 2}, {3, 2}},
     .request_count = 2,
     SMALL,
     .states_max = 1000000},
    {.name = "mixed_boast",
     .roles = "mm",
     .requests = {{5, 3}, {5, 3}},
     .request_count = 2,
     .boast = true,
     SMALL,
     .states_max = 1000000},
    {.name = "three",
     .roles = "pd",
     .requests = {{3, 2}, {3, 2}, {3, 1}},
     .request_count = 3,
     SMALL,
     .states_max = 1000000},
    {.name = "pd_boast",
     .roles = "pd",
     .requests = {{5, 3}, {5, 3}},
     .request_count = 2,
     .boast = true,
     SMALL,
     .states_max = 1000000},
};
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

static void explore_one(const struct explore_config *config)
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
    struct explore_result r;
    double begin = seconds();
    explore(config, &r);
    printf("# %s: %llu states, %llu steps, %llu paths to their ends, %llu met a state seen before; "
           "%llu choices deep; %.1f s: %s\n",
           config->name, (unsigned long long)r.states, (unsigned long long)r.steps,
           (unsigned long long)r.ends, (unsigned long long)r.merged,
           (unsigned long long)r.depth_max, seconds() - begin,
           r.complete ? "complete" : "NOT complete");
    CHECK_MSG(r.complete, "%s has more than %llu states", config->name,
              (unsigned long long)config->states_max);
}

TEST(explore, hand_off)
{
    explore_one(&configs[0]);
}

TEST(explore, hand_off_fault)
{
    explore_one(&configs[1]);
}

TEST(explore, two_pages)
{
    explore_one(&configs[2]);
}

TEST(explore, two_requests)
{
    explore_one(&configs[3]);
}

TEST(explore, mixed)
{
    explore_one(&configs[4]);
}

TEST(explore, mixed_boast)
{
    explore_one(&configs[5]);
}

TEST(explore, three)
{
    explore_one(&configs[6]);
}

TEST(explore, pd_boast)
{
    explore_one(&configs[7]);
}
