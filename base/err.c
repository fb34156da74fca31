/* See err.h. Pure. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status err_set_at(struct err *err, enum status code, const char *file, int line,
                       const char *format, ...)
{
    if (!err)
        return code;
    err->code = code;
    err->file = file;
    err->line = line;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return code;
}

enum status err_wrap(struct err *err, const char *format, ...)
{
    if (!err)
        return STATUS_INTERNAL; /* nobody reads the code of an error that was not asked for */
    char wrapped[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(wrapped, sizeof wrapped, format, args);
    va_end(args);
    if (used < 0)
        used = 0;
    size_t at = (size_t)used < sizeof wrapped ? (size_t)used : sizeof wrapped - 1;
    const char *const parts[] = {": ", err->message};
    for (int i = 0; i < 2; i++) {
        size_t room = sizeof wrapped - 1 - at, bytes = strlen(parts[i]);
        memcpy(wrapped + at, parts[i], bytes < room ? bytes : room);
        at += bytes < room ? bytes : room;
    }
    wrapped[at] = 0;
    memcpy(err->message, wrapped, sizeof err->message);
    return err->code;
}
