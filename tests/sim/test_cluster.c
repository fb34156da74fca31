/* The whole cluster through storms: see storm.h. SIM_SEED=n runs one seed, SIM_SEEDS=n that many, SIM_TRACE=1 shows all. */
#include <stdarg.h>

#include "tests/sim/storm.h"
#include "tests/sim/virtual.h"
#include "tests/test.h"

void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

void sim_fail(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    storm_print();
    TEST_FAIL("SIM_SEED=%llu: %s", (unsigned long long)storm_seed, text);
    abort();
}

static void totals_print(const struct storm_totals *t)
{
    const unsigned long long *n = (const unsigned long long *)t;
    static const char *const names[] = {
        "seeds",    "requests",      "whole",         "cancelled",  "late",          "resumed",
        "kills",    "freezes",       "resets",        "partitions", "cuts",          "drains",
        "flips",    "router kills",  "role changes",  "replays",    "deaths",        "dropped",
        "given up", "leases over",   "mismatches",    "stale",      "cached tokens", "turns",
        "pieces",   "prompt tokens", "answer tokens", "swapped",    "recomputed",    "handed over"};
    printf("#");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        printf("%s %llu %s", i ? "," : "", n[i], names[i]);
    printf("; %.0f virtual seconds; the last request ended at most %.2f s after a storm (%llu)\n",
           (double)t->virtual_ns / 1e9, (double)t->calm_ns_max / 1e9,
           (unsigned long long)t->calm_seed);
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

TEST(cluster, every_request_ends_right_and_nothing_is_left)
{
    struct storm_totals totals = {0};
    bool one = getenv("SIM_SEED") != NULL;
    uint64_t begin = number_of("SIM_SEED", 1);
    uint64_t end = begin + (one ? 1 : number_of("SIM_SEEDS", 2000));
    trace_on = getenv("SIM_TRACE") != NULL;
    for (uint64_t seed = begin; seed < end; seed++)
        storm_run(seed, &totals);
    totals_print(&totals);
}
