/* One test body, two runners. The normal build hosts tests in Criterion; sanitizer builds (-Dplain_tests=true) host the
 * same bodies in tests/plain_runner.c, because Criterion loses sanitizer reports.
 *
 *     TEST(pool, take_all_or_nothing) { CHECK(pool_take(...) == STATUS_FULL); }
 *
 * A failed check ends its test. Each test is a process of its own in both runners. */
#ifndef BATON_TESTS_TEST_H
#define BATON_TESTS_TEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef BATON_PLAIN_TESTS

struct plain_test {
    const char *suite, *name;
    void (*run)(void);
    struct plain_test *next;
};
void plain_test_add(struct plain_test *test);
void plain_test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));
void plain_test_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#define TEST(suite_, name_)                                                                        \
    static void suite_##_##name_##_body(void);                                                     \
    static struct plain_test suite_##_##name_##_entry = {#suite_, #name_, suite_##_##name_##_body, \
                                                         NULL};                                    \
    __attribute__((constructor)) static void suite_##_##name_##_add(void)                          \
    {                                                                                              \
        plain_test_add(&suite_##_##name_##_entry);                                                 \
    }                                                                                              \
    static void suite_##_##name_##_body(void)
#define TEST_FAIL(...) plain_test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define TEST_SKIP(...) plain_test_skip(__VA_ARGS__)
#define CHECK(condition)                 \
    do {                                 \
        if (!(condition))                \
            TEST_FAIL("%s", #condition); \
    } while (0)
#define CHECK_MSG(condition, ...)   \
    do {                            \
        if (!(condition))           \
            TEST_FAIL(__VA_ARGS__); \
    } while (0)

#else

#include <criterion/criterion.h>

#define TEST(suite_, name_) Test(suite_, name_)
#define TEST_FAIL(...) cr_assert_fail(__VA_ARGS__)
#define TEST_SKIP(...) cr_skip_test(__VA_ARGS__)
#define CHECK(condition) cr_assert(condition)
#define CHECK_MSG(condition, ...) cr_assert(condition, __VA_ARGS__)

#endif

/* BATON_TEST_EMULATED=1: another processor's code in user mode, whose system calls do not tell everything. */
static inline bool test_emulated(void)
{
    return getenv("BATON_TEST_EMULATED") != NULL;
}

/* Slow machines (emulators) run loops over many values with wider steps: BATON_TEST_THIN=N, every N-th value. So do sanitizers,
 * which look at memory: what a function makes of a value is seen without them. */
static inline uint32_t test_thin(void)
{
#ifdef BATON_SANITIZED
    long thin = 16;
#else
    long thin = 1;
#endif
    const char *value = getenv("BATON_TEST_THIN");
    if (value)
        thin = strtol(value, NULL, 10);
    return thin < 1 ? 1 : (uint32_t)thin;
}

#define CHECK_INT(actual, expected)                                                         \
    do {                                                                                    \
        long long actual_ = (long long)(actual), expected_ = (long long)(expected);         \
        CHECK_MSG(actual_ == expected_, "%s is %lld, expected %s = %lld", #actual, actual_, \
                  #expected, expected_);                                                    \
    } while (0)
#define CHECK_STR(actual, expected)                                                          \
    do {                                                                                     \
        const char *actual_ = (actual), *expected_ = (expected);                             \
        CHECK_MSG(strcmp(actual_, expected_) == 0, "%s is \"%s\", expected \"%s\"", #actual, \
                  actual_, expected_);                                                       \
    } while (0)

#endif
