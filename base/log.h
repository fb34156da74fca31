/* One line a record on stderr: time, level, program, message. Only programs log; libraries return errors.
 * Owner: any thread (one write(2) a line). */
#ifndef BATON_BASE_LOG_H
#define BATON_BASE_LOG_H

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

/* `program` is kept, not copied. Lines below `level` are dropped. */
void log_init(const char *program, enum log_level level);

#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
