/* State machines checked at run time. A machine is an enum, a table of names and a table of allowed edges, side by side
 * with its diagram; sm_move asserts that the edge is in the table, so that a wrong transition stops the program where it
 * happens. Pure.
 *
 *     enum { DOOR_OPEN, DOOR_SHUT };
 *     static const struct sm_state door_states[] = {
 *         [DOOR_OPEN] = {"open", SM_TO(DOOR_SHUT)},
 *         [DOOR_SHUT] = {"shut", SM_TO(DOOR_OPEN)},
 *     };
 *     static const struct sm_table door_table = SM_TABLE("door", door_states);
 *
 * Owner: the thread that owns the object whose state it is. */
#ifndef BATON_BASE_SM_H
#define BATON_BASE_SM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct sm_state {
    const char *name;
    uint32_t next; /* bit n: the edge to state n exists */
};

struct sm_table {
    const char *name;
    const struct sm_state *states;
    unsigned count; /* at most 32 */
};

#define SM_TO(state) (UINT32_C(1) << (state))
#define SM_TABLE(name_, states_)                                                              \
    {                                                                                         \
        .name = (name_), .states = (states_), .count = sizeof(states_) / sizeof((states_)[0]) \
    }

static inline bool sm_allowed(const struct sm_table *table, unsigned from, unsigned to)
{
    return from < table->count && to < table->count && (table->states[from].next & SM_TO(to));
}

static inline const char *sm_name(const struct sm_table *table, unsigned state)
{
    return state < table->count ? table->states[state].name : "?";
}

/* Moves `*state` along an allowed edge; any other edge is our own bug and aborts with both names. */
static inline void sm_move(const struct sm_table *table, uint8_t *state, unsigned to)
{
    if (!sm_allowed(table, *state, to)) {
        fprintf(stderr, "%s: no edge from %s to %s\n", table->name, sm_name(table, *state),
                sm_name(table, to));
        abort();
    }
    *state = (uint8_t)to;
}

#endif
