/* Runs TEST bodies without Criterion and prints TAP: each test in a forked child that ends by exit(), so that the leak
 * checker runs, with a time limit. `--planted leak|overflow|race` commits that fault on purpose: the sanitizer groups
 * prove first that they see it. */
#include "tests/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_FAILED = 90, EXIT_SKIPPED = 91, SECONDS_MAX = 600 };

static struct plain_test *first, **last = &first;

void plain_test_add(struct plain_test *test)
{
    *last = test;
    last = &test->next;
}

void plain_test_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("# %s:%d: ", file, line);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
    _exit(EXIT_FAILED);
}

void plain_test_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("# skip: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
    _exit(EXIT_SKIPPED);
}

static int racy;

static void *race(void *arg)
{
    for (int i = 0; i < 100000; i++)
        racy++;
    return arg;
}

static int planted(const char *fault)
{
    if (!strcmp(fault, "leak")) {
        void *volatile lost = malloc(1234);
        lost = NULL;
        (void)lost;
        return 0;
    }
    if (!strcmp(fault, "overflow")) {
        volatile char *volatile block =
            malloc(16); /* else the store before free is optimised away */
        volatile int index = 16;
        block[index] = 1;
        free((void *)block);
        return 0;
    }
    if (!strcmp(fault, "undefined")) {
        volatile int big = 0x7fffffff;
        big = big + 1;
        return 0;
    }
    if (!strcmp(fault, "race")) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, race, NULL);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        return 0;
    }
    return 2;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--planted"))
        return planted(argv[2]);
    int count = 0, failed = 0, index = 0;
    for (struct plain_test *test = first; test; test = test->next)
        count++;
    printf("1..%d\n", count);
    for (struct plain_test *test = first; test; test = test->next) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(SECONDS_MAX);
            test->run();
            fflush(stdout);
            exit(0);
        }
        int status = 0;
        waitpid(pid, &status, 0);
        bool skipped = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED;
        bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        failed += !passed && !skipped;
        printf("%s %d - %s.%s%s\n", passed || skipped ? "ok" : "not ok", ++index, test->suite,
               test->name, skipped ? " # SKIP" : "");
    }
    return failed != 0;
}
