/* Sleeping until a 32-bit word changes (Linux futex, private to the process), and a pause for spin loops.
 * Owner: any thread. */
#ifndef BATON_KERNELS_CPU_FUTEX_H
#define BATON_KERNELS_CPU_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_COUNT = 1000 }; /* pauses before sleeping: 10 to 40 microseconds */

/* Returns when woken, when *word != seen, at the timeout (NULL: none), or for no reason: check again. */
static inline void futex_sleep(_Atomic uint32_t *word, uint32_t seen,
                               const struct timespec *timeout)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, timeout, NULL, 0);
}

static inline void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
