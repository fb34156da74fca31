/* An error that a user can act on, filled on cold paths (open, load, parse, connect) and wrapped on the way up, so that
 * the program prints one line naming the file, the field and the value:
 *
 *     baton-decode: model.gguf: tensor blk.3.ffn_up.weight: offset 91 is past the end of the file (90)
 *
 * Hot paths return a bare `enum status`. Any function taking `struct err *` accepts NULL.
 * Owner: the caller's thread; a struct err is plain memory. */
#ifndef BATON_BASE_ERR_H
#define BATON_BASE_ERR_H

#include "base/status.h"

enum { ERR_MESSAGE_BYTES = 512 };

struct err {
    enum status code;
    const char *file; /* source file and line of the first err_set, for the log */
    int line;
    char message[ERR_MESSAGE_BYTES];
};

#define ERR_INIT ((struct err){.code = STATUS_OK})

/* Fills `err` and returns `code`, so that `return err_set(err, STATUS_FORMAT, "...")` reads in one line. */
#define err_set(err, code, ...) err_set_at((err), (code), __FILE__, __LINE__, __VA_ARGS__)
enum status err_set_at(struct err *err, enum status code, const char *file, int line,
                       const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Puts "prefix: " before the message and returns the code that `err` holds. */
enum status err_wrap(struct err *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
