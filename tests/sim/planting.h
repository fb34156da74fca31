/* One fault planted in a child, which looks for it and says what it found: a violation (planting_found), or an assertion of the
 * code itself. For test_planted*.c, whose sim_fail calls planting_found. */
#ifndef BATON_TESTS_SIM_PLANTING_H
#define BATON_TESTS_SIM_PLANTING_H

#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/plant.h"
#include "tests/test.h"

static int planting_report = -1; /* of the child */

/* Ends the child. */
__attribute__((noreturn)) static void planting_found(const char *where, const char *format,
                                                     va_list args)
{
    char text[600];
    int used = snprintf(text, sizeof text, "%s: ", where);
    used = used < (int)sizeof text ? used : (int)sizeof text - 1;
    vsnprintf(text + used, sizeof text - (size_t)used, format, args);
    ssize_t ignored = write(planting_report, text, strlen(text));
    (void)ignored;
    fflush(stdout);
    _exit(1);
}

/* Runs `look` with the fault in a child. True: it was found, and `text` says how. */
static bool planting_run(enum plant plant, void (*look)(const void *context), const void *context,
                         char *text, size_t text_bytes)
{
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        planting_report = pipes[1];
        if (!getenv("SIM_TRACE"))
            dup2(planting_report, STDERR_FILENO); /* what an assertion says */
        planted = plant;
        look(context);
        fflush(stdout);
        _exit(0);
    }
    close(pipes[1]);
    size_t used = 0;
    ssize_t n;
    char rest[256];
    while ((n = used < text_bytes - 1 ? read(pipes[0], text + used, text_bytes - 1 - used)
                                      : read(pipes[0], rest, sizeof rest)) > 0)
        if (used < text_bytes - 1)
            used += (size_t)n;
    text[used] = '\0';
    close(pipes[0]);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    bool found = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (found && !used)
        snprintf(text, text_bytes, "an assertion of the code itself");
    return found;
}

#endif
