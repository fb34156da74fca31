/* See forecast.h. A table of steps by sched/roofline.h: each cell is what the slowest of arithmetic, reading weights and reading KV
 * allows, and which one that is; below it what steps that were run just now let expect (engine/reach.h). */
#include "client/forecast.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/reach.h"
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

/* What is known of the model: at the limits, and what was measured (NULL: nothing). */
struct forecast {
    const struct forecast_options *options;
    const struct engine_limits *limits;
    const struct engine_reach *reach;
};

/* Tokens a second: at the limits, with what they cost; and expected, 0 where it is not known. */
struct rates {
    double limit, expected;
    struct roofline_cost cost;
};

static void step_add(const struct forecast *forecast, const struct roofline_step *step,
                     struct rates *seconds)
{
    struct roofline_cost cost =
        roofline_cost(&forecast->limits->model, &forecast->limits->peaks, step);
    seconds->limit += roofline_least(cost);
    seconds->expected += forecast->reach ? engine_reach_seconds(forecast->reach, step) : 0;
    seconds->cost.arithmetic += cost.arithmetic;
    seconds->cost.weights += cost.weights;
    seconds->cost.kv += cost.kv;
}

static struct rates rates_of(double tokens, struct rates seconds)
{
    return (struct rates){tokens / seconds.limit,
                          seconds.expected > 0 ? tokens / seconds.expected : 0, seconds.cost};
}

/* A whole prompt, chunk by chunk. */
static struct rates prefill_rates(const struct forecast *forecast, uint32_t tokens)
{
    struct rates seconds = {0};
    uint32_t chunk = forecast->options->chunk_tokens;
    for (uint32_t at = 0; at < tokens; at += chunk) {
        uint64_t rows = tokens - at < chunk ? tokens - at : chunk;
        struct roofline_step step = {.prompt_rows = (uint32_t)rows,
                                     .samples = at + rows == tokens,
                                     .pairs = roofline_pairs(at, (uint32_t)rows),
                                     .positions = at + rows};
        step_add(forecast, &step, &seconds);
    }
    return rates_of(tokens, seconds);
}

/* Sequences in the midst of a context: half of it behind them. */
static struct rates decode_rates(const struct forecast *forecast, uint32_t batch, uint32_t context)
{
    uint64_t seen = (uint64_t)batch * (context / 2 + 1);
    struct roofline_step step = {
        .decode_rows = batch, .samples = batch, .pairs = seen, .positions = seen};
    struct rates seconds = {0};
    step_add(forecast, &step, &seconds);
    return rates_of(batch, seconds);
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

/* A row at the limits, and one of what is expected. */
static void rates_print(const char *name, const struct rates *rates, uint32_t count)
{
    printf("%-14s", name);
    for (uint32_t c = 0; c < count; c++)
        cell_print(rates[c].limit, rates[c].cost);
    printf("\n");
    if (!(rates[0].expected > 0))
        return;
    printf("%-14s", "    expected");
    for (uint32_t c = 0; c < count; c++) {
        char rate[16];
        format_rate(rates[c].expected, rate);
        printf("  %-18s", rate);
    }
    printf("\n");
}

static void tables_print(const struct forecast *forecast, uint32_t longest)
{
    uint32_t columns[CONTEXTS], count = columns_of(longest, columns);
    struct rates rates[CONTEXTS];
    printf("\nat this machine's limits, tokens/s of one node, and what sets each%s\n",
           forecast->reach ? "; expected, from steps run just now" : "");
    head_print("prefill of", columns, count);
    for (uint32_t c = 0; c < count; c++)
        rates[c] = prefill_rates(forecast, columns[c]);
    rates_print("  a prompt", rates, count);
    head_print("decode up to", columns, count);
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
        char name[32];
        snprintf(name, sizeof name, "  batch of %u", batches[b]);
        for (uint32_t c = 0; c < count; c++)
            rates[c] = decode_rates(forecast, batches[b], columns[c]);
        rates_print(name, rates, count);
        printf("%-14s", "    memory");
        for (uint32_t c = 0; c < count; c++) {
            char bytes[16];
            format_bytes((double)forecast->limits->weight_bytes +
                             (double)batches[b] * columns[c] *
                                 (double)forecast->limits->kv_bytes_per_token,
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
    fflush(stdout);
    bool watched = isatty(STDERR_FILENO);
    if (watched)
        fputs("running a few steps of it ...\r", stderr);
    struct engine_reach reach;
    struct err why = ERR_INIT;
    bool known = !engine_reach_measure(&options->engine, model, &limits, &reach, &why);
    if (watched)
        fputs("                             \r", stderr);
    if (!known)
        printf("expected       not known: %s\n", why.message);
    tables_print(&(struct forecast){options, &limits, known ? &reach : NULL}, longest);
    return STATUS_OK;
}
