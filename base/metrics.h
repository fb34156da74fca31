/* Counters, gauges and histograms of one program, rendered in the Prometheus text format 0.0.4.
 *
 * Every series is declared at start, with its label values; an update is one atomic add and never
 * allocates. What is known only at the time of the question (pages free, nodes connected) is a
 * gauge callback or a family renderer.
 *
 *     struct metric *ok = metrics_counter(metrics, "baton_requests_total", "Requests ended",
 *                                         "outcome", "ok", NULL);
 *     metric_add(ok, 1);
 *
 * Series of one name form a family: declare them one after the other or not, they are rendered
 * together, in the order of the families' first declaration. Help and type of the first declaration
 * count.
 *
 * A declaration that fails (no memory, a bad name, another type under the same name, the same
 * labels twice) returns a metric that swallows updates and is remembered: check metrics_status
 * once, after all declarations.
 *
 * Owner: declarations and rendering, the loop thread; updates, any thread. */
#ifndef BATON_BASE_METRICS_H
#define BATON_BASE_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct metrics;
struct metric;

enum status metrics_create(struct metrics **metrics_out, struct err *err);
void metrics_destroy(struct metrics *metrics);
/* The first declaration that failed, named in `err`; OK when none did. */
enum status metrics_status(const struct metrics *metrics, struct err *err);

/* Label names and values follow in pairs, ended by NULL. All strings are copied. */
struct metric *metrics_counter(struct metrics *metrics, const char *name, const char *help, ...)
    __attribute__((sentinel));
struct metric *metrics_gauge(struct metrics *metrics, const char *name, const char *help, ...)
    __attribute__((sentinel));
/* A gauge whose value is asked for when rendered. */
struct metric *metrics_gauge_callback(struct metrics *metrics, const char *name, const char *help,
                                      double (*value)(void *context), void *context, ...)
    __attribute__((sentinel));
/* `bounds` (ascending, copied, without +Inf) are the upper bounds of the buckets, in the unit that
 * the name says. */
struct metric *metrics_histogram(struct metrics *metrics, const char *name, const char *help,
                                 const double *bounds, size_t bound_count, ...)
    __attribute__((sentinel));
/* Upper bounds for durations in seconds from 100 us to 60 s. */
extern const double metrics_seconds_bounds[];
extern const size_t metrics_seconds_bound_count;

void metric_add(struct metric *metric, uint64_t n);       /* counter */
void metric_set(struct metric *metric, double value);     /* gauge */
void metric_change(struct metric *metric, double delta);  /* gauge */
void metric_max(struct metric *metric, double value);     /* gauge: raises, never lowers */
void metric_observe(struct metric *metric, double value); /* histogram */
/* A counter's or gauge's value, a histogram's count. */
double metric_value(const struct metric *metric);

/* A gauge family whose series are known only when rendered (the router's re-export of its nodes,
 * say): `render` calls metrics_sample for each. The family may hold declared series too; these come
 * first. */
void metrics_gauge_family(struct metrics *metrics, const char *name, const char *help,
                          void (*render)(void *context, struct buf *out, const char *name),
                          void *context);
/* One line, its label values escaped; pairs ended by NULL. */
void metrics_sample(struct buf *out, const char *name, double value, ...) __attribute__((sentinel));

/* Appends everything. Serve as "text/plain; version=0.0.4; charset=utf-8". */
void metrics_render(const struct metrics *metrics, struct buf *out);

#endif
