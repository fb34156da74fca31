/* base/metrics: the Prometheus text format, to the byte. */
#include "base/metrics.h"

#include <math.h>
#include <pthread.h>

#include "tests/test.h"

static void renders(const struct metrics *metrics, const char *expected)
{
    struct buf out = BUF_INIT;
    metrics_render(metrics, &out);
    buf_append(&out, "", 1);
    CHECK(!out.failed);
    CHECK_STR((const char *)out.data, expected);
    buf_finish(&out);
}

static double seven(void *context)
{
    (void)context;
    return 7;
}

static void nodes_render(void *context, struct buf *out, const char *name)
{
    (void)context;
    metrics_sample(out, name, 3, "node", "prefill-0", "role", "prefill", NULL);
    metrics_sample(out, name, 0.1, "node", "a\"b\\c\nd", NULL);
    metrics_sample(out, name, 1, NULL);
}

TEST(metrics, counters_and_gauges)
{
    struct metrics *metrics;
    CHECK(!metrics_create(&metrics, NULL));
    struct metric *ok = metrics_counter(metrics, "baton_requests_total", "Requests\nended \\",
                                        "outcome", "ok", NULL);
    struct metric *pages = metrics_gauge(metrics, "baton_kv_pages", "Pages", "state", "free", NULL);
    struct metric *failed =
        metrics_counter(metrics, "baton_requests_total", "", "outcome", "failed", NULL);
    metrics_gauge_callback(metrics, "baton_up", "Up", seven, NULL, NULL);
    metrics_gauge_family(metrics, "baton_kv_pages", "Pages", nodes_render, NULL);
    CHECK_INT(metrics_status(metrics, NULL), STATUS_OK);
    metric_add(ok, 3);
    metric_add(failed, UINT64_C(1) << 60);
    metric_set(pages, 1000000);
    metric_change(pages, -0.5);
    CHECK(metric_value(pages) == 999999.5);
    renders(metrics, "# HELP baton_requests_total Requests\\nended \\\\\n"
                     "# TYPE baton_requests_total counter\n"
                     "baton_requests_total{outcome=\"ok\"} 3\n"
                     "baton_requests_total{outcome=\"failed\"} 1152921504606846976\n"
                     "# HELP baton_kv_pages Pages\n"
                     "# TYPE baton_kv_pages gauge\n"
                     "baton_kv_pages{state=\"free\"} 999999.5\n"
                     "baton_kv_pages{node=\"prefill-0\",role=\"prefill\"} 3\n"
                     "baton_kv_pages{node=\"a\\\"b\\\\c\\nd\"} 0.1\n"
                     "baton_kv_pages 1\n"
                     "# HELP baton_up Up\n"
                     "# TYPE baton_up gauge\n"
                     "baton_up 7\n");
    metric_max(pages, 5);
    CHECK(metric_value(pages) == 999999.5);
    metric_max(pages, 2e6);
    CHECK(metric_value(pages) == 2e6);
    metrics_destroy(metrics);
}

TEST(metrics, histogram_is_cumulative)
{
    struct metrics *metrics;
    CHECK(!metrics_create(&metrics, NULL));
    static const double bounds[] = {0.1, 1, 2.5};
    struct metric *h = metrics_histogram(metrics, "h_seconds", "H", bounds, 3, "kind", "x", NULL);
    metric_observe(h, 0.1); /* le: a bound is inside its bucket */
    metric_observe(h, 0.5);
    metric_observe(h, 0.5);
    metric_observe(h, 100);
    CHECK_INT(metric_value(h), 4);
    renders(metrics, "# HELP h_seconds H\n"
                     "# TYPE h_seconds histogram\n"
                     "h_seconds_bucket{kind=\"x\",le=\"0.1\"} 1\n"
                     "h_seconds_bucket{kind=\"x\",le=\"1\"} 3\n"
                     "h_seconds_bucket{kind=\"x\",le=\"2.5\"} 3\n"
                     "h_seconds_bucket{kind=\"x\",le=\"+Inf\"} 4\n"
                     "h_seconds_sum{kind=\"x\"} 101.1\n"
                     "h_seconds_count{kind=\"x\"} 4\n");
    metrics_destroy(metrics);
}

TEST(metrics, bad_declarations_are_remembered_and_harmless)
{
    static const struct {
        const char *name, *label;
        const char *message;
    } bad[] = {
        {"9lives", "a", "metric 9lives: not a valid name"},
        {"ok", "b-c", "metric ok: not a valid label"},
        {"", "a", "metric : not a valid name"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct metrics *metrics;
        struct err err = ERR_INIT;
        CHECK(!metrics_create(&metrics, NULL));
        struct metric *metric =
            metrics_counter(metrics, bad[i].name, "help", bad[i].label, "x", NULL);
        metric_add(metric, 1);
        metric_set(metric, 1);
        metric_observe(metric, 1);
        CHECK_INT(metrics_status(metrics, &err), STATUS_INVALID);
        CHECK_STR(err.message, bad[i].message);
        metrics_destroy(metrics);
    }
    struct metrics *metrics;
    CHECK(!metrics_create(&metrics, NULL));
    metrics_counter(metrics, "twice_total", "help", "a", "x", NULL);
    metrics_counter(metrics, "twice_total", "help", "a", "y", NULL);
    CHECK_INT(metrics_status(metrics, NULL), STATUS_OK);
    metrics_counter(metrics, "twice_total", "help", "a", "x", NULL);
    CHECK_INT(metrics_status(metrics, NULL), STATUS_INVALID);
    metrics_gauge(metrics, "twice_total", "help", "a", "z", NULL); /* another type */
    metrics_destroy(metrics);
}

static void *adder(void *argument)
{
    struct metric **metrics = argument;
    for (int i = 0; i < 10000; i++) {
        metric_add(metrics[0], 1);
        metric_change(metrics[1], 0.5);
        metric_observe(metrics[2], i % 2 ? 0.5 : 2);
    }
    return NULL;
}

TEST(metrics, updates_from_threads_are_not_lost)
{
    struct metrics *metrics;
    CHECK(!metrics_create(&metrics, NULL));
    static const double bounds[] = {1};
    struct metric *list[] = {metrics_counter(metrics, "c_total", "c", NULL),
                             metrics_gauge(metrics, "g", "g", NULL),
                             metrics_histogram(metrics, "h", "h", bounds, 1, NULL)};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, adder, list) == 0);
    struct buf out = BUF_INIT;
    metrics_render(metrics, &out); /* while they run */
    buf_finish(&out);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    renders(metrics, "# HELP c_total c\n# TYPE c_total counter\nc_total 40000\n"
                     "# HELP g g\n# TYPE g gauge\ng 20000\n"
                     "# HELP h h\n# TYPE h histogram\nh_bucket{le=\"1\"} 20000\n"
                     "h_bucket{le=\"+Inf\"} 40000\nh_sum 50000\nh_count 40000\n");
    metrics_destroy(metrics);
}
