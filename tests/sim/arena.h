/* Memory that can be put back: everything allocated between arena_enter and arena_leave, and the program's own variables. A state of
 * the simulation is then a copy of bytes, and going back to it is copying them back, pointers and all.
 *
 * Takes the place of malloc and its friends in the program that links it; outside of enter and leave, and for other threads, they are
 * the C library's. Not under sanitizers, which have a malloc of their own: arena_works says so. */
#ifndef BATON_TESTS_SIM_ARENA_H
#define BATON_TESTS_SIM_ARENA_H

#include <stdbool.h>
#include <stddef.h>

bool arena_works(void);
void arena_enter(void);
void arena_leave(void);
/* Forgets all that was allocated: addresses begin again. */
void arena_reset(void);
/* A copy of the present takes so many bytes. */
size_t arena_bytes(void);
void arena_save(void *to);
void arena_restore(const void *from, size_t bytes);

/* The largest blocks, for whoever wants a copy to be smaller. */
void arena_print(void);

/* Memory of the caller's own, which arena_restore leaves alone: zeroed, and taken only as it is touched. */
void *arena_outside(size_t bytes);

#endif
