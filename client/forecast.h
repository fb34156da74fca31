/* What a model will need and reach on this machine, before any node is started: the second half of `baton inspect`.
 * Owner: the main thread. */
#ifndef BATON_CLIENT_FORECAST_H
#define BATON_CLIENT_FORECAST_H

#include "engine/limits.h"

struct forecast_options {
    struct engine_options engine; /* as a node's */
    const char *peaks_file;       /* NULL: measured now, and not kept */
    uint32_t chunk_tokens;
    uint64_t kv_memory; /* bytes */
};

/* Prints it to stdout. STATUS_CONFIG, UNIMPLEMENTED, MEMORY: nothing was printed. */
enum status forecast_print(const struct forecast_options *options, const struct model_file *model,
                           struct err *err);

#endif
