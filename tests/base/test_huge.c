/* Large memory: zeros, alignment, that pieces are apart, and what cannot be had. */
#include <stdint.h>
#include <string.h>

#include "base/huge.h"
#include "tests/test.h"

TEST(huge, zeros_that_nobody_else_has)
{
    static const size_t sizes[] = {1, 63, 64, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    uint8_t *pieces[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        pieces[i] = huge_alloc(sizes[i], 1);
        CHECK(pieces[i] != NULL && (uintptr_t)pieces[i] % 64 == 0);
        for (size_t k = 0; k < sizes[i]; k++)
            CHECK(pieces[i][k] == 0);
        memset(pieces[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < COUNT; i++) {
        for (size_t k = 0; k < sizes[i]; k++)
            CHECK(pieces[i][k] == i + 1);
        huge_free(pieces[i]);
    }
}

TEST(huge, what_cannot_be_had)
{
    huge_free(NULL);
    CHECK(huge_alloc(SIZE_MAX, 2) == NULL);
    CHECK(huge_alloc(SIZE_MAX, 1) == NULL);
    CHECK(huge_alloc(SIZE_MAX / 4, 1) == NULL);
    void *nothing = huge_alloc(0, 8);
    CHECK(nothing != NULL);
    huge_free(nothing);
}
