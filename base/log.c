/* See log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char *program_name = "baton";
static enum log_level threshold = LOG_LEVEL_INFO;

void log_init(const char *program, enum log_level level)
{
    program_name = program;
    threshold = level;
}

void log_write(enum log_level level, const char *format, ...)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    if (level < threshold)
        return;
    char line[1024];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    used += (size_t)snprintf(line + used, sizeof line - used,
                             ".%03ldZ %s %s: ", ts.tv_nsec / 1000000, names[level], program_name);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line + used, sizeof line - used - 1, format, args);
    va_end(args);
    if (n > 0)
        used += (size_t)n < sizeof line - used - 1 ? (size_t)n : sizeof line - used - 2;
    line[used++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, used);
    (void)ignored;
}
