/* See forecast.h. A table of steps by sched/roofline.h: each cell is what the slowest of arithmetic, reading weights and reading KV
 * allows, and which one that is. */
#include "client/forecast.h"

#include <stdio.h>
#include <string.h>

#include "model/model.h"

/* Contexts: these, as far as the model goes, and its longest. */
static const uint32_t contexts[] = {512, 2048, 8192};
static const uint32_t batches[] = {1, 4, 16, 64};
enum { CONTEXTS = sizeof contexts / sizeof contexts[0] + 1, CELL_BYTES = 40 };

static uint32_t columns_of(uint32_t longest, uint32_t columns_out[CONTEXTS])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i + 1 < CONTEXTS; i++)
        if (contexts[i] < longest)
            columns_out[count++] = contexts[i];
    columns_out[count++] = longest;
    return count;
}

/* Three digits, whatever the size. */
static void format_rate(double tokens_per_s, char out[16])
{
    if (tokens_per_s >= 100)
        snprintf(out, 16, "%.0f", tokens_per_s);
    else
        snprintf(out, 16, tokens_per_s >= 10 ? "%.1f" : "%.2f", tokens_per_s);
}

static void format_bytes(double bytes, char out[16])
{
    if (bytes >= 999.5e6)
        snprintf(out, 16, "%.2f GB", bytes / 1e9);
    else
        snprintf(out, 16, "%.1f MB", bytes / 1e6);
}

static void cell_print(double tokens_per_s, struct roofline_cost cost)
{
    static const char *const words[] = {[ROOFLINE_BOUND_ARITHMETIC] = "arithmetic",
                                        [ROOFLINE_BOUND_WEIGHTS] = "weights",
                                        [ROOFLINE_BOUND_KV] = "KV"};
    char rate[16], cell[CELL_BYTES];
    format_rate(tokens_per_s, rate);
    snprintf(cell, sizeof cell, "%s %s", rate, words[roofline_bound(cost)]);
    printf("  %-18s", cell);
}

static void head_print(const char *name, const uint32_t *columns, uint32_t count)
{
    printf("%-14s", name);
    for (uint32_t c = 0; c < count; c++) {
        char cell[CELL_BYTES];
        snprintf(cell, sizeof cell, "%u tokens", columns[c]);
        printf("  %-18s", cell);
    }
    printf("\n");
}

/* A whole prompt, chunk by chunk. */
static double prefill_rate(const struct engine_limits *limits, uint32_t tokens, uint32_t chunk,
                           struct roofline_cost *cost_out)
{
    struct roofline_cost all = {0};
    double seconds = 0;
    for (uint32_t at = 0; at < tokens; at += chunk) {
        uint64_t rows = tokens - at < chunk ? tokens - at : chunk;
        struct roofline_step step = {.prompt_rows = (uint32_t)rows,
                                     .samples = at + rows == tokens,
                                     .pairs = roofline_pairs(at, (uint32_t)rows),
                                     .positions = at + rows};
        struct roofline_cost cost = roofline_cost(&limits->model, &limits->peaks, &step);
        seconds += roofline_least(cost);
        all.arithmetic += cost.arithmetic;
        all.weights += cost.weights;
        all.kv += cost.kv;
    }
    *cost_out = all;
    return tokens / seconds;
}

/* Sequences in the midst of a context: half of it behind them. */
static double decode_rate(const struct engine_limits *limits, uint32_t batch, uint32_t context,
                          struct roofline_cost *cost_out)
{
    uint64_t seen = (uint64_t)batch * (context / 2 + 1);
    struct roofline_step step = {
        .decode_rows = batch, .samples = batch, .pairs = seen, .positions = seen};
    *cost_out = roofline_cost(&limits->model, &limits->peaks, &step);
    return batch / roofline_least(*cost_out);
}

static void memory_print(const struct forecast_options *options, const struct engine_limits *limits)
{
    char weights[16], pool[16];
    double token = (double)limits->kv_bytes_per_token;
    format_bytes((double)limits->weight_bytes, weights);
    format_bytes((double)options->kv_memory, pool);
    printf("memory         weights %s; KV %.1f KB a token in %s: %.0f tokens in a pool of %s\n",
           weights, token / 1e3, kern_kv_type_name(options->engine.kv_type),
           (double)options->kv_memory / token, pool);
}

static void tables_print(const struct forecast_options *options, const struct engine_limits *limits,
                         uint32_t longest)
{
    uint32_t columns[CONTEXTS], count = columns_of(longest, columns);
    struct roofline_cost cost;
    printf("\nat this machine's limits, tokens/s of one node, and what sets each\n");
    head_print("prefill of", columns, count);
    printf("%-14s", "  a prompt");
    for (uint32_t c = 0; c < count; c++) {
        double rate = prefill_rate(limits, columns[c], options->chunk_tokens, &cost);
        cell_print(rate, cost);
    }
    printf("\n");
    head_print("decode up to", columns, count);
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
        char name[32];
        snprintf(name, sizeof name, "  batch of %u", batches[b]);
        printf("%-14s", name);
        for (uint32_t c = 0; c < count; c++) {
            double rate = decode_rate(limits, batches[b], columns[c], &cost);
            cell_print(rate, cost);
        }
        printf("\n%-14s", "    memory");
        for (uint32_t c = 0; c < count; c++) {
            char bytes[16];
            format_bytes((double)limits->weight_bytes +
                             (double)batches[b] * columns[c] * (double)limits->kv_bytes_per_token,
                         bytes);
            printf("  %-18s", bytes);
        }
        printf("\n");
    }
}

enum status forecast_print(const struct forecast_options *options, const struct model_file *model,
                           struct err *err)
{
    struct kern_peaks peaks;
    struct engine_limits limits;
    bool measured;
    enum status status =
        engine_peaks(&options->engine, options->peaks_file, &peaks, &measured, err);
    if (!status)
        status = engine_limits(&options->engine, model, &peaks, &limits, err);
    if (status)
        return status;
    char machine[256];
    status = engine_machine(&options->engine, machine, sizeof machine, err);
    if (status)
        return status;
    printf("\nthis machine   %s (%s)\n", machine, measured ? "measured now" : "measured before");
    printf("peaks          layers %.0f GOP/s, head %.0f GOP/s, attention %.0f GOP/s, reading %.1f "
           "GB/s\n",
           limits.peaks.layer_ops / 1e9, limits.peaks.head_ops / 1e9,
           limits.peaks.attention_ops / 1e9, limits.peaks.bytes / 1e9);
    memory_print(options, &limits);
    uint32_t longest = options->engine.context_tokens ? options->engine.context_tokens
                                                      : model->config.context_tokens;
    tables_print(options, &limits, longest);
    return STATUS_OK;
}
