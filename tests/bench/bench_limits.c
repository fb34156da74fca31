/* See bench_limits.h. */
#include "tests/bench/bench_limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/limits.h"

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

void limits_open(struct limits *limits, double bytes, unsigned threads)
{
    *limits = (struct limits){.threads = threads};
    if (peaks_reader_create(cpu_isa_detect(), (size_t)bytes, threads, PEAKS_TURN, &limits->reader))
        die("no memory");
}

void limits_measure(struct limits *limits)
{
    struct peaks *peaks = &limits->peaks;
    if (peaks_measure(cpu_isa_detect(), limits->threads, PEAKS_TURN, peaks))
        die("no thread");
    limits->bandwidth = peaks_reader_rate(limits->reader);
    struct peaks *highest = &limits->highest;
    highest->f32 = fmax(highest->f32, peaks->f32);
    highest->int8 = fmax(highest->int8, peaks->int8);
    highest->nibble = fmax(highest->nibble, peaks->nibble);
    highest->pair = fmax(highest->pair, peaks->pair);
    const double now[LIMITS] = {limits->bandwidth, peaks->f32, peaks->int8, peaks->nibble,
                                peaks->pair};
    for (int i = 0; i < LIMITS && limits->count < BENCH_ROUNDS_MAX; i++)
        limits->seen[i][limits->count] = now[i];
    limits->count += limits->count < BENCH_ROUNDS_MAX;
}

void limits_add(struct bench *bench, struct limits *limits)
{
    static const char *const names[LIMITS] = {"read", "f32", "int8", "nibble", "pair"};
    for (int i = 0; i < LIMITS; i++) {
        char id[64];
        snprintf(id, sizeof id, "limit_%s_%ut", names[i], limits->threads);
        bench_add(bench,
                  &(struct bench_record){.id = id,
                                         .value = bench_median(limits->seen[i], limits->count),
                                         .unit = i == LIMIT_READ ? "GB/s" : "GOP/s"});
    }
}

/* The peaks of this round in the engine's terms: kernels/cpu/machine.c does the same with those of a start. */
static struct kern_peaks peaks_of(const struct limits *limits, enum kern_compute compute)
{
    const struct peaks *from = &limits->peaks;
    struct kern_peaks peaks = {.read_bytes = limits->bandwidth * 1e9};
    for (int type = 0; type < KERN_WEIGHT_TYPES; type++) {
        bool four_bits = type == KERN_WEIGHT_Q4_0 || type == KERN_WEIGHT_Q4_1;
        peaks.weight_ops[type] = 1e9 * (compute == KERN_COMPUTE_F32 ? from->f32
                                        : four_bits                 ? from->nibble
                                                                    : from->int8);
    }
    for (int type = 0; type < KERN_KV_TYPE_COUNT; type++)
        peaks.kv_ops[type] = 1e9 * (type == KERN_KV_INT8 ? from->pair : from->f32);
    return peaks;
}

struct roofline_cost limits_cost(const struct subject *subject, const struct limits *limits,
                                 struct roofline_step step)
{
    const struct engine_info *info = engine_info(subject->engine);
    struct kern_peaks peaks = peaks_of(limits, info->compute);
    struct engine_options options = {
        .threads = info->threads, .compute = info->compute, .kv_type = info->kv_type};
    struct engine_limits of;
    struct err err = ERR_INIT;
    if (engine_limits(&options, subject->model, &peaks, &of, &err))
        die(err.message);
    return roofline_cost(&of.model, &of.peaks, &step);
}

void limits_close(struct limits *limits)
{
    peaks_reader_destroy(limits->reader);
}

void limits_alone_add(struct bench *bench, const char *id, const char *unit, double value,
                      const char *limit_name, double limit, double part)
{
    char of[64];
    snprintf(of, sizeof of, "%s, %.0f %% of runs", unit, 100 * part);
    bench_add(bench, &(struct bench_record){
                         .id = id, .value = value, .unit = of, BENCH_LIMIT(limit_name, limit)});
}
