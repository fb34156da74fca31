/* Time and chance of the simulation: what production code compiled with -DBATON_SIM gets from clock_now_ns, from base/random.h
 * and from a loop that sleeps. One world at a time; one thread. */
#ifndef BATON_TESTS_SIM_VIRTUAL_H
#define BATON_TESTS_SIM_VIRTUAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop.h"

/* --- chance: splitmix64, one stream for each purpose --- */
struct dice {
    uint64_t state;
};
uint64_t dice_u64(struct dice *dice);
/* Below `sides`; 0 when that is 0. */
uint32_t dice_below(struct dice *dice, uint32_t sides);
uint64_t dice_between(struct dice *dice, uint64_t low, uint64_t high); /* both may come */
bool dice_chance(struct dice *dice, uint32_t parts, uint32_t of);

/* One round of a good mixing function. */
static inline uint64_t mix64(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

/* --- the world's clock, and what random_u64 draws from --- */
void virtual_start(uint64_t now_ns, uint64_t random_seed);
void virtual_time(uint64_t now_ns); /* never backwards */
/* From now on random_u64 draws for this process: each has a stream of its own, so that what one draws does not depend on others. */
void virtual_random_for(uint32_t process);
uint64_t virtual_random_state(uint32_t process);

/* --- loops: the owner of a loop lets it sleep, and turns it when its time has come --- */
/* PREPARE; when it wants to turn at the latest. */
uint64_t virtual_loop_sleep(struct loop *loop);
/* One round now; `planned_ns` is what virtual_loop_sleep said. */
void virtual_loop_turn(struct loop *loop, uint64_t planned_ns);
/* A waker was used since the last turn. */
bool virtual_loop_woken(const struct loop *loop);

/* --- a line of the trace, when SIM_TRACE is set --- */
extern bool trace_on;
void trace_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define trace(...)                   \
    do {                             \
        if (trace_on)                \
            trace_line(__VA_ARGS__); \
    } while (0)

#endif
