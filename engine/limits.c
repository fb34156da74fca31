/* See limits.h. */
#include "engine/limits.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "engine/internal.h"

/* --- the file: "1", the machine, how often it was measured, the figures; by tabs --- */

enum {
    FILE_BYTES_MAX = 64 << 10,
    MACHINE_BYTES = 256,
    FIGURES = KERN_WEIGHT_TYPES + KERN_KV_TYPE_COUNT + 1
};
/* Who measures holds the lock for a tenth of a second; somebody who was stopped meanwhile is not waited for. */
static const uint64_t lock_patience_ns = 2 * NS_PER_S;

static double *figure(struct kern_peaks *peaks, int i)
{
    if (i < KERN_WEIGHT_TYPES)
        return &peaks->weight_ops[i];
    i -= KERN_WEIGHT_TYPES;
    return i < KERN_KV_TYPE_COUNT ? &peaks->kv_ops[i] : &peaks->read_bytes;
}

bool engine_peaks_file(char *path_out, size_t path_bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char path[4096];
    int bytes = 0;
    if (cache && *cache)
        bytes = snprintf(path, sizeof path, "%s/baton/peaks", cache);
    else if (home && *home)
        bytes = snprintf(path, sizeof path, "%s/.cache/baton/peaks", home);
    if (bytes <= 0 || (size_t)bytes >= sizeof path || (size_t)bytes >= path_bytes)
        return false;
    memcpy(path_out, path, (size_t)bytes + 1);
    return true;
}

/* The file, locked; -1: there is none. */
static int file_open(const char *path)
{
    char folder[4096];
    size_t bytes = strlen(path);
    if (bytes >= sizeof folder)
        return -1;
    memcpy(folder, path, bytes + 1);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(folder, 0755); /* what it is for is seen below */
        *slash = '/';
    }
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    uint64_t until_ns = clock_now_ns() + lock_patience_ns;
    while (file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0) {
        if (clock_now_ns() > until_ns) {
            close(file);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return file;
}

/* Reads the file as text, "" when there is nothing to be had of it. */
static void file_read(int file, char text[FILE_BYTES_MAX])
{
    ssize_t bytes = pread(file, text, FILE_BYTES_MAX - 1, 0);
    text[bytes > 0 ? bytes : 0] = 0;
}

/* How often this machine was measured by the line, and its figures; 0: it is another machine's, or no line of ours. */
static unsigned line_parse(const char *line, const char *machine, struct kern_peaks *peaks_out)
{
    size_t bytes = strlen(machine);
    if (strncmp(line, "1\t", 2) != 0 || strncmp(line + 2, machine, bytes) != 0 ||
        line[2 + bytes] != '\t')
        return 0;
    char *at;
    unsigned long count = strtoul(line + 2 + bytes + 1, &at, 10);
    struct kern_peaks peaks;
    for (int i = 0; i < FIGURES; i++) {
        if (*at != '\t')
            return 0;
        double value = strtod(at, &at);
        if (!isfinite(value) || value <= 0)
            return 0;
        *figure(&peaks, i) = value;
    }
    if (*at || count < 1 || count > ENGINE_PEAKS_TRIES)
        return 0;
    *peaks_out = peaks;
    return (unsigned)count;
}

/* Splits `text` into lines, keeps those of other machines in `others`, and gives what the last line of this one says, or 0. */
static unsigned lines_parse(char *text, const char *machine, struct buf *others,
                            struct kern_peaks *peaks_out)
{
    unsigned count = 0;
    size_t prefix = 2 + strlen(machine) + 1;
    char mine[MACHINE_BYTES + 4];
    snprintf(mine, sizeof mine, "1\t%s\t", machine);
    for (char *line = text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (!*next)
            break; /* a last line without an end was not written whole */
        *next++ = 0;
        if (strncmp(line, mine, prefix) == 0)
            count = line_parse(line, machine, peaks_out);
        else
            buf_printf(others, "%s\n", line);
    }
    return count;
}

static void file_write(int file, struct buf *lines, const char *machine, unsigned count,
                       struct kern_peaks peaks)
{
    buf_printf(lines, "1\t%s\t%u", machine, count);
    for (int i = 0; i < FIGURES; i++)
        buf_printf(lines, "\t%.6g", *figure(&peaks, i));
    buf_append_text(lines, "\n");
    if (lines->failed || lines->bytes >= FILE_BYTES_MAX)
        return;
    ssize_t written = pwrite(file, lines->data, lines->bytes, 0);
    (void)ftruncate(file, written > 0 ? written : 0); /* a cut line is no line: see lines_parse */
}

/* --- measuring --- */

static enum status device_open(const struct engine_options *options,
                               struct kern_device **device_out, struct err *err)
{
    const struct kern_backend *backend;
    enum status status =
        kern_backend_find(options->backend ? options->backend : "cpu", &backend, err);
    if (status)
        return status;
    struct kern_device_options device = {.threads = options->threads,
                                         .cpus = options->cpus,
                                         .isa = options->isa,
                                         .compute = options->compute};
    return backend->open(&device, device_out, err);
}

/* The best of `count` earlier measurements, in `peaks`, and of one more. */
static enum status measure(const struct kern_device *device, unsigned count,
                           struct kern_peaks *peaks)
{
    struct kern_peaks now;
    enum status status = device->ops->device_peaks(device, &now);
    for (int i = 0; !status && i < FIGURES; i++)
        if (!count || *figure(&now, i) > *figure(peaks, i))
            *figure(peaks, i) = *figure(&now, i);
    return status;
}

static enum status peaks_of(const struct kern_device *device, const char *path,
                            struct kern_peaks *peaks_out, bool *measured_out)
{
    char machine[MACHINE_BYTES];
    device->ops->device_machine(device, machine, sizeof machine);
    int file = path ? file_open(path) : -1;
    char *text = file >= 0 ? malloc(FILE_BYTES_MAX) : NULL;
    struct buf lines = BUF_INIT;
    struct kern_peaks peaks = {0};
    unsigned count = 0;
    enum status status = STATUS_OK;
    if (text) {
        file_read(file, text);
        count = lines_parse(text, machine, &lines, &peaks);
    }
    *measured_out = count < ENGINE_PEAKS_TRIES;
    if (*measured_out) {
        status = measure(device, count, &peaks);
        if (!status && text)
            file_write(file, &lines, machine, count + 1, peaks);
    }
    if (!status)
        *peaks_out = peaks;
    free(text);
    buf_finish(&lines);
    if (file >= 0)
        close(file); /* and with it the lock */
    return status;
}

enum status engine_peaks(const struct engine_options *options, const char *file,
                         struct kern_peaks *peaks_out, bool *measured_out, struct err *err)
{
    struct kern_device *device;
    bool measured;
    enum status status = device_open(options, &device, err);
    if (status)
        return status;
    status = peaks_of(device, file, peaks_out, &measured);
    device->ops->device_close(device);
    if (status)
        return err_set(err, status, "peaks: no memory, or no threads, to measure this machine");
    *measured_out = measured;
    return STATUS_OK;
}

enum status engine_machine(const struct engine_options *options, char *text_out, size_t text_bytes,
                           struct err *err)
{
    struct kern_device *device;
    enum status status = device_open(options, &device, err);
    if (status)
        return status;
    device->ops->device_machine(device, text_out, text_bytes);
    device->ops->device_close(device);
    return STATUS_OK;
}

/* --- the model's side --- */

struct sum {
    const struct kern_device *device;
    const struct kern_peaks *peaks;
    double ops, seconds; /* of one row */
    uint64_t bytes;
    struct err *err;
    enum status status; /* the first failure */
};

static void matrix_add(struct sum *sum, const struct gguf_tensor *tensor)
{
    struct kern_weights_desc desc = {.rows = (uint32_t)tensor->shape[1],
                                     .columns = (uint32_t)tensor->shape[0]};
    if (sum->status)
        return;
    sum->status = engine_weight_type(tensor, &desc.type, sum->err);
    if (sum->status)
        return;
    double ops = 2.0 * desc.rows * desc.columns;
    sum->ops += ops;
    sum->seconds += ops / sum->peaks->weight_ops[desc.type];
    sum->bytes += sum->device->ops->weights_bytes_ahead(sum->device, &desc);
}

static void limits_fill(struct engine_limits *limits, const struct engine_options *options,
                        const struct model_file *model, struct sum *layers, struct sum *head,
                        struct sum *embedding)
{
    const struct model_config *config = &model->config;
    uint64_t norm_bytes = (2 * (uint64_t)config->layers + 1) * config->hidden * sizeof(float);
    limits->kv_bytes_per_token = 2 * (uint64_t)config->layers * config->kv_heads *
                                 kern_kv_head_bytes(options->kv_type, config->head_dim);
    limits->weight_bytes = layers->bytes + head->bytes + embedding->bytes + norm_bytes;
    limits->peaks = (struct roofline_peaks){
        .layer_ops = layers->ops / layers->seconds,
        .head_ops = head->ops / head->seconds,
        .attention_ops = layers->peaks->kv_ops[options->kv_type],
        .bytes = layers->peaks->read_bytes,
    };
    limits->model = (struct roofline_model){
        .layer_ops = layers->ops,
        .head_ops = head->ops,
        .attention_ops = 4.0 * config->head_dim * config->heads * config->layers,
        .layer_bytes = (double)(layers->bytes + norm_bytes),
        .head_bytes = (double)head->bytes,
        .kv_bytes = (double)limits->kv_bytes_per_token,
    };
}

enum status engine_limits(const struct engine_options *options, const struct model_file *model,
                          const struct kern_peaks *peaks, struct engine_limits *limits_out,
                          struct err *err)
{
    struct kern_device *device;
    enum status status = device_open(options, &device, err);
    if (status)
        return status;
    struct sum layers = {.device = device, .peaks = peaks, .err = err}, head = layers,
               embedding = layers;
    for (uint32_t i = 0; i < model->config.layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct gguf_tensor *const matrices[] = {
            layer->attn_q,   layer->attn_k, layer->attn_v,  layer->attn_output,
            layer->ffn_gate, layer->ffn_up, layer->ffn_down};
        for (size_t m = 0; m < sizeof matrices / sizeof matrices[0]; m++)
            matrix_add(&layers, matrices[m]);
    }
    matrix_add(&head, model->output);
    if (model->output != model->token_embd)
        matrix_add(&embedding, model->token_embd);
    device->ops->device_close(device);
    const struct sum *const sums[] = {&layers, &head, &embedding};
    for (int i = 0; i < 3; i++)
        if (sums[i]->status)
            return sums[i]->status;
    limits_fill(limits_out, options, model, &layers, &head, &embedding);
    return STATUS_OK;
}
