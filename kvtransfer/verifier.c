/* See verifier.h. */
#include "kvtransfer/verifier.h"

#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

struct verifier {
    void (*verified)(void *context, const struct verifier_job *job);
    void *context;
    struct verifier_job *jobs; /* [jobs_max] */
    uint32_t jobs_max;
    uint32_t told; /* the loop's: jobs that verified() was called for */
    struct loop_waker waker;
    bool waker_ready, thread_ready;
    pthread_t thread;
    sem_t bell;             /* posted when jobs come while the thread sleeps */
    _Atomic uint32_t added; /* the loop's */
    _Atomic uint32_t done;  /* the thread's */
    _Atomic bool asleep, stop;
};

static void *run(void *context)
{
    struct verifier *v = context;
    for (uint32_t at = 0;;) {
        if (atomic_load(&v->stop))
            return NULL;
        if (at == atomic_load(&v->added)) {
            atomic_store(&v->asleep, true);
            if (at == atomic_load(&v->added) && !atomic_load(&v->stop))
                while (sem_wait(&v->bell))
                    ;
            atomic_store(&v->asleep, false);
            continue;
        }
        struct verifier_job *job = &v->jobs[at++];
        job->good = kv_checksum(job->memory, job->bytes) == job->checksum;
        atomic_store(&v->done, at);
        loop_waker_wake(&v->waker);
    }
}

static void woken(void *context)
{
    struct verifier *v = context;
    uint32_t done = atomic_load(&v->done);
    while (v->told < done)
        v->verified(v->context, &v->jobs[v->told++]);
}

enum status verifier_create(struct loop *loop, uint32_t jobs_max,
                            void (*verified)(void *context, const struct verifier_job *job),
                            void *context, struct verifier **verifier_out, struct err *err)
{
    struct verifier *v = calloc(1, sizeof *v);
    if (!v)
        return err_set(err, STATUS_MEMORY, "verifier: no memory");
    sem_init(&v->bell, 0, 0);
    v->verified = verified;
    v->context = context;
    v->jobs_max = jobs_max;
    v->jobs = calloc(jobs_max, sizeof *v->jobs);
    enum status status = v->jobs ? loop_waker_init(loop, &v->waker, woken, v, err)
                                 : err_set(err, STATUS_MEMORY, "verifier: no memory");
    v->waker_ready = !status;
    if (!status) {
        v->thread_ready = pthread_create(&v->thread, NULL, run, v) == 0;
        if (!v->thread_ready)
            status = err_set(err, STATUS_MEMORY, "verifier: no thread");
    }
    if (status) {
        verifier_destroy(v);
        return status;
    }
    *verifier_out = v;
    return STATUS_OK;
}

static void ring(struct verifier *v)
{
    if (atomic_exchange(&v->asleep, false))
        sem_post(&v->bell);
}

void verifier_add(struct verifier *v, const struct verifier_job *job)
{
    uint32_t at = atomic_load(&v->added);
    assert(at < v->jobs_max);
    v->jobs[at] = *job;
    atomic_store(&v->added, at + 1);
    ring(v);
}

void verifier_destroy(struct verifier *v)
{
    if (!v)
        return;
    if (v->thread_ready) {
        atomic_store(&v->stop, true);
        ring(v);
        pthread_join(v->thread, NULL);
    }
    if (v->waker_ready)
        loop_waker_finish(&v->waker);
    sem_destroy(&v->bell);
    free(v->jobs);
    free(v);
}
