/* Time. Durations and deadlines are in nanoseconds of CLOCK_MONOTONIC; wall-clock time never leaves the log.
 * Owner: any thread. */
#ifndef BATON_BASE_CLOCK_H
#define BATON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)
/* "Never", as a deadline. */
#define DEADLINE_NONE UINT64_MAX

#ifdef BATON_SIM
uint64_t
clock_now_ns(void); /* virtual: tests/sim/ compiles what it simulates against a clock of its own */
#else
static inline uint64_t clock_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}
#endif

#endif
