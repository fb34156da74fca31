/* What the machine allows and what a model asks of it: the two sides of sched/roofline.h.
 *
 *     backend ── device_peaks ─▶ peaks ──┐                    the file: one line a machine, by the device's own description of it
 *        ▲                         ▲     ├─▶ struct engine_limits ─▶ roofline_cost, roofline_forecast
 *     too few measured yet     file of peaks  model's tensors
 *
 * A measurement takes about a tenth of a second, so it is kept in a file. Somebody else may have wanted the machine meanwhile, which
 * makes it too low, never too high: so the first few starts measure again, and the best counts. A process that measures
 * holds the file's lock, so that two nodes that start together do not measure each other.
 *
 * Owner: any thread, one at a time; before the engine is at work. */
#ifndef BATON_ENGINE_LIMITS_H
#define BATON_ENGINE_LIMITS_H

#include "engine/engine.h"
#include "sched/roofline.h"

enum { ENGINE_PEAKS_TRIES = 3 };

/* The default file: "${XDG_CACHE_HOME:-~/.cache}/baton/peaks". False: there is neither, or no room. */
bool engine_peaks_file(char *path_out, size_t path_bytes);

/* Of the device that these options would open (backend, isa, compute, threads, cpus count). `file`: where they are kept, made with its
 * folder when it is not there; NULL: nowhere. A file that cannot be read or written is no error: then it is measured each
 * time. `measured_out`: they were, just now. CONFIG: such a device cannot be opened; MEMORY. */
enum status engine_peaks(const struct engine_options *options, const char *file,
                         struct kern_peaks *peaks_out, bool *measured_out, struct err *err);

/* What their device calls this machine: the key of the file's line. */
enum status engine_machine(const struct engine_options *options, char *text_out, size_t text_bytes,
                           struct err *err);

struct engine_limits {
    struct roofline_peaks peaks;
    struct roofline_model model;
    uint64_t weight_bytes; /* all of them, as held in memory */
    uint64_t kv_bytes_per_token;
};

/* Of this model with these options. UNIMPLEMENTED: a tensor's type is not built; CONFIG as above. */
enum status engine_limits(const struct engine_options *options, const struct model_file *model,
                          const struct kern_peaks *peaks, struct engine_limits *limits_out,
                          struct err *err);

#endif
