/* See prefault.h. */
#include "kernels/cpu/prefault.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum {
    PIECE_BYTES = 2 << 20,
    NICENESS = 10,
    REST = 3,         /* times as long as it worked */
    LOOK_PIECES = 16, /* between two looks at the system's memory */
    SPARE_PART = 8,   /* at least this part of the system's memory stays available */
};

/* A value of /proc/meminfo in KiB; 0: not there. */
static uint64_t meminfo_kib(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    unsigned long long kib = 0;
    return at && sscanf(at + strlen(key), ": %llu kB", &kib) == 1 ? kib : 0;
}

/* True when the system says so, or does not say. */
static bool scarce(void)
{
    char text[512];
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return true;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    return meminfo_kib(text, "MemAvailable") <= meminfo_kib(text, "MemTotal") / SPARE_PART;
}

static void *run(void *context)
{
    struct cpu_prefault *prefault = context;
    (void)pthread_setname_np(pthread_self(), "prefault"); /* so that one sees when it has ended */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICENESS); /* this thread's alone, on Linux */
    for (size_t at = 0, pieces = 0; at < prefault->bytes; pieces++) {
        if (atomic_load_explicit(&prefault->stop, memory_order_relaxed) ||
            (pieces % LOOK_PIECES == 0 && scarce()))
            break;
        size_t bytes = prefault->bytes - at < PIECE_BYTES ? prefault->bytes - at : PIECE_BYTES;
        uint64_t began_ns = clock_now_ns();
        int result;
        do
            result = madvise(prefault->data + at, bytes, MADV_POPULATE_WRITE);
        while (result && (errno == EAGAIN || errno == EINTR));
        if (result)
            break;
        at += bytes;
        atomic_store_explicit(&prefault->done_bytes, at, memory_order_relaxed);
        uint64_t rest_ns = REST * (clock_now_ns() - began_ns);
        if (rest_ns > 100000000)
            rest_ns = 100000000; /* not what somebody else's work took from it */
        nanosleep(&(struct timespec){.tv_nsec = (long)rest_ns}, NULL);
    }
    return NULL;
}

void cpu_prefault_begin(struct cpu_prefault *prefault, void *data, size_t bytes)
{
    prefault->data = data;
    prefault->bytes = bytes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    prefault->started = pthread_create(&prefault->thread, NULL, run, prefault) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void cpu_prefault_end(struct cpu_prefault *prefault)
{
    if (!prefault->started)
        return;
    atomic_store_explicit(&prefault->stop, true, memory_order_relaxed);
    pthread_join(prefault->thread, NULL);
    prefault->started = false;
}
