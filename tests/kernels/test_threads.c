/* The thread pool when it has the processors and when it has not, and where memory goes on hosts of several memory nodes. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/numa.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/share.h"
#include "tests/test.h"

/* --- the pool --- */

enum { ITEMS = 64, WORK = 4000 };

struct job {
    _Atomic uint32_t times[ITEMS];
    _Atomic uint32_t sum;
};

static void body(void *context, uint32_t item, unsigned worker)
{
    struct job *job = context;
    uint32_t x = item;
    for (int i = 0; i < WORK; i++)
        x = x * 1664525 + 1013904223;
    atomic_fetch_add(&job->times[item], 1);
    atomic_fetch_add(&job->sum, x);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Runs of the job on so many threads; every item once a run. Processor time of all threads. */
static double runs_cost(unsigned threads, uint32_t runs, uint32_t *sum_out)
{
    static struct job job;
    memset(&job, 0, sizeof job);
    struct cpu_pool *pool;
    CHECK_INT(cpu_pool_create(threads, NULL, &pool), STATUS_OK);
    double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (uint32_t run = 0; run < runs; run++)
        cpu_pool_run(pool, ITEMS, body, &job);
    double cost = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begin;
    for (int i = 0; i < ITEMS; i++)
        CHECK_INT(job.times[i], runs);
    cpu_pool_destroy(pool);
    *sum_out = job.sum;
    return cost;
}

/* Eight threads on one processor: whoever spins for a worker that does not run takes the processor that it would need. The work
 * itself is some 0.3 ms a run; threads that spun until the others came would take a scheduler's turn each, ten times that. */
TEST(threads, a_pool_without_its_processors_loses_little)
{
    cpu_set_t before, one;
    CHECK_INT(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &before)) {
            CPU_SET(cpu, &one);
            break;
        }
    CHECK_INT(sched_setaffinity(0, sizeof one, &one), 0);
    uint32_t alone, together;
    double least = runs_cost(1, 300, &alone), cost = runs_cost(8, 300, &together);
    CHECK_INT(sched_setaffinity(0, sizeof before, &before), 0);
    CHECK_INT(together, alone);
    CHECK_MSG(cost < 3 * least, "%.3f s of processor time, one thread %.3f s", cost, least);
}

TEST(threads, every_item_once_on_any_number)
{
    uint32_t expected, sum;
    runs_cost(1, 50, &expected);
    for (unsigned threads = 2; threads <= 9; threads++) {
        runs_cost(threads, 50, &sum);
        CHECK_INT(sum, expected);
    }
}

/* --- runs of panels --- */

enum { PANELS_MOST = 3000 };

struct share_job {
    struct cpu_share share;
    _Atomic uint8_t times[PANELS_MOST];
};

static void share_body(void *context, uint32_t item, unsigned worker)
{
    (void)item;
    struct share_job *job = context;
    uint32_t begin, end;
    while (cpu_share_take(&job->share, worker, &begin, &end)) {
        CHECK(begin < end && end <= PANELS_MOST);
        for (uint32_t p = begin; p < end; p++)
            atomic_fetch_add(&job->times[p], 1);
    }
}

TEST(threads, every_panel_once_whoever_takes_it)
{
    static struct share_job job;
    static const uint32_t counts[] = {1, 2, 3, 7, 36, 60, 192, PANELS_MOST};
    for (unsigned threads = 1; threads <= 9; threads++) {
        struct cpu_pool *pool = NULL;
        CHECK_INT(cpu_pool_create(threads, NULL, &pool), STATUS_OK);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            for (uint32_t least = 1; least <= 4; least *= 2) {
                memset((void *)job.times, 0, sizeof job.times);
                cpu_share_init(&job.share, counts[i], threads, least);
                cpu_pool_run(pool, threads, share_body, &job);
                for (uint32_t p = 0; p < PANELS_MOST; p++)
                    CHECK_INT(job.times[p], p < counts[i]);
            }
        }
        cpu_pool_destroy(pool);
    }
}

/* One that never comes loses nothing, and what the first takes of its own is in order, of the other's from the back. */
TEST(threads, who_comes_late_is_taken_from)
{
    static struct cpu_share share;
    cpu_share_init(&share, 100, 2, 2);
    uint32_t begin, end, next = 0, back = 100;
    while (next < 50) {
        CHECK(cpu_share_take(&share, 0, &begin, &end));
        CHECK_INT(begin, next);
        CHECK(end - begin >= 2 || end == 50);
        next = end;
    }
    while (back > 50) {
        CHECK(cpu_share_take(&share, 0, &begin, &end));
        CHECK_INT(end, back);
        back = begin;
    }
    CHECK(!cpu_share_take(&share, 0, &begin, &end) && !cpu_share_take(&share, 1, &begin, &end));
}

/* --- memory nodes --- */

/* A folder like the system's: `of` has each processor's node. */
static void host_make(char *root, const int *of, int cpus)
{
    char path[256];
    CHECK(mkdtemp(root));
    snprintf(path, sizeof path, "%s/cpu", root);
    CHECK_INT(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/node", root);
    CHECK_INT(mkdir(path, 0700), 0);
    for (int cpu = 0; cpu < cpus; cpu++) {
        snprintf(path, sizeof path, "%s/node/node%d", root, of[cpu]);
        (void)mkdir(path, 0700);
        snprintf(path, sizeof path, "%s/cpu/cpu%d", root, cpu);
        CHECK_INT(mkdir(path, 0700), 0);
        snprintf(path, sizeof path, "%s/cpu/cpu%d/node%d", root, cpu, of[cpu]);
        CHECK_INT(mkdir(path, 0700), 0);
    }
}

static void host_remove(const char *root)
{
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK_INT(system(command), 0);
}

TEST(threads, memory_nodes_are_those_of_the_processors)
{
    static const int of[8] = {0, 0, 0, 0, 2, 2, 2, 2}; /* node 1 has memory alone, or nothing */
    char root[] = "/tmp/baton-host-XXXXXX", path[64];
    host_make(root, of, 8);
    snprintf(path, sizeof path, "%s/node/node1", root);
    CHECK_INT(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/node/possible", root);
    CHECK_INT(mkdir(path, 0700), 0);
    const struct {
        struct cpu_list cpus;
        uint64_t wanted;
    } cases[] = {
        {{2, {1, 2}}, 1}, {{2, {4, 7}}, 4}, {{3, {0, 3, 4}}, 5}, {{1, {100}}, 0}, {{2, {6, 9}}, 4}};
    struct cpu_nodes nodes;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cpu_nodes_find(&cases[i].cpus, root, &nodes);
        CHECK_INT(nodes.of_host, 3);
        CHECK_INT(nodes.wanted, cases[i].wanted);
    }
    host_remove(root);
    cpu_nodes_find(&cases[0].cpus, root, &nodes); /* a system that does not say */
    CHECK_INT(nodes.of_host, 0);
    CHECK_INT(nodes.wanted, 0);
}

/* The policy of an address, as the system has it; -1: it does not say. */
static int policy_of(void *data)
{
    enum { AT_ADDRESS = 2 };
    int policy = -1;
    uint64_t mask[CPU_LIST_MAX / 64] = {0};
    if (syscall(SYS_get_mempolicy, &policy, mask, (unsigned long)CPU_LIST_MAX, data,
                (unsigned long)AT_ADDRESS))
        return -1;
    return policy;
}

TEST(threads, memory_is_placed_where_there_is_a_choice)
{
    const size_t bytes = 1 << 20;
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED);
    struct cpu_nodes nodes = {.of_host = 1, .wanted = 1};
    CHECK(!cpu_nodes_place(&nodes, data, bytes)); /* one node: nothing to choose */
    nodes = (struct cpu_nodes){.of_host = 2};
    CHECK(!cpu_nodes_place(&nodes, data, bytes)); /* nobody knows where the processors are */
    nodes = (struct cpu_nodes){.of_host = 2,
                               .wanted = 1}; /* as if there were two; the first is there */
    if (!cpu_nodes_place(&nodes, data, bytes) || policy_of(data) < 0) {
        munmap(data, bytes);
        TEST_SKIP("this system lets nobody choose a memory node");
    }
    CHECK_INT(policy_of(data), 1); /* preferred */
    memset(data, 1, bytes);
    munmap(data, bytes);
}
