/* Each fault of base/plant.h is planted, and the storm finds it: in a child, seed after seed, until something does not hold. That the
 * same seeds pass without it is test_cluster.c's business. SIM_PLANT=NAME SIM_SEED=n shows one alone, with SIM_TRACE=1. */
#include "tests/sim/fake_engine.h"
#include "tests/sim/planting.h"
#include "tests/sim/storm.h"
#include "tests/sim/virtual.h"

enum { SEEDS_MAX = 2000 };

void sim_fail(const char *format, ...)
{
    char where[40];
    va_list args;
    snprintf(where, sizeof where, "seed %llu", (unsigned long long)storm_seed);
    if (trace_on)
        storm_print();
    va_start(args, format);
    planting_found(where, format, args);
}

static void storms(const void *context)
{
    struct storm_totals totals = {0};
    const char *one = getenv("SIM_SEED");
    uint64_t begin = one ? strtoull(one, NULL, 0) : 1, end = one ? begin + 1 : begin + SEEDS_MAX;
    trace_on = getenv("SIM_TRACE") != NULL;
    for (uint64_t seed = begin; seed < end; seed++)
        storm_run(seed, &totals);
}

static void plant_and_find(enum plant plant, const char *name, const char *what)
{
    const char *only = getenv("SIM_PLANT");
    if (only && strcmp(only, name))
        return;
    char text[600];
    bool found = planting_run(plant, storms, NULL, text, sizeof text);
    printf("# %s: %s\n#     %s\n", name, what, found ? text : "NOT FOUND");
    CHECK_MSG(found, "%s was not found in %d storms", name, SEEDS_MAX);
}

#define X(name, what)                              \
    TEST(planted, name)                            \
    {                                              \
        plant_and_find(PLANT_##name, #name, what); \
    }
PLANT_TABLE(X)
#undef X
