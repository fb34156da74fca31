/* See pool.h.
 *
 *     gate   OPEN | WAITING | count of workers inside.   The job's fields are valid while OPEN is set or the count is > 0.
 *     round  counts jobs; sleeping workers wait for it to change.
 *
 * A worker enters by adding 1 to an open gate, so the caller, having closed the gate and seen count 0, owns the fields. */
#include "kernels/cpu/pool.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/cpu/futex.h"

#define GATE_OPEN UINT32_C(0x80000000)
#define GATE_WAITING UINT32_C(0x40000000)
#define GATE_COUNT UINT32_C(0x3fffffff)

struct cpu_worker {
    struct cpu_pool *pool;
    pthread_t thread;
    unsigned index;
};

struct cpu_pool {
    unsigned threads;
    unsigned started;
    const struct cpu_list *cpus; /* or NULL */
    struct cpu_worker *workers;  /* [threads - 1] */
    void (*body)(void *context, uint32_t item, unsigned worker);
    void *context;
    uint32_t items;
    _Alignas(64) _Atomic uint32_t next;
    _Alignas(64) _Atomic uint32_t gate;
    _Alignas(64) _Atomic uint32_t round;
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
};

static void run_items(struct cpu_pool *pool, unsigned worker)
{
    for (;;) {
        uint32_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= pool->items)
            return;
        pool->body(pool->context, item, worker);
    }
}

static void help(struct cpu_pool *pool, unsigned worker)
{
    uint32_t gate = atomic_load_explicit(&pool->gate, memory_order_relaxed);
    do {
        if (!(gate & GATE_OPEN))
            return;
    } while (!atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1));
    run_items(pool, worker);
    uint32_t before = atomic_fetch_sub(&pool->gate, 1);
    if ((before & GATE_WAITING) && (before & GATE_COUNT) == 1)
        futex_wake(&pool->gate, 1);
}

static void *worker_main(void *argument)
{
    struct cpu_worker *worker = argument;
    struct cpu_pool *pool = worker->pool;
    uint32_t seen = 0;
    if (pool->cpus)
        cpu_list_pin(pool->cpus, worker->index);
    while (!atomic_load(&pool->stop)) {
        for (int i = 0; i < SPIN_COUNT && atomic_load(&pool->round) == seen; i++)
            spin_pause();
        if (atomic_load(&pool->round) == seen) {
            atomic_fetch_add(&pool->sleepers, 1);
            futex_sleep(&pool->round, seen, NULL);
            atomic_fetch_sub(&pool->sleepers, 1);
        }
        seen = atomic_load(&pool->round);
        help(pool, worker->index);
    }
    return NULL;
}

enum status cpu_pool_create(unsigned threads, const struct cpu_list *cpus,
                            struct cpu_pool **pool_out)
{
    struct cpu_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (!pool)
        return STATUS_MEMORY;
    *pool = (struct cpu_pool){.threads = threads, .cpus = cpus};
    pool->workers = calloc(threads, sizeof *pool->workers);
    if (!pool->workers) {
        free(pool);
        return STATUS_MEMORY;
    }
    for (unsigned i = 0; i + 1 < threads; i++) {
        pool->workers[i] = (struct cpu_worker){.pool = pool, .index = i + 1};
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0) {
            cpu_pool_destroy(pool);
            return STATUS_DEVICE;
        }
        pool->started++;
    }
    *pool_out = pool;
    return STATUS_OK;
}

void cpu_pool_destroy(struct cpu_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->round, 1);
    futex_wake(&pool->round, INT_MAX);
    for (unsigned i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool);
}

unsigned cpu_pool_threads(const struct cpu_pool *pool)
{
    return pool ? pool->threads : 1;
}

void cpu_pool_run(struct cpu_pool *pool, uint32_t items,
                  void (*body)(void *context, uint32_t item, unsigned worker), void *context)
{
    if (!pool || pool->threads == 1 || items <= 1) {
        for (uint32_t item = 0; item < items; item++)
            body(context, item, 0);
        return;
    }
    assert(atomic_load(&pool->gate) == 0);
    pool->body = body;
    pool->context = context;
    pool->items = items;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store(&pool->gate, GATE_OPEN);
    atomic_fetch_add(&pool->round, 1);
    if (atomic_load(&pool->sleepers) > 0)
        futex_wake(&pool->round, (int)(items - 1 < INT_MAX ? items - 1 : INT_MAX));
    run_items(pool, 0);

    uint32_t gate = atomic_fetch_and(&pool->gate, ~GATE_OPEN) & ~GATE_OPEN;
    for (int i = 0; i < SPIN_COUNT && gate; i++) {
        spin_pause();
        gate = atomic_load(&pool->gate);
    }
    if (gate) {
        gate = atomic_fetch_or(&pool->gate, GATE_WAITING) | GATE_WAITING;
        while (gate & GATE_COUNT) {
            futex_sleep(&pool->gate, gate, NULL);
            gate = atomic_load(&pool->gate);
        }
        atomic_store(&pool->gate, 0);
    }
}
