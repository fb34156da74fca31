/* Each fault of base/plant.h is planted, and the storm finds it: in a child, seed after seed, until something does not hold. That the
 * same seeds pass without it is test_cluster.c's business. SIM_PLANT=NAME SIM_SEED=n shows one alone, with SIM_TRACE=1. */
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/plant.h"
#include "tests/sim/fake_engine.h"
#include "tests/sim/storm.h"
#include "tests/sim/virtual.h"
#include "tests/test.h"

enum { SEEDS_MAX = 2000 };

static int report_fd = -1; /* of the child */

void sim_fail(const char *format, ...)
{
    char text[600];
    int used = snprintf(text, sizeof text, "seed %llu: ", (unsigned long long)storm_seed);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, sizeof text - (size_t)used, format, args);
    va_end(args);
    if (trace_on)
        storm_print();
    ssize_t ignored = write(report_fd, text, strlen(text));
    (void)ignored;
    fflush(stdout);
    _exit(1);
}

static void child_run(enum plant plant)
{
    struct storm_totals totals = {0};
    const char *one = getenv("SIM_SEED");
    uint64_t begin = one ? strtoull(one, NULL, 0) : 1, end = one ? begin + 1 : begin + SEEDS_MAX;
    trace_on = getenv("SIM_TRACE") != NULL;
    planted = plant;
    for (uint64_t seed = begin; seed < end; seed++)
        storm_run(seed, &totals);
    _exit(0);
}

static void plant_and_find(enum plant plant, const char *name, const char *what)
{
    const char *only = getenv("SIM_PLANT");
    if (only && strcmp(only, name))
        return;
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        report_fd = pipes[1];
        if (!getenv("SIM_TRACE"))
            dup2(report_fd, STDERR_FILENO); /* what an assertion says */
        child_run(plant);
    }
    close(pipes[1]);
    char text[600] = "";
    size_t used = 0;
    ssize_t n;
    while (used < sizeof text - 1 && (n = read(pipes[0], text + used, sizeof text - 1 - used)) > 0)
        used += (size_t)n;
    close(pipes[0]);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    bool found = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    printf("# %s: %s\n#     %s\n", name, what,
           !found  ? "NOT FOUND"
           : *text ? text
                   : "an assertion of the code itself");
    CHECK_MSG(found, "%s was not found in %d storms", name, SEEDS_MAX);
}

#define X(name, what)                              \
    TEST(planted, name)                            \
    {                                              \
        plant_and_find(PLANT_##name, #name, what); \
    }
PLANT_TABLE(X)
#undef X
