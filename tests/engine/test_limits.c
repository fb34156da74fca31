/* Peaks in their file, and what a model asks of a machine. */
#include "engine/limits.h"
#include "engine/reach.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/engine/harness.h"
#include "tests/test.h"

static const struct engine_options options = {
    .threads = 1, .compute = KERN_COMPUTE_INT8, .kv_type = KERN_KV_F16};

/* A path in a folder that is not there yet. */
static void path_make(char path[64])
{
    strcpy(path, "/tmp/baton-limits-XXXXXX");
    CHECK(mkdtemp(path) != NULL);
    strcat(path, "/a/b/peaks");
}

static void path_remove(char path[64])
{
    CHECK(unlink(path) == 0);
    for (int i = 0; i < 3; i++) {
        *strrchr(path, '/') = 0;
        CHECK(rmdir(path) == 0);
    }
}

static bool peaks_read(const char *path, struct kern_peaks *peaks_out)
{
    struct err err = ERR_INIT;
    bool measured;
    CHECK_MSG(!engine_peaks(&options, path, peaks_out, &measured, &err), "%s", err.message);
    return measured;
}

static void text_read(const char *path, char text[4096])
{
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    text[fread(text, 1, 4095, file)] = 0;
    fclose(file);
}

static void text_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0);
    fclose(file);
}

TEST(limits, peaks_are_measured_a_few_times_and_kept)
{
    char path[64], text[4096];
    struct kern_peaks peaks, last = {0};
    path_make(path);
    for (int i = 0; i < ENGINE_PEAKS_TRIES; i++) {
        CHECK(peaks_read(path, &peaks));
        CHECK(peaks.read_bytes >= last.read_bytes && peaks.kv_ops[0] >= last.kv_ops[0]);
        last = peaks;
        last.read_bytes *= 1 - 1e-5; /* the file's digits */
        last.kv_ops[0] *= 1 - 1e-5;
    }
    for (int i = 0; i < 2; i++) {
        CHECK(!peaks_read(path, &peaks));
        CHECK(peaks.read_bytes >= last.read_bytes && peaks.kv_ops[0] >= last.kv_ops[0]);
    }
    text_read(path, text);
    CHECK(strchr(text, '\n') == text + strlen(text) - 1); /* one line */
    path_remove(path);
}

/* What it says counts, whatever the truth; nothing of what another wrote is lost; what makes no sense is measured anew. */
TEST(limits, the_file_is_read_with_care)
{
    char path[64], text[4096], line[4096], start[512];
    struct kern_peaks peaks;
    path_make(path);
    CHECK(peaks_read(path, &peaks));
    text_read(path, text);
    char *machine_end = strchr(text + 2, '\t');
    snprintf(start, sizeof start, "%.*s", (int)(machine_end - text), text);
    static const char *const figures = "\t1e9\t2e9\t3e9\t4e9\t5e9\t6e9\t7e9\t8e9\t9e9\t1e10";
    static const char *const other = "1\tanother machine\t3\t1\t1\t1\t1\t1\t1\t1\t1\t1\t1\n";
    snprintf(line, sizeof line, "%s%s\t%d%s\n", other, start, ENGINE_PEAKS_TRIES, figures);
    text_write(path, line);
    CHECK(!peaks_read(path, &peaks));
    CHECK(peaks.weight_ops[0] == 1e9 && peaks.weight_ops[5] == 6e9 && peaks.kv_ops[0] == 7e9 &&
          peaks.kv_ops[2] == 9e9 && peaks.read_bytes == 1e10);
    static const char *const spoilt[] = {
        "\t0\t1\t1\t1\t1\t1\t1\t1\t1\t1\t1\n",
        "\t4\t1\t1\t1\t1\t1\t1\t1\t1\t1\t1\n",
        "\t3\t1\t1\t1\t1\t1\t1\t1\t1\t1\n",
        "\t3\t1\t1\t1\t1\t1\t1\t1\t1\t1\t1\t1\n",
        "\t3\t1\t1\t1\tnan\t1\t1\t1\t1\t1\t1\n",
        "\t3\t1\t1\t1\t-1\t1\t1\t1\t1\t1\t1\n",
        "\t3\t1\t1\t1\t1e999\t1\t1\t1\t1\t1\t1\n",
        "\t3\t1\t1\t1\t1\t1\t1\t1\t1\t1\t1",
        "\t3\t1\t1\tx\t1\t1\t1\t1\t1\t1\t1\n",
        "\n",
        "\t\n",
        "",
    };
    for (size_t i = 0; i < sizeof spoilt / sizeof spoilt[0]; i++) {
        snprintf(line, sizeof line, "%s%s%s", other, start, spoilt[i]);
        text_write(path, line);
        CHECK_MSG(peaks_read(path, &peaks), "%zu was believed", i);
        CHECK(peaks.weight_ops[0] > 100);
        text_read(path, text);
        CHECK(strncmp(text, other, strlen(other)) == 0);
        CHECK(strncmp(text + strlen(other), start, strlen(start)) == 0);
    }
    path_remove(path);
}

/* No file, a path that cannot be, a lock that somebody sits on: measured, and nothing worse. */
TEST(limits, no_file_is_no_error)
{
    char path[64];
    struct kern_peaks peaks;
    CHECK(peaks_read(NULL, &peaks));
    CHECK(peaks_read("/proc/nowhere/peaks", &peaks));
    path_make(path);
    CHECK(peaks_read(path, &peaks));
    FILE *file = fopen(path, "r");
    CHECK(file && flock(fileno(file), LOCK_EX) == 0);
    uint64_t begin_ns = clock_now_ns();
    CHECK(peaks_read(path, &peaks));
    CHECK(clock_now_ns() - begin_ns < 30 * NS_PER_S);
    fclose(file);
    path_remove(path);
}

TEST(limits, the_default_file_follows_the_environment)
{
    char path[128];
    setenv("XDG_CACHE_HOME", "/x/cache", 1);
    CHECK(engine_peaks_file(path, sizeof path));
    CHECK_STR(path, "/x/cache/baton/peaks");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/x/home", 1);
    CHECK(engine_peaks_file(path, sizeof path));
    CHECK_STR(path, "/x/home/.cache/baton/peaks");
    CHECK(!engine_peaks_file(path, 10));
    unsetenv("HOME");
    CHECK(!engine_peaks_file(path, sizeof path));
}

/* Held against what the engine says once it is loaded. */
TEST(limits, a_model_asks_for_what_it_will_take)
{
    static const char *const paths[] = {"BATON_ENGINE_MODEL", "BATON_ENGINE_MODEL_F32"};
    struct kern_peaks peaks = {.read_bytes = 1e10};
    for (int i = 0; i < KERN_WEIGHT_TYPES; i++)
        peaks.weight_ops[i] = 1e11 * (i + 1);
    for (int i = 0; i < KERN_KV_TYPE_COUNT; i++)
        peaks.kv_ops[i] = 1e11 * (i + 1);
    for (int i = 0; i < 2; i++)
        for (int compute = 0; compute <= KERN_COMPUTE_INT8; compute++) {
            struct err err = ERR_INIT;
            struct model_file *model;
            CHECK(getenv(paths[i]) && !model_open(getenv(paths[i]), &model, &err));
            struct engine_options o = {.threads = 1,
                                       .compute = (enum kern_compute)compute,
                                       .kv_type = KERN_KV_INT8,
                                       .kv_pages = 4};
            struct engine *engine = harness_engine(model, o);
            const struct engine_info *info = engine_info(engine);
            const struct model_config *config = &model->config;
            struct engine_limits limits;
            CHECK_MSG(!engine_limits(&o, model, &peaks, &limits, &err), "%s", err.message);
            CHECK_INT(limits.weight_bytes, info->weight_bytes);
            CHECK_INT(limits.kv_bytes_per_token, info->kv_bytes_per_token);
            double head = (double)config->vocab * config->hidden;
            double norms = (2.0 * config->layers + 1) * config->hidden;
            double matrices =
                (double)model_parameter_count(model) - norms - head * (config->tied_output ? 1 : 2);
            CHECK(limits.model.layer_ops == 2 * matrices && limits.model.head_ops == 2 * head);
            CHECK(limits.model.attention_ops ==
                  4.0 * config->heads * config->head_dim * config->layers);
            CHECK(limits.peaks.attention_ops == 3e11 && limits.peaks.bytes == 1e10);
            double held = limits.model.layer_bytes + limits.model.head_bytes;
            CHECK(config->tied_output ? held == (double)limits.weight_bytes
                                      : held < (double)limits.weight_bytes);
            engine_destroy(engine);
            model_close(model);
        }
}

static bool near(double a, double b)
{
    return a > b * (1 - 1e-9) && a < b * (1 + 1e-9);
}

TEST(limits, expected_seconds_lie_between_those_measured)
{
    const struct engine_reach reach = {.rows = {1, 4, 16, 64, 256},
                                       .layers = {10, 16, 28, 76, 204},
                                       .head = {1, 4, 10, 20, 80},
                                       .decode_pair = 0.5,
                                       .prompt_pair = 0.25};
    static const struct {
        struct roofline_step step;
        double seconds;
    } cases[] = {
        {{0}, 0},
        {{.decode_rows = 1, .samples = 1, .pairs = 10}, 10 + 1 + 5},
        {{.decode_rows = 2, .samples = 2}, 12 + 2},
        {{.decode_rows = 40, .samples = 40}, 52 + 15},
        {{.decode_rows = 64, .samples = 64, .pairs = 64}, 76 + 20 + 32},
        {{.decode_rows = 100, .samples = 100}, 76 + 24 + 20 + 11.25},
        {{.decode_rows = 512, .samples = 512}, 408 + 160},
        {{.prompt_rows = 256, .pairs = 8}, 204 + 2},
        {{.prompt_rows = 512, .samples = 1}, 408 + 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double seconds = engine_reach_seconds(&reach, &cases[i].step);
        CHECK_MSG(near(seconds, cases[i].seconds) || seconds == cases[i].seconds, "case %zu: %g", i,
                  seconds);
    }
}

/* Of the whole model, and of one layer where the rest would be too much: steps were run and took time. */
TEST(limits, what_is_expected_is_measured)
{
    struct err err = ERR_INIT;
    struct model_file *model = harness_model();
    struct kern_peaks peaks;
    peaks_read(NULL, &peaks);
    for (int i = 0; i < 4; i++) {
        struct engine_options o = options;
        struct engine_limits limits;
        struct engine_reach reach;
        o.compute = i % 2 ? KERN_COMPUTE_F32 : KERN_COMPUTE_INT8;
        o.kv_type = i % 2 ? KERN_KV_F32 : KERN_KV_INT8;
        CHECK_MSG(!engine_limits(&o, model, &peaks, &limits, &err), "%s", err.message);
        if (i >= 2)
            limits.model.layer_bytes *= 1e6;
        CHECK_MSG(!engine_reach_measure(&o, model, &limits, &reach, &err), "%s", err.message);
        for (int p = 0; p < ENGINE_REACH_POINTS; p++)
            CHECK_MSG(reach.layers[p] > 0 && reach.head[p] >= 0 && reach.rows[p] > 0 &&
                          reach.layers[p] >= reach.layers[p ? p - 1 : 0],
                      "%u rows: layers %g s, head %g s; before them %g s", reach.rows[p],
                      reach.layers[p], reach.head[p], reach.layers[p ? p - 1 : 0]);
        /* more rows take longer, each of them less; however busy the machine is, not by as much as this allows */
        CHECK_MSG(reach.layers[3] > reach.layers[0] && reach.layers[3] < 20 * 64 * reach.layers[0],
                  "1 row takes %g s, 64 take %g s", reach.layers[0], reach.layers[3]);
        CHECK(reach.decode_pair >= 0 && reach.prompt_pair >= 0);
    }
    struct engine_options bad = options;
    struct engine_limits limits;
    struct engine_reach reach;
    CHECK(!engine_limits(&options, model, &peaks, &limits, &err));
    bad.context_tokens = 32;
    CHECK_INT(engine_reach_measure(&bad, model, &limits, &reach, &err), STATUS_UNIMPLEMENTED);
    model_close(model);
}
