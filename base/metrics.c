/* See metrics.h. A family is a name with a help text and a type; a series is a family's label values. Values are 64-bit
 * words updated with relaxed atomics: a scrape may see one update and not another made a moment earlier, never a torn value. */
#include "base/metrics.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };
static const char *const type_names[] = {"counter", "gauge", "histogram"};

struct metric {
    struct metric *next;
    enum metric_type type;
    char *labels; /* `a="b",c="d"`, escaped; "" without labels */
    double (*callback)(void *context);
    void *context;
    uint64_t count;     /* counter: the value; histogram: observations */
    uint64_t real_bits; /* gauge: the value; histogram: the sum; a double's bits */
    size_t bound_count;
    double *bounds;
    uint64_t *buckets; /* [bound_count + 1], not cumulative; the last is +Inf */
};

struct family {
    struct family *next;
    enum metric_type type;
    char *name, *help;
    struct metric *first, **last;
    void (*render)(void *context, struct buf *out, const char *name);
    void *render_context;
};

struct metrics {
    struct family *first, **last;
    struct err failure;
    struct metric sink; /* what a failed declaration returns */
};

const double metrics_seconds_bounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                         0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                         1,      2.5,     5,      10,    30,     60};
const size_t metrics_seconds_bound_count =
    sizeof metrics_seconds_bounds / sizeof metrics_seconds_bounds[0];

/* --- declaration --- */

enum status metrics_create(struct metrics **metrics_out, struct err *err)
{
    struct metrics *metrics = calloc(1, sizeof *metrics);
    if (!metrics)
        return err_set(err, STATUS_MEMORY, "metrics: no memory");
    metrics->last = &metrics->first;
    *metrics_out = metrics;
    return STATUS_OK;
}

static void metric_free(struct metric *metric)
{
    free(metric->labels);
    free(metric->bounds);
    free(metric->buckets);
    free(metric);
}

static void family_free(struct family *family)
{
    free(family->name);
    free(family->help);
    free(family);
}

void metrics_destroy(struct metrics *metrics)
{
    if (!metrics)
        return;
    for (struct family *family = metrics->first, *next; family; family = next) {
        next = family->next;
        for (struct metric *metric = family->first, *after; metric; metric = after) {
            after = metric->next;
            metric_free(metric);
        }
        family_free(family);
    }
    free(metrics);
}

enum status metrics_status(const struct metrics *metrics, struct err *err)
{
    if (metrics->failure.code && err)
        *err = metrics->failure;
    return metrics->failure.code;
}

/* The name rules of the exposition format: letters, digits, '_' and (for metrics) ':', no leading digit. */
static bool name_valid(const char *name, bool colon)
{
    if (!name[0] || (name[0] >= '0' && name[0] <= '9'))
        return false;
    for (; *name; name++)
        if (!((*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') ||
              (*name >= '0' && *name <= '9') || *name == '_' || (colon && *name == ':')))
            return false;
    return true;
}

static void escape(struct buf *out, const char *text, bool quotes)
{
    for (; *text; text++) {
        if (*text == '\\')
            buf_append_text(out, "\\\\");
        else if (*text == '\n')
            buf_append_text(out, "\\n");
        else if (*text == '"' && quotes)
            buf_append_text(out, "\\\"");
        else
            buf_append(out, text, 1);
    }
}

/* Appends `name="value"` pairs; false when a name is bad. */
static bool labels_append(struct buf *out, va_list pairs)
{
    const char *name;
    bool first = true;
    while ((name = va_arg(pairs, const char *))) {
        const char *value = va_arg(pairs, const char *);
        if (!value || !name_valid(name, false))
            return false;
        buf_append_text(out, first ? "" : ",");
        buf_append_text(out, name);
        buf_append_text(out, "=\"");
        escape(out, value, true);
        buf_append_text(out, "\"");
        first = false;
    }
    return true;
}

static void fail(struct metrics *metrics, enum status code, const char *name, const char *why)
{
    if (!metrics->failure.code)
        err_set(&metrics->failure, code, "metric %s: %s", name, why);
}

/* Finds or makes the family; NULL when it cannot be. */
static struct family *family_get(struct metrics *metrics, enum metric_type type, const char *name,
                                 const char *help)
{
    if (!name_valid(name, true)) {
        fail(metrics, STATUS_INVALID, name, "not a valid name");
        return NULL;
    }
    for (struct family *family = metrics->first; family; family = family->next)
        if (strcmp(family->name, name) == 0) {
            if (family->type == type)
                return family;
            fail(metrics, STATUS_INVALID, name, "declared before with another type");
            return NULL;
        }
    struct family *family = calloc(1, sizeof *family);
    if (family) {
        *family = (struct family){
            .type = type, .name = strdup(name), .help = strdup(help), .last = &family->first};
        if (family->name && family->help) {
            *metrics->last = family;
            metrics->last = &family->next;
            return family;
        }
        family_free(family);
    }
    fail(metrics, STATUS_MEMORY, name, "no memory");
    return NULL;
}

static bool bounds_set(struct metric *metric, const double *bounds, size_t bound_count)
{
    metric->bounds = malloc((bound_count + 1) * sizeof *metric->bounds);
    metric->buckets = calloc(bound_count + 1, sizeof *metric->buckets);
    if (!metric->bounds || !metric->buckets)
        return false;
    memcpy(metric->bounds, bounds, bound_count * sizeof *bounds);
    metric->bound_count = bound_count;
    return true;
}

static struct metric *series_add(struct metrics *metrics, enum metric_type type, const char *name,
                                 const char *help, const double *bounds, size_t bound_count,
                                 va_list pairs)
{
    struct family *family = family_get(metrics, type, name, help);
    if (!family)
        return &metrics->sink;
    struct buf labels = BUF_INIT;
    bool valid = labels_append(&labels, pairs);
    buf_append(&labels, "", 1); /* the NUL */
    struct metric *metric = calloc(1, sizeof *metric);
    const char *why = NULL;
    if (!metric || labels.failed || (bounds && !bounds_set(metric, bounds, bound_count)))
        why = "no memory";
    else if (!valid)
        why = "not a valid label";
    for (struct metric *other = family->first; !why && other; other = other->next)
        if (strcmp(other->labels, (char *)labels.data) == 0)
            why = "the same labels twice";
    for (size_t i = 1; !why && i < bound_count; i++)
        if (!(bounds[i - 1] < bounds[i]))
            why = "bounds do not ascend";
    if (why) {
        bool memory = strcmp(why, "no memory") == 0;
        fail(metrics, memory ? STATUS_MEMORY : STATUS_INVALID, name, why);
        buf_finish(&labels);
        if (metric)
            metric_free(metric);
        return &metrics->sink;
    }
    metric->type = type;
    metric->labels = (char *)labels.data; /* malloc'ed by the buffer; ours now */
    *family->last = metric;
    family->last = &metric->next;
    return metric;
}

struct metric *metrics_counter(struct metrics *metrics, const char *name, const char *help, ...)
{
    va_list pairs;
    va_start(pairs, help);
    struct metric *metric = series_add(metrics, METRIC_COUNTER, name, help, NULL, 0, pairs);
    va_end(pairs);
    return metric;
}

struct metric *metrics_gauge(struct metrics *metrics, const char *name, const char *help, ...)
{
    va_list pairs;
    va_start(pairs, help);
    struct metric *metric = series_add(metrics, METRIC_GAUGE, name, help, NULL, 0, pairs);
    va_end(pairs);
    return metric;
}

struct metric *metrics_gauge_callback(struct metrics *metrics, const char *name, const char *help,
                                      double (*value)(void *context), void *context, ...)
{
    va_list pairs;
    va_start(pairs, context);
    struct metric *metric = series_add(metrics, METRIC_GAUGE, name, help, NULL, 0, pairs);
    va_end(pairs);
    if (metric != &metrics->sink) {
        metric->callback = value;
        metric->context = context;
    }
    return metric;
}

struct metric *metrics_histogram(struct metrics *metrics, const char *name, const char *help,
                                 const double *bounds, size_t bound_count, ...)
{
    va_list pairs;
    va_start(pairs, bound_count);
    struct metric *metric =
        series_add(metrics, METRIC_HISTOGRAM, name, help, bounds, bound_count, pairs);
    va_end(pairs);
    return metric;
}

void metrics_gauge_family(struct metrics *metrics, const char *name, const char *help,
                          void (*render)(void *context, struct buf *out, const char *name),
                          void *context)
{
    struct family *family = family_get(metrics, METRIC_GAUGE, name, help);
    if (!family)
        return;
    family->render = render;
    family->render_context = context;
}

/* --- updates --- */

static double real_load(const uint64_t *bits)
{
    uint64_t word = __atomic_load_n(bits, __ATOMIC_RELAXED);
    double value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Adds `delta`, or raises to it when `raise`. */
static void real_update(uint64_t *bits, double delta, bool raise)
{
    uint64_t before = __atomic_load_n(bits, __ATOMIC_RELAXED), after;
    do {
        double value;
        memcpy(&value, &before, sizeof value);
        if (raise && value >= delta)
            return;
        value = raise ? delta : value + delta;
        memcpy(&after, &value, sizeof after);
    } while (!__atomic_compare_exchange_n(bits, &before, after, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
}

void metric_add(struct metric *metric, uint64_t n)
{
    __atomic_fetch_add(&metric->count, n, __ATOMIC_RELAXED);
}

void metric_set(struct metric *metric, double value)
{
    uint64_t word;
    memcpy(&word, &value, sizeof word);
    __atomic_store_n(&metric->real_bits, word, __ATOMIC_RELAXED);
}

void metric_change(struct metric *metric, double delta)
{
    real_update(&metric->real_bits, delta, false);
}

void metric_max(struct metric *metric, double value)
{
    real_update(&metric->real_bits, value, true);
}

void metric_observe(struct metric *metric, double value)
{
    size_t bucket = 0;
    while (bucket < metric->bound_count && !(value <= metric->bounds[bucket]))
        bucket++;
    if (metric->buckets)
        __atomic_fetch_add(&metric->buckets[bucket], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&metric->count, 1, __ATOMIC_RELAXED);
    real_update(&metric->real_bits, value, false);
}

double metric_value(const struct metric *metric)
{
    if (metric->callback)
        return metric->callback(metric->context);
    if (metric->type == METRIC_GAUGE)
        return real_load(&metric->real_bits);
    return (double)__atomic_load_n(&metric->count, __ATOMIC_RELAXED);
}

/* --- rendering --- */

/* The shortest text that reads back as the same number: 0.1, not 0.10000000000000001; 1000000, not 1e+06. */
static void number_append(struct buf *out, double value)
{
    char text[32];
    if (isnan(value)) {
        buf_append_text(out, "NaN");
        return;
    }
    if (isinf(value)) {
        buf_append_text(out, value > 0 ? "+Inf" : "-Inf");
        return;
    }
    if (value > -1e15 && value < 1e15 && value == (double)(long long)value) {
        buf_printf(out, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    buf_append_text(out, text);
}

void metrics_sample(struct buf *out, const char *name, double value, ...)
{
    struct buf labels = BUF_INIT;
    va_list pairs;
    va_start(pairs, value);
    bool valid = labels_append(&labels, pairs);
    va_end(pairs);
    if (valid && !labels.failed) {
        buf_append_text(out, name);
        if (labels.bytes) {
            buf_append_text(out, "{");
            buf_append(out, labels.data, labels.bytes);
            buf_append_text(out, "}");
        }
        buf_append_text(out, " ");
        number_append(out, value);
        buf_append_text(out, "\n");
    }
    out->failed |= labels.failed;
    buf_finish(&labels);
}

static void histogram_render(const struct family *family, const struct metric *metric,
                             struct buf *out)
{
    const char *comma = metric->labels[0] ? "," : "";
    uint64_t total = 0;
    for (size_t i = 0; i <= metric->bound_count; i++) {
        total += __atomic_load_n(&metric->buckets[i], __ATOMIC_RELAXED);
        buf_printf(out, "%s_bucket{%s%sle=\"", family->name, metric->labels, comma);
        if (i < metric->bound_count)
            number_append(out, metric->bounds[i]);
        else
            buf_append_text(out, "+Inf");
        buf_printf(out, "\"} %llu\n", (unsigned long long)total);
    }
    const char *open = metric->labels[0] ? "{" : "", *close = metric->labels[0] ? "}" : "";
    buf_printf(out, "%s_sum%s%s%s ", family->name, open, metric->labels, close);
    number_append(out, real_load(&metric->real_bits));
    /* the count is the last bucket's by definition, whatever was observed since */
    buf_printf(out, "\n%s_count%s%s%s %llu\n", family->name, open, metric->labels, close,
               (unsigned long long)total);
}

static void series_render(const struct family *family, const struct metric *metric, struct buf *out)
{
    if (family->type == METRIC_HISTOGRAM) {
        histogram_render(family, metric, out);
        return;
    }
    buf_append_text(out, family->name);
    if (metric->labels[0])
        buf_printf(out, "{%s}", metric->labels);
    buf_append_text(out, " ");
    if (family->type == METRIC_COUNTER)
        buf_printf(out, "%llu",
                   (unsigned long long)__atomic_load_n(&metric->count, __ATOMIC_RELAXED));
    else
        number_append(out, metric_value(metric));
    buf_append_text(out, "\n");
}

void metrics_render(const struct metrics *metrics, struct buf *out)
{
    for (const struct family *family = metrics->first; family; family = family->next) {
        buf_printf(out, "# HELP %s ", family->name);
        escape(out, family->help, false);
        buf_printf(out, "\n# TYPE %s %s\n", family->name, type_names[family->type]);
        for (const struct metric *metric = family->first; metric; metric = metric->next)
            series_render(family, metric, out);
        if (family->render)
            family->render(family->render_context, out, family->name);
    }
}
