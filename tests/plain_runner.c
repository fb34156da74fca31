/* Runs TEST bodies without Criterion and prints TAP: each test in a forked child that ends by exit(), so that the leak
 * checker runs, with a time limit. What a failed test has to say goes to stdout as a comment of TAP (tests/summary.py reads
 * it) and to stderr (meson shows nothing else of a program that speaks TAP). With names as arguments only those tests run.
 * `--planted leak|overflow|race` commits that fault on purpose: the sanitizer groups prove first that they see it. */
#include "base/clock.h"
#include "tests/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

/* A test's time ends before its program's does, which is meson's (tests/meson.build): so the one that hangs is named. */
enum { EXIT_FAILED = 90, EXIT_SKIPPED = 91, SECONDS_MAX = 500 };

static struct plain_test *first, **last = &first;
static struct plain_test *running;

void plain_test_add(struct plain_test *test)
{
    *last = test;
    last = &test->next;
}

/* One complaint about the test that runs, on both streams; each of its lines is a comment of TAP. */
__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
    char message[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fprintf(stderr, "%s.%s: %s\n", running->suite, running->name, message);
    char *rest = NULL;
    for (char *line = strtok_r(message, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        printf("# %s\n", line);
    fflush(stdout);
}

void plain_test_fail(const char *file, int line, const char *format, ...)
{
    char message[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    complain("%s:%d: %s", file, line, message);
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

/* Those named on the command line; all when none is. */
static bool wanted(const struct plain_test *test, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], test->name))
            return true;
    return argc < 2;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--planted"))
        return planted(argv[2]);
    int count = 0, failed = 0, index = 0;
    for (struct plain_test *test = first; test; test = test->next)
        count += wanted(test, argc, argv);
    printf("1..%d\n", count);
    for (struct plain_test *test = first; test; test = test->next) {
        if (!wanted(test, argc, argv))
            continue;
        running = test;
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(SECONDS_MAX);
            test->run();
            fflush(stdout);
            exit(0);
        }
        int status = 0;
        uint64_t begin_ns = clock_now_ns();
        waitpid(pid, &status, 0);
        bool skipped = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED;
        bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
            complain("took longer than %d s", SECONDS_MAX);
        else if (WIFSIGNALED(status))
            complain("ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else if (!passed && !skipped && WEXITSTATUS(status) != EXIT_FAILED)
            complain("ended with exit status %d", WEXITSTATUS(status)); /* a sanitizer's, say */
        failed += !passed && !skipped;
        printf("%s %d - %s.%s  (%.2fs)%s\n", passed || skipped ? "ok" : "not ok", ++index,
               test->suite, test->name, (double)(clock_now_ns() - begin_ns) / 1e9,
               skipped ? " # SKIP" : "");
    }
    return failed || !count;
}
