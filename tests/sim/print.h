/* A state as a row of named numbers: hashed for the explorer, shown when two states that should be one are not. */
#ifndef BATON_TESTS_SIM_PRINT_H
#define BATON_TESTS_SIM_PRINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/sim/virtual.h"

struct print {
    uint64_t hash;
    bool show; /* also as text */
};

static inline void print_value(struct print *print, const char *name, uint64_t value)
{
    print->hash = mix64(print->hash ^ value) + UINT64_C(0x2545f4914f6cdd1d);
    if (print->show)
        printf("%s=%llx ", name, (unsigned long long)value);
}

static inline void print_bytes(struct print *print, const char *name, const void *data,
                               size_t bytes)
{
    const uint8_t *at = data;
    uint64_t hash = bytes;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        for (size_t k = 0; k < 8 && i + k < bytes; k++)
            word |= (uint64_t)at[i + k] << 8 * k;
        hash = mix64(hash ^ word) + i;
    }
    print_value(print, name, hash);
}

static inline void print_head(struct print *print, const char *what, uint64_t number)
{
    if (print->show)
        printf("\n#   %s %llu: ", what, (unsigned long long)number);
    print_value(print, "", number + 1);
}

/* An expression under its own name. */
#define PRINT(print, expression) print_value((print), #expression, (uint64_t)(expression))

#endif
