/* The whole cluster through storms: see storm.h. SIM_SEED=n runs one seed, SIM_SEEDS=n that many from SIM_BEGIN on, SIM_TRACE=1 shows
 * all.
 *
 * Seeds know nothing of each other, so they are dealt out to SIM_JOBS processes (as many as there are cores, at most JOBS_MAX);
 * the first that fails ends all. An assertion of the code itself names its seed too. */
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/storm.h"
#include "tests/sim/virtual.h"
#include "tests/test.h"

#ifdef BATON_SANITIZED
enum { SEEDS = 300 };
#else
enum { SEEDS = 10000 };
#endif
enum { JOBS_MAX = 16 };

struct job {
    struct storm_totals totals;
    char failure[600]; /* empty: nothing failed */
};

static struct job *own; /* in a process of its own; NULL: this is the test */

void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

void sim_fail(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    storm_print();
    if (own) {
        snprintf(own->failure, sizeof own->failure, "SIM_SEED=%llu: %s",
                 (unsigned long long)storm_seed, text);
        fflush(stdout);
        _exit(1);
    }
    TEST_FAIL("SIM_SEED=%llu: %s", (unsigned long long)storm_seed, text);
    abort();
}

static void totals_print(const struct storm_totals *t)
{
    const unsigned long long *n = (const unsigned long long *)t;
    static const char *const names[] = {"seeds",           "requests",      "whole",
                                        "cancelled",       "late",          "resumed",
                                        "kills",           "freezes",       "resets",
                                        "partitions",      "cuts",          "drains",
                                        "flips",           "router kills",  "role changes",
                                        "replays",         "deaths",        "dropped",
                                        "given up",        "leases over",   "mismatches",
                                        "stale",           "cached tokens", "turns",
                                        "pieces",          "prompt tokens", "answer tokens",
                                        "swapped",         "recomputed",    "handed over",
                                        "prefixes fetched"};
    printf("#");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        printf("%s %llu %s", i ? "," : "", n[i], names[i]);
    printf("; %llu messages spoilt, %llu times noticed", (unsigned long long)t->spoilt,
           (unsigned long long)t->noticed);
    printf("; %.0f virtual seconds; the last request ended at most %.2f s after a storm (%llu)\n",
           (double)t->virtual_ns / 1e9, (double)t->calm_ns_max / 1e9,
           (unsigned long long)t->calm_seed);
}

static void totals_join(struct storm_totals *to, const struct storm_totals *of)
{
    if (of->calm_ns_max > to->calm_ns_max) {
        to->calm_ns_max = of->calm_ns_max;
        to->calm_seed = of->calm_seed;
    }
    uint64_t *sums = (uint64_t *)to;
    const uint64_t *parts = (const uint64_t *)of;
    for (size_t i = 0; i < offsetof(struct storm_totals, calm_ns_max) / sizeof *sums; i++)
        sums[i] += parts[i];
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static uint32_t jobs_wanted(uint64_t seeds)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t jobs = number_of("SIM_JOBS", cores > 0 ? (uint64_t)cores : 1);
    jobs = jobs > JOBS_MAX ? JOBS_MAX : jobs;
    return jobs > seeds ? (uint32_t)seeds : jobs ? (uint32_t)jobs : 1;
}

static pid_t job_begin(struct job *job, uint64_t begin, uint64_t end, uint32_t step)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid)
        return pid;
    own = job;
    for (uint64_t seed = begin; seed < end; seed += step) {
        snprintf(job->failure, sizeof job->failure, "SIM_SEED=%llu: it ended by a signal",
                 (unsigned long long)seed); /* an assertion, say */
        storm_run(seed, &job->totals);
    }
    job->failure[0] = '\0';
    fflush(stdout);
    _exit(0);
}

static double processor_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void storms_run(uint64_t begin, uint64_t end, struct storm_totals *totals)
{
    uint32_t count = jobs_wanted(end - begin), left = count;
    struct job *jobs = mmap(NULL, JOBS_MAX * sizeof *jobs, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(jobs != MAP_FAILED);
    pid_t pids[JOBS_MAX];
    for (uint32_t i = 0; i < count; i++)
        CHECK((pids[i] = job_begin(&jobs[i], begin + i, end, count)) > 0);
    bool failed = false;
    while (left) {
        int status;
        pid_t pid = wait(&status);
        uint32_t i = 0;
        while (i < count && pids[i] != pid)
            i++;
        if (i == count)
            continue;
        left--;
        pids[i] = 0;
        if (failed || (WIFEXITED(status) && !WEXITSTATUS(status) && !jobs[i].failure[0]))
            continue;
        failed = true;
        printf("# %s\n", jobs[i].failure);
        for (uint32_t k = 0; k < count; k++)
            if (pids[k])
                kill(pids[k], SIGKILL);
        memcpy(&jobs[0].failure, &jobs[i].failure, sizeof jobs[i].failure);
    }
    CHECK_MSG(!failed, "%s", jobs[0].failure);
    for (uint32_t i = 0; i < count; i++)
        totals_join(totals, &jobs[i].totals);
    munmap(jobs, JOBS_MAX * sizeof *jobs);
    printf("# %.2f ms of processor time a seed, %u at a time\n",
           processor_s() * 1e3 / (double)(end - begin), count);
}

TEST(cluster, every_request_ends_right_and_nothing_is_left)
{
    struct storm_totals totals = {0};
    trace_on = getenv("SIM_TRACE") != NULL;
    if (getenv("SIM_SEED")) {
        storm_run(number_of("SIM_SEED", 1), &totals);
    } else {
        uint64_t begin = number_of("SIM_BEGIN", 1);
        storms_run(begin, begin + number_of("SIM_SEEDS", SEEDS), &totals);
    }
    totals_print(&totals);
    /* what a storm is to show it must have met */
    CHECK(totals.seeds < 300 ||
          (totals.fetched && totals.swapped && totals.replays && totals.noticed));
}
